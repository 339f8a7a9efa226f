/* Builds the tensor table of a model from its family's row (resharder/catalog/families.c). Names and shapes are Hugging
 * Face's, except matrices that transformers fuses or transposes. */
#include "trainer/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPERT_NAME_MAX 64

struct builder {
    struct pd_model *model;
    const struct pd_family *family;
    const char *names[PD_ROLE_COUNT]; /* the family's, with the number of the expert */
    char expert_names[PD_EXPERT_TENSORS][EXPERT_NAME_MAX];
    uint32_t expert;
    uint32_t unit;
    char prefix[64];
    float std, output_std;
};

enum split { WHOLE, ROWS, COLUMNS };

/* columns 0: a vector. Matrices start with the deviation std, biases with 0, norms with 1. */
static void model_add(struct builder *b, enum pd_role role, bool is_bias, uint64_t rows, uint64_t columns, enum split split,
                      uint64_t tp_unit, float std)
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
    const bool is_selection = role == PD_ROLE_ROUTER && is_bias;
    snprintf(t->name, sizeof t->name, "%s%s%s", b->prefix, is_selection ? b->family->selection_bias : b->names[role],
             is_selection ? ""
             : is_bias    ? ".bias"
                          : ".weight");
    if (pd_role_is_expert(role)) t->expert = b->expert + 1;
    model->init[at] = (struct pd_tensor_init){.init = columns   ? PD_INIT_NORMAL
                                                      : is_bias ? PD_INIT_ZEROS
                                                                : PD_INIT_ONES,
                                              .std = columns ? std : 0,
                                              .role = role,
                                              .is_bias = is_bias};
    model->parameter_count += pd_tensor_elements(t);
    if (!pd_role_is_expert(role) || b->expert < model->config.experts_per_token)
        model->active_count += pd_tensor_elements(t);
    int *place = &model->places[role][is_bias];
    const bool is_in_block = b->unit > 0 && b->unit <= model->config.layers;
    if (is_in_block && *place < 0) *place = (int)(at - model->unit_first[b->unit]);
}

static void add_bias(struct builder *b, enum pd_role role, uint64_t rows, enum split split, uint64_t tp_unit)
{
    model_add(b, role, true, rows, 0, split, tp_unit, 0);
}

static void add_norm(struct builder *b, enum pd_role role)
{
    const uint64_t hidden = b->model->config.hidden;
    model_add(b, role, false, hidden, 0, WHOLE, 1, 0);
    if (b->family->norm == PD_NORM_LAYER) add_bias(b, role, hidden, WHOLE, 1);
}

/* Output to the residual stream: the bias is added once, after the sum over tensor-parallel ranks. */
static void add_output(struct builder *b, enum pd_role role, uint64_t columns, uint64_t tp_unit)
{
    const uint64_t hidden = b->model->config.hidden;
    model_add(b, role, false, hidden, columns, COLUMNS, tp_unit, b->output_std);
    if (b->family->has_linear_biases) add_bias(b, role, hidden, WHOLE, 1);
}

/* A pattern with one %u, which is no literal here. */
static void number_first(const char *pattern, uint32_t number, char *ret, size_t bytes)
{
    const char *at = strstr(pattern, "%u");
    snprintf(ret, bytes, "%.*s%u%s", (int)(at - pattern), pattern, number, at + 2);
}

/* A gated MLP of `ffn` columns. */
static void add_gated(struct builder *b, enum pd_role gate, uint64_t ffn)
{
    const uint64_t hidden = b->model->config.hidden;
    model_add(b, gate, false, ffn, hidden, ROWS, 1, b->std);
    model_add(b, gate + 1, false, ffn, hidden, ROWS, 1, b->std);
    model_add(b, gate + 2, false, hidden, ffn, COLUMNS, 1, b->output_std);
}

static void add_experts(struct builder *b)
{
    const struct pd_model_config *c = &b->model->config;
    model_add(b, PD_ROLE_ROUTER, false, c->experts, c->hidden, WHOLE, 1, b->std);
    if (b->family->selection_bias) {
        add_bias(b, PD_ROLE_ROUTER, c->experts, WHOLE, 1);
        struct pd_tensor *bias = &b->model->tensors.tensors[b->model->tensors.count - 1];
        bias->by_sign = true;
        bias->sign_step = c->bias_step;
        b->model->init[b->model->tensors.count - 1].init = PD_INIT_ZEROS;
    }
    for (b->expert = 0; b->expert < c->experts; b->expert++) {
        for (int i = 0; i < (int)PD_EXPERT_TENSORS; i++) {
            number_first(b->family->names[PD_ROLE_EXPERT_GATE + i], b->expert, b->expert_names[i], EXPERT_NAME_MAX);
            b->names[PD_ROLE_EXPERT_GATE + i] = b->expert_names[i];
        }
        add_gated(b, PD_ROLE_EXPERT_GATE, c->expert_ffn);
    }
    if (c->shared_experts) add_gated(b, PD_ROLE_SHARED_GATE, pd_model_shared_ffn(c));
}

static void add_block(struct builder *b)
{
    const struct pd_model_config *c = &b->model->config;
    const enum pd_role up = pd_up_role(b->family);
    const uint64_t head = c->head_size, q = head * c->heads, kv = head * c->kv_heads;
    add_norm(b, PD_ROLE_NORM1);
    for (enum pd_role r = PD_ROLE_Q; r <= PD_ROLE_V; r++)
        model_add(b, r, false, r == PD_ROLE_Q ? q : kv, c->hidden, ROWS, head, b->std);
    for (enum pd_role r = PD_ROLE_Q; r <= PD_ROLE_V && c->qkv_bias; r++)
        add_bias(b, r, r == PD_ROLE_Q ? q : kv, ROWS, head);
    const bool is_of_all = b->family->qk_norm == PD_QK_NORM_ALL;
    for (enum pd_role r = PD_ROLE_Q_NORM; r <= PD_ROLE_K_NORM && c->qk_norm; r++)
        model_add(b, r, false, !is_of_all ? head : r == PD_ROLE_Q_NORM ? q : kv, 0, WHOLE, 1, 0);
    add_output(b, PD_ROLE_OUT, q, head);
    add_norm(b, PD_ROLE_NORM2);
    if (pd_model_has_experts(c, b->unit - 1)) {
        add_experts(b);
        return;
    }
    for (enum pd_role r = up; r <= PD_ROLE_UP; r++)
        model_add(b, r, false, c->ffn, c->hidden, ROWS, 1, b->std);
    for (enum pd_role r = up; r <= PD_ROLE_UP && b->family->has_linear_biases; r++)
        add_bias(b, r, c->ffn, ROWS, 1);
    add_output(b, PD_ROLE_DOWN, c->ffn, 1);
}

static void add_embedding(struct builder *b)
{
    const struct pd_model_config *c = &b->model->config;
    model_add(b, PD_ROLE_TOKENS, false, c->vocab, c->hidden, ROWS, 1, b->std);
    if (b->family->positions == PD_POSITIONS_LEARNED)
        model_add(b, PD_ROLE_POSITIONS, false, c->context, c->hidden, WHOLE, 1, b->std / 2);
}

static void add_head(struct builder *b)
{
    const struct pd_model_config *c = &b->model->config;
    add_norm(b, PD_ROLE_FINAL_NORM);
    if (!c->tie_embeddings) model_add(b, PD_ROLE_HEAD, false, c->vocab, c->hidden, ROWS, 1, b->std);
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
        number_first(b->family->block, unit - 1, b->prefix, sizeof b->prefix);
        add_block(b);
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
    memset(model->places, -1, sizeof model->places);
    size_t tensors_max = ((size_t)resolved.layers + 1) * (2 * PD_ROLE_COUNT + (size_t)PD_EXPERT_TENSORS * resolved.experts);
    model->tensors.tensors = calloc(tensors_max, sizeof *model->tensors.tensors);
    model->init = calloc(tensors_max, sizeof *model->init);
    model->unit_first = calloc(model->unit_count + 1, sizeof *model->unit_first);
    if (!model->tensors.tensors || !model->init || !model->unit_first) {
        pd_model_free(model);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a table of %zu tensors", tensors_max);
    }
    struct builder b = {.model = model, .family = pd_family_at(resolved.family), .std = resolved.init_std};
    memcpy(b.names, b.family->names, sizeof b.names);
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

/* Elements of a unit's matrices by which a token is multiplied: of experts only those that it chooses. */
static double multiplied_of(const struct pd_model *model, uint32_t unit)
{
    const double chosen = model->config.experts ? (double)model->config.experts_per_token / model->config.experts : 0;
    double multiplied = 0;
    for (uint32_t t = model->unit_first[unit]; t < model->unit_first[unit + 1]; t++)
        if (model->tensors.tensors[t].ndim == 2)
            multiplied += (pd_role_is_expert(model->init[t].role) ? chosen : 1) *
                          (double)pd_tensor_elements(&model->tensors.tensors[t]);
    return multiplied;
}

double pd_model_flops_per_token(const struct pd_model *model, uint32_t length)
{
    const struct pd_model_config *c = &model->config;
    double multiplied = c->tie_embeddings ? (double)c->vocab * c->hidden : 0; /* the tied matrix, as the head */
    for (uint32_t unit = 1; unit < model->unit_count; unit++)
        multiplied += multiplied_of(model, unit);
    /* A token sees (length + 1) / 2 keys on average; scores and values, forward, and twice that backward. */
    double attention = 12.0 * c->layers * c->heads * c->head_size * (length + 1.0) / 2.0;
    return 6.0 * multiplied + attention;
}

/* ---- cost of computing ---- */

double pd_attention_flops(const struct pd_model_config *c, uint32_t length)
{
    return 4.0 * c->heads * c->head_size * (length + 1.0) / 2.0;
}

double pd_unit_flops(const struct pd_model *model, uint32_t length, uint32_t unit)
{
    const struct pd_model_config *c = &model->config;
    if (unit == 0) return 2.0 * c->hidden;
    if (unit == model->unit_count - 1) return 2.0 * c->hidden * c->vocab;
    return 2.0 * multiplied_of(model, unit) + pd_attention_flops(c, length);
}
