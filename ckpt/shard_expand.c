/* Reading boxes that lie in chunks. The two chunks read last are kept decompressed, so that blocks in order cost each chunk
 * once.
 *
 *   invariants  1. nothing reaches the decompressor before its digest was checked
 *               2. a mismatch is damage only when a second read mismatches too */
#include "ckpt/codec_zstd.h"
#include "ckpt/shard_open.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct pd_shard_grid *grid_of(const struct pd_shard *shard, uint32_t box)
{
    return &shard->contents.places[box].grid;
}

static const struct pd_shard_chunk_row *row_of(const struct pd_shard *shard, uint32_t box, uint64_t chunk)
{
    return &shard->contents.chunks[grid_of(shard, box)->first_chunk + chunk];
}

uint64_t pd_shard_chunk_extent(const struct pd_shard *shard, uint32_t box, uint64_t chunk, uint64_t *ret_bytes)
{
    const struct pd_shard_chunk_row *row = row_of(shard, box, chunk);
    *ret_bytes = (row->stored_bytes + PD_SHARD_PAGE_BYTES - 1) / PD_SHARD_PAGE_BYTES * PD_SHARD_PAGE_BYTES;
    return row->offset;
}

/* ---- memory ---- */

void pd_shard_expander_free(struct pd_shard_expander *expander)
{
    if (!expander) return;
    pd_zstd_free(expander->zstd);
    free(expander->stored);
    free(expander->shuffled);
    free(expander->kept[0].data);
    free(expander->kept[1].data);
    free(expander);
}

static pd_status need_expander(struct pd_shard *shard, struct pd_error *err)
{
    if (shard->expander) return PD_OK;
    struct pd_shard_expander *e = calloc(1, sizeof *e);
    if (!e) PD_FAIL(err, PD_NO_MEMORY, "no memory to decompress");
    e->stored = aligned_alloc(PD_DOOR_ALIGN, PD_SHARD_CHUNK_MAX + PD_SHARD_PAGE_BYTES);
    e->shuffled = malloc(PD_SHARD_CHUNK_MAX);
    e->kept[0].data = malloc(PD_SHARD_CHUNK_MAX);
    e->kept[1].data = malloc(PD_SHARD_CHUNK_MAX);
    pd_status st = e->stored && e->shuffled && e->kept[0].data && e->kept[1].data
                       ? pd_zstd_new(&e->zstd, err)
                       : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory to decompress");
    if (st)
        pd_shard_expander_free(e);
    else
        shard->expander = e;
    return st;
}

/* ---- chunks ---- */

static bool is_zero(const unsigned char *data, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (data[i]) return false;
    return true;
}

static pd_status chunk_fail(const struct pd_shard *shard, uint32_t box, uint64_t chunk, const char *what,
                            struct pd_error *err)
{
    const struct pd_shard_box *b = &shard->contents.boxes[box];
    PD_FAIL(err, PD_CORRUPT, "shard %s: tensor %s, %s, chunk %" PRIu64 " of %" PRIu64 " (file offset %" PRIu64 "): %s",
            shard->path, shard->contents.tensors.tensors[b->tensor].name, pd_kind_name(b->kind), chunk,
            pd_shard_grid_count(grid_of(shard, box), shard->contents.places[box].bytes), row_of(shard, box, chunk)->offset,
            what);
}

static pd_status expand(struct pd_shard *shard, uint32_t box, uint64_t chunk, const unsigned char *pages, unsigned char *dst,
                        struct pd_error *err)
{
    struct pd_shard_expander *e = shard->expander;
    const struct pd_shard_chunk_row *row = row_of(shard, box, chunk);
    const uint64_t chunk_bytes = grid_of(shard, box)->chunk_bytes;
    if (row->filter_mask) { /* as it was: block checksums cover it */
        memcpy(dst, pages, chunk_bytes);
        return PD_OK;
    }
    if (pd_shard_chunk_digest(shard->box_seeds[box], chunk, pages, row->stored_bytes) != row->digest)
        return chunk_fail(shard, box, chunk, "the stored bytes do not match their digest", err);
    struct pd_error cause;
    pd_status st = pd_zstd_decompress(e->zstd, e->shuffled, chunk_bytes, pages, row->stored_bytes, &cause);
    if (st == PD_CORRUPT) return chunk_fail(shard, box, chunk, cause.message, err);
    if (st) PD_FAIL(err, st, "no memory to decompress");
    const struct pd_shard_box *b = &shard->contents.boxes[box];
    pd_byte_unshuffle(dst, e->shuffled, chunk_bytes, pd_dtype_bytes(shard->contents.tensors.tensors[b->tensor].dtype));
    return PD_OK;
}

/* Zeros up to the end of the page, and in the last chunk of a run up to the end of the chunk. */
static pd_status check_fill(const struct pd_shard *shard, uint32_t box, uint64_t chunk, const unsigned char *pages,
                            const unsigned char *data, struct pd_error *err)
{
    const struct pd_shard_grid *grid = grid_of(shard, box);
    uint64_t begin = 0, page_bytes = 0;
    const uint64_t stored = row_of(shard, box, chunk)->stored_bytes, real = pd_shard_grid_range(grid, chunk, &begin);
    (void)pd_shard_chunk_extent(shard, box, chunk, &page_bytes);
    if (!is_zero(pages + stored, page_bytes - stored))
        return chunk_fail(shard, box, chunk, "the padding behind the stored bytes is not zero", err);
    if (!is_zero(data + real, grid->chunk_bytes - real))
        return chunk_fail(shard, box, chunk, "what fills up the chunk is not zero", err);
    return PD_OK;
}

pd_status pd_shard_chunk_take(struct pd_shard *shard, uint32_t box, uint64_t chunk, const void *pages, struct pd_error *err)
{
    PD_TRY(need_expander(shard, err));
    struct pd_shard_expander *e = shard->expander;
    const uint32_t place = 1 - e->newest;
    e->kept[place].is_valid = false;
    PD_TRY(expand(shard, box, chunk, pages, e->kept[place].data, err));
    PD_TRY(check_fill(shard, box, chunk, pages, e->kept[place].data, err));
    e->kept[place].chunk = grid_of(shard, box)->first_chunk + chunk;
    e->kept[place].is_valid = true;
    e->newest = place;
    return PD_OK;
}

static const unsigned char *find_kept(const struct pd_shard *shard, uint32_t box, uint64_t chunk)
{
    const struct pd_shard_expander *e = shard->expander;
    for (int k = 0; e && k < 2; k++)
        if (e->kept[k].is_valid && e->kept[k].chunk == grid_of(shard, box)->first_chunk + chunk) return e->kept[k].data;
    return NULL;
}

static pd_status need_chunk(struct pd_shard *shard, uint32_t box, uint64_t chunk, const unsigned char **ret_data,
                            struct pd_error *err)
{
    PD_TRY(need_expander(shard, err));
    uint64_t bytes = 0;
    const uint64_t offset = pd_shard_chunk_extent(shard, box, chunk, &bytes);
    pd_status st = find_kept(shard, box, chunk) ? PD_OK : PD_CORRUPT;
    for (int attempt = 0; attempt < 2 && st == PD_CORRUPT; attempt++) {
        PD_TRY(pd_file_read(shard->file, offset, shard->expander->stored, bytes, err));
        st = pd_shard_chunk_take(shard, box, chunk, shard->expander->stored, err);
    }
    if (!st) *ret_data = find_kept(shard, box, chunk);
    return st;
}

/* ---- blocks ---- */

/* Rarely more than one chunk, never more than a few: where chunks are small. */
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

static void forget(struct pd_shard *shard)
{
    shard->expander->kept[0].is_valid = shard->expander->kept[1].is_valid = false;
}

pd_status pd_shard_chunk_read_block(struct pd_shard *shard, uint32_t box, uint64_t block, void *dst, struct pd_error *err)
{
    const uint64_t begin = block * PD_SHARD_BLOCK_BYTES, left = shard->contents.places[box].bytes - begin;
    const uint64_t bytes = left < PD_SHARD_BLOCK_BYTES ? left : PD_SHARD_BLOCK_BYTES;
    pd_status st = PD_CORRUPT;
    for (int attempt = 0; attempt < 2 && st == PD_CORRUPT; attempt++) {
        if (attempt) forget(shard);
        PD_TRY(gather(shard, box, begin, bytes, dst, err));
        st = pd_shard_verify_block(shard, box, block, dst, err);
    }
    return st;
}
