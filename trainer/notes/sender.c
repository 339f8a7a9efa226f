#include "trainer/notes/sender.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/digest.h"
#include "trainer/notes/note.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIMIT_MS 3000

/* Written by pd_sender_open and the note of begun, before there are threads. */
static struct {
    bool is_on, has_answered, is_relay;
    const char *addresses;
    struct pd_wire_hello hello;
    char *config;
    char refused[512], failed[128];
} sender;

bool pd_sender_is_on(void)
{
    return sender.is_on;
}

bool pd_sender_is_relay(void)
{
    return sender.is_relay;
}

const char *pd_sender_config(void)
{
    return sender.config;
}

void pd_sender_build(char ret_build[PD_WIRE_BUILD_BYTES])
{
    struct stat found;
    uint64_t digest = 0;
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const bool is_file = fd >= 0 && fstat(fd, &found) == 0 && found.st_size > 0;
    void *bytes = is_file ? mmap(NULL, (size_t)found.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (fd >= 0) close(fd);
    if (bytes != MAP_FAILED) {
        digest = pd_digest64(bytes, (size_t)found.st_size, 0);
        munmap(bytes, (size_t)found.st_size);
    }
    snprintf(ret_build, PD_WIRE_BUILD_BYTES, "%s, build %016llx", PERDURE_VERSION, (unsigned long long)digest);
}

void pd_sender_open(void)
{
    struct pd_note_begun owner;
    const char *dir = getenv(PD_LAUNCH_ENV_DIR), *token = getenv(PD_SENDER_ENV_TOKEN);
    sender.addresses = getenv(PD_SENDER_ENV_ADDRESSES);
    if (!dir || !token || strlen(token) != PD_WIRE_TOKEN_BYTES || !sender.addresses || !sender.addresses[0]) return;
    if (pd_note_read_process(dir, PD_NOTE_OWNER, 0, &owner) && owner.is_here) return;
    snprintf(sender.hello.token, sizeof sender.hello.token, "%s", token);
    pd_sender_build(sender.hello.build);
    (void)gethostname(sender.hello.host, sizeof sender.hello.host - 1);
    sender.is_on = true;
}

/* ---- one connection ---- */

/* 0, or why not. The socket stays one that does not wait. */
static int connect_within(int fd, const struct addrinfo *to)
{
    int error = connect(fd, to->ai_addr, to->ai_addrlen) ? errno : 0;
    const uint64_t began = pd_clock_monotonic_ns(NULL);
    socklen_t bytes = sizeof error;
    while (error == EINPROGRESS) {
        struct pollfd one = {.fd = fd, .events = POLLOUT};
        const int left_ms = LIMIT_MS - (int)(pd_clock_seconds_since(NULL, began) * 1e3);
        if (left_ms <= 0) return ETIMEDOUT;
        if (poll(&one, 1, left_ms) > 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    }
    return error;
}

/* "10.0.0.1:4123" or "[fd00::1]:4123" of `bytes` */
static int connect_to(const char *address, size_t bytes)
{
    char name[128];
    struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    snprintf(name, sizeof name, "%.*s", (int)bytes, address);
    char *port = strrchr(name, ':'), *host = name;
    if (!port) return -1;
    *port++ = '\0';
    if (*host == '[') {
        host++;
        host[strcspn(host, "]")] = '\0';
    }
    if (getaddrinfo(host, port, &hints, &found)) return -1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const int error = fd >= 0 ? connect_within(fd, found) : errno;
    if (error) {
        if (!sender.has_answered) snprintf(sender.failed, sizeof sender.failed, "%s", strerror(error));
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

int pd_sender_connect(uint32_t rank)
{
    uint8_t data[PD_WIRE_BYTES_MAX];
    int fd = -1;
    const char *at = sender.is_on ? sender.addresses : "";
    for (size_t bytes; fd < 0 && *at; at += bytes + (at[bytes] == ',')) {
        bytes = strcspn(at, ",");
        fd = connect_to(at, bytes);
    }
    if (fd < 0) return -1;
    const struct pd_wire_frame hello = {
        .kind = PD_WIRE_HELLO, .rank = rank, .data = data, .bytes = pd_wire_hello_print(&sender.hello, data)};
    if (pd_wire_send(fd, &hello, LIMIT_MS)) return fd;
    close(fd);
    return -1;
}

/* Of the one frame that comes back, malloc'ed; NULL: none came in time. */
static uint8_t *read_answer(int fd, struct pd_wire_frame *ret_frame)
{
    uint8_t *data = NULL;
    size_t got = 0, room = 0;
    const uint64_t began = pd_clock_monotonic_ns(NULL);
    for (int64_t taken = 0; taken == 0;) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        const int left_ms = LIMIT_MS - (int)(pd_clock_seconds_since(NULL, began) * 1e3);
        if (got == room) {
            uint8_t *more = realloc(data, room = room ? 2 * room : 16384);
            if (!more) break;
            data = more;
        }
        if (left_ms <= 0) break;
        if (poll(&one, 1, left_ms) <= 0) continue;
        const ssize_t piece = recv(fd, data + got, room - got, 0);
        if (piece < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (piece <= 0) break;
        got += (size_t)piece;
        taken = pd_wire_take(data, got, PD_WIRE_ANSWER_BYTES_MAX, ret_frame);
        if (taken > 0) return data;
    }
    free(data);
    return NULL;
}

static bool take_answer(const struct pd_wire_frame *sent, const struct pd_wire_frame *answer)
{
    if (!sender.has_answered) sender.has_answered = true; /* before there are threads */
    if (answer->kind == PD_WIRE_REFUSED) pd_wire_text(answer->data, answer->bytes, sender.refused, sizeof sender.refused);
    if (answer->kind != PD_WIRE_DONE) return false;
    if (sent->kind == PD_WIRE_NOTE && sent->note == PD_NOTE_BEGUN && !sender.config) {
        sender.config = strndup((const char *)answer->data, answer->bytes);
        sender.is_relay = answer->rank == 1;
    }
    return true;
}

static bool exchange(const struct pd_wire_frame *frame)
{
    struct pd_wire_frame answer;
    if (!sender.is_on) return false;
    const int fd = pd_sender_connect(frame->rank);
    uint8_t *data = fd >= 0 && pd_wire_send(fd, frame, LIMIT_MS) ? read_answer(fd, &answer) : NULL;
    const bool is_done = data && take_answer(frame, &answer);
    if (!sender.has_answered) sender.is_on = false; /* not reached from here: nobody waits for it again */
    free(data);
    if (fd >= 0) close(fd);
    return is_done;
}

bool pd_sender_note(uint32_t kind, uint32_t rank, const void *data, size_t bytes)
{
    const struct pd_wire_frame frame = {
        .kind = PD_WIRE_NOTE, .note = kind, .rank = rank, .data = data, .bytes = (uint32_t)bytes};
    return exchange(&frame);
}

bool pd_sender_no_note(uint32_t kind, uint32_t rank)
{
    return exchange(&(struct pd_wire_frame){.kind = PD_WIRE_NO_NOTE, .note = kind, .rank = rank});
}

pd_status pd_sender_check(bool is_written, struct pd_error *err)
{
    if (sender.refused[0]) PD_FAIL(err, PD_UNSUPPORTED, "%s", sender.refused);
    if (is_written || !sender.hello.token[0]) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED,
            "host %s cannot reach the launcher at %s (%s), nor its directory in run.dir: let that port through "
            "(launch.port=N names one), or share run.dir between hosts",
            sender.hello.host, sender.addresses, sender.failed[0] ? sender.failed : "no answer");
}
