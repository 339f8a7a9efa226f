/* Who has ZeRO's buffers when: a caller that reads or writes them out of turn is caught. Two or four data ranks, as threads. */
#include "tests/helpers/families.h"
#include "trainer/parallel/zero_internal.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>

enum { LAYERS = 4 };

struct job {
    struct pd_layout layout;
    struct pd_model *model;
    pd_status (*calls)(struct pd_zero *zero, struct pd_error *err);
};

static pd_status in_zero(const struct job *job, const struct pd_grid *grid, struct pd_math *math, struct pd_error *err)
{
    const struct pd_zero_options options = {
        .micro_batches = job->layout.dp, .lanes = job->layout.dp, .tokens = 64, .compute = PD_F32};
    struct pd_memory_plan plan;
    struct pd_arena *arena;
    struct pd_zero *zero;
    PD_TRY(pd_arena_new_dry(&arena, err));
    PD_TRY(pd_zero_new(job->model, &options, grid, NULL, arena, &zero, err));
    pd_arena_usage(arena, &plan);
    pd_zero_free(zero);
    pd_arena_free(arena);
    PD_TRY(pd_arena_new(&plan, &arena, err));
    PD_TRY(pd_zero_new(job->model, &options, grid, math, arena, &zero, err));
    PD_TRY(pd_zero_refresh_compute(zero, err));
    const pd_status st = job->calls(zero, err);
    pd_comm_abort(((struct pd_grid *)grid)->comm);
    pd_zero_sync(zero);
    pd_zero_free(zero);
    pd_arena_free(arena);
    return st;
}

static pd_status on_a_rank(struct pd_comm *comm, void *context, struct pd_error *err)
{
    const struct job *job = context;
    struct pd_grid grid;
    struct pd_arena *workspace;
    struct pd_math *math;
    const struct pd_memory_plan plan = {.bytes = {[PD_MEMORY_BUFFERS] = 64 << 20}};
    PD_TRY(pd_grid_init(&job->layout, comm->rank, comm, &grid, err));
    PD_TRY(pd_arena_new(&plan, &workspace, err));
    PD_TRY(pd_math_cpu_new(NULL, 1, PD_ISA_AUTO, workspace, &math, err));
    const pd_status st = in_zero(job, &grid, math, err);
    pd_math_free(math);
    pd_arena_free(workspace);
    pd_grid_deinit(&grid);
    return st;
}

static pd_status run(uint32_t ranks, uint32_t stage, pd_status (*calls)(struct pd_zero *zero, struct pd_error *err))
{
    const struct pd_model_config config = {.family = PD_FAMILY_LLAMA,
                                           .vocab = 67,
                                           .context = 16,
                                           .layers = LAYERS,
                                           .hidden = 24,
                                           .heads = 6,
                                           .kv_heads = 3,
                                           .head_size = 4,
                                           .ffn = 37};
    struct job job = {.calls = calls};
    struct pd_error err;
    pd_layout_init_dp(&job.layout, ranks);
    job.layout.zero_stage = stage;
    job.layout.zero_shard = 2;
    cr_assert_eq(pd_model_new(&config, &job.model, &err), PD_OK, "%s", err.message);
    const pd_status st = pd_comm_run_local(ranks, 1, on_a_rank, &job, &err);
    pd_model_free(job.model);
    return st;
}

/* The next block arrives while this one is computed with. */
static pd_status one_ahead(struct pd_zero *zero, struct pd_error *err)
{
    void *const *weights;
    for (uint32_t bucket = 1; bucket < LAYERS; bucket++) {
        PD_TRY(pd_zero_acquire(zero, bucket, &weights, err));
        PD_TRY(pd_zero_prefetch(zero, bucket + 1, err));
    }
    return PD_OK;
}

Test(zero_owners, one_block_ahead_is_in_turn)
{
    cr_assert_eq(run(2, 3, one_ahead), PD_OK);
}

/* Where a rank's part began at 8 bytes, NCCL would move elements one by one. */
static pd_status parts_are_aligned(struct pd_zero *zero, struct pd_error *err)
{
    const uint64_t copies = zero->grid->layout.dp * zero->grid->layout.sp / zero->parts;
    for (uint32_t b = 0; b < zero->has.bucket_count; b++) {
        const struct pd_zero_side *s = &zero->buckets[b].sides[PD_ZERO_COMMON];
        if (s->part * pd_dtype_bytes(zero->options.compute) % 16 || s->stride * 8 % 16 || s->buffer * 8 / copies % 16 ||
            s->buffer % copies || s->buffer < s->stride)
            PD_FAIL(err, PD_BUG, "bucket %u: part %llu, stride %llu, buffer %llu", b, (unsigned long long)s->part,
                    (unsigned long long)s->stride, (unsigned long long)s->buffer);
    }
    return PD_OK;
}

Test(zero_owners, every_ranks_part_is_aligned)
{
    cr_assert_eq(run(2, 3, parts_are_aligned), PD_OK);
    cr_assert_eq(run(4, 1, parts_are_aligned), PD_OK);
    cr_assert_eq(run(4, 2, parts_are_aligned), PD_OK);
}

/* The second block ahead would be packed where the first arrives. */
static pd_status two_ahead(struct pd_zero *zero, struct pd_error *err)
{
    void *const *weights;
    PD_TRY(pd_zero_acquire(zero, 1, &weights, err));
    PD_TRY(pd_zero_prefetch(zero, 2, err));
    return pd_zero_prefetch(zero, 3, err);
}

Test(zero_owners, a_gather_into_what_arrives_is_caught, .signal = SIGABRT)
{
    run(2, 3, two_ahead);
}

static pd_status exchange(struct pd_zero *zero, bool ends, struct pd_error *err)
{
    float *const *gradients;
    bool adds;
    PD_TRY(pd_zero_micro_batch_gradients(zero, 1, 0, &gradients, &adds, err));
    PD_TRY(pd_zero_push_gradients(zero, 1, 0, err));
    if (ends) PD_TRY(pd_zero_finish_gradients(zero, err));
    return pd_zero_share_state(zero, err);
}

static pd_status share_after(struct pd_zero *zero, struct pd_error *err)
{
    return exchange(zero, true, err);
}

static pd_status share_during(struct pd_zero *zero, struct pd_error *err)
{
    return exchange(zero, false, err);
}

Test(zero_owners, replicas_follow_gradients)
{
    cr_assert_eq(run(4, 1, share_after), PD_OK);
}

Test(zero_owners, replicas_beside_gradients_in_flight_are_caught, .signal = SIGABRT)
{
    run(4, 1, share_during);
}

/* In turn infinite, small, and too large but for a coarser quantum. */
static pd_status out_of_range(struct pd_zero *zero, struct pd_error *err)
{
    enum { TENSOR = 3 };
    float *const *gradients;
    bool adds;
    struct pd_gradient_sizes sizes;
    pd_gradient_sizes_init(&sizes);
    for (int turn = 0; turn < 4; turn++) {
        static const float values[] = {INFINITY, 1.0f, -0x1p60f, -0x1p60f};
        PD_TRY(pd_zero_begin_step(zero, 1.0, &sizes, turn == 3 ? 4 : 0, err));
        PD_TRY(pd_zero_micro_batch_gradients(zero, 1, 0, &gradients, &adds, err));
        gradients[TENSOR][5] = values[turn];
        PD_TRY(pd_zero_push_gradients(zero, 1, 0, err));
        PD_TRY(pd_zero_finish_gradients(zero, err));
        PD_TRY(pd_zero_read_marks(zero, err));
        const uint32_t first = pd_zero_held(zero)->boxes[pd_zero_held(zero)->first_box[1]].tensor;
        const uint32_t tensor = first / 9 * 9 + 1 + TENSOR;
        const uint32_t large = pd_zero_out_of_range(zero), not_finite = pd_zero_not_finite(zero);
        if (large != (turn == 2 ? tensor : UINT32_MAX) || not_finite != (turn == 0 ? tensor : UINT32_MAX))
            PD_FAIL(err, PD_BUG, "turn %d: tensors %u and %u, not %u", turn, large, not_finite, tensor);
    }
    return PD_OK;
}

Test(zero_owners, a_gradient_out_of_range_is_of_its_step_and_tensor)
{
    cr_assert_eq(run(2, 3, out_of_range), PD_OK);
}
