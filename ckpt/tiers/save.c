/* Which tier gets what. Every decision follows from the options, the step and what all ranks told each other (settle), so it
 * is the same on every rank without asking again.
 *
 *   a tier:  idle --post--> busy --done on every rank, settle--> idle
 *            due while busy: owed; owed and idle at a later save: gets the newest step, or the owed one where it is a
 *            milestone and still there
 */
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/tiers/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define POLL_SECONDS 0.05

/* ---- what has ended ---- */

static void let_go(struct pd_tiers *t, struct tier *tier)
{
    struct tier *source = &t->tiers[tier->source];
    if (!tier->source_name[0]) return;
    if (tier->source == 0)
        pd_store_unpin(source->store, tier->source_name);
    else if (source->free.count < PD_TIERS_MAX)
        memcpy(source->free.names[source->free.count++], tier->source_name, sizeof tier->source_name);
}

/* Retention would let it go for newer ones that other hosts lack. One without a pin of its own needs none: see bring. */
static void keep_copied(struct pd_tiers *t, struct tier *copier)
{
    if (copier->kept_name[0]) pd_store_unpin(t->tiers[0].store, copier->kept_name);
    memcpy(copier->kept_name, copier->source_name, sizeof copier->kept_name);
}

static void count_failure(struct tier *tier)
{
    tier->failures++;
    const uint32_t power = tier->failures - 1 < 6 ? tier->failures - 1 : 6;
    tier->passes = (1u << power) - 1;
}

static void count_success(struct tier *tier, uint64_t lineage, uint64_t step, const char name[64])
{
    tier->failures = tier->passes = 0;
    tier->newest_lineage = lineage;
    tier->newest_step = step;
    memcpy(tier->newest_name, name, sizeof tier->newest_name);
}

/* The saver's own thread works in the first tier, so that its place is the copier's. NULL: nobody's. */
static struct tier *helper_at(struct pd_tiers *t, uint32_t i)
{
    return i ? &t->tiers[i] : t->copier;
}

/* A copy that has ended on every rank. */
static void take_result(struct pd_tiers *t, struct tier *tier, pd_status st)
{
    tier->is_busy = false;
    if (st == PD_OK && tier->is_copier)
        keep_copied(t, tier);
    else
        let_go(t, tier);
    if (st == PD_OK)
        count_success(tier, tier->copied_lineage, tier->job.step, tier->job.name);
    else if (st != PD_STOPPED)
        count_failure(tier);
}

/* All ranks tell how far their threads are. */
static pd_status settle(struct pd_tiers *t, struct pd_error *err)
{
    struct tiers_told mine[PD_TIERS_MAX] = {0};
    if (t->count == 1 && !t->copier) return PD_OK;
    for (uint32_t i = 0; i < t->count; i++) {
        struct tier *tier = helper_at(t, i);
        if (!tier) continue;
        pthread_mutex_lock(&tier->mutex);
        mine[i] = (struct tiers_told){tier->done, tier->status};
        pthread_mutex_unlock(&tier->mutex);
    }
    PD_TRY(pd_group_gather(t->group, 0, mine, sizeof mine, t->told, err));
    PD_TRY(pd_group_broadcast(t->group, 0, t->told, t->group->size * sizeof mine, err));
    for (uint32_t i = 0; i < t->count; i++) {
        struct tier *tier = helper_at(t, i);
        pd_status st = PD_OK;
        bool is_done = tier && tier->is_busy;
        for (uint32_t r = 0; r < t->group->size; r++) {
            const struct tiers_told *told = &t->told[r * PD_TIERS_MAX + i];
            is_done = is_done && told->done == tier->issued;
            if (st == PD_OK) st = (pd_status)told->status;
        }
        if (!is_done) continue;
        take_result(t, tier, st);
        if (tiers_is_fatal(st)) {
            if (err) *err = tier->error;
            return pd_error_context(err, st, "tier %s", tier->dir);
        }
    }
    return PD_OK;
}

/* ---- the tier that is saved into ---- */

static bool is_due(const struct tier *tier, const struct pd_tiers_save *save)
{
    const uint64_t step = save->state->identity.step;
    return save->is_due_everywhere || (tier->options.every && step % tier->options.every == 0);
}

/* 0: due and works; 1: works; 2: due, failed lately; 3: failed lately. */
static uint32_t rank_of(const struct tier *tier, const struct pd_tiers_save *save)
{
    return (tier->failures && (tier->passes || !is_due(tier, save)) ? 2 : 0) + !is_due(tier, save);
}

static uint32_t order_tiers(struct pd_tiers *t, const struct pd_tiers_save *save, uint32_t *ret_order)
{
    uint32_t count = 0;
    for (uint32_t wanted = 0; wanted < 4; wanted++)
        for (uint32_t i = 0; i < t->count; i++)
            if (!t->tiers[i].is_left_out && rank_of(&t->tiers[i], save) == wanted) ret_order[count++] = i;
    return count;
}

/* A tier that is passed over for some more times counts those at which it would be due. */
static void count_pass(struct tier *tier, const struct pd_tiers_save *save)
{
    tier->is_passed = tier->passes && is_due(tier, save);
    if (tier->is_passed) tier->passes--;
}

static void count_passes(struct pd_tiers *t, const struct pd_tiers_save *save)
{
    for (uint32_t i = 0; i < t->count; i++)
        count_pass(&t->tiers[i], save);
    if (t->copier) count_pass(t->copier, save);
}

/* Later tiers that will get a copy of what is sealed in tier `from` now. */
static bool gets_copy(const struct tier *tier, uint32_t from, const struct pd_tiers_save *save)
{
    if (tier->number <= from || tier->is_left_out || tier->is_busy || tier->is_passed) return false;
    return tier->is_owed || is_due(tier, save);
}

/* Other hosts will get what is sealed in tier `from` now. */
static bool copier_takes(const struct pd_tiers *t, uint32_t from)
{
    return from == 0 && tier_copier_works(t) && !t->copier->is_busy && !t->copier->is_passed;
}

static uint32_t count_copies(const struct pd_tiers *t, uint32_t from, const struct pd_tiers_save *save)
{
    uint32_t copies = copier_takes(t, from);
    for (uint32_t i = from + 1; i < t->count; i++)
        copies += gets_copy(&t->tiers[i], from, save);
    return copies;
}

static struct tier_job save_job(struct pd_tiers *t, struct tier *tier, const struct pd_tiers_save *save)
{
    struct tier_job job = {.task = TIER_SAVE,
                           .save = save,
                           .step = save->state->identity.step,
                           .pins = count_copies(t, tier->number, save),
                           .unpin = tier->free};
    tier->free.count = 0;
    if (t->copier) t->copier->is_awaited = copier_takes(t, tier->number);
    return job;
}

/* *ret_job: what came of it, in full. */
static pd_status save_into(struct pd_tiers *t, struct tier *tier, const struct pd_tiers_save *save, struct tier_job *ret_job,
                           struct pd_error *err)
{
    struct pd_error own = {0};
    pd_status st;
    if (tier->number > 0) {
        if (tier->is_busy) {
            tier_wait(tier, -1);
            PD_TRY(settle(t, err));
        }
        *ret_job = save_job(t, tier, save);
        tier_post(tier, ret_job);
        tier_wait(tier, -1);
        *ret_job = tier->job;
        st = tier->status;
        own = tier->error;
    } else {
        *ret_job = save_job(t, tier, save);
        st = tier->status = tier_run_job(tier, ret_job, &own);
        tier->error = own;
        tier_report_result(tier, ret_job->step, st, &own);
    }
    if (st && err) *err = own;
    return st;
}

/* ---- the tiers that get copies ---- */

static void say_skip(struct tier *tier, uint64_t skipped, uint64_t by)
{
    pthread_mutex_lock(&tier->mutex);
    tier->report.skipped++;
    pthread_mutex_unlock(&tier->mutex);
    if (!tier->said_skip && tier->group->rank == 0)
        pd_log_warn(TIERS_MODULE,
                    "%s cannot keep up: step %" PRIu64 " gives way to step %" PRIu64
                    ", and so will others; save into it less often",
                    tier->dir, skipped, by);
    tier->said_skip = true;
}

static void owe(struct tier *tier, uint64_t step)
{
    if (tier->is_owed && tier->owed_step != step) say_skip(tier, tier->owed_step, step);
    tier->is_owed = true;
    tier->owed_step = step;
}

/* A milestone that waited is copied itself while the first tier still has it. */
static const struct pd_store_entry *owed_milestone(const struct pd_tiers *t, const struct tier *tier)
{
    const struct pd_store *store = t->tiers[0].store;
    if (!store || !tier->options.keep_every || tier->owed_step % tier->options.keep_every) return NULL;
    for (uint32_t i = 0; i < pd_store_count(store); i++) {
        const struct pd_store_entry *entry = pd_store_entry_at(store, i);
        if (entry->step == tier->owed_step && entry->fence == pd_store_fence(store)) return entry;
    }
    return NULL;
}

static void post_copy(struct pd_tiers *t, struct tier *tier, uint32_t from, const char *name, uint64_t step,
                      uint64_t lineage)
{
    struct tier_job job = {.task = tier->is_copier ? TIER_PEER : TIER_COPY, .step = step, .unpin = tier->free};
    tier->free.count = 0;
    snprintf(job.source, sizeof job.source, "%.4000s/%.64s", t->tiers[from].dir, name);
    tier->source = from;
    snprintf(tier->source_name, sizeof tier->source_name, "%s", name);
    if (tier->is_copier) memcpy(job.name, tier->source_name, sizeof job.name);
    tier->copied_lineage = lineage;
    tier->is_busy = true;
    tier->is_owed = false;
    tier_post(tier, &job);
}

static void hand_to_hosts(struct pd_tiers *t, const struct pd_identity *identity, const char *name)
{
    struct tier *copier = t->copier;
    if (copier && copier->is_awaited) {
        if (copier->is_owed && copier->owed_step != identity->step) say_skip(copier, copier->owed_step, identity->step);
        post_copy(t, copier, 0, name, identity->step, identity->lineage);
    } else if (tier_copier_works(t) && !copier->is_passed) {
        owe(copier, identity->step);
    }
}

/* What was sealed in tier `from` goes to those behind it. In the first tier it is pinned here; a later one has pinned it. */
static void hand_on(struct pd_tiers *t, uint32_t from, const struct pd_tiers_save *save, const char *name)
{
    const uint64_t step = save->state->identity.step, lineage = save->state->identity.lineage;
    if (from == 0) hand_to_hosts(t, &save->state->identity, name);
    for (uint32_t i = from + 1; i < t->count; i++) {
        struct tier *tier = &t->tiers[i];
        const struct pd_store_entry *milestone = NULL;
        if (!gets_copy(tier, from, save)) {
            if (is_due(tier, save) && !tier->is_left_out && !tier->is_passed) owe(tier, step);
            continue;
        }
        if (tier->is_owed && !is_due(tier, save) && from == 0) milestone = owed_milestone(t, tier);
        if (tier->is_owed && !milestone && tier->owed_step != step) say_skip(tier, tier->owed_step, step);
        if (milestone) {
            const struct pd_store_entry entry = *milestone;
            pd_store_pin(t->tiers[0].store, milestone);
            pd_store_unpin(t->tiers[0].store, name); /* pinned for this copy, which will be of another */
            post_copy(t, tier, 0, entry.name, entry.step, entry.lineage);
        } else {
            post_copy(t, tier, from, name, step, lineage);
        }
    }
}

/* A save that had begun has failed: whether the next tier can be asked for the same step. */
static bool is_still_there(struct pd_tiers *t, const struct pd_tiers_save *save)
{
    struct pd_error ignored = {0};
    const bool mine = save->hold && save->hold(save->context);
    return pd_group_agree(t->group, mine ? PD_OK : PD_STOPPED, &ignored) == PD_OK;
}

pd_status pd_tiers_save(struct pd_tiers *t, const struct pd_tiers_save *save, uint32_t *ret_tier, struct pd_error *err)
{
    const struct pd_identity *identity = &save->state->identity;
    uint32_t order[PD_TIERS_MAX];
    pd_status st = pd_error_set(err, PD_NO_SPACE, PD_WHERE, 0, "every tier is left out of saves");
    memcpy(t->run_id, identity->run_id, sizeof t->run_id);
    PD_TRY(settle(t, err));
    const uint32_t count = order_tiers(t, save, order);
    count_passes(t, save);
    for (uint32_t i = 0; i < count; i++) {
        struct tier *tier = &t->tiers[order[i]];
        struct tier_job job;
        st = save_into(t, tier, save, &job, err);
        if (st == PD_OK) {
            count_success(tier, identity->lineage, identity->step, job.name);
            tier->is_owed = false;
            hand_on(t, order[i], save, job.name);
            *ret_tier = order[i];
            return PD_OK;
        }
        if (tiers_is_fatal(st)) return st;
        count_failure(tier);
        if (job.has_begun && i + 1 < count && !is_still_there(t, save)) break;
    }
    for (uint32_t i = 1; i < t->count; i++)
        if (is_due(&t->tiers[i], save) && !t->tiers[i].is_left_out && !t->tiers[i].is_passed)
            owe(&t->tiers[i], identity->step);
    return st;
}

/* ---- the way out ---- */

static bool has_step(const struct tier *tier, const struct pd_tiers_save *last)
{
    const struct pd_identity *identity = &last->state->identity;
    return tier->newest_lineage == identity->lineage && tier->newest_step == identity->step;
}

/* The first tier that has it; the count of tiers: none. */
static uint32_t holder_of(const struct pd_tiers *t, const struct pd_tiers_save *last)
{
    uint32_t i = 0;
    while (i < t->count && !has_step(&t->tiers[i], last))
        i++;
    return i;
}

/* As far as this rank knows. True too where nothing outlives a reboot. */
static bool is_persistent(struct pd_tiers *t, const struct pd_tiers_save *last)
{
    bool may = false;
    for (uint32_t i = 0; i < t->count; i++) {
        struct tier *tier = &t->tiers[i];
        if (tier->in_memory || tier->is_left_out) continue;
        may = true;
        if (has_step(tier, last)) return true;
        pthread_mutex_lock(&tier->mutex);
        const bool is_there = tier->is_busy && tier->done == tier->issued && tier->status == PD_OK &&
                              tier->job.step == last->state->identity.step;
        pthread_mutex_unlock(&tier->mutex);
        if (is_there) return true;
    }
    return !may;
}

static void give_up_copies(struct pd_tiers *t, uint64_t other_than)
{
    for (uint32_t i = 0; i < t->count; i++) {
        struct tier *tier = helper_at(t, i);
        if (tier && tier->is_busy && tier->job.step != other_than) atomic_store(&tier->stop, true);
    }
}

struct leaving {
    const struct pd_tiers_save *last;
    double seconds;    /* negative: no limit */
    uint64_t since_ns; /* when a tier that outlives a reboot had it; 0: none has it yet */
    bool was_asked[PD_TIERS_MAX];
    bool were_hosts_asked;
};

static void wait_for_copies(struct pd_tiers *t, struct leaving *l)
{
    for (bool is_waiting = true; is_waiting;) {
        is_waiting = false;
        for (uint32_t i = 0; i < t->count; i++) {
            struct tier *tier = helper_at(t, i);
            if (tier && tier->is_busy && !tier_wait(tier, POLL_SECONDS)) is_waiting = true;
        }
        if (l->seconds < 0) continue;
        if (!l->since_ns && is_persistent(t, l->last)) l->since_ns = pd_clock_monotonic_ns(NULL);
        if (l->since_ns && pd_clock_seconds_since(NULL, l->since_ns) >= l->seconds) give_up_copies(t, UINT64_MAX);
    }
}

/* From where it lies; or from memory, where an earlier launch, of another layout maybe, has sealed it, and into the first
 * tier, which has no thread to copy. */
static pd_status bring(struct pd_tiers *t, struct tier *tier, uint32_t holder, struct leaving *l, struct pd_error *err)
{
    const struct pd_identity *identity = &l->last->state->identity;
    struct tier_job job;
    if (tier->number == 0 || holder == t->count || !t->tiers[holder].newest_name[0]) {
        pd_status st = save_into(t, tier, l->last, &job, err);
        if (st == PD_OK) count_success(tier, identity->lineage, identity->step, job.name);
        if (st != PD_OK && !tiers_is_fatal(st)) count_failure(tier);
        return tiers_is_fatal(st) ? st : PD_OK;
    }
    const char *name = t->tiers[holder].newest_name;
    post_copy(t, tier, holder, name, identity->step, identity->lineage);
    tier->source_name[0] = '\0'; /* nothing is removed from there any more */
    return PD_OK;
}

/* The first tier has it, sealed by this launch, and other hosts have no copy. */
static bool lacks_copy(const struct pd_tiers *t, const struct pd_tiers_save *last)
{
    const struct tier *first = &t->tiers[0];
    return tier_copier_works(t) && has_step(first, last) && first->newest_name[0] && !has_step(t->copier, last);
}

static void bring_to_hosts(struct pd_tiers *t, struct leaving *l, bool *ret_any)
{
    const struct pd_identity *identity = &l->last->state->identity;
    if (l->were_hosts_asked || !lacks_copy(t, l->last)) return;
    l->were_hosts_asked = *ret_any = true;
    post_copy(t, t->copier, 0, t->tiers[0].newest_name, identity->step, identity->lineage);
    t->copier->source_name[0] = '\0'; /* nothing is removed from there any more */
}

static pd_status bring_all(struct pd_tiers *t, struct leaving *l, bool *ret_any, struct pd_error *err)
{
    *ret_any = false;
    bring_to_hosts(t, l, ret_any);
    for (uint32_t i = 0; i < t->count; i++) {
        struct tier *tier = &t->tiers[i];
        const uint32_t holder = holder_of(t, l->last);
        if (tier->is_left_out || l->was_asked[i] || has_step(tier, l->last)) continue;
        if (l->seconds >= 0 && holder < t->count && i < holder) continue; /* safe enough for who is asked to leave */
        l->was_asked[i] = *ret_any = true;
        PD_TRY(bring(t, tier, holder, l, err));
    }
    return PD_OK;
}

static pd_status say_lack(struct pd_tiers *t, const struct tier *tier, const struct leaving *l, struct pd_error *err)
{
    const uint32_t holder = holder_of(t, l->last);
    const char *cause = tier->error.message[0] ? tier->error.message : tier->report.cause;
    const pd_status st = tier->status ? tier->status : PD_IO;
    pd_error_set(err, st, PD_WHERE, 0, "%.600s", cause[0] ? cause : "it was not saved");
    return pd_error_context(err, st, "%s did not get the last step, %" PRIu64 "%s%s", tier->dir,
                            l->last->state->identity.step, holder < t->count ? ", which is safe in " : "",
                            holder < t->count ? t->tiers[holder].dir : "");
}

/* Nobody relies on what lies in memory when a run has ended: that is said. Whatever else lacks the step is an error. */
static pd_status judge_leaving(struct pd_tiers *t, const struct leaving *l, struct pd_error *err)
{
    pd_status result = PD_OK;
    if (l->seconds >= 0 && is_persistent(t, l->last)) return PD_OK;
    for (uint32_t i = 0; i <= t->count; i++) {
        const struct tier *tier = i < t->count ? &t->tiers[i] : t->copier;
        struct pd_error own = {0};
        if (i == t->count && !lacks_copy(t, l->last)) continue;
        if (tier->is_left_out || has_step(tier, l->last) || (l->seconds >= 0 && tier->in_memory)) continue;
        const pd_status st = say_lack(t, tier, l, &own);
        const bool counts = !tier->in_memory;
        if (counts && !result && err) *err = own;
        if ((!counts || result) && t->group->rank == 0) pd_log_warn(TIERS_MODULE, "%s", own.message);
        if (counts && !result) result = st;
    }
    return result;
}

/* What copies held back from the last pruning. */
static pd_status prune_first(struct pd_tiers *t, struct pd_error *err)
{
    struct tier *tier = &t->tiers[0];
    if ((t->count == 1 && !t->copier) || tier->is_left_out || !tier->is_writable) return PD_OK;
    struct pd_error own = {0};
    pd_status st = pd_store_prune(tier->store, &own);
    if (tiers_is_fatal(st) && err) *err = own;
    return tiers_is_fatal(st) ? st : PD_OK;
}

pd_status pd_tiers_finish(struct pd_tiers *t, const struct pd_tiers_save *last, double leave_seconds, struct pd_error *err)
{
    struct leaving l = {.last = last, .seconds = leave_seconds};
    if (t->count == 1 && !t->copier) return PD_OK; /* saved, so it is there */
    if (leave_seconds >= 0) give_up_copies(t, last->state->identity.step);
    for (bool any = true; any;) {
        wait_for_copies(t, &l);
        PD_TRY(settle(t, err));
        PD_TRY(bring_all(t, &l, &any, err));
    }
    PD_TRY(prune_first(t, err));
    return judge_leaving(t, &l, err);
}
