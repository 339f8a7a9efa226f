/* A block whose router sends every token to one expert is a dense block: same bits, forward and backward, and no gradient
 * for the experts without tokens. Also for a single token, under each recomputation, and in fp8, where the tokens and the
 * weights of that expert have the dense block's scales. */
#include "trainer/math/math_cpu.h"
#include "trainer/model/experts.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define MUST(call)                                              \
    do {                                                        \
        struct pd_error err = {0};                              \
        const pd_status st_ = (call);                           \
        cr_assert_eq(st_, PD_OK, "%s: %s", #call, err.message); \
    } while (0)

/* One model with its memory. */
struct lone {
    struct pd_model *model;
    struct pd_thread_pool *pool;
    struct pd_arena *arena;
    struct pd_math *math;
    struct pd_transformer *t;
    float *weights, *gradients, *dstream;
    void **w;
    float **g;
};

static struct pd_model *small_model(const char *preset)
{
    struct pd_model_config c;
    struct pd_model *model;
    MUST(pd_model_preset(preset, &c, &err));
    c.layers = 1;
    c.hidden = 40;
    c.heads = 4;
    c.kv_heads = 2;
    c.head_size = 8;
    c.ffn = c.expert_ffn = 52;
    c.norm_epsilon = 1e-5f;
    c.rope_theta = 10000;
    if (c.experts) c.experts_per_token = 1;
    MUST(pd_model_new(&c, &model, &err));
    return model;
}

static void lone_init(struct lone *m, const char *preset, const struct pd_transformer_options *options)
{
    struct pd_memory_plan plan;
    memset(m, 0, sizeof *m);
    m->model = small_model(preset);
    MUST(pd_thread_pool_new(1, &m->pool, &err));
    MUST(pd_arena_new_dry(&m->arena, &err));
    for (int pass = 0; pass < 2; pass++) {
        MUST(pd_math_cpu_new(m->pool, 1, PD_ISA_AUTO, m->arena, &m->math, &err));
        MUST(pd_transformer_new(m->model, m->math, options, m->arena, &m->t, &err));
        if (pass) break;
        pd_arena_usage(m->arena, &plan);
        pd_transformer_free(m->t);
        pd_arena_free(m->arena);
        MUST(pd_arena_new(&plan, &m->arena, &err));
    }
    m->weights = calloc(m->model->parameter_count, sizeof *m->weights);
    m->gradients = calloc(m->model->parameter_count, sizeof *m->gradients);
    m->dstream = calloc(pd_transformer_gradient_bytes(m->t), 1);
    m->w = calloc(m->model->tensors.count, sizeof *m->w);
    m->g = calloc(m->model->tensors.count, sizeof *m->g);
    uint64_t at = 0;
    for (uint32_t i = 0; i < m->model->tensors.count; i++) {
        m->w[i] = m->weights + at;
        m->g[i] = m->gradients + at;
        at += pd_tensor_elements(&m->model->tensors.tensors[i]);
    }
}

static void lone_deinit(struct lone *m)
{
    pd_transformer_free(m->t);
    pd_math_free(m->math);
    pd_arena_free(m->arena);
    pd_thread_pool_free(m->pool);
    pd_model_free(m->model);
    free(m->weights), free(m->gradients), free(m->dstream), free(m->w), free(m->g);
}

/* The tensor of the first block in that role; where each expert has one, the one of `expert`. */
static uint32_t tensor_of(const struct pd_model *model, enum pd_role role, uint32_t expert)
{
    const bool is_expert = pd_role_is_expert(role);
    const int place = model->places[is_expert ? PD_ROLE_EXPERT_GATE : role][0];
    return model->unit_first[1] + (uint32_t)place +
           (is_expert ? PD_EXPERT_TENSORS * expert + (uint32_t)(role - PD_ROLE_EXPERT_GATE) : 0);
}

/* Dense tensors and their counterparts in `experts`, whose chosen expert is `expert`. */
static uint32_t counterpart(const struct lone *dense, const struct lone *experts, uint32_t tensor, uint32_t expert)
{
    const enum pd_role role = dense->model->init[tensor].role;
    const uint32_t unit = dense->model->tensors.tensors[tensor].unit;
    if (unit != 1) return experts->model->unit_first[unit] + (tensor - dense->model->unit_first[unit]);
    if (role < PD_ROLE_GATE || role > PD_ROLE_DOWN)
        return tensor_of(experts->model, role, 0) + (tensor - tensor_of(dense->model, role, 0));
    return tensor_of(experts->model, (enum pd_role)(PD_ROLE_EXPERT_GATE + (role - PD_ROLE_GATE)), expert);
}

static void run(struct lone *m, uint32_t length)
{
    struct pd_micro_batch_input *in = pd_transformer_input(m->t, 0);
    for (uint32_t i = 0; i < length; i++) {
        in->tokens[i] = (int32_t)(i * 37 % 256);
        in->targets[i] = (int32_t)(i * 11 % 256);
        in->positions[i] = (int32_t)i;
        in->first[i] = 0;
    }
    const uint32_t block = m->model->unit_first[1], head = m->model->unit_first[2];
    void *last[2] = {m->w[head], m->w[0]};
    float *dlast[2] = {m->g[head], m->g[0]}, *dtable = calloc(256 * 40, sizeof *dtable);
    dlast[1] = dtable; /* the tied table's gradient through the head is not compared */
    pd_transformer_begin(m->t, true, 1.0f);
    MUST(pd_transformer_embed(m->t, 0, m->w, &err));
    MUST(pd_transformer_block_forward(m->t, 0, 0, m->w + block, NULL, &err));
    MUST(pd_transformer_head(m->t, 0, last, dlast, 1.0f, m->dstream, &err));
    MUST(pd_transformer_block_backward(m->t, 0, 0, m->w + block, m->g + block, m->dstream, &err));
    MUST(pd_transformer_embed_backward(m->t, 0, m->g, m->dstream, &err));
    free(dtable);
}

static bool is_zero(const struct lone *m, uint32_t tensor)
{
    for (uint64_t i = 0; i < pd_tensor_elements(&m->model->tensors.tensors[tensor]); i++)
        if (m->g[tensor][i] != 0) return false;
    return true;
}

enum codes { NO_CODES, CODES, KEPT_CODES };

static void check(uint32_t length, enum pd_recompute recompute, enum codes codes)
{
    const struct pd_transformer_options options = {.sequences = 1,
                                                   .length = length,
                                                   .dtype = PD_F32,
                                                   .recompute = recompute,
                                                   .recompute_layers = PD_LAYERS_ALL,
                                                   .backward = true,
                                                   .fp8_linears = codes != NO_CODES,
                                                   .keeps_codes = codes == KEPT_CODES,
                                                   .partition = pd_partition_whole()};
    struct lone dense, experts;
    lone_init(&dense, "byte-1m", &options);
    lone_init(&experts, "mixtral-1m", &options);
    /* A router of zeros ties: the lowest expert gets every token. */
    for (uint32_t i = 0; i < dense.model->tensors.count; i++) {
        const struct pd_box whole = pd_box_whole(&dense.model->tensors.tensors[i]);
        pd_model_init_box(dense.model, i, &whole, 7, dense.w[i]);
        memcpy(experts.w[counterpart(&dense, &experts, i, 0)], dense.w[i], pd_box_elements(&whole) * sizeof(float));
    }
    memset(experts.gradients, 0xff, experts.model->parameter_count * sizeof(float)); /* all must be written */
    run(&dense, length);
    run(&experts, length);
    for (uint32_t i = 0; i < dense.model->tensors.count; i++) {
        if (dense.model->tensors.tensors[i].unit == 2) continue;
        const uint64_t bytes = pd_tensor_elements(&dense.model->tensors.tensors[i]) * sizeof(float);
        cr_assert_eq(memcmp(dense.g[i], experts.g[counterpart(&dense, &experts, i, 0)], bytes), 0, "%s, length %u",
                     dense.model->tensors.tensors[i].name, length);
    }
    for (uint32_t e = 1; e < 8; e++)
        for (int role = PD_ROLE_EXPERT_GATE; role <= PD_ROLE_EXPERT_DOWN; role++)
            cr_assert(is_zero(&experts, tensor_of(experts.model, (enum pd_role)role, e)), "expert %u", e);
    const uint64_t *tokens = pd_transformer_expert_counts(experts.t)->tokens;
    cr_assert_eq(tokens[0], length);
    cr_assert_eq(tokens[1] + tokens[2] + tokens[7], 0);
    lone_deinit(&dense);
    lone_deinit(&experts);
}

Test(experts, one_expert_for_all_tokens_is_a_dense_block)
{
    for (int codes = NO_CODES; codes <= KEPT_CODES; codes++)
        for (int recompute = PD_RECOMPUTE_NONE; recompute <= PD_RECOMPUTE_FULL; recompute++) {
            check(33, (enum pd_recompute)recompute, (enum codes)codes);
            check(1, (enum pd_recompute)recompute, (enum codes)codes);
        }
}
