/* Collects the writes of one file into a few large ones: small pieces are copied into slots of the staging buffers, and a
 * full slot is written while the next one fills. Large pieces may be written without a copy.
 *
 * For a file in a memory file system there is one slot and no queue: the caller makes each write at once.
 *
 *   invariants  1. data written without a copy may not change before finish
 *               2. after finish nothing is in flight, whatever failed; it must be called
 *   threads     one: the queue's */
#pragma once

#include "ckpt/io/transfer_ring.h"

#define PD_STAGING_SLOTS_MAX 32u

struct pd_shard_staging {
    struct pd_file *file;
    uint64_t slot_bytes;
    struct pd_transfer_slot slots[PD_STAGING_SLOTS_MAX];
    struct pd_transfer_ring ring;
    struct pd_transfer_slot *current; /* being filled, or NULL */
    uint64_t offset, bytes;           /* of the file: where current begins, and how many bytes of it are filled */
};

/* Cuts `buffers` into at most PD_STAGING_SLOTS_MAX slots. `queue`: borrowed; NULL: the file is in memory. */
void pd_shard_staging_init(struct pd_shard_staging *staging, struct pd_file *file, struct pd_queue *queue, void *buffers,
                           uint64_t buffer_bytes, uint64_t slot_bytes);
bool pd_shard_staging_is_in_memory(const struct pd_shard_staging *staging);
/* Returns a buffer for at most `wanted` bytes of the file from `offset` on. Fill it before the next call. */
PD_MUST_USE pd_status pd_shard_staging_reserve(struct pd_shard_staging *staging, uint64_t offset, uint64_t wanted,
                                               unsigned char **ret_space, uint64_t *ret_bytes, struct pd_error *err);
/* Copies `data`; NULL: zeros. */
PD_MUST_USE pd_status pd_shard_staging_put(struct pd_shard_staging *staging, uint64_t offset, const void *data,
                                           uint64_t bytes, struct pd_error *err);
/* Writes straight from `data`, which must be aligned as the file requires. */
PD_MUST_USE pd_status pd_shard_staging_write(struct pd_shard_staging *staging, uint64_t offset, const void *data,
                                             uint64_t bytes, struct pd_error *err);
/* `st`: status of the staging so far; if PD_OK, writes the rest. Waits for all writes. */
PD_MUST_USE pd_status pd_shard_staging_finish(struct pd_shard_staging *staging, pd_status st, struct pd_error *err);
