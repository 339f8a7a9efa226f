/* The launcher with real processes: a worker that fails as its plan says. */
#include "tests/helpers/launcher_fixture.h"

TestSuite(launcher, .init = set_up, .fini = tear_down_all, .timeout = 1200);

Test(launcher, a_run_that_ends_well)
{
    struct pd_launch local = launch_of(WORKER("done"), PD_TRANSPORT_LOCAL, 3);
    cr_assert_eq(launch(&local), 0);
    cr_assert_eq(starts(0), 1);
    cr_assert_eq(starts(1), 0, "one process holds all local ranks");
    cr_assert_eq(last_ranks(), 3);
    struct pd_launch mpi = launch_of(WORKER("done"), PD_TRANSPORT_MPI, 3);
    cr_assert_eq(launch(&mpi), 0);
    cr_assert_eq(starts(0), 2);
    cr_assert_eq(starts(2), 1);
    expect_error_says("ok");
}

Test(launcher, a_killed_rank_is_started_again)
{
    struct pd_launch mpi = launch_of(WORKER("step+kill:1,step+kill:1,done"), PD_TRANSPORT_MPI, 3);
    cr_assert_eq(launch(&mpi), 0);
    cr_assert_eq(starts(0), 3);
    cr_assert_eq(starts(2), 3);
    cr_assert_eq(last_ranks(), 3, "a newer checkpoint came between");
    expect_no_orphan(3);
}

Test(launcher, a_rank_that_dies_twice_without_progress_is_left_out)
{
    struct pd_launch mpi = launch_of(WORKER("kill:1,kill:1,done"), PD_TRANSPORT_MPI, 3);
    cr_assert_eq(launch(&mpi), 0);
    cr_assert_eq(starts(0), 3);
    cr_assert_eq(starts(2), 2);
    cr_assert_eq(last_ranks(), 2);
}

Test(launcher, with_fewer_ranks_than_elastic_min_no_start_is_made)
{
    struct pd_launch what = launch_of(WORKER("kill:2"), PD_TRANSPORT_MPI, 3);
    what.places.min = 3;
    cr_assert_eq(launch(&what), 75);
    cr_assert_eq(starts(0), 2, "the second time the rank has no other place");
    expect_error_says("2 ranks can start, and elastic.min is 3");
}

/* Their connections end before the starter ends any other rank. */
Test(launcher, a_rank_of_another_host_is_named_and_left_out_when_it_dies_twice)
{
    setenv("PERDURE_TEST_HOSTS", "2", 1);
    struct pd_launch mpi = launch_of(WORKER("kill:3,kill:3,done"), PD_TRANSPORT_MPI, 4);
    cr_assert_eq(launch(&mpi), 0);
    cr_assert_eq(starts(0), 3);
    cr_assert_eq(starts(3), 2, "the first time all are started again");
    cr_assert_eq(last_ranks(), 3);
}

Test(launcher, a_rank_of_another_host_that_dies_is_named)
{
    setenv("PERDURE_TEST_HOSTS", "2", 1);
    struct pd_launch mpi = launch_of(WORKER("kill:3"), PD_TRANSPORT_MPI, 4);
    mpi.restart_limit = 0;
    cr_assert_eq(launch(&mpi), 93);
    expect_error_says("the last: rank 3 (process ");
}

/* All miss somebody, and nobody is gone: a link was cut, or a rank stopped for a while. */
Test(launcher, a_run_whose_ranks_missed_nobody_in_particular_stays_as_large_as_it_is)
{
    char plan[32];
    snprintf(plan, sizeof plan, "fail:%d,fail:%d,done", PD_PEER_LOST, PD_PEER_LOST);
    struct pd_launch mpi = launch_of(WORKER(plan), PD_TRANSPORT_MPI, 3);
    cr_assert_eq(launch(&mpi), 0);
    cr_assert_eq(starts(0), 3);
    cr_assert_eq(last_ranks(), 3);
}

Test(launcher, ranks_that_die_together_are_counted)
{
    struct pd_launch mpi = launch_of(WORKER("kill:1+2"), PD_TRANSPORT_MPI, 5);
    mpi.restart_limit = 0;
    cr_assert_eq(launch(&mpi), 93);
    expect_error_says("the last: rank ");
    expect_error_says(" with it"); /* on a busy machine the starter has ended others by the time that anybody looks */
}

/* A launch of its own: ranks that wait for one another read in the log who has begun, and another launch's would do. */
Test(launcher, ranks_that_die_together_twice_are_left_out)
{
    struct pd_launch mpi = launch_of(WORKER("kill:1+2,kill:1+2,done"), PD_TRANSPORT_MPI, 5);
    cr_assert_eq(launch(&mpi), 0);
    cr_assert_leq(last_ranks(), 3, "two are lost, not one");
}

Test(launcher, a_killed_starter_is_named_and_costs_no_rank)
{
    struct pd_launch mpi = launch_of(WORKER("kill-starter,done"), PD_TRANSPORT_MPI, 3);
    mpi.restart_limit = 0;
    cr_assert_eq(launch(&mpi), 93);
    expect_error_says("the last: mpirun (process ");
    expect_error_says(") was killed by SIGKILL, and its ranks with it");
    mpi.restart_limit = 3;
    cr_assert_eq(launch(&mpi), 0);
    cr_assert_eq(last_ranks(), 3);
}

Test(launcher, a_killed_local_process_starts_again_as_it_was)
{
    struct pd_launch local = launch_of(WORKER("kill:0,done"), PD_TRANSPORT_LOCAL, 4);
    cr_assert_eq(launch(&local), 0);
    cr_assert_eq(starts(0), 2);
    cr_assert_eq(last_ranks(), 4);
}

Test(launcher, restarts_take_the_ranks_that_were_given)
{
    static const uint32_t ranks[] = {5, 2};
    struct pd_launch mpi = launch_of(WORKER("kill:0,kill:3,done"), PD_TRANSPORT_MPI, 2);
    mpi.restart_ranks = ranks;
    mpi.restart_ranks_count = 2;
    cr_assert_eq(launch(&mpi), 0);
    cr_assert_eq(starts(0), 3);
    cr_assert_eq(starts(4), 1);
    cr_assert_eq(last_ranks(), 2);
}

/* A restart has fewer ranks than are left where their number admits no layout, and its ranks are told what they are. */
Test(launcher, restarts_are_laid_out)
{
    static const uint32_t ranks[] = {7};
    struct pd_launch local = launch_of(WORKER("kill:0,done"), PD_TRANSPORT_LOCAL, 2);
    local.restart_ranks = ranks;
    local.restart_ranks_count = 1;
    cr_assert_eq(launch(&local), 0);
    cr_assert_eq(starts(0), 2);
    cr_assert_eq(last_ranks(), 6);
    cr_assert_eq(log_count(0, "layout:dp=2,tp=1", NULL, NULL), 1);
    cr_assert_eq(log_count(0, "layout:dp=6,tp=1", NULL, NULL), 1);
}

Test(launcher, gives_up_without_progress)
{
    struct pd_launch mpi = launch_of(WORKER("kill:0"), PD_TRANSPORT_MPI, 2);
    mpi.restart_limit = 2;
    cr_assert_eq(launch(&mpi), 93);
    cr_assert_eq(starts(0), 3);
    cr_assert_eq(last_ranks(), 1);
    expect_error_says("no progress beyond the beginning in 2 restarts; the last: rank 0 (process ");
    expect_error_says("died: killed by SIGKILL");
}

Test(launcher, goes_on_as_long_as_there_is_progress)
{
    struct pd_launch local =
        launch_of(WORKER("step+kill:0,step+kill:0,step+kill:0,step+kill:0,step+kill:0,kill:0,done"), PD_TRANSPORT_LOCAL, 1);
    local.restart_limit = 2;
    cr_assert_eq(launch(&local), 0);
    cr_assert_eq(starts(0), 7);
}

static void expect_final(const char *plan, enum pd_transport transport, pd_status status, uint32_t start_count)
{
    tear_down_all();
    set_up();
    struct pd_launch what = launch_of(WORKER(plan), transport, 2);
    cr_assert_eq(launch(&what), pd_status_exit_code(status), "%s", plan);
    cr_assert_eq(starts(0), start_count, "%s: %u starts", plan, starts(0));
    expect_error_says("as planned");
}

Test(launcher, ends_that_restarting_does_not_mend_are_final)
{
    char plan[32];
    static const pd_status finals[] = {PD_INVALID, PD_IO, PD_CORRUPT, PD_USAGE};
    for (size_t i = 0; i < sizeof finals / sizeof *finals; i++) {
        snprintf(plan, sizeof plan, "fail:%d", finals[i]);
        expect_final(plan, PD_TRANSPORT_LOCAL, finals[i], 1);
    }
    snprintf(plan, sizeof plan, "fail:%d", PD_INVALID);
    expect_final(plan, PD_TRANSPORT_MPI, PD_INVALID, 1);
    expect_error_says("rank 0: as planned");
    cr_assert(!error_has("rank 0: rank 0"));
    snprintf(plan, sizeof plan, "one:1:%d", PD_NO_SPACE);
    expect_final(plan, PD_TRANSPORT_MPI, PD_NO_SPACE, 1);
    expect_error_says("rank 1: as planned");
    snprintf(plan, sizeof plan, "fail:%d", PD_BUG);
    expect_final(plan, PD_TRANSPORT_LOCAL, PD_BUG, 2);
    expect_error_says("twice the same: rank 0: as planned");
}

Test(launcher, an_end_without_a_word_is_tried_again)
{
    struct pd_launch local = launch_of(WORKER("exit:3,done"), PD_TRANSPORT_LOCAL, 1);
    cr_assert_eq(launch(&local), 0);
    cr_assert_eq(starts(0), 2);
    struct pd_launch mpi = launch_of((const char *[]){"/nonexistent/worker", NULL}, PD_TRANSPORT_MPI, 2);
    cr_assert_eq(launch(&mpi), 78, "what never began is not tried again");
    expect_error_says("mpirun ended (exit code 1"); /* 132, and 183 in Open MPI 5 */
    expect_error_says(") before a rank had begun");
    expect_error_says("ulimit -a");
    local.worker = mpi.worker;
    cr_assert_eq(launch(&local), 78, "the command itself is wrong");
    expect_error_says("/nonexistent/worker cannot be started");
}

/* The first time the script ends as `first` says; later it does what `then` says, and is mpirun. */
static void starter_make(const char *first, const char *then)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/starter", dir);
    FILE *file = fopen(path, "w");
    cr_assert(file);
    fprintf(file, "#!/bin/sh\n[ -e %s/once ] && { %s; exec mpirun \"$@\"; }\n: >%s/once\n%s\n", dir, then, dir, first);
    fclose(file);
    cr_assert_eq(chmod(path, 0755), 0);
    setenv("PERDURE_MPIRUN", path, 1);
}

Test(launcher, a_gpu_that_computed_what_was_not_finite_once_is_left_out)
{
    struct pd_launch what = launch_of(WORKER("nan:1,step+kill:0,done"), PD_TRANSPORT_MPI, 2);
    cr_assert_eq(launch(&what), 0);
    cr_assert_eq(starts(0), 3);
    cr_assert_eq(log_count(0, "left-out", NULL, NULL), 1, "in the last start alone");
    cr_assert_eq(last_ranks(), 2, "its rank has another");
}

Test(launcher, a_starter_killed_before_a_rank_had_begun_is_started_again)
{
    struct pd_launch what = launch_of(WORKER("done"), PD_TRANSPORT_MPI, 2);
    starter_make("kill -KILL $$", ":");
    cr_assert_eq(launch(&what), 0);
    cr_assert_eq(starts(0), 1);
    cr_assert_eq(last_ranks(), 2, "no rank is lost");
}

Test(launcher, a_starter_that_fails_before_a_rank_had_begun_is_not)
{
    struct pd_launch what = launch_of(WORKER("done"), PD_TRANSPORT_MPI, 2);
    starter_make("exit 3", "exit 3");
    cr_assert_eq(launch(&what), 78);
    cr_assert_eq(starts(0), 0);
    expect_error_says("PERDURE_MPIRUN ended (exit code 3) before a rank had begun");
}

Test(launcher, a_starter_that_ends_after_a_request_to_leave_has_left)
{
    struct pd_launch what = launch_of(WORKER("done"), PD_TRANSPORT_MPI, 2);
    starter_make("kill -USR1 $PPID; sleep 1; exit 75", ":");
    cr_assert_eq(launch(&what), 75);
    expect_error_says("there was nothing to save");
}

/* It saw the one first that left because of the other. */
Test(launcher, the_code_of_another_rank_is_not_how_one_died)
{
    struct pd_launch what = launch_of(WORKER("kill:1"), PD_TRANSPORT_MPI, 2);
    what.restart_limit = 0;
    starter_make("shift 2; for r in 0 1; do OMPI_COMM_WORLD_RANK=$r \"$@\" & done; wait; exit 75", ":");
    cr_assert_eq(launch(&what), 93);
    expect_error_says("the last: rank 1 (process ");
    expect_error_says(") ended without a message. Remove the cause");
}

/* It has no way of saying that it is there. */
Test(launcher, a_rank_that_is_stopped_before_it_has_begun_is_named)
{
    struct pd_launch what = launch_of(WORKER("deaf"), PD_TRANSPORT_MPI, 2);
    what.restart_limit = 0;
    what.hang_seconds = 0.3;
    starter_make("shift 2; OMPI_COMM_WORLD_RANK=0 \"$@\" & a=$!\n"
                 "OMPI_COMM_WORLD_RANK=1 sh -c 'kill -STOP $$; exec \"$@\"' x \"$@\" & wait $!; kill -KILL $a; exit 137",
                 ":");
    cr_assert_eq(launch(&what), 93);
    expect_error_says("the last: rank 1 (process ");
    expect_error_says(") holds up the run: nothing was completed for "); /* a second, on a busy machine */
    expect_error_says(" s; it is stopped (SIGSTOP), at its beginning");
    cr_assert_eq(starts(1), 0);
}

static struct pd_launch launch_of_hosts(const char *const *argv)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/hosts", dir);
    FILE *file = fopen(path, "w");
    cr_assert(file && fputs("localhost\nelsewhere\n", file) >= 0 && fclose(file) == 0);
    struct pd_launch what = launch_of(argv, PD_TRANSPORT_MPI, 2);
    what.places = (struct pd_launch_places){.hosts = strdup(path), .agent = "false", .min = 1, .wait_seconds = 0.5};
    what.restart_limit = 0;
    return what;
}

/* Ranks that miss what other hosts hold: these are waited for, and for so long. */
Test(launcher, hosts_that_hold_what_is_needed_are_waited_for)
{
    char plan[16];
    snprintf(plan, sizeof plan, "fail:%d", PD_HOSTS_AWAY);
    struct pd_launch what = launch_of_hosts(WORKER(plan));
    cr_assert_eq(launch(&what), 75);
    cr_assert_eq(starts(0), 1);
    expect_error_says("as planned, and no host came back in 0.5 s (launch.wait_seconds): elsewhere does not answer");
}

Test(launcher, what_is_needed_of_hosts_that_are_in_the_list_no_more_is_done_without)
{
    char plan[16];
    snprintf(plan, sizeof plan, "fail:%d,done", PD_HOSTS_AWAY);
    struct pd_launch what = launch_of_hosts(WORKER(plan));
    what.places.wait_seconds = PATIENCE_MS / 1e3;
    const pid_t process = launch_begin(&what);
    wait_for(0, "start", 1);
    FILE *file = fopen(what.places.hosts, "w");
    cr_assert(file && fputs("localhost\n", file) >= 0 && fclose(file) == 0);
    cr_assert_eq(launch_end(process), 0, "and it costs no restart");
    cr_assert_eq(starts(0), 2);
}

/* It may be that the machines are busy with the loss. A second one that does not begin is the run's. */
Test(launcher, a_start_behind_a_lost_host_that_does_not_begin_is_made_again)
{
    char plan[24];
    snprintf(plan, sizeof plan, "fail:%d,done", PD_HOSTS_AWAY);
    struct pd_launch what = launch_of_hosts(WORKER(plan));
    what.places.wait_seconds = PATIENCE_MS / 1e3;
    what.begin_seconds = 3;
    starter_make("echo >>$0.log; exec mpirun \"$@\"", "echo >>$0.log; [ $(wc -l <$0.log) = 2 ] && exec sleep 1000");
    const pid_t process = launch_begin(&what);
    wait_for(0, "start", 1);
    FILE *file = fopen(what.places.hosts, "w");
    cr_assert(file && fputs("localhost\n", file) >= 0 && fclose(file) == 0);
    cr_assert_eq(launch_end(process), 0);
    cr_assert_eq(starts(0), 2);
}

/* As where packets between two hosts are dropped; the launch would never end. On a slow machine starts before do not begin. */
Test(launcher, ranks_that_never_join_are_ended_and_started_again)
{
    struct pd_launch what = launch_of(WORKER("unjoined,done"), PD_TRANSPORT_MPI, 2);
    what.begin_seconds = 30;
    what.join_seconds = 2;
    what.restart_limit = 1000;
    cr_assert_eq(launch(&what), 0);
    cr_assert_geq(starts(0), 1);
}

static void expect_leave(int number, enum pd_transport transport, uint32_t ranks)
{
    struct pd_launch what = launch_of(WORKER("wait"), transport, ranks);
    pid_t process = launch_begin(&what);
    for (uint32_t r = 0; r < ranks && (r == 0 || transport == PD_TRANSPORT_MPI); r++)
        wait_for(r, "start", 1);
    kill(process, number);
    cr_assert_eq(launch_end(process), 75);
    for (uint32_t r = 0; r < ranks && (r == 0 || transport == PD_TRANSPORT_MPI); r++)
        cr_assert_eq(log_count(r, "leave", NULL, NULL), 1, "rank %u", r);
    cr_assert_eq(starts(0), 1);
    expect_error_says("saved at step 7");
    expect_no_orphan(ranks);
}

Test(launcher, term_saves_and_micro_batches)
{
    expect_leave(SIGTERM, PD_TRANSPORT_MPI, 3);
}

Test(launcher, usr1_saves_and_micro_batches)
{
    expect_leave(SIGUSR1, PD_TRANSPORT_MPI, 2);
}

Test(launcher, interrupt_saves_and_micro_batches)
{
    expect_leave(SIGINT, PD_TRANSPORT_LOCAL, 2);
}

Test(launcher, usr2_saves_and_goes_on)
{
    struct pd_launch what = launch_of(WORKER("wait"), PD_TRANSPORT_MPI, 2);
    pid_t process = launch_begin(&what);
    wait_for(1, "start", 1);
    wait_for(0, "start", 1);
    for (uint32_t saves = 1; saves <= 3; saves++) {
        kill(process, SIGUSR2);
        wait_for(0, "save", saves);
        wait_for(1, "save", saves);
    }
    kill(process, SIGTERM);
    cr_assert_eq(launch_end(process), 75);
    cr_assert_eq(log_count(1, "save", NULL, NULL), 3);
}

/* Ranks of other hosts hear of it through the starter. */
Test(launcher, signals_reach_other_hosts)
{
    setenv("PERDURE_TEST_HOSTS", "2", 1);
    struct pd_launch what = launch_of(WORKER("wait"), PD_TRANSPORT_MPI, 4);
    pid_t process = launch_begin(&what);
    for (uint32_t r = 0; r < 4; r++)
        wait_for(r, "start", 1);
    kill(process, SIGUSR2);
    wait_for(3, "save", 1);
    kill(process, SIGTERM);
    cr_assert_eq(launch_end(process), 75);
    for (uint32_t r = 0; r < 4; r++)
        cr_assert_eq(log_count(r, "leave", NULL, NULL), 1, "rank %u", r);
    expect_error_says("saved at step 7");
    expect_no_orphan(4);
}

/* As fork of glibc 2.41 does: a signal sent then ends the process as soon as it is through with that. */
Test(launcher, a_process_that_blocks_everything_for_a_moment_does_not_wait_for_signals)
{
    sigset_t all, term, before;
    sigfillset(&all);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_SETMASK, &all, &before);
    const pid_t process = fork();
    if (process == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        usleep(200000);
        sigprocmask(SIG_SETMASK, &before, NULL);
        usleep(100000);
        sigprocmask(SIG_BLOCK, &term, NULL);
        while (!sigpending(&before) && !sigismember(&before, SIGTERM))
            usleep(1000); /* sigwait would unblock it meanwhile */
        _exit(75);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    wait_caught(process, SIGTERM);
    kill(process, SIGTERM);
    cr_assert_eq(launch_end(process), 75);
}

/* While the starter is still coming up, a signal to it would end everything. */
Test(launcher, term_is_honoured_at_any_moment)
{
    useconds_t pace_us = test_scale() >= 10 ? 10000 : 40000;
    for (useconds_t after_us = 0; after_us < 120000; after_us += pace_us) {
        struct pd_launch what = launch_of(WORKER("wait"), PD_TRANSPORT_MPI, 2);
        pid_t process = launch_begin(&what);
        wait_caught(process, SIGTERM);
        usleep(after_us);
        kill(process, SIGTERM);
        const int code = launch_end(process);
        char message[1024] = "";
        error_read(message, sizeof message);
        cr_assert_eq(code, 75, "exit %d, TERM after %u us: %s", code, after_us, message);
        if (!error_has("there was nothing to save"))
            expect_error_says("saved at step 7"); /* the starter took longer than ranks have */
        expect_no_orphan(2);
    }
}

Test(launcher, term_between_starts_ends_the_launch)
{
    struct pd_launch what = launch_of(WORKER("exit:1"), PD_TRANSPORT_LOCAL, 1);
    what.restart_limit = 1000;
    pid_t process = launch_begin(&what);
    wait_for(0, "start", 3);
    usleep(100000);
    kill(process, SIGTERM);
    cr_assert_eq(launch_end(process), 75);
    expect_no_orphan(1);
}

Test(launcher, a_second_interrupt_ends_at_once)
{
    struct pd_launch what = launch_of(WORKER("deaf"), PD_TRANSPORT_MPI, 2);
    pid_t process = launch_begin(&what);
    wait_for(0, "start", 1);
    wait_for(1, "start", 1);
    kill(process, SIGINT);
    wait_taken(process, SIGINT);
    usleep(300000);
    cr_assert_eq(waitpid(process, NULL, WNOHANG), 0, "the first one waits for the save");
    kill(process, SIGINT);
    cr_assert_eq(launch_end(process), 75);
    expect_error_says("interrupted twice");
    expect_no_orphan(2);
}

Test(launcher, nothing_outlives_a_killed_launcher)
{
    static const enum pd_transport transports[] = {PD_TRANSPORT_LOCAL, PD_TRANSPORT_MPI};
    for (uint32_t i = 0; i < 2; i++) {
        struct pd_launch what = launch_of(WORKER("deaf"), transports[i], 2);
        pid_t process = launch_begin(&what);
        wait_for(0, "start", i + 1);
        if (i == 1) wait_for(1, "start", 1);
        kill(process, SIGKILL);
        cr_assert_eq(launch_end(process), -SIGKILL);
        expect_no_orphan(2);
    }
}

Test(launcher, starter_of_the_user)
{
    if (!pd_comm_has_mpi()) cr_skip_test("this build has no MPI");
    setenv("PERDURE_MPIRUN", "mpirun -x HOME --tag-output", 1);
    struct pd_launch what = launch_of(WORKER("done"), PD_TRANSPORT_AUTO, 2);
    cr_assert_eq(launch(&what), 0);
    cr_assert_eq(starts(1), 1);
}

static uint32_t private_dirs(void)
{
    uint32_t count = 0;
    DIR *listing = opendir(dir);
    for (const struct dirent *entry; (entry = readdir(listing));)
        count += !strncmp(entry->d_name, ".launch-", 8);
    closedir(listing);
    return count;
}

Test(launcher, micro_batches_nothing_behind)
{
    struct pd_launch deaf = launch_of(WORKER("deaf"), PD_TRANSPORT_LOCAL, 1),
                     done = launch_of(WORKER("done"), PD_TRANSPORT_MPI, 2);
    pid_t process = launch_begin(&deaf);
    wait_for(0, "start", 1);
    kill(process, SIGKILL);
    cr_assert_eq(launch_end(process), -SIGKILL);
    cr_assert_eq(private_dirs(), 1, "of the killed launcher");
    process = launch_begin(&deaf);
    wait_for(0, "start", 2);
    cr_assert_eq(private_dirs(), 1, "the stale one is gone, its own is there");
    cr_assert_eq(launch(&done), 0);
    cr_assert_eq(private_dirs(), 1, "that of a live launcher stays");
    kill(process, SIGINT);
    wait_taken(process, SIGINT);
    kill(process, SIGINT);
    cr_assert_eq(launch_end(process), 75);
    cr_assert_eq(private_dirs(), 0);
}

/* Open MPI keeps memory of ranks in /dev/shm and a killed one cannot remove it. */
Test(launcher, memory_of_killed_ranks_is_removed)
{
    char own[80], other[80];
    snprintf(own, sizeof own, "/dev/shm/vader_segment.test%d.%u.7f5a0001.0", (int)getpid(), (unsigned)geteuid());
    snprintf(other, sizeof other, "/dev/shm/vader_segment.test%d.%u.7f5b0001.0", (int)getpid(), (unsigned)geteuid());
    FILE *files[] = {fopen(own, "w"), fopen(other, "w")};
    if (!files[0] || !files[1]) cr_skip_test("no /dev/shm here");
    fclose(files[0]);
    fclose(files[1]);
    setenv("OMPI_MCA_ess_base_jobid", "2136604673", 1); /* 0x7f5a0001 */
    struct pd_launch local = launch_of(WORKER("kill:0,done"), PD_TRANSPORT_LOCAL, 1);
    cr_assert_eq(launch(&local), 0);
    bool is_own_left = access(own, F_OK) == 0, is_other_left = access(other, F_OK) == 0;
    unlink(own);
    unlink(other);
    cr_assert(!is_own_left, "of the killed rank");
    cr_assert(is_other_left, "of another job");
}

Test(launcher, a_directory_that_cannot_be_used_is_done_without)
{
    struct pd_launch what = launch_of(WORKER("done"), PD_TRANSPORT_LOCAL, 1);
    what.dir = "/nonexistent";
    cr_assert_eq(launch(&what), 0);
}

/* Too few are no reason to refuse: the ranks may be on other hosts. */
Test(launcher, open_files_are_raised_for_a_starter_of_the_user_too)
{
    struct pd_error err;
    struct rlimit files;
    struct pd_start start = {.transport = PD_TRANSPORT_MPI, .ranks = 8};
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    cr_assert_geq(files.rlim_max, 150);
    setenv("PERDURE_MPIRUN", "mpirun", 1);
    files = (struct rlimit){100, 150};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
    cr_expect_eq(pd_starter_check_limits(&start, &err), PD_OK);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    cr_expect_eq(files.rlim_cur, 144, "16 for each rank and one more");
    start.ranks = 16384;
    cr_expect_eq(pd_starter_check_limits(&start, &err), PD_OK);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    cr_expect_eq(files.rlim_cur, 150);
}
