#include "ckpt/store/dir.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/store/probe.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROOT_MAX 3500u /* leaves space for every name below it */
#define LOCK_POLL_MS 50u

/* ---- paths ---- */

pd_status store_absolute(const char *root, char ret_path[STORE_PATH_MAX], struct pd_error *err)
{
    char here[STORE_PATH_MAX] = "";
    if (root[0] != '/' && !pd_vfs_is_remote(root) && !getcwd(here, sizeof here))
        PD_FAIL(err, PD_IO, "the current directory cannot be found");
    size_t length = strlen(root);
    while (length > 1 && root[length - 1] == '/')
        length--;
    if (length == 0 || strlen(here) + length >= ROOT_MAX)
        PD_FAIL(err, PD_INVALID, "the path of the checkpoint directory has %zu bytes: 1 to %u are possible", length,
                ROOT_MAX - 1);
    snprintf(ret_path, STORE_PATH_MAX, "%s%s%.*s", here, here[0] ? "/" : "", (int)length, root);
    return PD_OK;
}

struct store_text store_at(const struct store_dir *dir, const char *format, ...)
{
    struct store_text path;
    va_list arguments;
    const int used = snprintf(path.text, sizeof path.text, "%s/", dir->root);
    va_start(arguments, format);
    const int more = vsnprintf(path.text + used, sizeof path.text - (size_t)used, format, arguments);
    va_end(arguments);
    PD_CHECK(more >= 0 && (size_t)(used + more) < sizeof path.text);
    return path;
}

bool store_exists(const struct store_dir *dir, const char *path)
{
    struct pd_stat stat;
    return pd_vfs_stat(dir->vfs, path, &stat, NULL) != PD_NOT_FOUND;
}

bool store_is_link(const struct store_dir *dir, const char *path)
{
    char target[STORE_PATH_MAX];
    return pd_vfs_readlink(dir->vfs, path, target, NULL) == PD_OK;
}

uint64_t store_bytes_in(const struct store_dir *dir, const char *path,
                        bool (*counts)(const struct store_dir *dir, const char *file))
{
    struct pd_listing listing = {0};
    struct pd_stat stat;
    uint64_t bytes = 0;
    if (pd_vfs_list(dir->vfs, path, &listing, NULL) != PD_OK) return 0;
    for (uint32_t i = 0; i < listing.count; i++) {
        if (counts && !counts(dir, listing.names[i])) continue;
        char file[STORE_PATH_MAX];
        snprintf(file, sizeof file, "%.3800s/%.255s", path, listing.names[i]);
        if (pd_vfs_stat(dir->vfs, file, &stat, NULL) == PD_OK) bytes += stat.bytes;
    }
    pd_listing_deinit(&listing);
    return bytes;
}

/* ---- small collectives ---- */

pd_status store_gather(struct store_dir *dir, uint64_t mine, struct pd_error *err)
{
    PD_TRY(pd_group_gather(dir->group, 0, &mine, sizeof mine, dir->words, err));
    return pd_group_broadcast(dir->group, 0, dir->words, dir->group->size * sizeof *dir->words, err);
}

pd_status store_gather_most(struct store_dir *dir, uint64_t mine, uint64_t *ret_most, struct pd_error *err)
{
    PD_TRY(store_gather(dir, mine, err));
    *ret_most = 0;
    for (uint32_t r = 0; r < dir->group->size; r++)
        *ret_most = dir->words[r] > *ret_most ? dir->words[r] : *ret_most;
    return PD_OK;
}

pd_status store_spread(const struct store_dir *dir, uint32_t from, pd_status mine, void **data, uint64_t *bytes,
                       struct pd_error *err)
{
    struct pd_group *group = dir->group;
    pd_status st = pd_group_agree(group, mine, err);
    if (st == PD_OK) st = pd_group_broadcast(group, from, bytes, sizeof *bytes, err);
    if (st == PD_OK) {
        if (group->rank != from) *data = malloc(*bytes + 1);
        mine = PD_ALLOCATED(*data, err, "no memory for %" PRIu64 " bytes", *bytes);
        st = pd_group_agree(group, mine, err);
    }
    if (st == PD_OK) st = pd_group_broadcast(group, from, *data, *bytes, err);
    if (st == PD_OK) return PD_OK;
    free(*data);
    *data = NULL;
    return st;
}

/* ---- who shares it ---- */

/* words: for each rank a number below the count of ranks. */
static void find_firsts(struct store_dir *dir)
{
    for (uint32_t r = dir->group->size; r-- > 0;)
        dir->first_of[dir->words[r]] = r;
}

pd_status store_dir_open(struct store_dir *dir, struct pd_vfs *vfs, struct pd_group *group, const char *root,
                         struct pd_error *err)
{
    const uint32_t size = group->size;
    *dir = (struct store_dir){.vfs = vfs, .group = group, .syncs_names = true};
    dir->host_of = calloc(size, sizeof *dir->host_of);
    dir->share_of = calloc(size, sizeof *dir->share_of);
    dir->words = calloc(size, sizeof *dir->words);
    dir->lead_of = calloc(size, sizeof *dir->lead_of);
    dir->first_of = calloc(size, sizeof *dir->first_of);
    pd_status st = dir->host_of && dir->share_of && dir->words && dir->lead_of && dir->first_of
                       ? store_absolute(root, dir->root, err)
                       : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for %u ranks", size);
    PD_TRY(pd_group_agree(group, st, err));
    PD_TRY(store_gather(dir, group->host, err));
    find_firsts(dir);
    for (uint32_t r = 0; r < size; r++) {
        dir->host_of[r] = (uint32_t)dir->words[r];
        dir->share_of[r] = dir->lead_of[r] = dir->first_of[dir->words[r]];
    }
    dir->leads_host = dir->leads_share = dir->share_of[group->rank] == group->rank;
    return PD_OK;
}

void store_dir_close(struct store_dir *dir)
{
    free(dir->host_of);
    free(dir->share_of);
    free(dir->lead_of);
    free(dir->first_of);
    free(dir->words);
    *dir = (struct store_dir){0};
}

pd_status store_dir_share(struct store_dir *dir, uint32_t host, struct pd_error *err)
{
    const uint32_t size = dir->group->size, rank = dir->group->rank;
    PD_TRY(store_gather(dir, host, err));
    for (uint32_t r = 0; r < size; r++) {
        dir->words[r] = dir->words[dir->lead_of[r]];
        if (dir->words[r] >= size)
            PD_FAIL(err, PD_CORRUPT, "%s: the lock names host %" PRIu64 " of a launch of %u ranks; start the launch again",
                    dir->root, dir->words[r], size);
    }
    find_firsts(dir);
    for (uint32_t r = 0; r < size; r++)
        dir->share_of[r] = dir->first_of[dir->words[r]];
    dir->leads_share = dir->share_of[rank] == rank;
    dir->is_local = true;
    for (uint32_t r = 0; r < size; r++) {
        const bool is_shared = dir->share_of[r] == dir->share_of[rank];
        if (!is_shared) dir->has_other_shares = true;
        if (is_shared && dir->host_of[r] != dir->host_of[rank]) dir->is_local = false;
    }
    return PD_OK;
}

/* ---- what it supports ---- */

/* Syncs each directory of the path. Only a failure of the parent counts, and only if permissions did not cause it. */
static pd_status sync_way(const struct store_dir *dir, struct pd_error *err)
{
    char above[STORE_PATH_MAX];
    pd_status result = PD_OK;
    snprintf(above, sizeof above, "%s", dir->root);
    for (bool is_parent = true; above[1]; is_parent = false) {
        struct pd_error own = {0};
        char *slash = strrchr(above, '/');
        slash[slash == above] = 0;
        const pd_status st = pd_vfs_sync_dir(dir->vfs, above, &own);
        const bool is_ours = own.sys_errno != EACCES && own.sys_errno != EPERM && own.sys_errno != EROFS;
        if (is_parent && st != PD_UNSUPPORTED && is_ours) result = pd_error_pass(err, st, &own);
    }
    return result;
}

pd_status store_dir_make(const struct store_dir *dir, struct pd_error *err)
{
    pd_status st = pd_vfs_mkdir(dir->vfs, dir->root, err);
    if (st == PD_NOT_FOUND) return pd_error_context(err, st, "the directory above %s does not exist: make it", dir->root);
    if (st != PD_OK && st != PD_EXISTS) return pd_probe_explain(err, st, dir->root);
    return sync_way(dir, err);
}

static void log_probe(const struct store_dir *dir, const struct pd_probe *probe)
{
    if (dir->group->rank != 0) return;
    if (!probe->has_locks) pd_log_warn("ckpt", "%s knows no locks: only fences keep two launches apart", dir->root);
    if (!probe->syncs_names)
        pd_log_warn("ckpt", "%s cannot sync directories: a power loss may take the newest checkpoint", dir->root);
    pd_log_debug("ckpt", "%s: %s, links %d, direct I/O %d", dir->root, probe->space.type_name, probe->has_links,
                 probe->is_direct);
}

pd_status store_dir_probe(struct store_dir *dir, const char *path, struct pd_error *err)
{
    char tag[32];
    struct pd_probe probe = {0};
    snprintf(tag, sizeof tag, "%" PRIu32, dir->group->rank);
    pd_status st = dir->leads_host ? pd_probe_directory(dir->vfs, path, tag, &probe, err) : PD_OK;
    PD_TRY(pd_group_agree(dir->group, st, err));
    PD_TRY(store_gather(dir, probe.has_links, err));
    dir->has_links = dir->words[dir->lead_of[dir->group->rank]] != 0;
    if (!dir->leads_host) return PD_OK;
    dir->is_local = dir->is_local && !probe.is_network;
    log_probe(dir, &probe);
    return PD_OK;
}

pd_status store_dir_lock(const struct store_dir *dir, const char *path, uint32_t wait_ms, struct pd_lock **ret_lock,
                         struct pd_error *err)
{
    struct pd_error own = {0};
    pd_status st = pd_vfs_lock(dir->vfs, path, ret_lock, &own);
    for (uint32_t waited = 0; st == PD_BUSY && waited < wait_ms; waited += LOCK_POLL_MS) {
        pd_clock_sleep_ns(LOCK_POLL_MS * 1000000ull);
        st = pd_vfs_lock(dir->vfs, path, ret_lock, &own);
    }
    if (st == PD_UNSUPPORTED) return PD_OK;
    return pd_probe_explain(err, pd_error_pass(err, st, &own), dir->root);
}

pd_status store_sync_dir(struct store_dir *dir, const char *path, struct pd_error *err)
{
    if (!dir->syncs_names) return PD_OK;
    pd_status st = pd_vfs_sync_dir(dir->vfs, path, err);
    if (st != PD_OK && st != PD_UNSUPPORTED) dir->may_bring_back = true;
    if (st != PD_UNSUPPORTED) return st;
    dir->syncs_names = false; /* which the probe logs */
    return PD_OK;
}

pd_status store_link(const struct store_dir *dir, const char *from, const char *to, struct pd_error *err)
{
    if (!dir->has_links) return PD_UNSUPPORTED;
    pd_status st = pd_vfs_link(dir->vfs, from, to, err);
    return st != PD_OK && err->sys_errno == EMLINK ? PD_UNSUPPORTED : st;
}

pd_status store_open_below(const struct store_dir *dir, const char *path, struct pd_dir **ret_dir, struct pd_error *err)
{
    const size_t length = strlen(dir->root);
    PD_CHECK(strncmp(path, dir->root, length) == 0 && path[length] == '/');
    return pd_dir_open(dir->vfs, dir->root, path + length + 1, ret_dir, err);
}

/* Unlinks our files, with or without the mark, and counts the rest in *ret_left. */
static pd_status unlink_files(struct pd_dir *open, bool but_mark, uint32_t *ret_left, struct pd_error *err)
{
    struct pd_listing listing = {0};
    PD_TRY(pd_dir_list(open, &listing, err));
    pd_status st = PD_OK;
    *ret_left = 0;
    for (uint32_t i = 0; i < listing.count; i++) {
        const bool stays = but_mark && strcmp(listing.names[i], PD_STORE_REMOVED) == 0;
        if (stays || !pd_store_owns_file(listing.names[i])) {
            *ret_left += 1;
            continue;
        }
        pd_status removed = pd_dir_unlink(open, listing.names[i], st == PD_OK ? err : NULL);
        if (st == PD_OK && removed != PD_NOT_FOUND) st = removed;
    }
    pd_listing_deinit(&listing);
    return st;
}

pd_status store_remove_files(const struct store_dir *dir, const char *path, struct pd_error *err)
{
    uint32_t left = 0;
    struct pd_dir *open = NULL;
    pd_status st = store_open_below(dir, path, &open, err);
    if (st == PD_OK) st = unlink_files(open, dir->may_bring_back, &left, err);
    if (st == PD_OK && dir->may_bring_back && left) {
        st = pd_vfs_sync_dir(dir->vfs, path, err);
        if (st == PD_OK || st == PD_UNSUPPORTED) st = unlink_files(open, false, &left, err);
    }
    pd_dir_close(open);
    if (st == PD_NOT_FOUND) return PD_OK;
    PD_TRY(st);
    st = pd_vfs_rmdir(dir->vfs, path, err);
    /* Foreign files, and NFS's files for open ones, keep the directory. */
    if (st == PD_NOT_FOUND || (left && st != PD_OK)) return PD_OK;
    return st;
}

/* ---- small files ---- */

pd_status store_file_read(struct pd_vfs *vfs, const char *path, uint64_t bytes_max, void **ret_data, uint64_t *ret_bytes,
                          struct pd_error *err)
{
    struct pd_file *file = NULL;
    struct pd_stat stat;
    PD_TRY(pd_file_open(vfs, path, PD_OPEN_READ, &file, err));
    pd_status st = pd_file_stat(file, &stat, err);
    if (st == PD_OK && stat.bytes > bytes_max)
        st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "%s has %" PRIu64 " bytes, and at most %" PRIu64 " can be read",
                          path, stat.bytes, bytes_max);
    void *data = NULL;
    if (st == PD_OK && !(data = malloc(stat.bytes + 1)))
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for %s", path);
    if (st == PD_OK && stat.bytes) st = pd_file_read(file, 0, data, stat.bytes, err);
    pd_file_close_readonly(file);
    if (st != PD_OK) {
        free(data);
        return st;
    }
    *ret_data = data;
    *ret_bytes = stat.bytes;
    return PD_OK;
}

pd_status store_file_write(struct pd_vfs *vfs, const char *path, unsigned flags, const void *data, uint64_t bytes,
                           enum store_file_end end, struct pd_error *err)
{
    struct pd_file *file = NULL;
    struct pd_error own = {0};
    pd_status opened = pd_file_open(vfs, path, PD_OPEN_WRITE | flags, &file, &own);
    if (opened != PD_OK && own.sys_errno == ELOOP && bytes) { /* a link to somebody's file: replace the link by a new file */
        PD_TRY(pd_vfs_unlink(vfs, path, err));
        opened = pd_file_open(vfs, path, PD_OPEN_WRITE | flags, &file, &own);
    }
    if (opened != PD_OK && err) *err = own;
    PD_TRY(opened);
    pd_status st = bytes ? pd_file_write(file, 0, data, bytes, err) : PD_OK;
    if (st == PD_OK && end == STORE_FILE_CUT_SYNC) st = pd_file_truncate(file, bytes, err);
    if (st == PD_OK && end != STORE_FILE_LEAVE) st = pd_file_sync(file, err);
    pd_status closed = pd_file_close(file, st == PD_OK ? err : NULL);
    return st != PD_OK ? st : closed;
}
