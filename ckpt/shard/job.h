/* One chunk on its way into a compressed shard, independent of where its data comes from and who writes it.
 *
 *   init -> (set data, output) -> compress, in any thread -> place, in the order of boxes and chunks -> write it there
 *
 * The caller hashes blocks (pd_shard_stream_block), since they do not end where chunks do.
 *   threads  a job belongs to one at a time; init and place: the writer's */
#pragma once

#include "ckpt/shard/decompress.h"

struct pd_zstd;

struct pd_shard_job {
    uint32_t box, element_bytes;
    uint64_t chunk, begin, bytes; /* range in the box; bytes of data, without the fill after it */
    uint64_t chunk_bytes, seed;
    const unsigned char *data;   /* (bytes) borrowed, set by the caller */
    unsigned char *output;       /* (chunk_bytes) likewise */
    unsigned char *input;        /* the caller's own */
    const unsigned char *stored; /* (stored_bytes) to be written: output, or data if it is stored unchanged */
    uint64_t stored_bytes, digest;
    uint32_t filter_mask;
    pd_status status;
};

/* Fills all but data, output and input. The writer is chunked and its stream has begun. */
void pd_shard_job_init(const struct pd_shard_writer *writer, uint32_t box, uint64_t chunk, struct pd_shard_job *job);
/* Finds the chunk of a box that holds byte `at`; false if the box is not chunked. */
bool pd_shard_writer_chunk_at(const struct pd_shard_writer *writer, uint32_t box, uint64_t at, uint64_t *ret_chunk);
/* Shuffles and compresses, or stores unchanged if that saves no page. `scratch`: PD_SHARD_CHUNK_MAX bytes.
 *   errors  job->status: PD_NO_MEMORY */
void pd_shard_job_compress(struct pd_shard_job *job, int level, struct pd_zstd *zstd, void *scratch);
/* Places the job as its writer's next chunk. Returns the file offset of its stored bytes, zero-filled to whole pages. */
uint64_t pd_shard_job_place(struct pd_shard_writer *writer, const struct pd_shard_job *job);
