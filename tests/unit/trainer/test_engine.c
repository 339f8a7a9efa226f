/* Steps of whole engines over ranks in this process: same loss bits and same state for every number of ranks and threads,
 * and exactly the memory that was planned. */
#include "trainer/engine.h"

#include "resharder/layout.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 4, TENSORS_MAX = 128 };

struct job {
    struct pd_config *config;
    uint32_t threads;
    double loss[STEPS], norm[STEPS], validation;
    uint64_t digest[PD_KIND_COUNT][TENSORS_MAX]; /* sums over ranks */
    _Atomic uint64_t parts[PD_KIND_COUNT][TENSORS_MAX];
};

static char *data_path(void)
{
    static char path[64];
    if (path[0]) return path;
    snprintf(path, sizeof path, "/tmp/perdure-engine-%d.txt", (int)getpid());
    FILE *f = fopen(path, "w");
    for (unsigned i = 0, state = 1; i < 20000; i++) {
        state = state * 1664525u + 1013904223u;
        fputc("etaoin shrdlu"[(state >> 24) % 13], f);
    }
    fclose(f);
    return path;
}

static void remove_data(void)
{
    unlink(data_path());
}

static void configure(struct pd_config *c, const char *family, const char *precision, const char *recompute,
                      const char *gradient_type)
{
    char yaml[1200];
    struct pd_error err;
    bool llama = !strcmp(family, "llama");
    snprintf(yaml, sizeof yaml,
             "run: {dir: unused, steps: %d, seed: 5}\n"
             "model: {family: %s, vocab: 256, context: 24, layers: 3, hidden: 48, heads: 3, kv_heads: %d, head_size: 16, "
             "ffn: 112,"
             " tie_embeddings: %s}\n"
             "data: {train: [{path: %s}], validation_fraction: 0.1}\n"
             "batch: {sequences: 14, leaf: 2, context: 24}\n"
             "optimizer: {lr: 0.01, warmup_steps: 2}\n"
             "numerics: {precision: %s, gradient_type: %s}\nlayout: {recompute: %s}\n",
             STEPS, family, llama ? 1 : 3, llama ? "false" : "true", data_path(), precision, gradient_type, recompute);
    cr_assert_eq(pd_config_parse("test", yaml, NULL, 0, c, &err), PD_OK, "%s", err.message);
}

static pd_status run_rank(struct pd_comm *comm, void *context, struct pd_error *err)
{
    struct job *job = context;
    const struct pd_config *c = job->config;
    struct pd_model *model;
    struct pd_data *data;
    struct pd_thread_pool *pool;
    struct pd_arena *arena;
    struct pd_engine *engine;
    struct pd_memory_plan plan, used;
    const struct pd_data_options options = {.train = c->data.train,
                                            .train_count = c->data.train_count,
                                            .validation_fraction = c->data.validation_fraction,
                                            .context = c->batch.context,
                                            .vocab = c->model.vocab,
                                            .document_token = -1,
                                            .seed = c->run.seed};
    PD_TRY(pd_model_new(&c->model, &model, err));
    PD_TRY(pd_data_open(&options, &data, err));
    PD_TRY(pd_thread_pool_new(job->threads, &pool, err));
    PD_TRY(pd_engine_plan(c, model, comm->size, comm->rank, job->threads, &plan, err));
    PD_TRY(pd_arena_new(&plan, &arena, err));
    const struct pd_engine_options engine_options = {c, model, comm->size, comm->rank, job->threads, NULL};
    PD_TRY(pd_engine_new(&engine_options, comm, data, pool, arena, &engine, err));
    pd_arena_usage(arena, &used);
    cr_assert_eq(memcmp(&plan, &used, sizeof plan), 0, "the plan is not what was taken");
    pd_arena_freeze(arena);
    PD_TRY(pd_engine_init_state(engine, err));
    for (uint64_t step = 0; step < STEPS; step++) {
        struct pd_step_result result;
        PD_TRY(pd_engine_step(engine, step * c->batch.sequences, step, &result, err));
        if (comm->rank) continue;
        job->loss[step] = result.loss;
        job->norm[step] = result.gradient_norm;
    }
    double validation;
    PD_TRY(pd_engine_validate(engine, 5, &validation, err));
    if (!comm->rank) job->validation = validation;
    for (uint32_t i = 0; i < pd_zero_box_count(engine->zero); i++) {
        const struct pd_zero_box *b = &pd_zero_boxes(engine->zero)[i];
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            job->parts[kind][b->tensor] += pd_tensor_digest(&model->tensors.tensors[b->tensor], &b->box,
                                                            pd_zero_state(engine->zero, (enum pd_kind)kind) + b->offset);
    }
    pd_engine_free(engine);
    pd_arena_free(arena);
    pd_thread_pool_free(pool);
    pd_data_close(data);
    pd_model_free(model);
    return PD_OK;
}

static void run(struct job *job, uint32_t world, uint32_t threads)
{
    struct pd_error err;
    job->threads = threads;
    cr_assert_eq(pd_comm_run_local(world, 1, run_rank, job, &err), PD_OK, "%s", err.message);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        for (int t = 0; t < TENSORS_MAX; t++)
            job->digest[kind][t] = job->parts[kind][t];
}

static void check_worlds(const char *family, const char *precision, const char *gradient_type)
{
    struct pd_config none, full;
    struct job one = {0};
    configure(&none, family, precision, "none", gradient_type);
    configure(&full, family, precision, "full", gradient_type);
    one.config = &none;
    run(&one, 1, 1);
    cr_assert(isfinite(one.loss[0]) && one.loss[0] > 4 && one.loss[0] < 7, "first loss %g", one.loss[0]);
    cr_assert_lt(one.loss[STEPS - 1], one.loss[0]);
    static const uint32_t worlds[] = {1, 2, 3, 5, 7};
    for (int w = 0; w < 5; w++) {
        struct job many = {.config = w % 2 ? &full : &none};
        run(&many, worlds[w], 1 + (uint32_t)w % 2);
        for (int s = 0; s < STEPS; s++) {
            cr_assert_eq(memcmp(&one.loss[s], &many.loss[s], 8), 0, "%s %s world %u step %d: loss %a, expected %a", family,
                         precision, worlds[w], s, many.loss[s], one.loss[s]);
            cr_assert_eq(memcmp(&one.norm[s], &many.norm[s], 8), 0, "world %u step %d: norm %a, expected %a", worlds[w], s,
                         many.norm[s], one.norm[s]);
        }
        cr_assert_eq(memcmp(&one.validation, &many.validation, 8), 0);
        cr_assert_eq(memcmp(one.digest, many.digest, sizeof one.digest), 0, "%s %s world %u: state differs", family,
                     precision, worlds[w]);
    }
    pd_config_deinit(&none);
    pd_config_deinit(&full);
}

TestSuite(engine, .fini = remove_data);

Test(engine, llama_fp32_same_bits)
{
    check_worlds("llama", "fp32", "fp32");
}

Test(engine, gpt2_fp32_same_bits)
{
    check_worlds("gpt2", "fp32", "fp32");
}

Test(engine, llama_bf16_same_bits)
{
    check_worlds("llama", "bf16", "fp32");
}

Test(engine, gpt2_bf16_with_bf16_gradients_same_bits)
{
    check_worlds("gpt2", "bf16", "bf16");
}

/* A rank that gives up in the middle of traffic: the others learn it at once and nobody touches freed memory (the address
 * sanitizer sees it). */
static pd_status fail_in_traffic(struct pd_comm *comm, void *context, struct pd_error *err)
{
    struct job *job = context;
    const struct pd_config *c = job->config;
    struct pd_model *model;
    struct pd_arena *arena;
    struct pd_math *math;
    struct pd_zero *zero;
    struct pd_memory_plan plan = {0};
    struct pd_zero_options options = {.leaves = comm->size, .compute = PD_F32, .gradient_type = PD_F32};
    struct pd_layout layout;
    struct pd_grid grid;
    pd_layout_init_dp(&layout, comm->size);
    PD_TRY(pd_grid_init(&layout, comm->rank, comm, &grid, err));
    PD_TRY(pd_model_new(&c->model, &model, err));
    for (int i = 0; i < PD_MEMORY_CATEGORY_COUNT; i++)
        plan.bytes[i] = 64 << 20;
    PD_TRY(pd_arena_new(&plan, &arena, err));
    PD_TRY(pd_math_cpu_new(NULL, 1, PD_NUMERICS_INVARIANT, PD_ISA_AUTO, arena, &math, err));
    PD_TRY(pd_zero_new(model, &options, &grid, math, arena, &zero, err));
    pd_status st = PD_OK;
    for (int round = 0; !st && round < 50; round++) {
        void *const *weights;
        st = pd_zero_updated(zero, err);
        if (!st) st = pd_zero_prefetch(zero, 1, err);
        if (!st && comm->rank == 1 && round == 7) st = pd_error_set(err, PD_IO, PD_WHERE, 0, "given up");
        if (!st) st = pd_zero_acquire(zero, 1, &weights, err);
        if (!st) st = pd_zero_push_gradients(zero, 1, 0, err);
        if (!st) st = pd_zero_finish_gradients(zero, err);
    }
    pd_comm_abort(comm);
    pd_zero_settle(zero);
    pd_zero_free(zero);
    pd_math_free(math);
    pd_arena_free(arena);
    pd_model_free(model);
    return st;
}

Test(engine, a_rank_that_gives_up_takes_nobody_s_memory_away)
{
    struct pd_config config;
    struct pd_error err;
    configure(&config, "llama", "fp32", "none", "fp32");
    for (uint32_t world = 2; world < 6; world++) {
        struct job job = {.config = &config};
        cr_assert_eq(pd_comm_run_local(world, 1, fail_in_traffic, &job, &err), PD_IO, "%s", err.message);
    }
    pd_config_deinit(&config);
}
