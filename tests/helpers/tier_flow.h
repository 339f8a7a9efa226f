/* Four ranks on two hosts that save into memory, a disk of each host and one for all: what the tests of tiers begin with. */
#pragma once

#include "tests/helpers/tier_cluster.h"

#include <criterion/criterion.h>

#define SHARD_SPACE (64u << 10) /* more than a shard of the cluster */

static inline struct pd_tiers_options three_tiers(void)
{
    return (struct pd_tiers_options){.tiers = {{.dir = "/shm/c", .every = 1, .keep_last = 2},
                                               {.dir = "/disk", .every = 2, .keep_last = 2},
                                               {.dir = "/net/c", .every = 5, .keep_last = 3}},
                                     .count = 3,
                                     .quarantine_bytes_max = 1 << 20};
}

#define RUN(CLUSTER, OPTIONS, SCRIPT, CONTEXT)                                      \
    do {                                                                            \
        struct pd_error run_error = {0};                                            \
        pd_status run_st = tier_run(CLUSTER, OPTIONS, SCRIPT, CONTEXT, &run_error); \
        cr_assert_eq(run_st, PD_OK, "%s", run_error.message);                       \
    } while (0)

static inline void make_cluster(struct cluster *cluster, uint64_t shm_bytes, uint64_t net_bytes)
{
    struct pd_error err = {0};
    cr_assert_eq(tier_cluster_new(cluster, 4, 2, shm_bytes, net_bytes, 0, &err), PD_OK, "%s", err.message);
}

#define EXPECT(CONDITION, ...)                               \
    do {                                                     \
        if (!(CONDITION)) PD_FAIL(err, PD_BUG, __VA_ARGS__); \
    } while (0)

static inline pd_status save_ten(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 1; step <= 10; step++) {
        uint32_t tier = 99;
        PD_TRY(tier_save(rank, step, &tier, err));
        EXPECT(tier == 0, "step %llu went to tier %u", (unsigned long long)step, tier);
    }
    return tier_finish(rank, 10, -1, err);
}

struct found {
    uint32_t tier;
    uint64_t step;
};

static inline pd_status look(struct tier_rank *rank, struct pd_error *err)
{
    struct found found;
    PD_TRY(tier_load_newest(rank, &found.tier, &found.step, err));
    if (rank->world.rank == 0) *(struct found *)rank->context = found;
    return PD_OK;
}

static inline pd_status set_lacks(struct tier_rank *rank, const char *path, unsigned lacks, struct pd_error *err)
{
    PD_TRY(pd_group_barrier(&rank->world, err));
    if (rank->world.rank == 0) pd_simulated_disk_set_lacks(rank->cluster.cluster->disk, path, lacks);
    return pd_group_barrier(&rank->world, err);
}

/* Step 4 of another run, into the first tier that there is. */
static inline pd_status save_other_run(struct tier_rank *rank, struct pd_error *err)
{
    struct tier_saving saving;
    struct pd_tiers_save save = tier_saving_init(&saving, rank, 4, false);
    uint32_t tier;
    saving.state.identity.run_id[0] ^= 1;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    return pd_tiers_save(rank->tiers, &save, &tier, err);
}
