/* What hosts remember of a run's last steps: each in a directory of its own, or all in one. */
#include "tests/helpers/local_group.h"
#include "trainer/run/step_log.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HOSTS = 3 };

static char dirs[HOSTS][32];
static struct pd_step_log logs[HOSTS];
static struct pd_group alone;

static void set_up(void)
{
    pd_group_init_single(&alone);
    for (int h = 0; h < HOSTS; h++) {
        snprintf(dirs[h], sizeof dirs[h], "/tmp/perdure-steps-XXXXXX");
        cr_assert_not_null(mkdtemp(dirs[h]));
    }
}

static void tear_down(void)
{
    char path[64];
    for (int h = 0; h < HOSTS; h++) {
        pd_step_log_close(&logs[h]);
        snprintf(path, sizeof path, "%s/last-steps", dirs[h]);
        (void)unlink(path);
        (void)rmdir(path);
        (void)rmdir(dirs[h]);
    }
}

TestSuite(step_log, .init = set_up, .fini = tear_down);

static void open_alone(int host, struct pd_step_line first)
{
    struct pd_error err;
    pd_step_log_close(&logs[host]);
    cr_assert_eq(pd_step_log_open(&alone, dirs[host], &first, &logs[host], &err), PD_OK);
    cr_assert(logs[host].is_open);
}

/* Computed at second 1000 + step. */
static void steps(int host, uint64_t to, uint64_t kept)
{
    struct pd_step_line *line = &logs[host].line;
    for (line->step++; line->step <= to; line->step++) {
        line->time = 1000 + (double)line->step;
        line->kept = kept;
        pd_step_log_write(&logs[host]);
    }
    line->step = to;
}

static struct pd_step_line newest_alone(int host)
{
    struct pd_step_line line;
    struct pd_error err;
    cr_assert_eq(pd_step_log_newest(&alone, dirs[host], &line, &err), PD_OK);
    return line;
}

Test(step_log, what_a_process_leaves_behind)
{
    cr_expect_eq(newest_alone(0).run, 0, "there is no file");
    open_alone(0, (struct pd_step_line){.run = 0xfedcba9876543210, .fence = 999999999999999, .step = 7, .kept = 6});
    cr_expect_eq(newest_alone(0).step, 7);
    steps(0, 12, 10);
    const struct pd_step_line line = newest_alone(0);
    cr_expect(line.run == 0xfedcba9876543210 && line.fence == 999999999999999 && line.step == 12 && line.kept == 10 &&
              line.time == 1012);
}

Test(step_log, a_later_start_counts_though_it_has_fewer_steps)
{
    open_alone(0, (struct pd_step_line){.run = 1, .fence = 1, .time = 1});
    steps(0, 20, 18);
    open_alone(0, (struct pd_step_line){.run = 1, .fence = 2, .step = 9, .kept = 9, .time = 1009});
    cr_expect_eq(newest_alone(0).step, 9);
    cr_expect_eq(newest_alone(0).kept, 9);
    open_alone(0, (struct pd_step_line){.run = 2, .fence = 1, .time = 5000});
    cr_expect_eq(newest_alone(0).run, 2, "it was there last");
    cr_expect_eq(newest_alone(0).step, 0);
}

Test(step_log, what_is_no_line_says_nothing)
{
    char path[64];
    open_alone(0, (struct pd_step_line){.run = 1, .fence = 1, .time = 1});
    steps(0, 3, 2);
    cr_assert_eq(pwrite(logs[0].file, "\0\0\0\0", 4, 88), 4);
    cr_expect_eq(newest_alone(0).step, 2);
    cr_assert_eq(pwrite(logs[0].file, "x", 1, 87), 1);
    cr_expect_eq(newest_alone(0).run, 0);
    steps(0, 5, 2);
    cr_assert_eq(ftruncate(logs[0].file, 88 + 40), 0, "a disk that was full");
    cr_expect_eq(newest_alone(0).step, 4);
    snprintf(path, sizeof path, "%s/last-steps", dirs[1]);
    cr_assert_eq(mkdir(path, 0777), 0);
    cr_expect_eq(newest_alone(1).run, 0, "no file");
    struct pd_step_line first = {.run = 1};
    struct pd_error err;
    cr_expect_eq(pd_step_log_open(&alone, dirs[1], &first, &logs[1], &err), PD_OK, "the run continues without");
    cr_expect_not(logs[1].is_open);
    pd_step_log_write(&logs[1]);
}

static struct pd_step_line asked[2 * HOSTS];
static bool is_shared, has_opened[2 * HOSTS];

/* Two ranks a host, the first of which has the log. */
static const char *dir_of(const struct pd_group *group)
{
    return group->rank % 2 ? NULL : dirs[is_shared ? 0 : group->host];
}

static pd_status ask(struct pd_group *group, void *context, struct pd_error *err)
{
    (void)context;
    return pd_step_log_newest(group, dir_of(group), &asked[group->rank], err);
}

static pd_status open_all(struct pd_group *group, void *first, struct pd_error *err)
{
    struct pd_step_log log = {.is_open = false};
    PD_TRY(pd_step_log_open(group, dir_of(group), first, &log, err));
    has_opened[group->rank] = log.is_open;
    pd_step_log_close(&log);
    return PD_OK;
}

Test(step_log, any_host_knows_for_all)
{
    struct pd_error err;
    open_alone(1, (struct pd_step_line){.run = 1, .fence = 3, .time = 1});
    steps(1, 9, 7);
    open_alone(2, (struct pd_step_line){.run = 1, .fence = 2, .time = 1});
    steps(2, 20, 19);
    cr_assert_eq(pd_group_run_local(2 * HOSTS, HOSTS, ask, NULL, &err), PD_OK, "%s", err.message);
    for (uint32_t r = 0; r < 2 * HOSTS; r++)
        cr_expect(asked[r].fence == 3 && asked[r].kept == 7 && asked[r].time == 1009, "rank %u", r);
}

Test(step_log, each_host_has_one_and_hosts_that_share_a_directory_one_together)
{
    struct pd_error err;
    struct pd_step_line first = {.run = 1, .fence = 3, .time = 1};
    cr_assert_eq(pd_group_run_local(2 * HOSTS, HOSTS, open_all, &first, &err), PD_OK, "%s", err.message);
    for (uint32_t r = 0; r < 2 * HOSTS; r++)
        cr_expect_eq(has_opened[r], r % 2 == 0, "rank %u", r);
    is_shared = true;
    first.fence = 4;
    cr_assert_eq(pd_group_run_local(2 * HOSTS, HOSTS, open_all, &first, &err), PD_OK, "%s", err.message);
    for (uint32_t r = 0; r < 2 * HOSTS; r++)
        cr_expect_eq(has_opened[r], r == 0, "rank %u", r);
}
