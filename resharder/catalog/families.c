/* The table of model families: see family.h. Sources: transformers; torchtitan's and Megatron-Core's state dicts and
 * arguments; llama.cpp's convert_hf_to_gguf and gguf-py's constants; llm.c. */
#include "resharder/catalog/family.h"

#include <stddef.h>

/* torchtitan saves q, k and v separately, but their moments like the model: in one matrix if the model has one. The first
 * names come from version 0.3, the others from earlier versions. */
#define TITAN "layers.%u.attention."
#define FUSED TITAN "qkv_linear.wqkv.*"
#define LAYER "decoder.layers.%u."

/* ---- names of tensors in other programs ---- */

static const struct pd_dialect as_here = {
    .name = "hugging_face", .base = "model.", .has_own_names = true, .sources = {[PD_ROLE_HEAD] = {NULL, PD_OUTSIDE}}};

/* Version 5 of transformers has all experts of a block in two tensors, the first of gate and up. Both forms are on the hub. */
#define FUSED_EXPERTS(PREFIX)                                                          \
    [PD_ROLE_EXPERT_GATE] = {.fused = PREFIX ".gate_up_proj", .fused_how = PD_HALVES}, \
    [PD_ROLE_EXPERT_UP] = {.fused = PREFIX ".gate_up_proj", .fused_how = PD_HALVES},   \
    [PD_ROLE_EXPERT_DOWN] = {.fused = PREFIX ".down_proj"}, [PD_ROLE_HEAD] = {NULL, PD_OUTSIDE}

static const struct pd_dialect experts_here = {
    .name = "hugging_face", .base = "model.", .has_own_names = true, .sources = {FUSED_EXPERTS("layers.%u.mlp.experts")}};

/* With fused experts the router changes its name. */
static const struct pd_dialect mixtral_here = {
    .name = "hugging_face",
    .base = "model.",
    .has_own_names = true,
    .sources = {[PD_ROLE_ROUTER] = {.fused = "layers.%u.mlp.gate.*"}, FUSED_EXPERTS("layers.%u.mlp.experts")}};

static const struct pd_dialect across = {.name = "hugging_face",
                                         .base = "transformer.",
                                         .has_own_names = true,
                                         .sources = {[PD_ROLE_Q] = {"h.%u.attn.c_attn.*", PD_ACROSS | PD_THIRDS},
                                                     [PD_ROLE_OUT] = {NULL, PD_ACROSS},
                                                     [PD_ROLE_UP] = {NULL, PD_ACROSS},
                                                     [PD_ROLE_DOWN] = {NULL, PD_ACROSS},
                                                     [PD_ROLE_HEAD] = {NULL, PD_OUTSIDE}}};

#define TITAN_EXPERTS "layers.%u.moe."
#define TITAN_STACKED(OLD, NEW)                                                            \
    {                                                                                      \
        TITAN_EXPERTS "routed_experts.inner_experts." NEW, 0, TITAN_EXPERTS "experts." OLD \
    }
static const struct pd_dialect torchtitan = {
    .name = "torchtitan",
    .base = "",
    .selection_bias = {TITAN_EXPERTS "expert_bias_E", 0, TITAN_EXPERTS "expert_bias"},
    .sources = {
        [PD_ROLE_TOKENS] = {"tok_embeddings.*"},
        [PD_ROLE_NORM1] = {"layers.%u.attention_norm.*"},
        [PD_ROLE_Q] = {TITAN "qkv_linear.wq.*", PD_NEIGHBOURS, TITAN "wq.*", FUSED, PD_BY_KV_HEAD | PD_NEIGHBOURS},
        [PD_ROLE_K] = {TITAN "qkv_linear.wk.*", PD_NEIGHBOURS, TITAN "wk.*", FUSED, PD_BY_KV_HEAD | PD_NEIGHBOURS},
        [PD_ROLE_V] = {TITAN "qkv_linear.wv.*", 0, TITAN "wv.*", FUSED, PD_BY_KV_HEAD},
        [PD_ROLE_Q_NORM] = {TITAN "q_norm.*"},
        [PD_ROLE_K_NORM] = {TITAN "k_norm.*"},
        [PD_ROLE_OUT] = {TITAN "wo.*"},
        [PD_ROLE_NORM2] = {"layers.%u.ffn_norm.*"},
        [PD_ROLE_GATE] = {"layers.%u.feed_forward.w1.*"},
        [PD_ROLE_UP] = {"layers.%u.feed_forward.w3.*"},
        [PD_ROLE_DOWN] = {"layers.%u.feed_forward.w2.*"},
        [PD_ROLE_ROUTER] = {TITAN_EXPERTS "router.gate.*"},
        [PD_ROLE_EXPERT_GATE] = TITAN_STACKED("w1", "w1_EFD"),
        [PD_ROLE_EXPERT_UP] = TITAN_STACKED("w3", "w3_EFD"),
        [PD_ROLE_EXPERT_DOWN] = TITAN_STACKED("w2", "w2_EDF"),
        [PD_ROLE_SHARED_GATE] = {TITAN_EXPERTS "shared_experts.w1.*"},
        [PD_ROLE_SHARED_UP] = {TITAN_EXPERTS "shared_experts.w3.*"},
        [PD_ROLE_SHARED_DOWN] = {TITAN_EXPERTS "shared_experts.w2.*"},
        [PD_ROLE_FINAL_NORM] = {"norm.*"},
        [PD_ROLE_HEAD] = {"lm_head.*", 0, "output.*"},
    }};

#define MEGATRON                                                                                                          \
    [PD_ROLE_TOKENS] = {"embedding.word_embeddings.*", PD_LONGER},                                                        \
    [PD_ROLE_POSITIONS] = {"embedding.position_embeddings.*"},                                                            \
    [PD_ROLE_NORM1] = {LAYER "self_attention.linear_qkv.layer_norm_*", 0, LAYER "input_layernorm.*"},                     \
    [PD_ROLE_Q] = {LAYER "self_attention.linear_qkv.*", PD_BY_KV_HEAD},                                                   \
    [PD_ROLE_Q_NORM] = {LAYER "self_attention.q_layernorm.*"}, [PD_ROLE_K_NORM] = {LAYER "self_attention.k_layernorm.*"}, \
    [PD_ROLE_OUT] = {LAYER "self_attention.linear_proj.*"}, [PD_ROLE_GATE] = {LAYER "mlp.linear_fc1.*", PD_HALVES},       \
    [PD_ROLE_UP] = {LAYER "mlp.linear_fc1.*", PD_HALVES}, [PD_ROLE_DOWN] = {LAYER "mlp.linear_fc2.*"},                    \
    [PD_ROLE_FINAL_NORM] = {"decoder.final_layernorm.*"}, [PD_ROLE_HEAD] = {"output_layer.*", PD_LONGER}

static const struct pd_dialect megatron = {
    .name = "megatron",
    .base = "",
    .is_stacked = true,
    .sources = {MEGATRON, [PD_ROLE_NORM2] = {LAYER "mlp.linear_fc1.layer_norm_*", 0, LAYER "pre_mlp_layernorm.*"}}};

/* Grouped and sequential experts are stored alike, stacked. The other names: one tensor an expert, as the modules have it, and
 * with singleton_local_shards, where the halves are apart. */
#define MEGATRON_HALF(END)                                                                                          \
    {                                                                                                               \
        LAYER "mlp.experts.experts.linear_fc1.*", PD_HALVES, LAYER "mlp.experts.local_experts.%e.linear_fc1.*",     \
            LAYER "mlp.experts.experts.%e.linear_fc1.*", PD_HALVES, LAYER "mlp.experts.experts.%e.linear_fc1.*" END \
    }
static const struct pd_dialect megatron_experts = {
    .name = "megatron",
    .base = "",
    .is_stacked = true,
    .selection_bias = {LAYER "mlp.router.expert_bias"},
    .sources = {MEGATRON, [PD_ROLE_NORM2] = {LAYER "pre_mlp_layernorm.*", PD_BY_MLP, LAYER "mlp.linear_fc1.layer_norm_*"},
                [PD_ROLE_ROUTER] = {LAYER "mlp.router.*"}, [PD_ROLE_EXPERT_GATE] = MEGATRON_HALF("_w"),
                [PD_ROLE_EXPERT_UP] = MEGATRON_HALF("_v"),
                [PD_ROLE_EXPERT_DOWN] = {LAYER "mlp.experts.experts.linear_fc2.*", 0,
                                         LAYER "mlp.experts.local_experts.%e.linear_fc2.*",
                                         LAYER "mlp.experts.experts.%e.linear_fc2.*"},
                [PD_ROLE_SHARED_GATE] = {LAYER "mlp.shared_experts.linear_fc1.*", PD_HALVES},
                [PD_ROLE_SHARED_UP] = {LAYER "mlp.shared_experts.linear_fc1.*", PD_HALVES},
                [PD_ROLE_SHARED_DOWN] = {LAYER "mlp.shared_experts.linear_fc2.*"}}};

#define GGUF                                                                                                            \
    [PD_ROLE_TOKENS] = {"token_embd.*"}, [PD_ROLE_POSITIONS] = {"position_embd.*"},                                     \
    [PD_ROLE_NORM1] = {"blk.%u.attn_norm.*"}, [PD_ROLE_Q_NORM] = {"blk.%u.attn_q_norm.*"},                              \
    [PD_ROLE_K_NORM] = {"blk.%u.attn_k_norm.*"}, [PD_ROLE_OUT] = {"blk.%u.attn_output.*"},                              \
    [PD_ROLE_GATE] = {"blk.%u.ffn_gate.*"}, [PD_ROLE_UP] = {"blk.%u.ffn_up.*"}, [PD_ROLE_DOWN] = {"blk.%u.ffn_down.*"}, \
    [PD_ROLE_FINAL_NORM] = {"output_norm.*"}, [PD_ROLE_HEAD] = {"output.*"}

static const struct pd_dialect gguf = {
    .name = "gguf",
    .base = "",
    .sources = {GGUF, [PD_ROLE_NORM2] = {"blk.%u.ffn_norm.*"}, [PD_ROLE_Q] = {"blk.%u.attn_q.*", PD_NEIGHBOURS},
                [PD_ROLE_K] = {"blk.%u.attn_k.*", PD_NEIGHBOURS}, [PD_ROLE_V] = {"blk.%u.attn_v.*"}}};

/* One tensor an expert is how llama.cpp wrote Mixtral at first. */
#define GGUF_EXPERTS                                                                                            \
    GGUF, [PD_ROLE_Q] = {"blk.%u.attn_q.*", PD_NEIGHBOURS}, [PD_ROLE_K] = {"blk.%u.attn_k.*", PD_NEIGHBOURS},   \
          [PD_ROLE_V] = {"blk.%u.attn_v.*"}, [PD_ROLE_ROUTER] = {"blk.%u.ffn_gate_inp.*"},                      \
          [PD_ROLE_EXPERT_GATE] = {"blk.%u.ffn_gate_exps.*", 0, "blk.%u.ffn_gate.%e.*"},                        \
          [PD_ROLE_EXPERT_UP] = {"blk.%u.ffn_up_exps.*", 0, "blk.%u.ffn_up.%e.*"},                              \
          [PD_ROLE_EXPERT_DOWN] = {"blk.%u.ffn_down_exps.*", 0, "blk.%u.ffn_down.%e.*"},                        \
          [PD_ROLE_SHARED_GATE] = {"blk.%u.ffn_gate_shexp.*"}, [PD_ROLE_SHARED_UP] = {"blk.%u.ffn_up_shexp.*"}, \
          [PD_ROLE_SHARED_DOWN] = {"blk.%u.ffn_down_shexp.*"}

static const struct pd_dialect gguf_experts = {
    .name = "gguf", .base = "", .sources = {GGUF_EXPERTS, [PD_ROLE_NORM2] = {"blk.%u.ffn_norm.*"}}};

static const struct pd_dialect gguf_glm = {.name = "gguf",
                                           .base = "",
                                           .selection_bias = {"blk.%u.exp_probs_b.*"},
                                           .sources = {GGUF_EXPERTS, [PD_ROLE_NORM2] = {"blk.%u.post_attention_norm.*"}}};

static const struct pd_dialect gguf_thirds = {
    .name = "gguf",
    .base = "",
    .sources = {GGUF, [PD_ROLE_NORM2] = {"blk.%u.ffn_norm.*"}, [PD_ROLE_Q] = {"blk.%u.attn_qkv.*", PD_THIRDS}}};

static const struct pd_dialect llmc = {.name = "llmc",
                                       .base = "",
                                       .ends = {"w", "b"},
                                       .is_stacked = true,
                                       .sources = {
                                           [PD_ROLE_TOKENS] = {"wte", PD_LONGER},
                                           [PD_ROLE_POSITIONS] = {"wpe"},
                                           [PD_ROLE_NORM1] = {"%u.ln1*"},
                                           [PD_ROLE_Q] = {"%u.qkv*", PD_THIRDS},
                                           [PD_ROLE_OUT] = {"%u.attproj*"},
                                           [PD_ROLE_NORM2] = {"%u.ln2*"},
                                           [PD_ROLE_UP] = {"%u.fc*"},
                                           [PD_ROLE_DOWN] = {"%u.fcproj*"},
                                           [PD_ROLE_FINAL_NORM] = {"lnf*"},
                                       }};

/* ---- keys of configurations ---- */

#define BASIC_KEYS                                                                                         \
    [PD_NUMBER_VOCAB] = {"vocab_size", NULL, "vocab_size", true},                                          \
    [PD_NUMBER_CONTEXT] = {"max_position_embeddings", "context_length", "max_position_embeddings", false}, \
    [PD_NUMBER_LAYERS] = {"num_hidden_layers", "block_count", "num_layers", true},                         \
    [PD_NUMBER_HIDDEN] = {"hidden_size", "embedding_length", "hidden_size", true},                         \
    [PD_NUMBER_HEADS] = {"num_attention_heads", "attention.head_count", "num_attention_heads", true},      \
    [PD_NUMBER_KV_HEADS] = {"num_key_value_heads", "attention.head_count_kv", "num_query_groups", false},  \
    [PD_NUMBER_HEAD_SIZE] = {"head_dim", "attention.key_length", "kv_channels", false},                    \
    [PD_NUMBER_FFN] = {"intermediate_size", "feed_forward_length", "ffn_hidden_size", true},               \
    [PD_NUMBER_EPSILON] = {"rms_norm_eps", "attention.layer_norm_rms_epsilon", "norm_epsilon", false},     \
    [PD_NUMBER_THETA] = {"rope_theta", "rope.freq_base", "rotary_base", false}
static const struct pd_number_keys keys[PD_NUMBER_COUNT] = {BASIC_KEYS};

static const struct pd_number_keys gpt2_keys[PD_NUMBER_COUNT] = {
    [PD_NUMBER_VOCAB] = {"vocab_size", NULL, "vocab_size", true},
    [PD_NUMBER_CONTEXT] = {"n_positions", "context_length", "max_position_embeddings", false},
    [PD_NUMBER_LAYERS] = {"n_layer", "block_count", "num_layers", true},
    [PD_NUMBER_HIDDEN] = {"n_embd", "embedding_length", "hidden_size", true},
    [PD_NUMBER_HEADS] = {"n_head", "attention.head_count", "num_attention_heads", true},
    [PD_NUMBER_FFN] = {"n_inner", "feed_forward_length", "ffn_hidden_size", false},
    [PD_NUMBER_EPSILON] = {"layer_norm_epsilon", "attention.layer_norm_epsilon", "norm_epsilon", false},
};

#define ROPE_KEYS .keys = keys, .activation_key = "hidden_act", .other_keys = ROPE_OTHERS
#define ROPE_OTHERS                                                                                \
    " rope_scaling rope_parameters original_max_position_embeddings attention_bias sliding_window" \
    " use_sliding_window max_window_layers layer_types "
#define EXPERT_OTHERS "norm_topk_prob router_aux_loss_coef num_local_experts "

#define EXPERT_KEYS(COUNT, FFN)                                                                                            \
    {                                                                                                                      \
        BASIC_KEYS, [PD_NUMBER_EXPERTS] = {COUNT, "expert_count", "num_experts", true},                                    \
                    [PD_NUMBER_EXPERTS_PER_TOKEN] = {"num_experts_per_tok", "expert_used_count", "moe_router_topk", true}, \
                    FFN                                                                                                    \
    }
#define OWN_FFN [PD_NUMBER_EXPERT_FFN] = {"moe_intermediate_size", "expert_feed_forward_length", "moe_ffn_hidden_size", true}
static const struct pd_number_keys mixtral_keys[PD_NUMBER_COUNT] = EXPERT_KEYS("num_local_experts", );
static const struct pd_number_keys olmoe_keys[PD_NUMBER_COUNT] = EXPERT_KEYS("num_experts", );
static const struct pd_number_keys qwen3_moe_keys[PD_NUMBER_COUNT] = EXPERT_KEYS("num_experts", OWN_FFN);
static const struct pd_number_keys glm4_moe_keys[PD_NUMBER_COUNT] = {
    BASIC_KEYS,
    OWN_FFN,
    [PD_NUMBER_EXPERTS] = {"n_routed_experts", "expert_count", "num_experts", true},
    [PD_NUMBER_EXPERTS_PER_TOKEN] = {"num_experts_per_tok", "expert_used_count", "moe_router_topk", true},
    [PD_NUMBER_SHARED_EXPERTS] = {"n_shared_experts", "expert_shared_count", NULL, true},
    [PD_NUMBER_DENSE_BLOCKS] = {"first_k_dense_replace", "leading_dense_block_count", NULL, true},
    [PD_NUMBER_ROUTER_GROUPS] = {"n_group", "expert_group_count", "moe_router_num_groups", false},
    [PD_NUMBER_ROUTER_GROUPS_KEPT] = {"topk_group", "expert_group_used_count", "moe_router_group_topk", false},
};

/* ---- families ---- */

static const struct pd_model_class llama_classes[] = {{"LlamaForCausalLM", "llama", "llama", .has_meta_order = true,
                                                       .has_attention_bias = true, .epsilon = 1e-6, .context = 2048},
                                                      {"Qwen2ForCausalLM", "qwen2", "qwen2", .qkv_bias = true,
                                                       .epsilon = 1e-6, .context = 32768, .kv_heads = 32, .window = 4096,
                                                       .window_layers = 28},
                                                      {"MistralForCausalLM", "mistral", "llama", .has_meta_order = true,
                                                       .epsilon = 1e-6, .context = 131072, .kv_heads = 8, .window = 4096},
                                                      {0}};

static const struct pd_model_class qwen3_classes[] = {{"Qwen3ForCausalLM", "qwen3", "qwen3", .has_attention_bias = true,
                                                       .epsilon = 1e-6, .context = 32768, .kv_heads = 32, .head_size = 128,
                                                       .window = 4096, .window_layers = 28},
                                                      {0}};

static const struct pd_model_class gpt2_classes[] = {
    {"GPT2LMHeadModel", "gpt2", "gpt2", .qkv_bias = true, .epsilon = 1e-5, .context = 1024, .is_tied = true}, {0}};

#define GATED .positions = PD_POSITIONS_ROPE, .activation = PD_ACTIVATION_SWIGLU, .up_matrices = 2
#define LLAMA_NAMES                                                                                                 \
    [PD_ROLE_TOKENS] = "model.embed_tokens", [PD_ROLE_NORM1] = "input_layernorm", [PD_ROLE_Q] = "self_attn.q_proj", \
    [PD_ROLE_K] = "self_attn.k_proj", [PD_ROLE_V] = "self_attn.v_proj", [PD_ROLE_OUT] = "self_attn.o_proj",         \
    [PD_ROLE_NORM2] = "post_attention_layernorm", [PD_ROLE_GATE] = "mlp.gate_proj", [PD_ROLE_UP] = "mlp.up_proj",   \
    [PD_ROLE_DOWN] = "mlp.down_proj", [PD_ROLE_FINAL_NORM] = "model.norm", [PD_ROLE_HEAD] = "lm_head"

static const struct pd_family llama = {.norm = PD_NORM_RMS,
                                       GATED,
                                       .block = "model.layers.%u.",
                                       .names = {LLAMA_NAMES},
                                       .dialects = {&as_here, &torchtitan, &megatron, &gguf},
                                       ROPE_KEYS,
                                       .classes = llama_classes};

static const struct pd_family qwen3 = {
    .norm = PD_NORM_RMS,
    GATED,
    .qk_norm = PD_QK_NORM_HEADS,
    .block = "model.layers.%u.",
    .names = {LLAMA_NAMES, [PD_ROLE_Q_NORM] = "self_attn.q_norm", [PD_ROLE_K_NORM] = "self_attn.k_norm"},
    .dialects = {&as_here, &torchtitan, &megatron, &gguf},
    ROPE_KEYS,
    .classes = qwen3_classes};

/* Transformers keeps q, k and v of GPT-2 in one matrix `attn.c_attn.weight` of shape (C, 3C), and every linear as (in, out). Here
 * each of the three is a tensor of its own, and every matrix is (out, in), as everywhere else. */
static const struct pd_family gpt2 = {.norm = PD_NORM_LAYER,
                                      .positions = PD_POSITIONS_LEARNED,
                                      .activation = PD_ACTIVATION_GELU,
                                      .up_matrices = 1,
                                      .has_linear_biases = true,
                                      .heads_make_hidden = true,
                                      .block = "transformer.h.%u.",
                                      .names = {[PD_ROLE_TOKENS] = "transformer.wte",
                                                [PD_ROLE_POSITIONS] = "transformer.wpe",
                                                [PD_ROLE_NORM1] = "ln_1",
                                                [PD_ROLE_Q] = "attn.q_proj",
                                                [PD_ROLE_K] = "attn.k_proj",
                                                [PD_ROLE_V] = "attn.v_proj",
                                                [PD_ROLE_OUT] = "attn.c_proj",
                                                [PD_ROLE_NORM2] = "ln_2",
                                                [PD_ROLE_UP] = "mlp.c_fc",
                                                [PD_ROLE_DOWN] = "mlp.c_proj",
                                                [PD_ROLE_FINAL_NORM] = "transformer.ln_f",
                                                [PD_ROLE_HEAD] = "lm_head"},
                                      .dialects = {&across, &megatron, &gguf_thirds, &llmc},
                                      .keys = gpt2_keys,
                                      .activation_key = "activation_function",
                                      .other_keys = " ",
                                      .zero_keys = {"resid_pdrop", "embd_pdrop", "attn_pdrop"},
                                      .classes = gpt2_classes};

/* ---- families with experts ---- */

static const struct pd_model_class mixtral_classes[] = {
    {"MixtralForCausalLM", "mixtral", "llama", .has_meta_order = true, .epsilon = 1e-5, .context = 131072, .kv_heads = 8,
     .renormalises = true, .balance_loss = 0.001, .theta = 1e6, .window = UINT32_MAX},
    {0}};
static const struct pd_model_class qwen3_moe_classes[] = {
    {"Qwen3MoeForCausalLM", "qwen3_moe", "qwen3moe", .gguf_renormalises = 1, .has_attention_bias = true, .epsilon = 1e-6,
     .context = 32768, .kv_heads = 4, .balance_loss = 0.001, .has_renormalise_key = true, .window = 4096,
     .window_layers = 28},
    {0}};
static const struct pd_model_class olmoe_classes[] = {{"OlmoeForCausalLM", "olmoe", "olmoe", .gguf_renormalises = -1,
                                                       .has_attention_bias = true, .epsilon = 1e-5, .context = 4096,
                                                       .balance_loss = 0.01, .has_renormalise_key = true},
                                                      {0}};
static const struct pd_model_class glm4_moe_classes[] = {
    {"Glm4MoeForCausalLM", "glm4_moe", "glm4moe", .has_qkv_bias_key = true, .epsilon = 1e-5, .context = 131072,
     .kv_heads = 8, .renormalises = true, .has_renormalise_key = true, .rotated_part = 0.5},
    {0}};

#define EXPERT_NAMES(PREFIX, GATE, UP, DOWN)                                               \
    [PD_ROLE_ROUTER] = PREFIX ".gate", [PD_ROLE_EXPERT_GATE] = PREFIX ".experts.%u." GATE, \
    [PD_ROLE_EXPERT_UP] = PREFIX ".experts.%u." UP, [PD_ROLE_EXPERT_DOWN] = PREFIX ".experts.%u." DOWN
#define QK_NORM_NAMES [PD_ROLE_Q_NORM] = "self_attn.q_norm", [PD_ROLE_K_NORM] = "self_attn.k_norm"
#define WITH_EXPERTS GATED, .block = "model.layers.%u.", .activation_key = "hidden_act"

static const struct pd_family mixtral = {.norm = PD_NORM_RMS,
                                         WITH_EXPERTS,
                                         .router = PD_ROUTER_SOFTMAX,
                                         .dialects = {&mixtral_here, &megatron_experts, &gguf_experts},
                                         .names = {LLAMA_NAMES, EXPERT_NAMES("block_sparse_moe", "w1", "w3", "w2")},
                                         .keys = mixtral_keys,
                                         .other_keys = ROPE_OTHERS "router_aux_loss_coef ",
                                         .classes = mixtral_classes};

static const struct pd_family qwen3_moe = {
    .norm = PD_NORM_RMS,
    WITH_EXPERTS,
    .qk_norm = PD_QK_NORM_HEADS,
    .router = PD_ROUTER_SOFTMAX,
    .dialects = {&experts_here, &torchtitan, &megatron_experts, &gguf_experts},
    .names = {LLAMA_NAMES, QK_NORM_NAMES, EXPERT_NAMES("mlp", "gate_proj", "up_proj", "down_proj")},
    .keys = qwen3_moe_keys,
    .other_keys = ROPE_OTHERS EXPERT_OTHERS,
    .classes = qwen3_moe_classes};

static const struct pd_family olmoe = {
    .norm = PD_NORM_RMS,
    WITH_EXPERTS,
    .qk_norm = PD_QK_NORM_ALL,
    .router = PD_ROUTER_SOFTMAX,
    .dialects = {&experts_here, &gguf_experts},
    .names = {LLAMA_NAMES, QK_NORM_NAMES, EXPERT_NAMES("mlp", "gate_proj", "up_proj", "down_proj")},
    .keys = olmoe_keys,
    .other_keys = ROPE_OTHERS EXPERT_OTHERS,
    .classes = olmoe_classes};

static const struct pd_family glm4_moe = {
    .norm = PD_NORM_RMS,
    WITH_EXPERTS,
    .qk_norm = PD_QK_NORM_OPTIONAL,
    .router = PD_ROUTER_SIGMOID,
    .dialects = {&experts_here, &torchtitan, &megatron_experts, &gguf_glm},
    .names =
        {LLAMA_NAMES, QK_NORM_NAMES,
         EXPERT_NAMES("mlp", "gate_proj", "up_proj", "down_proj"), [PD_ROLE_SHARED_GATE] = "mlp.shared_experts.gate_proj",
         [PD_ROLE_SHARED_UP] = "mlp.shared_experts.up_proj", [PD_ROLE_SHARED_DOWN] = "mlp.shared_experts.down_proj"},
    .selection_bias = "mlp.gate.e_score_correction_bias",
    .keys = glm4_moe_keys,
    .other_keys = ROPE_OTHERS EXPERT_OTHERS "routed_scaling_factor use_qk_norm partial_rotary_factor ",
    .classes = glm4_moe_classes};

const char *const pd_family_names[] = {"llama", "gpt2", "qwen3", "mixtral", "qwen3_moe", "olmoe", "glm4_moe", NULL};
const char pd_family_about[] =
    "llama (Mistral and Qwen2.5 too), gpt2, qwen3, or with experts mixtral, qwen3_moe, olmoe, glm4_moe";
const struct pd_family *const pd_families[] = {&llama, &gpt2, &qwen3, &mixtral, &qwen3_moe, &olmoe, &glm4_moe, NULL};
