/* Pipeline schedules: the order in which a pp rank runs forward and backward of each micro-batch and chunk. A pure function.
 *
 *   1f1b          as many forwards as stages follow, then one backward for each forward (PipeDream-Flush, Narayanan et al.
 *                 2021)
 *   interleaved   1F1B over `interleave` chunks a rank (Megatron-LM, Narayanan et al. 2021); slots are a multiple of pp
 *
 *   breadth first one stage: all micro-batches of a unit before the next unit, forward and backward (Yuan et al. 2025,
 *   "GreedySnake"; vertical scheduling), so parameters are loaded twice per step, not twice per micro-batch
 *
 * All ranks run the same forwards in the same order, and likewise backwards. A stage receives in the order in which its
 * neighbour sends, so links need no tags. Every schedule runs a chunk's backwards in ascending slot order: a lane adds its
 * micro-batches in this order. Theoretical bubble: (pp - 1) / (interleave * slots + pp - 1) of the step.
 */
#pragma once

#include "ckpt/base/status.h"

struct pd_schedule_options {
    uint32_t pp, pp_rank, interleave, slots;
    bool forward_only; /* validation */
    uint32_t units;    /* breadth first: units of the model, embedding and head included; 0: whole chunks */
};

#define PD_ALL_UNITS UINT32_MAX

struct pd_action {
    bool is_backward;
    uint32_t chunk, slot;
    uint32_t unit; /* the one unit of the chunk to run, or PD_ALL_UNITS */
};

struct pd_schedule {
    struct pd_action *actions; /* owned */
    uint32_t count;
    uint32_t depth[256]; /* (interleave) most micro-batches of a chunk between forward and backward: what must be kept */
};

/* The slots for `most`, the largest count of any rank (lanes.h); a multiple of pp with interleaved stages. */
uint32_t pd_schedule_slots(uint32_t most, uint32_t pp, uint32_t interleave);
PD_MUST_USE pd_status pd_schedule_new(const struct pd_schedule_options *options, struct pd_schedule *ret_schedule,
                                      struct pd_error *err);
void pd_schedule_deinit(struct pd_schedule *schedule);
/* Computes depth only, without building actions: for plans of large worlds. */
void pd_schedule_depth(const struct pd_schedule_options *options, uint32_t *ret_depth);
double pd_schedule_bubble(uint32_t pp, uint32_t interleave, uint32_t slots);
