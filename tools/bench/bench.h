/* perdure bench: a candidate and its ceiling, alternated in one run on one machine, as a ratio. Absolute times are shown and
 * prove nothing on a shared machine. Each bench has its own options. */
#pragma once

#include "tools/output.h"

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
/* One side of a pair: does its work and says how long it took. */
typedef pd_status pd_bench_side(void *bench, double *ret_seconds, struct pd_error *err);
/* Measures a pair. Who goes first changes from pair to pair, so that neither profits from what the other left in a cache. */
PD_MUST_USE pd_status pd_pairs_measure(struct pd_pairs *pairs, void *bench, pd_bench_side *candidate, pd_bench_side *ceiling,
                                       struct pd_error *err);
struct pd_pairs_summary pd_pairs_summarise(const struct pd_pairs *pairs);
/* The same pairs by throughput: ratio = ceiling / candidate, 1 is the ceiling. */
struct pd_pairs_summary pd_pairs_summarise_throughput(const struct pd_pairs *pairs);
void pd_bench_report_ratio(struct pd_report *report, const char *key, const struct pd_pairs_summary *summary);
/* Nearest rank: the smallest value that at least `share` of them do not exceed. Sorts them. */
double pd_bench_quantile(double *values, uint32_t count, double share);

/* Memory on huge pages where the kernel gives them, touched; it goes with the process. */
PD_MUST_USE pd_status pd_bench_map(uint64_t bytes, void **ret_data, struct pd_error *err);
/* Numbers between 0 and 1/2, the same ones for the same seed. */
void pd_bench_fill(float *data, uint64_t count, uint64_t seed);
/* Of all threads of this process. Other programs do not show in it. */
double pd_bench_processor_seconds(void);

pd_status pd_bench_attention(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_adam(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_step(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_ckpt(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_offload(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_reshard(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_exchange(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_tokenize(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_convert(int argc, char **argv, struct pd_error *err);
