/* Saves into the first tier that is due and works, then starts copies to later tiers and to other hosts. */
#include "ckpt/tiers/internal.h"

#include <stdio.h>
#include <string.h>

static bool is_due(const struct tier *tier, const struct pd_tiers_save *save)
{
    const uint64_t step = save->state->identity.step;
    return save->is_due_everywhere || (tier->options.every && step % tier->options.every == 0);
}

static bool is_backing_off(const struct tier *tier)
{
    return tier->schedule.failures && tier->tiers->now_ns < tier->schedule.retry_ns;
}

static uint32_t order_tiers(const struct pd_tiers *t, const struct pd_tiers_save *save, uint32_t *ret_order)
{
    struct tier_candidate candidates[PD_TIERS_MAX];
    for (uint32_t i = 0; i < t->count; i++)
        candidates[i] = (struct tier_candidate){t->tiers[i].is_left_out || t->tiers[i].is_remote, is_due(&t->tiers[i], save),
                                                t->tiers[i].schedule.failures > 0, is_backing_off(&t->tiers[i])};
    return tier_order(candidates, t->count, ret_order);
}

/* ---- copies ---- */

static struct tier_target look_at(struct tier *tier, bool is_open, bool is_due_now)
{
    const struct tier_schedule *s = &tier->schedule;
    return (struct tier_target){.is_open = is_open,
                                .is_due = is_due_now || s->failures,
                                .is_busy = s->is_busy,
                                .is_backing_off = is_backing_off(tier),
                                .is_pending = s->is_pending,
                                .pending_step = s->pending_step,
                                .keep_every = tier->options.keep_every};
}

/* Finds the step in the first tier, saved by this launch. NULL: retention has removed it. */
static const struct pd_store_entry *find_milestone(const struct pd_tiers *t, uint64_t step)
{
    const struct pd_store *store = t->tiers[0].store;
    for (uint32_t i = 0; step && i < pd_store_count(store); i++) {
        const struct pd_store_entry *entry = pd_store_entry_at(store, i);
        if (entry->step == step && entry->fence == pd_store_fence(store)) return entry;
    }
    return NULL;
}

/* The save has pinned `committed` for this copy. */
static void begin_planned(struct pd_tiers *t, const struct tier_planned *planned, const struct tier_source *committed)
{
    struct tier *tier = tiers_worker_at(t, planned->to);
    const struct pd_store_entry *milestone = find_milestone(t, planned->milestone);
    struct tier_source source = *committed;
    uint64_t gives_way = 0;
    if (milestone) {
        source.lineage = milestone->lineage;
        source.step = milestone->step;
        snprintf(source.name, sizeof source.name, "%s", milestone->name);
        pd_store_pin(t->tiers[0].store, milestone);
        pd_store_unpin(t->tiers[0].store, committed->name);
    } else if (tier->schedule.is_pending) {
        tier_schedule_set_pending(&tier->schedule, source.step, &gives_way);
    }
    if (gives_way) tier_report_skip(tier, gives_way, source.step);
    tier_begin_copy(tier, &source);
}

static void set_pending(struct tier *tier, uint64_t step)
{
    uint64_t gives_way;
    tier_schedule_set_pending(&tier->schedule, step, &gives_way);
    if (gives_way) tier_report_skip(tier, gives_way, step);
}

static void hand_on(struct pd_tiers *t, const struct tier_plan *plan, const struct tier_source *committed)
{
    for (uint32_t i = 0; i < plan->copy_count; i++)
        begin_planned(t, &plan->copies[i], committed);
    for (uint32_t i = 0; i < plan->pending_count; i++)
        set_pending(tiers_worker_at(t, plan->pending[i]), committed->step);
}

/* ---- a save ---- */

/* After a failure of a save that had begun: true if the next tier can be tried for the same step. */
static bool is_still_there(struct pd_tiers *t, const struct pd_tiers_save *save)
{
    struct pd_error ignored = {0};
    const bool mine = save->hold && save->hold(save->context);
    return pd_group_agree(t->group, mine ? PD_OK : PD_STOPPED, &ignored) == PD_OK;
}

static pd_status save_and_hand_on(struct pd_tiers *t, uint32_t number, const struct pd_tiers_save *save,
                                  struct tier_job *ret_job, struct pd_error *err)
{
    const struct pd_identity *identity = &save->state->identity;
    struct tier *tier = &t->tiers[number];
    struct tier_source committed = {.tier = number, .lineage = identity->lineage, .step = identity->step, .is_pinned = true};
    struct tier_plan plan;
    PD_TRY(tier_await_copy(tier, err));
    /* Plan the copies of this checkpoint. Other hosts get every checkpoint of the first tier. */
    struct tier_target targets[PD_TIERS_MAX] = {{0}};
    if (tier_replicator_works(t)) targets[0] = look_at(t->replicator, true, true);
    for (uint32_t i = 1; i < t->count; i++)
        targets[i] = look_at(&t->tiers[i], !t->tiers[i].is_left_out, is_due(&t->tiers[i], save));
    tier_plan_copies(targets, t->count, number, &plan);
    PD_TRY(tier_save_into(tier, save, plan.copy_count, ret_job, err));
    tier_schedule_clear_pending(&tier->schedule);
    memcpy(committed.name, ret_job->name, sizeof committed.name);
    hand_on(t, &plan, &committed);
    return PD_OK;
}

pd_status pd_tiers_save(struct pd_tiers *t, const struct pd_tiers_save *save, uint32_t *ret_tier, struct pd_error *err)
{
    const struct pd_identity *identity = &save->state->identity;
    uint32_t order[PD_TIERS_MAX];
    pd_status st = pd_error_set(err, PD_NO_SPACE, PD_WHERE, 0, "every tier is left out of saves");
    memcpy(t->run_id, identity->run_id, sizeof t->run_id);
    PD_TRY(tiers_sync(t, err));
    const uint32_t count = order_tiers(t, save, order);
    for (uint32_t i = 0; i < count; i++) {
        struct tier_job job = {0};
        st = save_and_hand_on(t, order[i], save, &job, err);
        if (st == PD_OK) *ret_tier = order[i];
        if (st == PD_OK || tiers_is_fatal(st)) return st;
        if (job.has_begun && i + 1 < count && !is_still_there(t, save)) break;
    }
    for (uint32_t i = 1; i < t->count; i++)
        if (is_due(&t->tiers[i], save) && !t->tiers[i].is_left_out && !is_backing_off(&t->tiers[i]))
            set_pending(&t->tiers[i], identity->step);
    return st;
}
