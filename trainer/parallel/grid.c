#include "trainer/parallel/grid.h"

#include "trainer/comm/nccl.h"

#include <stddef.h>

/* The peers of this rank in one communicator of the grid. Ranks of equal colour meet; a rank without peers has its own
 * colour. */
struct meeting {
    bool is_on, is_link;
    uint32_t color, key, size;
    size_t at; /* member of the grid */
};
#define AT(member) offsetof(struct pd_grid, member)

enum {
    SHARD,
    REPLICAS,
    GATHERS,
    TP,
    SP,
    EXPERTS,
    EXPERT_SHARD,
    EXPERT_GATHERS,
    EXPERT_REPLICAS,
    FORWARD_A,
    FORWARD_B,
    FORWARD_C,
    BACKWARD_A,
    BACKWARD_B,
    BACKWARD_C,
    MIRROR,
    MEETING_COUNT
};

/* The kind of the link from pipeline rank s to s + 1: the parity of s, so that a rank has one link of a kind. The link from
 * the last to the first is a third kind, since with an odd number it meets both parities. */
static uint32_t link_kind(const struct pd_layout *layout, uint32_t from)
{
    return from + 1 == layout->pp ? 2 : from % 2;
}

static bool has_link(const struct pd_layout *layout, uint32_t from)
{
    return layout->pp > 1 && (from + 1 < layout->pp || layout->interleave > 1);
}

/* The link of a given kind that ends at this place, if any. */
static struct meeting link_meeting(const struct pd_layout *layout, struct pd_rank_place place, uint32_t kind,
                                   bool is_backward)
{
    const uint32_t before = (place.pp + layout->pp - 1) % layout->pp;
    const bool is_after = has_link(layout, place.pp) && link_kind(layout, place.pp) == kind,
               is_sender = is_after != is_backward;
    struct meeting m = {.is_on = is_after || (has_link(layout, before) && link_kind(layout, before) == kind),
                        .is_link = true,
                        .key = is_sender ? 0 : 1,
                        .size = 2};
    if (is_backward)
        m.at = is_sender ? AT(backward_out) : AT(backward_in);
    else
        m.at = is_sender ? AT(forward_out) : AT(forward_in);
    if (!is_after) place.pp = before;
    m.color = pd_layout_rank(layout, place);
    return m;
}

/* The rank with data index q, otherwise at this place. */
static uint32_t data_rank_at(const struct pd_layout *layout, struct pd_rank_place place, uint32_t q)
{
    place.dp = q / layout->sp;
    place.sp = q % layout->sp;
    return pd_layout_rank(layout, place);
}

/* Communicators of experts: who sends whom tokens, and who shares an expert. */
static struct meeting expert_meeting(const struct pd_layout *layout, uint32_t rank, uint32_t which)
{
    const struct pd_rank_place place = pd_layout_place(layout, rank);
    const uint32_t ep = pd_layout_ep(layout), q = place.dp * layout->sp + place.sp, parts = layout->zero_shard;
    const bool is_whole = layout->zero_stage == 0;
    if (which == EXPERTS)
        return (struct meeting){ep > 1, false, data_rank_at(layout, place, q - q % ep), rank, ep, AT(experts)};
    if (which == EXPERT_REPLICAS)
        return (struct meeting){.is_on = ep > 1 && is_whole && layout->dp * layout->sp > ep,
                                .color = data_rank_at(layout, place, q % ep),
                                .key = rank,
                                .size = layout->dp * layout->sp / ep,
                                .at = AT(expert_replicas)};
    return (struct meeting){.is_on = ep > 1 && !is_whole && parts > ep,
                            .color = data_rank_at(layout, place, q - q % parts + q % ep),
                            .key = rank,
                            .size = parts / ep,
                            .at = which == EXPERT_GATHERS ? AT(expert_gathers) : AT(expert_shard)};
}

static struct meeting meeting_of(const struct pd_layout *layout, uint32_t rank, uint32_t which)
{
    const uint32_t world = pd_layout_world(layout), parts = layout->zero_stage ? layout->zero_shard : 1;
    const struct pd_rank_place place = pd_layout_place(layout, rank);
    const uint32_t q = place.dp * layout->sp + place.sp, copies = layout->dp * layout->sp / parts;
    const bool has_mirror = layout->pp > 1 && (place.pp == 0 || place.pp + 1 == layout->pp);
    struct pd_rank_place first = place;
    switch (which) {
    case SHARD:
    case GATHERS:
        return (struct meeting){.is_on = parts > 1 && (parts < world || which == GATHERS),
                                .color = data_rank_at(layout, place, q - q % parts),
                                .key = rank,
                                .size = parts,
                                .at = which == GATHERS ? AT(gathers) : AT(shard)};
    case REPLICAS:
        return (struct meeting){.is_on = copies > 1 && copies < world,
                                .color = data_rank_at(layout, place, q % parts),
                                .key = rank,
                                .size = copies,
                                .at = AT(replicas)};
    case TP:
        first.tp = 0;
        return (struct meeting){layout->tp > 1, false, pd_layout_rank(layout, first), rank, layout->tp, AT(tp)};
    case SP:
        first.sp = 0;
        return (struct meeting){layout->sp > 1, false, pd_layout_rank(layout, first), rank, layout->sp, AT(sp)};
    case MIRROR:
        first.pp = 0;
        return (struct meeting){has_mirror, true, pd_layout_rank(layout, first), rank, 2, AT(mirror)};
    case EXPERTS:
    case EXPERT_SHARD:
    case EXPERT_GATHERS:
    case EXPERT_REPLICAS:
        return expert_meeting(layout, rank, which);
    default:
        return which < BACKWARD_A ? link_meeting(layout, place, which - FORWARD_A, false)
                                  : link_meeting(layout, place, which - BACKWARD_A, true);
    }
}

/* No rank has peers in it: no agreement is needed. */
static bool is_nowhere(const struct pd_layout *layout, uint32_t which)
{
    struct pd_rank_place place = {0};
    for (; place.pp < layout->pp; place.pp++) /* what one rank of a stage has, all have */
        if (meeting_of(layout, pd_layout_rank(layout, place), which).is_on) return false;
    return true;
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
        *(struct pd_comm **)((char *)grid + m.at) = comm;
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
    struct pd_comm *own[] = {grid->gathers,         grid->tp,           grid->sp,
                             grid->experts,         grid->expert_shard, grid->expert_gathers,
                             grid->expert_replicas, grid->forward_in,   grid->forward_out,
                             grid->backward_in,     grid->backward_out, grid->mirror};
    if (grid->shard != grid->comm) pd_comm_free(grid->shard);
    if (grid->replicas != grid->comm) pd_comm_free(grid->replicas);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        pd_comm_free(own[i]);
    *grid = (struct pd_grid){0};
}

struct pd_grid_memory pd_grid_memory(const struct pd_layout *layout, uint32_t rank, bool is_processes)
{
    const uint32_t world = pd_layout_world(layout);
    struct pd_grid_memory m = {0};
    if (world == 1) return m;
    m.bytes = pd_comm_bytes(world, is_processes);
    /* Nothing uses the world's NCCL if not all ranks share state. */
    m.nccl_bytes = layout->dp * layout->sp == world ? pd_comm_nccl_bytes(world, false) : 0;
    for (uint32_t which = 0; which < MEETING_COUNT; which++) {
        const struct meeting one = meeting_of(layout, rank, which);
        if (!one.is_on) continue;
        m.bytes += pd_comm_bytes(one.size, is_processes);
        m.nccl_bytes += pd_comm_nccl_bytes(one.size, one.is_link);
    }
    return m;
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
