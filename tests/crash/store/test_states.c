/* What a power loss during a save may leave on the disks: each operation of the save is the first that does not happen, and of
 * the writes and names that are not synced by then any subset is durable, torn at any 512 bytes. A state is counted once,
 * whichever operations and choices lead to it; in each of them a fresh launch finds the previous checkpoint or the new one,
 * whole, and the new one when it had been reported committed, and saves again.
 *
 * Choices are by seed (PERDURE_CAMPAIGN_SEED, which a failure prints) until states repeat. PERDURE_TEST_SCALE=10 looks at more
 * than 100,000 states; a shorter run samples operations. */
#include "ckpt/base/log.h"
#include "tests/helpers/store_sweep.h"

#define REPEATS_MAX 64u /* in a row, after which an operation has no more states */
#define SEEN_BITS 20u

static uint64_t seen[1u << SEEN_BITS]; /* digests; 0: free */

/* False: it was there. */
static bool is_new(uint64_t digest)
{
    const uint64_t wanted = digest ? digest : 1;
    uint64_t at = wanted >> (64 - SEEN_BITS);
    while (seen[at] && seen[at] != wanted)
        at = (at + 1) % (1u << SEEN_BITS);
    const bool fresh = !seen[at];
    seen[at] = wanted;
    return fresh;
}

/* Crashes a clone by the seed and looks at it, where nobody has. */
static pd_status look_at_state(const struct cluster *cluster, uint64_t seed, uint64_t least, bool *ret_new,
                               struct pd_error *err)
{
    struct cluster later = *cluster;
    struct campaign_check check = {.least = least, .most = CAMPAIGN_BASE_STEPS + 2};
    PD_TRY(pd_simulated_disk_clone(cluster->disk, &later.disk, err));
    pd_simulated_disk_crash(later.disk, PD_DISK_ALL_HOSTS, seed);
    *ret_new = is_new(pd_simulated_disk_digest(later.disk));
    const pd_status st = *ret_new ? cluster_launch(&later, campaign_look, &check, err) : PD_OK;
    cluster_free(&later);
    return st;
}

struct search {
    uint64_t round, most; /* states of an operation in this round */
    uint64_t count;       /* of all */
};

/* The states that operation `nth` of the save leaves. *ret_fired: there is such an operation. */
static pd_status look_at_operation(const struct cluster *base, uint64_t nth, struct search *search, bool *ret_fired,
                                   struct pd_error *err)
{
    const uint64_t dice = cluster_mix(campaign_seed() * 7919 + nth * 131 + search->round);
    const struct misfortune power = {.kind = PD_DISK_FAULT_POWER, .nth = nth};
    struct campaign_run run = {.misfortune = &power};
    struct cluster cluster = *base;
    PD_TRY(pd_simulated_disk_clone(base->disk, &cluster.disk, err));
    pd_status st = cluster_launch(&cluster, campaign_script, &run, err);
    cluster_free(&cluster);
    cluster.disk = run.after;
    *ret_fired = run.fired > 0;
    const uint64_t least = CAMPAIGN_BASE_STEPS + 1 + (run.saved == PD_OK);
    for (uint64_t i = 0, found = 0, repeats = 0; !st && *ret_fired && found < search->most && repeats < REPEATS_MAX; i++) {
        bool fresh = false;
        st = look_at_state(&cluster, cluster_mix(dice + i), least, &fresh, err);
        if (st)
            st = pd_error_context(err, st, "round %llu, choice %llu", (unsigned long long)search->round,
                                  (unsigned long long)i);
        repeats = fresh ? 0 : repeats + 1;
        found += fresh;
        search->count += fresh;
    }
    if (cluster.disk) pd_simulated_disk_free(cluster.disk);
    return st;
}

/* A round looks at four times as many states of each operation as the one before, those that were seen not counted. */
static void look_at_save(const struct world *world, uint64_t stride, uint64_t wanted)
{
    const bool is_all = test_scale() >= 10;
    struct search search = {.most = is_all ? 32 : 4 * test_scale()};
    struct cluster base;
    struct pd_error err = {0};
    cr_assert_eq(pd_log_configure("error", &err), PD_OK);
    cr_assert_eq(cluster_new_lacking(&base, world->ranks, world->hosts, world->shared, world->lacks, &err), PD_OK);
    cr_assert_eq(cluster_launch(&base, campaign_base, NULL, &err), PD_OK, "%s", err.message);
    for (bool fired = true; search.round == 0 || (is_all && search.count < wanted && search.round < 6);
         search.round++, search.most *= 4, fired = true)
        for (uint64_t nth = test_first(campaign_seed(), test_stride(stride)); fired; nth += test_stride(stride))
            cr_assert_eq(look_at_operation(&base, nth, &search, &fired, &err), PD_OK, "%s, operation %llu (seed %llu): %s",
                         world->name, (unsigned long long)nth, (unsigned long long)campaign_seed(), err.message);
    cluster_free(&base);
    cr_log_info("%s: %llu states", world->name, (unsigned long long)search.count);
    cr_assert(!is_all || search.count >= wanted, "%s: %llu states, and %llu were wanted", world->name,
              (unsigned long long)search.count, (unsigned long long)wanted);
}

#define STATES(name, world, stride, wanted)               \
    Test(store_states, name)                              \
    {                                                     \
        look_at_save(&worlds[world], (stride), (wanted)); \
    }

STATES(one_rank, ONE_RANK, 5, 60000)
STATES(without_links, ONE_RANK_NO_LINKS, 9, 20000)
STATES(local_disks, LOCAL_DISKS, 40, 1000)
STATES(shared_disk, SHARED_DISK, 40, 1000)
