/* A run for benches: one rank, whole training steps on random tokens; and states of a size that was asked for. */
#pragma once

#include "resharder/layout.h"
#include "trainer/run/whole_engine.h"

#define PD_BENCH_STATE_BYTES_A_PARAMETER 12u /* fp32 master and two moments */

struct pd_bench_run_options {
    const char *model;                        /* keys of the section: "preset: gpt2-124m" */
    const char *tokens;                       /* path of pd_bench_write_tokens */
    uint64_t sequences, micro_batch, context; /* of a step */
    const char *sections;                     /* YAML of other sections */
    const char *const *overrides;             /* (override_count) section.key=value, last */
    uint32_t override_count;
    bool is_gpu;
};

struct pd_bench_run {
    struct pd_config config;
    struct pd_comm *comm;         /* borrowed, set before it is opened; NULL: one rank */
    struct pd_rank_device device; /* of the caller's pd_rank_device_open; without one: the CPU */
    struct pd_whole_engine whole;
};

/* Fills the configuration in, again too. */
PD_MUST_USE pd_status pd_bench_run_configure(struct pd_bench_run *run, const struct pd_bench_run_options *options,
                                             struct pd_error *err);
/* The engine of the configuration, its state initialised unless that lies in files, which the caller opens
 * (trainer/engine/state_files.h). A run that could not be opened is closed all the same. */
PD_MUST_USE pd_status pd_bench_run_open(struct pd_bench_run *run, uint32_t threads, struct pd_error *err);
void pd_bench_run_close(struct pd_bench_run *run);
/* Step `i` of such steps, until everything that it asked of the device has happened. ret_loss: may be NULL. */
PD_MUST_USE pd_status pd_bench_run_step(struct pd_bench_run *run, uint64_t i, double *ret_seconds, double *ret_loss,
                                        struct pd_error *err);
uint64_t pd_bench_run_state_bytes(const struct pd_bench_run *run);

/* Numbers up to `words` as text has them, the n-th commonest with a share of 1 / n; or evenly, so that all rows of an
 * embedding are touched alike. In nanoGPT's format. */
PD_MUST_USE pd_status pd_bench_write_tokens(const char *path, uint64_t count, uint64_t words, bool evenly,
                                            struct pd_error *err);
/* An empty file below $TMPDIR or /tmp.   ret_path  (4096) */
PD_MUST_USE pd_status pd_bench_temporary(char *ret_path, struct pd_error *err);

/* GPT-2 of width 768 (256 for a state below 512 MiB) with as many layers as fit and positions for the rest; the vocabulary
 * takes at most a third. */
PD_MUST_USE pd_status pd_bench_model_of_bytes(uint64_t state_bytes, struct pd_model **ret_model, struct pd_error *err);

/* Memory of one rank for its boxes under a layout, touched, each box on a page of its own. */
struct pd_bench_memory {
    struct pd_shard_box *boxes; /* owned, as the offsets */
    uint64_t *offsets;          /* (box_count) into data */
    uint32_t box_count;
    void *data, *io_buffers; /* they go with the process */
    uint64_t bytes;
};

#define PD_BENCH_IO_BYTES (UINT64_C(64) << 20) /* of io_buffers: what a run takes */

/* Free it after a failure, too. */
PD_MUST_USE pd_status pd_bench_memory_new(const struct pd_layout *layout, const struct pd_tensor_table *tensors,
                                          uint32_t rank, struct pd_bench_memory *ret_memory, struct pd_error *err);
void pd_bench_memory_deinit(struct pd_bench_memory *memory);
/* Where a load puts a box: struct pd_load_request, context is the memory. */
void *pd_bench_memory_box(void *memory, uint32_t tensor, enum pd_kind kind, uint32_t box);
