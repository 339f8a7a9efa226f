/* The GPU's table links and starts on every machine; whether it computes is for machines with a GPU. */
#include "offload/device.h"
#include "trainer/math/math_cuda.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

Test(math_cuda, counts_its_workspaces_or_says_that_there_is_no_cuda)
{
    const struct pd_math_cuda_options options = {.mode = PD_NUMERICS_INVARIANT};
    struct pd_math *math = (struct pd_math *)&options;
    struct pd_memory_plan plan;
    struct pd_arena *dry;
    struct pd_error err;
    cr_assert_eq(pd_arena_new_dry(&dry, &err), PD_OK);
    const pd_status st = pd_math_cuda_new(&options, dry, &math, &err);
    if (st == PD_OK) {
        cr_assert_null(math, "a dry arena gives no table");
        pd_arena_usage(dry, &plan);
        cr_assert_geq(plan.bytes[PD_MEMORY_BUFFERS], UINT64_C(32) << 20);
        cr_assert_eq(plan.host_bytes[PD_MEMORY_BUFFERS], 0, "workspaces are the device's");
    } else {
        cr_assert_eq(st, PD_UNSUPPORTED);
        cr_assert(strstr(err.message, "PERDURE_CUDA"));
        cr_assert_eq(pd_dev_cuda_count(), 0);
    }
    pd_arena_free(dry);
}

Test(math_cuda, a_process_without_a_gpu_does_not_pay_for_cublas)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[4096];
    cr_assert(maps);
    while (fgets(line, sizeof line, maps))
        cr_assert(!strstr(line, "libcublas"), "%s", line);
    fclose(maps);
}
