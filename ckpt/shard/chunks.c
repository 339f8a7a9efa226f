#include "ckpt/shard/chunks.h"
#include "ckpt/base/grow.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/parse.h"
#include "ckpt/tensor/codec_zstd.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 16u

struct chunked_box {
    uint64_t header; /* of the dataset, in the file */
    uint64_t count, first_chunk;
    struct pd_h5_index index;
};

struct pd_shard_chunks {
    struct pd_shard_codec codec;
    struct chunked_box *boxes; /* (box_count) */
    uint32_t box_count;
    uint64_t count, largest;          /* chunks in all, and of one box */
    uint64_t device_bytes;            /* far-away bytes handed out by planning */
    struct pd_shard_head *head;       /* of the table, borrowed */
    struct pd_shard_chunk_row *rows;  /* (count) in the table, borrowed */
    struct pd_h5_chunk *entries;      /* (largest) */
    uint64_t begin, most_bytes, next; /* file offsets: of the first chunk; of the next one */
    uint64_t last_bytes;              /* of the last file written */
    uint64_t placed;
    struct pd_zstd *zstd[THREADS_MAX]; /* made when first used */
};

static pd_status check_level(int level, struct pd_error *err)
{
    if (level < PD_SHARD_LEVEL_MIN || level > PD_SHARD_LEVEL_MAX)
        PD_FAIL(err, PD_INVALID, "compression zstd:%d: levels are %d to %d", level, PD_SHARD_LEVEL_MIN, PD_SHARD_LEVEL_MAX);
    return PD_OK;
}

pd_status pd_shard_codec_parse(const char *text, struct pd_shard_codec *ret_codec, struct pd_error *err)
{
    struct pd_shard_codec codec = {.codec = PD_CODEC_NONE};
    uint64_t level = 0;
    if (strncmp(text, "zstd:", 5) == 0 && pd_parse_u64(text + 5, &level) && level <= INT_MAX) {
        codec = (struct pd_shard_codec){.codec = PD_CODEC_ZSTD, .level = (int)level};
        PD_TRY(check_level(codec.level, err));
    } else if (strcmp(text, "none") != 0) {
        PD_FAIL(err, PD_INVALID, "compression \"%s\" is not known: use none, or zstd:1 to zstd:%d", text,
                PD_SHARD_LEVEL_MAX);
    }
    *ret_codec = codec;
    return PD_OK;
}

pd_status pd_shard_chunks_new(const struct pd_shard_codec *codec, struct pd_shard_chunks **ret_chunks, struct pd_error *err)
{
    PD_TRY(check_level(codec->level, err));
    struct pd_shard_chunks *chunks = calloc(1, sizeof *chunks);
    if (!chunks) PD_FAIL(err, PD_NO_MEMORY, "no memory for the chunks of a shard");
    chunks->codec = *codec;
    *ret_chunks = chunks;
    return PD_OK;
}

void pd_shard_chunks_free(struct pd_shard_chunks *chunks)
{
    if (!chunks) return;
    for (uint32_t t = 0; t < THREADS_MAX; t++)
        pd_zstd_free(chunks->zstd[t]);
    free(chunks->boxes);
    free(chunks->entries);
    free(chunks);
}

uint64_t pd_shard_chunks_heap_bytes(const struct pd_shard_chunks *chunks)
{
    if (!chunks) return 0;
    uint64_t bytes = sizeof *chunks + chunks->box_count * sizeof *chunks->boxes + chunks->largest * sizeof *chunks->entries;
    for (uint32_t t = 0; t < THREADS_MAX; t++)
        if (chunks->zstd[t]) bytes += pd_zstd_heap_bytes(chunks->zstd[t]);
    return bytes;
}

/* ---- planning ---- */

static pd_status grow(struct pd_shard_chunks *chunks, uint64_t count, struct pd_error *err)
{
    if (!pd_grow(&chunks->boxes, chunks->box_count, sizeof *chunks->boxes))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %u boxes in chunks", chunks->box_count + 1);
    if (count <= chunks->largest) return PD_OK;
    struct pd_h5_chunk *entries = realloc(chunks->entries, count * sizeof *entries);
    if (!entries) PD_FAIL(err, PD_NO_MEMORY, "no memory for %llu chunks", (unsigned long long)count);
    chunks->entries = entries;
    chunks->largest = count;
    return PD_OK;
}

pd_status pd_shard_chunks_add(struct pd_shard_chunks *chunks, struct pd_h5_file *file, const char *path,
                              enum pd_h5_type type, const struct pd_tensor *tensor, const struct pd_shard_box *b,
                              struct pd_shard_place *place, struct pd_error *err)
{
    uint64_t shape[PD_TENSOR_DIMS_MAX];
    pd_shard_grid_cut(&b->box, pd_tensor_element_bytes(tensor, b->kind), shape, &place->grid);
    place->grid.first_chunk = chunks->count;
    const uint64_t count = pd_shard_grid_count(&place->grid, place->bytes),
                   bytes = pd_round_up(place->grid.chunk_bytes, PD_SHARD_PAGE_BYTES);
    PD_TRY(grow(chunks, count, err));
    for (uint64_t c = 0; c < count; c++, chunks->device_bytes += bytes)
        chunks->entries[c] = (struct pd_h5_chunk){PD_H5_FAR_AWAY + chunks->device_bytes, bytes, 0};
    struct chunked_box *mine = &chunks->boxes[chunks->box_count];
    *mine = (struct chunked_box){.count = count, .first_chunk = chunks->count};
    PD_TRY(pd_h5_chunked(file, path, type, pd_tensor_file_dims(tensor), b->box.count, shape, chunks->codec.level,
                         chunks->entries, &mine->header, err));
    chunks->box_count++;
    chunks->count += count;
    return PD_OK;
}

void pd_shard_chunks_count(const struct pd_shard_chunks *chunks, struct pd_shard_counts *counts)
{
    counts->version = PD_SHARD_FORMAT_CHUNKED;
    counts->chunks = chunks->count;
    counts->codec = (uint64_t)chunks->codec.codec;
    counts->level = (uint64_t)chunks->codec.level;
}

pd_status pd_shard_chunks_plan(struct pd_shard_chunks *chunks, const struct pd_h5_pages *pages, void *table,
                               uint64_t file_bytes, struct pd_error *err)
{
    chunks->head = table;
    chunks->rows = (void *)((char *)table + chunks->head->chunks_at);
    chunks->begin = file_bytes - PD_SHARD_PAGE_BYTES;
    chunks->most_bytes = file_bytes + chunks->device_bytes;
    for (uint32_t b = 0; b < chunks->box_count; b++)
        PD_TRY(pd_h5_index_find(pages, chunks->boxes[b].header, chunks->boxes[b].count, &chunks->boxes[b].index, err));
    return PD_OK;
}

uint64_t pd_shard_chunks_most_bytes(const struct pd_shard_chunks *chunks)
{
    return chunks->most_bytes;
}

uint64_t pd_shard_chunks_expected_bytes(const struct pd_shard_chunks *chunks)
{
    return chunks->last_bytes;
}

const struct pd_shard_codec *pd_shard_chunks_codec(const struct pd_shard_chunks *chunks)
{
    return &chunks->codec;
}

pd_status pd_shard_chunks_zstd(struct pd_shard_chunks *chunks, uint32_t thread, struct pd_zstd **ret_zstd,
                               struct pd_error *err)
{
    PD_CHECK(thread < THREADS_MAX);
    if (!chunks->zstd[thread]) PD_TRY(pd_zstd_new(&chunks->zstd[thread], err));
    *ret_zstd = chunks->zstd[thread];
    return PD_OK;
}

/* ---- saving ---- */

void pd_shard_chunks_begin(struct pd_shard_chunks *chunks)
{
    chunks->next = chunks->begin;
    chunks->placed = 0;
}

uint64_t pd_shard_chunks_place(struct pd_shard_chunks *chunks, uint64_t stored_bytes, uint64_t digest, uint32_t filter_mask)
{
    PD_CHECK(chunks->placed < chunks->count);
    const uint64_t at = chunks->next;
    chunks->rows[chunks->placed++] = (struct pd_shard_chunk_row){at, stored_bytes, digest, filter_mask, 0};
    chunks->next += pd_round_up(stored_bytes, PD_SHARD_PAGE_BYTES);
    return at;
}

pd_status pd_shard_chunks_seal(struct pd_shard_chunks *chunks, struct pd_h5_pages *pages, uint64_t *ret_file_bytes,
                               struct pd_error *err)
{
    PD_CHECK(chunks->placed == chunks->count);
    for (uint32_t b = 0; b < chunks->box_count; b++) {
        const struct chunked_box *box = &chunks->boxes[b];
        for (uint64_t c = 0; c < box->count; c++) {
            const struct pd_shard_chunk_row *row = &chunks->rows[box->first_chunk + c];
            chunks->entries[c] = (struct pd_h5_chunk){row->offset, row->stored_bytes, row->filter_mask};
        }
        PD_TRY(pd_h5_index_set(pages, &box->index, chunks->entries, err));
    }
    PD_TRY(pd_h5_end_set(pages, chunks->next, err));
    chunks->head->file_bytes = chunks->last_bytes = *ret_file_bytes = chunks->next + PD_SHARD_PAGE_BYTES;
    return PD_OK;
}
