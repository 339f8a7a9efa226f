#include "ckpt/base/fault.h"

#include "ckpt/base/rank.h"
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void configure(const char *spec)
{
    struct pd_error err;
    cr_assert_eq(pd_fault_configure(spec, NULL, &err), PD_OK, "%s", err.message);
}

Test(fault, off_nothing_happens)
{
    configure(NULL);
    for (int i = 0; i < 10; i++)
        pd_fault_point("a.b");
}

Test(fault, kill_is_the_default, .signal = SIGKILL)
{
    configure("store.commit.renamed:2");
    pd_fault_point("store.commit.renamed");
    pd_fault_point("store.commit.renamed");
}

Test(fault, exit_leaves_with_70, .exit_code = 70)
{
    configure("a:1:exit");
    pd_fault_point("a");
}

Test(fault, who_stops_goes_on_when_told_to)
{
    int status;
    configure("a:2:stop");
    pid_t process = fork();
    if (process == 0) {
        pd_fault_point("a");
        pd_fault_point("a");
        _exit(7);
    }
    cr_assert_eq(waitpid(process, &status, WUNTRACED), process);
    cr_assert(WIFSTOPPED(status));
    kill(process, SIGCONT);
    cr_assert_eq(waitpid(process, &status, 0), process);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void expect_sleep(const char *spec, double seconds_min)
{
    struct timespec begin, end;
    configure(spec);
    for (int pass = 1; pass <= 4; pass++) {
        clock_gettime(CLOCK_MONOTONIC, &begin);
        pd_fault_point("a");
        clock_gettime(CLOCK_MONOTONIC, &end);
        double seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
        if (pass > 1) cr_assert_geq(seconds, seconds_min, "%s: pass %d", spec, pass);
    }
}

Test(fault, sleep_lasts_from_its_pass_on)
{
    expect_sleep("a:2:sleep", 0.02);
    expect_sleep("a:2:sleep50", 0.05);
}

static void *pass_and_tell(void *has_passed)
{
    pd_fault_point("a");
    atomic_store((atomic_bool *)has_passed, true);
    return NULL;
}

/* Ranks are threads. A signal to the process may be taken by another one while this one goes on. */
Test(fault, a_thread_stops_where_it_stands)
{
    atomic_bool *has_passed = mmap(NULL, sizeof *has_passed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(has_passed, MAP_FAILED);
    configure("a:1:stop");
    for (unsigned i = 0; i < 300; i++) {
        int status;
        atomic_store(has_passed, false);
        const pid_t process = fork();
        if (process == 0) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, pass_and_tell, has_passed)) _exit(1);
            pthread_join(thread, NULL);
            _exit(0);
        }
        cr_assert_eq(waitpid(process, &status, WUNTRACED), process);
        const bool stopped = WIFSTOPPED(status), passed = atomic_load(has_passed);
        kill(process, SIGKILL);
        if (stopped) waitpid(process, &status, 0);
        cr_assert(stopped && !passed, "process %u went on", i);
    }
    munmap(has_passed, sizeof *has_passed);
}

Test(fault, a_rank_is_meant_alone, .exit_code = 70)
{
    configure("a@1:2:exit");
    pd_rank_set_process(0);
    for (int i = 0; i < 5; i++)
        pd_fault_point("a");
    pd_rank_set_thread(1);
    pd_fault_point("a");
    pd_rank_set_thread(0);
    pd_fault_point("a");
    pd_rank_set_thread(1);
    pd_fault_point("a");
    cr_assert(false, "the second passage of rank 1");
}

Test(fault, once_spares_the_next_launch)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/pd-fault-once-%d", (int)getpid());
    unlink(path);
    for (int launch = 0; launch < 2; launch++) {
        int status;
        const pid_t process = fork();
        if (process == 0) {
            (void)!pd_fault_configure("a:1:exit", path, NULL);
            pd_fault_point("a");
            _exit(7);
        }
        cr_assert_eq(waitpid(process, &status, 0), process);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == (launch ? 7 : 70));
    }
    unlink(path);
}

Test(fault, what_is_not_understood_is_named)
{
    static const char *const bad[] = {"a",         "a:",   "a:0",   "a:x",    ":1",        "a:1:explode", "a:1:sleepy", "a:1:sleep10001",
                                      "a:1:error", "a@:1", "a@x:1", "a@-1:1", "a:1:kill:2"};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct pd_error err;
        cr_assert_eq(pd_fault_configure(bad[i], NULL, &err), PD_USAGE, "%s", bad[i]);
        cr_assert_not_null(strstr(err.message, "PERDURE_FAULT"));
    }
    char many[17 * 4 + 1] = "", name[80], path[1100];
    struct pd_error err;
    for (int i = 0; i < 17; i++)
        memcpy(many + 4 * i, "a:9,", 5);
    memset(name, 'n', sizeof name);
    memcpy(name + 70, ":1", 3);
    memset(path, 'p', sizeof path);
    path[1099] = '\0';
    cr_assert_eq(pd_fault_configure(many, NULL, &err), PD_USAGE, "more than are kept");
    cr_assert_eq(pd_fault_configure(name, NULL, &err), PD_USAGE, "a name that is too long");
    cr_assert_eq(pd_fault_configure("a:1", path, &err), PD_USAGE);
    cr_assert_not_null(strstr(err.message, "PERDURE_FAULT_ONCE"));
    pd_fault_point("a"); /* none is set */
}

Test(fault, who_asks_fails_at_the_nth_passage)
{
    configure("a:2,b:1:exit,a:3");
    cr_assert(!pd_fault_passes_nth("c"));
    cr_assert(!pd_fault_passes_nth("a"));
    cr_assert(pd_fault_passes_nth("a"));
    cr_assert(pd_fault_passes_nth("a"));
    cr_assert(!pd_fault_passes_nth("a"));
}
