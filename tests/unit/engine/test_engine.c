/* Steps of whole engines over data-parallel ranks in this process: same loss bits and same state for every number of ranks
 * and threads, and exactly the memory that was planned. */
#include "tests/unit/engine/engine_run.h"

#include "resharder/layout.h"

#include <math.h>

enum { STEPS = 4 };

static void configure(struct pd_config *c, const char *family, const char *precision, const char *recompute)
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
             "batch: {sequences: 14, micro_batch: 2, context: 24}\n"
             "optimizer: {lr: 0.01, warmup_steps: 2}\n"
             "numerics: {precision: %s}\nlayout: {recompute: %s}\n",
             STEPS, family, llama ? 1 : 3, llama ? "false" : "true", data_path(), precision, recompute);
    cr_assert_eq(pd_config_parse("test", yaml, NULL, 0, c, &err), PD_OK, "%s", err.message);
}

static void run(struct job *job, const struct pd_config *config, uint32_t world, uint32_t threads)
{
    struct pd_error err;
    job->steps = STEPS;
    cr_assert_eq(try_run(job, config, world, threads, &err), PD_OK, "%s", err.message);
}

static void check_worlds(const char *family, const char *precision)
{
    static struct job one, many;
    struct pd_config none, full;
    configure(&none, family, precision, "none");
    configure(&full, family, precision, "full");
    run(&one, &none, 1, 1);
    cr_assert(isfinite(one.loss[0]) && one.loss[0] > 4 && one.loss[0] < 7, "first loss %g", one.loss[0]);
    cr_assert_lt(one.loss[STEPS - 1], one.loss[0]);
    static const uint32_t worlds[] = {1, 2, 3, 5, 7};
    for (int w = 0; w < 5; w++) {
        char what[64];
        run(&many, w % 2 ? &full : &none, worlds[w], 1 + (uint32_t)w % 2);
        snprintf(what, sizeof what, "%s %s world %u", family, precision, worlds[w]);
        expect_same(&one, &many, what);
    }
    pd_config_deinit(&none);
    pd_config_deinit(&full);
}

TestSuite(engine, .fini = remove_data);

/* The same with one rank as with many: it is the configuration that admits several. */
Test(engine, products_leave_multiprocessors_to_nccl)
{
    struct pd_config c;
    configure(&c, "llama", "bf16", "none");
    cr_expect_eq(pd_engine_multiprocessors(&c, 132), 132 - 16, "seven lanes may be on seven ranks");
    cr_expect_eq(pd_engine_multiprocessors(&c, 20), 20 - 2);
    cr_expect_eq(pd_engine_multiprocessors(&c, 0), 0, "not known");
    c.numerics.lanes = 1;
    cr_expect_eq(pd_engine_multiprocessors(&c, 132), 0, "one data rank");
    c.numerics.virtual_tp = 2;
    cr_expect_eq(pd_engine_multiprocessors(&c, 132), 132 - 16);
    pd_config_deinit(&c);
}

Test(engine, llama_fp32_same_bits)
{
    check_worlds("llama", "fp32");
}

Test(engine, gpt2_fp32_same_bits)
{
    check_worlds("gpt2", "fp32");
}

Test(engine, llama_bf16_same_bits)
{
    check_worlds("llama", "bf16");
}

Test(engine, gpt2_bf16_same_bits)
{
    check_worlds("gpt2", "bf16");
}

/* A scale that overflows at first: steps are skipped by all ranks or by none, and then training goes on. */
Test(engine, llama_fp16_skips_alike)
{
    static struct job one, many;
    struct pd_config c;
    configure(&c, "llama", "fp16", "none");
    c.numerics.loss_scale = 65536;
    run(&one, &c, 1, 2);
    cr_assert(one.skipped[0], "nothing overflowed");
    cr_assert(!one.skipped[STEPS - 1], "scale %g still overflows", one.state.loss_scale);
    cr_assert_eq(one.state.updates + one.state.skipped_steps, STEPS);
    cr_assert_eq(one.state.loss_scale, 65536 / (1u << one.state.skipped_steps));
    for (uint32_t world = 2; world <= 4; world++) {
        char what[64];
        run(&many, &c, world, 1);
        snprintf(what, sizeof what, "fp16 world %u", world);
        expect_same(&one, &many, what);
    }
    pd_config_deinit(&c);
}

/* Training that diverges says so; it is no bug of the program. */
Test(engine, a_loss_that_is_not_finite_has_diverged)
{
    static struct job job = {.steps = STEPS_MAX};
    struct pd_config c;
    struct pd_error err;
    configure(&c, "llama", "fp32", "none");
    c.optimizer.lr = c.optimizer.min_lr = 1e30;
    c.optimizer.warmup_steps = 0;
    cr_assert_eq(try_run(&job, &c, 1, 1, &err), PD_DIVERGED, "%s", err.message);
    cr_assert_not_null(strstr(err.message, "not finite"), "%s", err.message);
    cr_assert_eq(pd_status_exit_code(PD_DIVERGED), 70);
    pd_config_deinit(&c);
}

/* What the scale multiplied is divided out: norms and learning do not know it. */
Test(engine, fp16_loss_scale_goes_out)
{
    static struct job small, large;
    struct pd_config c;
    configure(&c, "llama", "fp16", "none");
    c.numerics.loss_scale = 16;
    run(&small, &c, 1, 1);
    c.numerics.loss_scale = 256;
    run(&large, &c, 1, 1);
    for (int s = 0; s < STEPS; s++) {
        cr_assert(!small.skipped[s] && !large.skipped[s]);
        cr_assert_float_eq(small.norm[s], large.norm[s], 0.01 * large.norm[s], "step %d: norm %g, then %g", s, small.norm[s],
                           large.norm[s]);
        cr_assert_float_eq(small.loss[s], large.loss[s], 0.01);
    }
    pd_config_deinit(&c);
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
    struct pd_zero_options options = {.micro_batches = comm->size, .lanes = comm->size, .tokens = 64, .compute = PD_F32};
    struct pd_layout layout;
    struct pd_grid grid;
    pd_layout_init_dp(&layout, comm->size);
    PD_TRY(pd_grid_init(&layout, comm->rank, comm, &grid, err));
    PD_TRY(pd_model_new(&c->model, &model, err));
    for (int i = 0; i < PD_MEMORY_CATEGORY_COUNT; i++)
        plan.bytes[i] = 64 << 20;
    PD_TRY(pd_arena_new(&plan, &arena, err));
    PD_TRY(pd_math_cpu_new(NULL, 1, PD_ISA_AUTO, arena, &math, err));
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
    pd_zero_sync(zero);
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
    configure(&config, "llama", "fp32", "none");
    for (uint32_t world = 2; world < 6; world++) {
        struct job job = {.config = &config};
        cr_assert_eq(pd_comm_run_local(world, 1, fail_in_traffic, &job, &err), PD_IO, "%s", err.message);
    }
    pd_config_deinit(&config);
}
