/* Tiers and second copies, and others who are there too: writes of copies that land after the death of their worker, a
 * launch that was overtaken while its copies are on their way, a second launcher. Whatever they do, the newest sealed step
 * loads, and every file of every tier is whole. State lies in memory or in files, shared, without links. */
#include "ckpt/tiers/internal.h"
#include "tests/helpers/tier_cluster.h"

#include <criterion/criterion.h>
#include <sched.h>

#define RANKS 4u
#define HOSTS 2u
#define IN_FLIGHT 4u /* the step whose copies are on their way */

static const struct place {
    const char *first;
    bool has_files;
    unsigned lacks;
    uint32_t copies;
} places[] = {
    {"/disk", false, 0, 1},
    {"/disk", true, 0, 1},
    {"/disk", true, PD_DISK_NO_LINKS, 1},
    {"/net/a", true, 0, 0},
};
#define PLACE_COUNT (sizeof places / sizeof *places)

static void expect(size_t place, pd_status found, pd_status expected, const struct pd_error *err)
{
    cr_assert_eq(found, expected, "place %zu: %s (expected %s): %s", place, pd_status_name(found), pd_status_name(expected),
                 err->message);
}

static void set_up(void)
{
    tier_be_quiet();
}

TestSuite(tiers_and_others, .init = set_up);

static struct pd_tiers_options options_at(const struct place *place)
{
    return (struct pd_tiers_options){
        .tiers = {{.dir = place->first, .every = 1, .keep_last = 2, .replicas = place->copies},
                  {.dir = "/net/c", .every = 1, .keep_last = 2}},
        .count = 2,
        .quarantine_bytes_max = 1 << 20,
        .generations = place->has_files,
    };
}

static struct cluster cluster_at(size_t place, unsigned lacks)
{
    struct cluster cluster;
    struct pd_error err = {0};
    pd_status st = tier_cluster_new_lacking(&cluster, RANKS, HOSTS, places[place].lacks | lacks, &err);
    expect(place, st, PD_OK, &err);
    return cluster;
}

/* ---- what is found ---- */

/* Also the copies of other hosts' shards. */
static pd_status load_what_is_here(struct cluster_rank *rank, const struct pd_store_entry *entry, struct pd_error *err)
{
    struct pd_commit commit = {0};
    PD_TRY(pd_store_read_commit(rank->store, entry, &commit, err));
    pd_status st = PD_OK;
    for (uint32_t s = 0; st == PD_OK && s < commit.shard_count; s++) {
        st = cluster_load_shard(rank, entry, &commit, s, err);
        const bool is_mine = s == rank->group->rank;
        if (st == PD_NOT_FOUND && !is_mine) st = PD_OK;
    }
    pd_commit_deinit(&commit);
    return pd_group_agree(rank->group, st, err);
}

/* Everything in all tiers is whole, and the newest is `*context`. */
static pd_status look(struct tier_rank *rank, struct pd_error *err)
{
    const uint64_t *expected = rank->context;
    struct pd_store_entry newest;
    uint32_t tier;
    if (!pd_tiers_newest(rank->tiers, &tier, &newest) || newest.step != *expected)
        PD_FAIL(err, PD_BUG, "the newest step is not %llu", (unsigned long long)*expected);
    for (uint32_t t = 0; t < pd_tiers_count(rank->tiers); t++) {
        struct pd_store *store = rank->cluster.store = pd_tiers_store(rank->tiers, t);
        for (uint32_t i = 0; i < pd_store_count(store); i++)
            PD_TRY(load_what_is_here(&rank->cluster, pd_store_entry_at(store, i), err));
    }
    const struct pd_store_entry *first = pd_store_entry_at(pd_tiers_store(rank->tiers, 0), 0);
    if (rank->tiers->replicator && first->hosts != 2)
        PD_FAIL(err, PD_BUG, "step %llu has no copies", (unsigned long long)first->step);
    return PD_OK;
}

static void expect_whole(size_t place, struct cluster *cluster, uint32_t first_host, uint64_t newest)
{
    const struct pd_tiers_options options = options_at(&places[place]);
    struct pd_error err = {0};
    expect(place, tier_run_on(cluster, first_host, &options, look, &newest, &err), PD_OK, &err);
}

/* ---- copies on their way ---- */

static bool is_there(struct tier_rank *rank, const char *path)
{
    struct pd_stat stat;
    return pd_vfs_stat(rank->cluster.vfs, path, &stat, NULL) == PD_OK;
}

/* This rank's copies into the later tier, and those of others that come here, have their files. */
static bool copies_are_on_their_way(struct tier_rank *rank)
{
    const struct pd_store_replicas *ring = pd_store_replicas(pd_tiers_store(rank->tiers, 0));
    char path[128];
    snprintf(path, sizeof path, "/net/c/step-%012u-1.tmp/shard-%05u.h5", IN_FLIGHT, rank->cluster.group->rank);
    bool all = is_there(rank, path);
    for (uint32_t i = 0; ring && i < ring->source_count; i++) {
        snprintf(path, sizeof path, "/disk/pool-1/generation-%05u-0.h5", ring->sources[i]);
        all = all && is_there(rank, path);
    }
    return all;
}

/* Steps before it are everywhere; its copies would take for ever. */
static pd_status begin_copies(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 1; step < IN_FLIGHT; step++) {
        PD_TRY(tier_save(rank, step, NULL, err));
        PD_TRY(tier_finish(rank, step, -1, err));
    }
    rank->tiers->tiers[1].bytes_per_second = 1;
    if (rank->tiers->replicator) rank->tiers->replicator->bytes_per_second = 1;
    PD_TRY(pd_group_barrier(&rank->world, err));
    PD_TRY(tier_save(rank, IN_FLIGHT, NULL, err));
    while (!copies_are_on_their_way(rank))
        sched_yield();
    /* What is written when the end comes is not a checkpoint's. */
    if (rank->state) PD_TRY(generation_write(rank->state, IN_FLIGHT + 1, err));
    tier_run_ahead(rank, IN_FLIGHT + 2);
    return pd_group_barrier(&rank->world, err);
}

static pd_status die_with_copies_in_flight(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(begin_copies(rank, err));
    return generation_kill_all(&rank->cluster, err);
}

/* ---- writes that land late ---- */

#define FILES_MAX 64u

struct haunt {
    struct pd_vfs *vfss[HOSTS];
    struct pd_file *files[FILES_MAX];
    uint32_t count;
    uint64_t written;
};

static void open_files_of(struct haunt *haunt, struct pd_vfs *vfs, const char *dir, const char *prefix)
{
    struct pd_listing listing = {0};
    if (pd_vfs_list(vfs, dir, &listing, NULL) != PD_OK) return;
    for (uint32_t i = 0; i < listing.count; i++) {
        char path[256];
        if (strncmp(listing.names[i], prefix, strlen(prefix)) != 0) continue;
        snprintf(path, sizeof path, "%s/%.150s", dir, listing.names[i]);
        cr_assert_lt(haunt->count, FILES_MAX);
        cr_assert_eq(pd_file_open(vfs, path, PD_OPEN_WRITE | PD_OPEN_DIRECT, &haunt->files[haunt->count++], NULL), PD_OK);
    }
    pd_listing_deinit(&listing);
}

/* What the dead were writing: state, copies of other hosts' shards, shards of the later tier. */
static void open_files(struct haunt *haunt, struct cluster *cluster, const struct place *place)
{
    char pool[64], saved[64];
    snprintf(pool, sizeof pool, "%s/pool-1", place->first);
    snprintf(saved, sizeof saved, "/net/c/step-%012u-1.tmp", IN_FLIGHT);
    for (uint32_t host = 0; host < HOSTS; host++) {
        cr_assert_eq(pd_simulated_disk_vfs(cluster->disk, host, &haunt->vfss[host], NULL), PD_OK);
        if (host == 0 || strncmp(pool, "/net", 4) != 0) open_files_of(haunt, haunt->vfss[host], pool, "generation-");
        if (host == 0) open_files_of(haunt, haunt->vfss[host], saved, "shard-");
    }
    cr_assert_geq(haunt->count, (place->has_files ? RANKS : 0) + place->copies * RANKS + RANKS, "%u files", haunt->count);
}

static void scribble(struct haunt *haunt)
{
    static _Alignas(PD_VFS_ALIGN) char garbage[8 * PD_VFS_ALIGN];
    memset(garbage, 0xee, sizeof garbage);
    for (uint32_t i = 0; i < haunt->count; i++) {
        haunt->written += pd_file_write(haunt->files[i], 0, garbage, sizeof garbage, NULL) == PD_OK;
        (void)!pd_file_sync(haunt->files[i], NULL);
    }
}

static void lay_to_rest(struct haunt *haunt)
{
    for (uint32_t i = 0; i < haunt->count; i++)
        (void)!pd_file_close(haunt->files[i], NULL);
    for (uint32_t host = 0; host < HOSTS; host++)
        pd_vfs_free(haunt->vfss[host]);
}

static pd_status haunted_barrier(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(pd_group_barrier(&rank->world, err));
    if (rank->world.rank == 0) scribble(rank->context);
    return pd_group_barrier(&rank->world, err);
}

static pd_status be_haunted(struct tier_rank *rank, struct pd_error *err)
{
    uint32_t tier;
    uint64_t newest;
    PD_TRY(tier_load_newest(rank, &tier, &newest, err));
    if (newest != IN_FLIGHT) PD_FAIL(err, PD_BUG, "step %llu is the newest", (unsigned long long)newest);
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 10; step < 16; step++) {
        PD_TRY(haunted_barrier(rank, err));
        PD_TRY(tier_save(rank, step, NULL, err));
        PD_TRY(haunted_barrier(rank, err));
        if (step % 2) PD_TRY(tier_finish(rank, step, -1, err));
    }
    return haunted_barrier(rank, err);
}

Test(tiers_and_others, writes_of_copies_that_land_after_the_death_of_their_worker)
{
    for (size_t place = 0; place < PLACE_COUNT; place++) {
        const struct pd_tiers_options options = options_at(&places[place]);
        struct cluster cluster = cluster_at(place, 0);
        struct haunt haunt = {0};
        struct pd_error err = {0};
        expect(place, tier_run(&cluster, &options, die_with_copies_in_flight, NULL, &err), PD_OK, &err);
        open_files(&haunt, &cluster, &places[place]);
        expect(place, tier_run(&cluster, &options, be_haunted, &haunt, &err), PD_OK, &err);
        cr_assert_gt(haunt.written, 0u, "nobody wrote");
        expect_whole(place, &cluster, 0, 15);
        lay_to_rest(&haunt);
        cluster_free(&cluster);
    }
}

/* ---- another launch ---- */

static pd_status save_more(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 20; step < 25; step++)
        PD_TRY(tier_save(rank, step, NULL, err));
    return tier_finish(rank, 24, -1, err);
}

/* Nothing that it saves counts any more, nor what it had on its way. */
static pd_status be_overtaken(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_error why = {0};
    PD_TRY(begin_copies(rank, err));
    PD_TRY(tier_start_second(rank, rank->context, err));
    for (uint64_t step = 30; step < 33; step++) {
        const pd_status st = tier_save(rank, step, NULL, &why);
        if (st == PD_OK) PD_FAIL(err, PD_BUG, "a zombie saves step %llu", (unsigned long long)step);
        if (st == PD_BUSY) break;
        if (!rank->state) PD_FAIL(err, PD_BUG, "a zombie that saves gets %s", pd_status_name(st));
    }
    return PD_OK;
}

Test(tiers_and_others, a_launch_that_was_overtaken_with_copies_on_their_way)
{
    for (size_t place = 0; place < PLACE_COUNT; place++) {
        const struct pd_tiers_options options = options_at(&places[place]);
        struct cluster cluster = cluster_at(place, PD_DISK_NO_LOCKS), beside = cluster;
        struct tier_second second = {.cluster = &beside, .options = &options, .script = save_more};
        struct pd_error err = {0};
        expect(place, tier_run(&cluster, &options, be_overtaken, &second, &err), PD_OK, &err);
        expect(place, second.status, PD_OK, &second.error);
        expect_whole(place, &cluster, 0, 24);
        cluster_free(&cluster);
    }
}

/* In the later tier alone, by a launch on other machines: what it has of its own is as it was, also where that is state in
 * files, and still it must stop. */
static pd_status be_overtaken_elsewhere(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_error why = {0};
    pd_status st = PD_OK;
    PD_TRY(begin_copies(rank, err));
    PD_TRY(tier_start_second(rank, rank->context, err));
    rank->tiers->tiers[1].bytes_per_second = 0; /* of the next copy; the one on its way is given up */
    for (uint64_t step = 30; st == PD_OK && step < 33; step++) {
        st = tier_save(rank, step, NULL, &why);
        if (st == PD_OK) st = tier_finish(rank, step, 0, &why);
    }
    if (st != PD_BUSY) PD_FAIL(err, PD_BUG, "a zombie gets %s", pd_status_name(st));
    return PD_OK;
}

static bool has_machines_of_its_own(const struct place *place)
{
    return strncmp(place->first, "/net", 4) != 0;
}

Test(tiers_and_others, a_launch_that_was_overtaken_in_a_tier_that_others_share)
{
    for (size_t place = 0; place < PLACE_COUNT; place++) {
        const struct pd_tiers_options options = options_at(&places[place]);
        struct cluster cluster = cluster_at(place, PD_DISK_NO_LOCKS), beside = cluster;
        struct tier_second second = {.cluster = &beside, .first_host = HOSTS, .options = &options, .script = save_more};
        struct pd_error err = {0};
        if (has_machines_of_its_own(&places[place])) {
            expect(place, tier_run(&cluster, &options, be_overtaken_elsewhere, &second, &err), PD_OK, &err);
            expect(place, second.status, PD_OK, &second.error);
            expect_whole(place, &cluster, HOSTS, 24);
        }
        cluster_free(&cluster);
    }
}

static pd_status meet_a_second(struct tier_rank *rank, struct pd_error *err)
{
    struct tier_second *second = rank->context;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 1; step < 5; step++) {
        PD_TRY(tier_save(rank, step, NULL, err));
        PD_TRY(tier_start_second(rank, second, err));
        if (second->status != PD_BUSY) PD_FAIL(err, PD_BUG, "a second launch gets %s", pd_status_name(second->status));
    }
    return tier_finish(rank, 4, -1, err);
}

/* On the same machines, and on others. */
Test(tiers_and_others, a_second_launcher_is_refused_and_harms_nothing)
{
    for (size_t place = 0; place < PLACE_COUNT; place++) {
        for (uint32_t first_host = 0; first_host <= HOSTS; first_host += HOSTS) {
            const struct pd_tiers_options options = options_at(&places[place]);
            struct cluster cluster = cluster_at(place, 0), beside = cluster;
            struct tier_second second = {
                .cluster = &beside, .first_host = first_host, .options = &options, .script = save_more};
            struct pd_error err = {0};
            expect(place, tier_run(&cluster, &options, meet_a_second, &second, &err), PD_OK, &err);
            expect_whole(place, &cluster, 0, 4);
            cluster_free(&cluster);
        }
    }
}
