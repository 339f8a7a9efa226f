#include "ckpt/store/files.h"

static pd_status open_writable(struct store_files *files, const struct pd_store_options *options, struct pd_error *err)
{
    struct store_dir *dir = &files->dir;
    PD_TRY(pd_group_agree(dir->group, dir->leads_host ? store_dir_make(dir, err) : PD_OK, err));
    return store_lease_take(&files->lease, dir, options->busy_wait_ms, err);
}

pd_status store_files_open_pool(struct store_files *files, const struct pd_store_options *options, struct pd_error *err)
{
    PD_TRY(store_pool_open(&files->pool, &files->dir, files->lease.fence, err));
    files->pool.free_max = options->generations ? pd_store_generations_needed(options, files->dir.has_links) : 2;
    return PD_OK;
}

pd_status store_files_open(struct store_files *files, struct pd_vfs *vfs, struct pd_group *group, const char *root,
                           const struct pd_store_options *options, struct pd_error *err)
{
    PD_TRY(store_dir_open(&files->dir, vfs, group, root, err));
    return options->writable ? open_writable(files, options, err) : PD_OK;
}

void store_files_close(struct store_files *files, bool forgets)
{
    store_pool_close(&files->pool);
    store_lease_release(&files->lease, forgets);
    store_dir_close(&files->dir);
}

void store_files_clear_launches(const struct store_files *files)
{
    const struct store_dir *dir = &files->dir;
    struct pd_listing listing = {0};
    if (!dir->leads_share || pd_vfs_list(dir->vfs, dir->root, &listing, NULL) != PD_OK) return;
    for (uint32_t i = 0; i < listing.count; i++) {
        uint64_t number;
        const struct store_text path = store_at(dir, "%s", listing.names[i]);
        if (pd_numbered_name_parse(listing.names[i], "pool-", &number) && number < files->lease.fence)
            store_pool_clear(&files->pool, listing.names[i]);
        if (pd_numbered_name_parse(listing.names[i], "fence-", &number) && number < files->lease.fence &&
            files->pool.fence) /* otherwise this launch may still remove its own */
            (void)!pd_vfs_unlink(dir->vfs, path.text, NULL);
    }
    pd_listing_deinit(&listing);
}
