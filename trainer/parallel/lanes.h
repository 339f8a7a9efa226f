/* Lanes: the V micro-batches of a step are cut into L runs of consecutive ones, and data rank r of d computes lanes rL/d to
 * (r+1)L/d (floors). L depends on the configuration alone, so which micro-batches are added up in fp32 does, too. Pure functions.
 * Slot j of a rank is its j-th micro-batch; a slot behind its last one is padding. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pd_lanes {
    uint32_t micro_batches, count; /* V and L, which is at most V */
    uint32_t ranks;                /* d */
};

/* The first micro-batch of a rank; of rank d: V. */
uint32_t pd_lanes_first(const struct pd_lanes *lanes, uint32_t rank);
/* The first micro-batch of one of the rank's lanes, which `number` chooses. */
uint32_t pd_lanes_choose(const struct pd_lanes *lanes, uint32_t rank, uint64_t number);
/* Slots of the rank that has most. */
uint32_t pd_lanes_slots(const struct pd_lanes *lanes);
bool pd_lanes_is_padding(const struct pd_lanes *lanes, uint32_t rank, uint32_t slot);
/* Whether a rank's micro-batch in a slot, which is no padding, is the first of its lane, the last. */
bool pd_lanes_begins(const struct pd_lanes *lanes, uint32_t rank, uint32_t slot);
bool pd_lanes_ends(const struct pd_lanes *lanes, uint32_t rank, uint32_t slot);
/* Whether a lane of any rank ends in a slot. */
bool pd_lanes_any_ends(const struct pd_lanes *lanes, uint32_t slot);
/* Micro-batches of the longest lane. */
uint32_t pd_lanes_longest(const struct pd_lanes *lanes);
