#include "trainer/status/channel.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/process.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- a rank's end ---- */

#define ANSWER_MS 3000 /* for one address, or one answer */
#define OPEN_MS 30000  /* thousands of ranks may connect at once */
#define RETRY_NS UINT64_C(200000000)

static struct {
    pthread_mutex_t lock; /* of fd and seal */
    int fd;               /* -1: none */
    struct pd_seal seal;
    bool is_open, is_relay; /* pd_channel_open sets these before there are threads */
    char *config;
} channel = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

bool pd_channel_is_relay(void)
{
    return channel.is_relay;
}

const char *pd_channel_config(void)
{
    return channel.config;
}

/* ---- connecting ---- */

static const char *environment(const char *name)
{
    const char *text = getenv(name);
    return text ? text : "";
}

static pd_status read_secret(struct pd_seal *seal, struct pd_error *err)
{
    char text[2 * PD_SEAL_SECRET_BYTES + 1] = "";
    const char *path = environment(PD_CHANNEL_ENV_SECRET);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        PD_FAIL(err, PD_UNSUPPORTED,
                "%s: reading the secret of this launch: %s. With launch.hosts the launcher writes it on every host through "
                "launch.agent; without, run.dir has to be shared between hosts",
                path, strerror(errno));
    const ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    for (size_t i = 0; got == (ssize_t)sizeof text - 1 && i < PD_SEAL_SECRET_BYTES; i++)
        if (sscanf(text + 2 * i, "%2hhx", &seal->secret[i]) == 1 && i + 1 == PD_SEAL_SECRET_BYTES) return PD_OK;
    PD_FAIL(
        err, PD_UNSUPPORTED,
        "%s holds no secret of a launch: use a launch.agent that passes its standard input to the command (docker exec -i)",
        path);
}

/* 0, or an errno. The socket stays non-blocking. */
static int connect_within(int fd, const struct sockaddr *to, socklen_t to_bytes)
{
    int error = connect(fd, to, to_bytes) ? errno : 0;
    const uint64_t began = pd_clock_monotonic_ns(NULL);
    socklen_t bytes = sizeof error;
    while (error == EINPROGRESS) {
        struct pollfd one = {.fd = fd, .events = POLLOUT};
        const int left_ms = ANSWER_MS - (int)(pd_clock_seconds_since(began) * 1e3);
        if (left_ms <= 0) return ETIMEDOUT;
        if (poll(&one, 1, left_ms) > 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    }
    return error;
}

static int connect_socket(int family, const struct sockaddr *to, socklen_t bytes, int *ret_error)
{
    const int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    *ret_error = fd < 0 ? errno : connect_within(fd, to, bytes);
    if (!*ret_error) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* "@name", "10.0.0.1:4123" or "[fd00::1]:4123" */
static int connect_to(char *address, int *ret_error)
{
    struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    if (*address == '@') {
        struct sockaddr_un local = {.sun_family = AF_UNIX};
        snprintf(local.sun_path + 1, sizeof local.sun_path - 1, "%s", address + 1);
        return connect_socket(AF_UNIX, (const struct sockaddr *)&local,
                              (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(address)), ret_error);
    }
    char *port = strrchr(address, ':'), *host = address;
    *ret_error = EINVAL;
    if (!port) return -1;
    *port++ = '\0';
    if (*host == '[') {
        host++;
        host[strcspn(host, "]")] = '\0';
    }
    if (getaddrinfo(host, port, &hints, &found)) return -1;
    const int fd = connect_socket(found->ai_family, found->ai_addr, found->ai_addrlen, ret_error);
    freeaddrinfo(found);
    return fd;
}

/* Someone is between this host and the launcher, or impersonates it. */
static void warn(const char *what)
{
    char host[PD_MESSAGE_HOST_BYTES] = "";
    (void)gethostname(host, sizeof host - 1);
    pd_log_warn("status", "host %s: %s: refused", host, what);
}

/* One message, malloc'ed; NULL: none in time, or its MAC is wrong. seal NULL: it has no MAC. */
static uint8_t *channel_receive(int fd, struct pd_seal *seal, struct pd_message *ret_message)
{
    uint8_t *data = NULL;
    size_t got = 0, capacity = 0;
    const size_t mac = seal ? PD_MESSAGE_MAC_BYTES : 0;
    const uint64_t began = pd_clock_monotonic_ns(NULL);
    for (;;) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        const int left_ms = ANSWER_MS - (int)(pd_clock_seconds_since(began) * 1e3);
        if (got == capacity) {
            uint8_t *more = realloc(data, capacity = capacity ? 2 * capacity : 16384);
            if (!more) break;
            data = more;
        }
        if (left_ms <= 0) break;
        if (poll(&one, 1, left_ms) <= 0) continue;
        const ssize_t piece = recv(fd, data + got, capacity - got, 0);
        if (piece < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (piece <= 0) break;
        got += (size_t)piece;
        const int64_t taken = pd_message_take(data, got, PD_MESSAGE_ANSWER_BYTES_MAX, ret_message);
        if (taken < 0) break;
        if (taken == 0 || got < (size_t)taken + mac) continue;
        if (!seal || pd_seal_accepts(seal, PD_SEAL_LAUNCHER, ret_message, data + taken)) return data;
        warn("an answer of the launcher was changed on its way");
        break;
    }
    free(data);
    return NULL;
}

enum proven { PROVEN, SILENT, IMPOSTOR };

static enum proven prove(int fd, struct pd_seal *seal)
{
    uint8_t proof[PD_MESSAGE_PROOF_BYTES];
    struct pd_message challenge;
    const struct pd_message hello = {
        .kind = PD_MESSAGE_HELLO, .data = seal->nonces[PD_SEAL_RANK], .bytes = PD_MESSAGE_NONCE_BYTES};
    if (!pd_seal_random(seal->nonces[PD_SEAL_RANK], PD_MESSAGE_NONCE_BYTES)) return SILENT;
    if (!pd_seal_send(fd, NULL, PD_SEAL_RANK, &hello, ANSWER_MS)) return SILENT;
    uint8_t *data = channel_receive(fd, NULL, &challenge);
    if (!data) return SILENT;
    enum proven is = IMPOSTOR;
    if (challenge.kind == PD_MESSAGE_CHALLENGE && challenge.bytes == PD_MESSAGE_NONCE_BYTES + PD_MESSAGE_PROOF_BYTES) {
        memcpy(seal->nonces[PD_SEAL_LAUNCHER], challenge.data, PD_MESSAGE_NONCE_BYTES);
        if (pd_seal_is_proof(seal, PD_SEAL_LAUNCHER, challenge.data + PD_MESSAGE_NONCE_BYTES, PD_MESSAGE_PROOF_BYTES))
            is = PROVEN;
    }
    free(data);
    if (is != PROVEN) warn("another program answers at the launcher's address and does not know the secret of this launch");
    if (is != PROVEN) return is;
    const struct pd_message answer = {.kind = PD_MESSAGE_PROOF, .data = proof, .bytes = sizeof proof};
    if (!pd_seal_prove(seal, PD_SEAL_RANK, proof) || !pd_seal_keys(seal) ||
        !pd_seal_send(fd, NULL, PD_SEAL_RANK, &answer, ANSWER_MS))
        return SILENT;
    return PROVEN;
}

/* For a relay: a proven connection.   errors  as above, without trying again; ret_fd is the caller's */
static pd_status channel_connect(struct pd_seal *seal, int *ret_fd, struct pd_error *err)
{
    uint64_t start = 0;
    int error = ENOTCONN;
    char address[160], host[PD_MESSAGE_HOST_BYTES] = "";
    PD_TRY(read_secret(seal, err));
    (void)pd_parse_u64(environment(PD_CHANNEL_ENV_RESTART), &start);
    seal->start = (uint32_t)start;
    bool is_impostor = false;
    const char *at = environment(PD_CHANNEL_ENV_ADDRESSES);
    for (size_t bytes; *at; at += bytes + (at[bytes] == ',')) {
        bytes = strcspn(at, ",");
        snprintf(address, sizeof address, "%.*s", (int)bytes, at);
        const int fd = connect_to(address, &error);
        if (fd < 0) continue;
        const enum proven is = prove(fd, seal);
        if (is == PROVEN) {
            *ret_fd = fd;
            return PD_OK;
        }
        close(fd);
        is_impostor |= is == IMPOSTOR;
        error = ETIMEDOUT;
    }
    (void)gethostname(host, sizeof host - 1);
    if (is_impostor)
        PD_FAIL(err, PD_UNSUPPORTED,
                "host %s: whoever answers at %s does not know the secret of this launch: look which program listens "
                "there, then run the same command again",
                host, environment(PD_CHANNEL_ENV_ADDRESSES));
    PD_FAIL(err, PD_UNSUPPORTED,
            "host %s cannot reach the launcher at %s (%s): let that port through (launch.port=N names one); for ranks on "
            "other hosts name them in launch.hosts",
            host, environment(PD_CHANNEL_ENV_ADDRESSES), strerror(error));
}

/* ---- speaking ---- */

static void channel_close(void)
{
    if (channel.fd >= 0) close(channel.fd);
    channel.fd = -1;
}

static bool send_now(const struct pd_message *m)
{
    if (pd_seal_send(channel.fd, &channel.seal, PD_SEAL_RANK, m, ANSWER_MS)) return true;
    channel_close();
    return false;
}

static pd_status take_answer(const struct pd_message *answer, struct pd_error *err)
{
    char why[512];
    if (answer->kind == PD_MESSAGE_REFUSED) {
        pd_message_text(answer->data, answer->bytes, why, sizeof why);
        PD_FAIL(err, PD_UNSUPPORTED, "%s", why);
    }
    if (answer->kind != PD_MESSAGE_CONFIG)
        PD_FAIL(err, PD_UNSUPPORTED,
                "rank %u: this build does not know the launcher's answer: install the same one on all hosts", answer->rank);
    if (!answer->bytes) return PD_OK; /* on the launcher's host the file is there */
    channel.is_relay = answer->rank == 1;
    channel.config = strndup((const char *)answer->data, answer->bytes);
    if (!channel.config) PD_FAIL(err, PD_NO_MEMORY, "no memory for the configuration of the launcher");
    return PD_OK;
}

/* The connection may be cut before the answer is here: the launcher answers the same rank again. */
static pd_status begin_once(uint32_t rank, const struct pd_begun *begun, bool *ret_is_final, struct pd_error *err)
{
    uint8_t data[PD_MESSAGE_BYTES_MAX];
    struct pd_message answer;
    *ret_is_final = false;
    PD_TRY(channel_connect(&channel.seal, &channel.fd, err));
    const struct pd_message message = {
        .kind = PD_MESSAGE_BEGUN, .rank = rank, .data = data, .bytes = pd_message_print_begun(begun, data)};
    uint8_t *got = send_now(&message) ? channel_receive(channel.fd, &channel.seal, &answer) : NULL;
    *ret_is_final = got != NULL;
    const pd_status st = got ? take_answer(&answer, err)
                             : pd_error_set(err, PD_UNSUPPORTED, PD_WHERE, 0,
                                            "rank %u: the launcher does not answer: run the same command again", rank);
    free(got);
    if (st) channel_close();
    return st;
}

pd_status pd_channel_open(uint32_t rank, uint32_t size, struct pd_begun *begun, struct pd_error *err)
{
    bool is_final;
    pd_status st;
    const uint64_t began = pd_clock_monotonic_ns(NULL);
    pd_message_place(rank, size, begun->place);
    pd_message_build("/proc/self/exe", begun->build);
    (void)gethostname(begun->host, sizeof begun->host - 1);
    for (;;) {
        st = begin_once(rank, begun, &is_final, err);
        if (!st || is_final || pd_clock_seconds_since(began) * 1e3 > OPEN_MS) break;
        pd_clock_sleep_ns(RETRY_NS);
    }
    channel.is_open = !st;
    return st;
}

/* With the lock. */
static bool say_once(const struct pd_message *m)
{
    struct pd_message answer;
    struct pd_error ignored;
    if (channel.fd < 0 && channel_connect(&channel.seal, &channel.fd, &ignored)) return false;
    if (!send_now(m)) return false;
    if (m->kind != PD_MESSAGE_ENDED) return true;
    uint8_t *data = channel_receive(channel.fd, &channel.seal, &answer);
    const bool has_arrived = data && answer.kind == PD_MESSAGE_ACK;
    free(data);
    if (!has_arrived) channel_close();
    return has_arrived;
}

bool pd_channel_say(enum pd_message_kind kind, uint32_t rank, const void *data, uint32_t bytes)
{
    const struct pd_message m = {.kind = kind, .rank = rank, .data = data, .bytes = bytes};
    if (!channel.is_open) return false;
    pthread_mutex_lock(&channel.lock);
    const bool is_said = say_once(&m) || say_once(&m); /* a connection that was lost shows by its first use */
    pthread_mutex_unlock(&channel.lock);
    return is_said;
}

/* ---- the relay ---- */

#define PERIOD_NS UINT64_C(500000000)
#define STALLED_NS UINT64_C(1000000000) /* without progress: the heartbeat then includes the place in the kernel */
#define SEND_MS 3000

struct watched {
    uint32_t rank;
    int32_t process;
    const struct pd_heartbeat *heartbeat; /* mapped */
    uint64_t done, moved_ns;
};

struct relay {
    struct watched *watched; /* (count) */
    uint32_t count;
    uint64_t beats, sent_ns;
    int fd;
    struct pd_seal seal;
    uint8_t data[PD_MESSAGE_HEADER_BYTES + PD_MESSAGE_BYTES_MAX + PD_MESSAGE_MAC_BYTES];
    size_t bytes; /* of data */
    char host[PD_MESSAGE_HOST_BYTES];
};

/* Closes everything of the starter's: it waits until its ranks' output has no writer left. */
static void relay_main(uint32_t rank, uint32_t ranks, pid_t parent)
{
    static const int ignored[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
    char of[16], count[16];
    snprintf(of, sizeof of, "%u", rank);
    snprintf(count, sizeof count, "%u", ranks);
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    const int null = open("/dev/null", O_RDWR);
    for (int fd = 0; null >= 0 && fd <= 2; fd++)
        dup2(null, fd);
    (void)close_range(3, ~0u, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent) _exit(1);
    execl("/proc/self/exe", "perdure", "relay", of, count, (char *)NULL);
    _exit(1);
}

void pd_relay_start(uint32_t rank, uint32_t ranks)
{
    const pid_t parent = getpid();
    fflush(NULL);
    if (fork() == 0) relay_main(rank, ranks, parent);
}

static void relay_forget(struct relay *r)
{
    for (uint32_t i = 0; i < r->count; i++)
        pd_heartbeat_unmap(r->watched[i].heartbeat, 1);
    r->count = 0;
    r->bytes = 0;
}

static void relay_watch(struct relay *r, const struct pd_message *m)
{
    struct pd_watched w;
    if (!pd_message_parse_watched(m, &w)) return;
    const struct pd_heartbeat *heartbeat = pd_heartbeat_map(w.process, w.heartbeat, 1);
    struct watched *more = heartbeat ? realloc(r->watched, (r->count + 1) * sizeof *more) : NULL;
    if (!more) {
        pd_heartbeat_unmap(heartbeat, 1);
        return;
    }
    r->watched = more;
    r->watched[r->count++] = (struct watched){.rank = m->rank, .process = w.process, .heartbeat = heartbeat};
}

/* False: the connection is closed, or someone else sends on it. */
static bool relay_hear(struct relay *r)
{
    struct pd_message m;
    const ssize_t got = recv(r->fd, r->data + r->bytes, sizeof r->data - r->bytes, 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (got <= 0) return false;
    r->bytes += (size_t)got;
    for (int64_t taken; (taken = pd_message_take(r->data, r->bytes, PD_MESSAGE_BYTES_MAX, &m)) != 0;) {
        if (taken < 0) return false;
        if (r->bytes < (size_t)taken + PD_MESSAGE_MAC_BYTES) return true;
        if (!pd_seal_accepts(&r->seal, PD_SEAL_LAUNCHER, &m, r->data + taken)) return false;
        if (m.kind == PD_MESSAGE_WATCH) relay_watch(r, &m);
        taken += PD_MESSAGE_MAC_BYTES;
        memmove(r->data, r->data + taken, r->bytes -= (size_t)taken);
    }
    return true;
}

static bool relay_send(struct relay *r, struct watched *w, uint64_t now)
{
    struct pd_remote_heartbeat beat = {.process = w->process, .is_stopped = pd_process_is_stopped(w->process)};
    const struct pd_message m = {
        .kind = PD_MESSAGE_HEARTBEAT, .rank = w->rank, .data = (const uint8_t *)&beat, .bytes = sizeof beat};
    memcpy((void *)&beat.heartbeat, (const void *)w->heartbeat, sizeof beat.heartbeat);
    beat.heartbeat.beats = r->beats;
    if (!w->moved_ns || w->done != beat.heartbeat.done) w->moved_ns = now;
    w->done = beat.heartbeat.done;
    beat.busy_ms = (uint64_t)(pd_process_busy_seconds(w->process) * 1e3);
    snprintf(beat.host, sizeof beat.host, "%s", r->host);
    if (now - w->moved_ns > STALLED_NS && !beat.is_stopped)
        pd_process_kernel_place(w->process, beat.kernel, sizeof beat.kernel);
    return pd_seal_send(r->fd, &r->seal, PD_SEAL_RANK, &m, SEND_MS);
}

/* Not of ranks that have ended. */
static bool relay_send_all(struct relay *r, uint64_t now)
{
    r->beats++;
    r->sent_ns = now;
    for (uint32_t i = 0; i < r->count; i++)
        if (!pd_process_has_ended(r->watched[i].process) && !relay_send(r, &r->watched[i], now)) return false;
    return true;
}

/* Until the connection is over. */
static void relay_serve(struct relay *r, uint32_t rank, uint32_t ranks)
{
    char place[PD_MESSAGE_PLACE_BYTES];
    pd_message_place(rank, ranks, place);
    const struct pd_message hello = {
        .kind = PD_MESSAGE_RELAY, .rank = rank, .data = (const uint8_t *)place, .bytes = (uint32_t)strlen(place)};
    for (bool is_open = pd_seal_send(r->fd, &r->seal, PD_SEAL_RANK, &hello, SEND_MS); is_open;) {
        struct pollfd one = {.fd = r->fd, .events = POLLIN};
        const uint64_t now = pd_clock_monotonic_ns(NULL), since = now - r->sent_ns;
        if (since >= PERIOD_NS)
            is_open = relay_send_all(r, now);
        else if (poll(&one, 1, (int)((PERIOD_NS - since) / 1000000) + 1) > 0)
            is_open = relay_hear(r);
    }
}

pd_status pd_relay_run(uint32_t rank, uint32_t ranks, struct pd_error *err)
{
    static struct relay r;
    if (!getenv(PD_CHANNEL_ENV_ADDRESSES)) PD_FAIL(err, PD_USAGE, "relay is started by perdure train");
    (void)gethostname(r.host, sizeof r.host - 1);
    for (;; pd_clock_sleep_ns(PERIOD_NS)) {
        if (channel_connect(&r.seal, &r.fd, err)) continue;
        relay_serve(&r, rank, ranks);
        close(r.fd);
        relay_forget(&r);
    }
}
