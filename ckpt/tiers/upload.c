/* Uploads a checkpoint of an earlier tier to a bucket: files unchanged, the record with the bucket's fence. */
#include "ckpt/tiers/internal.h"

#include <stdio.h>

pd_status tier_upload(struct tier *tier, struct tier_job *job, struct pd_error *err)
{
    struct pd_commit commit = {0};
    char path[TIERS_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/commit.h5", job->source);
    pd_status st = pd_group_agree(tier->group, pd_commit_read(tier->tiers->vfs, path, &commit, err), err);
    if (!st) {
        uint64_t bytes = 0, here = 0;
        for (uint32_t i = 0; i < commit.shard_count; i++) {
            bytes += commit.shards[i].file_bytes;
            if (i % tier->group->size == tier->group->rank) here += commit.shards[i].file_bytes;
        }
        tier_report_upload(tier, job->step, bytes, here);
        pd_owner_acquire(&tier->staging_is, "an upload");
        st = pd_bucket_store_save(tier->bucket, tier->tiers->vfs, job->source, &commit, job->name, err);
        pd_owner_release(&tier->staging_is, "an upload");
        tier_report_upload(tier, 0, 0, 0);
    }
    pd_commit_deinit(&commit);
    return st;
}
