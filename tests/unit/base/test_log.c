#include "ckpt/base/log.h"

#include "ckpt/base/rank.h"
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ANY_TIME "2023-11-14T22:13:20.123Z"

static char captured[1 << 20];
static size_t captured_bytes;
static time_t began;

/* time() may be a tick behind the clock that lines are stamped by. */
static time_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec;
}

/* Lines are captured with ANY_TIME in place of their own, which is UTC and between the start of the test and now. */
static void replace_time(char *line)
{
    struct tm utc = {0};
    const char *rest = strptime(line, "%Y-%m-%dT%H:%M:%S", &utc);
    cr_assert(rest && rest[0] == '.' && strspn(rest + 1, "0123456789") == 3 && rest[4] == 'Z', "%s", line);
    const time_t at = timegm(&utc);
    cr_assert(began <= at && at <= now(), "%s", line);
    memcpy(line, ANY_TIME, sizeof ANY_TIME - 1);
}

static void capture(void *context, const char *line, size_t bytes)
{
    (void)context;
    char *start = captured + captured_bytes;
    cr_assert_lt(captured_bytes + bytes, sizeof captured);
    for (size_t i = 0; i < bytes; i++) {
        captured[captured_bytes++] = line[i];
        if (i % 16 == 0) sched_yield(); /* gives a second writer its chance to get in between */
    }
    captured[captured_bytes] = '\0';
    replace_time(start);
}

static void start(const char *spec)
{
    struct pd_error err;
    began = now();
    pd_log_set_sink(capture, NULL);
    captured_bytes = 0;
    cr_assert_eq(pd_log_configure(spec, &err), PD_OK, "%s", err.message);
}

Test(log, a_line_carries_time_level_module_rank)
{
    start(NULL);
    pd_log_info("ckpt", "saved %d shards", 3);
    pd_rank_set_process(2);
    pd_log_warn("io", "slow");
    pd_rank_set_thread(5);
    pd_log_error("io", "gone");
    cr_assert_str_eq(captured,
                     ANY_TIME " info ckpt: saved 3 shards\n" ANY_TIME " warn io r2: slow\n" ANY_TIME " error io r5: gone\n");
}

static int evaluated;

Test(log, levels_hold_for_all_or_for_one_module)
{
    start("warn,ckpt=trace,io=error");
    cr_assert(pd_log_enabled(PD_LOG_TRACE, "ckpt"));
    cr_assert(pd_log_enabled(PD_LOG_WARN, "train"));
    cr_assert_not(pd_log_enabled(PD_LOG_INFO, "train"));
    cr_assert_not(pd_log_enabled(PD_LOG_WARN, "io"));
    pd_log_info("train", "%d", evaluated++);
    cr_assert_eq(evaluated, 0);
    cr_assert_eq(captured_bytes, 0);
}

Test(log, what_is_not_understood_is_named_and_changes_nothing)
{
    start("debug");
    static const char *const bad[] = {"loud", "ckpt=loud", "=info", "a_module_with_a_name_that_is_too_long=info",
                                      "info,ckpt="};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct pd_error err;
        cr_assert_eq(pd_log_configure(bad[i], &err), PD_USAGE, "%s", bad[i]);
        cr_assert_not_null(strstr(err.message, "PERDURE_LOG"));
    }
    cr_assert(pd_log_enabled(PD_LOG_DEBUG, "x"));
}

Test(log, the_environment_counts_without_a_call)
{
    setenv("PERDURE_LOG", "error,x=debug", 1);
    cr_assert(pd_log_enabled(PD_LOG_DEBUG, "x"));
    cr_assert_not(pd_log_enabled(PD_LOG_WARN, "y"));
}

Test(log, a_line_stays_one_line)
{
    start(NULL);
    char *text = malloc(10000);
    memset(text, 'x', 9999);
    text[9999] = '\0';
    pd_log_info("m", "a\nb\tc\033[2J");
    cr_assert_not_null(strstr(captured, "m: a b c [2J\n"));
    captured_bytes = 0;
    pd_log_info("m", "%s", text);
    cr_assert_leq(captured_bytes, 4096);
    cr_assert_eq(memcmp(captured + captured_bytes - 4, "...\n", 4), 0);
    free(text);
}

static void *write_lines(void *argument)
{
    pd_rank_set_thread(*(int *)argument);
    for (int i = 0; i < 500; i++)
        pd_log_info("m", "line %d of many", i);
    return NULL;
}

Test(log, lines_of_threads_do_not_mix)
{
    start(NULL);
    pthread_t threads[4];
    int ranks[4] = {0, 1, 2, 3};
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, write_lines, &ranks[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    int lines = 0;
    for (char *line = strtok(captured, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        int rank, number;
        cr_assert_eq(sscanf(line, "2023-11-14T22:13:20.123Z info m r%d: line %d of many", &rank, &number), 2, "%s", line);
    }
    cr_assert_eq(lines, 2000);
}

/* Nobody has asked before the first line: what the environment says that is not understood is said there. */
Test(log, an_environment_that_is_not_understood_is_said)
{
    began = now();
    pd_log_set_sink(capture, NULL);
    setenv("PERDURE_LOG", "loud", 1);
    pd_log_info("test", "a line");
    cr_assert_str_eq(captured,
                     ANY_TIME " warn log: PERDURE_LOG: \"loud\" is not understood: write a level (error, warn, info, "
                              "debug, trace) or module=level\n" ANY_TIME " info test: a line\n");
}
