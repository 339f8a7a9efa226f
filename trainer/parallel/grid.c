#include "trainer/parallel/grid.h"

#include "trainer/comm/nccl.h"

/* One communicator of the grid: whom this rank meets there. Ranks of equal colour meet; a rank that meets nobody has a
 * colour of its own. */
struct meeting {
    bool is_on, is_link;
    uint32_t color, key, size;
};

enum { SHARD, REPLICAS, GATHERS, TP, SP, FORWARD_A, FORWARD_B, FORWARD_C, BACKWARD_A, BACKWARD_B, BACKWARD_C, MIRROR,
       MEETING_COUNT };

/* Links from pipeline rank s to s + 1 by the parity of s, so that a rank is in one of a kind; the link from the last to the
 * first is of a third kind, since with an odd number of them it meets both parities. */
static uint32_t link_kind(const struct pd_layout *layout, uint32_t from)
{
    return from + 1 == layout->pp ? 2 : from % 2;
}

static bool has_link(const struct pd_layout *layout, uint32_t from)
{
    return layout->pp > 1 && (from + 1 < layout->pp || layout->interleave > 1);
}

/* The link after `from` as seen by this place, which is one of its ends. */
static struct meeting link_meeting(const struct pd_layout *layout, struct pd_rank_place place, uint32_t from,
                                   bool is_backward)
{
    bool is_sender = (place.pp == from) != is_backward;
    place.pp = from;
    return (struct meeting){true, true, pd_layout_rank(layout, place), is_sender ? 0 : 1, 2};
}

/* The rank of data rank q, beside this place. */
static uint32_t data_rank_at(const struct pd_layout *layout, struct pd_rank_place place, uint32_t q)
{
    place.dp = q / layout->sp;
    place.sp = q % layout->sp;
    return pd_layout_rank(layout, place);
}

static struct meeting meeting_of(const struct pd_layout *layout, uint32_t rank, uint32_t which)
{
    const uint32_t world = pd_layout_world(layout), parts = layout->zero_stage ? layout->zero_shard : 1;
    const struct pd_rank_place place = pd_layout_place(layout, rank);
    const uint32_t q = place.dp * layout->sp + place.sp, copies = layout->dp * layout->sp / parts;
    struct pd_rank_place first = place;
    struct meeting m = {.color = world + rank, .size = 1};
    switch (which) {
    case SHARD:
    case GATHERS:
        m = (struct meeting){.is_on = parts > 1 && (parts < world || which == GATHERS),
                             .color = data_rank_at(layout, place, q - q % parts),
                             .key = rank,
                             .size = parts};
        break;
    case REPLICAS:
        m = (struct meeting){.is_on = copies > 1 && copies < world,
                             .color = data_rank_at(layout, place, q % parts),
                             .key = rank,
                             .size = copies};
        break;
    case TP:
        first.tp = 0;
        m = (struct meeting){layout->tp > 1, false, pd_layout_rank(layout, first), rank, layout->tp};
        break;
    case SP:
        first.sp = 0;
        m = (struct meeting){layout->sp > 1, false, pd_layout_rank(layout, first), rank, layout->sp};
        break;
    case MIRROR:
        first.pp = 0;
        if (layout->pp > 1 && (place.pp == 0 || place.pp + 1 == layout->pp))
            m = (struct meeting){true, true, pd_layout_rank(layout, first), rank, 2};
        break;
    default: {
        const bool is_backward = which >= BACKWARD_A;
        const uint32_t kind = which - (is_backward ? BACKWARD_A : FORWARD_A);
        const uint32_t before = (place.pp + layout->pp - 1) % layout->pp;
        if (has_link(layout, place.pp) && link_kind(layout, place.pp) == kind)
            m = link_meeting(layout, place, place.pp, is_backward);
        else if (has_link(layout, before) && link_kind(layout, before) == kind)
            m = link_meeting(layout, place, before, is_backward);
    }
    }
    return m;
}

/* Nobody on any rank: no agreement is needed. */
static bool is_nowhere(const struct pd_layout *layout, uint32_t which)
{
    struct pd_rank_place place = {0};
    for (; place.pp < layout->pp; place.pp++) /* what is there for one rank of a stage is there for all */
        if (meeting_of(layout, pd_layout_rank(layout, place), which).is_on) return false;
    return true;
}

/* Which member of the grid a meeting is. */
static struct pd_comm **place_of(struct pd_grid *grid, uint32_t which)
{
    struct pd_comm **const by_itself[MEETING_COUNT] = {
        [SHARD] = &grid->shard, [REPLICAS] = &grid->replicas, [GATHERS] = &grid->gathers,
        [TP] = &grid->tp,       [SP] = &grid->sp,             [MIRROR] = &grid->mirror};
    const bool is_backward = which >= BACKWARD_A;
    const uint32_t kind = which - (is_backward ? BACKWARD_A : FORWARD_A);
    if (by_itself[which]) return by_itself[which];
    const bool is_after = has_link(&grid->layout, grid->place.pp) && link_kind(&grid->layout, grid->place.pp) == kind;
    if (is_backward) return is_after ? &grid->backward_in : &grid->backward_out;
    return is_after ? &grid->forward_out : &grid->forward_in;
}

static pd_status meet(struct pd_grid *grid, uint32_t which, struct pd_error *err)
{
    const struct meeting m = meeting_of(&grid->layout, grid->rank, which);
    struct pd_comm *comm;
    if (is_nowhere(&grid->layout, which)) return PD_OK;
    const uint32_t color = m.is_on ? m.color : grid->world + grid->rank;
    PD_TRY((which >= FORWARD_A ? pd_comm_split_links : pd_comm_split)(grid->comm, color, m.key, &comm, err));
    PD_CHECK(comm->size == (m.is_on ? m.size : 1));
    if (m.is_on)
        *place_of(grid, which) = comm;
    else
        pd_comm_free(comm);
    return PD_OK;
}

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
    pd_status st = PD_OK;
    if (comm) {
        PD_CHECK(comm->size == g.world && comm->rank == rank);
        const uint32_t parts = layout->zero_stage ? layout->zero_shard : 1;
        if (g.world > 1 && parts == g.world) g.shard = comm;
        if (g.world > 1 && parts == 1 && layout->dp * layout->sp == g.world) g.replicas = comm;
        for (uint32_t which = 0; which < MEETING_COUNT && !st; which++)
            st = meet(&g, which, err);
    }
    if (st) {
        pd_grid_deinit(&g);
        return st;
    }
    *ret_grid = g;
    return PD_OK;
}

void pd_grid_deinit(struct pd_grid *grid)
{
    struct pd_comm *own[] = {grid->gathers,     grid->tp,          grid->sp,           grid->forward_in,
                             grid->forward_out, grid->backward_in, grid->backward_out, grid->mirror};
    if (grid->shard != grid->comm) pd_comm_free(grid->shard);
    if (grid->replicas != grid->comm) pd_comm_free(grid->replicas);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        pd_comm_free(own[i]);
    *grid = (struct pd_grid){0};
}

void pd_grid_abort(struct pd_grid *grid)
{
    if (grid->comm) pd_comm_abort(grid->comm);
}

uint64_t pd_grid_bytes(const struct pd_layout *layout, uint32_t rank, bool is_processes)
{
    const uint32_t world = pd_layout_world(layout);
    uint64_t bytes = world > 1 ? pd_comm_bytes(world, is_processes) : 0;
    for (uint32_t which = 0; which < MEETING_COUNT; which++) {
        const struct meeting m = meeting_of(layout, rank, which);
        if (m.is_on) bytes += pd_comm_bytes(m.size, is_processes);
    }
    return bytes;
}

/* Nothing goes over the world's where other ranks share state. */
uint64_t pd_grid_nccl_bytes(const struct pd_layout *layout, uint32_t rank)
{
    const uint32_t world = pd_layout_world(layout);
    if (world == 1) return 0;
    uint64_t bytes = layout->dp * layout->sp == world ? pd_comm_nccl_bytes(world, false) : 0;
    for (uint32_t which = 0; which < MEETING_COUNT; which++) {
        const struct meeting m = meeting_of(layout, rank, which);
        if (m.is_on) bytes += pd_comm_nccl_bytes(m.size, m.is_link);
    }
    return bytes;
}

struct pd_stage pd_grid_stage(const struct pd_layout *layout, const struct pd_model *model, uint32_t pp_rank, uint32_t chunk)
{
    const uint32_t stage = chunk * layout->pp + pp_rank, last = model->unit_count - 1;
    uint32_t begin = layout->first_unit[stage];
    uint32_t end = stage + 1 < layout->stage_count ? layout->first_unit[stage + 1] : model->unit_count;
    struct pd_stage s = {.has_embedding = begin == 0, .has_head = end == model->unit_count};
    if (begin == 0) begin = 1;
    if (end > last) end = last;
    s.first_block = begin - 1;
    s.block_count = end > begin ? end - begin : 0;
    return s;
}
