/* Pipeline schedules: which micro-batch's forward or backward of which chunk a pp rank runs next. A pure function.
 *
 *   1f1b          as many forwards as stages follow, then one backward for each forward (PipeDream-Flush, Narayanan et al.
 *                 2021)
 *   interleaved   1F1B over `interleave` chunks a rank (Megatron-LM, Narayanan et al. 2021); slots are a multiple of pp
 *
 *   breadth first one stage: all micro-batches of a unit before the next unit, forward and backward (Yuan et al. 2025,
 *                 "GreedySnake"; vertical scheduling), so that parameters come twice a step and not twice a micro-batch
 *
 * All ranks run the same forwards in the same order, and backwards likewise, so what one stage sends in order the next
 * takes in order: a link needs no tags.
 * Backwards of a chunk come in ascending slot order whatever the schedule: a lane adds its micro-batches in this order.
 * Theoretical bubble: (pp - 1) / (interleave * slots + pp - 1) of the step.
 */
#pragma once

#include "ckpt/base/status.h"

struct pd_schedule_options {
    uint32_t pp, pp_rank, interleave, slots;
    bool forward_only; /* validation */
    uint32_t
        units; /* breadth first: of the model, embedding and head included; 0: whole chunks, micro-batch after micro-batch */
};

#define PD_ALL_UNITS UINT32_MAX

struct pd_action {
    bool is_backward;
    uint32_t chunk, slot;
    uint32_t unit; /* the only one of the chunk that is run, or PD_ALL_UNITS */
};

struct pd_schedule {
    struct pd_action *actions; /* owned */
    uint32_t count;
    uint32_t depth[256]; /* (interleave) micro-batches of a chunk between forward and backward at most: what must be kept */
};

/* Those of the rank with most micro-batches (lanes.h), rounded up to a multiple of pp when stages are interleaved. */
uint32_t pd_schedule_slots(uint32_t most, uint32_t pp, uint32_t interleave);
PD_MUST_USE pd_status pd_schedule_new(const struct pd_schedule_options *options, struct pd_schedule *ret_schedule,
                                      struct pd_error *err);
void pd_schedule_deinit(struct pd_schedule *schedule);
/* depth alone, without making the actions: for plans of large worlds. */
void pd_schedule_depth(const struct pd_schedule_options *options, uint32_t *ret_depth);
double pd_schedule_bubble(uint32_t pp, uint32_t interleave, uint32_t slots);
