/* A shard file: an HDF5 file with the boxes that one rank owns, readable by any HDF5 tool, checksummed block by block.
 *
 * Layout of the file, its tables and digests: ckpt/FORMAT.md. Bulk bytes go straight to the datasets' offsets with direct
 * I/O; HDF5 only produces metadata pages in memory through our own file driver (ckpt/hdf5/h5.c).
 */
#pragma once

#include "ckpt/base/thread_pool.h"
#include "ckpt/io/vfs.h"
#include "ckpt/tensor/tensor.h"

#define PD_SHARD_BLOCK_BYTES 65536u   /* one XXH3-64 per block of a box */
#define PD_SHARD_CHUNK_MAX (1u << 20) /* most bytes of a chunk, stored or decoded; a multiple of pages */

/* Returns the size of block `block` of a box: the last one may be short. */
static inline uint64_t pd_shard_block_length(uint64_t box_bytes, uint64_t block)
{
    const uint64_t left = box_bytes - block * PD_SHARD_BLOCK_BYTES;
    return left < PD_SHARD_BLOCK_BYTES ? left : PD_SHARD_BLOCK_BYTES;
}

/* Seeds every checksum, so that bytes of another run, lineage or step do not verify. */
struct pd_identity {
    uint64_t run_id[2];
    uint64_t lineage;
    uint64_t step;
};

struct pd_shard_box {
    uint32_t tensor; /* index into the tensor table */
    enum pd_kind kind;
    struct pd_box box;
};

/* One row of a commit record: enough to open and check a shard without trusting the file. */
struct pd_shard_summary {
    uint64_t file_bytes;
    uint64_t table_offset, table_bytes; /* the table of boxes and checksums inside the file */
    uint64_t digest;                    /* over metadata pages, padding and table; the table covers the data */
    uint64_t data_bytes;                /* payload, without padding */
    uint32_t box_count;
    uint32_t writer_rank, host;
};

/* ---- writing ---- */

struct pd_shard_writer; /* layout of one shard file: the offset of every box; reused by every save of a launch */

#define PD_SHARD_LEVEL_MIN 1
#define PD_SHARD_LEVEL_MAX 19
enum pd_codec { PD_CODEC_NONE, PD_CODEC_ZSTD };
struct pd_shard_codec {
    enum pd_codec codec;
    int level; /* PD_SHARD_LEVEL_MIN to _MAX */
    /* Compresses, and writes to a memory file system. Borrowed for the writer's life, one save at a time; NULL: the caller. */
    struct pd_thread_pool *pool;
};
/* Parses "none" or "zstd:3" (the level). Leaves the pool NULL. PD_INVALID: anything else. */
PD_MUST_USE pd_status pd_shard_codec_parse(const char *text, struct pd_shard_codec *ret_codec, struct pd_error *err);
/* Plans the file once (metadata pages, offsets). `tensors` and `boxes` are borrowed for the writer's life.
 *   buffers  (buffer_bytes, aligned to PD_VFS_ALIGN) stages data on its way to the disk: at least 4 MiB; 32 MiB is fast
 *   codec    NULL or PD_CODEC_NONE: boxes as they are. Else the same data, tables and checks in chunks. The bytes depend on
 *            the level but not on the number of threads
 *   memory   beyond `buffers`: metadata pages, 8 bytes a block (see pd_shard_writer_bytes), and zstd's for each thread, at
 *            most 16 */
PD_MUST_USE pd_status pd_shard_writer_new(struct pd_vfs *vfs, const struct pd_tensor_table *tensors,
                                          const struct pd_shard_box *boxes, uint32_t box_count, void *buffers,
                                          uint64_t buffer_bytes, const struct pd_shard_codec *codec,
                                          struct pd_shard_writer **ret_writer, struct pd_error *err);
void pd_shard_writer_free(struct pd_shard_writer *writer);
uint64_t pd_shard_writer_bytes(const struct pd_shard_writer *writer); /* heap bytes it holds */
/* Upper bound on the heap of an uncompressed writer and one stream, before they exist. A sum over boxes. */
uint64_t pd_shard_writer_most_bytes(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                    uint32_t box_count);
uint64_t pd_shard_writer_file_bytes(const struct pd_shard_writer *writer); /* most bytes of the file */

/* Sets a callback for pd_shard_write, which calls it in its own thread once it no longer reads `data`: the caller may
 * then change it, while tables are written and the file is synced. Not called if the write fails earlier. NULL: none. */
void pd_shard_writer_on_copied(struct pd_shard_writer *writer, void (*on_copied)(void *context), void *context);

/* Sets a callback for pd_shard_write, which calls it in its own thread some times, with how many bytes of the boxes are
 * done. Any other status than PD_OK ends the write with it. NULL: none. */
void pd_shard_writer_on_written(struct pd_shard_writer *writer,
                                pd_status (*on_written)(void *context, uint64_t bytes, struct pd_error *err), void *context);

/* Writes data, then tables, then fdatasync. data[i]: dense elements of box i, host memory, borrowed, unchanged until
 * copied. Creates the file at `path`, or overwrites an existing one of any size in place (a recycled file).
 *   errors   PD_NO_SPACE, PD_IO: the file is worthless and must be unlinked, never reused */
PD_MUST_USE pd_status pd_shard_write(struct pd_shard_writer *writer, const char *path, const struct pd_identity *identity,
                                     uint32_t writer_rank, const void *const *data, struct pd_shard_summary *ret_summary,
                                     struct pd_error *err);

/* Streams: write an uncompressed shard whose boxes are never in memory as a whole. The caller writes boxes of a page or
 * more to their offsets through pd_shard_stream_file, zero-filling the last page, and passes every block to the stream,
 * in any order. At the end the stream writes the rest. pd_shard_write makes the same file.
 *   memory  8 bytes a block (the writer's), and the boxes of less than a page */
struct pd_shard_stream;

uint64_t pd_shard_writer_stream_bytes(const struct pd_shard_writer *writer); /* heap bytes of one stream */
uint64_t pd_shard_writer_box_offset(const struct pd_shard_writer *writer, uint32_t box);
/* The stream owns the writer until it is finished or aborted. Creates or overwrites the file as pd_shard_write does. */
PD_MUST_USE pd_status pd_shard_stream_begin(struct pd_shard_writer *writer, const char *path,
                                            const struct pd_identity *identity, uint32_t writer_rank,
                                            struct pd_shard_stream **ret_stream, struct pd_error *err);
struct pd_file *pd_shard_stream_file(const struct pd_shard_stream *stream);
/* Hashes a whole block of a box; only the last one is short. Keeps data of boxes under a page to write it at the end.
 *   threads  any, for different blocks */
void pd_shard_stream_block(struct pd_shard_stream *stream, uint32_t box, uint64_t block, const void *data, uint64_t bytes);
/* The caller's writes must have completed. Writes metadata and tables, syncs, closes, and frees the stream, even if it
 * fails.
 *   errors  as pd_shard_write */
PD_MUST_USE pd_status pd_shard_stream_finish(struct pd_shard_stream *stream, struct pd_shard_summary *ret_summary,
                                             struct pd_error *err);
void pd_shard_stream_abort(struct pd_shard_stream *stream);
/* Checks data of the file that the writer made last, or is making, against the checksums it computed. PD_CORRUPT names
 * tensor, kind and block.   threads  any */
PD_MUST_USE pd_status pd_shard_writer_verify_block(const struct pd_shard_writer *writer, uint32_t box, uint64_t block,
                                                   const void *data, uint64_t bytes, struct pd_error *err);

/* ---- reading ---- */

struct pd_shard; /* an open shard whose table has been verified */

/* Reads and verifies everything but the data: trailer, table, metadata and shared pages. `expect` is from the commit
 * record: identity, size, table place and digest must match; PD_CORRUPT names the file and the difference. With NULL
 * `expect` (offline inspection) offsets come from the file itself, and its checksums are still checked. With NULL
 * `identity` the file's own identity is accepted.
 *   errors   PD_UNSUPPORTED: a format version this perdure does not know */
PD_MUST_USE pd_status pd_shard_open(struct pd_vfs *vfs, const char *path, const struct pd_identity *identity,
                                    const struct pd_shard_summary *expect, struct pd_shard **ret_shard,
                                    struct pd_error *err);
void pd_shard_close(struct pd_shard *shard);
uint32_t pd_shard_box_count(const struct pd_shard *shard);
/* Tensors as this shard describes them (name, shape, tp_dim, ...), borrowed; box.tensor indexes it. */
const struct pd_tensor_table *pd_shard_tensors(const struct pd_shard *shard);
const struct pd_shard_box *pd_shard_boxes(const struct pd_shard *shard); /* (box_count), borrowed */
bool pd_shard_is_compressed(const struct pd_shard *shard);
/* True if the box is chunked. It then has no contiguous bytes in the file: use pd_shard_read_blocks and pd_shard_scan. */
bool pd_shard_box_is_in_chunks(const struct pd_shard *shard, uint32_t box);
/* Fills the commit record's row of this shard; host is 0. */
void pd_shard_summary_of(const struct pd_shard *shard, struct pd_shard_summary *ret_summary);
/* File offset of box i, dense elements; if chunked, of its first chunk. Blocks are counted from the start of the box. */
uint64_t pd_shard_box_offset(const struct pd_shard *shard, uint32_t box);
uint64_t pd_shard_box_bytes(const struct pd_shard *shard, uint32_t box);
uint64_t pd_shard_block_count(const struct pd_shard *shard, uint32_t box);
struct pd_file *pd_shard_file(const struct pd_shard *shard); /* for bulk reads through a pd_queue */
const struct pd_identity *pd_shard_identity(const struct pd_shard *shard);
uint32_t pd_shard_writer_rank(const struct pd_shard *shard);
/* Checks bytes in memory. PD_CORRUPT names file, tensor, kind and block. A box of 4096 bytes or more owns its pages:
 * `data` of its last block must reach to the end of the page, as direct I/O reads it, since padding is checked too. */
PD_MUST_USE pd_status pd_shard_verify_block(const struct pd_shard *shard, uint32_t box, uint64_t block, const void *data,
                                            struct pd_error *err);
/* Reads and checks blocks [first, first+count) of a box into dst, synchronously; the last block may be short. Rereads a
 * mismatching block once; a second mismatch is PD_CORRUPT. */
PD_MUST_USE pd_status pd_shard_read_blocks(struct pd_shard *shard, uint32_t box, uint64_t first_block, uint64_t block_count,
                                           void *dst, struct pd_error *err);
/* Verifies every byte of the file: metadata, padding, table, data. `buffers` as for the writer. */
PD_MUST_USE pd_status pd_shard_verify(struct pd_shard *shard, void *buffers, uint64_t buffer_bytes, struct pd_error *err);

/* One pass over the data of all boxes at the speed of the disk. */
struct pd_shard_visitor {
    void *context;
    /* Blocks of a box come in order, boxes in the order of the file. If `verified` is PD_OK, `data` holds `bytes` good
     * bytes (a multiple of 4 in every block). Otherwise `damage` describes the damage to this block; do not use data. A
     * status other than PD_OK ends the pass. */
    pd_status (*block)(void *context, uint32_t box, uint64_t block, const void *data, uint64_t bytes, pd_status verified,
                       const struct pd_error *damage, struct pd_error *err);
};
PD_MUST_USE pd_status pd_shard_scan(struct pd_shard *shard, void *buffers, uint64_t buffer_bytes,
                                    const struct pd_shard_visitor *visitor, struct pd_error *err);
