/* Where a rank stands, and the communicators of its neighbours.
 *
 *   shard      zero_shard data ranks of one pp and tp index that hold one copy of the state between them, ordered (dp, sp):
 *              sums of gradients. In stage 0 everybody holds a copy
 *   gathers    the same ranks: parameters, which so wait for no gradients
 *   replicas   who have the same part of all copies, ordered likewise
 *   tp, sp     ranks that share a micro-batch's heads, or its tokens
 *   pipe       one communicator of two ranks a direction and neighbour, so that sends of one direction never wait for the
 *              other's: forward_in from the stage before, forward_out to the stage after, backward_in, backward_out. The
 *              stage after the last is the first when stages are interleaved.
 *   mirror     first and last pp rank of one (dp, sp, tp): a tied embedding; rank 0 is the first
 *
 * A communicator of one rank is NULL.
 *   threads  one caller
 */
#pragma once

#include "resharder/layout.h"
#include "trainer/comm/comm.h"
#include "trainer/model/partition.h"

struct pd_grid {
    struct pd_layout layout;
    struct pd_rank_place place;
    struct pd_partition partition;
    uint32_t world, rank;
    struct pd_comm *comm; /* the world's, borrowed; NULL for one rank */
    struct pd_comm *shard, *replicas, *gathers, *tp, *sp;
    struct pd_comm *forward_in, *forward_out, *backward_in, *backward_out;
    struct pd_comm *mirror;
};

/* Collective over comm. comm NULL (and world > 1): no communicators, for dry runs. The grid is about 64 KiB of arithmetic
 * and pointers; deinit frees the communicators but comm. */
PD_MUST_USE pd_status pd_grid_init(const struct pd_layout *layout, uint32_t rank, struct pd_comm *comm,
                                   struct pd_grid *ret_grid, struct pd_error *err);
void pd_grid_deinit(struct pd_grid *grid);
/* What the communicators of this place take; nothing for one rank. */
struct pd_grid_memory {
    uint64_t bytes;      /* staging included, as pd_grid_init will request them */
    uint64_t nccl_bytes; /* of a device, if they are NCCL's: by the estimate of trainer/comm/nccl.h */
};
struct pd_grid_memory pd_grid_memory(const struct pd_layout *layout, uint32_t rank, bool is_processes);

/* Pipeline chunk `chunk` (0 .. interleave-1) of a pp rank. */
struct pd_stage pd_grid_stage(const struct pd_layout *layout, const struct pd_model *model, uint32_t pp_rank,
                              uint32_t chunk);
