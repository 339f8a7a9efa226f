/* Exact sums over ranks: superaccumulators added limb by limb as integers, so the result knows no order and no layout. */
#ifndef PD_TRAINER_COMM_EXACT_SUM_H
#define PD_TRAINER_COMM_EXACT_SUM_H

#include "trainer/comm/comm.h"
#include "trainer/math/superaccumulator.h"

/* Every rank's *sum becomes the sum over all ranks. comm NULL: alone. Collective. */
PD_MUST_USE pd_status pd_exact_sum_reduce(struct pd_superaccumulator *sum, struct pd_comm *comm, struct pd_error *err);

#endif
