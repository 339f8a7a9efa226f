/* Sets of parameters in the order in which a schedule reads them, worked out once: gathers run ahead along it. */
#pragma once

#include "trainer/parallel/grid.h"
#include "trainer/parallel/schedule.h"

struct pd_set_order {
    uint32_t *sets; /* (count), one for each time that a set is read */
    uint32_t count;
};

/* chunks: of this rank; head: the last set; learns: with backward, where the head is read. */
PD_MUST_USE pd_status pd_set_order_new(const struct pd_schedule *schedule, const struct pd_stage *chunks, uint32_t head,
                                       bool learns, struct pd_set_order *ret_order, struct pd_error *err);
void pd_set_order_deinit(struct pd_set_order *order);
