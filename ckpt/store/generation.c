/* Files in use: generations, which hold a rank's state while steps go on, and replicas being written. Invariants 7, 11, 12
 * and 13 of store.c.
 *
 *   recycle-R-K ──take──▶ generation-R-S.h5 ──release──▶ recycle-R-K          no checkpoint has it
 *   (free)                (in use)      │
 *                                       └──link──▶ + step-…/shard-R.h5 ──release──▶ step-…/shard-R.h5 alone
 *                                                                                       │ removed: record first
 *                                                            recycle-R-K  ◀─────────────┘
 *
 * A replica of another host's shard is in use as slot 0 of that shard's rank R (replicas.c). */
#include "ckpt/base/log.h"
#include "ckpt/shard/copy.h"
#include "ckpt/store/pool.h"

uint32_t pd_store_generations_needed(const struct pd_store_options *options, bool has_links)
{
    uint32_t kept = options->keep_last ? options->keep_last : 1;
    uint32_t pinned = options->later_tiers + (options->replicas ? 2 : 0); /* the last one copied and the one being copied */
    uint32_t files = 2 + (has_links ? 0 : 1) + pinned;
    return kept < PD_STORE_GENERATIONS_MAX - files ? kept + files : PD_STORE_GENERATIONS_MAX;
}

/* ---- slots: a bit each ---- */

static bool generation_take_slot(struct store_pool *pool, uint32_t slot)
{
    const uint64_t bit = UINT64_C(1) << slot % 64;
    pthread_mutex_lock(&pool->mutex);
    const bool is_taken = !((pool->slots_in_use[slot / 64] | pool->slots_lost[slot / 64]) & bit);
    if (is_taken) pool->slots_in_use[slot / 64] |= bit;
    pthread_mutex_unlock(&pool->mutex);
    return is_taken;
}

static void generation_release_slot(struct store_pool *pool, uint32_t slot, bool is_lost)
{
    const uint64_t bit = UINT64_C(1) << slot % 64;
    pthread_mutex_lock(&pool->mutex);
    pool->slots_in_use[slot / 64] &= ~bit;
    if (is_lost) pool->slots_lost[slot / 64] |= bit;
    pthread_mutex_unlock(&pool->mutex);
}

bool store_slot_is_in_use(struct store_pool *pool, uint32_t slot)
{
    pthread_mutex_lock(&pool->mutex);
    bool is_in_use = slot < PD_STORE_GENERATIONS_MAX && (pool->slots_in_use[slot / 64] >> slot % 64 & 1);
    pthread_mutex_unlock(&pool->mutex);
    return is_in_use;
}

static struct store_text slot_path(const struct store_pool *pool, uint32_t slot)
{
    return store_pool_at(pool, pd_generation_name(pool->dir->group->rank, slot).text);
}

/* ---- take and release ---- */

/* Takes a free file, or creates a new one exclusively: an existing file of that name is not ours to write. */
static pd_status take_file(struct store_pool *pool, const char *path, struct pd_error *err)
{
    if (store_free_take(pool, pool->dir->group->rank, path)) return PD_OK;
    return store_file_write(pool->dir->vfs, path, PD_OPEN_CREATE | PD_OPEN_EXCLUSIVE, NULL, 0, STORE_FILE_LEAVE, err);
}

pd_status store_slot_take(struct store_pool *pool, uint32_t *ret_slot, struct store_text *ret_path, struct pd_error *err)
{
    for (uint32_t slot = 0; slot < PD_STORE_GENERATIONS_MAX; slot++) {
        if (!generation_take_slot(pool, slot)) continue;
        *ret_path = slot_path(pool, slot);
        pd_status st = take_file(pool, ret_path->text, err);
        if (st == PD_OK) {
            *ret_slot = slot;
            return PD_OK;
        }
        const bool is_there = st == PD_EXISTS && store_exists(pool->dir, ret_path->text);
        generation_release_slot(pool, slot, is_there);
        if (!is_there) return st == PD_EXISTS ? pd_error_change(err, PD_IO) : st;
    }
    PD_FAIL(err, PD_BUG, "all %u generations are in use", PD_STORE_GENERATIONS_MAX);
}

/* If a checkpoint has the file, removes its name here: from then on only retention decides about it. */
void store_slot_release(struct store_pool *pool, uint32_t slot, bool is_bad)
{
    pd_status st = PD_OK;
    const struct store_text path = slot_path(pool, slot);
    PD_CHECK(store_slot_is_in_use(pool, slot));
    if (is_bad || !store_free_put(pool, pool->dir->group->rank, path.text))
        st = pd_vfs_unlink(pool->dir->vfs, path.text, NULL);
    generation_release_slot(pool, slot, st != PD_OK && st != PD_NOT_FOUND);
}

/* ---- a generation becomes a shard ---- */

static void log_copies(struct store_pool *pool, const char *path, const char *cause)
{
    struct pd_stat stat = {0};
    if (pool->has_logged_copies || !pool->dir->leads_host) return;
    pool->has_logged_copies = true;
    (void)!pd_vfs_stat(pool->dir->vfs, path, &stat, NULL);
    pd_log_warn("ckpt", "%s refuses hard links (%s): every checkpoint reads and writes its state once more, %.1f MiB a rank",
                pool->dir->root, cause, (double)stat.bytes / (1 << 20));
}

pd_status store_slot_link(struct store_pool *pool, uint32_t slot, const char *to, const struct pd_identity *identity,
                          void *buffers, uint64_t buffer_bytes, struct pd_error *err)
{
    const struct store_dir *dir = pool->dir;
    struct pd_error own = {0};
    const struct store_text from = slot_path(pool, slot);
    pd_status st = store_link(dir, from.text, to, &own);
    if (st != PD_UNSUPPORTED) return pd_error_pass(err, st, &own);
    log_copies(pool, from.text, own.message[0] ? own.message : "tried when it was opened");
    (void)!store_free_take(pool, dir->group->rank, to);
    return pd_shard_copy(dir->vfs, from.text, to, identity, buffers, buffer_bytes, err);
}
