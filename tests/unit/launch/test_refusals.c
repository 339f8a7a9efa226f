/* What the launcher refuses before it starts a rank. */
#include "tests/helpers/launcher_fixture.h"

TestSuite(refusals, .init = set_up, .fini = tear_down_all, .timeout = 1200);

/* Where each would have a GPU of its own. */
Test(refusals, threads_of_one_process_on_several_gpus_are_refused)
{
    struct pd_launch two = launch_of(WORKER("done"), PD_TRANSPORT_LOCAL, 2);
    two.gpus = 2;
    unsetenv("PERDURE_TEST_GPU_THREADS");
    cr_assert_eq(launch(&two), 78);
    cr_assert_eq(starts(0), 0);
    expect_error_says("2 ranks on 2 GPUs as threads of one process can hang in NCCL");
    expect_error_says("use layout.transport=auto");
    setenv("PATH", "/nowhere", 1);
    two.transport = PD_TRANSPORT_AUTO;
    cr_assert_eq(launch(&two), 78);
    expect_error_says("apt-get install openmpi-bin");
    two.gpus = 1; /* they share it, through the host */
    cr_assert_eq(launch(&two), 0);
    two.gpus = 2;
    two.ranks = 1;
    cr_assert_eq(launch(&two), 0);
    cr_assert_eq(starts(0), 2);
}

Test(refusals, rank_counts_that_are_not_admitted_are_refused)
{
    struct pd_error err;
    struct pd_launch what = launch_of(WORKER("done"), PD_TRANSPORT_LOCAL, 9);
    cr_assert_eq(pd_launch_run(&what, &err), PD_INVALID);
    cr_assert(strstr(err.message, "9 ranks are not admitted"), "%s", err.message);
    cr_assert_eq(starts(0), 0);
}

Test(refusals, without_mpirun)
{
    struct pd_error err;
    setenv("PATH", "/nonexistent", 1);
    struct pd_launch what = launch_of(WORKER("done"), PD_TRANSPORT_MPI, 2);
    cr_assert_eq(pd_launch_run(&what, &err), PD_UNSUPPORTED);
    cr_assert(strstr(err.message, "apt-get install openmpi-bin"), "%s", err.message);
    what.transport = PD_TRANSPORT_AUTO;
    cr_assert_eq(pd_launch_run(&what, &err), PD_OK, "%s", err.message);
    cr_assert_eq(last_ranks(), 2);
}
