/* State in generations, on the simulated disk: every operation of a step, of the save that links it and of the removal that
 * frees its file goes wrong once, or from then on, and ranks stop at different generations. A fresh launch finds the
 * previous checkpoint or the new one, whole, and the new one when it had been reported committed; so does the one after it,
 * once power has failed over the files that it has reused; and the launch that met the misfortune, which goes on, seals
 * steps that no power loss takes.
 *
 * PERDURE_TEST_SCALE=10 tries every operation; PERDURE_CAMPAIGN_SEED sets the seed; a failure prints it.
 */
#include "ckpt/base/log.h"
#include "tests/helpers/generation_cluster.h"
#include "tests/helpers/store_sweep.h"

#define LAST_BASE_STEP 3u /* committed before the launch that meets the misfortune */
#define HEALED_STEP 21u   /* the last one that is committed after it, in the same launch */
#define FREE_FILES_MAX 4u /* files of a rank that wait: 2 + keep_last */

static void set_up(void)
{
    cr_assert_eq(pd_log_configure("error", NULL), PD_OK);
}

TestSuite(store_generations, .init = set_up);

static pd_status with_generation(struct cluster_rank *rank, pd_status (*body)(struct generation *, struct pd_error *),
                                 struct pd_error *err)
{
    struct generation *g = calloc(1, sizeof *g);
    if (!g) PD_FAIL(err, PD_NO_MEMORY, "no memory");
    pd_status st = generation_init(g, rank, err);
    if (st == PD_OK) st = body(g, err);
    generation_deinit(g);
    free(g);
    return st;
}

/* ---- the run that meets it ---- */

/* Killed in the middle of a step, so that its pool stays for the next launch. */
static pd_status base_body(struct generation *g, struct pd_error *err)
{
    pd_store_set_index(g->rank->store, campaign_index, sizeof campaign_index);
    for (uint64_t step = 1; step <= LAST_BASE_STEP; step++)
        PD_TRY(generation_step(g, step, err));
    PD_TRY(pd_group_agree(g->rank->group, generation_write(g, LAST_BASE_STEP + 1, err), err));
    return generation_kill_all(g->rank, err);
}

static pd_status base_script(struct cluster_rank *rank, struct pd_error *err)
{
    return with_generation(rank, base_body, err);
}

/* One step that is saved; then some ranks get further than others. A rank that cannot write keeps what it has. */
static pd_status stumble(struct generation *g, uint64_t step, bool trusts, struct pd_error *err)
{
    struct pd_group *group = g->rank->group;
    pd_status st = g->is_there && trusts ? generation_read(g, err) : PD_OK;
    if (st != PD_BUG && generation_write(g, step, err) != PD_OK) st = err->status;
    st = pd_group_agree(group, st, err);
    if (st == PD_OK) st = generation_save(g, err);
    struct pd_error later;
    if (st == PD_OK) (void)!pd_store_prune(g->rank->store, &later);
    for (uint32_t i = 0; st != PD_PEER_LOST && i < group->rank % 3; i++)
        if (generation_write(g, step + 1 + i, &later) != PD_OK) break;
    return st;
}

static pd_status meet_body(struct generation *g, struct pd_error *err)
{
    struct cluster_rank *rank = g->rank;
    struct campaign_run *run = rank->context;
    const struct misfortune *m = run->misfortune;
    struct pd_disk_fault fault = misfortune_fault(m);
    uint64_t step = LAST_BASE_STEP + 1;
    PD_TRY(generation_step(g, step, err));
    if (rank->group->rank == 0) pd_simulated_disk_set_fault(rank->cluster->disk, &fault);
    PD_TRY(pd_group_barrier(rank->group, err));
    struct pd_error why = {0};
    pd_status st = stumble(g, step + 1, !misfortune_lies(m), &why);
    if (rank->group->rank == 0) run->saved = st;
    if (st == PD_BUG) {
        *err = why;
        return st;
    }
    PD_TRY(pd_group_barrier(rank->group, err));
    PD_TRY(campaign_disarm(rank, run, err));
    if (m->kind == PD_DISK_FAULT_POWER) return PD_OK;
    if (!misfortune_lies(m)) PD_TRY(pd_group_agree(rank->group, g->is_there ? generation_read(g, err) : PD_OK, err));
    for (step = HEALED_STEP - 1; step <= HEALED_STEP; step++) {
        PD_TRY(pd_group_agree(rank->group, generation_write(g, step, err), err));
        PD_TRY(generation_save(g, err));
        PD_TRY(pd_store_prune(rank->store, err));
    }
    PD_TRY(cluster_load(rank, pd_store_entry_at(rank->store, 0), err));
    return generation_kill_all(rank, err);
}

static pd_status meet_script(struct cluster_rank *rank, struct pd_error *err)
{
    return with_generation(rank, meet_body, err);
}

/* ---- what fresh launches find ---- */

static pd_status expect_bounded_pool(struct cluster_rank *rank, struct pd_error *err)
{
    struct pd_listing listing = {0};
    char path[128];
    uint32_t idle = 0, in_use = 0;
    snprintf(path, sizeof path, "%s/pool-%llu", CLUSTER_ROOT, (unsigned long long)pd_store_fence(rank->store));
    PD_TRY(pd_vfs_list(rank->vfs, path, &listing, err));
    for (uint32_t i = 0; i < listing.count; i++) {
        idle += strncmp(listing.names[i], "recycle-", 8) == 0;
        in_use += strncmp(listing.names[i], "generation-", 11) == 0;
    }
    pd_listing_deinit(&listing);
    uint32_t here = rank->cluster->shared ? rank->group->size : rank->group->size / rank->cluster->hosts;
    if (idle > FREE_FILES_MAX * here || in_use) PD_FAIL(err, PD_BUG, "%u files are free and %u in use", idle, in_use);
    return PD_OK;
}

static pd_status load_all(struct cluster_rank *rank, uint32_t count_max, struct pd_error *err)
{
    for (uint32_t i = 0; i < pd_store_count(rank->store) && i < count_max; i++)
        PD_TRY(cluster_load(rank, pd_store_entry_at(rank->store, i), err));
    return PD_OK;
}

/* Goes on from there: steps 101 and 102 are committed, 103 is begun when the kill comes. */
static pd_status look_body(struct generation *g, struct pd_error *err)
{
    struct cluster_rank *rank = g->rank;
    struct campaign_check *check = rank->context;
    uint64_t step = 0;
    uint32_t damaged = 0;
    PD_TRY(pd_group_agree(rank->group, campaign_expect_tidy(rank, err), err));
    PD_TRY(pd_group_agree(rank->group, expect_bounded_pool(rank, err), err));
    PD_TRY(cluster_load_newest(rank, &step, &damaged, err));
    if (rank->group->rank == 0) check->found = step;
    if (step < check->least || step > check->most)
        PD_FAIL(err, PD_BUG, "step %llu loads, expected %llu to %llu", (unsigned long long)step,
                (unsigned long long)check->least, (unsigned long long)check->most);
    if (damaged && !check->may_be_damaged) PD_FAIL(err, PD_BUG, "%u checkpoints were damaged by an honest disk", damaged);
    if (!check->may_be_damaged) PD_TRY(pd_group_agree(rank->group, campaign_expect_indexes(rank, err), err));
    if (!check->may_be_damaged) PD_TRY(load_all(rank, UINT32_MAX, err));
    for (uint64_t next = step + 100; next < step + 102; next++) {
        PD_TRY(generation_step(g, next, err));
        PD_TRY(load_all(rank, check->may_be_damaged ? 1 : UINT32_MAX, err));
    }
    PD_TRY(pd_group_agree(rank->group, generation_write(g, step + 102, err), err));
    PD_TRY(load_all(rank, 2, err));
    return generation_kill_all(rank, err);
}

static pd_status look_script(struct cluster_rank *rank, struct pd_error *err)
{
    return with_generation(rank, look_body, err);
}

/* Once the power has failed over what the last launch has done. Consumes `disk`. */
static pd_status look_after_power(const struct cluster *cluster, struct pd_simulated_disk *disk, uint64_t seed,
                                  struct campaign_check *check, struct pd_error *err)
{
    struct cluster later = *cluster;
    struct pd_store_options options = generation_options();
    later.disk = disk;
    pd_simulated_disk_crash(disk, PD_DISK_ALL_HOSTS, seed);
    pd_status st = cluster_launch_with(&later, &options, look_script, check, err);
    cluster_free(&later);
    return st == PD_OK ? PD_OK : pd_error_context(err, st, "after the power loss that followed");
}

/* After the misfortune, and after a power loss over what the launch that looked has done. Consumes `disk`. */
static pd_status look_twice(const struct cluster *cluster, struct pd_simulated_disk *disk, const struct misfortune *m,
                            struct campaign_check *check, struct pd_error *err)
{
    struct cluster later = *cluster;
    struct pd_store_options options = generation_options();
    later.disk = disk;
    campaign_strike(&later, disk, m);
    pd_status st = cluster_launch_with(&later, &options, look_script, check, err);
    if (st != PD_OK) {
        cluster_free(&later);
        return st;
    }
    check->least = check->most = check->found + 101;
    return look_after_power(cluster, disk, m->crash_seed + 1, check, err);
}

/* The launch that met the misfortune has gone on over the files that it touched. */
static pd_status look_at_healed(struct cluster *cluster, const struct misfortune *m, struct pd_error *err)
{
    struct campaign_check healed = {.least = HEALED_STEP, .most = HEALED_STEP};
    struct pd_simulated_disk *disk = cluster->disk;
    if (m->kind == PD_DISK_FAULT_POWER || misfortune_lies(m)) return PD_OK;
    cluster->disk = NULL;
    return look_after_power(cluster, disk, m->crash_seed + 2, &healed, err);
}

static pd_status try_generation(const struct cluster *base, const struct misfortune *m, bool *ret_fired,
                                struct pd_error *err)
{
    struct cluster cluster = *base;
    struct campaign_run run = {.misfortune = m};
    struct pd_store_options options = generation_options();
    PD_TRY(pd_simulated_disk_clone(base->disk, &cluster.disk, err));
    struct campaign_check check = {
        .least = LAST_BASE_STEP + 1, .most = LAST_BASE_STEP + 2, .may_be_damaged = misfortune_lies(m)};
    pd_status st = cluster_launch_with(&cluster, &options, meet_script, &run, err);
    if (st != PD_OK && run.saved != st) st = pd_error_context(err, st, "the same launch");
    if (run.saved == PD_OK && !misfortune_lies(m)) check.least = LAST_BASE_STEP + 2;
    *ret_fired = run.fired > 0;
    if (st == PD_OK) {
        st = look_twice(&cluster, run.after, m, &check, err);
        run.after = NULL;
    }
    if (st == PD_OK && m->crash_host != base->hosts) st = look_at_healed(&cluster, m, err);
    if (run.after) pd_simulated_disk_free(run.after);
    cluster_free(&cluster);
    return st;
}

static void campaign_on(const struct world *world, uint64_t stride)
{
    struct campaign campaign = {.name = "generations", .try = try_generation, .stride = test_stride(stride), .crashes = 2};
    struct pd_store_options options = generation_options();
    struct cluster cluster;
    struct pd_error err = {0};
    cr_assert_eq(cluster_new_lacking(&cluster, world->ranks, world->hosts, world->shared, world->lacks, &err), PD_OK, "%s",
                 err.message);
    cr_assert_eq(cluster_launch_with(&cluster, &options, base_script, NULL, &err), PD_OK, "%s", err.message);
    sweep(&campaign, world, &cluster);
    cluster_free(&cluster);
    cr_log_info("generations, %s: %llu misfortunes", world->name, (unsigned long long)campaign.tried);
}

#define CAMPAIGN(name, world, stride)        \
    Test(store_generations, name)            \
    {                                        \
        campaign_on(&worlds[world], stride); \
    }

CAMPAIGN(one_rank, ONE_RANK, 13)
CAMPAIGN(one_rank_without_links, ONE_RANK_NO_LINKS, 41)
CAMPAIGN(local_disks, LOCAL_DISKS, 286)
CAMPAIGN(shared_disk, SHARED_DISK, 286)
CAMPAIGN(local_disks_without_links, LOCAL_NO_LINKS, 598)
CAMPAIGN(shared_disk_without_links, SHARED_NO_LINKS, 598)
