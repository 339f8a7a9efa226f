/* A job in one tier: save or copy, then pin, prune and report. */
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/tiers/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct pd_store_entry *find_committed(const struct tier *tier, uint64_t step)
{
    for (uint32_t i = 0; i < pd_store_count(tier->store); i++) {
        const struct pd_store_entry *entry = pd_store_entry_at(tier->store, i);
        if (entry->step == step && entry->fence == pd_store_fence(tier->store)) return entry;
    }
    return NULL;
}

/* Prunes. If older checkpoints cannot be removed, the new one is still a success. */
static pd_status pin_and_prune(struct tier *tier, struct tier_job *job, struct pd_error *err)
{
    const struct pd_store_entry *entry = tier->is_remote ? NULL : find_committed(tier, job->step);
    if (entry) memcpy(job->name, entry->name, sizeof job->name);
    for (uint32_t i = 0; entry && i < job->pins; i++)
        pd_store_pin(tier->store, entry);
    struct pd_error own = {0};
    const pd_status st = tier->is_remote ? pd_bucket_store_prune(tier->bucket, &own) : pd_store_prune(tier->store, &own);
    if (tiers_is_fatal(st)) return pd_error_pass(err, st, &own);
    if (st && strncmp(own.message, tier->prune_cause, sizeof tier->prune_cause - 1) != 0 && tier->group->rank == 0)
        pd_log_warn(TIERS_MODULE, "%s: step %" PRIu64 " is saved, but not all older checkpoints could be removed: %s",
                    tier->dir, job->step, own.message);
    snprintf(tier->prune_cause, sizeof tier->prune_cause, "%s", own.message);
    return PD_OK;
}

static pd_status save(struct tier *tier, struct tier_job *job, struct pd_error *err)
{
    struct pd_shard_summary summary = {0};
    pd_status written = PD_OK;
    PD_TRY(job->save->prepare(job->save->context, tier->store, tier->number, &written, &summary, err));
    job->has_begun = true;
    return pd_store_commit(tier->store, written, &summary, job->save->state, err);
}

static pd_status run(struct tier *tier, struct tier_job *job, struct pd_error *err)
{
    if (job->task == TIER_REPLICATE) return tier_replicate(tier, job, err);
    PD_TRY(tier_make_writable(tier, err)); /* reopening a store drops its pins */
    for (uint32_t i = 0; i < job->unpins.count; i++)
        pd_store_unpin(tier->store, job->unpins.names[i]); /* first, since later steps may fail */
    const pd_status st = job->task == TIER_SAVE ? save(tier, job, err)
                         : tier->is_remote      ? tier_upload(tier, job, err)
                                                : tier_copy(tier, job, err);
    if (st == PD_NO_SPACE && !tier->is_remote) { /* pruning frees space for the next try */
        struct pd_error own = {0};
        const pd_status pruned = pd_store_prune(tier->store, &own);
        if (tiers_is_fatal(pruned)) return pd_error_pass(err, pruned, &own);
    }
    PD_TRY(st);
    return pin_and_prune(tier, job, err);
}

pd_status tier_run_job(void *context, struct tier_job *job, struct pd_error *err)
{
    struct tier *tier = context;
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    const pd_status st = run(tier, job, err);
    tier_report_result(tier, job->step, pd_clock_seconds_since(start), st, err);
    return st;
}
