#include "tools/bench.h"

#include <stdlib.h>

void pd_pairs_add(struct pd_pairs *pairs, double candidate_s, double ceiling_s)
{
    PD_CHECK(pairs->count < PD_BENCH_PAIRS_MAX);
    pairs->candidate_s[pairs->count] = candidate_s;
    pairs->ceiling_s[pairs->count++] = ceiling_s;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, ascending);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

struct pd_pairs_summary pd_pairs_summarise(const struct pd_pairs *pairs)
{
    PD_CHECK(pairs->count > 0);
    struct pd_pairs sorted = *pairs;
    struct pd_pairs_summary summary;
    double ratios[PD_BENCH_PAIRS_MAX];
    for (uint32_t i = 0; i < pairs->count; i++) ratios[i] = pairs->candidate_s[i] / pairs->ceiling_s[i];
    summary.ratio = median(ratios, pairs->count);
    summary.ratio_low = ratios[0];
    summary.ratio_high = ratios[pairs->count - 1];
    summary.candidate_s = median(sorted.candidate_s, pairs->count);
    summary.ceiling_s = median(sorted.ceiling_s, pairs->count);
    return summary;
}
