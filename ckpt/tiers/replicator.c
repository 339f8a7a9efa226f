/* The replicator sends replicas of the first tier to other hosts. It is a struct tier without a store, so the schedule and
 * the reports treat it as a tier. */
#include "ckpt/base/log.h"
#include "ckpt/tiers/internal.h"

#include <stdio.h>
#include <stdlib.h>

/* A resumed run that lost its other hosts continues without replicas; a new run without other hosts is refused. */
static pd_status check_hosts(const struct pd_tiers *t, bool *ret_can, struct pd_error *err)
{
    const struct tier *first = &t->tiers[0];
    bool is_resumed = t->options.is_host_away;
    *ret_can = !first->store || !first->is_writable || !pd_store_is_shared(first->store);
    if (*ret_can) return PD_OK;
    for (uint32_t i = 0; i < t->count; i++)
        is_resumed = is_resumed || t->tiers[i].schedule.newest_step > 0 ||
                     (t->tiers[i].store && pd_store_unusable_count(t->tiers[i].store));
    if (t->group->host_count > 1)
        PD_FAIL(
            err, PD_INVALID,
            "%s is one directory for all hosts, and checkpoint.tiers[0].replicas asks for a replica on another host: name "
            "a directory of each host's own, or set replicas to 0",
            first->dir);
    if (!is_resumed)
        PD_FAIL(err, PD_INVALID,
                "checkpoint.tiers[0].replicas asks for a replica of %s on another host, and all ranks are on one: start on "
                "more hosts, or set replicas to 0",
                first->dir);
    if (t->group->rank == 0)
        pd_log_warn(TIERS_MODULE,
                    "%s: one host is left, so there is no other to copy to: the run continues without replicas", first->dir);
    return PD_OK;
}

static pd_status make_replicator(struct pd_tiers *t, struct pd_error *err)
{
    const struct tier *first = &t->tiers[0];
    struct tier *tier = calloc(1, sizeof *tier);
    if (!tier) PD_FAIL(err, PD_NO_MEMORY, "no memory to copy checkpoints between hosts");
    t->replicator = tier;
    tier_init(tier, t, tier_run_job);
    tier->is_replicator = true;
    tier->in_memory = first->in_memory;
    tier->options = first->options;
    tier->group = t->options.replica_group;
    tier->bytes_per_second = first->bytes_per_second;
    snprintf(tier->dir, sizeof tier->dir, "the replica of %.4000s", first->dir);
    tier->options.dir = tier->dir;
    const struct pd_store_replicas *ring = first->store ? pd_store_replicas(first->store) : NULL;
    return ring ? tier_make_staging(tier, tier_replicate_staging_bytes(ring), err) : PD_OK;
}

pd_status tier_replicator_open(struct pd_tiers *t, struct pd_error *err)
{
    bool can;
    for (uint32_t i = 0; i < t->count; i++) {
        if (i && t->tiers[i].options.replicas)
            PD_FAIL(err, PD_INVALID, "checkpoint.tiers[%u].replicas: only the first tier has replicas on other hosts", i);
        if (t->tiers[i].options.replicas > 1)
            PD_FAIL(err, PD_INVALID,
                    "checkpoint.tiers[%u].replicas is %u: one other host can have a replica of each shard, not more", i,
                    t->tiers[i].options.replicas);
    }
    if (!t->tiers[0].options.replicas || t->options.read_only) return PD_OK;
    PD_TRY(check_hosts(t, &can, err));
    PD_CHECK(t->options.replica_group);
    return can ? pd_group_agree(t->group, make_replicator(t, err), err) : PD_OK;
}

void tier_replicator_start(struct pd_tiers *t)
{
    struct pd_store *store = t->tiers[0].store;
    for (uint32_t i = 0; tier_replicator_works(t) && i < pd_store_count(store); i++) {
        const struct pd_store_entry *entry = pd_store_entry_at(store, i);
        if (entry->hosts < 2) continue;
        pd_store_pin(store, entry);
        tier_schedule_keep(&t->replicator->schedule, entry->name);
        tier_report_found(t->replicator, entry->step);
        return;
    }
}

bool tier_replicator_works(const struct pd_tiers *t)
{
    return t->replicator && t->tiers[0].store && pd_store_replicas(t->tiers[0].store);
}
