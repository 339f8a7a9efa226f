#include "ckpt/tiers/schedule.h"

#include "ckpt/base/backoff.h"

#include <stdio.h>

void tier_schedule_find(struct tier_schedule *s, uint64_t lineage, uint64_t step)
{
    s->newest_lineage = lineage;
    s->newest_step = step;
}

void tier_schedule_fail(struct tier_schedule *s, uint64_t now_ns)
{
    s->failures++;
    s->retry_ns = now_ns + pd_backoff_ns(s->failures - 1);
}

void tier_schedule_succeed(struct tier_schedule *s, uint64_t lineage, uint64_t step, const char *name)
{
    s->failures = 0;
    s->retry_ns = 0;
    s->newest_lineage = lineage;
    s->newest_step = step;
    snprintf(s->newest_name, sizeof s->newest_name, "%s", name);
}

bool tier_schedule_has(const struct tier_schedule *s, const struct pd_identity *identity)
{
    return s->newest_lineage == identity->lineage && s->newest_step == identity->step;
}

void tier_schedule_begin(struct tier_schedule *s, const struct tier_source *source)
{
    s->source = *source;
    s->is_busy = true;
    s->is_pending = false;
}

void tier_schedule_end(struct tier_schedule *s)
{
    s->is_busy = false;
}

void tier_schedule_add_unpin(struct tier_schedule *s, const char *name)
{
    PD_CHECK(s->unpins.count < PD_TIERS_MAX); /* each later tier has at most one running copy */
    snprintf(s->unpins.names[s->unpins.count++], sizeof s->unpins.names[0], "%s", name);
}

struct tier_names tier_schedule_take_unpins(struct tier_schedule *s)
{
    const struct tier_names unpins = s->unpins;
    s->unpins.count = 0;
    return unpins;
}

void tier_schedule_set_pending(struct tier_schedule *s, uint64_t step, uint64_t *ret_gives_way)
{
    *ret_gives_way = s->is_pending && s->pending_step != step ? s->pending_step : 0;
    s->is_pending = true;
    s->pending_step = step;
}

void tier_schedule_clear_pending(struct tier_schedule *s)
{
    s->is_pending = false;
}

void tier_schedule_keep(struct tier_schedule *s, const char *name)
{
    snprintf(s->kept_name, sizeof s->kept_name, "%s", name);
}

/* ---- who copies what ---- */

static uint64_t milestone_of(const struct tier_target *t, uint32_t from)
{
    const bool is_milestone =
        from == 0 && t->is_pending && !t->is_due && t->keep_every && t->pending_step % t->keep_every == 0;
    return is_milestone ? t->pending_step : 0;
}

void tier_plan_copies(const struct tier_target *targets, uint32_t count, uint32_t from, struct tier_plan *ret_plan)
{
    *ret_plan = (struct tier_plan){0};
    for (uint32_t i = 0; i < count; i++) {
        const struct tier_target *t = &targets[i];
        const bool is_behind = i > from || (i == 0 && from == 0);
        if (!is_behind || !t->is_open || t->is_backing_off || !(t->is_due || t->is_pending)) continue;
        if (!t->is_busy)
            ret_plan->copies[ret_plan->copy_count++] = (struct tier_planned){i, milestone_of(t, from)};
        else if (t->is_due)
            ret_plan->pending[ret_plan->pending_count++] = i;
    }
}

/* ---- where a save goes ---- */

/* 0: due and works; 1: works; 2: due, failed lately; 3: failed lately. */
static uint32_t class_of(const struct tier_candidate *t)
{
    return (t->has_failed && (t->is_backing_off || !t->is_due) ? 2 : 0) + !t->is_due;
}

uint32_t tier_order(const struct tier_candidate *tiers, uint32_t count, uint32_t ret_order[PD_TIERS_MAX])
{
    uint32_t found = 0;
    for (uint32_t class = 0; class < 4; class ++)
        for (uint32_t i = 0; i < count; i++)
            if (!tiers[i].is_left_out && class_of(&tiers[i]) == class) ret_order[found++] = i;
    return found;
}
