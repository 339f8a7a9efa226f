/* Work beside the data: what HDF5 has to make, and the end of shards, each with its flush. */
#include "resharder/rewrite/internal.h"

#include <malloc.h>
#include <string.h>

/* One at a time, and what HDF5 took goes back: memory freed in one thread is no use to another. */
static pd_status make_metadata(struct rewriter *r, const struct rewrite_job *job, struct pd_error *err)
{
    pthread_mutex_lock(&r->crew.metadata);
    pd_status st = job->kind == REWRITE_PLAN ? rewrite_plan_target(r, job->number, err) : rewrite_build_index(r, err);
    (void)malloc_trim(0);
    pthread_mutex_unlock(&r->crew.metadata);
    return st;
}

/* The mutex is held before and after. */
static void run_next(struct rewriter *r)
{
    struct rewrite_crew *crew = &r->crew;
    const struct rewrite_job job = crew->jobs[crew->begin++];
    struct pd_error err = {0};
    pd_status st = PD_OK;
    crew->running++;
    pthread_mutex_unlock(&crew->mutex);
    if (job.kind == REWRITE_OPEN) st = rewrite_open_ahead(r, job.number, &err);
    if (job.kind == REWRITE_PLAN || job.kind == REWRITE_INDEX) st = make_metadata(r, &job, &err);
    if (job.kind == REWRITE_FINISH) st = rewrite_finish_target(r, job.number, &err);
    pthread_mutex_lock(&crew->mutex);
    crew->running--;
    if (job.kind == REWRITE_OPEN && !st) r->sources[job.number].is_opened = true;
    if (job.kind == REWRITE_PLAN && !st) r->targets[job.number].is_planned = true;
    if (st && !crew->status) {
        crew->status = st;
        crew->error = err;
    }
    if (st) crew->begin = crew->end;
    pthread_cond_broadcast(&crew->changed);
}

static void *work(void *context)
{
    struct rewriter *r = context;
    struct rewrite_crew *crew = &r->crew;
    pthread_mutex_lock(&crew->mutex);
    while (!crew->leaves) {
        if (crew->begin < crew->end)
            run_next(r);
        else
            pthread_cond_wait(&crew->changed, &crew->mutex);
    }
    pthread_mutex_unlock(&crew->mutex);
    return NULL;
}

pd_status rewrite_crew_start(struct rewriter *r, struct pd_error *err)
{
    struct rewrite_crew *crew = &r->crew;
    pthread_mutex_init(&crew->mutex, NULL);
    pthread_mutex_init(&crew->metadata, NULL);
    pthread_cond_init(&crew->changed, NULL);
    for (uint32_t i = 0; i < REWRITE_STAGINGS; i++)
        pthread_mutex_init(&crew->staging[i], NULL);
    crew->is_made = true;
    while (crew->thread_count < REWRITE_CREW) {
        const int failed = pthread_create(&crew->threads[crew->thread_count], NULL, work, r);
        if (failed) PD_FAIL_ERRNO(err, failed, "reshard: starting a thread");
        crew->thread_count++;
    }
    return PD_OK;
}

void rewrite_crew_add(struct rewriter *r, enum rewrite_job_kind kind, uint32_t number)
{
    struct rewrite_crew *crew = &r->crew;
    pthread_mutex_lock(&crew->mutex);
    if (crew->begin == crew->end) crew->begin = crew->end = 0;
    PD_CHECK(crew->end < sizeof crew->jobs / sizeof *crew->jobs);
    crew->jobs[crew->end++] = (struct rewrite_job){kind, number};
    pthread_cond_broadcast(&crew->changed);
    pthread_mutex_unlock(&crew->mutex);
}

static pd_status failure(const struct rewrite_crew *crew, struct pd_error *err)
{
    if (crew->status && err) *err = crew->error;
    return crew->status;
}

pd_status rewrite_crew_wait(struct rewriter *r, const bool *flag, struct pd_error *err)
{
    struct rewrite_crew *crew = &r->crew;
    pthread_mutex_lock(&crew->mutex);
    while (!*flag && !crew->status)
        pthread_cond_wait(&crew->changed, &crew->mutex);
    pd_status st = failure(crew, err);
    pthread_mutex_unlock(&crew->mutex);
    return st;
}

pd_status rewrite_crew_finish(struct rewriter *r, struct pd_error *err)
{
    struct rewrite_crew *crew = &r->crew;
    pthread_mutex_lock(&crew->mutex);
    while (crew->running || crew->begin < crew->end) {
        if (crew->begin < crew->end)
            run_next(r);
        else
            pthread_cond_wait(&crew->changed, &crew->mutex);
    }
    pd_status st = failure(crew, err);
    pthread_mutex_unlock(&crew->mutex);
    return st;
}

void rewrite_crew_stop(struct rewriter *r)
{
    struct rewrite_crew *crew = &r->crew;
    if (!crew->is_made) return;
    pthread_mutex_lock(&crew->mutex);
    crew->leaves = true;
    crew->begin = crew->end;
    pthread_cond_broadcast(&crew->changed);
    pthread_mutex_unlock(&crew->mutex);
    while (crew->thread_count)
        (void)pthread_join(crew->threads[--crew->thread_count], NULL);
    for (uint32_t i = 0; i < REWRITE_STAGINGS; i++)
        pthread_mutex_destroy(&crew->staging[i]);
    pthread_mutex_destroy(&crew->metadata);
    pthread_cond_destroy(&crew->changed);
    pthread_mutex_destroy(&crew->mutex);
    crew->is_made = false;
    (void)malloc_trim(0);
}
