/* A save from memory: boxes and rest in file order, through the stream's staging.
 *
 * Blocks of 64 KiB are hashed and copied while they are in the cache. Large boxes that are page-aligned in memory are
 * written zero-copy, and hashed while in flight. To a memory file system all threads of the pool write pieces directly,
 * while hashing has their bytes in the cache: no queue, no staging. */
#include "ckpt/base/checked.h"
#include "ckpt/shard/compress.h"
#include "ckpt/shard/stream.h"

#include <stdatomic.h>

#define ZERO_COPY_BYTES_MIN (1u << 20)          /* smaller boxes are staged even when aligned: fewer, larger writes */
#define ZERO_COPY_BYTES_MAX (8u << 20)          /* of one transfer */
#define PIECE_BYTES (4u * PD_SHARD_BLOCK_BYTES) /* hashed, then written in memory: fits into a cache */
#define BATCH_BYTES (32u * PIECE_BYTES)         /* of all threads, between two reports of progress */

/* Writes whole blocks and returns how far it came. Hashing overlaps the transfer. */
static pd_status write_zero_copy(struct pd_shard_stream *s, uint32_t box, uint64_t seed, const unsigned char *data,
                                 uint64_t *ret_done, struct pd_error *err)
{
    const struct pd_shard_place *place = &s->w->places[box];
    const uint64_t whole = place->bytes / PD_SHARD_BLOCK_BYTES * PD_SHARD_BLOCK_BYTES;
    for (uint64_t at = 0; at < whole; at += ZERO_COPY_BYTES_MAX) {
        const uint64_t bytes = whole - at < ZERO_COPY_BYTES_MAX ? whole - at : ZERO_COPY_BYTES_MAX;
        PD_TRY(pd_shard_staging_write(&s->staging, place->offset + at, data + at, bytes, err));
        pd_shard_stream_hash(s, box, seed, at, at + bytes, data + at);
        PD_TRY(pd_shard_stream_wrote(s, bytes, err));
    }
    *ret_done = whole;
    return PD_OK;
}

/* Bytes of one box that the threads of the pool write, each a piece at a time. */
struct batch {
    struct pd_shard_stream *stream;
    uint32_t box;
    uint64_t seed, begin, end; /* in the box */
    const unsigned char *data; /* of the box */
    atomic_flag has_failed;    /* whoever sets it owns the others */
    pd_status status;
    struct pd_error err;
};

static void write_piece(void *context, uint64_t index)
{
    struct batch *b = context;
    struct pd_shard_stream *s = b->stream;
    struct pd_error own;
    const uint64_t at = b->begin + index * PIECE_BYTES, bytes = pd_min_u64(b->end - at, PIECE_BYTES);
    pd_shard_stream_hash(s, b->box, b->seed, at, at + bytes, b->data + at);
    const pd_status st = pd_file_write(s->file, s->w->places[b->box].offset + at, b->data + at, bytes, &own);
    if (!st || atomic_flag_test_and_set(&b->has_failed)) return;
    b->status = st;
    b->err = own;
}

static pd_status write_in_memory(struct pd_shard_stream *s, uint32_t box, uint64_t seed, const unsigned char *data,
                                 uint64_t *ret_done, struct pd_error *err)
{
    const uint64_t all = s->w->places[box].bytes;
    for (uint64_t at = 0; at < all; at += BATCH_BYTES) {
        struct batch batch = {s, box, seed, at, pd_min_u64(all, at + BATCH_BYTES), data, .has_failed = ATOMIC_FLAG_INIT};
        pd_parallel(s->w->pool, pd_divide_up(batch.end - at, PIECE_BYTES), write_piece, &batch);
        if (batch.status) return pd_error_pass(err, batch.status, &batch.err);
        PD_TRY(pd_shard_stream_wrote(s, batch.end - at, err));
    }
    *ret_done = all;
    return PD_OK;
}

static pd_status write_box(struct pd_shard_stream *s, const struct pd_shard_segment *segment, struct pd_error *err)
{
    const uint32_t box = segment->box;
    const struct pd_shard_place *place = &s->w->places[box];
    const uint64_t seed = pd_shard_stream_box_seed(s, box);
    const unsigned char *data = s->data[box];
    const bool is_in_memory = pd_shard_staging_is_in_memory(&s->staging);
    uint64_t done = 0;
    if (is_in_memory) PD_TRY(write_in_memory(s, box, seed, data, &done, err));
    if (!is_in_memory && place->bytes >= ZERO_COPY_BYTES_MIN && (uintptr_t)data % PD_VFS_ALIGN == 0)
        PD_TRY(write_zero_copy(s, box, seed, data, &done, err));
    while (done < place->bytes) {
        const uint64_t left = place->bytes - done, bytes = left < PD_SHARD_BLOCK_BYTES ? left : PD_SHARD_BLOCK_BYTES;
        pd_shard_stream_hash(s, box, seed, done, done + bytes, data + done);
        PD_TRY(pd_shard_staging_put(&s->staging, place->offset + done, data + done, bytes, err));
        PD_TRY(pd_shard_stream_wrote(s, bytes, err));
        done += bytes;
    }
    return pd_shard_staging_put(&s->staging, place->offset + done, NULL, segment->bytes - done, err);
}

static pd_status write_segments(struct pd_shard_stream *s, struct pd_error *err)
{
    const struct pd_shard_map *map = &s->w->map;
    for (uint32_t i = 0; i < map->segment_count; i++) {
        const struct pd_shard_segment *segment = &map->segments[i];
        if (segment->type == PD_SEGMENT_BOX) PD_TRY(write_box(s, segment, err));
        if (segment->type == PD_SEGMENT_REST) PD_TRY(pd_shard_stream_rest(s, segment, err));
    }
    return PD_OK;
}

static pd_status write_plain(struct pd_shard_stream *s, bool is_in_memory, struct pd_error *err)
{
    PD_TRY(pd_shard_stream_rest_begin(s, err));
    PD_TRY(pd_shard_stream_stage(s, is_in_memory, err));
    s->is_rest_written = true;
    pd_status st = write_segments(s, err);
    return pd_shard_staging_finish(&s->staging, st, err);
}

void pd_shard_writer_on_copied(struct pd_shard_writer *writer, void (*on_copied)(void *context), void *context)
{
    writer->on_copied = on_copied;
    writer->copied_context = context;
}

void pd_shard_writer_on_written(struct pd_shard_writer *writer, pd_status (*on_written)(void *, uint64_t, struct pd_error *),
                                void *context)
{
    writer->on_written = on_written;
    writer->written_context = context;
}

pd_status pd_shard_write(struct pd_shard_writer *writer, const char *path, const struct pd_identity *identity,
                         uint32_t writer_rank, const void *const *data, struct pd_shard_summary *ret_summary,
                         struct pd_error *err)
{
    const bool is_in_memory = !writer->chunks && pd_vfs_is_in_memory(writer->vfs, path);
    struct pd_shard_stream *stream = NULL;
    PD_TRY(
        pd_shard_stream_open(writer, path, identity, writer_rank, writer->chunks ? NULL : data, is_in_memory, &stream, err));
    pd_status st =
        writer->chunks ? pd_shard_compress_boxes(stream, data, NULL, err) : write_plain(stream, is_in_memory, err);
    if (st) {
        pd_shard_stream_abort(stream);
        return st;
    }
    if (writer->on_copied) writer->on_copied(writer->copied_context);
    return pd_shard_stream_finish(stream, ret_summary, err);
}
