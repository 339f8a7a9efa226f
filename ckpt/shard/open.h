/* An open shard, as those below see it: open.c fills it in and changes nothing later; decompress.c keeps chunks in it.
 *
 *   open.c, verify.c ◀── decompress.c ◀── read.c ◀── scan.c, pieces.c, copy.c, transcode.c */
#pragma once

#include "ckpt/base/owner.h"
#include "ckpt/shard/table.h"

#define PD_SHARD_BOUNCE_BYTES (256u << 10)

struct pd_shard_decoder;

/* Chunks that were decompressed last. A block may lie in two of them. */
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
    struct pd_owner owner;               /* of bounce and chunks: who reads blocks, one thread at a time */
    unsigned char *bounce;               /* (PD_SHARD_BOUNCE_BYTES) aligned */
    struct pd_shard_kept_chunks *chunks; /* of a compressed shard, once it is read */
};

void pd_shard_release(struct pd_shard *shard); /* of one that keeps no chunks; pd_shard_close is for everybody else */

/* ---- shards in chunks: decompress.c ---- */

/* Checks and decompresses a chunk whose pages are at `pages`, and keeps it. PD_CORRUPT: it is damaged or was misread. */
PD_MUST_USE pd_status pd_shard_chunk_take(struct pd_shard *shard, uint32_t box, uint64_t chunk, const void *pages,
                                          struct pd_error *err);
/* One block, verified, out of kept chunks where they are; reads what is not. As pd_shard_read_blocks. */
PD_MUST_USE pd_status pd_shard_chunk_read_block(struct pd_shard *shard, uint32_t box, uint64_t block, void *dst,
                                                struct pd_error *err);
/* ---- verify.c ---- */

/* PD_CORRUPT that names file, tensor, kind, block and place. */
PD_MUST_USE pd_status pd_shard_block_fail(const struct pd_shard *shard, uint32_t box, uint64_t block, const char *what,
                                          struct pd_error *err);
bool pd_shard_is_zero(const unsigned char *data, uint64_t bytes);
/* Metadata and shared pages against the digest in the table. */
PD_MUST_USE pd_status pd_shard_verify_rest(struct pd_shard *shard, struct pd_error *err);
