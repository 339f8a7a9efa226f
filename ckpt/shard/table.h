/* The shard file format, shared by writer and reader: the table, the trailer, and the place of everything in the file.
 * FORMAT.md is the specification; the structs below are its byte tables (little-endian, no gaps).
 *
 *   invariants  1. every byte of the file belongs to exactly one of: data of a box or chunk, padding up to the end of its
 *                  last page (zero), the table, the trailer page, a rest page
 *               2. a box of 4096 bytes or more, or each of its chunks, owns its pages; smaller ones lie inside rest pages
 *               3. block checksums cover data, the rest digest covers rest pages with small boxes read as zeros, the table
 *                  digest covers the table with both, the trailer covers itself
 */
#pragma once

#include "ckpt/shard/shard.h"

#define PD_SHARD_FORMAT_VERSION 1u /* every box in one piece */
#define PD_SHARD_FORMAT_CHUNKED 2u /* boxes of a page or more in chunks, compressed or not */
#define PD_SHARD_FORMAT_MOMENTS 2u /* added if moments are not fp32: 3 and 4 */
#define PD_SHARD_FORMAT_LISTED 5u  /* tensors of any type, with the kinds that the shard has; 6: in chunks */
#define PD_SHARD_FORMAT_LATEST 6u
static inline bool pd_shard_version_has_chunks(uint64_t version)
{
    return version % PD_SHARD_FORMAT_MOMENTS == 0;
}
#define PD_SHARD_PAGE_BYTES 4096u
#define PD_SHARD_MAGIC UINT64_C(0x3144524148534450)         /* "PDSHARD1" */
#define PD_SHARD_TRAILER_MAGIC UINT64_C(0x314c494152544450) /* "PDTRAIL1" */
#define PD_SHARD_SEED UINT64_C(0x5045524455524531)
#define PD_SHARD_BLOCK_STRIDE UINT64_C(0x9e3779b97f4a7c15)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structs are written as they lie in memory");

struct pd_shard_head {
    uint64_t magic, version, table_bytes, file_bytes;
    uint64_t run_id[2], lineage, step;
    uint64_t writer_rank, tensor_count, box_count, block_count;
    uint64_t data_bytes, block_bytes, tensors_at, boxes_at; /* ..._at: bytes from the start of the table */
    uint64_t checksums_at, rest_digest;
    uint64_t grids_at, chunks_at, chunk_count, codec, level; /* versions 2 and 4, else zero */
    uint64_t reserved[9];
};
struct pd_shard_tensor_row {
    char name[PD_TENSOR_NAME_MAX];
    uint64_t shape[PD_TENSOR_DIMS_MAX];
    uint64_t tp_unit; /* zero where listed */
    uint32_t ndim, dtype;
    int32_t tp_dim;                /* 0 where listed */
    uint32_t unit, decay, moments; /* moments: zero in versions 1 and 2. Where listed: unit is kinds, decay is flags */
};
#define PD_SHARD_TENSOR_BYTES 1u /* a flag: the bytes are no numbers */
struct pd_shard_box_row {
    uint64_t start[PD_TENSOR_DIMS_MAX], count[PD_TENSOR_DIMS_MAX];
    uint64_t offset, bytes, first_block;
    uint32_t tensor, kind;
};
/* How a box is cut into chunks. Each of its runs (the whole box, or one index of its first dimensions) is cut into chunks
 * of chunk_bytes; the last may be short and is filled up with zeros. chunk_bytes 0: the box is in one piece. */
struct pd_shard_grid {
    uint64_t chunk_bytes, run_bytes, first_chunk, reserved;
};
#define PD_SHARD_FILTERS_NONE 3u /* filter mask of a chunk that is neither shuffled nor compressed */
struct pd_shard_chunk_row {
    uint64_t offset, stored_bytes; /* a chunk owns whole pages; zeros fill the last one */
    uint64_t digest;               /* of the stored bytes; 0 with PD_SHARD_FILTERS_NONE: block checksums cover them */
    uint32_t filter_mask, reserved;
};
struct pd_shard_trailer {
    uint64_t magic, version, file_bytes, table_offset, table_bytes, table_digest;
    uint64_t reserved[505];
    uint64_t self_digest; /* XXH3-64, seed 0, of all bytes before it: at the same offset in every version */
};
_Static_assert(sizeof(struct pd_shard_head) == 256, "as in FORMAT.md");
_Static_assert(sizeof(struct pd_shard_tensor_row) == 224, "as in FORMAT.md");
_Static_assert(sizeof(struct pd_shard_box_row) == 96, "as in FORMAT.md");
_Static_assert(sizeof(struct pd_shard_grid) == 32 && sizeof(struct pd_shard_chunk_row) == 32, "as in FORMAT.md");
_Static_assert(sizeof(struct pd_shard_trailer) == PD_SHARD_PAGE_BYTES, "as in FORMAT.md");

/* ---- seeds ---- */

uint64_t pd_shard_table_seed(const struct pd_identity *identity);
uint64_t pd_shard_name_digest(const struct pd_tensor *tensor);
uint64_t pd_shard_box_seed(const struct pd_identity *identity, uint64_t name_digest, enum pd_kind kind,
                           const struct pd_box *box);
/* Digest of block `block` of the box with seed box_seed. */
uint64_t pd_shard_block_digest(uint64_t box_seed, uint64_t block, const void *data, uint64_t bytes);

/* Digest of the stored bytes of chunk `chunk` of a box. */
uint64_t pd_shard_chunk_digest(uint64_t box_seed, uint64_t chunk, const void *data, uint64_t bytes);

/* ---- places ---- */

struct pd_shard_place {
    uint64_t offset, bytes, first_block; /* first_block: index of its first checksum in the table */
    struct pd_shard_grid grid;           /* a chunked box has offset 0: rows of chunks hold the offsets */
};

/* Cuts a box of a compressed shard: at least one chunk, each at most PD_SHARD_CHUNK_MAX bytes, of whole blocks if the
 * sizes allow. ret_shape: of a chunk in elements. The caller sets first_chunk. */
void pd_shard_grid_cut(const struct pd_box *box, uint32_t element_bytes, uint64_t ret_shape[PD_TENSOR_DIMS_MAX],
                       struct pd_shard_grid *ret_grid);
uint64_t pd_shard_grid_count(const struct pd_shard_grid *grid, uint64_t box_bytes);
/* Returns how many bytes of the box are in chunk `chunk`, and their start in *ret_begin. */
uint64_t pd_shard_grid_range(const struct pd_shard_grid *grid, uint64_t chunk, uint64_t *ret_begin);
/* Returns the chunk of the box that holds byte `at`. */
uint64_t pd_shard_grid_find(const struct pd_shard_grid *grid, uint64_t at);

enum pd_shard_segment_type { PD_SEGMENT_REST, PD_SEGMENT_BOX, PD_SEGMENT_TABLE, PD_SEGMENT_CHUNK };
struct pd_shard_segment {
    uint64_t offset, bytes; /* whole pages */
    enum pd_shard_segment_type type;
    uint32_t box; /* for PD_SEGMENT_BOX */
};

/* The file in order: segments are ascending without gaps. TABLE covers both the table and the trailer page. */
struct pd_shard_map {
    struct pd_shard_segment *segments; /* (segment_count), owned */
    uint32_t segment_count;
    uint32_t *small; /* (small_count) boxes under a page, by offset; owned */
    uint32_t small_count;
};

uint64_t pd_shard_blocks_of(uint64_t bytes);
/* Input of pd_shard_map_init, which returns PD_CORRUPT if extents overlap or leave the file. */
struct pd_shard_extents {
    const struct pd_shard_place *places; /* (box_count) */
    uint32_t box_count;
    const struct pd_shard_chunk_row *chunks; /* (chunk_count) */
    uint64_t chunk_count;
    uint64_t table_offset, table_bytes, file_bytes;
};
PD_MUST_USE pd_status pd_shard_map_init(const struct pd_shard_extents *extents, struct pd_shard_map *ret_map,
                                        struct pd_error *err);
void pd_shard_map_deinit(struct pd_shard_map *map);
/* Zeroes the bytes of small boxes in `data`, which holds file bytes [offset, offset + bytes). */
void pd_shard_map_mask(const struct pd_shard_map *map, const struct pd_shard_place *places, uint64_t offset, void *data,
                       uint64_t bytes);
/* Index in map->small of the first small box that ends after `offset`. */
uint32_t pd_shard_map_small_at(const struct pd_shard_map *map, const struct pd_shard_place *places, uint64_t offset);

/* ---- table and trailer ---- */

struct pd_shard_counts {
    uint64_t version, tensors, boxes, blocks;
    uint64_t chunks, codec, level; /* in versions with chunks */
};
/* Size of a table, zero-padded to whole pages. False if it does not fit into 64 bits. */
bool pd_shard_table_size(const struct pd_shard_counts *counts, uint64_t *ret_bytes);
/* Fills head offsets, tensor, box and grid rows of a zeroed table. The caller fills checksums at head.checksums_at and
 * rows of chunks at head.chunks_at. */
void pd_shard_table_fill(void *table, uint64_t table_bytes, const struct pd_shard_counts *counts,
                         const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                         const struct pd_shard_place *places);
/* Fills the trailer for a table whose head and checksums are final. */
void pd_shard_trailer_fill(struct pd_shard_trailer *ret_trailer, const void *table, uint64_t table_bytes,
                           uint64_t table_offset, const struct pd_identity *identity);

struct pd_shard_contents {
    struct pd_tensor_table tensors;
    struct pd_shard_box *boxes;    /* (box_count) */
    struct pd_shard_place *places; /* (box_count) */
    uint32_t box_count;
    const struct pd_shard_chunk_row *chunks; /* (chunk_count) inside the table */
    uint64_t chunk_count;
};
/* Parses a table whose digest was verified; still checks every number. PD_CORRUPT, PD_UNSUPPORTED. */
PD_MUST_USE pd_status pd_shard_table_parse(const void *table, uint64_t table_bytes, uint64_t file_bytes,
                                           struct pd_shard_contents *ret_contents, struct pd_error *err);
void pd_shard_contents_deinit(struct pd_shard_contents *contents);
/* File offset of the stored bytes of chunk `chunk` of a box; ret_bytes: size in whole pages. */
uint64_t pd_shard_chunk_extent(const struct pd_shard_contents *contents, uint32_t box, uint64_t chunk, uint64_t *ret_bytes);
