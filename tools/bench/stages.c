#include "tools/bench/stages.h"

#include "ckpt/base/clock.h"

#include <stdio.h>
#include <string.h>

const char *const pd_bench_stage_names[PD_BENCH_STAGES] = {"gemms", "attention", "norms", "pointwise",
                                                           "loss",  "optimizer", "copies"};

enum pd_bench_stage pd_bench_stage_of(const char *operation)
{
    static const struct {
        const char *begin;
        enum pd_bench_stage stage;
    } begins[] = {{"gemm", PD_BENCH_GEMMS},
                  {"attention", PD_BENCH_ATTENTION},
                  {"norm", PD_BENCH_NORMS},
                  {"logits", PD_BENCH_LOSS},
                  {"cross_entropy", PD_BENCH_LOSS},
                  {"adam", PD_BENCH_OPTIMIZER},
                  {"row_squares", PD_BENCH_OPTIMIZER},
                  {"superaccumulate", PD_BENCH_OPTIMIZER},
                  {"copy", PD_BENCH_COPIES}};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (!strncmp(operation, begins[i].begin, strlen(begins[i].begin))) return begins[i].stage;
    return PD_BENCH_POINTWISE;
}

static const struct pd_math_ops *watched_ops;
static double *watched_seconds;

#define WATCHED_SLOT(name, operands, ...)                                                                  \
    static pd_status watched_##name(struct pd_math *math, PD_MATH_OPERANDS operands, struct pd_error *err) \
    {                                                                                                      \
        const uint64_t start = pd_clock_monotonic_ns(NULL);                                                \
        const pd_status st = watched_ops->name(math, __VA_ARGS__, err);                                    \
        watched_seconds[pd_bench_stage_of(#name)] += pd_clock_seconds_since(start);                        \
        return st;                                                                                         \
    }
PD_MATH_ALL(WATCHED_SLOT)

void pd_bench_stages_watch(struct pd_math *math, double *seconds)
{
    static struct pd_math_ops ops;
    watched_ops = math->ops;
    watched_seconds = seconds;
    ops = *math->ops; /* its name, sync and free */
#define WATCHED_ENTRY(name, ...) ops.name = watched_##name;
    PD_MATH_ALL(WATCHED_ENTRY)
#undef WATCHED_ENTRY
    math->ops = &ops;
}

void pd_bench_report_share(struct pd_report *report, const char *name, const char *member, double share)
{
    char key[64];
    snprintf(key, sizeof key, "%s%s%s", report->is_json ? "" : name, report->is_json ? "" : ".", member);
    pd_report_double(report, key, share, PD_UNIT_SHARE);
}

void pd_bench_report_stages(struct pd_report *report, const char *name, const double *seconds, double whole)
{
    double between = whole;
    if (report->is_json) pd_json_object_begin(&report->writer, name);
    for (int s = 0; s < PD_BENCH_STAGES; s++) {
        pd_bench_report_share(report, name, pd_bench_stage_names[s], seconds[s] / whole);
        between -= seconds[s];
    }
    pd_bench_report_share(report, name, "between", between / whole);
    if (report->is_json) pd_json_object_end(&report->writer);
}
