/* The quarantine: damaged checkpoints. Nothing in it is trusted or reused; its space is capped. */
#include "ckpt/base/log.h"
#include "ckpt/store/remove.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct quarantined {
    struct pd_step_name name;
    char text[PD_STORE_NAME_MAX];
    uint64_t bytes;
};

/* Parses step-S-F, or step-S-F.2, .3, ... for a name that existed already. */
static bool parse_quarantined(const char *text, struct pd_step_name *ret_name)
{
    char name[PD_STORE_NAME_MAX];
    snprintf(name, sizeof name, "%s", text);
    char *dot = strrchr(name, '.');
    if (dot && dot[1] && dot[strspn(dot + 1, "0123456789") + 1] == '\0') *dot = '\0';
    return pd_step_name_parse(name, ret_name);
}

static int oldest_first(const void *a, const void *b)
{
    const struct quarantined *x = a, *y = b;
    if (x->name.fence != y->name.fence) return x->name.fence < y->name.fence ? -1 : 1;
    if (x->name.step != y->name.step) return x->name.step < y->name.step ? -1 : 1;
    return strcmp(x->text, y->text);
}

static pd_status remove_quarantined(const struct store_files *files, const struct quarantined *victim, struct pd_error *err)
{
    const struct store_text path = store_at(&files->dir, "quarantine/%s", victim->text);
    pd_log_info("ckpt", "%s is removed: the quarantine is full", path.text);
    if (store_is_link(&files->dir, path.text)) return pd_vfs_unlink(files->dir.vfs, path.text, err);
    return store_remove_files(&files->dir, path.text, err);
}

static pd_status enforce_cap(const struct store_files *files, uint64_t bytes_max, struct pd_error *err)
{
    const struct store_dir *root = &files->dir;
    struct pd_listing listing = {0};
    PD_TRY(pd_vfs_list(root->vfs, store_at(root, "quarantine").text, &listing, err));
    struct quarantined *rows = calloc((size_t)listing.count + 1, sizeof *rows);
    uint32_t count = 0;
    uint64_t total = 0;
    for (uint32_t i = 0; rows && i < listing.count; i++) {
        if (!parse_quarantined(listing.names[i], &rows[count].name)) continue;
        snprintf(rows[count].text, sizeof rows[count].text, "%s", listing.names[i]);
        rows[count].bytes = store_bytes_in(root, store_at(root, "quarantine/%s", listing.names[i]).text, NULL);
        total += rows[count++].bytes;
    }
    pd_listing_deinit(&listing);
    if (!rows) PD_FAIL(err, PD_NO_MEMORY, "no memory to list the quarantine");
    qsort(rows, count, sizeof *rows, oldest_first);
    /* Always keep the newest: it shows the next launch that there was something to recover. */
    const uint32_t most = bytes_max && count ? count - 1 : count;
    for (uint32_t i = 0; i < most && total > bytes_max; i++) {
        struct pd_error own;
        if (remove_quarantined(files, &rows[i], &own) == PD_OK)
            total -= rows[i].bytes;
        else
            pd_log_warn("ckpt", "%s/quarantine is over its cap: %s", root->root, own.message);
    }
    free(rows);
    return PD_OK;
}

/* Appends a number if the name exists: the same step quarantined before, then saved or copied here again. */
static pd_status move_there(const struct store_dir *root, const char *name, struct store_text *ret_to, struct pd_error *err)
{
    pd_status st = PD_EXISTS;
    for (unsigned number = 1; st == PD_EXISTS && number < 100; number++) {
        *ret_to = number == 1 ? store_at(root, "quarantine/%s", name) : store_at(root, "quarantine/%s.%u", name, number);
        if (!store_exists(root, ret_to->text) && !store_is_link(root, ret_to->text))
            st = pd_vfs_rename(root->vfs, store_at(root, "%s", name).text, ret_to->text, err);
    }
    if (st == PD_EXISTS) PD_FAIL(err, PD_IO, "%s/quarantine holds too many of the name %s", root->root, name);
    return st;
}

pd_status store_quarantine_here(struct store_files *files, const char *name, const char *reason, uint64_t bytes_max,
                                struct pd_error *err)
{
    struct store_dir *root = &files->dir;
    char text[1024];
    const struct store_text quarantine = store_at(root, "quarantine");
    struct pd_dir *open = NULL;
    pd_status st = pd_vfs_mkdir(root->vfs, quarantine.text, err);
    if (st == PD_EXISTS) st = store_open_below(root, quarantine.text, &open, err); /* do not follow a link */
    pd_dir_close(open);
    PD_TRY(st);
    struct store_text moved;
    st = move_there(root, name, &moved, err);
    if (st == PD_NOT_FOUND) return PD_OK; /* this host had no shard of it */
    PD_TRY(st);
    /* For people; the checkpoint is quarantined with or without it. If it is a link, do not write into its target. */
    snprintf(text, sizeof text, "%.1022s\n", reason);
    const struct store_text to = store_at(root, "%s/" PD_STORE_DAMAGED_NOTE, moved.text + strlen(root->root) + 1);
    if (!store_is_link(root, moved.text) &&
        store_file_write(root->vfs, to.text, PD_OPEN_CREATE | PD_OPEN_TRUNCATE, text, strlen(text), STORE_FILE_LEAVE, NULL))
        pd_log_warn("ckpt", "%s could not be written", to.text);
    PD_TRY(store_sync_dir(root, store_at(root, "quarantine").text, err));
    PD_TRY(store_sync_dir(root, root->root, err));
    return enforce_cap(files, bytes_max, err);
}

/* True for any name of a quarantined checkpoint. */
static bool is_quarantined(const struct store_dir *root, const char *text)
{
    struct pd_step_name name;
    struct pd_stat stat;
    return parse_quarantined(text, &name) ||
           pd_vfs_stat(root->vfs, store_at(root, "quarantine/%s/commit.h5", text).text, &stat, NULL) == PD_OK;
}

static pd_status count_here(const struct store_dir *root, uint64_t *ret_count, struct pd_error *err)
{
    struct pd_listing listing = {0};
    *ret_count = 0;
    pd_status st = pd_vfs_list(root->vfs, store_at(root, "quarantine").text, &listing, err);
    if (st == PD_NOT_FOUND) return PD_OK;
    PD_TRY(st);
    for (uint32_t i = 0; i < listing.count; i++)
        *ret_count += is_quarantined(root, listing.names[i]);
    pd_listing_deinit(&listing);
    return PD_OK;
}

pd_status store_quarantine_count(struct store_dir *root, uint32_t *ret_count, struct pd_error *err)
{
    uint64_t mine = 0, most;
    pd_status st = root->leads_share ? count_here(root, &mine, err) : PD_OK;
    PD_TRY(pd_group_agree(root->group, st, err));
    PD_TRY(store_gather_most(root, mine, &most, err));
    *ret_count = (uint32_t)most;
    return PD_OK;
}
