/* The order in which a schedule reads layer buckets, computed once. Gathers run ahead along it. */
#pragma once

#include "trainer/parallel/grid.h"
#include "trainer/parallel/schedule.h"

struct pd_bucket_order {
    uint32_t *buckets; /* (count), one per read of a bucket */
    uint32_t count;
};

/* The model units that an action runs on its chunk; unit u reads bucket u. learns: the head runs with the backward, which
 * computes its gradients with the loss. */
struct pd_range pd_action_units(const struct pd_action *action, const struct pd_stage *chunk, bool learns);

/* chunks: of this rank. learns: with backward. */
PD_MUST_USE pd_status pd_bucket_order_new(const struct pd_schedule *schedule, const struct pd_stage *chunks, bool learns,
                                          struct pd_bucket_order *ret_order, struct pd_error *err);
void pd_bucket_order_deinit(struct pd_bucket_order *order);
