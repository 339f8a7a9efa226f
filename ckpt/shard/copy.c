/* Copies the file in pieces (pieces.h), several in flight:
 *
 *   free --read--> arrived, verified --write--> free
 *
 *   invariants  1. nothing is written unverified, except pages that the file's own tables cover: those are verified in the
 *                  new file
 *               2. nothing is in flight when the copy returns, even after a failure */
#include "ckpt/shard/copy.h"

#include "ckpt/base/clock.h"
#include "ckpt/io/transfer_ring.h"
#include "ckpt/shard/open.h"
#include "ckpt/shard/pieces.h"

#include <string.h>

#define SLOTS 8u
#define SLOT_BYTES_MIN (2u * PD_SHARD_BLOCK_BYTES)

struct copy {
    const struct pd_shard_copy *request;
    struct pd_shard *source;
    struct pd_file *target;
    struct pd_queue *queue;
    struct pd_transfer_slot slots[SLOTS];
    struct pd_transfer_ring ring;
    struct pd_shard_piece pieces[SLOTS]; /* (slot number) piece in each slot */
    uint64_t slot_bytes;
    struct pd_shard_cursor cursor; /* next to read */
    uint64_t start_ns, begun_bytes;
    struct pd_error *err;
};

/* ---- moving ---- */

static pd_status wait_for_turn(struct copy *c)
{
    if (!pd_clock_pace(c->start_ns, c->begun_bytes, c->request->bytes_per_second, c->request->stop))
        PD_FAIL(c->err, PD_STOPPED, "copying %s was given up", c->request->from);
    return PD_OK;
}

static pd_status start_read(struct copy *c, struct pd_transfer_slot *slot)
{
    struct pd_shard_piece *piece = &c->pieces[slot->number];
    *piece = pd_shard_cut_piece(c->source, &c->cursor, c->slot_bytes);
    c->begun_bytes += piece->bytes;
    const struct pd_transfer transfer = {
        .file = c->source->file, .offset = piece->offset, .bytes = piece->bytes, .what = "read of a copy between tiers"};
    return pd_transfer_ring_submit(&c->ring, slot, &transfer, c->err);
}

/* Verifies a piece that was read and writes it. */
static pd_status start_write(struct copy *c, struct pd_transfer_slot *slot)
{
    const struct pd_shard_piece *piece = &c->pieces[slot->number];
    PD_TRY(pd_shard_verify_piece(c->source, piece, slot->buffer, c->err));
    const struct pd_transfer transfer = {.file = c->target,
                                         .offset = piece->offset,
                                         .bytes = piece->bytes,
                                         .is_write = true,
                                         .what = "write of a copy between tiers"};
    return pd_transfer_ring_submit(&c->ring, slot, &transfer, c->err);
}

/* ret_slot NULL: nothing was in flight. */
static pd_status finish_one(struct copy *c, struct pd_transfer_slot **ret_slot)
{
    PD_TRY(pd_transfer_ring_next(&c->ring, ret_slot, c->err));
    if (!*ret_slot) return PD_OK;
    PD_TRY(pd_transfer_error(&(*ret_slot)->transfer, c->err));
    if (!(*ret_slot)->transfer.is_write) return start_write(c, *ret_slot);
    pd_transfer_ring_release(&c->ring, *ret_slot);
    return PD_OK;
}

static pd_status move_all(struct copy *c)
{
    struct pd_transfer_slot *slot = NULL;
    do {
        while (!pd_shard_is_at_end(c->source, &c->cursor)) {
            slot = pd_transfer_ring_take(&c->ring);
            if (!slot) break;
            PD_TRY(wait_for_turn(c));
            PD_TRY(start_read(c, slot));
        }
        PD_TRY(finish_one(c, &slot));
    } while (slot || !pd_shard_is_at_end(c->source, &c->cursor));
    return wait_for_turn(c); /* the cap applies to files of one piece too */
}

static pd_status fill_target(struct copy *c)
{
    const uint64_t bytes = c->source->file_bytes;
    struct pd_stat stat;
    pd_status st = pd_file_preallocate(c->target, bytes, c->err);
    if (st != PD_UNSUPPORTED) PD_TRY(st);
    PD_TRY(pd_queue_open(c->source->vfs, c->request->buffers, c->request->buffer_bytes, &c->queue, c->err));
    const struct pd_shard_copy *r = c->request;
    PD_CHECK((uintptr_t)r->buffers % PD_VFS_ALIGN == 0 && r->buffer_bytes >= SLOTS * SLOT_BYTES_MIN);
    c->slot_bytes = r->buffer_bytes / SLOTS / PD_SHARD_BLOCK_BYTES * PD_SHARD_BLOCK_BYTES;
    pd_transfer_ring_init(&c->ring, c->queue, c->slots, SLOTS, r->buffers, c->slot_bytes);
    c->start_ns = pd_clock_monotonic_ns(NULL);
    st = pd_transfer_ring_drain(&c->ring, move_all(c), c->err);
    pd_queue_close(c->queue);
    PD_TRY(st);
    PD_TRY(pd_file_stat(c->target, &stat, c->err));
    if (stat.bytes != bytes) PD_TRY(pd_file_truncate(c->target, bytes, c->err));
    return pd_file_sync(c->target, c->err);
}

/* ---- the new file ---- */

/* Verifies everything that no block checksum covered during the copy. */
static pd_status verify_made(const struct copy *c, struct pd_shard *made, struct pd_error *err)
{
    if (memcmp(&made->trailer, &c->source->trailer, sizeof made->trailer) != 0)
        PD_FAIL(err, PD_CORRUPT, "it has another table than %s", c->request->from);
    return pd_shard_verify_made(made, c->request->buffers, c->request->buffer_bytes, err);
}

static pd_status verify_target(const struct copy *c)
{
    const struct pd_shard_copy *r = c->request;
    struct pd_shard *made = NULL;
    struct pd_error own = {0};
    pd_status st = pd_shard_open(c->source->vfs, r->to, r->identity, r->expect, &made, &own);
    if (!st) st = verify_made(c, made, &own);
    pd_shard_close(made);
    if (!st) return PD_OK;
    if (st == PD_CORRUPT && pd_shard_is_compressed(c->source))
        PD_TRY(pd_shard_verify(c->source, r->buffers, r->buffer_bytes, c->err));
    if (st == PD_CORRUPT) PD_FAIL(c->err, PD_IO, "%s reads back different from what was written: %s", r->to, own.message);
    return pd_error_pass(c->err, st, &own);
}

pd_status pd_shard_copy_with(struct pd_vfs *vfs, const struct pd_shard_copy *request, struct pd_error *err)
{
    struct copy c = {.request = request, .err = err};
    PD_TRY(pd_shard_open(vfs, request->from, request->identity, request->expect, &c.source, err));
    pd_status st = pd_file_open(vfs, request->to, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_DIRECT, &c.target, err);
    if (!st) {
        st = fill_target(&c);
        pd_status closed = pd_file_close(c.target, st ? NULL : err);
        if (!st) st = closed;
    }
    if (!st) st = verify_target(&c);
    pd_shard_close(c.source);
    return st;
}

pd_status pd_shard_copy(struct pd_vfs *vfs, const char *from, const char *to, const struct pd_identity *identity,
                        void *buffers, uint64_t buffer_bytes, struct pd_error *err)
{
    const struct pd_shard_copy request = {
        .from = from, .to = to, .identity = identity, .buffers = buffers, .buffer_bytes = buffer_bytes};
    return pd_shard_copy_with(vfs, &request, err);
}
