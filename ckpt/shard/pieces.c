#include "ckpt/shard/pieces.h"

#include "ckpt/shard/open.h"

#include <string.h>

bool pd_shard_is_at_end(const struct pd_shard *shard, const struct pd_shard_cursor *cursor)
{
    return cursor->segment == shard->map.segment_count;
}

/* Segments follow each other without a gap. */
struct pd_shard_piece pd_shard_cut_piece(const struct pd_shard *shard, struct pd_shard_cursor *cursor, uint64_t bytes_max)
{
    struct pd_shard_piece piece = {.segment = cursor->segment, .at = cursor->at};
    if (pd_shard_is_at_end(shard, cursor)) return piece;
    piece.offset = shard->map.segments[piece.segment].offset + piece.at;
    while (!pd_shard_is_at_end(shard, cursor)) {
        const uint64_t left = shard->map.segments[cursor->segment].bytes - cursor->at, space = bytes_max - piece.bytes;
        const uint64_t take = left <= space ? left : space / PD_SHARD_BLOCK_BYTES * PD_SHARD_BLOCK_BYTES;
        piece.bytes += take;
        cursor->at += take;
        if (take < left) break;
        cursor->segment++;
        cursor->at = 0;
    }
    return piece;
}

/* Reads a block once more from the disk before reporting damage. The first read checked its padding. */
static pd_status verify_block(struct pd_shard *shard, uint32_t box, uint64_t block, unsigned char *data,
                              struct pd_error *err)
{
    const uint64_t bytes = pd_shard_block_length(shard->contents.places[box].bytes, block);
    if (pd_shard_verify_block(shard, box, block, data, NULL) == PD_OK) return PD_OK;
    PD_TRY(pd_shard_read_blocks(shard, box, block, 1, data, err));
    memset(data + bytes, 0, (PD_SHARD_PAGE_BYTES - bytes % PD_SHARD_PAGE_BYTES) % PD_SHARD_PAGE_BYTES);
    return PD_OK;
}

pd_status pd_shard_verify_piece(struct pd_shard *shard, const struct pd_shard_piece *piece, void *data, struct pd_error *err)
{
    uint64_t done = 0, at = piece->at;
    for (uint32_t i = piece->segment; done < piece->bytes; i++, at = 0) {
        const struct pd_shard_segment *segment = &shard->map.segments[i];
        while (at < segment->bytes && done < piece->bytes) {
            const uint64_t left = segment->bytes - at;
            const uint64_t bytes = left < PD_SHARD_BLOCK_BYTES ? left : PD_SHARD_BLOCK_BYTES;
            if (segment->type == PD_SEGMENT_BOX)
                PD_TRY(verify_block(shard, segment->box, at / PD_SHARD_BLOCK_BYTES, (unsigned char *)data + done, err));
            at += bytes;
            done += bytes;
        }
    }
    return PD_OK;
}

pd_status pd_shard_verify_part(const struct pd_shard *shard, uint64_t offset, const void *data, uint64_t begin, uint64_t end,
                               struct pd_error *err)
{
    const struct pd_shard_map *map = &shard->map;
    uint32_t first = 0;
    for (uint32_t last = map->segment_count; last - first > 1;) {
        const uint32_t middle = first + (last - first) / 2;
        *(map->segments[middle].offset <= begin ? &first : &last) = middle;
    }
    for (uint32_t i = first; i < map->segment_count && map->segments[i].offset < end; i++) {
        const struct pd_shard_segment *segment = &map->segments[i];
        if (segment->type != PD_SEGMENT_BOX) continue;
        uint64_t block = segment->offset < begin ? (begin - segment->offset) / PD_SHARD_BLOCK_BYTES : 0;
        for (uint64_t at; (at = block * PD_SHARD_BLOCK_BYTES) < segment->bytes; block++) {
            _Alignas(PD_VFS_ALIGN) unsigned char whole[PD_SHARD_BLOCK_BYTES];
            const uint64_t from = segment->offset + at, bytes = pd_shard_block_length(segment->bytes, block);
            if (from + bytes > end) return PD_OK;
            if (from < offset) PD_TRY(pd_file_read(shard->file, from, whole, bytes, err));
            PD_TRY(pd_shard_verify_block(shard, segment->box, block,
                                         from < offset ? whole : (const unsigned char *)data + (from - offset), err));
        }
    }
    return PD_OK;
}

pd_status pd_shard_verify_made(struct pd_shard *made, void *buffers, uint64_t buffer_bytes, struct pd_error *err)
{
    unsigned char data[PD_SHARD_PAGE_BYTES];
    for (uint32_t i = 0; i < made->map.small_count; i++)
        PD_TRY(pd_shard_read_blocks(made, made->map.small[i], 0, 1, data, err));
    return pd_shard_is_compressed(made) ? pd_shard_verify(made, buffers, buffer_bytes, err) : PD_OK;
}
