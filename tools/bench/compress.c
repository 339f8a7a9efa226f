/* perdure bench ckpt --compression HOW: a compressed shard against a plain one of the same state, each written over the file
 * of the save before, fdatasync included, alternated; and what of the space is saved.
 *
 * The state: numbers as training leaves them (master weights and first moments around zero, second moments their
 * squares); with --from what a checkpoint holds, again and again until there is enough, and then its own shards are
 * compressed too. */
#include "ckpt/base/clock.h"
#include "ckpt/base/cpu.h"
#include "ckpt/inspect/inspect.h"
#include "ckpt/shard/transcode.h"
#include "tools/bench/bench.h"
#include "tools/bench/room.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IO_BYTES (UINT64_C(64) << 20)
#define ROWS 2048u
#define COLUMNS 1024u
#define BOX_ELEMENTS ((uint64_t)ROWS * COLUMNS)
#define POOL_ELEMENTS (UINT64_C(4) << 20) /* of a kind, at most */
#define POOL_MIN (UINT64_C(1) << 19)      /* so that no chunk holds the same number twice for that reason */

enum side { PLAIN, PACKED, SIDES };

struct compress_bench {
    const struct pd_bench_options *options;
    struct pd_bench_room room;
    struct pd_shard_codec codec;
    struct pd_thread_pool *pool;
    float *pools[PD_KIND_COUNT]; /* (pool_elements) */
    uint64_t pool_elements;
    struct pd_tensor_table tensors;
    struct pd_shard_box *boxes;
    void **data; /* (box_count) */
    uint32_t box_count;
    void *io_buffers;
    struct pd_shard_writer *writers[SIDES];
    struct pd_shard_summary summaries[SIDES]; /* of the last save */
    uint64_t step;
    struct pd_pairs pairs;
    uint64_t from_bytes, from_packed_bytes; /* shards of --from */
};

/* ---- a state ---- */

static double uniform(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((double)(*seed >> 11) + 0.5) / 9007199254740992.0;
}

static void make_numbers(float *pool, uint64_t count, enum pd_kind kind)
{
    static const double scale[PD_KIND_COUNT] = {[PD_PARAM] = 0.02, [PD_EXP_AVG] = 1e-4, [PD_EXP_AVG_SQ] = 1e-4};
    uint64_t seed = (uint64_t)kind + 1;
    for (uint64_t i = 0; i < count; i++) {
        const double x = scale[kind] * sqrt(-2 * log(uniform(&seed))) * cos(6.283185307179586 * uniform(&seed));
        pool[i] = (float)(kind == PD_EXP_AVG_SQ ? x * x : x);
    }
}

/* Tensors of the checkpoint one after the other, until the pool is full or they are through. */
static pd_status take_numbers(struct compress_bench *b, struct pd_inspect *from, enum pd_kind kind, uint64_t *ret_count,
                              struct pd_error *err)
{
    const struct pd_tensor_table *table = pd_inspect_tensors(from);
    uint64_t count = 0;
    for (uint32_t t = 0; t < table->count && count < POOL_ELEMENTS; t++) {
        struct pd_box box = pd_box_whole(&table->tensors[t]);
        const uint64_t row = pd_box_elements(&box) / box.count[0], room = (POOL_ELEMENTS - count) / row;
        if (box.count[0] > room) box.count[0] = room;
        if (box.count[0] == 0) continue;
        PD_TRY(pd_inspect_read(from, t, kind, &box, b->pools[kind] + count, err));
        count += pd_box_elements(&box);
    }
    *ret_count = count;
    return PD_OK;
}

static pd_status pack_shard(struct compress_bench *b, const char *directory, uint32_t shard, const struct pd_commit *commit,
                            struct pd_error *err)
{
    char from[4096 + 32], to[4096];
    snprintf(from, sizeof from, "%s/shard-%05" PRIu32 ".h5", directory, shard);
    pd_bench_room_path(&b->room, "from.h5", to);
    const struct pd_shard_copy copy = {.from = from,
                                       .to = to,
                                       .identity = &commit->state.identity,
                                       .expect = &commit->shards[shard],
                                       .buffers = b->io_buffers,
                                       .buffer_bytes = IO_BYTES};
    struct pd_shard_summary summary;
    PD_TRY(pd_shard_transcode(b->room.vfs, &copy, &b->codec, &summary, err));
    b->from_bytes += commit->shards[shard].file_bytes;
    b->from_packed_bytes += summary.file_bytes;
    return PD_OK;
}

static pd_status use_checkpoint(struct compress_bench *b, struct pd_error *err)
{
    struct pd_inspect *from = NULL;
    uint64_t count = 0;
    PD_TRY(pd_inspect_open(b->room.vfs, b->options->from, &from, err));
    pd_status st = pd_inspect_check_complete(from, err);
    for (int kind = 0; !st && kind < PD_KIND_COUNT; kind++)
        st = take_numbers(b, from, (enum pd_kind)kind, &count, err);
    b->pool_elements = count;
    if (!st && count < POOL_MIN)
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "%s holds %" PRIu64 " parameters; half a million are needed",
                          b->options->from, count);
    for (uint32_t s = 0; !st && s < pd_inspect_commit(from)->shard_count; s++)
        st = pack_shard(b, b->options->from, s, pd_inspect_commit(from), err);
    pd_inspect_close(from);
    return st;
}

static pd_status make_pools(struct compress_bench *b, struct pd_error *err)
{
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        b->pools[kind] = malloc(POOL_ELEMENTS * sizeof(float));
        if (!b->pools[kind]) PD_FAIL(err, PD_NO_MEMORY, "bench: no memory for numbers");
    }
    if (b->options->from) return use_checkpoint(b, err);
    b->pool_elements = POOL_ELEMENTS;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        make_numbers(b->pools[kind], POOL_ELEMENTS, (enum pd_kind)kind);
    return PD_OK;
}

static pd_status make_box(struct compress_bench *b, uint32_t i, struct pd_error *err)
{
    struct pd_tensor *tensor = &b->tensors.tensors[i];
    *tensor = (struct pd_tensor){.ndim = 2, .shape = {ROWS, COLUMNS, 1, 1}, .tp_dim = -1, .tp_unit = 1};
    snprintf(tensor->name, sizeof tensor->name, "model.layers.%u.weight", i);
    const enum pd_kind kind = (enum pd_kind)(i % PD_KIND_COUNT);
    b->boxes[i] = (struct pd_shard_box){i, kind, pd_box_whole(tensor)};
    float *data = aligned_alloc(PD_VFS_ALIGN, BOX_ELEMENTS * sizeof *data);
    if (!data) PD_FAIL(err, PD_NO_MEMORY, "bench: no memory for %u boxes", b->box_count);
    b->data[i] = data;
    for (uint64_t done = 0, at = i * UINT64_C(99991) % b->pool_elements; done < BOX_ELEMENTS; at = 0) {
        const uint64_t left = BOX_ELEMENTS - done, run = b->pool_elements - at;
        const uint64_t count = left < run ? left : run;
        memcpy(data + done, b->pools[kind] + at, count * sizeof *data);
        done += count;
    }
    return PD_OK;
}

static pd_status make_state(struct compress_bench *b, struct pd_error *err)
{
    b->box_count = (uint32_t)(b->options->bytes / (BOX_ELEMENTS * sizeof(float)));
    b->tensors = (struct pd_tensor_table){calloc(b->box_count, sizeof(struct pd_tensor)), b->box_count};
    b->boxes = calloc(b->box_count, sizeof *b->boxes);
    b->data = calloc(b->box_count, sizeof *b->data);
    b->io_buffers = aligned_alloc(PD_VFS_ALIGN, IO_BYTES);
    if (!b->tensors.tensors || !b->boxes || !b->data || !b->io_buffers)
        PD_FAIL(err, PD_NO_MEMORY, "bench: no memory for %u boxes", b->box_count);
    memset(b->io_buffers, 0, IO_BYTES);
    PD_TRY(make_pools(b, err));
    for (uint32_t i = 0; i < b->box_count; i++)
        PD_TRY(make_box(b, i, err));
    return PD_OK;
}

/* ---- pairs ---- */

static pd_status save(struct compress_bench *b, enum side side, double *ret_seconds, struct pd_error *err)
{
    const struct pd_identity identity = {.run_id = {1, 2}, .lineage = 1, .step = ++b->step};
    char path[4096];
    pd_bench_room_path(&b->room, side == PLAIN ? "plain.h5" : "packed.h5", path);
    PD_TRY(pd_bench_room_settle(&b->room, err));
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    PD_TRY(pd_shard_write(b->writers[side], path, &identity, 0, (const void *const *)b->data, &b->summaries[side], err));
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    return PD_OK;
}

static pd_status save_packed(void *bench, double *ret_seconds, struct pd_error *err)
{
    return save(bench, PACKED, ret_seconds, err);
}

static pd_status save_plain(void *bench, double *ret_seconds, struct pd_error *err)
{
    return save(bench, PLAIN, ret_seconds, err);
}

static pd_status measure(struct compress_bench *b, struct pd_error *err)
{
    static const struct pd_shard_codec plain;
    PD_TRY(make_state(b, err));
    for (int side = 0; side < SIDES; side++)
        PD_TRY(pd_shard_writer_new_compressed(b->room.vfs, &b->tensors, b->boxes, b->box_count, b->io_buffers, IO_BYTES,
                                              side == PLAIN ? &plain : &b->codec, &b->writers[side], err));
    double unused;
    for (int warm = 0; warm < 2; warm++)
        for (int side = 0; side < SIDES; side++)
            PD_TRY(save(b, (enum side)side, &unused, err));
    for (uint64_t pair = 0; pair < b->options->pairs; pair++)
        PD_TRY(pd_pairs_measure(&b->pairs, b, save_packed, save_plain, err));
    return PD_OK;
}

static void release(struct compress_bench *b)
{
    for (int side = 0; side < SIDES; side++)
        pd_shard_writer_free(b->writers[side]);
    for (uint32_t i = 0; b->data && i < b->box_count; i++)
        free(b->data[i]);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        free(b->pools[kind]);
    pd_tensor_table_deinit(&b->tensors);
    free(b->boxes);
    free(b->data);
    free(b->io_buffers);
    pd_thread_pool_free(b->pool);
    pd_bench_room_close(&b->room);
}

/* ---- results ---- */

static double saved(uint64_t packed, uint64_t plain)
{
    return plain ? 1 - (double)packed / (double)plain : 0;
}

static pd_status print(const struct compress_bench *b, struct pd_error *err)
{
    const struct pd_pairs_summary times = pd_pairs_summarise(&b->pairs);
    const uint64_t plain = b->summaries[PLAIN].file_bytes, packed = b->summaries[PACKED].file_bytes;
    struct pd_report r;
    pd_report_begin(&r, b->options->json);
    pd_bench_report_ratio(&r, "time_ratio", &times);
    pd_report_double(&r, "space_saved", saved(packed, plain), PD_UNIT_SHARE);
    if (b->options->from)
        pd_report_double(&r, "from_space_saved", saved(b->from_packed_bytes, b->from_bytes), PD_UNIT_SHARE);
    pd_report_text(&r, "compression", b->options->compression);
    pd_report_u64(&r, "plain_bytes", plain, PD_UNIT_BYTES);
    pd_report_u64(&r, "packed_bytes", packed, PD_UNIT_BYTES);
    pd_report_u64(&r, "threads", pd_thread_pool_size(b->pool), PD_UNIT_NONE);
    pd_report_u64(&r, "pairs", b->options->pairs, PD_UNIT_NONE);
    pd_report_text(&r, "engine", pd_vfs_describe(b->room.vfs));
    return pd_report_end(&r, err);
}

pd_status pd_bench_compress(const struct pd_bench_options *options, struct pd_error *err)
{
    struct compress_bench b = {.options = options};
    PD_TRY(pd_shard_codec_parse(options->compression, &b.codec, err));
    PD_TRY(pd_bench_room_open(options->dir, 3 * options->bytes, false, &b.room, err));
    pd_status st = pd_thread_pool_new(pd_cpu_cores(), &b.pool, err);
    b.codec.pool = b.pool;
    if (!st) st = measure(&b, err);
    if (!st) st = print(&b, err);
    release(&b);
    return st;
}
