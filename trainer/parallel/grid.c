#include "trainer/parallel/grid.h"

pd_status pd_grid_init(const struct pd_layout *layout, uint32_t rank, struct pd_comm *comm, struct pd_grid *ret_grid,
                       struct pd_error *err)
{
    PD_TRY(pd_layout_check(layout, err));
    struct pd_grid g = {.layout = *layout, .rank = rank, .comm = comm};
    g.world = pd_layout_world(layout);
    g.place = pd_layout_place(layout, rank);
    g.partition = (struct pd_partition){.tp = layout->tp,
                                        .tp_rank = g.place.tp,
                                        .virtual_tp = layout->virtual_tp,
                                        .sp = layout->sp,
                                        .sp_rank = g.place.sp,
                                        .virtual_sp = layout->virtual_sp};
    g.stage = comm;
    *ret_grid = g;
    return PD_OK;
}

void pd_grid_deinit(struct pd_grid *grid)
{
    *grid = (struct pd_grid){0};
}

void pd_grid_abort(struct pd_grid *grid)
{
    if (grid->comm) pd_comm_abort(grid->comm);
}
