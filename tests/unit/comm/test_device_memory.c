/* Ranks as threads whose pieces lie in memory that the host cannot touch but through their hook. */
#include "tests/helpers/comm_exercise.h"

#include <criterion/criterion.h>

static struct device_memory far = DEVICE_MEMORY_INIT;

static pd_status everything_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    const struct pd_comm_memory hook = far_hook(&far);
    pd_comm_use_memory(comm, &hook);
    PD_TRY(exercise_exchanges(comm, *(uint64_t *)context, 40, 40000, err));
    PD_TRY(exercise_exchanges(comm, *(uint64_t *)context, 2, 2000000, err));
    PD_TRY(exercise_collectives(comm, *(uint64_t *)context, 20, 40000, err));
    PD_TRY(exercise_reductions(comm, err));
    PD_TRY(exercise_broadcasts(comm, err));
    PD_TRY(exercise_group(comm, err));
    return exercise_splits(comm, 42, err);
}

Test(far, exchanges_arrive_and_values_stay_with_the_host)
{
    const uint32_t worlds[] = {1, 2, 5, 8};
    for (uint64_t w = 0; w < 4; w++) {
        struct pd_error err;
        uint64_t seed = 11 + w;
        cr_assert_eq(pd_comm_run_local(worlds[w], 1, everything_main, &seed, &err), PD_OK, "%s", err.message);
    }
    cr_assert_gt(far.readies, 500);
}

enum { CUTS = 8, PIECE = 64 };

struct cuts {
    uint64_t sizes[2][CUTS]; /* of rank 0's sends, of rank 1's receives */
    uint32_t counts[2];
    bool is_apart; /* pieces do not touch */
};

static pd_status cuts_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    const struct cuts *cuts = context;
    const struct pd_comm_memory hook = far_hook(&far);
    struct pd_comm_piece pieces[CUTS];
    uint8_t *memory = far_new(&far, 4096), *at = memory;
    pd_comm_use_memory(comm, &hook);
    for (uint32_t i = 0; i < cuts->counts[comm->rank]; i++) {
        pieces[i] = (struct pd_comm_piece){1 - comm->rank, at, cuts->sizes[comm->rank][i]};
        at += pieces[i].bytes + (cuts->is_apart ? PIECE : 0);
    }
    const uint32_t count = cuts->counts[comm->rank];
    struct pd_comm_op op = {.sends = pieces, .recvs = pieces};
    *(comm->rank == 0 ? &op.send_count : &op.recv_count) = count;
    pd_status st = pd_comm_start(comm, &op, err);
    if (!st) st = pd_comm_wait(comm, &op, err);
    far_delete(&far, memory);
    return st;
}

/* A copy to a device costs the same however short it is. */
Test(far, pieces_that_touch_on_both_sides_are_one_copy)
{
    struct cuts cuts = {.sizes = {{8, 8, 0, 16, 32}, {8, 8, 0, 16, 32}}, .counts = {5, 5}};
    struct pd_error err;
    cr_assert_eq(pd_comm_run_local(2, 1, cuts_main, &cuts, &err), PD_OK, "%s", err.message);
    cr_assert_eq(far.copies, 2, "%lu copies", (unsigned long)far.copies);
    cuts.is_apart = true;
    cr_assert_eq(pd_comm_run_local(2, 1, cuts_main, &cuts, &err), PD_OK, "%s", err.message);
    cr_assert_eq(far.copies, 10, "%lu copies", (unsigned long)far.copies);
}

Test(far, sides_that_cut_differently_are_told)
{
    struct cuts cuts = {.sizes = {{8, 24, 32}, {8, 32, 24}}, .counts = {3, 3}};
    struct pd_error err;
    cr_assert_eq(pd_comm_run_local(2, 1, cuts_main, &cuts, &err), PD_BUG);
    cr_assert_str_eq(err.message,
                     "rank 1: operation 1: rank 0 cuts its 64 bytes otherwise than rank 1, which receives them");
}

static pd_status lost_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    const struct pd_comm_memory hook = far_hook(&far);
    (void)context;
    pd_comm_use_memory(comm, &hook);
    return comm->size % 2 ? exercise_collectives(comm, 3, 1000000, 4000, err)
                          : exercise_exchanges(comm, 3, 1000000, 60000, err);
}

/* The error of the device is the cause, whatever was in flight; all memory is given back meanwhile. */
Test(far, a_copy_that_fails_is_the_ranks_failure)
{
    for (far.fail_at = 1; far.fail_at < 400; far.fail_at += 57) {
        struct pd_error err;
        far.copies = 0;
        cr_assert_eq(pd_comm_run_local(far.fail_at % 2 ? 4 : 3, 1, lost_main, NULL, &err), PD_DEVICE_LOST, "%s",
                     err.message);
        cr_assert(strstr(err.message, "GPU 0: a copy that fails as planned"));
        cr_assert_eq(far.count, 0, "%u regions are left", far.count);
    }
}
