#include "ckpt/store/drives.h"

static pd_status open_writable(struct store_drive *drive, const struct pd_store_options *options, struct pd_error *err)
{
    struct store_dir *dir = &drive->dir;
    PD_TRY(pd_group_agree(dir->group, dir->leads_host ? store_dir_make(dir, err) : PD_OK, err));
    return store_lease_take(&drive->lease, dir, options->busy_wait_ms, err);
}

pd_status store_drive_open_pool(struct store_drive *drive, const struct pd_store_options *options, struct pd_error *err)
{
    PD_TRY(store_pool_open(&drive->pool, &drive->dir, drive->lease.fence, err));
    drive->pool.free_max = options->generations ? pd_store_generations_needed(options, drive->dir.has_links) : 2;
    return PD_OK;
}

pd_status store_drive_open(struct store_drive *drive, struct pd_vfs *vfs, struct pd_group *group, const char *root,
                           const struct pd_store_options *options, struct pd_error *err)
{
    PD_TRY(store_dir_open(&drive->dir, vfs, group, root, err));
    return options->writable ? open_writable(drive, options, err) : PD_OK;
}

void store_drive_close(struct store_drive *drive, bool forgets)
{
    store_pool_close(&drive->pool);
    store_lease_release(&drive->lease, forgets);
    store_dir_close(&drive->dir);
}

void store_drive_clear_launches(const struct store_drive *drive)
{
    const struct store_dir *dir = &drive->dir;
    struct pd_listing listing = {0};
    if (!dir->leads_share || pd_vfs_list(dir->vfs, dir->root, &listing, NULL) != PD_OK) return;
    for (uint32_t i = 0; i < listing.count; i++) {
        uint64_t number;
        const struct store_text path = store_at(dir, "%s", listing.names[i]);
        if (pd_numbered_name_parse(listing.names[i], "pool-", &number) && number < drive->lease.fence)
            store_pool_clear(&drive->pool, listing.names[i]);
        if (pd_numbered_name_parse(listing.names[i], "fence-", &number) && number < drive->lease.fence &&
            drive->pool.fence) /* else this launch may give its own back */
            (void)!pd_vfs_unlink(dir->vfs, path.text, NULL);
    }
    pd_listing_deinit(&listing);
}
