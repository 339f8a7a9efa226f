/* metrics.prometheus_listen: rank 0 answers GET /metrics with the newest line.
 *
 * One thread serves at most CLIENTS_MAX connections at a time, none of them for longer than CLIENT_SECONDS, whatever they send
 * or leave unread; the oldest that has not sent its whole request makes room for a new one. A connection gets one answer and is
 * closed. The socket never blocks: the sink's own thread only swaps the text. */
#include "trainer/run/prometheus.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/thread.h"
#include "trainer/config/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS_MAX 8u
#define CLIENT_SECONDS 10.0
#define REQUEST_BYTES_MAX 4096u
#define NO_DESCRIPTOR_MS 200

struct client {
    int socket; /* -1: free */
    uint64_t begun_ns;
    char request[REQUEST_BYTES_MAX];
    size_t received;
    char *answer; /* NULL: the request is not whole yet */
    size_t bytes, sent;
};

struct endpoint {
    struct pd_prometheus prometheus;
    int listener, wake;
    pthread_t thread;
    struct client clients[CLIENTS_MAX];

    pthread_mutex_t lock; /* guards what follows */
    char *text;           /* of the newest line; NULL: none yet */
    bool is_closing;
};

/* ---- a client ---- */

static void drop(struct client *c)
{
    close(c->socket);
    free(c->answer);
    *c = (struct client){.socket = -1};
}

static void make_answer(struct endpoint *e, struct client *c)
{
    const char *path = strchr(c->request, ' ');
    const bool is_head = strncmp(c->request, "HEAD ", 5) == 0, is_known = is_head || strncmp(c->request, "GET ", 4) == 0;
    const bool is_metrics = is_known && (strncmp(path, " /metrics ", 10) == 0 || strncmp(path, " /metrics?", 10) == 0);
    const char *status = is_metrics ? "200 OK" : is_known ? "404 Not Found" : "405 Method Not Allowed\r\nAllow: GET, HEAD";
    const char *body = "perdure: ask for /metrics\n";
    pthread_mutex_lock(&e->lock);
    if (is_metrics) body = e->text ? e->text : "";
    const int length = asprintf(&c->answer,
                                "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                                "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
                                status, strlen(body), is_head ? "" : body);
    pthread_mutex_unlock(&e->lock);
    if (length < 0) c->answer = NULL;
    c->bytes = length < 0 ? 0 : (size_t)length;
}

static void receive(struct endpoint *e, struct client *c)
{
    const size_t room = sizeof c->request - 1 - c->received;
    const ssize_t got = room ? recv(c->socket, c->request + c->received, room, MSG_DONTWAIT) : 0;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        drop(c); /* it has left, or asks for more than any scraper does */
        return;
    }
    c->received += (size_t)got;
    c->request[c->received] = '\0';
    if (!strstr(c->request, "\r\n\r\n")) return;
    make_answer(e, c);
    if (!c->answer) drop(c);
}

static void answer(struct client *c)
{
    const ssize_t sent = send(c->socket, c->answer + c->sent, c->bytes - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent > 0) c->sent += (size_t)sent;
    if (sent <= 0) {
        drop(c);
    } else if (c->sent == c->bytes) {
        shutdown(c->socket, SHUT_WR);
        drop(c);
    }
}

/* ---- the thread ---- */

/* A free place, or that of the oldest client whose request is not whole.   returns  NULL: all are being answered */
static struct client *find_place(struct endpoint *e)
{
    struct client *oldest = NULL;
    for (uint32_t i = 0; i < CLIENTS_MAX; i++) {
        struct client *c = &e->clients[i];
        if (c->socket < 0) return c;
        if (!c->answer && (!oldest || c->begun_ns < oldest->begun_ns)) oldest = c;
    }
    if (oldest) drop(oldest);
    return oldest;
}

static void take_client(struct endpoint *e)
{
    const int socket = accept4(e->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) {
        /* The connection stays in the queue, so that poll returns at once until a descriptor is free. */
        if (errno != EAGAIN && errno != EINTR) (void)poll(&(struct pollfd){e->wake, POLLIN, 0}, 1, NO_DESCRIPTOR_MS);
        return;
    }
    struct client *place = find_place(e);
    if (place)
        *place = (struct client){.socket = socket, .begun_ns = pd_clock_monotonic_ns(NULL)};
    else
        close(socket);
}

static bool is_closing(struct endpoint *e)
{
    pthread_mutex_lock(&e->lock);
    const bool closing = e->is_closing;
    pthread_mutex_unlock(&e->lock);
    return closing;
}

static void serve(struct endpoint *e)
{
    struct pollfd polled[2 + CLIENTS_MAX] = {{e->wake, POLLIN, 0}, {e->listener, POLLIN, 0}};
    for (uint32_t i = 0; i < CLIENTS_MAX; i++)
        polled[2 + i] = (struct pollfd){e->clients[i].socket, e->clients[i].answer ? POLLOUT : POLLIN, 0};
    if (poll(polled, 2 + CLIENTS_MAX, 1000) < 0) return;
    for (uint32_t i = 0; i < CLIENTS_MAX; i++) {
        struct client *c = &e->clients[i];
        if (c->socket >= 0 && polled[2 + i].revents && !c->answer)
            receive(e, c);
        else if (c->socket >= 0 && polled[2 + i].revents)
            answer(c);
        if (c->socket >= 0 && pd_clock_seconds_since(NULL, c->begun_ns) > CLIENT_SECONDS) drop(c);
    }
    if (polled[1].revents) take_client(e);
}

static void *endpoint_main(void *context)
{
    struct endpoint *e = context;
    while (!is_closing(e))
        serve(e);
    for (uint32_t i = 0; i < CLIENTS_MAX; i++)
        if (e->clients[i].socket >= 0) drop(&e->clients[i]);
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
                    "%s is no address of this machine; name one of its own, or 0.0.0.0 for all, with "
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
    if (e->listener >= 0) close(e->listener);
    if (e->wake >= 0) close(e->wake);
    pthread_mutex_destroy(&e->lock);
    free(e->text);
    free(e);
}

static pd_status start(struct endpoint *e, const char *text, struct pd_error *err)
{
    struct pd_listen listen_at;
    PD_TRY(pd_config_listen("metrics.prometheus_listen", text, &listen_at, err));
    PD_TRY(bind_listener(&listen_at, &e->listener, err));
    e->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->wake < 0) PD_FAIL_ERRNO(err, errno, "metrics.prometheus_listen: an event");
    const int number = pd_thread_start(&e->thread, NULL, endpoint_main, e);
    if (number) PD_FAIL_THREAD(err, number, "the thread for metrics.prometheus_listen");
    pthread_setname_np(e->thread, "pd-http");
    return PD_OK;
}

static pd_status http_open(const struct pd_metrics_options *options, void **ret_sink, struct pd_error *err)
{
    struct endpoint *e = calloc(1, sizeof *e);
    if (!e) PD_FAIL(err, PD_NO_MEMORY, "metrics: no memory");
    e->listener = e->wake = -1;
    pthread_mutex_init(&e->lock, NULL);
    for (uint32_t i = 0; i < CLIENTS_MAX; i++)
        e->clients[i].socket = -1;
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
    const uint64_t one = 1;
    pthread_mutex_lock(&e->lock);
    e->is_closing = true;
    pthread_mutex_unlock(&e->lock);
    (void)!write(e->wake, &one, sizeof one);
    pthread_join(e->thread, NULL);
    endpoint_free(e);
}

const struct pd_metrics_sink pd_metrics_prometheus_http = {"metrics.prometheus_listen", .is_wanted = http_is_wanted,
                                                           .open = http_open, .write = http_write, .close = http_close};
