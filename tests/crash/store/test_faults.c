/* Every operation of a save, of a removal and of an open goes wrong once, or from then on; afterwards a fresh launch finds
 * the previous checkpoint or the new one, complete, and the new one when it had been reported sealed.
 *
 * The default run tries every operation of one rank's save and samples the others; PERDURE_TEST_SCALE=10 tries every
 * operation of every save, and of one rank's opens. PERDURE_CAMPAIGN_SEED sets the seed; a failure prints it.
 */
#include "ckpt/base/log.h"
#include "tests/helpers/store_campaign.h"

#include <criterion/criterion.h>

static uint64_t scale(void)
{
    const char *text = getenv("PERDURE_TEST_SCALE");
    uint64_t value = text ? strtoull(text, NULL, 10) : 1;
    return value ? value : 1;
}

static uint64_t campaign_seed(void)
{
    const char *text = getenv("PERDURE_CAMPAIGN_SEED");
    return text ? strtoull(text, NULL, 10) : 1;
}

struct world {
    uint32_t ranks, hosts;
    bool shared;
    const char *name;
};
static const struct world worlds[] = {
    {1, 1, false, "one rank"},
    {4, 2, false, "four ranks, two hosts, local disks"},
    {4, 2, true, "four ranks, two hosts, one disk"},
};
#define WORLD_COUNT (sizeof worlds / sizeof *worlds)

static const struct {
    enum pd_disk_fault_kind kind;
    int sys_errno;
    bool persistent;
} kinds[] = {
    {PD_DISK_FAULT_ERROR, EIO, false},        {PD_DISK_FAULT_ERROR, EIO, true},
    {PD_DISK_FAULT_ERROR, ENOSPC, false},     {PD_DISK_FAULT_ERROR, ENOSPC, true},
    {PD_DISK_FAULT_ERROR, EDQUOT, false},     {PD_DISK_FAULT_ERROR, EDQUOT, true},
    {PD_DISK_FAULT_ERROR, ESTALE, true},      {PD_DISK_FAULT_ERROR_APPLIED, EIO, false},
    {PD_DISK_FAULT_ERROR_APPLIED, EIO, true}, {PD_DISK_FAULT_SHORT, 0, false},
    {PD_DISK_FAULT_SHORT, 0, true},           {PD_DISK_FAULT_TORN, 0, false},
    {PD_DISK_FAULT_LOST, 0, false},           {PD_DISK_FAULT_MISDIRECTED, 0, false},
    {PD_DISK_FAULT_LOST_SYNC, 0, false},      {PD_DISK_FAULT_LOST_SYNC, 0, true},
    {PD_DISK_FAULT_POWER, 0, false},
};
#define KIND_COUNT (sizeof kinds / sizeof *kinds)

typedef pd_status try_one(const struct room *room, const struct misfortune *m, bool *ret_fired, struct pd_error *err);

struct campaign {
    const char *name;
    try_one *try;
    uint64_t stride;  /* of operations, in a run of scale 1 */
    uint64_t crashes; /* seeds an operation, beside the kill without a crash */
    uint64_t tried;
};

static void report(const struct campaign *campaign, const struct world *world, const struct misfortune *m,
                   const struct pd_error *err)
{
    char text[128];
    misfortune_text(m, text, sizeof text);
    cr_assert_fail("%s, %s: %s (seed %llu): %s", campaign->name, world->name, text, (unsigned long long)campaign_seed(),
                   err->message);
}

/* True while the fault still struck something. */
static bool try_crashes(struct campaign *campaign, const struct world *world, const struct room *room, struct misfortune m)
{
    bool fired = false;
    for (uint64_t c = 0; c <= campaign->crashes; c++) {
        struct pd_error err = {0};
        uint64_t dice = room_mix(campaign_seed() * 7919 + m.nth * 131 + m.kind * 17 + c);
        m.crash_seed = dice;
        m.crash_host = PD_DISK_ALL_HOSTS;
        if (c == 0) m.crash_host = world->hosts; /* nobody: only killed */
        if (c > 0 && world->hosts > 1 && c % 2 == 0) m.crash_host = (uint32_t)(dice % world->hosts);
        if (m.kind == PD_DISK_FAULT_POWER) m.crash_host = PD_DISK_ALL_HOSTS;
        if (campaign->try(room, &m, &fired, &err) != PD_OK) report(campaign, world, &m, &err);
        campaign->tried++;
        if (!fired) return false;
    }
    return true;
}

static void sweep(struct campaign *campaign, const struct world *world, const struct room *room)
{
    uint64_t stride = campaign->stride;
    for (size_t k = 0; k < KIND_COUNT; k++) {
        struct misfortune m = {.kind = kinds[k].kind, .sys_errno = kinds[k].sys_errno, .persistent = kinds[k].persistent};
        uint64_t first = 1 + room_mix(campaign_seed() + k) % stride;
        for (m.nth = first; try_crashes(campaign, world, room, m); m.nth += stride)
            ;
    }
}

static void base_of(const struct world *world, struct room *room)
{
    struct pd_error err = {0};
    cr_assert_eq(pd_log_configure("error", &err), PD_OK);
    cr_assert_eq(room_new(room, world->ranks, world->hosts, world->shared, &err), PD_OK, "%s", err.message);
    cr_assert_eq(room_launch(room, campaign_base, NULL, &err), PD_OK, "%s", err.message);
}

static void save_campaign(const struct world *world)
{
    struct campaign campaign = {.name = "save", .try = campaign_try_save, .stride = world->ranks > 1 ? 20 : 1, .crashes = 2};
    if (scale() >= 10) {
        campaign.stride = 1;
        campaign.crashes = world->ranks > 1 ? 2 : 6;
    }
    struct room room;
    base_of(world, &room);
    sweep(&campaign, world, &room);
    room_free(&room);
    cr_log_info("save, %s: %llu misfortunes", world->name, (unsigned long long)campaign.tried);
}

static void open_campaign(const struct world *world)
{
    struct campaign campaign = {.name = "open", .try = campaign_try_open, .stride = world->ranks > 1 ? 40 : 5, .crashes = 1};
    struct room room, wounded;
    struct pd_error err = {0};
    base_of(world, &room);
    uint64_t wounds = 2;
    if (scale() >= 10) {
        campaign.stride = world->ranks > 1 ? 7 : 1;
        wounds = world->ranks > 1 ? 6 : 10;
    }
    for (uint64_t w = 0; w < wounds; w++) {
        uint64_t dice = room_mix(campaign_seed() * 31 + w);
        uint64_t nth = 5 + dice % (40 * world->ranks);
        cr_assert_eq(campaign_wound(&room, nth, dice, &wounded, &err), PD_OK, "%s", err.message);
        sweep(&campaign, world, &wounded);
        room_free(&wounded);
    }
    room_free(&room);
    cr_log_info("open, %s: %llu misfortunes", world->name, (unsigned long long)campaign.tried);
}

Test(store_faults, save_one_rank)
{
    save_campaign(&worlds[0]);
}

Test(store_faults, save_local_disks)
{
    save_campaign(&worlds[1]);
}

Test(store_faults, save_shared_disk)
{
    save_campaign(&worlds[2]);
}

Test(store_faults, open_one_rank)
{
    open_campaign(&worlds[0]);
}

Test(store_faults, open_local_disks)
{
    open_campaign(&worlds[1]);
}

Test(store_faults, open_shared_disk)
{
    open_campaign(&worlds[2]);
}
