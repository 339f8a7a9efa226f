/* Crash campaigns on the store: one misfortune at one operation, then a fresh launch must find the previous checkpoint or
 * the new one, complete, and be able to go on. */
#pragma once

#include "tests/helpers/store_cluster.h"

#include <errno.h>

#define CAMPAIGN_BASE_STEPS 3u /* committed before the misfortune; keep_last 2, so the files of one are free in the pool */

enum campaign_phase { CAMPAIGN_SAVE, CAMPAIGN_OPEN };

struct misfortune {
    enum campaign_phase phase;
    enum pd_disk_fault_kind kind;
    int sys_errno;
    unsigned operations; /* that count, PD_DISK_MASK; 0: all that the fault can strike */
    bool persistent;
    uint64_t nth;
    uint32_t crash_host; /* PD_DISK_ALL_HOSTS, a host, or hosts: nobody crashes, processes are only killed */
    uint64_t crash_seed;
};

static inline void misfortune_text(const struct misfortune *m, char *ret_text, size_t bytes)
{
    snprintf(ret_text, bytes, "%s:%s:%d:%d:%llu:%lld:%llu", m->phase == CAMPAIGN_OPEN ? "open" : "save",
             pd_disk_fault_kind_name(m->kind), m->sys_errno, m->persistent, (unsigned long long)m->nth,
             m->crash_host == PD_DISK_ALL_HOSTS ? -1ll : (long long)m->crash_host, (unsigned long long)m->crash_seed);
}

/* What a lying disk destroys may be the new checkpoint after it was reported committed: then the previous one must load. */
static inline bool misfortune_lies(const struct misfortune *m)
{
    return m->kind == PD_DISK_FAULT_TORN || m->kind == PD_DISK_FAULT_LOST || m->kind == PD_DISK_FAULT_MISDIRECTED ||
           m->kind == PD_DISK_FAULT_LOST_SYNC;
}

static inline struct pd_disk_fault misfortune_fault(const struct misfortune *m)
{
    return (struct pd_disk_fault){
        .kind = m->kind, .sys_errno = m->sys_errno, .operations = m->operations, .nth = m->nth, .persistent = m->persistent};
}

/* ---- the run that meets it ---- */

struct campaign_run {
    const struct misfortune *misfortune;
    pd_status saved, next_saved;
    uint64_t fired, counted;
    struct pd_simulated_disk *after; /* as it lay when the save had ended */
};

static const char campaign_index[] = "not a real index";

static inline pd_status campaign_base(struct cluster_rank *rank, struct pd_error *err)
{
    pd_store_set_index(rank->store, campaign_index, sizeof campaign_index);
    for (uint64_t step = 1; step <= CAMPAIGN_BASE_STEPS; step++) {
        PD_TRY(cluster_save(rank, step, err));
        PD_TRY(pd_store_prune(rank->store, err));
    }
    return PD_OK;
}

static inline pd_status campaign_disarm(struct cluster_rank *rank, struct campaign_run *run, struct pd_error *err)
{
    pd_status st = PD_OK;
    if (rank->group->rank == 0) {
        run->fired = pd_simulated_disk_fired(rank->cluster->disk);
        run->counted = pd_simulated_disk_count(rank->cluster->disk);
        pd_simulated_disk_set_fault(rank->cluster->disk, NULL);
        st = pd_simulated_disk_clone(rank->cluster->disk, &run->after, err);
    }
    return pd_group_agree(rank->group, st, err);
}

/* Saves one more, misfortune included, and then another without it, in the same launch. */
static inline pd_status campaign_script(struct cluster_rank *rank, struct pd_error *err)
{
    struct campaign_run *run = rank->context;
    const struct misfortune *m = run->misfortune;
    struct pd_disk_fault fault = misfortune_fault(m);
    uint64_t step = CAMPAIGN_BASE_STEPS + 1;
    /* Steady state of this launch: a recycled file is there, and something to remove afterwards. */
    PD_TRY(cluster_save(rank, step, err));
    PD_TRY(pd_store_prune(rank->store, err));
    if (rank->group->rank == 0) pd_simulated_disk_set_fault(rank->cluster->disk, &fault);
    PD_TRY(pd_group_barrier(rank->group, err));
    struct pd_error why = {0};
    pd_status st = cluster_save(rank, step + 1, &why);
    if (rank->group->rank == 0) run->saved = st;
    if (st == PD_OK) (void)!pd_store_prune(rank->store, &why);
    PD_TRY(pd_group_barrier(rank->group, err));
    PD_TRY(campaign_disarm(rank, run, err));
    if (m->kind == PD_DISK_FAULT_POWER) return PD_OK;
    st = cluster_save(rank, step + 2, err);
    if (rank->group->rank == 0) run->next_saved = st;
    return st;
}

/* ---- what a fresh launch finds ---- */

struct campaign_check {
    uint64_t least, most; /* steps that may be the newest */
    bool may_be_damaged;
    uint64_t found;
};

static inline bool campaign_is_tidy_name(struct cluster_rank *rank, const char *name)
{
    for (uint32_t i = 0; i < pd_store_count(rank->store); i++) {
        if (strcmp(pd_store_entry_at(rank->store, i)->name, name) == 0) return true;
    }
    static const char *const known[] = {"lock", "owner", "quarantine"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(name, known[i]) == 0) return true;
    }
    /* A lie may leave a record whose shards are gone: never offered, never removed by a guess. */
    const struct campaign_check *check = rank->context;
    return check->may_be_damaged && strncmp(name, "step-", 5) == 0;
}

/* Steps of the base launch have an index; wherever one lies it is whole. */
static inline pd_status campaign_expect_indexes(struct cluster_rank *rank, struct pd_error *err)
{
    for (uint32_t i = 0; i < pd_store_count(rank->store); i++) {
        const struct pd_store_entry *entry = pd_store_entry_at(rank->store, i);
        char path[4096], data[sizeof campaign_index] = "";
        struct pd_file *file = NULL;
        struct pd_stat stat = {0};
        pd_store_entry_path(rank->store, entry, path);
        snprintf(path + strlen(path), 32, "/index.h5");
        pd_status st = pd_file_open(rank->vfs, path, PD_OPEN_READ, &file, err);
        if (st == PD_NOT_FOUND && entry->step > CAMPAIGN_BASE_STEPS) continue;
        PD_TRY(st);
        st = pd_file_stat(file, &stat, err);
        if (st == PD_OK && stat.bytes == sizeof data) st = pd_file_read(file, 0, data, sizeof data, err);
        pd_file_close_readonly(file);
        PD_TRY(st);
        if (memcmp(data, campaign_index, sizeof data) != 0) PD_FAIL(err, PD_BUG, "%s is not whole", path);
    }
    return PD_OK;
}

/* After an open without misfortune: one fence, one pool, the checkpoints that are offered, nothing else. */
static inline pd_status campaign_expect_tidy(struct cluster_rank *rank, struct pd_error *err)
{
    struct pd_listing listing = {0};
    char fence[64], pool[64];
    snprintf(fence, sizeof fence, "fence-%llu", (unsigned long long)pd_store_fence(rank->store));
    snprintf(pool, sizeof pool, "pool-%llu", (unsigned long long)pd_store_fence(rank->store));
    PD_TRY(pd_vfs_list(rank->vfs, CLUSTER_ROOT, &listing, err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; st == PD_OK && i < listing.count; i++) {
        const char *name = listing.names[i];
        if (strcmp(name, fence) == 0 || strcmp(name, pool) == 0 || campaign_is_tidy_name(rank, name)) continue;
        st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "%s was left behind", name);
    }
    pd_listing_deinit(&listing);
    PD_TRY(st);
    char path[128];
    snprintf(path, sizeof path, "%s/%s", CLUSTER_ROOT, pool);
    PD_TRY(pd_vfs_list(rank->vfs, path, &listing, err));
    for (uint32_t i = 0; st == PD_OK && i < listing.count; i++) {
        if (strncmp(listing.names[i], "trash-", 6) == 0)
            st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "%s was left behind", listing.names[i]);
    }
    pd_listing_deinit(&listing);
    return st;
}

static inline pd_status campaign_look(struct cluster_rank *rank, struct pd_error *err)
{
    struct campaign_check *check = rank->context;
    uint64_t step = 0;
    uint32_t damaged = 0;
    PD_TRY(pd_group_agree(rank->group, campaign_expect_tidy(rank, err), err));
    PD_TRY(cluster_load_newest(rank, &step, &damaged, err));
    if (rank->group->rank == 0) check->found = step;
    if (step < check->least || step > check->most)
        PD_FAIL(err, PD_BUG, "step %llu loads, expected %llu to %llu", (unsigned long long)step,
                (unsigned long long)check->least, (unsigned long long)check->most);
    if (damaged && !check->may_be_damaged) PD_FAIL(err, PD_BUG, "%u checkpoints were damaged by an honest disk", damaged);
    if (!check->may_be_damaged) PD_TRY(pd_group_agree(rank->group, campaign_expect_indexes(rank, err), err));
    /* Every older one that is offered loads too, unless a lie may have hit it. */
    for (uint32_t i = 1; i < pd_store_count(rank->store) && !check->may_be_damaged; i++)
        PD_TRY(cluster_load(rank, pd_store_entry_at(rank->store, i), err));
    PD_TRY(cluster_save(rank, 100, err));
    /* Whose file was reused for it? The others must be as they were. */
    for (uint32_t i = 0; i < pd_store_count(rank->store) && (i < 2 || !check->may_be_damaged); i++)
        PD_TRY(cluster_load(rank, pd_store_entry_at(rank->store, i), err));
    return pd_store_prune(rank->store, err);
}

/* Kills what runs, and takes the power away where the misfortune says so. */
static inline void campaign_strike(const struct cluster *cluster, struct pd_simulated_disk *disk, const struct misfortune *m)
{
    if (m->crash_host == PD_DISK_ALL_HOSTS) {
        pd_simulated_disk_crash(disk, PD_DISK_ALL_HOSTS, m->crash_seed);
        return;
    }
    for (uint32_t host = 0; host < cluster->hosts; host++) {
        if (host == m->crash_host)
            pd_simulated_disk_crash(disk, host, m->crash_seed);
        else
            pd_simulated_disk_kill(disk, host);
    }
}

/* Looks at what is left. Consumes `disk`. */
static inline pd_status campaign_look_after(const struct cluster *cluster, struct pd_simulated_disk *disk,
                                            const struct misfortune *m, struct campaign_check *check, struct pd_error *err)
{
    struct cluster later = *cluster;
    later.disk = disk;
    campaign_strike(cluster, disk, m);
    pd_status st = cluster_launch(&later, campaign_look, check, err);
    cluster_free(&later);
    return st;
}

/* One misfortune during a save, on a clone of `base`. *ret_fired: whether it came before the last operation. */
static inline pd_status campaign_try_save(const struct cluster *base, const struct misfortune *m, bool *ret_fired,
                                          struct pd_error *err)
{
    struct cluster cluster = *base;
    struct campaign_run run = {.misfortune = m};
    PD_TRY(pd_simulated_disk_clone(base->disk, &cluster.disk, err));
    struct campaign_check check = {
        .least = CAMPAIGN_BASE_STEPS + 1, .most = CAMPAIGN_BASE_STEPS + 2, .may_be_damaged = misfortune_lies(m)};
    pd_status st = cluster_launch(&cluster, campaign_script, &run, err);
    if (st != PD_OK && run.saved != st) st = pd_error_context(err, st, "the save after it");
    if (run.saved == PD_OK && !misfortune_lies(m)) check.least = CAMPAIGN_BASE_STEPS + 2;
    *ret_fired = run.fired > 0;
    if (st == PD_OK) {
        st = campaign_look_after(&cluster, run.after, m, &check, err);
        run.after = NULL;
    }
    if (run.after) pd_simulated_disk_free(run.after);
    cluster_free(&cluster);
    return st;
}

/* A disk as a save that lost power left it: what opens must then recover. Steps base+1 or base+2 are there. */
static inline pd_status campaign_wound(const struct cluster *base, uint64_t nth, uint64_t seed, struct cluster *ret_cluster,
                                       struct pd_error *err)
{
    struct misfortune power = {.kind = PD_DISK_FAULT_POWER, .nth = nth};
    struct campaign_run run = {.misfortune = &power};
    struct cluster cluster = *base;
    PD_TRY(pd_simulated_disk_clone(base->disk, &cluster.disk, err));
    pd_status st = cluster_launch(&cluster, campaign_script, &run, err);
    cluster_free(&cluster);
    if (st != PD_OK) {
        if (run.after) pd_simulated_disk_free(run.after);
        return st;
    }
    pd_simulated_disk_crash(run.after, PD_DISK_ALL_HOSTS, seed);
    *ret_cluster = *base;
    ret_cluster->disk = run.after;
    return PD_OK;
}

static inline pd_status campaign_only_open(struct cluster_rank *rank, struct pd_error *err)
{
    (void)rank;
    (void)err;
    return PD_OK;
}

/* One misfortune while a launch opens `base`; whether it may go on with `script` or has failed, *ret_cluster is what it leaves,
 * for the caller to free. */
static inline pd_status campaign_open_under(const struct cluster *base, const struct misfortune *m, cluster_script *script,
                                            struct campaign_run *run, struct cluster *ret_cluster, struct pd_error *err)
{
    struct cluster cluster = *base;
    struct pd_disk_fault fault = misfortune_fault(m);
    struct pd_error why;
    PD_TRY(pd_simulated_disk_clone(base->disk, &cluster.disk, err));
    pd_simulated_disk_set_fault(cluster.disk, &fault);
    run->saved = cluster_launch(&cluster, script, run, &why);
    if (!run->fired) run->fired = pd_simulated_disk_fired(cluster.disk);
    pd_simulated_disk_set_fault(cluster.disk, NULL);
    if (run->saved == PD_BUG || run->saved == PD_PEER_LOST || run->saved == PD_CORRUPT) {
        if (err) *err = why;
        cluster_free(&cluster);
        return run->saved;
    }
    *ret_cluster = cluster;
    return PD_OK;
}

/* Of a wounded store; the launch after it may not fail. */
static inline pd_status campaign_try_open(const struct cluster *wounded, const struct misfortune *m, bool *ret_fired,
                                          struct pd_error *err)
{
    struct cluster cluster;
    struct campaign_run run = {0};
    struct campaign_check check = {
        .least = CAMPAIGN_BASE_STEPS + 1, .most = CAMPAIGN_BASE_STEPS + 2, .may_be_damaged = misfortune_lies(m)};
    PD_TRY(campaign_open_under(wounded, m, campaign_only_open, &run, &cluster, err));
    *ret_fired = run.fired > 0;
    return campaign_look_after(&cluster, cluster.disk, m, &check, err);
}

static inline bool campaign_first_saves(const struct misfortune *m)
{
    return m->crash_seed % 2 && !misfortune_lies(m);
}

static inline pd_status campaign_first_script(struct cluster_rank *rank, struct pd_error *err)
{
    struct campaign_run *run = rank->context;
    PD_TRY(pd_group_barrier(rank->group, err));
    if (rank->group->rank == 0) {
        run->fired = pd_simulated_disk_fired(rank->cluster->disk);
        pd_simulated_disk_set_fault(rank->cluster->disk, NULL);
    }
    PD_TRY(pd_group_barrier(rank->group, err));
    return campaign_first_saves(run->misfortune) ? campaign_base(rank, err) : PD_OK;
}

/* Of a store that is not there yet. What the launch has saved that got through is there for the next one, and what it has
 * left does not keep that from beginning. */
static inline pd_status campaign_try_first_open(const struct cluster *empty, const struct misfortune *m, bool *ret_fired,
                                                struct pd_error *err)
{
    struct cluster cluster;
    struct campaign_run run = {.misfortune = m};
    struct campaign_check check = {
        .least = CAMPAIGN_BASE_STEPS, .most = CAMPAIGN_BASE_STEPS, .may_be_damaged = misfortune_lies(m)};
    PD_TRY(campaign_open_under(empty, m, campaign_first_script, &run, &cluster, err));
    *ret_fired = run.fired > 0;
    campaign_strike(&cluster, cluster.disk, m);
    const bool has_saved = run.saved == PD_OK && campaign_first_saves(m);
    pd_status st = has_saved ? PD_OK : cluster_launch(&cluster, campaign_base, NULL, err);
    if (st == PD_OK) st = cluster_launch(&cluster, campaign_look, &check, err);
    cluster_free(&cluster);
    return st;
}
