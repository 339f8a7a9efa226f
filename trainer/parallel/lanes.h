/* Lanes: the V micro-batches of a step are cut into L consecutive runs; data rank r of d computes lanes rL/d to (r+1)L/d
 * (floors). L depends only on the configuration, so the layout does not change which micro-batches are added in fp32. Pure
 * functions. Slot j of a rank is its j-th micro-batch; slots after its last one are padding. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pd_lanes {
    uint32_t micro_batches, count; /* V and L, which is at most V */
    uint32_t ranks;                /* d */
};

/* The first micro-batch of a rank. For rank = d returns V. */
uint32_t pd_lanes_first(const struct pd_lanes *lanes, uint32_t rank);
/* The first micro-batch of one of the rank's lanes, selected by `number`. */
uint32_t pd_lanes_choose(const struct pd_lanes *lanes, uint32_t rank, uint64_t number);
/* Slots of the rank with most micro-batches. */
uint32_t pd_lanes_slots(const struct pd_lanes *lanes);
bool pd_lanes_is_padding(const struct pd_lanes *lanes, uint32_t rank, uint32_t slot);
/* Whether the micro-batch in a slot (not padding) is the first, or last, of its lane. */
bool pd_lanes_begins(const struct pd_lanes *lanes, uint32_t rank, uint32_t slot);
bool pd_lanes_ends(const struct pd_lanes *lanes, uint32_t rank, uint32_t slot);
/* Whether a lane of any rank ends in a slot. */
bool pd_lanes_any_ends(const struct pd_lanes *lanes, uint32_t slot);
/* Micro-batches of the longest lane. */
uint32_t pd_lanes_longest(const struct pd_lanes *lanes);
