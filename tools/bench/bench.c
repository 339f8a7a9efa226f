#include "tools/bench/bench.h"
#include "ckpt/base/words.h"

#include <stdio.h>
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
    for (uint32_t i = 0; i < pairs->count; i++) {
        swapped.candidate_s[i] = pairs->ceiling_s[i];
        swapped.ceiling_s[i] = pairs->candidate_s[i];
    }
    struct pd_pairs_summary s = pd_pairs_summarise(&swapped);
    return (struct pd_pairs_summary){s.ceiling_s, s.candidate_s, s.ratio, s.ratio_low, s.ratio_high};
}

void pd_bench_json_ratio(struct pd_json_writer *writer, const char *key, const struct pd_pairs_summary *summary)
{
    char name[64];
    pd_json_double(writer, key, summary->ratio);
    snprintf(name, sizeof name, "%s_low", key);
    pd_json_double(writer, name, summary->ratio_low);
    snprintf(name, sizeof name, "%s_high", key);
    pd_json_double(writer, name, summary->ratio_high);
}

void pd_bench_print_ratio(const char *what, const char *ceiling, uint64_t bytes, uint32_t pairs,
                          const struct pd_pairs_summary *summary)
{
    printf("%-16s %6.2f GB/s, %s %6.2f GB/s, ratio %.3f (%.3f to %.3f over %s)\n", what,
           (double)bytes / summary->candidate_s / 1e9, ceiling, (double)bytes / summary->ceiling_s / 1e9, summary->ratio,
           summary->ratio_low, summary->ratio_high, pd_counted(pairs, "pair").text);
}

const char *pd_bench_quoted(const char *text, size_t bytes, char *ret_text)
{
    size_t at = 0;
    ret_text[at++] = '\'';
    for (; *text && at + 4 < bytes; text++) {
        if (*text == '\'') ret_text[at++] = '\'';
        ret_text[at++] = *text;
    }
    ret_text[at++] = '\'';
    ret_text[at] = '\0';
    return ret_text;
}
