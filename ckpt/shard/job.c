#include "ckpt/shard/job.h"

#include "ckpt/shard/writer.h"
#include "ckpt/tensor/codec_zstd.h"

#include <string.h>

void pd_shard_job_init(const struct pd_shard_writer *writer, uint32_t box, uint64_t chunk, struct pd_shard_job *job)
{
    const struct pd_shard_head *head = (const void *)writer->table;
    const struct pd_identity identity = {{head->run_id[0], head->run_id[1]}, head->lineage, head->step};
    const struct pd_shard_box *local = &writer->local[box];
    const struct pd_shard_place *place = &writer->places[box];
    job->box = box;
    job->chunk = chunk;
    job->chunk_bytes = place->grid.chunk_bytes;
    job->seed = pd_shard_box_seed(&identity, writer->name_digests[local->tensor], local->kind, &local->box);
    job->element_bytes = (uint32_t)(place->bytes / pd_box_elements(&local->box));
    job->bytes = pd_shard_grid_range(&place->grid, chunk, &job->begin);
    job->status = PD_OK;
}

bool pd_shard_writer_chunk_at(const struct pd_shard_writer *writer, uint32_t box, uint64_t at, uint64_t *ret_chunk)
{
    const struct pd_shard_grid *grid = &writer->places[box].grid;
    if (!grid->chunk_bytes) return false;
    *ret_chunk = pd_shard_grid_find(grid, at);
    return true;
}

/* Stores the chunk unchanged, with zeros after it. */
static void keep(struct pd_shard_job *job)
{
    job->stored_bytes = job->chunk_bytes;
    job->filter_mask = PD_SHARD_FILTERS_NONE;
    job->digest = 0;
    job->stored = job->data;
    if (job->bytes == job->chunk_bytes) return;
    job->stored = job->output;
    memcpy(job->output, job->data, job->bytes);
    memset(job->output + job->bytes, 0, job->chunk_bytes - job->bytes);
}

void pd_shard_job_compress(struct pd_shard_job *job, int level, struct pd_zstd *zstd, void *scratch)
{
    const uint64_t capacity = (job->chunk_bytes - 1) / PD_SHARD_PAGE_BYTES * PD_SHARD_PAGE_BYTES;
    uint64_t made = 0;
    keep(job);
    if (capacity == 0) return;
    pd_byte_shuffle(scratch, job->stored, job->chunk_bytes, job->element_bytes);
    job->status = pd_zstd_compress(zstd, level, job->output, capacity, scratch, job->chunk_bytes,
                                   job->chunk_bytes / job->element_bytes, &made, NULL);
    if (made == 0 || job->status) {
        keep(job); /* compressing has overwritten those zeros */
        return;
    }
    job->stored = job->output;
    job->stored_bytes = made;
    job->filter_mask = 0;
    job->digest = pd_shard_chunk_digest(job->seed, job->chunk, job->output, made);
}

uint64_t pd_shard_job_place(struct pd_shard_writer *writer, const struct pd_shard_job *job)
{
    return pd_shard_chunks_place(writer->chunks, job->stored_bytes, job->digest, job->filter_mask);
}
