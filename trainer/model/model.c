/* The tensor table of a model, from its family's row (family.h).
 *
 * GPT-2 in the arrangement of Hugging Face keeps q, k and v in one matrix `attn.c_attn.weight` of shape (C, 3C) and stores
 * every linear as (in, out). Here each of the three is a tensor of its own and every matrix is (out, in), as everywhere
 * else:
 *
 *   attn.{q,k,v}_proj.weight  =  rows [0,C), [C,2C), [2C,3C) of the transposed attn.c_attn.weight
 *   attn.{q,k,v}_proj.bias    =  the same thirds of attn.c_attn.bias
 *   attn.c_proj, mlp.c_fc, mlp.c_proj .weight  =  transposed
 *
 * All other names and shapes are those of Hugging Face. */
#include "trainer/model/family.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS_A_BLOCK_MAX 16u

struct builder {
    struct pd_model *model;
    const struct pd_family_properties *family;
    uint32_t unit;
    char prefix[64];
    float std, output_std;
};

enum split { WHOLE, ROWS, COLUMNS };

/* columns 0: a vector. */
static void add(struct builder *b, const char *name, uint64_t rows, uint64_t columns, enum split split, uint64_t tp_unit,
                struct pd_tensor_init init)
{
    struct pd_model *model = b->model;
    uint32_t at = model->tensors.count++;
    struct pd_tensor *t = &model->tensors.tensors[at];
    *t = (struct pd_tensor){.ndim = columns ? 2 : 1,
                            .shape = {rows, columns ? columns : 1, 1, 1},
                            .dtype = PD_F32,
                            .tp_dim = split == ROWS      ? 0
                                      : split == COLUMNS ? 1
                                                         : -1,
                            .tp_unit = tp_unit,
                            .unit = b->unit,
                            .decay = columns != 0};
    snprintf(t->name, sizeof t->name, "%s%s", b->prefix, name);
    model->init[at] = init;
    model->parameter_count += pd_tensor_elements(t);
}

static struct pd_tensor_init normal(float std)
{
    return (struct pd_tensor_init){.init = PD_INIT_NORMAL, .std = std};
}

static const struct pd_tensor_init zeros = {.init = PD_INIT_ZEROS}, ones = {.init = PD_INIT_ONES};

/* The three projections of attention lie one behind the other, and so do their biases. */
static void add_qkv(struct builder *b, const char *parent, bool bias)
{
    static const char *const names[] = {"q_proj", "k_proj", "v_proj"};
    const struct pd_model_config *c = &b->model->config;
    for (int pass = 0; pass < (bias ? 2 : 1); pass++) {
        for (int i = 0; i < 3; i++) {
            uint64_t rows = (uint64_t)c->head_size * (i == 0 ? c->heads : c->kv_heads);
            char name[48];
            snprintf(name, sizeof name, "%s.%s.%s", parent, names[i], pass == 0 ? "weight" : "bias");
            struct pd_tensor_init init = pass == 0 ? normal(b->std) : zeros;
            init.is_kv = i > 0;
            add(b, name, rows, pass == 0 ? c->hidden : 0, ROWS, c->head_size, init);
        }
    }
}

static void add_named(struct builder *b, const char *name, const char *ending, uint64_t rows, uint64_t columns,
                      enum split split, uint64_t tp_unit, struct pd_tensor_init init)
{
    char full[64];
    snprintf(full, sizeof full, "%s.%s", name, ending);
    add(b, full, rows, columns, split, tp_unit, init);
}

static void add_norm(struct builder *b, const char *name)
{
    const uint64_t hidden = b->model->config.hidden;
    add_named(b, name, "weight", hidden, 0, WHOLE, 1, ones);
    if (b->family->norm == PD_NORM_LAYER) add_named(b, name, "bias", hidden, 0, WHOLE, 1, zeros);
}

/* Back to the residual stream: the bias is added once, behind the sum over tensor-parallel ranks. */
static void add_output(struct builder *b, const char *name, uint64_t columns, uint64_t tp_unit)
{
    const uint64_t hidden = b->model->config.hidden;
    add_named(b, name, "weight", hidden, columns, COLUMNS, tp_unit, normal(b->output_std));
    if (b->family->has_linear_biases) add_named(b, name, "bias", hidden, 0, WHOLE, 1, zeros);
}

static void add_up(struct builder *b)
{
    const struct pd_model_config *c = &b->model->config;
    const struct pd_family_names *n = &b->family->names;
    const char *const matrices[] = {b->family->up_matrices == 2 ? n->gate : n->up, n->up};
    for (uint32_t i = 0; i < b->family->up_matrices; i++)
        add_named(b, matrices[i], "weight", c->ffn, c->hidden, ROWS, 1, normal(b->std));
    for (uint32_t i = 0; i < b->family->up_matrices && b->family->has_linear_biases; i++)
        add_named(b, matrices[i], "bias", c->ffn, 0, ROWS, 1, zeros);
}

static void add_block(struct builder *b)
{
    const struct pd_model_config *c = &b->model->config;
    const struct pd_family_names *n = &b->family->names;
    add_norm(b, n->norm1);
    add_qkv(b, n->attention, c->qkv_bias);
    if (b->family->has_head_norms) {
        add_named(b, n->q_norm, "weight", c->head_size, 0, WHOLE, 1, ones);
        add_named(b, n->k_norm, "weight", c->head_size, 0, WHOLE, 1, ones);
    }
    add_output(b, n->out, (uint64_t)c->heads * c->head_size, c->head_size);
    add_norm(b, n->norm2);
    add_up(b);
    add_output(b, n->down, c->ffn, 1);
}

static void add_embedding(struct builder *b)
{
    const struct pd_model_config *c = &b->model->config;
    const struct pd_family_names *n = &b->family->names;
    add_named(b, n->tokens, "weight", c->vocab, c->hidden, ROWS, 1, normal(b->std));
    if (b->family->positions == PD_POSITIONS_LEARNED)
        add_named(b, n->positions, "weight", c->context, c->hidden, WHOLE, 1, normal(b->std / 2));
}

static void add_head(struct builder *b)
{
    const struct pd_model_config *c = &b->model->config;
    add_norm(b, b->family->names.final_norm);
    if (!c->tie_embeddings) add(b, "lm_head.weight", c->vocab, c->hidden, ROWS, 1, normal(b->std));
}

/* A pattern with one %u, which is no literal here. */
static void number_block(const char *pattern, uint32_t block, char *ret, size_t bytes)
{
    const char *at = strstr(pattern, "%u");
    snprintf(ret, bytes, "%.*s%u%s", (int)(at - pattern), pattern, block, at + 2);
}

static void build_unit(struct builder *b, uint32_t unit)
{
    const struct pd_model_config *c = &b->model->config;
    b->unit = unit;
    b->prefix[0] = '\0';
    b->model->unit_first[unit] = b->model->tensors.count;
    if (unit == 0) {
        add_embedding(b);
    } else if (unit <= c->layers) {
        number_block(b->family->names.block, unit - 1, b->prefix, sizeof b->prefix);
        add_block(b);
        PD_CHECK(b->model->tensors.count - b->model->unit_first[unit] == (uint32_t)pd_block_roles_of(c).count);
    } else {
        add_head(b);
    }
}

pd_status pd_model_new(const struct pd_model_config *config, struct pd_model **ret_model, struct pd_error *err)
{
    struct pd_model_config resolved = *config;
    pd_model_config_resolve(&resolved);
    PD_TRY(pd_model_config_check(&resolved, err));
    struct pd_model *model = calloc(1, sizeof *model);
    if (!model) PD_FAIL(err, PD_NO_MEMORY, "no memory for a tensor table");
    model->config = resolved;
    model->unit_count = resolved.layers + 2;
    size_t tensors_max = (size_t)resolved.layers * TENSORS_A_BLOCK_MAX + 8;
    model->tensors.tensors = calloc(tensors_max, sizeof *model->tensors.tensors);
    model->init = calloc(tensors_max, sizeof *model->init);
    model->unit_first = calloc(model->unit_count + 1, sizeof *model->unit_first);
    if (!model->tensors.tensors || !model->init || !model->unit_first) {
        pd_model_free(model);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a table of %zu tensors", tensors_max);
    }
    struct builder b = {.model = model, .family = pd_family_properties(resolved.family), .std = resolved.init_std};
    b.output_std = (float)(resolved.init_std / sqrt(2.0 * resolved.layers));
    for (uint32_t unit = 0; unit < model->unit_count; unit++)
        build_unit(&b, unit);
    model->unit_first[model->unit_count] = model->tensors.count;
    PD_CHECK(model->tensors.count <= tensors_max);
    *ret_model = model;
    return PD_OK;
}

void pd_model_set_moments(struct pd_model *model, enum pd_dtype moments)
{
    for (uint32_t t = 0; t < model->tensors.count; t++)
        model->tensors.tensors[t].moments = moments;
}

void pd_model_free(struct pd_model *model)
{
    if (!model) return;
    pd_tensor_table_deinit(&model->tensors);
    free(model->init);
    free(model->unit_first);
    free(model);
}

double pd_model_flops_per_token(const struct pd_model *model, uint32_t length)
{
    const struct pd_model_config *c = &model->config;
    double multiplied = c->tie_embeddings ? (double)c->vocab * c->hidden : 0; /* the tied matrix, as the head */
    for (uint32_t unit = 1; unit < model->unit_count; unit++)
        for (uint32_t i = model->unit_first[unit]; i < model->unit_first[unit + 1]; i++)
            if (model->tensors.tensors[i].ndim == 2) multiplied += (double)pd_tensor_elements(&model->tensors.tensors[i]);
    /* A token looks at (length + 1) / 2 keys in the mean; scores and values, forward and twice that backward. */
    double attention = 12.0 * c->layers * c->heads * c->head_size * (length + 1.0) / 2.0;
    return 6.0 * multiplied + attention;
}

/* ---- what it costs to compute ---- */

double pd_attention_flops(const struct pd_model_config *c, uint32_t length)
{
    return 4.0 * c->heads * c->head_size * (length + 1.0) / 2.0;
}

double pd_unit_flops(const struct pd_model *model, uint32_t length, uint32_t unit)
{
    const struct pd_model_config *c = &model->config;
    if (unit == 0) return 2.0 * c->hidden;
    if (unit == model->unit_count - 1) return 2.0 * c->hidden * c->vocab;
    double multiplied = 0;
    for (uint32_t t = model->unit_first[unit]; t < model->unit_first[unit + 1]; t++)
        if (model->tensors.tensors[t].ndim == 2) multiplied += (double)pd_tensor_elements(&model->tensors.tensors[t]);
    return 2.0 * multiplied + pd_attention_flops(c, length);
}
