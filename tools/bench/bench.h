/* perdure bench: alternates a candidate and its ceiling in one run on one machine and reports their ratio. It also shows
 * absolute times, which prove nothing on a shared machine. Each bench has its own options. */
#pragma once

#include "ckpt/io/vfs.h"
#include "ckpt/objects/bucket.h"
#include "ckpt/objects/url.h"
#include "resharder/layout.h"
#include "tools/command.h"
#include "tools/output.h"
#include "trainer/config/config.h"
#include "trainer/run/whole_engine.h"

#define PD_BENCH_PAIRS_MAX 99

/* Pairs of alternating measurements. */
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
/* One side of a pair: does its work and returns how long it took. */
typedef pd_status pd_bench_side(void *bench, double *ret_seconds, struct pd_error *err);
/* Measures a pair. The side that goes first alternates, so that neither profits from what the other left in a cache. */
PD_MUST_USE pd_status pd_pairs_measure(struct pd_pairs *pairs, void *bench, pd_bench_side *candidate, pd_bench_side *ceiling,
                                       struct pd_error *err);
struct pd_pairs_summary pd_pairs_summarise(const struct pd_pairs *pairs);
/* Summarises the pairs by throughput: ratio = ceiling / candidate; 1 equals the ceiling. */
struct pd_pairs_summary pd_pairs_summarise_throughput(const struct pd_pairs *pairs);
void pd_bench_report_ratio(struct pd_report *report, const char *key, const struct pd_pairs_summary *summary);
/* Nearest-rank quantile: the smallest value such that at least `share` of them are <= it. Sorts them. */
double pd_bench_quantile(double *values, uint32_t count, double share);

/* Maps memory on huge pages if the kernel has them, and touches it; freed at process exit. */
PD_MUST_USE pd_status pd_bench_map(uint64_t bytes, void **ret_data, struct pd_error *err);
/* Fills with numbers between 0 and 1/2, determined by the seed. */
void pd_bench_fill(float *data, uint64_t count, uint64_t seed);
/* CPU time of all threads of this process; other programs do not affect it. */
double pd_bench_processor_seconds(void);

/* ---- disk benches work in a directory of their own on a real disk, removed at the end in any case ---- */

struct pd_bench_options {
    const char *dir;       /* the work directory is created inside; "." by default */
    uint64_t bytes, pairs; /* defaults are the caller's */
    bool json;
    uint64_t threads;        /* for bench offload */
    uint64_t every;          /* for bench ckpt, like those below: 0: no training, one save after the other */
    uint64_t experts;        /* tensors of experts in the state; 0: none. For bench ckpt and reshard */
    unsigned state_in_files; /* --state: 0 memory, 1 nvme */
    enum pd_device_choice device;
    uint64_t steps;     /* 0: not given */
    const char *bucket; /* a second tier, s3://bucket/prefix; NULL: none */
};

/* clang-format off */
#define PD_BENCH_EXPERTS_OPTION(o)                                                                                   \
    PD_OPTION("experts", "N", "a state with some N tensors of experts, instead of a GPT-2's", PD_OPTION_U64, &(o)->experts, 384, \
     100000, "a number of tensors from 384 to 100000")
#define PD_BENCH_DIR_OPTIONS(o)                                                                                       \
    PD_OPTION("dir", "DIR", "where files of the bench live while it runs (.)", PD_OPTION_TEXT, &(o)->dir),               \
    PD_OPTION("bytes", "N", "bytes of one file, 32M or more: 512M, 2G", PD_OPTION_BYTES, &(o)->bytes,                    \
     UINT64_C(32) << 20, UINT64_C(1) << 46, "32M or more, such as 512M or 2G"),                                        \
    PD_OPTION("pairs", "N", "alternated pairs of measurements, 1 to 99", PD_OPTION_U64, &(o)->pairs, 1, PD_BENCH_PAIRS_MAX)
/* clang-format on */

struct pd_bench_dir {
    struct pd_vfs *vfs;
    char path[3072];
};

/* From here on catches the signals that ask to stop, so that gigabytes are not left behind.
 *   on_disk  refuses `above` in a memory file system, which measures no disk (PD_INVALID)
 *   errors   PD_NO_SPACE: fewer than `bytes` are free */
PD_MUST_USE pd_status pd_bench_dir_open(const char *above, uint64_t bytes, bool on_disk, struct pd_bench_dir *ret_dir,
                                        struct pd_error *err);
/* Removes the directory and everything in it. */
void pd_bench_dir_close(struct pd_bench_dir *dir);
/* ret_path holds 4096 bytes. */
void pd_bench_dir_path(const struct pd_bench_dir *dir, const char *name, char *ret_path);
/* Removes `name` and everything below; it may be absent. */
PD_MUST_USE pd_status pd_bench_dir_remove(const struct pd_bench_dir *dir, const char *name, struct pd_error *err);
/* Call before each measurement: syncs earlier writes and deletions, so that they do not slow it down.
 *   errors  PD_STOPPED: a signal asked to stop */
PD_MUST_USE pd_status pd_bench_dir_settle(const struct pd_bench_dir *dir, struct pd_error *err);

/* A place of its own in a bucket: s3://bucket/prefix/bench-NUMBER. */
struct pd_bench_bucket {
    struct pd_object_url place; /* as the user gave it */
    char prefix[PD_OBJECT_KEY_MAX + 1];
    struct pd_bucket *bucket;
};

PD_MUST_USE pd_status pd_bench_bucket_open(const char *url, struct pd_bench_bucket *ret_bucket, struct pd_error *err);
/* Removes every object below the prefix. */
void pd_bench_bucket_close(struct pd_bench_bucket *bucket);

/* True if a signal asked to stop, for an engine's should_leave; pd_bench_dir_settle then returns PD_STOPPED. */
bool pd_bench_should_leave(void);

/* bench ckpt --every: tools/bench/every.c. */
PD_MUST_USE pd_status pd_bench_every(const struct pd_bench_options *options, struct pd_error *err);

/* ---- a run: one rank, whole training steps on random tokens; and states of a given size ---- */

#define PD_BENCH_STATE_BYTES_A_PARAMETER 12u /* fp32 master and two moments */

struct pd_bench_run_options {
    const char *model;                        /* keys of the model section: "preset: gpt2-124m" */
    const char *tokens;                       /* file from pd_bench_write_tokens */
    uint64_t sequences, micro_batch, context; /* of a step */
    const char *sections;                     /* YAML of other sections */
    const char *const *overrides;             /* (override_count) section.key=value, last */
    uint32_t override_count;
    bool is_gpu;
};

struct pd_bench_run {
    struct pd_config config;
    struct pd_comm *comm;         /* borrowed, set before open; NULL: one rank */
    struct pd_rank_device device; /* set by the caller's pd_rank_device_open; else the CPU */
    struct pd_whole_engine whole;
};

/* Fills in the configuration. May be called again. */
PD_MUST_USE pd_status pd_bench_run_configure(struct pd_bench_run *run, const struct pd_bench_run_options *options,
                                             struct pd_error *err);
/* Creates the engine and initialises its state, unless that lies in files, which the caller opens
 * (trainer/engine/state_files.h). Close the run even if open failed. */
PD_MUST_USE pd_status pd_bench_run_open(struct pd_bench_run *run, uint32_t threads, struct pd_error *err);
void pd_bench_run_close(struct pd_bench_run *run);
/* Runs step `i` and waits until the device has finished it.   ret_loss  may be NULL. */
PD_MUST_USE pd_status pd_bench_run_step(struct pd_bench_run *run, uint64_t i, double *ret_seconds, double *ret_loss,
                                        struct pd_error *err);
uint64_t pd_bench_run_state_bytes(const struct pd_bench_run *run);

/* Writes token numbers below `words`: distributed as in text, the n-th commonest with a share of 1 / n, or evenly, so
 * that all rows of an embedding are used alike. In nanoGPT's format. */
PD_MUST_USE pd_status pd_bench_write_tokens(const char *path, uint64_t count, uint64_t words, bool evenly,
                                            struct pd_error *err);
/* Creates an empty file in $TMPDIR or /tmp.   ret_path  (4096) */
PD_MUST_USE pd_status pd_bench_temporary(char *ret_path, struct pd_error *err);

/* Makes a GPT-2 of width 768 (256 for a state below 512 MiB) with as many layers as fit, positions for the rest, and a
 * vocabulary of at most a third. */
PD_MUST_USE pd_status pd_bench_model_of_bytes(uint64_t state_bytes, struct pd_model **ret_model, struct pd_error *err);

/* Makes a mixture of blocks of 128 experts (Qwen3-MoE), as many as have some `tensors` tensors of experts. */
PD_MUST_USE pd_status pd_bench_model_of_experts(uint64_t state_bytes, uint64_t tensors, struct pd_model **ret_model,
                                                struct pd_error *err);

/* One rank's memory for its boxes under a layout, touched, each box on its own page. */
struct pd_bench_memory {
    struct pd_shard_box *boxes; /* owned, like the offsets */
    uint64_t *offsets;          /* (box_count) into data */
    uint32_t box_count;
    void *data, *io_buffers; /* freed at process exit */
    uint64_t bytes;
};

#define PD_BENCH_IO_BYTES (UINT64_C(64) << 20) /* size of io_buffers, as in a run */

/* Free it even after a failure. */
PD_MUST_USE pd_status pd_bench_memory_new(const struct pd_layout *layout, const struct pd_tensor_table *tensors,
                                          uint32_t rank, struct pd_bench_memory *ret_memory, struct pd_error *err);
void pd_bench_memory_deinit(struct pd_bench_memory *memory);
/* Implements pd_load_request.destination; context is the memory. */
void *pd_bench_memory_box(void *memory, uint32_t tensor, enum pd_kind kind, uint32_t box);

pd_status pd_bench_attention(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_adam(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_step(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_ckpt(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_offload(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_reshard(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_exchange(int argc, char **argv, struct pd_error *err);
pd_status pd_bench_objects(int argc, char **argv, struct pd_error *err);
