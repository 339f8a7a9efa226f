/* What the kernel says of this process, of one that is stopped, and of one that is gone. */
#include "ckpt/base/process.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int start_child(void)
{
    const int child = fork();
    while (child == 0)
        pause();
    cr_assert(child > 0);
    return child;
}

static void end_child(int child)
{
    cr_assert_eq(kill(child, SIGKILL), 0);
    cr_assert_eq(waitpid(child, NULL, 0), child);
}

Test(process, what_is_read_ends_where_the_room_does)
{
    char text[64], short_text[4];
    cr_assert(pd_process_read(getpid(), "comm", text, sizeof text));
    cr_assert_gt(strlen(text), 3u);
    cr_assert(pd_process_read(getpid(), "comm", short_text, sizeof short_text));
    cr_assert(strlen(short_text) == 3 && strncmp(short_text, text, 3) == 0);
    cr_assert_not(pd_process_read(getpid(), "fd", text, sizeof text), "a directory");
    cr_assert_str_eq(text, "");
}

Test(process, one_that_is_stopped)
{
    const int child = start_child();
    cr_assert_eq(kill(child, SIGSTOP), 0);
    cr_assert_eq(waitpid(child, NULL, WUNTRACED), child);
    cr_assert(pd_process_is_stopped(child));
    cr_assert_eq(kill(child, SIGCONT), 0);
    cr_assert_eq(waitpid(child, NULL, WCONTINUED), child);
    cr_assert_not(pd_process_is_stopped(child));
    end_child(child);
}

Test(process, time_on_processors_is_counted)
{
    while (pd_process_busy_seconds(getpid()) <= 0)
        continue;
    cr_assert_gt(pd_process_busy_seconds(getpid()), 0);
}

static int start_computing(int nice, int processor)
{
    cpu_set_t one;
    const int child = fork();
    if (child) return child;
    CPU_ZERO(&one);
    CPU_SET((size_t)processor, &one);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (setpriority(PRIO_PROCESS, 0, nice) || sched_setaffinity(0, sizeof one, &one)) _exit(1);
    for (;;)
        continue;
}

Test(process, time_without_a_processor_is_counted)
{
    char text[64];
    clockid_t clock;
    struct timespec computed;
    if (!pd_process_read(getpid(), "schedstat", text, sizeof text) || !strcmp(text, "0 0 0\n"))
        cr_skip("this kernel does not say how long a process waits for a processor");
    const int processor = sched_getcpu(), burner = start_computing(0, processor);
    const int starved = start_computing(19, processor);
    cr_assert(burner > 0 && starved > 0);
    cr_assert_eq(clock_getcpuclockid(starved, &clock), 0);
    do {
        cr_assert_eq(clock_gettime(clock, &computed), 0);
    } while (pd_process_busy_seconds(starved) < 0.5);
    cr_assert(computed.tv_sec == 0 && computed.tv_nsec < 250000000);
    end_child(starved);
    end_child(burner);
}

/* Names of functions and nothing beside them; who may not see the stack sees one name, or none. */
Test(process, places_in_the_kernel_are_names)
{
    const int child = start_child();
    char place[1024], short_place[8];
    pd_process_kernel_place(child, place, sizeof place);
    cr_assert(!strpbrk(place, "+[]\n"), "%s", place);
    pd_process_kernel_place(child, short_place, sizeof short_place);
    cr_assert_lt(strlen(short_place), sizeof short_place);
    cr_assert_eq(strncmp(short_place, place, strlen(short_place)), 0, "%s, %s", short_place, place);
    end_child(child);
}

Test(process, one_that_is_gone_is_nowhere)
{
    const int child = start_child();
    char text[64] = "before";
    end_child(child);
    cr_assert_not(pd_process_read(child, "comm", text, sizeof text));
    cr_assert_str_eq(text, "");
    cr_assert_not(pd_process_is_stopped(child));
    cr_assert_eq(pd_process_busy_seconds(child), 0);
    pd_process_kernel_place(child, text, sizeof text);
    cr_assert_str_eq(text, "");
}
