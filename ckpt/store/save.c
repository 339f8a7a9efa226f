/* Saving: prepare a directory, let every rank write its shard into it, seal it. Invariants 1 to 3, 8 and 9 of store.c. */
#include "ckpt/base/fault.h"
#include "ckpt/base/log.h"
#include "ckpt/store/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- prepare ---- */

static pd_status write_new_file(struct pd_store *store, const char *path, const void *data, uint64_t bytes,
                                struct pd_error *err)
{
    struct pd_file *file = NULL;
    PD_TRY(pd_file_open(store->vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_TRUNCATE, &file, err));
    pd_status st = bytes ? pd_file_write(file, 0, data, bytes, err) : PD_OK;
    if (st == PD_OK && bytes) st = pd_file_sync(file, err);
    pd_status closed = pd_file_close(file, st == PD_OK ? err : NULL);
    return st != PD_OK ? st : closed;
}

/* Once for each version, into the pool; from there it is linked into every checkpoint. */
static pd_status write_index(struct pd_store *store, const char *path, struct pd_error *err)
{
    if (store->index_written == store->index_version) return PD_OK;
    PD_TRY(write_new_file(store, path, store->index_data, store->index_bytes, err));
    store->index_written = store->index_version;
    return PD_OK;
}

static pd_status place_index(struct pd_store *store, const char *name, struct pd_error *err)
{
    store->has_placed_index = store->index_data != NULL;
    if (!store->index_data) return PD_OK;
    char path[STORE_PATH_MAX], pooled[STORE_PATH_MAX], pool_name[PD_STORE_NAME_MAX];
    store_path(store, path, "%s.tmp/index.h5", name);
    if (store->has_links) {
        snprintf(pool_name, sizeof pool_name, "index-%" PRIu64, store->index_version);
        store_pool_path(store, pooled, pool_name);
        PD_TRY(write_index(store, pooled, err));
        struct pd_error own = {0};
        pd_status st = pd_vfs_link(store->vfs, pooled, path, &own);
        if (st == PD_OK) return PD_OK;
        if (st != PD_UNSUPPORTED && own.sys_errno != EMLINK) {
            if (err) *err = own;
            return st;
        }
    }
    return write_new_file(store, path, store->index_data, store->index_bytes, err);
}

/* PD_EXISTS: an earlier attempt of this launch at the same step left something that could not be cleared then. */
static pd_status check_unused(struct pd_store *store, const char *name, struct pd_error *err)
{
    static const char *const suffixes[] = {"", ".tmp"};
    for (unsigned i = 0; i < 2; i++) {
        char path[STORE_PATH_MAX];
        struct pd_stat stat;
        store_path(store, path, "%s%s", name, suffixes[i]);
        pd_status st = pd_vfs_stat(store->vfs, path, &stat, err);
        if (st == PD_OK) PD_FAIL(err, PD_EXISTS, "%s exists already", path);
        if (st != PD_NOT_FOUND) return st;
    }
    return PD_OK;
}

static pd_status prepare_directory(struct pd_store *store, const char *name, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    store_path(store, path, "%s.tmp", name);
    PD_TRY(pd_vfs_mkdir(store->vfs, path, err));
    pd_fault_point("store.begin.made");
    store_path(store, path, "%s.tmp/commit.h5", name);
    PD_TRY(write_new_file(store, path, NULL, 0, err));
    return place_index(store, name, err);
}

static pd_status check_begin(struct pd_store *store, const struct pd_identity *identity, struct pd_error *err)
{
    PD_CHECK(store->fence);
    if (store->is_preparing) PD_FAIL(err, PD_BUG, "a save begins while %s is being prepared", store->name);
    for (uint32_t i = 0; i < store->sealed.count; i++) {
        const struct pd_store_entry *entry = &store->sealed.rows[i].entry;
        if (entry->step == identity->step && entry->fence == store->fence)
            PD_FAIL(err, PD_EXISTS, "step %" PRIu64 " is sealed already as %s", identity->step, entry->name);
    }
    PD_TRY(store_items_reserve(&store->sealed, err));
    return store->leads_domain ? store_check_fence_here(store, err) : PD_OK; /* before anything is written in vain */
}

/* A directory that stays would keep its files, generations among them: pruning tries again. */
bool store_clear_save(struct pd_store *store, const char *name)
{
    if (store_retire(store, name, false, NULL) == PD_OK) return true;
    if (store->leftover_count < STORE_LEFTOVERS_MAX)
        memcpy(store->leftovers[store->leftover_count++], name, PD_STORE_NAME_MAX);
    return false;
}

/* Removes what the failed save made, with two exceptions. Another launch owns the store: it may have rolled the checkpoint
 * forward, and that it did is the better reason to report, as is a directory that is gone as a whole. A peer is lost: this
 * rank cannot know whether some host has committed, so nothing on disk is touched and the next open decides. */
pd_status store_give_up(struct pd_store *store, pd_status st, struct pd_error *err)
{
    struct pd_error lost;
    pd_status owner = pd_store_check_fence(store, &lost);
    if (owner == PD_BUSY || (owner != PD_OK && st == PD_NOT_FOUND)) {
        if (err) *err = lost;
        st = owner;
    }
    const bool has_peers = st != PD_PEER_LOST && pd_group_barrier(store->group, NULL) == PD_OK;
    if (owner != PD_BUSY && has_peers) (void)!store_clear_save(store, store->name);
    return pd_error_context(err, st, "checkpoint %s", store->name);
}

pd_status store_begin_directory(struct pd_store *store, const struct pd_identity *identity, struct pd_error *err)
{
    struct pd_group *group = store->group;
    PD_TRY(pd_group_agree(group, check_begin(store, identity, err), err));
    struct pd_step_name name = {.step = identity->step, .fence = store->fence};
    pd_step_name_format(&name, store->name);
    store->identity = *identity;
    pd_status st = store->leads_domain ? check_unused(store, store->name, err) : PD_OK;
    st = pd_group_agree(group, st, err);
    if (st == PD_EXISTS) st = store_retire(store, store->name, false, err);
    PD_TRY(st);
    st = store->leads_domain ? prepare_directory(store, store->name, err) : PD_OK;
    st = pd_group_agree(group, st, err);
    if (st == PD_OK) st = store_stripes_begin(store, err);
    return st == PD_OK ? PD_OK : store_give_up(store, st, err);
}

void store_shard_path(const struct pd_store *store, uint32_t stripe, char ret_path[STORE_PATH_MAX])
{
    char shard[PD_STORE_NAME_MAX];
    PD_CHECK(stripe < store->shards);
    pd_shard_name_format(store->group->rank * store->shards + stripe, shard);
    if (store->stripes[stripe])
        store_path(store->stripes[stripe], ret_path, "%s/%s", store->name, shard);
    else
        store_path(store, ret_path, "%s.tmp/%s", store->name, shard);
}

void pd_store_begin_shard(struct pd_store *store, uint32_t stripe, char *ret_shard_path)
{
    char path[STORE_PATH_MAX];
    PD_CHECK(store->is_preparing);
    store_shard_path(store, stripe, path);
    (void)!store_waiting_take(pd_store_stripe(store, stripe), store->group->rank,
                              path); /* without one the shard is made anew */
    memcpy(ret_shard_path, path, sizeof path);
}

pd_status pd_store_begin(struct pd_store *store, const struct pd_identity *identity, char *ret_shard_path,
                         struct pd_error *err)
{
    PD_TRY(store_begin_directory(store, identity, err));
    store->is_preparing = true;
    pd_store_begin_shard(store, 0, ret_shard_path);
    return PD_OK;
}

/* ---- seal ---- */

/* What each rank tells the root: the identity, then a summary a shard. */
struct shard_report {
    struct pd_identity identity;
    struct pd_shard_summary summaries[];
};

static uint64_t report_bytes(const struct pd_store *store)
{
    return sizeof(struct shard_report) + store->shards * sizeof(struct pd_shard_summary);
}

static const struct shard_report *report_of(const struct pd_store *store, const void *reports, uint32_t rank)
{
    return (const struct shard_report *)((const char *)reports + rank * report_bytes(store));
}

static uint32_t shards_of(const struct pd_store *store)
{
    return store->written ? store->written_count : store->group->size * store->shards;
}

static struct pd_shard_summary summary_of(const struct pd_store *store, const void *reports, uint32_t shard)
{
    if (store->written) return store->written[shard];
    return report_of(store, reports, shard / store->shards)->summaries[shard % store->shards];
}

/* The root's copy of the state with what only the store knows. */
static pd_status encode_record(struct pd_store *store, const void *reports, const struct pd_run_state *state,
                               void **ret_data, uint64_t *ret_bytes, struct pd_error *err)
{
    const uint32_t shards = shards_of(store), stripes = state->layout.stripes ? state->layout.stripes : 1;
    struct pd_commit commit = {.state = *state, .shard_count = shards};
    PD_CHECK(store->written || stripes == store->shards);
    commit.state.fence = store->fence;
    commit.state.identity = store->identity;
    commit.shards = calloc(shards, sizeof *commit.shards);
    if (!commit.shards) PD_FAIL(err, PD_NO_MEMORY, "no memory for the record of %u shards", shards);
    pd_status st = PD_OK;
    for (uint32_t r = 0; r < store->group->size; r++) {
        const struct pd_identity *theirs = &report_of(store, reports, r)->identity;
        if (memcmp(theirs, &store->identity, sizeof store->identity) != 0)
            st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "rank %u saves step %" PRIu64 ", rank 0 step %" PRIu64, r,
                              theirs->step, store->identity.step);
    }
    for (uint32_t s = 0; s < shards; s++) {
        commit.shards[s] = summary_of(store, reports, s);
        commit.shards[s].writer_rank = s / stripes;
        commit.shards[s].host = store->host_of[store->written ? 0 : s / stripes];
    }
    if (st == PD_OK) st = pd_commit_encode(&commit, ret_data, ret_bytes, err);
    free(commit.shards);
    return st;
}

static pd_status gather_reports(struct pd_store *store, const struct pd_shard_summary *summaries, void **ret_reports,
                                struct pd_error *err)
{
    struct pd_group *group = store->group;
    struct shard_report *mine = calloc(1, report_bytes(store));
    void *reports = group->rank == 0 ? calloc(group->size, report_bytes(store)) : NULL;
    pd_status st = PD_OK;
    if (!mine || (group->rank == 0 && !reports))
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for the reports of %u ranks", group->size);
    st = pd_group_agree(group, st, err);
    if (st == PD_OK) {
        mine->identity = store->identity;
        if (!store->written) memcpy(mine->summaries, summaries, store->shards * sizeof *summaries);
        st = pd_group_gather(group, 0, mine, report_bytes(store), reports, err);
    }
    free(mine);
    *ret_reports = reports;
    return st;
}

/* Everybody's report on the root, the record on everybody. *ret_total: bytes of all shards. */
static pd_status build_record(struct pd_store *store, const struct pd_shard_summary *summary,
                              const struct pd_run_state *state, void **ret_data, uint64_t *ret_bytes, uint64_t *ret_total,
                              struct pd_error *err)
{
    struct pd_group *group = store->group;
    struct {
        uint64_t bytes, total;
    } sizes = {0, 0};
    void *data = NULL, *reports = NULL;
    pd_status st = gather_reports(store, summary, &reports, err);
    pd_status encoded = PD_OK;
    if (st == PD_OK && group->rank == 0) encoded = encode_record(store, reports, state, &data, &sizes.bytes, err);
    for (uint32_t i = 0; st == PD_OK && group->rank == 0 && i < shards_of(store); i++)
        sizes.total += summary_of(store, reports, i).file_bytes;
    free(reports);
    if (st == PD_OK) st = pd_group_agree(group, encoded, err);
    if (st == PD_OK) st = pd_group_broadcast(group, 0, &sizes, sizeof sizes, err);
    if (st == PD_OK && group->rank != 0) data = malloc(sizes.bytes);
    if (st == PD_OK) {
        pd_status ready = data ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for a commit record");
        /* The last word before anybody seals: still the owner, on every host. */
        if (ready == PD_OK && store->leads_domain) ready = store_check_fence_here(store, err);
        st = pd_group_agree(group, ready, err);
    }
    if (st == PD_OK) st = pd_group_broadcast(group, 0, data, sizes.bytes, err);
    if (st != PD_OK) {
        free(data);
        return st;
    }
    *ret_data = data;
    *ret_bytes = sizes.bytes;
    *ret_total = sizes.total;
    return PD_OK;
}

/* In place: its name is durable already, and until the last byte is, it does not decode. NULL: what lies there is valid and
 * only has to be made durable. */
static pd_status write_record(struct pd_store *store, const char *dir, const void *record, uint64_t bytes,
                              struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    struct pd_file *file = NULL;
    store_path(store, path, "%s/commit.h5", dir);
    PD_TRY(pd_file_open(store->vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    pd_status st = record ? pd_file_write(file, 0, record, bytes, err) : PD_OK;
    if (st == PD_OK && record) st = pd_file_truncate(file, bytes, err);
    if (st == PD_OK) st = pd_file_sync(file, err);
    pd_status closed = pd_file_close(file, st == PD_OK ? err : NULL);
    return st != PD_OK ? st : closed;
}

pd_status store_seal_here(struct pd_store *store, const char *from, const char *to, const void *record, uint64_t bytes,
                          struct pd_error *err)
{
    char source[STORE_PATH_MAX], target[STORE_PATH_MAX];
    PD_TRY(write_record(store, from, record, bytes, err));
    pd_fault_point("store.seal.recorded");
    store_path(store, source, "%s", from);
    store_path(store, target, "%s", to);
    if (strcmp(from, to) != 0) PD_TRY(pd_vfs_rename(store->vfs, source, target, err));
    pd_fault_point("store.seal.renamed");
    return store_sync_dir(store, store->root, err);
}

/* Hosts with disks of their own sync the root too: otherwise one could lose the whole directory after another has sealed
 * it. On one disk the name of the directory and the record in it become durable together, when it gets its final name. */
static pd_status sync_prepared(struct pd_store *store, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    store_path(store, path, "%s.tmp", store->name);
    PD_TRY(store_sync_dir(store, path, err));
    PD_TRY(store_stripes_sync(store, err));
    return store->has_other_domains && store->leads_domain ? store_sync_dir(store, store->root, err) : PD_OK;
}

static pd_status seal_prepared(struct pd_store *store, const void *record, uint64_t bytes, struct pd_error *err)
{
    char from[PD_STORE_NAME_MAX + 4];
    snprintf(from, sizeof from, "%s.tmp", store->name);
    pd_fault_point("store.seal.checked");
    return store_seal_here(store, from, store->name, record, bytes, err);
}

static pd_status seal(struct pd_store *store, const struct pd_shard_summary *summary, const struct pd_run_state *state,
                      uint64_t *ret_total, struct pd_error *err)
{
    pd_fault_point("store.prepare.written");
    PD_TRY(pd_group_agree(store->group, store->leads_host ? sync_prepared(store, err) : PD_OK, err));
    pd_fault_point("store.prepare.synced");
    void *record = NULL;
    uint64_t bytes = 0;
    PD_TRY(build_record(store, summary, state, &record, &bytes, ret_total, err));
    pd_status st = store->leads_domain ? seal_prepared(store, record, bytes, err) : PD_OK;
    free(record);
    return pd_group_agree(store->group, st, err);
}

pd_status pd_store_commit(struct pd_store *store, pd_status mine, const struct pd_shard_summary *summary,
                          const struct pd_run_state *state, struct pd_error *err)
{
    if (!store->is_preparing) PD_FAIL(err, PD_BUG, "a commit without a checkpoint being prepared");
    uint64_t total = 0;
    struct store_item item = {.entry = {.lineage = store->identity.lineage,
                                        .step = store->identity.step,
                                        .fence = store->fence,
                                        .shard_count = shards_of(store)}};
    memcpy(item.entry.name, store->name, sizeof item.entry.name);
    store->is_preparing = false;
    pd_status st = pd_group_agree(store->group, mine, err);
    if (st == PD_OK) st = seal(store, summary, state, &total, err);
    if (st != PD_OK) return store_give_up(store, st, err);
    pd_fault_point("store.seal.done");
    item.entry.bytes = total;
    store_items_add(&store->sealed, &item);
    return PD_OK;
}

pd_status pd_store_commit_all(struct pd_store *store, pd_status mine, const struct pd_shard_summary *summaries,
                              uint32_t count, const struct pd_run_state *state, struct pd_error *err)
{
    static const struct pd_shard_summary none;
    PD_CHECK(store->group->size == 1 && count > 0);
    store->written = summaries;
    store->written_count = count;
    if (mine == PD_OK && store->is_preparing && !store->has_placed_index) mine = place_index(store, store->name, err);
    pd_status st = pd_store_commit(store, mine, &none, state, err);
    store->written = NULL;
    return st;
}
