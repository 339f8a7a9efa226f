/* perdure bench: a candidate and its ceiling, alternated in one run on one machine, as a ratio. Absolute times are shown and
 * prove nothing on a shared machine. Each bench parses its own options. */
#ifndef PD_TOOLS_BENCH_BENCH_H
#define PD_TOOLS_BENCH_BENCH_H

#include "ckpt/base/json.h"

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
/* The same pairs by throughput: ratio = ceiling / candidate, 1 is the ceiling. */
struct pd_pairs_summary pd_pairs_summarise_throughput(const struct pd_pairs *pairs);
/* "<key>", "<key>_low", "<key>_high". */
void pd_bench_json_ratio(struct pd_json_writer *writer, const char *key, const struct pd_pairs_summary *summary);
/* `text` between single quotes, as YAML takes any path; one that does not fit is cut off.   returns  ret_text */
const char *pd_bench_quoted(const char *text, size_t bytes, char *ret_text);
/* bench ckpt --every: tools/bench/every.c. */
struct pd_bench_options;
PD_MUST_USE pd_status pd_bench_every(const struct pd_bench_options *options, struct pd_error *err);
/* The same with --state nvme: tools/bench/every_files.c. */
PD_MUST_USE pd_status pd_bench_every_files(const struct pd_bench_options *options, struct pd_error *err);
/* bench ckpt --compression: tools/bench/compress.c. */
PD_MUST_USE pd_status pd_bench_compress(const struct pd_bench_options *options, struct pd_error *err);
/* One line: both sides as bytes a second and the ratio with its spread. */
void pd_bench_print_ratio(const char *what, const char *ceiling, uint64_t bytes, uint32_t pairs,
                          const struct pd_pairs_summary *summary);

pd_status pd_bench_attention(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_adam(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_step(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_io(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_ckpt(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_offload(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_reshard(int argc, char **argv, struct pd_error *err);

#endif
