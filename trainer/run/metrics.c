#include "trainer/run/metrics.h"
#include "ckpt/base/backoff.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/log.h"
#include "ckpt/base/progress.h"
#include "ckpt/base/rank.h"
#include "ckpt/base/thread.h"
#include "ckpt/base/words.h"
#include "trainer/run/metrics_sink.h"
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the queue of a sink ---- */

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

/* ---- the line ---- */

static const struct pd_metrics_sink *const sinks[] = {&pd_metrics_json, &pd_metrics_tensorboard, &pd_metrics_prometheus_file,
                                                      &pd_metrics_prometheus_http};
enum { SINKS = sizeof sinks / sizeof *sinks };

/* Of one sink: its own where it is in_line, or its queue; neither where it is not wanted. */
struct outlet {
    void *open;
    struct pd_metrics_queue *queue;
    uint64_t lost; /* lines in a row, of an in_line sink */
};

struct pd_metrics {
    struct pd_metrics_options options;
    struct outlet outlets[SINKS];
    struct pd_metrics_line line; /* the newest */
    struct pd_progress_mode progress;
    uint64_t start_ns, last_line_ns;
    uint64_t first_step; /* of this launch */
    bool drawn;          /* a bar stands on the terminal's line */
};

uint64_t pd_metrics_resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long long pages = 0, resident = 0;
    if (!f) return 0;
    int fields = fscanf(f, "%llu %llu", &pages, &resident);
    fclose(f);
    return fields == 2 ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

static pd_status open_outlet(struct pd_metrics *m, int number, struct pd_error *err)
{
    const struct pd_metrics_sink *sink = sinks[number];
    struct outlet *outlet = &m->outlets[number];
    if (!sink->is_wanted(m->options.config)) return PD_OK;
    if (sink->in_line) return sink->open(&m->options, &outlet->open, err);
    return pd_metrics_queue_open(sink, &m->options, &outlet->queue, err);
}

pd_status pd_metrics_open(const struct pd_metrics_options *options, struct pd_metrics **ret_metrics, struct pd_error *err)
{
    struct pd_metrics *m = calloc(1, sizeof *m);
    if (!m) PD_FAIL(err, PD_NO_MEMORY, "metrics: no memory");
    *m = (struct pd_metrics){.options = *options,
                             .progress = pd_progress_mode(),
                             .start_ns = pd_clock_monotonic_ns(NULL),
                             .line = {.validation_loss = NAN}};
    pd_status st = PD_OK;
    for (int i = 0; !st && i < SINKS; i++)
        st = open_outlet(m, i, err);
    if (st) {
        pd_metrics_close(m);
        return st;
    }
    *ret_metrics = m;
    return PD_OK;
}

void pd_metrics_close(struct pd_metrics *m)
{
    if (!m) return;
    if (m->drawn) (void)fputs(PD_PROGRESS_CLEAR, stderr);
    for (int i = 0; i < SINKS; i++) {
        if (m->outlets[i].open) sinks[i]->close(m->outlets[i].open);
        pd_metrics_queue_close(m->outlets[i].queue);
    }
    free(m);
}

static double tokens_per_second(const struct pd_metrics_step *s)
{
    return s->seconds > 0 ? (double)s->result.tokens / s->seconds : 0;
}

static double gemm_share(const struct pd_metrics *m, const struct pd_metrics_step *s)
{
    if (m->options.gemm_flops_per_second <= 0) return 0;
    return tokens_per_second(s) * m->options.flops_per_token / m->options.gemm_flops_per_second;
}

static double eta_seconds(const struct pd_metrics *m, const struct pd_metrics_step *s)
{
    double done = fmax((double)(s->step - m->first_step + 1), 1);
    return pd_clock_seconds_since(NULL, m->start_ns) / done * (double)(m->options.config->run.steps - s->step);
}

static void format_eta(double seconds, char *text, size_t room)
{
    uint64_t s = seconds > 0 ? (uint64_t)seconds : 0;
    if (s >= 86400)
        snprintf(text, room, "%llud%02lluh", (unsigned long long)(s / 86400), (unsigned long long)(s % 86400 / 3600));
    else
        snprintf(text, room, "%llu:%02llu:%02llu", (unsigned long long)(s / 3600), (unsigned long long)(s % 3600 / 60),
                 (unsigned long long)(s % 60));
}

/* The line in the order in which it is read; where a terminal is too narrow, the part of the highest rank goes first. */
struct part {
    uint32_t rank;
    char text[72];
};
#define PARTS_MAX 12u

struct parts {
    uint32_t count;
    struct part list[PARTS_MAX];
};

static void add(struct parts *parts, uint32_t rank, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void add(struct parts *parts, uint32_t rank, const char *format, ...)
{
    PD_CHECK(parts->count < PARTS_MAX);
    struct part *part = &parts->list[parts->count++];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(part->text, sizeof part->text, format, arguments);
    va_end(arguments);
    part->rank = rank;
}

static size_t width_of(const struct parts *parts)
{
    size_t width = 0;
    for (uint32_t i = 0; i < parts->count; i++)
        width += strlen(parts->list[i].text) + 1;
    return width; /* a column stays free: a full line would wrap on some terminals */
}

static void fit(struct parts *parts, size_t columns)
{
    while (parts->count > 1 && width_of(parts) > columns) {
        uint32_t last = 0;
        for (uint32_t i = 1; i < parts->count; i++)
            if (parts->list[i].rank > parts->list[last].rank) last = i;
        memmove(&parts->list[last], &parts->list[last + 1], (--parts->count - last) * sizeof parts->list[0]);
    }
    struct part *first = &parts->list[0];
    if (columns && width_of(parts) > columns)
        first->text[columns < sizeof first->text ? columns - 1 : sizeof first->text - 1] = '\0';
}

static void make_parts(const struct pd_metrics *m, const struct pd_metrics_line *line, struct parts *parts)
{
    const struct pd_metrics_step *s = &line->step;
    char eta[32];
    format_eta(line->eta_seconds, eta, sizeof eta);
    add(parts, 0, "step %llu/%llu", (unsigned long long)s->step, (unsigned long long)m->options.config->run.steps);
    add(parts, 1, "loss %.4f", s->result.loss);
    if (!isnan(line->validation_loss)) add(parts, 3, "val %.4f", line->validation_loss);
    add(parts, 6, "|g| %.3f", s->result.gradient_norm);
    add(parts, 7, "lr %.2e", s->result.learning_rate);
    add(parts, 4, "%.0f tok/s", line->tokens_per_second);
    add(parts, 8, "%.0f%% of GEMM", 100 * line->gemm_share);
    /* Why a step takes long: other programs want the cores too. */
    double load;
    const uint32_t cores = pd_cpu_cores();
    if (getloadavg(&load, 1) == 1 && load > 1.25 * cores + 1)
        add(parts, 9, "(load %.0f on %s)", load, pd_counted(cores, "core").text);
    if (m->options.has_stages)
        add(parts, 11, "bubble %.0f%% (theory %.0f%%)", 100 * s->result.bubble, 100 * s->result.bubble_theory);
    if (m->options.config->numerics.precision == PD_F16)
        add(parts, 12, "scale %g skipped %llu", s->loss_scale, (unsigned long long)s->skipped_steps);
    else if (s->skipped_steps)
        add(parts, 12, "skipped %llu", (unsigned long long)s->skipped_steps);
    add(parts, 10, "%.2f GiB", (double)s->memory_bytes / (1ull << 30));
    if (s->last_checkpoint)
        add(parts, 5, "ckpt %llu eta %s", (unsigned long long)s->last_checkpoint, eta);
    else
        add(parts, 5, "ckpt none eta %s", eta);
}

/* The last bar stays: nothing follows it but lines of the log. */
static void print_progress(struct pd_metrics *m, const struct pd_metrics_line *line)
{
    const bool is_bar = m->progress.kind == PD_PROGRESS_BAR, is_last = line->step.step == m->options.config->run.steps;
    struct parts parts = {.count = 0};
    char text[PARTS_MAX * sizeof(struct part)] = "";
    make_parts(m, line, &parts);
    if (is_bar) fit(&parts, pd_progress_columns());
    for (uint32_t i = 0, used = 0; i < parts.count; i++)
        used += (uint32_t)snprintf(text + used, sizeof text - used, "%s%s", i ? " " : "", parts.list[i].text);
    (void)fprintf(stderr, "%s%s%s", is_bar ? PD_PROGRESS_CLEAR : "", text, is_bar && !is_last ? "" : "\n");
    (void)fflush(stderr);
    m->drawn = is_bar && !is_last;
    m->last_line_ns = pd_clock_monotonic_ns(NULL);
}

static bool progress_due(const struct pd_metrics *m, const struct pd_metrics_step *s)
{
    if (m->progress.kind == PD_PROGRESS_OFF || s->kind == PD_METRICS_TO_VALIDATE) return false;
    if (m->progress.kind == PD_PROGRESS_BAR || !m->last_line_ns || s->step == m->options.config->run.steps ||
        !isnan(s->validation_loss))
        return true;
    return pd_clock_seconds_since(NULL, m->last_line_ns) >= m->progress.line_seconds;
}

/* One warning when it breaks, one word when it works again. */
static void write_in_line(const struct pd_metrics_sink *sink, struct outlet *outlet, const struct pd_metrics_line *line)
{
    struct pd_error error = {0};
    const unsigned long long step = line->step.step;
    if (sink->write(outlet->open, line, &error)) {
        if (outlet->lost++ == 0)
            pd_log_warn(MODULE, "metrics of step %llu and of steps behind it are lost: %s", step, error.message);
    } else if (outlet->lost) {
        pd_log_info(MODULE, "metrics are written again from step %llu on; %s lost", step,
                    pd_counted(outlet->lost, "line").text);
        outlet->lost = 0;
    }
}

static void add_to_totals(struct pd_metrics_totals *t, const struct pd_metrics_step *s)
{
    t->steps++;
    t->tokens += s->result.tokens;
    t->seconds += s->seconds;
    t->saves += s->saves;
    t->save_seconds += s->save_seconds;
    t->stall_seconds += s->stall_seconds;
    for (int i = 0; i < PD_STEP_STAGES; i++)
        t->stage_seconds[i] += s->result.stage_seconds[i];
}

static void make_line(struct pd_metrics *m, const struct pd_metrics_step *s)
{
    struct pd_metrics_line *line = &m->line;
    line->time = (double)pd_clock_wall_ns(NULL) / 1e9;
    line->step = *s;
    line->tokens_per_second = tokens_per_second(s);
    line->gemm_share = gemm_share(m, s);
    line->eta_seconds = eta_seconds(m, s);
    if (!isnan(s->validation_loss)) line->validation_loss = s->validation_loss;
    line->tier_count = s->tiers ? pd_tiers_count(s->tiers) : 0;
    for (uint32_t i = 0; i < line->tier_count; i++)
        pd_tiers_report(s->tiers, i, &line->tiers[i]);
    if (s->kind != PD_METRICS_VALIDATED) add_to_totals(&line->totals, s);
}

void pd_metrics_write(struct pd_metrics *m, const struct pd_metrics_step *s)
{
    const bool is_before = s->kind == PD_METRICS_VALIDATED; /* a step of an earlier start, where it is the first line */
    if (!m->first_step) m->first_step = s->step + is_before;
    /* A step that is faster than its products alone says that something else ran while those were measured. */
    if (m->options.gemm_flops_per_second > 0)
        m->options.gemm_flops_per_second =
            fmax(m->options.gemm_flops_per_second, tokens_per_second(s) * m->options.flops_per_token);
    make_line(m, s);
    if (progress_due(m, s)) print_progress(m, &m->line);
    const bool notable = s->step == m->options.config->run.steps || s->kind != PD_METRICS_STEP ||
                         !isnan(s->validation_loss) || s->save_seconds > 0;
    if (notable || s->step % m->options.config->run.log_every == 0) {
        for (int i = 0; i < SINKS; i++) {
            struct outlet *outlet = &m->outlets[i];
            if (outlet->open) write_in_line(sinks[i], outlet, &m->line);
            if (outlet->queue) pd_metrics_queue_push(outlet->queue, &m->line);
        }
    }
}
