/* Who holds up the others, by heartbeats that this process writes and maps as a launcher would. */
#include "trainer/launch/watch.h"

#include "ckpt/base/rank.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define S UINT64_C(1000000000)
#define RANKS 3u

static struct pd_launch_watch *watch;
static uint64_t now = 100 * S;
static struct pd_launch_hang hang;

static void as(uint32_t rank)
{
    pd_rank_set_thread((int)rank);
}

/* Everybody does a block and an exchange; nobody hangs. */
static void round_of(uint64_t step, uint64_t took_ns)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        as(r);
        pd_heartbeat_step(step);
        pd_heartbeat_block(1);
        pd_heartbeat_exchange_begin("gradients");
        pd_heartbeat_exchange_end();
    }
    now += took_ns;
    cr_assert_not(pd_launch_watch_look(watch, now, &hang), "%s", hang.text);
}

static void set_up_with(uint32_t known)
{
    int fd;
    struct pd_error err;
    cr_assert(pd_heartbeat_open(RANKS, &fd));
    cr_assert_eq(pd_launch_watch_new(RANKS, 30, 0, &watch, &err), PD_OK);
    const struct pd_heartbeat *heartbeats = pd_heartbeat_map(getpid(), fd, RANKS);
    cr_assert(heartbeats);
    pd_launch_watch_add(watch, 0, known, getpid(), heartbeats);
    for (uint64_t step = 7; step < 12; step++)
        round_of(step, S);
}

static void wait_for(uint32_t rank, uint32_t missing)
{
    as(rank);
    pd_heartbeat_exchange_begin("gradients");
    pd_heartbeat_waits_for(missing);
}

static void expect_hang(uint32_t rank, const char *words)
{
    now += 28 * S;
    cr_assert_not(pd_launch_watch_look(watch, now, &hang), "too early: %s", hang.text);
    now += 3 * S;
    cr_assert(pd_launch_watch_look(watch, now, &hang), "nobody is named");
    cr_expect_eq(hang.rank, rank, "%s", hang.text);
    cr_expect(strstr(hang.text, words), "\"%s\" does not say \"%s\"", hang.text, words);
}

Test(watch, who_never_arrives_is_named_and_not_who_waits)
{
    set_up_with(RANKS);
    as(1);
    pd_heartbeat_micro_batch(2);
    pd_heartbeat_block(5);
    wait_for(0, 2);
    wait_for(2, 1);
    now += S;
    cr_assert_not(pd_launch_watch_look(watch, now, &hang));
    expect_hang(1, "step 11, micro-batch 2, block 4, computing");
    cr_expect(hang.is_known && !hang.is_storage);
    pd_launch_watch_free(watch);
}

Test(watch, a_rank_of_another_host_ends_the_chain)
{
    set_up_with(2);
    wait_for(0, 1);
    wait_for(1, 2);
    now += S;
    cr_assert_not(pd_launch_watch_look(watch, now, &hang));
    expect_hang(2, "rank 2 holds up the run");
    cr_expect_not(hang.is_known);
    pd_launch_watch_free(watch);
}

/* What is known of rank `rank` of another host. */
static void say(uint32_t rank, struct pd_remote_heartbeat *word)
{
    word->heartbeat.beats++;
    pd_launch_watch_hear(watch, rank, word, 2 * S, now);
}

static void set_up_others(struct pd_remote_heartbeat others[2])
{
    set_up_with(1);
    wait_for(0, 1);
    others[0] = (struct pd_remote_heartbeat){.heartbeat = {.exchanges = 1, .waits_for = 2 + 1}};
    others[1] = (struct pd_remote_heartbeat){.heartbeat = {.step = 12, .micro_batch = 1, .place = PD_HEARTBEAT_READING}};
    for (int i = 0; i < 2; i++)
        say(1 + (uint32_t)i, &others[i]);
    cr_assert_not(pd_launch_watch_look(watch, now, &hang));
}

Test(watch, a_rank_of_another_host_that_says_where_it_is_is_named_with_it)
{
    struct pd_remote_heartbeat others[2];
    set_up_others(others);
    for (int i = 0; i < 14; i++) {
        cr_assert_not(pd_launch_watch_look(watch, now += 2 * S, &hang), "%s", hang.text);
        say(1, &others[0]);
        say(2, &others[1]);
    }
    now += 2 * S;
    cr_assert(pd_launch_watch_look(watch, now, &hang));
    cr_expect_eq(hang.rank, 2, "%s", hang.text);
    cr_expect(strstr(hang.text, "step 12, micro-batch 1, embedding, reading data"), "%s", hang.text);
    pd_launch_watch_free(watch);
}

Test(watch, a_rank_of_another_host_that_falls_silent_is_named_and_not_who_waits_for_it)
{
    struct pd_remote_heartbeat others[2];
    set_up_others(others);
    others[1].heartbeat.waits_for = 0 + 1; /* its last word, long ago */
    say(2, &others[1]);
    for (int i = 0; i < 14; i++) {
        cr_assert_not(pd_launch_watch_look(watch, now += 2 * S, &hang), "%s", hang.text);
        say(1, &others[0]);
    }
    now += 2 * S;
    cr_assert(pd_launch_watch_look(watch, now, &hang));
    cr_expect_eq(hang.rank, 2, "%s", hang.text);
    cr_expect(strstr(hang.text, "on another host, and has said nothing for 30 s"), "%s", hang.text);
    pd_launch_watch_free(watch);
}

/* Its relay looks at it as the launcher does at ranks of its own host. */
static void expect_words_of_a_relay(bool is_stopped, const char *words)
{
    struct pd_remote_heartbeat others[2];
    set_up_others(others);
    snprintf(others[1].host, sizeof others[1].host, "c");
    snprintf(others[1].kernel, sizeof others[1].kernel, "io_schedule");
    others[0].process = 70;
    others[1].process = 77;
    others[1].is_stopped = is_stopped;
    for (int i = 0; i < 14; i++) {
        cr_assert_not(pd_launch_watch_look(watch, now += 2 * S, &hang), "%s", hang.text);
        say(1, &others[0]);
        say(2, &others[1]);
    }
    cr_assert(pd_launch_watch_look(watch, now += 2 * S, &hang));
    cr_expect(hang.rank == 2 && !hang.is_known, "%s", hang.text);
    cr_expect(strstr(hang.text, words), "%s", hang.text);
    pd_launch_watch_free(watch);
}

Test(watch, a_rank_of_another_host_that_is_stopped_is_named_so)
{
    expect_words_of_a_relay(true,
                            "rank 2 (process 77 of host c) holds up the run: nothing was completed for 30 s; it is stopped "
                            "(SIGSTOP), at step 12, micro-batch 1, embedding, reading data");
}

Test(watch, where_a_rank_of_another_host_is_in_its_kernel_is_told)
{
    expect_words_of_a_relay(false, "it is at step 12, micro-batch 1, embedding, reading data; in the kernel at io_schedule");
}

/* CPU seconds of its process count, and those of no other. */
Test(watch, a_rank_of_another_host_that_computes_is_given_longer)
{
    struct pd_remote_heartbeat others[2];
    set_up_others(others);
    others[0].process = 70;
    others[1].process = 77;
    for (int i = 0; i < 100; i++) {
        others[1].busy_ms += 1000;
        say(1, &others[0]);
        say(2, &others[1]);
        cr_assert_not(pd_launch_watch_look(watch, now += 2 * S, &hang), "%s", hang.text);
    }
    pd_launch_watch_free(watch);
}

Test(watch, what_other_hosts_complete_is_no_hang)
{
    struct pd_remote_heartbeat others[2];
    set_up_others(others);
    for (int i = 0; i < 40; i++) {
        others[1].heartbeat.done++;
        say(1, &others[0]);
        say(2, &others[1]);
        cr_assert_not(pd_launch_watch_look(watch, now += 2 * S, &hang), "%s", hang.text);
    }
    pd_launch_watch_free(watch);
}

Test(watch, storage_is_no_lost_peer)
{
    set_up_with(RANKS);
    wait_for(0, 1);
    wait_for(2, 1);
    as(1);
    pd_heartbeat_enter(PD_HEARTBEAT_SAVING);
    pd_heartbeat_tier("/mnt/far");
    now += S;
    cr_assert_not(pd_launch_watch_look(watch, now, &hang));
    expect_hang(
        1,
        "nothing was completed for 32 s; it is at step 11, micro-batch 0, block 0, waiting for a save into tier /mnt/far");
    cr_expect(hang.is_storage);
    expect_hang(1, "nothing was completed for 63 s");
    pd_heartbeat_enter(PD_HEARTBEAT_UPDATING_FILES);
    expect_hang(1, "updating its files");
    cr_expect(hang.is_storage, "a restart would wait for the same file system");
    pd_launch_watch_free(watch);
}

/* Its exchanges are begun by a thread of their own, so that it seems to wait for who waits for it. */
Test(watch, a_rank_that_waits_for_its_storage_is_named_and_no_other)
{
    set_up_with(RANKS);
    wait_for(0, 1);
    wait_for(1, 2);
    wait_for(2, 0);
    as(2);
    const enum pd_heartbeat_place before = pd_heartbeat_storage_begin();
    now += S;
    cr_assert_not(pd_launch_watch_look(watch, now, &hang));
    expect_hang(2, "step 11, micro-batch 0, block 0");
    cr_expect(hang.is_storage);
    pd_heartbeat_storage_end(before);
    expect_hang(0, "rank 0");
    cr_expect_not(hang.is_storage);
    pd_launch_watch_free(watch);
}

/* In its own name, as a thread of the rank that does not train. */
static void *wait_for_storage(void *rank)
{
    as(*(const uint32_t *)rank);
    pd_heartbeat_storage_begin();
    return NULL;
}

static void wait_for_storage_beside(uint32_t rank)
{
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, wait_for_storage, &rank), 0);
    pthread_join(thread, NULL);
}

/* Ranks 0 and 2 wait for rank 1, and another thread of `beside` for storage, for a second so far. */
static void look_at_storage_beside(uint32_t beside)
{
    set_up_with(RANKS);
    wait_for(0, 1);
    wait_for(2, 1);
    wait_for_storage_beside(beside);
    now += S;
    cr_assert_not(pd_launch_watch_look(watch, now, &hang));
}

/* A saver that renames has the lock of the pool, and the thread that trains needs a file from there. */
Test(watch, a_rank_that_waits_for_a_thread_which_waits_for_storage)
{
    look_at_storage_beside(1);
    expect_hang(1, "computing, while another thread of it waits for storage");
    cr_expect(hang.is_storage);
    pd_launch_watch_free(watch);
}

Test(watch, who_waits_for_a_rank_that_hangs_may_wait_for_storage_beside)
{
    look_at_storage_beside(0);
    expect_hang(1, "computing");
    cr_expect_not(hang.is_storage);
    pd_launch_watch_free(watch);
}

/* A copy into another tier goes on beside a rank that hangs. */
Test(watch, storage_that_answers_holds_up_nobody)
{
    look_at_storage_beside(1);
    now += 17 * S;
    cr_assert_not(pd_launch_watch_look(watch, now, &hang));
    as(1);
    for (int i = 0; i < 1000; i++)
        PD_ON_STORAGE((void)i);
    now += 13 * S;
    cr_assert(pd_launch_watch_look(watch, now, &hang));
    cr_expect(hang.rank == 1 && !hang.is_storage, "%s", hang.text);
    pd_launch_watch_free(watch);
}

/* With a limit of its own, by what storage any thread waits for. */
Test(watch, a_rank_that_hangs_while_it_opens_is_named)
{
    int fd;
    struct pd_error err;
    cr_assert(pd_heartbeat_open(RANKS, &fd));
    cr_assert_eq(pd_launch_watch_new(RANKS, 30, 100, &watch, &err), PD_OK);
    pd_launch_watch_add(watch, 0, RANKS, getpid(), pd_heartbeat_map(getpid(), fd, RANKS));
    cr_assert_not(pd_launch_watch_look(watch, now, &hang));
    wait_for(0, 2);
    wait_for(1, 2);
    as(2);
    const enum pd_heartbeat_place before = pd_heartbeat_storage_begin();
    cr_assert_not(pd_launch_watch_look(watch, now += 90 * S, &hang), "%s", hang.text);
    cr_assert(pd_launch_watch_look(watch, now += 20 * S, &hang));
    cr_expect(hang.rank == 2 && hang.is_storage && strstr(hang.text, "it is at opening, waiting for storage"), "%s",
              hang.text);
    pd_heartbeat_storage_end(before);
    cr_assert_not(pd_launch_watch_look(watch, now += 90 * S, &hang), "%s", hang.text);
    cr_assert(pd_launch_watch_look(watch, now += 20 * S, &hang));
    cr_expect(hang.rank == 2 && !hang.is_storage, "%s", hang.text);
    pd_launch_watch_free(watch);
}

Test(watch, what_takes_long_again_and_again_is_waited_for)
{
    set_up_with(RANKS);
    for (uint64_t step = 12; step < 20; step++)
        round_of(step, 25 * S);
    wait_for(0, 1);
    wait_for(2, 1);
    now += 1 * S;
    cr_assert_not(pd_launch_watch_look(watch, now, &hang));
    now += 100 * S;
    cr_assert_not(pd_launch_watch_look(watch, now, &hang), "five times the usual is not over");
    now += 200 * S;
    cr_assert(pd_launch_watch_look(watch, now, &hang));
    pd_launch_watch_free(watch);
}

/* Stopped as soon as it is there. */
static pid_t stopped_process(void)
{
    const pid_t process = fork();
    if (process == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        raise(SIGSTOP);
        _exit(0);
    }
    cr_assert_eq(waitpid(process, NULL, WUNTRACED), process);
    return process;
}

Test(watch, one_that_is_stopped_before_the_run_is_open_is_named)
{
    int fd;
    struct pd_error err;
    const pid_t stopped = stopped_process();
    cr_assert(pd_heartbeat_open(RANKS, &fd));
    cr_assert_eq(pd_launch_watch_new(RANKS, 30, 0, &watch, &err), PD_OK);
    const struct pd_heartbeat *heartbeats = pd_heartbeat_map(getpid(), fd, RANKS);
    pd_launch_watch_add(watch, 0, 2, getpid(), heartbeats);
    cr_assert_not(pd_launch_watch_look(watch, now, &hang));
    pd_launch_watch_add(watch, 2, 1, stopped, NULL);
    cr_assert_not(pd_launch_watch_look(watch, now += 40 * S, &hang), "it was seen a moment ago");
    cr_assert_not(pd_launch_watch_look(watch, now += 29 * S, &hang), "too early: %s", hang.text);
    cr_assert(pd_launch_watch_look(watch, now += 2 * S, &hang));
    cr_expect_eq(hang.rank, 2);
    cr_expect(strstr(hang.text, "nothing was completed for 31 s; it is stopped (SIGSTOP)"), "%s", hang.text);
    pd_launch_watch_free(watch);
    kill(stopped, SIGKILL);
}

Test(watch, before_the_second_step_and_by_a_tests_fault_nobody_hangs)
{
    int fd;
    struct pd_error err;
    cr_assert(pd_heartbeat_open(RANKS, &fd));
    cr_assert_eq(pd_launch_watch_new(RANKS, 30, 0, &watch, &err), PD_OK);
    pd_launch_watch_add(watch, 0, RANKS, getpid(), pd_heartbeat_map(getpid(), fd, RANKS));
    round_of(1, S);
    for (int i = 0; i < 3; i++) {
        now += 1000 * S;
        cr_assert_not(pd_launch_watch_look(watch, now, &hang), "the first step: %s", hang.text);
    }
    round_of(2, S);
    pd_heartbeat_hold();
    now += 2000 * S;
    cr_assert_not(pd_launch_watch_look(watch, now, &hang));
    now += 100000 * S;
    cr_assert_not(pd_launch_watch_look(watch, now, &hang));
    pd_launch_watch_free(watch);
}

/* ---- operations between GPUs, which run on while the host does something else ---- */

static void fly(uint32_t rank, uint64_t communicator, uint64_t reached, uint64_t ended)
{
    as(rank);
    pd_heartbeat_flight(communicator, "gradients", reached, ended);
}

/* The GPUs of ranks 0 and 1 wait in communicator 7 for the GPU of rank 2. */
Test(watch, whose_gpu_has_not_come_to_an_operation_is_named)
{
    set_up_with(RANKS);
    fly(0, 7, 4, 3);
    fly(1, 7, 4, 3);
    fly(2, 7, 3, 3);
    now += S;
    cr_assert_not(pd_launch_watch_look(watch, now, &hang));
    expect_hang(
        2, "block 0, computing; its GPU has not come to operation 4 (gradients) of ranks 0 1 2, in which the GPU of rank 0 "
           "waits");
    pd_launch_watch_free(watch);
}

/* Rank 0 waits for rank 2, whose GPU waits in another communicator for the GPU of rank 1. */
Test(watch, a_chain_goes_through_two_communicators)
{
    set_up_with(RANKS);
    fly(0, 7, 4, 3);
    fly(2, 7, 3, 3);
    fly(2, 9, 12, 11);
    fly(1, 9, 11, 11);
    now += S;
    cr_assert_not(pd_launch_watch_look(watch, now, &hang));
    expect_hang(1, "its GPU has not come to operation 12 (gradients) of ranks 1 2, in which the GPU of rank 2 waits");
    pd_launch_watch_free(watch);
}

Test(watch, operations_that_end_are_progress)
{
    set_up_with(RANKS);
    for (uint64_t i = 1; i < 40; i++) {
        fly(1, 7, i, i - 1);
        cr_assert_not(pd_launch_watch_look(watch, now += 20 * S, &hang), "%s", hang.text);
    }
    pd_launch_watch_free(watch);
}

/* All are in the same operation: its host spins, and is not given ten times as long. */
Test(watch, a_host_that_waits_for_its_gpu_is_not_busy)
{
    struct pd_remote_heartbeat others[2];
    set_up_with(1);
    fly(0, 7, 4, 3);
    for (int i = 0; i < 2; i++) {
        others[i] = (struct pd_remote_heartbeat){.heartbeat = {.step = 12}, .process = 70 + i};
        others[i].heartbeat.flights[3] = (struct pd_heartbeat_flights){.communicator = 7, .reached = 4, .ended = 3};
    }
    others[0].heartbeat.flights[3].reached = 3; /* it came to it in communicator 9 */
    others[0].heartbeat.flights[0] = (struct pd_heartbeat_flights){.communicator = 9, .reached = 2, .ended = 1};
    bool is_named = false;
    for (int i = 0; i < 20 && !is_named; i++) {
        others[0].busy_ms += 2000;
        say(1, &others[0]);
        say(2, &others[1]);
        is_named = pd_launch_watch_look(watch, now += 2 * S, &hang);
    }
    cr_assert(is_named, "it spins, and is taken for one that computes");
    cr_expect_eq(hang.rank, 1, "%s", hang.text);
    cr_expect(strstr(hang.text, "its GPU has not come to operation 4"), "%s", hang.text);
    pd_launch_watch_free(watch);
}
