/* perdure bench offload: one optimizer step of one rank on state in files, with clipping, against the larger of its two
 * parts alone: compute (norm and AdamW on state in memory) and I/O (direct transfers of the same bytes, reads and writes
 * at once, on existing files). Neither side syncs: a step does not, a checkpoint does. */
#include "ckpt/base/arena.h"
#include "ckpt/base/clock.h"
#include "offload/optimizer_store.h"
#include "tools/bench/bench.h"
#include "tools/bench/raw_bench.h"
#include "trainer/math/math.h"
#include "trainer/math/superaccumulator.h"
#include "trainer/model/model.h"

#include <math.h>
#include <stdlib.h>

#define WINDOW (UINT64_C(16) << 20) /* elements of state in memory that the compute side reuses */
#define NORM_COLUMNS 1024u
#define NORM_ROWS 4096u
#define RAW_DEPTH 32u /* fastest of the sizes and depths tried */
#define RAW_BLOCK (UINT64_C(2) << 20)

struct offload_bench {
    struct pd_bench_options options;
    struct pd_bench_dir dir;
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
    struct pd_pairs raws, steps, transfers; /* step over raw I/O; step over the larger of both; its I/O over raw I/O */
    double compute_s;                       /* sum over the pairs */
    enum pd_dtype moments;
};

/* ---- what it works on ---- */

static pd_status make_memory(struct offload_bench *b, struct pd_error *err)
{
    void *data = NULL;
    const uint64_t rows = (b->parameters + NORM_COLUMNS - 1) / NORM_COLUMNS;
    PD_TRY(pd_bench_map(rows * NORM_COLUMNS * sizeof(float), &data, err));
    b->gradients = data;
    pd_bench_fill(b->gradients, b->parameters, 1);
    PD_TRY(pd_bench_map(b->parameters * sizeof *b->copies, &data, err));
    b->copies = data;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        PD_TRY(pd_bench_map(WINDOW * sizeof(float), &data, err));
        b->window[kind] = data;
        pd_bench_fill(b->window[kind], WINDOW, 2u + (uint32_t)kind);
        if (kind != PD_PARAM && b->moments == PD_BF16) pd_narrow_bf16(data, data, WINDOW);
    }
    PD_TRY(pd_bench_map(PD_OPTIMIZER_STORE_BUFFERS_FAST, &b->ring, err));
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

/* ---- a step ---- */

static pd_status start_step(struct offload_bench *b, struct pd_update_step *ret_update, struct pd_error *err)
{
    double length = 0;
    struct pd_superaccumulator sum;
    const uint64_t rows = (b->parameters + NORM_COLUMNS - 1) / NORM_COLUMNS;
    pd_superaccumulator_init(&sum);
    for (uint64_t row = 0; row < rows; row += NORM_ROWS) {
        uint64_t count = rows - row < NORM_ROWS ? rows - row : NORM_ROWS;
        PD_TRY(pd_row_squares(b->math, count, NORM_COLUMNS, b->gradients + row * NORM_COLUMNS, b->row_sums, err));
        pd_superaccumulator_add_many(&sum, b->row_sums, count);
    }
    length = sqrt(pd_superaccumulator_value(&sum));
    const struct pd_update_config config = {.rate = 1e-4,
                                            .beta1 = 0.9,
                                            .beta2 = 0.95,
                                            .epsilon = 1e-8,
                                            .weight_decay = 0.1,
                                            .scale = length > 1 ? 1 / length : 1,
                                            .step = b->step + 1};
    *ret_update = pd_adamw.prepare(&config);
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

static pd_status offload_run_step(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct offload_bench *b = bench;
    struct pd_update_step update;
    PD_TRY(pd_bench_dir_settle(&b->dir, err));
    uint64_t start = pd_clock_monotonic_ns(NULL);
    b->step++;
    const struct pd_optimizer_store_step step = {
        .identity = identity_of(b->step), .copy_dtype = PD_BF16, .context = b, .meet = meet};
    PD_TRY(pd_optimizer_store_update_begin(b->store, &step, err));
    PD_TRY(start_step(b, &update, err));
    PD_TRY(pd_optimizer_store_update_end(b->store, &update, &b->report, err));
    *ret_seconds = pd_clock_seconds_since(start);
    return PD_OK;
}

static pd_status run_raw(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct offload_bench *b = bench;
    char from[4096], to[4096];
    pd_bench_dir_path(&b->dir, b->step % 2 ? "raw-a" : "raw-b", from);
    pd_bench_dir_path(&b->dir, b->step % 2 ? "raw-b" : "raw-a", to);
    PD_TRY(pd_bench_dir_settle(&b->dir, err));
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

static pd_status offload_prepare(struct offload_bench *b, struct pd_error *err)
{
    double unused;
    pd_layout_init_dp(&b->layout, 1);
    PD_TRY(pd_bench_model_of_bytes(b->options.bytes, &b->model, err));
    pd_model_set_moments(b->model, b->moments);
    b->parameters = b->model->parameter_count;
    PD_TRY(pd_layout_shard_boxes(&b->layout, &b->model->tensors, 0, &b->boxes, &b->box_count, err));
    PD_TRY(make_memory(b, err));
    struct pd_memory_plan plan;
    struct pd_arena *dry = NULL;
    const unsigned threads = (unsigned)b->options.threads;
    PD_TRY(pd_thread_pool_new(threads, &b->pool, err));
    PD_TRY(pd_arena_new_dry(&dry, err));
    pd_status st = pd_math_cpu_new(NULL, threads, PD_ISA_AUTO, dry, &b->math, err);
    pd_arena_usage(dry, &plan);
    pd_arena_free(dry);
    if (!st) st = pd_arena_new(&plan, &b->arena, err);
    if (!st) st = pd_math_cpu_new(b->pool, threads, PD_ISA_AUTO, b->arena, &b->math, err);
    PD_TRY(st);
    const struct pd_optimizer_store_options options = {.vfs = b->dir.vfs,
                                                       .directory = b->dir.path,
                                                       .tensors = &b->model->tensors,
                                                       .boxes = b->boxes,
                                                       .box_count = b->box_count,
                                                       .pool = b->pool,
                                                       .isa = b->math->isa,
                                                       .buffers = b->ring,
                                                       .buffer_bytes = PD_OPTIMIZER_STORE_BUFFERS_FAST};
    PD_TRY(pd_optimizer_store_new(&options, &b->store, err));
    PD_TRY(pd_raw_bench_new(b->dir.vfs, RAW_BLOCK, RAW_DEPTH, &b->raw, err));
    PD_TRY(put_all(b, err));
    for (int i = 0; i < 3; i++) /* write every generation's file once */
        PD_TRY(offload_run_step(b, &unused, err));
    return run_raw(b, &unused, err);
}

static pd_status run_pair(struct offload_bench *b, struct pd_error *err)
{
    const uint32_t i = b->raws.count;
    double compute = 0;
    PD_TRY(pd_pairs_measure(&b->raws, b, offload_run_step, run_raw, err));
    /* The same arithmetic on state in memory. */
    struct pd_update_step update;
    uint64_t start = pd_clock_monotonic_ns(NULL);
    PD_TRY(start_step(b, &update, err));
    for (uint64_t at = 0; at < b->parameters; at += WINDOW) {
        const struct pd_update_range range = {
            .n = b->parameters - at < WINDOW ? b->parameters - at : WINDOW,
            .decay = true,
            .state = {b->window[PD_PARAM], b->window[PD_EXP_AVG], b->window[PD_EXP_AVG_SQ]},
            .grad = b->gradients + at,
            .copy = b->copies + at,
            .copy_dtype = PD_BF16,
            .moments = b->moments,
            .place = {.first = at, .columns = 1, .stride = 1}};
        pd_update(b->pool, b->math->isa, &update, &range);
    }
    compute = pd_clock_seconds_since(start);
    const double raw = b->raws.ceiling_s[i];
    pd_pairs_add(&b->steps, b->raws.candidate_s[i], raw > compute ? raw : compute);
    pd_pairs_add(&b->transfers, b->report.seconds, raw);
    b->compute_s += compute;
    return PD_OK;
}

/* ---- report ---- */

static pd_status offload_print(const struct offload_bench *b, struct pd_error *err)
{
    const struct pd_pairs_summary step = pd_pairs_summarise(&b->steps), io = pd_pairs_summarise_throughput(&b->transfers);
    const uint64_t moved = b->report.bytes_read + b->report.bytes_written;
    const double state = (double)b->parameters * pd_kinds_bytes(b->moments);
    struct pd_report r;
    pd_report_begin(&r, b->options.json);
    pd_bench_report_ratio(&r, "step_ratio", &step);
    pd_bench_report_ratio(&r, "io_ratio", &io);
    pd_report_double(&r, "bytes_per_parameter", (double)moved / (double)b->parameters, PD_UNIT_NONE);
    pd_report_double(&r, "table_share", (double)pd_optimizer_store_file_bytes(b->store) / state - 1, PD_UNIT_SHARE);
    pd_report_double(&r, "step_seconds", step.candidate_s, PD_UNIT_SECONDS);
    pd_report_double(&r, "compute_seconds", b->compute_s / (double)b->options.pairs, PD_UNIT_SECONDS);
    pd_report_double(&r, "raw_seconds", io.ceiling_s, PD_UNIT_SECONDS);
    PD_REPORT_U64S(&r, {"parameters", b->parameters}, {"pairs", b->options.pairs}, {"threads", b->options.threads});
    pd_report_text(&r, "moments", pd_dtype_name(b->moments));
    pd_report_text(&r, "engine", pd_vfs_describe(b->dir.vfs));
    return pd_report_end(&r, err);
}

static void offload_release(struct offload_bench *b)
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
    pd_bench_dir_close(&b->dir); /* memory is freed at exit */
}

pd_status pd_bench_offload(int argc, char **argv, struct pd_error *err)
{
    struct offload_bench b = {.options = {.dir = ".", .bytes = UINT64_C(1536) << 20, .pairs = 7, .threads = 2}};
    struct pd_option options[] = {
        PD_BENCH_DIR_OPTIONS(&b.options),
        PD_OPTION("threads", "N", "threads that compute (2)", PD_OPTION_U64, &b.options.threads, 1, 1024),
        PD_OPTION("moments", "TYPE", "fp32 (default) or bf16: optimizer.moments", PD_OPTION_CHOICE, &b.moments,
                  .expected = "fp32 or bf16"),
        {0}};
    const struct pd_usage usage = {
        .doc =
            "One optimizer step on state in files, clipping on, against the larger of its compute alone and direct I/O of "
            "the same bytes alone, reads and writes at once, on files in the same state, alternated. step_ratio: time of "
            "the step over the larger of both; io_ratio: bandwidth of its I/O over the raw one's, 1 is the ceiling; "
            "bytes_per_parameter: read and written.",
        .options = options,
        .json = &b.options.json};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    PD_TRY(pd_bench_dir_open(b.options.dir, 6 * b.options.bytes, true, &b.dir, err));
    pd_status st = offload_prepare(&b, err);
    for (uint64_t pair = 0; !st && pair < b.options.pairs; pair++)
        st = run_pair(&b, err);
    if (!st) st = offload_print(&b, err);
    offload_release(&b);
    return st;
}
