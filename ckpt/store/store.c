/* The store: how a directory becomes a checkpoint, stays one, and stops being one. This file has the public calls,
 * and the order in which a store is opened. It builds on these parts, from the lowest up:
 *
 *   dir (path, who shares it) ◀ lease (lock, fence) ◀ pool (files free and in use) ◀ files (all three)
 *   catalog (committed ones) · scan (finds what is there) ◀ remove, quarantine ◀ save (the checkpoint being made) ◀ recover
 *
 *   prepare           commit                             remove
 *   step-S-F.tmp ───▶ commit.h5 valid ───▶ step-S-F ────▶ record gone everywhere ───▶ pool-F/trash-… ───▶ gone
 *   (shards, index,   (inside .tmp)        (committed)    (commit.h5 is removed.h5)   (shards are free: pool-F/recycle-…)
 *    empty record)
 *       │  failed or found by the next launch without a record anywhere
 *       └──────────────────────────────────────────────────────────────▶ pool-F/trash-… ───▶ gone
 *
 *   invariants
 *    1. A record is written only after every shard of every host, and its name in the directory being prepared, is durable
 *       (pd_shard_write syncs the file, the lowest rank of each host the directory; with several disks also the root, which
 *       holds the directory's own name). So one valid record, under either name, on any host, proves that all shards are
 *       durable.
 *    2. The record is complete and synced before its directory gets its final name. Its file is created empty while the
 *       checkpoint is prepared, so that the sync of that directory makes its name durable too; an empty or torn record
 *       does not decode and proves nothing.
 *    3. pd_store_commit returns PD_OK only after the final name is durable on every host.
 *    4. Nothing is removed at open before the listings of all hosts are united. What has a valid record anywhere and all
 *       shards in sight is committed: where record or final name are missing they are made (roll forward).
 *    5. A shard of a committed checkpoint is moved or rewritten only after the record is durably gone on every host.
 *    6. A directory leaves the root by one rename into the pool; emptying it comes after. So a dead launch that wakes up
 *       cannot commit what we are emptying: its rename finds no source. Two exceptions are emptied where they lie: old
 *       checkpoints, without their record, while there is no room for a pool, and what holds files that are not ours.
 *    7. A file is written in place only by the rank in whose pool it lies, under that rank's lock. It is chosen only while
 *       it is free (recycle-…) and its link count is one: a name somebody else gave it (a backup, a checkpoint, a
 *       torn rename that came back with a power loss) keeps its bytes.
 *    8. Fences grow. A launch commits only while its fence is the highest in the root.
 *    9. After a failed sync of a file or directory the save is given up: its files are removed, never reused. A power loss may
 *       bring its directory back, so removed.h5 is unlinked after all else is durably gone. Where a peer is lost nothing is
 *       removed: nobody knows whether some host has committed, and the next open decides.
 *   10. A name that paths.h does not give is not ours: never touched, even inside our directories.
 *   11. A generation is written under a name of its own (pool-F/generation-…), by whoever uses it, before any
 *       checkpoint knows it. It is linked once it is finished and synced, and never written from then on: released, it is
 *       either free (no checkpoint has it) or loses its name in the pool. Then the checkpoint alone has it, as it has any
 *       shard: it is free again when retention has taken the record away on every host, durably, which 5 puts first.
 *   12. A file in use when its launch died is unlinked, never taken over: writes to it may still be in flight in the kernel
 *       though every lock is free, and a sync may have failed with nobody left to report it. A free file has neither problem:
 *       it is taken over under 7 and the rule of pool.c.
 *   13. A replica of another host's shard is whole and synced before it gets its name in a checkpoint that is committed
 *       already. Until then it is in use (12). The record knows its digest, so nothing believes it because of where it lies.
 *
 * Why nobody else's writes reach a committed checkpoint or a file of ours: a worker that outlives its launch has open for
 * writing only files in use. Those were never linked (11) and are never ours (12): if we see its lock its whole pool stays
 * as it is; if we do not, its files are unlinked and it writes into files without a name. It can link what it has finished,
 * but only into a directory of its own fence, which it cannot commit (8) and the next open clears (6). It takes files by
 * renaming inside its own pool, so a file has one taker, whoever else moves it meanwhile.
 *
 * A crash leaves one of: the old directories; a directory being prepared without a valid record (cleared at the next open);
 * one with a valid record somewhere (rolled forward); a final name whose record is gone everywhere and is marked as removed
 * (cleared, unless nothing else is whole, since our own removals leave something whole). A final name without record and
 * mark is not our removal: it stays, and counts again once its record is put back.
 * Hosts that share the file system and hosts with one of their own follow the same steps: the open finds out who leads a
 * directory (lease.c); it is never configured.
 */
#include "ckpt/base/digest.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/log.h"
#include "ckpt/base/words.h"
#include "ckpt/store/remove.h"
#include "ckpt/store/save.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pd_store {
    struct pd_store_options options;
    struct store_files files;
    struct store_catalog catalog;
    struct store_save save;
    struct pd_store_replicas replicas; /* sources NULL: none */
};

/* ---- opening ---- */

/* Removes the oldest checkpoint that retention does not keep, in place, since there is no pool. *ret_any: there was one. */
static pd_status remove_oldest(struct pd_store *store, bool *ret_any, struct pd_error *err)
{
    static const struct pd_store_options look = {.quiet = true};
    struct store_dir *root = &store->files.dir;
    struct store_scan scan = {0};
    struct store_catalog catalog = {0};
    char(*names)[PD_STORE_NAME_MAX] = NULL;
    uint32_t count = 0;
    PD_TRY(store_scan(root, true, &scan, err));
    pd_status st = store_scan_check_records(root, &scan, err);
    if (st == PD_OK) st = store_recover(&store->files, &look, &scan, &catalog, err);
    if (st == PD_OK) st = store_catalog_victims(&catalog, &store->options, &names, &count, err);
    st = pd_group_agree(root->group, st, err);
    *ret_any = false;
    for (uint32_t i = 0; i < catalog.unusable_count; i++) /* report these before anything can fail */
        if (catalog.unusable[i].flaw == PD_STORE_OF_ANOTHER_RUN || catalog.unusable[i].flaw == PD_STORE_UNREADABLE)
            count = 0;
    for (uint32_t i = 0; st == PD_OK && i < count && !*ret_any; i++) {
        const pd_status removed = store_remove(&store->files, names[i], false, err);
        *ret_any = removed == PD_OK;
        if (removed == PD_PEER_LOST) st = removed;
        if (removed == PD_OK && root->leads_share)
            pd_log_warn("ckpt", "%s is full: removing %s, which retention would not keep", root->root, names[i]);
    }
    free(names);
    store_catalog_deinit(&catalog);
    store_scan_deinit(&scan);
    return st;
}

/* A full disk has no space for a pool, so nothing can be freed through one. First removes what dead launches left, then
 * old checkpoints, one at a time. */
static pd_status open_pool(struct pd_store *store, struct pd_error *err)
{
    struct store_files *files = &store->files;
    struct pd_error own = {0};
    pd_status st = store_files_open_pool(files, &store->options, &own);
    for (bool is_first = true, any = true; st == PD_NO_SPACE && any; is_first = false) {
        store_pool_close(&files->pool);
        store_files_clear_launches(files);
        PD_TRY(pd_group_barrier(files->dir.group, err));
        if (!is_first) PD_TRY(remove_oldest(store, &any, err));
        if (any) st = store_files_open_pool(files, &store->options, &own);
    }
    if (st == PD_NO_SPACE) store_lease_give_back(&files->lease);
    return pd_error_pass(err, st, &own);
}

static pd_status open_replicas(struct pd_store *store, struct pd_error *err)
{
    struct store_pool *pool = &store->files.pool;
    if (!store->options.replicas) return PD_OK;
    PD_TRY(store_replicas_open(&store->replicas, pool->dir, err));
    pool->others = store->replicas.sources;
    pool->other_count = store->replicas.source_count;
    return PD_OK;
}

static pd_status store_open_all(struct pd_store *store, struct pd_vfs *vfs, struct pd_group *group, const char *path,
                                const struct pd_store_options *options, struct pd_error *err)
{
    PD_TRY(store_files_open(&store->files, vfs, group, path, options, err));
    if (options->writable) PD_TRY(open_pool(store, err));
    if (options->writable) PD_TRY(open_replicas(store, err));
    /* Every rank knows the scan's result before anything is changed. */
    struct store_dir *root = &store->files.dir;
    struct store_scan scan = {0};
    PD_TRY(store_scan(root, store->options.writable, &scan, err));
    pd_status st = store_scan_check_records(root, &scan, err);
    if (st == PD_OK) st = store_recover(&store->files, &store->options, &scan, &store->catalog, err);
    store_scan_deinit(&scan);
    PD_TRY(st);
    pd_fault_point("store.open.recovered");
    if (!options->writable) return PD_OK;
    store_files_clear_launches(&store->files);
    return pd_group_barrier(group, err);
}

pd_status pd_store_open(struct pd_vfs *vfs, const char *root, const struct pd_store_options *options, struct pd_group *group,
                        struct pd_store **ret_store, struct pd_error *err)
{
    PD_CHECK(!options->leaves_nothing || group->size == 1);
    struct pd_store *store = calloc(1, sizeof *store);
    pd_status st = PD_ALLOCATED(store, err, "no memory for a store");
    st = pd_group_agree(group, st, err);
    if (st == PD_OK) {
        store->options = *options;
        store->save = (struct store_save){.files = &store->files, .catalog = &store->catalog};
        st = store_open_all(store, vfs, group, root, options, err);
        if (st != PD_OK) st = pd_error_context(err, store_as_storage(st, err), "checkpoint directory %s", root);
    }
    if (st)
        pd_store_close(store);
    else
        *ret_store = store;
    return st;
}

static bool has_committed(const struct pd_store *store)
{
    const struct store_items *committed = &store->catalog.committed;
    for (uint32_t i = 0; i < committed->count; i++)
        if (committed->rows[i].entry.fence == store->files.lease.fence) return true;
    return false;
}

void pd_store_close(struct pd_store *store)
{
    if (!store) return;
    const bool forgets = store->options.leaves_nothing && !has_committed(store);
    store_files_close(&store->files, forgets);
    free(store->replicas.sources);
    store_catalog_deinit(&store->catalog);
    free(store);
}

uint64_t pd_store_fence(const struct pd_store *store)
{
    return store->files.lease.fence;
}

pd_status pd_store_check_fence(struct pd_store *store, struct pd_error *err)
{
    return store_lease_check(&store->files.lease, err);
}

bool pd_store_is_shared(const struct pd_store *store)
{
    return !store->files.dir.has_other_shares;
}

/* ---- looking ---- */

uint32_t pd_store_count(const struct pd_store *store)
{
    return store->catalog.committed.count;
}

const struct pd_store_entry *pd_store_entry_at(const struct pd_store *store, uint32_t newest_first)
{
    PD_CHECK(newest_first < store->catalog.committed.count);
    return &store->catalog.committed.rows[newest_first].entry;
}

bool pd_store_unnamed(const struct pd_store *store, struct pd_store_entry *ret_entry)
{
    *ret_entry = store->catalog.unnamed;
    return ret_entry->name[0] != '\0';
}

uint32_t pd_store_unusable_count(const struct pd_store *store)
{
    return store->catalog.unusable_count;
}

const struct pd_store_unusable *pd_store_unusable_at(const struct pd_store *store, uint32_t index)
{
    PD_CHECK(index < store->catalog.unusable_count);
    return &store->catalog.unusable[index];
}

void pd_store_entry_path(const struct pd_store *store, const struct pd_store_entry *entry, char *ret_path)
{
    snprintf(ret_path, STORE_PATH_MAX, "%s", store_at(&store->files.dir, "%s", entry->name).text);
}

bool pd_store_has_record(const struct pd_store *store, const char *name)
{
    const struct store_dir *root = &store->files.dir;
    struct pd_stat stat;
    return pd_vfs_stat(root->vfs, store_at(root, "%s/commit.h5", name).text, &stat, NULL) == PD_OK;
}

void pd_store_pin(struct pd_store *store, const struct pd_store_entry *entry)
{
    struct store_item *item = store_items_find(&store->catalog.committed, entry->name);
    PD_CHECK(item);
    item->pins++;
}

void pd_store_unpin(struct pd_store *store, const char *name)
{
    struct store_item *item = store_items_find(&store->catalog.committed, name);
    if (!item) return; /* it was quarantined while pinned */
    PD_CHECK(item->pins > 0);
    item->pins--;
}

/* One rank reads and all decode the same bytes, so that all retry or none does. */
pd_status pd_store_read_commit(struct pd_store *store, const struct pd_store_entry *entry, struct pd_commit *ret_commit,
                               struct pd_error *err)
{
    const struct store_dir *root = &store->files.dir;
    const struct store_item *item = store_items_find(&store->catalog.committed, entry->name);
    PD_CHECK(item);
    const struct store_text path = store_at(root, "%s/commit.h5", entry->name);
    for (unsigned attempt = 0;; attempt++) {
        void *data = NULL;
        uint64_t bytes = 0;
        struct pd_commit commit = {0};
        pd_status st = PD_OK;
        if (root->group->rank == item->record_rank)
            st = store_file_read(root->vfs, path.text, PD_COMMIT_BYTES_MAX, &data, &bytes, err);
        PD_TRY(store_spread(root, item->record_rank, st, &data, &bytes, err));
        st = pd_commit_decode(path.text, data, bytes, &commit, err);
        free(data);
        st = pd_group_agree(root->group, st, err); /* one rank may be out of memory */
        if (!st) *ret_commit = commit;
        if (st) pd_commit_deinit(&commit);
        if (st != PD_CORRUPT || attempt > 0) return st;
    }
}

/* One bit for each shard that a rank sees, and one for the record: one exchange, however many shards there are. */
pd_status pd_store_has_gone(struct pd_store *store, const struct pd_store_entry *entry, bool *ret_has_gone,
                            struct pd_error *err)
{
    const struct store_dir *root = &store->files.dir;
    const uint64_t bytes = entry->shard_count / 8 + 1;
    unsigned char *all = NULL, *seen = calloc(bytes, 1);
    pd_status st = PD_ALLOCATED(seen, err, "no memory to look for %u shards", entry->shard_count);
    for (uint32_t i = 0; st == PD_OK && i <= entry->shard_count; i++) {
        const struct pd_store_name shard = pd_shard_name(i);
        const char *name = i < entry->shard_count ? shard.text : "commit.h5";
        const bool is_there = store_exists(root, store_at(root, "%s/%s", entry->name, name).text);
        seen[i / 8] |= (unsigned char)(is_there << i % 8);
    }
    st = pd_group_agree(root->group, st, err);
    if (st == PD_OK) st = pd_group_gather_all(root->group, seen, bytes, (void **)&all, err);
    *ret_has_gone = false;
    for (uint32_t i = 0; st == PD_OK && i <= entry->shard_count; i++) {
        bool is_there = false;
        for (uint32_t r = 0; r < root->group->size; r++)
            is_there |= all[r * bytes + i / 8] >> i % 8 & 1;
        *ret_has_gone |= !is_there;
    }
    free(seen);
    free(all);
    return st;
}

pd_status pd_store_count_quarantined(struct pd_store *store, uint32_t *ret_count, struct pd_error *err)
{
    return store_quarantine_count(&store->files.dir, ret_count, err);
}

/* ---- space ---- */

struct space_need {
    uint64_t bytes;   /* one checkpoint, or one generation, of the ranks that share the directory */
    uint64_t there;   /* existing bytes that will be freed as new ones come */
    uint64_t needed;  /* beyond those */
    uint32_t ranks;   /* number that share the directory */
    uint32_t copies;  /* copies that must fit at once */
    bool generations; /* files of state; else checkpoints, of which one must fit in any case */
};

static pd_status store_check_space(const struct store_dir *dir, const struct space_need *need, struct pd_error *err)
{
    struct pd_space space;
    PD_TRY(pd_vfs_space(dir->vfs, dir->root, &space, err));
    const char *plural = need->copies == 1 ? "" : "s";
    char already[64] = "";
    if (need->there)
        snprintf(already, sizeof already, ", %s of them exist already", pd_bytes_text((double)need->there).text);
    if (need->needed > space.available_bytes)
        PD_FAIL(err, PD_NO_SPACE,
                "%s (%s) has %s free and needs %s: %u %s%s of %s must fit at once%s; "
                "delete some (perdure ckpt prune), keep fewer (checkpoint.keep_last) or choose another directory",
                dir->root, space.type_name, pd_bytes_text((double)space.available_bytes).text,
                pd_bytes_text((double)need->needed).text, need->copies, need->generations ? "generation" : "checkpoint",
                plural, pd_bytes_text((double)need->bytes).text, already);
    uint64_t inodes = ((uint64_t)need->ranks + 4) * need->copies + 8;
    if (space.total_inodes && inodes > space.available_inodes)
        PD_FAIL(err, PD_NO_SPACE,
                "%s (%s) has %" PRIu64 " inodes free and %" PRIu64 " are needed for %u more checkpoint%s: delete files or "
                "choose another directory",
                dir->root, space.type_name, space.available_inodes, inodes, need->copies, plural);
    return PD_OK;
}

static uint64_t replica_bytes(const struct pd_store *store, uint32_t newest)
{
    return store->replicas.sources ? store_replica_bytes(&store->files.dir, &store->catalog.committed, newest) : 0;
}

/* Bytes here of the newest committed checkpoints, for the ranks that share this directory. Without generations one fewer
 * than `copies` will stay. With generations as many as are kept, since the first new ones are written before any old one
 * is removed. */
static uint64_t committed_bytes_here(const struct pd_store *store, const struct space_need *need)
{
    const struct store_items *committed = &store->catalog.committed;
    const struct store_dir *root = &store->files.dir;
    const uint32_t kept = store->options.keep_last ? store->options.keep_last : 1;
    const uint32_t count = need->generations ? kept : need->copies - 1;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < committed->count && i < count; i++)
        bytes += committed->rows[i].entry.bytes / root->group->size * need->ranks;
    return bytes + replica_bytes(store, count);
}

/* Collective: the sum of `mine` over the ranks that share the directory. */
static pd_status sum_of_share(struct store_dir *dir, uint64_t mine, uint64_t *ret_sum, uint32_t *ret_ranks,
                              struct pd_error *err)
{
    PD_TRY(store_gather(dir, mine, err));
    *ret_sum = *ret_ranks = 0;
    for (uint32_t r = 0; r < dir->group->size; r++) {
        if (dir->share_of[r] != dir->share_of[dir->group->rank]) continue;
        if (__builtin_add_overflow(*ret_sum, dir->words[r], ret_sum)) *ret_sum = UINT64_MAX;
        ++*ret_ranks;
    }
    return PD_OK;
}

/* Collective. */
static pd_status find_need(struct pd_store *store, uint64_t bytes_here, uint32_t copies, struct space_need *need,
                           struct pd_error *err)
{
    struct store_dir *dir = &store->files.dir;
    const uint32_t generations = pd_store_generations_needed(&store->options, dir->has_links);
    uint64_t free_sum;
    *need = (struct space_need){.copies = copies, .generations = store->options.generations};
    if (need->generations && copies < generations) need->copies = generations;
    PD_TRY(sum_of_share(dir, bytes_here, &need->bytes, &need->ranks, err));
    PD_TRY(sum_of_share(dir, need->generations ? pd_store_free_bytes(store) : 0, &free_sum, &need->ranks, err));
    need->there = committed_bytes_here(store, need) + free_sum;
    const uint64_t least = need->generations ? 0 : need->bytes;
    uint64_t whole;
    if (__builtin_mul_overflow(need->bytes, need->copies, &whole)) whole = UINT64_MAX;
    need->needed = whole > need->there && whole - need->there > least ? whole - need->there : least;
    return PD_OK;
}

pd_status pd_store_needed_bytes(struct pd_store *store, uint64_t bytes_here, uint32_t copies, uint64_t *ret_bytes,
                                struct pd_error *err)
{
    struct space_need need;
    PD_TRY(find_need(store, bytes_here, copies, &need, err));
    *ret_bytes = need.needed;
    return PD_OK;
}

pd_status pd_store_check_space(struct pd_store *store, uint64_t bytes_here, uint32_t copies, struct pd_error *err)
{
    const struct store_dir *dir = &store->files.dir;
    struct space_need need;
    PD_TRY(find_need(store, bytes_here, copies, &need, err));
    return pd_group_agree(dir->group, dir->leads_share ? store_check_space(dir, &need, err) : PD_OK, err);
}

uint64_t pd_store_free_bytes(struct pd_store *store)
{
    uint32_t count;
    uint64_t bytes;
    store_pool_count(&store->files.pool, &count, &bytes);
    return bytes;
}

void pd_store_keep_ready(struct pd_store *store, uint64_t bytes, void *buffer, uint64_t buffer_bytes)
{
    store_pool_keep_ready(&store->files.pool, bytes, buffer, buffer_bytes);
}

/* ---- generations ---- */

pd_status pd_store_generations_reserve(struct pd_store *store, uint64_t file_bytes, struct pd_error *err)
{
    struct store_files *files = &store->files;
    const uint32_t kept = store->options.keep_last ? store->options.keep_last : 1, committed = pd_store_count(store);
    const uint32_t needed = pd_store_generations_needed(&store->options, files->dir.has_links);
    uint32_t count;
    uint64_t bytes;
    PD_CHECK(files->lease.fence);
    store_pool_count(&files->pool, &count, &bytes);
    count += committed < kept ? committed : kept;
    if (count >= needed) return PD_OK;
    pd_status st = store_pool_reserve(&files->pool, needed - count, file_bytes, err);
    if (st == PD_OK) return PD_OK;
    return pd_error_context(err, st, "preallocating files of %.1f MiB for the state", (double)file_bytes / (1 << 20));
}

/* Explains a missing pool: another launch has taken over, or its file system is gone. */
static pd_status explain_no_pool(const struct store_files *files, struct pd_error *err)
{
    struct pd_error why = {0};
    pd_status st = store_lease_check_here(&files->lease, &why);
    if (st == PD_OK)
        st = pd_error_set(&why, PD_IO, PD_WHERE, 0, "pool-%" PRIu64 " was removed from %s", files->lease.fence,
                          files->dir.root);
    return pd_error_pass(err, st, &why);
}

pd_status pd_store_generation_take(struct pd_store *store, uint32_t *ret_slot, char *ret_path, struct pd_error *err)
{
    struct store_files *files = &store->files;
    struct store_text path;
    PD_CHECK(files->lease.fence);
    pd_status st = store_slot_take(&files->pool, ret_slot, &path, err);
    if (st == PD_NOT_FOUND) st = explain_no_pool(files, err);
    if (st != PD_OK) return pd_error_context(err, st, "a new generation of state");
    memcpy(ret_path, path.text, sizeof path.text);
    return PD_OK;
}

void pd_store_generation_release(struct pd_store *store, uint32_t slot, bool is_bad)
{
    store_slot_release(&store->files.pool, slot, is_bad);
}

bool pd_store_links_generations(const struct pd_store *store)
{
    return store->files.dir.has_links;
}

pd_status pd_store_begin_generation(struct pd_store *store, const struct pd_identity *identity, uint32_t slot, void *buffers,
                                    uint64_t buffer_bytes, struct pd_error *err)
{
    struct pd_group *group = store->files.dir.group;
    char path[STORE_PATH_MAX];
    PD_CHECK(store_slot_is_in_use(&store->files.pool, slot));
    PD_TRY(store_save_begin(&store->save, identity, err));
    store_save_path(&store->save, path);
    pd_status st = store_slot_link(&store->files.pool, slot, path, &store->save.identity, buffers, buffer_bytes, err);
    st = pd_group_agree(group, st, err);
    if (st != PD_OK) return store_save_give_up(&store->save, st, err);
    pd_fault_point("store.begin.linked");
    store->save.is_preparing = true;
    return PD_OK;
}

/* ---- saving ---- */

pd_status pd_store_begin(struct pd_store *store, const struct pd_identity *identity, char *ret_shard_path,
                         struct pd_error *err)
{
    PD_TRY(store_save_begin(&store->save, identity, err));
    store->save.is_preparing = true;
    store_save_path(&store->save, ret_shard_path);
    (void)!store_free_take(&store->files.pool, store->files.dir.group->rank, ret_shard_path); /* else a new file */
    return PD_OK;
}

pd_status pd_store_commit(struct pd_store *store, pd_status mine, const struct pd_shard_summary *summary,
                          const struct pd_run_state *state, struct pd_error *err)
{
    return store_save_commit(&store->save, mine, summary, 1, state, err);
}

pd_status pd_store_commit_all(struct pd_store *store, pd_status mine, const struct pd_shard_summary *summaries,
                              uint32_t count, const struct pd_run_state *state, struct pd_error *err)
{
    struct store_save *save = &store->save;
    PD_CHECK(store->files.dir.group->size == 1 && count > 0);
    if (mine == PD_OK && save->is_preparing && !save->has_placed_index) mine = store_save_place_index(save, err);
    return store_save_commit(save, mine, summaries, count, state, err);
}

void pd_store_set_index(struct pd_store *store, const void *data, uint64_t bytes)
{
    store->save.index_data = data;
    store->save.index_bytes = bytes;
    store->save.index_digest = data ? pd_digest64(data, bytes, 0) : 0;
    store->save.index_version++;
}

/* A failed removal does not stop the others. Without its record a checkpoint no longer counts; the next pruning removes
 * the rest. Returns the first failure. */
static pd_status remove_all(struct pd_store *store, char (*names)[PD_STORE_NAME_MAX], uint32_t count, struct pd_error *err)
{
    pd_status first = PD_OK;
    for (uint32_t i = 0; i < count; i++) {
        struct pd_error own = {0};
        uint64_t is_recorded = 0;
        pd_status st = store_remove(&store->files, names[i], true, &own);
        if (st != PD_OK) {
            st = pd_error_context(&own, store_as_storage(st, &own), "removing checkpoint %s", names[i]);
            if (first == PD_OK || st == PD_PEER_LOST) first = pd_error_pass(err, st, &own);
            if (st == PD_PEER_LOST) return first;
            PD_TRY(store_gather_most(&store->files.dir, pd_store_has_record(store, names[i]), &is_recorded, err));
            if (!is_recorded) store_save_leave(&store->save, names[i]);
        }
        if (is_recorded) continue;
        store_items_remove(&store->catalog.committed, names[i]);
        store_items_remove(&store->catalog.partial, names[i]);
    }
    return first;
}

pd_status pd_store_prune(struct pd_store *store, struct pd_error *err)
{
    char(*names)[PD_STORE_NAME_MAX] = NULL;
    uint32_t count = 0;
    PD_TRY(pd_store_check_fence(store, err));
    store_save_clear_leftovers(&store->save);
    pd_status st = store_catalog_victims(&store->catalog, &store->options, &names, &count, err);
    st = pd_group_agree(store->files.dir.group, st, err);
    if (st == PD_OK) st = remove_all(store, names, count, err);
    free(names);
    return st;
}

pd_status pd_store_quarantine(struct pd_store *store, const struct pd_store_entry *entry, const char *reason,
                              struct pd_error *err)
{
    const struct store_dir *root = &store->files.dir;
    char name[PD_STORE_NAME_MAX];
    struct pd_error own = {0};
    memcpy(name, entry->name, sizeof name);
    if (pd_store_fence(store)) {
        PD_TRY(pd_store_check_fence(store, err));
        pd_status st = PD_OK;
        if (root->leads_share)
            st = store_quarantine_here(&store->files, name, reason, store->options.quarantine_bytes_max, &own);
        st = pd_group_agree(root->group, st, &own);
        if (st == PD_PEER_LOST) return pd_error_pass(err, st, &own);
        if (st != PD_OK && root->leads_share)
            pd_log_warn("ckpt", "damaged checkpoint %s/%s stays where it is: %s", root->root, name, own.message);
    }
    store_items_remove(&store->catalog.committed, name);
    return PD_OK;
}

/* ---- replicas ---- */

const struct pd_store_replicas *pd_store_replicas(const struct pd_store *store)
{
    return store->replicas.sources ? &store->replicas : NULL;
}

pd_status pd_store_replica_begin(struct pd_store *store, uint32_t rank, char *ret_path, struct pd_error *err)
{
    return store_replica_begin(&store->files.pool, rank, ret_path, err);
}

pd_status pd_store_replica_end(struct pd_store *store, const char *name, uint32_t rank, pd_status mine, struct pd_error *err)
{
    return store_replica_end(&store->files.pool, name, rank, mine, err);
}
