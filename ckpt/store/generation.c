/* Files that wait for reuse, and generations: files that hold a rank's state while steps go on. Invariants 7, 11 and 12 of
 * store.c.
 *
 *   recycle-R-K ──take──▶ generation-R-S.h5 ──release──▶ recycle-R-K          no checkpoint has it
 *   (waits)               (held)        │
 *                                       └─begin─▶ + step-…/shard-R.h5 ──release──▶ step-…/shard-R.h5 alone
 *                                                                                       │ retired: record first
 *                                                            recycle-R-K  ◀─────────────┘
 */
#include "ckpt/base/fault.h"
#include "ckpt/base/log.h"
#include "ckpt/shard/copy.h"
#include "ckpt/store/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* ---- files that wait ---- */

uint32_t pd_store_generations_needed(const struct pd_store_options *options, bool has_links)
{
    uint32_t kept = options->keep_last ? options->keep_last : 1;
    uint32_t pinned = options->later_tiers + (options->copies ? 2 : 0); /* copies pin the last and the one on its way */
    uint32_t files = 2 + (has_links ? 0 : 1) + pinned;
    return kept < PD_STORE_GENERATIONS_MAX - files ? kept + files : PD_STORE_GENERATIONS_MAX;
}

uint32_t store_waiting_max(const struct pd_store *store)
{
    const uint32_t here = store->shards > 1 && !store->parent && !store_is_striped(store) ? store->shards : 1;
    if (!store->options.generations) return STORE_RECYCLE_MAX * here;
    return pd_store_generations_needed(&store->options, store->has_links) * here;
}

static void waiting_path(const struct pd_store *store, uint32_t rank, uint32_t k, char ret_path[STORE_PATH_MAX])
{
    char name[PD_STORE_NAME_MAX];
    pd_recycle_name_format(rank, k, name);
    store_pool_path(store, ret_path, name);
}

/* Copies of another host's shards are files of plain saves, whatever the state here lives in. */
static uint32_t waiting_max_of(const struct pd_store *store, uint32_t rank)
{
    return rank == store->group->rank ? store_waiting_max(store) : STORE_RECYCLE_MAX;
}

static bool take_waiting(struct pd_store *store, uint32_t rank, const char *path)
{
    for (uint32_t k = 0; k < waiting_max_of(store, rank); k++) {
        char waiting[STORE_PATH_MAX];
        struct pd_stat stat;
        waiting_path(store, rank, k, waiting);
        if (pd_vfs_stat(store->vfs, waiting, &stat, NULL) != PD_OK) continue;
        if (stat.link_count == 1 && pd_vfs_rename(store->vfs, waiting, path, NULL) == PD_OK) return true;
        if (stat.link_count > 1) (void)!pd_vfs_unlink(store->vfs, waiting, NULL);
    }
    return false;
}

static bool put_waiting(struct pd_store *store, uint32_t rank, const char *path)
{
    struct pd_stat stat;
    if (pd_vfs_stat(store->vfs, path, &stat, NULL) != PD_OK || stat.link_count != 1) return false;
    for (uint32_t k = 0; k < waiting_max_of(store, rank); k++) {
        char waiting[STORE_PATH_MAX];
        waiting_path(store, rank, k, waiting);
        if (pd_vfs_stat(store->vfs, waiting, &stat, NULL) != PD_NOT_FOUND) continue;
        return pd_vfs_rename(store->vfs, path, waiting, NULL) == PD_OK;
    }
    return false;
}

bool store_waiting_take(struct pd_store *store, uint32_t rank, const char *path)
{
    pthread_mutex_lock(&store->waiting_mutex);
    bool is_taken = take_waiting(store, rank, path);
    pthread_mutex_unlock(&store->waiting_mutex);
    return is_taken;
}

bool store_waiting_put(struct pd_store *store, uint32_t rank, const char *path)
{
    pthread_mutex_lock(&store->waiting_mutex);
    bool waits = put_waiting(store, rank, path);
    pthread_mutex_unlock(&store->waiting_mutex);
    return waits;
}

/* This rank's files in the pool that nobody else knows. */
static void look_at_own(struct pd_store *store, uint32_t *ret_count, uint64_t *ret_bytes)
{
    struct pd_listing listing = {0};
    char path[STORE_PATH_MAX];
    *ret_count = 0;
    *ret_bytes = 0;
    store_pool_path(store, path, NULL);
    if (pd_vfs_list(store->vfs, path, &listing, NULL) != PD_OK) return;
    for (uint32_t i = 0; i < listing.count; i++) {
        uint32_t rank, k;
        struct pd_stat stat;
        const char *name = listing.names[i];
        if (!pd_recycle_name_parse(name, &rank, &k) && !pd_generation_name_parse(name, &rank, &k)) continue;
        store_pool_path(store, path, name);
        if (rank != store->group->rank || pd_vfs_stat(store->vfs, path, &stat, NULL) != PD_OK) continue;
        if (stat.link_count != 1) continue;
        *ret_bytes += stat.allocated_bytes;
        ++*ret_count;
    }
    pd_listing_deinit(&listing);
}

uint64_t pd_store_waiting_bytes(struct pd_store *store)
{
    uint32_t count;
    uint64_t bytes;
    look_at_own(store, &count, &bytes);
    return bytes;
}

/* PD_UNSUPPORTED: space cannot be preallocated here. */
static pd_status reserve_one(struct pd_store *store, uint64_t file_bytes, struct pd_error *err)
{
    for (uint32_t k = 0; k < store_waiting_max(store); k++) {
        char path[STORE_PATH_MAX];
        struct pd_file *file = NULL;
        waiting_path(store, store->group->rank, k, path);
        pd_status st = pd_file_open(store->vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_EXCLUSIVE, &file, err);
        if (st == PD_EXISTS) continue;
        PD_TRY(st);
        st = pd_file_preallocate(file, file_bytes, err);
        pd_status closed = pd_file_close(file, st == PD_OK ? err : NULL);
        if (st == PD_OK) st = closed;
        if (st != PD_OK) (void)!pd_vfs_unlink(store->vfs, path, NULL);
        return st;
    }
    return PD_OK;
}

pd_status pd_store_generations_reserve(struct pd_store *store, uint64_t file_bytes, struct pd_error *err)
{
    const struct store_items *sealed = store->parent ? &store->parent->sealed : &store->sealed;
    uint32_t kept = store->options.keep_last ? store->options.keep_last : 1, count;
    uint64_t bytes;
    PD_CHECK(store->fence);
    look_at_own(store, &count, &bytes);
    count += sealed->count < kept ? sealed->count : kept;
    pd_status st = PD_OK;
    for (; st == PD_OK && count < pd_store_generations_needed(&store->options, store->has_links); count++)
        st = reserve_one(store, file_bytes, err);
    if (st == PD_OK || st == PD_UNSUPPORTED) return PD_OK;
    return pd_error_context(err, st, "room for %.1f MiB of state, again and again", (double)file_bytes / (1 << 20));
}

/* ---- slots ---- */

static bool bit_get(const uint64_t *bits, uint32_t slot)
{
    return bits[slot / 64] >> slot % 64 & 1;
}

static void bit_set(uint64_t *bits, uint32_t slot)
{
    bits[slot / 64] |= UINT64_C(1) << slot % 64;
}

static void generation_path(const struct pd_store *store, uint32_t slot, char ret_path[STORE_PATH_MAX])
{
    char name[PD_STORE_NAME_MAX];
    pd_generation_name_format(store->group->rank, slot, name);
    store_pool_path(store, ret_path, name);
}

static bool is_held(struct pd_store *store, uint32_t slot)
{
    pthread_mutex_lock(&store->waiting_mutex);
    bool held = slot < PD_STORE_GENERATIONS_MAX && bit_get(store->slots_held, slot);
    pthread_mutex_unlock(&store->waiting_mutex);
    return held;
}

/* Exclusively: whatever has the name already is not ours to write. */
static pd_status make_file(struct pd_store *store, const char *path, struct pd_error *err)
{
    struct pd_file *file = NULL;
    PD_TRY(pd_file_open(store->vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_EXCLUSIVE, &file, err));
    pd_status st = pd_file_close(file, err);
    if (st != PD_OK) (void)!pd_vfs_unlink(store->vfs, path, NULL);
    return st;
}

static pd_status take_slot(struct pd_store *store, uint32_t *ret_slot, char path[STORE_PATH_MAX], struct pd_error *err)
{
    for (uint32_t slot = 0; slot < PD_STORE_GENERATIONS_MAX; slot++) {
        if (bit_get(store->slots_held, slot) || bit_get(store->slots_lost, slot)) continue;
        generation_path(store, slot, path);
        pd_status st = take_waiting(store, store->group->rank, path) ? PD_OK : make_file(store, path, err);
        if (st == PD_EXISTS) {
            bit_set(store->slots_lost, slot);
            continue;
        }
        PD_TRY(st);
        bit_set(store->slots_held, slot);
        *ret_slot = slot;
        return PD_OK;
    }
    PD_FAIL(err, PD_BUG, "all %u generations are held", PD_STORE_GENERATIONS_MAX);
}

/* The pool is not there any more: another launch has taken over, or its file system is gone. */
static pd_status say_gone(struct pd_store *store, struct pd_error *err)
{
    struct pd_error why = {0};
    pd_status st = store_check_fence_here(store, &why);
    if (st == PD_OK)
        st = pd_error_set(&why, PD_IO, PD_WHERE, 0, "pool-%" PRIu64 " was removed from %s", store->fence, store->root);
    if (err) *err = why;
    return pd_error_context(err, st, "a new generation of state");
}

pd_status pd_store_generation_take(struct pd_store *store, uint32_t *ret_slot, char *ret_path, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    PD_CHECK(store->fence);
    pthread_mutex_lock(&store->waiting_mutex);
    pd_status st = take_slot(store, ret_slot, path, err);
    pthread_mutex_unlock(&store->waiting_mutex);
    if (st == PD_NOT_FOUND) PD_TRY(say_gone(store, err));
    if (st != PD_OK) return pd_error_context(err, st, "a new generation of state");
    memcpy(ret_path, path, sizeof path);
    return PD_OK;
}

/* Where a checkpoint has it, the name here goes: from then on retention alone decides about it. */
void pd_store_generation_release(struct pd_store *store, uint32_t slot, bool is_bad)
{
    char path[STORE_PATH_MAX];
    PD_CHECK(is_held(store, slot));
    generation_path(store, slot, path);
    pthread_mutex_lock(&store->waiting_mutex);
    store->slots_held[slot / 64] &= ~(UINT64_C(1) << slot % 64);
    if (is_bad || !put_waiting(store, store->group->rank, path)) {
        pd_status st = pd_vfs_unlink(store->vfs, path, NULL);
        if (st != PD_OK && st != PD_NOT_FOUND) bit_set(store->slots_lost, slot);
    }
    pthread_mutex_unlock(&store->waiting_mutex);
}

/* ---- a generation becomes a shard ---- */

bool pd_store_links_generations(const struct pd_store *store)
{
    bool links = store->has_links;
    for (uint32_t s = 1; store_is_striped(store) && s < store->shards; s++)
        links = links && store->stripes[s]->has_links;
    return links;
}

static void say_copies(struct pd_store *store, const char *path, const char *cause)
{
    struct pd_stat stat = {0};
    if (store->has_said_copies || !store->leads_host) return;
    store->has_said_copies = true;
    (void)!pd_vfs_stat(store->vfs, path, &stat, NULL);
    pd_log_warn("ckpt", "%s refuses hard links (%s): every checkpoint reads and writes its state once more, %.1f MiB a rank",
                store->root, cause, (double)stat.bytes / (1 << 20));
}

/* `store`: that of the stripe, which the file lies in. */
static pd_status place_generation(struct pd_store *store, const char *to, uint32_t slot, void *buffers,
                                  uint64_t buffer_bytes, struct pd_error *err)
{
    char from[STORE_PATH_MAX];
    struct pd_error own = {0};
    generation_path(store, slot, from);
    if (store->has_links) {
        pd_status st = pd_vfs_link(store->vfs, from, to, &own);
        if (st == PD_OK) return PD_OK;
        if (st != PD_UNSUPPORTED && own.sys_errno != EMLINK) {
            if (err) *err = own;
            return st;
        }
    }
    say_copies(store, from, own.message[0] ? own.message : "tried when it was opened");
    (void)!store_waiting_take(store, store->group->rank, to);
    return pd_shard_copy(store->vfs, from, to, &store->identity, buffers, buffer_bytes, err);
}

static pd_status place_all(struct pd_store *store, const uint32_t *slots, void *buffers, uint64_t buffer_bytes,
                           struct pd_error *err)
{
    for (uint32_t s = 0; s < store->shards; s++) {
        char path[STORE_PATH_MAX];
        store_shard_path(store, s, path);
        PD_TRY(place_generation(pd_store_stripe(store, s), path, slots[s], buffers, buffer_bytes, err));
    }
    return PD_OK;
}

pd_status pd_store_begin_generation(struct pd_store *store, const struct pd_identity *identity, const uint32_t *slots,
                                    void *buffers, uint64_t buffer_bytes, struct pd_error *err)
{
    for (uint32_t s = 0; s < store->shards; s++)
        PD_CHECK(is_held(pd_store_stripe(store, s), slots[s]));
    PD_TRY(store_begin_directory(store, identity, err));
    pd_status st = pd_group_agree(store->group, place_all(store, slots, buffers, buffer_bytes, err), err);
    if (st != PD_OK) return store_give_up(store, st, err);
    pd_fault_point("store.begin.linked");
    store->is_preparing = true;
    return PD_OK;
}
