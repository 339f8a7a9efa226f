#include "tools/bench/step_ranks.h"

#include "ckpt/base/clock.h"
#include "tools/bench/run.h"

/* One rank's view of it. */
struct rank_bench {
    const struct pd_bench_sides *sides;
    struct pd_comm *comm;
    struct pd_bench_run candidate, ceiling;
    uint64_t step;
    double loss[2];
    struct pd_pairs pairs;
};

static pd_status step_together(struct rank_bench *r, struct pd_bench_run *run, double *ret_seconds, double *ret_loss,
                               struct pd_error *err)
{
    double ignored;
    PD_TRY(pd_comm_barrier(r->comm, err));
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    PD_TRY(pd_bench_run_step(run, r->step, &ignored, ret_loss, err));
    PD_TRY(pd_comm_barrier(r->comm, err));
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    return PD_OK;
}

static pd_status step_candidate(void *rank_bench, double *ret_seconds, struct pd_error *err)
{
    struct rank_bench *r = rank_bench;
    return step_together(r, &r->candidate, ret_seconds, &r->loss[0], err);
}

/* Where one rank is alone, the others sleep at their next barrier. */
static pd_status step_ceiling(void *rank_bench, double *ret_seconds, struct pd_error *err)
{
    struct rank_bench *r = rank_bench;
    if (!r->sides->is_ceiling_alone) return step_together(r, &r->ceiling, ret_seconds, &r->loss[1], err);
    return r->comm->rank ? PD_OK : pd_bench_run_step(&r->ceiling, r->step, ret_seconds, &r->loss[1], err);
}

/* The first pair warms up. */
static pd_status measure(struct rank_bench *r, struct pd_error *err)
{
    for (r->step = 0; r->step <= r->sides->pairs; r->step++) {
        PD_TRY(pd_pairs_measure(&r->pairs, r, step_candidate, step_ceiling, err));
        if (!r->comm->rank && r->loss[0] != r->loss[1])
            PD_FAIL(err, PD_BUG, "bench step: step %llu has loss %.9g on one side and %.9g on the other",
                    (unsigned long long)r->step, r->loss[0], r->loss[1]);
        if (!r->step) r->pairs.count = 0;
    }
    return PD_OK;
}

struct shared {
    const struct pd_bench_sides *sides;
    struct pd_pairs *ret_pairs; /* rank 0 writes it */
};

static pd_status rank_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    const struct shared *shared = context;
    const struct pd_bench_sides *s = shared->sides;
    struct rank_bench r = {.sides = s, .comm = comm};
    const bool alone = s->is_ceiling_alone;
    const uint32_t share = s->threads / comm->size;
    r.candidate.comm = comm;
    if (!alone) r.ceiling.comm = comm;
    pd_status st = s->open(s->bench, s->candidate, comm->size, share, &r.candidate, err);
    if (!st && (!alone || comm->rank == 0))
        st = s->open(s->bench, s->ceiling, alone ? 1 : comm->size, alone ? s->threads : share, &r.ceiling, err);
    if (!st) st = measure(&r, err);
    if (st) pd_comm_abort(comm);
    if (!st && comm->rank == 0) *shared->ret_pairs = r.pairs;
    pd_bench_run_close(&r.ceiling);
    pd_bench_run_close(&r.candidate);
    return st;
}

pd_status pd_bench_step_ranks(const struct pd_bench_sides *sides, struct pd_pairs *ret_pairs, struct pd_error *err)
{
    struct shared shared = {sides, ret_pairs};
    return pd_comm_run_local(sides->ranks, 1, rank_main, &shared, err);
}
