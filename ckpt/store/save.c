/* Saving: prepares a directory, lets every rank write shards into it, commits it. Invariants 1 to 3, 8 and 9 of store.c. */
#include "ckpt/store/save.h"

#include "ckpt/base/digest.h"
#include "ckpt/base/fault.h"
#include "ckpt/store/remove.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- prepare ---- */

static pd_status write_new_file(const struct store_save *save, const char *path, const void *data, uint64_t bytes,
                                struct pd_error *err)
{
    return store_file_write(save->files->dir.vfs, path, PD_OPEN_CREATE | PD_OPEN_TRUNCATE, data, bytes,
                            bytes ? STORE_FILE_SYNC : STORE_FILE_LEAVE, err);
}

/* Writes each version once, into the pool; from there it is linked into every checkpoint. */
static pd_status write_index(struct store_save *save, const char *path, struct pd_error *err)
{
    if (save->index_written == save->index_version) return PD_OK;
    PD_TRY(write_new_file(save, path, save->index_data, save->index_bytes, err));
    save->index_written = save->index_version;
    return PD_OK;
}

pd_status store_save_place_index(struct store_save *save, struct pd_error *err)
{
    const struct store_files *root = save->files;
    save->has_placed_index = save->index_data != NULL;
    if (!save->index_data) return PD_OK;
    const struct store_text path = store_at(&root->dir, "%s.tmp/index.h5", save->name);
    if (root->dir.has_links) {
        char name[PD_STORE_NAME_MAX];
        snprintf(name, sizeof name, "index-%" PRIu64, save->index_version);
        const struct store_text pooled = store_pool_at(&root->pool, name);
        PD_TRY(write_index(save, pooled.text, err));
        struct pd_error own = {0};
        pd_status st = store_link(&root->dir, pooled.text, path.text, &own);
        if (st == PD_NOT_FOUND) { /* somebody removed it from the pool */
            save->index_written = 0;
            PD_TRY(write_index(save, pooled.text, err));
            st = store_link(&root->dir, pooled.text, path.text, &own);
        }
        if (st != PD_UNSUPPORTED) return pd_error_pass(err, st, &own);
    }
    return write_new_file(save, path.text, save->index_data, save->index_bytes, err);
}

/* PD_EXISTS: an earlier attempt of this launch at the same step left files that could not be removed then. */
static pd_status check_unused(const struct store_save *save, struct pd_error *err)
{
    static const char *const suffixes[] = {"", ".tmp"};
    const struct store_dir *root = &save->files->dir;
    for (unsigned i = 0; i < 2; i++) {
        struct pd_stat stat;
        const struct store_text path = store_at(root, "%s%s", save->name, suffixes[i]);
        pd_status st = pd_vfs_stat(root->vfs, path.text, &stat, err);
        if (st == PD_OK) PD_FAIL(err, PD_EXISTS, "%s exists already", path.text);
        if (st != PD_NOT_FOUND) return st;
    }
    return PD_OK;
}

/* The name has this launch's fence and did not exist, so if it exists now we made it: a network file system sent the call
 * twice. */
static pd_status prepare_directory(struct store_save *save, struct pd_error *err)
{
    const struct store_dir *root = &save->files->dir;
    const struct store_text path = store_at(root, "%s.tmp", save->name);
    struct pd_dir *open = NULL;
    pd_status st = pd_vfs_mkdir(root->vfs, path.text, err);
    if (st == PD_EXISTS) st = store_open_below(root, path.text, &open, err);
    pd_dir_close(open);
    PD_TRY(st);
    pd_fault_point("store.begin.made");
    PD_TRY(write_new_file(save, store_at(root, "%s.tmp/commit.h5", save->name).text, NULL, 0, err));
    return store_save_place_index(save, err);
}

static pd_status check_begin(struct store_save *save, const struct pd_identity *identity, struct pd_error *err)
{
    const struct store_files *root = save->files;
    struct store_items *committed = &save->catalog->committed;
    PD_CHECK(root->lease.fence);
    if (save->is_preparing) PD_FAIL(err, PD_BUG, "a save begins while %s is being prepared", save->name);
    for (uint32_t i = 0; i < committed->count; i++) {
        const struct pd_store_entry *entry = &committed->rows[i].entry;
        if (entry->step == identity->step && entry->fence == root->lease.fence)
            PD_FAIL(err, PD_EXISTS, "step %" PRIu64 " is committed already as %s", identity->step, entry->name);
    }
    PD_TRY(store_items_reserve(committed, err));
    if (root->dir.leads_share) PD_TRY(store_lease_check_here(&root->lease, err)); /* check before writing in vain */
    /* PD_NOT_FOUND: the pool is gone; recreate it. */
    if (store_pool_is_gone(&save->files->pool))
        PD_FAIL(err, PD_NOT_FOUND, "pool-%" PRIu64 " was removed from %s", save->files->pool.fence, save->files->dir.root);
    return PD_OK;
}

pd_status store_save_begin(struct store_save *save, const struct pd_identity *identity, struct pd_error *err)
{
    const struct store_files *root = save->files;
    struct pd_group *group = root->dir.group;
    const bool leads = root->dir.leads_share;
    pd_status st = pd_group_agree(group, check_begin(save, identity, err), err);
    if (st == PD_NOT_FOUND) {
        PD_TRY(store_pool_make_again(&save->files->pool, err));
        st = pd_group_agree(group, check_begin(save, identity, err), err);
    }
    PD_TRY(st);
    struct pd_step_name name = {.step = identity->step, .fence = root->lease.fence};
    memcpy(save->name, pd_step_name_text(&name).text, sizeof save->name);
    save->identity = *identity;
    st = pd_group_agree(group, leads ? check_unused(save, err) : PD_OK, err);
    if (st == PD_EXISTS) st = store_remove(save->files, save->name, false, err);
    if (st != PD_OK) return store_as_storage(st, err);
    st = pd_group_agree(group, leads ? prepare_directory(save, err) : PD_OK, err);
    return st == PD_OK ? PD_OK : store_save_give_up(save, st, err);
}

void store_save_path(const struct store_save *save, char ret_path[STORE_PATH_MAX])
{
    const struct store_dir *root = &save->files->dir;
    const struct pd_store_name shard = pd_shard_name(root->group->rank);
    snprintf(ret_path, STORE_PATH_MAX, "%s", store_at(root, "%s.tmp/%s", save->name, shard.text).text);
}

/* ---- give up ---- */

void store_save_leave(struct store_save *save, const char *name)
{
    if (save->leftover_count < STORE_LEFTOVERS_MAX)
        snprintf(save->leftovers[save->leftover_count++], PD_STORE_NAME_MAX, "%s", name);
}

/* A remaining directory would keep its files, generations among them, so pruning retries. */
static void clear_save(struct store_save *save, const char *name)
{
    if (store_remove(save->files, name, false, NULL) != PD_OK) store_save_leave(save, name);
}

/* A checkpoint saved later under the same name is not a leftover. */
void store_save_clear_leftovers(struct store_save *save)
{
    char names[STORE_LEFTOVERS_MAX][PD_STORE_NAME_MAX];
    uint32_t count = save->leftover_count;
    memcpy(names, save->leftovers, sizeof names);
    save->leftover_count = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!store_items_find(&save->catalog->committed, names[i])) clear_save(save, names[i]);
}

/* Removes what the failed save made, with two exceptions. If another launch owns the store, it may have rolled the
 * checkpoint forward; its ownership is the better error, and so is a missing directory. If a peer is lost, this rank
 * cannot know whether some host has committed: it changes nothing on disk, and the next open decides. */
pd_status store_save_give_up(struct store_save *save, pd_status st, struct pd_error *err)
{
    const struct store_files *root = save->files;
    struct pd_error lost;
    pd_status owner = store_lease_check(&root->lease, &lost);
    if (owner == PD_BUSY || (owner != PD_OK && st == PD_NOT_FOUND)) st = pd_error_pass(err, owner, &lost);
    const bool has_peers = pd_group_barrier(root->dir.group, NULL) == PD_OK;
    if (owner != PD_BUSY && has_peers) clear_save(save, save->name);
    return pd_error_context(err, store_as_storage(st, err), "checkpoint %s", save->name);
}

/* ---- commit ---- */

static pd_status check_identities(const struct store_dir *root, struct pd_error *err)
{
    for (uint32_t r = 1; r < root->group->size; r++)
        if (root->words[r] != root->words[0]) PD_FAIL(err, PD_BUG, "rank %u saves another step than rank 0", r);
    return PD_OK;
}

/* Encodes the root's copy of the state with what only the store knows. `shards` are in rank order. */
static pd_status encode_record(const struct store_save *save, struct pd_shard_summary *shards, uint32_t shards_a_rank,
                               const struct pd_run_state *state, void **ret_data, uint64_t *ret_bytes, struct pd_error *err)
{
    const struct store_files *root = save->files;
    const uint32_t size = root->dir.group->size;
    struct pd_commit commit = {.state = *state, .shard_count = size * shards_a_rank, .shards = shards};
    PD_CHECK(size == 1 || shards_a_rank == 1);
    PD_TRY(check_identities(&root->dir, err));
    commit.state.fence = root->lease.fence;
    commit.state.index_digest = save->has_placed_index ? save->index_digest : 0;
    commit.state.identity = save->identity;
    for (uint32_t s = 0; s < commit.shard_count; s++) {
        shards[s].writer_rank = s;
        shards[s].host = root->dir.host_of[s / shards_a_rank];
    }
    return pd_commit_encode(&commit, ret_data, ret_bytes, err);
}

/* Gathers summaries on the root, builds the record, and sends it to every rank. *ret_total: bytes of all shards. */
static pd_status build_record(const struct store_save *save, const struct pd_shard_summary *summaries, uint32_t count,
                              const struct pd_run_state *state, void **ret_data, uint64_t *ret_bytes, uint64_t *ret_total,
                              struct pd_error *err)
{
    struct store_files *root = save->files;
    struct pd_group *group = root->dir.group;
    struct pd_shard_summary *all = group->rank == 0 ? calloc(group->size, count * sizeof *all) : NULL;
    pd_status st = PD_ALLOCATED(all || group->rank != 0, err, "no memory for the shards of %u ranks", group->size);
    st = pd_group_agree(group, st, err);
    if (st == PD_OK) st = pd_group_gather(group, 0, summaries, count * sizeof *summaries, all, err);
    if (st == PD_OK) st = store_gather(&root->dir, pd_digest64(&save->identity, sizeof save->identity, 0), err);
    pd_status mine = PD_OK;
    *ret_total = 0;
    if (st == PD_OK && group->rank == 0) {
        mine = encode_record(save, all, count, state, ret_data, ret_bytes, err);
        for (uint32_t i = 0; i < group->size * count; i++)
            *ret_total += all[i].file_bytes;
    }
    free(all);
    PD_TRY(st);
    /* Last check before anybody commits: this launch still owns the store, on every host. */
    if (mine == PD_OK && root->dir.leads_share) mine = store_lease_check_here(&root->lease, err);
    PD_TRY(store_spread(&root->dir, 0, mine, ret_data, ret_bytes, err));
    return pd_group_broadcast(group, 0, ret_total, sizeof *ret_total, err);
}

/* Writes the record in place: its name is already durable, and it does not decode until its last byte is. */
pd_status store_commit_here(struct store_dir *root, const char *from, const char *to, const void *record, uint64_t bytes,
                            struct pd_error *err)
{
    PD_TRY(store_file_write(root->vfs, store_at(root, "%s/commit.h5", from).text, PD_OPEN_CREATE, record, record ? bytes : 0,
                            record ? STORE_FILE_CUT_SYNC : STORE_FILE_SYNC, err));
    pd_fault_point("store.commit.recorded");
    if (strcmp(from, to) != 0)
        PD_TRY(pd_vfs_rename(root->vfs, store_at(root, "%s", from).text, store_at(root, "%s", to).text, err));
    pd_fault_point("store.commit.renamed");
    return store_sync_dir(root, root->root, err);
}

/* Hosts with their own disks also sync the root: otherwise one could lose the whole directory after another has committed
 * it. On one disk the final rename makes the directory's name and its record durable together. */
static pd_status sync_prepared(const struct store_save *save, struct pd_error *err)
{
    struct store_dir *root = &save->files->dir;
    PD_TRY(store_sync_dir(root, store_at(root, "%s.tmp", save->name).text, err));
    return root->has_other_shares && root->leads_share ? store_sync_dir(root, root->root, err) : PD_OK;
}

static pd_status commit_prepared(const struct store_save *save, const void *record, uint64_t bytes, struct pd_error *err)
{
    char from[PD_STORE_NAME_MAX + 4];
    snprintf(from, sizeof from, "%s.tmp", save->name);
    pd_fault_point("store.commit.checked");
    return store_commit_here(&save->files->dir, from, save->name, record, bytes, err);
}

static pd_status commit(const struct store_save *save, const struct pd_shard_summary *summaries, uint32_t count,
                        const struct pd_run_state *state, uint64_t *ret_total, struct pd_error *err)
{
    const struct store_dir *root = &save->files->dir;
    void *record = NULL;
    uint64_t bytes = 0;
    pd_fault_point("store.prepare.written");
    PD_TRY(pd_group_agree(root->group, root->leads_host ? sync_prepared(save, err) : PD_OK, err));
    pd_fault_point("store.prepare.synced");
    pd_status st = build_record(save, summaries, count, state, &record, &bytes, ret_total, err);
    if (st == PD_OK)
        st = pd_group_agree(root->group, root->leads_share ? commit_prepared(save, record, bytes, err) : PD_OK, err);
    free(record);
    return st;
}

pd_status store_save_commit(struct store_save *save, pd_status mine, const struct pd_shard_summary *summaries,
                            uint32_t count, const struct pd_run_state *state, struct pd_error *err)
{
    const struct store_files *root = save->files;
    if (!save->is_preparing) PD_FAIL(err, PD_BUG, "a commit without a checkpoint being prepared");
    struct store_item item = {.entry = {.lineage = save->identity.lineage,
                                        .step = save->identity.step,
                                        .fence = root->lease.fence,
                                        .shard_count = root->dir.group->size * count}};
    memcpy(item.entry.name, save->name, sizeof item.entry.name);
    save->is_preparing = false;
    pd_status st = pd_group_agree(root->dir.group, mine, err);
    if (st == PD_OK) st = commit(save, summaries, count, state, &item.entry.bytes, err);
    if (st != PD_OK) return store_save_give_up(save, st, err);
    pd_fault_point("store.commit.done");
    store_items_add(&save->catalog->committed, &item);
    return PD_OK;
}
