/* A block whose experts are spread over ranks gives each rank the bits that it gets with all experts: outputs, gradients of
 * inputs, and what every micro-batch adds to each expert. Random routers; a router of zeros, whose ties send every token to the
 * first experts, so that others and whole ranks get none; all tokens to one expert, whose rank computes them in as many slices
 * as there are ranks; single tokens; ranks without a micro-batch; each recomputation. */
#include "trainer/math/math_cpu.h"
#include "trainer/model/experts.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 8, EXPERTS = 8, HIDDEN = 40 };

struct exchange_case {
    const char *preset;
    uint32_t ep, length, absent; /* absent: bit r: rank r has no micro-batch */
    bool has_ties;
    uint32_t per_token, ep_rows; /* 0: the preset's, or the default */
    enum pd_recompute recompute;
    enum pd_dtype dtype;
};

struct block {
    struct pd_model *model;
    struct pd_thread_pool *pool;
    struct pd_arena *arena;
    struct pd_math *math;
    struct pd_transformer *t;
    void *weights, **w;
    float *gradients, **g;
    char *out, *dstream;
};

static pd_status block_model(const struct exchange_case *c, struct pd_model **ret_model, struct pd_error *err)
{
    struct pd_model_config m;
    PD_TRY(pd_model_preset(c->preset, &m, err));
    m.layers = 2, m.hidden = HIDDEN, m.heads = 4, m.kv_heads = 2, m.head_size = 8, m.ffn = m.expert_ffn = 26;
    if (m.rotated) m.rotated = 4;
    if (c->per_token) m.experts_per_token = c->per_token;
    return pd_model_new(&m, ret_model, err);
}

static pd_status block_init(struct block *b, const struct exchange_case *c, struct pd_comm *comm, struct pd_error *err)
{
    struct pd_memory_plan plan;
    const struct pd_transformer_options options = {.sequences = 1,
                                                   .length = c->length,
                                                   .dtype = c->dtype,
                                                   .recompute = c->recompute,
                                                   .recompute_layers = PD_LAYERS_ALL,
                                                   .backward = true,
                                                   .partition = pd_partition_whole(),
                                                   .experts = comm,
                                                   .ep = comm ? c->ep : 1,
                                                   .ep_rows = c->ep_rows,
                                                   .ep_rank = comm ? comm->rank : 0};
    memset(b, 0, sizeof *b);
    PD_TRY(block_model(c, &b->model, err));
    PD_TRY(pd_thread_pool_new(1, &b->pool, err));
    PD_TRY(pd_arena_new_dry(&b->arena, err));
    for (int pass = 0; pass < 2; pass++) {
        PD_TRY(pd_math_cpu_new(b->pool, 1, PD_ISA_AUTO, b->arena, &b->math, err));
        PD_TRY(pd_transformer_new(b->model, b->math, &options, b->arena, &b->t, err));
        if (pass) break;
        pd_arena_usage(b->arena, &plan);
        pd_transformer_free(b->t);
        pd_math_free(b->math);
        pd_arena_free(b->arena);
        PD_TRY(pd_arena_new(&plan, &b->arena, err));
    }
    const uint32_t first = b->model->unit_first[2], count = b->model->unit_first[3] - first;
    const uint64_t bytes = pd_dtype_bytes(c->dtype), rows = c->length * HIDDEN * bytes;
    b->weights = malloc(b->model->parameter_count * sizeof(float));
    b->gradients = malloc(b->model->parameter_count * sizeof(float));
    b->w = calloc(count, sizeof *b->w);
    b->g = calloc(count, sizeof *b->g);
    b->out = calloc(1, rows);
    b->dstream = calloc(1, rows);
    float *values = calloc(b->model->parameter_count, sizeof *values);
    uint64_t at = 0;
    memset(b->gradients, 0xff, b->model->parameter_count * sizeof(float));
    for (uint32_t i = 0; i < count; i++) {
        const struct pd_box whole = pd_box_whole(&b->model->tensors.tensors[first + i]);
        b->w[i] = (char *)b->weights + at * bytes;
        b->g[i] = b->gradients + at;
        pd_model_init_box(b->model, first + i, &whole, 7, values);
        if (c->has_ties && b->model->init[first + i].role == PD_ROLE_ROUTER)
            memset(values, 0, pd_box_elements(&whole) * sizeof *values);
        PD_TRY(pd_cast(b->math, pd_box_elements(&whole), c->dtype, b->w[i], PD_F32, values, err));
        at += pd_box_elements(&whole);
    }
    free(values);
    return PD_OK;
}

static void block_deinit(struct block *b)
{
    pd_transformer_free(b->t);
    pd_math_free(b->math);
    pd_arena_free(b->arena);
    pd_thread_pool_free(b->pool);
    pd_model_free(b->model);
    free(b->weights), free(b->gradients), free(b->w), free(b->g), free(b->out), free(b->dstream);
}

/* Block 1 on the micro-batch of rank `number`. */
static pd_status block_run(struct block *b, const struct exchange_case *c, uint32_t number, bool is_absent,
                           float *const *sources, struct pd_error *err)
{
    struct pd_micro_batch_input *in = pd_transformer_input(b->t, 0);
    const uint64_t elements = (uint64_t)c->length * HIDDEN;
    float *values = calloc(elements, sizeof *values);
    void *stream;
    pd_transformer_begin(b->t, true, 1.0f);
    pd_transformer_set_sources(b->t, sources);
    PD_TRY(pd_transformer_stream(b->t, 0, 1, &stream, err));
    for (uint64_t i = 0; i < elements; i++)
        values[i] = (float)((i * 2654435761u + number * 977u) % 1009) / 500.0f - 1.0f;
    PD_TRY(pd_cast(b->math, elements, c->dtype, stream, PD_F32, values, err));
    PD_TRY(pd_cast(b->math, elements, c->dtype, b->dstream, PD_F32, values, err));
    free(values);
    for (uint32_t i = 0; i < c->length; i++)
        in->positions[i] = (int32_t)i, in->first[i] = 0;
    if (is_absent) {
        PD_TRY(pd_transformer_block_join_forward(b->t, 0, 1, b->w, err));
        return pd_transformer_block_join_backward(b->t, 0, 1, b->w, err);
    }
    PD_TRY(pd_transformer_block_forward(b->t, 0, 1, b->w, b->out, err));
    return pd_transformer_block_backward(b->t, 0, 1, b->w, b->g, b->dstream, err);
}

static pd_status same(const void *a, const void *b, uint64_t bytes, const char *what, uint32_t rank, struct pd_error *err)
{
    if (!memcmp(a, b, bytes)) return PD_OK;
    PD_FAIL(err, PD_BUG, "rank %u: other %s than with all experts on one rank", rank, what);
}

static pd_status exchange_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    const struct exchange_case *c = context;
    const uint32_t me = comm->rank, here = EXPERTS / c->ep;
    struct block spread, whole;
    PD_TRY(block_init(&spread, c, comm, err));
    const uint64_t each = 3 * spread.model->config.expert_ffn * HIDDEN, rows = c->length * HIDDEN * pd_dtype_bytes(c->dtype);
    const int gate = spread.model->places[PD_ROLE_EXPERT_GATE][0];
    float *made = malloc(c->ep * here * each * sizeof *made), *sources[RANKS_MAX];
    for (uint32_t s = 0; s < c->ep; s++)
        sources[s] = c->absent >> s & 1 ? NULL : made + s * here * each;
    PD_TRY(block_run(&spread, c, me, c->absent >> me & 1, sources, err));
    for (uint32_t s = 0; s < c->ep; s++) {
        if (c->absent >> s & 1) continue;
        PD_TRY(block_init(&whole, c, NULL, err));
        PD_TRY(block_run(&whole, c, s, false, NULL, err));
        for (uint32_t i = 0; i < here; i++)
            PD_TRY(same(sources[s] + i * each, whole.g[gate + 3 * (int)(i * c->ep + me)], each * sizeof *made,
                        "gradients of experts", me, err));
        if (s == me) {
            PD_TRY(same(spread.out, whole.out, rows, "outputs", me, err));
            PD_TRY(same(spread.dstream, whole.dstream, rows, "gradients of inputs", me, err));
            PD_TRY(same(spread.g[0], whole.g[0], (uint64_t)(whole.g[gate] - whole.g[0]) * sizeof(float),
                        "gradients of other weights", me, err));
        }
        block_deinit(&whole);
    }
    free(made);
    block_deinit(&spread);
    return PD_OK;
}

/* Bytes that leave a host in forward and backward, beside tokens x k x hidden x 2 bytes x 2 directions x 2 passes x the share
 * of choices whose expert is on another host. */
static pd_status traffic_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    const struct exchange_case *c = context;
    const uint32_t me = comm->rank, here = EXPERTS / c->ep, hosts = 2;
    struct pd_comm_traffic before, after;
    struct block b;
    PD_TRY(block_init(&b, c, comm, err));
    const uint64_t each = 3 * b.model->config.expert_ffn * HIDDEN;
    float *made = malloc(c->ep * here * each * sizeof *made), *sources[RANKS_MAX];
    for (uint32_t s = 0; s < c->ep; s++)
        sources[s] = made + s * here * each;
    PD_TRY(pd_comm_barrier(comm, err));
    pd_comm_traffic(comm, &before);
    PD_TRY(block_run(&b, c, me, false, sources, err));
    pd_comm_traffic(comm, &after);
    uint64_t sums[] = {after.leaving_bytes - before.leaving_bytes, 0};
    const uint64_t *tokens = pd_transformer_expert_counts(b.t)->tokens + EXPERTS + 1;
    for (uint32_t e = 0; e < EXPERTS; e++)
        if (e % c->ep * hosts / c->ep != comm->host) sums[1] += tokens[e];
    PD_TRY(pd_comm_all_reduce(comm, sums, 2, PD_REDUCE_SUM_U64, err));
    free(made);
    block_deinit(&b);
    const double ratio = (double)sums[0] / ((double)sums[1] * HIDDEN * 2 * 2 * 2);
    if (me == 0) printf("ep %u: %.4f of the bytes of tokens and results leave the hosts\n", c->ep, ratio);
    if (ratio > 1 && ratio <= 1.05) return PD_OK;
    PD_FAIL(err, PD_BUG, "%.4f of the bytes leave the hosts", ratio);
}

Test(expert_exchange, bytes_between_hosts)
{
    for (uint32_t ep = 2; ep <= 8; ep *= 2) {
        struct exchange_case c = {.preset = "mixtral-1m", .ep = ep, .length = 500, .dtype = PD_BF16};
        struct pd_error err = {.message = ""};
        cr_assert_eq(pd_comm_run_local(ep, 2, traffic_main, &c, &err), PD_OK, "%s", err.message);
    }
}

static void check(struct exchange_case c)
{
    struct pd_error err = {.message = ""};
    const pd_status st = pd_comm_run_local(c.ep, 1, exchange_main, &c, &err);
    cr_assert_eq(st, PD_OK, "%s, ep %u, length %u, absent %x, ties %d, %u of %u rows, recompute %d: %s", c.preset, c.ep,
                 c.length, c.absent, c.has_ties, c.ep_rows, c.per_token, (int)c.recompute, err.message);
}

Test(expert_exchange, spread_experts_give_the_same_bits)
{
    const char *presets[] = {"mixtral-1m", "glm4-moe-1m"};
    for (uint32_t p = 0; p < 2; p++)
        for (uint32_t ep = 2; ep <= 8; ep *= 2)
            for (int recompute = PD_RECOMPUTE_NONE; recompute <= PD_RECOMPUTE_FULL; recompute++) {
                struct exchange_case c = {.preset = presets[p],
                                          .ep = ep,
                                          .length = 21,
                                          .recompute = (enum pd_recompute)recompute,
                                          .dtype = recompute == PD_RECOMPUTE_SELECTIVE ? PD_BF16 : PD_F32};
                check(c);
                c.absent = 2;
                check(c);
                c.length = 13, c.absent = 1, c.has_ties = true;
                check(c);
                c.length = 1, c.absent = 0, c.has_ties = recompute == 0;
                check(c);
            }
}

Test(expert_exchange, slices_give_the_same_bits)
{
    for (uint32_t ep = 2; ep <= 8; ep *= 2)
        for (int recompute = PD_RECOMPUTE_NONE; recompute <= PD_RECOMPUTE_FULL; recompute++)
            for (uint32_t per_token = 1; per_token <= 3; per_token++) {
                struct exchange_case c = {.preset = per_token == 2 ? "glm4-moe-1m" : "mixtral-1m",
                                          .ep = ep,
                                          .length = 17,
                                          .has_ties = true,
                                          .per_token = per_token,
                                          .ep_rows = 1,
                                          .recompute = (enum pd_recompute)recompute,
                                          .dtype = recompute == PD_RECOMPUTE_SELECTIVE ? PD_BF16 : PD_F32};
                check(c);
                c.absent = 2;
                check(c);
                c.has_ties = false;
                check(c);
            }
}

static pd_status slices_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    const struct exchange_case *c = context;
    struct pd_comm_traffic before, after;
    uint64_t sent[2];
    for (uint32_t i = 0; i < 2; i++) { /* one slice with room for all rows, then as many as there are ranks */
        struct exchange_case some = *c;
        some.ep_rows = i ? 1 : c->ep;
        struct block b;
        PD_TRY(block_init(&b, &some, comm, err));
        float *made = malloc(b.model->parameter_count * sizeof *made), *sources[RANKS_MAX];
        for (uint32_t s = 0; s < c->ep; s++)
            sources[s] = made;
        PD_TRY(pd_comm_barrier(comm, err));
        pd_comm_traffic(comm, &before);
        PD_TRY(block_run(&b, &some, comm->rank, false, sources, err));
        pd_comm_traffic(comm, &after);
        sent[i] = after.inside_bytes - before.inside_bytes;
        free(made);
        block_deinit(&b);
    }
    /* Forward sends all tokens there. Backward sends them again, except the first slice: those are rank 0's. */
    const uint64_t tokens = c->length * (HIDDEN * pd_dtype_bytes(c->dtype) + sizeof(float));
    if (comm->rank == 0 ? sent[1] == sent[0] : sent[1] == sent[0] + tokens) return PD_OK;
    PD_FAIL(err, PD_BUG, "rank %u sends %llu bytes in slices and %llu at once; tokens are %llu", comm->rank,
            (unsigned long long)sent[1], (unsigned long long)sent[0], (unsigned long long)tokens);
}

Test(expert_exchange, rows_beyond_the_limit_come_in_slices)
{
    struct exchange_case c = {
        .preset = "mixtral-1m", .ep = 4, .length = 64, .has_ties = true, .per_token = 1, .dtype = PD_BF16};
    struct pd_error err = {.message = ""};
    cr_assert_eq(pd_comm_run_local(c.ep, 1, slices_main, &c, &err), PD_OK, "%s", err.message);
}
