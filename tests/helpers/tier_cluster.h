/* Launches over several tiers in the cluster of store_cluster.h: "/shm" is memory and "/disk" a disk of each host, "/net"
 * one for all. On the real disk they lie in <root>/host-<n> and <root>/all. Where options have generations, state lies in
 * files of the first tier. */
#pragma once

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/tiers/internal.h"
#include "tests/helpers/generation_cluster.h"
#include "tests/helpers/manual_clock.h"
#include "trainer/comm/comm.h"

struct tier_rank {
    struct cluster_rank cluster;
    struct pd_tiers *tiers;
    struct pd_comm *comms[PD_TIERS_MAX];
    struct pd_comm *replica_comm;
    struct pd_group world, groups[PD_TIERS_MAX], replica_group;
    struct generation *state;     /* NULL: in memory */
    struct pd_clock_manual clock; /* of the root: a save takes a second */
    bool distrusts;               /* the disk may have lied about what the state was: it is not read */
    void *context;
};

typedef pd_status tier_script(struct tier_rank *rank, struct pd_error *err);

struct tier_launch {
    struct cluster *cluster;
    const struct pd_tiers_options *options; /* groups are filled in */
    tier_script *script;
    void *context;
    uint32_t first_host; /* machines are numbered from here */
    pd_status *ended;    /* (ranks) what each comes to from its pd_tiers_open on; NULL: nobody asks */
};

/* As many machines again stand by. */
static inline pd_status tier_cluster_new(struct cluster *cluster, uint32_t ranks, uint32_t hosts, uint64_t shm_bytes,
                                         uint64_t net_bytes, unsigned net_lacks, struct pd_error *err)
{
    struct pd_disk_options options = {.seed = 1, .host_count = 2 * hosts};
    options.mounts[0] = (struct pd_disk_mount){.path = "/"};
    options.mounts[1] = (struct pd_disk_mount){.path = "/shm", .in_memory = true, .capacity_bytes = shm_bytes};
    options.mounts[2] =
        (struct pd_disk_mount){.path = "/net", .shared = true, .capacity_bytes = net_bytes, .lacks = net_lacks};
    *cluster = (struct cluster){.ranks = ranks, .hosts = hosts};
    return pd_simulated_disk_new(&options, &cluster->disk, err);
}

static inline pd_status tier_cluster_new_lacking(struct cluster *cluster, uint32_t ranks, uint32_t hosts, unsigned lacks,
                                                 struct pd_error *err)
{
    struct pd_disk_options options = {.seed = 1, .host_count = 2 * hosts};
    options.mounts[0] = (struct pd_disk_mount){.path = "/", .lacks = lacks};
    options.mounts[1] = (struct pd_disk_mount){.path = "/shm", .in_memory = true};
    options.mounts[2] = (struct pd_disk_mount){.path = "/net", .shared = true, .lacks = lacks};
    *cluster = (struct cluster){.ranks = ranks, .hosts = hosts};
    return pd_simulated_disk_new(&options, &cluster->disk, err);
}

/* ---- saving ---- */

struct tier_saving {
    struct cluster_rank *rank;
    const struct generation *linked; /* NULL: written from memory */
    struct pd_run_state state;
};

static inline pd_status tier_prepare(void *context, struct pd_store *store, uint32_t tier, pd_status *ret_written,
                                     struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    struct tier_saving *saving = context;
    struct cluster_rank *rank = saving->rank;
    const struct pd_identity *identity = &saving->state.identity;
    char path[4096];
    if (saving->linked && tier == 0) {
        *ret_summary = saving->linked->summary;
        *ret_written = PD_OK;
        return pd_store_begin_generation(store, identity, saving->linked->slot, rank->buffers, CLUSTER_BUFFER_BYTES, err);
    }
    PD_TRY(pd_store_begin(store, identity, path, err));
    const void *data[2] = {rank->values, rank->values + CLUSTER_ROWS * 3};
    cluster_fill(rank->values, identity->lineage, identity->step, rank->group->rank);
    *ret_written = pd_shard_write(rank->writer, path, identity, rank->group->rank, data, ret_summary, err);
    return PD_OK;
}

static inline bool tier_hold(void *context)
{
    (void)context;
    return true;
}

static inline struct pd_tiers_save tier_saving_init(struct tier_saving *saving, struct tier_rank *rank, uint64_t step,
                                                    bool everywhere)
{
    saving->rank = &rank->cluster;
    saving->linked = rank->state;
    cluster_state(&rank->cluster, &saving->state, rank->state ? 0 : 1, step);
    return (struct pd_tiers_save){&saving->state, everywhere, tier_prepare, tier_hold, saving};
}

/* State that lies in files goes on to that step, and is finished, before it is saved. */
static inline pd_status tier_advance(struct tier_rank *rank, uint64_t step, struct pd_error *err)
{
    struct generation *g = rank->state;
    pd_status st = PD_OK;
    if (!g) return PD_OK;
    rank->cluster.store = pd_tiers_store(rank->tiers, 0);
    if (g->is_there && !rank->distrusts) st = generation_read(g, err);
    if (!st && (!g->is_there || g->step != step)) st = generation_write(g, step, err);
    if (!st) st = generation_finish(g, err);
    return pd_group_agree(&rank->world, st, err);
}

/* Some ranks get further than others. */
static inline void tier_run_ahead(struct tier_rank *rank, uint64_t step)
{
    rank->cluster.store = pd_tiers_store(rank->tiers, 0);
    for (uint32_t i = 0; rank->state && i < rank->world.rank % 3; i++)
        if (generation_write(rank->state, step + i, NULL)) return;
}

static inline pd_status tier_save(struct tier_rank *rank, uint64_t step, uint32_t *ret_tier, struct pd_error *err)
{
    struct tier_saving saving;
    uint32_t tier;
    PD_TRY(tier_advance(rank, step, err));
    const struct pd_tiers_save save = tier_saving_init(&saving, rank, step, false);
    pd_clock_manual_advance(&rank->clock, UINT64_C(1000000000));
    PD_TRY(pd_tiers_save(rank->tiers, &save, &tier, err));
    if (ret_tier) *ret_tier = tier;
    return PD_OK;
}

/* As after a failure: the next `saves` are not replicated. */
static inline void tier_hold_replicas(struct tier_rank *rank, uint32_t saves)
{
    struct tier_schedule *schedule = &rank->tiers->replicator->schedule;
    schedule->failures = saves > 0;
    schedule->retry_ns = rank->clock.monotonic_ns + (saves + 1) * UINT64_C(1000000000);
}

static inline pd_status tier_finish(struct tier_rank *rank, uint64_t step, double leave_seconds, struct pd_error *err)
{
    struct tier_saving saving;
    PD_TRY(tier_advance(rank, step, err));
    const struct pd_tiers_save save = tier_saving_init(&saving, rank, step, true);
    return pd_tiers_finish(rank->tiers, &save, leave_seconds, err);
}

/* ---- loading, before the tiers are started ---- */

/* As a resuming trainer does: newest first over all tiers, damage is put aside. PD_NOT_FOUND when nothing is left. */
static inline pd_status tier_load_newest(struct tier_rank *rank, uint32_t *ret_tier, uint64_t *ret_step,
                                         struct pd_error *err)
{
    struct pd_store_entry entry;
    uint32_t tier;
    while (pd_tiers_newest(rank->tiers, &tier, &entry)) {
        struct pd_error damage;
        rank->cluster.store = pd_tiers_store(rank->tiers, tier);
        pd_status st = cluster_load(&rank->cluster, &entry, &damage);
        if (st == PD_OK) {
            *ret_tier = tier;
            *ret_step = entry.step;
        }
        if (st && st != PD_CORRUPT && err) *err = damage;
        if (st != PD_CORRUPT) return st;
        PD_TRY(pd_store_quarantine(rank->cluster.store, &entry, "found by the test", err));
    }
    PD_FAIL(err, PD_NOT_FOUND, "no checkpoint is left");
}

/* ---- launches ---- */

/* On the real disk a host is a directory. */
static inline pd_status tier_open_vfs(struct tier_rank *rank, const struct tier_launch *launch, uint32_t host,
                                      struct pd_tiers_options *options, char (*dirs)[128], struct pd_error *err)
{
    if (launch->cluster->disk) return pd_simulated_disk_vfs(launch->cluster->disk, host, &rank->cluster.vfs, err);
    for (uint32_t i = 0; i < options->count; i++) {
        struct pd_tier_options *tier = &options->tiers[i];
        char place[32] = "all";
        if (strncmp(tier->dir, "/net/", 5) != 0) snprintf(place, sizeof place, "host-%u", host);
        snprintf(dirs[i], sizeof *dirs, "%.64s/%.16s/%.32s", launch->cluster->root, place, strrchr(tier->dir, '/') + 1);
        tier->dir = dirs[i];
    }
    return pd_vfs_new_auto(&rank->cluster.vfs, err);
}

/* What a test put into `missing` is what becomes of a tier whose directory cannot be made; a broken disk is met later. */
static inline pd_status tier_make_directories(struct pd_vfs *vfs, struct pd_tiers_options *options, struct pd_error *err)
{
    for (uint32_t i = 0; i < options->count; i++) {
        struct pd_tier_options *tier = &options->tiers[i];
        pd_status st = pd_vfs_mkdir(vfs, tier->dir, err);
        if (tier->missing && st && st != PD_EXISTS) continue;
        tier->missing = PD_OK;
        if (st == PD_EXISTS || (st == PD_IO && options->count > 1)) continue;
        PD_TRY(st);
        char parent[128];
        snprintf(parent, sizeof parent, "%s", tier->dir);
        char *slash = strrchr(parent, '/');
        slash[slash == parent] = '\0';
        PD_TRY(pd_vfs_sync_dir(vfs, parent, err));
    }
    return PD_OK;
}

static inline pd_status tier_make_state(struct tier_rank *rank, struct pd_error *err)
{
    rank->state = calloc(1, sizeof *rank->state);
    if (!rank->state) PD_FAIL(err, PD_NO_MEMORY, "no state");
    return generation_init(rank->state, &rank->cluster, err);
}

static inline pd_status tier_rank_live(struct tier_rank *rank, const struct pd_tiers_options *options, tier_script *script,
                                       struct pd_error *err)
{
    PD_TRY(pd_tiers_open(rank->cluster.vfs, options, &rank->tiers, err));
    if (options->generations) PD_TRY(tier_make_state(rank, err));
    return script(rank, err);
}

static inline pd_status tier_rank_run(struct tier_rank *rank, struct pd_comm *comm, const struct tier_launch *launch,
                                      struct pd_error *err)
{
    struct pd_tiers_options options = *launch->options;
    char dirs[PD_TIERS_MAX][128];
    const uint32_t host = (launch->first_host + comm->host) % (2 * launch->cluster->hosts);
    pd_status st = tier_open_vfs(rank, launch, host, &options, dirs, err);
    if (!st) st = cluster_set_up(&rank->cluster, err);
    if (!st) st = tier_make_directories(rank->cluster.vfs, &options, err);
    PD_TRY(pd_group_agree(&rank->world, st, err));
    for (uint32_t i = 0; i < options.count; i++) {
        PD_TRY(pd_comm_split(comm, 0, comm->rank, &rank->comms[i], err));
        pd_comm_group(rank->comms[i], &rank->groups[i]);
        options.groups[i] = &rank->groups[i];
    }
    PD_TRY(pd_comm_split(comm, 0, comm->rank, &rank->replica_comm, err));
    pd_comm_group(rank->replica_comm, &rank->replica_group);
    options.replica_group = &rank->replica_group;
    options.needs_first = options.generations;
    pd_clock_manual_init(&rank->clock, 1);
    options.clock = &rank->clock.clock;
    st = tier_rank_live(rank, &options, launch->script, err);
    if (launch->ended) launch->ended[comm->rank] = st;
    return st;
}

static inline pd_status tier_rank_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    const struct tier_launch *launch = context;
    struct tier_rank *rank = calloc(1, sizeof *rank);
    if (!rank) PD_FAIL(err, PD_NO_MEMORY, "no rank");
    pd_comm_group(comm, &rank->world);
    rank->cluster = (struct cluster_rank){.cluster = launch->cluster, .group = &rank->world};
    rank->context = launch->context;
    pd_status st = tier_rank_run(rank, comm, launch, err);
    if (st) pd_comm_abort(comm);
    pd_tiers_close(rank->tiers);
    if (rank->state) generation_deinit(rank->state);
    free(rank->state);
    for (uint32_t i = 0; i < PD_TIERS_MAX; i++)
        pd_comm_free(rank->comms[i]);
    pd_comm_free(rank->replica_comm);
    pd_shard_writer_free(rank->cluster.writer);
    if (rank->cluster.vfs) pd_vfs_free(rank->cluster.vfs);
    free(rank);
    return st;
}

static inline void tier_swallow(void *context, const char *line, size_t bytes)
{
    (void)context, (void)line, (void)bytes;
}

/* On machines first_host, first_host + 1, ..., and after the last one the first. */
static inline pd_status tier_run_on(struct cluster *cluster, uint32_t first_host, const struct pd_tiers_options *options,
                                    tier_script *script, void *context, struct pd_error *err)
{
    struct tier_launch launch = {cluster, options, script, context, first_host, NULL};
    return pd_comm_run_local(cluster->ranks, cluster->hosts, tier_rank_main, &launch, err);
}

static inline pd_status tier_run(struct cluster *cluster, const struct pd_tiers_options *options, tier_script *script,
                                 void *context, struct pd_error *err)
{
    return tier_run_on(cluster, 0, options, script, context, err);
}

/* A launch beside the one that runs, on machines of its own or on the same. */
struct tier_second {
    struct cluster *cluster;
    uint32_t first_host;
    const struct pd_tiers_options *options;
    tier_script *script;
    pd_status status;
    struct pd_error error;
};

/* Once, with the outcome for rank 0 alone; the others wait. */
static inline pd_status tier_start_second(struct tier_rank *rank, struct tier_second *second, struct pd_error *err)
{
    if (rank->world.rank == 0)
        second->status =
            tier_run_on(second->cluster, second->first_host, second->options, second->script, NULL, &second->error);
    return pd_group_barrier(&rank->world, err);
}

/* What is logged is not shown. */
static inline void tier_be_quiet(void)
{
    pd_log_set_sink(tier_swallow, NULL);
}
