/* Writing shard files, as shard_plan.c laid them out: a save walks their segments in order.
 *
 * Data is hashed and copied, 64 KiB at a time, into slots of the staging buffers; a full slot goes to the disk while the
 * next one is filled. Large boxes that lie page-aligned in memory go to the disk from where they are. A file that fits into
 * the buffers as a whole is one write. A file system in memory takes each piece at once, by a copy of the calling thread
 * while the bytes are in its cache from being hashed: no queue, no staging, nobody else's time.
 *
 *   invariants  1. the file is written, table and trailer last, then truncated to size, then synced
 *               2. whatever happens, nothing is in flight when pd_shard_write returns
 *               3. every byte of every page is written: what lay in a recycled file before does not show
 */
#include "ckpt/base/digest.h"
#include "ckpt/base/stream_copy.h"
#include "ckpt/shard/writer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOTS_MAX 32u
#define SLOT_BYTES_MAX PD_SHARD_BUFFERS_MIN
#define SLOT_BYTES_MIN (1u << 20)
#define LENT_BYTES_MIN (1u << 20)                 /* smaller boxes are staged even when aligned: fewer, larger writes */
#define LENT_BYTES_MAX (8u << 20)                 /* of one transfer */
#define AT_ONCE_BYTES (4u * PD_SHARD_BLOCK_BYTES) /* hashed, then written in memory: fits a cache */

struct slot {
    struct pd_transfer transfer;
    unsigned char *buffer;
    bool in_flight;
};

struct saving {
    struct pd_shard_writer *w;
    struct pd_file *file;
    const void *const *data;
    const struct pd_identity *identity;
    uint64_t *checksums;
    struct pd_digest_stream rest;
    bool is_whole;   /* the file is put together in the buffers and written at once */
    bool is_at_once; /* nothing is ever in flight: the file is in memory */
    struct slot slots[SLOTS_MAX];
    uint32_t slot_count;
    uint64_t slot_bytes;
    struct slot *current; /* being filled */
    uint64_t current_offset, current_bytes;
    pd_status failed; /* first failed transfer; its message is in *err */
    struct pd_error *err;
};

/* Errors of transfers go to s->failed; the result is about the queue alone. */
static pd_status reap_some(struct saving *s, uint32_t *ret_count)
{
    struct pd_transfer *done[SLOTS_MAX];
    PD_TRY(pd_queue_reap(s->w->queue, done, SLOTS_MAX, ret_count, s->failed ? NULL : s->err));
    for (uint32_t d = 0; d < *ret_count; d++) {
        ((struct slot *)done[d]->user)->in_flight = false;
        if (done[d]->status && !s->failed) s->failed = pd_transfer_error(done[d], s->err);
    }
    return PD_OK;
}

static pd_status take_slot(struct saving *s, struct slot **ret_slot)
{
    for (;;) {
        for (uint32_t i = 0; i < s->slot_count; i++) {
            if (s->slots[i].in_flight || &s->slots[i] == s->current) continue;
            *ret_slot = &s->slots[i];
            return PD_OK;
        }
        uint32_t count = 0;
        PD_TRY(reap_some(s, &count));
        PD_TRY(s->failed);
    }
}

static pd_status send(struct saving *s, struct slot *slot, const void *data, uint64_t offset, uint64_t bytes)
{
    if (s->is_at_once) return pd_file_write(s->file, offset, data, bytes, s->err);
    slot->transfer = (struct pd_transfer){.file = s->file,
                                          .data = (void *)(uintptr_t)data,
                                          .offset = offset,
                                          .bytes = bytes,
                                          .is_write = true,
                                          .what = "write of a save",
                                          .user = slot};
    struct pd_transfer *transfer = &slot->transfer;
    slot->in_flight = true;
    return pd_queue_submit(s->w->queue, &transfer, 1, s->err);
}

static pd_status flush_current(struct saving *s)
{
    struct slot *slot = s->current;
    s->current = NULL;
    if (!slot || s->current_bytes == 0) return PD_OK;
    return send(s, slot, slot->buffer, s->current_offset, s->current_bytes);
}

/* Room for up to `wanted` bytes of the file at `offset`. */
static pd_status stage(struct saving *s, uint64_t offset, uint64_t wanted, unsigned char **ret_room, uint64_t *ret_bytes)
{
    if (s->is_whole) {
        *ret_room = s->w->buffers + offset;
        *ret_bytes = wanted;
        return PD_OK;
    }
    bool follows = s->current && s->current_offset + s->current_bytes == offset && s->current_bytes < s->slot_bytes;
    if (!follows) {
        PD_TRY(flush_current(s));
        struct slot *slot = NULL;
        PD_TRY(take_slot(s, &slot));
        s->current = slot;
        s->current_offset = offset;
        s->current_bytes = 0;
    }
    uint64_t room = s->slot_bytes - s->current_bytes;
    *ret_room = s->current->buffer + s->current_bytes;
    *ret_bytes = wanted < room ? wanted : room;
    s->current_bytes += *ret_bytes;
    return PD_OK;
}

/* NULL data: zeros. */
static pd_status copy_out(struct saving *s, uint64_t offset, const unsigned char *data, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        unsigned char *room = NULL;
        uint64_t piece = 0;
        PD_TRY(stage(s, offset + done, bytes - done, &room, &piece));
        if (data)
            pd_stream_copy(room, data + done, piece);
        else
            memset(room, 0, piece);
        done += piece;
    }
    return PD_OK;
}

static uint64_t box_seed(const struct saving *s, uint32_t box)
{
    const struct pd_shard_box *b = &s->w->local[box];
    return pd_shard_box_seed(s->identity, s->w->name_digests[b->tensor], b->kind, &b->box);
}

static void hash_blocks(struct saving *s, uint32_t box, uint64_t seed, uint64_t from, uint64_t to)
{
    const struct pd_shard_place *place = &s->w->places[box];
    for (uint64_t at = from; at < to; at += PD_SHARD_BLOCK_BYTES) {
        uint64_t bytes = to - at < PD_SHARD_BLOCK_BYTES ? to - at : PD_SHARD_BLOCK_BYTES;
        uint64_t block = at / PD_SHARD_BLOCK_BYTES;
        s->checksums[place->first_block + block] =
            pd_shard_block_digest(seed, block, (const char *)s->data[box] + at, bytes);
    }
}

/* From where it lies: whole pages only. Hashing overlaps the transfer. Returns how far it came. */
static pd_status lend_box(struct saving *s, uint32_t box, uint64_t seed, uint64_t *ret_done)
{
    const struct pd_shard_place *place = &s->w->places[box];
    const uint64_t whole = place->bytes / PD_SHARD_BLOCK_BYTES * PD_SHARD_BLOCK_BYTES;
    PD_TRY(flush_current(s));
    for (uint64_t at = 0; at < whole; at += LENT_BYTES_MAX) {
        uint64_t bytes = whole - at < LENT_BYTES_MAX ? whole - at : LENT_BYTES_MAX;
        struct slot *slot = NULL;
        PD_TRY(take_slot(s, &slot));
        PD_TRY(send(s, slot, (const char *)s->data[box] + at, place->offset + at, bytes));
        hash_blocks(s, box, seed, at, at + bytes);
    }
    *ret_done = whole;
    return PD_OK;
}

static pd_status write_box(struct saving *s, uint32_t box, uint64_t seed, uint64_t *ret_done)
{
    const struct pd_shard_place *place = &s->w->places[box];
    PD_TRY(flush_current(s));
    for (uint64_t at = 0; at < place->bytes; at += AT_ONCE_BYTES) {
        uint64_t bytes = place->bytes - at < AT_ONCE_BYTES ? place->bytes - at : AT_ONCE_BYTES;
        hash_blocks(s, box, seed, at, at + bytes);
        PD_TRY(pd_file_write(s->file, place->offset + at, (const char *)s->data[box] + at, bytes, s->err));
    }
    *ret_done = place->bytes;
    return PD_OK;
}

static pd_status save_box(struct saving *s, const struct pd_shard_segment *segment)
{
    const uint32_t box = segment->box;
    const struct pd_shard_place *place = &s->w->places[box];
    const uint64_t seed = box_seed(s, box);
    uint64_t done = 0;
    bool lends =
        !s->is_whole && !s->is_at_once && place->bytes >= LENT_BYTES_MIN && (uintptr_t)s->data[box] % PD_VFS_ALIGN == 0;
    if (lends) PD_TRY(lend_box(s, box, seed, &done));
    if (s->is_at_once && !s->is_whole) PD_TRY(write_box(s, box, seed, &done));
    while (done < place->bytes) { /* hash, then copy while the block is in the cache */
        uint64_t left = place->bytes - done, bytes = left < PD_SHARD_BLOCK_BYTES ? left : PD_SHARD_BLOCK_BYTES;
        hash_blocks(s, box, seed, done, done + bytes);
        PD_TRY(copy_out(s, place->offset + done, (const unsigned char *)s->data[box] + done, bytes));
        done += bytes;
    }
    return copy_out(s, place->offset + done, NULL, segment->bytes - done);
}

/* Small boxes of a page, over what HDF5 wrote there. */
static void overlay_small(struct saving *s, uint64_t offset, unsigned char *page)
{
    const struct pd_shard_writer *w = s->w;
    for (uint32_t i = pd_shard_map_small_at(&w->map, w->places, offset); i < w->map.small_count; i++) {
        const uint32_t box = w->map.small[i];
        const struct pd_shard_place *place = &w->places[box];
        if (place->offset >= offset + PD_H5_PAGE_BYTES) return;
        uint64_t skip = place->offset < offset ? offset - place->offset : 0, first = place->offset + skip - offset;
        uint64_t bytes = place->bytes - skip, room = PD_H5_PAGE_BYTES - first;
        memcpy(page + first, (const char *)s->data[box] + skip, bytes < room ? bytes : room);
    }
}

static pd_status save_rest(struct saving *s, const struct pd_shard_segment *segment)
{
    static const unsigned char zeros[PD_H5_PAGE_BYTES];
    for (uint64_t at = 0; at < segment->bytes; at += PD_H5_PAGE_BYTES) {
        const uint64_t offset = segment->offset + at;
        const unsigned char *page = pd_h5_pages_find(&s->w->pages, offset / PD_H5_PAGE_BYTES);
        unsigned char *room = NULL;
        uint64_t bytes = 0;
        PD_TRY(stage(s, offset, PD_H5_PAGE_BYTES, &room, &bytes));
        PD_CHECK(bytes == PD_H5_PAGE_BYTES); /* slots are whole pages */
        memcpy(room, page ? page : zeros, PD_H5_PAGE_BYTES);
        pd_digest_stream_add(&s->rest, room, PD_H5_PAGE_BYTES);
        overlay_small(s, offset, room);
    }
    return PD_OK;
}

static void hash_small(struct saving *s)
{
    for (uint32_t i = 0; i < s->w->map.small_count; i++) {
        uint32_t box = s->w->map.small[i];
        hash_blocks(s, box, box_seed(s, box), 0, s->w->places[box].bytes);
    }
}

static pd_status save_segments(struct saving *s)
{
    hash_small(s);
    for (uint32_t i = 0; i < s->w->map.segment_count; i++) {
        const struct pd_shard_segment *segment = &s->w->map.segments[i];
        if (segment->type == PD_SEGMENT_BOX) PD_TRY(save_box(s, segment));
        if (segment->type == PD_SEGMENT_REST) PD_TRY(save_rest(s, segment));
    }
    return flush_current(s);
}

static void set_identity(struct pd_shard_writer *w, const struct pd_identity *identity)
{
    struct pd_shard_head *head = (void *)w->table;
    memcpy(head->run_id, identity->run_id, sizeof head->run_id);
    head->lineage = identity->lineage;
    head->step = identity->step;
}

static void seal_table(struct saving *s, uint32_t writer_rank)
{
    struct pd_shard_writer *w = s->w;
    struct pd_shard_head *head = (void *)w->table;
    set_identity(w, s->identity);
    head->writer_rank = writer_rank;
    head->rest_digest = pd_digest_stream_value(&s->rest);
    pd_shard_trailer_fill((void *)(w->table + w->table_bytes), w->table, w->table_bytes, w->table_offset, s->identity);
}

static pd_status save_table(struct saving *s)
{
    struct pd_shard_writer *w = s->w;
    const uint64_t trailer = w->file_bytes - PD_SHARD_PAGE_BYTES;
    if (s->is_whole) {
        memcpy(w->buffers + w->table_offset, w->table, w->table_bytes);
        memcpy(w->buffers + trailer, w->table + w->table_bytes, PD_SHARD_PAGE_BYTES);
        return pd_file_write(s->file, 0, w->buffers, w->file_bytes, s->err);
    }
    bool adjacent = w->table_offset + w->table_bytes == trailer;
    PD_TRY(pd_file_write(s->file, w->table_offset, w->table, w->table_bytes + (adjacent ? PD_SHARD_PAGE_BYTES : 0), s->err));
    if (adjacent) return PD_OK;
    return pd_file_write(s->file, trailer, w->table + w->table_bytes, PD_SHARD_PAGE_BYTES, s->err);
}

/* The dataset /identity, for people, in the cached page. */
static pd_status patch_identity(struct pd_shard_writer *w, const struct pd_identity *identity, uint32_t writer_rank,
                                struct pd_error *err)
{
    const uint64_t record[5] = {identity->run_id[0], identity->run_id[1], identity->lineage, identity->step, writer_rank};
    return pd_h5_pages_write(&w->pages, w->identity_offset, record, sizeof record, err);
}

/* A queue belongs to the thread that uses it. */
pd_status pd_shard_writer_queue(struct pd_shard_writer *w, struct pd_error *err)
{
    if (w->queue && w->queue_thread == gettid()) return PD_OK;
    pd_queue_close(w->queue);
    w->queue = NULL;
    w->queue_thread = gettid();
    return pd_queue_open(w->vfs, w->buffers, w->buffer_bytes, &w->queue, err);
}

static void cut_slots(struct saving *s)
{
    uint64_t bytes = s->w->buffer_bytes / 8 / PD_SHARD_BLOCK_BYTES * PD_SHARD_BLOCK_BYTES;
    if (bytes > SLOT_BYTES_MAX) bytes = SLOT_BYTES_MAX;
    if (bytes < SLOT_BYTES_MIN) bytes = SLOT_BYTES_MIN;
    s->slot_bytes = bytes;
    uint64_t count = s->w->buffer_bytes / bytes;
    s->slot_count = count < SLOTS_MAX ? (uint32_t)count : SLOTS_MAX;
    for (uint32_t i = 0; i < s->slot_count; i++)
        s->slots[i].buffer = s->w->buffers + i * bytes;
}

/* Buffers are lent until reaped, whatever failed. */
static pd_status drain(struct saving *s)
{
    for (uint32_t count = 1; count;)
        PD_TRY(reap_some(s, &count));
    return PD_OK;
}

static uint64_t *table_checksums(struct pd_shard_writer *w)
{
    return (uint64_t *)(void *)(w->table + ((struct pd_shard_head *)(void *)w->table)->checksums_at);
}

static pd_status save_contents(struct saving *s, uint32_t writer_rank)
{
    struct pd_shard_writer *w = s->w;
    PD_TRY(patch_identity(w, s->identity, writer_rank, s->err));
    s->checksums = table_checksums(w);
    s->is_whole = w->file_bytes <= SLOT_BYTES_MAX;
    pd_digest_stream_init(&s->rest, pd_shard_table_seed(s->identity));
    if (!s->is_whole) {
        if (!s->is_at_once) PD_TRY(pd_shard_writer_queue(w, s->err));
        cut_slots(s);
    }
    pd_status st = save_segments(s);
    pd_status drained = s->is_whole || s->is_at_once ? PD_OK : drain(s);
    if (!st) st = drained ? drained : s->failed;
    PD_TRY(st);
    if (w->on_copied) w->on_copied(w->copied_context);
    seal_table(s, writer_rank);
    return save_table(s);
}

/* A recycled file keeps its blocks; a fresh or shorter one gets them at once, so that a full disk shows before the data. */
static pd_status size_file(struct saving *s, uint64_t *ret_old_bytes)
{
    struct pd_stat st;
    PD_TRY(pd_file_stat(s->file, &st, s->err));
    const struct pd_shard_chunks *chunks = s->w->chunks;
    const uint64_t bytes = chunks ? pd_shard_chunks_expected_bytes(chunks) : s->w->file_bytes;
    *ret_old_bytes = st.bytes > bytes ? st.bytes : bytes;
    if (st.bytes >= bytes) return PD_OK;
    struct pd_error refused;
    pd_status status = pd_file_preallocate(s->file, bytes, &refused);
    if (status && status != PD_UNSUPPORTED && !(chunks && status == PD_NO_SPACE)) { /* chunks may need less */
        if (s->err) *s->err = refused;
        return status;
    }
    return PD_OK;
}

static pd_status save_file(struct saving *s, uint32_t writer_rank)
{
    uint64_t old_bytes = 0;
    PD_TRY(size_file(s, &old_bytes));
    PD_TRY(save_contents(s, writer_rank));
    if (old_bytes > s->w->file_bytes) PD_TRY(pd_file_truncate(s->file, s->w->file_bytes, s->err));
    return pd_file_sync(s->file, s->err);
}

static void summarise(const struct pd_shard_writer *writer, uint32_t writer_rank, struct pd_shard_summary *ret_summary)
{
    const struct pd_shard_head *head = (const void *)writer->table;
    const struct pd_shard_trailer *trailer = (const void *)(writer->table + writer->table_bytes);
    *ret_summary = (struct pd_shard_summary){.file_bytes = writer->file_bytes,
                                             .table_offset = writer->table_offset,
                                             .table_bytes = writer->table_bytes,
                                             .digest = trailer->table_digest,
                                             .data_bytes = head->data_bytes,
                                             .box_count = writer->box_count,
                                             .writer_rank = writer_rank};
}

void pd_shard_writer_on_copied(struct pd_shard_writer *writer, void (*on_copied)(void *context), void *context)
{
    writer->on_copied = on_copied;
    writer->copied_context = context;
}

/* Where the file's directory is a file system in memory. Not to know is to treat it as a disk. */
static bool is_in_memory(struct pd_vfs *vfs, const char *path)
{
    char directory[4096];
    struct pd_space space;
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path || (size_t)(slash - path) >= sizeof directory) return false;
    memcpy(directory, path, (size_t)(slash - path));
    directory[slash - path] = '\0';
    return pd_vfs_space(vfs, directory, &space, NULL) == PD_OK && space.in_memory;
}

pd_status pd_shard_write(struct pd_shard_writer *writer, const char *path, const struct pd_identity *identity,
                         uint32_t writer_rank, const void *const *data, struct pd_shard_summary *ret_summary,
                         struct pd_error *err)
{
    if (writer->chunks) return pd_shard_write_chunks(writer, path, identity, writer_rank, data, NULL, ret_summary, err);
    struct saving s = {.w = writer, .data = data, .identity = identity, .err = err};
    s.is_at_once = is_in_memory(writer->vfs, path);
    const unsigned flags = PD_OPEN_WRITE | PD_OPEN_CREATE | (s.is_at_once ? 0u : PD_OPEN_DIRECT);
    PD_TRY(pd_file_open(writer->vfs, path, flags, &s.file, err));
    pd_status st = save_file(&s, writer_rank);
    pd_status closed = pd_file_close(s.file, st ? NULL : err);
    if (!st) st = closed;
    if (st) return st;
    summarise(writer, writer_rank, ret_summary);
    return PD_OK;
}

/* ---- a stream ---- */

struct pd_shard_stream {
    struct saving saving;
    struct pd_identity identity;
    const unsigned char **data; /* (box_count) boxes of less than a page, inside `small` */
    unsigned char *small;
    uint64_t old_bytes;
    uint32_t writer_rank;
};

uint64_t pd_shard_writer_box_offset(const struct pd_shard_writer *writer, uint32_t box)
{
    return writer->places[box].offset;
}

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

static void free_stream(struct pd_shard_stream *stream)
{
    free(stream->data);
    free(stream->small);
    free(stream);
}

/* Places for the small boxes, one behind the other. */
static pd_status make_room(struct pd_shard_stream *stream, struct pd_error *err)
{
    const struct pd_shard_writer *w = stream->saving.w;
    stream->data = calloc((size_t)w->box_count + 1, sizeof *stream->data);
    stream->small = calloc(small_bytes(w) + 1, 1);
    if (!stream->data || !stream->small) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u small boxes", w->map.small_count);
    unsigned char *place = stream->small;
    for (uint32_t i = 0; i < w->map.small_count; i++) {
        stream->data[w->map.small[i]] = place;
        place += w->places[w->map.small[i]].bytes;
    }
    stream->saving.data = (const void *const *)(const void *)stream->data;
    stream->saving.checksums = table_checksums(stream->saving.w);
    return PD_OK;
}

pd_status pd_shard_stream_begin(struct pd_shard_writer *writer, const char *path, const struct pd_identity *identity,
                                uint32_t writer_rank, struct pd_shard_stream **ret_stream, struct pd_error *err)
{
    struct pd_shard_stream *stream = calloc(1, sizeof *stream);
    if (!stream) PD_FAIL(err, PD_NO_MEMORY, "no memory for a shard stream");
    stream->identity = *identity;
    stream->writer_rank = writer_rank;
    stream->saving = (struct saving){.w = writer, .identity = &stream->identity, .err = err};
    pd_status st = make_room(stream, err);
    if (!st)
        st = pd_file_open(writer->vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_DIRECT, &stream->saving.file, err);
    if (!st) st = size_file(&stream->saving, &stream->old_bytes);
    if (st) {
        pd_shard_stream_abort(stream);
        return st;
    }
    set_identity(writer, identity);
    if (writer->chunks) pd_shard_chunks_begin(writer->chunks);
    *ret_stream = stream;
    return PD_OK;
}

void pd_shard_stream_abort(struct pd_shard_stream *stream)
{
    if (!stream) return;
    if (stream->saving.file) (void)!pd_file_close(stream->saving.file, NULL);
    free_stream(stream);
}

struct pd_file *pd_shard_stream_file(const struct pd_shard_stream *stream)
{
    return stream->saving.file;
}

void pd_shard_stream_block(struct pd_shard_stream *stream, uint32_t box, uint64_t block, const void *data, uint64_t bytes)
{
    struct saving *s = &stream->saving;
    if (stream->data[box]) {
        PD_CHECK(block == 0 && bytes == s->w->places[box].bytes);
        memcpy(stream->small + (stream->data[box] - stream->small), data, bytes);
        return; /* hashed with the others at the end */
    }
    s->checksums[s->w->places[box].first_block + block] = pd_shard_block_digest(box_seed(s, box), block, data, bytes);
}

/* Metadata and small boxes; the data of the others is there. */
static pd_status stream_rest(struct saving *s)
{
    hash_small(s);
    for (uint32_t i = 0; i < s->w->map.segment_count; i++)
        if (s->w->map.segments[i].type == PD_SEGMENT_REST) PD_TRY(save_rest(s, &s->w->map.segments[i]));
    return flush_current(s);
}

static pd_status stream_contents(struct pd_shard_stream *stream)
{
    struct saving *s = &stream->saving;
    PD_TRY(patch_identity(s->w, s->identity, stream->writer_rank, s->err));
    if (s->w->chunks) PD_TRY(pd_shard_chunks_seal(s->w->chunks, &s->w->pages, &s->w->file_bytes, s->err));
    pd_digest_stream_init(&s->rest, pd_shard_table_seed(s->identity));
    PD_TRY(pd_shard_writer_queue(s->w, s->err));
    cut_slots(s);
    pd_status st = stream_rest(s), drained = drain(s);
    if (!st) st = drained ? drained : s->failed;
    PD_TRY(st);
    seal_table(s, stream->writer_rank);
    PD_TRY(save_table(s));
    if (stream->old_bytes > s->w->file_bytes) PD_TRY(pd_file_truncate(s->file, s->w->file_bytes, s->err));
    return pd_file_sync(s->file, s->err);
}

pd_status pd_shard_stream_finish(struct pd_shard_stream *stream, struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    struct saving *s = &stream->saving;
    s->err = err;
    pd_status st = stream_contents(stream);
    pd_status closed = pd_file_close(s->file, st ? NULL : err);
    if (!st) st = closed;
    if (!st) summarise(s->w, stream->writer_rank, ret_summary);
    free_stream(stream);
    return st;
}

pd_status pd_shard_writer_verify_block(const struct pd_shard_writer *w, uint32_t box, uint64_t block, const void *data,
                                       uint64_t bytes, struct pd_error *err)
{
    const struct pd_shard_head *head = (const void *)w->table;
    const uint64_t *checksums = (const void *)(w->table + head->checksums_at);
    const struct pd_shard_box *b = &w->local[box];
    const struct pd_identity identity = {{head->run_id[0], head->run_id[1]}, head->lineage, head->step};
    const uint64_t seed = pd_shard_box_seed(&identity, w->name_digests[b->tensor], b->kind, &b->box);
    if (pd_shard_block_digest(seed, block, data, bytes) == checksums[w->places[box].first_block + block]) return PD_OK;
    PD_FAIL(err, PD_CORRUPT, "tensor %s, %s, block %llu of %llu (file offset %llu): the data does not match its checksum",
            w->tensors.tensors[b->tensor].name, pd_kind_name(b->kind), (unsigned long long)block,
            (unsigned long long)pd_shard_blocks_of(w->places[box].bytes),
            (unsigned long long)(w->places[box].offset + block * PD_SHARD_BLOCK_BYTES));
}
