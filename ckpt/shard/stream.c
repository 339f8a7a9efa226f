#include "ckpt/shard/stream.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TELL_BYTES (UINT64_C(8) << 20)

#define SLOT_BYTES_MAX PD_SHARD_BUFFERS_MIN
#define SLOT_BYTES_MIN (1u << 20)

static const char owner[] = "a shard stream";

_Static_assert(sizeof(struct pd_shard_stream) <= PD_SHARD_STREAM_BYTES, "as pd_shard_writer_most_bytes counts it");

/* ---- the writer's table and queue ---- */

static struct pd_shard_head *head_of(const struct pd_shard_writer *w)
{
    return (void *)w->table;
}

static uint64_t *checksums_of(const struct pd_shard_writer *w)
{
    return (uint64_t *)(void *)(w->table + head_of(w)->checksums_at);
}

/* Opens the calling thread's queue: a queue belongs to the thread that uses it. */
static pd_status need_queue(struct pd_shard_writer *w, struct pd_error *err)
{
    if (w->queue && w->queue_thread == gettid()) return PD_OK;
    pd_queue_close(w->queue);
    w->queue = NULL;
    w->queue_thread = gettid();
    return pd_queue_open(w->vfs, w->buffers, w->buffer_bytes, &w->queue, err);
}

pd_status pd_shard_stream_stage_in(struct pd_shard_stream *stream, void *part, uint64_t bytes, uint64_t slot_bytes,
                                   struct pd_error *err)
{
    PD_TRY(need_queue(stream->w, err));
    pd_shard_staging_init(&stream->staging, stream->file, stream->w->queue, part, bytes, slot_bytes);
    return PD_OK;
}

pd_status pd_shard_stream_stage(struct pd_shard_stream *stream, bool is_in_memory, struct pd_error *err)
{
    struct pd_shard_writer *w = stream->w;
    uint64_t bytes = w->buffer_bytes / 8 / PD_SHARD_BLOCK_BYTES * PD_SHARD_BLOCK_BYTES;
    if (bytes > SLOT_BYTES_MAX) bytes = SLOT_BYTES_MAX;
    if (bytes < SLOT_BYTES_MIN) bytes = SLOT_BYTES_MIN;
    if (!is_in_memory) return pd_shard_stream_stage_in(stream, w->buffers, w->buffer_bytes, bytes, err);
    pd_shard_staging_init(&stream->staging, stream->file, NULL, w->buffers, w->buffer_bytes, bytes);
    return PD_OK;
}

/* ---- begin ---- */

static uint64_t small_bytes(const struct pd_shard_writer *w)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < w->map.small_count; i++)
        bytes += w->places[w->map.small[i]].bytes;
    return bytes;
}

uint64_t pd_shard_writer_stream_bytes(const struct pd_shard_writer *w)
{
    return sizeof(struct pd_shard_stream) + ((uint64_t)w->box_count + 1) * sizeof(unsigned char *) + small_bytes(w) + 1;
}

/* Allocates the small boxes, back to back. */
static pd_status keep_small(struct pd_shard_stream *stream, struct pd_error *err)
{
    const struct pd_shard_writer *w = stream->w;
    stream->kept = calloc((size_t)w->box_count + 1, sizeof *stream->kept);
    stream->kept_bytes = calloc(small_bytes(w) + 1, 1);
    if (!stream->kept || !stream->kept_bytes) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u small boxes", w->map.small_count);
    const unsigned char *place = stream->kept_bytes;
    for (uint32_t i = 0; i < w->map.small_count; i++) {
        stream->kept[w->map.small[i]] = place;
        place += w->places[w->map.small[i]].bytes;
    }
    stream->data = (const void *const *)(const void *)stream->kept;
    return PD_OK;
}

/* A recycled file keeps its blocks. A new or shorter one is preallocated, so that a full disk shows before the data. */
static pd_status size_file(struct pd_shard_stream *stream, struct pd_error *err)
{
    const struct pd_shard_chunks *chunks = stream->w->chunks;
    const uint64_t bytes = chunks ? pd_shard_chunks_expected_bytes(chunks) : stream->w->file_bytes;
    struct pd_stat st;
    struct pd_error refused;
    PD_TRY(pd_file_stat(stream->file, &st, err));
    stream->old_bytes = st.bytes > bytes ? st.bytes : bytes;
    if (st.bytes >= bytes) return PD_OK;
    const pd_status status = pd_file_preallocate(stream->file, bytes, &refused);
    const bool is_fatal =
        status && status != PD_UNSUPPORTED && !(chunks && status == PD_NO_SPACE); /* chunks may need less */
    return is_fatal ? pd_error_pass(err, status, &refused) : PD_OK;
}

static void free_stream(struct pd_shard_stream *stream)
{
    pd_owner_release(&stream->w->owner, owner);
    free(stream->kept);
    free(stream->kept_bytes);
    free(stream);
}

pd_status pd_shard_stream_open(struct pd_shard_writer *writer, const char *path, const struct pd_identity *identity,
                               uint32_t writer_rank, const void *const *data, bool is_in_memory,
                               struct pd_shard_stream **ret_stream, struct pd_error *err)
{
    struct pd_shard_stream *stream = calloc(1, sizeof *stream);
    if (!stream) PD_FAIL(err, PD_NO_MEMORY, "no memory for a shard stream");
    const unsigned flags = PD_OPEN_WRITE | PD_OPEN_CREATE | (is_in_memory ? 0u : PD_OPEN_DIRECT);
    *stream = (struct pd_shard_stream){.w = writer, .identity = *identity, .writer_rank = writer_rank, .data = data};
    pd_owner_acquire(&writer->owner, owner);
    pd_status st = data ? PD_OK : keep_small(stream, err);
    if (!st) st = pd_file_open(writer->vfs, path, flags, &stream->file, err);
    if (!st) st = size_file(stream, err);
    if (st) {
        pd_shard_stream_abort(stream);
        return st;
    }
    struct pd_shard_head *head = head_of(writer);
    memcpy(head->run_id, identity->run_id, sizeof head->run_id);
    head->lineage = identity->lineage;
    head->step = identity->step;
    if (writer->chunks) pd_shard_chunks_begin(writer->chunks);
    *ret_stream = stream;
    return PD_OK;
}

pd_status pd_shard_stream_begin(struct pd_shard_writer *writer, const char *path, const struct pd_identity *identity,
                                uint32_t writer_rank, struct pd_shard_stream **ret_stream, struct pd_error *err)
{
    return pd_shard_stream_open(writer, path, identity, writer_rank, NULL, false, ret_stream, err);
}

void pd_shard_stream_abort(struct pd_shard_stream *stream)
{
    if (!stream) return;
    if (stream->file) (void)!pd_file_close(stream->file, NULL);
    free_stream(stream);
}

struct pd_file *pd_shard_stream_file(const struct pd_shard_stream *stream)
{
    return stream->file;
}

uint64_t pd_shard_writer_box_offset(const struct pd_shard_writer *writer, uint32_t box)
{
    return writer->places[box].offset;
}

/* ---- blocks ---- */

pd_status pd_shard_stream_wrote(struct pd_shard_stream *s, uint64_t bytes, struct pd_error *err)
{
    s->written += bytes;
    if (!s->w->on_written || s->written - s->told < TELL_BYTES) return PD_OK;
    s->told = s->written;
    return s->w->on_written(s->w->written_context, s->written, err);
}

uint64_t pd_shard_stream_box_seed(const struct pd_shard_stream *stream, uint32_t box)
{
    const struct pd_shard_box *b = &stream->w->local[box];
    return pd_shard_box_seed(&stream->identity, stream->w->name_digests[b->tensor], b->kind, &b->box);
}

void pd_shard_stream_hash(struct pd_shard_stream *stream, uint32_t box, uint64_t seed, uint64_t from, uint64_t to,
                          const void *data)
{
    uint64_t *checksums = checksums_of(stream->w) + stream->w->places[box].first_block;
    for (uint64_t at = from; at < to; at += PD_SHARD_BLOCK_BYTES) {
        const uint64_t bytes = to - at < PD_SHARD_BLOCK_BYTES ? to - at : PD_SHARD_BLOCK_BYTES;
        const uint64_t block = at / PD_SHARD_BLOCK_BYTES;
        checksums[block] = pd_shard_block_digest(seed, block, (const char *)data + (at - from), bytes);
    }
}

void pd_shard_stream_block(struct pd_shard_stream *stream, uint32_t box, uint64_t block, const void *data, uint64_t bytes)
{
    const struct pd_shard_place *place = &stream->w->places[box];
    if (stream->kept && stream->kept[box]) {
        PD_CHECK(block == 0 && bytes == place->bytes);
        memcpy(stream->kept_bytes + (stream->kept[box] - stream->kept_bytes), data, bytes);
        return; /* hashed at the end, with the others */
    }
    const uint64_t at = block * PD_SHARD_BLOCK_BYTES;
    pd_shard_stream_hash(stream, box, pd_shard_stream_box_seed(stream, box), at, at + bytes, data);
}

pd_status pd_shard_writer_verify_block(const struct pd_shard_writer *w, uint32_t box, uint64_t block, const void *data,
                                       uint64_t bytes, struct pd_error *err)
{
    const struct pd_shard_head *head = head_of(w);
    const struct pd_shard_box *b = &w->local[box];
    const struct pd_identity identity = {{head->run_id[0], head->run_id[1]}, head->lineage, head->step};
    const uint64_t seed = pd_shard_box_seed(&identity, w->name_digests[b->tensor], b->kind, &b->box);
    if (pd_shard_block_digest(seed, block, data, bytes) == checksums_of(w)[w->places[box].first_block + block]) return PD_OK;
    PD_FAIL(err, PD_CORRUPT, "tensor %s, %s, block %llu of %llu (file offset %llu): the data does not match its checksum",
            w->tensors.tensors[b->tensor].name, pd_kind_name(b->kind), (unsigned long long)block,
            (unsigned long long)pd_shard_blocks_of(w->places[box].bytes),
            (unsigned long long)(w->places[box].offset + block * PD_SHARD_BLOCK_BYTES));
}

/* ---- rest: metadata, and shared pages of small boxes ---- */

pd_status pd_shard_stream_rest_begin(struct pd_shard_stream *stream, struct pd_error *err)
{
    struct pd_shard_writer *w = stream->w;
    /* The dataset /identity, for people, is patched in the cached page. */
    const struct pd_identity *identity = &stream->identity;
    uint32_t writer_rank = stream->writer_rank;
    const uint64_t record[5] = {identity->run_id[0], identity->run_id[1], identity->lineage, identity->step, writer_rank};
    PD_TRY(pd_h5_pages_write(&w->pages, w->identity_offset, record, sizeof record, err));
    if (w->chunks) PD_TRY(pd_shard_chunks_seal(w->chunks, &w->pages, &w->file_bytes, err));
    pd_digest_stream_init(&stream->rest, pd_shard_table_seed(&stream->identity));
    for (uint32_t i = 0; i < w->map.small_count; i++) {
        const uint32_t box = w->map.small[i];
        const uint64_t seed = pd_shard_stream_box_seed(stream, box);
        pd_shard_stream_hash(stream, box, seed, 0, w->places[box].bytes, stream->data[box]);
    }
    return PD_OK;
}

/* Puts the small boxes of a page over the bytes HDF5 wrote there. */
static void overlay_small(const struct pd_shard_stream *stream, uint64_t offset, unsigned char *page)
{
    const struct pd_shard_writer *w = stream->w;
    for (uint32_t i = pd_shard_map_small_at(&w->map, w->places, offset); i < w->map.small_count; i++) {
        const uint32_t box = w->map.small[i];
        const struct pd_shard_place *place = &w->places[box];
        if (place->offset >= offset + PD_H5_PAGE_BYTES) return;
        const uint64_t skip = place->offset < offset ? offset - place->offset : 0, first = place->offset + skip - offset;
        const uint64_t bytes = place->bytes - skip, space = PD_H5_PAGE_BYTES - first;
        memcpy(page + first, (const char *)stream->data[box] + skip, bytes < space ? bytes : space);
    }
}

pd_status pd_shard_stream_rest(struct pd_shard_stream *stream, const struct pd_shard_segment *segment, struct pd_error *err)
{
    static const unsigned char zeros[PD_H5_PAGE_BYTES];
    for (uint64_t at = 0; at < segment->bytes; at += PD_H5_PAGE_BYTES) {
        const uint64_t offset = segment->offset + at;
        const unsigned char *page = pd_h5_pages_find(&stream->w->pages, offset / PD_H5_PAGE_BYTES);
        unsigned char *space = NULL;
        uint64_t bytes = 0;
        PD_TRY(pd_shard_staging_reserve(&stream->staging, offset, PD_H5_PAGE_BYTES, &space, &bytes, err));
        PD_CHECK(bytes == PD_H5_PAGE_BYTES); /* slots are whole pages */
        memcpy(space, page ? page : zeros, PD_H5_PAGE_BYTES);
        pd_digest_stream_add(&stream->rest, space, PD_H5_PAGE_BYTES);
        overlay_small(stream, offset, space);
    }
    return PD_OK;
}

/* ---- finish ---- */

static void seal_table(struct pd_shard_stream *stream)
{
    struct pd_shard_writer *w = stream->w;
    struct pd_shard_head *head = head_of(w);
    head->writer_rank = stream->writer_rank;
    head->rest_digest = pd_digest_stream_value(&stream->rest);
    pd_shard_trailer_fill((void *)(w->table + w->table_bytes), w->table, w->table_bytes, w->table_offset, &stream->identity);
}

static pd_status write_table(struct pd_shard_stream *stream, struct pd_error *err)
{
    struct pd_shard_writer *w = stream->w;
    const uint64_t trailer = w->file_bytes - PD_SHARD_PAGE_BYTES;
    const bool is_adjacent = w->table_offset + w->table_bytes == trailer;
    const uint64_t bytes = w->table_bytes + (is_adjacent ? PD_SHARD_PAGE_BYTES : 0);
    PD_TRY(pd_file_write(stream->file, w->table_offset, w->table, bytes, err));
    if (is_adjacent) return PD_OK;
    return pd_file_write(stream->file, trailer, w->table + w->table_bytes, PD_SHARD_PAGE_BYTES, err);
}

static pd_status write_end(struct pd_shard_stream *stream, struct pd_error *err)
{
    const struct pd_shard_writer *w = stream->w;
    if (!stream->is_rest_written) {
        const struct pd_shard_map *map = &stream->w->map;
        PD_TRY(pd_shard_stream_rest_begin(stream, err));
        PD_TRY(pd_shard_stream_stage(stream, false, err));
        pd_status st = PD_OK;
        for (uint32_t i = 0; !st && i < map->segment_count; i++)
            if (map->segments[i].type == PD_SEGMENT_REST) st = pd_shard_stream_rest(stream, &map->segments[i], err);
        PD_TRY(pd_shard_staging_finish(&stream->staging, st, err));
    }
    seal_table(stream);
    PD_TRY(write_table(stream, err));
    if (stream->old_bytes > w->file_bytes) PD_TRY(pd_file_truncate(stream->file, w->file_bytes, err));
    return pd_file_sync(stream->file, err);
}

static void summarise(const struct pd_shard_stream *stream, struct pd_shard_summary *ret_summary)
{
    const struct pd_shard_writer *w = stream->w;
    const struct pd_shard_trailer *trailer = (const void *)(w->table + w->table_bytes);
    *ret_summary = (struct pd_shard_summary){.file_bytes = w->file_bytes,
                                             .table_offset = w->table_offset,
                                             .table_bytes = w->table_bytes,
                                             .digest = trailer->table_digest,
                                             .data_bytes = head_of(w)->data_bytes,
                                             .box_count = w->box_count,
                                             .writer_rank = stream->writer_rank};
}

pd_status pd_shard_stream_finish(struct pd_shard_stream *stream, struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    pd_status st = write_end(stream, err);
    const pd_status closed = pd_file_close(stream->file, st ? NULL : err);
    if (!st) st = closed;
    if (!st) summarise(stream, ret_summary);
    free_stream(stream);
    return st;
}
