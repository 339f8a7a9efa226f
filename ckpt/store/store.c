/* The store: how a directory becomes a checkpoint, stays one, and stops being one.
 *
 *   prepare           seal                            delete
 *   step-S-F.tmp ───▶ commit.h5 valid ───▶ step-S-F ───▶ record gone everywhere ───▶ pool-F/trash-… ───▶ gone
 *   (shards, index,   (inside .tmp)        (sealed)                                  (shards wait in pool-F/recycle-…)
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
 *       shards in sight is sealed: where record or final name are missing they are made (roll forward).
 *    5. A shard of a sealed checkpoint is moved or rewritten only after the record is durably gone on every host.
 *    6. A directory leaves the root by one rename into the pool; emptying it comes after. So a dead launch that wakes up
 *       cannot seal what we are emptying: its rename finds no source.
 *    7. A file is written in place only by the rank in whose pool it lies, under that rank's lock. It is chosen only while
 *       it waits there (recycle-…) and its link count is one: a name somebody else gave it (a backup, a checkpoint, a
 *       torn rename that came back with a power loss) keeps its bytes.
 *    8. Fences grow. A launch seals only while its fence is the highest in the root.
 *    9. After a failed sync of a file or directory the save is given up: its files are removed, never reused.
 *   10. What is not named by store_names.h is not ours: never touched, also inside our directories.
 *   11. A generation is written under a name of its own (pool-F/generation-…), by whoever holds it, before any checkpoint
 *       knows it. It is linked once it is finished and synced, and never written from then on: released, it either waits
 *       (no checkpoint has it) or loses its name in the pool. Then the checkpoint alone has it, as it has any shard: it
 *       waits again when retention has taken the record away on every host, durably, which 5 puts first.
 *   12. What was held when a launch died is unlinked, never taken over: writes of it may still be in flight in the kernel
 *       though every lock is free, and a sync of it may have failed with nobody left to say so. What waited has neither:
 *       it is taken over under 7 and the rule of store_claim.c.
 *   13. A copy of another host's shard is whole and synced before it gets its name in a checkpoint that is sealed already.
 *       Until then it is held (12). The record knows its digest, so nothing believes it because of where it lies.
 *
 * Why nobody else's writes reach a sealed checkpoint or a file of ours: a worker that lives on, whatever it believes, has
 * open for writing only what it holds. That was never linked (11) and is never ours (12): where its lock is seen its whole
 * pool stays as it is; where it is not seen its files are unlinked and it writes into files without a name. It can link what
 * it has finished, but into a directory of its own fence, which it cannot seal (8) and the next open clears (6). What it
 * takes, it takes by renaming inside its own pool, so that a file has one taker, whoever else moves it meanwhile.
 *
 * A crash leaves one of: the old directories; a directory being prepared without a valid record (cleared at the next open);
 * one with a valid record somewhere (rolled forward); a final name whose record is gone everywhere (a removal: cleared,
 * aloud; kept where nothing is whole, since a removal of ours leaves something whole).
 * Hosts that share the file system and hosts with one of their own follow the same steps: who leads a directory is found out
 * at open (store_claim.c) and never configured.
 *
 *   files   store_claim (lock, domains, fence) · store_survey (what lies where) · store_recover (roll forward, clear) ·
 *           store_save (prepare, seal) · store_stripes (further drives) · store_generation (what waits, what is held) ·
 *           store_copies (on other hosts) · store_remove (retire, recycle, quarantine) · retention · probe
 */
#include "ckpt/base/fault.h"
#include "ckpt/base/log.h"
#include "ckpt/store/internal.h"
#include "ckpt/store/probe.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- paths and small collectives ---- */

void store_path(const struct pd_store *store, char ret_path[STORE_PATH_MAX], const char *format, ...)
{
    int used = snprintf(ret_path, STORE_PATH_MAX, "%s/", store->root);
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(ret_path + used, STORE_PATH_MAX - (size_t)used, format, arguments);
    va_end(arguments);
    PD_CHECK(more >= 0 && (size_t)(used + more) < STORE_PATH_MAX);
}

void store_pool_path(const struct pd_store *store, char ret_path[STORE_PATH_MAX], const char *name)
{
    store_path(store, ret_path, "pool-%" PRIu64 "%s%s", store->fence, name ? "/" : "", name ? name : "");
}

pd_status store_gather_all(struct pd_store *store, const void *mine, uint64_t bytes, void *all, struct pd_error *err)
{
    PD_TRY(pd_group_gather(store->group, 0, mine, bytes, all, err));
    return pd_group_broadcast(store->group, 0, all, bytes * store->group->size, err);
}

pd_status store_sync_dir(struct pd_store *store, const char *path, struct pd_error *err)
{
    if (!store->syncs_names) return PD_OK;
    pd_status st = pd_vfs_sync_dir(store->vfs, path, err);
    if (st != PD_UNSUPPORTED) return st;
    store->syncs_names = false; /* the probe says so aloud */
    return PD_OK;
}

/* ---- tables of checkpoints ---- */

static int compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? 1 : a > b ? -1 : 0;
}

static int item_order(const void *a, const void *b)
{
    const struct pd_store_entry *x = &((const struct store_item *)a)->entry, *y = &((const struct store_item *)b)->entry;
    int order = compare_u64(x->lineage, y->lineage);
    if (!order) order = compare_u64(x->step, y->step);
    return order ? order : compare_u64(x->fence, y->fence);
}

pd_status store_items_reserve(struct store_items *items, struct pd_error *err)
{
    if (items->count < items->capacity) return PD_OK;
    uint32_t capacity = items->capacity ? items->capacity * 2 : 16;
    struct store_item *rows = realloc(items->rows, capacity * sizeof *rows);
    if (!rows) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u checkpoints", capacity);
    items->rows = rows;
    items->capacity = capacity;
    return PD_OK;
}

void store_items_add(struct store_items *items, const struct store_item *item)
{
    PD_CHECK(items->count < items->capacity);
    items->rows[items->count++] = *item;
    qsort(items->rows, items->count, sizeof *items->rows, item_order);
}

static struct store_item *items_find(struct store_items *items, const char *name)
{
    for (uint32_t i = 0; i < items->count; i++) {
        if (strcmp(items->rows[i].entry.name, name) == 0) return &items->rows[i];
    }
    return NULL;
}

bool store_is_sealed(struct pd_store *store, const char *name)
{
    return items_find(&store->sealed, name) != NULL;
}

void store_items_remove(struct store_items *items, const char *name)
{
    struct store_item *row = items_find(items, name);
    if (!row) return;
    size_t after = (size_t)(items->rows + items->count - row) - 1;
    memmove(row, row + 1, after * sizeof *row);
    items->count--;
}

/* ---- opening ---- */

pd_status store_absolute(const char *root, char ret_path[STORE_PATH_MAX], struct pd_error *err)
{
    char here[STORE_PATH_MAX] = "";
    if (root[0] != '/' && !getcwd(here, sizeof here)) PD_FAIL(err, PD_IO, "the current directory cannot be found");
    size_t length = strlen(root);
    while (length > 1 && root[length - 1] == '/')
        length--;
    if (length == 0 || strlen(here) + length >= STORE_ROOT_MAX)
        PD_FAIL(err, PD_INVALID, "the path of the checkpoint directory has %zu bytes: 1 to %u are possible", length,
                STORE_ROOT_MAX - 1);
    snprintf(ret_path, STORE_PATH_MAX, "%s%s%.*s", here, here[0] ? "/" : "", (int)length, root);
    return PD_OK;
}

/* Tables a rank, and who leads a host. Every rank is its own domain until store_claim knows better. */
static pd_status meet_hosts(struct pd_store *store, struct pd_error *err)
{
    uint32_t size = store->group->size, host = store->group->host;
    store->host_of = calloc(size, sizeof *store->host_of);
    store->domain_of = calloc(size, sizeof *store->domain_of);
    pd_status st = PD_OK;
    if (!store->host_of || !store->domain_of)
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for %u ranks", size);
    PD_TRY(pd_group_agree(store->group, st, err));
    PD_TRY(store_gather_all(store, &host, sizeof host, store->host_of, err));
    memcpy(store->domain_of, store->host_of, size * sizeof *store->domain_of);
    store->leads_host = true;
    for (uint32_t r = 0; r < store->group->rank; r++) {
        if (store->host_of[r] == host) store->leads_host = false;
    }
    store->leads_domain = store->leads_host;
    return PD_OK;
}

/* Makes the last part of the path when it is absent, durably. */
static pd_status make_root(struct pd_store *store, struct pd_error *err)
{
    pd_status st = pd_vfs_mkdir(store->vfs, store->root, err);
    if (st == PD_EXISTS) return PD_OK;
    if (st == PD_NOT_FOUND) return pd_error_context(err, st, "the directory above %s does not exist: make it", store->root);
    if (st != PD_OK) return pd_probe_explain(err, st, store->root);
    char parent[STORE_PATH_MAX];
    snprintf(parent, sizeof parent, "%s", store->root);
    char *slash = strrchr(parent, '/');
    slash[slash == parent] = 0;
    return store_sync_dir(store, parent, err);
}

static void report_probe(const struct pd_store *store, const struct pd_probe *probe)
{
    if (store->group->rank != 0) return;
    if (!probe->has_locks) pd_log_warn("ckpt", "%s knows no locks: only fences keep two launches apart", store->root);
    if (!probe->syncs_names)
        pd_log_warn("ckpt", "%s cannot sync directories: a power loss may take the newest checkpoint", store->root);
    pd_log_debug("ckpt", "%s: %s, links %d, direct I/O %d", store->root, probe->space.type_name, probe->has_links,
                 probe->is_direct);
}

/* What the lowest rank of a host has found out holds for all of it. */
static pd_status spread_links(struct pd_store *store, bool mine, struct pd_error *err)
{
    uint32_t size = store->group->size, first = 0;
    bool *all = calloc(size, sizeof *all);
    pd_status st = all ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for %u ranks", size);
    st = pd_group_agree(store->group, st, err);
    if (st == PD_OK) st = store_gather_all(store, &mine, sizeof mine, all, err);
    while (store->host_of[first] != store->group->host)
        first++;
    if (st == PD_OK) store->has_links = all[first];
    free(all);
    return st;
}

/* Every host tries what a save will need, in the pool of this launch. */
static pd_status probe_pool(struct pd_store *store, struct pd_error *err)
{
    char pool[STORE_PATH_MAX], tag[32];
    struct pd_probe probe = {0};
    pd_status st = PD_OK;
    store_pool_path(store, pool, NULL);
    snprintf(tag, sizeof tag, "%" PRIu32, store->group->rank);
    if (store->leads_host) st = pd_probe_directory(store->vfs, pool, tag, &probe, err);
    PD_TRY(pd_group_agree(store->group, st, err));
    PD_TRY(spread_links(store, probe.has_links, err));
    if (!store->leads_host) return PD_OK;
    store->domain_is_local = store->domain_is_local && !probe.is_network;
    report_probe(store, &probe);
    return PD_OK;
}

static pd_status open_writable(struct pd_store *store, struct pd_error *err)
{
    PD_TRY(pd_group_agree(store->group, store->leads_host ? make_root(store, err) : PD_OK, err));
    PD_TRY(store_claim(store, err));
    PD_TRY(store_take_fence(store, err));
    pd_fault_point("store.open.fenced");
    PD_TRY(probe_pool(store, err));
    return store_make_ring(store, err);
}

static pd_status open_steps(struct pd_store *store, const char *root, struct pd_error *err)
{
    PD_TRY(pd_group_agree(store->group, store_absolute(root, store->root, err), err));
    PD_TRY(meet_hosts(store, err));
    if (store->options.writable) PD_TRY(open_writable(store, err));
    PD_TRY(store_stripes_open(store, err));
    if (store->options.writable && store->leads_domain) store_stripes_find(store);
    struct store_survey survey = {0};
    pd_status st = store_survey_take(store, &survey, err);
    if (st == PD_OK) st = store_recover(store, &survey, err);
    store_survey_deinit(&survey);
    PD_TRY(st);
    pd_fault_point("store.open.recovered");
    if (!store->options.writable) return PD_OK;
    store_stripes_clear(store);
    store_clear_launches(store);
    return pd_group_barrier(store->group, err);
}

/* *ret_store is agreed: on every rank or on none. */
static pd_status new_store(struct pd_vfs *vfs, const struct pd_store_options *options, struct pd_group *group,
                           struct pd_store **ret_store, struct pd_error *err)
{
    struct pd_store *store = calloc(1, sizeof *store);
    pd_status st = store ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for a store");
    st = pd_group_agree(group, st, err);
    if (st != PD_OK) {
        free(store);
        return st;
    }
    store->vfs = vfs;
    store->group = group;
    store->options = *options;
    store->shards = options->shards ? options->shards : 1;
    PD_CHECK(store->shards <= PD_LAYOUT_STRIPES_MAX);
    store->syncs_names = true;
    pthread_mutex_init(&store->waiting_mutex, NULL);
    *ret_store = store;
    return PD_OK;
}

pd_status store_open_drive(const struct pd_store *store, const char *root, const struct pd_store_options *options,
                           struct pd_store **ret_drive, struct pd_error *err)
{
    PD_TRY(new_store(store->vfs, options, store->group, ret_drive, err));
    struct pd_store *drive = *ret_drive;
    pd_status st = pd_group_agree(store->group, store_absolute(root, drive->root, err), err);
    if (st == PD_OK) st = meet_hosts(drive, err);
    if (st == PD_OK) st = open_writable(drive, err);
    return st == PD_OK ? PD_OK : pd_error_context(err, st, "checkpoint.stripes, %s", root);
}

pd_status pd_store_open(struct pd_vfs *vfs, const char *root, const struct pd_store_options *options, struct pd_group *group,
                        struct pd_store **ret_store, struct pd_error *err)
{
    struct pd_store *store = NULL;
    PD_CHECK(!options->stripes || options->writable); /* to look, the links are enough */
    PD_CHECK(!options->leaves_nothing || group->size == 1);
    PD_TRY(new_store(vfs, options, group, &store, err));
    pd_status st = open_steps(store, root, err);
    store->options.stripes = NULL;
    if (st != PD_OK) {
        st = pd_error_context(err, st, "checkpoint directory %s", root);
        pd_store_close(store);
        return st;
    }
    *ret_store = store;
    return PD_OK;
}

void pd_store_close(struct pd_store *store)
{
    if (!store) return;
    for (uint32_t s = 1; s < store->shards; s++)
        pd_store_close(store->stripes[s]);
    store_release(store);
    pthread_mutex_destroy(&store->waiting_mutex);
    free(store->host_of);
    free(store->domain_of);
    free(store->ring.sources);
    free(store->sealed.rows);
    free(store->partial.rows);
    free(store->unusable);
    free(store);
}

/* ---- looking ---- */

uint64_t pd_store_fence(const struct pd_store *store)
{
    return store->fence;
}

uint32_t pd_store_count(const struct pd_store *store)
{
    return store->sealed.count;
}

const struct pd_store_entry *pd_store_entry_at(const struct pd_store *store, uint32_t newest_first)
{
    PD_CHECK(newest_first < store->sealed.count);
    return &store->sealed.rows[newest_first].entry;
}

bool pd_store_unnamed(const struct pd_store *store, struct pd_store_entry *ret_entry)
{
    *ret_entry = store->unnamed;
    return store->unnamed.name[0] != '\0';
}

uint32_t pd_store_unusable_count(const struct pd_store *store)
{
    return store->unusable_count;
}

const struct pd_store_unusable *pd_store_unusable_at(const struct pd_store *store, uint32_t index)
{
    PD_CHECK(index < store->unusable_count);
    return &store->unusable[index];
}

void pd_store_entry_path(const struct pd_store *store, const struct pd_store_entry *entry, char *ret_path)
{
    store_path(store, ret_path, "%s", entry->name);
}

void pd_store_pin(struct pd_store *store, const struct pd_store_entry *entry)
{
    struct store_item *item = items_find(&store->sealed, entry->name);
    PD_CHECK(item);
    item->pins++;
}

void pd_store_unpin(struct pd_store *store, const char *name)
{
    struct store_item *item = items_find(&store->sealed, name);
    if (!item) return; /* quarantined while it was pinned */
    PD_CHECK(item->pins > 0);
    item->pins--;
}

/* The holder reads, all decode. */
static pd_status share_record(struct pd_store *store, const char *path, uint32_t holder, void **ret_data,
                              uint64_t *ret_bytes, struct pd_error *err)
{
    void *data = NULL;
    uint64_t bytes = 0;
    bool reads = store->group->rank == holder;
    pd_status st = reads ? store_read_file(store->vfs, path, PD_COMMIT_BYTES_MAX, &data, &bytes, err) : PD_OK;
    st = pd_group_agree(store->group, st, err);
    if (st == PD_OK) st = pd_group_broadcast(store->group, holder, &bytes, sizeof bytes, err);
    if (st == PD_OK && !reads) data = malloc(bytes ? bytes : 1);
    if (st == PD_OK) {
        pd_status mine = data ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for a commit record");
        st = pd_group_agree(store->group, mine, err);
    }
    if (st == PD_OK) st = pd_group_broadcast(store->group, holder, data, bytes, err);
    if (st != PD_OK) {
        free(data);
        return st;
    }
    *ret_data = data;
    *ret_bytes = bytes;
    return PD_OK;
}

pd_status pd_store_read_commit(struct pd_store *store, const struct pd_store_entry *entry, struct pd_commit *ret_commit,
                               struct pd_error *err)
{
    struct store_item *item = items_find(&store->sealed, entry->name);
    PD_CHECK(item);
    char path[STORE_PATH_MAX];
    store_path(store, path, "%s/commit.h5", entry->name);
    for (unsigned attempt = 0;; attempt++) {
        void *data;
        uint64_t bytes;
        PD_TRY(share_record(store, path, item->record_rank, &data, &bytes, err));
        pd_status st = pd_commit_decode(path, data, bytes, ret_commit, err);
        free(data);
        /* All ranks decode the same bytes, so all try a second time or none does. */
        if (st != PD_CORRUPT || attempt > 0) return st;
    }
}

/* ---- space ---- */

struct human_bytes {
    char text[32];
};

static struct human_bytes human(uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    struct human_bytes result;
    double value = (double)bytes;
    unsigned unit = 0;
    for (; value >= 1024.0 && unit < 6; unit++)
        value /= 1024.0;
    snprintf(result.text, sizeof result.text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return result;
}

struct space_need {
    uint64_t bytes;   /* one checkpoint of these ranks, or one generation */
    uint64_t waiting; /* what lies in the pool for them */
    uint32_t ranks, copies;
};

/* What the newest sealed ones take of this disk: its ranks' share of them. Of plain ones one fewer than `copies` will stay;
 * of those that generations replace as many as are kept, since the first ones are written before any of them goes. */
static uint64_t sealed_bytes_here(const struct pd_store *store, const struct space_need *need)
{
    const struct pd_store *root = store->parent ? store->parent : store;
    uint32_t kept = store->options.keep_last ? store->options.keep_last : 1;
    uint32_t count = store->options.generations ? kept : need->copies - 1;
    uint64_t bytes = 0;
    /* Of several drives: about what one takes here each time. */
    if (store_is_striped(root)) return need->bytes * (root->sealed.count < count ? root->sealed.count : count);
    for (uint32_t i = 0; i < store->sealed.count && i < count; i++)
        bytes += store->sealed.rows[i].entry.bytes / store->group->size * need->ranks;
    return bytes + pd_store_copied_bytes(store, count);
}

static pd_status check_space_here(struct pd_store *store, const struct space_need *need, struct pd_error *err)
{
    struct pd_space space;
    PD_TRY(pd_vfs_space(store->vfs, store->root, &space, err));
    bool generations = store->options.generations;
    uint64_t needed, there = sealed_bytes_here(store, need) + (generations ? need->waiting : 0);
    uint64_t least = generations ? 0 : need->bytes;
    if (__builtin_mul_overflow(need->bytes, need->copies, &needed)) needed = UINT64_MAX;
    needed = needed > there && needed - there > least ? needed - there : least;
    char already[64] = "";
    if (there) snprintf(already, sizeof already, ", %s of them is there already", human(there).text);
    if (needed > space.available_bytes)
        PD_FAIL(err, PD_NO_SPACE,
                "%s (%s) has %s free and needs %s: %u %s%s of %s must fit at once%s; "
                "delete some (perdure ckpt prune), keep fewer (checkpoint.keep_last) or choose another directory",
                store->root, space.type_name, human(space.available_bytes).text, human(needed).text, need->copies,
                generations ? "generation" : "checkpoint", need->copies == 1 ? "" : "s", human(need->bytes).text, already);
    uint64_t inodes = ((uint64_t)need->ranks + 4) * need->copies + 8;
    if (space.total_inodes && inodes > space.available_inodes)
        PD_FAIL(err, PD_NO_SPACE,
                "%s (%s) has %" PRIu64 " inodes free and %" PRIu64 " are needed for %u more checkpoint%s: delete files or "
                "choose another directory",
                store->root, space.type_name, space.available_inodes, inodes, need->copies, need->copies == 1 ? "" : "s");
    return PD_OK;
}

pd_status pd_store_check_space(struct pd_store *store, uint64_t bytes_here, uint32_t copies, struct pd_error *err)
{
    uint32_t size = store->group->size;
    uint64_t mine[2] = {bytes_here, pd_store_waiting_bytes(store)};
    uint64_t(*all)[2] = calloc(size, sizeof *all);
    struct space_need need = {.copies = copies};
    uint32_t generations = pd_store_generations_needed(&store->options, store->has_links);
    if (store->options.generations && need.copies < generations) need.copies = generations;
    pd_status st = all ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for %u ranks", size);
    st = pd_group_agree(store->group, st, err);
    if (st == PD_OK) st = store_gather_all(store, mine, sizeof mine, all, err);
    for (uint32_t r = 0; st == PD_OK && r < size; r++) {
        if (store->domain_of[r] != store->domain_of[store->group->rank]) continue;
        if (__builtin_add_overflow(need.bytes, all[r][0], &need.bytes)) need.bytes = UINT64_MAX;
        need.waiting += all[r][1];
        need.ranks++;
    }
    free(all);
    PD_TRY(st);
    st = store->leads_domain ? check_space_here(store, &need, err) : PD_OK;
    return pd_group_agree(store->group, st, err);
}

void pd_store_set_index(struct pd_store *store, const void *data, uint64_t bytes)
{
    store->index_data = data;
    store->index_bytes = bytes;
    store->index_version++;
}

pd_status pd_store_check_fence(struct pd_store *store, struct pd_error *err)
{
    PD_CHECK(store->fence);
    pd_status st = store->leads_domain ? store_check_fence_here(store, err) : PD_OK;
    return pd_group_agree(store->group, st, err);
}
