/* Decides which launch owns a directory, and which of its ranks lead which directory.
 *
 *   1. Rank 0 locks <root>/lock for the life of the launch and writes a random token into <root>/owner.
 *   2. The other hosts look. A host that reads the token there sees rank 0's directory. A host that does not locks the
 *      directory that it sees itself, and writes token and host. A lock that is held while the owner is not of this launch
 *      belongs to another launch: PD_BUSY.
 *   3. After a barrier every host reads again. The host named in `owner` names the share (dir.h). So shared, local and mixed
 *      directories need no configuration, also where a lock excludes nobody on another host.
 *   4. Leaders create fence-N exclusively, N above every number that any host sees. The loser of that race, which only
 *      happens where locks do not work, tries the next number. The highest fence owns the directory.
 *   5. Where a directory is not shared, hosts may go on in groups that have none in common, each with no sight of the others'
 *      fences, and meet again. So fence-N holds how many directories the launch has, and a launch that sees fewer of them
 *      leaves the last six digits of N to chance: a step of one group never has the name of another's.
 */
#include "ckpt/store/lease.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OWNER_BYTES 512u
#define FENCE_BYTES 32u
#define FENCE_ATTEMPTS 64u
#define FENCES_OF_CHANCE UINT64_C(1000000)
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

struct owner {
    char token[33];
    uint32_t host;
    char who[OWNER_BYTES]; /* "rank 0, process 4711 on node7" */
};

/* A missing or unparsable owner file belongs to nobody: *ret_owner is then empty. */
static pd_status read_owner(const struct store_lease *lease, struct owner *ret_owner, struct pd_error *err)
{
    const struct store_text path = store_at(lease->dir, "owner");
    *ret_owner = (struct owner){0};
    void *data = NULL;
    uint64_t bytes = 0;
    pd_status st = store_file_read(lease->dir->vfs, path.text, OWNER_BYTES, &data, &bytes, err);
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

static pd_status busy(const struct store_lease *lease, struct pd_error *err)
{
    struct owner owner;
    (void)!read_owner(lease, &owner, NULL);
    PD_FAIL(err, PD_BUSY, "another run or writer is using this directory (%s): wait for it, stop it, or choose another directory",
            owner.who[0] ? owner.who : "it left no name");
}

/* Returns the highest fence in the directory; with `any` also in the names of checkpoints and pools, so that a fence is
 * never reused even if fence files were deleted. */
static pd_status highest_fence(const struct store_lease *lease, bool any, uint64_t *ret_fence, struct pd_error *err)
{
    struct pd_listing listing = {0};
    PD_TRY(pd_vfs_list(lease->dir->vfs, lease->dir->root, &listing, err));
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
        if (counts && number <= PD_STORE_NUMBER_MAX && number > highest) highest = number;
    }
    pd_listing_deinit(&listing);
    *ret_fence = highest;
    return PD_OK;
}

/* ---- lock and shares ---- */

/* Returns false if unknown. */
static bool is_first(const struct store_lease *lease)
{
    uint64_t highest;
    return !store_exists(lease->dir, store_at(lease->dir, "owner").text) &&
           highest_fence(lease, false, &highest, NULL) == PD_OK && highest == 0;
}

static pd_status lock_here(struct store_lease *lease, uint32_t wait_ms, struct pd_error *err)
{
    PD_TRY(store_dir_lock(lease->dir, store_at(lease->dir, "lock").text, wait_ms, &lease->lock, err));
    lease->is_first = is_first(lease);
    const struct pd_group *group = lease->dir->group;
    char text[OWNER_BYTES], name[128] = "";
    const struct store_text path = store_at(lease->dir, "owner");
    struct pd_stat stat;
    if (pd_vfs_stat(lease->dir->vfs, path.text, &stat, NULL) == PD_OK && stat.link_count > 1)
        PD_TRY(pd_vfs_unlink(lease->dir->vfs, path.text, err)); /* somebody's copy may have a link to it */
    (void)!gethostname(name, sizeof name - 1);
    memset(text, ' ', sizeof text);
    int used = snprintf(text, sizeof text, "%s %" PRIu32 " rank %" PRIu32 ", process %ld on %s", lease->token, group->host,
                        group->rank, (long)getpid(), name);
    text[used] = ' ';
    text[sizeof text - 1] = '\n';
    return store_file_write(lease->dir->vfs, path.text, PD_OPEN_CREATE, text, sizeof text, STORE_FILE_LEAVE, err);
}

static pd_status lock_first(struct store_lease *lease, uint32_t wait_ms, struct pd_error *err)
{
    PD_TRY(make_token(lease->token, err));
    pd_status st = lock_here(lease, 0, err);
    if (st == PD_BUSY && wait_ms) {
        /* Logs from the start which launch it waits for. */
        struct owner owner;
        (void)!read_owner(lease, &owner, NULL);
        pd_log_info("store", "waiting for another launch that is using %s (%s), %u seconds at most", lease->dir->root,
                    owner.who[0] ? owner.who : "it left no name", wait_ms / 1000);
        st = lock_here(lease, wait_ms, err);
    }
    return st == PD_BUSY ? busy(lease, err) : st;
}

/* PD_BUSY is not final here: another host that shares the directory may hold the lock for this launch. */
static pd_status lock_other(struct store_lease *lease, uint32_t wait_ms, struct pd_error *err)
{
    struct owner owner;
    PD_TRY(read_owner(lease, &owner, err));
    if (strcmp(owner.token, lease->token) == 0) return PD_OK;
    for (uint32_t waited = 0;; waited += BUSY_POLL_MS) {
        pd_status st = lock_here(lease, 0, err);
        if (st != PD_BUSY) return st;
        PD_TRY(read_owner(lease, &owner, err));
        if (strcmp(owner.token, lease->token) == 0 || waited >= wait_ms) return PD_OK;
        pd_clock_sleep_ns(BUSY_POLL_MS * 1000000ull);
    }
}

static pd_status find_share(const struct store_lease *lease, uint32_t *ret_host, struct pd_error *err)
{
    struct owner owner;
    PD_TRY(read_owner(lease, &owner, err));
    if (strcmp(owner.token, lease->token) != 0) return busy(lease, err);
    *ret_host = owner.host;
    return PD_OK;
}

static pd_status take_lock(struct store_lease *lease, uint32_t wait_ms, struct pd_error *err)
{
    struct store_dir *dir = lease->dir;
    struct pd_group *group = dir->group;
    PD_TRY(pd_group_agree(group, group->rank == 0 ? lock_first(lease, wait_ms, err) : PD_OK, err));
    PD_TRY(pd_group_broadcast(group, 0, lease->token, sizeof lease->token, err));
    pd_status st = dir->leads_host && group->rank != 0 ? lock_other(lease, wait_ms, err) : PD_OK;
    PD_TRY(pd_group_agree(group, st, err));
    uint32_t host = UINT32_MAX;
    st = dir->leads_host ? find_share(lease, &host, err) : PD_OK;
    PD_TRY(pd_group_agree(group, st, err));
    return store_dir_share(dir, host, err);
}

/* ---- fences ---- */

pd_status store_lease_check_here(const struct store_lease *lease, struct pd_error *err)
{
    uint64_t highest = 0;
    pd_status st = highest_fence(lease, false, &highest, err);
    if (st != PD_NOT_FOUND) PD_TRY(st); /* the directory is gone, and the fence with it */
    if (highest > lease->fence)
        PD_FAIL(err, PD_BUSY, "launch %" PRIu64 " has taken over %s from this one, launch %" PRIu64 ": this one must stop",
                highest, lease->dir->root, lease->fence);
    if (highest < lease->fence)
        PD_FAIL(err, PD_IO,
                "%s no longer holds fence-%" PRIu64
                " of this launch: is its file system mounted? Bring back what it held, or start again",
                lease->dir->root, lease->fence);
    return PD_OK;
}

pd_status store_lease_check(const struct store_lease *lease, struct pd_error *err)
{
    PD_CHECK(lease->fence);
    pd_status st = lease->dir->leads_share ? store_lease_check_here(lease, err) : PD_OK;
    return pd_group_agree(lease->dir->group, st, err);
}

static uint32_t count_shares(const struct store_dir *dir)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < dir->group->size; r++)
        count += dir->share_of[r] == r;
    return count;
}

/* Returns how many directories the launch of that fence had; at least one. */
static uint64_t shares_of(const struct store_lease *lease, uint64_t fence)
{
    const struct store_text path = store_at(lease->dir, "fence-%" PRIu64, fence);
    void *data = NULL;
    uint64_t bytes = 0, shares = 1;
    if (store_file_read(lease->dir->vfs, path.text, FENCE_BYTES, &data, &bytes, NULL) != PD_OK) return shares;
    char text[FENCE_BYTES + 1] = "";
    memcpy(text, data, bytes);
    free(data);
    (void)!sscanf(text, "%" SCNu64 " director", &shares);
    return shares;
}

/* Returns whether the newest launch that any host knows had directories that are missing now. */
static pd_status is_share_absent(const struct store_lease *lease, bool *ret_absent, struct pd_error *err)
{
    struct store_dir *dir = lease->dir;
    uint64_t mine = 0, newest = 0, shares = 0, seen = 0;
    pd_status st = dir->leads_share ? highest_fence(lease, false, &mine, err) : PD_OK;
    PD_TRY(pd_group_agree(dir->group, st, err));
    PD_TRY(store_gather_most(dir, mine, &newest, err));
    const bool had_part = dir->leads_share && newest && mine == newest;
    PD_TRY(store_gather_most(dir, had_part ? shares_of(lease, newest) : 0, &shares, err));
    PD_TRY(store_gather(dir, had_part, err));
    for (uint32_t r = 0; r < dir->group->size; r++)
        seen += dir->words[r];
    *ret_absent = shares > seen;
    return PD_OK;
}

/* Leaders. The file stores the number of directories if there are several. */
static pd_status create_fence(const struct store_lease *lease, uint64_t fence, struct pd_error *err)
{
    struct store_dir *dir = lease->dir;
    const struct store_text path = store_at(dir, "fence-%" PRIu64, fence);
    char text[FENCE_BYTES];
    struct pd_file *file = NULL;
    PD_TRY(pd_file_open(dir->vfs, path.text, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_EXCLUSIVE, &file, err));
    pd_status st = pd_file_close(file, err);
    const int bytes = snprintf(text, sizeof text, "%" PRIu32 " directories\n", count_shares(dir));
    if (st == PD_OK && dir->has_other_shares)
        st = store_file_write(dir->vfs, path.text, 0, text, (uint64_t)bytes, STORE_FILE_SYNC, err);
    if (st == PD_OK) st = store_sync_dir(dir, dir->root, err);
    if (st != PD_OK) (void)!pd_vfs_unlink(dir->vfs, path.text, NULL); /* nothing was begun under it */
    return st;
}

/* Returns the number every leader will try: above all that any of them sees. */
static pd_status next_fence(const struct store_lease *lease, bool is_absent, uint64_t *ret_fence, struct pd_error *err)
{
    uint64_t mine = 0, highest = 0;
    unsigned chance = 0;
    pd_status st = lease->dir->leads_share ? highest_fence(lease, true, &mine, err) : PD_OK;
    PD_TRY(pd_group_agree(lease->dir->group, st, err));
    PD_TRY(store_gather_most(lease->dir, mine, &highest, err));
    (void)!sscanf(lease->token, "%8x", &chance); /* of rank 0's token, the same on every rank */
    *ret_fence = is_absent ? (highest / FENCES_OF_CHANCE + 1) * FENCES_OF_CHANCE + chance % FENCES_OF_CHANCE : highest + 1;
    if (*ret_fence <= PD_STORE_NUMBER_MAX) return PD_OK;
    PD_FAIL(err, PD_IO, "a name in %s has the highest number that a launch can have, %" PRIu64 ": move what has it away",
            lease->dir->root, highest);
}

static pd_status take_fence(struct store_lease *lease, struct pd_error *err)
{
    struct store_dir *dir = lease->dir;
    uint64_t fence = 0;
    bool is_absent = false;
    PD_TRY(is_share_absent(lease, &is_absent, err));
    for (unsigned attempt = 0;; attempt++) {
        PD_TRY(next_fence(lease, is_absent, &fence, err));
        pd_status st = dir->leads_share ? create_fence(lease, fence, err) : PD_OK;
        st = pd_group_agree(dir->group, st, err);
        if (st == PD_OK) break;
        if (st != PD_EXISTS) return st;
        if (attempt + 1 == FENCE_ATTEMPTS)
            return pd_error_context(err, pd_error_change(err, PD_IO), "no fence can be made in %s", dir->root);
    }
    lease->fence = fence;
    /* Without working locks another launch may have come in between: the higher fence stays. */
    return store_lease_check(lease, err);
}

pd_status store_lease_take(struct store_lease *lease, struct store_dir *dir, uint32_t busy_wait_ms, struct pd_error *err)
{
    lease->dir = dir;
    PD_TRY(take_lock(lease, busy_wait_ms, err));
    return take_fence(lease, err);
}

void store_lease_give_back(const struct store_lease *lease)
{
    if (lease->dir->leads_share && store_lease_check_here(lease, NULL) == PD_OK)
        (void)!pd_vfs_unlink(lease->dir->vfs, store_at(lease->dir, "fence-%" PRIu64, lease->fence).text, NULL);
}

/* Removes the lock file last and under the lock: whoever takes a lock checks that its file still has that name. */
static void forget(const struct store_lease *lease)
{
    if (!lease->is_first || store_lease_check_here(lease, NULL) != PD_OK) return;
    if (lease->fence) store_lease_give_back(lease);
    (void)!pd_vfs_unlink(lease->dir->vfs, store_at(lease->dir, "owner").text, NULL);
    (void)!pd_vfs_unlink(lease->dir->vfs, store_at(lease->dir, "lock").text, NULL);
}

void store_lease_release(struct store_lease *lease, bool forgets)
{
    if (!lease->dir) return;
    if (forgets) forget(lease);
    pd_vfs_unlock(lease->lock);
    lease->lock = NULL;
}
