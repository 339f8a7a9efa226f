/* The pool of a launch: its directory, its locks, its free files, and the files taken over from pools of dead launches.
 *
 * Every rank locks a file of its own in pool-N. Another launch takes over the files of a pool only if all its locks are
 * free and the directory belongs to one host and no network file system. Otherwise a worker that outlived its launch
 * could still be writing them, so they are removed instead. */
#include "ckpt/store/pool.h"

#include "ckpt/base/fault.h"
#include "ckpt/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FREE_MAX_OF_OTHERS 2u /* most free files for replicas of one rank */

struct store_text store_pool_at(const struct store_pool *pool, const char *name)
{
    return store_at(pool->dir, "pool-%" PRIu64 "%s%s", pool->fence, name ? "/" : "", name ? name : "");
}

/* ---- open and close ---- */

static pd_status make_directory(const struct store_pool *pool, const char *path, struct pd_error *err)
{
    struct pd_dir *open = NULL;
    pd_status st = pd_vfs_mkdir(pool->dir->vfs, path, err);
    if (st == PD_EXISTS) st = store_open_below(pool->dir, path, &open, err); /* do not follow somebody's link */
    pd_dir_close(open);
    return st;
}

static struct pd_store_name lock_name(const struct store_pool *pool)
{
    struct pd_store_name name;
    snprintf(name.text, sizeof name.text, "lock-%05" PRIu32, pool->dir->group->rank);
    return name;
}

static pd_status make_and_lock(struct store_pool *pool, struct pd_error *err)
{
    const struct store_dir *dir = pool->dir;
    PD_TRY(pd_group_agree(dir->group, dir->leads_share ? make_directory(pool, store_pool_at(pool, NULL).text, err) : PD_OK,
                          err));
    const struct store_text lock = store_pool_at(pool, lock_name(pool).text);
    return pd_group_agree(dir->group, store_dir_lock(dir, lock.text, 0, &pool->lock, err), err);
}

pd_status store_pool_open(struct store_pool *pool, struct store_dir *dir, uint64_t fence, struct pd_error *err)
{
    *pool = (struct store_pool){.dir = dir, .fence = fence, .free_max = 1};
    pthread_mutex_init(&pool->mutex, NULL);
    PD_TRY(make_and_lock(pool, err));
    pd_fault_point("store.open.fenced");
    return store_dir_probe(dir, store_pool_at(pool, NULL).text, err);
}

bool store_pool_is_gone(struct store_pool *pool)
{
    struct pd_stat stat;
    uint64_t in_use = 0;
    pthread_mutex_lock(&pool->mutex);
    for (uint32_t i = 0; i < sizeof pool->slots_in_use / sizeof *pool->slots_in_use; i++)
        in_use |= pool->slots_in_use[i];
    pthread_mutex_unlock(&pool->mutex);
    if (in_use) return false;
    return pool->lacks_lock || pd_vfs_stat(pool->dir->vfs, store_pool_at(pool, NULL).text, &stat, NULL) == PD_NOT_FOUND;
}

pd_status store_pool_make_again(struct store_pool *pool, struct pd_error *err)
{
    if (pool->dir->leads_share)
        pd_log_warn("ckpt", "pool-%" PRIu64 " was removed from %s while this launch uses it; it is made again", pool->fence,
                    pool->dir->root);
    pd_vfs_unlock(pool->lock);
    pool->lock = NULL;
    pool->lacks_lock = true;
    PD_TRY(make_and_lock(pool, err));
    pool->lacks_lock = false;
    return PD_OK;
}

static bool is_of_this_rank(const struct store_pool *pool, const char *name)
{
    uint32_t rank, k;
    if (strcmp(name, lock_name(pool).text) == 0) return true;
    if (pool->dir->leads_share && (strncmp(name, "index-", 6) == 0 || strncmp(name, "probe-", 6) == 0)) return true;
    if (!pd_recycle_name_parse(name, &rank, &k) && !pd_generation_name_parse(name, &rank, &k)) return false;
    bool is_mine = rank == pool->dir->group->rank;
    for (uint32_t i = 0; i < pool->other_count; i++)
        is_mine = is_mine || pool->others[i] == rank;
    return is_mine;
}

/* Each rank removes its own files; the last one can remove the empty directory. */
void store_pool_close(struct store_pool *pool)
{
    struct pd_listing listing = {0};
    struct pd_dir *open = NULL;
    if (!pool->fence) return;
    const struct store_text path = store_pool_at(pool, NULL);
    if (store_open_below(pool->dir, path.text, &open, NULL) == PD_OK) (void)!pd_dir_list(open, &listing, NULL);
    for (uint32_t i = 0; i < listing.count; i++) {
        if (is_of_this_rank(pool, listing.names[i])) (void)!pd_dir_unlink(open, listing.names[i], NULL);
    }
    pd_listing_deinit(&listing);
    pd_dir_close(open);
    (void)!pd_vfs_rmdir(pool->dir->vfs, path.text, NULL);
    pd_vfs_unlock(pool->lock);
    pthread_mutex_destroy(&pool->mutex);
    pool->fence = 0;
}

/* ---- free files ---- */

static struct store_text free_path(const struct store_pool *pool, uint32_t rank, uint32_t k)
{
    return store_pool_at(pool, pd_recycle_name(rank, k).text);
}

/* Replicas are plain shard files, even if the state here is in generations. */
static uint32_t free_max_of(const struct store_pool *pool, uint32_t rank)
{
    return rank == pool->dir->group->rank ? pool->free_max : FREE_MAX_OF_OTHERS;
}

/* A symbolic link leads to somebody else's file: writing through it would overwrite that. */
static bool is_ours_alone(const struct store_pool *pool, const char *path, bool *ret_is_there)
{
    struct pd_stat stat;
    *ret_is_there = pd_vfs_stat(pool->dir->vfs, path, &stat, NULL) == PD_OK;
    return *ret_is_there && stat.type == PD_ENTRY_FILE && stat.link_count == 1 && !store_is_link(pool->dir, path);
}

static bool pool_take(struct store_pool *pool, uint32_t rank, const char *path)
{
    struct pd_vfs *vfs = pool->dir->vfs;
    for (uint32_t k = 0; k < free_max_of(pool, rank); k++) {
        bool is_there;
        const struct store_text from = free_path(pool, rank, k);
        const bool is_ours = is_ours_alone(pool, from.text, &is_there);
        if (is_ours && pd_vfs_rename(vfs, from.text, path, NULL) == PD_OK) return true;
        if (is_there && !is_ours) (void)!pd_vfs_unlink(vfs, from.text, NULL);
    }
    return false;
}

static bool pool_put(struct store_pool *pool, uint32_t rank, const char *path)
{
    bool is_there;
    if (!is_ours_alone(pool, path, &is_there)) return false;
    for (uint32_t k = 0; k < free_max_of(pool, rank); k++) {
        const struct store_text to = free_path(pool, rank, k);
        if (!store_exists(pool->dir, to.text)) return pd_vfs_rename(pool->dir->vfs, path, to.text, NULL) == PD_OK;
    }
    return false;
}

bool store_free_take(struct store_pool *pool, uint32_t rank, const char *path)
{
    pthread_mutex_lock(&pool->mutex);
    bool is_taken = pool_take(pool, rank, path);
    pthread_mutex_unlock(&pool->mutex);
    return is_taken;
}

bool store_free_put(struct store_pool *pool, uint32_t rank, const char *path)
{
    pthread_mutex_lock(&pool->mutex);
    bool is_free = pool_put(pool, rank, path);
    pthread_mutex_unlock(&pool->mutex);
    return is_free;
}

void store_pool_count(const struct store_pool *pool, uint32_t *ret_count, uint64_t *ret_bytes)
{
    struct pd_listing listing = {0};
    *ret_count = 0;
    *ret_bytes = 0;
    if (pd_vfs_list(pool->dir->vfs, store_pool_at(pool, NULL).text, &listing, NULL) != PD_OK) return;
    for (uint32_t i = 0; i < listing.count; i++) {
        uint32_t rank, k;
        struct pd_stat stat;
        const char *name = listing.names[i];
        if (!pd_recycle_name_parse(name, &rank, &k) && !pd_generation_name_parse(name, &rank, &k)) continue;
        if (rank != pool->dir->group->rank ||
            pd_vfs_stat(pool->dir->vfs, store_pool_at(pool, name).text, &stat, NULL) != PD_OK)
            continue;
        if (stat.link_count != 1) continue;
        *ret_bytes += stat.allocated_bytes;
        ++*ret_count;
    }
    pd_listing_deinit(&listing);
}

static pd_status pool_fill(struct pd_file *file, uint64_t bytes, const void *zeros, uint64_t zero_bytes,
                           struct pd_error *err)
{
    PD_TRY(pd_file_preallocate(file, bytes, err));
    for (uint64_t at = 0; zeros && at < bytes; at += zero_bytes)
        PD_TRY(pd_file_write(file, at, zeros, bytes - at < zero_bytes ? bytes - at : zero_bytes, err));
    return PD_OK;
}

/* Makes a new free file: preallocated, and written if there are `zeros`. PD_EXISTS: no more may be free. */
static pd_status make_free(struct store_pool *pool, uint64_t bytes, const void *zeros, uint64_t zero_bytes,
                           struct pd_error *err)
{
    struct pd_vfs *vfs = pool->dir->vfs;
    for (uint32_t k = 0; k < pool->free_max; k++) {
        struct pd_file *file = NULL;
        const struct store_text path = free_path(pool, pool->dir->group->rank, k);
        pd_status st = pd_file_open(vfs, path.text, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_EXCLUSIVE, &file, err);
        if (st == PD_EXISTS) continue;
        PD_TRY(st);
        st = pool_fill(file, bytes, zeros, zero_bytes, err);
        pd_status closed = pd_file_close(file, st == PD_OK ? err : NULL);
        if (st == PD_OK) st = closed;
        if (st != PD_OK) (void)!pd_vfs_unlink(vfs, path.text, NULL);
        return st;
    }
    return PD_EXISTS;
}

pd_status store_pool_reserve(struct store_pool *pool, uint32_t count, uint64_t file_bytes, struct pd_error *err)
{
    pd_status st = PD_OK;
    for (uint32_t i = 0; st == PD_OK && i < count; i++)
        st = make_free(pool, file_bytes, NULL, 0, err);
    return st == PD_UNSUPPORTED || st == PD_EXISTS ? PD_OK : st;
}

void store_pool_keep_ready(struct store_pool *pool, uint64_t bytes, void *buffer, uint64_t buffer_bytes)
{
    if (!pool->fence || !bytes || !pd_vfs_is_in_memory(pool->dir->vfs, pool->dir->root)) return;
    for (uint32_t k = 0; k < pool->free_max; k++)
        if (store_exists(pool->dir, free_path(pool, pool->dir->group->rank, k).text)) return;
    memset(buffer, 0, buffer_bytes);
    (void)!make_free(pool, bytes, buffer, buffer_bytes, NULL);
}

/* ---- pools of dead launches ---- */

struct locks {
    struct pd_lock **rows; /* (count), owned */
    uint32_t count;
};

static void release_locks(struct locks *locks)
{
    for (uint32_t i = 0; i < locks->count; i++)
        pd_vfs_unlock(locks->rows[i]);
    free(locks->rows);
}

enum liveness { DEAD, ALIVE, UNKNOWN };

/* Without working locks nobody can tell whether a worker of that launch is alive. */
static enum liveness lock_all(const struct store_dir *dir, const char *pool, const struct pd_listing *listing,
                              struct locks *ret_locks, struct pd_error *err)
{
    ret_locks->rows = calloc((size_t)listing->count + 1, sizeof(struct pd_lock *));
    if (PD_ALLOCATED(ret_locks->rows, err, "no memory for its locks")) return ALIVE;
    enum liveness found = dir->is_local ? DEAD : UNKNOWN;
    for (uint32_t i = 0; i < listing->count; i++) {
        if (strncmp(listing->names[i], "lock-", 5) != 0) continue;
        struct pd_lock **lock = &ret_locks->rows[ret_locks->count];
        if (store_dir_lock(dir, store_at(dir, "%s/%s", pool, listing->names[i]).text, 0, lock, err) != PD_OK) return ALIVE;
        if (*lock) ret_locks->count++;
        if (!*lock && found == DEAD) found = UNKNOWN;
    }
    return found;
}

/* Gives a file of a dead launch to the same rank of this one, if that rank can reach it. Only a free file: one in use may
 * have writes in flight inside the kernel, or a failed sync that nobody recorded. */
static bool take_over(const struct store_pool *pool, const char *path, const char *name)
{
    const struct store_dir *dir = pool->dir;
    uint32_t rank, k;
    if (!pd_recycle_name_parse(name, &rank, &k) || rank >= dir->group->size || k >= pool->free_max) return false;
    if (dir->share_of[rank] != dir->share_of[dir->group->rank]) return false;
    const struct store_text mine = store_pool_at(pool, name);
    return !store_exists(dir, mine.text) && pd_vfs_rename(dir->vfs, path, mine.text, NULL) == PD_OK;
}

static bool owns(const char *name)
{
    static const char *const prefixes[] = {"lock-", "recycle-", "index-", "probe-"};
    uint32_t rank, slot;
    if (pd_generation_name_parse(name, &rank, &slot)) return true;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return true;
    }
    return false;
}

static void empty(const struct store_pool *pool, const char *dead, struct pd_dir *open, const struct pd_listing *listing,
                  bool takes_over)
{
    for (uint32_t i = 0; i < listing->count; i++) {
        const char *name = listing->names[i];
        const struct store_text path = store_at(pool->dir, "%s/%s", dead, name);
        if (strncmp(name, "trash-", 6) == 0) (void)!store_remove_files(pool->dir, path.text, NULL);
        if (!owns(name) || (takes_over && take_over(pool, path.text, name))) continue;
        (void)!pd_dir_unlink(open, name, NULL);
    }
    (void)!pd_vfs_rmdir(pool->dir->vfs, store_at(pool->dir, "%s", dead).text, NULL);
}

void store_pool_clear(const struct store_pool *pool, const char *name)
{
    struct pd_listing listing = {0};
    struct locks locks = {0};
    struct pd_dir *open = NULL;
    struct pd_error own;
    const struct store_text path = store_at(pool->dir, "%s", name);
    pd_status st = store_open_below(pool->dir, path.text, &open, &own);
    if (st == PD_OK) st = pd_dir_list(open, &listing, &own);
    if (st != PD_OK) {
        if (st != PD_NOT_FOUND)
            pd_log_warn("ckpt", "cannot remove what an earlier launch left in %s: %s", path.text, own.message);
        pd_dir_close(open);
        return;
    }
    const enum liveness found = lock_all(pool->dir, name, &listing, &locks, &own);
    if (found == ALIVE && own.status != PD_BUSY)
        pd_log_warn("ckpt", "cannot remove what an earlier launch left in %s: %s", path.text, own.message);
    else if (found == ALIVE)
        pd_log_warn("ckpt", "%s: a worker of an earlier launch is still alive; its files stay for now", path.text);
    else
        empty(pool, name, open, &listing, found == DEAD && pool->fence);
    release_locks(&locks);
    pd_listing_deinit(&listing);
    pd_dir_close(open);
}
