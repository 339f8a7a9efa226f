/* Every operation of a save and of the copies that follow it goes wrong once, or from then on; afterwards power goes, on all
 * hosts, on one or on none, or a host is replaced by an empty one: a fresh launch finds a step that is whole, and what it
 * was promised. Saves come from memory into memory, or from files that hold the state: of each host or
 * of all, with links or without, and then ranks stop at different generations. */
#include "tests/helpers/tier_sweep.h"

#define HOSTS 2u
#define BEFORE 4u /* steps that are in every tier before the misfortune */

enum aftermath { NOBODY_CRASHES, ALL_CRASH, ONE_CRASHES, ONE_IS_REPLACED, AFTERMATHS, ANY = AFTERMATHS };

static bool lies(const struct misfortune *m)
{
    const enum pd_disk_fault_kind kind = kind_of(m);
    return kind == PD_DISK_FAULT_TORN || kind == PD_DISK_FAULT_LOST || kind == PD_DISK_FAULT_MISDIRECTED ||
           kind == PD_DISK_FAULT_LOST_SYNC;
}

/* Of its tiers the first that a reboot, and the loss of a host, leaves. */
struct shape {
    const char *name, *dirs[3];
    bool has_files;
    unsigned lacks;
    uint32_t reboot_tier, host_tier;
};
static const struct shape shapes[] = {
    {"state in memory", {"/shm/c", "/disk", "/net/c"}, false, 0, 1, 2},
    {"state in files", {"/disk", "/net/c"}, true, 0, 0, 1},
    {"state in files of all hosts", {"/net/a", "/net/b"}, true, 0, 0, 0},
    {"state in files, no links", {"/disk", "/net/c"}, true, PD_DISK_NO_LINKS, 0, 1},
};
enum { IN_MEMORY, IN_FILES, ON_A_SHARED_DISK, WITHOUT_LINKS };

static const struct shape *shape; /* of the campaign that runs */

static struct pd_tiers_options tiers_of(enum aftermath aftermath)
{
    struct pd_tiers_options options = {.quarantine_bytes_max = 1 << 20, .generations = shape->has_files};
    for (uint32_t i = 0; i < 3 && shape->dirs[i]; i++)
        options.tiers[options.count++] = (struct pd_tier_options){.dir = shape->dirs[i], .every = 1, .keep_last = 2};
    if (shape == &shapes[IN_MEMORY] && aftermath != ONE_IS_REPLACED) options.count--;
    return options;
}

/* ---- the run that meets it ---- */

struct run {
    const struct misfortune *misfortune;
    pd_status saved, finished, later;
    uint32_t tier; /* where the save went */
    uint64_t fired;
    struct pd_simulated_disk *after; /* as it lay when the copies had ended */
};

static pd_status save_before(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(pd_tiers_start(rank->tiers, err));
    return tier_save_to(rank, 1, BEFORE - 1, err);
}

static pd_status meet(struct tier_rank *rank, struct pd_error *err)
{
    struct run *run = rank->context;
    const struct misfortune *m = run->misfortune;
    struct pd_error why = {0};
    uint32_t tier = 99;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save_to(rank, BEFORE, BEFORE, err));
    PD_TRY(tier_arm(rank, m, err));
    rank->distrusts = lies(m) || kind_of(m) == PD_DISK_FAULT_FLIP;
    pd_status saved = tier_save(rank, BEFORE + 1, &tier, &why), finished = PD_IO;
    if (!saved) finished = tier_finish(rank, BEFORE + 1, -1, &why);
    if (rank->world.rank == 0) run->saved = saved, run->finished = finished, run->tier = tier;
    tier_run_ahead(rank, BEFORE + 10);
    if (saved == PD_BUG || finished == PD_BUG) return pd_error_context(err, PD_BUG, "%s", why.message);
    PD_TRY(tier_disarm(rank, &run->fired, &run->after, err));
    if (kind_of(m) == PD_DISK_FAULT_POWER) return PD_OK;
    /* The run goes on, and everything works again. */
    PD_TRY(tier_save(rank, BEFORE + 2, NULL, err));
    return pd_error_context(err, tier_finish(rank, BEFORE + 2, -1, err), "the copies after it");
}

/* ---- what a fresh launch finds ---- */

struct check {
    uint64_t least, most;
};

static pd_status look(struct tier_rank *rank, struct pd_error *err)
{
    const struct check *check = rank->context;
    uint32_t tier;
    uint64_t step;
    PD_TRY(tier_load_newest(rank, &tier, &step, err));
    if (step < check->least || step > check->most)
        PD_FAIL(err, PD_BUG, "step %llu loads from tier %u, expected %llu to %llu", (unsigned long long)step, tier,
                (unsigned long long)check->least, (unsigned long long)check->most);
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 100, NULL, err));
    return tier_finish(rank, 100, -1, err);
}

static pd_status look_after(const struct cluster *cluster, struct run *run, const struct pd_tiers_options *options,
                            struct pd_error *err)
{
    const struct misfortune *m = run->misfortune;
    struct cluster later = *cluster;
    struct check check = {BEFORE, BEFORE + 1};
    const bool survives_reboot = run->finished == PD_OK || (run->saved == PD_OK && run->tier >= shape->reboot_tier);
    const bool survives_host = run->finished == PD_OK || (run->saved == PD_OK && run->tier >= shape->host_tier);
    bool is_promised = run->saved == PD_OK;
    if (m->aftermath == ALL_CRASH || m->aftermath == ONE_CRASHES) is_promised = survives_reboot;
    if (m->aftermath == ONE_IS_REPLACED) is_promised = survives_host;
    if (is_promised && !lies(m)) check.least = BEFORE + 1;
    later.disk = run->after;
    run->after = NULL;
    const bool lost_power = kind_of(m) == PD_DISK_FAULT_POWER;
    if (m->aftermath == ALL_CRASH || lost_power) pd_simulated_disk_crash(later.disk, PD_DISK_ALL_HOSTS, m->seed);
    if (m->aftermath == ONE_CRASHES && !lost_power) pd_simulated_disk_crash(later.disk, m->seed % HOSTS, m->seed);
    for (uint32_t host = 0; host < HOSTS; host++)
        if (!lost_power && m->aftermath != ALL_CRASH) pd_simulated_disk_kill(later.disk, host);
    if (lost_power && m->aftermath != ONE_IS_REPLACED && !survives_reboot) check.least = BEFORE;
    pd_status st = tier_run_on(&later, m->aftermath == ONE_IS_REPLACED ? 1 : 0, options, look, &check, err);
    cluster_free(&later);
    return st;
}

static pd_status try_one(const struct cluster *base, const struct misfortune *drawn, bool *ret_fired, struct pd_error *err)
{
    struct misfortune own = *drawn;
    const struct misfortune *m = &own;
    if (own.aftermath == ANY) own.aftermath = (int)(own.seed / HOSTS % AFTERMATHS);
    const struct pd_tiers_options options = tiers_of((enum aftermath)m->aftermath);
    struct cluster cluster = *base;
    struct run run = {.misfortune = m};
    PD_TRY(pd_simulated_disk_clone(base->disk, &cluster.disk, err));
    pd_status st = tier_run(&cluster, &options, meet, &run, err);
    *ret_fired = run.fired > 0;
    if (!st) st = look_after(&cluster, &run, &options, err);
    if (run.after) pd_simulated_disk_free(run.after);
    cluster_free(&cluster);
    return st;
}

static void campaign_on(int number, enum aftermath aftermath, uint64_t stride)
{
    shape = &shapes[number];
    const struct pd_tiers_options options = tiers_of(aftermath);
    struct pd_error err = {0};
    struct cluster cluster;
    tier_be_quiet();
    cr_assert_eq(tier_cluster_new_lacking(&cluster, 4, HOSTS, shape->lacks, &err), PD_OK, "%s", err.message);
    cr_assert_eq(tier_run(&cluster, &options, save_before, NULL, &err), PD_OK, "%s", err.message);
    tier_sweep(&cluster, shape->name, (int)aftermath, stride, false, try_one);
}

Test(tier_faults, processes_die)
{
    campaign_on(IN_MEMORY, NOBODY_CRASHES, 150);
}

Test(tier_faults, all_hosts_lose_power)
{
    campaign_on(IN_MEMORY, ALL_CRASH, 100);
}

Test(tier_faults, one_host_loses_power)
{
    campaign_on(IN_MEMORY, ONE_CRASHES, 150);
}

Test(tier_faults, a_host_and_its_tiers_are_gone)
{
    campaign_on(IN_MEMORY, ONE_IS_REPLACED, 150);
}

/* A short run draws what becomes of the hosts. */
static void campaigns_on(int number, uint64_t stride)
{
    if (test_scale() < 10) campaign_on(number, ANY, stride);
    for (int aftermath = 0; test_scale() >= 10 && aftermath < AFTERMATHS; aftermath++)
        campaign_on(number, (enum aftermath)aftermath, stride);
}

Test(tier_faults, files)
{
    campaigns_on(IN_FILES, 250);
}

Test(tier_faults, files_on_a_shared_disk)
{
    campaigns_on(ON_A_SHARED_DISK, 250);
}

Test(tier_faults, files_without_links)
{
    campaigns_on(WITHOUT_LINKS, 250);
}
