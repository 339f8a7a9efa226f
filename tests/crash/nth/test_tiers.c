/* Every call of a launch over several tiers fails once, and from then on: what was saved before, or now, loads from one of them; nothing
 * leaks; and the next launch gets through. What fails on one rank fails on all: nobody waits for one that has gone its own way. */
#include "tests/helpers/failing_cluster.h"
#include "tests/helpers/tier_flow.h"

struct shape {
    const char *name, *dirs[3];
    uint32_t ranks, hosts, replicas;
    bool has_files;
};
static const struct shape memory = {"state in memory", {"/shm/c", "/disk", "/net/c"}, 1, 1, 0, false};
static const struct shape files = {"state in files", {"/disk", "/net/c", NULL}, 1, 1, 0, true};
static const struct shape replicas = {"replicas", {"/shm/c", "/net/c", NULL}, 2, 2, 1, false};

static struct pd_tiers_options tiers_of(const struct shape *shape)
{
    struct pd_tiers_options options = {.quarantine_bytes_max = 1 << 20, .generations = shape->has_files};
    for (uint32_t i = 0; i < 3 && shape->dirs[i]; i++)
        options.tiers[options.count++] = (struct pd_tier_options){.dir = shape->dirs[i], .every = 1, .keep_last = 2};
    options.tiers[0].replicas = shape->replicas;
    options.tiers[options.count - 1].codec = (struct pd_shard_codec){.codec = PD_CODEC_ZSTD, .level = 1};
    return options;
}

static pd_status begin(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 1, NULL, err));
    return tier_finish(rank, 2, -1, err);
}

static struct cluster base_of(const void *context)
{
    const struct shape *shape = context;
    struct pd_error err = {0};
    struct cluster cluster;
    const struct pd_tiers_options options = tiers_of(shape);
    tier_be_quiet();
    cr_assert_eq(tier_cluster_new_lacking(&cluster, shape->ranks, shape->hosts, 0, &err), PD_OK, "%s", err.message);
    cr_assert_eq(tier_run(&cluster, &options, begin, NULL, &err), PD_OK, "%s", err.message);
    return cluster;
}

static void *set_up(const void *context)
{
    return failing_cluster_new(context, base_of);
}

static pd_status live(struct tier_rank *rank, struct pd_error *err)
{
    uint32_t tier;
    uint64_t step = 0;
    PD_TRY(tier_load_newest(rank, &tier, &step, err));
    pd_tiers_set_index(rank->tiers, "an index", 8);
    PD_TRY(pd_tiers_check_space(rank->tiers, SHARD_SPACE, 0, err));
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (int i = 0; i < 2; i++)
        PD_TRY(tier_save(rank, ++step, NULL, err));
    struct pd_tier_report report;
    for (uint32_t i = 0; i < pd_tiers_count(rank->tiers); i++)
        pd_tiers_report(rank->tiers, i, &report);
    return tier_finish(rank, ++step, -1, err);
}

static pd_status act(void *state, struct pd_error *err)
{
    struct failing_cluster *l = state;
    const struct pd_tiers_options options = tiers_of(l->context);
    struct tier_launch launch = {&l->cluster, &options, live, NULL, 0, l->ended};
    failing_cluster_begin(l);
    const pd_status st = pd_comm_run_local(l->cluster.ranks, l->cluster.hosts, tier_rank_main, &launch, err);
    return failing_cluster_judge(l, st, err);
}

static pd_status check(void *state, struct pd_error *err)
{
    struct failing_cluster *l = state;
    const struct pd_tiers_options options = tiers_of(l->context);
    struct found found = {0};
    PD_TRY(tier_run(&l->cluster, &options, look, &found, err));
    if (found.step < 5 || found.step > 8) PD_FAIL(err, PD_BUG, "step %llu loads", (unsigned long long)found.step);
    return PD_OK;
}

static void sweep_shape(const struct shape *shape)
{
    failing_sweep(
        &(struct failing_case){shape->name, true, set_up, act, check, failing_cluster_free, failing_cluster_disk, shape});
}

#define EACH(shape)          \
    Test(nth_tiers, shape)   \
    {                        \
        sweep_shape(&shape); \
    }

EACH(memory)
EACH(files)
EACH(replicas)
