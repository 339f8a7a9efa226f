/* A sink that hangs, fails or is slow: the step that hands it a line does not wait, and the log has one warning. */
#include "trainer/run/metrics_sink.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER; /* held: the sink hangs */
static atomic_uint written, entered, opened, closed, warnings;
static atomic_bool fails;
static uint64_t steps[1000];
static char last_warning[512];

static void count_line(void *context, const char *line, size_t bytes)
{
    (void)context;
    if (!memmem(line, bytes, " warn ", 6)) return;
    snprintf(last_warning, sizeof last_warning, "%.*s", (int)bytes, line);
    atomic_fetch_add(&warnings, 1);
}

static bool wanted(const struct pd_config *config)
{
    (void)config;
    return true;
}

static pd_status fake_open(const struct pd_metrics_options *options, void **ret_sink, struct pd_error *err)
{
    (void)options;
    (void)err;
    atomic_fetch_add(&opened, 1);
    *ret_sink = &gate;
    return PD_OK;
}

static pd_status fake_write(void *sink, const struct pd_metrics_line *line, struct pd_error *err)
{
    atomic_fetch_add(&entered, 1);
    pthread_mutex_lock(sink);
    pthread_mutex_unlock(sink);
    if (atomic_load(&fails)) PD_FAIL(err, PD_NO_SPACE, "the fake disk is full");
    steps[atomic_load(&written)] = line->step.step;
    atomic_fetch_add(&written, 1);
    return PD_OK;
}

static void fake_close(void *sink)
{
    (void)sink;
    atomic_fetch_add(&closed, 1);
}

static const struct pd_metrics_sink fake = {"fake", .is_wanted = wanted, .open = fake_open, .write = fake_write,
                                            .close = fake_close};

static struct pd_metrics_queue *open_queue(void)
{
    struct pd_metrics_queue *queue;
    struct pd_metrics_options options = {.ranks = 1};
    pd_log_set_sink(count_line, NULL);
    cr_assert_eq(pd_metrics_queue_open(&fake, &options, &queue, NULL), PD_OK);
    return queue;
}

static void push(struct pd_metrics_queue *queue, uint64_t step)
{
    struct pd_metrics_line line = {.step = {.step = step}};
    pd_metrics_queue_push(queue, &line);
}

static void wait_for(atomic_uint *number, unsigned value)
{
    while (atomic_load(number) < value)
        usleep(1000);
}

Test(metrics_queue, every_line_in_order, .timeout = 120)
{
    struct pd_metrics_queue *queue = open_queue();
    for (uint64_t s = 0; s < 500; s++) {
        push(queue, s);
        wait_for(&written, (unsigned)s + 1);
    }
    pd_metrics_queue_close(queue);
    for (uint64_t s = 0; s < 500; s++)
        cr_assert_eq(steps[s], s);
    cr_assert_eq(closed, 1);
    cr_assert_eq(warnings, 0);
}

Test(metrics_queue, lines_before_the_close_are_written, .timeout = 120)
{
    struct pd_metrics_queue *queue = open_queue();
    for (uint64_t s = 0; s < PD_METRICS_QUEUE_LINES; s++)
        push(queue, s);
    pd_metrics_queue_close(queue);
    cr_assert_eq(written, PD_METRICS_QUEUE_LINES);
}

/* While the gate is shut every push returns: this thread holds the gate, so waiting for the sink would be waiting for ever. */
Test(metrics_queue, a_sink_that_hangs_holds_nobody_up, .timeout = 120)
{
    struct pd_metrics_queue *queue = open_queue();
    pthread_mutex_lock(&gate);
    push(queue, 0);
    wait_for(&entered, 1);
    for (uint64_t s = 1; s <= 10 * PD_METRICS_QUEUE_LINES; s++)
        push(queue, s);
    cr_assert_eq(warnings, 1, "a full queue is logged once, not %u times", warnings);
    cr_assert(strstr(last_warning, "falls behind"), "%s", last_warning);
    pthread_mutex_unlock(&gate);
    pd_metrics_queue_close(queue);
    cr_assert_eq(written, 1 + PD_METRICS_QUEUE_LINES);
    cr_assert_eq(steps[PD_METRICS_QUEUE_LINES], 10 * PD_METRICS_QUEUE_LINES, "the newest line is kept");
}

Test(metrics_queue, a_sink_that_hangs_does_not_keep_the_run_from_ending, .timeout = 120)
{
    struct pd_metrics_queue *queue = open_queue();
    pthread_mutex_lock(&gate);
    push(queue, 0);
    wait_for(&entered, 1);
    pd_metrics_queue_close(queue);
    cr_assert(strstr(last_warning, "hangs"), "%s", last_warning);
    pthread_mutex_unlock(&gate); /* the thread that was left ends by itself */
}

Test(metrics_queue, a_sink_that_fails_is_logged_once_and_opened_again, .timeout = 120)
{
    struct pd_metrics_queue *queue = open_queue();
    atomic_store(&fails, true);
    push(queue, 0);
    wait_for(&closed, 1);
    push(queue, 1); /* too early to try again */
    atomic_store(&fails, false);
    for (uint64_t s = 2; !atomic_load(&written); s++) {
        push(queue, s);
        usleep(20000);
    }
    cr_assert_eq(opened, 2);
    cr_assert_eq(warnings, 1, "one warning, not %u", warnings);
    cr_assert(strstr(last_warning, "fake: the fake disk is full; the run goes on"), "%s", last_warning);
    pd_metrics_queue_close(queue);
}
