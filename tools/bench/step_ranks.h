/* Steps of several ranks that are threads of this process, one kind of them against another. */
#pragma once

#include "tools/bench/bench.h"

struct pd_bench_run;

/* Opens a side's run on one rank: the caller's, whose configuration has `dp` ranks and which computes with `threads`. */
typedef pd_status pd_bench_open_side(const void *bench, int side, uint32_t dp, uint32_t threads, struct pd_bench_run *run,
                                     struct pd_error *err);

struct pd_bench_sides {
    const void *bench;
    pd_bench_open_side *open;
    int candidate, ceiling;  /* passed to `open` */
    bool is_ceiling_alone;   /* of one rank with the threads of all */
    uint32_t ranks, threads; /* threads: of each side, a multiple of ranks */
    uint64_t pairs;
};

/* Both sides end each step with the same loss, or it is PD_BUG. */
PD_MUST_USE pd_status pd_bench_step_ranks(const struct pd_bench_sides *sides, struct pd_pairs *ret_pairs,
                                          struct pd_error *err);
