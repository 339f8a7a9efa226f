/* What a tier keeps beyond the newest, what it says that it does not keep, and what it makes ready. */
#include "tests/helpers/tier_flow.h"

#include <string.h>

/* ---- steps that are kept for good ---- */

/* The second tier is busy with step 5 when step 10, which it keeps for good, is due. */
static pd_status save_past_a_milestone(struct tier_rank *rank, struct pd_error *err)
{
    struct tier *slow = &rank->tiers->tiers[1];
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 5; step <= 10; step++)
        PD_TRY(tier_save(rank, step, NULL, err));
    tier_worker_give_up(&slow->worker);
    tier_worker_wait(&slow->worker, -1);
    slow->bytes_per_second = 0; /* of the next copy */
    PD_TRY(pd_group_barrier(&rank->world, err));
    PD_TRY(tier_save(rank, 11, NULL, err));
    PD_TRY(tier_finish(rank, 11, -1, err));
    const struct pd_store *store = slow->store;
    EXPECT(pd_store_count(store) == 2, "%u are there", pd_store_count(store));
    EXPECT(pd_store_entry_at(store, 0)->step == 11 && pd_store_entry_at(store, 1)->step == 10, "steps %lu and %lu",
           pd_store_entry_at(store, 0)->step, pd_store_entry_at(store, 1)->step);
    return PD_OK;
}

Test(tiers_kept, a_step_that_is_kept_for_good_is_copied_later)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    options.count = 2;
    options.tiers[0].keep_last = 9;
    options.tiers[1] =
        (struct pd_tier_options){.dir = "/net/c", .every = 5, .keep_last = 1, .keep_every = 10, .bandwidth = 1};
    tier_be_quiet();
    make_cluster(&cluster, 0, 0);
    RUN(&cluster, &options, save_past_a_milestone, NULL);
    cluster_free(&cluster);
}

static void count_refusals(void *context, const char *line, size_t bytes)
{
    (void)bytes;
    if (strstr(line, "/shm/c is in memory: keep_every does not count there")) ++*(unsigned *)context;
}

static pd_status expect_two_in_memory(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(save_ten(rank, err));
    const uint32_t count = pd_store_count(pd_tiers_store(rank->tiers, 0));
    EXPECT(count == 2, "%u are there", count);
    return PD_OK;
}

Test(tiers_kept, memory_keeps_nothing_for_good_and_that_is_said)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    unsigned said = 0;
    options.tiers[0].keep_every = 2;
    cr_assert_eq(pd_log_configure("warn", NULL), PD_OK);
    pd_log_set_sink(count_refusals, &said);
    make_cluster(&cluster, 0, 0);
    RUN(&cluster, &options, expect_two_in_memory, NULL);
    cr_assert_eq(said, 1, "%u times", said);
    cluster_free(&cluster);
}

/* ---- files that are ready ---- */

static pd_status make_ready(struct tier_rank *rank, struct pd_error *err)
{
    const uint64_t expected[] = {SHARD_SPACE, 0, 0};
    for (uint32_t t = 0; t < pd_tiers_count(rank->tiers); t++) {
        struct pd_store *store = pd_tiers_store(rank->tiers, t);
        pd_store_keep_ready(store, 0, rank->cluster.buffers, CLUSTER_BUFFER_BYTES); /* nobody knows yet how much */
        for (int times = 0; times < 2; times++)                                     /* one is enough */
            pd_store_keep_ready(store, SHARD_SPACE, rank->cluster.buffers, 8192);
        EXPECT(pd_store_free_bytes(store) == expected[t], "tier %u: %lu bytes", t, pd_store_free_bytes(store));
    }
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 1, NULL, err)); /* into it */
    EXPECT(pd_store_free_bytes(pd_tiers_store(rank->tiers, 0)) == 0, "another file was made");
    return tier_finish(rank, 1, -1, err);
}

Test(tiers_kept, a_written_file_is_ready_in_memory_alone)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct found found = {99, 0};
    tier_be_quiet();
    make_cluster(&cluster, 0, 0);
    RUN(&cluster, &options, make_ready, NULL);
    RUN(&cluster, &options, look, &found);
    cr_assert(found.tier == 0 && found.step == 1);
    cluster_free(&cluster);
}

/* ---- what has gone ---- */

static pd_status expect_gone(struct tier_rank *rank, const char *what, bool expected, struct pd_error *err)
{
    struct pd_store *store = pd_tiers_store(rank->tiers, 0);
    const struct pd_store_entry *entry = pd_store_entry_at(store, 0);
    char path[128];
    bool has_gone = !expected;
    snprintf(path, sizeof path, "/disk/%.64s/%s", entry->name, what);
    if (*what && rank->cluster.vfs) (void)!pd_vfs_unlink(rank->cluster.vfs, path, NULL); /* on whichever host it is */
    PD_TRY(pd_group_barrier(&rank->world, err));
    PD_TRY(pd_store_has_gone(store, entry, &has_gone, err));
    EXPECT(has_gone == expected, "\"%s\": %d", what, has_gone);
    return pd_group_barrier(&rank->world, err);
}

static pd_status lose_a_shard(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 1, NULL, err));
    PD_TRY(expect_gone(rank, "", false, err));
    return expect_gone(rank, rank->context, true, err);
}

Test(tiers_kept, a_checkpoint_without_a_record_or_a_shard_has_gone)
{
    static const char *const names[] = {"shard-00000.h5", "shard-00003.h5", "commit.h5"};
    for (int i = 0; i < 3; i++) {
        struct cluster cluster;
        struct pd_tiers_options options = three_tiers();
        options.tiers[0] = options.tiers[1];
        options.tiers[0].every = 1;
        options.count = 1;
        tier_be_quiet();
        make_cluster(&cluster, 0, 0);
        RUN(&cluster, &options, lose_a_shard, (void *)(uintptr_t)names[i]);
        cluster_free(&cluster);
    }
}
