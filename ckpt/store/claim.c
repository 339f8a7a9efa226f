/* Who owns the store: one launch at a time, and within it who leads which directory.
 *
 *   1. Rank 0 locks <root>/lock for the life of the launch and writes a random token into <root>/owner.
 *   2. The other hosts look: who reads the token there sees rank 0's directory. Who does not locks what he sees himself, and
 *      writes token and host. A lock that is held while the owner is not of this launch belongs to another one: PD_BUSY.
 *   3. After a barrier everybody reads again. The host named in `owner` names the domain, its lowest rank leads it. So
 * shared, local and mixed directories need no configuration, also where a lock excludes nobody on another host.
 *   4. Leaders create fence-N exclusively, N above every number in sight of any host. Losing that race, which only happens
 *      where locks do not work, means trying the next number; the highest fence owns the store.
 *   5. Every rank locks a file of its own in pool-N. The files of a pool are taken over only while all its locks are free,
 *      the directory is one host's and no network file system: otherwise a worker that outlived its launch could still be
 *      writing into them, and they are removed instead.
 */
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/store/internal.h"
#include "ckpt/store/probe.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OWNER_BYTES 512u
#define FENCE_ATTEMPTS 64u
#define BUSY_POLL_MS 50u

/* ---- the owner file ---- */

static pd_status make_token(char ret_token[33], struct pd_error *err)
{
    unsigned char random[16];
    if (getentropy(random, sizeof random) != 0) PD_FAIL_ERRNO(err, errno, "no random numbers from the system");
    for (unsigned i = 0; i < sizeof random; i++)
        snprintf(ret_token + 2 * i, 3, "%02x", random[i]);
    return PD_OK;
}

static pd_status write_owner(struct pd_store *store, struct pd_error *err)
{
    char path[STORE_PATH_MAX], text[OWNER_BYTES], name[128] = "";
    store_path(store, path, "owner");
    (void)!gethostname(name, sizeof name - 1);
    memset(text, ' ', sizeof text);
    int used = snprintf(text, sizeof text, "%s %" PRIu32 " rank %" PRIu32 ", process %ld on %s", store->token,
                        store->group->host, store->group->rank, (long)getpid(), name);
    text[used] = ' ';
    text[sizeof text - 1] = '\n';
    struct pd_file *file = NULL;
    PD_TRY(pd_file_open(store->vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    pd_status st = pd_file_write(file, 0, text, sizeof text, err);
    pd_status closed = pd_file_close(file, st == PD_OK ? err : NULL);
    return st != PD_OK ? st : closed;
}

struct owner {
    char token[33];
    uint32_t host;
    char who[OWNER_BYTES]; /* "rank 0, process 4711 on node7" */
};

/* An owner file that is absent or says nothing sensible is nobody's: *ret_owner is then empty. */
static pd_status read_owner(struct pd_store *store, struct owner *ret_owner, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    store_path(store, path, "owner");
    *ret_owner = (struct owner){0};
    void *data = NULL;
    uint64_t bytes = 0;
    pd_status st = store_read_file(store->vfs, path, OWNER_BYTES, &data, &bytes, err);
    if (st == PD_NOT_FOUND || st == PD_CORRUPT) return PD_OK;
    PD_TRY(st);
    char text[OWNER_BYTES + 1] = "";
    memcpy(text, data, bytes);
    free(data);
    struct owner owner = {0};
    int at = 0;
    if (sscanf(text, "%32[0-9a-f] %" SCNu32 " %n", owner.token, &owner.host, &at) == 2 && at > 0) {
        snprintf(owner.who, sizeof owner.who, "%s", text + at);
        for (size_t end = strlen(owner.who); end > 0 && strchr(" \n", owner.who[end - 1]); end--)
            owner.who[end - 1] = 0;
        *ret_owner = owner;
    }
    return PD_OK;
}

/* The highest fence that `root` shows; with `any` also in the names of checkpoints and pools, so that a fence never comes
 * twice even where fence files were deleted. */
static pd_status highest_fence(struct pd_store *store, bool any, uint64_t *ret_fence, struct pd_error *err)
{
    struct pd_listing listing = {0};
    PD_TRY(pd_vfs_list(store->vfs, store->root, &listing, err));
    uint64_t highest = 0;
    for (uint32_t i = 0; i < listing.count; i++) {
        struct pd_step_name step;
        uint64_t number = 0;
        bool counts = pd_numbered_name_parse(listing.names[i], "fence-", &number);
        if (any && !counts) counts = pd_numbered_name_parse(listing.names[i], "pool-", &number);
        if (any && !counts && pd_step_name_parse(listing.names[i], &step)) {
            number = step.fence;
            counts = true;
        }
        if (counts && number > highest) highest = number;
    }
    pd_listing_deinit(&listing);
    *ret_fence = highest;
    return PD_OK;
}

/* ---- the launch lock and the domains ---- */

/* PD_BUSY stays PD_BUSY; a place without locks is reported by the probe and guarded by fences. */
static pd_status take_lock(struct pd_store *store, const char *path, uint32_t wait_ms, struct pd_lock **ret_lock,
                           struct pd_error *err)
{
    struct pd_error own = {0};
    pd_status st = pd_vfs_lock(store->vfs, path, ret_lock, &own);
    for (uint32_t waited = 0; st == PD_BUSY && waited < wait_ms; waited += BUSY_POLL_MS) {
        pd_clock_sleep_ns(NULL, BUSY_POLL_MS * 1000000ull);
        st = pd_vfs_lock(store->vfs, path, ret_lock, &own);
    }
    if (st == PD_UNSUPPORTED || (st != PD_OK && own.sys_errno == ENOLCK)) return PD_OK;
    if (st != PD_OK && err) *err = own;
    return pd_probe_explain(err, st, store->root);
}

static pd_status say_busy(struct pd_store *store, struct pd_error *err)
{
    struct owner owner;
    (void)!read_owner(store, &owner, NULL);
    PD_FAIL(err, PD_BUSY, "another launch is using this directory (%s): wait for it, stop it, or choose another directory",
            owner.who[0] ? owner.who : "it has not said who it is");
}

/* False where that cannot be told. */
static bool is_first_launch(struct pd_store *store)
{
    char path[STORE_PATH_MAX];
    struct pd_stat stat;
    uint64_t highest;
    store_path(store, path, "owner");
    return pd_vfs_stat(store->vfs, path, &stat, NULL) == PD_NOT_FOUND &&
           highest_fence(store, false, &highest, NULL) == PD_OK && highest == 0;
}

static pd_status lock_here(struct pd_store *store, uint32_t wait_ms, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    store_path(store, path, "lock");
    PD_TRY(take_lock(store, path, wait_ms, &store->launch_lock, err));
    store->is_first_launch = store->options.leaves_nothing && is_first_launch(store);
    return write_owner(store, err);
}

static pd_status claim_first(struct pd_store *store, struct pd_error *err)
{
    PD_TRY(make_token(store->token, err));
    pd_status st = lock_here(store, store->options.busy_wait_ms, err);
    return st == PD_BUSY ? say_busy(store, err) : st;
}

/* PD_BUSY is not final here: a host that shares the directory with us may hold it for this launch. */
static pd_status claim_other(struct pd_store *store, struct pd_error *err)
{
    struct owner owner;
    PD_TRY(read_owner(store, &owner, err));
    if (strcmp(owner.token, store->token) == 0) return PD_OK;
    uint32_t waited = 0;
    for (;; waited += BUSY_POLL_MS) {
        pd_status st = lock_here(store, 0, err);
        if (st != PD_BUSY) return st;
        PD_TRY(read_owner(store, &owner, err));
        if (strcmp(owner.token, store->token) == 0 || waited >= store->options.busy_wait_ms) return PD_OK;
        pd_clock_sleep_ns(NULL, BUSY_POLL_MS * 1000000ull);
    }
}

static pd_status find_domain(struct pd_store *store, uint32_t *ret_domain, struct pd_error *err)
{
    struct owner owner;
    PD_TRY(read_owner(store, &owner, err));
    if (strcmp(owner.token, store->token) != 0) return say_busy(store, err);
    *ret_domain = owner.host;
    return PD_OK;
}

/* domain_of from what each host's lowest rank has read, and with it who leads. */
static pd_status spread_domains(struct pd_store *store, uint32_t domain, struct pd_error *err)
{
    uint32_t size = store->group->size, rank = store->group->rank, hosts = 0;
    PD_TRY(store_gather_all(store, &domain, sizeof domain, store->domain_of, err));
    for (uint32_t r = 0; r < size; r++) {
        for (uint32_t lower = 0; lower < r; lower++) {
            if (store->host_of[lower] != store->host_of[r]) continue;
            store->domain_of[r] = store->domain_of[lower]; /* only the lowest rank of a host has looked */
            break;
        }
    }
    store->leads_domain = store->leads_host;
    for (uint32_t r = 0; r < size; r++) {
        if (store->domain_of[r] != store->domain_of[rank]) {
            store->has_other_domains = true;
            continue;
        }
        if (r < rank) store->leads_domain = false;
        if (store->host_of[r] != store->host_of[rank]) hosts++;
    }
    store->domain_is_local = hosts == 0;
    return PD_OK;
}

pd_status store_claim(struct pd_store *store, struct pd_error *err)
{
    struct pd_group *group = store->group;
    PD_TRY(pd_group_agree(group, group->rank == 0 ? claim_first(store, err) : PD_OK, err));
    PD_TRY(pd_group_broadcast(group, 0, store->token, sizeof store->token, err));
    pd_status st = store->leads_host && group->rank != 0 ? claim_other(store, err) : PD_OK;
    PD_TRY(pd_group_agree(group, st, err));
    uint32_t domain = UINT32_MAX;
    st = store->leads_host ? find_domain(store, &domain, err) : PD_OK;
    PD_TRY(pd_group_agree(group, st, err));
    return spread_domains(store, domain, err);
}

/* ---- fences ---- */

pd_status store_check_fence_here(struct pd_store *store, struct pd_error *err)
{
    uint64_t highest = 0;
    pd_status st = highest_fence(store, false, &highest, err);
    if (st != PD_NOT_FOUND) PD_TRY(st); /* the directory itself is gone: so is the fence */
    if (highest > store->fence)
        PD_FAIL(err, PD_BUSY, "launch %" PRIu64 " has taken over %s from this one, launch %" PRIu64 ": this one must stop",
                highest, store->root, store->fence);
    if (highest < store->fence)
        PD_FAIL(err, PD_IO,
                "%s no longer holds fence-%" PRIu64
                " of this launch: is its file system mounted? Bring back what it held, or "
                "start again",
                store->root, store->fence);
    return PD_OK;
}

static pd_status create_fence(struct pd_store *store, uint64_t fence, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    store_path(store, path, "fence-%" PRIu64, fence);
    struct pd_file *file = NULL;
    PD_TRY(pd_file_open(store->vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_EXCLUSIVE, &file, err));
    pd_status st = pd_file_close(file, err);
    if (st == PD_OK) st = store_sync_dir(store, store->root, err);
    if (st != PD_OK) (void)!pd_vfs_unlink(store->vfs, path, NULL); /* nothing was begun under it */
    return st;
}

/* The number every leader will try: above all that any of them sees. */
static pd_status next_fence(struct pd_store *store, uint64_t *ret_fence, struct pd_error *err)
{
    uint64_t mine = 0, highest = 0, *all = calloc(store->group->size, sizeof *all);
    pd_status st = all ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory to choose a fence");
    if (st == PD_OK && store->leads_domain) st = highest_fence(store, true, &mine, err);
    st = pd_group_agree(store->group, st, err);
    if (st == PD_OK) st = store_gather_all(store, &mine, sizeof mine, all, err);
    for (uint32_t r = 0; st == PD_OK && r < store->group->size; r++)
        highest = all[r] > highest ? all[r] : highest;
    free(all);
    PD_TRY(st);
    *ret_fence = highest + 1;
    return PD_OK;
}

static pd_status make_pool(struct pd_store *store, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    store_pool_path(store, path, NULL);
    pd_status st = pd_vfs_mkdir(store->vfs, path, err);
    return st == PD_EXISTS ? PD_OK : st;
}

static pd_status lock_rank(struct pd_store *store, struct pd_error *err)
{
    char name[PD_STORE_NAME_MAX], path[STORE_PATH_MAX];
    snprintf(name, sizeof name, "lock-%05" PRIu32, store->group->rank);
    store_pool_path(store, path, name);
    return take_lock(store, path, 0, &store->rank_lock, err);
}

pd_status store_take_fence(struct pd_store *store, struct pd_error *err)
{
    struct pd_group *group = store->group;
    uint64_t fence = 0;
    for (unsigned attempt = 0;; attempt++) {
        PD_TRY(next_fence(store, &fence, err));
        pd_status st = store->leads_domain ? create_fence(store, fence, err) : PD_OK;
        st = pd_group_agree(group, st, err);
        if (st == PD_OK) break;
        if (st == PD_EXISTS && attempt + 1 == FENCE_ATTEMPTS)
            return pd_error_context(err, PD_BUSY, "other launches keep taking the fences of %s", store->root);
        if (st != PD_EXISTS) return st;
    }
    store->fence = fence;
    /* Only where locks do not work another launch can have come in between: the higher fence stays. */
    PD_TRY(pd_group_agree(group, store->leads_domain ? store_check_fence_here(store, err) : PD_OK, err));
    PD_TRY(pd_group_agree(group, store->leads_domain ? make_pool(store, err) : PD_OK, err));
    return pd_group_agree(group, lock_rank(store, err), err);
}

/* ---- what dead launches left ---- */

struct pool_locks {
    struct pd_lock **locks; /* (count), owned */
    uint32_t count;
};

static void release_pool_locks(struct pool_locks *held)
{
    for (uint32_t i = 0; i < held->count; i++)
        pd_vfs_unlock(held->locks[i]);
    free(held->locks);
}

enum pool_owner { POOL_DEAD, POOL_ALIVE, POOL_UNKNOWN };

/* Where locks do not work nobody can tell whether a worker of that launch still lives. */
static enum pool_owner take_pool_locks(struct pd_store *store, const char *pool, const struct pd_listing *listing,
                                       struct pool_locks *held)
{
    held->locks = calloc((size_t)listing->count + 1, sizeof(struct pd_lock *));
    if (!held->locks) return POOL_ALIVE;
    enum pool_owner owner = store->domain_is_local ? POOL_DEAD : POOL_UNKNOWN;
    for (uint32_t i = 0; i < listing->count; i++) {
        if (strncmp(listing->names[i], "lock-", 5) != 0) continue;
        char path[STORE_PATH_MAX];
        struct pd_lock **lock = &held->locks[held->count];
        store_path(store, path, "%s/%s", pool, listing->names[i]);
        if (take_lock(store, path, 0, lock, NULL) != PD_OK) return POOL_ALIVE;
        if (*lock) held->count++;
        if (!*lock && owner == POOL_DEAD) owner = POOL_UNKNOWN;
    }
    return owner;
}

/* Gives a file of a dead launch to the same rank of this one, where that rank can reach it. Only one that waited: a file
 * that was held may still have writes in flight inside the kernel, or a failed sync behind it that nobody could write down.
 */
static bool take_over_file(struct pd_store *store, const char *path, const char *name)
{
    uint32_t rank, k;
    if (!pd_recycle_name_parse(name, &rank, &k)) return false;
    if (rank >= store->group->size || k >= store_waiting_max(store)) return false;
    if (store->domain_of[rank] != store->domain_of[store->group->rank]) return false;
    char mine[STORE_PATH_MAX];
    struct pd_stat stat;
    store_pool_path(store, mine, name);
    if (pd_vfs_stat(store->vfs, mine, &stat, NULL) != PD_NOT_FOUND) return false;
    return pd_vfs_rename(store->vfs, path, mine, NULL) == PD_OK;
}

static bool pool_owns(const char *name)
{
    static const char *const prefixes[] = {"lock-", "recycle-", "index-", "probe-"};
    uint32_t rank, slot;
    if (pd_generation_name_parse(name, &rank, &slot)) return true;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return true;
    }
    return false;
}

static void empty_pool(struct pd_store *store, const char *pool, const struct pd_listing *listing, bool take_over)
{
    char path[STORE_PATH_MAX];
    for (uint32_t i = 0; i < listing->count; i++) {
        const char *name = listing->names[i];
        store_path(store, path, "%s/%s", pool, name);
        if (strncmp(name, "trash-", 6) == 0) (void)!store_remove_files(store, path, NULL);
        if (!pool_owns(name) || (take_over && take_over_file(store, path, name))) continue;
        (void)!pd_vfs_unlink(store->vfs, path, NULL);
    }
    store_path(store, path, "%s", pool);
    (void)!pd_vfs_rmdir(store->vfs, path, NULL);
}

static void clear_pool(struct pd_store *store, const char *pool)
{
    char path[STORE_PATH_MAX];
    store_path(store, path, "%s", pool);
    struct pd_listing listing = {0};
    if (pd_vfs_list(store->vfs, path, &listing, NULL) != PD_OK) return;
    struct pool_locks held = {0};
    enum pool_owner owner = take_pool_locks(store, pool, &listing, &held);
    if (owner != POOL_ALIVE) empty_pool(store, pool, &listing, owner == POOL_DEAD);
    if (owner == POOL_ALIVE)
        pd_log_warn("ckpt", "%s: a worker of an earlier launch is still alive; its files stay for now", path);
    release_pool_locks(&held);
    pd_listing_deinit(&listing);
}

void store_clear_launches(struct pd_store *store)
{
    struct pd_listing listing = {0};
    if (!store->leads_domain || pd_vfs_list(store->vfs, store->root, &listing, NULL) != PD_OK) return;
    for (uint32_t i = 0; i < listing.count; i++) {
        uint64_t number;
        char path[STORE_PATH_MAX];
        store_path(store, path, "%s", listing.names[i]);
        if (pd_numbered_name_parse(listing.names[i], "pool-", &number) && number < store->fence)
            clear_pool(store, listing.names[i]);
        if (pd_numbered_name_parse(listing.names[i], "fence-", &number) && number < store->fence)
            (void)!pd_vfs_unlink(store->vfs, path, NULL);
    }
    pd_listing_deinit(&listing);
}

static bool has_sealed(const struct pd_store *store)
{
    for (uint32_t i = 0; i < store->sealed.count; i++)
        if (store->sealed.rows[i].entry.fence == store->fence) return true;
    return false;
}

/* The directory as it was found. The lock's name goes last and under the lock, which whoever takes it looks for (posix.c).
 */
static void forget_launch(struct pd_store *store)
{
    char path[STORE_PATH_MAX];
    if (!store->is_first_launch || has_sealed(store) || store_check_fence_here(store, NULL) != PD_OK) return;
    store_path(store, path, "fence-%" PRIu64, store->fence);
    if (store->fence) (void)!pd_vfs_unlink(store->vfs, path, NULL);
    store_path(store, path, "owner");
    (void)!pd_vfs_unlink(store->vfs, path, NULL);
    store_path(store, path, "lock");
    (void)!pd_vfs_unlink(store->vfs, path, NULL);
}

/* Without the group, which may be broken: each rank removes its own, the last one finds the pool empty. */
void store_release(struct pd_store *store)
{
    if (store->fence) {
        struct pd_listing listing = {0};
        char pool[STORE_PATH_MAX], own[PD_STORE_NAME_MAX];
        store_pool_path(store, pool, NULL);
        snprintf(own, sizeof own, "lock-%05" PRIu32, store->group->rank);
        if (pd_vfs_list(store->vfs, pool, &listing, NULL) != PD_OK) listing = (struct pd_listing){0};
        for (uint32_t i = 0; i < listing.count; i++) {
            uint32_t rank, k;
            const char *name = listing.names[i];
            bool is_mine = pd_recycle_name_parse(name, &rank, &k) || pd_generation_name_parse(name, &rank, &k);
            is_mine = is_mine && (rank == store->group->rank || store_keeps_copy_of(store, rank));
            is_mine = is_mine || strcmp(name, own) == 0;
            if (store->leads_domain && (strncmp(name, "index-", 6) == 0 || strncmp(name, "probe-", 6) == 0)) is_mine = true;
            char path[STORE_PATH_MAX];
            store_pool_path(store, path, name);
            if (is_mine) (void)!pd_vfs_unlink(store->vfs, path, NULL);
        }
        pd_listing_deinit(&listing);
        (void)!pd_vfs_rmdir(store->vfs, pool, NULL);
    }
    forget_launch(store);
    pd_vfs_unlock(store->rank_lock);
    pd_vfs_unlock(store->launch_lock);
    store->rank_lock = store->launch_lock = NULL;
}
