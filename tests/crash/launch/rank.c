/* A rank of a whole run: what a trainer does with its tiers, and what becomes of it. */
#include "tests/crash/launch/world.h"

bool world_breaks(enum injected injected)
{
    return injected == FAULT_KILL || injected == FAULT_POWER || injected == FAULT_LAUNCHER;
}

void world_look_for_death(void *context, uint32_t rank)
{
    struct process *p = &((struct process *)context)[rank];
    if (!w.is_armed || !p->is_victim || p->is_gone || !pd_simulated_disk_fired(w.disk)) return;
    p->is_gone = true;
    turns_news();
}

static void arm(void)
{
    const struct process *victim = &w.processes[w.victim];
    struct pd_disk_fault fault = {.kind = w.injected == FAULT_KILL ? PD_DISK_FAULT_ERROR : PD_DISK_FAULT_POWER,
                                  .persistent = w.injected == FAULT_KILL,
                                  .nth = w.fault_nth,
                                  .vfs = victim->tier.cluster.vfs};
    pd_simulated_disk_set_fault(w.disk, &fault);
    w.is_armed = true;
}

static void fill(float *values, uint64_t digest, uint32_t shard)
{
    memcpy(values + CLUSTER_ROWS * 3, &digest, sizeof digest);
    for (uint32_t i = 0; i < CLUSTER_VALUES; i++)
        if (i < CLUSTER_ROWS * 3 || i >= CLUSTER_ROWS * 3 + 2)
            values[i] = (float)(cluster_mix(digest + shard * 101 + ((uint64_t)i << 40)) % 1000003);
}

static pd_status prepare(void *context, struct pd_store *store, uint32_t tier, pd_status *ret_written,
                         struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    struct tier_saving *saving = context;
    struct process *p = saving->rank->context;
    const struct pd_identity *identity = &saving->state.identity;
    const void *data[2] = {p->tier.cluster.values, p->tier.cluster.values + CLUSTER_ROWS * 3};
    char path[4096];
    (void)tier;
    PD_TRY(pd_store_begin(store, identity, path, err));
    fill(p->tier.cluster.values, p->digest, p->rank);
    *ret_written = pd_shard_write(p->tier.cluster.writer, path, identity, p->rank, data, ret_summary, err);
    return PD_OK;
}

/* What a shard holds is what follows from its digest, all of it. */
static pd_status load_shard(struct process *p, const struct pd_store_entry *entry, const struct pd_commit *commit,
                            uint32_t s, uint64_t *ret_digest, struct pd_error *err)
{
    struct cluster_rank *cluster = &p->tier.cluster;
    struct pd_shard *shard = NULL;
    float small[CLUSTER_SMALL];
    char path[4096];
    pd_store_entry_path(cluster->store, entry, path);
    snprintf(path + strlen(path), 32, "/shard-%05u.h5", s);
    PD_TRY(pd_shard_open(cluster->vfs, path, &commit->state.identity, &commit->shards[s], &shard, err));
    pd_status st = pd_shard_verify(shard, cluster->buffers, CLUSTER_BUFFER_BYTES, err);
    if (!st) st = pd_shard_read_blocks(shard, 1, 0, pd_shard_block_count(shard, 1), small, err);
    if (!st) {
        memcpy(ret_digest, small, sizeof *ret_digest);
        fill(cluster->values, *ret_digest, s);
        st = cluster_read_box(shard, 0, cluster->values, err);
    }
    if (!st) st = cluster_read_box(shard, 1, cluster->values + CLUSTER_ROWS * 3, err);
    pd_shard_close(shard);
    return st;
}

struct told {
    uint64_t has, digest; /* a bit a shard */
    bool is_bad;
};

/* Each shard from whichever host has it. */
static pd_status load(struct process *p, uint32_t tier, const struct pd_store_entry *entry, struct pd_error *err)
{
    struct told mine = {0}, all[TURN_RANKS_MAX];
    struct pd_commit commit = {0};
    struct pd_error ignored;
    uint64_t has = 0, digest = 0;
    p->tier.cluster.store = pd_tiers_store(p->tier.tiers, tier);
    pd_status st = pd_store_read_commit(p->tier.cluster.store, entry, &commit, err);
    for (uint32_t s = 0; !st && s < commit.shard_count; s++) {
        const pd_status read = load_shard(p, entry, &commit, s, &digest, &ignored);
        if (read == PD_NOT_FOUND) continue;
        mine.is_bad |= read != PD_OK || (mine.has && mine.digest != digest);
        mine.digest = digest;
        mine.has |= UINT64_C(1) << s;
    }
    const uint32_t shards = commit.shard_count;
    pd_commit_deinit(&commit);
    PD_TRY(pd_group_agree(&p->tier.world, st, err));
    PD_TRY(pd_group_gather(&p->tier.world, 0, &mine, sizeof mine, all, err));
    PD_TRY(pd_group_broadcast(&p->tier.world, 0, all, w.ranks * sizeof *all, err));
    for (uint32_t r = 0; r < w.ranks; r++) {
        has |= all[r].has;
        if (all[r].has) p->digest = all[r].digest;
    }
    bool is_bad = has != (UINT64_C(1) << shards) - 1;
    for (uint32_t r = 0; r < w.ranks; r++)
        is_bad |= all[r].is_bad || (all[r].has && all[r].digest != p->digest);
    if (is_bad) WRONG("%s was chosen, and is not one whole state (%" PRIx64 " of %u shards)", entry->name, has, shards);
    p->from = entry->step;
    return PD_OK;
}

static pd_status resume(struct process *p, struct pd_error *err)
{
    struct pd_store_entry entry;
    uint32_t tier;
    const bool is_there = pd_tiers_newest(p->tier.tiers, &tier, &entry);
    const uint64_t newest = is_there ? entry.step : 0;
    if (newest < w.kept && w.start->away[0]) /* as trainer/run/resume.c */
        PD_FAIL(err, PD_HOSTS_AWAY, "step %" PRIu64 ": too few of the hosts that hold it take part", w.kept);
    p->digest = w.quiet = w.seed;
    if (is_there) PD_TRY(load(p, tier, &entry, err));
    PD_TRY(pd_group_barrier(&p->tier.world, err));
    if (p->rank) return PD_OK;
    world_mark(newest);
    if (newest < world_newest_whole(world_hosts_here()))
        WRONG("continues from step %" PRIu64 ", and step %" PRIu64 " is whole on hosts that take part", newest,
              world_newest_whole(world_hosts_here()));
    world_begin_future(newest);
    return PD_OK;
}

/* The i-th rank of a host to the i-th of the next one, round and round. */
static uint32_t replica_host(const struct process *p)
{
    for (uint32_t r = p->rank; r < w.ranks; r++)
        if (w.processes[r].host != p->host) return w.processes[r].host;
    return w.processes[0].host;
}

/* Where a step lies now, as the tiers of the first rank report it. */
static void note_reports(struct process *p)
{
    struct pd_tier_report first, last;
    pd_tiers_report(p->tier.tiers, 0, &first);
    pd_tiers_report(p->tier.tiers, w.options.count - 1, &last);
    for (uint32_t i = 0; i < RECORDS; i++) {
        struct record *r = &w.records[i];
        if (!r->step || r->step <= p->from) continue;
        if (r->step == first.replicated_step)
            for (uint32_t s = 0; s < r->shards; s++)
                r->holders[s] |= 1u << replica_host(&w.processes[s]);
        r->is_shared |= r->step == last.newest_step;
    }
    if (first.replicated_step > w.kept) w.kept = w.pinned = first.replicated_step;
}

static void note_commit(uint64_t step)
{
    struct record *r = &w.records[step % RECORDS];
    *r = (struct record){.step = step, .shards = w.ranks};
    for (uint32_t s = 0; s < w.ranks; s++)
        r->holders[s] = 1u << w.processes[s].host;
    world_forget_pruned();
    w.lone_faults = 0;
    world_say(PD_MESSAGE_SAVED, 0, &step, sizeof step);
}

static pd_status save(struct process *p, uint64_t step, struct pd_error *err)
{
    struct tier_saving saving = {.rank = &p->tier.cluster};
    uint32_t tier;
    cluster_state(&p->tier.cluster, &saving.state, 1, step);
    const struct pd_tiers_save save = {&saving.state, false, prepare, tier_hold, &saving};
    pd_clock_manual_advance(&p->tier.clock, S);
    PD_TRY(pd_tiers_save(p->tier.tiers, &save, &tier, err));
    if (p->rank == 0) note_commit(step);
    return PD_OK;
}

static pd_status finish(struct process *p, uint64_t step, double leave_seconds, struct pd_error *err)
{
    struct tier_saving saving = {.rank = &p->tier.cluster};
    cluster_state(&p->tier.cluster, &saving.state, 1, step);
    const struct pd_tiers_save last = {&saving.state, true, prepare, tier_hold, &saving};
    PD_TRY(pd_tiers_finish(p->tier.tiers, &last, leave_seconds, err));
    if (p->rank == 0) note_reports(p);
    return PD_OK;
}

/* Of the moment: what a rank meets at this step before it saves. */
static pd_status meet_fault(struct process *p, uint64_t step, struct pd_error *err)
{
    char identity[33];
    if (w.injected == FAULT_NONE || step != w.fault_step) return PD_OK;
    if (world_breaks(w.injected)) {
        if (p->rank == w.victim) arm();
        return PD_OK;
    }
    if (w.injected == FAULT_DEVICE && !p->is_victim) return PD_OK;
    if (w.injected == FAULT_DEVICE) {
        w.asked_host = p->host;
        pd_dev_cuda_identity(p->device.dev->index, identity);
        w.machines[p->host].broken |= 1u << p->device.dev->index;
        world_say_gpu(p, identity);
        PD_FAIL(err, PD_DEVICE_LOST, "GPU %s is lost", identity);
    }
    if (p->is_victim || w.injected == FAULT_HANG) p->is_gone = true; /* the launcher ends the others with it */
    return PD_OK;
}

static pd_status check_device(struct process *p, struct pd_error *err)
{
    char identity[33];
    w.asked_host = p->host;
    PD_TRY(pd_rank_device_open(PD_DEVICE_GPU, p->rank_here, w.start->left_out, &p->device, err));
    if (!(w.machines[p->host].broken >> p->device.dev->index & 1)) return PD_OK;
    pd_dev_cuda_identity(p->device.dev->index, identity);
    world_say_gpu(p, identity);
    PD_FAIL(err, PD_DEVICE_LOST, "GPU %s does not open", identity);
}

static pd_status train(struct process *p, struct pd_error *err)
{
    for (uint64_t step = p->from + 1; step <= w.steps; step++) {
        if (p->rank == 0) {
            w.now_ns += S;
            if (w.requests->has_grown(w.requests->context)) w.requests->wants_regroup = w.wants_leave = true;
        }
        PD_TRY(meet_fault(p, step, err));
        PD_TRY(pd_group_barrier(&p->tier.world, err));
        if (w.wants_leave) {
            PD_TRY(finish(p, step - 1, 0, err));
            PD_FAIL(err, PD_STOPPED, "saved and left after step %" PRIu64, step - 1);
        }
        p->digest = cluster_mix(p->digest ^ step);
        PD_TRY(save(p, step, err));
        const bool is_slow = cluster_mix(w.seed ^ step) % 3; /* a step that takes longer than copies do */
        if (is_slow && p->tier.tiers->replicator) tier_worker_wait(&p->tier.tiers->replicator->worker, -1);
        if (is_slow) tier_worker_wait(&p->tier.tiers->tiers[w.options.count - 1].worker, -1);
        if (p->rank == 0) note_reports(p);
    }
    return finish(p, w.steps, -1, err);
}

static pd_status run_rank(struct process *p, struct pd_error *err)
{
    struct tier_rank *rank = &p->tier;
    struct pd_tiers_options options = w.options;
    pd_status st = pd_simulated_disk_vfs(w.disk, p->host, &rank->cluster.vfs, err);
    if (!st) st = cluster_set_up(&rank->cluster, err);
    if (!st && w.fault_step == 0 && world_breaks(w.injected) && p->is_victim && p->rank == w.victim) arm();
    if (!st) st = tier_make_directories(rank->cluster.vfs, &options, err);
    PD_TRY(pd_group_agree(&rank->world, st, err));
    for (uint32_t i = 0; i < options.count; i++)
        options.groups[i] = &p->groups[i];
    options.replica_group = &rank->replica_group;
    options.is_host_away = w.start->away[0];
    pd_clock_manual_init(&rank->clock, 1);
    options.clock = &rank->clock.clock;
    PD_TRY(pd_group_agree(&rank->world, check_device(p, err), err));
    PD_TRY(pd_tiers_open(rank->cluster.vfs, &options, &rank->tiers, err));
    PD_TRY(resume(p, err));
    PD_TRY(pd_tiers_start(rank->tiers, err));
    return train(p, err);
}

void *world_rank_main(void *argument)
{
    struct process *p = argument;
    struct tier_rank *rank = &p->tier;
    p->status = run_rank(p, &p->error);
    if (p->rank == 0 && !p->status) w.digest = p->digest;
    world_look_for_death(w.processes, p->rank);
    const bool was_killed = p->is_gone;
    if (p->status) p->is_gone = true;
    turns_news();
    if (!was_killed) world_say_ended(p);
    pd_tiers_close(rank->tiers);
    pd_rank_device_close(&p->device);
    pd_shard_writer_free(rank->cluster.writer);
    p->has_begun = true;
    p->is_victim = was_killed && (p->is_victim || w.injected == FAULT_HANG);
    return NULL;
}
