/* perdure bench ckpt: saves and loads a GPT-2 shaped checkpoint as a run of one rank does, against raw direct I/O of a
 * file of the same size. Fresh: both sides write new files. Recycled: both overwrite blocks of an earlier file. A load
 * verifies every checksum and fills memory touched before; the raw side reads the same shard file. */
#include "ckpt/base/clock.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/thread_pool.h"
#include "ckpt/store/store.h"
#include "resharder/load/load.h"
#include "tools/bench/bench.h"
#include "tools/bench/raw_bench.h"
#include "trainer/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum measure { SAVE_FRESH, SAVE_RECYCLED, LOAD, MEASURES };

struct ckpt_bench {
    struct pd_bench_options options;
    struct pd_bench_dir dir;
    struct pd_group group;
    struct pd_thread_pool *pool; /* as large as a run of one rank has it */
    struct pd_model *model;
    struct pd_layout layout;
    struct pd_bench_memory memory; /* holds the state */
    const void **data;             /* (memory.box_count) */
    struct pd_shard_writer *writer;
    struct pd_raw_bench *raw;
    struct pd_store *recycled; /* its pool has a free file for the next save */
    uint64_t step;
    enum measure measure; /* current one */
    struct pd_pairs pairs[MEASURES];
};

/* ---- a state ---- */

static pd_status make_state(struct ckpt_bench *b, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &b->model->tensors;
    struct pd_bench_memory *m = &b->memory;
    PD_TRY(pd_bench_memory_new(&b->layout, tensors, 0, m, err));
    b->data = calloc(m->box_count, sizeof *b->data);
    if (!b->data) PD_FAIL(err, PD_NO_MEMORY, "bench: no memory for %u boxes", m->box_count);
    for (uint32_t i = 0; i < m->box_count; i++) {
        float *data = pd_bench_memory_box(m, m->boxes[i].tensor, m->boxes[i].kind, 0);
        pd_bench_fill(data, pd_box_elements(&m->boxes[i].box), i + 1);
        b->data[i] = data;
    }
    return pd_shard_writer_new(b->dir.vfs, tensors, m->boxes, m->box_count, m->io_buffers, PD_BENCH_IO_BYTES, NULL,
                               &b->writer, err);
}

/* ---- saving ---- */

static pd_status open_store(struct ckpt_bench *b, const char *name, struct pd_store **ret_store, struct pd_error *err)
{
    const struct pd_store_options options = {.writable = true, .keep_last = 1};
    char path[4096];
    pd_bench_dir_path(&b->dir, name, path);
    PD_TRY(pd_vfs_mkdir(b->dir.vfs, path, err));
    return pd_store_open(b->dir.vfs, path, &options, &b->group, ret_store, err);
}

static pd_status ckpt_save(struct ckpt_bench *b, struct pd_store *store, double *ret_seconds, struct pd_error *err)
{
    struct pd_run_state state = {.identity = {.run_id = {1, 2}, .lineage = 1, .step = ++b->step},
                                 .fence = pd_store_fence(store),
                                 .loss_scale = 1.0,
                                 .layout = b->layout,
                                 .tensor_count = b->model->tensors.count,
                                 .parameter_count = b->model->parameter_count,
                                 .created_by = "perdure bench",
                                 .config = (char[]){"bench: true\n"}};
    struct pd_shard_summary summary = {0};
    char path[4096];
    uint64_t start = pd_clock_monotonic_ns(NULL);
    PD_TRY(pd_store_begin(store, &state.identity, path, err));
    pd_status written = pd_shard_write(b->writer, path, &state.identity, 0, b->data, &summary, err);
    PD_TRY(pd_store_commit(store, written, &summary, &state, err));
    PD_TRY(pd_store_prune(store, err));
    *ret_seconds = pd_clock_seconds_since(start);
    return PD_OK;
}

static pd_status write_raw(struct ckpt_bench *b, bool fresh, double *ret_seconds, struct pd_error *err)
{
    char path[4096];
    if (fresh) PD_TRY(pd_bench_dir_remove(&b->dir, "raw", err));
    PD_TRY(pd_bench_dir_settle(&b->dir, err));
    pd_bench_dir_path(&b->dir, fresh ? "raw" : "raw-recycled", path);
    return pd_raw_bench_write(b->raw, path, pd_shard_writer_file_bytes(b->writer), fresh ? PD_RAW_FRESH : PD_RAW_RECYCLED,
                              ret_seconds, err);
}

/* ---- loading ---- */

static pd_status ckpt_load(struct ckpt_bench *b, double *ret_seconds, struct pd_error *err)
{
    const struct pd_store_entry *entry = pd_store_entry_at(b->recycled, 0);
    struct pd_commit commit = {0};
    char path[4096];
    PD_TRY(pd_store_read_commit(b->recycled, entry, &commit, err));
    pd_store_entry_path(b->recycled, entry, path);
    const struct pd_load_request request = {.directory = path,
                                            .commit = &commit,
                                            .tensors = &b->model->tensors,
                                            .wanted = &b->layout,
                                            .kinds = (1u << PD_KIND_COUNT) - 1,
                                            .buffers = b->memory.io_buffers,
                                            .buffer_bytes = PD_BENCH_IO_BYTES,
                                            .pool = b->pool,
                                            .destination = pd_bench_memory_box,
                                            .context = &b->memory};
    uint64_t start = pd_clock_monotonic_ns(NULL);
    pd_status st = pd_load(b->dir.vfs, &b->group, &request, NULL, err);
    double seconds = pd_clock_seconds_since(start);
    pd_commit_deinit(&commit);
    if (!st) *ret_seconds = seconds;
    return st;
}

static pd_status read_raw(struct ckpt_bench *b, double *ret_seconds, struct pd_error *err)
{
    char directory[4096], path[4096 + 32];
    pd_store_entry_path(b->recycled, pd_store_entry_at(b->recycled, 0), directory);
    snprintf(path, sizeof path, "%s/shard-00000.h5", directory);
    PD_TRY(pd_bench_dir_settle(&b->dir, err));
    return pd_raw_bench_read(b->raw, path, pd_shard_writer_file_bytes(b->writer), ret_seconds, err);
}

/* ---- pairs ---- */

static pd_status run_ours(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct ckpt_bench *b = bench;
    if (b->measure == SAVE_FRESH) {
        struct pd_store *store = NULL;
        PD_TRY(pd_bench_dir_remove(&b->dir, "fresh", err));
        PD_TRY(open_store(b, "fresh", &store, err));
        pd_status st = pd_bench_dir_settle(&b->dir, err);
        if (!st) st = ckpt_save(b, store, ret_seconds, err);
        pd_store_close(store);
        return st;
    }
    PD_TRY(pd_bench_dir_settle(&b->dir, err));
    return b->measure == LOAD ? ckpt_load(b, ret_seconds, err) : ckpt_save(b, b->recycled, ret_seconds, err);
}

static pd_status run_raw(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct ckpt_bench *b = bench;
    return b->measure == LOAD ? read_raw(b, ret_seconds, err) : write_raw(b, b->measure == SAVE_FRESH, ret_seconds, err);
}

/* One measure after the other: the file system's and drive's work after new files would slow down the recycled ones. */
static pd_status ckpt_measure_all(struct ckpt_bench *b, struct pd_error *err)
{
    double unused;
    pd_group_init_single(&b->group);
    PD_TRY(pd_thread_pool_new(pd_cpu_cores(), &b->pool, err));
    pd_layout_init_dp(&b->layout, 1);
    PD_TRY(b->options.experts ? pd_bench_model_of_experts(b->options.bytes, b->options.experts, &b->model, err)
                              : pd_bench_model_of_bytes(b->options.bytes, &b->model, err));
    PD_TRY(make_state(b, err));
    PD_TRY(pd_raw_bench_new(b->dir.vfs, 0, 0, &b->raw, err));
    PD_TRY(open_store(b, "recycled", &b->recycled, err));
    for (int i = 0; i < 2; i++)
        PD_TRY(ckpt_save(b, b->recycled, &unused, err)); /* the third save can reuse a file */
    /* A load must return what was saved, or its speed means nothing. */
    double seconds;
    const uint64_t saved = pd_digest64(b->memory.data, b->memory.bytes, 0);
    memset(b->memory.data, 0, b->memory.bytes);
    PD_TRY(ckpt_load(b, &seconds, err));
    if (pd_digest64(b->memory.data, b->memory.bytes, 0) != saved)
        PD_FAIL(err, PD_BUG, "bench: a checkpoint loads as another state");
    for (b->measure = 0; b->measure < MEASURES; b->measure++)
        for (uint64_t pair = 0; pair < b->options.pairs; pair++)
            PD_TRY(pd_pairs_measure(&b->pairs[b->measure], b, run_ours, run_raw, err));
    return PD_OK;
}

static void ckpt_release(struct ckpt_bench *b)
{
    pd_store_close(b->recycled);
    pd_raw_bench_free(b->raw);
    pd_shard_writer_free(b->writer);
    pd_bench_memory_deinit(&b->memory);
    free(b->data);
    pd_model_free(b->model);
    pd_thread_pool_free(b->pool);
    pd_bench_dir_close(&b->dir);
}

static pd_status ckpt_print(const struct ckpt_bench *b, struct pd_error *err)
{
    static const char *const ratios[MEASURES] = {"save_ratio", "save_ratio_recycled", "load_ratio"};
    static const char *const rates[MEASURES] = {"save_bytes_per_second", "save_bytes_per_second_recycled",
                                                "load_bytes_per_second"};
    const uint64_t bytes = pd_shard_writer_file_bytes(b->writer);
    struct pd_pairs_summary results[MEASURES];
    struct pd_report r;
    pd_report_begin(&r, b->options.json);
    for (int m = 0; m < MEASURES; m++) {
        results[m] = pd_pairs_summarise_throughput(&b->pairs[m]);
        pd_bench_report_ratio(&r, ratios[m], &results[m]);
    }
    for (int m = 0; m < MEASURES; m++)
        pd_report_double(&r, rates[m], (double)bytes / results[m].candidate_s, PD_UNIT_BYTES_PER_SECOND);
    pd_report_u64(&r, "state_bytes", b->model->parameter_count * PD_BENCH_STATE_BYTES_A_PARAMETER, PD_UNIT_BYTES);
    pd_report_u64(&r, "file_bytes", bytes, PD_UNIT_BYTES);
    PD_REPORT_U64S(&r, {"boxes", b->memory.box_count}, {"pairs", b->options.pairs});
    pd_report_text(&r, "engine", pd_vfs_describe(b->dir.vfs));
    return pd_report_end(&r, err);
}

/* ---- options ---- */

static const char about[] =
    "Saving a state through shard, commit and retention, and loading it with every checksum verified, against raw direct "
    "writes and reads of a file of the same size in the same state (new, or recycled), fdatasync included on both sides, "
    "alternated. save_ratio, save_ratio_recycled, load_ratio: throughput of ours / raw, 1 is the ceiling (2G, 15 pairs).";
static const char about_every[] =
    "Whole training steps with a save every N of them in the background, alternated with the same steps without (128M, 40 "
    "pairs, in memory where there is room). stall_p50, stall_p99: share of the time that training waited; "
    "slowdown_every_step, work_every_step: what is lost in all, and in processor time. With --state nvme the state lies in "
    "files, which a save links (512M, 7 pairs "
    "of 4 steps): extra_bytes a save writes, as a share of the state; flushes a save:";

static pd_status ckpt_parse(int argc, char **argv, struct pd_bench_options *o, bool *ret_done, struct pd_error *err)
{
    struct pd_option options[] = {
        PD_BENCH_DIR_OPTIONS(o),
        PD_BENCH_EXPERTS_OPTION(o),
        {.doc = about_every},
        PD_OPTION("every", "N", "a run that saves every N steps, against one that does not", PD_OPTION_U64, &o->every, 1,
                  1000, "a number of steps from 1 to 1000"),
        PD_OPTION("state", "WHERE", "memory, or nvme (memory)", PD_OPTION_CHOICE, &o->state_in_files,
                  .expected = "memory or nvme"),
        PD_OPTION("device", "NAME", "auto, cpu or gpu (auto)", PD_OPTION_CHOICE, &o->device, .expected = "auto, cpu or gpu"),
        PD_OPTION("steps", "N", "with --state nvme: steps of one measurement", PD_OPTION_U64, &o->steps, 1, 1000),
        PD_OPTION("bucket", "URL", "with uploads to s3://BUCKET/PREFIX, against saves alone", PD_OPTION_TEXT, &o->bucket),
        {0}};
    const struct pd_usage usage = {.doc = about, .options = options, .json = &o->json};
    return pd_command_parse(&usage, argc, argv, ret_done, err);
}

pd_status pd_bench_ckpt(int argc, char **argv, struct pd_error *err)
{
    struct ckpt_bench b = {0};
    bool done;
    PD_TRY(ckpt_parse(argc, argv, &b.options, &done, err));
    if (done) return PD_OK;
    /* Checks options against each other, and sets defaults. */
    struct pd_bench_options *o = &b.options;
    if (!o->every && (o->state_in_files || o->device || o->steps || o->bucket))
        PD_FAIL(err, PD_USAGE, "--state, --device, --steps and --bucket are for --every");
    if (o->every && o->experts) PD_FAIL(err, PD_USAGE, "--experts: leave out --every, whose run has a model of its own");
    if (!o->state_in_files && o->steps) PD_FAIL(err, PD_USAGE, "--steps is for --state nvme");
    if (!o->bytes) o->bytes = (o->state_in_files ? UINT64_C(512) : o->every ? UINT64_C(128) : UINT64_C(2048)) << 20;
    if (!o->pairs) o->pairs = o->state_in_files ? 7 : o->every ? 40 : 15;
    if (!o->dir && !o->every) o->dir = ".";
    if (b.options.every) return pd_bench_every(&b.options, err);
    PD_TRY(pd_bench_dir_open(b.options.dir, 6 * b.options.bytes, true, &b.dir, err));
    pd_status st = ckpt_measure_all(&b, err);
    if (!st) st = ckpt_print(&b, err);
    ckpt_release(&b);
    return st;
}
