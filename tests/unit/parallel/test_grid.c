/* Places, stages and communicators of every layout of 1 to 8 ranks, as threads of one process. */
#include "tests/helpers/comm_exercise.h"
#include "tests/helpers/families.h"
#include "tests/helpers/grid_exercise.h"
#include "trainer/comm/nccl.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#define SOON_SECONDS 300.0 /* on any machine; the time limit is 600 */

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

static pd_status exercise_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    (void)context;
    return grid_exercise(comm, err);
}

Test(grid, every_layout_has_its_communicators)
{
    for (uint32_t world = 1; world <= 8; world++) {
        struct pd_error err;
        expect_ok(pd_comm_run_local(world, 1, exercise_main, NULL, &err), &err);
    }
}

struct failure {
    struct pd_layout layout;
    uint32_t victim, when;
    _Atomic uint32_t told;
};

/* The victim fails after some rounds. Nobody uses the world's communicator, so that most ranks learn of it from neighbours
 * that gave up, over communicators on which the victim never was. */
static pd_status failure_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    struct failure *failure = context;
    struct pd_grid grid;
    struct grid_link *links = calloc(GRID_LINKS, sizeof *links);
    PD_TRY(pd_grid_init(&failure->layout, comm->rank, comm, &grid, err));
    grid_links(&grid, links);
    if (links[0].comm == comm) links[0].comm = NULL; /* the stage */
    const bool is_victim = comm->rank == failure->victim;
    struct pd_error lost = {.message = ""};
    pd_status st = grid_traffic(&grid, links, is_victim ? failure->when : UINT64_MAX, &lost);
    char says[32];
    snprintf(says, sizeof says, "rank %u ", failure->victim);
    if (!is_victim && st == PD_PEER_LOST && strstr(lost.message, says)) atomic_fetch_add(&failure->told, 1);
    if (is_victim) pd_comm_abort(grid.comm);
    pd_grid_deinit(&grid);
    free(links);
    if (is_victim) PD_FAIL(err, PD_IO, "the disk of this rank is gone");
    PD_FAIL(err, st, "%s", lost.message);
}

Test(grid, who_fails_is_named_by_everybody)
{
    for (uint32_t world = 2; world <= 8; world++) {
        struct failure failure = {0};
        for (uint32_t number = 0; grid_case(world, number, &failure.layout); number++) {
            const struct pd_layout *l = &failure.layout;
            /* Data ranks meet in their stage only, which is the world when there is one. */
            if (l->dp > 1 && l->pp == 1) continue;
            failure.victim = (uint32_t)(exercise_mix4(1, world, number, 0) % world);
            failure.when = (uint32_t)(exercise_mix4(2, world, number, 0) % 30);
            atomic_store(&failure.told, 0);
            struct pd_error err;
            const double began = seconds_now();
            cr_assert_eq(pd_comm_run_local(world, 1, failure_main, &failure, &err), PD_IO, "%s", err.message);
            cr_assert_eq(atomic_load(&failure.told), world - 1, "dp %u tp %u pp %u sp %u: %u of %u name rank %u", l->dp,
                         l->tp, l->pp, l->sp, atomic_load(&failure.told), world - 1, failure.victim);
            cr_assert_lt(seconds_now() - began, SOON_SECONDS);
        }
    }
}

static uint32_t entries_of(const char *path)
{
    DIR *dir = opendir(path);
    uint32_t count = 0;
    while (dir && readdir(dir))
        count++;
    if (dir) closedir(dir);
    return count;
}

/* A thread that was joined may be listed a moment longer: the kernel wakes who waits for it before it takes it off. */
static uint32_t tasks_left(uint32_t wanted)
{
    const double began = seconds_now();
    uint32_t count;
    while ((count = entries_of("/proc/self/task")) > wanted && seconds_now() - began < SOON_SECONDS)
        sched_yield();
    return count;
}

/* Eight ranks with communicators in every direction: no descriptors for threads, a thread each, all given back. */
static pd_status resources_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    struct pd_layout layout;
    struct pd_grid grid;
    uint32_t *counts = context; /* descriptors before, with; threads before, with, after */
    PD_CHECK(grid_case(8, 0, &layout));
    layout.dp = 1, layout.tp = 2, layout.pp = 2, layout.sp = 2, layout.zero_shard = 2;
    layout.interleave = 2, layout.stage_count = 4;
    for (uint16_t s = 0; s < 4; s++)
        layout.first_unit[s] = (uint16_t)(s ? s + 1 : 0);
    PD_TRY(pd_comm_barrier(comm, err));
    if (comm->rank == 0) counts[0] = entries_of("/proc/self/fd"), counts[2] = entries_of("/proc/self/task");
    PD_TRY(pd_comm_barrier(comm, err));
    PD_TRY(pd_grid_init(&layout, comm->rank, comm, &grid, err));
    PD_TRY(pd_comm_barrier(comm, err));
    if (comm->rank == 0) counts[1] = entries_of("/proc/self/fd"), counts[3] = entries_of("/proc/self/task");
    PD_TRY(pd_comm_barrier(comm, err));
    pd_grid_deinit(&grid);
    PD_TRY(pd_comm_barrier(comm, err));
    if (comm->rank == 0) counts[4] = tasks_left(counts[2]);
    return pd_comm_barrier(comm, err);
}

Test(grid, communicators_cost_a_thread_and_no_descriptor)
{
    struct pd_error err;
    uint32_t counts[5] = {0};
    expect_ok(pd_comm_run_local(8, 1, resources_main, counts, &err), &err);
    cr_assert_eq(counts[1], counts[0]);
    cr_assert_eq(counts[3] - counts[2], 8 * 9u, "%u threads", counts[3] - counts[2]);
    cr_assert_eq(counts[4], counts[2]);
}

Test(grid, memory_of_a_place)
{
    struct pd_layout layout;
    pd_layout_init_dp(&layout, 1);
    cr_assert_eq(pd_grid_memory(&layout, 0, true).bytes, 0);
    pd_layout_init_dp(&layout, 2);
    cr_assert_eq(pd_grid_memory(&layout, 1, true).bytes, 2 * pd_comm_bytes(2, true));
    layout.zero_shard = 1;
    cr_assert_eq(pd_grid_memory(&layout, 1, true).bytes, pd_comm_bytes(2, true), "nothing is gathered");
    const uint64_t unit = 1 << 20, small = 64 << 10;
    /* A unit and a half a peer, four peers at most; between threads a room for sums alone. */
    cr_assert(pd_comm_bytes(2, true) >= unit * 3 / 2 && pd_comm_bytes(2, true) < unit * 3 / 2 + small);
    cr_assert(pd_comm_bytes(8, true) >= 6 * unit && pd_comm_bytes(8, true) < 6 * unit + small);
    cr_assert_eq(pd_comm_bytes(8, false), pd_comm_bytes(8, true));
    cr_assert_lt(pd_comm_bytes(16384, true), 12 * unit);
}

static uint64_t nccl_of(uint32_t dp, uint32_t tp, uint32_t pp, uint32_t interleave, uint32_t rank)
{
    struct pd_layout layout;
    pd_layout_init_dp(&layout, dp);
    layout.tp = layout.virtual_tp = tp, layout.pp = pp, layout.interleave = interleave;
    return pd_grid_memory(&layout, rank, true).nccl_bytes;
}

/* With several stages nothing goes over the world's, and it takes nothing. */
Test(grid, what_nccl_takes_of_a_device)
{
    unsetenv("NCCL_BUFFSIZE");
    const uint64_t two = pd_comm_nccl_bytes(2, false), four = pd_comm_nccl_bytes(4, false),
                   link = pd_comm_nccl_bytes(2, true);
    cr_expect_eq(nccl_of(1, 1, 1, 1, 0), 0);
    cr_expect_eq(nccl_of(4, 1, 1, 1, 3), 2 * four, "the world's and its gathers");
    cr_expect_eq(nccl_of(2, 2, 1, 1, 0), 3 * two, "gathers, the tensor's, and who shares its state");
    cr_expect_eq(nccl_of(1, 1, 4, 1, 0), 3 * link, "a link forward, one back, and the other end of a tied embedding");
    cr_expect_eq(nccl_of(1, 1, 4, 1, 1), 4 * link, "links on both sides");
    cr_expect_eq(nccl_of(2, 1, 2, 1, 0), 3 * link + 2 * two, "and who shares its state, twice");
}

Test(grid, stages_take_every_unit_once)
{
    struct pd_model_config config = {.family = PD_FAMILY_LLAMA,
                                     .vocab = 61,
                                     .context = 16,
                                     .layers = 9,
                                     .hidden = 12,
                                     .heads = 3,
                                     .kv_heads = 3,
                                     .head_size = 4,
                                     .ffn = 8};
    struct pd_model *model;
    struct pd_error err;
    expect_ok(pd_model_new(&config, &model, &err), &err);
    for (uint32_t pp = 1; pp <= 4; pp++) {
        for (uint32_t interleave = 1; interleave <= 2; interleave++) {
            struct pd_layout layout;
            pd_layout_init_dp(&layout, 1);
            layout.pp = pp, layout.interleave = interleave, layout.stage_count = pp * interleave;
            for (uint32_t s = 0; s < layout.stage_count; s++)
                layout.first_unit[s] = (uint16_t)(s ? s + 1 : 0);
            uint32_t next = 0;
            for (uint32_t stage = 0; stage < layout.stage_count; stage++) {
                struct pd_stage s = pd_grid_stage(&layout, model, stage % pp, stage / pp);
                cr_assert_eq(s.has_embedding, stage == 0);
                cr_assert_eq(s.has_head, stage + 1 == layout.stage_count);
                cr_assert_eq(s.first_block, next);
                next += s.block_count;
            }
            cr_assert_eq(next, 9);
        }
    }
    pd_model_free(model);
}
