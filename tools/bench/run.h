/* A run for benches that save while it trains: one rank, a GPT-2 shaped model, whole steps on random text. */
#ifndef PD_TOOLS_BENCH_RUN_H
#define PD_TOOLS_BENCH_RUN_H

#include "trainer/run/whole_engine.h"

#define PD_BENCH_RUN_STATE_BYTES 12u /* a parameter: fp32 master and two moments */

struct pd_bench_run_options {
    const char *text;       /* path of pd_bench_run_write_text */
    uint64_t bytes;         /* of state: as many blocks as fit, at least one */
    uint64_t micro_batches; /* sequences of a step */
    uint32_t threads;       /* that compute */
    bool has_files;         /* optimizer state lives in files; the caller opens them (trainer/engine/state_files.h) */
    enum pd_device_choice device;
};

struct pd_bench_run {
    struct pd_config config;
    struct pd_rank_device device;
    struct pd_whole_engine whole;
};

PD_MUST_USE pd_status pd_bench_run_write_text(const char *path, struct pd_error *err);
/* State in memory is initialised. A run that could not be opened is closed all the same. */
PD_MUST_USE pd_status pd_bench_run_open(const struct pd_bench_run_options *options, struct pd_bench_run *ret_run,
                                        struct pd_error *err);
void pd_bench_run_close(struct pd_bench_run *run);
/* Everything that its steps asked of the device has happened. */
PD_MUST_USE pd_status pd_bench_run_settle(struct pd_bench_run *run, struct pd_error *err);
uint64_t pd_bench_run_state_bytes(const struct pd_bench_run *run);

/* Nearest rank: the smallest value that at least `share` of them do not exceed. Sorts them. */
double pd_bench_quantile(double *values, uint32_t count, double share);

#endif
