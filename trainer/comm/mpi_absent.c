#include "trainer/comm/comm.h"

pd_status pd_comm_open_mpi(struct pd_comm **ret_comm, struct pd_error *err)
{
    (void)ret_comm;
    PD_FAIL(err, PD_UNSUPPORTED, "this build has no MPI: use layout.transport=local, or configure with -DPERDURE_MPI=ON");
}

bool pd_comm_has_mpi(void)
{
    return false;
}

bool pd_comm_mpi_is_over(void)
{
    return false;
}
