/* perdure bench: a candidate and its ceiling, alternated in one run on one machine, as a ratio. Absolute times are shown and
 * prove nothing on a shared machine. Each bench parses its own options. */
#ifndef PD_TOOLS_BENCH_H
#define PD_TOOLS_BENCH_H

#include "ckpt/base/status.h"
#include <stdint.h>

#define PD_BENCH_PAIRS_MAX 99

/* Pairs of measurements taken alternately. */
struct pd_pairs {
    double candidate_s[PD_BENCH_PAIRS_MAX], ceiling_s[PD_BENCH_PAIRS_MAX];
    uint32_t count;
};

struct pd_pairs_summary {
    double candidate_s, ceiling_s; /* medians */
    double ratio;                  /* median of candidate / ceiling, pair by pair */
    double ratio_low, ratio_high;  /* smallest and largest: the spread */
};

void pd_pairs_add(struct pd_pairs *pairs, double candidate_s, double ceiling_s);
struct pd_pairs_summary pd_pairs_summarise(const struct pd_pairs *pairs);

pd_status pd_bench_step(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_io(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_ckpt(int argc, char **argv, struct pd_error *err);

#endif
