/* The communicators of a grid by NCCL's caller, over a library that stands in: kernels hold multiprocessors until they end.
 */
#include "tests/helpers/grid_exercise.h"
#include "tests/helpers/nccl_rank.h"

#include <criterion/criterion.h>

#define SOON_SECONDS 300.0 /* on any machine; the time limit is 600 */

/* Eight ranks with communicators in every direction. */
static void layout_of(struct pd_layout *ret_layout)
{
    PD_CHECK(grid_case(8, 0, ret_layout));
    ret_layout->dp = 1, ret_layout->tp = 2, ret_layout->pp = 2, ret_layout->sp = 2, ret_layout->zero_shard = 2;
    ret_layout->interleave = 2, ret_layout->stage_count = 4;
    for (uint16_t s = 0; s < 4; s++)
        ret_layout->first_unit[s] = (uint16_t)(s ? s + 1 : 0);
}

/* One operation on each, begun in the order of links or the other way round. */
static pd_status cross(struct rank *r, const struct pd_grid *grid, struct grid_link *links, uint64_t round, bool is_reversed,
                       struct pd_error *err)
{
    for (uint32_t i = 0; i < GRID_LINKS; i++) {
        const uint32_t at = is_reversed ? GRID_LINKS - 1 - i : i;
        if (links[at].comm) PD_TRY(grid_link_start(&links[at], grid_number(at), round, err));
    }
    for (uint32_t i = 0; i < GRID_LINKS; i++)
        if (links[i].comm) PD_TRY(pd_comm_wait(links[i].comm, &links[i].op, err));
    PD_TRY(pd_dev_stream_sync(&r->dev, r->compute, err));
    for (uint32_t i = 0; i < GRID_LINKS; i++)
        for (uint32_t at = 0; links[i].comm && at < GRID_PIECE; at++)
            if (links[i].in[at] != grid_word(grid_number(i), links[i].members[links[i].recv.peer], grid->rank, round, at))
                GRID_FAIL(grid, &links[i], "wrong bytes");
    return PD_OK;
}

static pd_status crossing_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct rank r;
    struct pd_layout layout;
    struct pd_grid grid;
    struct grid_link *links = calloc(GRID_LINKS, sizeof *links);
    (void)context;
    layout_of(&layout);
    PD_TRY(rank_open(control, &r, err));
    PD_TRY(pd_grid_init(&layout, control->rank, r.comm, &grid, err));
    grid_links(&grid, links);
    for (uint64_t round = 0; round < 20; round++) /* in the first those are connected whom no link is */
        PD_TRY(cross(&r, &grid, links, round, round && __builtin_popcount(control->rank) % 2, err));
    pd_grid_deinit(&grid);
    rank_close(&r);
    free(links);
    return PD_OK;
}

/* Whoever waits for room that another communicator's kernel has, on another rank, waits for ever. */
static void expect_room(uint32_t multiprocessors)
{
    struct pd_error err;
    void (*set_room)(int);
    fake("fake_nccl_set_room", &set_room);
    set_room((int)multiprocessors);
    rank_multiprocessors = multiprocessors;
    cr_assert_eq(run(8, crossing_main, NULL, &err), PD_OK, "%s (%s)", err.message, err.where);
}

Test(grid_nccl, kernels_of_all_communicators_find_room_at_once, .timeout = SOON_SECONDS)
{
    expect_room(108); /* an A100 */
}

Test(grid_nccl, and_on_a_smaller_device, .timeout = SOON_SECONDS)
{
    expect_room(26); /* a quarter of one */
}
