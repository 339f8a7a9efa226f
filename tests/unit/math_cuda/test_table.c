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

/* ---- every kernel is loaded before anybody computes: what is asked of CUDA comes here ---- */

enum { MEMORY = 2, NO_SUCH_FUNCTION = 98, KERNELS = 4096 };
static const void *asked[KERNELS];
static uint32_t count;
static int answer; /* of every second kernel */

int __wrap_cudaFuncGetAttributes(void *attributes, const void *kernel);
int __wrap_cudaFuncGetAttributes(void *attributes, const void *kernel)
{
    (void)attributes;
    for (uint32_t i = 0; i < count; i++)
        cr_assert_neq(asked[i], kernel, "twice");
    asked[count++] = kernel;
    return count % 2 ? 0 : answer;
}

/* By the table of what kernels may have: a line for each and its architecture, the lines of one kernel together. */
static uint32_t kernels_of_table(bool with_wgmma)
{
    char line[512], last[512] = "";
    uint32_t kernels = 0;
    FILE *table = fopen(PERDURE_SOURCE_DIR "/tests/gpu/resources.tsv", "re");
    cr_assert(table);
    while (fgets(line, sizeof line, table)) {
        const size_t length = strcspn(line, "\t") + 1;
        if (line[0] == '#' || (!with_wgmma && !strncmp(line, "attention_wgmma", 15))) continue;
        line[length + strcspn(line + length, "\t")] = '\0';
        kernels += strcmp(line, last) != 0;
        snprintf(last, sizeof last, "%s", line);
    }
    fclose(table);
    return kernels;
}

Test(math_cuda, every_kernel_is_asked_for_once)
{
    struct pd_error err;
    if (!pd_math_cuda_kernel_count()) cr_skip_test("a build without CUDA");
    cr_expect_eq(pd_math_cuda_load(&err), PD_OK, "%s", err.message);
    cr_expect_eq(count, pd_math_cuda_kernel_count());
    cr_expect(count == kernels_of_table(true) || count == kernels_of_table(false), "%u kernels, and the table has %u", count,
              kernels_of_table(true));
    count = 0;
    answer = NO_SUCH_FUNCTION; /* code for another architecture */
    cr_expect_eq(pd_math_cuda_load(&err), PD_OK, "%s", err.message);
    cr_expect_eq(count, pd_math_cuda_kernel_count());
    count = 0;
    answer = MEMORY;
    cr_expect_eq(pd_math_cuda_load(&err), PD_NO_MEMORY);
    cr_expect_eq(count, 2);
}
