/* What the communicators of a grid must do, as code that runs on each rank: shared by the unit tests (ranks as threads) and
 * by the program that runs under mpirun. A failure returns PD_BUG with the layout and the place. */
#pragma once

#include "trainer/parallel/grid.h"
#include <stdlib.h>
#include <string.h>

/* Degrees that the numerics admit on so many ranks, as case number `number`; false when there are no more. */
static inline bool grid_case(uint32_t world, uint32_t number, struct pd_layout *ret_layout)
{
    for (uint32_t tp = 1; tp <= world; tp *= 2)
        for (uint32_t sp = 1; tp * sp <= world; sp *= 2)
            for (uint32_t pp = 1; tp * sp * pp <= world; pp++)
                for (uint32_t interleave = 1; interleave <= (pp > 1 ? 2u : 1u); interleave++) {
                    if (world % (tp * sp * pp) || number-- > 0) continue;
                    pd_layout_init_dp(ret_layout, world / (tp * sp * pp));
                    ret_layout->tp = tp, ret_layout->sp = sp, ret_layout->pp = pp;
                    ret_layout->virtual_tp = ret_layout->virtual_sp = 8;
                    ret_layout->interleave = interleave;
                    ret_layout->stage_count = pp * interleave;
                    for (uint32_t s = 0; s < ret_layout->stage_count; s++)
                        ret_layout->first_unit[s] = (uint16_t)(s ? s + 1 : 0);
                    return true;
                }
    return false;
}

#define GRID_LINKS 10u
#define GRID_PIECE 700u /* of uint64 */

/* One communicator of a grid and the ranks of the world that must be its members, in order. */
struct grid_link {
    const char *name;
    struct pd_comm *comm;
    uint32_t members[64], count;
    uint64_t out[GRID_PIECE], in[GRID_PIECE];
    struct pd_comm_piece send, recv;
    struct pd_comm_op op;
};

static inline void grid_expect(struct grid_link *link, const char *name, struct pd_comm *comm)
{
    link->name = name;
    link->comm = comm;
    link->count = 0;
}

static inline void grid_member(struct grid_link *link, const struct pd_layout *layout, struct pd_rank_place place)
{
    link->members[link->count++] = pd_layout_rank(layout, place);
}

static inline void grid_expect_pipe(struct grid_link *link, const char *name, struct pd_comm *comm,
                                    const struct pd_grid *grid, uint32_t from, uint32_t to, bool exists)
{
    grid_expect(link, name, comm);
    struct pd_rank_place place = grid->place;
    if (!exists) return;
    place.pp = from;
    grid_member(link, &grid->layout, place);
    place.pp = to;
    grid_member(link, &grid->layout, place);
}

/* The header's words, by walking all ranks. */
static inline void grid_links(const struct pd_grid *grid, struct grid_link *links)
{
    const struct pd_layout *l = &grid->layout;
    const uint32_t me = grid->place.pp, after = (me + 1) % l->pp, before = (me + l->pp - 1) % l->pp;
    const bool wraps = l->pp > 1 && l->interleave > 1;
    grid_expect(&links[0], "shard", grid->shard);
    grid_expect(&links[9], "replicas", grid->replicas);
    grid_expect(&links[1], "tp", grid->tp);
    grid_expect(&links[2], "sp", grid->sp);
    grid_expect(&links[7], "mirror", grid->mirror);
    grid_expect(&links[8], "gathers", grid->gathers);
    const uint32_t parts = l->zero_stage ? l->zero_shard : 1;
    for (uint32_t r = 0; r < grid->world; r++) {
        const struct pd_rank_place p = pd_layout_place(l, r), q = grid->place;
        const uint32_t mine = q.dp * l->sp + q.sp, other = p.dp * l->sp + p.sp;
        const bool is_beside = p.pp == q.pp && p.tp == q.tp;
        if (is_beside && mine / parts == other / parts) grid_member(&links[0], l, p), grid_member(&links[8], l, p);
        if (is_beside && mine % parts == other % parts) grid_member(&links[9], l, p);
        if (p.pp == q.pp && p.dp == q.dp && p.sp == q.sp) grid_member(&links[1], l, p);
        if (p.pp == q.pp && p.dp == q.dp && p.tp == q.tp) grid_member(&links[2], l, p);
        const bool is_end = (p.pp == 0 || p.pp + 1 == l->pp) && (q.pp == 0 || q.pp + 1 == l->pp);
        if (is_end && p.dp == q.dp && p.sp == q.sp && p.tp == q.tp) grid_member(&links[7], l, p);
    }
    grid_expect_pipe(&links[3], "forward_in", grid->forward_in, grid, before, me, wraps || me > 0);
    grid_expect_pipe(&links[4], "forward_out", grid->forward_out, grid, me, after, wraps || me + 1 < l->pp);
    grid_expect_pipe(&links[5], "backward_in", grid->backward_in, grid, after, me, wraps || me + 1 < l->pp);
    grid_expect_pipe(&links[6], "backward_out", grid->backward_out, grid, me, before, wraps || me > 0);
}

static inline uint64_t grid_word(uint32_t link, uint32_t from, uint32_t to, uint64_t round, uint32_t at)
{
    return (((uint64_t)link * 64 + from) * 64 + to) * 1000003 + round * 7919 + at;
}

#define GRID_FAIL(grid, link, text)                                                                                      \
    PD_FAIL(err, PD_BUG, "dp %u tp %u pp %u sp %u interleave %u: rank %u: %s: %s", (grid)->layout.dp, (grid)->layout.tp, \
            (grid)->layout.pp, (grid)->layout.sp, (grid)->layout.interleave, (grid)->rank, (link)->name, text)

static inline pd_status grid_check_members(const struct pd_grid *grid, const struct grid_link *links, struct pd_error *err)
{
    uint64_t bytes = grid->comm->size > 1 ? grid->comm->bytes : 0;
    for (uint32_t i = 0; i < GRID_LINKS; i++) {
        const struct grid_link *link = &links[i];
        if (!link->comm != (link->count < 2)) GRID_FAIL(grid, link, link->comm ? "exists" : "is missing");
        if (!link->comm) continue;
        if (link->comm->size != link->count) GRID_FAIL(grid, link, "has another number of members");
        if (link->members[link->comm->rank] != grid->rank) GRID_FAIL(grid, link, "has this rank at another place");
        if (link->comm != grid->comm) bytes += link->comm->bytes;
    }
    if (bytes != pd_grid_memory(&grid->layout, grid->rank, strcmp(grid->comm->ops->name, "local") != 0).bytes)
        GRID_FAIL(grid, &links[0], "pd_grid_memory is not what was taken");
    return PD_OK;
}

/* Starts a message round the members of a link: to the next of them, from the one before. */
static inline pd_status grid_link_start(struct grid_link *link, uint32_t number, uint64_t round, struct pd_error *err)
{
    struct pd_comm *comm = link->comm;
    const uint32_t to = (comm->rank + 1) % comm->size, from = (comm->rank + comm->size - 1) % comm->size;
    for (uint32_t i = 0; i < GRID_PIECE; i++)
        link->out[i] = grid_word(number, link->members[comm->rank], link->members[to], round, i);
    link->send = (struct pd_comm_piece){.peer = to, .data = link->out, .bytes = sizeof link->out};
    link->recv = (struct pd_comm_piece){.peer = from, .data = link->in, .bytes = sizeof link->in};
    link->op = (struct pd_comm_op){.sends = &link->send, .send_count = 1, .recvs = &link->recv, .recv_count = 1};
    return pd_comm_start(comm, &link->op, err);
}

/* A pipe of one rank is the other's end of it: both count it as the sender's. */
static inline uint32_t grid_number(uint32_t link)
{
    return link == 4 ? 3 : link == 6 ? 5 : link;
}

/* Everything at once on all communicators of the grid, `rounds` times. After a failure the grid is given up. */
static inline pd_status grid_traffic(struct pd_grid *grid, struct grid_link *links, uint64_t rounds, struct pd_error *err)
{
    pd_status st = PD_OK;
    for (uint64_t round = 0; round < rounds && !st; round++) {
        bool is_started[GRID_LINKS] = {false};
        for (uint32_t i = 0; i < GRID_LINKS && !st; i++) {
            if (!links[i].comm) continue;
            st = grid_link_start(&links[i], grid_number(i), round, err);
            is_started[i] = !st;
        }
        if (st) pd_comm_abort(grid->comm);
        for (uint32_t i = 0; i < GRID_LINKS; i++) {
            if (!is_started[i]) continue;
            const pd_status waited = pd_comm_wait(links[i].comm, &links[i].op, st ? NULL : err);
            if (waited && !st) pd_comm_abort(grid->comm);
            if (!st) st = waited;
            for (uint32_t at = 0; !st && at < GRID_PIECE; at++)
                if (links[i].in[at] !=
                    grid_word(grid_number(i), links[i].members[links[i].recv.peer], grid->rank, round, at))
                    GRID_FAIL(grid, &links[i], "wrong bytes");
        }
    }
    return st;
}

/* Every layout of the communicator's size: members, traffic, bytes. */
static inline pd_status grid_exercise(struct pd_comm *comm, struct pd_error *err)
{
    struct pd_layout layout;
    struct grid_link *links = calloc(GRID_LINKS, sizeof *links);
    pd_status st = links ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "links");
    for (uint32_t number = 0; !st && grid_case(comm->size, number, &layout); number++) {
        struct pd_grid grid;
        st = pd_grid_init(&layout, comm->rank, comm, &grid, err);
        if (st) break;
        grid_links(&grid, links);
        st = grid_check_members(&grid, links, err);
        if (!st) st = grid_traffic(&grid, links, 5, err);
        if (!st) st = pd_comm_barrier(comm, err);
        pd_grid_deinit(&grid);
    }
    free(links);
    return st;
}
