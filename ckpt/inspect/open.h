/* The opened checkpoint shared by the files of inspect/. */
#pragma once

#include "ckpt/inspect/inspect.h"

#include <pthread.h>

#define PD_INSPECT_BUFFER_BYTES (16u << 20)
#define PD_INSPECT_OPEN_MAX 128u /* shards open at a time: file descriptors are scarce */

struct pd_inspect {
    struct pd_vfs *vfs;
    char *directory;
    struct pd_commit commit;
    struct pd_tensor_table tensors;
    uint32_t tensor_capacity;
    uint32_t *name_slots; /* (slot_count) open addressing; each slot holds tensor number + 1 */
    uint32_t slot_count;
    struct pd_inspect_box *boxes; /* (box_count) by tensor, kind, start */
    uint64_t box_count;
    uint64_t *tensor_first;                   /* (tensors.count * PD_KIND_COUNT + 1) first box of each tensor and kind */
    pthread_mutex_t mutex;                    /* guards the fields of open shards */
    struct pd_shard **shards;                 /* (shard_count) open ones */
    uint32_t *pins;                           /* (shard_count) acquired and not released */
    uint32_t open_order[PD_INSPECT_OPEN_MAX]; /* ring of open shard numbers */
    uint32_t open_next;
    pd_status incomplete; /* first failure to open a shard */
    struct pd_error incomplete_error;
    unsigned char *buffers; /* (PD_INSPECT_BUFFER_BYTES), aligned */
    uint64_t data_bytes;    /* of all shards, according to the record */
};

/* Open until it is released. Any thread may acquire a shard; what reads through its buffers takes turns.
 *   errors  PD_BUSY: PD_INSPECT_OPEN_MAX shards are acquired */
PD_MUST_USE pd_status pd_inspect_acquire(struct pd_inspect *inspect, uint32_t shard, struct pd_shard **ret_shard,
                                         struct pd_error *err);
void pd_inspect_release(struct pd_inspect *inspect, uint32_t shard);
