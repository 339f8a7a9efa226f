#include "trainer/model/model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct pd_model *model_of(const char *preset)
{
    struct pd_model_config config;
    struct pd_model *model;
    struct pd_error err;
    cr_assert_eq(pd_model_preset(preset, &config, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_model_new(&config, &model, &err), PD_OK, "%s", err.message);
    return model;
}

/* Exact counts of the published weights. */
Test(presets, parameter_counts)
{
    static const struct {
        const char *preset;
        uint64_t count;
    } cases[] = {
        {"gpt2-124m", 124439808},      {"gpt2-355m", 354823168},        {"gpt2-774m", 774030080},
        {"gpt2-1.5b", 1557611200},     {"llama-7b", 6738415616},        {"llama-13b", 13015864320},
        {"llama-33b", 32528943616},    {"llama-65b", 65285660672},      {"llama2-7b", 6738415616},
        {"llama2-13b", 13015864320},   {"llama2-70b", 68976648192},     {"llama3.1-8b", 8030261248},
        {"llama3.1-70b", 70553706496}, {"llama3.1-405b", 405853388800}, {"llama3.2-1b", 1235814400},
        {"llama3.2-3b", 3212749824},   {"mistral-7b", 7241732096},      {"qwen2.5-0.5b", 494032768},
        {"qwen2.5-1.5b", 1543714304},  {"qwen2.5-3b", 3085938688},      {"qwen2.5-7b", 7615616512},
        {"qwen2.5-14b", 14770033664},  {"qwen2.5-32b", 32763876352},    {"qwen2.5-72b", 72706203648},
        {"qwen3-0.6b", 596049920},     {"qwen3-1.7b", 1720574976},      {"qwen3-4b", 4022468096},
        {"qwen3-8b", 8190735360},      {"mixtral-8x7b", 46702792704},   {"qwen3-moe-30b", 30532122624},
        {"olmoe-7b", 6919161856},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pd_model *model = model_of(cases[i].preset);
        cr_expect_eq(model->parameter_count, cases[i].count, "%s: %lu", cases[i].preset, model->parameter_count);
        pd_model_free(model);
    }
}

/* Sizes that are known only rounded, or are our own: within a quarter of their name. */
Test(presets, names_tell_the_size)
{
    for (const char *const *name = pd_model_preset_names(); *name; name++) {
        if (strchr(strrchr(*name, '-'), 'x')) continue; /* mixtral-8x7b: experts share the attention */
        double size = strtod(strrchr(*name, '-') + 1, NULL);
        size *= strrchr(*name, '-')[strlen(strrchr(*name, '-')) - 1] == 'b' ? 1e9 : 1e6;
        struct pd_model *model = model_of(*name);
        cr_expect(fabs((double)model->parameter_count / size - 1) < 0.25, "%s has %lu", *name, model->parameter_count);
        pd_model_free(model);
    }
}

Test(presets, unknown_name_lists_the_nearest)
{
    struct pd_model_config config;
    struct pd_error err;
    cr_assert_eq(pd_model_preset("gpt2-125m", &config, &err), PD_INVALID);
    cr_assert(strstr(err.message, "gpt2-125m is unknown; the nearest are gpt2-124m"), "%s", err.message);
}

static void expect_tensor(const struct pd_model *model, uint32_t unit, uint32_t place, const char *name, uint64_t rows,
                          uint64_t columns, int32_t tp_dim, uint64_t tp_unit)
{
    const struct pd_tensor *t = &model->tensors.tensors[model->unit_first[unit] + place];
    cr_expect_str_eq(t->name, name);
    cr_expect(t->shape[0] == rows && t->shape[1] == (columns ? columns : 1) && t->shape[2] == 1 && t->shape[3] == 1, "%s",
              name);
    cr_expect_eq(t->ndim, columns ? 2 : 1, "%s", name);
    cr_expect_eq(t->tp_dim, tp_dim, "%s", name);
    cr_expect_eq(t->tp_unit, tp_unit, "%s", name);
    cr_expect_eq(t->unit, unit, "%s", name);
    cr_expect_eq(t->decay, columns != 0, "%s", name);
    cr_expect_eq(t->dtype, PD_F32, "%s", name);
}

Test(table, llama_with_biases)
{
    struct pd_model *model = model_of("qwen2.5-0.5b");
    cr_assert_eq(model->unit_count, 26);
    expect_tensor(model, 0, 0, "model.embed_tokens.weight", 151936, 896, 0, 1);
    uint32_t u = 3, i = 0;
    expect_tensor(model, u, i++, "model.layers.2.input_layernorm.weight", 896, 0, -1, 1);
    expect_tensor(model, u, i++, "model.layers.2.self_attn.q_proj.weight", 896, 896, 0, 64);
    expect_tensor(model, u, i++, "model.layers.2.self_attn.k_proj.weight", 128, 896, 0, 64);
    expect_tensor(model, u, i++, "model.layers.2.self_attn.v_proj.weight", 128, 896, 0, 64);
    expect_tensor(model, u, i++, "model.layers.2.self_attn.q_proj.bias", 896, 0, 0, 64);
    expect_tensor(model, u, i++, "model.layers.2.self_attn.k_proj.bias", 128, 0, 0, 64);
    expect_tensor(model, u, i++, "model.layers.2.self_attn.v_proj.bias", 128, 0, 0, 64);
    expect_tensor(model, u, i++, "model.layers.2.self_attn.o_proj.weight", 896, 896, 1, 64);
    expect_tensor(model, u, i++, "model.layers.2.post_attention_layernorm.weight", 896, 0, -1, 1);
    expect_tensor(model, u, i++, "model.layers.2.mlp.gate_proj.weight", 4864, 896, 0, 1);
    expect_tensor(model, u, i++, "model.layers.2.mlp.up_proj.weight", 4864, 896, 0, 1);
    expect_tensor(model, u, i++, "model.layers.2.mlp.down_proj.weight", 896, 4864, 1, 1);
    cr_expect_eq(model->unit_first[u + 1] - model->unit_first[u], i);
    expect_tensor(model, 25, 0, "model.norm.weight", 896, 0, -1, 1);
    cr_expect_eq(model->unit_first[26], model->tensors.count);
    cr_expect_eq(model->unit_first[26] - model->unit_first[25], 1); /* tied */
    pd_model_free(model);
}

Test(table, qwen3)
{
    struct pd_model *model = model_of("qwen3-0.6b");
    uint32_t u = 5, i = 1;
    expect_tensor(model, u, i++, "model.layers.4.self_attn.q_proj.weight", 2048, 1024, 0, 128);
    expect_tensor(model, u, i++, "model.layers.4.self_attn.k_proj.weight", 1024, 1024, 0, 128);
    expect_tensor(model, u, i++, "model.layers.4.self_attn.v_proj.weight", 1024, 1024, 0, 128);
    expect_tensor(model, u, i++, "model.layers.4.self_attn.q_norm.weight", 128, 0, -1, 1);
    expect_tensor(model, u, i++, "model.layers.4.self_attn.k_norm.weight", 128, 0, -1, 1);
    expect_tensor(model, u, i++, "model.layers.4.self_attn.o_proj.weight", 1024, 2048, 1, 128);
    cr_expect_eq(model->unit_first[u + 1] - model->unit_first[u], 11);
    pd_model_free(model);
}

Test(table, llama_untied_and_without_biases)
{
    struct pd_model *model = model_of("mistral-7b");
    cr_expect_eq(model->unit_first[2] - model->unit_first[1], 9);
    expect_tensor(model, 1, 4, "model.layers.0.self_attn.o_proj.weight", 4096, 4096, 1, 128);
    expect_tensor(model, 33, 1, "lm_head.weight", 32000, 4096, 0, 1);
    pd_model_free(model);
}

Test(table, gpt2)
{
    struct pd_model *model = model_of("gpt2-124m");
    expect_tensor(model, 0, 0, "transformer.wte.weight", 50257, 768, 0, 1);
    expect_tensor(model, 0, 1, "transformer.wpe.weight", 1024, 768, -1, 1);
    static const struct {
        const char *name;
        uint64_t rows, columns;
        int32_t tp_dim;
        uint64_t tp_unit;
    } block[] = {
        {"ln_1.weight", 768, 0, -1, 1},          {"ln_1.bias", 768, 0, -1, 1},
        {"attn.q_proj.weight", 768, 768, 0, 64}, {"attn.k_proj.weight", 768, 768, 0, 64},
        {"attn.v_proj.weight", 768, 768, 0, 64}, {"attn.q_proj.bias", 768, 0, 0, 64},
        {"attn.k_proj.bias", 768, 0, 0, 64},     {"attn.v_proj.bias", 768, 0, 0, 64},
        {"attn.c_proj.weight", 768, 768, 1, 64}, {"attn.c_proj.bias", 768, 0, -1, 1},
        {"ln_2.weight", 768, 0, -1, 1},          {"ln_2.bias", 768, 0, -1, 1},
        {"mlp.c_fc.weight", 3072, 768, 0, 1},    {"mlp.c_fc.bias", 3072, 0, 0, 1},
        {"mlp.c_proj.weight", 768, 3072, 1, 1},  {"mlp.c_proj.bias", 768, 0, -1, 1},
    };
    cr_assert_eq(model->unit_first[13] - model->unit_first[12], 16);
    for (uint32_t i = 0; i < 16; i++) {
        char name[64] = "transformer.h.11.";
        strncat(name, block[i].name, sizeof name - strlen(name) - 1);
        expect_tensor(model, 12, i, name, block[i].rows, block[i].columns, block[i].tp_dim, block[i].tp_unit);
    }
    expect_tensor(model, 13, 0, "transformer.ln_f.weight", 768, 0, -1, 1);
    expect_tensor(model, 13, 1, "transformer.ln_f.bias", 768, 0, -1, 1);
    cr_expect_eq(model->tensors.count - model->unit_first[13], 2);
    pd_model_free(model);
}

Test(table, initialisation)
{
    struct pd_model *model = model_of("gpt2-124m");
    const struct pd_tensor_init *block = &model->init[model->unit_first[1]];
    cr_expect_eq(block[0].init, PD_INIT_ONES);
    cr_expect_eq(block[1].init, PD_INIT_ZEROS);
    cr_expect_eq(block[2].init, PD_INIT_NORMAL);
    cr_expect_float_eq(block[2].std, 0.02, 1e-8);
    cr_expect_eq(block[5].init, PD_INIT_ZEROS);
    cr_expect_float_eq(block[8].std, 0.02 / sqrt(24), 1e-8);
    cr_expect_float_eq(block[14].std, 0.02 / sqrt(24), 1e-8);
    cr_expect_float_eq(model->init[1].std, 0.01, 1e-8);
    pd_model_free(model);
}

Test(model, flops_of_gpt2_are_six_a_parameter_and_attention)
{
    struct pd_model *model = model_of("gpt2-124m");
    double matrices = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
    cr_expect_float_eq(pd_model_flops_per_token(model, 1024), 6 * matrices + 6.0 * 12 * 768 * 1025, 1);
    pd_model_free(model);
    model = model_of("llama2-7b"); /* untied: the head counts, the embedding does not */
    cr_expect_float_eq(pd_model_flops_per_token(model, 1),
                       6.0 * (6738415616 - 65 * 4096 - 32000.0 * 4096) + 12.0 * 32 * 4096, 1);
    pd_model_free(model);
}

static void expect_refused(struct pd_model_config config, const char *sentence)
{
    struct pd_model *model = NULL;
    struct pd_error err;
    cr_expect_eq(pd_model_new(&config, &model, &err), PD_INVALID, "%s", sentence);
    cr_expect_null(model);
    cr_expect(strstr(err.message, sentence), "%s", err.message);
}

Test(model, refuses_what_cannot_be)
{
    struct pd_model_config llama, gpt2, c;
    cr_assert_eq(pd_model_preset("byte-1m", &llama, NULL), PD_OK);
    cr_assert_eq(pd_model_preset("gpt2-124m", &gpt2, NULL), PD_OK);
    c = llama, c.vocab = 0, expect_refused(c, "model.vocab is 0; it must be between 2 and");
    c = llama, c.layers = 0, expect_refused(c, "model.layers is 0");
    c = llama, c.layers = 5000, expect_refused(c, "model.layers is 5000; it must be between 1 and 4096");
    c = llama, c.heads = 12, c.kv_heads = 5,
    expect_refused(c, "kv_heads 5 does not divide model.heads 12; the nearest that does is 4");
    c = llama, c.kv_heads = 8, expect_refused(c, "model.kv_heads is 8; it must be between 1 and 4");
    c = llama, c.head_size = 33, expect_refused(c, "head_size 33 is odd");
    c = llama, c.norm_epsilon = NAN, expect_refused(c, "model.norm_epsilon is nan");
    c = llama, c.init_std = -1, expect_refused(c, "model.init_std is -1");
    c = llama, c.rope_theta = 0.5f, expect_refused(c, "model.rope_theta is 0.5");
    c = llama, c.rope_scaling = PD_ROPE_SCALING_LLAMA3, c.rope_low_frequency_factor = 4,
    expect_refused(c, "the first the smaller");
    c = gpt2, c.heads = 13, c.kv_heads = 0, c.head_size = 0,
    expect_refused(c, "model.hidden 768 is not a multiple of model.heads 13; take model.heads 12, or name model.head_size");
    c = gpt2, c.kv_heads = 4, expect_refused(c, "family gpt2 has as many as heads: 12");
}

/* The published rule through libm. */
static double reference_frequency(const struct pd_model_config *c, uint32_t i)
{
    double f = pow(c->rope_theta, -2.0 * i / c->head_size);
    if (c->rope_scaling == PD_ROPE_SCALING_NONE) return f;
    if (c->rope_scaling == PD_ROPE_SCALING_LINEAR) return f / c->rope_factor;
    double wavelength = 2 * M_PI / f;
    if (wavelength < c->rope_original_context / c->rope_high_frequency_factor) return f;
    if (wavelength > c->rope_original_context / c->rope_low_frequency_factor) return f / c->rope_factor;
    double smooth = (c->rope_original_context / wavelength - c->rope_low_frequency_factor) /
                    (c->rope_high_frequency_factor - c->rope_low_frequency_factor);
    return (1 - smooth) * f / c->rope_factor + smooth * f;
}

static void check_rope(const char *preset, uint32_t positions, float linear_factor)
{
    struct pd_model *model = model_of(preset);
    struct pd_model_config *c = &model->config;
    if (linear_factor != 0) c->rope_scaling = PD_ROPE_SCALING_LINEAR, c->rope_factor = linear_factor;
    uint32_t half = c->head_size / 2;
    float *table = malloc((size_t)positions * half * 2 * sizeof *table);
    pd_model_rope_table(c, positions, table);
    for (uint32_t p = 0; p < positions; p++) {
        for (uint32_t i = 0; i < half; i++) {
            double angle = p * reference_frequency(c, i);
            const float *got = table + ((size_t)p * half + i) * 2;
            cr_assert_float_eq(got[0], cos(angle), 6.1e-8, "%s cos %u %u: %.9g %.9g", preset, p, i, got[0], cos(angle));
            cr_assert_float_eq(got[1], sin(angle), 6.1e-8, "%s sin %u %u: %.9g %.9g", preset, p, i, got[1], sin(angle));
        }
    }
    free(table);
    pd_model_free(model);
}

Test(rope, agrees_with_the_published_rule)
{
    check_rope("byte-1m", 4096, 0);
    check_rope("byte-1m", 4096, 2.5f);
    check_rope("llama3.2-1b", 40000, 0);
    check_rope("qwen2.5-0.5b", 3000, 0);
}

/* What block.c takes by place: weights in the roles' order, then biases. -1: there is none. */
Test(family, places_of_a_block)
{
    static const enum pd_role roles[] = {PD_ROLE_NORM1, PD_ROLE_Q,    PD_ROLE_Q_NORM, PD_ROLE_OUT,
                                         PD_ROLE_NORM2, PD_ROLE_GATE, PD_ROLE_UP,     PD_ROLE_DOWN};
    const struct {
        const char *preset;
        bool qkv_bias;
        int weights[8], biases[8];
    } cases[] = {{"byte-1m", false, {0, 1, -1, 4, 5, 6, 7, 8}, {-1, -1, -1, -1, -1, -1, -1, -1}},
                 {"byte-1m", true, {0, 1, -1, 7, 8, 9, 10, 11}, {-1, 4, -1, -1, -1, -1, -1, -1}},
                 {"qwen3-0.6b", false, {0, 1, 4, 6, 7, 8, 9, 10}, {-1, -1, -1, -1, -1, -1, -1, -1}},
                 {"gpt2-124m", true, {0, 2, -1, 8, 10, -1, 12, 14}, {1, 5, -1, 9, 11, -1, 13, 15}},
                 {"mixtral-1m", false, {0, 1, -1, 4, 5, -1, -1, -1}, {-1, -1, -1, -1, -1, -1, -1, -1}},
                 {"glm4-moe-1m", true, {0, 1, 7, 9, 10, 11, 12, 13}, {-1, 4, -1, -1, -1, -1, -1, -1}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pd_model_config c;
        struct pd_model *model;
        cr_assert_eq(pd_model_preset(cases[i].preset, &c, NULL), PD_OK);
        c.qkv_bias = cases[i].qkv_bias;
        cr_assert_eq(pd_model_new(&c, &model, NULL), PD_OK);
        for (size_t r = 0; r < 8; r++) {
            cr_expect_eq(model->places[roles[r]][0], cases[i].weights[r], "%s %zu", cases[i].preset, r);
            cr_expect_eq(model->places[roles[r]][1], cases[i].biases[r], "%s %zu", cases[i].preset, r);
        }
        pd_model_free(model);
    }
}

/* A block with experts: router, selection bias, the experts one after the other, shared experts. */
Test(family, tensors_of_experts)
{
    static const char *const of_glm[] = {"mlp.gate.weight", "mlp.gate.e_score_correction_bias",
                                         "mlp.experts.0.gate_proj.weight", "mlp.experts.0.up_proj.weight",
                                         "mlp.experts.0.down_proj.weight"};
    struct pd_model *model = model_of("glm4-moe-1m");
    const struct pd_tensor *tensors = model->tensors.tensors;
    const uint32_t second = model->unit_first[2], router = second + (uint32_t)model->places[PD_ROLE_ROUTER][0];
    for (uint32_t i = 0; i < 5; i++)
        cr_expect_str_eq(tensors[router + i].name + strlen("model.layers.1."), of_glm[i]);
    cr_expect_eq(model->places[PD_ROLE_EXPERT_GATE][0], (int)(router + 2 - second));
    cr_expect_str_eq(tensors[router + 2 + 3 * 7 + 2].name, "model.layers.1.mlp.experts.7.down_proj.weight");
    cr_expect_str_eq(tensors[second + (uint32_t)model->places[PD_ROLE_SHARED_GATE][0]].name,
                     "model.layers.1.mlp.shared_experts.gate_proj.weight");
    cr_expect(tensors[router + 1].by_sign && !tensors[router + 1].decay && tensors[router + 1].sign_step == 0.001f);
    cr_expect_str_eq(tensors[model->unit_first[1] + (uint32_t)model->places[PD_ROLE_DOWN][0]].name,
                     "model.layers.0.mlp.down_proj.weight");
    cr_expect_eq(model->places[PD_ROLE_DOWN][0], 13, "the first block is dense");
    pd_model_free(model);
    model = model_of("mixtral-8x7b");
    cr_expect_eq(model->active_count, 12879925248, "%lu", model->active_count);
    pd_model_free(model);
}

#define CHANGE(name, ...)                       \
    static void name(struct pd_model_config *c) \
    {                                           \
        __VA_ARGS__;                            \
    }
CHANGE(many_experts, c->experts = 8)
CHANGE(many_chosen, c->experts_per_token = 9)
CHANGE(shared, c->shared_experts = 1)
CHANGE(three_groups, c->router_groups = 3)
CHANGE(narrow, c->router_groups = 4, c->router_groups_kept = 1, c->experts_per_token = 3)
CHANGE(odd, c->rotated = 7)
CHANGE(half_rotated, c->rotated = 2)

Test(family, experts_refused)
{
    static const struct {
        const char *preset;
        void (*change)(struct pd_model_config *);
        const char *says;
    } cases[] = {
        {"byte-1m", many_experts, "family llama has no model.experts"},
        {"mixtral-1m", many_chosen, "model.experts_per_token is 9"},
        {"mixtral-1m", shared, "family mixtral has no model.shared_experts"},
        {"glm4-moe-1m", three_groups, "model.router_groups 3 does not divide model.experts 8; the nearest that does is 2"},
        {"glm4-moe-1m", narrow, "leaves a token 2 experts, and model.experts_per_token is 3"},
        {"glm4-moe-1m", odd, "model.rotated is 7; it must be even"},
        {"mixtral-1m", half_rotated, "model.rotated is 2, but family mixtral rotates whole heads"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pd_model_config c;
        struct pd_model *model;
        struct pd_error err;
        cr_assert_eq(pd_model_preset(cases[i].preset, &c, NULL), PD_OK);
        cases[i].change(&c);
        cr_assert_eq(pd_model_new(&c, &model, &err), PD_INVALID, "%zu", i);
        cr_expect(strstr(err.message, cases[i].says), "%zu: %s", i, err.message);
    }
}
