/* What 512 hosts cost the launcher is counted, not timed: comparisons of names, and steps in tables. */
#include "trainer/launch/hosts.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <netdb.h>
#include <search.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FEW = 64, HOSTS = 512, LOG2_HOSTS = 9 };

static uint64_t steps;

/* Of the process that looks, which is a fork of this one. */
static struct seen_by_look {
    _Atomic uint32_t lookups, resolved, given_up; /* of names */
    _Atomic uint64_t searches;                    /* in what hosts say */
} * seen;

int __real_strcmp(const char *a, const char *b);
int __wrap_strcmp(const char *a, const char *b);
int __real_hsearch_r(ENTRY item, ACTION action, ENTRY **ret, struct hsearch_data *table);
int __wrap_hsearch_r(ENTRY item, ACTION action, ENTRY **ret, struct hsearch_data *table);

int __wrap_strcmp(const char *a, const char *b)
{
    steps++;
    return __real_strcmp(a, b);
}

int __wrap_hsearch_r(ENTRY item, ACTION action, ENTRY **ret, struct hsearch_data *table)
{
    steps++;
    return __real_hsearch_r(item, action, ret, table);
}

char *__real_strstr(const char *text, const char *word);
char *__wrap_strstr(const char *text, const char *word);
int __real_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **ret);
int __wrap_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **ret);

char *__wrap_strstr(const char *text, const char *word)
{
    if (seen) atomic_fetch_add(&seen->searches, 1);
    return __real_strstr(text, word);
}

/* A name server: h7 is 10.0.0.7. Of h0 it knows nothing before it has been asked for all others. */
int __wrap_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **ret)
{
    char address[32];
    if (!seen || name[0] != 'h') return __real_getaddrinfo(name, service, hints, ret);
    atomic_fetch_add(&seen->lookups, 1);
    for (int waits = 0; !strcmp(name, "h0") && atomic_load(&seen->resolved) < FEW - 1; waits++) {
        if (waits == 2000) {
            atomic_fetch_add(&seen->given_up, 1);
            return EAI_AGAIN;
        }
        usleep(10000);
    }
    atomic_fetch_add(&seen->resolved, 1);
    snprintf(address, sizeof address, "10.0.0.%s", name + 1);
    return __real_getaddrinfo(address, service, hints, ret);
}

/* Those with an even number and those with an odd one do not reach each other, and say so. The last of the fewer go. */
Test(host_count, names_are_looked_up_together_and_links_take_a_few_steps_a_line, .timeout = 600)
{
    char agent[] = "/tmp/perdure-agent-XXXXXX", source[64];
    struct pd_launch_look l = {.results = -1, .asks_links = true};
    struct pd_launch_host_seen *hosts;
    struct pd_error err;
    uint32_t count, stay[2] = {0, 0};
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const int fd = mkstemp(agent);
    cr_assert(seen != MAP_FAILED && fd >= 0);
    dprintf(fd, "#!/bin/sh\necho perdure-host machine_$1\nfor a in ${2##* reach}; do\n"
                "[ $(((${a##*.} + ${1#h}) %% 2)) = 0 ] || echo perdure-unreached $a\ndone\n");
    cr_assert_eq(fchmod(fd, 0755), 0);
    close(fd);
    snprintf(source, sizeof source, "seq 0 %d | sed s/^/h/", FEW - 1);
    cr_assert_eq(pd_launch_look_begin(source, agent, 1, 1000000, &l, &err), PD_OK);
    while (!pd_launch_look_poll(&l, 1000))
        ;
    cr_assert_eq(pd_launch_look_end(&l, &hosts, &count, &err), PD_OK, "%s", err.message);
    unlink(agent);
    cr_assert_eq(count, FEW);
    for (uint32_t i = 0; i < count; i++) {
        cr_expect(hosts[i].answers && hosts[i].knows_links, "%s", hosts[i].name);
        stay[i % 2] += !hosts[i].cut_off_from[0];
    }
    cr_expect(stay[0] == FEW / 2 && stay[1] == 0, "%u and %u stay", stay[0], stay[1]);
    cr_expect(seen->lookups == FEW && seen->given_up == 0, "%u lookups; h0 was asked alone", seen->lookups);
    cr_expect_leq(seen->searches, 2 * FEW * FEW, "%llu searches", (unsigned long long)seen->searches);
    free(hosts);
}

/* Every second name is another one of the machine before. */
Test(host_count, what_a_look_found_takes_a_few_steps_a_host)
{
    struct pd_error err;
    struct pd_launch_host_seen *hosts, *found = calloc(HOSTS, sizeof *found);
    uint32_t count;
    for (int i = 0; i < HOSTS; i++) {
        found[i].slots = 32;
        snprintf(found[i].name, sizeof found[i].name, "n%d", i);
        snprintf(found[i].machine, sizeof found[i].machine, "m%d", i / 2);
    }
    const struct pd_launch_look look = {.hosts = found, .count = HOSTS};
    cr_assert_eq(pd_launch_look_peek(&look, &hosts, &count, &err), PD_OK);
    cr_assert_eq(count, HOSTS);
    for (uint32_t i = 0; i < count; i++)
        cr_expect(hosts[i].slots == (i % 2 ? 0 : 32) && !hosts[i].same_as[0] == !(i % 2));
    cr_expect_leq(steps, HOSTS * LOG2_HOSTS, "%llu steps", (unsigned long long)steps);
    free(hosts);
    free(found);
}

Test(host_count, a_list_takes_a_few_steps_a_line)
{
    char *text = NULL;
    size_t bytes;
    struct pd_error err;
    struct pd_launch_host_seen *hosts;
    uint32_t count;
    FILE *out = open_memstream(&text, &bytes);
    for (int i = 0; i < 2 * HOSTS; i++)
        fprintf(out, "n%d:16\n", i % HOSTS);
    (void)fclose(out);
    cr_assert_eq(pd_launch_hosts_parse(text, 1, &hosts, &count, &err), PD_OK);
    cr_assert_eq(count, HOSTS);
    cr_expect(hosts[HOSTS - 1].slots == 32 && steps <= 2 * HOSTS * LOG2_HOSTS, "%llu steps", (unsigned long long)steps);
    free(hosts);
    free(text);
}

/* One answers each 0.1 s; the last one never does. */
Test(host_count, answers_that_come_one_by_one_are_waited_for)
{
    int at = 0, last = 0;
    for (int host = 0; host < HOSTS - 1; host++, last = at)
        for (int until = at + 100; at < until; at++)
            cr_assert(pd_launch_look_waits(4, at, last, at), "after %d ms", at);
    while (pd_launch_look_waits(4, last, last, at))
        at++;
    cr_expect_eq(at, 60000, "a minute in all");
    cr_expect(pd_launch_look_waits(4, 1000, 1000, 4999) && !pd_launch_look_waits(4, 1000, 1000, 5000));
    cr_expect(pd_launch_look_waits(4, 0, 0, 9999) && !pd_launch_look_waits(4, 0, 0, 10000), "nobody answers");
}
