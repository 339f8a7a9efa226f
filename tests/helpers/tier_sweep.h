/* Campaigns over tiers: one misfortune an operation, once or from then on, then something happens to the hosts.
 *
 * The default run samples; PERDURE_TEST_SCALE=10 tries every operation. PERDURE_CAMPAIGN_SEED sets the seed; a failure
 * prints it. */
#pragma once

#include "tests/helpers/scale.h"
#include "tests/helpers/tier_cluster.h"

#include <criterion/criterion.h>
#include <errno.h>

static const struct {
    enum pd_disk_fault_kind kind;
    int sys_errno;
    bool persistent;
} tier_kinds[] = {
    {PD_DISK_FAULT_ERROR, EIO, false},        {PD_DISK_FAULT_ERROR, EIO, true},
    {PD_DISK_FAULT_ERROR, ENOSPC, false},     {PD_DISK_FAULT_ERROR, ENOSPC, true},
    {PD_DISK_FAULT_ERROR, ESTALE, true},      {PD_DISK_FAULT_ERROR_APPLIED, EIO, false},
    {PD_DISK_FAULT_ERROR_APPLIED, EIO, true}, {PD_DISK_FAULT_SHORT, 0, true},
    {PD_DISK_FAULT_TORN, 0, false},           {PD_DISK_FAULT_LOST, 0, false},
    {PD_DISK_FAULT_MISDIRECTED, 0, false},    {PD_DISK_FAULT_LOST_SYNC, 0, false},
    {PD_DISK_FAULT_LOST_SYNC, 0, true},       {PD_DISK_FAULT_FLIP, 0, false},
    {PD_DISK_FAULT_POWER, 0, false},
};

struct misfortune {
    uint32_t kind;
    uint64_t nth, seed;
    int aftermath; /* the test's own enumeration */
};

static inline enum pd_disk_fault_kind kind_of(const struct misfortune *m)
{
    return tier_kinds[m->kind].kind;
}

static inline pd_status tier_save_to(struct tier_rank *rank, uint64_t first, uint64_t last, struct pd_error *err)
{
    for (uint64_t step = first; step <= last; step++) {
        PD_TRY(tier_save(rank, step, NULL, err));
        PD_TRY(tier_finish(rank, step, -1, err));
    }
    return PD_OK;
}

static inline pd_status tier_arm(struct tier_rank *rank, const struct misfortune *m, struct pd_error *err)
{
    const struct pd_disk_fault fault = {.kind = kind_of(m),
                                        .sys_errno = tier_kinds[m->kind].sys_errno,
                                        .nth = m->nth,
                                        .persistent = tier_kinds[m->kind].persistent};
    PD_TRY(pd_group_barrier(&rank->world, err));
    if (rank->world.rank == 0) pd_simulated_disk_set_fault(rank->cluster.cluster->disk, &fault);
    return pd_group_barrier(&rank->world, err);
}

/* On rank 0 how often it struck, and the disk as it lies; the caller frees it. */
static inline pd_status tier_disarm(struct tier_rank *rank, uint64_t *ret_fired, struct pd_simulated_disk **ret_after,
                                    struct pd_error *err)
{
    struct pd_simulated_disk *disk = rank->cluster.cluster->disk;
    pd_status st = PD_OK;
    PD_TRY(pd_group_barrier(&rank->world, err));
    if (rank->world.rank == 0) {
        *ret_fired = pd_simulated_disk_fired(disk);
        pd_simulated_disk_set_fault(disk, NULL);
        st = pd_simulated_disk_clone(disk, ret_after, err);
    }
    return pd_group_agree(&rank->world, st, err);
}

typedef pd_status tier_try(const struct cluster *base, const struct misfortune *m, bool *ret_fired, struct pd_error *err);

static inline uint64_t tier_number_of(const char *variable)
{
    const char *text = getenv(variable);
    uint64_t value = text ? strtoull(text, NULL, 10) : 1;
    return value ? value : 1;
}

/* Every `stride`th operation; kinds that strike few operations every one when `rare_all`. Frees the cluster. */
static inline void tier_sweep(struct cluster *cluster, const char *name, int aftermath, uint64_t stride, bool rare_all,
                              tier_try *try_one)
{
    const uint64_t seed = tier_number_of("PERDURE_CAMPAIGN_SEED");
    struct pd_error err = {0};
    uint64_t tried = 0;
    stride = test_stride(stride);
    for (uint32_t k = 0; k < sizeof tier_kinds / sizeof *tier_kinds; k++) {
        struct misfortune m = {.kind = k, .aftermath = aftermath};
        const bool is_rare = kind_of(&m) >= PD_DISK_FAULT_TORN && kind_of(&m) <= PD_DISK_FAULT_LOST_SYNC;
        const uint64_t every = rare_all && is_rare ? 1 : stride;
        bool fired = true;
        for (m.nth = test_first(cluster_mix(seed + k) % every, every); fired; m.nth += every, tried++) {
            m.seed = cluster_mix(seed * 7919 + m.nth * 131 + k);
            pd_status st = try_one(cluster, &m, &fired, &err);
            cr_assert_eq(st, PD_OK, "%s:%d:%d at %llu, aftermath %d (seed %llu): %s", pd_disk_fault_kind_name(kind_of(&m)),
                         tier_kinds[k].sys_errno, tier_kinds[k].persistent, (unsigned long long)m.nth, aftermath,
                         (unsigned long long)seed, err.message);
        }
    }
    cluster_free(cluster);
    cr_log_info("%s, aftermath %d: %llu misfortunes", name, aftermath, (unsigned long long)tried);
}
