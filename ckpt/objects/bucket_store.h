/* Checkpoints of a run in a bucket: how they come there and how they go. They are read as any others, by a pd_store through
 * the VFS.
 *
 *   <prefix>/fence-N                       one a launch, put with If-None-Match; older ones go
 *   <prefix>/step-S-F/shard-00000.h5, ...  put by the rank whose shard it is, verified before
 *   <prefix>/step-S-F/commit.h5            put last, with If-None-Match: this commits the checkpoint
 *
 *   invariants  1. F is the fence of the launch that puts it, so two launches never put one name
 *               2. the record is put when every shard is there, and after a look that our fence is the highest; only a second
 *                  look, after it, makes the save a success. A newer launch puts its fence before it looks for records, so
 *                  that it sees this one, or this launch sees that fence
 *               3. the record goes first, then the rest
 *               4. what has no record is removed if its fence is below ours, or if it is ours and its record was never sent: a
 *                  record whose answer did not come may still arrive
 *   threads     one caller on each rank, alike on all */
#pragma once

#include "ckpt/group/group.h"
#include "ckpt/store/store.h"

#define PD_BUCKET_STORE_MEMORY_LEAST (UINT64_C(8) << 20) /* a part */

struct pd_bucket_store;

struct pd_bucket_store_options {
    uint32_t keep_last; /* as in pd_store_options */
    uint64_t keep_every;
    bool only_removes;         /* takes no fence: for retention beside a launch that may live */
    void *memory;              /* of what is sent, aligned to PD_VFS_ALIGN; borrowed until close; NULL: only_removes */
    uint64_t memory_bytes;     /* at least PD_BUCKET_STORE_MEMORY_LEAST */
    uint64_t bytes_per_second; /* of this rank; 0: no limit */
    _Atomic uint64_t *sent;    /* bytes of files, added to; borrowed until close; may be NULL */
    const _Atomic bool *stop;  /* ends what is under way; borrowed until close; NULL: nothing does */
};

/* Collective: tries what the server promises, takes the next fence, aborts uploads and removes shards of dead attempts.
 *   errors  PD_UNSUPPORTED: the server cannot keep two launches apart; PD_INVALID: no such bucket, no credentials; PD_IO */
PD_MUST_USE pd_status pd_bucket_store_open(const char *url, const struct pd_bucket_store_options *options,
                                           struct pd_group *group, struct pd_bucket_store **ret_store, struct pd_error *err);
void pd_bucket_store_close(struct pd_bucket_store *store); /* NULL is fine */
uint64_t pd_bucket_store_fence(const struct pd_bucket_store *store);
/* What was found there, for retention: opened after the bucket store. */
PD_MUST_USE pd_status pd_bucket_store_take(struct pd_bucket_store *store, const struct pd_store *found,
                                           struct pd_error *err);

/* Collective: the committed checkpoint in directory `source` of `vfs`, whose record is `commit`, gets into the bucket under
 * ret_name (64 bytes). Shards that outnumber the ranks are dealt out.
 *   errors  PD_BUSY: another launch has taken over; PD_CORRUPT: a shard does not verify; PD_STOPPED; PD_IO; PD_PEER_LOST */
PD_MUST_USE pd_status pd_bucket_store_save(struct pd_bucket_store *store, struct pd_vfs *vfs, const char *source,
                                           const struct pd_commit *commit, char *ret_name, struct pd_error *err);
/* Collective: removes what retention does not keep, and what failed attempts have left. Returns the first failure. */
PD_MUST_USE pd_status pd_bucket_store_prune(struct pd_bucket_store *store, struct pd_error *err);
