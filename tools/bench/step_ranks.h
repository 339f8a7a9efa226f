/* What it costs to be several ranks: dp ranks with a share of the threads each, against one rank with all of them. */
#pragma once

#include "tools/bench/bench.h"

struct pd_bench_run;

/* Opens one side's run: the caller's, whose configuration has `dp` ranks and which computes with `threads`. */
typedef pd_status pd_bench_open_side(const void *bench, uint32_t dp, uint32_t threads, struct pd_bench_run *run,
                                     struct pd_error *err);

/* Steps of `ranks` ranks that are threads of this process, against the same steps of one rank, in turn. Both sides end with the
 * same loss, or it is PD_BUG.   threads  of each side, a multiple of ranks */
PD_MUST_USE pd_status pd_bench_step_ranks(const void *bench, pd_bench_open_side *open, uint32_t ranks, uint32_t threads,
                                          uint64_t pairs, struct pd_pairs_summary *ret_summary, struct pd_error *err);
