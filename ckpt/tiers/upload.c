/* A checkpoint of an earlier tier goes into a bucket: files as they are, the record with the bucket's fence. */
#include "ckpt/tiers/internal.h"

#include <stdio.h>

pd_status tier_upload(struct tier *tier, struct tier_job *job, struct pd_error *err)
{
    struct pd_commit commit = {0};
    char path[TIERS_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/commit.h5", job->source);
    pd_status st = pd_group_agree(tier->group, pd_commit_read(tier->tiers->vfs, path, &commit, err), err);
    if (!st) {
        pd_owner_acquire(&tier->staging_is, "an upload");
        st = pd_bucket_store_save(tier->bucket, tier->tiers->vfs, job->source, &commit, job->name, err);
        pd_owner_release(&tier->staging_is, "an upload");
    }
    pd_commit_deinit(&commit);
    return st;
}
