/* Every operation of a save and of the copies that follow it goes wrong once, or from then on; afterwards power goes, on all
 * hosts, on one or on none, or a host is replaced by an empty one: a fresh launch finds a step that is whole, and what it
 * was promised. */
#include "ckpt/base/log.h"
#include "tests/helpers/tier_sweep.h"

#define HOSTS 2u
#define BEFORE 4u /* steps that are in every tier before the misfortune */

enum aftermath { NOBODY_CRASHES, ALL_CRASH, ONE_CRASHES, ONE_IS_REPLACED, AFTERMATHS };

static bool lies(const struct misfortune *m)
{
    const enum pd_disk_fault_kind kind = kind_of(m);
    return kind == PD_DISK_FAULT_TORN || kind == PD_DISK_FAULT_LOST || kind == PD_DISK_FAULT_MISDIRECTED ||
           kind == PD_DISK_FAULT_LOST_SYNC;
}

static struct pd_tiers_options tiers_of(bool has_net)
{
    return (struct pd_tiers_options){.tiers = {{.dir = "/shm/c", .every = 1, .keep_last = 2},
                                               {.dir = "/disk", .every = 1, .keep_last = 2},
                                               {.dir = "/net/c", .every = 1, .keep_last = 2}},
                                     .count = has_net ? 3 : 2,
                                     .quarantine_bytes_max = 1 << 20};
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
    pd_status saved = tier_save(rank, BEFORE + 1, &tier, &why), finished = PD_IO;
    if (!saved) finished = tier_finish(rank, BEFORE + 1, -1, &why);
    if (rank->world.rank == 0) run->saved = saved, run->finished = finished, run->tier = tier;
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

static pd_status look_after(const struct room *room, struct run *run, const struct pd_tiers_options *options,
                            struct pd_error *err)
{
    const struct misfortune *m = run->misfortune;
    struct room later = *room;
    struct check check = {BEFORE, BEFORE + 1};
    const bool survives_reboot = run->finished == PD_OK || (run->saved == PD_OK && run->tier > 0);
    const bool survives_host = run->finished == PD_OK || (run->saved == PD_OK && run->tier > 1);
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
    room_free(&later);
    return st;
}

static pd_status try_one(const struct room *base, const struct misfortune *m, bool *ret_fired, struct pd_error *err)
{
    const struct pd_tiers_options options = tiers_of(m->aftermath == ONE_IS_REPLACED);
    struct room room = *base;
    struct run run = {.misfortune = m};
    PD_TRY(pd_simulated_disk_clone(base->disk, &room.disk, err));
    pd_status st = tier_run(&room, &options, meet, &run, err);
    *ret_fired = run.fired > 0;
    if (!st) st = look_after(&room, &run, &options, err);
    if (run.after) pd_simulated_disk_free(run.after);
    room_free(&room);
    return st;
}

static void quiet(void *context, const char *line, size_t bytes)
{
    (void)context, (void)line, (void)bytes;
}

static void campaign(enum aftermath aftermath, uint64_t stride)
{
    const struct pd_tiers_options options = tiers_of(aftermath == ONE_IS_REPLACED);
    struct pd_error err = {0};
    struct room room;
    pd_log_set_sink(quiet, NULL);
    cr_assert_eq(tier_room_new(&room, 4, HOSTS, 0, 0, 0, &err), PD_OK, "%s", err.message);
    cr_assert_eq(tier_run(&room, &options, save_before, NULL, &err), PD_OK, "%s", err.message);
    tier_sweep(&room, "tiers", (int)aftermath, stride, false, try_one);
}

Test(tier_faults, processes_die)
{
    campaign(NOBODY_CRASHES, 90);
}

Test(tier_faults, all_hosts_lose_power)
{
    campaign(ALL_CRASH, 60);
}

Test(tier_faults, one_host_loses_power)
{
    campaign(ONE_CRASHES, 90);
}

Test(tier_faults, a_host_and_its_tiers_are_gone)
{
    campaign(ONE_IS_REPLACED, 90);
}
