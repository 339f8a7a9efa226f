/* Checks before the first step that each tier has space for what it will keep. */
#include "ckpt/base/log.h"
#include "ckpt/base/memory_limit.h"
#include "ckpt/tiers/internal.h"

#include <stdlib.h>

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

/* Checkpoints that exist at once: kept, being written, being copied; with replicas, the last replicated one too. */
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

/* With state in files, one more if the file system has no hard links, which plans cannot know. */
static uint32_t copies_of(const struct tier *tier)
{
    const struct pd_tiers *t = tier->tiers;
    return pd_tiers_own_checkpoints(t->options.tiers, t->count, tier->number, t->options.generations) +
           (t->options.generations && tier->number == 0 && !pd_store_links_generations(tier->store));
}

/* Adds to *shard_bytes the replicas that this rank keeps for others, and sums *memory_to_come over the ranks of its host. */
static pd_status gather_needs(struct tier *tier, uint64_t *shard_bytes, uint64_t *memory_to_come, struct pd_error *err)
{
    const struct pd_store_replicas *ring = pd_store_replicas(tier->store);
    const uint64_t mine[3] = {tier->group->host, *shard_bytes, *memory_to_come};
    void *data = NULL;
    PD_TRY(pd_group_gather_all(tier->group, mine, sizeof mine, &data, err));
    const uint64_t(*all)[3] = data;
    *memory_to_come = 0;
    for (uint32_t r = 0; r < tier->group->size; r++)
        if (all[r][0] == mine[0]) *memory_to_come += all[r][2];
    for (uint32_t i = 0; ring && i < ring->source_count; i++)
        *shard_bytes += all[ring->sources[i]][1];
    free(data);
    return PD_OK;
}

static pd_status check_memory_here(const struct tier *tier, uint64_t needed, uint64_t memory_to_come, struct pd_error *err)
{
    const uint32_t copies = copies_of(tier);
    struct pd_space space;
    struct pd_memory_limit limit;
    PD_TRY(pd_vfs_space(tier->tiers->vfs, tier->dir, &space, err));
    if (needed > space.available_bytes)
        PD_FAIL(err, PD_NO_SPACE,
                "%s is in memory (%s) and has %.1f MiB free, but %u checkpoints need %.1f MiB more: mount it with a larger "
                "size, or lower its keep_last",
                tier->dir, space.type_name, mib(space.available_bytes), copies, mib(needed));
    if (!pd_memory_limit_read(NULL, &limit)) return PD_OK;
    if (needed + memory_to_come > limit.free_bytes)
        PD_FAIL(err, PD_NO_SPACE,
                "%s is in memory: %u checkpoints need %.1f MiB more, the run itself %.1f MiB more, and %s has only %.1f of "
                "%.1f MiB left: raise that limit, or lower keep_last",
                tier->dir, copies, mib(needed), mib(memory_to_come), limit.who, mib(limit.free_bytes),
                mib(limit.limit_bytes));
    return PD_OK;
}

static pd_status check_tier(struct tier *tier, uint64_t shard_bytes, uint64_t memory_to_come, struct pd_error *err)
{
    uint64_t needed;
    if (!tier->is_writable) PD_FAIL(err, PD_NO_SPACE, "%s", tier->outcome.report.cause);
    PD_TRY(gather_needs(tier, &shard_bytes, &memory_to_come, err));
    if (!tier->in_memory) return pd_store_check_space(tier->store, shard_bytes, copies_of(tier), err);
    PD_TRY(pd_store_needed_bytes(tier->store, shard_bytes, copies_of(tier), &needed, err));
    return pd_group_agree(tier->group, check_memory_here(tier, needed, memory_to_come, err), err);
}

pd_status pd_tiers_check_space(struct pd_tiers *t, uint64_t shard_bytes, uint64_t memory_to_come, struct pd_error *err)
{
    uint32_t fitting = 0;
    PD_CHECK(!t->is_started);
    for (uint32_t i = 0; i < t->count; i++) {
        struct tier *tier = &t->tiers[i];
        struct pd_error own = {0};
        if (tier->is_remote) continue; /* gets no saves, and its free space is unknown */
        pd_status st = check_tier(tier, shard_bytes, memory_to_come, &own);
        fitting += st == PD_OK;
        if (pd_error_pass(err, st, &own) == PD_OK) continue;
        if (st != PD_NO_SPACE) return st;
        if (t->count > 1 && t->group->rank == 0 && tier->is_writable)
            pd_log_error(TIERS_MODULE, "%s: %s", tier->in_memory ? "left out of saves" : "may be too small", own.message);
        tier_leave_out(tier);
    }
    return fitting ? PD_OK : PD_NO_SPACE;
}
