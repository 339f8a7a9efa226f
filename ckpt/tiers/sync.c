/* Exchanges jobs and results between the saver's thread and the workers, with the same outcome on every rank. */
#include "ckpt/base/clock.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/tiers/internal.h"

#include <stdio.h>
#include <string.h>

/* ---- copies ---- */

/* The first tier's store is the saver's own; a later one's worker unpins with its next job. */
static void unpin(struct pd_tiers *t, uint32_t number, const char *name)
{
    if (number == 0)
        pd_store_unpin(t->tiers[0].store, name);
    else
        tier_schedule_add_unpin(&t->tiers[number].schedule, name);
}

void tier_begin_copy(struct tier *tier, const struct tier_source *source)
{
    struct pd_tiers *t = tier->tiers;
    struct tier_job job = {.task = tier->is_replicator ? TIER_REPLICATE : TIER_COPY,
                           .step = source->step,
                           .unpins = tier_schedule_take_unpins(&tier->schedule)};
    snprintf(job.source, sizeof job.source, "%.4000s/%.64s", t->tiers[source->tier].dir, source->name);
    if (tier->is_replicator) memcpy(job.name, source->name, sizeof job.name);
    tier_schedule_begin(&tier->schedule, source);
    tier_worker_post(&tier->worker, &job);
}

/* Keeps the last replicated checkpoint pinned until a newer one is replicated; otherwise retention would remove it in favour
 * of newer ones that other hosts lack. A copy of pd_tiers_finish was not pinned, since nothing is removed then. */
static void keep_replicated(struct pd_tiers *t, struct tier_schedule *s)
{
    if (s->kept_name[0]) unpin(t, 0, s->kept_name);
    tier_schedule_keep(s, s->source.is_pinned ? s->source.name : "");
}

/* Handles a copy that ended on every rank `idle_ns` ago. */
static void end_copy(struct pd_tiers *t, struct tier *tier, pd_status st, uint64_t idle_ns)
{
    struct tier_schedule *s = &tier->schedule;
    tier_schedule_end(s);
    if (st == PD_OK && tier->is_replicator)
        keep_replicated(t, s);
    else if (s->source.is_pinned)
        unpin(t, s->source.tier, s->source.name);
    if (st == PD_OK)
        tier_schedule_succeed(s, s->source.lineage, s->source.step, tier_worker_job(&tier->worker)->name);
    else if (st != PD_STOPPED)
        tier_schedule_fail(s, t->now_ns > idle_ns ? t->now_ns - idle_ns : 0);
}

/* ---- all ranks ---- */

static pd_status tell(struct pd_tiers *t, struct pd_error *err)
{
    struct tiers_told mine = {.now_ns = pd_clock_monotonic_ns(t->options.clock)};
    for (uint32_t i = 0; i < t->count; i++) {
        struct tier *tier = tiers_worker_at(t, i);
        if (!tier) continue;
        const struct tier_worker_view view = tier_worker_look(&tier->worker);
        mine.workers[i].done = view.done;
        mine.workers[i].status = view.status;
        mine.workers[i].idle_ns = view.idle_ns;
    }
    PD_TRY(pd_group_gather(t->group, 0, &mine, sizeof mine, t->told, err));
    PD_TRY(pd_group_broadcast(t->group, 0, t->told, t->group->size * sizeof mine, err));
    t->now_ns = t->told[0].now_ns;
    return PD_OK;
}

/* Whether the copy has ended on every rank, and the first failure. */
static bool has_ended(const struct pd_tiers *t, uint32_t i, uint64_t posted, pd_status *ret_status)
{
    *ret_status = PD_OK;
    for (uint32_t r = 0; r < t->group->size; r++) {
        if (t->told[r].workers[i].done != posted) return false;
        if (*ret_status == PD_OK) *ret_status = (pd_status)t->told[r].workers[i].status;
    }
    return true;
}

pd_status tiers_sync(struct pd_tiers *t, struct pd_error *err)
{
    if (t->count == 1 && !t->replicator) return PD_OK;
    PD_TRY(tell(t, err));
    for (uint32_t i = 0; i < t->count; i++) {
        struct tier *tier = tiers_worker_at(t, i);
        pd_status st;
        if (!tier || !tier->schedule.is_busy) continue;
        if (!has_ended(t, i, tier_worker_look(&tier->worker).posted, &st)) continue;
        end_copy(t, tier, st, t->told[0].workers[i].idle_ns);
        if (!tiers_is_fatal(st)) continue;
        if (err) tier_report_error(tier, err);
        return pd_error_context(err, st, "tier %s", tier->dir);
    }
    return PD_OK;
}

pd_status tier_await_copy(struct tier *tier, struct pd_error *err)
{
    if (!tier->schedule.is_busy) return PD_OK;
    pd_heartbeat_tier(tier->dir);
    tier_worker_wait(&tier->worker, -1);
    pd_heartbeat_tier("");
    return tiers_sync(tier->tiers, err);
}

/* ---- saves ---- */

pd_status tier_save_into(struct tier *tier, const struct pd_tiers_save *save, uint32_t pins, struct tier_job *ret_job,
                         struct pd_error *err)
{
    const struct pd_identity *identity = &save->state->identity;
    struct pd_error own = {0};
    pd_status st;
    *ret_job = (struct tier_job){.task = TIER_SAVE,
                                 .save = save,
                                 .step = identity->step,
                                 .pins = pins,
                                 .unpins = tier_schedule_take_unpins(&tier->schedule)};
    atomic_store(&tier->tiers->saving_into, tier->number);
    pd_heartbeat_tier(tier->dir);
    if (tier->number == 0) {
        st = tier_run_job(tier, ret_job, &own);
    } else {
        tier_worker_post(&tier->worker, ret_job);
        tier_worker_wait(&tier->worker, -1);
        st = tier_worker_look(&tier->worker).status;
        *ret_job = *tier_worker_job(&tier->worker);
        tier_report_error(tier, &own);
    }
    pd_heartbeat_tier("");
    if (st == PD_OK) tier_schedule_succeed(&tier->schedule, identity->lineage, identity->step, ret_job->name);
    if (st && !tiers_is_fatal(st)) tier_schedule_fail(&tier->schedule, tier->tiers->now_ns);
    return pd_error_pass(err, st, &own);
}
