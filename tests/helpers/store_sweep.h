/* Every operation of something goes wrong, once or from then on, in every way a disk can go wrong.
 *
 * PERDURE_TEST_SCALE=10 tries every operation where a shorter run samples; PERDURE_CAMPAIGN_SEED sets the seed, and a
 * failure prints it. */
#pragma once

#include "tests/helpers/scale.h"
#include "tests/helpers/store_campaign.h"

#include <criterion/criterion.h>

static inline uint64_t campaign_seed(void)
{
    const char *text = getenv("PERDURE_CAMPAIGN_SEED");
    return text ? strtoull(text, NULL, 10) : 1;
}

struct world {
    uint32_t ranks, hosts;
    bool shared;
    const char *name;
    unsigned lacks; /* PD_DISK_... */
};
enum {
    ONE_RANK,
    LOCAL_DISKS,
    SHARED_DISK,
    ONE_RANK_NO_LINKS,
    LOCAL_NO_LINKS,
    SHARED_NO_LINKS,
};
static const struct world worlds[] = {
    [ONE_RANK] = {1, 1, false, "one rank", 0},
    [LOCAL_DISKS] = {4, 2, false, "four ranks, two hosts, local disks", 0},
    [SHARED_DISK] = {4, 2, true, "four ranks, two hosts, one disk", 0},
    [ONE_RANK_NO_LINKS] = {1, 1, false, "one rank without links", PD_DISK_NO_LINKS},
    [LOCAL_NO_LINKS] = {4, 2, false, "four ranks, two hosts, local disks without links", PD_DISK_NO_LINKS},
    [SHARED_NO_LINKS] = {4, 2, true, "four ranks, two hosts, one disk without links", PD_DISK_NO_LINKS},
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

typedef pd_status try_one(const struct cluster *cluster, const struct misfortune *m, bool *ret_fired, struct pd_error *err);

struct campaign {
    const char *name;
    try_one *try;
    uint64_t stride;  /* of operations, in a run of scale 1 */
    uint64_t crashes; /* seeds an operation, beside the kill without a crash */
    uint64_t tried;
};

static inline void sweep_report(const struct campaign *campaign, const struct world *world, const struct misfortune *m,
                                const struct pd_error *err)
{
    char text[128];
    misfortune_text(m, text, sizeof text);
    cr_assert_fail("%s, %s: %s (seed %llu): %s", campaign->name, world->name, text, (unsigned long long)campaign_seed(),
                   err->message);
}

/* True while the fault still struck something. */
static inline bool sweep_operation(struct campaign *campaign, const struct world *world, const struct cluster *cluster,
                                   struct misfortune m)
{
    bool fired = false;
    for (uint64_t c = 0; c <= campaign->crashes; c++) {
        struct pd_error err = {0};
        uint64_t dice = cluster_mix(campaign_seed() * 7919 + m.nth * 131 + m.kind * 17 + c);
        m.crash_seed = dice;
        m.crash_host = PD_DISK_ALL_HOSTS;
        if (c == 0) m.crash_host = world->hosts; /* nobody: only killed */
        if (c > 0 && world->hosts > 1 && c % 2 == 0) m.crash_host = (uint32_t)(dice % world->hosts);
        if (m.kind == PD_DISK_FAULT_POWER) m.crash_host = PD_DISK_ALL_HOSTS;
        if (campaign->try(cluster, &m, &fired, &err) != PD_OK) sweep_report(campaign, world, &m, &err);
        campaign->tried++;
        if (!fired) return false;
    }
    return true;
}

static inline void sweep(struct campaign *campaign, const struct world *world, const struct cluster *cluster)
{
    uint64_t stride = campaign->stride;
    for (size_t k = 0; k < KIND_COUNT; k++) {
        struct misfortune m = {.kind = kinds[k].kind, .sys_errno = kinds[k].sys_errno, .persistent = kinds[k].persistent};
        uint64_t first = test_first(cluster_mix(campaign_seed() + k) % stride, stride);
        for (m.nth = first; sweep_operation(campaign, world, cluster, m); m.nth += stride)
            ;
    }
}
