/* The writer's view of the chunks of a compressed shard: cut when the file is planned, placed anew by every save.
 *
 *   plan   new -> add (a box of a page or more) ... -> plan     (HDF5 lays out datasets and indexes, with offsets far away)
 *   save   begin -> place (one chunk after the other) ... -> seal (rows of the table, indexes and end of the file)
 *
 * Chunks follow each other in the order of boxes, each on its own pages, after everything that HDF5 laid out and before
 * the trailer. So a save does not call HDF5, and the file is only as long as its chunks need.
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

/* Creates the dataset and fills place->grid. */
PD_MUST_USE pd_status pd_shard_chunks_add(struct pd_shard_chunks *chunks, struct pd_h5_file *file, const char *path,
                                          enum pd_h5_type type, const struct pd_tensor *tensor,
                                          const struct pd_shard_box *box, struct pd_shard_place *place,
                                          struct pd_error *err);
void pd_shard_chunks_count(const struct pd_shard_chunks *chunks, struct pd_shard_counts *counts);
/* `table` is complete except for the rows of chunks. `file_bytes` counts the trailer but no chunks. Borrowed for life. */
PD_MUST_USE pd_status pd_shard_chunks_plan(struct pd_shard_chunks *chunks, const struct pd_h5_pages *pages, void *table,
                                           uint64_t file_bytes, struct pd_error *err);
uint64_t pd_shard_chunks_most_bytes(const struct pd_shard_chunks *chunks);     /* of the file, if nothing compresses */
uint64_t pd_shard_chunks_expected_bytes(const struct pd_shard_chunks *chunks); /* as the previous save */

const struct pd_shard_codec *pd_shard_chunks_codec(const struct pd_shard_chunks *chunks);
/* Call once for each thread that compresses at the same time. */
PD_MUST_USE pd_status pd_shard_chunks_zstd(struct pd_shard_chunks *chunks, uint32_t thread, struct pd_zstd **ret_zstd,
                                           struct pd_error *err);

void pd_shard_chunks_begin(struct pd_shard_chunks *chunks);
/* Places the next chunk and returns its file offset. */
uint64_t pd_shard_chunks_place(struct pd_shard_chunks *chunks, uint64_t stored_bytes, uint64_t digest, uint32_t filter_mask);
PD_MUST_USE pd_status pd_shard_chunks_seal(struct pd_shard_chunks *chunks, struct pd_h5_pages *pages,
                                           uint64_t *ret_file_bytes, struct pd_error *err);
