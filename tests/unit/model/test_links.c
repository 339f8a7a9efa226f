/* Every dialect: a catalog as its system writes it, and for each element of the model the place where that system has it,
 * found by the plain formula of its arrangement. */
#include "tests/helpers/families.h"
#include "trainer/model/links.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS 3
#define FILE_BYTES (UINT64_C(1) << 40)

static struct pd_model *model_of(struct pd_model_config config)
{
    struct pd_model *model;
    struct pd_error err;
    config.layers = LAYERS;
    config.context = 10;
    config.vocab = 11;
    cr_assert_eq(pd_model_new(&config, &model, &err), PD_OK, "%s", err.message);
    return model;
}

static struct pd_model *llama(bool qkv_bias, bool is_tied)
{
    return model_of((struct pd_model_config){.family = PD_FAMILY_LLAMA,
                                             .hidden = 10,
                                             .heads = 4,
                                             .kv_heads = 2,
                                             .head_size = 6,
                                             .ffn = 7,
                                             .qkv_bias = qkv_bias,
                                             .tie_embeddings = is_tied});
}

static struct pd_model *qwen3(void)
{
    return model_of((struct pd_model_config){
        .family = PD_FAMILY_QWEN3, .hidden = 10, .heads = 4, .kv_heads = 2, .head_size = 6, .ffn = 7});
}

static struct pd_model *gpt2(void)
{
    return model_of(
        (struct pd_model_config){.family = PD_FAMILY_GPT2, .hidden = 12, .heads = 3, .ffn = 20, .tie_embeddings = true});
}

static void add(struct pd_catalog *c, const char *name, enum pd_kind kind, uint32_t ndim, uint64_t a, uint64_t b, uint64_t d)
{
    struct pd_foreign_tensor t = {.name = (char *)(uintptr_t)name,
                                  .kind = kind,
                                  .element = PD_ELEMENT_F32,
                                  .ndim = ndim,
                                  .shape = {a, b, d, 1, 1, 1, 1, 1}};
    struct pd_error err;
    cr_assert_eq(pd_catalog_add_dense(c, &t, 0, 0, &err), PD_OK, "%s: %s", name, err.message);
}

static struct pd_catalog begin(void)
{
    struct pd_catalog c;
    uint32_t file;
    pd_catalog_init(&c, "test");
    cr_assert_eq(pd_catalog_add_file(&c, "file", FILE_BYTES, &file, NULL), PD_OK);
    return c;
}

static void finish(struct pd_catalog *c)
{
    struct pd_error err;
    cr_assert_eq(pd_catalog_finish(c, &err), PD_OK, "%s", err.message);
}

/* What pd_model_foreign makes, with pieces. */
static struct pd_catalog exported(const struct pd_model *model, const char *dialect, bool with_moments)
{
    struct pd_catalog wanted, c = begin();
    struct pd_error err;
    pd_catalog_init(&wanted, "test");
    cr_assert_eq(pd_model_foreign(model, dialect, PD_ELEMENT_F32, PD_EXPERTS_USUAL, with_moments, &wanted, &err), PD_OK,
                 "%s", err.message);
    for (uint32_t i = 0; i < wanted.tensor_count; i++) {
        const struct pd_foreign_tensor *t = &wanted.tensors[i];
        add(&c, t->name, t->kind, t->ndim, t->shape[0], t->shape[1], t->shape[2]);
    }
    pd_catalog_deinit(&wanted);
    finish(&c);
    return c;
}

static void expect_shape(const struct pd_catalog *c, const char *name, uint32_t ndim, uint64_t a, uint64_t b, uint64_t d)
{
    const int64_t at = pd_catalog_find(c, name, PD_PARAM);
    cr_assert(at >= 0, "%s", name);
    const struct pd_foreign_tensor *t = &c->tensors[at];
    cr_expect(t->ndim == ndim && t->shape[0] == a && t->shape[1] == b && t->shape[2] == d, "%s", name);
}

static const struct pd_link *link_of(const struct pd_links *links, const struct pd_model *model, const char *tensor)
{
    const int64_t at = pd_tensor_table_find(&model->tensors, tensor);
    cr_assert(at >= 0, "%s", tensor);
    for (uint32_t i = 0; i < links->count; i++)
        if (links->items[i].tensor == (uint32_t)at && links->items[i].kind == PD_PARAM) return &links->items[i];
    cr_assert(false, "%s has no link", tensor);
    return NULL;
}

/* Place of element (row, column) of a tensor in the foreign one, by the system's own arrangement. */
struct expected {
    const struct pd_model_config *c;
    uint64_t layer, rows, columns; /* of the foreign matrix; layer 0 where it is not stacked */
};
typedef uint64_t place_function(const struct expected *e, uint64_t row, uint64_t column);

static uint64_t dense(const struct expected *e, uint64_t row, uint64_t column)
{
    return (e->layer * e->rows + row) * e->columns + column;
}

static uint64_t across(const struct expected *e, uint64_t row, uint64_t column)
{
    return column * e->rows + row;
}

static uint64_t k_across(const struct expected *e, uint64_t row, uint64_t column)
{
    return across(e, e->c->hidden + row, column);
}

static uint64_t v_across(const struct expected *e, uint64_t row, uint64_t column)
{
    return across(e, 2 * e->c->hidden + row, column);
}

static uint64_t second_third(const struct expected *e, uint64_t row, uint64_t column)
{
    return dense(e, e->c->hidden + row, column);
}

/* Meta rotates 2i with 2i + 1, we i with i + D/2. */
static uint64_t neighbours(const struct expected *e, uint64_t row, uint64_t column)
{
    const uint64_t d = e->c->head_size, head = row / d, half = row % d / (d / 2), i = row % (d / 2);
    return dense(e, head * d + 2 * i + half, column);
}

static uint64_t group_rows(const struct expected *e)
{
    return (e->c->heads / e->c->kv_heads + 2) * e->c->head_size;
}

static uint64_t grouped_q(const struct expected *e, uint64_t row, uint64_t column)
{
    const uint64_t q = (uint64_t)e->c->heads / e->c->kv_heads * e->c->head_size;
    return dense(e, row / q * group_rows(e) + row % q, column);
}

static uint64_t grouped_k(const struct expected *e, uint64_t row, uint64_t column)
{
    const uint64_t d = e->c->head_size;
    return dense(e, row / d * group_rows(e) + group_rows(e) - 2 * d + row % d, column);
}

static uint64_t grouped_v(const struct expected *e, uint64_t row, uint64_t column)
{
    const uint64_t d = e->c->head_size;
    return dense(e, row / d * group_rows(e) + group_rows(e) - d + row % d, column);
}

static uint64_t second_half(const struct expected *e, uint64_t row, uint64_t column)
{
    return dense(e, e->c->ffn + row, column);
}

static void expect_link(const struct pd_links *links, const struct pd_model *model, const char *tensor, const char *name,
                        uint64_t layer, uint64_t rows, place_function *place)
{
    const struct pd_link *link = link_of(links, model, tensor);
    const struct pd_tensor *t = &model->tensors.tensors[link->tensor];
    const struct expected e = {&model->config, layer, rows, t->shape[1]};
    cr_expect_str_eq(link->name, name);
    cr_assert_eq(pd_view_elements(&link->view), pd_tensor_elements(t), "%s", tensor);
    for (uint64_t i = 0; i < pd_tensor_elements(t); i++) {
        uint64_t one = 1;
        const uint64_t got = pd_view_run(&link->view, i, &one), row = i / t->shape[1], column = i % t->shape[1];
        cr_assert_eq(got, place(&e, row, column), "%s (%lu, %lu): %lu", tensor, row, column, got);
    }
}

/* Every element of every foreign tensor is taken once: nothing is lost and nothing read twice. */
static void expect_all_taken(const struct pd_links *links, const struct pd_model *model, const struct pd_catalog *c)
{
    bool *beyond = calloc(c->tensor_count, sizeof *beyond);
    pd_model_links_beyond(model, links, c, beyond);
    for (uint32_t i = 0; i < c->tensor_count; i++) {
        const uint64_t elements = pd_foreign_elements(&c->tensors[i]);
        uint32_t *times = calloc(elements, sizeof *times);
        for (uint32_t k = 0; k < links->count; k++) {
            const struct pd_link *link = &links->items[k];
            if (link->kind != c->tensors[i].kind || strcmp(link->name, c->tensors[i].name) != 0) continue;
            cr_assert(pd_view_is_inside(&link->view, elements), "%s", link->name);
            for (uint64_t n = 0, one = 1; n < pd_view_elements(&link->view); n++, one = 1)
                times[pd_view_run(&link->view, n, &one)]++;
        }
        for (uint64_t n = 0; n < elements; n++)
            cr_assert_eq(times[n], 1, "%s %lu: %u times", c->tensors[i].name, n, times[n]);
        cr_expect_not(beyond[i]);
        free(times);
    }
    free(beyond);
}

static struct pd_links links_of(const struct pd_model *model, const char *dialect, const struct pd_catalog *c, bool moments)
{
    struct pd_links links;
    struct pd_error err;
    cr_assert_eq(pd_model_links(model, dialect, c, moments, &links, &err), PD_OK, "%s", err.message);
    return links;
}

static void done(struct pd_model *model, struct pd_catalog *c, struct pd_links *links)
{
    pd_links_deinit(links);
    pd_catalog_deinit(c);
    pd_model_free(model);
}

Test(links, exports_are_taken_whole_by_their_imports)
{
    for (const char *const *dialect = pd_model_dialects; *dialect; dialect++)
        for (int which = 0; which < 4; which++) {
            if (strcmp(*dialect, which == 3 ? "torchtitan" : "llmc") == 0) continue;
            struct pd_model *model = which == 3 ? gpt2() : which == 2 ? qwen3() : llama(which == 1, which == 1);
            struct pd_catalog c = exported(model, *dialect, which == 0);
            struct pd_links links = links_of(model, NULL, &c, which == 0);
            cr_expect_eq(links.count, model->tensors.count * (which == 0 ? 3u : 1u));
            expect_all_taken(&links, model, &c);
            done(model, &c, &links);
        }
}

/* Norms of heads have the order of q and k; where RoPE rotates neighbours nothing is moved in models that have them. */
Test(links, norms_of_heads)
{
    static const struct {
        const char *dialect, *q, *q_norm;
        uint64_t layer;
    } cases[] = {
        {"hugging_face", "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.q_norm.weight", 0},
        {"torchtitan", "layers.1.attention.qkv_linear.wq.weight", "layers.1.attention.q_norm.weight", 0},
        {"gguf", "blk.1.attn_q.weight", "blk.1.attn_q_norm.weight", 0},
        {"megatron", NULL, "decoder.layers.self_attention.q_layernorm.weight", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pd_model *model = qwen3();
        struct pd_catalog c = exported(model, cases[i].dialect, false);
        struct pd_links links = links_of(model, NULL, &c, false);
        expect_link(&links, model, "model.layers.1.self_attn.q_norm.weight", cases[i].q_norm, cases[i].layer, 6, dense);
        if (cases[i].q) expect_link(&links, model, "model.layers.1.self_attn.q_proj.weight", cases[i].q, 0, 24, dense);
        done(model, &c, &links);
    }
}

Test(links, hugging_face_llama)
{
    struct pd_model *model = llama(false, false);
    struct pd_catalog c = exported(model, "hugging_face", false);
    struct pd_links links = links_of(model, NULL, &c, false);
    for (uint32_t i = 0; i < model->tensors.count; i++) /* the names are ours */
        cr_expect_str_eq(links.items[i].name, model->tensors.tensors[i].name);
    expect_link(&links, model, "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight", 0, 24,
                dense);
    done(model, &c, &links);
}

Test(links, hugging_face_gpt2)
{
    struct pd_model *model = gpt2();
    struct pd_catalog c = exported(model, "hugging_face", false);
    struct pd_links links = links_of(model, NULL, &c, false);
    expect_shape(&c, "transformer.h.1.attn.c_attn.weight", 2, 12, 36, 1);
    expect_shape(&c, "transformer.h.1.attn.c_attn.bias", 1, 36, 1, 1);
    expect_shape(&c, "transformer.h.1.mlp.c_fc.weight", 2, 12, 20, 1);
    expect_shape(&c, "transformer.h.1.mlp.c_proj.weight", 2, 20, 12, 1);
    const char *qkv = "transformer.h.1.attn.c_attn.weight";
    expect_link(&links, model, "transformer.h.1.attn.q_proj.weight", qkv, 0, 36, across);
    expect_link(&links, model, "transformer.h.1.attn.k_proj.weight", qkv, 0, 36, k_across);
    expect_link(&links, model, "transformer.h.1.attn.v_proj.weight", qkv, 0, 36, v_across);
    expect_link(&links, model, "transformer.h.1.attn.k_proj.bias", "transformer.h.1.attn.c_attn.bias", 0, 36, second_third);
    expect_link(&links, model, "transformer.h.1.mlp.c_fc.weight", "transformer.h.1.mlp.c_fc.weight", 0, 20, across);
    expect_link(&links, model, "transformer.wte.weight", "transformer.wte.weight", 0, 11, dense);
    done(model, &c, &links);
}

Test(links, torchtitan)
{
    struct pd_model *model = llama(false, false);
    struct pd_catalog c = exported(model, "torchtitan", false);
    struct pd_links links = links_of(model, NULL, &c, false);
    expect_link(&links, model, "model.layers.2.self_attn.q_proj.weight", "layers.2.attention.qkv_linear.wq.weight", 0, 24,
                neighbours);
    expect_link(&links, model, "model.layers.2.self_attn.k_proj.weight", "layers.2.attention.qkv_linear.wk.weight", 0, 12,
                neighbours);
    expect_link(&links, model, "model.layers.2.self_attn.v_proj.weight", "layers.2.attention.qkv_linear.wv.weight", 0, 12,
                dense);
    expect_link(&links, model, "model.layers.0.mlp.gate_proj.weight", "layers.0.feed_forward.w1.weight", 0, 7, dense);
    expect_link(&links, model, "model.layers.0.mlp.up_proj.weight", "layers.0.feed_forward.w3.weight", 0, 7, dense);
    expect_link(&links, model, "lm_head.weight", "lm_head.weight", 0, 11, dense);
    done(model, &c, &links);
}

/* Where torchtitan's fused wqkv (4 query heads, 2 of keys and values, of 6) has a row of a head of q (0), k (1) or v (2). */
static uint64_t fused_row(int which, uint64_t row)
{
    const uint64_t head = row / 6, in_head = row % 6, turned = which == 2 ? in_head : in_head % 3 * 2 + in_head / 3;
    return which == 0 ? head / 2 * 24 + head % 2 * 6 + turned : head * 24 + (which == 1 ? 12 : 18) + turned;
}

/* Its parameters lie apart all the same. */
static struct pd_catalog with_fused_moments(const struct pd_model *model)
{
    struct pd_catalog apart = exported(model, "torchtitan", true), c = begin();
    for (uint32_t i = 0; i < apart.tensor_count; i++) {
        const struct pd_foreign_tensor *t = &apart.tensors[i];
        const char *fused = strstr(t->name, "attention.qkv_linear.wq.weight");
        char name[64];
        if (t->kind != PD_PARAM &&
            (strstr(t->name, "attention.qkv_linear.wk.weight") || strstr(t->name, "attention.qkv_linear.wv.weight")))
            continue;
        snprintf(name, sizeof name, "%.*sattention.qkv_linear.wqkv.weight", (int)(fused ? fused - t->name : 0), t->name);
        if (t->kind != PD_PARAM && fused)
            add(&c, name, t->kind, 2, 48, t->shape[1], 1);
        else
            add(&c, t->name, t->kind, t->ndim, t->shape[0], t->shape[1], t->shape[2]);
    }
    pd_catalog_deinit(&apart);
    finish(&c);
    return c;
}

Test(links, torchtitan_fuses_the_moments_of_q_k_and_v)
{
    static const char *const names[] = {"q_proj", "k_proj", "v_proj"};
    struct pd_model *model = llama(false, false);
    struct pd_catalog c = with_fused_moments(model);
    struct pd_links links = links_of(model, NULL, &c, true);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < links.count; i++) {
        const struct pd_link *link = &links.items[i];
        const struct pd_tensor *tensor = &model->tensors.tensors[link->tensor];
        for (int which = 0; which < 3; which++) {
            if (!strstr(tensor->name, names[which])) continue;
            cr_expect_eq(strstr(link->name, ".wqkv.") != NULL, link->kind != PD_PARAM, "%s", link->name);
            for (uint64_t e = 0; e < pd_tensor_elements(tensor) && link->kind != PD_PARAM; e++, seen++) {
                uint64_t one = 1;
                cr_assert_eq(pd_view_run(&link->view, e, &one), fused_row(which, e / 10) * 10 + e % 10, "%s", tensor->name);
            }
        }
    }
    cr_expect_eq(seen, 2u * 3 * 48 * 10); /* moments, layers */
    done(model, &c, &links);
}

Test(links, gguf)
{
    struct pd_model *model = llama(false, true);
    struct pd_catalog c = exported(model, "gguf", false);
    struct pd_links links = links_of(model, NULL, &c, false);
    expect_link(&links, model, "model.layers.2.self_attn.k_proj.weight", "blk.2.attn_k.weight", 0, 12, neighbours);
    done(model, &c, &links);
    model = llama(true, true); /* Qwen2 */
    c = exported(model, "gguf", false);
    links = links_of(model, NULL, &c, false);
    expect_link(&links, model, "model.layers.2.self_attn.q_proj.weight", "blk.2.attn_q.weight", 0, 24, dense);
    expect_link(&links, model, "model.layers.2.self_attn.q_proj.bias", "blk.2.attn_q.bias", 0, 24, dense);
    done(model, &c, &links);
    model = gpt2();
    c = exported(model, "gguf", false);
    links = links_of(model, NULL, &c, false);
    expect_link(&links, model, "transformer.h.1.attn.k_proj.weight", "blk.1.attn_qkv.weight", 0, 36, second_third);
    done(model, &c, &links);
}

Test(links, megatron_stacks_layers)
{
    struct pd_model *model = llama(true, false);
    struct pd_catalog c = exported(model, "megatron", false);
    struct pd_links links = links_of(model, NULL, &c, false);
    const char *qkv = "decoder.layers.self_attention.linear_qkv.weight", *fc1 = "decoder.layers.mlp.linear_fc1.weight";
    expect_shape(&c, qkv, 3, LAYERS, 48, 10);
    expect_shape(&c, "decoder.layers.self_attention.linear_qkv.bias", 2, LAYERS, 48, 1);
    expect_shape(&c, fc1, 3, LAYERS, 14, 10);
    expect_link(&links, model, "model.layers.2.self_attn.q_proj.weight", qkv, 2, 48, grouped_q);
    expect_link(&links, model, "model.layers.2.self_attn.k_proj.weight", qkv, 2, 48, grouped_k);
    expect_link(&links, model, "model.layers.2.self_attn.v_proj.weight", qkv, 2, 48, grouped_v);
    expect_link(&links, model, "model.layers.1.self_attn.k_proj.bias", "decoder.layers.self_attention.linear_qkv.bias", 1,
                48, grouped_k);
    expect_link(&links, model, "model.layers.1.mlp.gate_proj.weight", fc1, 1, 14, dense);
    expect_link(&links, model, "model.layers.1.mlp.up_proj.weight", fc1, 1, 14, second_half);
    expect_link(&links, model, "model.layers.1.input_layernorm.weight",
                "decoder.layers.self_attention.linear_qkv.layer_norm_weight", 1, 10, dense);
    done(model, &c, &links);
}

/* Numbered layers, norms that are not fused, and a wrapper's name before all. */
Test(links, megatron_numbers_layers)
{
    struct pd_model *model = llama(false, true);
    struct pd_catalog c = begin();
    char name[128];
    add(&c, "module.embedding.word_embeddings.weight", PD_PARAM, 2, 128, 10, 1); /* a padded vocabulary */
    add(&c, "module.decoder.final_layernorm.weight", PD_PARAM, 1, 10, 1, 1);
    static const struct {
        const char *name;
        uint32_t ndim;
        uint64_t rows, columns;
    } block[] = {{"input_layernorm.weight", 1, 10, 1},
                 {"self_attention.linear_qkv.weight", 2, 48, 10},
                 {"self_attention.linear_proj.weight", 2, 10, 24},
                 {"pre_mlp_layernorm.weight", 1, 10, 1},
                 {"mlp.linear_fc1.weight", 2, 14, 10},
                 {"mlp.linear_fc2.weight", 2, 10, 7}};
    for (int layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < sizeof block / sizeof block[0]; i++) {
            snprintf(name, sizeof name, "module.decoder.layers.%d.%s", layer, block[i].name);
            add(&c, name, PD_PARAM, block[i].ndim, block[i].rows, block[i].columns, 1);
        }
    finish(&c);
    struct pd_links links = links_of(model, NULL, &c, false);
    expect_link(&links, model, "model.embed_tokens.weight", "module.embedding.word_embeddings.weight", 0, 11, dense);
    expect_link(&links, model, "model.layers.2.self_attn.k_proj.weight",
                "module.decoder.layers.2.self_attention.linear_qkv.weight", 0, 48, grouped_k);
    expect_link(&links, model, "model.layers.2.input_layernorm.weight", "module.decoder.layers.2.input_layernorm.weight", 0,
                10, dense);
    done(model, &c, &links);
}

Test(links, llmc_has_its_16_tensors_in_order)
{
    static const char *const names[] = {"wte",  "wpe",  "ln1w", "ln1b", "qkvw",    "qkvb",    "attprojw", "attprojb",
                                        "ln2w", "ln2b", "fcw",  "fcb",  "fcprojw", "fcprojb", "lnfw",     "lnfb"};
    struct pd_model *model = gpt2();
    struct pd_catalog c = exported(model, "llmc", true);
    cr_assert_eq(c.tensor_count, 48);
    for (uint32_t i = 0; i < 16; i++)
        cr_expect_str_eq(c.tensors[3 * i].name, names[i]);
    expect_shape(&c, "qkvw", 3, LAYERS, 36, 12);
    expect_shape(&c, "ln1b", 2, LAYERS, 12, 1);
    struct pd_links links = links_of(model, NULL, &c, true);
    expect_link(&links, model, "transformer.h.2.attn.k_proj.weight", "qkvw", 2, 36, second_third);
    expect_link(&links, model, "transformer.h.2.mlp.c_proj.weight", "fcprojw", 2, 12, dense);
    done(model, &c, &links);
}

/* A catalog of transformers' names with something before and after them. */
static struct pd_catalog hugging_face(const struct pd_model *model, const char *base, const char *outer)
{
    struct pd_catalog c = begin();
    for (uint32_t i = 0; i < model->tensors.count; i++) {
        const struct pd_tensor *t = &model->tensors.tensors[i];
        const bool is_inner = strncmp(t->name, "model.", 6) == 0;
        char name[PD_FOREIGN_NAME_MAX];
        snprintf(name, sizeof name, "%s%s", is_inner ? base : outer, is_inner ? t->name + 6 : t->name);
        add(&c, name, PD_PARAM, t->ndim, t->shape[0], t->shape[1], 1);
    }
    return c;
}

Test(links, names_may_have_more_before_them)
{
    static const char *const before[][2] = {{"model.", ""}, {"model.model.", "model."}, {"", ""}, {"a.b.", "a.b."}};
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++) {
        struct pd_model *model = llama(false, false);
        struct pd_catalog c = hugging_face(model, before[i][0], before[i][1]);
        finish(&c);
        struct pd_links links = links_of(model, "hugging_face", &c, false);
        expect_all_taken(&links, model, &c);
        done(model, &c, &links);
    }
}

/* Two models are one that is asked for, with or without what the dialect puts before names; wrappers in between are no names. */
Test(links, of_several_models_one_is_named)
{
    struct pd_model *model = llama(false, false);
    struct pd_catalog c = hugging_face(model, "policy.model.", "policy.");
    struct pd_error err;
    struct pd_links links;
    add(&c, "ref._orig_mod.model.embed_tokens.weight", PD_PARAM, 2, 11, 10, 1);
    finish(&c);
    cr_assert_eq(pd_model_links(model, NULL, &c, PD_MOMENTS_NONE, &links, &err), PD_INVALID);
    cr_assert(strstr(err.message, "names begin with \"policy.model.\" and \"ref.model.\""), "%s", err.message);
    c.prefix = "ref.";
    cr_assert_eq(pd_model_links(model, NULL, &c, PD_MOMENTS_NONE, &links, &err), PD_INVALID);
    cr_assert(strstr(err.message, "looked for ref.model.layers.0"), "%s", err.message);
    c.prefix = "policy.model.";
    links = links_of(model, NULL, &c, false);
    done(model, &c, &links);
}

Test(links, moments_that_are_missing_may_be_left_out)
{
    struct pd_model *model = llama(false, false);
    struct pd_catalog c = hugging_face(model, "model.", "");
    struct pd_error err;
    struct pd_links links;
    add(&c, "model.norm.weight", PD_EXP_AVG, 1, 10, 1, 1);
    finish(&c);
    cr_assert_eq(pd_model_links(model, NULL, &c, PD_MOMENTS_ALL, &links, &err), PD_INVALID);
    cr_assert(strstr(err.message, "exp_avg of model.embed_tokens.weight"), "%s", err.message);
    cr_assert_eq(pd_model_links(model, NULL, &c, PD_MOMENTS_FOUND, &links, &err), PD_OK, "%s", err.message);
    cr_assert_eq(links.count, model->tensors.count + 1);
    done(model, &c, &links);
}

Test(links, what_is_beyond_is_told_apart_from_copies_and_tables)
{
    struct pd_model *model = llama(false, true);
    struct pd_catalog c = hugging_face(model, "model.", "");
    static const struct {
        const char *name;
        bool is_beyond;
    } more[] = {{"lm_head.weight", false},
                {"model.layers.0.self_attn.rotary_emb.inv_freq", false},
                {"rope_freqs.weight", false},
                {"model.layers.3.input_layernorm.weight", true},
                {"model.layers.0.self_attn.q_proj.bias", true}};
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        add(&c, more[i].name, PD_PARAM, 1, 4, 1, 1);
    finish(&c);
    struct pd_links links = links_of(model, NULL, &c, false);
    bool *beyond = calloc(c.tensor_count, sizeof *beyond);
    pd_model_links_beyond(model, &links, &c, beyond);
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        cr_expect_eq(beyond[pd_catalog_find(&c, more[i].name, PD_PARAM)], more[i].is_beyond, "%s", more[i].name);
    for (uint32_t i = 0; i < links.count; i++)
        cr_expect_not(beyond[pd_catalog_find(&c, links.items[i].name, PD_PARAM)], "%s", links.items[i].name);
    free(beyond);
    done(model, &c, &links);
}

static void expect_refused(struct pd_model *model, const char *dialect, struct pd_catalog *c, bool moments,
                           const char *message)
{
    struct pd_links links;
    struct pd_error err;
    finish(c);
    cr_expect_eq(pd_model_links(model, dialect, c, moments, &links, &err), PD_INVALID);
    cr_expect(strstr(err.message, message), "%s", err.message);
    pd_catalog_deinit(c);
    pd_model_free(model);
}

Test(links, what_is_missing_is_named)
{
    struct pd_model *tied = llama(false, true), *model = llama(false, false);
    struct pd_catalog c = hugging_face(tied, "model.", "");
    pd_model_free(tied);
    expect_refused(model, NULL, &c, false, "these are missing: lm_head.weight (looked for lm_head.weight)");
    model = llama(false, false);
    c = hugging_face(model, "model.", "");
    expect_refused(model, NULL, &c, true,
                   "exp_avg of model.embed_tokens.weight (looked for model.embed_tokens.weight), exp_avg_sq of ");
    model = llama(false, false);
    c = begin();
    add(&c, "tok_embeddings.weight", PD_PARAM, 2, 11, 10, 1);
    expect_refused(model, NULL, &c, false,
                   "by torchtitan's names these are missing: model.layers.0.input_layernorm.weight (looked for "
                   "layers.0.attention_norm.weight), model.layers.0.self_attn.q_proj.weight");
}

Test(links, other_names_and_shapes_are_refused)
{
    struct pd_model *model = llama(false, true);
    struct pd_catalog c = begin();
    add(&c, "encoder.weight", PD_PARAM, 1, 4, 1, 1);
    expect_refused(model, NULL, &c, false, "no tensor is a token embedding of a llama by any known system's names");
    model = llama(false, true);
    c = begin();
    add(&c, "encoder.weight", PD_PARAM, 1, 4, 1, 1);
    expect_refused(model, "keras", &c, false, "dialect keras is unknown; there are hugging_face, ");
    model = llama(false, true);
    c = begin();
    add(&c, "model.embed_tokens.weight", PD_PARAM, 2, 10, 10, 1);
    expect_refused(model, NULL, &c, false,
                   "tensor model.embed_tokens.weight is [10, 10], and for model.embed_tokens.weight it must be [11, 10]");
}

Test(links, a_dialect_without_names_for_a_model_is_refused)
{
    struct pd_model *model = gpt2();
    struct pd_catalog c;
    struct pd_error err;
    pd_catalog_init(&c, "test");
    cr_expect_eq(pd_model_foreign(model, "torchtitan", PD_ELEMENT_F32, PD_EXPERTS_USUAL, false, &c, &err), PD_INVALID);
    cr_expect(strstr(err.message, "torchtitan has no names for models of family gpt2"), "%s", err.message);
    pd_catalog_deinit(&c);
    pd_model_free(model);
}
