#include "trainer/status/relay.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define PERIOD_NS UINT64_C(500000000)
#define STALLED_NS UINT64_C(1000000000) /* without a completion: the heartbeat says where it is in the kernel, too */
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

/* False: the connection is over, or somebody else speaks in it. */
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
    beat.cpu_ms = (uint64_t)(pd_process_cpu_seconds(w->process) * 1e3);
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
    for (;; pd_clock_sleep_ns(NULL, PERIOD_NS)) {
        if (pd_channel_connect(&r.seal, &r.fd, err)) continue;
        relay_serve(&r, rank, ranks);
        close(r.fd);
        relay_forget(&r);
    }
}
