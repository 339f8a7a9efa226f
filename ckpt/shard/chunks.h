/* The chunks of compressed shards as their writer knows them: cut when the file is planned, placed anew at every save.
 *
 *   plan   new -> add (a box of a page and more) ... -> plan      (HDF5 lays out datasets and indexes, places far away)
 *   save   begin -> place (one chunk after the other) ... -> seal (rows of the table, indexes and end of the file)
 *
 * Chunks follow each other in the order of boxes, each on pages of its own, behind all that HDF5 laid out; only the trailer
 * follows them. So a save needs nothing of HDF5, and what it stores ends where it ends.
 *   threads  one */
#pragma once

#include "ckpt/hdf5/h5.h"
#include "ckpt/shard/table.h"

struct pd_zstd;
struct pd_shard_chunks;

PD_MUST_USE pd_status pd_shard_chunks_new(const struct pd_shard_codec *codec, struct pd_shard_chunks **ret_chunks,
                                          struct pd_error *err);
void pd_shard_chunks_free(struct pd_shard_chunks *chunks); /* NULL is fine */
uint64_t pd_shard_chunks_heap_bytes(const struct pd_shard_chunks *chunks);

/* Makes the dataset and fills place->grid. */
PD_MUST_USE pd_status pd_shard_chunks_add(struct pd_shard_chunks *chunks, struct pd_h5_file *file, const char *path,
                                          enum pd_h5_type type, const struct pd_tensor *tensor,
                                          const struct pd_shard_box *box, struct pd_shard_place *place,
                                          struct pd_error *err);
void pd_shard_chunks_count(const struct pd_shard_chunks *chunks, struct pd_shard_counts *counts);
/* `table` is filled but for rows of chunks; `file_bytes` without chunks, with the trailer. Both borrowed for life. */
PD_MUST_USE pd_status pd_shard_chunks_plan(struct pd_shard_chunks *chunks, const struct pd_h5_pages *pages, void *table,
                                           uint64_t file_bytes, struct pd_error *err);
uint64_t pd_shard_chunks_most_bytes(const struct pd_shard_chunks *chunks);     /* of the file, if nothing shrinks */
uint64_t pd_shard_chunks_expected_bytes(const struct pd_shard_chunks *chunks); /* by the save before */

const struct pd_shard_codec *pd_shard_chunks_codec(const struct pd_shard_chunks *chunks);
/* One for each thread that compresses at a time. */
PD_MUST_USE pd_status pd_shard_chunks_zstd(struct pd_shard_chunks *chunks, uint32_t thread, struct pd_zstd **ret_zstd,
                                           struct pd_error *err);

void pd_shard_chunks_begin(struct pd_shard_chunks *chunks);
/* The next chunk: returns where it lies. */
uint64_t pd_shard_chunks_place(struct pd_shard_chunks *chunks, uint64_t stored_bytes, uint64_t digest, uint32_t filter_mask);
PD_MUST_USE pd_status pd_shard_chunks_seal(struct pd_shard_chunks *chunks, struct pd_h5_pages *pages,
                                           uint64_t *ret_file_bytes, struct pd_error *err);
