/* Opens, closes and queries tiers. save.c and finish.c decide where checkpoints go, the workers do the work (job.c). */
#include "ckpt/tiers/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

/* The first tier must be writable if its pool holds files of the run. */
static pd_status check_first(const struct pd_tiers *t, struct pd_error *err)
{
    const struct tier *first = &t->tiers[0];
    if (!t->options.needs_first || first->is_writable) return PD_OK;
    PD_FAIL(err, PD_IO,
            "%s: %s; offloaded state lies in the first of checkpoint.tiers: make it writable, or name another directory "
            "first",
            first->dir, first->outcome.report.cause);
}

/* Refuses tiers with different runs, which would take each other's checkpoints for their own. */
static pd_status check_run(struct pd_tiers *t, struct tier *tier, struct pd_commit *first, struct tier **ret_first,
                           struct pd_error *err)
{
    struct pd_commit commit = {0};
    if (!tier->store || !pd_store_count(tier->store)) return PD_OK;
    pd_status st = pd_store_read_commit(tier->store, pd_store_entry_at(tier->store, 0), &commit, err);
    if (st == PD_CORRUPT || st == PD_NOT_FOUND) return PD_OK; /* the loader will notice and skip it */
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
                          ": give each run directories of its own, or move the other run's checkpoints away",
                          (*ret_first)->dir, a->run_id[0], tier->dir, b->run_id[0]);
    pd_commit_deinit(&commit);
    (void)t;
    return st;
}

static pd_status open_all(struct pd_tiers *t, struct pd_error *err)
{
    struct pd_commit first = {0};
    struct tier *with_run = NULL;
    for (uint32_t i = 0; i < t->count; i++)
        PD_TRY(tier_open(&t->tiers[i], err));
    PD_TRY(check_first(t, err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; !st && i < t->count; i++)
        st = check_run(t, &t->tiers[i], &first, &with_run, err);
    pd_commit_deinit(&first);
    return st;
}

static void init_tier(struct pd_tiers *t, uint32_t number)
{
    struct tier *tier = &t->tiers[number];
    tier_init(tier, t, tier_run_job);
    tier->number = number;
    tier->options = t->options.tiers[number];
    tier->group = t->options.groups[number];
    snprintf(tier->dir, sizeof tier->dir, "%s", tier->options.dir);
    tier->options.dir = tier->dir;
    tier->is_remote = pd_vfs_is_remote(tier->dir);
}

static pd_status make_buffers(struct pd_tiers *t, struct pd_error *err)
{
    t->told = calloc(t->group->size, sizeof *t->told);
    if (!t->told) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u ranks", t->group->size);
    for (uint32_t i = 1; i < t->count; i++)
        if (!t->tiers[i].is_remote) PD_TRY(tier_make_staging(&t->tiers[i], PD_TIERS_STAGING_BYTES, err));
    return PD_OK;
}

pd_status pd_tiers_open(struct pd_vfs *vfs, const struct pd_tiers_options *options, struct pd_tiers **ret_tiers,
                        struct pd_error *err)
{
    PD_CHECK(options->count > 0 && options->count <= PD_TIERS_MAX);
    struct pd_tiers *t = calloc(1, sizeof *t);
    pd_status st = PD_ALLOCATED(t, err, "no memory for tiers");
    if (t) {
        *t = (struct pd_tiers){.vfs = vfs, .group = options->groups[0], .options = *options, .count = options->count};
        for (uint32_t i = 0; i < t->count; i++)
            init_tier(t, i);
        st = make_buffers(t, err);
    }
    st = pd_group_agree(options->groups[0], st, err);
    if (!st) st = open_all(t, err);
    if (!st) st = tier_replicator_open(t, err);
    if (st)
        pd_tiers_close(t);
    else
        *ret_tiers = t;
    return st;
}

static pd_status start_worker(struct tier *tier, struct pd_error *err)
{
    return tier_worker_start(&tier->worker, tier->group->rank, tier->dir, err);
}

pd_status pd_tiers_start(struct pd_tiers *t, struct pd_error *err)
{
    pd_status st = PD_OK;
    for (uint32_t i = 0; i < t->count; i++)
        tier_look_at_newest(&t->tiers[i]); /* damaged checkpoints are in quarantine by now */
    for (uint32_t i = 1; !st && i < t->count; i++)
        st = start_worker(&t->tiers[i], err);
    if (t->replicator) tier_replicator_start(t);
    if (!st && t->replicator) st = start_worker(t->replicator, err);
    t->is_started = true;
    return pd_group_agree(t->group, st, err);
}

void pd_tiers_close(struct pd_tiers *t)
{
    if (!t) return;
    for (uint32_t i = 0; i < t->count; i++)
        tier_worker_end(&t->tiers[i].worker);
    if (t->replicator) tier_worker_end(&t->replicator->worker);
    for (uint32_t i = 0; i < t->count; i++)
        tier_deinit(&t->tiers[i]);
    if (t->replicator) tier_deinit(t->replicator);
    free(t->replicator);
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
        if (!tier->store || pd_store_count(tier->store) <= tier->unreadable) continue;
        const struct pd_store_entry *entry = pd_store_entry_at(tier->store, tier->unreadable);
        const bool is_newer =
            !best || entry->lineage > best->lineage || (entry->lineage == best->lineage && entry->step > best->step);
        if (!is_newer) continue;
        best = entry;
        *ret_tier = i;
    }
    if (best) *ret_entry = *best;
    return best;
}

/* Loaders try the newest first, so the unreadable ones are always the first entries. */
void pd_tiers_pass_over(struct pd_tiers *t, uint32_t number, const struct pd_store_entry *entry)
{
    struct tier *tier = &t->tiers[number];
    PD_CHECK(number < t->count && tier->store && pd_store_count(tier->store) > tier->unreadable);
    PD_CHECK(strcmp(pd_store_entry_at(tier->store, tier->unreadable)->name, entry->name) == 0);
    tier->unreadable++;
}

void pd_tiers_set_index(struct pd_tiers *t, const void *data, uint64_t bytes)
{
    t->index = data;
    t->index_bytes = bytes;
    for (uint32_t i = 0; i < t->count; i++)
        if (t->tiers[i].store) pd_store_set_index(t->tiers[i].store, data, bytes);
}

const char *pd_tiers_saving_into(const struct pd_tiers *t)
{
    return t->tiers[atomic_load(&t->saving_into)].dir;
}

bool pd_tiers_is_due(const struct pd_tiers *t, uint64_t step)
{
    for (uint32_t i = 0; i < t->count; i++) {
        const uint64_t every = t->tiers[i].options.every;
        if (!t->tiers[i].is_left_out && every && step % every == 0) return true;
    }
    return false;
}
