/* Reads single blocks, and closes shards. For bulk reading see scan.c here, and resharder/load across ranks.
 *
 *   invariants  1. a mismatch is damage only if a second read mismatches too
 *               2. reads are whole pages into aligned memory: the file is open for direct I/O */
#include "ckpt/base/checked.h"
#include "ckpt/shard/decompress.h"
#include "ckpt/shard/open.h"

#include <string.h>

/* Reads one block through the bounce buffer: the destination may be unaligned or too small for padding. */
static pd_status read_block(struct pd_shard *shard, uint32_t box, uint64_t block, void *dst, struct pd_error *err)
{
    const struct pd_shard_place *place = &shard->contents.places[box];
    uint64_t bytes = pd_shard_block_length(place->bytes, block);
    uint64_t begin = place->offset + block * PD_SHARD_BLOCK_BYTES, skip = begin % PD_SHARD_PAGE_BYTES;
    uint64_t span = pd_round_up(skip + bytes, PD_SHARD_PAGE_BYTES);
    pd_status status = PD_CORRUPT;
    for (int attempt = 0; attempt < 2 && status == PD_CORRUPT; attempt++) {
        PD_TRY(pd_file_read(shard->file, begin - skip, shard->bounce, span, err));
        status = pd_shard_verify_block(shard, box, block, shard->bounce + skip, err);
    }
    if (!status) memcpy(dst, shard->bounce + skip, bytes);
    return status;
}

pd_status pd_shard_read_blocks(struct pd_shard *shard, uint32_t box, uint64_t first_block, uint64_t block_count, void *dst,
                               struct pd_error *err)
{
    PD_CHECK(pd_checked_range(first_block, block_count, pd_shard_block_count(shard, box)));
    const bool is_in_chunks = pd_shard_box_is_in_chunks(shard, box);
    pd_status st = PD_OK;
    pd_owner_acquire(&shard->owner, "a reader of blocks");
    for (uint64_t b = 0; !st && b < block_count; b++) {
        char *to = (char *)dst + b * PD_SHARD_BLOCK_BYTES;
        st = is_in_chunks ? pd_shard_chunk_read_block(shard, box, first_block + b, to, err)
                          : read_block(shard, box, first_block + b, to, err);
    }
    pd_owner_release(&shard->owner, "a reader of blocks");
    return st;
}

void pd_shard_close(struct pd_shard *shard)
{
    if (!shard) return;
    pd_shard_forget(shard);
    pd_shard_release(shard);
}
