#include "tools/bench/step_ranks.h"

#include "ckpt/base/clock.h"
#include "tools/bench/run.h"

struct ranks_bench {
    const void *bench;
    pd_bench_open_side *open;
    uint32_t threads;
    uint64_t pairs_wanted;
    struct pd_pairs pairs; /* of rank 0 */
};

/* One rank's view of it. */
struct rank_bench {
    struct ranks_bench *b;
    struct pd_comm *comm;
    struct pd_bench_run shared, alone; /* alone: of rank 0 */
    uint64_t step;
    double loss[2];
};

static pd_status step_shared(void *rank_bench, double *ret_seconds, struct pd_error *err)
{
    struct rank_bench *r = rank_bench;
    double ignored;
    PD_TRY(pd_comm_barrier(r->comm, err));
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    PD_TRY(pd_bench_run_step(&r->shared, r->step, &ignored, &r->loss[0], err));
    PD_TRY(pd_comm_barrier(r->comm, err));
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    return PD_OK;
}

/* The other ranks sleep at their next barrier. */
static pd_status step_alone(void *rank_bench, double *ret_seconds, struct pd_error *err)
{
    struct rank_bench *r = rank_bench;
    return pd_bench_run_step(&r->alone, r->step, ret_seconds, &r->loss[1], err);
}

/* The first pair warms up. */
static pd_status measure(struct rank_bench *r, struct pd_error *err)
{
    struct pd_pairs warm = {.count = 0};
    double ignored;
    for (r->step = 0; r->step <= r->b->pairs_wanted; r->step++) {
        struct pd_pairs *pairs = r->step ? &r->b->pairs : &warm;
        if (r->comm->rank) {
            PD_TRY(step_shared(r, &ignored, err));
            continue;
        }
        PD_TRY(pd_pairs_measure(pairs, r, step_shared, step_alone, err));
        if (r->loss[0] != r->loss[1])
            PD_FAIL(err, PD_BUG, "bench step: step %llu has loss %.9g on %u ranks and %.9g on one",
                    (unsigned long long)r->step, r->loss[0], r->comm->size, r->loss[1]);
    }
    return PD_OK;
}

static pd_status rank_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    struct rank_bench r = {.b = context, .comm = comm};
    r.shared.comm = comm;
    pd_status st = r.b->open(r.b->bench, comm->size, r.b->threads / comm->size, &r.shared, err);
    if (!st && comm->rank == 0) st = r.b->open(r.b->bench, 1, r.b->threads, &r.alone, err);
    if (!st) st = measure(&r, err);
    if (st) pd_comm_abort(comm);
    pd_bench_run_close(&r.alone);
    pd_bench_run_close(&r.shared);
    return st;
}

pd_status pd_bench_step_ranks(const void *bench, pd_bench_open_side *open, uint32_t ranks, uint32_t threads, uint64_t pairs,
                              struct pd_pairs_summary *ret_summary, struct pd_error *err)
{
    static struct ranks_bench b;
    b = (struct ranks_bench){.bench = bench, .open = open, .threads = threads, .pairs_wanted = pairs};
    PD_TRY(pd_comm_run_local(ranks, 1, rank_main, &b, err));
    *ret_summary = pd_pairs_summarise_throughput(&b.pairs);
    return PD_OK;
}
