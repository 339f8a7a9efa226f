#include "trainer/model/family.h"

#define LLAMA_NAMES                                                                                                    \
    .tokens = "model.embed_tokens", .block = "model.layers.%u.", .norm1 = "input_layernorm", .attention = "self_attn", \
    .out = "self_attn.o_proj", .norm2 = "post_attention_layernorm", .gate = "mlp.gate_proj", .up = "mlp.up_proj",      \
    .down = "mlp.down_proj", .final_norm = "model.norm"

static const struct pd_family_properties families[] = {
    [PD_FAMILY_LLAMA] = {.name = "llama",
                         .norm = PD_NORM_RMS,
                         .positions = PD_POSITIONS_ROPE,
                         .activation = PD_ACTIVATION_SWIGLU,
                         .up_matrices = 2,
                         .names = {LLAMA_NAMES}},
    [PD_FAMILY_QWEN3] = {.name = "qwen3",
                         .norm = PD_NORM_RMS,
                         .positions = PD_POSITIONS_ROPE,
                         .activation = PD_ACTIVATION_SWIGLU,
                         .up_matrices = 2,
                         .has_head_norms = true,
                         .names = {LLAMA_NAMES, .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"}},
    [PD_FAMILY_GPT2] = {.name = "gpt2",
                        .norm = PD_NORM_LAYER,
                        .positions = PD_POSITIONS_LEARNED,
                        .activation = PD_ACTIVATION_GELU,
                        .up_matrices = 1,
                        .has_linear_biases = true,
                        .heads_make_hidden = true,
                        .names = {.tokens = "transformer.wte",
                                  .positions = "transformer.wpe",
                                  .block = "transformer.h.%u.",
                                  .norm1 = "ln_1",
                                  .attention = "attn",
                                  .out = "attn.c_proj",
                                  .norm2 = "ln_2",
                                  .up = "mlp.c_fc",
                                  .down = "mlp.c_proj",
                                  .final_norm = "transformer.ln_f"}},
};

const struct pd_family_properties *pd_family_properties(enum pd_family family)
{
    return (unsigned)family < sizeof families / sizeof *families ? &families[family] : NULL;
}

/* The next `tensors` places, where there are any. */
static int take(int *at, bool is_there, int tensors)
{
    const int first = *at;
    if (is_there) *at += tensors;
    return is_there ? first : -1;
}

/* The order in which model.c adds them. */
struct pd_block_roles pd_block_roles_of(const struct pd_model_config *config)
{
    const struct pd_family_properties *f = pd_family_properties(config->family);
    const bool norm_bias = f->norm == PD_NORM_LAYER, bias = f->has_linear_biases;
    const int up = (int)f->up_matrices;
    struct pd_block_roles r;
    int at = 0;
    r.norm1 = take(&at, true, 1);
    r.norm1_bias = take(&at, norm_bias, 1);
    r.qkv = take(&at, true, 3);
    r.qkv_bias = take(&at, bias || config->qkv_bias, 3);
    r.head_norms = take(&at, f->has_head_norms, 2);
    r.out = take(&at, true, 1);
    r.out_bias = take(&at, bias, 1);
    r.norm2 = take(&at, true, 1);
    r.norm2_bias = take(&at, norm_bias, 1);
    r.up = take(&at, true, up);
    r.up_bias = take(&at, bias, up);
    r.down = take(&at, true, 1);
    r.down_bias = take(&at, bias, 1);
    r.count = at;
    return r;
}
