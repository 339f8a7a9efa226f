#include "tools/library/prune.h"

#include "ckpt/objects/bucket_store.h"

/* Beside a launch that may live: of that nothing is touched but what retention lets go. */
static pd_status prune_bucket(struct pd_ckpt_place *place, uint32_t keep_last, uint64_t keep_every, struct pd_error *err)
{
    static const struct pd_store_options look = {.quiet = true};
    const struct pd_bucket_store_options options = {.keep_last = keep_last, .keep_every = keep_every, .only_removes = true};
    struct pd_bucket_store *bucket = NULL;
    PD_TRY(pd_bucket_store_open(place->root, &options, &place->group, &bucket, err));
    pd_status st = pd_bucket_store_take(bucket, place->store, err);
    if (!st) st = pd_bucket_store_prune(bucket, err);
    pd_bucket_store_close(bucket);
    struct pd_error own = {0};
    const pd_status looked = pd_ckpt_place_reopen(place, &look, &own);
    return st ? st : pd_error_pass(err, looked, &own);
}

static pd_status prune_directory(struct pd_ckpt_place *place, uint32_t keep_last, uint64_t keep_every, uint32_t *before,
                                 struct pd_error *err)
{
    const struct pd_store_options options = {
        .writable = true, .keep_last = keep_last, .keep_every = keep_every, .quarantine_bytes_max = UINT64_MAX};
    PD_TRY(pd_ckpt_place_reopen(place, &options, err));
    if (pd_store_count(place->store) > *before) *before = pd_store_count(place->store); /* one was rolled forward */
    return pd_store_prune(place->store, err);
}

pd_status pd_ckpt_prune(struct pd_ckpt_place *place, uint32_t keep_last, uint64_t keep_every,
                        struct pd_ckpt_pruned *ret_pruned, struct pd_error *err)
{
    uint32_t before = pd_store_count(place->store);
    if (!before) {
        *ret_pruned = (struct pd_ckpt_pruned){0};
        return PD_OK;
    }
    const pd_status st = pd_vfs_is_remote(place->root) ? prune_bucket(place, keep_last, keep_every, err)
                                                       : prune_directory(place, keep_last, keep_every, &before, err);
    *ret_pruned = (struct pd_ckpt_pruned){before, place->store ? pd_store_count(place->store) : before};
    return st;
}
