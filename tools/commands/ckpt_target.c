#include "tools/commands/ckpt_target.h"

#include "ckpt/base/words.h"
#include "ckpt/store/paths.h"
#include "resharder/catalog/model_directory.h"

#include <stdio.h>

pd_status pd_ckpt_target_open(struct pd_vfs *vfs, const char *path, struct pd_ckpt_target *ret_target, struct pd_error *err)
{
    static const struct pd_store_options options = {
        .writable = true, .keep_last = UINT32_MAX, .quarantine_bytes_max = UINT64_MAX, .leaves_nothing = true};
    const pd_status st = pd_vfs_mkdir(vfs, path, err);
    if (st && st != PD_EXISTS) return pd_formats_explain_above(st, path, err);
    *ret_target = (struct pd_ckpt_target){.vfs = vfs, .path = path, .has_made = !st};
    if (st && !pd_formats_is_directory(vfs, path))
        PD_FAIL(err, PD_USAGE, "%s is not a directory; name one for the checkpoint", path);
    PD_TRY(pd_ckpt_place_open(path, &options, &ret_target->place, err));
    if (ret_target->place.named[0])
        PD_FAIL(err, PD_USAGE, "%s is one checkpoint; name a directory to put the new one in", path);
    return PD_OK;
}

static bool has_committed(const struct pd_store *store)
{
    for (uint32_t i = 0; i < pd_store_count(store); i++)
        if (pd_store_entry_at(store, i)->fence == pd_store_fence(store)) return true;
    return false;
}

/* The launch of this fence wrote what has this name. The fence itself is spent, and stays where others were before it. */
static bool is_of_fence(const char *name, uint64_t fence)
{
    struct pd_step_name step;
    uint64_t number;
    if (pd_step_name_parse(name, &step)) return step.fence == fence;
    return pd_numbered_name_parse(name, "pool-", &number) && number == fence;
}

/* ret_name  "": nothing. A checkpoint that was begun is told before what lies beside it. */
static void find_left(const struct pd_ckpt_target *t, const char *root, uint64_t fence, char ret_name[PD_STORE_NAME_MAX])
{
    struct pd_listing listing;
    ret_name[0] = '\0';
    if (pd_vfs_list(t->vfs, root, &listing, NULL)) return;
    for (uint32_t i = 0; i < listing.count; i++)
        if (is_of_fence(listing.names[i], fence) && (!ret_name[0] || listing.names[i][0] == 's'))
            snprintf(ret_name, PD_STORE_NAME_MAX, "%s", listing.names[i]);
    pd_listing_deinit(&listing);
}

pd_status pd_ckpt_target_close(struct pd_ckpt_target *t, pd_status mine, struct pd_error *err)
{
    char root[4096], left[PD_STORE_NAME_MAX] = "";
    const bool is_undone = mine && t->place.store && !has_committed(t->place.store);
    const uint64_t fence = is_undone ? pd_store_fence(t->place.store) : 0;
    if (is_undone) snprintf(root, sizeof root, "%s", t->place.root);
    if (t->place.vfs) pd_ckpt_place_close(&t->place);
    if (is_undone) find_left(t, root, fence, left);
    if (mine && t->has_made) (void)!pd_vfs_rmdir(t->vfs, t->path, NULL);
    if (is_undone) {
        /* *err of who was asked to leave is about what became of what was written, and nothing else. */
        if (mine == PD_STOPPED) (void)pd_error_set(err, PD_STOPPED, PD_WHERE, 0, "asked to leave");
        if (left[0])
            pd_error_append(err, "; %s/%s could not be removed, and whoever writes a checkpoint there next removes it", root,
                            left);
        else if (mine == PD_STOPPED)
            pd_error_append(err, ": what was written in %s is removed", t->path);
    }
    return mine;
}
