/* The caller of NCCL against a library that stands in for it, over streams that are late: ranks are threads. */
#include "tests/helpers/comm_exercise.h"
#include "tests/helpers/nccl_rank.h"
#include "trainer/comm/nccl_library.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define SOON_SECONDS 300.0 /* on any machine; the time limit is 600 */

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* What `plan` sets aside, by hand: 16 MiB of its own; then for each channel, two of a peer and 16 at least, a ring of
 * NCCL_BUFFSIZE and 6 MiB. A link has 8. Peers beyond 15 share 64 MiB. */
Test(nccl, takes_memory_by_channels)
{
    const uint64_t mib = 1024 * 1024;
    unsetenv("NCCL_BUFFSIZE");
    cr_expect_eq(pd_comm_nccl_bytes(1, false), 0, "alone there is none");
    cr_expect_eq(pd_comm_nccl_bytes(2, true), (16 + 8 * 10) * mib);
    cr_expect_eq(pd_comm_nccl_bytes(2, false), (16 + 16 * 10) * mib);
    cr_expect_eq(pd_comm_nccl_bytes(9, false), (16 + 16 * 10) * mib);
    cr_expect_eq(pd_comm_nccl_bytes(10, false), (16 + 18 * 10) * mib);
    cr_expect_eq(pd_comm_nccl_bytes(16, false), (16 + 30 * 10) * mib);
    cr_expect_eq(pd_comm_nccl_bytes(17, false), (16 + 30 * 10 + 64) * mib);
    cr_expect_eq(pd_comm_nccl_bytes(16384, false), (16 + 30 * 10 + 64) * mib);
    setenv("NCCL_NET_SHARED_BUFFERS", "0", 1);
    cr_expect_eq(pd_comm_nccl_bytes(17, false), (16 + 32 * 10) * mib);
    unsetenv("NCCL_NET_SHARED_BUFFERS");
    setenv("NCCL_BUFFSIZE", "1048576", 1);
    cr_expect_eq(pd_comm_nccl_bytes(10, false), (16 + 18 * 7) * mib);
    setenv("NCCL_BUFFSIZE", "much", 1);
    cr_expect_eq(pd_comm_nccl_bytes(10, false), (16 + 18 * 10) * mib);
}

/* ---- traffic ---- */

struct exchange {
    struct exercise_flight flight;
    struct pd_comm *comm;
    uint64_t seed, wrong;
};

static void fill_now(void *argument)
{
    struct exchange *x = argument;
    exercise_side_walk(&x->flight.sends, x->seed, x->flight.round, x->comm->rank, x->comm->size, true);
}

static void check_now(void *argument)
{
    struct exchange *x = argument;
    x->wrong = exercise_side_walk(&x->flight.recvs, x->seed, x->flight.round, x->comm->rank, x->comm->size, false);
    memset(x->flight.recvs.memory, 0, x->flight.recvs.bytes);
}

/* The compute stream fills what is sent and looks at what came; the host waits for neither. */
static pd_status begin(struct rank *r, struct pd_comm *comm, struct exchange *x, uint64_t seed, uint64_t round,
                       struct pd_error *err)
{
    *x = (struct exchange){.comm = comm, .seed = seed};
    struct exercise_flight *f = &x->flight;
    f->round = round;
    exercise_side_make(&f->sends, seed, round, comm->rank, comm->size, 20000, true, true);
    exercise_side_make(&f->recvs, seed, round, comm->rank, comm->size, 20000, false, true);
    memset(f->sends.memory, 0xee, f->sends.bytes);
    f->op = (struct pd_comm_op){
        .sends = f->sends.pieces, .send_count = f->sends.count, .recvs = f->recvs.pieces, .recv_count = f->recvs.count};
    late_put(r->compute, fill_now, x);
    return pd_comm_start(comm, &f->op, err);
}

static pd_status land(struct rank *r, struct exchange *x, struct pd_error *err)
{
    PD_TRY(pd_comm_wait(x->comm, &x->flight.op, err));
    late_put(r->compute, check_now, x);
    return PD_OK;
}

enum { AHEAD = 5, ROUNDS = 60 };

static pd_status traffic(struct rank *r, struct pd_comm *comm, uint64_t seed, uint32_t rounds, struct pd_error *err)
{
    struct exchange *all = calloc(rounds, sizeof *all);
    uint64_t wrong = 0;
    pd_status st = PD_OK;
    for (uint32_t i = 0; i < rounds + AHEAD && !st; i++) {
        if (i < rounds) st = begin(r, comm, &all[i], seed, i, err);
        if (!st && i >= AHEAD) st = land(r, &all[i - AHEAD], err);
        if (!st && i % 16 == 7) st = pd_comm_barrier(comm, err);
    }
    struct pd_error ignored;
    for (uint32_t i = 0; st && i < rounds; i++)
        if (all[i].comm && !all[i].flight.op.status && pd_comm_wait(comm, &all[i].flight.op, &ignored)) continue;
    PD_CHECK(pd_dev_stream_sync(&r->dev, r->compute, &ignored) == PD_OK);
    for (uint32_t i = 0; i < rounds; i++) {
        wrong += all[i].wrong;
        if (!all[i].comm) continue;
        exercise_side_free(&all[i].flight.sends, NULL);
        exercise_side_free(&all[i].flight.recvs, NULL);
    }
    free(all);
    if (!st && wrong) PD_FAIL(err, PD_BUG, "rank %u got %llu wrong bytes", comm->rank, (unsigned long long)wrong);
    return st;
}

/* ---- sums and gathers: filled, added and looked at on streams ---- */

struct collective {
    struct exercise_parts parts;
    struct pd_comm *comm;
    uint64_t seed, wrong;
};

static void fill_parts_now(void *argument)
{
    struct collective *x = argument;
    const uint64_t n = x->parts.count;
    for (uint64_t i = 0; i < x->comm->size * n; i++)
        x->parts.parts[i] = exercise_term(x->seed, x->parts.round, x->comm->rank, i / n, i % n);
    for (uint64_t i = 0; i < n; i++)
        x->parts.gathered[x->comm->rank * n + i] = exercise_term(x->seed + 1, x->parts.round, x->comm->rank, 0, i);
}

static void check_parts_now(void *argument)
{
    struct collective *x = argument;
    x->wrong = exercise_parts_check(x->comm, x->seed, &x->parts);
    memset(x->parts.parts, 0xdd, x->comm->size * x->parts.count * sizeof(uint64_t));
}

static pd_status collectives(struct rank *r, struct pd_comm *comm, uint64_t seed, uint32_t rounds, uint64_t *ret_wrong,
                             struct pd_error *err)
{
    struct collective *all = calloc(rounds, sizeof *all);
    struct pd_error ignored;
    pd_status st = PD_OK;
    *ret_wrong = 0;
    for (uint32_t i = 0; i < rounds + AHEAD && !st; i++) {
        struct collective *x = i < rounds ? &all[i] : NULL;
        if (x) {
            *x = (struct collective){.comm = comm, .seed = seed};
            exercise_parts_make(comm, seed, i, 500, &x->parts);
            memset(x->parts.parts, 0xee, comm->size * x->parts.count * sizeof(uint64_t));
            late_put(r->compute, fill_parts_now, x);
            st = exercise_parts_start(comm, &x->parts, err);
        }
        if (st || i < AHEAD) continue;
        st = pd_comm_wait(comm, &all[i - AHEAD].parts.reduce, err);
        if (!st) st = pd_comm_wait(comm, &all[i - AHEAD].parts.gather, err);
        late_put(r->compute, check_parts_now, &all[i - AHEAD]);
    }
    for (uint32_t i = 0; st && i < rounds; i++) {
        if (all[i].parts.reduce.parts && pd_comm_wait(comm, &all[i].parts.reduce, &ignored)) continue;
        if (all[i].parts.gather.parts && pd_comm_wait(comm, &all[i].parts.gather, &ignored)) continue;
    }
    PD_CHECK(pd_dev_stream_sync(&r->dev, r->compute, &ignored) == PD_OK);
    for (uint32_t i = 0; i < rounds; i++) {
        *ret_wrong += all[i].wrong;
        if (all[i].comm) exercise_parts_free(comm, &all[i].parts);
    }
    free(all);
    return st;
}

static pd_status sums_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct rank r;
    struct pd_comm *part;
    uint64_t *wrong = context, here;
    PD_TRY(rank_open(control, &r, err));
    PD_TRY(pd_comm_split(r.comm, control->rank % 2, control->size - control->rank, &part, err));
    struct pd_comm_traffic before, after;
    uint8_t gathered[8 * 100] = {0};
    struct pd_comm_op op = {.what = "parameters"};
    struct pd_comm *const comm = r.comm;
    pd_comm_traffic(comm, &before);
    PD_TRY(pd_comm_start_all_gather(comm, &op, gathered, 100, err));
    PD_TRY(pd_comm_wait(comm, &op, err));
    PD_TRY(pd_dev_stream_sync(&r.dev, r.compute, err));
    pd_comm_traffic(comm, &after);
    EXERCISE_EXPECT(after.library_bytes - before.library_bytes == (comm->size - 1) * 100);
    PD_TRY(collectives(&r, r.comm, 7, 12, &wrong[control->rank], err));
    PD_TRY(collectives(&r, part, 8 + control->rank % 2, 6, &here, err));
    wrong[control->rank] += here;
    pd_comm_free(part);
    rank_close(&r);
    return PD_OK;
}

Test(nccl, sums_do_not_depend_on_the_order_of_addition)
{
    void (*set_seed)(int);
    struct pd_error err;
    fake("fake_nccl_set_seed", &set_seed);
    for (int seed = 1; seed <= 3; seed++) {
        uint64_t wrong[5] = {0};
        set_seed(seed);
        const uint32_t size = seed == 3 ? 1 : 2 + 3 * (uint32_t)(seed - 1);
        cr_assert_eq(run(size, sums_main, wrong, &err), PD_OK, "seed %d: %s (%s)", seed, err.message, err.where);
        for (uint32_t i = 0; i < size; i++)
            cr_assert_eq(wrong[i], 0, "seed %d: rank %u has %lu wrong integers", seed, i, (unsigned long)wrong[i]);
    }
}

enum { ROOM = 64 };

/* Two collectives in what the library was told of, one beside it, and one in another communicator that was told nothing. */
static pd_status told_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct rank r;
    struct pd_comm *part;
    uint64_t room[ROOM] = {0}, beside[ROOM] = {0};
    (void)context;
    PD_TRY(rank_open(control, &r, err));
    PD_TRY(pd_comm_split(r.comm, 0, control->rank, &part, err));
    pd_comm_will_use(r.comm, room, sizeof room);
    pd_comm_will_use(r.comm, NULL, 0);
    struct pd_comm_op op = {0};
    const uint64_t count = ROOM / r.comm->size;
    PD_TRY(pd_comm_start_reduce_scatter(r.comm, &op, room, count, room + r.comm->rank * count, err));
    PD_TRY(pd_comm_wait(r.comm, &op, err));
    PD_TRY(pd_comm_start_all_gather(r.comm, &op, room, count * sizeof *room, err));
    PD_TRY(pd_comm_wait(r.comm, &op, err));
    PD_TRY(pd_comm_start_all_gather(r.comm, &op, beside, count * sizeof *beside, err));
    PD_TRY(pd_comm_wait(r.comm, &op, err));
    PD_TRY(pd_comm_start_all_gather(part, &op, room, count * sizeof *room, err));
    PD_TRY(pd_comm_wait(part, &op, err));
    PD_TRY(pd_dev_stream_sync(&r.dev, r.compute, err));
    pd_comm_free(part);
    rank_close(&r);
    return PD_OK;
}

Test(nccl, is_told_where_operations_lie_until_the_communicator_ends)
{
    struct fake_nccl_counts (*counts_now)(void);
    struct pd_error err;
    fake("fake_nccl_counts", &counts_now);
    const struct fake_nccl_counts before = counts_now();
    cr_assert_eq(run(2, told_main, NULL, &err), PD_OK, "%s", err.message);
    const struct fake_nccl_counts after = counts_now();
    cr_expect_eq(after.collectives - before.collectives, 2 * 4);
    cr_expect_eq(after.registered_collectives - before.registered_collectives, 2 * 2);
    cr_expect_eq(after.registered, before.registered, "what was registered is forgotten");
}

/* The library that stands in is wrong where a test says so. */
Test(nccl, a_wrong_bit_of_the_library_arrives)
{
    void (*flip)(int);
    uint64_t wrong[2] = {0};
    struct pd_error err;
    fake("fake_nccl_flip", &flip);
    flip(5);
    cr_assert_eq(run(2, sums_main, wrong, &err), PD_OK, "%s", err.message);
    cr_assert_eq(wrong[0] + wrong[1], 1);
}

static pd_status everything_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct rank r;
    struct pd_comm *part, *pair;
    (void)context;
    PD_TRY(rank_open(control, &r, err));
    PD_TRY(traffic(&r, r.comm, 3, ROUNDS, err));
    PD_TRY(exercise_reductions(r.comm, err));
    PD_TRY(exercise_broadcasts(r.comm, err));
    PD_TRY(exercise_group(r.comm, err));
    PD_TRY(pd_comm_split(r.comm, control->rank % 2, control->size - control->rank, &part, err));
    PD_TRY(pd_comm_split(part, part->rank / 2, 0, &pair, err));
    PD_TRY(traffic(&r, part, 5 + control->rank % 2, 10, err));
    PD_TRY(traffic(&r, pair, 50 + control->rank % 2 * 10 + part->rank / 2, 10, err));
    PD_TRY(traffic(&r, r.comm, 4, 10, err));
    struct pd_comm *comm = r.comm;
    EXERCISE_EXPECT(strcmp(pair->ops->name, "nccl") == 0 && comm->size == control->size);
    pd_comm_free(pair);
    pd_comm_free(part);
    rank_close(&r);
    return pd_comm_barrier(control, err); /* goes on alone */
}

Test(nccl, pieces_arrive_in_the_order_of_streams)
{
    const uint32_t worlds[] = {1, 2, 5};
    int (*aborts)(void);
    for (int i = 0; i < 3; i++) {
        struct pd_error err;
        cr_assert_eq(run(worlds[i], everything_main, NULL, &err), PD_OK, "%s (%s)", err.message, err.where);
    }
    fake("fake_nccl_aborts", &aborts);
    cr_assert_eq(aborts(), 0);
    cr_assert_gt(late_goes_first, 0, "nobody's kernels go first");
}

/* As stages of a pipeline: each expects a gradient or a stream before it sends what the other expects. */
static pd_status expecting_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct rank r;
    struct pd_comm *streams, *gradients, *const comm = control;
    uint64_t in[2] = {0, 0}, out[2] = {11 + control->rank, 0};
    (void)context;
    PD_TRY(rank_open(control, &r, err));
    PD_TRY(pd_comm_split_links(r.comm, 0, control->rank, &streams, err));
    PD_TRY(pd_comm_split_links(r.comm, 0, control->rank, &gradients, err));
    struct pd_comm *const from = control->rank ? streams : gradients, *const to = control->rank ? gradients : streams;
    struct pd_comm_piece expected = {.peer = 1 - from->rank, .data = in, .bytes = 8};
    struct pd_comm_piece sent = {.peer = 1 - to->rank, .data = out, .bytes = 8};
    struct pd_comm_op arrives = {.recvs = &expected, .recv_count = 1}, leaves = {.sends = &sent, .send_count = 1};
    PD_TRY(pd_comm_start(from, &arrives, err));
    PD_TRY(pd_comm_start(to, &leaves, err));
    PD_TRY(pd_comm_wait(from, &arrives, err));
    PD_TRY(pd_comm_wait(to, &leaves, err));
    PD_TRY(pd_dev_stream_sync(&r.dev, r.compute, err));
    EXERCISE_EXPECT(in[0] == 12 - comm->rank);
    pd_comm_free(gradients);
    pd_comm_free(streams);
    rank_close(&r);
    return PD_OK;
}

Test(nccl, a_link_is_connected_before_it_expects_anything, .timeout = SOON_SECONDS)
{
    struct pd_error err;
    cr_assert_eq(run(2, expecting_main, NULL, &err), PD_OK, "%s (%s)", err.message, err.where);
}

/* With several stages nothing goes over the world's: it has no communicator of the library, and is split all the same. */
static pd_status unused_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct rank r = {.dev = {.ops = &late_ops, .index = control->rank}};
    struct pd_comm *part, *const comm = control;
    uint64_t word = 5, wrong;
    (void)context;
    PD_TRY(pd_dev_stream_new(&r.dev, &r.compute, err));
    PD_TRY(pd_comm_new_nccl(control, &r.dev, r.compute, NULL, false, &r.comm, &is_meant, err));
    PD_TRY(pd_comm_split(r.comm, 0, control->rank, &part, err));
    PD_TRY(collectives(&r, part, 9, 3, &wrong, err));
    PD_TRY(exercise_reductions(r.comm, err));
    struct pd_comm_op op = {.what = "terms"};
    EXERCISE_EXPECT(wrong == 0 && pd_comm_start_all_gather(r.comm, &op, &word, 1, NULL) == PD_BUG);
    pd_comm_free(part);
    rank_close(&r);
    return PD_OK;
}

Test(nccl, a_communicator_that_nothing_goes_over_takes_nothing)
{
    struct pd_error err;
    cr_assert_eq(run(2, unused_main, NULL, &err), PD_OK, "%s (%s)", err.message, err.where);
}

/* ---- spans ---- */

static pd_status watched_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct rank r = {.comm = NULL};
    struct pd_comm *part;
    struct pd_device_share shares[PD_DEVICE_SHARES_MAX];
    (void)context;
    r.dev = (struct pd_dev){.ops = &late_ops, .index = control->rank};
    PD_TRY(pd_dev_stream_new(&r.dev, &r.compute, err));
    PD_TRY(pd_device_spans_new(&r.dev, r.compute, 1000, &r.spans, err));
    PD_TRY(pd_comm_new_nccl(control, &r.dev, r.compute, r.spans, true, &r.comm, &is_meant, err));
    PD_TRY(pd_comm_split(r.comm, 0, control->rank, &part, err));
    PD_TRY(traffic(&r, r.comm, 3, 20, err));
    PD_TRY(traffic(&r, part, 5, 10, err));
    PD_TRY(pd_device_spans_collect(r.spans, err));
    struct pd_comm *comm = r.comm;
    EXERCISE_EXPECT(pd_device_spans_shares(r.spans, shares) == 2 && pd_device_spans_lost(r.spans) == 0);
    EXERCISE_EXPECT(strcmp(shares[0].lane, "NCCL 1") == 0 && shares[0].count == 20);
    EXERCISE_EXPECT(strcmp(shares[1].lane, "NCCL 2") == 0 && shares[1].count == 10);
    pd_comm_free(part);
    rank_close(&r);
    pd_device_spans_free(r.spans);
    return PD_OK;
}

Test(nccl, each_communicator_has_a_lane)
{
    struct pd_error err;
    cr_assert_eq(run(3, watched_main, NULL, &err), PD_OK, "%s (%s)", err.message, err.where);
}

/* ---- who cannot ---- */

static pd_status refused_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct rank r;
    (void)context;
    pd_status st = rank_open(control, &r, err);
    PD_TRY(pd_comm_barrier(control, st ? NULL : err)); /* control is as it was */
    return st;
}

static pd_status shared_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct rank r = {.dev = {.ops = &late_ops, .index = control->rank / 2}};
    (void)context;
    return pd_comm_new_nccl(control, &r.dev, r.compute, NULL, true, &r.comm, &is_meant, err);
}

Test(nccl, what_is_missing_is_said_on_all_ranks)
{
    struct pd_error err;
    setenv("PERDURE_NCCL", "off", 1);
    cr_assert_eq(pd_comm_run_local(3, 1, refused_main, NULL, &err), PD_UNSUPPORTED);
    cr_assert_str_eq(err.message, "NCCL cannot serve: rank 0: PERDURE_NCCL=off");
    cr_assert(is_meant, "it is switched off");
    setenv("PERDURE_NCCL", "/nowhere/libnccl.so.2", 1);
    cr_assert_eq(pd_comm_run_local(3, 1, refused_main, NULL, &err), PD_UNSUPPORTED);
    cr_assert(strstr(err.message, "/nowhere/libnccl.so.2: cannot open"), "%s", err.message);
    cr_assert_not(is_meant, "GPUs of their own, and no library");
    cr_assert_eq(run(3, shared_main, NULL, &err), PD_UNSUPPORTED);
    cr_assert_str_eq(err.message, "rank 0: NCCL cannot serve: ranks 0 and 1 share GPU 0");
    cr_assert(is_meant, "they share a GPU");
    setenv("CUDA_VISIBLE_DEVICES", "7,5", 1);
    cr_assert_eq(run(4, shared_main, NULL, &err), PD_UNSUPPORTED);
    cr_assert_str_eq(err.message, "rank 0: NCCL cannot serve: ranks 0 and 1 share GPU 7");
}

static pd_status hidden_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct rank r = {.dev = {.ops = &late_ops}}; /* each rank is shown one GPU, number 0 */
    snprintf(r.dev.identity, sizeof r.dev.identity, "%u", control->rank / *(uint32_t *)context);
    PD_TRY(pd_dev_stream_new(&r.dev, &r.compute, err));
    pd_status st = pd_comm_new_nccl(control, &r.dev, r.compute, NULL, true, &r.comm, &is_meant, err);
    if (!st) pd_comm_free(r.comm);
    pd_dev_stream_free(&r.dev, r.compute);
    return st;
}

Test(nccl, gpus_are_told_apart_by_what_they_are)
{
    struct pd_error err;
    uint32_t ranks_a_gpu = 1;
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    cr_assert_eq(run(3, hidden_main, &ranks_a_gpu, &err), PD_OK, "%s", err.message);
    ranks_a_gpu = 2;
    cr_assert_eq(run(3, hidden_main, &ranks_a_gpu, &err), PD_UNSUPPORTED);
    cr_assert_str_eq(err.message, "rank 0: NCCL cannot serve: ranks 0 and 1 share GPU 0");
}

Test(nccl, an_old_library_is_refused)
{
    void (*set_version)(int);
    struct pd_error err;
    fake("fake_nccl_set_version", &set_version);
    set_version(21200);
    cr_assert_eq(run(2, refused_main, NULL, &err), PD_UNSUPPORTED);
    cr_assert(strstr(err.message, "is version 21200: NCCL 2.19 or later is needed"), "%s", err.message);
}

/* ---- what goes wrong ---- */

struct storm {
    bool is_collective;
    uint32_t victim;
    _Atomic uint32_t told;
    char says[160];
};

static pd_status storm_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct storm *storm = context;
    struct rank r;
    uint64_t wrong;
    PD_TRY(rank_open(control, &r, err));
    pd_status st;
    if (control->rank == storm->victim) {
        st = storm->is_collective ? collectives(&r, r.comm, 3, 20, &wrong, err) : traffic(&r, r.comm, 3, 20, err);
        if (!st) st = pd_error_set(err, PD_IO, PD_WHERE, 0, "the disk of this rank is gone");
        pd_comm_abort(r.comm);
    } else {
        st = storm->is_collective ? collectives(&r, r.comm, 3, 10000, &wrong, err) : traffic(&r, r.comm, 3, 100000, err);
        if (st == PD_PEER_LOST && err->message[0]) storm->told++;
    }
    rank_close(&r);
    return st;
}

/* Streams wait for a peer that never comes: nobody hangs, and the cause is told. */
Test(nccl, a_rank_that_fails_ends_what_others_wait_for)
{
    for (uint32_t victim = 0; victim < 6; victim++) {
        struct storm storm = {.victim = victim % 3, .is_collective = victim >= 3};
        struct pd_error err;
        const double began = seconds_now();
        cr_assert_eq(run(3, storm_main, &storm, &err), PD_IO, "%s", err.message);
        cr_assert_eq(storm.told, 2);
        cr_assert_lt(seconds_now() - began, SOON_SECONDS);
    }
}

/* Each rank has three communicators of one family, all with operations that no peer comes to. */
static pd_status family_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct rank r;
    struct pd_comm *part, *links;
    (void)context;
    PD_TRY(rank_open(control, &r, err));
    PD_TRY(pd_comm_split(r.comm, 0, control->rank, &part, err));
    PD_TRY(pd_comm_split_links(r.comm, 0, control->rank, &links, err));
    PD_TRY(traffic(&r, r.comm, 3, 5, err));
    pd_status st = PD_OK;
    if (control->rank) {
        st = pd_error_set(err, PD_IO, PD_WHERE, 0, "the disk of this rank is gone");
        pd_comm_abort(r.comm);
    } else {
        st = traffic(&r, part, 4, 100000, err);
    }
    pd_comm_free(links);
    pd_comm_free(part);
    rank_close(&r);
    return st;
}

/* One by one they are what NCCL's own issues call a deadlock. */
Test(nccl, members_of_a_family_are_aborted_as_one_group)
{
    int (*aborts)(void), (*lone_aborts)(void);
    struct pd_error err;
    cr_assert_eq(run(2, family_main, NULL, &err), PD_IO, "%s", err.message);
    fake("fake_nccl_aborts", &aborts);
    fake("fake_nccl_lone_aborts", &lone_aborts);
    cr_assert_eq(aborts(), 6);
    cr_assert_eq(lone_aborts(), 0, "%d of %d aborts outside of a group", lone_aborts(), aborts());
}

static pd_status failing_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct rank r;
    (void)context;
    PD_TRY(rank_open(control, &r, err));
    pd_status st = traffic(&r, r.comm, 3, 100000, err);
    rank_close(&r);
    return st;
}

Test(nccl, a_group_that_fails_is_the_familys_failure)
{
    void (*fail_group)(int, int);
    struct pd_error err;
    fake("fake_nccl_fail_group", &fail_group);
    fail_group(9, 3);
    cr_assert_eq(run(3, failing_main, NULL, &err), PD_DEVICE_LOST, "%s", err.message);
    cr_assert(strstr(err.message, "a group of sends and receives: internal error; with NCCL_DEBUG=WARN in the "), "%s",
              err.message);
}

Test(nccl, advice_is_given_once)
{
    void (*fail_group)(int, int);
    struct pd_error err;
    fake("fake_nccl_fail_group", &fail_group);
    fail_group(9, 1);
    cr_assert_eq(run(3, failing_main, NULL, &err), PD_DEVICE_LOST, "%s", err.message);
    const char *first = strstr(err.message, "NCCL_DEBUG");
    cr_assert(first && !strstr(first + 1, "NCCL_DEBUG"), "%s", err.message);
}

static pd_status quiet_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct rank r;
    (void)context;
    PD_TRY(rank_open(control, &r, err));
    PD_TRY(traffic(&r, r.comm, 3, 1, err)); /* they are connected */
    uint64_t in = 0;
    struct pd_comm_piece recv = {.peer = 1, .data = &in, .bytes = 8};
    struct pd_comm_op op = {.recvs = &recv, .recv_count = control->rank == 0};
    pd_status st = pd_comm_start(r.comm, &op, err);
    if (!st) st = pd_comm_wait(r.comm, &op, err);
    /* The host waits for the device: this is where a rank would hang. */
    if (!st) st = pd_dev_stream_sync(&r.dev, r.compute, err);
    while (!st && control->rank > 0 && pd_comm_look(control, err) == PD_OK)
        usleep(1000);
    if (!st) st = pd_comm_barrier(r.comm, err);
    rank_close(&r);
    return st;
}

Test(nccl, what_nccl_says_of_itself_is_noticed)
{
    void (*set_async)(int);
    struct pd_error err;
    fake("fake_nccl_set_async", &set_async);
    set_async(6);
    cr_assert_eq(run(2, quiet_main, NULL, &err), PD_PEER_LOST, "%s", err.message);
    cr_assert(strstr(err.message, "remote process exited"), "%s", err.message);
    cr_assert_not(strstr(err.message, "NCCL_DEBUG"), "a peer's death has a cause of its own: %s", err.message);
}

/* ---- one caller a communicator ---- */

static void *start_one(void *comm)
{
    static uint64_t out;
    struct pd_comm_piece send = {.peer = 1, .data = &out, .bytes = 8};
    struct pd_comm_op op = {.sends = &send, .send_count = 1};
    struct pd_error err;
    if (pd_comm_start(comm, &op, &err) == PD_OK && pd_comm_wait(comm, &op, &err) == PD_OK) return NULL;
    return comm;
}

/* Rank 1 does not come, so the first of the two is still launching when the second begins, whichever that is. */
static pd_status two_callers_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct rank r;
    pthread_t other;
    (void)context;
    PD_TRY(rank_open(control, &r, err));
    if (control->rank == 0 && pthread_create(&other, NULL, start_one, r.comm) == 0) {
        start_one(r.comm);
        pthread_join(other, NULL);
    }
    while (control->rank > 0 && pd_comm_look(control, err) == PD_OK)
        usleep(1000);
    rank_close(&r);
    return PD_PEER_LOST;
}

Test(nccl, two_launches_at_once_are_caught, .signal = SIGABRT)
{
    struct pd_error err = {0};
    (void)!run(2, two_callers_main, NULL, &err);
}
