/* A rank's place in the layout, and its communicators.
 *
 *   shard      sums of gradients: the zero_shard data ranks of one pp and tp index that together hold one copy of the state,
 *              ordered (dp, sp). In stage 0 every rank holds a copy
 *   gathers    the same ranks, for parameters, so that these do not wait for gradients
 *   replicas   ranks with the same part of each copy, same order
 *   experts    ep consecutive data ranks, each with other experts, that send each other tokens
 *   expert_*   as shard, gathers and replicas, of ranks with the same experts; expert_replicas only in stage 0
 *   tp, sp     ranks that share a micro-batch's heads, or its tokens
 *   pipe       two ranks each, one per direction and neighbour, so that sends in one direction never wait for the other:
 *              forward_in from the stage before, forward_out to the stage after, backward_in, backward_out. With interleaved
 *              stages, the first stage follows the last.
 *   mirror     first and last pp rank of one (dp, sp, tp), for a tied embedding; rank 0 is the first
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
    struct pd_comm *comm; /* all ranks, borrowed; NULL for one rank */
    struct pd_comm *shard, *replicas, *gathers, *tp, *sp;
    struct pd_comm *experts, *expert_shard, *expert_gathers, *expert_replicas;
    struct pd_comm *forward_in, *forward_out, *backward_in, *backward_out;
    struct pd_comm *mirror;
};

/* Collective over comm. comm NULL (and world > 1): no communicators, for dry runs. The grid is about 64 KiB of numbers and
 * pointers. deinit frees all communicators except comm. */
PD_MUST_USE pd_status pd_grid_init(const struct pd_layout *layout, uint32_t rank, struct pd_comm *comm,
                                   struct pd_grid *ret_grid, struct pd_error *err);
void pd_grid_deinit(struct pd_grid *grid);
/* Memory of this place's communicators; 0 for one rank. */
struct pd_grid_memory {
    uint64_t bytes;      /* staging included, as pd_grid_init will request */
    uint64_t nccl_bytes; /* device memory if they use NCCL: the estimate of trainer/comm/nccl.h */
};
struct pd_grid_memory pd_grid_memory(const struct pd_layout *layout, uint32_t rank, bool is_processes);

/* Model chunk `chunk` (0 .. interleave-1) of a pp rank. */
struct pd_stage pd_grid_stage(const struct pd_layout *layout, const struct pd_model *model, uint32_t pp_rank,
                              uint32_t chunk);
