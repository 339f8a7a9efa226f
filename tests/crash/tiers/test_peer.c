/* Second copies of shards on other hosts. A host that is gone with all that lay there takes no checkpoint with it: first
 * what goes where, then every operation of a copy goes wrong, once or from then on, and afterwards power goes, or a host is
 * replaced by an empty one. */
#include "ckpt/tiers/internal.h"
#include "tests/helpers/tier_sweep.h"

#define RANKS 4u
#define HOSTS 2u
#define SHARD_SPACE (64u << 10) /* more than a shard of the cluster */

#define EXPECT(CONDITION, ...)                               \
    do {                                                     \
        if (!(CONDITION)) PD_FAIL(err, PD_BUG, __VA_ARGS__); \
    } while (0)

#define RUN_ON(CLUSTER, FIRST, OPTIONS, SCRIPT, CONTEXT)                                      \
    do {                                                                                      \
        struct pd_error run_error = {0};                                                      \
        pd_status run_st = tier_run_on(CLUSTER, FIRST, OPTIONS, SCRIPT, CONTEXT, &run_error); \
        cr_assert_eq(run_st, PD_OK, "%s", run_error.message);                                 \
    } while (0)
#define RUN(CLUSTER, OPTIONS, SCRIPT, CONTEXT) RUN_ON(CLUSTER, 0, OPTIONS, SCRIPT, CONTEXT)

static void set_up(void)
{
    tier_be_quiet();
}

TestSuite(peer, .init = set_up);
TestSuite(peer_faults, .init = set_up);

static struct pd_tiers_options with_copies(uint32_t copies)
{
    return (struct pd_tiers_options){.tiers = {{.dir = "/disk", .every = 1, .keep_last = 2, .replicas = copies},
                                               {.dir = "/net/c", .every = 5, .keep_last = 2}},
                                     .count = 2,
                                     .quarantine_bytes_max = 1 << 20};
}

static struct pd_tiers_options local_only(void)
{
    struct pd_tiers_options options = with_copies(1);
    options.count = 1;
    return options;
}

static void make_cluster_of(struct cluster *cluster, uint32_t ranks, uint32_t hosts, uint64_t shm_bytes)
{
    struct pd_error err = {0};
    cr_assert_eq(tier_cluster_new(cluster, ranks, hosts, shm_bytes, 0, 0, &err), PD_OK, "%s", err.message);
}

static void make_cluster(struct cluster *cluster)
{
    make_cluster_of(cluster, RANKS, HOSTS, 0);
}

/* ---- a checkpoint whose shards lie anywhere ---- */

/* PD_NOT_FOUND: this host has it not. */
static pd_status load_shard(struct cluster_rank *rank, const struct pd_store_entry *entry, const struct pd_commit *commit,
                            uint32_t s, struct pd_error *err)
{
    const struct pd_identity identity = cluster_identity(entry->lineage, entry->step);
    struct pd_shard *shard = NULL;
    char path[4096];
    pd_store_entry_path(rank->store, entry, path);
    snprintf(path + strlen(path), 32, "/shard-%05u.h5", s);
    PD_TRY(pd_shard_open(rank->vfs, path, &identity, &commit->shards[s], &shard, err));
    cluster_fill(rank->values, entry->lineage, entry->step, s);
    pd_status st = pd_shard_verify(shard, rank->buffers, CLUSTER_BUFFER_BYTES, err);
    if (st == PD_OK) st = cluster_read_box(shard, 0, rank->values, err);
    if (st == PD_OK) st = cluster_read_box(shard, 1, rank->values + CLUSTER_ROWS * 3, err);
    pd_shard_close(shard);
    return st;
}

/* Every shard is whole on some host, and where `is_strict` wherever it lies. *ret_copies: the fewest hosts that have one. */
static pd_status load_anywhere(struct cluster_rank *rank, const struct pd_store_entry *entry, bool is_strict,
                               uint32_t *ret_copies, struct pd_error *err)
{
    uint64_t mine[CLUSTER_RANKS_MAX] = {0}, all[CLUSTER_RANKS_MAX * CLUSTER_RANKS_MAX] = {0}, hosts[CLUSTER_RANKS_MAX] = {0};
    const uint64_t host = rank->group->host;
    struct pd_commit commit = {0};
    PD_TRY(pd_store_read_commit(rank->store, entry, &commit, err));
    pd_status bad = PD_OK;
    for (uint32_t s = 0; s < commit.shard_count; s++) {
        const pd_status st = load_shard(rank, entry, &commit, s, err);
        mine[s] = st == PD_OK;
        if (st == PD_BUG || (is_strict && st && st != PD_NOT_FOUND)) bad = st;
    }
    pd_commit_deinit(&commit);
    PD_TRY(pd_group_agree(rank->group, bad, err));
    PD_TRY(pd_group_gather(rank->group, 0, mine, sizeof mine, all, err));
    PD_TRY(pd_group_broadcast(rank->group, 0, all, sizeof all, err));
    PD_TRY(pd_group_gather(rank->group, 0, &host, sizeof host, hosts, err));
    PD_TRY(pd_group_broadcast(rank->group, 0, hosts, sizeof hosts, err));
    *ret_copies = UINT32_MAX;
    for (uint32_t s = 0; s < entry->shard_count; s++) {
        uint32_t copies = 0;
        for (uint32_t r = 0; r < rank->group->size; r++) /* hosts are runs of ranks */
            copies += all[r * CLUSTER_RANKS_MAX + s] && (r == 0 || hosts[r] != hosts[r - 1]);
        if (copies < *ret_copies) *ret_copies = copies;
    }
    if (!*ret_copies) PD_FAIL(err, PD_CORRUPT, "%s is not whole", entry->name);
    return PD_OK;
}

struct found {
    bool is_strict;
    uint32_t tier, copies;
    uint64_t step;
};

static pd_status find(struct tier_rank *rank, struct found *found, struct pd_error *err)
{
    struct pd_store_entry entry;
    while (pd_tiers_newest(rank->tiers, &found->tier, &entry)) {
        rank->cluster.store = pd_tiers_store(rank->tiers, found->tier);
        found->step = entry.step;
        pd_status st = load_anywhere(&rank->cluster, &entry, found->is_strict, &found->copies, err);
        if (st != PD_CORRUPT) return st;
        PD_TRY(pd_store_quarantine(rank->cluster.store, &entry, "found by the test", err));
    }
    PD_FAIL(err, PD_NOT_FOUND, "no checkpoint is left");
}

static pd_status look(struct tier_rank *rank, struct pd_error *err)
{
    struct found found = {.is_strict = true};
    PD_TRY(find(rank, &found, err));
    if (rank->world.rank == 0) *(struct found *)rank->context = found;
    return PD_OK;
}

/* ---- what goes where ---- */

static pd_status save_seven(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 1; step <= 7; step++)
        PD_TRY(tier_save(rank, step, NULL, err));
    if (!rank->tiers->replicator) return PD_OK;
    tier_worker_wait(&rank->tiers->replicator->worker, -1);
    return pd_group_barrier(&rank->world, err);
}

/* The last save may have found the copier busy. */
static pd_status save_slowly(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_tier_report report;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 1; step <= 7; step++) {
        PD_TRY(tier_save(rank, step, NULL, err));
        if (rank->tiers->replicator) tier_worker_wait(&rank->tiers->replicator->worker, -1);
        for (uint32_t i = 1; i < rank->tiers->count; i++)
            tier_worker_wait(&rank->tiers->tiers[i].worker, -1);
        PD_TRY(pd_group_barrier(&rank->world, err));
    }
    pd_tiers_report(rank->tiers, 0, &report);
    if (!rank->tiers->replicator) return PD_OK;
    EXPECT(report.has_replicas && report.replicated_step == 7 && !report.replica_failures && !report.replicas_skipped,
           "step %llu is copied, %u failures, %llu skipped", (unsigned long long)report.replicated_step,
           report.replica_failures, (unsigned long long)report.replicas_skipped);
    return PD_OK;
}

Test(peer, a_host_that_is_gone_costs_no_step_and_without_copies_it_does)
{
    for (uint32_t copies = 0; copies < 2; copies++) {
        const struct pd_tiers_options options = with_copies(copies);
        for (uint32_t lost = 0; lost < HOSTS; lost++) {
            struct cluster cluster;
            struct found found = {0};
            make_cluster(&cluster);
            RUN(&cluster, &options, save_slowly, NULL);
            RUN_ON(&cluster, lost ? 2 * HOSTS - 1 : 1, &options, look, &found);
            cr_assert_eq(found.step, copies ? 7 : 5, "%u copies, host %u is lost: step %llu of tier %u", copies, lost,
                         (unsigned long long)found.step, found.tier);
            cr_assert_eq(found.tier, copies ? 0 : 1);
            cluster_free(&cluster);
        }
    }
}

static pd_status count_on(struct tier_rank *rank, struct pd_error *err)
{
    struct found found = {.is_strict = true};
    PD_TRY(find(rank, &found, err));
    EXPECT(found.step == 7 && found.copies == 2, "step %llu, %u copies", (unsigned long long)found.step, found.copies);
    struct pd_store *store = pd_tiers_store(rank->tiers, 0);
    EXPECT(pd_store_count(store) == 2 && !pd_store_unusable_count(store), "%u sealed, %u unusable", pd_store_count(store),
           pd_store_unusable_count(store));
    return PD_OK;
}

/* Five ranks of three hosts: the first and the second have two ranks, the last has one, which keeps the shards of two. */
Test(peer, hosts_need_not_be_alike)
{
    const struct pd_tiers_options options = local_only();
    struct cluster cluster;
    make_cluster_of(&cluster, 5, 3, 0);
    RUN(&cluster, &options, save_slowly, NULL);
    RUN(&cluster, &options, count_on, NULL);
    for (uint32_t lost = 0; lost < 3; lost += 2) {
        struct found found = {0};
        RUN_ON(&cluster, lost ? 5 : 1, &options, look, &found);
        cr_assert(found.step == 7 && found.tier == 0, "host %u: step %llu", lost, (unsigned long long)found.step);
    }
    cluster_free(&cluster);
}

/* The last step is copied before a run leaves, even where saves were faster. */
static pd_status save_and_leave(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(save_seven(rank, err));
    PD_TRY(tier_finish(rank, 7, -1, err));
    EXPECT(rank->tiers->replicator->schedule.newest_step == 7, "step %llu",
           (unsigned long long)rank->tiers->replicator->schedule.newest_step);
    return PD_OK;
}

/* A launch that has ended leaves no files that wait. */
static void expect_no_pool(const struct cluster *cluster)
{
    for (uint32_t host = 0; host < HOSTS; host++) {
        struct pd_vfs *vfs;
        struct pd_listing listing;
        cr_assert_eq(pd_simulated_disk_vfs(cluster->disk, host, &vfs, NULL), PD_OK);
        cr_assert_eq(pd_vfs_list(vfs, "/disk", &listing, NULL), PD_OK);
        for (uint32_t i = 0; i < listing.count; i++)
            cr_expect(strncmp(listing.names[i], "pool-", 5) != 0, "host %u: %s", host, listing.names[i]);
        pd_listing_deinit(&listing);
        pd_vfs_free(vfs);
    }
}

Test(peer, the_last_step_is_copied)
{
    const struct pd_tiers_options options = local_only();
    struct cluster cluster;
    make_cluster(&cluster);
    RUN(&cluster, &options, save_and_leave, NULL);
    expect_no_pool(&cluster);
    RUN(&cluster, &options, count_on, NULL);
    pd_simulated_disk_crash(cluster.disk, PD_DISK_ALL_HOSTS, 3);
    RUN(&cluster, &options, count_on, NULL);
    cluster_free(&cluster);
}

static pd_status go_on_alone(struct tier_rank *rank, struct pd_error *err)
{
    struct found found = {.is_strict = true};
    PD_TRY(find(rank, &found, err));
    EXPECT(found.step == 7 && !rank->tiers->replicator, "step %llu", (unsigned long long)found.step);
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 8, NULL, err));
    return tier_finish(rank, 8, -1, err);
}

Test(peer, a_run_with_one_host_left_goes_on)
{
    const struct pd_tiers_options options = local_only();
    struct cluster cluster;
    make_cluster(&cluster);
    RUN(&cluster, &options, save_slowly, NULL);
    cluster.hosts = 1;
    RUN_ON(&cluster, 1, &options, go_on_alone, NULL);
    cluster_free(&cluster);
}

static void refuse(const struct pd_tiers_options *options, uint32_t hosts, const char *what)
{
    struct pd_error err = {0};
    struct cluster cluster;
    make_cluster_of(&cluster, RANKS, hosts, 0);
    cr_assert_eq(tier_run(&cluster, options, save_seven, NULL, &err), PD_INVALID, "%s", what);
    cr_assert(strstr(err.message, what), "%s", err.message);
    cluster_free(&cluster);
}

Test(peer, what_cannot_be_is_refused)
{
    struct pd_tiers_options options = with_copies(2);
    refuse(&options, HOSTS, "not more");
    options = with_copies(1);
    refuse(&options, 1, "all ranks are on one");
    options.tiers[1].replicas = 1;
    refuse(&options, HOSTS, "only the first tier");
    options.tiers[1].replicas = 0;
    options.tiers[0].dir = "/net/d";
    refuse(&options, HOSTS, "one directory for all hosts");
}

/* ---- a copy that is slow ---- */

static pd_status save_past_a_slow_copy(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_tier_report report;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 1; step <= 9; step++)
        PD_TRY(tier_save(rank, step, NULL, err));
    pd_tiers_report(rank->tiers, 0, &report);
    EXPECT(!report.replicated_step && report.replicas_skipped == 7, "%llu are skipped",
           (unsigned long long)report.replicas_skipped);
    struct pd_store *store = pd_tiers_store(rank->tiers, 0);
    EXPECT(pd_store_count(store) == 3, "2 are kept and one is being copied, not %u", pd_store_count(store));
    EXPECT(pd_store_entry_at(store, 2)->step == 1, "what is being copied is kept");
    PD_TRY(tier_finish(rank, 9, 0, err)); /* gives up what would take for ever */
    EXPECT(pd_store_count(store) == 2, "%u are kept when nothing is copied any more", pd_store_count(store));
    return PD_OK;
}

Test(peer, a_slow_copy_skips_to_the_newest_and_can_be_given_up)
{
    struct pd_tiers_options options = local_only();
    struct found found = {0};
    struct cluster cluster;
    options.tiers[0].bandwidth = 1;
    make_cluster(&cluster);
    RUN(&cluster, &options, save_past_a_slow_copy, NULL);
    RUN(&cluster, &options, look, &found);
    cr_assert(found.step == 9 && found.copies == 1);
    cluster_free(&cluster);
}

static bool has_step(struct pd_store *store, uint64_t step)
{
    for (uint32_t i = 0; i < pd_store_count(store); i++)
        if (pd_store_entry_at(store, i)->step == step) return true;
    return false;
}

/* Step 1 is copied, and then nothing more. */
static pd_status save_past_copies(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_store *store = pd_tiers_store(rank->tiers, 0);
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 1, NULL, err));
    PD_TRY(tier_finish(rank, 1, -1, err));
    tier_hold_replicas(rank, 100);
    for (uint64_t step = 2; step <= 6; step++)
        PD_TRY(tier_save(rank, step, NULL, err));
    EXPECT(has_step(store, 1) && !has_step(store, 4), "what was copied last is kept while newer ones are not");
    return PD_OK;
}

/* A launch that comes after keeps it as well, until it has copied one. */
static pd_status save_past_them_again(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_store *store = pd_tiers_store(rank->tiers, 0);
    PD_TRY(pd_tiers_start(rank->tiers, err));
    tier_hold_replicas(rank, 3);
    for (uint64_t step = 7; step <= 9; step++)
        PD_TRY(tier_save(rank, step, NULL, err));
    EXPECT(has_step(store, 1) && !has_step(store, 7), "of an earlier launch too");
    for (uint64_t step = 10; step <= 13; step++) {
        PD_TRY(tier_save(rank, step, NULL, err));
        tier_worker_wait(&rank->tiers->replicator->worker, -1);
        PD_TRY(pd_group_barrier(&rank->world, err));
    }
    EXPECT(!has_step(store, 1) && pd_store_count(store) == 2, "%u are kept", pd_store_count(store));
    return PD_OK;
}

Test(peer, what_was_copied_last_is_kept)
{
    const struct pd_tiers_options options = local_only();
    struct found found = {0};
    struct cluster cluster;
    make_cluster(&cluster);
    RUN(&cluster, &options, save_past_copies, NULL);
    struct cluster later = cluster;
    cr_assert_eq(pd_simulated_disk_clone(cluster.disk, &later.disk, NULL), PD_OK);
    RUN_ON(&later, 1, &options, look, &found);
    cr_assert_eq(found.step, 1);
    cluster_free(&later);
    RUN(&cluster, &options, save_past_them_again, NULL);
    cluster_free(&cluster);
}

static pd_status copy_what_is_gone(struct tier_rank *rank, struct pd_error *err)
{
    struct tier_job job = {
        .task = TIER_REPLICATE, .step = 9, .source = "/disk/step-000000000009-1", .name = "step-000000000009-1"};
    PD_TRY(pd_tiers_start(rank->tiers, err));
    pd_status st = tier_replicate(rank->tiers->replicator, &job, err);
    EXPECT(st == PD_STOPPED, "%s", pd_status_name(st));
    return PD_OK;
}

Test(peer, a_checkpoint_that_is_gone_is_no_failure)
{
    const struct pd_tiers_options options = local_only();
    struct cluster cluster;
    make_cluster(&cluster);
    RUN(&cluster, &options, copy_what_is_gone, NULL);
    cluster_free(&cluster);
}

/* ---- a peer whose bytes arrive damaged ---- */

#define A_PIECE 4                     /* not a word of a header: the page damaged_value of each piece that arrives */
static _Atomic int damaged_word = -1; /* of the headers that arrive; -1: none */
static _Atomic uint64_t damaged_value;
static const struct pd_group_ops *undamaged;
static struct pd_group_ops damaging;

/* Headers are four words: offset, bytes, digest, whether it was the last. */
static pd_status exchange_damaged(struct pd_group *group, const struct pd_group_piece *sends, uint32_t send_count,
                                  const struct pd_group_piece *recvs, uint32_t recv_count, struct pd_error *err)
{
    PD_TRY(undamaged->exchange(group, sends, send_count, recvs, recv_count, err));
    for (uint32_t i = 0; group->rank == 2 && damaged_word >= 0 && i < recv_count; i++) {
        const bool is_header = recvs[i].bytes == 4 * sizeof(uint64_t);
        unsigned char *bytes = recvs[i].data;
        if (damaged_word == A_PIECE && !is_header) bytes[damaged_value * 4096 % recvs[i].bytes] ^= 1;
        if (damaged_word != A_PIECE && is_header) ((uint64_t *)recvs[i].data)[damaged_word] = damaged_value;
    }
    return PD_OK;
}

static pd_status copy_what_arrives_damaged(struct tier_rank *rank, struct pd_error *err)
{
    static const struct {
        int word;
        uint64_t value;
    } damages[] = {{1, UINT64_MAX}, {1, 16 << 20}, {1, 17},      {0, UINT64_MAX & ~UINT64_C(4095)},
                   {0, 5},          {0, 1 << 30},  {A_PIECE, 0}, {A_PIECE, 1},
                   {A_PIECE, 2},    {A_PIECE, 3},  {A_PIECE, 4}};
    struct pd_tier_report report = {0};
    if (rank->world.rank == 0) {
        undamaged = rank->replica_group.ops;
        damaging = *undamaged;
        damaging.exchange = exchange_damaged;
    }
    PD_TRY(pd_group_barrier(&rank->world, err));
    rank->replica_group.ops = &damaging;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    uint64_t step = 0;
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        damaged_value = damages[i].value;
        damaged_word = damages[i].word;
        const uint32_t before = report.replica_failures;
        struct pd_error why = {0};
        PD_TRY(tier_save(rank, ++step, NULL, err));
        const pd_status st = tier_finish(rank, step, -1, &why);
        pd_tiers_report(rank->tiers, 0, &report);
        EXPECT(
            st == PD_IO && report.replica_failures > before && !report.replicated_step &&
                (strstr(report.replica_cause, "arrived damaged") || strstr(report.replica_cause, "were damaged on the way")),
            "damage %zu: %u failures: %s", i, report.replica_failures, report.replica_cause);
        PD_TRY(pd_group_barrier(&rank->world, err));
    }
    damaged_word = -1;
    PD_TRY(tier_save(rank, ++step, NULL, err));
    PD_TRY(tier_finish(rank, step, -1, err));
    pd_tiers_report(rank->tiers, 0, &report);
    EXPECT(report.replicated_step == step, "step %llu is copied", (unsigned long long)report.replicated_step);
    rank->replica_group.ops = undamaged;
    return pd_group_barrier(&rank->world, err);
}

Test(peer, what_arrives_damaged_costs_the_copy_alone)
{
    const struct pd_tiers_options options = local_only();
    struct cluster cluster;
    make_cluster(&cluster);
    RUN(&cluster, &options, copy_what_arrives_damaged, NULL);
    cluster_free(&cluster);
}

/* ---- cluster ---- */

static pd_status count_files(struct pd_vfs *vfs, const char *dir, uint32_t *count, uint64_t *bytes, struct pd_error *err)
{
    struct pd_listing listing;
    PD_TRY(pd_vfs_list(vfs, dir, &listing, err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; !st && i < listing.count; i++) {
        char path[512];
        struct pd_stat stat;
        snprintf(path, sizeof path, "%.200s/%.200s", dir, listing.names[i]);
        st = pd_vfs_stat(vfs, path, &stat, err);
        if (!st && stat.type == PD_ENTRY_DIRECTORY) st = count_files(vfs, path, count, bytes, err);
        if (!st && stat.type == PD_ENTRY_FILE) ++*count, *bytes += stat.bytes;
    }
    pd_listing_deinit(&listing);
    return st;
}

/* Of the copies that this rank made. */
static pd_status note_inode(struct tier_rank *rank, uint64_t step, uint64_t *inodes, uint32_t *count, struct pd_error *err)
{
    const struct pd_store_replicas *ring = pd_store_replicas(rank->tiers->tiers[0].store);
    struct pd_stat stat;
    char path[512];
    snprintf(path, sizeof path, "%s/step-%012llu-1/shard-%05u.h5", rank->tiers->tiers[0].dir, (unsigned long long)step,
             ring->sources[0]);
    PD_TRY(pd_vfs_stat(rank->cluster.vfs, path, &stat, err));
    for (uint32_t i = 0; i < *count; i++)
        if (inodes[i] == stat.inode) return PD_OK;
    inodes[(*count)++] = stat.inode;
    return PD_OK;
}

static pd_status save_many(struct tier_rank *rank, struct pd_error *err)
{
    uint64_t inodes[40];
    uint32_t inode_count = 0;
    const char *dir = rank->tiers->tiers[0].dir;
    uint32_t first = 0;
    uint64_t first_bytes = 0;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 1; step <= 40; step++) {
        uint32_t count = 0;
        uint64_t bytes = 0;
        PD_TRY(tier_save(rank, step, NULL, err));
        tier_worker_wait(&rank->tiers->replicator->worker, -1);
        PD_TRY(pd_group_barrier(&rank->world, err));
        PD_TRY(count_files(rank->cluster.vfs, dir, &count, &bytes, err));
        PD_TRY(note_inode(rank, step, inodes, &inode_count, err));
        PD_TRY(pd_group_barrier(&rank->world, err));
        if (step == 10) first = count, first_bytes = bytes;
        EXPECT(step < 10 || (count <= first && bytes <= first_bytes), "step %llu: %u files of %llu bytes, %u of %llu before",
               (unsigned long long)step, count, (unsigned long long)bytes, first, (unsigned long long)first_bytes);
    }
    EXPECT(inode_count <= 5, "%u files were made for copies", inode_count);
    return PD_OK;
}

Test(peer, files_are_used_again)
{
    struct pd_tiers_options options = local_only();
    struct cluster cluster;
    make_cluster_of(&cluster, RANKS, HOSTS, 2 * 2 * 4 * SHARD_SPACE);
    options.tiers[0].dir = "/shm/c";
    RUN(&cluster, &options, save_many, NULL);
    cluster_free(&cluster);
}

static pd_status check_cluster(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_tier_report report;
    PD_TRY(pd_tiers_check_space(rank->tiers, SHARD_SPACE, 0, err));
    pd_tiers_report(rank->tiers, 0, &report);
    if (rank->world.rank == 0) *(bool *)rank->context = !report.is_left_out;
    return PD_OK;
}

/* Two ranks a host: 2 checkpoints are kept, one is written, one is on its way to the other host and one is there, one goes
 * to /net: 6, and as many shards come from the other host. */
Test(peer, memory_is_counted_for_copies)
{
    for (uint32_t shards = 23; shards <= 24; shards++) {
        struct pd_tiers_options options = with_copies(1);
        struct cluster cluster;
        bool fits = false;
        make_cluster_of(&cluster, RANKS, HOSTS, (uint64_t)shards * SHARD_SPACE + SHARD_SPACE / 2);
        options.tiers[0].dir = "/shm/c";
        cr_assert_eq(pd_tiers_checkpoints(options.tiers, 2, 0, false), 12);
        RUN(&cluster, &options, check_cluster, &fits);
        cr_assert_eq(fits, shards == 24, "room for %u shards", shards);
        cluster_free(&cluster);
    }
}

static pd_status check_room_again(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_store *store = pd_tiers_store(rank->tiers, 0);
    const uint64_t bytes = pd_store_entry_at(store, 0)->bytes / RANKS;
    struct pd_space space;
    PD_TRY(pd_vfs_space(rank->cluster.vfs, "/shm/c", &space, err));
    EXPECT(space.available_bytes < 16 * bytes, "a test of nothing: %llu bytes are free, shards have %llu",
           (unsigned long long)space.available_bytes, (unsigned long long)bytes);
    return pd_tiers_check_space(rank->tiers, bytes, 0, err);
}

/* Of 20 shards 8 lie there already, and 4 of those are copies. */
Test(peer, what_lies_there_makes_room_for_what_comes)
{
    struct pd_tiers_options options = local_only();
    struct cluster cluster;
    make_cluster_of(&cluster, RANKS, HOSTS, 22 * (24u << 10) + (8u << 10)); /* and records, fences */
    options.tiers[0].dir = "/shm/c";
    RUN(&cluster, &options, save_slowly, NULL);
    RUN(&cluster, &options, check_room_again, NULL);
    cluster_free(&cluster);
}

/* ---- misfortunes ---- */

enum aftermath { NOBODY_CRASHES, ALL_CRASH, ONE_CRASHES, FIRST_IS_REPLACED, LAST_IS_REPLACED, AFTERMATHS, ANY = AFTERMATHS };

/* A shard of the cluster is one write, so that one which is lost or goes elsewhere is seen when the file is verified. */
static bool lies(const struct misfortune *m)
{
    const enum pd_disk_fault_kind kind = kind_of(m);
    return kind == PD_DISK_FAULT_TORN || kind == PD_DISK_FAULT_LOST_SYNC;
}

#define BEFORE 3u /* steps that are copied before the misfortune */

struct run {
    const struct misfortune *misfortune;
    pd_status finished;
    uint64_t fired;
    struct pd_simulated_disk *after; /* as it lay when the copy had ended */
};

static pd_status save_before(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(pd_tiers_start(rank->tiers, err));
    return tier_save_to(rank, 1, BEFORE - 1, err);
}

/* The save is not disturbed: what goes wrong is the copy, which the first save passes over and the way out makes. */
static pd_status meet(struct tier_rank *rank, struct pd_error *err)
{
    struct run *run = rank->context;
    const struct misfortune *m = run->misfortune;
    struct pd_error why = {0};
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save_to(rank, BEFORE, BEFORE, err));
    tier_hold_replicas(rank, 1);
    PD_TRY(tier_save(rank, BEFORE + 1, NULL, err));
    PD_TRY(tier_arm(rank, m, err));
    pd_status finished = tier_finish(rank, BEFORE + 1, -1, &why);
    if (rank->world.rank == 0) run->finished = finished;
    rank->distrusts = kind_of(m) >= PD_DISK_FAULT_TORN; /* of what it writes now */
    tier_run_ahead(rank, BEFORE + 10);
    PD_TRY(tier_disarm(rank, &run->fired, &run->after, err));
    if (kind_of(m) == PD_DISK_FAULT_POWER) return PD_OK;
    /* The run goes on, and everything works again. */
    tier_hold_replicas(rank, 0);
    PD_TRY(tier_save(rank, BEFORE + 2, NULL, err));
    return pd_error_context(err, tier_finish(rank, BEFORE + 2, -1, err), "the copies after it");
}

struct check {
    uint64_t least, most;
    bool is_strict;
};

static pd_status look_after(struct tier_rank *rank, struct pd_error *err)
{
    const struct check *check = rank->context;
    struct found found = {.is_strict = check->is_strict};
    PD_TRY(find(rank, &found, err));
    if (found.step < check->least || found.step > check->most)
        PD_FAIL(err, PD_BUG, "step %llu loads, expected %llu to %llu", (unsigned long long)found.step,
                (unsigned long long)check->least, (unsigned long long)check->most);
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 100, NULL, err));
    PD_TRY(tier_finish(rank, 100, -1, err));
    EXPECT(rank->tiers->replicator->schedule.newest_step == 100, "what comes after is copied too");
    return PD_OK;
}

/* Of a host that is gone the other one may have lost power too: copies are durable.
 * The step is sealed and durable on both hosts before anything goes wrong: a misfortune of its copy costs it nothing while
 * both are there. */
static pd_status look_at(const struct cluster *cluster, struct run *run, const struct pd_tiers_options *options,
                         struct pd_error *err)
{
    const struct misfortune *m = run->misfortune;
    const bool is_replaced = m->aftermath == FIRST_IS_REPLACED || m->aftermath == LAST_IS_REPLACED;
    const bool lost_power = kind_of(m) == PD_DISK_FAULT_POWER;
    const bool is_copied = run->finished == PD_OK && !lies(m);
    struct check check = {BEFORE + 1, BEFORE + 1, !lies(m)};
    struct cluster later = *cluster;
    if (is_replaced && !is_copied) check.least = BEFORE;
    later.disk = run->after;
    run->after = NULL;
    const bool crash = m->aftermath == ALL_CRASH || lost_power || (is_replaced && m->seed % 2);
    if (crash) pd_simulated_disk_crash(later.disk, PD_DISK_ALL_HOSTS, m->seed);
    if (m->aftermath == ONE_CRASHES && !lost_power) pd_simulated_disk_crash(later.disk, m->seed % HOSTS, m->seed);
    for (uint32_t host = 0; host < HOSTS; host++)
        if (!crash) pd_simulated_disk_kill(later.disk, host);
    const uint32_t first = m->aftermath == FIRST_IS_REPLACED ? 1 : m->aftermath == LAST_IS_REPLACED ? 2 * HOSTS - 1 : 0;
    pd_status st = tier_run_on(&later, first, options, look_after, &check, err);
    cluster_free(&later);
    return st;
}

static bool has_files; /* that hold the state, in the campaign that runs */

static struct pd_tiers_options campaign_options(void)
{
    struct pd_tiers_options options = local_only();
    options.generations = has_files;
    return options;
}

static pd_status try_one(const struct cluster *base, const struct misfortune *drawn, bool *ret_fired, struct pd_error *err)
{
    const struct pd_tiers_options options = campaign_options();
    struct cluster cluster = *base;
    struct misfortune m = *drawn;
    struct run run = {.misfortune = &m};
    if (m.aftermath == ANY) m.aftermath = (int)(m.seed / HOSTS % AFTERMATHS);
    PD_TRY(pd_simulated_disk_clone(base->disk, &cluster.disk, err));
    pd_status st = tier_run(&cluster, &options, meet, &run, err);
    *ret_fired = run.fired > 0;
    if (!st) st = look_at(&cluster, &run, &options, err);
    if (run.after) pd_simulated_disk_free(run.after);
    cluster_free(&cluster);
    return st;
}

static void campaign(enum aftermath aftermath, uint64_t stride)
{
    const struct pd_tiers_options options = campaign_options();
    struct cluster cluster;
    make_cluster(&cluster);
    RUN(&cluster, &options, save_before, NULL);
    tier_sweep(&cluster, "copies on other hosts", (int)aftermath, stride, true, try_one);
}

/* State in files; a short run draws what becomes of the hosts. */
static void campaigns_of_files(unsigned lacks, uint64_t stride)
{
    has_files = true;
    const struct pd_tiers_options options = campaign_options();
    for (int i = 0; i < (test_scale() < 10 ? 1 : AFTERMATHS); i++) {
        struct cluster cluster;
        struct pd_error err = {0};
        cr_assert_eq(tier_cluster_new_lacking(&cluster, RANKS, HOSTS, lacks, &err), PD_OK, "%s", err.message);
        RUN(&cluster, &options, save_before, NULL);
        tier_sweep(&cluster, "copies of state in files", test_scale() < 10 ? ANY : i, stride, true, try_one);
    }
}

Test(peer_faults, processes_die)
{
    campaign(NOBODY_CRASHES, 23);
}

Test(peer_faults, all_hosts_lose_power)
{
    campaign(ALL_CRASH, 13);
}

Test(peer_faults, one_host_loses_power)
{
    campaign(ONE_CRASHES, 23);
}

Test(peer_faults, the_first_host_is_gone)
{
    campaign(FIRST_IS_REPLACED, 13);
}

Test(peer_faults, the_last_host_is_gone)
{
    campaign(LAST_IS_REPLACED, 13);
}

Test(peer_faults, files)
{
    campaigns_of_files(0, 40);
}

Test(peer_faults, files_without_links)
{
    campaigns_of_files(PD_DISK_NO_LINKS, 40);
}
