/* Opening, closing and looking: what the tiers of a run hold. tiers_save.c decides what goes where, tiers_job.c does it. */
#include "ckpt/base/log.h"
#include "ckpt/tiers/internal.h"

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
                                             .generations = t->options.generations && tier->number == 0,
                                             .later_tiers = t->count - 1 - tier->number,
                                             .replicas = tier->options.copies > 0,
                                             .shards = t->options.shards,
                                             .stripes = writable && tier->number == 0 ? t->options.stripes : NULL};
    PD_TRY(pd_store_open(t->vfs, tier->dir, &options, tier->group, &tier->store, err));
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
    const struct pd_store_entry *entry =
        tier->store && pd_store_count(tier->store) ? pd_store_entry_at(tier->store, 0) : &none;
    tier->newest_lineage = entry->lineage;
    tier->newest_step = tier->report.newest_step = entry->step;
    if (entry->lineage > tier->tiers->lineage) tier->tiers->lineage = entry->lineage;
}

/* Counts as one that has failed: said, and asked again when it is due. In memory it is not, since its room is looked at
 * before the first step alone. */
static void begin_failed(struct tier *tier, const char *what, const struct pd_error *cause)
{
    tier->failures = tier->report.failures = 1;
    tier->is_left_out = tier->report.is_left_out = tier->in_memory;
    snprintf(tier->report.cause, sizeof tier->report.cause, "%.255s", cause->message);
    if (tier->group->rank == 0)
        pd_log_error(TIERS_MODULE, "%s %s: %s", tier->dir, tier->in_memory ? "is left out of saves" : what, cause->message);
}

static pd_status refuse_hidden(const struct tier *tier, pd_status st, struct pd_error *err)
{
    if (tier->tiers->count == 1 || tiers_is_fatal(st)) return st;
    pd_error_context(err, st, "%s may hold the newest checkpoint and cannot be read", tier->dir);
    const size_t used = err ? strlen(err->message) : 0;
    if (err)
        snprintf(err->message + used, sizeof err->message - used,
                 "; bring it back, or go on from what the others hold (perdure ckpt ls) by taking it out of "
                 "checkpoint.tiers");
    return st;
}

/* A store that is only looked at passes over what cannot be read; here that would be to fall back behind it. */
static pd_status check_hidden(const struct tier *tier, struct pd_error *err)
{
    const uint64_t newest = pd_store_count(tier->store) ? pd_store_entry_at(tier->store, 0)->step : 0;
    for (uint32_t i = 0; i < pd_store_unusable_count(tier->store); i++) {
        const struct pd_store_unusable *u = pd_store_unusable_at(tier->store, i);
        if (u->flaw == PD_STORE_UNREADABLE && u->step >= newest) PD_FAIL(err, PD_IO, "%s: %s", u->name, u->cause);
    }
    return PD_OK;
}

/* What reading may help against. */
static bool may_be_read(pd_status st)
{
    return st == PD_NO_SPACE || st == PD_IO || st == PD_UNSUPPORTED || st == PD_NOT_FOUND || st == PD_EXISTS;
}

/* `cause`: why it cannot be written. */
static pd_status open_to_read(struct tier *tier, const struct pd_error *cause, struct pd_error *err)
{
    struct pd_error own = {0};
    pd_status st = tier_open_store(tier, false, &own);
    if (!st) st = check_hidden(tier, &own);
    if (st) {
        if (err) *err = own;
        return refuse_hidden(tier, st, err);
    }
    begin_failed(tier, "is only read from until it can be written", cause);
    return PD_OK;
}

/* *ret_has: every rank has its directory. Where one has not, the tier holds nothing, or the launch ends. */
static pd_status find_directory(struct pd_tiers *t, struct tier *tier, bool *ret_has, struct pd_error *err)
{
    const pd_status missing = tier->options.missing;
    struct pd_error own = {0};
    if (missing) pd_error_set(&own, missing, PD_WHERE, 0, "%s", tier->options.missing_cause);
    pd_status st = pd_group_agree(tier->group, missing == PD_NOT_FOUND ? PD_OK : missing, &own);
    if (st) {
        if (err) *err = own;
        return refuse_hidden(tier, st, err);
    }
    st = pd_group_agree(tier->group, missing, &own);
    *ret_has = !st;
    if (tiers_is_fatal(st) && err) *err = own;
    if (!st || tiers_is_fatal(st)) return st;
    PD_TRY(any_rank(t, tier, tier->options.missing_in_memory, &tier->in_memory, err));
    tier->report.in_memory = tier->in_memory;
    tier->was_absent = true;
    begin_failed(tier, "is not there and holds nothing of this run; it is tried again when it is due", &own);
    return PD_OK;
}

static pd_status find_space(struct pd_tiers *t, struct tier *tier, struct pd_error *err)
{
    struct pd_space space = {0};
    struct pd_error own = {0};
    pd_status st = pd_vfs_space(t->vfs, tier->dir, &space, &own);
    st = pd_group_agree(tier->group, pd_error_context(&own, st, "checkpoint directory %s", tier->dir), &own);
    if (st) {
        if (err) *err = own;
        return refuse_hidden(tier, st, err);
    }
    PD_TRY(any_rank(t, tier, space.in_memory, &tier->in_memory, err));
    tier->report.in_memory = tier->in_memory;
    if (tier->in_memory && tier->options.keep_every && tier->group->rank == 0)
        pd_log_warn(TIERS_MODULE, "%s is in memory: keep_every does not count there", tier->dir);
    return PD_OK;
}

static pd_status open_tier(struct pd_tiers *t, struct tier *tier, struct pd_error *err)
{
    bool has_directory = false;
    PD_TRY(share_bandwidth(t, tier, err));
    PD_TRY(find_directory(t, tier, &has_directory, err));
    if (!has_directory) return PD_OK;
    PD_TRY(find_space(t, tier, err));
    struct pd_error why = {0};
    pd_status st = tier_open_store(tier, !t->options.read_only, &why);
    if (may_be_read(st) && t->count > 1 && !t->options.read_only) {
        PD_TRY(open_to_read(tier, &why, err));
    } else if (st) {
        if (err) *err = why;
        return st;
    }
    look_at_newest(tier);
    return PD_OK;
}

/* Files of the run lie in its pool. */
static pd_status check_first(const struct pd_tiers *t, struct pd_error *err)
{
    const struct tier *first = &t->tiers[0];
    if (!t->options.needs_first || first->is_writable) return PD_OK;
    PD_FAIL(err, PD_IO,
            "%s: %s; what is offloaded lies in the first of checkpoint.tiers: make it writable, or name another directory "
            "first",
            first->dir, first->report.cause);
}

/* Two runs in one list of tiers would take each other's checkpoints for their own. */
static pd_status check_run(struct pd_tiers *t, struct tier *tier, struct pd_commit *first, struct tier **ret_first,
                           struct pd_error *err)
{
    struct pd_commit commit = {0};
    if (!tier->store || !pd_store_count(tier->store)) return PD_OK;
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
    PD_TRY(check_first(t, err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; !st && i < t->count; i++)
        st = check_run(t, &t->tiers[i], &first, &holder, err);
    pd_commit_deinit(&first);
    return st;
}

void tier_init(struct tier *tier, struct pd_tiers *t)
{
    pthread_condattr_t attributes;
    tier->tiers = t;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&tier->mutex, NULL);
    pthread_cond_init(&tier->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void init_tier(struct pd_tiers *t, uint32_t number)
{
    struct tier *tier = &t->tiers[number];
    tier_init(tier, t);
    tier->number = number;
    tier->options = t->options.tiers[number];
    tier->group = t->options.groups[number];
    snprintf(tier->dir, sizeof tier->dir, "%s", tier->options.dir);
    tier->options.dir = tier->report.dir = tier->dir;
}

static void deinit_tier(struct tier *tier)
{
    pd_store_close(tier->store);
    pthread_cond_destroy(&tier->changed);
    pthread_mutex_destroy(&tier->mutex);
    free(tier->staging);
}

static pd_status make_room_for(struct pd_tiers *t, struct pd_error *err)
{
    t->told = calloc(t->group->size, PD_TIERS_MAX * sizeof *t->told);
    bool has_all = t->told != NULL;
    for (uint32_t i = 1; has_all && i < t->count; i++)
        has_all = (t->tiers[i].staging = aligned_alloc(PD_VFS_ALIGN, PD_TIERS_STAGING_BYTES)) != NULL;
    if (!has_all) PD_FAIL(err, PD_NO_MEMORY, "no memory to copy checkpoints between %u tiers", t->count);
    return PD_OK;
}

pd_status pd_tiers_open(struct pd_vfs *vfs, const struct pd_tiers_options *options, struct pd_tiers **ret_tiers,
                        struct pd_error *err)
{
    PD_CHECK(options->count > 0 && options->count <= PD_TIERS_MAX);
    struct pd_tiers *t = calloc(1, sizeof *t);
    pd_status st = t ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for tiers");
    if (t) {
        *t = (struct pd_tiers){.vfs = vfs, .group = options->groups[0], .options = *options, .count = options->count};
        for (uint32_t i = 0; i < t->count; i++)
            init_tier(t, i);
        st = make_room_for(t, err);
    }
    st = pd_group_agree(options->groups[0], st, err);
    if (!st) st = open_all(t, err);
    if (!st) st = tier_copier_open(t, err);
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
    if (t->copier) tier_copier_start(t);
    if (!st && t->copier) st = tier_start_thread(t->copier, err);
    t->is_started = true;
    return pd_group_agree(t->group, st, err);
}

void pd_tiers_close(struct pd_tiers *t)
{
    if (!t) return;
    for (uint32_t i = 0; i < t->count; i++)
        tier_end_thread(&t->tiers[i]);
    if (t->copier) tier_end_thread(t->copier);
    for (uint32_t i = 0; i < t->count; i++)
        deinit_tier(&t->tiers[i]);
    if (t->copier) deinit_tier(t->copier);
    free(t->copier);
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
        const struct tier *tier = &t->tiers[i];
        if (!tier->store || pd_store_count(tier->store) <= tier->passed_over) continue;
        const struct pd_store_entry *entry = pd_store_entry_at(tier->store, tier->passed_over);
        const bool is_newer =
            !best || entry->lineage > best->lineage || (entry->lineage == best->lineage && entry->step > best->step);
        if (!is_newer) continue;
        best = entry;
        *ret_tier = i;
    }
    if (best) *ret_entry = *best;
    return best;
}

/* The newest that are offered are tried first, so it is the next after those. */
void pd_tiers_pass_over(struct pd_tiers *t, uint32_t number, const struct pd_store_entry *entry)
{
    struct tier *tier = &t->tiers[number];
    PD_CHECK(number < t->count && tier->store && pd_store_count(tier->store) > tier->passed_over);
    PD_CHECK(strcmp(pd_store_entry_at(tier->store, tier->passed_over)->name, entry->name) == 0);
    tier->passed_over++;
}

void pd_tiers_set_index(struct pd_tiers *t, const void *data, uint64_t bytes)
{
    t->index = data;
    t->index_bytes = bytes;
    for (uint32_t i = 0; i < t->count; i++)
        if (t->tiers[i].store) pd_store_set_index(t->tiers[i].store, data, bytes);
}

bool pd_tiers_is_due(const struct pd_tiers *t, uint64_t step)
{
    for (uint32_t i = 0; i < t->count; i++) {
        const uint64_t every = t->tiers[i].options.every;
        if (!t->tiers[i].is_left_out && every && step % every == 0) return true;
    }
    return false;
}

static void report_copies(struct tier *copier, struct pd_tier_report *ret_report)
{
    pthread_mutex_lock(&copier->mutex);
    ret_report->has_copies = true;
    ret_report->copied_step = copier->report.newest_step;
    ret_report->copy_failures = copier->report.failures;
    ret_report->copies_skipped = copier->report.skipped;
    memcpy(ret_report->copy_cause, copier->report.cause, sizeof ret_report->copy_cause);
    pthread_mutex_unlock(&copier->mutex);
}

void pd_tiers_report(struct pd_tiers *t, uint32_t number, struct pd_tier_report *ret_report)
{
    PD_CHECK(number < t->count);
    struct tier *tier = &t->tiers[number];
    pthread_mutex_lock(&tier->mutex);
    *ret_report = tier->report;
    pthread_mutex_unlock(&tier->mutex);
    if (number == 0 && t->copier) report_copies(t->copier, ret_report);
}
