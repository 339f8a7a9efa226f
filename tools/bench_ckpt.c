/* perdure bench ckpt: a checkpoint of a GPT-2 shaped state, saved and loaded as a run does it, against raw direct I/O of a
 * file of the same size in the same state.
 *
 * One rank. A save is begin, shard, commit and prune of a store; the raw side is open, write, fdatasync, close. Fresh: both
 * files are new. Recycled: both overwrite blocks that a file before them left. A load opens, verifies every checksum and
 * leaves the state in memory that was touched before; the raw side reads the same shard file into its buffers. */
#include "ckpt/base/digest.h"
#include "ckpt/io/raw_bench.h"
#include "ckpt/store.h"
#include "resharder/load.h"
#include "tools/bench.h"
#include "tools/bench_room.h"
#include "tools/output.h"
#include "trainer/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ckpt/base/clock.h"

#define IO_BYTES (UINT64_C(64) << 20) /* what a run takes for a state of this size */
#define STATE_BYTES_A_PARAMETER 12u   /* fp32 master and two moments */

enum measure { SAVE_FRESH, SAVE_RECYCLED, LOAD, MEASURES };
static const char *const measure_names[MEASURES] = {"save, fresh", "save, recycled", "load"};

struct ckpt_bench {
    struct pd_bench_options options;
    struct pd_bench_room room;
    struct pd_group group;
    struct pd_model *model;
    struct pd_layout layout;
    struct pd_shard_box *boxes;
    uint32_t box_count;
    const void **data; /* (box_count) */
    char *state;       /* (state_bytes) kind after kind, tensors one after the other as a run holds them */
    uint64_t state_bytes, kind_bytes;
    uint64_t *tensor_at; /* (tensors) byte offset in a kind */
    void *io_buffers;
    struct pd_shard_writer *writer;
    struct pd_raw_bench *raw;
    struct pd_store *recycled; /* its pool holds a file for the next save */
    uint64_t step;
    struct pd_pairs pairs[MEASURES];
};

/* ---- a state ---- */

/* GPT-2 of width 768 with as many layers as fit and positions for the rest; a small one gets a small vocabulary too. */
static pd_status make_model(struct ckpt_bench *b, struct pd_error *err)
{
    const uint64_t hidden = 768, block = 12 * hidden * hidden + 13 * hidden,
                   parameters = b->options.bytes / STATE_BYTES_A_PARAMETER;
    struct pd_model_config config;
    PD_TRY(pd_model_preset("gpt2-124m", &config, err));
    uint64_t vocab = parameters / 3 / hidden, left;
    if (vocab < config.vocab) config.vocab = (uint32_t)vocab;
    left = parameters - config.vocab * hidden - 2 * hidden;
    uint64_t layers = left / block;
    config.layers = layers ? (uint32_t)layers : 1;
    config.context = left > config.layers * block + hidden ? (uint32_t)((left - config.layers * block) / hidden) : 1;
    return pd_model_new(&config, &b->model, err);
}

static void *map_bytes(uint64_t bytes)
{
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return data == MAP_FAILED ? NULL : data;
}

static void *destination(void *context, uint32_t tensor, enum pd_kind kind, uint32_t box)
{
    struct ckpt_bench *b = context;
    PD_CHECK(box == 0);
    return b->state + kind * b->kind_bytes + b->tensor_at[tensor];
}

static pd_status make_state(struct ckpt_bench *b, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &b->model->tensors;
    b->kind_bytes = b->model->parameter_count * sizeof(float);
    b->state_bytes = PD_KIND_COUNT * b->kind_bytes;
    b->state = map_bytes(b->state_bytes);
    b->io_buffers = map_bytes(IO_BYTES);
    b->tensor_at = calloc(tensors->count, sizeof *b->tensor_at);
    if (!b->state || !b->io_buffers || !b->tensor_at)
        PD_FAIL(err, PD_NO_MEMORY, "bench: no memory for a state of %s: take less with --bytes",
                pd_text_bytes(b->state_bytes).text);
    memset(b->io_buffers, 0, IO_BYTES);
    uint32_t *words = (uint32_t *)(void *)b->state, bits = 1;
    for (uint64_t i = 0; i < b->state_bytes / sizeof *words; i++) { /* floats of all bits but infinities and NaN */
        bits = bits * 1664525u + 1013904223u;
        words[i] = bits & ~(1u << 30);
    }
    for (uint32_t t = 1; t < tensors->count; t++)
        b->tensor_at[t] = b->tensor_at[t - 1] + pd_tensor_elements(&tensors->tensors[t - 1]) * sizeof(float);
    return PD_OK;
}

static pd_status make_writer(struct ckpt_bench *b, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &b->model->tensors;
    pd_layout_init_dp(&b->layout, 1);
    PD_TRY(pd_layout_shard_boxes(&b->layout, tensors, 0, &b->boxes, &b->box_count, err));
    b->data = calloc(b->box_count, sizeof *b->data);
    if (!b->data) PD_FAIL(err, PD_NO_MEMORY, "bench: no memory for %u boxes", b->box_count);
    for (uint32_t i = 0; i < b->box_count; i++)
        b->data[i] = destination(b, b->boxes[i].tensor, b->boxes[i].kind, 0);
    return pd_shard_writer_new(b->room.door, tensors, b->boxes, b->box_count, b->io_buffers, IO_BYTES, &b->writer, err);
}

/* ---- saving ---- */

static pd_status open_store(struct ckpt_bench *b, const char *name, struct pd_store **ret_store, struct pd_error *err)
{
    const struct pd_store_options options = {.writable = true, .keep_last = 1};
    char path[4096];
    pd_bench_room_path(&b->room, name, path);
    PD_TRY(pd_door_mkdir(b->room.door, path, err));
    return pd_store_open(b->room.door, path, &options, &b->group, ret_store, err);
}

static pd_status save(struct ckpt_bench *b, struct pd_store *store, double *ret_seconds, struct pd_error *err)
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
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    return PD_OK;
}

static pd_status save_fresh(struct ckpt_bench *b, double *ret_seconds, struct pd_error *err)
{
    struct pd_store *store = NULL;
    PD_TRY(pd_bench_room_remove(&b->room, "fresh", err));
    PD_TRY(open_store(b, "fresh", &store, err));
    pd_status st = pd_bench_room_settle(&b->room, err);
    if (!st) st = save(b, store, ret_seconds, err);
    pd_store_close(store);
    return st;
}

static pd_status write_raw(struct ckpt_bench *b, bool fresh, double *ret_seconds, struct pd_error *err)
{
    char path[4096];
    if (fresh) PD_TRY(pd_bench_room_remove(&b->room, "raw", err));
    PD_TRY(pd_bench_room_settle(&b->room, err));
    pd_bench_room_path(&b->room, fresh ? "raw" : "raw-recycled", path);
    return pd_raw_bench_write(b->raw, path, pd_shard_writer_file_bytes(b->writer), fresh ? PD_RAW_FRESH : PD_RAW_RECYCLED,
                              ret_seconds, err);
}

/* ---- loading ---- */

static pd_status load(struct ckpt_bench *b, double *ret_seconds, struct pd_error *err)
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
                                            .buffers = b->io_buffers,
                                            .buffer_bytes = IO_BYTES,
                                            .destination = destination,
                                            .context = b};
    uint64_t start = pd_clock_monotonic_ns(NULL);
    pd_status st = pd_load(b->room.door, &b->group, &request, NULL, err);
    double seconds = pd_clock_seconds_since(NULL, start);
    pd_commit_deinit(&commit);
    if (!st) *ret_seconds = seconds;
    return st;
}

static pd_status read_raw(struct ckpt_bench *b, double *ret_seconds, struct pd_error *err)
{
    char directory[4096], path[4096 + 32];
    pd_store_entry_path(b->recycled, pd_store_entry_at(b->recycled, 0), directory);
    snprintf(path, sizeof path, "%s/shard-00000.h5", directory);
    PD_TRY(pd_bench_room_settle(&b->room, err));
    return pd_raw_bench_read(b->raw, path, pd_shard_writer_file_bytes(b->writer), ret_seconds, err);
}

/* What a load leaves must be what was saved, or its speed means nothing. */
static pd_status load_check(struct ckpt_bench *b, struct pd_error *err)
{
    double seconds;
    uint64_t saved = pd_digest64(b->state, b->state_bytes, 0);
    memset(b->state, 0, b->state_bytes);
    PD_TRY(load(b, &seconds, err));
    if (pd_digest64(b->state, b->state_bytes, 0) != saved) PD_FAIL(err, PD_BUG, "bench: a checkpoint loads as another state");
    return PD_OK;
}

/* ---- pairs ---- */

static pd_status run_ours(struct ckpt_bench *b, enum measure measure, double *ret_seconds, struct pd_error *err)
{
    if (measure == SAVE_FRESH) return save_fresh(b, ret_seconds, err);
    PD_TRY(pd_bench_room_settle(&b->room, err));
    return measure == LOAD ? load(b, ret_seconds, err) : save(b, b->recycled, ret_seconds, err);
}

static pd_status run_raw(struct ckpt_bench *b, enum measure measure, double *ret_seconds, struct pd_error *err)
{
    return measure == LOAD ? read_raw(b, ret_seconds, err) : write_raw(b, measure == SAVE_FRESH, ret_seconds, err);
}

/* Who goes first changes from pair to pair. */
static pd_status run_pair(struct ckpt_bench *b, uint64_t pair, enum measure measure, struct pd_error *err)
{
    double ours = 0, raw = 0;
    if (pair % 2) PD_TRY(run_raw(b, measure, &raw, err));
    PD_TRY(run_ours(b, measure, &ours, err));
    if (pair % 2 == 0) PD_TRY(run_raw(b, measure, &raw, err));
    pd_pairs_add(&b->pairs[measure], ours, raw);
    return PD_OK;
}

static pd_status prepare(struct ckpt_bench *b, struct pd_error *err)
{
    double unused;
    pd_group_init_single(&b->group);
    PD_TRY(make_model(b, err));
    PD_TRY(make_state(b, err));
    PD_TRY(make_writer(b, err));
    PD_TRY(pd_raw_bench_new(b->room.door, 0, 0, &b->raw, err));
    PD_TRY(open_store(b, "recycled", &b->recycled, err));
    for (int i = 0; i < 2; i++)
        PD_TRY(save(b, b->recycled, &unused, err)); /* the third finds a file to reuse */
    return load_check(b, err);
}

static pd_status measure_all(struct ckpt_bench *b, struct pd_error *err)
{
    PD_TRY(prepare(b, err));
    for (uint64_t pair = 0; pair < b->options.pairs; pair++)
        for (int measure = 0; measure < MEASURES; measure++)
            PD_TRY(run_pair(b, pair, (enum measure)measure, err));
    return PD_OK;
}

static void release(struct ckpt_bench *b)
{
    pd_store_close(b->recycled);
    pd_raw_bench_free(b->raw);
    pd_shard_writer_free(b->writer);
    if (b->state) munmap(b->state, b->state_bytes);
    if (b->io_buffers) munmap(b->io_buffers, IO_BYTES);
    free(b->boxes);
    free(b->data);
    free(b->tensor_at);
    pd_model_free(b->model);
    pd_bench_room_close(&b->room);
}

static pd_status print(const struct ckpt_bench *b, const struct pd_pairs_summary *results, struct pd_error *err)
{
    const uint64_t bytes = pd_shard_writer_file_bytes(b->writer);
    if (!b->options.json) {
        printf("%s, %s of state in %u boxes, in %s\n", pd_door_describe(b->room.door), pd_text_bytes(b->state_bytes).text,
               b->box_count, b->options.dir);
        for (int m = 0; m < MEASURES; m++)
            pd_bench_print_ratio(measure_names[m], "raw", bytes, (uint32_t)b->options.pairs, &results[m]);
        return PD_OK;
    }
    struct pd_json_writer w;
    pd_json_writer_init(&w, 2);
    pd_json_object_begin(&w, NULL);
    pd_bench_json_ratio(&w, "save_ratio", &results[SAVE_FRESH]);
    pd_bench_json_ratio(&w, "save_ratio_recycled", &results[SAVE_RECYCLED]);
    pd_bench_json_ratio(&w, "load_ratio", &results[LOAD]);
    pd_json_double(&w, "save_bytes_per_second", (double)bytes / results[SAVE_FRESH].candidate_s);
    pd_json_double(&w, "save_bytes_per_second_recycled", (double)bytes / results[SAVE_RECYCLED].candidate_s);
    pd_json_double(&w, "load_bytes_per_second", (double)bytes / results[LOAD].candidate_s);
    pd_json_u64(&w, "state_bytes", b->state_bytes);
    pd_json_u64(&w, "file_bytes", bytes);
    pd_json_u64(&w, "boxes", b->box_count);
    pd_json_u64(&w, "pairs", b->options.pairs);
    pd_json_string(&w, "engine", pd_door_describe(b->room.door));
    pd_json_object_end(&w);
    return pd_output_json(&w, err);
}

pd_status pd_bench_ckpt(int argc, char **argv, struct pd_error *err)
{
    struct ckpt_bench b = {.options = {.dir = ".", .bytes = UINT64_C(2) << 30, .pairs = 7}};
    struct pd_pairs_summary results[MEASURES];
    bool done;
    PD_TRY(pd_bench_parse(
        "Saving a state through shard, commit and retention, and loading it with every checksum verified, against raw "
        "direct writes and reads of a file of the same size in the same state (new, or recycled), fdatasync included "
        "on both sides, alternated. save_ratio, save_ratio_recycled, load_ratio: throughput of ours / raw, 1 is the "
        "ceiling.",
        argc, argv, &b.options, &done, err));
    if (done) return PD_OK;
    PD_TRY(pd_bench_room_open(b.options.dir, 6 * b.options.bytes, &b.room, err));
    pd_status st = measure_all(&b, err);
    for (int m = 0; !st && m < MEASURES; m++)
        results[m] = pd_pairs_summarise_throughput(&b.pairs[m]);
    if (!st) st = print(&b, results, err);
    release(&b);
    return st;
}
