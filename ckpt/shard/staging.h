/* Bytes of one file on their way to the disk, in a few large writes: small pieces are put together in slots of the staging
 * buffers, and a full slot goes to the disk while the next one is filled. Large pieces may go from where they lie.
 *
 * A file that lies in memory has one slot and no queue: each write is made at once, by the caller.
 *
 *   invariants  1. what was written from where it lies may not change before finish
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
    uint64_t offset, bytes;           /* of the file: where current begins, and how much of it is filled */
};

/* Cuts `buffers` into slots, at most PD_STAGING_SLOTS_MAX. `queue`: borrowed; NULL: the file lies in memory. */
void pd_shard_staging_init(struct pd_shard_staging *staging, struct pd_file *file, struct pd_queue *queue, void *buffers,
                           uint64_t buffer_bytes, uint64_t slot_bytes);
bool pd_shard_staging_is_in_memory(const struct pd_shard_staging *staging);
/* Room for the bytes of the file from `offset` on, at most `wanted`, to be filled before the next call. */
PD_MUST_USE pd_status pd_shard_staging_room(struct pd_shard_staging *staging, uint64_t offset, uint64_t wanted,
                                            unsigned char **ret_room, uint64_t *ret_bytes, struct pd_error *err);
/* Copies; NULL data: zeros. */
PD_MUST_USE pd_status pd_shard_staging_put(struct pd_shard_staging *staging, uint64_t offset, const void *data,
                                           uint64_t bytes, struct pd_error *err);
/* A zero-copy write: from where the data lies, aligned as the file asks for. */
PD_MUST_USE pd_status pd_shard_staging_write(struct pd_shard_staging *staging, uint64_t offset, const void *data,
                                             uint64_t bytes, struct pd_error *err);
/* `st` of what was staged so far: where it is PD_OK sends what is left. Waits for everything. */
PD_MUST_USE pd_status pd_shard_staging_finish(struct pd_shard_staging *staging, pd_status st, struct pd_error *err);
