#include "trainer/launch/receiver.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/regular_file.h"
#include "trainer/notes/sender.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define MODULE "launch"
#define STRANGERS_MAX 64u                /* connections that have not said the token */
#define STRANGER_NS UINT64_C(5000000000) /* until they are closed */
#define CONNECTIONS_MAX 4096u
#define SEND_MS 1000

struct connection {
    int fd;
    bool is_known, is_over;
    uint64_t since_ns;
    struct pd_wire_hello hello;
    char *place;   /* of a relay, owned; NULL: it is none */
    uint32_t told; /* ranks that a relay was told of, of those that have begun */
    size_t bytes;
    uint8_t data[PD_WIRE_HEADER_BYTES + PD_WIRE_BYTES_MAX];
};

struct begun {
    bool has_begun; /* over this socket */
    struct pd_note_begun note;
};

struct pd_launch_receiver {
    struct pd_launch_receiver_options options;
    int listener;
    char token[PD_WIRE_TOKEN_BYTES + 1], build[PD_WIRE_BUILD_BYTES], addresses[512];
    struct connection *connections[CONNECTIONS_MAX]; /* (count) owned */
    uint32_t count;
    struct begun *begun; /* (options.ranks) */
    uint32_t *order;     /* (options.ranks) of begun_count: who has begun, in that order */
    uint32_t begun_count;
};

/* ---- opening ---- */

static bool make_token(char ret_token[PD_WIRE_TOKEN_BYTES + 1])
{
    unsigned char random[PD_WIRE_TOKEN_BYTES / 2];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return false;
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(ret_token + 2 * i, 3, "%02x", random[i]);
    return true;
}

/* All addresses of IPv6 are those of IPv4 too, where this host has any. */
static int listen_on(uint16_t port, uint16_t *ret_port)
{
    const int yes = 1, no = 0;
    struct sockaddr_in6 all = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_ANY)};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const bool is_six = fd >= 0;
    if (!is_six) fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (is_six) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    struct sockaddr *to = is_six ? (struct sockaddr *)&all : (struct sockaddr *)&four;
    socklen_t bytes = is_six ? sizeof all : sizeof four;
    if (bind(fd, to, bytes) || listen(fd, SOMAXCONN) || getsockname(fd, to, &bytes)) {
        const int number = errno;
        close(fd);
        errno = number;
        return -1;
    }
    *ret_port = ntohs(is_six ? all.sin6_port : four.sin_port);
    return fd;
}

static void list_addresses(struct pd_launch_receiver *r, uint16_t port)
{
    size_t used = 0, bytes;
    for (const char *at = r->options.addresses; *at && used < sizeof r->addresses; at += bytes + (at[bytes] == ',')) {
        bytes = strcspn(at, ",");
        const bool is_six = memchr(at, ':', bytes);
        used += (size_t)snprintf(r->addresses + used, sizeof r->addresses - used, "%s%s%.*s%s:%u", used ? "," : "",
                                 is_six ? "[" : "", (int)bytes, at, is_six ? "]" : "", port);
    }
}

pd_status pd_launch_receiver_open(const struct pd_launch_receiver_options *options, struct pd_launch_receiver **ret_receiver,
                                  struct pd_error *err)
{
    uint16_t port = 0;
    struct pd_launch_receiver *r = calloc(1, sizeof *r);
    if (r) {
        r->listener = -1;
        r->begun = calloc(options->ranks, sizeof *r->begun);
        r->order = calloc(options->ranks, sizeof *r->order);
    }
    if (!r || !r->begun || !r->order) {
        pd_launch_receiver_free(r);
        PD_FAIL(err, PD_NO_MEMORY, "a socket for %u ranks", options->ranks);
    }
    r->options = *options;
    r->listener = listen_on(options->port, &port);
    if (r->listener < 0 || !make_token(r->token)) {
        const int number = errno;
        pd_launch_receiver_free(r);
        PD_FAIL_ERRNO(err, number, "listening on port %u for ranks of other hosts (launch.port)", options->port);
    }
    pd_sender_build(r->build);
    list_addresses(r, port);
    *ret_receiver = r;
    return PD_OK;
}

void pd_launch_receiver_environment_set(const struct pd_launch_receiver *r)
{
    setenv(PD_SENDER_ENV_ADDRESSES, r ? r->addresses : "", 1);
    setenv(PD_SENDER_ENV_TOKEN, r ? r->token : "", 1);
}

bool pd_launch_receiver_has(const struct pd_launch_receiver *r, uint32_t rank)
{
    return rank < r->options.ranks && r->begun[rank].has_begun;
}

const char *pd_launch_receiver_addresses(const struct pd_launch_receiver *r)
{
    return r->addresses;
}

/* ---- what ranks say ---- */

static void answer(struct connection *c, enum pd_wire_kind kind, uint32_t rank, const char *text)
{
    const struct pd_wire_frame frame = {
        .kind = kind, .rank = rank, .data = (const uint8_t *)text, .bytes = (uint32_t)strlen(text)};
    c->is_over |= !pd_wire_send(c->fd, &frame, SEND_MS);
}

/* For the caller to free; NULL: there is none. */
static char *read_config(const char *path)
{
    FILE *f = path ? pd_regular_fopen(path, false) : NULL;
    char *text = f ? calloc(1, PD_WIRE_ANSWER_BYTES_MAX + 1) : NULL;
    if (text) text[fread(text, 1, PD_WIRE_ANSWER_BYTES_MAX, f)] = '\0';
    if (f) (void)fclose(f);
    return text;
}

/* The first rank of a host begins its relay too. */
static void take_begun(struct pd_launch_receiver *r, struct connection *c, const struct pd_wire_frame *f)
{
    char text[PD_NOTE_BYTES], refused[512];
    struct pd_note_begun note;
    bool is_first = true;
    snprintf(text, sizeof text, "%.*s", (int)f->bytes, (const char *)f->data);
    c->is_over = !pd_note_parse_process(text, &note) || note.is_here || r->begun[f->rank].has_begun;
    if (c->is_over) return;
    if (strcmp(c->hello.build, r->build)) {
        snprintf(refused, sizeof refused,
                 "host %s has another build of %s (%s) than the launcher (%s): install the same one on all hosts",
                 c->hello.host, r->options.program, c->hello.build, r->build);
        answer(c, PD_WIRE_REFUSED, 0, refused);
        return;
    }
    for (uint32_t i = 0; i < r->begun_count; i++)
        is_first &= strcmp(r->begun[r->order[i]].note.place, note.place) != 0;
    char *config = read_config(r->options.config_path);
    c->is_over = !pd_note_write(r->options.dir, PD_NOTE_BEGUN, f->rank, f->data, f->bytes);
    if (c->is_over) return free(config);
    r->begun[f->rank] = (struct begun){true, note};
    r->order[r->begun_count++] = f->rank;
    answer(c, PD_WIRE_DONE, is_first, config ? config : "");
    free(config);
}

static void take_note(struct pd_launch_receiver *r, struct connection *c, const struct pd_wire_frame *f)
{
    const uint32_t known = 1u << PD_NOTE_OPENING | 1u << PD_NOTE_READY | 1u << PD_NOTE_ENDED | 1u << PD_NOTE_SAVED |
                           1u << PD_NOTE_GPU | 1u << PD_NOTE_SUSPECT | 1u << PD_NOTE_TAKEN;
    if (f->note == PD_NOTE_BEGUN && f->bytes < PD_NOTE_BYTES) return take_begun(r, c, f);
    const bool is_one = f->note < PD_NOTE_OWNER && known >> f->note & 1 && f->bytes < PD_NOTE_BYTES;
    c->is_over = !is_one || !pd_note_write(r->options.dir, (enum pd_note)f->note, f->rank, f->data, f->bytes);
    if (!c->is_over) answer(c, PD_WIRE_DONE, 0, "");
}

static void take_no_note(struct pd_launch_receiver *r, struct connection *c, const struct pd_wire_frame *f)
{
    c->is_over = f->note != PD_NOTE_OPENING;
    if (c->is_over) return;
    pd_note_remove_opening(r->options.dir);
    answer(c, PD_WIRE_DONE, 0, "");
}

/* A host has one relay: the one before has lost its connection, whether that is known here or not. */
static void take_place(struct pd_launch_receiver *r, struct connection *c, const struct pd_wire_frame *f)
{
    char *place = strndup((const char *)f->data, f->bytes);
    if (!place || c->place || f->bytes >= PD_WIRE_PLACE_BYTES) {
        c->is_over = true;
        return free(place);
    }
    for (uint32_t i = 0; i < r->count; i++)
        r->connections[i]->is_over |= r->connections[i]->place && !strcmp(r->connections[i]->place, place);
    c->place = place;
}

/* A relay speaks for its own host alone. */
static void take_word(struct pd_launch_receiver *r, struct connection *c, const struct pd_wire_frame *f)
{
    struct pd_wire_word word;
    const struct begun *b = &r->begun[f->rank];
    c->is_over = !c->place || !b->has_begun || strcmp(b->note.place, c->place) || !pd_wire_word_parse(f, &word);
    if (!c->is_over) r->options.hear(r->options.context, f->rank, &word);
}

static void take_frame(struct pd_launch_receiver *r, struct connection *c, const struct pd_wire_frame *f)
{
    if (!c->is_known) {
        c->is_over = !pd_wire_hello_parse(f, &c->hello) || !pd_wire_token_is(c->hello.token, r->token);
        c->is_known = !c->is_over;
        return;
    }
    c->is_over = f->rank >= r->options.ranks;
    if (c->is_over) return;
    switch (f->kind) {
    case PD_WIRE_NOTE:
        return take_note(r, c, f);
    case PD_WIRE_NO_NOTE:
        return take_no_note(r, c, f);
    case PD_WIRE_PLACE:
        return take_place(r, c, f);
    case PD_WIRE_WORD:
        return take_word(r, c, f);
    default:
        c->is_over = true;
    }
}

/* ---- connections ---- */

static void connection_free(struct connection *c)
{
    close(c->fd);
    free(c->place);
    free(c);
}

/* The oldest of too many strangers gives way. */
static void make_room(struct pd_launch_receiver *r)
{
    uint32_t strangers = 0;
    struct connection *oldest = NULL;
    for (uint32_t i = 0; i < r->count; i++) {
        struct connection *c = r->connections[i];
        if (c->is_known) continue;
        strangers++;
        if (!oldest || c->since_ns < oldest->since_ns) oldest = c;
    }
    if (strangers >= STRANGERS_MAX && oldest) oldest->is_over = true;
}

static void accept_all(struct pd_launch_receiver *r, uint64_t now)
{
    for (uint32_t i = 0; i < STRANGERS_MAX && r->count < CONNECTIONS_MAX; i++) {
        const int fd = accept4(r->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        struct connection *c = fd >= 0 ? calloc(1, sizeof *c) : NULL;
        if (!c) {
            if (fd >= 0) close(fd);
            return;
        }
        make_room(r);
        c->fd = fd;
        c->since_ns = now;
        r->connections[r->count++] = c;
    }
}

static void connection_read(struct pd_launch_receiver *r, struct connection *c)
{
    struct pd_wire_frame frame;
    while (!c->is_over) {
        const ssize_t got = recv(c->fd, c->data + c->bytes, sizeof c->data - c->bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return;
        c->is_over = got <= 0;
        c->bytes += got > 0 ? (size_t)got : 0;
        for (int64_t taken; !c->is_over && (taken = pd_wire_take(c->data, c->bytes, PD_WIRE_BYTES_MAX, &frame)) != 0;) {
            c->is_over = taken < 0;
            if (taken < 0) return;
            take_frame(r, c, &frame);
            memmove(c->data, c->data + taken, c->bytes -= (size_t)taken);
        }
    }
}

static void relay_tell(const struct pd_launch_receiver *r, struct connection *c)
{
    for (; c->place && !c->is_over && c->told < r->begun_count; c->told++) {
        const struct pd_note_begun *note = &r->begun[r->order[c->told]].note;
        const int32_t numbers[2] = {note->process, note->pulse};
        if (note->pulse < 0 || strcmp(note->place, c->place)) continue;
        const struct pd_wire_frame frame = {
            .kind = PD_WIRE_WATCH, .rank = r->order[c->told], .data = (const uint8_t *)numbers, .bytes = sizeof numbers};
        c->is_over = !pd_wire_send(c->fd, &frame, SEND_MS);
    }
}

void pd_launch_receiver_look(struct pd_launch_receiver *r)
{
    uint32_t left = 0;
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    accept_all(r, now);
    for (uint32_t i = 0; i < r->count; i++) {
        connection_read(r, r->connections[i]);
        relay_tell(r, r->connections[i]);
        r->connections[i]->is_over |= !r->connections[i]->is_known && now - r->connections[i]->since_ns > STRANGER_NS;
    }
    for (uint32_t i = 0; i < r->count; i++)
        if (r->connections[i]->is_over)
            connection_free(r->connections[i]);
        else
            r->connections[left++] = r->connections[i];
    r->count = left;
}

uint32_t pd_launch_receiver_polls(const struct pd_launch_receiver *r, struct pollfd *ret_polls)
{
    uint32_t count = 0;
    ret_polls[count++] = (struct pollfd){.fd = r->listener, .events = POLLIN};
    for (uint32_t i = r->count; i-- > 0 && count < PD_LAUNCH_RECEIVER_POLLS;) /* the newest: notes, not relays */
        ret_polls[count++] = (struct pollfd){.fd = r->connections[i]->fd, .events = POLLIN};
    return count;
}

void pd_launch_receiver_free(struct pd_launch_receiver *r)
{
    if (!r) return;
    for (uint32_t i = 0; i < r->count; i++)
        connection_free(r->connections[i]);
    if (r->listener >= 0) close(r->listener);
    free(r->begun);
    free(r->order);
    free(r);
}
