/* Saves a run's checkpoints to a bucket and removes old ones. To read them, use a pd_store over the VFS, as for a directory.
 *
 *   <prefix>/fence-N                       one per launch, put with If-None-Match; a launch deletes older fences
 *   <prefix>/step-S-F/shard-00000.h5, ...  each rank verifies its own shard, then puts it
 *   <prefix>/step-S-F/commit.h5            put last, with If-None-Match: this commits the checkpoint
 *   <prefix>/tokenizer.json                a copy for readers, put once per launch, after its first checkpoint
 *
 *   invariants  1. F is the fence of the launch that saves, so two launches never put the same name
 *               2. the record is put when every shard is there and our fence is the highest. The save succeeds only if our
 *                  fence is still the highest afterwards. A newer launch puts its fence before it looks for records, so
 *                  either it sees this record or this launch sees its fence
 *               3. removing a checkpoint deletes the record first, then the shards
 *               4. a directory without a record is removed if its fence is below ours, or if its fence is ours and we never
 *                  sent its record: a record that was sent without an answer may still arrive
 *   threads     one caller per rank; every rank makes the same calls */
#pragma once

#include "ckpt/group/group.h"
#include "ckpt/store/store.h"

#define PD_BUCKET_STORE_MEMORY_LEAST (UINT64_C(8) << 20) /* one part */

struct pd_bucket_store;

struct pd_bucket_store_options {
    uint32_t keep_last; /* as in pd_store_options */
    uint64_t keep_every;
    const char *beside;    /* file to put beside the checkpoints under its own name; it may be absent; borrowed; or NULL */
    bool only_removes;     /* take no fence: for pruning while a launch may be running */
    void *memory;          /* send buffer, aligned to PD_VFS_ALIGN; borrowed until close; NULL if only_removes */
    uint64_t memory_bytes; /* at least PD_BUCKET_STORE_MEMORY_LEAST */
    uint64_t bytes_per_second;   /* upload limit of this rank; 0: none */
    _Atomic uint64_t *sent;      /* uploads add their file bytes; borrowed until close; may be NULL */
    const _Atomic bool *stop;    /* setting it ends running calls; borrowed until close; may be NULL */
    void (*wait)(void *context); /* as in pd_upload */
    void *wait_context;
};

/* Collective. Probes the server from every rank, takes the next fence, aborts uploads and removes shards that dead launches
 * left.
 *   errors  PD_UNSUPPORTED: the server has no working conditional PUT; PD_INVALID: no such bucket, no credentials; PD_IO */
PD_MUST_USE pd_status pd_bucket_store_open(const char *url, const struct pd_bucket_store_options *options,
                                           struct pd_group *group, struct pd_bucket_store **ret_store, struct pd_error *err);
void pd_bucket_store_close(struct pd_bucket_store *store); /* NULL is fine */
uint64_t pd_bucket_store_fence(const struct pd_bucket_store *store);
/* Gives retention the checkpoints that `found` lists. Open `found` after the bucket store. */
PD_MUST_USE pd_status pd_bucket_store_take(struct pd_bucket_store *store, const struct pd_store *found,
                                           struct pd_error *err);

/* Collective. Uploads the committed checkpoint in directory `source` of `vfs`, with record `commit`. ret_name (64 bytes)
 * gets its name in the bucket. If there are more shards than ranks, ranks upload several.
 *   errors  PD_BUSY: another launch has taken over; PD_CORRUPT: a shard does not verify; PD_STOPPED; PD_IO; PD_PEER_LOST */
PD_MUST_USE pd_status pd_bucket_store_save(struct pd_bucket_store *store, struct pd_vfs *vfs, const char *source,
                                           const struct pd_commit *commit, char *ret_name, struct pd_error *err);
/* Collective. Removes checkpoints that retention does not keep and leftovers of failed saves. Returns the first failure. */
PD_MUST_USE pd_status pd_bucket_store_prune(struct pd_bucket_store *store, struct pd_error *err);
