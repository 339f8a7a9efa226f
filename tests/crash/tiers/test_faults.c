/* Every operation of a save and of the copies that follow it goes wrong once, or from then on; afterwards power goes, on all
 * hosts, on one or on none, or a host is replaced by an empty one: a fresh launch finds a step that is whole, and what it
 * was promised.
 *
 * The default run samples; PERDURE_TEST_SCALE=10 tries every operation. PERDURE_CAMPAIGN_SEED sets the seed; a failure
 * prints it. */
#include "ckpt/base/log.h"
#include "tests/helpers/tier_room.h"

#include <criterion/criterion.h>
#include <errno.h>

#define HOSTS 2u
#define BEFORE 4u /* steps that are in every tier before the misfortune */

static uint64_t number_of(const char *variable)
{
    const char *text = getenv(variable);
    uint64_t value = text ? strtoull(text, NULL, 10) : 1;
    return value ? value : 1;
}

static const struct {
    enum pd_disk_fault_kind kind;
    int sys_errno;
    bool persistent;
} kinds[] = {
    {PD_DISK_FAULT_ERROR, EIO, false},        {PD_DISK_FAULT_ERROR, EIO, true},
    {PD_DISK_FAULT_ERROR, ENOSPC, false},     {PD_DISK_FAULT_ERROR, ENOSPC, true},
    {PD_DISK_FAULT_ERROR, ESTALE, true},      {PD_DISK_FAULT_ERROR_APPLIED, EIO, false},
    {PD_DISK_FAULT_ERROR_APPLIED, EIO, true}, {PD_DISK_FAULT_SHORT, 0, true},
    {PD_DISK_FAULT_TORN, 0, false},           {PD_DISK_FAULT_LOST, 0, false},
    {PD_DISK_FAULT_MISDIRECTED, 0, false},    {PD_DISK_FAULT_LOST_SYNC, 0, false},
    {PD_DISK_FAULT_LOST_SYNC, 0, true},       {PD_DISK_FAULT_FLIP, 0, false},
    {PD_DISK_FAULT_POWER, 0, false},
};
#define KIND_COUNT (sizeof kinds / sizeof *kinds)

enum aftermath { NOBODY_CRASHES, ALL_CRASH, ONE_CRASHES, ONE_IS_REPLACED, AFTERMATHS };

struct misfortune {
    uint32_t kind;
    uint64_t nth, seed;
    enum aftermath aftermath;
};

static bool lies(const struct misfortune *m)
{
    const enum pd_disk_fault_kind kind = kinds[m->kind].kind;
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
    for (uint64_t step = 1; step < BEFORE; step++) {
        PD_TRY(tier_save(rank, step, NULL, err));
        PD_TRY(tier_finish(rank, step, -1, err));
    }
    return PD_OK;
}

static pd_status disarm(struct tier_rank *rank, struct run *run, struct pd_error *err)
{
    struct pd_simulated_disk *disk = rank->room.room->disk;
    pd_status st = PD_OK;
    PD_TRY(pd_group_barrier(&rank->world, err));
    if (rank->world.rank == 0) {
        run->fired = pd_simulated_disk_fired(disk);
        pd_simulated_disk_set_fault(disk, NULL);
        st = pd_simulated_disk_clone(disk, &run->after, err);
    }
    return pd_group_agree(&rank->world, st, err);
}

static pd_status meet(struct tier_rank *rank, struct pd_error *err)
{
    struct run *run = rank->context;
    const struct misfortune *m = run->misfortune;
    const struct pd_disk_fault fault = {.kind = kinds[m->kind].kind,
                                        .sys_errno = kinds[m->kind].sys_errno,
                                        .nth = m->nth,
                                        .persistent = kinds[m->kind].persistent};
    struct pd_error why = {0};
    uint32_t tier = 99;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, BEFORE, NULL, err));
    PD_TRY(tier_finish(rank, BEFORE, -1, err));
    PD_TRY(pd_group_barrier(&rank->world, err));
    if (rank->world.rank == 0) pd_simulated_disk_set_fault(rank->room.room->disk, &fault);
    PD_TRY(pd_group_barrier(&rank->world, err));
    pd_status saved = tier_save(rank, BEFORE + 1, &tier, &why), finished = PD_IO;
    if (!saved) finished = tier_finish(rank, BEFORE + 1, -1, &why);
    if (rank->world.rank == 0) run->saved = saved, run->finished = finished, run->tier = tier;
    PD_TRY(disarm(rank, run, err));
    if (fault.kind == PD_DISK_FAULT_POWER) return PD_OK;
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
    const bool lost_power = kinds[m->kind].kind == PD_DISK_FAULT_POWER;
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
    const uint64_t seed = number_of("PERDURE_CAMPAIGN_SEED");
    struct pd_error err = {0};
    struct room room;
    uint64_t tried = 0;
    pd_log_set_sink(quiet, NULL);
    if (number_of("PERDURE_TEST_SCALE") >= 10) stride = 1;
    cr_assert_eq(tier_room_new(&room, 4, HOSTS, 0, 0, 0, &err), PD_OK, "%s", err.message);
    cr_assert_eq(tier_run(&room, &options, save_before, NULL, &err), PD_OK, "%s", err.message);
    for (uint32_t k = 0; k < KIND_COUNT; k++) {
        struct misfortune m = {.kind = k, .aftermath = aftermath};
        bool fired = true;
        for (m.nth = 1 + room_mix(seed + k) % stride; fired; m.nth += stride, tried++) {
            m.seed = room_mix(seed * 7919 + m.nth * 131 + k);
            pd_status st = try_one(&room, &m, &fired, &err);
            cr_assert_eq(st, PD_OK, "%s:%d:%d at %llu, aftermath %d (seed %llu): %s", pd_disk_fault_kind_name(kinds[k].kind),
                         kinds[k].sys_errno, kinds[k].persistent, (unsigned long long)m.nth, (int)aftermath,
                         (unsigned long long)seed, err.message);
        }
    }
    room_free(&room);
    cr_log_info("tiers, aftermath %d: %llu misfortunes", (int)aftermath, (unsigned long long)tried);
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
