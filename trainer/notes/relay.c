#include "trainer/notes/relay.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/process.h"
#include "trainer/notes/note.h"
#include "trainer/notes/sender.h"

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
#define STALLED_NS UINT64_C(1000000000) /* without a completion: where it is in the kernel is said too */
#define SEND_MS 3000

struct watched {
    uint32_t rank;
    int32_t process, fd;
    const struct pd_pulse *pulse; /* mapped */
    uint64_t done, moved_ns;
};

struct relay {
    struct watched *watched; /* (count) */
    uint32_t count;
    uint64_t beats, said_ns;
    int fd;
    uint8_t data[PD_WIRE_BYTES_MAX + PD_WIRE_HEADER_BYTES];
    size_t bytes; /* of data */
    char host[PD_WIRE_HOST_BYTES];
};

/* Nothing of the starter's stays open, which waits for the end of what its ranks have from it. */
static void child_main(uint32_t rank, uint32_t ranks, pid_t parent)
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
    if (fork() == 0) child_main(rank, ranks, parent);
}

static void forget(struct relay *r)
{
    for (uint32_t i = 0; i < r->count; i++)
        pd_pulse_unmap(r->watched[i].pulse, 1);
    r->count = 0;
    r->bytes = 0;
}

static void watch(struct relay *r, const struct pd_wire_frame *frame)
{
    struct watched w = {.rank = frame->rank};
    if (!pd_wire_watch_parse(frame, &w.process, &w.fd) || !(w.pulse = pd_pulse_map(w.process, w.fd, 1))) return;
    struct watched *more = realloc(r->watched, (r->count + 1) * sizeof *more);
    if (!more) {
        pd_pulse_unmap(w.pulse, 1);
        return;
    }
    r->watched = more;
    r->watched[r->count++] = w;
}

/* False: the connection is over. */
static bool hear(struct relay *r)
{
    struct pd_wire_frame frame;
    const ssize_t got = recv(r->fd, r->data + r->bytes, sizeof r->data - r->bytes, 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (got <= 0) return false;
    r->bytes += (size_t)got;
    for (int64_t taken; (taken = pd_wire_take(r->data, r->bytes, PD_WIRE_BYTES_MAX, &frame)) != 0;) {
        if (taken < 0) return false;
        if (frame.kind == PD_WIRE_WATCH) watch(r, &frame);
        memmove(r->data, r->data + taken, r->bytes -= (size_t)taken);
    }
    return true;
}

static bool say(struct relay *r, struct watched *w, uint64_t now)
{
    struct pd_wire_word word = {.process = w->process, .is_stopped = pd_process_is_stopped(w->process)};
    const struct pd_wire_frame frame = {
        .kind = PD_WIRE_WORD, .rank = w->rank, .data = (const uint8_t *)&word, .bytes = sizeof word};
    memcpy((void *)&word.pulse, (const void *)w->pulse, sizeof word.pulse);
    word.pulse.beats = r->beats;
    if (!w->moved_ns || w->done != word.pulse.done) w->moved_ns = now;
    w->done = word.pulse.done;
    word.cpu_ms = (uint64_t)(pd_process_cpu_seconds(w->process) * 1e3);
    snprintf(word.host, sizeof word.host, "%s", r->host);
    if (now - w->moved_ns > STALLED_NS && !word.is_stopped)
        pd_process_kernel_place(w->process, word.kernel, sizeof word.kernel);
    return pd_wire_send(r->fd, &frame, SEND_MS);
}

/* Those that are gone say nothing any more. */
static bool say_all(struct relay *r, uint64_t now)
{
    r->beats++;
    r->said_ns = now;
    for (uint32_t i = 0; i < r->count; i++)
        if (!(kill(r->watched[i].process, 0) && errno == ESRCH) && !say(r, &r->watched[i], now)) return false;
    return true;
}

/* Until the connection is over. */
static void serve(struct relay *r, uint32_t rank, uint32_t ranks)
{
    char place[PD_WIRE_PLACE_BYTES];
    pd_note_place(rank, ranks, place);
    const struct pd_wire_frame frame = {
        .kind = PD_WIRE_PLACE, .rank = rank, .data = (const uint8_t *)place, .bytes = (uint32_t)strlen(place)};
    for (bool is_open = pd_wire_send(r->fd, &frame, SEND_MS); is_open;) {
        struct pollfd one = {.fd = r->fd, .events = POLLIN};
        const uint64_t now = pd_clock_monotonic_ns(NULL), since = now - r->said_ns;
        if (since >= PERIOD_NS)
            is_open = say_all(r, now);
        else if (poll(&one, 1, (int)((PERIOD_NS - since) / 1000000) + 1) > 0)
            is_open = hear(r);
    }
}

pd_status pd_relay_run(uint32_t rank, uint32_t ranks, struct pd_error *err)
{
    struct relay r = {.count = 0};
    pd_sender_open();
    (void)gethostname(r.host, sizeof r.host - 1);
    if (!pd_sender_is_on()) PD_FAIL(err, PD_USAGE, "relay is started by perdure train");
    for (;;) {
        r.fd = pd_sender_connect(rank);
        if (r.fd >= 0) {
            serve(&r, rank, ranks);
            close(r.fd);
            forget(&r);
        }
        pd_clock_sleep_ns(NULL, PERIOD_NS);
    }
}
