/* perdure bench offload: one optimizer step on state that lies in files, clipping on, against the larger of its two parts
 * alone: its compute (norm and AdamW on state in memory) and its I/O (direct transfers of the same bytes, reads and writes
 * at once, on files in the same state: preallocated, written before, overwritten).
 *
 * One rank with a GPT-2 shaped state. Gradients and the bf16 copy of the parameters are in memory, as in a run. Neither side
 * syncs: a step does not, a checkpoint does. */
#include "ckpt/base/arena.h"
#include "ckpt/base/clock.h"
#include "ckpt/io/raw_bench.h"
#include "offload/optimizer_store.h"
#include "resharder/layout.h"
#include "tools/bench/bench.h"
#include "tools/bench/room.h"
#include "tools/output.h"
#include "trainer/math/math.h"
#include "trainer/math/superaccumulator.h"
#include "trainer/model/model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define STATE_BYTES_A_PARAMETER 12u /* fp32 master and two moments */
#define WINDOW (UINT64_C(16) << 20) /* elements of state in memory that compute alone works on again and again */
#define NORM_COLUMNS 1024u
#define NORM_ROWS 4096u
#define RAW_DEPTH 32u /* of the sizes and depths tried, the one that moved most */
#define RAW_BLOCK (UINT64_C(2) << 20)

struct offload_bench {
    struct pd_bench_options options;
    struct pd_bench_room room;
    struct pd_model *model;
    struct pd_layout layout;
    struct pd_shard_box *boxes;
    uint32_t box_count;
    uint64_t *box_first; /* (box_count) of `param` boxes: first element in gradients and copies */
    uint64_t parameters;
    struct pd_thread_pool *pool;
    struct pd_arena *arena;
    struct pd_math *math;
    float *gradients, *window[PD_KIND_COUNT];
    uint16_t *copies;
    double *row_sums;
    void *ring;
    struct pd_optimizer_store *store;
    struct pd_raw_bench *raw;
    struct pd_ring_report report; /* of the last step */
    uint64_t step;
    struct pd_pairs steps, transfers;
    double compute_s, raw_s, step_s; /* sums over the pairs */
};

/* ---- what it works on ---- */

/* GPT-2 of width 1024 with as many layers as fit and positions for the rest. */
static pd_status make_model(struct offload_bench *b, struct pd_error *err)
{
    const uint64_t hidden = b->options.bytes < (UINT64_C(512) << 20) ? 256 : 1024,
                   block = 12 * hidden * hidden + 13 * hidden;
    const uint64_t parameters = b->options.bytes / STATE_BYTES_A_PARAMETER;
    struct pd_model_config config;
    PD_TRY(pd_model_preset("gpt2-124m", &config, err));
    config.hidden = (uint32_t)hidden;
    config.heads = (uint32_t)hidden / 64;
    config.head_size = config.kv_heads = config.ffn = 0; /* as follows from these */
    uint64_t vocab = parameters / 3 / hidden;
    if (vocab < config.vocab) config.vocab = (uint32_t)vocab;
    const uint64_t left = parameters - config.vocab * hidden - 2 * hidden, layers = left / block;
    config.layers = layers ? (uint32_t)layers : 1;
    config.context = left > config.layers * block + hidden ? (uint32_t)((left - config.layers * block) / hidden) : 1;
    return pd_model_new(&config, &b->model, err);
}

static pd_status map(uint64_t bytes, void **ret_data, struct pd_error *err)
{
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        PD_FAIL(err, PD_NO_MEMORY, "bench: %s of memory; give less with --bytes", pd_text_bytes(bytes).text);
    madvise(data, bytes, MADV_HUGEPAGE); /* as an arena does */
    memset(data, 0, bytes);
    *ret_data = data;
    return PD_OK;
}

static void fill(float *data, uint64_t count, uint32_t seed)
{
    for (uint64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        data[i] = (float)(seed >> 8) * 0x1p-25f;
    }
}

static pd_status make_memory(struct offload_bench *b, struct pd_error *err)
{
    void *data = NULL;
    const uint64_t rows = (b->parameters + NORM_COLUMNS - 1) / NORM_COLUMNS;
    PD_TRY(map(rows * NORM_COLUMNS * sizeof(float), &data, err));
    b->gradients = data;
    fill(b->gradients, b->parameters, 1);
    PD_TRY(map(b->parameters * sizeof *b->copies, &data, err));
    b->copies = data;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        PD_TRY(map(WINDOW * sizeof(float), &data, err));
        b->window[kind] = data;
        fill(b->window[kind], WINDOW, 2u + (uint32_t)kind);
    }
    PD_TRY(map(PD_OPTIMIZER_STORE_BUFFERS_FAST, &b->ring, err));
    b->row_sums = calloc(NORM_ROWS, sizeof *b->row_sums);
    b->box_first = calloc(b->box_count, sizeof *b->box_first);
    if (!b->row_sums || !b->box_first) PD_FAIL(err, PD_NO_MEMORY, "bench: no memory for %u boxes", b->box_count);
    uint64_t first = 0;
    for (uint32_t i = 0; i < b->box_count; i++) {
        if (b->boxes[i].kind != PD_PARAM) continue;
        b->box_first[i] = first;
        first += pd_box_elements(&b->boxes[i].box);
    }
    return PD_OK;
}

static pd_status make_math(struct offload_bench *b, struct pd_error *err)
{
    struct pd_memory_plan plan;
    struct pd_arena *dry = NULL;
    const unsigned threads = (unsigned)b->options.threads;
    PD_TRY(pd_thread_pool_new(threads, &b->pool, err));
    PD_TRY(pd_arena_new_dry(&dry, err));
    pd_status st = pd_math_cpu_new(NULL, threads, PD_NUMERICS_INVARIANT, PD_ISA_AUTO, dry, &b->math, err);
    pd_arena_usage(dry, &plan);
    pd_arena_free(dry);
    if (!st) st = pd_arena_new(&plan, &b->arena, err);
    if (!st) st = pd_math_cpu_new(b->pool, threads, PD_NUMERICS_INVARIANT, PD_ISA_AUTO, b->arena, &b->math, err);
    return st;
}

/* ---- a step ---- */

static pd_status norm(struct offload_bench *b, double *ret_norm, struct pd_error *err)
{
    struct pd_superaccumulator sum;
    const uint64_t rows = (b->parameters + NORM_COLUMNS - 1) / NORM_COLUMNS;
    pd_superaccumulator_init(&sum);
    for (uint64_t row = 0; row < rows; row += NORM_ROWS) {
        uint64_t count = rows - row < NORM_ROWS ? rows - row : NORM_ROWS;
        PD_TRY(pd_row_squares(b->math, count, NORM_COLUMNS, b->gradients + row * NORM_COLUMNS, b->row_sums, err));
        pd_superaccumulator_add_many(&sum, b->row_sums, count);
    }
    *ret_norm = sqrt(pd_superaccumulator_value(&sum));
    return PD_OK;
}

static pd_status start_step(struct offload_bench *b, struct pd_adam_step *ret_adam, struct pd_error *err)
{
    double length = 0;
    PD_TRY(norm(b, &length, err));
    const struct pd_adam_config config = {.rate = 1e-4,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .epsilon = 1e-8,
                                          .weight_decay = 0.1,
                                          .scale = length > 1 ? 1 / length : 1,
                                          .step = b->step + 1};
    *ret_adam = pd_adam_step_make(&config);
    return PD_OK;
}

static pd_status meet(void *context, uint32_t box, uint64_t first, uint64_t n, const float **ret_gradient, void **ret_copy,
                      struct pd_error *err)
{
    struct offload_bench *b = context;
    (void)n;
    (void)err;
    *ret_gradient = b->gradients + b->box_first[box] + first;
    *ret_copy = b->copies + b->box_first[box] + first;
    return PD_OK;
}

static struct pd_identity identity_of(uint64_t step)
{
    return (struct pd_identity){.run_id = {1, 2}, .lineage = 1, .step = step};
}

static pd_status run_step(struct offload_bench *b, double *ret_seconds, struct pd_error *err)
{
    struct pd_adam_step adam;
    PD_TRY(pd_bench_room_settle(&b->room, err));
    uint64_t start = pd_clock_monotonic_ns(NULL);
    b->step++;
    const struct pd_optimizer_store_step step = {
        .identity = identity_of(b->step), .copy_dtype = PD_BF16, .context = b, .meet = meet};
    PD_TRY(pd_optimizer_store_update_begin(b->store, &step, err));
    PD_TRY(start_step(b, &adam, err));
    PD_TRY(pd_optimizer_store_update_end(b->store, &adam, &b->report, err));
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    return PD_OK;
}

/* The same arithmetic on state in memory. */
static pd_status run_compute(struct offload_bench *b, double *ret_seconds, struct pd_error *err)
{
    struct pd_adam_step adam;
    uint64_t start = pd_clock_monotonic_ns(NULL);
    PD_TRY(start_step(b, &adam, err));
    for (uint64_t at = 0; at < b->parameters; at += WINDOW) {
        const struct pd_adam_range range = {.n = b->parameters - at < WINDOW ? b->parameters - at : WINDOW,
                                            .decay = true,
                                            .param = b->window[PD_PARAM],
                                            .exp_avg = b->window[PD_EXP_AVG],
                                            .exp_avg_sq = b->window[PD_EXP_AVG_SQ],
                                            .grad = b->gradients + at,
                                            .copy = b->copies + at,
                                            .copy_dtype = PD_BF16};
        pd_cpu_adam(b->pool, b->math->isa, &adam, &range);
    }
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    return PD_OK;
}

static pd_status run_raw(struct offload_bench *b, double *ret_seconds, struct pd_error *err)
{
    char from[4096], to[4096];
    pd_bench_room_path(&b->room, b->step % 2 ? "raw-a" : "raw-b", from);
    pd_bench_room_path(&b->room, b->step % 2 ? "raw-b" : "raw-a", to);
    PD_TRY(pd_bench_room_settle(&b->room, err));
    return pd_raw_bench_mixed(b->raw, from, to, b->report.bytes_read, ret_seconds, err);
}

/* ---- pairs ---- */

static pd_status put_all(struct offload_bench *b, struct pd_error *err)
{
    const struct pd_identity identity = identity_of(b->step);
    PD_TRY(pd_optimizer_store_begin(b->store, &identity, err));
    for (uint32_t i = 0; i < b->box_count; i++) {
        const uint64_t n = pd_box_elements(&b->boxes[i].box);
        for (uint64_t at = 0; at < n; at += WINDOW)
            PD_TRY(pd_optimizer_store_put(b->store, i, at, b->window[b->boxes[i].kind], n - at < WINDOW ? n - at : WINDOW,
                                          err));
    }
    return pd_optimizer_store_end(b->store, err);
}

static pd_status prepare(struct offload_bench *b, struct pd_error *err)
{
    double unused;
    pd_layout_init_dp(&b->layout, 1);
    PD_TRY(make_model(b, err));
    b->parameters = b->model->parameter_count;
    PD_TRY(pd_layout_shard_boxes(&b->layout, &b->model->tensors, 0, &b->boxes, &b->box_count, err));
    PD_TRY(make_memory(b, err));
    PD_TRY(make_math(b, err));
    const struct pd_optimizer_store_options options = {.vfs = b->room.vfs,
                                                       .directory = b->room.path,
                                                       .tensors = &b->model->tensors,
                                                       .boxes = b->boxes,
                                                       .box_count = b->box_count,
                                                       .pool = b->pool,
                                                       .isa = b->math->isa,
                                                       .buffers = b->ring,
                                                       .buffer_bytes = PD_OPTIMIZER_STORE_BUFFERS_FAST};
    PD_TRY(pd_optimizer_store_new(&options, &b->store, err));
    PD_TRY(pd_raw_bench_new(b->room.vfs, RAW_BLOCK, RAW_DEPTH, &b->raw, err));
    PD_TRY(put_all(b, err));
    for (int i = 0; i < 3; i++) /* every file of a generation was written once */
        PD_TRY(run_step(b, &unused, err));
    return run_raw(b, &unused, err);
}

/* Who goes first changes from pair to pair. */
static pd_status run_pair(struct offload_bench *b, uint64_t pair, struct pd_error *err)
{
    double step = 0, raw = 0, compute = 0;
    if (pair % 2) PD_TRY(run_raw(b, &raw, err));
    PD_TRY(run_step(b, &step, err));
    const struct pd_ring_report report = b->report;
    if (pair % 2 == 0) PD_TRY(run_raw(b, &raw, err));
    PD_TRY(run_compute(b, &compute, err));
    pd_pairs_add(&b->steps, step, raw > compute ? raw : compute);
    pd_pairs_add(&b->transfers, report.seconds, raw);
    b->step_s += step;
    b->raw_s += raw;
    b->compute_s += compute;
    return PD_OK;
}

/* ---- report ---- */

static pd_status print(const struct offload_bench *b, struct pd_error *err)
{
    const struct pd_pairs_summary step = pd_pairs_summarise(&b->steps), io = pd_pairs_summarise_throughput(&b->transfers);
    const uint64_t moved = b->report.bytes_read + b->report.bytes_written, state = b->parameters * STATE_BYTES_A_PARAMETER;
    const double pairs = (double)b->options.pairs, a_parameter = (double)moved / (double)b->parameters;
    const double tables = (double)pd_optimizer_store_file_bytes(b->store, 0) / (double)state - 1;
    if (!b->options.json) {
        printf("%s, %llu parameters, %s of state, ring of %s, %llu threads, in %s\n", pd_vfs_describe(b->room.vfs),
               (unsigned long long)b->parameters, pd_text_bytes(state).text,
               pd_text_bytes(PD_OPTIMIZER_STORE_BUFFERS_FAST).text, (unsigned long long)b->options.threads, b->options.dir);
        printf(
            "step %.3f s; alone: compute %.3f s, raw mixed I/O %.3f s; ratio to the larger %.3f (%.3f to %.3f, %u pairs)\n",
            b->step_s / pairs, b->compute_s / pairs, b->raw_s / pairs, step.ratio, step.ratio_low, step.ratio_high,
            b->steps.count);
        pd_bench_print_ratio("I/O of a step", "raw mixed", moved, b->transfers.count, &io);
        printf("%.3f bytes a parameter moved; files are %.4f%% larger than the state\n", a_parameter, 100 * tables);
        return PD_OK;
    }
    struct pd_json_writer w;
    pd_json_writer_init(&w, 2);
    pd_json_object_begin(&w, NULL);
    pd_bench_json_ratio(&w, "step_ratio", &step);
    pd_bench_json_ratio(&w, "io_ratio", &io);
    pd_json_double(&w, "bytes_per_parameter", a_parameter);
    pd_json_double(&w, "table_share", tables);
    pd_json_double(&w, "step_seconds", b->step_s / pairs);
    pd_json_double(&w, "compute_seconds", b->compute_s / pairs);
    pd_json_double(&w, "raw_seconds", b->raw_s / pairs);
    pd_json_u64(&w, "parameters", b->parameters);
    pd_json_u64(&w, "pairs", b->options.pairs);
    pd_json_u64(&w, "threads", b->options.threads);
    pd_json_string(&w, "engine", pd_vfs_describe(b->room.vfs));
    pd_json_object_end(&w);
    return pd_output_json(&w, err);
}

static void release(struct offload_bench *b)
{
    pd_optimizer_store_free(b->store);
    pd_raw_bench_free(b->raw);
    pd_math_free(b->math);
    pd_arena_free(b->arena);
    pd_thread_pool_free(b->pool);
    pd_model_free(b->model);
    free(b->boxes);
    free(b->box_first);
    free(b->row_sums);
    pd_bench_room_close(&b->room); /* memory goes with the process */
}

pd_status pd_bench_offload(int argc, char **argv, struct pd_error *err)
{
    struct offload_bench b = {.options = {.dir = ".", .bytes = UINT64_C(1536) << 20, .pairs = 7, .threads = 2}};
    bool done;
    PD_TRY(pd_bench_parse("One optimizer step on state in files, clipping on, against the larger of its compute alone and "
                          "direct I/O of the same bytes alone, reads and writes at once, on files in the same state, "
                          "alternated. step_ratio: time of the step over the larger of both; io_ratio: bandwidth of its "
                          "I/O over the raw one's, 1 is the ceiling; bytes_per_parameter: read and written.",
                          argc, argv, &b.options, &done, err));
    if (done) return PD_OK;
    PD_TRY(pd_bench_room_open(b.options.dir, 6 * b.options.bytes, &b.room, err));
    pd_status st = prepare(&b, err);
    for (uint64_t pair = 0; !st && pair < b.options.pairs; pair++)
        st = run_pair(&b, pair, err);
    if (!st) st = print(&b, err);
    release(&b);
    return st;
}
