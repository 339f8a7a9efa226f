/* One chunk on its way into a compressed shard, wherever its data comes from and whoever writes it.
 *
 *   init -> (data, output set) -> compress, in any thread -> place, in the order of boxes and chunks -> written there
 *
 * Blocks are the caller's to hash (pd_shard_stream_block), since they do not end where chunks do.
 *   threads  a job belongs to one at a time; init and place: the writer's */
#pragma once

#include "ckpt/shard/decompress.h"

struct pd_zstd;

struct pd_shard_job {
    uint32_t box, element_bytes;
    uint64_t chunk, begin, bytes; /* of the box; bytes of data, without what fills the chunk up */
    uint64_t chunk_bytes, seed;
    const unsigned char *data;   /* (bytes) borrowed, the caller's to set */
    unsigned char *output;       /* (chunk_bytes) likewise */
    unsigned char *input;        /* the caller's own */
    const unsigned char *stored; /* (stored_bytes) what is to be written: output, or data where nothing was changed */
    uint64_t stored_bytes, digest;
    uint32_t filter_mask;
    pd_status status;
};

/* Of a writer in chunks whose stream has begun: all but data, output and input. */
void pd_shard_job_init(const struct pd_shard_writer *writer, uint32_t box, uint64_t chunk, struct pd_shard_job *job);
/* Chunk of a box in chunks that holds byte `at` of it; false: the box is in one piece. */
bool pd_shard_writer_chunk_at(const struct pd_shard_writer *writer, uint32_t box, uint64_t at, uint64_t *ret_chunk);
/* Shuffled and compressed, or as it is where that saves no page. `scratch`: PD_SHARD_CHUNK_MAX bytes.
 *   errors  job->status: PD_NO_MEMORY */
void pd_shard_job_compress(struct pd_shard_job *job, int level, struct pd_zstd *zstd, void *scratch);
/* The next chunk of its writer: where its stored bytes belong, in whole pages filled up with zeros. */
uint64_t pd_shard_job_place(struct pd_shard_writer *writer, const struct pd_shard_job *job);
