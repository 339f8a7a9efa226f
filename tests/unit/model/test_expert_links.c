/* Tensors of experts in every dialect: where each form has them, by the plain formula of its arrangement. */
#include "tests/helpers/families.h"
#include "trainer/model/links.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, EXPERTS = 5, HIDDEN = 10, FFN = 6 };

static struct pd_model *model_of(uint32_t family, uint32_t dense)
{
    const struct pd_model_config config = {.family = family,
                                           .vocab = 11,
                                           .context = 10,
                                           .layers = LAYERS,
                                           .hidden = HIDDEN,
                                           .heads = 4,
                                           .kv_heads = 2,
                                           .head_size = 6,
                                           .ffn = family == PD_FAMILY_MIXTRAL || family == PD_FAMILY_OLMOE ? FFN : 7,
                                           .experts = EXPERTS,
                                           .experts_per_token = 2,
                                           .expert_ffn = FFN,
                                           .shared_experts = family == PD_FAMILY_GLM4_MOE ? 1 : 0,
                                           .dense_blocks = dense};
    struct pd_model *model;
    struct pd_error err;
    cr_assert_eq(pd_model_new(&config, &model, &err), PD_OK, "%s", err.message);
    return model;
}

static void add(struct pd_catalog *c, const char *name, uint32_t ndim, const uint64_t shape[4])
{
    struct pd_foreign_tensor t = {.name = (char *)(uintptr_t)name, .element = PD_ELEMENT_F32, .ndim = ndim};
    struct pd_error err;
    for (uint32_t d = 0; d < PD_FOREIGN_DIMS_MAX; d++)
        t.shape[d] = d < ndim ? shape[d] : 1;
    cr_assert_eq(pd_catalog_add_dense(c, &t, 0, 0, &err), PD_OK, "%s: %s", name, err.message);
}

static struct pd_catalog begin(void)
{
    struct pd_catalog c;
    pd_catalog_init(&c, "test");
    cr_assert_eq(pd_catalog_add_file(&c, "file", UINT64_C(1) << 40, NULL, NULL), PD_OK);
    return c;
}

static bool is_of_expert(const char *name)
{
    return strstr(name, "expert") && !strstr(name, "shared") && !strstr(name, "bias");
}

/* What an export has, without the tensors of experts, for a form that is only read. */
static struct pd_catalog exported(const struct pd_model *model, const char *dialect, enum pd_expert_form form,
                                  bool with_experts)
{
    struct pd_catalog wanted, c = begin();
    struct pd_error err;
    pd_catalog_init(&wanted, "test");
    cr_assert_eq(pd_model_foreign(model, dialect, PD_ELEMENT_F32, form, false, &wanted, &err), PD_OK, "%s", err.message);
    for (uint32_t i = 0; i < wanted.tensor_count; i++)
        if (with_experts || !is_of_expert(wanted.tensors[i].name))
            add(&c, wanted.tensors[i].name, wanted.tensors[i].ndim, wanted.tensors[i].shape);
    pd_catalog_deinit(&wanted);
    return c;
}

static void finish(struct pd_catalog *c)
{
    struct pd_error err;
    cr_assert_eq(pd_catalog_finish(c, &err), PD_OK, "%s", err.message);
}

/* A form, by its patterns: %1$u layer, %2$u expert. `stride` is the number of elements from one expert to the next in its tensor; 0:
 * each has one of its own. */
struct form {
    const char *what, *dialect;
    uint32_t family;
    enum pd_expert_form written; /* whose other tensors are there */
    bool is_made;                /* the export has it already */
    const char *gate, *up, *down;
    uint64_t up_first, gate_stride, down_stride, layer_rows; /* layer_rows: layers lie on the first axis */
    uint32_t ndim;
    uint64_t gate_shape[4], down_shape[4];
};

#define ONE (uint64_t)(FFN * HIDDEN)
#define HF "model.layers.%1$u.mlp.experts."
#define DECODER "decoder.layers."
static const struct form forms[] = {
    {"separate",
     "hugging_face",
     PD_FAMILY_QWEN3_MOE,
     PD_EXPERTS_USUAL,
     true,
     HF "%2$u.gate_proj.weight",
     HF "%2$u.up_proj.weight",
     HF "%2$u.down_proj.weight",
     0,
     0,
     0,
     0,
     2,
     {FFN, HIDDEN},
     {HIDDEN, FFN}},
    {"fused",
     "hugging_face",
     PD_FAMILY_OLMOE,
     PD_EXPERTS_FUSED,
     true,
     HF "gate_up_proj",
     HF "gate_up_proj",
     HF "down_proj",
     ONE,
     2 * ONE,
     ONE,
     0,
     3,
     {EXPERTS, 2 * FFN, HIDDEN},
     {EXPERTS, HIDDEN, FFN}},
    {"fused mixtral",
     "hugging_face",
     PD_FAMILY_MIXTRAL,
     PD_EXPERTS_FUSED,
     true,
     HF "gate_up_proj",
     HF "gate_up_proj",
     HF "down_proj",
     ONE,
     2 * ONE,
     ONE,
     0,
     3,
     {EXPERTS, 2 * FFN, HIDDEN},
     {EXPERTS, HIDDEN, FFN}},
    {"torchtitan 0.3",
     "torchtitan",
     PD_FAMILY_QWEN3_MOE,
     PD_EXPERTS_USUAL,
     true,
     "layers.%1$u.moe.routed_experts.inner_experts.w1_EFD",
     "layers.%1$u.moe.routed_experts.inner_experts.w3_EFD",
     "layers.%1$u.moe.routed_experts.inner_experts.w2_EDF",
     0,
     ONE,
     ONE,
     0,
     3,
     {EXPERTS, FFN, HIDDEN},
     {EXPERTS, HIDDEN, FFN}},
    {"torchtitan 0.2",
     "torchtitan",
     PD_FAMILY_GLM4_MOE,
     PD_EXPERTS_USUAL,
     false,
     "layers.%1$u.moe.experts.w1",
     "layers.%1$u.moe.experts.w3",
     "layers.%1$u.moe.experts.w2",
     0,
     ONE,
     ONE,
     0,
     3,
     {EXPERTS, FFN, HIDDEN},
     {EXPERTS, HIDDEN, FFN}},
    {"gguf",
     "gguf",
     PD_FAMILY_MIXTRAL,
     PD_EXPERTS_USUAL,
     true,
     "blk.%1$u.ffn_gate_exps.weight",
     "blk.%1$u.ffn_up_exps.weight",
     "blk.%1$u.ffn_down_exps.weight",
     0,
     ONE,
     ONE,
     0,
     3,
     {EXPERTS, FFN, HIDDEN},
     {EXPERTS, HIDDEN, FFN}},
    {"stacked layers",
     "megatron",
     PD_FAMILY_MIXTRAL,
     PD_EXPERTS_USUAL,
     true,
     DECODER "mlp.experts.experts.linear_fc1.weight",
     DECODER "mlp.experts.experts.linear_fc1.weight",
     DECODER "mlp.experts.experts.linear_fc2.weight",
     ONE,
     2 * ONE,
     ONE,
     EXPERTS,
     4,
     {LAYERS, EXPERTS, 2 * FFN, HIDDEN},
     {LAYERS, EXPERTS, HIDDEN, FFN}},
    {"numbered layers",
     "megatron",
     PD_FAMILY_QWEN3_MOE,
     PD_EXPERTS_USUAL,
     false,
     DECODER "%1$u.mlp.experts.experts.linear_fc1.weight",
     DECODER "%1$u.mlp.experts.experts.linear_fc1.weight",
     DECODER "%1$u.mlp.experts.experts.linear_fc2.weight",
     ONE,
     2 * ONE,
     ONE,
     0,
     3,
     {EXPERTS, 2 * FFN, HIDDEN},
     {EXPERTS, HIDDEN, FFN}},
    {"local experts",
     "megatron",
     PD_FAMILY_GLM4_MOE,
     PD_EXPERTS_USUAL,
     false,
     DECODER "%1$u.mlp.experts.local_experts.%2$u.linear_fc1.weight",
     DECODER "%1$u.mlp.experts.local_experts.%2$u.linear_fc1.weight",
     DECODER "%1$u.mlp.experts.local_experts.%2$u.linear_fc2.weight",
     ONE,
     0,
     0,
     0,
     2,
     {2 * FFN, HIDDEN},
     {HIDDEN, FFN}},
    {"singletons",
     "megatron",
     PD_FAMILY_QWEN3_MOE,
     PD_EXPERTS_USUAL,
     false,
     DECODER "%1$u.mlp.experts.experts.%2$u.linear_fc1.weight",
     DECODER "%1$u.mlp.experts.experts.%2$u.linear_fc1.weight",
     DECODER "%1$u.mlp.experts.experts.%2$u.linear_fc2.weight",
     ONE,
     0,
     0,
     0,
     2,
     {2 * FFN, HIDDEN},
     {HIDDEN, FFN}},
};

/* A pattern's name. Formats are no literals here, so the two numbers are put in by hand. */
static void name_of(const char *pattern, uint32_t layer, uint32_t expert, char ret[160])
{
    size_t used = 0;
    for (; *pattern && used < 150; pattern++) {
        if (*pattern != '%') {
            ret[used++] = *pattern;
            continue;
        }
        used += (size_t)snprintf(ret + used, 160 - used, "%u", pattern[1] == '1' ? layer : expert);
        pattern += 3;
    }
    ret[used] = '\0';
}

static void add_form(struct pd_catalog *c, const struct form *f, uint32_t dense)
{
    char name[160];
    for (uint32_t l = f->layer_rows ? LAYERS - 1 : dense; l < LAYERS; l++)
        for (uint32_t e = f->gate_stride ? EXPERTS - 1 : 0; e < EXPERTS; e++) {
            const char *const names[] = {f->gate, f->up, f->down};
            for (int i = 0; i < 3; i++) {
                if (i == 1 && strcmp(f->gate, f->up) == 0) continue;
                name_of(names[i], l, e, name);
                add(c, name, f->ndim, i == 2 ? f->down_shape : f->gate_shape);
            }
        }
}

static void expect_experts(const struct form *f, const struct pd_model *model, const struct pd_links *links, uint32_t dense)
{
    uint32_t seen = 0;
    for (uint32_t i = 0; i < links->count; i++) {
        const struct pd_link *link = &links->items[i];
        const struct pd_tensor *t = &model->tensors.tensors[link->tensor];
        const enum pd_role role = model->init[link->tensor].role;
        if (!t->expert) continue;
        const uint32_t e = t->expert - 1, l = t->unit - 1;
        const bool is_down = role == PD_ROLE_EXPERT_DOWN;
        const uint64_t stride = is_down ? f->down_stride : f->gate_stride;
        char name[160];
        name_of(is_down ? f->down : role == PD_ROLE_EXPERT_UP ? f->up : f->gate, l, e, name);
        cr_expect_str_eq(link->name, name, "%s", f->what);
        const uint64_t first = stride * (l * f->layer_rows + e) + (role == PD_ROLE_EXPERT_UP ? f->up_first : 0);
        for (uint64_t k = 0; k < ONE; k++) {
            uint64_t one = 1;
            cr_assert_eq(pd_view_run(&link->view, k, &one), first + k, "%s: %s", f->what, t->name);
        }
        seen++;
    }
    cr_expect_eq(seen, 3u * EXPERTS * (LAYERS - dense), "%s", f->what);
}

Test(expert_links, every_form)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const struct form *f = &forms[i];
        const uint32_t dense = f->family == PD_FAMILY_GLM4_MOE ? 1 : 0;
        struct pd_model *model = model_of(f->family, dense);
        struct pd_catalog c = exported(model, f->dialect, f->written, f->is_made);
        struct pd_links links;
        struct pd_error err;
        if (!f->is_made) add_form(&c, f, dense);
        finish(&c);
        cr_assert_eq(pd_model_links(model, NULL, &c, PD_MOMENTS_NONE, &links, &err), PD_OK, "%s: %s", f->what, err.message);
        expect_experts(f, model, &links, dense);
        bool *is_beyond = calloc(c.tensor_count, sizeof *is_beyond);
        pd_model_links_beyond(model, &links, &c, is_beyond);
        for (uint32_t t = 0; t < c.tensor_count; t++)
            cr_expect(!is_beyond[t], "%s: nothing takes %s", f->what, c.tensors[t].name);
        free(is_beyond);
        pd_links_deinit(&links);
        pd_catalog_deinit(&c);
        pd_model_free(model);
    }
}

/* Names that are not of experts but differ in models with them. */
Test(expert_links, other_names)
{
    static const struct {
        uint32_t family;
        const char *dialect, *name;
        enum pd_expert_form form;
    } cases[] = {
        {PD_FAMILY_MIXTRAL, "hugging_face", "model.layers.2.block_sparse_moe.gate.weight", PD_EXPERTS_USUAL},
        {PD_FAMILY_MIXTRAL, "hugging_face", "model.layers.2.mlp.gate.weight", PD_EXPERTS_FUSED},
        {PD_FAMILY_GLM4_MOE, "hugging_face", "model.layers.2.mlp.gate.e_score_correction_bias", PD_EXPERTS_FUSED},
        {PD_FAMILY_GLM4_MOE, "torchtitan", "layers.2.moe.expert_bias_E", PD_EXPERTS_USUAL},
        {PD_FAMILY_GLM4_MOE, "torchtitan", "layers.2.moe.shared_experts.w3.weight", PD_EXPERTS_USUAL},
        {PD_FAMILY_GLM4_MOE, "gguf", "blk.2.exp_probs_b.bias", PD_EXPERTS_USUAL},
        {PD_FAMILY_GLM4_MOE, "gguf", "blk.2.post_attention_norm.weight", PD_EXPERTS_USUAL},
        {PD_FAMILY_GLM4_MOE, "gguf", "blk.2.ffn_down_shexp.weight", PD_EXPERTS_USUAL},
        {PD_FAMILY_GLM4_MOE, "gguf", "blk.0.ffn_down.weight", PD_EXPERTS_USUAL},
        {PD_FAMILY_QWEN3_MOE, "gguf", "blk.2.ffn_norm.weight", PD_EXPERTS_USUAL},
        {PD_FAMILY_GLM4_MOE, "megatron", "decoder.layers.2.mlp.router.expert_bias", PD_EXPERTS_USUAL},
        {PD_FAMILY_GLM4_MOE, "megatron", "decoder.layers.2.pre_mlp_layernorm.weight", PD_EXPERTS_USUAL},
        {PD_FAMILY_GLM4_MOE, "megatron", "decoder.layers.0.mlp.linear_fc1.layer_norm_weight", PD_EXPERTS_USUAL},
        {PD_FAMILY_MIXTRAL, "megatron", "decoder.layers.mlp.router.weight", PD_EXPERTS_USUAL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pd_model *model = model_of(cases[i].family, cases[i].family == PD_FAMILY_GLM4_MOE ? 1 : 0);
        struct pd_catalog c = exported(model, cases[i].dialect, cases[i].form, true);
        finish(&c);
        cr_expect(pd_catalog_find(&c, cases[i].name, PD_PARAM) >= 0, "%s", cases[i].name);
        pd_catalog_deinit(&c);
        pd_model_free(model);
    }
}

static void expect_refused(struct pd_catalog *c, const char *words)
{
    struct pd_model *model = model_of(PD_FAMILY_QWEN3_MOE, 0);
    struct pd_links links;
    struct pd_error err;
    finish(c);
    cr_expect_eq(pd_model_links(model, NULL, c, PD_MOMENTS_NONE, &links, &err), PD_INVALID);
    cr_expect(strstr(err.message, words), "%s", err.message);
    pd_catalog_deinit(c);
    pd_model_free(model);
}

/* The separate form, without names that contain `without`. */
static struct pd_catalog apart(const char *without)
{
    struct pd_model *model = model_of(PD_FAMILY_QWEN3_MOE, 0);
    struct pd_catalog all = exported(model, "hugging_face", PD_EXPERTS_USUAL, true), c = begin();
    for (uint32_t i = 0; i < all.tensor_count; i++)
        if (!without || !strstr(all.tensors[i].name, without))
            add(&c, all.tensors[i].name, all.tensors[i].ndim, all.tensors[i].shape);
    pd_catalog_deinit(&all);
    pd_model_free(model);
    return c;
}

Test(expert_links, too_few_too_many_and_twice)
{
    struct pd_catalog c = apart("experts.3.down_proj");
    expect_refused(&c, "these are missing: model.layers.0.mlp.experts.3.down_proj.weight (looked for "
                       "model.layers.0.mlp.experts.3.down_proj.weight)");
    c = apart(NULL);
    add(&c, "model.layers.1.mlp.experts.5.up_proj.weight", 2, (const uint64_t[4]){FFN, HIDDEN});
    expect_refused(
        &c,
        "tensor model.layers.1.mlp.experts.5.up_proj.weight is of expert 5, and the model has 5, the first of which is 0");
    c = apart(NULL);
    add(&c, "model.layers.1.mlp.experts.gate_up_proj", 3, (const uint64_t[4]){EXPERTS, 2 * FFN, HIDDEN});
    expect_refused(&c, "experts are stored in two forms, as model.layers.0.mlp.experts.0.gate_proj.weight and as "
                       "model.layers.1.mlp.experts.gate_up_proj; keep one of them");
    c = apart(".layers.1.mlp.experts.");
    add(&c, "model.layers.1.mlp.experts.gate_up_proj", 3, (const uint64_t[4]){EXPERTS, 2 * FFN, HIDDEN});
    expect_refused(&c, "experts are stored in two forms");
    c = apart(".mlp.experts.");
    add(&c, "model.layers.0.mlp.experts.gate_up_proj", 3, (const uint64_t[4]){EXPERTS - 1, 2 * FFN, HIDDEN});
    expect_refused(&c, "it must be [5, 12, 10]: it has 4 experts, and the model has 5");
}

/* Blocks that predict further tokens have experts, too, and are only listed. */
Test(expert_links, of_a_block_that_the_model_does_not_have)
{
    struct pd_model *model = model_of(PD_FAMILY_QWEN3_MOE, 0);
    struct pd_catalog c = apart(NULL);
    struct pd_links links;
    struct pd_error err;
    add(&c, "model.layers.3.mlp.experts.0.up_proj.weight", 2, (const uint64_t[4]){FFN, HIDDEN});
    finish(&c);
    cr_expect_eq(pd_model_links(model, NULL, &c, PD_MOMENTS_NONE, &links, &err), PD_OK, "%s", err.message);
    pd_links_deinit(&links);
    pd_catalog_deinit(&c);
    pd_model_free(model);
}
