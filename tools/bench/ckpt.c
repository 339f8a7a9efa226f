/* perdure bench ckpt: a checkpoint of a GPT-2 shaped state, saved and loaded as a run does it, against raw direct I/O of a
 * file of the same size in the same state.
 *
 * One rank. A save is begin, shard, commit and prune of a store; the raw side is open, write, fdatasync, close. Fresh: both
 * files are new. Recycled: both overwrite blocks that a file before them left. A load opens, verifies every checksum and
 * leaves the state in memory that was touched before; the raw side reads the same shard file into its buffers. */
#include "ckpt/base/arena.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/digest.h"
#include "ckpt/io/raw_bench.h"
#include "ckpt/store/store.h"
#include "resharder/load/load.h"
#include "tools/bench/bench.h"
#include "tools/bench/room.h"
#include "tools/output.h"
#include "trainer/model/model.h"
#include "trainer/parallel/zero.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IO_BYTES (UINT64_C(64) << 20) /* what a run takes for a state of this size */
#define SMALL_BYTES (UINT64_C(512) << 20)
#define STATE_BYTES_A_PARAMETER 12u /* fp32 master and two moments */

enum measure { SAVE_FRESH, SAVE_RECYCLED, LOAD, MEASURES };
static const char *const measure_names[MEASURES] = {"save, fresh", "save, recycled", "load"};

struct ckpt_bench {
    struct pd_bench_options options;
    struct pd_bench_room room;
    struct pd_group group;
    struct pd_model *model;
    struct pd_layout layout;
    struct pd_grid grid;
    struct pd_shard_box *boxes;
    uint32_t box_count;
    const void **data; /* (box_count) */
    struct pd_arena *arena;
    struct pd_zero *zero; /* holds the state */
    uint64_t state_bytes;
    void *io_buffers;
    struct pd_shard_writer *writer;
    struct pd_raw_bench *raw;
    struct pd_store *recycled; /* its pool holds a file for the next save */
    uint64_t step;
    struct pd_pairs pairs[MEASURES];
};

/* ---- a state ---- */

/* GPT-2 of width 768 (256 for a small one) with as many layers as fit and positions for the rest; the vocabulary takes at
 * most a third. */
static pd_status make_model(struct ckpt_bench *b, struct pd_error *err)
{
    const uint64_t hidden = b->options.bytes < SMALL_BYTES ? 256 : 768, block = 12 * hidden * hidden + 13 * hidden;
    const uint64_t parameters = b->options.bytes / STATE_BYTES_A_PARAMETER;
    struct pd_model_config config;
    PD_TRY(pd_model_preset("gpt2-124m", &config, err));
    config.hidden = (uint32_t)hidden;
    config.heads = (uint32_t)hidden / 64;
    config.head_size = config.kv_heads = config.ffn = 0; /* as follows from these */
    uint64_t vocab = parameters / 3 / hidden, left;
    if (vocab < config.vocab) config.vocab = (uint32_t)vocab;
    left = parameters - config.vocab * hidden - 2 * hidden;
    uint64_t layers = left / block;
    config.layers = layers ? (uint32_t)layers : 1;
    config.context = left > config.layers * block + hidden ? (uint32_t)((left - config.layers * block) / hidden) : 1;
    return pd_model_new(&config, &b->model, err);
}

static void *destination(void *context, uint32_t tensor, enum pd_kind kind, uint32_t box)
{
    struct ckpt_bench *b = context;
    PD_CHECK(box == 0);
    const struct pd_zero_box *boxes = pd_zero_boxes(b->zero);
    PD_CHECK(boxes[tensor].tensor == tensor); /* one rank owns all of them */
    return pd_zero_state(b->zero, kind) + boxes[tensor].offset;
}

static pd_status build_zero(struct ckpt_bench *b, struct pd_arena *arena, struct pd_error *err)
{
    const struct pd_zero_options options = {.micro_batches = 1, .compute = PD_F32, .gradient_type = PD_F32};
    PD_TRY(pd_grid_init(&b->layout, 0, NULL, &b->grid, err));
    b->io_buffers = pd_arena_take(arena, PD_MEMORY_BUFFERS, IO_BYTES);
    return pd_zero_new(b->model, &options, &b->grid, NULL, arena, &b->zero, err);
}

/* Bits of numbers, none of them infinite or NaN. */
static void fill(uint32_t *words, uint64_t count, uint32_t seed)
{
    for (uint64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        words[i] = seed & ~(1u << 30);
    }
}

/* Memory as a run lays it out, by the recipe of a run. */
static pd_status make_state(struct ckpt_bench *b, struct pd_error *err)
{
    struct pd_memory_plan plan;
    struct pd_arena *dry = NULL;
    PD_TRY(pd_arena_new_dry(&dry, err));
    pd_status st = build_zero(b, dry, err);
    pd_arena_usage(dry, &plan);
    pd_zero_free(b->zero);
    b->zero = NULL;
    pd_arena_free(dry);
    if (!st) st = pd_arena_new(&plan, &b->arena, err);
    if (!st) st = build_zero(b, b->arena, err);
    PD_TRY(st);
    b->state_bytes = b->model->parameter_count * STATE_BYTES_A_PARAMETER;
    memset(b->io_buffers, 0, IO_BYTES);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        for (uint32_t t = 0; t < b->model->tensors.count; t++)
            fill(destination(b, t, (enum pd_kind)kind, 0), pd_zero_boxes(b->zero)[t].elements, t * 3u + (uint32_t)kind + 1u);
    return PD_OK;
}

static pd_status make_writer(struct ckpt_bench *b, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &b->model->tensors;
    PD_TRY(pd_layout_shard_boxes(&b->layout, tensors, 0, &b->boxes, &b->box_count, err));
    b->data = calloc(b->box_count, sizeof *b->data);
    if (!b->data) PD_FAIL(err, PD_NO_MEMORY, "bench: no memory for %u boxes", b->box_count);
    for (uint32_t i = 0; i < b->box_count; i++)
        b->data[i] = destination(b, b->boxes[i].tensor, b->boxes[i].kind, 0);
    return pd_shard_writer_new(b->room.vfs, tensors, b->boxes, b->box_count, b->io_buffers, IO_BYTES, &b->writer, err);
}

/* ---- saving ---- */

static pd_status open_store(struct ckpt_bench *b, const char *name, struct pd_store **ret_store, struct pd_error *err)
{
    const struct pd_store_options options = {.writable = true, .keep_last = 1};
    char path[4096];
    pd_bench_room_path(&b->room, name, path);
    PD_TRY(pd_vfs_mkdir(b->room.vfs, path, err));
    return pd_store_open(b->room.vfs, path, &options, &b->group, ret_store, err);
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
    pd_status st = pd_load(b->room.vfs, &b->group, &request, NULL, err);
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

static uint64_t state_digest(const struct ckpt_bench *b)
{
    const uint64_t bytes = pd_zero_owned_elements(b->zero) * sizeof(float);
    uint64_t digests[PD_KIND_COUNT];
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        digests[kind] = pd_digest64(pd_zero_state(b->zero, (enum pd_kind)kind), bytes, 0);
    return pd_digest_words(digests, PD_KIND_COUNT, 0);
}

/* What a load leaves must be what was saved, or its speed means nothing. */
static pd_status load_check(struct ckpt_bench *b, struct pd_error *err)
{
    double seconds;
    uint64_t saved = state_digest(b);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        memset(pd_zero_state(b->zero, (enum pd_kind)kind), 0, pd_zero_owned_elements(b->zero) * sizeof(float));
    PD_TRY(load(b, &seconds, err));
    if (state_digest(b) != saved) PD_FAIL(err, PD_BUG, "bench: a checkpoint loads as another state");
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
    pd_layout_init_dp(&b->layout, 1);
    PD_TRY(make_model(b, err));
    PD_TRY(make_state(b, err));
    PD_TRY(make_writer(b, err));
    PD_TRY(pd_raw_bench_new(b->room.vfs, 0, 0, &b->raw, err));
    PD_TRY(open_store(b, "recycled", &b->recycled, err));
    for (int i = 0; i < 2; i++)
        PD_TRY(save(b, b->recycled, &unused, err)); /* the third finds a file to reuse */
    return load_check(b, err);
}

/* One measure after the other: what new files leave to the file system and the drive would weigh on the recycled ones. */
static pd_status measure_all(struct ckpt_bench *b, struct pd_error *err)
{
    PD_TRY(prepare(b, err));
    for (int measure = 0; measure < MEASURES; measure++)
        for (uint64_t pair = 0; pair < b->options.pairs; pair++)
            PD_TRY(run_pair(b, pair, (enum measure)measure, err));
    return PD_OK;
}

static void release(struct ckpt_bench *b)
{
    pd_store_close(b->recycled);
    pd_raw_bench_free(b->raw);
    pd_shard_writer_free(b->writer);
    pd_zero_free(b->zero);
    pd_arena_free(b->arena);
    free(b->boxes);
    free(b->data);
    pd_model_free(b->model);
    pd_bench_room_close(&b->room);
}

static pd_status print(const struct ckpt_bench *b, const struct pd_pairs_summary *results, struct pd_error *err)
{
    const uint64_t bytes = pd_shard_writer_file_bytes(b->writer);
    if (!b->options.json) {
        printf("%s, %s of state in %u boxes, in %s\n", pd_vfs_describe(b->room.vfs), pd_text_bytes(b->state_bytes).text,
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
    pd_json_string(&w, "engine", pd_vfs_describe(b->room.vfs));
    pd_json_object_end(&w);
    return pd_output_json(&w, err);
}

pd_status pd_bench_ckpt(int argc, char **argv, struct pd_error *err)
{
    struct ckpt_bench b = {.options = {.every_doc = "a run that saves every N steps, against one that does not",
                                       .compression_doc = "shards compressed like that (zstd:3), against plain ones"}};
    struct pd_pairs_summary results[MEASURES];
    bool done;
    PD_TRY(pd_bench_parse(
        "Saving a state through shard, commit and retention, and loading it with every checksum verified, against raw "
        "direct writes and reads of a file of the same size in the same state (new, or recycled), fdatasync included "
        "on both sides, alternated. save_ratio, save_ratio_recycled, load_ratio: throughput of ours / raw, 1 is the "
        "ceiling (2G, 15 pairs). With --every: whole training steps with a save every N of them in the background, "
        "alternated with the "
        "same steps without (128M, 40 pairs, in memory where there is room). stall_p50, stall_p99: share of the time that "
        "training waited; slowdown_every_step: what is lost in all. With --state nvme the state lies in files, which a save "
        "links (512M, 7 pairs of 4 steps): extra_bytes a save writes, as a share of the state; flushes a save. With "
        "--compression: compressed shards written over "
        "themselves, alternated with plain ones of the same state; time_ratio: time of ours / plain; space_saved.",
        argc, argv, &b.options, &done, err));
    if (done) return PD_OK;
    if (b.options.from && !b.options.compression) PD_FAIL(err, PD_USAGE, "--from is for --compression");
    const bool is_run = b.options.every > 0;
    const bool in_files = b.options.state_in_files;
    if (!is_run && (in_files || b.options.device || b.options.steps || b.options.flush_ms))
        PD_FAIL(err, PD_USAGE, "--state, --device, --steps and --flush-ms are for --every");
    if (!in_files && (b.options.steps || b.options.flush_ms))
        PD_FAIL(err, PD_USAGE, "--steps and --flush-ms are for --state nvme");
    if (in_files && !b.options.bytes) b.options.bytes = UINT64_C(512) << 20;
    if (in_files && !b.options.pairs) b.options.pairs = 7;
    if (!b.options.bytes) b.options.bytes = is_run ? UINT64_C(128) << 20 : UINT64_C(2) << 30;
    if (!b.options.pairs) b.options.pairs = is_run ? 40 : 15;
    if (is_run && b.options.compression) PD_FAIL(err, PD_USAGE, "--every and --compression are benches of their own");
    if (is_run) return in_files ? pd_bench_every_files(&b.options, err) : pd_bench_every(&b.options, err);
    if (!b.options.dir) b.options.dir = ".";
    if (b.options.compression) return pd_bench_compress(&b.options, err);
    PD_TRY(pd_bench_room_open(b.options.dir, 6 * b.options.bytes, &b.room, err));
    pd_status st = measure_all(&b, err);
    for (int m = 0; !st && m < MEASURES; m++)
        results[m] = pd_pairs_summarise_throughput(&b.pairs[m]);
    if (!st) st = print(&b, results, err);
    release(&b);
    return st;
}
