/* Metrics in Prometheus' text format, version 0.0.4: names end in their unit, counters in _total. source:
 * prometheus.io/docs/instrumenting/exposition_formats, prometheus.io/docs/practices/naming */
#include "ckpt/base/clock.h"
#include "ckpt/base/thread.h"
#include "trainer/config/check.h"
#include "trainer/run/metrics_sink.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Common to every line of one start. */
struct prometheus {
    char run[1024]; /* run.dir: the label of every sample */
    uint32_t ranks;
    uint64_t planned_bytes, steps;
    uint32_t tier_count;
    char tiers[PD_TIERS_MAX][1024];
};

/* A label's value: backslash, quote and newline are escaped. */
static void escape(const char *text, char *ret, size_t capacity)
{
    size_t used = 0;
    for (; *text && used + 3 < capacity; text++) {
        if (strchr("\\\"\n", *text)) ret[used++] = '\\';
        ret[used++] = *text == '\n' ? 'n' : *text;
    }
    ret[used] = '\0';
}

static void prometheus_init(struct prometheus *ret_prometheus, const struct pd_metrics_options *options)
{
    const struct pd_config *c = options->config;
    struct pd_tier_options tiers[PD_TIERS_MAX];
    struct prometheus *p = ret_prometheus;
    *p = (struct prometheus){.ranks = options->ranks, .planned_bytes = options->planned_bytes, .steps = c->run.steps};
    escape(c->run.dir, p->run, sizeof p->run);
    p->tier_count = pd_config_tiers(c, tiers);
    for (uint32_t i = 0; i < p->tier_count; i++)
        escape(tiers[i].dir, p->tiers[i], sizeof p->tiers[i]);
}

struct text {
    FILE *f;
    const char *run;
};

static void head(const struct text *t, const char *name, const char *type, const char *help)
{
    fprintf(t->f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void value(const struct text *t, double number)
{
    if (isnan(number))
        fputs(" NaN\n", t->f);
    else if (isinf(number))
        fputs(number > 0 ? " +Inf\n" : " -Inf\n", t->f);
    else
        fprintf(t->f, " %.17g\n", number);
}

static void labelled(const struct text *t, const char *name, const char *label, const char *of, double number)
{
    fprintf(t->f, "%s{run=\"%s\",%s=\"%s\"}", name, t->run, label, of);
    value(t, number);
}

static void one(const struct text *t, const char *name, const char *type, const char *help, double number)
{
    head(t, name, type, help);
    fprintf(t->f, "%s{run=\"%s\"}", name, t->run);
    value(t, number);
}

/* A summary without quantiles: rate(sum) / rate(count) is the mean of any window. */
static void summary(const struct text *t, const char *name, const char *help, double sum, uint64_t count)
{
    head(t, name, "summary", help);
    fprintf(t->f, "%s_sum{run=\"%s\"}", name, t->run);
    value(t, sum);
    fprintf(t->f, "%s_count{run=\"%s\"} %" PRIu64 "\n", name, t->run, count);
}

static void add_memory(const struct text *t, const struct prometheus *p, const struct pd_metrics_step *s)
{
    one(t, "perdure_memory_bytes", "gauge", "Resident memory of the process of rank 0.", (double)s->memory_bytes);
    one(t, "perdure_planned_memory_bytes", "gauge", "Memory of rank 0 by the plan.", (double)p->planned_bytes);
    if (s->device_free_bytes)
        one(t, "perdure_device_free_bytes", "gauge", "Free memory of the GPU of rank 0.", (double)s->device_free_bytes);
}

static void add_saves(const struct text *t, const struct pd_metrics_line *line)
{
    const struct pd_metrics_totals *totals = &line->totals;
    one(t, "perdure_checkpoint_step", "gauge", "Newest committed step.", (double)line->step.last_checkpoint);
    one(t, "perdure_save_failures", "gauge", "Saves that failed in a row, in every tier.", (double)line->step.save_failures);
    summary(t, "perdure_save_seconds", "Time of saves since this start.", totals->save_seconds, totals->saves);
    one(t, "perdure_save_stall_seconds_total", "counter", "Time that training waited for saves since this start.",
        totals->stall_seconds);
}

static void prometheus_add_tiers(const struct text *t, const struct prometheus *p, const struct pd_metrics_line *line)
{
    const uint32_t count = line->tier_count < p->tier_count ? line->tier_count : p->tier_count;
    if (!count) return;
    head(t, "perdure_tier_step", "gauge", "Newest step that lies in a tier.");
    for (uint32_t i = 0; i < count; i++)
        labelled(t, "perdure_tier_step", "dir", p->tiers[i], (double)line->tiers[i].newest_step);
    head(t, "perdure_tier_failures", "gauge", "Saves into a tier that failed in a row.");
    for (uint32_t i = 0; i < count; i++)
        labelled(t, "perdure_tier_failures", "dir", p->tiers[i], line->tiers[i].failures);
    head(t, "perdure_tier_skipped_total", "counter", "Steps that a tier skipped because newer ones were due.");
    for (uint32_t i = 0; i < count; i++)
        labelled(t, "perdure_tier_skipped_total", "dir", p->tiers[i], (double)line->tiers[i].skipped);
}

/* *ret_text: malloc'ed, terminated. */
static pd_status prometheus_text(const struct prometheus *p, const struct pd_metrics_line *line, char **ret_text,
                                 struct pd_error *err)
{
    char *text = NULL;
    size_t bytes;
    const struct text t = {open_memstream(&text, &bytes), p->run};
    if (!t.f) PD_FAIL(err, PD_NO_MEMORY, "metrics: no memory");
    const struct pd_metrics_step *s = &line->step;
    one(&t, "perdure_step", "gauge", "Newest step.", (double)s->step);
    one(&t, "perdure_planned_steps", "gauge", "Steps of the whole run.", (double)p->steps);
    one(&t, "perdure_loss", "gauge", "Mean loss of the newest step, in nats a token.", s->result.loss);
    if (!isnan(line->validation_loss))
        one(&t, "perdure_validation_loss", "gauge", "Newest validation loss, in nats a token.", line->validation_loss);
    one(&t, "perdure_gradient_norm", "gauge", "Global norm of the gradient before clipping.", s->result.gradient_norm);
    one(&t, "perdure_learning_rate", "gauge", "Learning rate of the newest step.", s->result.learning_rate);
    one(&t, "perdure_last_step_timestamp_seconds", "gauge", "When the newest step ended.", line->time);
    one(&t, "perdure_start_fence", "gauge", "Number of the start: it grows with every restart.", (double)s->fence);
    one(&t, "perdure_ranks", "gauge", "Ranks of this start.", p->ranks);
    one(&t, "perdure_stragglers", "gauge", "Ranks that are slower than others with the same work.", s->straggler_count);
    one(&t, "perdure_eta_seconds", "gauge", "Expected time to the last step.", line->eta_seconds);
    const struct pd_metrics_totals *totals = &line->totals;
    one(&t, "perdure_tokens_total", "counter", "Tokens trained on since this start.", (double)totals->tokens);
    one(&t, "perdure_tokens_per_second", "gauge", "Tokens a second of the newest step.", line->tokens_per_second);
    one(&t, "perdure_gemm_ratio", "gauge", "Speed as a share of what bare matrix products reached.", line->gemm_share);
    summary(&t, "perdure_step_seconds", "Time of steps since this start.", totals->seconds, totals->steps);
    head(&t, "perdure_stage_seconds_total", "counter", "Time of rank 0 in each part of its steps since this start.");
    for (int i = 0; i < PD_STEP_STAGES; i++)
        labelled(&t, "perdure_stage_seconds_total", "stage", pd_step_stage_names[i], totals->stage_seconds[i]);
    add_memory(&t, p, &line->step);
    add_saves(&t, line);
    prometheus_add_tiers(&t, p, line);
    if (fclose(t.f) == 0) {
        *ret_text = text;
        return PD_OK;
    }
    free(text);
    PD_FAIL(err, PD_NO_MEMORY, "metrics: no memory");
}

/* metrics.prometheus_listen: rank 0 answers GET /metrics with the newest line, by libmicrohttpd. Our own thread runs the
 * daemon, to have a name and block signals. It sleeps between rounds: without a free descriptor accept fails at once, and
 * the daemon alone would spin on a core that ranks need. */

#define CLIENTS_MAX 64u
#define CLIENT_SECONDS 10u /* without a byte */
#define ROUND_MS 200
#define PAUSE_NS UINT64_C(5000000)

struct endpoint {
    struct prometheus prometheus;
    struct MHD_Daemon *daemon;
    pthread_t thread;
    _Atomic bool is_closing;

    pthread_mutex_t lock; /* guards the fields below */
    char *text;           /* of the newest line; NULL: none yet */
};

static enum MHD_Result endpoint_answer(void *context, struct MHD_Connection *connection, const char *url, const char *method,
                                       const char *version, const char *body, size_t *body_bytes, void **state)
{
    static char has_headers;
    struct endpoint *e = context;
    (void)version, (void)body;
    if (!*state || *body_bytes) { /* the request is incomplete; a body is ignored */
        *state = &has_headers;
        *body_bytes = 0;
        return MHD_YES;
    }
    const bool is_known = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    const bool is_metrics = is_known && strcmp(url, "/metrics") == 0;
    const unsigned code = is_metrics ? MHD_HTTP_OK : is_known ? MHD_HTTP_NOT_FOUND : MHD_HTTP_METHOD_NOT_ALLOWED;
    pthread_mutex_lock(&e->lock);
    char *text = !is_metrics ? "perdure: ask for /metrics\n" : e->text ? e->text : "";
    struct MHD_Response *response = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_COPY);
    pthread_mutex_unlock(&e->lock);
    if (!response) return MHD_NO;
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    if (!is_known) (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    const enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static void *endpoint_main(void *context)
{
    struct endpoint *e = context;
    while (!atomic_load(&e->is_closing)) {
        (void)MHD_run_wait(e->daemon, ROUND_MS);
        pd_clock_sleep_ns(PAUSE_NS);
    }
    return NULL;
}

/* ---- the sink ---- */

static bool prometheus_is_wanted(const struct pd_config *config)
{
    return config->metrics.prometheus_listen[0];
}

static pd_status bind_listener(const struct pd_listen *listen_at, int *ret_socket, struct pd_error *err)
{
    char port[8];
    const int on = 1;
    struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    snprintf(port, sizeof port, "%u", listen_at->port);
    if (getaddrinfo(listen_at->host, port, &hints, &found))
        PD_FAIL(err, PD_INVALID, "metrics.prometheus_listen: %s is not an address; name one of this machine",
                listen_at->host);
    const int file = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (file >= 0) setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const bool listens = file >= 0 && !bind(file, found->ai_addr, found->ai_addrlen) && !listen(file, 16);
    const int number = errno;
    freeaddrinfo(found);
    if (!listens && file >= 0) close(file);
    if (!listens)
        PD_FAIL_ERRNO(err, number, "listening at %s port %u; name another with metrics.prometheus_listen", listen_at->host,
                      listen_at->port);
    *ret_socket = file;
    return PD_OK;
}

static void endpoint_free(struct endpoint *e)
{
    if (e->daemon) MHD_stop_daemon(e->daemon);
    pthread_mutex_destroy(&e->lock);
    free(e->text);
    free(e);
}

static pd_status endpoint_start(struct endpoint *e, const char *text, struct pd_error *err)
{
    struct pd_listen listen_at;
    int listener = -1;
    PD_TRY(pd_config_listen("metrics.prometheus_listen", text, &listen_at, err));
    PD_TRY(bind_listener(&listen_at, &listener, err));
    e->daemon = MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, endpoint_answer, e, MHD_OPTION_LISTEN_SOCKET, listener,
                                 MHD_OPTION_CONNECTION_LIMIT, CLIENTS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, CLIENT_SECONDS,
                                 MHD_OPTION_END);
    if (!e->daemon) {
        close(listener);
        PD_FAIL(err, PD_IO, "metrics.prometheus_listen: libmicrohttpd cannot serve port %u; leave the key out",
                listen_at.port);
    }
    const int number = pd_thread_start(&e->thread, NULL, endpoint_main, e);
    if (number) PD_FAIL_THREAD(err, number, "the thread for metrics.prometheus_listen");
    pthread_setname_np(e->thread, "pd-http");
    return PD_OK;
}

static pd_status prometheus_open(const struct pd_metrics_options *options, void **ret_sink, struct pd_error *err)
{
    struct endpoint *e = calloc(1, sizeof *e);
    if (!e) PD_FAIL(err, PD_NO_MEMORY, "metrics: no memory");
    pthread_mutex_init(&e->lock, NULL);
    prometheus_init(&e->prometheus, options);
    const pd_status st = endpoint_start(e, options->config->metrics.prometheus_listen, err);
    if (st) {
        endpoint_free(e);
        return st;
    }
    *ret_sink = e;
    return PD_OK;
}

static pd_status prometheus_write(void *sink, const struct pd_metrics_line *line, struct pd_error *err)
{
    struct endpoint *e = sink;
    char *text = NULL;
    PD_TRY(prometheus_text(&e->prometheus, line, &text, err));
    pthread_mutex_lock(&e->lock);
    char *old = e->text;
    e->text = text;
    pthread_mutex_unlock(&e->lock);
    free(old);
    return PD_OK;
}

static void prometheus_close(void *sink)
{
    struct endpoint *e = sink;
    atomic_store(&e->is_closing, true);
    pthread_join(e->thread, NULL);
    endpoint_free(e);
}

const struct pd_metrics_sink pd_metrics_prometheus = {"metrics.prometheus_listen", .is_wanted = prometheus_is_wanted,
                                                      .open = prometheus_open, .write = prometheus_write,
                                                      .close = prometheus_close};
