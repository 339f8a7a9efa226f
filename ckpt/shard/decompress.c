/* Reads boxes in chunks. Caches the two chunks decompressed last, so that reading blocks in order decompresses each chunk
 * once.
 *
 *   invariants  1. nothing is decompressed before its digest was checked
 *               2. a mismatch is damage only if a second read mismatches too */
#include "ckpt/shard/decompress.h"

#include "ckpt/shard/open.h"
#include "ckpt/tensor/codec_zstd.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct pd_shard_grid *grid_of(const struct pd_shard *shard, uint32_t box)
{
    return &shard->contents.places[box].grid;
}

static const struct pd_shard_chunk_row *decompress_row_of(const struct pd_shard *shard, uint32_t box, uint64_t chunk)
{
    return &shard->contents.chunks[grid_of(shard, box)->first_chunk + chunk];
}

static void decompress_describe(const struct pd_shard *shard, uint32_t box, uint64_t number,
                                struct pd_shard_chunk *ret_chunk)
{
    const struct pd_shard_grid *grid = grid_of(shard, box);
    *ret_chunk = (struct pd_shard_chunk){.number = number, .whole_bytes = grid->chunk_bytes};
    ret_chunk->bytes = pd_shard_grid_range(grid, number, &ret_chunk->begin);
    ret_chunk->offset = pd_shard_chunk_extent(&shard->contents, box, number, &ret_chunk->page_bytes);
}

void pd_shard_chunk_at(const struct pd_shard *shard, uint32_t box, uint64_t at, struct pd_shard_chunk *ret_chunk)
{
    PD_CHECK(pd_shard_box_is_in_chunks(shard, box) && at < shard->contents.places[box].bytes);
    decompress_describe(shard, box, pd_shard_grid_find(grid_of(shard, box), at), ret_chunk);
}

struct pd_shard_codec pd_shard_codec_of(const struct pd_shard *shard)
{
    const struct pd_shard_head *head = (const void *)shard->table;
    const bool is_known = head->level >= PD_SHARD_LEVEL_MIN && head->level <= PD_SHARD_LEVEL_MAX;
    if (!pd_shard_is_compressed(shard)) return (struct pd_shard_codec){.codec = PD_CODEC_NONE};
    return (struct pd_shard_codec){.codec = PD_CODEC_ZSTD, .level = is_known ? (int)head->level : PD_SHARD_LEVEL_MIN};
}

/* ---- memory ---- */

struct pd_shard_decoder {
    struct pd_zstd *zstd;
    unsigned char *shuffled; /* (a chunk) borrowed */
};

pd_status pd_shard_decoder_new(void *scratch, struct pd_shard_decoder **ret_decoder, struct pd_error *err)
{
    struct pd_shard_decoder *decoder = calloc(1, sizeof *decoder);
    if (!decoder) PD_FAIL(err, PD_NO_MEMORY, "no memory to decompress");
    decoder->shuffled = scratch;
    pd_status st = pd_zstd_new(&decoder->zstd, err);
    if (st)
        pd_shard_decoder_free(decoder);
    else
        *ret_decoder = decoder;
    return st;
}

void pd_shard_decoder_free(struct pd_shard_decoder *decoder)
{
    if (!decoder) return;
    pd_zstd_free(decoder->zstd);
    free(decoder);
}

static void free_kept(struct pd_shard_kept_chunks *kept)
{
    if (!kept) return;
    pd_shard_decoder_free(kept->decoder);
    free(kept->stored);
    free(kept->shuffled);
    free(kept->kept[0].data);
    free(kept->kept[1].data);
    free(kept);
}

void pd_shard_forget(struct pd_shard *shard)
{
    free_kept(shard->chunks);
    shard->chunks = NULL;
}

static pd_status need_memory(struct pd_shard *shard, struct pd_error *err)
{
    if (shard->chunks) return PD_OK;
    struct pd_shard_kept_chunks *e = calloc(1, sizeof *e);
    if (!e) PD_FAIL(err, PD_NO_MEMORY, "no memory to decompress");
    e->stored = aligned_alloc(PD_VFS_ALIGN, PD_SHARD_CHUNK_MAX + PD_SHARD_PAGE_BYTES);
    e->shuffled = malloc(PD_SHARD_CHUNK_MAX);
    e->kept[0].data = malloc(PD_SHARD_CHUNK_MAX);
    e->kept[1].data = malloc(PD_SHARD_CHUNK_MAX);
    pd_status st = e->stored && e->shuffled && e->kept[0].data && e->kept[1].data
                       ? pd_shard_decoder_new(e->shuffled, &e->decoder, err)
                       : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory to decompress");
    if (st)
        free_kept(e);
    else
        shard->chunks = e;
    return st;
}

/* ---- chunks ---- */

static pd_status chunk_fail(const struct pd_shard *shard, uint32_t box, uint64_t chunk, const char *what,
                            struct pd_error *err)
{
    const struct pd_shard_box *b = &shard->contents.boxes[box];
    PD_FAIL(err, PD_CORRUPT, "shard %s: tensor %s, %s, chunk %" PRIu64 " of %" PRIu64 " (file offset %" PRIu64 "): %s",
            shard->path, shard->contents.tensors.tensors[b->tensor].name, pd_kind_name(b->kind), chunk,
            pd_shard_grid_count(grid_of(shard, box), shard->contents.places[box].bytes),
            decompress_row_of(shard, box, chunk)->offset, what);
}

/* Checks for zeros up to the end of the page, and in the last chunk of a run up to the end of the chunk. */
static pd_status check_fill(const struct pd_shard *shard, uint32_t box, const struct pd_shard_chunk *chunk,
                            const unsigned char *pages, const unsigned char *data, struct pd_error *err)
{
    const uint64_t stored = decompress_row_of(shard, box, chunk->number)->stored_bytes;
    if (!pd_shard_is_zero(pages + stored, chunk->page_bytes - stored))
        return chunk_fail(shard, box, chunk->number, "the padding behind the stored bytes is not zero", err);
    if (!pd_shard_is_zero(data + chunk->bytes, chunk->whole_bytes - chunk->bytes))
        return chunk_fail(shard, box, chunk->number, "the padding of the chunk is not zero", err);
    return PD_OK;
}

pd_status pd_shard_chunk_decode(const struct pd_shard *shard, uint32_t box, const struct pd_shard_chunk *chunk,
                                const void *pages, struct pd_shard_decoder *decoder, void *dst, struct pd_error *err)
{
    const struct pd_shard_chunk_row *row = decompress_row_of(shard, box, chunk->number);
    if (row->filter_mask) { /* stored unchanged: block checksums cover it */
        memcpy(dst, pages, chunk->whole_bytes);
        return check_fill(shard, box, chunk, pages, dst, err);
    }
    if (pd_shard_chunk_digest(shard->box_seeds[box], chunk->number, pages, row->stored_bytes) != row->digest)
        return chunk_fail(shard, box, chunk->number, "the stored bytes do not match their digest", err);
    struct pd_error cause;
    pd_status st =
        pd_zstd_decompress(decoder->zstd, decoder->shuffled, chunk->whole_bytes, pages, row->stored_bytes, &cause);
    if (st == PD_CORRUPT) return chunk_fail(shard, box, chunk->number, cause.message, err);
    if (st) PD_FAIL(err, st, "no memory to decompress");
    const struct pd_shard_box *b = &shard->contents.boxes[box];
    pd_byte_unshuffle(dst, decoder->shuffled, chunk->whole_bytes,
                      pd_tensor_element_bytes(&shard->contents.tensors.tensors[b->tensor], b->kind));
    return check_fill(shard, box, chunk, pages, dst, err);
}

pd_status pd_shard_chunk_take(struct pd_shard *shard, uint32_t box, uint64_t number, const void *pages, struct pd_error *err)
{
    PD_TRY(need_memory(shard, err));
    struct pd_shard_kept_chunks *e = shard->chunks;
    struct pd_shard_chunk chunk;
    const uint32_t place = 1 - e->newest;
    decompress_describe(shard, box, number, &chunk);
    e->kept[place].is_valid = false;
    PD_TRY(pd_shard_chunk_decode(shard, box, &chunk, pages, e->decoder, e->kept[place].data, err));
    e->kept[place].chunk = grid_of(shard, box)->first_chunk + number;
    e->kept[place].is_valid = true;
    e->newest = place;
    return PD_OK;
}

static const unsigned char *find_kept(const struct pd_shard *shard, uint32_t box, uint64_t chunk)
{
    const struct pd_shard_kept_chunks *e = shard->chunks;
    for (int k = 0; e && k < 2; k++)
        if (e->kept[k].is_valid && e->kept[k].chunk == grid_of(shard, box)->first_chunk + chunk) return e->kept[k].data;
    return NULL;
}

static pd_status need_chunk(struct pd_shard *shard, uint32_t box, uint64_t chunk, const unsigned char **ret_data,
                            struct pd_error *err)
{
    PD_TRY(need_memory(shard, err));
    uint64_t bytes = 0;
    const uint64_t offset = pd_shard_chunk_extent(&shard->contents, box, chunk, &bytes);
    pd_status st = find_kept(shard, box, chunk) ? PD_OK : PD_CORRUPT;
    for (int attempt = 0; attempt < 2 && st == PD_CORRUPT; attempt++) {
        PD_TRY(pd_file_read(shard->file, offset, shard->chunks->stored, bytes, err));
        st = pd_shard_chunk_take(shard, box, chunk, shard->chunks->stored, err);
    }
    if (!st) *ret_data = find_kept(shard, box, chunk);
    return st;
}

/* ---- blocks ---- */

/* Rarely more than one chunk, never more than a few, if chunks are small. */
static pd_status gather(struct pd_shard *shard, uint32_t box, uint64_t begin, uint64_t bytes, unsigned char *dst,
                        struct pd_error *err)
{
    const struct pd_shard_grid *grid = grid_of(shard, box);
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t chunk = pd_shard_grid_find(grid, begin + done);
        const unsigned char *data = NULL;
        uint64_t first = 0, piece = pd_shard_grid_range(grid, chunk, &first);
        PD_TRY(need_chunk(shard, box, chunk, &data, err));
        const uint64_t skip = begin + done - first;
        piece = piece - skip < bytes - done ? piece - skip : bytes - done;
        memcpy(dst + done, data + skip, piece);
        done += piece;
    }
    return PD_OK;
}

pd_status pd_shard_chunk_read_block(struct pd_shard *shard, uint32_t box, uint64_t block, void *dst, struct pd_error *err)
{
    const uint64_t bytes = pd_shard_block_length(shard->contents.places[box].bytes, block);
    pd_status st = PD_CORRUPT;
    for (int attempt = 0; attempt < 2 && st == PD_CORRUPT; attempt++) {
        if (attempt) shard->chunks->kept[0].is_valid = shard->chunks->kept[1].is_valid = false;
        PD_TRY(gather(shard, box, block * PD_SHARD_BLOCK_BYTES, bytes, dst, err));
        st = pd_shard_verify_block(shard, box, block, dst, err);
    }
    return st;
}
