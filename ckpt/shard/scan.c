/* One pass over all data of a shard: reads of a MiB or more are in flight while arrived blocks are verified and visited.
 *
 * Pieces are read and visited in file order, so the blocks of a box come in ascending order. A piece is a run of blocks
 * or, in compressed shards, a chunk: then the blocks that end in it are visited. */
#include "ckpt/base/checked.h"
#include "ckpt/io/transfer_ring.h"
#include "ckpt/shard/open.h"

#define SLOTS_MAX 32u
#define SLOT_BYTES_MAX (4u << 20)

struct piece {
    struct pd_transfer_slot *slot;
    uint32_t box;
    bool is_chunk;
    uint64_t first_block, bytes; /* of data; the transfer is whole pages */
    uint64_t chunk;              /* of the box, when is_chunk */
};

struct scan {
    struct pd_shard *shard;
    const struct pd_shard_visitor *visitor;
    struct pd_queue *queue;
    struct pd_transfer_slot slots[SLOTS_MAX];
    struct pd_transfer_ring ring;
    uint64_t slot_bytes;
    struct piece pieces[SLOTS_MAX]; /* (count) in flight, a ring from `oldest` on */
    uint32_t oldest, count;
    struct pd_error *err;
};

/* Visits a block at `data`. Reads it first unless it is there and verified. */
static pd_status visit_block(struct scan *s, uint32_t box, uint64_t block, unsigned char *data, bool is_there)
{
    const uint64_t bytes = pd_shard_block_length(s->shard->contents.places[box].bytes, block);
    struct pd_error damage;
    pd_status st = is_there ? PD_OK : pd_shard_read_blocks(s->shard, box, block, 1, data, &damage);
    if (st && st != PD_CORRUPT) return pd_error_pass(s->err, st, &damage);
    return s->visitor->block(s->visitor->context, box, block, data, bytes, st, st ? &damage : NULL, s->err);
}

/* A damaged chunk is not cached: reading its blocks reads it again and reports the damage. */
static pd_status visit_chunk(struct scan *s, const struct piece *piece)
{
    const struct pd_shard_place *place = &s->shard->contents.places[piece->box];
    uint64_t begin = 0, end = pd_shard_grid_range(&place->grid, piece->chunk, &begin);
    end += begin;
    pd_status st = pd_shard_chunk_take(s->shard, piece->box, piece->chunk, piece->slot->buffer, NULL);
    if (st && st != PD_CORRUPT) PD_FAIL(s->err, st, "no memory to decompress");
    for (uint64_t block = begin / PD_SHARD_BLOCK_BYTES; block * PD_SHARD_BLOCK_BYTES < end; block++) {
        const uint64_t bytes = pd_shard_block_length(place->bytes, block);
        if (block * PD_SHARD_BLOCK_BYTES + bytes > end) break; /* its rest is in the next chunk */
        _Alignas(64) unsigned char data[PD_SHARD_BLOCK_BYTES];
        PD_TRY(visit_block(s, piece->box, block, data, false));
    }
    return PD_OK;
}

static pd_status visit_piece(struct scan *s, struct piece *piece)
{
    if (piece->is_chunk) return visit_chunk(s, piece);
    uint64_t block = piece->first_block;
    for (uint64_t at = 0; at < piece->bytes; at += PD_SHARD_BLOCK_BYTES, block++) {
        unsigned char *data = piece->slot->buffer + at;
        const bool is_good = pd_shard_verify_block(s->shard, piece->box, block, data, NULL) == PD_OK;
        PD_TRY(visit_block(s, piece->box, block, data, is_good));
    }
    return PD_OK;
}

/* Waits for the oldest piece and visits it. */
static pd_status finish_oldest(struct scan *s)
{
    struct piece *piece = &s->pieces[s->oldest];
    PD_TRY(pd_transfer_ring_wait(&s->ring, piece->slot, s->err));
    PD_TRY(pd_transfer_error(&piece->slot->transfer, s->err));
    PD_TRY(visit_piece(s, piece));
    pd_transfer_ring_release(&s->ring, piece->slot);
    s->oldest = (s->oldest + 1) % SLOTS_MAX;
    s->count--;
    return PD_OK;
}

/* Reads `bytes` at `offset` of the file, in whole pages. */
static pd_status scan_start(struct scan *s, struct piece piece, uint64_t offset, uint64_t bytes)
{
    piece.slot = pd_transfer_ring_take(&s->ring);
    if (!piece.slot) {
        PD_TRY(finish_oldest(s));
        piece.slot = pd_transfer_ring_take(&s->ring);
    }
    s->pieces[(s->oldest + s->count++) % SLOTS_MAX] = piece;
    const struct pd_transfer transfer = {.file = s->shard->file,
                                         .offset = offset,
                                         .bytes = pd_round_up(bytes, PD_SHARD_PAGE_BYTES),
                                         .what = "read to verify"};
    return pd_transfer_ring_submit(&s->ring, piece.slot, &transfer, s->err);
}

static pd_status start_piece(struct scan *s, uint32_t box, uint64_t at, uint64_t bytes)
{
    const struct piece piece = {.box = box, .first_block = at / PD_SHARD_BLOCK_BYTES, .bytes = bytes};
    return scan_start(s, piece, s->shard->contents.places[box].offset + at, bytes);
}

static pd_status scan_large(struct scan *s)
{
    for (uint32_t i = 0; i < s->shard->map.segment_count; i++) {
        const struct pd_shard_segment *segment = &s->shard->map.segments[i];
        if (segment->type != PD_SEGMENT_BOX) continue;
        uint64_t total = s->shard->contents.places[segment->box].bytes;
        for (uint64_t at = 0; at < total; at += s->slot_bytes)
            PD_TRY(start_piece(s, segment->box, at, total - at < s->slot_bytes ? total - at : s->slot_bytes));
    }
    for (uint32_t b = 0; b < s->shard->contents.box_count; b++) {
        const struct pd_shard_place *place = &s->shard->contents.places[b];
        if (!place->grid.chunk_bytes) continue;
        const uint64_t count = pd_shard_grid_count(&place->grid, place->bytes);
        for (uint64_t c = 0; c < count; c++) {
            uint64_t bytes = 0;
            const uint64_t offset = pd_shard_chunk_extent(&s->shard->contents, b, c, &bytes);
            PD_TRY(scan_start(s, (struct piece){.box = b, .is_chunk = true, .chunk = c}, offset, bytes));
        }
    }
    while (s->count)
        PD_TRY(finish_oldest(s));
    return PD_OK;
}

/* Reads boxes under a page, one read each. */
static pd_status scan_small(struct scan *s)
{
    for (uint32_t i = 0; i < s->shard->map.small_count; i++) {
        unsigned char data[PD_SHARD_PAGE_BYTES] = {0};
        PD_TRY(visit_block(s, s->shard->map.small[i], 0, data, false));
    }
    return PD_OK;
}

static void cut_slots(struct scan *s, unsigned char *buffers, uint64_t buffer_bytes)
{
    uint64_t bytes = buffer_bytes / 8 / PD_SHARD_BLOCK_BYTES * PD_SHARD_BLOCK_BYTES;
    if (bytes > SLOT_BYTES_MAX) bytes = SLOT_BYTES_MAX;
    if (s->shard->contents.chunk_count && bytes < PD_SHARD_CHUNK_MAX) bytes = PD_SHARD_CHUNK_MAX;
    PD_CHECK(bytes >= PD_SHARD_BLOCK_BYTES && (uintptr_t)buffers % PD_VFS_ALIGN == 0);
    const uint64_t count = buffer_bytes / bytes;
    s->slot_bytes = bytes;
    pd_transfer_ring_init(&s->ring, s->queue, s->slots, count < SLOTS_MAX ? (uint32_t)count : SLOTS_MAX, buffers, bytes);
}

pd_status pd_shard_scan(struct pd_shard *shard, void *buffers, uint64_t buffer_bytes, const struct pd_shard_visitor *visitor,
                        struct pd_error *err)
{
    struct scan s = {.shard = shard, .visitor = visitor, .err = err};
    PD_TRY(pd_queue_open(shard->vfs, buffers, buffer_bytes, &s.queue, err));
    cut_slots(&s, buffers, buffer_bytes);
    pd_status st = scan_large(&s);
    st = pd_transfer_ring_drain(&s.ring, st, err);
    pd_queue_close(s.queue);
    if (!st) st = scan_small(&s);
    return st;
}

/* ---- verify ---- */

static pd_status fail_on_damage(void *context, uint32_t box, uint64_t block, const void *data, uint64_t bytes,
                                pd_status verified, const struct pd_error *damage, struct pd_error *err)
{
    (void)context, (void)box, (void)block, (void)data, (void)bytes;
    return pd_error_pass(err, verified, damage);
}

pd_status pd_shard_verify(struct pd_shard *shard, void *buffers, uint64_t buffer_bytes, struct pd_error *err)
{
    static const struct pd_shard_visitor visitor = {NULL, fail_on_damage};
    pd_status st = pd_shard_verify_rest(shard, err);
    if (st) return pd_error_context(err, st, "shard %s", shard->path);
    return pd_shard_scan(shard, buffers, buffer_bytes, &visitor, err);
}
