/* Checks the file against the shard's table: blocks that a caller has read, and the rest.
 *
 *   invariant   a mismatch is damage only if a second read mismatches too: the caller rereads a block, this file the rest */
#include "ckpt/shard/open.h"

#include "ckpt/base/digest.h"

#include <inttypes.h>
#include <string.h>

#define REST_PIECES 64u /* read at once */

/* ---- blocks ---- */

bool pd_shard_is_zero(const unsigned char *data, uint64_t bytes)
{
    return !bytes || (!data[0] && !memcmp(data, data + 1, bytes - 1));
}

pd_status pd_shard_block_fail(const struct pd_shard *shard, uint32_t box, uint64_t block, const char *what,
                              struct pd_error *err)
{
    const struct pd_shard_box *b = &shard->contents.boxes[box];
    const struct pd_shard_place *place = &shard->contents.places[box];
    const struct pd_shard_grid *grid = &place->grid;
    uint64_t at = place->offset + block * PD_SHARD_BLOCK_BYTES, bytes = 0;
    if (grid->chunk_bytes)
        at = pd_shard_chunk_extent(&shard->contents, box, pd_shard_grid_find(grid, block * PD_SHARD_BLOCK_BYTES), &bytes);
    PD_FAIL(err, PD_CORRUPT, "shard %s: tensor %s, %s, block %" PRIu64 " of %" PRIu64 " (file offset %" PRIu64 "): %s",
            shard->path, shard->contents.tensors.tensors[b->tensor].name, pd_kind_name(b->kind), block,
            pd_shard_blocks_of(place->bytes), at, what);
}

pd_status pd_shard_verify_block(const struct pd_shard *shard, uint32_t box, uint64_t block, const void *data,
                                struct pd_error *err)
{
    PD_CHECK(box < shard->contents.box_count);
    const struct pd_shard_place *place = &shard->contents.places[box];
    PD_CHECK(block < pd_shard_blocks_of(place->bytes));
    uint64_t bytes = pd_shard_block_length(place->bytes, block);
    uint64_t digest = pd_shard_block_digest(shard->box_seeds[box], block, data, bytes);
    if (digest != shard->checksums[place->first_block + block])
        return pd_shard_block_fail(shard, box, block, "the data does not match its checksum", err);
    if (place->grid.chunk_bytes || place->bytes < PD_SHARD_PAGE_BYTES || bytes % PD_SHARD_PAGE_BYTES == 0) return PD_OK;
    if (!pd_shard_is_zero((const unsigned char *)data + bytes, PD_SHARD_PAGE_BYTES - bytes % PD_SHARD_PAGE_BYTES))
        return pd_shard_block_fail(shard, box, block, "the padding behind the data is not zero", err);
    return PD_OK;
}

/* ---- rest ---- */

/* Pieces of the rest, back to back in the bounce buffer. There are as many as HDF5 put pages between boxes; reading them
 * one at a time would cost more than everything else in opening a shard. */
struct rest_batch {
    struct pd_queue *queue;
    struct pd_transfer transfers[REST_PIECES];
    uint32_t count;
    uint64_t bytes;
    struct pd_digest_stream digest;
};

static pd_status read_batch(struct rest_batch *b, struct pd_error *err)
{
    struct pd_transfer *transfers[REST_PIECES];
    for (uint32_t i = 0; i < b->count; i++)
        transfers[i] = &b->transfers[i];
    pd_status st = pd_queue_submit(b->queue, transfers, b->count, err);
    for (uint32_t reaped = 1; reaped;) { /* reap everything that was submitted first */
        struct pd_transfer *done[REST_PIECES];
        PD_TRY(pd_queue_reap(b->queue, done, REST_PIECES, &reaped, st ? NULL : err));
        for (uint32_t i = 0; i < reaped; i++) {
            pd_status one = pd_transfer_error(done[i], st ? NULL : err);
            if (!st) st = one;
        }
    }
    return st;
}

static pd_status digest_batch(struct pd_shard *shard, struct rest_batch *b, struct pd_error *err)
{
    PD_TRY(read_batch(b, err));
    for (uint32_t i = 0; i < b->count; i++) {
        const struct pd_transfer *t = &b->transfers[i];
        pd_shard_map_mask(&shard->map, shard->contents.places, t->offset, t->data, t->bytes);
        pd_digest_stream_add(&b->digest, t->data, t->bytes);
    }
    b->count = 0;
    b->bytes = 0;
    return PD_OK;
}

static pd_status add_rest(struct pd_shard *shard, struct rest_batch *b, uint64_t offset, uint64_t bytes,
                          struct pd_error *err)
{
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t left = bytes - done, space = PD_SHARD_BOUNCE_BYTES - b->bytes, piece = left < space ? left : space;
        b->transfers[b->count++] = (struct pd_transfer){.file = shard->file,
                                                        .data = shard->bounce + b->bytes,
                                                        .offset = offset + done,
                                                        .bytes = piece,
                                                        .what = "read to verify"};
        b->bytes += piece;
        done += piece;
        if (b->count == REST_PIECES || b->bytes == PD_SHARD_BOUNCE_BYTES) PD_TRY(digest_batch(shard, b, err));
    }
    return PD_OK;
}

static pd_status digest_rest(struct pd_shard *shard, struct pd_queue *queue, uint64_t *ret_digest, struct pd_error *err)
{
    struct rest_batch batch = {.queue = queue};
    pd_digest_stream_init(&batch.digest, pd_shard_table_seed(&shard->identity));
    for (uint32_t i = 0; i < shard->map.segment_count; i++) {
        const struct pd_shard_segment *segment = &shard->map.segments[i];
        if (segment->type == PD_SEGMENT_REST) PD_TRY(add_rest(shard, &batch, segment->offset, segment->bytes, err));
    }
    PD_TRY(digest_batch(shard, &batch, err));
    *ret_digest = pd_digest_stream_value(&batch.digest);
    return PD_OK;
}

pd_status pd_shard_verify_rest(struct pd_shard *shard, struct pd_error *err)
{
    const struct pd_shard_head *head = (const void *)shard->table;
    struct pd_queue *queue = NULL;
    uint64_t digest = ~head->rest_digest;
    PD_TRY(pd_queue_open(shard->vfs, NULL, 0, &queue, err));
    pd_status st = PD_OK;
    for (int attempt = 0; !st && digest != head->rest_digest && attempt < 2; attempt++)
        st = digest_rest(shard, queue, &digest, err);
    pd_queue_close(queue);
    PD_TRY(st);
    if (digest == head->rest_digest) return PD_OK;
    PD_FAIL(err, PD_CORRUPT, "the HDF5 metadata does not match its digest");
}
