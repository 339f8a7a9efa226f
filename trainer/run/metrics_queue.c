#include "trainer/run/metrics_queue.h"

#include "ckpt/base/backoff.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/rank.h"
#include "ckpt/base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MODULE "metrics"

struct pd_metrics_queue {
    const struct pd_metrics_sink *sink;
    struct pd_metrics_options options;
    pthread_t thread;
    int rank;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    uint64_t pushed, taken; /* lines, ever; `dropped` of them were never written */
    uint64_t dropped;
    bool is_closing, is_ended, is_left; /* left: nobody waits for the thread any more; it frees the queue */
    struct pd_metrics_line lines[PD_METRICS_QUEUE_LINES];

    /* Of the thread. */
    void *open; /* NULL: not open */
    uint32_t failures;
    uint64_t lost, retry_ns;
    struct pd_metrics_line line;
};

/* ---- the thread ---- */

static bool is_left(struct pd_metrics_queue *q)
{
    pthread_mutex_lock(&q->lock);
    const bool left = q->is_left;
    pthread_mutex_unlock(&q->lock);
    return left;
}

/* The first failure in a row is logged: the others say the same. */
static void note_failure(struct pd_metrics_queue *q, const struct pd_error *error)
{
    if (q->failures++ == 0)
        pd_log_warn(MODULE, "%s: %s; the run goes on without it, and it is tried again", q->sink->name, error->message);
    q->retry_ns = pd_clock_monotonic_ns(NULL) + pd_backoff_ns(q->failures);
    if (q->open) q->sink->close(q->open);
    q->open = NULL;
}

static void write_line(struct pd_metrics_queue *q)
{
    struct pd_error error = {0};
    if (!q->open && pd_clock_monotonic_ns(NULL) < q->retry_ns) {
        q->lost++;
        return;
    }
    pd_status st = q->open ? PD_OK : q->sink->open(&q->options, &q->open, &error);
    if (!st) st = q->sink->write(q->open, &q->line, &error);
    if (!st) {
        if (q->failures)
            pd_log_info(MODULE, "%s works again; %llu lines of it are lost", q->sink->name, (unsigned long long)q->lost);
        q->failures = 0;
        q->lost = 0;
        return;
    }
    q->lost++;
    note_failure(q, &error);
}

/* False: the queue is closed and empty. */
static bool take(struct pd_metrics_queue *q)
{
    pthread_mutex_lock(&q->lock);
    while (q->taken == q->pushed && !q->is_closing)
        pthread_cond_wait(&q->changed, &q->lock);
    const bool has_line = q->taken < q->pushed && !q->is_left;
    if (has_line) q->line = q->lines[q->taken++ % PD_METRICS_QUEUE_LINES];
    pthread_mutex_unlock(&q->lock);
    return has_line;
}

static void queue_free(struct pd_metrics_queue *q)
{
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->changed);
    free(q);
}

static void *queue_main(void *context)
{
    struct pd_metrics_queue *q = context;
    struct pd_error error = {0};
    pd_rank_set_thread(q->rank);
    if (q->sink->open(&q->options, &q->open, &error)) note_failure(q, &error);
    while (take(q))
        write_line(q);
    if (q->open && !is_left(q)) q->sink->close(q->open);
    pthread_mutex_lock(&q->lock);
    q->is_ended = true;
    const bool frees = q->is_left;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    if (frees) queue_free(q);
    return NULL;
}

/* ---- the caller ---- */

pd_status pd_metrics_queue_open(const struct pd_metrics_sink *sink, const struct pd_metrics_options *options,
                                struct pd_metrics_queue **ret_queue, struct pd_error *err)
{
    struct pd_metrics_queue *q = calloc(1, sizeof *q);
    if (!q) PD_FAIL(err, PD_NO_MEMORY, "metrics: no memory");
    q->sink = sink;
    q->options = *options;
    q->rank = pd_rank_current();
    pthread_condattr_t attributes;
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&q->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    const int number = pd_thread_start(&q->thread, NULL, queue_main, q);
    if (number) {
        queue_free(q);
        PD_FAIL_THREAD(err, number, "the thread for metrics");
    }
    pthread_setname_np(q->thread, "pd-metrics");
    *ret_queue = q;
    return PD_OK;
}

void pd_metrics_queue_push(struct pd_metrics_queue *q, const struct pd_metrics_line *line)
{
    pthread_mutex_lock(&q->lock);
    const bool is_full = q->pushed - q->taken == PD_METRICS_QUEUE_LINES;
    if (is_full) q->taken++;
    q->lines[q->pushed++ % PD_METRICS_QUEUE_LINES] = *line;
    const bool is_first = is_full && q->dropped++ == 0;
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->lock);
    if (is_first)
        pd_log_warn(
            MODULE,
            "%s: falls behind the steps; it loses lines, and the run goes on. A larger run.log_every asks less of it",
            q->sink->name);
}

void pd_metrics_queue_close(struct pd_metrics_queue *q)
{
    if (!q) return;
    pthread_mutex_lock(&q->lock);
    q->is_closing = true;
    pthread_cond_broadcast(&q->changed);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += PD_METRICS_DRAIN_SECONDS;
    while (!q->is_ended && pthread_cond_timedwait(&q->changed, &q->lock, &until) != ETIMEDOUT)
        continue;
    const bool ended = q->is_ended;
    q->is_left = !ended;
    const pthread_t thread = q->thread;
    const char *name = q->sink->name;
    pthread_mutex_unlock(&q->lock);
    if (ended) {
        pthread_join(thread, NULL);
        queue_free(q);
        return;
    }
    pthread_detach(thread);
    pd_log_warn(MODULE, "%s: hangs, and its last lines are lost", name);
}
