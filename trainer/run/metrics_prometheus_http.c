/* metrics.prometheus_listen: rank 0 answers GET /metrics with the newest line, by libmicrohttpd.
 *
 * One thread of ours runs the daemon, so that it has a name and takes no signals. It sleeps between rounds: without a free
 * descriptor accept fails at once, and the daemon alone would spin on a core that the ranks need. */
#include "trainer/run/prometheus.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/thread.h"
#include "trainer/config/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS_MAX 64u
#define CLIENT_SECONDS 10u /* without a byte */
#define ROUND_MS 200
#define PAUSE_NS UINT64_C(5000000)

struct endpoint {
    struct pd_prometheus prometheus;
    struct MHD_Daemon *daemon;
    pthread_t thread;
    _Atomic bool is_closing;

    pthread_mutex_t lock; /* guards what follows */
    char *text;           /* of the newest line; NULL: none yet */
};

static enum MHD_Result endpoint_answer(void *context, struct MHD_Connection *connection, const char *url, const char *method,
                                       const char *version, const char *body, size_t *body_bytes, void **state)
{
    static char has_headers;
    struct endpoint *e = context;
    (void)version, (void)body;
    if (!*state || *body_bytes) { /* the request is not whole, and a body says nothing */
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
        pd_clock_sleep_ns(NULL, PAUSE_NS);
    }
    return NULL;
}

/* ---- the sink ---- */

static bool http_is_wanted(const struct pd_config *config)
{
    return config->metrics.prometheus_listen[0];
}

static pd_status bind_listener(const struct pd_listen *listen_at, int *ret_socket, struct pd_error *err)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address = {.v4 = {.sin_family = AF_INET, .sin_port = htons(listen_at->port)}};
    socklen_t bytes = sizeof address.v4;
    if (inet_pton(AF_INET, listen_at->host, &address.v4.sin_addr) != 1) {
        address.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(listen_at->port)};
        inet_pton(AF_INET6, listen_at->host, &address.v6.sin6_addr);
        bytes = sizeof address.v6;
    }
    const int on = 1, file = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (file < 0) PD_FAIL_ERRNO(err, errno, "metrics.prometheus_listen: a socket");
    setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(file, &address.any, bytes) || listen(file, 16)) {
        const int number = errno;
        close(file);
        if (number == EADDRNOTAVAIL)
            PD_FAIL(err, PD_INVALID,
                    "%s is not an address of this machine; name one of its own, or 0.0.0.0 for all, with "
                    "metrics.prometheus_listen",
                    listen_at->host);
        PD_FAIL_ERRNO(err, number, "listening at %s port %u; name another port with metrics.prometheus_listen",
                      listen_at->host, listen_at->port);
    }
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

static pd_status start(struct endpoint *e, const char *text, struct pd_error *err)
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

static pd_status http_open(const struct pd_metrics_options *options, void **ret_sink, struct pd_error *err)
{
    struct endpoint *e = calloc(1, sizeof *e);
    if (!e) PD_FAIL(err, PD_NO_MEMORY, "metrics: no memory");
    pthread_mutex_init(&e->lock, NULL);
    pd_prometheus_init(&e->prometheus, options);
    const pd_status st = start(e, options->config->metrics.prometheus_listen, err);
    if (st) {
        endpoint_free(e);
        return st;
    }
    *ret_sink = e;
    return PD_OK;
}

static pd_status http_write(void *sink, const struct pd_metrics_line *line, struct pd_error *err)
{
    struct endpoint *e = sink;
    char *text;
    PD_TRY(pd_prometheus_text(&e->prometheus, line, &text, err));
    pthread_mutex_lock(&e->lock);
    char *old = e->text;
    e->text = text;
    pthread_mutex_unlock(&e->lock);
    free(old);
    return PD_OK;
}

static void http_close(void *sink)
{
    struct endpoint *e = sink;
    atomic_store(&e->is_closing, true);
    pthread_join(e->thread, NULL);
    endpoint_free(e);
}

const struct pd_metrics_sink pd_metrics_prometheus_http = {"metrics.prometheus_listen", .is_wanted = http_is_wanted,
                                                           .open = http_open, .write = http_write, .close = http_close};
