/* The table of model families: see family.h. Sources: transformers; torchtitan's and Megatron-Core's state dicts and
 * arguments; llama.cpp's convert_hf_to_gguf and gguf-py's constants; llm.c. */
#include "resharder/catalog/family.h"

#include <stddef.h>

/* torchtitan saves q, k and v separately, but their moments like the model: in one matrix if the model has one. */
#define TITAN "layers.%u.attention."
#define FUSED TITAN "qkv_linear.wqkv.*"
#define LAYER "decoder.layers.%u."

/* ---- names of tensors in other programs ---- */

static const struct pd_dialect as_here = {
    .name = "hugging_face", .base = "model.", .has_own_names = true, .sources = {[PD_ROLE_HEAD] = {NULL, PD_OUTSIDE}}};

static const struct pd_dialect across = {.name = "hugging_face",
                                         .base = "transformer.",
                                         .has_own_names = true,
                                         .sources = {[PD_ROLE_Q] = {"h.%u.attn.c_attn.*", PD_ACROSS | PD_THIRDS},
                                                     [PD_ROLE_OUT] = {NULL, PD_ACROSS},
                                                     [PD_ROLE_UP] = {NULL, PD_ACROSS},
                                                     [PD_ROLE_DOWN] = {NULL, PD_ACROSS},
                                                     [PD_ROLE_HEAD] = {NULL, PD_OUTSIDE}}};

static const struct pd_dialect torchtitan = {
    .name = "torchtitan",
    .base = "",
    .sources = {
        [PD_ROLE_TOKENS] = {"tok_embeddings.*"},
        [PD_ROLE_NORM1] = {"layers.%u.attention_norm.*"},
        [PD_ROLE_Q] = {TITAN "wq.*", PD_NEIGHBOURS, TITAN "qkv_linear.wq.*", FUSED, PD_BY_KV_HEAD | PD_NEIGHBOURS},
        [PD_ROLE_K] = {TITAN "wk.*", PD_NEIGHBOURS, TITAN "qkv_linear.wk.*", FUSED, PD_BY_KV_HEAD | PD_NEIGHBOURS},
        [PD_ROLE_V] = {TITAN "wv.*", 0, TITAN "qkv_linear.wv.*", FUSED, PD_BY_KV_HEAD},
        [PD_ROLE_Q_NORM] = {TITAN "q_norm.*"},
        [PD_ROLE_K_NORM] = {TITAN "k_norm.*"},
        [PD_ROLE_OUT] = {TITAN "wo.*"},
        [PD_ROLE_NORM2] = {"layers.%u.ffn_norm.*"},
        [PD_ROLE_GATE] = {"layers.%u.feed_forward.w1.*"},
        [PD_ROLE_UP] = {"layers.%u.feed_forward.w3.*"},
        [PD_ROLE_DOWN] = {"layers.%u.feed_forward.w2.*"},
        [PD_ROLE_FINAL_NORM] = {"norm.*"},
        [PD_ROLE_HEAD] = {"output.*", 0, "lm_head.*"},
    }};

static const struct pd_dialect megatron = {
    .name = "megatron",
    .base = "",
    .is_stacked = true,
    .sources = {
        [PD_ROLE_TOKENS] = {"embedding.word_embeddings.*", PD_LONGER},
        [PD_ROLE_POSITIONS] = {"embedding.position_embeddings.*"},
        [PD_ROLE_NORM1] = {LAYER "self_attention.linear_qkv.layer_norm_*", 0, LAYER "input_layernorm.*"},
        [PD_ROLE_Q] = {LAYER "self_attention.linear_qkv.*", PD_BY_KV_HEAD},
        [PD_ROLE_Q_NORM] = {LAYER "self_attention.q_layernorm.*"},
        [PD_ROLE_K_NORM] = {LAYER "self_attention.k_layernorm.*"},
        [PD_ROLE_OUT] = {LAYER "self_attention.linear_proj.*"},
        [PD_ROLE_NORM2] = {LAYER "mlp.linear_fc1.layer_norm_*", 0, LAYER "pre_mlp_layernorm.*"},
        [PD_ROLE_GATE] = {LAYER "mlp.linear_fc1.*", PD_HALVES},
        [PD_ROLE_UP] = {LAYER "mlp.linear_fc1.*", PD_HALVES},
        [PD_ROLE_DOWN] = {LAYER "mlp.linear_fc2.*"},
        [PD_ROLE_FINAL_NORM] = {"decoder.final_layernorm.*"},
        [PD_ROLE_HEAD] = {"output_layer.*", PD_LONGER},
    }};

#define GGUF                                                                                                             \
    [PD_ROLE_TOKENS] = {"token_embd.*"}, [PD_ROLE_POSITIONS] = {"position_embd.*"},                                      \
    [PD_ROLE_NORM1] = {"blk.%u.attn_norm.*"}, [PD_ROLE_Q_NORM] = {"blk.%u.attn_q_norm.*"},                               \
    [PD_ROLE_K_NORM] = {"blk.%u.attn_k_norm.*"}, [PD_ROLE_OUT] = {"blk.%u.attn_output.*"},                               \
    [PD_ROLE_NORM2] = {"blk.%u.ffn_norm.*"}, [PD_ROLE_GATE] = {"blk.%u.ffn_gate.*"}, [PD_ROLE_UP] = {"blk.%u.ffn_up.*"}, \
    [PD_ROLE_DOWN] = {"blk.%u.ffn_down.*"}, [PD_ROLE_FINAL_NORM] = {"output_norm.*"}, [PD_ROLE_HEAD] = {"output.*"}

static const struct pd_dialect gguf = {
    .name = "gguf",
    .base = "",
    .sources = {GGUF, [PD_ROLE_Q] = {"blk.%u.attn_q.*", PD_NEIGHBOURS}, [PD_ROLE_K] = {"blk.%u.attn_k.*", PD_NEIGHBOURS},
                [PD_ROLE_V] = {"blk.%u.attn_v.*"}}};

static const struct pd_dialect gguf_thirds = {
    .name = "gguf", .base = "", .sources = {GGUF, [PD_ROLE_Q] = {"blk.%u.attn_qkv.*", PD_THIRDS}}};

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

static const struct pd_number_keys keys[PD_NUMBER_COUNT] = {
    [PD_NUMBER_VOCAB] = {"vocab_size", NULL, "vocab_size", true},
    [PD_NUMBER_CONTEXT] = {"max_position_embeddings", "context_length", "max_position_embeddings", false},
    [PD_NUMBER_LAYERS] = {"num_hidden_layers", "block_count", "num_layers", true},
    [PD_NUMBER_HIDDEN] = {"hidden_size", "embedding_length", "hidden_size", true},
    [PD_NUMBER_HEADS] = {"num_attention_heads", "attention.head_count", "num_attention_heads", true},
    [PD_NUMBER_KV_HEADS] = {"num_key_value_heads", "attention.head_count_kv", "num_query_groups", false},
    [PD_NUMBER_HEAD_SIZE] = {"head_dim", "attention.key_length", "kv_channels", false},
    [PD_NUMBER_FFN] = {"intermediate_size", "feed_forward_length", "ffn_hidden_size", true},
    [PD_NUMBER_EPSILON] = {"rms_norm_eps", "attention.layer_norm_rms_epsilon", "norm_epsilon", false},
    [PD_NUMBER_THETA] = {"rope_theta", "rope.freq_base", "rotary_base", false},
};

static const struct pd_number_keys gpt2_keys[PD_NUMBER_COUNT] = {
    [PD_NUMBER_VOCAB] = {"vocab_size", NULL, "vocab_size", true},
    [PD_NUMBER_CONTEXT] = {"n_positions", "context_length", "max_position_embeddings", false},
    [PD_NUMBER_LAYERS] = {"n_layer", "block_count", "num_layers", true},
    [PD_NUMBER_HIDDEN] = {"n_embd", "embedding_length", "hidden_size", true},
    [PD_NUMBER_HEADS] = {"n_head", "attention.head_count", "num_attention_heads", true},
    [PD_NUMBER_FFN] = {"n_inner", "feed_forward_length", "ffn_hidden_size", false},
    [PD_NUMBER_EPSILON] = {"layer_norm_epsilon", "attention.layer_norm_epsilon", "norm_epsilon", false},
};

#define ROPE_KEYS                                                                                                \
    .keys = keys, .activation_key = "hidden_act",                                                                \
    .other_keys = " rope_scaling rope_parameters original_max_position_embeddings attention_bias sliding_window" \
                  " use_sliding_window max_window_layers layer_types "

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
    .has_head_norms = true,
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

const char *const pd_family_names[] = {"llama", "gpt2", "qwen3", NULL};
const char pd_family_about[] = "llama (Mistral and Qwen2.5 too), gpt2 or qwen3";
const struct pd_family *const pd_families[] = {&llama, &gpt2, &qwen3, NULL};
