/* What 512 hosts cost the launcher is counted, not timed: comparisons of names, and steps in tables. */
#include "trainer/launch/hosts.h"

#include <criterion/criterion.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOSTS = 512, LOG2_HOSTS = 9, LINES = 4 * HOSTS };

static uint64_t steps;

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

/* Each is asked, answers, and says whom it reaches; every second name is another one of the machine before. */
Test(host_count, what_a_look_found_takes_a_few_steps_a_line)
{
    char *text = NULL;
    size_t bytes;
    struct pd_error err;
    struct pd_launch_host_seen *hosts;
    uint32_t count;
    FILE *out = open_memstream(&text, &bytes);
    for (int i = 0; i < LINES; i++)
        i < HOSTS       ? fprintf(out, "n%d 32 -1 0 - 10.0.0.1\n", i)
        : i < 2 * HOSTS ? fprintf(out, "n%d 32 1 700 m%d 10.0.0.1\n", i - HOSTS, (i - HOSTS) / 2)
                        : fprintf(out, "- n%d -\n", i % HOSTS);
    (void)fclose(out);
    const struct pd_launch_look look = {.text = text};
    cr_assert_eq(pd_launch_look_peek(&look, &hosts, &count, &err), PD_OK);
    cr_assert_eq(count, HOSTS);
    for (uint32_t i = 0; i < count; i++)
        cr_expect(hosts[i].answers && hosts[i].knows_links && hosts[i].slots == (i % 2 ? 0 : 32) &&
                  !hosts[i].same_as[0] == !(i % 2));
    cr_expect_leq(steps, LINES * LOG2_HOSTS, "%llu steps", (unsigned long long)steps);
    free(hosts);
    free(text);
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
    cr_expect(pd_launch_look_waits(4, 300, 300, 1499) && !pd_launch_look_waits(4, 300, 300, 1500));
    cr_expect(pd_launch_look_waits(4, 0, 0, 9999) && !pd_launch_look_waits(4, 0, 0, 10000), "nobody answers");
}
