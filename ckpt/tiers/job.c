/* What happens in one tier: saves and copies, and the thread that makes them. */
#include "ckpt/base/fault.h"
#include "ckpt/base/log.h"
#include "ckpt/base/rank.h"
#include "ckpt/shard/transcode.h"
#include "ckpt/tiers/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- in the store ---- */

/* Since its directory has come back, or was made by hand: nothing of it was looked at when the launch began. */
static pd_status check_late(struct tier *tier, struct pd_error *err)
{
    struct pd_tiers *t = tier->tiers;
    struct pd_commit commit = {0};
    if (!pd_store_count(tier->store)) return PD_OK;
    const struct pd_store_entry *entry = pd_store_entry_at(tier->store, 0);
    PD_TRY(pd_store_read_commit(tier->store, entry, &commit, err));
    const bool is_ours = memcmp(commit.state.identity.run_id, t->run_id, sizeof t->run_id) == 0;
    pd_commit_deinit(&commit);
    if (!is_ours) PD_FAIL(err, PD_INVALID, "%s holds checkpoints of another run: move them away", tier->dir);
    PD_FAIL(err, PD_EXISTS,
            "%s holds step %" PRIu64 " of this run and was not there when this launch began: the next launch takes it into "
            "account",
            tier->dir, entry->step);
}

/* The room of one in memory is looked at before the first step alone. */
static pd_status check_kind(struct tier *tier, struct pd_error *err)
{
    struct pd_space space = {0};
    PD_TRY(pd_vfs_space(tier->tiers->vfs, tier->dir, &space, err));
    if (!space.in_memory || tier->in_memory) return PD_OK;
    PD_FAIL(err, PD_NO_SPACE, "%s is in memory (%s) by now, and its room was not looked at: start the run again", tier->dir,
            space.type_name);
}

pd_status tier_make_writable(struct tier *tier, struct pd_error *err)
{
    if (tier->is_writable) return PD_OK;
    pd_store_close(tier->store);
    tier->store = NULL;
    PD_TRY(tier_open_store(tier, true, err));
    pd_status st = pd_group_agree(tier->group, check_kind(tier, err), err);
    if (!st && tier->was_absent) st = check_late(tier, err);
    if (st) {
        pd_store_close(tier->store);
        tier->store = NULL;
        tier->is_writable = false;
        return st;
    }
    if (tier->group->rank == 0) pd_log_info(TIERS_MODULE, "%s can be written again", tier->dir);
    tier->was_absent = false;
    return PD_OK;
}

static const struct pd_store_entry *find_sealed(const struct tier *tier, uint64_t step)
{
    for (uint32_t i = 0; i < pd_store_count(tier->store); i++) {
        const struct pd_store_entry *entry = pd_store_entry_at(tier->store, i);
        if (entry->step == step && entry->fence == pd_store_fence(tier->store)) return entry;
    }
    return NULL;
}

/* Older checkpoints that cannot be removed are no failure of the one that was sealed. */
static pd_status settle_store(struct tier *tier, struct tier_job *job, struct pd_error *err)
{
    const struct pd_store_entry *entry = find_sealed(tier, job->step);
    if (entry) memcpy(job->name, entry->name, sizeof job->name);
    for (uint32_t i = 0; entry && i < job->pins; i++)
        pd_store_pin(tier->store, entry);
    pd_status st = pd_store_prune(tier->store, err);
    if (!st || tiers_is_fatal(st)) return st;
    if (tier->group->rank == 0)
        pd_log_warn(TIERS_MODULE, "%s: step %" PRIu64 " is saved, but older checkpoints could not be removed: %s", tier->dir,
                    job->step, err ? err->message : "");
    return PD_OK;
}

static pd_status save_here(struct tier *tier, struct tier_job *job, struct pd_error *err)
{
    struct pd_shard_summary summaries[PD_LAYOUT_STRIPES_MAX] = {0};
    pd_status written = PD_OK;
    PD_TRY(job->save->prepare(job->save->context, tier->store, tier->number, &written, summaries, err));
    job->has_begun = true;
    return pd_store_commit(tier->store, written, summaries, job->save->state, err);
}

/* ---- copies ---- */

static uint32_t shards_of(const struct tier *tier)
{
    return tier->tiers->options.shards ? tier->tiers->options.shards : 1;
}

static pd_status copy_shard(struct tier *tier, const struct tier_job *job, const struct pd_commit *commit, uint32_t shard,
                            const char *path, struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    struct pd_shard_copy copy = {.to = path,
                                 .identity = &commit->state.identity,
                                 .expect = &commit->shards[shard],
                                 .buffers = tier->staging,
                                 .buffer_bytes = PD_TIERS_STAGING_BYTES,
                                 .bytes_per_second = tier->bytes_per_second,
                                 .stop = &tier->stop};
    char from[TIERS_PATH_MAX + 32];
    snprintf(from, sizeof from, "%s/shard-%05" PRIu32 ".h5", job->source, shard);
    copy.from = from;
    return pd_shard_transcode(tier->tiers->vfs, &copy, &tier->options.codec, ret_summary, err);
}

pd_status tier_read_source(const struct tier *tier, const struct tier_job *job, struct pd_commit *ret_commit,
                           struct pd_error *err)
{
    char path[TIERS_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/commit.h5", job->source);
    PD_TRY(pd_commit_read(tier->tiers->vfs, path, ret_commit, err));
    if (ret_commit->shard_count == tier->group->size * shards_of(tier)) return PD_OK;
    pd_commit_deinit(ret_commit);
    *ret_commit = (struct pd_commit){0};
    PD_FAIL(err, PD_BUG, "%s is of another number of ranks", path);
}

/* `path`: of the first one. */
static pd_status copy_shards(struct tier *tier, const struct tier_job *job, const struct pd_commit *commit, char *path,
                             struct pd_shard_summary *ret_summaries, struct pd_error *err)
{
    for (uint32_t s = 0; s < shards_of(tier); s++) {
        const uint32_t shard = tier->group->rank * shards_of(tier) + s;
        if (s) pd_store_begin_shard(tier->store, s, path);
        ret_summaries[s] = commit->shards[shard];
        PD_TRY(copy_shard(tier, job, commit, shard, path, &ret_summaries[s], err));
    }
    return PD_OK;
}

static pd_status copy_here(struct tier *tier, struct tier_job *job, struct pd_error *err)
{
    struct pd_commit commit = {0};
    char path[TIERS_PATH_MAX];
    pd_status st = pd_group_agree(tier->group, tier_read_source(tier, job, &commit, err), err);
    if (!st) st = pd_store_begin(tier->store, &commit.state.identity, path, err);
    if (!st) {
        struct pd_shard_summary summaries[PD_LAYOUT_STRIPES_MAX];
        st = copy_shards(tier, job, &commit, path, summaries, err);
        pd_fault_point("tiers.copy.copied");
        st = pd_store_commit(tier->store, st, summaries, &commit.state, err);
        if (!st) pd_fault_point("tiers.copy.sealed");
    } else if (st == PD_EXISTS) {
        st = PD_OK; /* sealed by this launch in an earlier attempt */
    }
    pd_commit_deinit(&commit);
    return st;
}

pd_status tier_run_job(struct tier *tier, struct tier_job *job, struct pd_error *err)
{
    if (job->task == TIER_PEER) return tier_copy_to_peers(tier, job, err);
    PD_TRY(tier_make_writable(tier, err)); /* a store that is opened again has no pins */
    for (uint32_t i = 0; i < job->unpin.count; i++)
        pd_store_unpin(tier->store, job->unpin.names[i]); /* first, since what follows may fail */
    PD_TRY(job->task == TIER_SAVE ? save_here(tier, job, err) : copy_here(tier, job, err));
    return settle_store(tier, job, err);
}

void tier_report_result(struct tier *tier, uint64_t step, pd_status st, const struct pd_error *err)
{
    pthread_mutex_lock(&tier->mutex);
    const bool works_again = st == PD_OK && tier->report.failures;
    if (st == PD_OK) {
        tier->report.newest_step = step;
        tier->report.failures = 0;
    } else if (st != PD_STOPPED) {
        tier->report.failures++;
        snprintf(tier->report.cause, sizeof tier->report.cause, "%.255s", err->message);
    }
    pthread_mutex_unlock(&tier->mutex);
    if (works_again && tier->tiers->count > 1 && tier->group->rank == 0)
        pd_log_info(TIERS_MODULE, "%s works again: it has step %" PRIu64, tier->dir, step);
    /* Alone it is the save that has failed, which its caller says. */
    const bool is_said = st != PD_OK && st != PD_STOPPED && !tiers_is_fatal(st) && tier->tiers->count > 1;
    if (is_said && tier->group->rank == 0)
        pd_log_error(TIERS_MODULE, "%s did not get step %" PRIu64 "; it is passed over and tried again when it is due: %s",
                     tier->dir, step, err->message);
}

/* ---- the thread ---- */

static void *tier_main(void *argument)
{
    struct tier *tier = argument;
    pd_rank_set_thread((int)tier->group->rank);
    pthread_mutex_lock(&tier->mutex);
    for (;;) {
        while (tier->done == tier->issued && !tier->is_closing)
            pthread_cond_wait(&tier->changed, &tier->mutex);
        if (tier->done == tier->issued) break;
        pthread_mutex_unlock(&tier->mutex);
        struct pd_error error = {0};
        pd_status st = tier_run_job(tier, &tier->job, &error);
        tier_report_result(tier, tier->job.step, st, &error);
        pthread_mutex_lock(&tier->mutex);
        tier->status = st;
        tier->error = error;
        tier->done++;
        pthread_cond_broadcast(&tier->changed);
    }
    pthread_mutex_unlock(&tier->mutex);
    return NULL;
}

/* Signals are for the threads of the program. */
pd_status tier_start_thread(struct tier *tier, struct pd_error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int number = pthread_create(&tier->thread, NULL, tier_main, tier);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (number) PD_FAIL_ERRNO(err, number, "a thread for checkpoints in %s", tier->dir);
    tier->has_thread = true;
    pthread_setname_np(tier->thread, "pd-tier");
    return PD_OK;
}

void tier_end_thread(struct tier *tier)
{
    if (!tier->has_thread) return;
    atomic_store(&tier->stop, true);
    pthread_mutex_lock(&tier->mutex);
    tier->is_closing = true;
    pthread_cond_broadcast(&tier->changed);
    pthread_mutex_unlock(&tier->mutex);
    pthread_join(tier->thread, NULL);
    tier->has_thread = false;
}

void tier_post(struct tier *tier, const struct tier_job *job)
{
    pthread_mutex_lock(&tier->mutex);
    PD_CHECK(tier->done == tier->issued && tier->has_thread);
    tier->job = *job;
    atomic_store(&tier->stop, false);
    tier->issued++;
    pthread_cond_broadcast(&tier->changed);
    pthread_mutex_unlock(&tier->mutex);
}

bool tier_wait(struct tier *tier, double seconds)
{
    struct timespec until = {0};
    int number = 0;
    if (seconds >= 0) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += (time_t)seconds;
        until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&tier->mutex);
    while (tier->done != tier->issued && number != ETIMEDOUT)
        number = seconds >= 0 ? pthread_cond_timedwait(&tier->changed, &tier->mutex, &until)
                              : pthread_cond_wait(&tier->changed, &tier->mutex);
    const bool is_done = tier->done == tier->issued;
    pthread_mutex_unlock(&tier->mutex);
    return is_done;
}
