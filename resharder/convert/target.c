/* Shards as they come. A target fills a slot with box after box, as long as they follow each other in the file; blocks are
 * hashed where they are in a cache, before or after their copy, and full slots go to the disk.
 *
 *   invariants  1. boxes of a target are begun in file order, each finished before the next one
 *               2. a block lies in one slot
 *               3. a shard is finished when nothing of it is in flight */
#include "resharder/convert/rewrite.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/stream_copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOT_BYTES_MAX (UINT64_C(2) << 20)
#define SLOT_BYTES_MIN (2 * (uint64_t)PD_SHARD_BLOCK_BYTES)
#define SLOTS_A_TARGET 3u /* one that fills, others on their way */
#define BOX_BYTES 1536u   /* of a writer, a box: HDF5's pages, tables. Seen: 1.1 KiB */
#define CHUNK_BYTES 64u   /* of a chunk of a compressed box, besides. Seen: 56 */

uint64_t rewrite_target_bytes(const struct rewriter *r, const struct rewrite_target *t)
{
    uint64_t data = 0;
    for (uint32_t b = 0; b < t->box_count; b++)
        data += pd_box_elements(&t->boxes[b].box) *
                pd_tensor_element_bytes(&r->request->tensors->tensors[t->boxes[b].tensor], t->boxes[b].kind);
    const uint64_t chunks = r->compressor ? t->box_count + data / (PD_SHARD_CHUNK_MAX / 2) : 0;
    return t->box_count * (BOX_BYTES + sizeof *t->boxes) + chunks * CHUNK_BYTES +
           data / PD_SHARD_BLOCK_BYTES * sizeof(uint64_t) +
           r->request->tensors->count * (sizeof(struct pd_tensor) + sizeof(uint64_t));
}

static void release_target(struct rewrite_target *t)
{
    pd_shard_stream_abort(t->stream);
    pd_shard_writer_free(t->writer);
    free(t->boxes);
    *t = (struct rewrite_target){0};
}

void rewrite_release_targets(struct rewriter *r)
{
    for (uint32_t i = 0; i < r->group_count; i++)
        release_target(&r->targets[i]);
    r->group_count = 0;
}

/* ---- slots ---- */

void rewrite_cut_slots(struct rewriter *r, void *memory, uint64_t bytes)
{
    const uint32_t stage = pd_layout_world(r->request->layout) / r->request->layout->pp, /* that write at a time */
        active = stage < r->group_count ? stage : r->group_count;
    r->slot_bytes = bytes / SLOTS_A_TARGET / active / PD_SHARD_BLOCK_BYTES * PD_SHARD_BLOCK_BYTES;
    if (r->slot_bytes < SLOT_BYTES_MIN) r->slot_bytes = SLOT_BYTES_MIN;
    if (r->slot_bytes > SLOT_BYTES_MAX) r->slot_bytes = SLOT_BYTES_MAX;
    r->slot_count = (uint32_t)pd_min_u64(bytes / r->slot_bytes, REWRITE_SLOTS_MAX);
    for (uint32_t i = 0; i < r->slot_count; i++)
        r->slots[i] = (struct rewrite_slot){.data = (unsigned char *)memory + i * r->slot_bytes};
}

/* ---- begin and end ---- */

pd_status rewrite_plan(struct rewriter *r, struct rewrite_target *t, struct pd_error *err)
{
    const struct pd_import_request *q = r->request;
    const uint32_t shard = r->group_begin + (uint32_t)(t - r->targets);
    char path[4096 + 32];
    PD_TRY(pd_shard_writer_new(r->vfs, q->tensors, t->boxes, t->box_count, q->buffers, REWRITE_STAGING_BYTES, &q->codec,
                               &t->writer, err));
    snprintf(path, sizeof path, "%s/shard-%05u.h5", r->directory, shard);
    return pd_shard_stream_begin(t->writer, path, &q->state->identity, shard, &t->stream, err);
}

static pd_status finish_when_idle(struct rewriter *r, struct rewrite_target *t, struct pd_error *err)
{
    struct pd_shard_stream *stream = t->stream;
    if (t->in_flight || !t->is_written || !stream) return PD_OK;
    t->stream = NULL;
    PD_TRY(pd_shard_stream_finish(stream, &r->summaries[r->group_begin + (uint32_t)(t - r->targets)], err));
    pd_shard_writer_free(t->writer);
    t->writer = NULL;
    pd_fault_point("rewrite.shard.finished");
    return PD_OK;
}

pd_status rewrite_reap(struct rewriter *r, struct pd_error *err)
{
    struct pd_transfer_slot *done = NULL;
    PD_TRY(pd_transfer_ring_next(&r->ring, &done, err));
    PD_CHECK(done);
    pd_transfer_ring_release(&r->ring, done);
    struct rewrite_slot *slot = r->sent[done->number];
    struct rewrite_target *t = slot->target;
    slot->in_flight = false;
    pd_owner_release(&slot->owner, "queue");
    slot->target = NULL;
    r->writes_in_flight--;
    t->in_flight--;
    PD_TRY(pd_transfer_error(&done->transfer, err));
    return finish_when_idle(r, t, err);
}

static pd_status write_slot(struct rewriter *r, struct rewrite_target *t, struct pd_error *err)
{
    struct rewrite_slot *slot = t->filling;
    if (!slot) return PD_OK;
    const uint64_t bytes = t->filled, begin = t->begin;
    t->filling = NULL;
    t->filled = t->hashed = 0;
    pd_owner_release(&slot->owner, "target");
    if (!bytes) {
        slot->target = NULL;
        return PD_OK;
    }
    r->report.bytes_written += bytes;
    struct pd_file *file = pd_shard_stream_file(t->stream);
    const struct pd_transfer transfer = {
        .file = file, .data = slot->data, .offset = begin, .bytes = bytes, .is_write = true};
    struct pd_transfer_slot *sent = pd_transfer_ring_take(&r->ring);
    PD_CHECK(sent);
    pd_owner_acquire(&slot->owner, "queue");
    r->sent[sent->number] = slot;
    slot->in_flight = true;
    slot->target->in_flight++;
    r->writes_in_flight++;
    return pd_transfer_ring_submit(&r->ring, sent, &transfer, err);
}

/* Some shard that is not being written to just now gives up its slot, in whole pages of whole boxes. */
static pd_status write_somebody(struct rewriter *r, const struct rewrite_target *but, struct pd_error *err)
{
    for (uint32_t i = 0; i < r->group_count; i++) {
        struct rewrite_target *t = &r->targets[i];
        if (t == but || !t->filling || t->hashed < t->filled || t->filled % PD_VFS_ALIGN) continue;
        PD_TRY(write_slot(r, t, err));
    }
    return PD_OK;
}

static pd_status take_slot(struct rewriter *r, struct rewrite_target *t, struct pd_error *err)
{
    if (t->filling) return PD_OK;
    while (!t->filling) {
        for (uint32_t i = 0; i < r->slot_count && !t->filling; i++)
            if (!r->slots[i].in_flight && !r->slots[i].target) t->filling = &r->slots[i];
        if (t->filling) break;
        if (!r->writes_in_flight) PD_TRY(write_somebody(r, t, err));
        PD_TRY(rewrite_reap(r, err));
    }
    t->filling->target = t;
    pd_owner_acquire(&t->filling->owner, "target");
    return PD_OK;
}

/* ---- data ---- */

/* A slot with room for the block that begins at `at` of the file. */
static pd_status begin_block(struct rewriter *r, struct rewrite_target *t, uint64_t at, uint64_t bytes, struct pd_error *err)
{
    const bool follows =
        t->filling && t->begin + t->filled == at && t->filled + pd_round_up(bytes, PD_VFS_ALIGN) <= r->slot_bytes;
    if (follows) return PD_OK;
    PD_TRY(write_slot(r, t, err));
    PD_TRY(take_slot(r, t, err));
    t->begin = at;
    return PD_OK;
}

/* `data`: the whole block, wherever it is in a cache. */
static void end_block(struct rewrite_target *t, uint32_t box, uint64_t block, const void *data, uint64_t bytes)
{
    const uint64_t padding = pd_round_up(bytes, PD_VFS_ALIGN) - bytes;
    pd_shard_stream_block(t->stream, box, block, data, bytes);
    memset(t->filling->data + t->filled, 0, padding); /* bytes that are no whole pages end a box */
    t->filled += padding;
    t->hashed = t->filled;
}

pd_status rewrite_append(struct rewriter *r, struct rewrite_target *t, uint64_t offset, uint64_t box_bytes,
                         const unsigned char *data, uint64_t bytes, struct pd_error *err)
{
    const uint32_t box = t->next - 1;
    if (box_bytes < PD_VFS_ALIGN) {
        /* A box of less than a page: the stream keeps it. */
        memcpy(t->small + offset, data, bytes);
        if (offset + bytes == box_bytes) pd_shard_stream_block(t->stream, t->next - 1, 0, t->small, box_bytes);
        return PD_OK;
    }
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t block = (offset + done) / PD_SHARD_BLOCK_BYTES, begin = block * PD_SHARD_BLOCK_BYTES,
                       block_bytes = pd_min_u64(box_bytes - begin, PD_SHARD_BLOCK_BYTES), have = offset + done - begin,
                       piece = pd_min_u64(block_bytes - have, bytes - done);
        if (have == 0) PD_TRY(begin_block(r, t, pd_shard_writer_box_offset(t->writer, box) + begin, block_bytes, err));
        unsigned char *to = t->filling->data + t->filled;
        const bool is_whole = piece == block_bytes;
        if (is_whole)
            pd_stream_copy(to, data + done, piece);
        else
            memcpy(to, data + done, piece);
        t->filled += piece;
        if (have + piece == block_bytes)
            end_block(t, box, block, is_whole ? data + done : to + piece - block_bytes, block_bytes);
        done += piece;
    }
    return t->filled == r->slot_bytes ? write_slot(r, t, err) : PD_OK;
}

pd_status rewrite_stage(struct rewriter *r, struct rewrite_target *t, uint64_t at, const unsigned char *data, uint64_t bytes,
                        struct pd_error *err)
{
    const uint64_t pages = pd_round_up(bytes, PD_VFS_ALIGN);
    for (uint64_t done = 0; done < pages;) {
        if (!t->filling || t->filled == r->slot_bytes || t->begin + t->filled != at + done) {
            PD_TRY(write_slot(r, t, err));
            PD_TRY(take_slot(r, t, err));
            t->begin = at + done;
        }
        const uint64_t piece = pd_min_u64(pages - done, r->slot_bytes - t->filled),
                       real = bytes > done ? pd_min_u64(bytes - done, piece) : 0;
        pd_stream_copy(t->filling->data + t->filled, data + done, real);
        memset(t->filling->data + t->filled + real, 0, piece - real);
        t->filled += piece;
        t->hashed = t->filled;
        done += piece;
    }
    return t->filled == r->slot_bytes ? write_slot(r, t, err) : PD_OK;
}

pd_status rewrite_complete(struct rewriter *r, struct rewrite_target *t, struct pd_error *err)
{
    t->is_written = true;
    PD_TRY(write_slot(r, t, err));
    return finish_when_idle(r, t, err);
}
