/* An open shard, for the files below. open.c fills it in; later only decompress.c changes it, to cache chunks.
 *
 *   open.c, verify.c ◀── decompress.c ◀── read.c ◀── scan.c, pieces.c, copy.c, transcode.c */
#pragma once

#include "ckpt/base/owner.h"
#include "ckpt/shard/table.h"

#define PD_SHARD_BOUNCE_BYTES (256u << 10)

struct pd_shard_decoder;

/* The two chunks decompressed last. A block may span two. */
struct pd_shard_kept_chunks {
    struct pd_shard_decoder *decoder;
    unsigned char *stored;   /* (a chunk and a page) aligned, for direct I/O */
    unsigned char *shuffled; /* (a chunk) */
    struct {
        unsigned char *data; /* (a chunk) */
        uint64_t chunk;      /* number in the shard */
        bool is_valid;
    } kept[2];
    uint32_t newest;
};

struct pd_shard {
    struct pd_vfs *vfs;
    char *path;
    struct pd_file *file;
    uint64_t file_bytes;
    struct pd_identity identity;
    struct pd_shard_trailer trailer;
    unsigned char *table;      /* (trailer.table_bytes), verified */
    const uint64_t *checksums; /* inside the table */
    struct pd_shard_contents contents;
    struct pd_shard_map map;
    uint64_t *box_seeds;                 /* (contents.box_count) */
    struct pd_owner owner;               /* of bounce and chunks: the thread that reads blocks, one at a time */
    unsigned char *bounce;               /* (PD_SHARD_BOUNCE_BYTES) aligned */
    struct pd_shard_kept_chunks *chunks; /* of a compressed shard, allocated by the first read */
};

void pd_shard_release(struct pd_shard *shard); /* for a shard without cached chunks; others call pd_shard_close */

/* ---- chunked shards: decompress.c ---- */

/* Checks, decompresses and caches a chunk whose pages are at `pages`. PD_CORRUPT: it is damaged or was misread. */
PD_MUST_USE pd_status pd_shard_chunk_take(struct pd_shard *shard, uint32_t box, uint64_t chunk, const void *pages,
                                          struct pd_error *err);
/* Reads and verifies one block as pd_shard_read_blocks does, from cached chunks if possible. */
PD_MUST_USE pd_status pd_shard_chunk_read_block(struct pd_shard *shard, uint32_t box, uint64_t block, void *dst,
                                                struct pd_error *err);
/* ---- verify.c ---- */

/* Returns PD_CORRUPT; the message names file, tensor, kind, block and offset. */
PD_MUST_USE pd_status pd_shard_block_fail(const struct pd_shard *shard, uint32_t box, uint64_t block, const char *what,
                                          struct pd_error *err);
bool pd_shard_is_zero(const unsigned char *data, uint64_t bytes);
/* Checks metadata and shared pages against the digest in the table. */
PD_MUST_USE pd_status pd_shard_verify_rest(struct pd_shard *shard, struct pd_error *err);
