/* Opening, closing and looking: what the tiers of a run hold. tiers_save.c decides what goes where, tiers_job.c does it. */
#include "ckpt/base/log.h"
#include "ckpt/tiers_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

pd_status tier_open_store(struct tier *tier, bool writable, struct pd_error *err)
{
    struct pd_tiers *t = tier->tiers;
    const struct pd_store_options options = {.writable = writable,
                                             .keep_last = tier->options.keep_last,
                                             .keep_every = tier->in_memory ? 0 : tier->options.keep_every,
                                             .quarantine_bytes_max = tier->in_memory ? 1 : t->options.quarantine_bytes_max,
                                             .busy_wait_ms = t->options.busy_wait_ms,
                                             .generations = t->options.generations && tier->number == 0};
    PD_TRY(pd_store_open(t->door, tier->dir, &options, tier->group, &tier->store, err));
    tier->is_writable = writable;
    if (pd_store_fence(tier->store) > tier->fence) tier->fence = pd_store_fence(tier->store);
    if (t->index) pd_store_set_index(tier->store, t->index, t->index_bytes);
    return PD_OK;
}

/* Any rank's yes. */
static pd_status any_rank(struct pd_tiers *t, struct tier *tier, bool mine, bool *ret_any, struct pd_error *err)
{
    uint64_t word = mine, *all = (uint64_t *)t->told;
    PD_TRY(pd_group_gather(tier->group, 0, &word, sizeof word, all, err));
    PD_TRY(pd_group_broadcast(tier->group, 0, all, sizeof word * tier->group->size, err));
    *ret_any = false;
    for (uint32_t r = 0; r < tier->group->size; r++)
        *ret_any = *ret_any || all[r];
    return PD_OK;
}

static pd_status share_bandwidth(struct pd_tiers *t, struct tier *tier, struct pd_error *err)
{
    uint64_t host = tier->group->host, *all = (uint64_t *)t->told, here = 0;
    PD_TRY(pd_group_gather(tier->group, 0, &host, sizeof host, all, err));
    PD_TRY(pd_group_broadcast(tier->group, 0, all, sizeof host * tier->group->size, err));
    for (uint32_t r = 0; r < tier->group->size; r++)
        here += all[r] == host;
    tier->bytes_per_second = tier->options.bandwidth / here;
    if (tier->options.bandwidth && !tier->bytes_per_second) tier->bytes_per_second = 1;
    return PD_OK;
}

static void look_at_newest(struct tier *tier)
{
    struct pd_store_entry none = {0};
    const struct pd_store_entry *entry = pd_store_count(tier->store) ? pd_store_entry_at(tier->store, 0) : &none;
    tier->newest_lineage = entry->lineage;
    tier->newest_step = tier->report.newest_step = entry->step;
    if (entry->lineage > tier->tiers->lineage) tier->tiers->lineage = entry->lineage;
}

static pd_status open_tier(struct pd_tiers *t, struct tier *tier, struct pd_error *err)
{
    struct pd_space space = {0};
    pd_status st = pd_door_space(t->door, tier->dir, &space, err);
    PD_TRY(pd_group_agree(tier->group, pd_error_context(err, st, "checkpoint directory %s", tier->dir), err));
    PD_TRY(any_rank(t, tier, space.in_memory, &tier->in_memory, err));
    tier->report.in_memory = tier->in_memory;
    if (tier->in_memory && tier->options.keep_every && tier->group->rank == 0)
        pd_log_warn(TIERS_MODULE, "%s is in memory: keep_every does not count there", tier->dir);
    PD_TRY(share_bandwidth(t, tier, err));
    struct pd_error full = {0};
    st = tier_open_store(tier, !t->options.read_only, &full);
    if (st == PD_NO_SPACE && t->count > 1) {
        tier->failures = tier->report.failures = 1;
        snprintf(tier->report.cause, sizeof tier->report.cause, "%.255s", full.message);
        if (tier->group->rank == 0)
            pd_log_error(TIERS_MODULE, "%s is full and only read from until it has room: %s", tier->dir, full.message);
        st = tier_open_store(tier, false, &full);
    }
    if (st) {
        if (err) *err = full;
        return st;
    }
    look_at_newest(tier);
    return PD_OK;
}

/* Two runs in one list of tiers would take each other's checkpoints for their own. */
static pd_status check_run(struct pd_tiers *t, struct tier *tier, struct pd_commit *first, struct tier **ret_first,
                           struct pd_error *err)
{
    struct pd_commit commit = {0};
    if (!pd_store_count(tier->store)) return PD_OK;
    pd_status st = pd_store_read_commit(tier->store, pd_store_entry_at(tier->store, 0), &commit, err);
    if (st == PD_CORRUPT) return PD_OK; /* whoever loads it finds that out, and puts it aside */
    PD_TRY(st);
    if (!*ret_first) {
        *first = commit;
        *ret_first = tier;
        return PD_OK;
    }
    const struct pd_identity *a = &first->state.identity, *b = &commit.state.identity;
    if (memcmp(a->run_id, b->run_id, sizeof a->run_id) != 0)
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0,
                          "%s holds checkpoints of run %016" PRIx64 " and %s of run %016" PRIx64
                          ": give each run directories of its own, or move those of the other run away",
                          (*ret_first)->dir, a->run_id[0], tier->dir, b->run_id[0]);
    pd_commit_deinit(&commit);
    (void)t;
    return st;
}

static pd_status open_all(struct pd_tiers *t, struct pd_error *err)
{
    struct pd_commit first = {0};
    struct tier *holder = NULL;
    for (uint32_t i = 0; i < t->count; i++)
        PD_TRY(open_tier(t, &t->tiers[i], err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; !st && i < t->count; i++)
        st = check_run(t, &t->tiers[i], &first, &holder, err);
    pd_commit_deinit(&first);
    return st;
}

static void init_tier(struct pd_tiers *t, uint32_t number)
{
    struct tier *tier = &t->tiers[number];
    pthread_condattr_t attributes;
    tier->tiers = t;
    tier->number = number;
    tier->options = t->options.tiers[number];
    tier->group = t->options.groups[number];
    snprintf(tier->dir, sizeof tier->dir, "%s", tier->options.dir);
    tier->options.dir = tier->report.dir = tier->dir;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&tier->mutex, NULL);
    pthread_cond_init(&tier->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

static pd_status make_room_for(struct pd_tiers *t, struct pd_error *err)
{
    t->told = calloc(t->group->size, PD_TIERS_MAX * sizeof *t->told);
    bool has_all = t->told != NULL;
    for (uint32_t i = 1; has_all && i < t->count; i++)
        has_all = (t->tiers[i].staging = aligned_alloc(PD_DOOR_ALIGN, PD_TIERS_STAGING_BYTES)) != NULL;
    if (!has_all) PD_FAIL(err, PD_NO_MEMORY, "no memory to copy checkpoints between %u tiers", t->count);
    return PD_OK;
}

pd_status pd_tiers_open(struct pd_door *door, const struct pd_tiers_options *options, struct pd_tiers **ret_tiers,
                        struct pd_error *err)
{
    PD_CHECK(options->count > 0 && options->count <= PD_TIERS_MAX);
    struct pd_tiers *t = calloc(1, sizeof *t);
    pd_status st = t ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for tiers");
    if (t) {
        *t = (struct pd_tiers){.door = door, .group = options->groups[0], .options = *options, .count = options->count};
        for (uint32_t i = 0; i < t->count; i++)
            init_tier(t, i);
        st = make_room_for(t, err);
    }
    st = pd_group_agree(options->groups[0], st, err);
    if (!st) st = open_all(t, err);
    if (st) {
        pd_tiers_close(t);
        return st;
    }
    *ret_tiers = t;
    return PD_OK;
}

pd_status pd_tiers_start(struct pd_tiers *t, struct pd_error *err)
{
    pd_status st = PD_OK;
    for (uint32_t i = 0; i < t->count; i++)
        look_at_newest(&t->tiers[i]); /* what was damaged is aside by now */
    for (uint32_t i = 1; !st && i < t->count; i++)
        st = tier_start_thread(&t->tiers[i], err);
    t->is_started = true;
    return pd_group_agree(t->group, st, err);
}

void pd_tiers_close(struct pd_tiers *t)
{
    if (!t) return;
    for (uint32_t i = 0; i < t->count; i++)
        tier_end_thread(&t->tiers[i]);
    for (uint32_t i = 0; i < t->count; i++) {
        struct tier *tier = &t->tiers[i];
        pd_store_close(tier->store);
        pthread_cond_destroy(&tier->changed);
        pthread_mutex_destroy(&tier->mutex);
        free(tier->staging);
    }
    free(t->told);
    free(t);
}

/* ---- looking ---- */

uint32_t pd_tiers_count(const struct pd_tiers *t)
{
    return t->count;
}

const struct pd_shard_codec *pd_tiers_codec(const struct pd_tiers *tiers, uint32_t tier)
{
    PD_CHECK(tier < tiers->count);
    return &tiers->tiers[tier].options.codec;
}

struct pd_store *pd_tiers_store(struct pd_tiers *t, uint32_t tier)
{
    PD_CHECK(tier < t->count && (tier == 0 || !t->is_started));
    return t->tiers[tier].store;
}

uint64_t pd_tiers_fence(const struct pd_tiers *t)
{
    uint64_t fence = 0;
    for (uint32_t i = 0; i < t->count; i++)
        fence = t->tiers[i].fence > fence ? t->tiers[i].fence : fence;
    return fence;
}

uint64_t pd_tiers_lineage(const struct pd_tiers *t)
{
    return t->lineage;
}

bool pd_tiers_newest(const struct pd_tiers *t, uint32_t *ret_tier, struct pd_store_entry *ret_entry)
{
    const struct pd_store_entry *best = NULL;
    PD_CHECK(!t->is_started);
    for (uint32_t i = 0; i < t->count; i++) {
        if (!pd_store_count(t->tiers[i].store)) continue;
        const struct pd_store_entry *entry = pd_store_entry_at(t->tiers[i].store, 0);
        const bool is_newer =
            !best || entry->lineage > best->lineage || (entry->lineage == best->lineage && entry->step > best->step);
        if (!is_newer) continue;
        best = entry;
        *ret_tier = i;
    }
    if (best) *ret_entry = *best;
    return best;
}

void pd_tiers_set_index(struct pd_tiers *t, const void *data, uint64_t bytes)
{
    t->index = data;
    t->index_bytes = bytes;
    for (uint32_t i = 0; i < t->count; i++)
        pd_store_set_index(t->tiers[i].store, data, bytes);
}

bool pd_tiers_is_due(const struct pd_tiers *t, uint64_t step)
{
    for (uint32_t i = 0; i < t->count; i++) {
        const uint64_t every = t->tiers[i].options.every;
        if (!t->tiers[i].is_left_out && every && step % every == 0) return true;
    }
    return false;
}

void pd_tiers_report(struct pd_tiers *t, uint32_t number, struct pd_tier_report *ret_report)
{
    PD_CHECK(number < t->count);
    struct tier *tier = &t->tiers[number];
    pthread_mutex_lock(&tier->mutex);
    *ret_report = tier->report;
    pthread_mutex_unlock(&tier->mutex);
}
