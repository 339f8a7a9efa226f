#include "trainer/comm/exact_sum.h"

pd_status pd_exact_sum_reduce(struct pd_superaccumulator *sum, struct pd_comm *comm, struct pd_error *err)
{
    pd_superaccumulator_normalise(sum);
    if (!comm) return PD_OK;
    PD_TRY(pd_comm_all_reduce(comm, sum->limbs, PD_SUPERACCUMULATOR_LIMBS, PD_REDUCE_SUM_U64, err));
    return pd_comm_all_reduce(comm, &sum->flags, 1, PD_REDUCE_OR_U64, err);
}
