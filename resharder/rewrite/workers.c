/* Work beside the data: what HDF5 has to make, and the end of shards, each with its flush. */
#include "resharder/rewrite/internal.h"

#include "ckpt/base/fault.h"
#include "ckpt/base/thread.h"

#include <malloc.h>
#include <stdio.h>

/* ---- jobs ---- */

static unsigned char *staging_of(const struct rewriter *r, uint32_t target)
{
    return r->staging + target % REWRITE_STAGINGS * PD_REWRITE_STAGING_BYTES;
}

static pd_status plan_target(struct rewriter *r, uint32_t target, struct pd_error *err)
{
    const struct pd_rewrite_request *q = r->request;
    struct rewrite_target *t = &r->targets[target];
    const uint32_t shard = r->group_begin + target;
    char path[4096 + 32];
    PD_TRY(pd_shard_writer_new(r->vfs, q->tensors, t->boxes, t->box_count, staging_of(r, target), PD_REWRITE_STAGING_BYTES,
                               &q->codec, &t->writer, err));
    snprintf(path, sizeof path, "%s/shard-%05u.h5", r->directory, shard);
    return pd_shard_stream_begin(t->writer, path, &q->commit->state.identity, shard, &t->stream, err);
}

static pd_status finish_target(struct rewriter *r, uint32_t target, struct pd_error *err)
{
    struct rewrite_target *t = &r->targets[target];
    struct pd_shard_stream *stream = t->stream;
    pthread_mutex_t *staging = &r->workers.staging[target % REWRITE_STAGINGS];
    t->stream = NULL;
    pthread_mutex_lock(staging);
    pd_status st = pd_shard_stream_finish(stream, &r->summaries[r->group_begin + target], err);
    pd_shard_writer_free(t->writer); /* its queue holds the staging area */
    t->writer = NULL;
    pthread_mutex_unlock(staging);
    if (!st) pd_fault_point("rewrite.shard.finished");
    return st;
}

/* One at a time, and what HDF5 took goes back: memory freed in one thread is no use to another. */
static pd_status make_metadata(struct rewriter *r, const struct rewrite_job *job, struct pd_error *err)
{
    pthread_mutex_lock(&r->workers.metadata);
    pd_status st = job->kind == REWRITE_PLAN ? plan_target(r, job->number, err) : rewrite_build_index(r, err);
    (void)malloc_trim(0);
    pthread_mutex_unlock(&r->workers.metadata);
    return st;
}

/* The mutex is held before and after. */
static void run_next(struct rewriter *r)
{
    struct rewrite_workers *workers = &r->workers;
    const struct rewrite_job job = workers->jobs[workers->begin++];
    struct pd_error err = {0};
    pd_status st = PD_OK;
    workers->running++;
    pthread_mutex_unlock(&workers->mutex);
    st = job.kind == REWRITE_FINISH ? finish_target(r, job.number, &err) : make_metadata(r, &job, &err);
    pthread_mutex_lock(&workers->mutex);
    workers->running--;
    if (job.kind == REWRITE_PLAN && !st) r->targets[job.number].is_planned = true;
    if (st && !workers->status) {
        workers->status = st;
        workers->error = err;
    }
    if (st) workers->begin = workers->end;
    pthread_cond_broadcast(&workers->changed);
}

static void *work(void *context)
{
    struct rewriter *r = context;
    struct rewrite_workers *workers = &r->workers;
    pthread_mutex_lock(&workers->mutex);
    while (!workers->leaves) {
        if (workers->begin < workers->end)
            run_next(r);
        else
            pthread_cond_wait(&workers->changed, &workers->mutex);
    }
    pthread_mutex_unlock(&workers->mutex);
    return NULL;
}

pd_status rewrite_workers_start(struct rewriter *r, struct pd_error *err)
{
    struct rewrite_workers *workers = &r->workers;
    pthread_mutex_init(&workers->mutex, NULL);
    pthread_mutex_init(&workers->metadata, NULL);
    pthread_cond_init(&workers->changed, NULL);
    for (uint32_t i = 0; i < REWRITE_STAGINGS; i++)
        pthread_mutex_init(&workers->staging[i], NULL);
    workers->is_made = true;
    while (workers->thread_count < REWRITE_WORKERS) {
        const int failed = pd_thread_start(&workers->threads[workers->thread_count], NULL, work, r);
        if (failed) PD_FAIL_ERRNO(err, failed, "reshard: starting a thread");
        workers->thread_count++;
    }
    return PD_OK;
}

void rewrite_workers_add(struct rewriter *r, enum rewrite_job_kind kind, uint32_t number)
{
    struct rewrite_workers *workers = &r->workers;
    pthread_mutex_lock(&workers->mutex);
    if (workers->begin == workers->end) workers->begin = workers->end = 0;
    PD_CHECK(workers->end < sizeof workers->jobs / sizeof *workers->jobs);
    workers->jobs[workers->end++] = (struct rewrite_job){kind, number};
    pthread_cond_broadcast(&workers->changed);
    pthread_mutex_unlock(&workers->mutex);
}

pd_status rewrite_workers_wait(struct rewriter *r, const bool *flag, struct pd_error *err)
{
    struct rewrite_workers *workers = &r->workers;
    pthread_mutex_lock(&workers->mutex);
    while (!*flag && !workers->status)
        pthread_cond_wait(&workers->changed, &workers->mutex);
    pd_status st = pd_error_pass(err, workers->status, &workers->error);
    pthread_mutex_unlock(&workers->mutex);
    return st;
}

pd_status rewrite_workers_finish(struct rewriter *r, struct pd_error *err)
{
    struct rewrite_workers *workers = &r->workers;
    pthread_mutex_lock(&workers->mutex);
    while (workers->running || workers->begin < workers->end) {
        if (workers->begin < workers->end)
            run_next(r);
        else
            pthread_cond_wait(&workers->changed, &workers->mutex);
    }
    pd_status st = pd_error_pass(err, workers->status, &workers->error);
    pthread_mutex_unlock(&workers->mutex);
    return st;
}

void rewrite_workers_stop(struct rewriter *r)
{
    struct rewrite_workers *workers = &r->workers;
    if (!workers->is_made) return;
    pthread_mutex_lock(&workers->mutex);
    workers->leaves = true;
    workers->begin = workers->end;
    pthread_cond_broadcast(&workers->changed);
    pthread_mutex_unlock(&workers->mutex);
    while (workers->thread_count)
        (void)pthread_join(workers->threads[--workers->thread_count], NULL);
    for (uint32_t i = 0; i < REWRITE_STAGINGS; i++)
        pthread_mutex_destroy(&workers->staging[i]);
    pthread_mutex_destroy(&workers->metadata);
    pthread_cond_destroy(&workers->changed);
    pthread_mutex_destroy(&workers->mutex);
    workers->is_made = false;
    (void)malloc_trim(0);
}
