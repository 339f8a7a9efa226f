/* What watching a run costs its steps. */
#pragma once

#include "tools/bench/bench.h"
#include "tools/bench/run.h"

struct pd_sinks_cost {
    struct pd_pairs_summary clock;
    struct pd_pairs_summary work; /* processor time of a step and of what sinks take, each measured where it is spent */
};

/* Steps of `run`, which is open, with every sink of metrics beside metrics.jsonl against those with metrics.jsonl alone. */
PD_MUST_USE pd_status pd_bench_sinks(struct pd_bench_run *run, uint64_t pairs, struct pd_sinks_cost *ret_cost,
                                     struct pd_error *err);
