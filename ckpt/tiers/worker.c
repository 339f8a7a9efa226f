#include "ckpt/tiers/worker.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/rank.h"
#include "ckpt/base/thread.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

void tier_worker_init(struct tier_worker *worker, tier_work *run, void *context)
{
    pthread_condattr_t attributes;
    worker->run = run;
    worker->context = context;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&worker->mutex, NULL);
    pthread_cond_init(&worker->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

void tier_worker_deinit(struct tier_worker *worker)
{
    pthread_cond_destroy(&worker->changed);
    pthread_mutex_destroy(&worker->mutex);
}

static void *worker_main(void *argument)
{
    struct tier_worker *w = argument;
    pd_rank_set_thread((int)w->rank);
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (w->done == w->posted && !w->is_closing)
            pthread_cond_wait(&w->changed, &w->mutex);
        if (w->done == w->posted) break;
        pthread_mutex_unlock(&w->mutex);
        struct pd_error error = {0};
        pd_owner_acquire(&w->job_is, "the tier's worker");
        const pd_status st = w->run(w->context, &w->job, &error);
        pd_owner_release(&w->job_is, "the tier's worker");
        pthread_mutex_lock(&w->mutex);
        w->status = st;
        w->done_ns = pd_clock_monotonic_ns(NULL);
        w->done++;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

pd_status tier_worker_start(struct tier_worker *worker, uint32_t rank, const char *what, struct pd_error *err)
{
    worker->rank = rank;
    const int number = pd_thread_start(&worker->thread, NULL, worker_main, worker);
    if (number) {
        char thread[600];
        snprintf(thread, sizeof thread, "the thread for checkpoints in %.500s", what);
        PD_FAIL_THREAD(err, number, thread);
    }
    worker->has_thread = true;
    pthread_setname_np(worker->thread, "pd-tier");
    return PD_OK;
}

void tier_worker_end(struct tier_worker *worker)
{
    if (!worker->has_thread) return;
    tier_worker_give_up(worker);
    pthread_mutex_lock(&worker->mutex);
    worker->is_closing = true;
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->mutex);
    pthread_join(worker->thread, NULL);
    worker->has_thread = false;
}

void tier_worker_post(struct tier_worker *worker, const struct tier_job *job)
{
    pthread_mutex_lock(&worker->mutex);
    PD_CHECK(worker->done == worker->posted && worker->has_thread);
    pd_owner_acquire(&worker->job_is, "the saver");
    worker->job = *job;
    pd_owner_release(&worker->job_is, "the saver");
    atomic_store(&worker->stop, false);
    worker->posted++;
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->mutex);
}

bool tier_worker_wait(struct tier_worker *worker, double seconds)
{
    struct timespec until = {0};
    int number = 0;
    if (seconds >= 0) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += (time_t)seconds;
        until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&worker->mutex);
    while (worker->done != worker->posted && number != ETIMEDOUT)
        number = seconds >= 0 ? pthread_cond_timedwait(&worker->changed, &worker->mutex, &until)
                              : pthread_cond_wait(&worker->changed, &worker->mutex);
    const bool is_done = worker->done == worker->posted;
    pthread_mutex_unlock(&worker->mutex);
    return is_done;
}

struct tier_worker_view tier_worker_look(struct tier_worker *worker)
{
    pthread_mutex_lock(&worker->mutex);
    /* Safe while the job runs: the worker does not change the step. */
    const struct tier_worker_view view = {worker->posted, worker->done, worker->job.step, worker->status,
                                          pd_clock_monotonic_ns(NULL) - worker->done_ns};
    pthread_mutex_unlock(&worker->mutex);
    return view;
}

const struct tier_job *tier_worker_job(const struct tier_worker *worker)
{
    return &worker->job;
}

void tier_worker_give_up(struct tier_worker *worker)
{
    atomic_store(&worker->stop, true);
}
