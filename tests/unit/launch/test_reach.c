/* Probes of kernels: what answers, what does not, and what nobody can ask. Time is the test's; packets are those of the loopback. */
#include "trainer/launch/reach.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
#define TICK_MS 50u

/* One that nobody listens on, or whose listener's queue is full, so that its kernel drops what comes, as a network without the host. */
struct port {
    int listener, filler;
    uint16_t number;
};

static void bind_to(struct port *p)
{
    struct sockaddr_in any = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(p->number)};
    socklen_t bytes = sizeof any;
    const int yes = 1;
    p->listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(p->listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    cr_assert_eq(bind(p->listener, (struct sockaddr *)&any, sizeof any), 0);
    cr_assert_eq(getsockname(p->listener, (struct sockaddr *)&any, &bytes), 0);
    p->number = ntohs(any.sin_port);
}

/* Bound, so that no other process gets it: refused. */
static struct port port_closed(void)
{
    struct port p = {.filler = -1};
    bind_to(&p);
    return p;
}

static void port_mute(struct port *p)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(p->number)};
    cr_assert_eq(listen(p->listener, 0), 0);
    p->filler = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(connect(p->filler, (struct sockaddr *)&at, sizeof at), 0);
}

/* The queue goes, and what comes again is refused. */
static void port_unmute(struct port *p)
{
    close(p->filler);
    close(p->listener);
    bind_to(p);
}

static struct pd_launch_reach_host *add(struct pd_launch_reach *reach, const char *address, uint16_t port)
{
    struct pd_error err;
    cr_assert_eq(pd_launch_reach_add(reach, "b", address, port, &err), PD_OK);
    return reach->count ? &reach->hosts[reach->count - 1] : NULL;
}

/* From from_ms on for so long; whether it was ever silent. */
static bool looks(struct pd_launch_reach *reach, uint64_t from_ms, uint64_t for_ms)
{
    bool was_silent = false;
    for (uint64_t ms = from_ms; ms < from_ms + for_ms; ms += TICK_MS) {
        pd_launch_reach_look(reach, ms * MS);
        was_silent |= reach->hosts[0].is_silent;
    }
    return was_silent;
}

Test(reach, a_port_that_nobody_listens_on_is_an_answer)
{
    struct pd_launch_reach reach = {.hosts = NULL};
    struct port p = port_closed();
    struct pd_launch_reach_host *h = add(&reach, "127.0.0.1", p.number);
    cr_expect_not(looks(&reach, 1000, 10000));
    cr_expect(h->has_answered && !h->is_ignored && !pd_launch_reach_is_doubtful(h));
    pd_launch_reach_deinit(&reach);
    close(p.listener);
}

Test(reach, a_host_that_answers_no_more_is_in_doubt_then_silent_and_back_when_it_answers)
{
    struct pd_launch_reach reach = {.hosts = NULL};
    struct port p = port_closed();
    struct pd_launch_reach_host *h = add(&reach, "127.0.0.1", p.number);
    looks(&reach, 1000, 1000);
    port_mute(&p);
    cr_expect_not(looks(&reach, 2000, 1000));
    cr_expect(pd_launch_reach_is_doubtful(h));
    cr_expect_not(looks(&reach, 3000, 900), "two seconds, from the first probe on that has no answer");
    cr_expect(looks(&reach, 3900, 1000));
    port_unmute(&p);
    looks(&reach, 4900, 400);
    cr_expect(!h->is_silent && !pd_launch_reach_is_doubtful(h), "a probe of now is answered");
    pd_launch_reach_deinit(&reach);
    close(p.listener);
}

/* Who was not scheduled for a minute has asked once in it. */
Test(reach, a_caller_that_comes_late_accuses_nobody)
{
    struct pd_launch_reach reach = {.hosts = NULL};
    struct port p = port_closed();
    struct pd_launch_reach_host *h = add(&reach, "127.0.0.1", p.number);
    looks(&reach, 1000, 1000);
    for (uint64_t ms = 60000; ms < 600000; ms += 60000)
        cr_expect_not(looks(&reach, ms, 1), "its answers are there");
    port_mute(&p);
    cr_expect_not(looks(&reach, 700000, 1));
    cr_expect_not(looks(&reach, 760000, 1), "one probe is not many");
    cr_expect(pd_launch_reach_is_doubtful(h));
    pd_launch_reach_deinit(&reach);
    close(p.filler);
    close(p.listener);
}

Test(reach, who_never_answered_is_not_judged)
{
    struct pd_launch_reach reach = {.hosts = NULL};
    struct port p = port_closed();
    port_mute(&p);
    struct pd_launch_reach_host *h = add(&reach, "127.0.0.1", p.number);
    looks(&reach, 1000, 10000);
    cr_expect(h->is_ignored && !pd_launch_reach_is_doubtful(h));
    cr_expect_null(add(&(struct pd_launch_reach){.hosts = NULL}, "", 9), "this host");
    cr_expect_null(add(&(struct pd_launch_reach){.hosts = NULL}, "no-number", 9));
    pd_launch_reach_deinit(&reach);
    close(p.filler);
    close(p.listener);
}

Test(reach, without_descriptors_nobody_is_silent)
{
    struct pd_launch_reach reach = {.hosts = NULL};
    struct port p = port_closed();
    struct pd_launch_reach_host *h = add(&reach, "127.0.0.1", p.number);
    struct rlimit files, none;
    looks(&reach, 1000, 1000);
    getrlimit(RLIMIT_NOFILE, &files);
    none = (struct rlimit){0, files.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    const bool was_silent = looks(&reach, 2000, 10000);
    setrlimit(RLIMIT_NOFILE, &files);
    cr_expect(!was_silent && !pd_launch_reach_is_doubtful(h));
    pd_launch_reach_deinit(&reach);
    close(p.listener);
}
