/* Ranks as threads of one process. */
#include "ckpt/base/fault.h"
#include "tests/helpers/comm_exercise.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const uint32_t worlds[] = {1, 2, 3, 5, 8, 19};
#define SOON_SECONDS 300.0 /* on any machine; the time limit is 600 */
#define WORLDS (sizeof worlds / sizeof *worlds)

static uint64_t scale(void)
{
    const char *text = getenv("PERDURE_TEST_SCALE");
    uint64_t value = text ? strtoull(text, NULL, 10) : 1;
    return value ? value : 1;
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void expect_ok(pd_status st, const struct pd_error *err)
{
    cr_assert_eq(st, PD_OK, "%s: %s", err->where, err->message);
}

static void expect_says(const struct pd_error *err, const char *text)
{
    cr_assert(strstr(err->message, text), "\"%s\" does not say \"%s\"", err->message, text);
}

static pd_status exchanges_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    return exercise_exchanges(comm, *(uint64_t *)context, 300 * scale(), 40000, err);
}

Test(local, random_exchanges_arrive_byte_for_byte)
{
    for (uint64_t w = 0; w < WORLDS; w++) {
        struct pd_error err;
        uint64_t seed = 11 + w;
        expect_ok(pd_comm_run_local(worlds[w], 1, exchanges_main, &seed, &err), &err);
    }
}

static pd_status large_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    return exercise_exchanges(comm, *(uint64_t *)context, 12, 6000000, err);
}

Test(local, large_exchanges_arrive_byte_for_byte)
{
    struct pd_error err;
    uint64_t seed = 5;
    expect_ok(pd_comm_run_local(3, 1, large_main, &seed, &err), &err);
}

static pd_status sums_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    PD_TRY(exercise_collectives(comm, *(uint64_t *)context, 60 * scale(), 3000, err));
    return exercise_collectives(comm, *(uint64_t *)context, 4, 100000, err);
}

Test(local, sums_and_gathers_are_those_of_all_ranks)
{
    for (uint64_t w = 0; w < WORLDS; w++) {
        struct pd_error err;
        uint64_t seed = 21 + w;
        expect_ok(pd_comm_run_local(worlds[w], 1, sums_main, &seed, &err), &err);
    }
}

static pd_status collectives_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    PD_TRY(exercise_reductions(comm, err));
    PD_TRY(exercise_broadcasts(comm, err));
    PD_TRY(exercise_group(comm, err));
    for (int i = 0; i < 100; i++)
        PD_TRY(pd_comm_barrier(comm, err));
    return PD_OK;
}

Test(local, collectives_and_group)
{
    for (uint64_t w = 0; w < WORLDS; w++) {
        struct pd_error err;
        expect_ok(pd_comm_run_local(worlds[w], 1, collectives_main, NULL, &err), &err);
        expect_ok(pd_comm_run_local(worlds[w], 1 + worlds[w] / 5, collectives_main, NULL, &err), &err);
    }
}

static pd_status splits_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    return exercise_splits(comm, 42, err);
}

Test(local, splits_are_communicators_of_their_own)
{
    for (uint64_t w = 0; w < WORLDS; w++) {
        struct pd_error err;
        expect_ok(pd_comm_run_local(worlds[w], 1, splits_main, NULL, &err), &err);
    }
}

static pd_status hosts_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    EXERCISE_EXPECT(comm->host_count == 2 && comm->host == comm->rank * 2 / 5);
    struct pd_comm *part;
    PD_TRY(pd_comm_split(comm, comm->rank > 2, 0, &part, err)); /* hosts 0 0 0 1 1 */
    EXERCISE_EXPECT(part->host_count == 1 && part->host == 0);
    pd_comm_free(part);
    return PD_OK;
}

Test(local, pretended_hosts_are_numbered)
{
    struct pd_error err;
    expect_ok(pd_comm_run_local(5, 2, hosts_main, NULL, &err), &err);
    cr_assert_eq(pd_comm_run_local(0, 1, hosts_main, NULL, &err), PD_INVALID);
    cr_assert_eq(pd_comm_run_local(2, 3, hosts_main, NULL, &err), PD_INVALID);
}

/* The caller computes while the operation runs: it is complete without a call to wait. */
static pd_status overlap_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    uint64_t out = comm->rank, in = 99;
    struct pd_comm_piece send = {.peer = 1 - comm->rank, .data = &out, .bytes = 8};
    struct pd_comm_piece recv = {.peer = 1 - comm->rank, .data = &in, .bytes = 8};
    struct pd_comm_op op = {.sends = &send, .send_count = 1, .recvs = &recv, .recv_count = 1};
    PD_TRY(pd_comm_start(comm, &op, err));
    while (!op.done && pd_comm_look(comm, NULL) == PD_OK)
        usleep(1000);
    const bool was_done = op.done;
    PD_TRY(pd_comm_wait(comm, &op, err));
    EXERCISE_EXPECT(was_done && in == 1 - comm->rank);
    return pd_comm_barrier(comm, err); /* who leaves earlier is gone to the other, whose operation may not be done yet */
}

Test(local, operations_progress_without_the_caller)
{
    struct pd_error err;
    expect_ok(pd_comm_run_local(2, 1, overlap_main, NULL, &err), &err);
}

static pd_status dead_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    _Atomic uint32_t *told = context;
    struct pd_comm *part;
    PD_TRY(pd_comm_split(comm, 0, 0, &part, err));
    PD_TRY(pd_comm_barrier(part, err));
    if (comm->rank == 2) PD_FAIL(err, PD_IO, "the disk of this rank is gone");
    struct pd_error own;
    pd_status st = pd_comm_barrier(part, &own);
    if (st == PD_PEER_LOST && strstr(own.message, "rank 2")) atomic_fetch_add(told, 1);
    if (pd_comm_barrier(part, NULL) == PD_PEER_LOST) atomic_fetch_add(told, 100);
    if (pd_comm_barrier(comm, NULL) == PD_PEER_LOST) atomic_fetch_add(told, 10000);
    pd_comm_free(part);
    if (err) *err = own;
    return st;
}

Test(local, a_rank_that_fails_is_dead_to_the_others_at_once)
{
    struct pd_error err;
    _Atomic uint32_t told = 0;
    double began = seconds_now();
    cr_assert_eq(pd_comm_run_local(5, 1, dead_main, &told, &err), PD_IO, "the cause, not a consequence");
    cr_assert_lt(seconds_now() - began, SOON_SECONDS);
    expect_says(&err, "rank 2: the disk");
    cr_assert_eq(atomic_load(&told), 4 + 400 + 40000, "%u", atomic_load(&told));
}

static pd_status early_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    return comm->rank == 1 ? PD_OK : pd_comm_barrier(comm, err);
}

Test(local, a_rank_that_finished_early_is_named)
{
    struct pd_error err;
    double began = seconds_now();
    cr_assert_eq(pd_comm_run_local(3, 1, early_main, NULL, &err), PD_PEER_LOST);
    expect_says(&err, "rank 1 left while rank");
    cr_assert_lt(seconds_now() - began, SOON_SECONDS);
}

/* A rank gives up with an operation in flight, whose memory it then reuses; nobody may touch it any more. */
static pd_status abort_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    _Atomic bool *has_aborted = context;
    size_t bytes = 1 << 20;
    uint8_t *out = malloc(bytes), *in = malloc(bytes);
    memset(out, 1, bytes);
    struct pd_comm_piece send = {.peer = 1 - comm->rank, .data = out, .bytes = bytes};
    struct pd_comm_piece recv = {.peer = 1 - comm->rank, .data = in, .bytes = bytes};
    struct pd_comm_op op = {.sends = &send, .send_count = 1, .recvs = &recv, .recv_count = 1};
    pd_status st = PD_OK;
    if (comm->rank == 0) {
        PD_TRY(pd_comm_start(comm, &op, err));
        pd_comm_abort(comm);
        atomic_store(has_aborted, true);
        st = pd_comm_wait(comm, &op, err);
        memset(out, 2, bytes);
    } else {
        while (!atomic_load(has_aborted))
            usleep(100);
        st = pd_comm_start(comm, &op, err);
        if (!st) st = pd_comm_wait(comm, &op, err);
    }
    free(out);
    free(in);
    return st;
}

Test(local, abort_ends_what_is_in_flight)
{
    struct pd_error err;
    _Atomic bool has_aborted = false;
    double began = seconds_now();
    cr_assert_eq(pd_comm_run_local(2, 1, abort_main, &has_aborted, &err), PD_PEER_LOST);
    cr_assert_lt(seconds_now() - began, SOON_SECONDS);
}

/* Ranks 0 and 1 have a communicator of their own, and an operation in flight on it when rank 0 gives up because of rank 2,
 * of which rank 1 hears from nobody else. */
static pd_status give_up_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    _Atomic uint32_t *told = context;
    struct pd_comm *part;
    PD_TRY(pd_comm_split(comm, comm->rank == 2, 0, &part, err));
    PD_TRY(pd_comm_barrier(comm, err));
    pd_status st = comm->rank == 2 ? pd_error_set(err, PD_IO, PD_WHERE, 0, "the disk of this rank is gone") : PD_OK;
    uint64_t word;
    struct pd_comm_piece recv = {.peer = 1 - part->rank, .data = &word, .bytes = sizeof word};
    struct pd_comm_op op = {.recvs = &recv, .recv_count = 1};
    if (comm->rank == 0) {
        PD_TRY(pd_comm_start(part, &op, err));
        st = pd_comm_barrier(comm, err);
        pd_comm_abort(comm);
        if (pd_comm_wait(part, &op, NULL) == PD_PEER_LOST) atomic_fetch_add(told, 1);
    } else if (comm->rank == 1) {
        struct pd_error own = {.message = ""};
        st = pd_comm_start(part, &op, &own);
        if (!st) st = pd_comm_wait(part, &op, &own);
        if (strstr(own.message, "rank 2 is missing, as rank 0 found")) atomic_fetch_add(told, 1);
        if (err) *err = own;
    }
    pd_comm_free(part);
    return st;
}

Test(local, a_rank_that_gives_up_names_the_one_that_is_missing)
{
    for (int round = 0; round < 100; round++) {
        struct pd_error err;
        _Atomic uint32_t told = 0;
        cr_assert_eq(pd_comm_run_local(3, 1, give_up_main, &told, &err), PD_IO, "%s", err.message);
        cr_assert_eq(atomic_load(&told), 2, "round %d: %u", round, atomic_load(&told));
    }
}

struct storm {
    uint64_t seed;
    bool is_collective;
    _Atomic uint32_t told;
};

static pd_status storm_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    struct storm *storm = context;
    uint32_t victim = (uint32_t)(exercise_mix(storm->seed) % comm->size);
    uint64_t when = comm->rank == victim ? exercise_mix(storm->seed + 1) % 40 : UINT64_MAX;
    pd_status st = storm->is_collective ? exercise_collectives_until(comm, storm->seed, 60, 4000, when, err)
                                        : exercise_exchanges_until(comm, storm->seed, 60, 30000, when, err);
    atomic_fetch_add(&storm->told, comm->rank != victim && st == PD_PEER_LOST);
    return st;
}

/* A rank fails in the middle of traffic: everybody else gets PD_PEER_LOST, nobody touches freed memory. */
Test(local, a_rank_fails_at_any_moment)
{
    for (uint64_t seed = 0; seed < 60 * scale(); seed++) {
        struct storm storm = {.seed = seed, .is_collective = seed % 2};
        struct pd_error err;
        uint32_t world = 2 + (uint32_t)(seed % 6);
        double began = seconds_now();
        cr_assert_eq(pd_comm_run_local(world, 1, storm_main, &storm, &err), PD_IO, "seed %lu", (unsigned long)seed);
        cr_assert_eq(atomic_load(&storm.told), world - 1, "seed %lu", (unsigned long)seed);
        cr_assert_lt(seconds_now() - began, SOON_SECONDS, "seed %lu", (unsigned long)seed);
    }
}

static pd_status mismatch_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    uint8_t bytes[16] = {0};
    struct pd_comm_piece piece = {.peer = 1 - comm->rank, .data = bytes, .bytes = comm->rank ? 9 : 8};
    struct pd_comm_op op = {.sends = &piece, .send_count = comm->rank == 0, .recvs = &piece, .recv_count = comm->rank == 1};
    PD_TRY(pd_comm_start(comm, &op, err));
    return pd_comm_wait(comm, &op, err);
}

Test(local, lengths_that_do_not_match_are_a_bug_with_a_name)
{
    struct pd_error err;
    cr_assert_eq(pd_comm_run_local(2, 1, mismatch_main, NULL, &err), PD_BUG);
    expect_says(&err, "rank 1 expects 9 bytes of rank 0, which sends 8");
}

static pd_status other_count_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    return exercise_mismatch(comm, *(bool *)context, err);
}

Test(local, counts_that_differ_are_a_bug_with_a_name)
{
    for (int is_gather = 0; is_gather < 2; is_gather++) {
        struct pd_error err;
        bool which = is_gather;
        cr_assert_eq(pd_comm_run_local(3, 1, other_count_main, &which, &err), PD_BUG);
        cr_assert(strstr(err.message, "begins a collective") && strstr(err.message, " 8000") && strstr(err.message, " 8008"),
                  "%s", err.message);
    }
}

/* A damaged message is one that arrives: what is wrong shows where it was to be added. */
Test(local, damage_is_done_where_a_test_asks_for_it)
{
    static const char *const places[] = {"comm.exchange.flip@1:2", "comm.reduce_scatter.flip@1:5",
                                         "comm.all_gather.flip@1:5"};
    for (int i = 0; i < 3; i++) {
        struct pd_error err;
        uint64_t seed = 4;
        expect_ok(pd_fault_configure(places[i], NULL, &err), &err);
        cr_assert_eq(pd_comm_run_local(3, 1, i ? sums_main : large_main, &seed, &err), PD_BUG, "%s", places[i]);
        expect_says(&err, i == 0 ? " 1 wrong bytes" : " has 1 wrong integers");
        expect_ok(pd_fault_configure(NULL, NULL, &err), &err);
    }
}

static pd_status wrong_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    uint8_t byte = 0;
    struct pd_comm_piece nobody = {.peer = comm->size, .data = &byte, .bytes = 1}, nothing = {.peer = 0, .bytes = 1};
    struct pd_comm_op first = {.sends = &nobody, .send_count = 1}, second = {.recvs = &nothing, .recv_count = 1};
    EXERCISE_EXPECT(pd_comm_start(comm, &first, NULL) == PD_BUG);
    EXERCISE_EXPECT(pd_comm_start(comm, &second, NULL) == PD_BUG);
    EXERCISE_EXPECT(pd_comm_broadcast(comm, comm->size, &byte, 1, NULL) == PD_BUG);
    uint64_t parts[4] = {0};
    struct pd_comm_op third = {.what = "terms"};
    EXERCISE_EXPECT(pd_comm_start_reduce_scatter(comm, &third, parts, 2, parts + 1, NULL) == PD_BUG);
    EXERCISE_EXPECT(pd_comm_start_reduce_scatter(comm, &third, NULL, 2, parts, NULL) == PD_BUG);
    EXERCISE_EXPECT(pd_comm_start_all_gather(comm, &third, NULL, 8, NULL) == PD_BUG);
    return pd_comm_barrier(comm, err);
}

Test(local, wrong_pieces_are_refused)
{
    struct pd_error err;
    expect_ok(pd_comm_run_local(2, 1, wrong_main, NULL, &err), &err);
}
