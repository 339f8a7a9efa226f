/* The end of a run: brings the last step to every tier and to other hosts. */
#include "ckpt/base/backoff.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "ckpt/tiers/internal.h"

#include <inttypes.h>
#include <string.h>

#define POLL_SECONDS 0.05
#define RETRY_NS_MAX UINT64_C(15000000000)

struct leaving {
    const struct pd_tiers_save *last;
    double seconds;    /* negative: no limit */
    uint64_t since_ns; /* when a tier that survives a reboot got it; 0: none has it */
    bool was_asked[PD_TIERS_MAX];
    bool were_hosts_asked;
    /* Of the root's clock, as all ranks know it. */
    uint64_t give_up_ns;
    uint64_t retry_ns[PD_TIERS_MAX]; /* 0: its last copy has not failed */
    bool has_said_retry[PD_TIERS_MAX];
};

static bool has_last(const struct tier *tier, const struct leaving *l)
{
    return tier_schedule_has(&tier->schedule, &l->last->state->identity);
}

/* Returns the first tier that has the last step, or the tier count if none has. */
static uint32_t find_last(const struct pd_tiers *t, const struct leaving *l)
{
    uint32_t i = 0;
    while (i < t->count && !has_last(&t->tiers[i], l))
        i++;
    return i;
}

/* True if this launch committed the last step in the first tier and other hosts have no replica. */
static bool lacks_replica(const struct pd_tiers *t, const struct leaving *l)
{
    const struct tier *first = &t->tiers[0];
    return tier_replicator_works(t) && has_last(first, l) && first->schedule.newest_name[0] && !has_last(t->replicator, l);
}

/* ---- waiting ---- */

/* As far as this rank knows, a tier that survives a reboot has the last step. Also true if there is no such tier. */
static bool is_persistent(struct pd_tiers *t, const struct leaving *l)
{
    bool may = false;
    for (uint32_t i = 0; i < t->count; i++) {
        struct tier *tier = &t->tiers[i];
        if (tier->in_memory || tier->is_left_out) continue;
        may = true;
        if (has_last(tier, l)) return true;
        const struct tier_worker_view view = tier_worker_look(&tier->worker);
        if (tier->schedule.is_busy && view.done == view.posted && view.status == PD_OK &&
            view.step == l->last->state->identity.step)
            return true;
    }
    return !may;
}

static void give_up_copies(struct pd_tiers *t, uint64_t other_than)
{
    for (uint32_t i = 0; i < t->count; i++) {
        struct tier *tier = tiers_worker_at(t, i);
        if (tier && tier->schedule.is_busy && tier->schedule.source.step != other_than) tier_worker_give_up(&tier->worker);
    }
}

static void wait_for_copies(struct pd_tiers *t, struct leaving *l)
{
    for (bool is_waiting = true; is_waiting;) {
        is_waiting = false;
        for (uint32_t i = 0; i < t->count; i++) {
            struct tier *tier = tiers_worker_at(t, i);
            if (!tier || !tier->schedule.is_busy) continue;
            pd_heartbeat_tier(tier->dir);
            is_waiting |= !tier_worker_wait(&tier->worker, POLL_SECONDS);
        }
        if (l->seconds < 0) continue;
        if (!l->since_ns && is_persistent(t, l)) l->since_ns = pd_clock_monotonic_ns(NULL);
        if (l->since_ns && pd_clock_seconds_since(l->since_ns) >= l->seconds) give_up_copies(t, UINT64_MAX);
    }
    pd_heartbeat_tier("");
}

/* ---- asking ---- */

/* Needs no pin: nothing more is removed from the source. */
static void copy_last(struct pd_tiers *t, struct tier *tier, uint32_t from, const struct leaving *l)
{
    const struct pd_identity *identity = &l->last->state->identity;
    struct tier_source source = {.tier = from, .lineage = identity->lineage, .step = identity->step};
    memcpy(source.name, t->tiers[from].schedule.newest_name, sizeof source.name);
    tier_begin_copy(tier, &source);
}

/* Uploads do not change files, so a checkpoint that an earlier launch committed will do too. */
static void upload_last(struct pd_tiers *t, struct tier *tier, uint32_t from, const struct leaving *l)
{
    if (from < t->count && t->tiers[from].schedule.newest_name[0]) copy_last(t, tier, from, l);
    if (from > 0 || t->tiers[0].schedule.newest_name[0]) return;
    const struct pd_store *first = t->tiers[0].store;
    for (uint32_t i = 0; i < pd_store_count(first); i++) {
        const struct pd_store_entry *entry = pd_store_entry_at(first, i);
        struct tier_source source = {.lineage = entry->lineage, .step = entry->step};
        if (entry->lineage != l->last->state->identity.lineage || entry->step != l->last->state->identity.step) continue;
        memcpy(source.name, entry->name, sizeof source.name);
        tier_begin_copy(tier, &source);
        return;
    }
}

/* Starts a copy from tier `from`. Saves from memory instead if an earlier launch, maybe with another layout, committed the
 * step there, or if the target is the first tier, which has no worker. */
static pd_status ensure(struct pd_tiers *t, struct tier *tier, uint32_t from, const struct leaving *l, struct pd_error *err)
{
    struct tier_job job;
    if (tier->is_remote) {
        upload_last(t, tier, from, l);
        return PD_OK;
    }
    if (tier->number && from < t->count && t->tiers[from].schedule.newest_name[0]) {
        copy_last(t, tier, from, l);
        return PD_OK;
    }
    PD_TRY(tier_await_copy(tier, err));
    const pd_status st = tier_save_into(tier, l->last, 0, &job, err);
    return tiers_is_fatal(st) ? st : PD_OK;
}

/* When leaving, every second counts, unless no other tier outlives the machine. */
static bool is_safe_elsewhere(const struct pd_tiers *t, const struct leaving *l)
{
    for (uint32_t i = 0; i < t->count; i++)
        if (!t->tiers[i].in_memory && has_last(&t->tiers[i], l)) return true;
    return false;
}

/* A bucket may come back. *ret_waits: it is not time yet. */
static bool is_asked_again(struct pd_tiers *t, struct tier *tier, struct leaving *l, bool *ret_waits)
{
    uint64_t *retry_ns = &l->retry_ns[tier->number];
    if (!tier->is_remote || t->now_ns >= l->give_up_ns || (l->seconds >= 0 && is_safe_elsewhere(t, l))) return false;
    if (!*retry_ns) {
        const uint64_t backoff_ns = pd_backoff_ns(tier->schedule.failures);
        *retry_ns = t->now_ns + (backoff_ns < RETRY_NS_MAX ? backoff_ns : RETRY_NS_MAX);
        if (!l->has_said_retry[tier->number] && t->group->rank == 0)
            pd_log_warn(TIERS_MODULE, "%s does not have the last step, %" PRIu64 ": trying again for %.0f s", tier->dir,
                        l->last->state->identity.step, (double)(l->give_up_ns - t->now_ns) * 1e-9);
        l->has_said_retry[tier->number] = true;
    }
    *ret_waits = t->now_ns < *retry_ns;
    if (!*ret_waits) *retry_ns = 0;
    return !*ret_waits;
}

/* *ret_any: started something. Each tier is tried once, a bucket until give_up_ns. *ret_waits: one is tried again soon. */
static pd_status ensure_all(struct pd_tiers *t, struct leaving *l, bool *ret_any, bool *ret_waits, struct pd_error *err)
{
    *ret_waits = false;
    *ret_any = !l->were_hosts_asked && lacks_replica(t, l);
    if (*ret_any) copy_last(t, t->replicator, 0, l);
    l->were_hosts_asked = l->were_hosts_asked || *ret_any;
    for (uint32_t i = 0; i < t->count; i++) {
        struct tier *tier = &t->tiers[i];
        const uint32_t from = find_last(t, l);
        if (tier->is_left_out || has_last(tier, l)) continue;
        bool waits = false;
        if (l->was_asked[i] && !is_asked_again(t, tier, l, &waits)) {
            *ret_waits |= waits;
            continue;
        }
        if (l->seconds >= 0 && from < t->count && i < from) continue; /* leaving: skip faster tiers */
        l->was_asked[i] = *ret_any = true;
        PD_TRY(ensure(t, tier, from, l, err));
    }
    return PD_OK;
}

/* ---- the end ---- */

static pd_status explain_lack(struct pd_tiers *t, struct tier *tier, const struct leaving *l, struct pd_error *err)
{
    const uint32_t safe = find_last(t, l);
    char cause[600];
    const pd_status st = tier_report_cause(tier, cause);
    pd_error_set(err, st, PD_WHERE, 0, "%s", cause);
    return pd_error_context(err, st, "%s did not get the last step, %" PRIu64 "%s%s", tier->dir,
                            l->last->state->identity.step, safe < t->count ? ", which is safe in " : "",
                            safe < t->count ? t->tiers[safe].dir : "");
}

static bool lacks_last(struct pd_tiers *t, const struct tier *tier, const struct leaving *l)
{
    if (tier->is_replicator) return lacks_replica(t, l);
    return !tier->is_left_out && !has_last(tier, l);
}

/* A tier that lacks the last step is an error: returns the first and logs the others. A tier in memory is only logged, since
 * nobody relies on it after the run. */
static pd_status judge(struct pd_tiers *t, const struct leaving *l, struct pd_error *err)
{
    pd_status result = PD_OK;
    if (l->seconds >= 0 && is_persistent(t, l)) return PD_OK;
    for (uint32_t i = 0; i <= t->count; i++) {
        struct tier *tier = i < t->count ? &t->tiers[i] : t->replicator;
        struct pd_error own = {0};
        if (!tier || !lacks_last(t, tier, l) || (l->seconds >= 0 && tier->in_memory)) continue;
        const pd_status st = explain_lack(t, tier, l, &own);
        const bool is_result = !tier->in_memory && !result;
        if (is_result) result = pd_error_pass(err, st, &own);
        if (!is_result && t->group->rank == 0) pd_log_warn(TIERS_MODULE, "%s", own.message);
    }
    return result;
}

/* Removes checkpoints of the first tier that copies had pinned during the last pruning. */
static pd_status prune_first(struct pd_tiers *t, struct pd_error *err)
{
    struct tier *tier = &t->tiers[0];
    struct pd_error own = {0};
    if (tier->is_left_out || !tier->is_writable) return PD_OK;
    const pd_status st = pd_store_prune(tier->store, &own);
    return tiers_is_fatal(st) ? pd_error_pass(err, st, &own) : PD_OK;
}

pd_status pd_tiers_finish(struct pd_tiers *t, const struct pd_tiers_save *last, double leave_seconds, struct pd_error *err)
{
    struct leaving l = {.last = last, .seconds = leave_seconds};
    if (t->count == 1 && !t->replicator) return PD_OK; /* saved, so it is there */
    if (leave_seconds >= 0) give_up_copies(t, last->state->identity.step);
    for (bool any = true, waits = false; any || waits;) {
        if (waits) pd_clock_sleep_ns((uint64_t)(POLL_SECONDS * 1e9));
        wait_for_copies(t, &l);
        PD_TRY(tiers_sync(t, err));
        if (!l.give_up_ns) l.give_up_ns = t->now_ns + (uint64_t)(t->options.give_up_seconds * 1e9);
        PD_TRY(ensure_all(t, &l, &any, &waits, err));
    }
    PD_TRY(prune_first(t, err));
    return judge(t, &l, err);
}
