/* The table of families with one row more, which no other file knows: tests/cli/family.py trains it and converts it. Its properties
 * are in no other row together, and it has names and keys of its own. Linked before the library, it takes the place of its table. */
#define pd_families published_families
#define pd_family_names published_names
#include "resharder/catalog/families.c"
#undef pd_families
#undef pd_family_names

static const struct pd_dialect renamed = {.name = "hugging_face",
                                          .base = "net.",
                                          .has_own_names = true,
                                          .sources = {[PD_ROLE_Q] = {"cell.%u.mix.in_proj.*", PD_THIRDS},
                                                      [PD_ROLE_DOWN] = {NULL, PD_ACROSS},
                                                      [PD_ROLE_HEAD] = {NULL, PD_OUTSIDE}}};

static const struct pd_number_keys renamed_keys[PD_NUMBER_COUNT] = {
    [PD_NUMBER_VOCAB] = {"words", NULL, "vocab_size", true},
    [PD_NUMBER_CONTEXT] = {"places", "context_length", "max_position_embeddings", true},
    [PD_NUMBER_LAYERS] = {"depth", "block_count", "num_layers", true},
    [PD_NUMBER_HIDDEN] = {"width", "embedding_length", "hidden_size", true},
    [PD_NUMBER_HEADS] = {"heads", "attention.head_count", "num_attention_heads", true},
    [PD_NUMBER_KV_HEADS] = {"kv_heads", "attention.head_count_kv", "num_query_groups", true},
    [PD_NUMBER_HEAD_SIZE] = {"head_dim", "attention.key_length", "kv_channels", true},
    [PD_NUMBER_FFN] = {"inner", "feed_forward_length", "ffn_hidden_size", true},
    [PD_NUMBER_EPSILON] = {"eps", "attention.layer_norm_epsilon", "norm_epsilon", true},
    [PD_NUMBER_THETA] = {"rope_theta", "rope.freq_base", "rotary_base", false},
};

static const struct pd_model_class made_up_classes[] = {
    {"MadeUpForCausalLM", "made_up", "madeup", .qkv_bias = true, .has_meta_order = true, .epsilon = 1e-5}, {0}};

static const struct pd_family made_up = {.norm = PD_NORM_LAYER,
                                         GATED,
                                         .has_linear_biases = true,
                                         .qk_norm = PD_QK_NORM_HEADS,
                                         .block = "net.cell.%u.",
                                         .names = {[PD_ROLE_TOKENS] = "net.words",
                                                   [PD_ROLE_NORM1] = "before_mix",
                                                   [PD_ROLE_Q] = "mix.q",
                                                   [PD_ROLE_K] = "mix.k",
                                                   [PD_ROLE_V] = "mix.v",
                                                   [PD_ROLE_Q_NORM] = "mix.q_norm",
                                                   [PD_ROLE_K_NORM] = "mix.k_norm",
                                                   [PD_ROLE_OUT] = "mix.out",
                                                   [PD_ROLE_NORM2] = "before_feed",
                                                   [PD_ROLE_GATE] = "feed.gate",
                                                   [PD_ROLE_UP] = "feed.up",
                                                   [PD_ROLE_DOWN] = "feed.down",
                                                   [PD_ROLE_FINAL_NORM] = "net.last",
                                                   [PD_ROLE_HEAD] = "readout"},
                                         .dialects = {&renamed, &megatron, &gguf},
                                         .keys = renamed_keys,
                                         .activation_key = "gate",
                                         .other_keys = " rope_scaling ",
                                         .zero_keys = {"mix_dropout"},
                                         .classes = made_up_classes};

extern const char *const pd_family_names[];
extern const struct pd_family *const pd_families[];
const char *const pd_family_names[] = {"llama", "gpt2", "qwen3", "made_up", NULL};
const struct pd_family *const pd_families[] = {&llama, &gpt2, &qwen3, &made_up, NULL};
