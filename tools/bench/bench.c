#include "tools/bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

void pd_pairs_add(struct pd_pairs *pairs, double candidate_s, double ceiling_s)
{
    PD_CHECK(pairs->count < PD_BENCH_PAIRS_MAX);
    pairs->candidate_s[pairs->count] = candidate_s;
    pairs->ceiling_s[pairs->count++] = ceiling_s;
}

pd_status pd_pairs_measure(struct pd_pairs *pairs, void *bench, pd_bench_side *candidate, pd_bench_side *ceiling,
                           struct pd_error *err)
{
    double candidate_s = 0, ceiling_s = 0;
    const bool is_odd = pairs->count % 2;
    if (is_odd) PD_TRY(ceiling(bench, &ceiling_s, err));
    PD_TRY(candidate(bench, &candidate_s, err));
    if (!is_odd) PD_TRY(ceiling(bench, &ceiling_s, err));
    pd_pairs_add(pairs, candidate_s, ceiling_s);
    return PD_OK;
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

double pd_bench_quantile(double *values, uint32_t count, double share)
{
    qsort(values, count, sizeof *values, ascending);
    const uint32_t rank = (uint32_t)ceil(share * count);
    return values[rank ? rank - 1 : 0];
}

struct pd_pairs_summary pd_pairs_summarise(const struct pd_pairs *pairs)
{
    PD_CHECK(pairs->count > 0);
    struct pd_pairs sorted = *pairs;
    struct pd_pairs_summary summary;
    double ratios[PD_BENCH_PAIRS_MAX];
    for (uint32_t i = 0; i < pairs->count; i++)
        ratios[i] = pairs->candidate_s[i] / pairs->ceiling_s[i];
    summary.ratio = median(ratios, pairs->count);
    summary.ratio_low = ratios[0];
    summary.ratio_high = ratios[pairs->count - 1];
    summary.candidate_s = median(sorted.candidate_s, pairs->count);
    summary.ceiling_s = median(sorted.ceiling_s, pairs->count);
    return summary;
}

struct pd_pairs_summary pd_pairs_summarise_throughput(const struct pd_pairs *pairs)
{
    struct pd_pairs swapped = {.count = pairs->count};
    memcpy(swapped.candidate_s, pairs->ceiling_s, sizeof swapped.candidate_s);
    memcpy(swapped.ceiling_s, pairs->candidate_s, sizeof swapped.ceiling_s);
    struct pd_pairs_summary s = pd_pairs_summarise(&swapped);
    return (struct pd_pairs_summary){s.ceiling_s, s.candidate_s, s.ratio, s.ratio_low, s.ratio_high};
}

void pd_bench_report_ratio(struct pd_report *report, const char *key, const struct pd_pairs_summary *s)
{
    pd_report_range(report, key, s->ratio, s->ratio_low, s->ratio_high, PD_UNIT_NONE);
}

pd_status pd_bench_map(uint64_t bytes, void **ret_data, struct pd_error *err)
{
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        PD_FAIL(err, PD_NO_MEMORY, "bench: no memory for %s; take less with --bytes", pd_text_bytes(bytes).text);
    (void)madvise(data, bytes, MADV_HUGEPAGE); /* as an arena does; a refusal changes nothing */
    memset(data, 0, bytes);
    *ret_data = data;
    return PD_OK;
}

void pd_bench_fill(float *data, uint64_t count, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        data[i] = (float)(seed >> 40) * 0x1p-25f;
    }
}

double pd_bench_processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
