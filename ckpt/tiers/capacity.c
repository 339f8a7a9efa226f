/* Room for what each tier will keep, before the first step. */
#include "ckpt/base/log.h"
#include "ckpt/base/memory_limit.h"
#include "ckpt/tiers/internal.h"

#include <stdlib.h>

struct needs { /* of one rank; of all ranks of a host */
    uint64_t host, shard_bytes, memory_to_come, waiting;
};

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

/* Checkpoints at once, each with what other hosts have sent. The one that was copied last stays until a newer one is. */
static uint32_t count_held(const struct pd_tier_options *tiers, uint32_t count, uint32_t tier)
{
    return (tiers[tier].keep_last ? tiers[tier].keep_last : 1) + 1 + (count - 1 - tier) + (tiers[tier].replicas ? 2 : 0);
}

uint32_t pd_tiers_own_checkpoints(const struct pd_tier_options *tiers, uint32_t count, uint32_t tier, bool has_generations)
{
    return count_held(tiers, count, tier) + (has_generations && tier == 0);
}

uint32_t pd_tiers_checkpoints(const struct pd_tier_options *tiers, uint32_t count, uint32_t tier, bool has_generations)
{
    return pd_tiers_own_checkpoints(tiers, count, tier, has_generations) * (1 + (tiers[tier].replicas > 0));
}

static bool has_generations(const struct tier *tier)
{
    return tier->tiers->options.generations && tier->number == 0;
}

/* Of state that is in files one more where what is written cannot be linked, which plans do not know. */
static uint32_t copies_of(const struct tier *tier)
{
    const struct pd_tiers *t = tier->tiers;
    return pd_tiers_own_checkpoints(t->options.tiers, t->count, tier->number, t->options.generations) +
           (has_generations(tier) && !pd_store_links_generations(tier->store));
}

static pd_status gather_needs(struct tier *tier, const struct needs *mine, struct needs *ret_host, uint32_t *ret_ranks,
                              struct pd_error *err)
{
    void *data = NULL;
    PD_TRY(pd_group_gather_all(tier->group, mine, sizeof *mine, &data, err));
    const struct needs *all = data;
    *ret_host = (struct needs){.host = mine->host};
    *ret_ranks = 0;
    for (uint32_t r = 0; r < tier->group->size; r++) {
        if (all[r].host != mine->host) continue;
        ret_host->shard_bytes += all[r].shard_bytes;
        ret_host->memory_to_come += all[r].memory_to_come;
        ret_host->waiting += all[r].waiting;
        ++*ret_ranks;
    }
    free(data);
    return PD_OK;
}

/* What this rank will write for others: a shard of each of them. */
static pd_status add_shards_of_others(struct tier *tier, struct needs *mine, struct pd_error *err)
{
    const struct pd_store_replicas *ring = pd_store_replicas(tier->store);
    void *all = NULL;
    if (!ring) return PD_OK;
    PD_TRY(pd_group_gather_all(tier->group, mine, sizeof *mine, &all, err));
    for (uint32_t i = 0; i < ring->source_count; i++)
        mine->shard_bytes += ((const struct needs *)all)[ring->sources[i]].shard_bytes;
    free(all);
    return PD_OK;
}

/* Checkpoints that are there make room as new ones come, but for what is written before the first of them goes; and so do
 * files that wait. */
static uint64_t held_here(const struct tier *tier, const struct needs *host, uint32_t ranks)
{
    const uint32_t count = count_held(tier->tiers->options.tiers, tier->tiers->count, tier->number) - 1;
    uint64_t bytes = host->waiting;
    for (uint32_t i = 0; i < pd_store_count(tier->store) && i < count; i++)
        bytes += pd_store_entry_at(tier->store, i)->bytes / tier->group->size * ranks;
    return bytes + pd_store_replica_bytes(tier->store, count);
}

static pd_status check_memory_here(const struct tier *tier, const struct needs *host, uint32_t ranks, struct pd_error *err)
{
    const uint32_t copies = copies_of(tier);
    const uint64_t held = held_here(tier, host, ranks), whole = host->shard_bytes * copies;
    const uint64_t least = has_generations(tier) ? 0 : host->shard_bytes;
    const uint64_t needed = whole > held && whole - held > least ? whole - held : least;
    struct pd_space space;
    struct pd_memory_limit limit;
    PD_TRY(pd_vfs_space(tier->tiers->vfs, tier->dir, &space, err));
    if (needed > space.available_bytes)
        PD_FAIL(err, PD_NO_SPACE,
                "%s is in memory (%s) and has %.1f MiB free, but %u checkpoints of %.1f MiB need %.1f MiB: mount it with "
                "a larger size, or lower its keep_last",
                tier->dir, space.type_name, mib(space.available_bytes), copies, mib(host->shard_bytes), mib(needed));
    if (!pd_memory_limit_read(NULL, &limit)) return PD_OK;
    if (needed + host->memory_to_come > limit.free_bytes)
        PD_FAIL(
            err, PD_NO_SPACE,
            "%s is in memory: %u checkpoints of %.1f MiB need %.1f MiB more, the run itself %.1f MiB more, and %s has only "
            "%.1f of %.1f MiB left: raise that limit, or lower keep_last",
            tier->dir, copies, mib(host->shard_bytes), mib(needed), mib(host->memory_to_come), limit.who,
            mib(limit.free_bytes), mib(limit.limit_bytes));
    return PD_OK;
}

static pd_status check_tier(struct tier *tier, struct needs *mine, struct pd_error *err)
{
    struct needs host;
    uint32_t ranks;
    if (!tier->is_writable) PD_FAIL(err, PD_NO_SPACE, "%s", tier->outcome.report.cause);
    PD_TRY(add_shards_of_others(tier, mine, err));
    if (!tier->in_memory) return pd_store_check_space(tier->store, mine->shard_bytes, copies_of(tier), err);
    if (has_generations(tier)) mine->waiting = pd_store_free_bytes(tier->store);
    PD_TRY(gather_needs(tier, mine, &host, &ranks, err));
    return pd_group_agree(tier->group, check_memory_here(tier, &host, ranks, err), err);
}

pd_status pd_tiers_check_room(struct pd_tiers *t, uint64_t shard_bytes, uint64_t memory_to_come, struct pd_error *err)
{
    uint32_t fitting = 0;
    PD_CHECK(!t->is_started);
    for (uint32_t i = 0; i < t->count; i++) {
        struct tier *tier = &t->tiers[i];
        struct needs mine = {tier->group->host, shard_bytes, memory_to_come, 0};
        struct pd_error own = {0};
        pd_status st = check_tier(tier, &mine, &own);
        fitting += st == PD_OK;
        if (pd_error_pass(err, st, &own) == PD_OK) continue;
        if (st != PD_NO_SPACE) return st;
        if (t->count > 1 && t->group->rank == 0 && tier->is_writable)
            pd_log_error(TIERS_MODULE, "%s: %s", tier->in_memory ? "left out of saves" : "may be too small", own.message);
        tier_leave_out(tier);
    }
    return fitting ? PD_OK : PD_NO_SPACE;
}
