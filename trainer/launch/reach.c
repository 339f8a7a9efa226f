#include "trainer/launch/reach.h"

#include "ckpt/base/clock.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PERIOD_NS UINT64_C(500000000) /* between probes of a host that answers */
#define GAP_NS UINT64_C(200000000)    /* that an answer may take, and between probes of one that does not */
#define SILENT_NS UINT64_C(2000000000)

/* The source address for packets to that host; sends none. */
static void own_add(struct pd_launch_reach *reach, const struct addrinfo *to)
{
    char name[PD_LAUNCH_ADDRESS_BYTES];
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    const int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool is_known =
        fd >= 0 && !connect(fd, to->ai_addr, to->ai_addrlen) && !getsockname(fd, (struct sockaddr *)&own, &bytes);
    if (fd >= 0) close(fd);
    if (!is_known || getnameinfo((struct sockaddr *)&own, bytes, name, sizeof name, NULL, 0, NI_NUMERICHOST)) return;
    const size_t used = strlen(reach->own);
    for (const char *at = reach->own; (at = strstr(at, name)); at++)
        if ((at == reach->own || at[-1] == ',') && (!at[strlen(name)] || at[strlen(name)] == ',')) return;
    if (used + strlen(name) + 2 > sizeof reach->own) return;
    snprintf(reach->own + used, sizeof reach->own - used, "%s%s", used ? "," : "", name);
}

pd_status pd_launch_reach_add(struct pd_launch_reach *reach, const char *name, const char *address, uint16_t port,
                              struct pd_error *err)
{
    char digits[8];
    struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    snprintf(digits, sizeof digits, "%u", port);
    if (!address[0] || getaddrinfo(address, digits, &hints, &found)) return PD_OK;
    struct pd_launch_reach_host *more = realloc(reach->hosts, (reach->count + 1) * sizeof *more);
    if (more) {
        struct pd_launch_reach_host *h = &more[reach->count++];
        reach->hosts = more;
        *h = (struct pd_launch_reach_host){.address_bytes = found->ai_addrlen};
        snprintf(h->name, sizeof h->name, "%s", name);
        memcpy(&h->address, found->ai_addr, found->ai_addrlen);
        for (uint32_t i = 0; i < PD_LAUNCH_REACH_PROBES; i++)
            h->probes[i] = -1;
    }
    own_add(reach, found);
    freeaddrinfo(found);
    if (!more) PD_FAIL(err, PD_NO_MEMORY, "hosts to be looked at");
    return PD_OK;
}

static void probe_close(int *probe)
{
    if (*probe >= 0) close(*probe);
    *probe = -1;
}

/* Accepting or refusing, the host's kernel answers. Other errors come from the network or from our own host. */
static bool is_answer(int error)
{
    return error == 0 || error == ECONNREFUSED || error == ECONNRESET;
}

static bool probe_is_answered(int *probe)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    struct pollfd one = {.fd = *probe, .events = POLLOUT};
    if (*probe < 0 || poll(&one, 1, 0) <= 0) return false;
    if (getsockopt(*probe, SOL_SOCKET, SO_ERROR, &error, &bytes)) error = errno;
    if (!is_answer(error)) probe_close(probe);
    return is_answer(error);
}

/* If this host cannot send (no descriptors, no network), no other host is at fault. */
static void probe_send(struct pd_launch_reach_host *h, uint64_t now_ns)
{
    int *probe = &h->probes[h->sent % PD_LAUNCH_REACH_PROBES];
    probe_close(probe);
    h->last_ns = now_ns;
    *probe = socket(h->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*probe < 0) return;
    const int failed = connect(*probe, (const struct sockaddr *)&h->address, h->address_bytes) ? errno : 0;
    if (failed != EINPROGRESS && failed != EHOSTUNREACH && !is_answer(failed)) {
        probe_close(probe);
        return;
    }
    if (!h->sent++) h->first_ns = now_ns;
}

static void take_answers(struct pd_launch_reach_host *h)
{
    bool is_answered = false;
    for (uint32_t i = 0; i < PD_LAUNCH_REACH_PROBES; i++)
        is_answered |= probe_is_answered(&h->probes[i]);
    if (!is_answered) return;
    for (uint32_t i = 0; i < PD_LAUNCH_REACH_PROBES; i++)
        probe_close(&h->probes[i]);
    h->has_answered = true;
    h->is_silent = false;
    h->sent = 0;
}

void pd_launch_reach_look(struct pd_launch_reach *reach, uint64_t now_ns)
{
    for (uint32_t i = 0; i < reach->count; i++) {
        struct pd_launch_reach_host *h = &reach->hosts[i];
        if (h->is_ignored) continue;
        take_answers(h);
        const bool has_last_had_time = now_ns - h->last_ns >= GAP_NS;
        h->is_silent |= h->sent >= PD_LAUNCH_REACH_PROBES && has_last_had_time && now_ns - h->first_ns >= SILENT_NS;
        h->is_ignored = h->is_silent && !h->has_answered;
        if (!h->last_ns || now_ns - h->last_ns >= (h->sent ? GAP_NS : PERIOD_NS)) probe_send(h, now_ns);
    }
}

bool pd_launch_reach_is_doubtful(const struct pd_launch_reach_host *h)
{
    return h->has_answered && !h->is_ignored && h->sent > 1;
}

static bool have_all_answered(const struct pd_launch_reach *reach)
{
    bool are_all = true;
    for (uint32_t i = 0; i < reach->count; i++)
        are_all &= reach->hosts[i].has_answered;
    return are_all;
}

void pd_launch_reach_ask(const char *const *addresses, uint32_t count, bool *ret_answers)
{
    struct pd_launch_reach reach = {.hosts = NULL};
    const uint64_t began = pd_clock_monotonic_ns(NULL);
    for (uint32_t i = 0; i < count; i++)
        (void)!pd_launch_reach_add(&reach, addresses[i], addresses[i], PD_LAUNCH_REACH_PORT, NULL);
    for (uint64_t now = began; !have_all_answered(&reach) && now - began < SILENT_NS; now = pd_clock_monotonic_ns(NULL)) {
        pd_launch_reach_look(&reach, now);
        if (!have_all_answered(&reach)) pd_clock_sleep_ns(UINT64_C(10000000));
    }
    for (uint32_t i = 0, k = 0; i < count; i++) { /* in the same order, without invalid addresses */
        const bool is_asked = k < reach.count && !strcmp(reach.hosts[k].name, addresses[i]);
        ret_answers[i] = is_asked && reach.hosts[k].has_answered;
        k += is_asked;
    }
    pd_launch_reach_deinit(&reach);
}

void pd_launch_reach_deinit(struct pd_launch_reach *reach)
{
    for (uint32_t i = 0; i < reach->count; i++)
        for (uint32_t k = 0; k < PD_LAUNCH_REACH_PROBES; k++)
            probe_close(&reach->hosts[i].probes[k]);
    free(reach->hosts);
    *reach = (struct pd_launch_reach){.hosts = NULL};
}
