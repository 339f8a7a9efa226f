/* What a training step spends its time on, by kinds of operations. */
#pragma once

#include "tools/output.h"
#include "trainer/math/math.h"

enum pd_bench_stage {
    PD_BENCH_GEMMS,
    PD_BENCH_ATTENTION,
    PD_BENCH_NORMS,
    PD_BENCH_POINTWISE, /* activations, rotations, embeddings, sums, casts, experts' rows */
    PD_BENCH_LOSS,
    PD_BENCH_OPTIMIZER, /* AdamW and the norm of the gradients */
    PD_BENCH_COPIES,
    PD_BENCH_STAGES
};
extern const char *const pd_bench_stage_names[PD_BENCH_STAGES];

/* By the operation's name in the table and in traces. */
enum pd_bench_stage pd_bench_stage_of(const char *operation);

/* Adds the seconds of each operation of `math`, the CPU's, to `seconds` (PD_BENCH_STAGES) from now on.
 *   threads  one watched table in a process */
void pd_bench_stages_watch(struct pd_math *math, double *seconds);

/* A member of the object `name`; a row "name.member" for people. */
void pd_bench_report_share(struct pd_report *report, const char *name, const char *member, double share);
/* An object of shares of `whole` seconds; "between" lies between operations.   seconds  (PD_BENCH_STAGES) */
void pd_bench_report_stages(struct pd_report *report, const char *name, const double *seconds, double whole);
