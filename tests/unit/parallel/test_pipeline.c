/* Streams and gradients through real communicators under every schedule, in memory that the host cannot touch: each arrives
 * where and when its action needs it, nothing waits for ever, padding micro-batches send nothing, and the plan is what was
 * taken. */
#include "tests/helpers/device_math.h"
#include "tests/helpers/late_device.h"
#include "trainer/parallel/pipeline.h"

#include "trainer/parallel/schedule.h"

#include <criterion/criterion.h>
#include <string.h>

enum { WORDS = 1000, MICRO_BATCHES = 10, FIRST_PASSES = 8 };

struct job {
    struct pd_layout layout;
    struct pd_schedule_options options;
    uint32_t fail_rank; /* gives up after half of its actions; none: UINT32_MAX */
    bool is_on_device;
    struct device_memory *far;
};

struct rank {
    struct pd_grid grid;
    struct pd_pipeline *pipeline;
    struct device_memory *far;
};

/* What stage `stage` computes of a micro-batch: the number of stages behind it. */
static void fill(uint64_t *data, bool is_backward, uint32_t stage, uint32_t slot)
{
    for (uint64_t i = 0; i < WORDS; i++)
        data[i] = ((uint64_t)is_backward << 60) + ((uint64_t)stage << 40) + ((uint64_t)slot << 20) + i;
}

static pd_status expect(const uint64_t *data, bool is_backward, uint32_t stage, uint32_t slot, struct pd_error *err)
{
    static _Thread_local uint64_t wanted[WORDS];
    fill(wanted, is_backward, stage, slot);
    if (memcmp(data, wanted, sizeof wanted))
        PD_FAIL(err, PD_BUG, "slot %u of stage %u: %llx came instead of %llx", slot, stage, (unsigned long long)data[0],
                (unsigned long long)wanted[0]);
    return PD_OK;
}

static pd_status forward(struct rank *r, uint32_t stage, uint32_t stages, uint32_t slot, struct pd_error *err)
{
    static _Thread_local uint64_t stream[WORDS];
    void *out;
    if (stage > 0) {
        PD_TRY(pd_pipeline_take_stream(r->pipeline, stream, err));
        PD_TRY(expect(stream, false, stage - 1, slot, err));
    }
    if (stage + 1 == stages) return PD_OK;
    PD_TRY(pd_pipeline_next_stream(r->pipeline, &out, err));
    far_open(r->far);
    fill(out, false, stage, slot);
    far_close(r->far);
    return pd_pipeline_send_stream(r->pipeline, err);
}

static pd_status backward(struct rank *r, uint32_t stage, uint32_t stages, uint32_t slot, struct pd_error *err)
{
    void *gradient;
    if (stage + 1 < stages) {
        PD_TRY(pd_pipeline_take_gradient(r->pipeline, &gradient, err));
        far_open(r->far);
        pd_status st = expect(gradient, true, stage + 1, slot, err);
        far_close(r->far);
        PD_TRY(st);
    } else {
        PD_TRY(pd_pipeline_next_gradient(r->pipeline, &gradient, err));
    }
    far_open(r->far);
    fill(gradient, true, stage, slot);
    far_close(r->far);
    return stage > 0 ? pd_pipeline_send_gradient(r->pipeline, err) : PD_OK;
}

/* ---- receives are counted ---- */

static _Thread_local const struct pd_comm_ops *plain_ops;
static _Thread_local uint32_t receives;

static pd_status count_start(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err)
{
    receives += op->recv_count > 0;
    return plain_ops->start(comm, op, err);
}

static void count_receives(struct pd_comm *comm, struct pd_comm_ops *ops)
{
    if (!comm) return;
    *ops = *plain_ops;
    ops->start = count_start;
    comm->ops = ops;
}

/* ---- a rank ---- */

static pd_status walk(const struct job *job, struct rank *r, const struct pd_schedule *s, uint32_t pass,
                      struct pd_error *err)
{
    const uint32_t pp = job->layout.pp, stages = job->layout.stage_count, rank = r->grid.rank;
    uint64_t streams = 0, gradients = 0, wait_ns;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct pd_action *a = &s->actions[i];
        uint32_t stage = a->chunk * pp + rank;
        if (a->slot >= MICRO_BATCHES) continue;
        if (a->is_backward)
            gradients += stage + 1 < stages;
        else
            streams += stage > 0;
    }
    receives = 0;
    PD_TRY(pd_pipeline_begin(r->pipeline, streams, gradients, err));
    const bool is_ahead = !job->is_on_device || pass >= FIRST_PASSES;
    if (receives != (is_ahead ? (uint32_t)(streams > 0) + (gradients > 0) : 0))
        PD_FAIL(err, PD_BUG, "rank %u, pass %u: %u receives are ahead", rank, pass, receives);
    for (uint32_t i = 0; i < s->count; i++) {
        const struct pd_action *a = &s->actions[i];
        uint32_t stage = a->chunk * pp + rank;
        if (rank == job->fail_rank && i == s->count / 2) PD_FAIL(err, PD_IO, "given up");
        if (a->slot >= MICRO_BATCHES) continue;
        PD_TRY((a->is_backward ? backward : forward)(r, stage, stages, a->slot, err));
    }
    return pd_pipeline_end(r->pipeline, &wait_ns, err);
}

static pd_status run_rank(struct pd_comm *comm, void *context, struct pd_error *err)
{
    const struct job *job = context;
    struct rank r = {.far = &job->far[comm->rank]};
    struct pd_dev late = {.ops = &late_ops}, *const dev = job->is_on_device ? &late : NULL;
    struct pd_stream *compute = NULL;
    struct pd_comm_ops ops;
    struct pd_arena *dry, *arena, *workspace;
    struct pd_math *near;
    struct device_math math;
    const struct pd_comm_memory hook = far_hook(r.far);
    const struct pd_arena_source source = far_source(r.far);
    struct pd_memory_plan plan, used;
    struct pd_schedule schedule;
    struct pd_schedule_options options = job->options;
    options.pp_rank = comm->rank;
    plain_ops = comm->ops;
    pd_comm_use_memory(comm, &hook);
    PD_TRY(far_near_new(&workspace, &near, err));
    device_math_init(&math, near, r.far);
    PD_TRY(pd_grid_init(&job->layout, comm->rank, comm, &r.grid, err));
    count_receives(r.grid.forward_in, &ops);
    count_receives(r.grid.backward_in, &ops);
    if (dev) PD_TRY(pd_dev_stream_new(dev, &compute, err));
    PD_TRY(pd_arena_new_dry(&dry, err));
    PD_TRY(pd_pipeline_new(&r.grid, WORDS * sizeof(uint64_t), NULL, NULL, NULL, dry, &r.pipeline, err));
    pd_arena_usage(dry, &plan);
    pd_arena_free(dry);
    pd_pipeline_free(r.pipeline);
    PD_TRY(pd_arena_new_on(&plan, &source, &arena, err));
    PD_TRY(pd_pipeline_new(&r.grid, WORDS * sizeof(uint64_t), &math.base, dev, compute, arena, &r.pipeline, err));
    pd_arena_usage(arena, &used);
    cr_assert_eq(memcmp(&plan, &used, sizeof plan), 0);
    PD_TRY(pd_schedule_new(&options, &schedule, err));
    pd_status st = PD_OK;
    for (uint32_t pass = 0; pass < (dev ? FIRST_PASSES + 2 : 2) && !st; pass++)
        st = walk(job, &r, &schedule, pass, err);
    if (st) {
        pd_comm_abort(r.grid.comm);
        pd_pipeline_sync(r.pipeline);
    }
    pd_schedule_deinit(&schedule);
    pd_pipeline_free(r.pipeline);
    pd_arena_free(arena);
    pd_math_free(near);
    pd_arena_free(workspace);
    if (dev) pd_dev_stream_free(dev, compute);
    pd_grid_deinit(&r.grid);
    return st;
}

static pd_status run(uint32_t pp, uint32_t interleave, bool forward_only, uint32_t fail_rank, bool is_on_device,
                     struct pd_error *err)
{
    struct job job = {.fail_rank = fail_rank, .is_on_device = is_on_device};
    pd_layout_init_dp(&job.layout, 1);
    job.layout.pp = pp;
    job.layout.interleave = interleave;
    job.layout.stage_count = pp * interleave;
    for (uint32_t s = 0; s < job.layout.stage_count; s++)
        job.layout.first_unit[s] = (uint16_t)s;
    job.options = (struct pd_schedule_options){.pp = pp,
                                               .interleave = interleave,
                                               .slots = pd_schedule_slots(MICRO_BATCHES + 1, pp, interleave),
                                               .forward_only = forward_only};
    job.far = far_world_new(pp);
    pd_status st = pd_comm_run_local(pp, 1, run_rank, &job, err);
    far_world_free(job.far, pp);
    return st;
}

Test(pipeline, everything_arrives)
{
    struct pd_error err;
    for (uint32_t pp = 2; pp <= 6; pp++)
        for (uint32_t interleave = 1; interleave <= 3; interleave++)
            for (int forward_only = 0; forward_only < 2; forward_only++)
                cr_assert_eq(run(pp, interleave, forward_only, UINT32_MAX, false, &err), PD_OK, "pp %u interleave %u %d: %s",
                             pp, interleave, forward_only, err.message);
}

/* On a device a pending receive may keep the driver from loading what the first passes launch. */
Test(pipeline, first_passes_on_a_device_expect_nothing_ahead)
{
    struct pd_error err;
    for (uint32_t pp = 2; pp <= 5; pp++)
        for (uint32_t interleave = 1; interleave <= 3; interleave++)
            cr_assert_eq(run(pp, interleave, false, UINT32_MAX, true, &err), PD_OK, "pp %u interleave %u: %s", pp,
                         interleave, err.message);
}

Test(pipeline, a_rank_that_gives_up_lets_the_others_go)
{
    struct pd_error err;
    for (uint32_t pp = 2; pp <= 5; pp++)
        for (uint32_t interleave = 1; interleave <= 2; interleave++)
            cr_assert_eq(run(pp, interleave, false, pp / 2, false, &err), PD_IO, "%s", err.message);
}
