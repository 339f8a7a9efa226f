/* A second file with the same bytes as a finished shard, where it cannot be linked. */
#ifndef PD_CKPT_SHARD_COPY_H
#define PD_CKPT_SHARD_COPY_H

#include "ckpt/shard.h"

/* Reads `from` once, with direct I/O where that works, verifies every byte on the way, writes and syncs `to`, which is made
 * or overwritten in place. `buffers` (buffer_bytes, aligned to PD_DOOR_ALIGN): at least 1 MiB. errors  PD_CORRUPT: `from` is
 * damaged; after any error `to` is worthless and must be unlinked, never reused memory  tables of the shard while it runs: 8
 * bytes a block */
PD_MUST_USE pd_status pd_shard_copy(struct pd_door *door, const char *from, const char *to,
                                    const struct pd_identity *identity, void *buffers, uint64_t buffer_bytes,
                                    struct pd_error *err);

#endif
