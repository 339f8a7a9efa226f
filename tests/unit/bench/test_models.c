/* Models of states: a mixture has the tensors that are asked for, and about the bytes. */
#include "tools/bench/bench.h"

#include <criterion/criterion.h>
#include <inttypes.h>

Test(models, tensors_of_experts)
{
    static const uint64_t counts[][2] = {{384, 384}, {1000, 768}, {10000, 9984}};
    for (int i = 0; i < 3; i++) {
        const uint64_t bytes = UINT64_C(1) << 30;
        struct pd_model *model;
        struct pd_error err;
        uint64_t experts = 0;
        cr_assert_eq(pd_bench_model_of_experts(bytes, counts[i][0], &model, &err), PD_OK, "%s", err.message);
        for (uint32_t t = 0; t < model->tensors.count; t++)
            experts += model->tensors.tensors[t].expert > 0;
        const uint64_t state = model->parameter_count * PD_BENCH_STATE_BYTES_A_PARAMETER;
        cr_expect_eq(experts, counts[i][1]);
        cr_expect(state > bytes / 2 && state < bytes / 8 * 9, "%" PRIu64, state);
        pd_model_free(model);
    }
}

Test(models, experts_that_are_too_small)
{
    struct pd_model *model;
    struct pd_error err;
    cr_expect_eq(pd_bench_model_of_experts(UINT64_C(32) << 20, 10000, &model, &err), PD_USAGE);
    cr_expect_str_eq(err.message, "--experts leaves each tensor less than 1024 elements; give --bytes=134M or more");
}
