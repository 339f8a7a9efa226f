/* Copies a checkpoint from one tier into another: this rank's shard, then a commit as in any save. */
#include "ckpt/base/fault.h"
#include "ckpt/shard/transcode.h"
#include "ckpt/tiers/internal.h"

#include <stdio.h>

static pd_status copy_shard(struct tier *tier, const struct tier_job *job, const struct pd_commit *commit, const char *path,
                            struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    const uint32_t shard = tier->group->rank;
    struct pd_shard_copy copy = {.to = path,
                                 .identity = &commit->state.identity,
                                 .expect = &commit->shards[shard],
                                 .buffers = tier->staging,
                                 .buffer_bytes = PD_TIERS_STAGING_BYTES,
                                 .bytes_per_second = tier->bytes_per_second,
                                 .stop = &tier->worker.stop};
    char from[TIERS_PATH_MAX + 64];
    snprintf(from, sizeof from, "%s/%s", job->source, pd_shard_name(shard).text);
    copy.from = from;
    return pd_shard_transcode(tier->tiers->vfs, &copy, &tier->options.codec, ret_summary, err);
}

pd_status tier_read_source(const struct tier *tier, const struct tier_job *job, struct pd_commit *ret_commit,
                           struct pd_error *err)
{
    char path[TIERS_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/commit.h5", job->source);
    PD_TRY(pd_commit_read(tier->tiers->vfs, path, ret_commit, err));
    if (ret_commit->shard_count == tier->group->size) return PD_OK;
    pd_commit_deinit(ret_commit);
    *ret_commit = (struct pd_commit){0};
    PD_FAIL(err, PD_BUG, "%s is of another number of ranks", path);
}

pd_status tier_copy(struct tier *tier, struct tier_job *job, struct pd_error *err)
{
    struct pd_commit commit = {0};
    char path[TIERS_PATH_MAX];
    pd_status st = pd_group_agree(tier->group, tier_read_source(tier, job, &commit, err), err);
    if (!st) st = pd_store_begin(tier->store, &commit.state.identity, path, err);
    if (!st) {
        struct pd_shard_summary summary = commit.shards[tier->group->rank];
        pd_owner_acquire(&tier->staging_is, "a copy between tiers");
        st = copy_shard(tier, job, &commit, path, &summary, err);
        pd_owner_release(&tier->staging_is, "a copy between tiers");
        pd_fault_point("tiers.copy.copied");
        st = pd_store_commit(tier->store, st, &summary, &commit.state, err);
        if (!st) pd_fault_point("tiers.copy.sealed");
    } else if (st == PD_EXISTS) {
        st = PD_OK; /* committed by this launch in an earlier attempt */
    }
    pd_commit_deinit(&commit);
    return st;
}
