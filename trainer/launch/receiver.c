#include "trainer/launch/receiver.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/regular_file.h"

#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <search.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MODULE "launch"
#define STRANGERS_MAX 1024u              /* connections without a proof */
#define STRANGER_NS UINT64_C(5000000000) /* until they are closed */
#define LISTENERS_MAX 32u
#define EVENTS 64
#define SEND_MS 1000
#define LOG_NS UINT64_C(10000000000)

struct connection {
    int fd;
    bool is_here; /* by the Unix socket */
    bool is_challenged, is_proven, is_over;
    uint64_t since_ns;
    struct connection *previous, *next; /* list of unproven peers, oldest first; unused once proven */
    struct pd_seal seal;
    uint32_t index;      /* in proven */
    uint32_t rank;       /* that began here; PD_MESSAGE_NOBODY: none */
    bool is_left;        /* the rank has made another connection */
    struct place *place; /* of a relay; NULL: not a relay */
    char peer[64];
    size_t bytes, capacity;
    uint8_t *data; /* (capacity) owned */
};

/* A place where ranks and their relay run. */
struct place {
    struct connection *relay; /* NULL: none */
    uint32_t first, last;     /* of its ranks, in the order in which they began; PD_MESSAGE_NOBODY: none has */
    char text[PD_MESSAGE_PLACE_BYTES];
};

struct pd_launch_receiver {
    struct pd_launch_receiver_options options;
    int epoll, listeners[LISTENERS_MAX];
    uint32_t listener_count;
    struct connection *first, *last; /* strangers */
    uint32_t strangers;
    struct connection **proven; /* (proven_count) owned */
    uint32_t proven_count, proven_capacity;
    struct connection **bound; /* (ranks) owned as proven; the connection of each, NULL: it has none */
    struct place *places;      /* (ranks), of which place_count are used */
    uint32_t place_count;
    struct place **place_of;                        /* (ranks) NULL: the rank has not begun */
    uint32_t *next;                                 /* (ranks) next rank that began at its place; PD_MESSAGE_NOBODY: none */
    struct hsearch_data place_names;                /* of places, by their text */
    uint64_t refused, refused_logged, logged_ns[2]; /* unproven peers; altered messages */
    char build[PD_MESSAGE_BUILD_BYTES], addresses[2048];
};

/* ---- listening ---- */

static int listen_on(const struct sockaddr *address, socklen_t bytes)
{
    const int yes = 1, fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (address->sa_family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (address->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
    if (!bind(fd, address, bytes) && !listen(fd, SOMAXCONN)) return fd;
    const int number = errno;
    close(fd);
    errno = number;
    return -1;
}

static bool listener_add(struct pd_launch_receiver *r, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (r->listener_count == LISTENERS_MAX || epoll_ctl(r->epoll, EPOLL_CTL_ADD, fd, &event)) {
        close(fd);
        return false;
    }
    r->listeners[r->listener_count++] = fd;
    return true;
}

static void address_add(struct pd_launch_receiver *r, const char *text)
{
    const size_t used = strlen(r->addresses);
    if (used + strlen(text) + 2 < sizeof r->addresses)
        snprintf(r->addresses + used, sizeof r->addresses - used, "%s%s", used ? "," : "", text);
}

/* An abstract name: nothing to clean up, and no directory needs to be writable. */
static bool listen_here(struct pd_launch_receiver *r)
{
    uint8_t random[8];
    char name[64];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!pd_seal_random(random, sizeof random)) return false;
    snprintf(name, sizeof name, "@perdure-%02x%02x%02x%02x%02x%02x%02x%02x", random[0], random[1], random[2], random[3],
             random[4], random[5], random[6], random[7]);
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s", name + 1);
    const int fd =
        listen_on((const struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name)));
    if (fd < 0 || !listener_add(r, fd)) return false;
    address_add(r, name);
    return true;
}

static bool listen_tcp(struct pd_launch_receiver *r, const struct sockaddr *of, socklen_t bytes, uint16_t *port)
{
    char host[64], text[96], *scope;
    struct sockaddr_storage address;
    memcpy(&address, of, bytes);
    struct sockaddr_in *four = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&address;
    const bool is_six = of->sa_family == AF_INET6;
    *(is_six ? &six->sin6_port : &four->sin_port) = htons(*port);
    const int fd = listen_on((const struct sockaddr *)&address, bytes);
    if (fd < 0) return false;
    if (getsockname(fd, (struct sockaddr *)&address, &bytes) ||
        getnameinfo((struct sockaddr *)&address, bytes, host, sizeof host, NULL, 0, NI_NUMERICHOST)) {
        close(fd);
        return false;
    }
    if (!listener_add(r, fd)) return false;
    if ((scope = strchr(host, '%'))) *scope = '\0';
    *port = ntohs(is_six ? six->sin6_port : four->sin_port); /* the same for all addresses */
    snprintf(text, sizeof text, is_six ? "[%s]:%u" : "%s:%u", host, *port);
    address_add(r, text);
    return true;
}

static bool is_reachable(const struct ifaddrs *a)
{
    if (!a->ifa_addr || !(a->ifa_flags & IFF_UP) || a->ifa_flags & IFF_LOOPBACK) return false;
    if (a->ifa_addr->sa_family == AF_INET) return true;
    if (a->ifa_addr->sa_family != AF_INET6) return false;
    return !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)a->ifa_addr)->sin6_addr);
}

/* Returns how many sockets listen. */
static uint32_t listen_everywhere(struct pd_launch_receiver *r, uint16_t *port)
{
    struct ifaddrs *all;
    uint32_t count = 0;
    if (getifaddrs(&all)) return 0;
    for (const struct ifaddrs *a = all; a; a = a->ifa_next)
        if (is_reachable(a))
            count += listen_tcp(r, a->ifa_addr,
                                a->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6),
                                port);
    freeifaddrs(all);
    return count;
}

static uint32_t listen_to_others(struct pd_launch_receiver *r)
{
    uint16_t port = r->options.port;
    uint32_t count = 0;
    char host[64];
    size_t bytes;
    struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    if (!strcmp(r->options.addresses, "*")) return listen_everywhere(r, &port);
    for (const char *at = r->options.addresses; *at; at += bytes + (at[bytes] == ',')) {
        bytes = strcspn(at, ",");
        snprintf(host, sizeof host, "%.*s", (int)bytes, at);
        if (getaddrinfo(host, NULL, &hints, &found)) continue;
        count += listen_tcp(r, found->ai_addr, found->ai_addrlen, &port);
        freeaddrinfo(found);
    }
    return count;
}

pd_status pd_launch_receiver_open(const struct pd_launch_receiver_options *options, struct pd_launch_receiver **ret_receiver,
                                  struct pd_error *err)
{
    struct pd_launch_receiver *r = calloc(1, sizeof *r);
    if (!r) PD_FAIL(err, PD_NO_MEMORY, "no memory for the sockets of %u ranks", options->table->count);
    r->options = *options;
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    r->places = calloc(options->table->count, sizeof *r->places);
    r->place_of = calloc(options->table->count, sizeof(struct place *));
    r->next = calloc(options->table->count, sizeof *r->next);
    r->bound = calloc(options->table->count, sizeof(struct connection *));
    if (!r->places || !r->place_of || !r->next || !r->bound ||
        !hcreate_r(2 * (size_t)options->table->count, &r->place_names)) {
        pd_launch_receiver_free(r);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for the sockets of %u ranks", options->table->count);
    }
    pd_message_build(options->program, r->build);
    errno = 0;
    const bool is_here = r->epoll >= 0 && listen_here(r);
    const bool is_elsewhere = is_here && (!options->addresses[0] || listen_to_others(r));
    if (!is_elsewhere) {
        const int number = errno;
        pd_launch_receiver_free(r);
        if (!is_here) PD_FAIL_ERRNO(err, number, "a Unix socket for ranks");
        PD_FAIL_ERRNO(err, number, "listening on port %u (launch.port) of %s for ranks of other hosts", options->port,
                      strcmp(options->addresses, "*") ? options->addresses : "this host's interfaces");
    }
    *ret_receiver = r;
    return PD_OK;
}

const char *pd_launch_receiver_addresses(const struct pd_launch_receiver *r)
{
    return r->addresses;
}

int pd_launch_receiver_fd(const struct pd_launch_receiver *r)
{
    return r->epoll;
}

uint64_t pd_launch_receiver_refused(const struct pd_launch_receiver *r)
{
    return r->refused;
}

/* ---- connections ---- */

static void stranger_unlink(struct pd_launch_receiver *r, struct connection *c)
{
    *(c->previous ? &c->previous->next : &r->first) = c->next;
    *(c->next ? &c->next->previous : &r->last) = c->previous;
    r->strangers--;
}

/* A process forked to look for hosts has the socket too, so closing it does not remove it from epoll. */
static void connection_free(const struct pd_launch_receiver *r, struct connection *c)
{
    (void)epoll_ctl(r->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    close(c->fd);
    free(c->data);
    free(c);
}

/* Someone probes the port, or a rank of another launch calls; or someone alters messages. */
static void refused_count(struct pd_launch_receiver *r, const struct connection *c)
{
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    r->refused++;
    if (r->logged_ns[c->is_proven] && now - r->logged_ns[c->is_proven] < LOG_NS) return;
    pd_log_warn(MODULE, "%s %s (%" PRIu64 " such tries so far): refused", c->peer,
                c->is_proven ? "sent a message that was changed on its way"
                             : "connected to this launch's port and did not prove that it knows the launch's secret",
                r->refused);
    r->logged_ns[c->is_proven] = now;
    r->refused_logged = r->refused;
}

static void connection_end(struct pd_launch_receiver *r, struct connection *c)
{
    if (!c->is_proven) {
        stranger_unlink(r, c);
        connection_free(r, c);
        return;
    }
    r->proven[c->index] = r->proven[--r->proven_count];
    r->proven[c->index]->index = c->index;
    if (c->rank != PD_MESSAGE_NOBODY && r->bound[c->rank] == c) r->bound[c->rank] = NULL;
    if (c->place && c->place->relay == c) c->place->relay = NULL;
    const uint32_t rank = c->is_left ? PD_MESSAGE_NOBODY : c->rank;
    connection_free(r, c);
    if (rank != PD_MESSAGE_NOBODY && !r->options.table->ranks[rank].has_ended) r->options.closed(r->options.context, rank);
}

static bool proven_add(struct pd_launch_receiver *r, struct connection *c)
{
    if (r->proven_count == r->proven_capacity) {
        const uint32_t capacity = r->proven_capacity ? 2 * r->proven_capacity : 64;
        struct connection **more = realloc(r->proven, capacity * sizeof *more);
        if (!more) return false;
        r->proven = more;
        r->proven_capacity = capacity;
    }
    c->index = r->proven_count;
    r->proven[r->proven_count++] = c;
    return true;
}

static void accept_all(struct pd_launch_receiver *r, int listener, uint64_t now)
{
    for (int i = 0; i < EVENTS; i++) {
        struct sockaddr_storage peer;
        socklen_t bytes = sizeof peer;
        const int fd = accept4(listener, (struct sockaddr *)&peer, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
        struct connection *c = fd >= 0 ? calloc(1, sizeof *c) : NULL;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (!c || epoll_ctl(r->epoll, EPOLL_CTL_ADD, fd, &event)) {
            if (fd >= 0) close(fd);
            free(c);
            return;
        }
        *c = (struct connection){.fd = fd, .since_ns = now, .rank = PD_MESSAGE_NOBODY, .previous = r->last};
        c->is_here = peer.ss_family == AF_UNIX;
        if (c->is_here || getnameinfo((struct sockaddr *)&peer, bytes, c->peer, sizeof c->peer, NULL, 0, NI_NUMERICHOST))
            snprintf(c->peer, sizeof c->peer, "a process of this host");
        *(r->last ? &r->last->next : &r->first) = c;
        r->last = c;
        if (++r->strangers > STRANGERS_MAX) connection_end(r, r->first);
    }
}

static void answer(struct connection *c, enum pd_message_kind kind, uint32_t rank, const void *data, uint32_t bytes)
{
    const struct pd_message m = {.kind = kind, .rank = rank, .data = data, .bytes = bytes};
    c->is_over |= !pd_seal_send(c->fd, c->is_proven ? &c->seal : NULL, PD_SEAL_LAUNCHER, &m, SEND_MS);
}

/* ---- the proof ---- */

static void challenge(struct pd_launch_receiver *r, struct connection *c, const struct pd_message *m)
{
    uint8_t data[PD_MESSAGE_NONCE_BYTES + PD_MESSAGE_PROOF_BYTES];
    c->is_over = m->kind != PD_MESSAGE_HELLO || m->bytes != PD_MESSAGE_NONCE_BYTES;
    if (c->is_over) return;
    memcpy(c->seal.secret, r->options.secret, PD_SEAL_SECRET_BYTES);
    c->seal.start = r->options.start;
    memcpy(c->seal.nonces[PD_SEAL_RANK], m->data, PD_MESSAGE_NONCE_BYTES);
    c->is_over = !pd_seal_random(c->seal.nonces[PD_SEAL_LAUNCHER], PD_MESSAGE_NONCE_BYTES) ||
                 !pd_seal_prove(&c->seal, PD_SEAL_LAUNCHER, data + PD_MESSAGE_NONCE_BYTES) || !pd_seal_keys(&c->seal);
    memcpy(data, c->seal.nonces[PD_SEAL_LAUNCHER], PD_MESSAGE_NONCE_BYTES);
    c->is_challenged = true;
    if (!c->is_over) answer(c, PD_MESSAGE_CHALLENGE, 0, data, sizeof data);
}

static void check_proof(struct pd_launch_receiver *r, struct connection *c, const struct pd_message *m)
{
    c->is_over =
        m->kind != PD_MESSAGE_PROOF || !pd_seal_is_proof(&c->seal, PD_SEAL_RANK, m->data, m->bytes) || !proven_add(r, c);
    if (c->is_over) return;
    stranger_unlink(r, c);
    c->is_proven = true;
}

/* ---- messages of ranks and relays ---- */

/* malloc'ed; NULL: none. */
static char *read_config(const char *path)
{
    FILE *f = path ? pd_regular_fopen(path, false) : NULL;
    char *text = f ? calloc(1, PD_MESSAGE_ANSWER_BYTES_MAX + 1) : NULL;
    if (text) text[fread(text, 1, PD_MESSAGE_ANSWER_BYTES_MAX, f)] = '\0';
    if (f) (void)fclose(f);
    return text;
}

/* A rank has one connection: the end of an older one means nothing. */
static void rank_bind(struct pd_launch_receiver *r, struct connection *c, uint32_t rank)
{
    if (c->rank != PD_MESSAGE_NOBODY && r->bound[c->rank] == c) r->bound[c->rank] = NULL;
    if (r->bound[rank] && r->bound[rank] != c) r->bound[rank]->is_left = true;
    r->bound[rank] = c;
    c->rank = rank;
}

/* The same process begins again if our answer was lost. */
static bool begins_again(const struct pd_rank_table *table, const struct pd_message *m)
{
    struct pd_begun again;
    if (m->rank >= table->count || !table->ranks[m->rank].has_begun || !pd_message_parse_begun(m, &again)) return false;
    const struct pd_begun *b = &table->ranks[m->rank].begun;
    return again.process == b->process && !strcmp(again.place, b->place);
}

/* NULL: no rank has begun there, and every place is used. */
static struct place *place_find(struct pd_launch_receiver *r, const char *text, size_t bytes)
{
    ENTRY *found;
    struct place new = {.first = PD_MESSAGE_NOBODY}, *place = &new;
    const bool has_more = r->place_count < r->options.table->count;
    if (has_more) place = &r->places[r->place_count];
    *place = new;
    snprintf(place->text, sizeof place->text, "%.*s", (int)bytes, text);
    if (!hsearch_r((ENTRY){place->text, place}, has_more ? ENTER : FIND, &found, &r->place_names)) return NULL;
    r->place_count += found->data == place;
    return found->data;
}

static void relay_tell(struct pd_launch_receiver *r, struct connection *relay, uint32_t rank)
{
    const struct pd_begun *b = &r->options.table->ranks[rank].begun;
    const struct pd_watched watched = {b->process, b->heartbeat};
    if (b->heartbeat >= 0 && !relay->is_over) answer(relay, PD_MESSAGE_WATCH, rank, &watched, sizeof watched);
}

static void place_add(struct pd_launch_receiver *r, struct place *place, uint32_t rank)
{
    *(place->first == PD_MESSAGE_NOBODY ? &place->first : &r->next[place->last]) = rank;
    place->last = rank;
    r->next[rank] = PD_MESSAGE_NOBODY;
    r->place_of[rank] = place;
    if (place->relay) relay_tell(r, place->relay, rank);
}

/* The first rank on another host also starts its relay. */
static void take_begun(struct pd_launch_receiver *r, struct connection *c, const struct pd_message *m)
{
    char refused[512];
    struct pd_rank_table *table = r->options.table;
    const bool is_again = begins_again(table, m);
    c->is_over = !is_again && !pd_rank_table_take(table, m);
    if (c->is_over) return;
    struct pd_begun *b = &table->ranks[m->rank].begun;
    b->is_here &= c->is_here;
    struct place *place = is_again ? r->place_of[m->rank] : place_find(r, b->place, strlen(b->place));
    c->is_over = !place;
    if (c->is_over) return;
    rank_bind(r, c, m->rank);
    if (!is_again) place_add(r, place, m->rank);
    if (!b->is_here && strcmp(b->build, r->build)) {
        snprintf(refused, sizeof refused,
                 "host %s has another build of %s (%s) than the launcher (%s): install the same one on all hosts", b->host,
                 r->options.program, b->build, r->build);
        return answer(c, PD_MESSAGE_REFUSED, 0, refused, (uint32_t)strlen(refused));
    }
    /* its further reports come later in events.jsonl */
    is_again ? r->options.reopened(r->options.context, m->rank) : r->options.begun(r->options.context, m->rank);
    char *config = b->is_here ? NULL : read_config(r->options.config_path);
    answer(c, PD_MESSAGE_CONFIG, !b->is_here && place->first == m->rank, config ? config : "",
           config ? (uint32_t)strlen(config) : 0);
    free(config);
}

/* A host has one relay: an earlier one lost its connection, even if we have not noticed. */
static void take_relay(struct pd_launch_receiver *r, struct connection *c, const struct pd_message *m)
{
    struct place *place = c->place || c->rank != PD_MESSAGE_NOBODY ? NULL : place_find(r, (const char *)m->data, m->bytes);
    c->is_over = !place;
    if (c->is_over) return;
    if (place->relay) shutdown(place->relay->fd, SHUT_RDWR);
    place->relay = c;
    c->place = place;
    for (uint32_t rank = place->first; rank != PD_MESSAGE_NOBODY; rank = r->next[rank])
        relay_tell(r, c, rank);
}

/* A relay may report only on its own host. */
static void take_heartbeat(struct pd_launch_receiver *r, struct connection *c, const struct pd_message *m)
{
    struct pd_remote_heartbeat heartbeat;
    c->is_over = !c->place || r->place_of[m->rank] != c->place || !pd_message_parse_heartbeat(m, &heartbeat);
    if (!c->is_over) r->options.beat(r->options.context, m->rank, &heartbeat);
}

static void take_sealed(struct pd_launch_receiver *r, struct connection *c, const struct pd_message *m)
{
    c->is_over = m->rank >= r->options.table->count;
    if (c->is_over) return;
    switch (m->kind) {
    case PD_MESSAGE_BEGUN:
        return take_begun(r, c, m);
    case PD_MESSAGE_RELAY:
        return take_relay(r, c, m);
    case PD_MESSAGE_HEARTBEAT:
        return take_heartbeat(r, c, m);
    default:
        c->is_over = !pd_rank_table_take(r->options.table, m);
        if (!c->is_over && c->rank == PD_MESSAGE_NOBODY) { /* a connection that was made again */
            rank_bind(r, c, m->rank);
            r->options.reopened(r->options.context, m->rank);
        }
        if (!c->is_over && m->kind == PD_MESSAGE_ENDED) answer(c, PD_MESSAGE_ACK, 0, "", 0);
    }
}

/* Bytes consumed; 0: the message is incomplete. */
static size_t take_one(struct pd_launch_receiver *r, struct connection *c)
{
    struct pd_message m;
    const bool is_sealed = c->is_proven;
    const uint32_t most = is_sealed ? PD_MESSAGE_BYTES_MAX : PD_MESSAGE_NONCE_BYTES;
    const int64_t taken = pd_message_take(c->data, c->bytes, most, &m);
    c->is_over |= taken < 0;
    if (taken < 0) refused_count(r, c);
    if (taken <= 0 || (is_sealed && c->bytes < (size_t)taken + PD_MESSAGE_MAC_BYTES)) return 0;
    if (!is_sealed) {
        c->is_challenged ? check_proof(r, c, &m) : challenge(r, c, &m);
        if (c->is_over) refused_count(r, c);
        return (size_t)taken;
    }
    c->is_over = !pd_seal_accepts(&c->seal, PD_SEAL_RANK, &m, c->data + taken);
    if (c->is_over)
        refused_count(r, c);
    else
        take_sealed(r, c, &m);
    return (size_t)taken + PD_MESSAGE_MAC_BYTES;
}

static void connection_read(struct pd_launch_receiver *r, struct connection *c)
{
    const size_t capacity = PD_MESSAGE_HEADER_BYTES + PD_MESSAGE_BYTES_MAX + PD_MESSAGE_MAC_BYTES;
    if (!c->data && (c->data = malloc(capacity))) c->capacity = capacity;
    while (!c->is_over) {
        const ssize_t got = c->data ? recv(c->fd, c->data + c->bytes, c->capacity - c->bytes, 0) : 0;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) break;
        c->is_over = got <= 0;
        c->bytes += got > 0 ? (size_t)got : 0;
        for (size_t taken; !c->is_over && (taken = take_one(r, c));)
            memmove(c->data, c->data + taken, c->bytes -= taken);
    }
    if (c->is_over) return connection_end(r, c);
    if (c->bytes) return;
    free(c->data); /* thousands of ranks send only rarely */
    c->data = NULL;
    c->capacity = 0;
}

void pd_launch_receiver_look(struct pd_launch_receiver *r)
{
    struct epoll_event events[EVENTS];
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    for (int count = EVENTS, rounds = 0; count == EVENTS && rounds < 1024; rounds++) {
        count = epoll_wait(r->epoll, events, EVENTS, 0);
        for (int i = 0; i < count; i++)
            if (events[i].data.ptr) connection_read(r, events[i].data.ptr);
        for (uint32_t i = 0; i < r->listener_count && count > 0; i++)
            accept_all(r, r->listeners[i], now);
    }
    while (r->first && now - r->first->since_ns > STRANGER_NS)
        connection_end(r, r->first);
}

void pd_launch_receiver_free(struct pd_launch_receiver *r)
{
    if (!r) return;
    if (r->refused > r->refused_logged)
        pd_log_warn(MODULE, "in all %" PRIu64 " tries without the launch's secret were refused", r->refused);
    while (r->first) {
        struct connection *c = r->first;
        stranger_unlink(r, c);
        connection_free(r, c);
    }
    for (uint32_t i = 0; i < r->proven_count; i++)
        connection_free(r, r->proven[i]);
    for (uint32_t i = 0; i < r->listener_count; i++)
        close(r->listeners[i]);
    if (r->epoll >= 0) close(r->epoll);
    free(r->proven);
    free(r->bound);
    hdestroy_r(&r->place_names);
    free(r->places);
    free(r->place_of);
    free(r->next);
    free(r);
}
