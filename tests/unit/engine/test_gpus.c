/* What is known by a GPU's name, and how a record says what computed it. */
#include "trainer/engine/computed_on.h"
#include "trainer/engine/gpus.h"
#include "trainer/plan/cost_model.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

Test(gpus, names_tell_rates_and_machines)
{
    cr_assert_eq(pd_gpu_matmul_flops("NVIDIA H100 80GB HBM3"), 989e12);
    cr_assert_eq(pd_gpu_matmul_flops("NVIDIA H100 PCIe"), 756e12);
    cr_assert_eq(pd_gpu_matmul_flops("NVIDIA H200"), 989e12);
    cr_assert_eq(pd_gpu_matmul_flops("NVIDIA A100-SXM4-40GB"), 312e12);
    cr_assert_eq(pd_gpu_matmul_flops("NVIDIA GH200 480GB"), 989e12);
    cr_assert_eq(pd_gpu_matmul_flops("NVIDIA RTX A1000"), 0);
    cr_assert_eq(pd_gpu_matmul_flops("simulated GPU"), 0);
    cr_assert_str_eq(pd_gpu_machine_name("NVIDIA GH200 480GB"), "h100-80g");
    cr_assert_str_eq(pd_gpu_machine_name("NVIDIA H100 80GB HBM3"), "h100-80g");
    cr_assert_str_eq(pd_gpu_machine_name("NVIDIA H200"), "h200-141g");
    cr_assert_str_eq(pd_gpu_machine_name("NVIDIA A100-SXM4-40GB"), "a100-40g");
    cr_assert_str_eq(pd_gpu_machine_name("NVIDIA A100 80GB PCIe"), "a100-80g");
    cr_assert_null(pd_gpu_machine_name("NVIDIA L40S"));
}

/* Of a card that no preset is made for memory and capability are its own. */
Test(gpus, a_card_that_is_not_known)
{
    struct pd_machine m, h100;
    struct pd_error err;
    struct pd_gpu gpu = {.name = "NVIDIA L40S", .bytes = UINT64_C(46) << 30, .major = 8, .minor = 9};
    cr_assert_eq(pd_machine_preset("h100-80g", &h100, &err), PD_OK);
    cr_expect(!pd_machine_of_gpu(&gpu, &m));
    cr_expect_eq(m.device_bytes, 46.0 * (1 << 30));
    cr_expect_eq(m.capability, 89);
    cr_expect_eq(m.flops[PD_RATE_HALF], h100.flops[PD_RATE_HALF]);
    gpu = (struct pd_gpu){.name = "NVIDIA A100-SXM4-40GB", .bytes = 1};
    cr_expect(pd_machine_of_gpu(&gpu, &m));
    cr_expect_str_eq(m.name, "a100-40g");
    cr_expect_gt(m.device_bytes, 1);
}

Test(gpus, none_is_said_with_its_reason)
{
    struct pd_gpus gpus;
    pd_gpus_find(&gpus);
    cr_assert_eq(gpus.count == 0, gpus.why_none[0] != '\0');
}

Test(gpus, a_cpu_is_nothing)
{
    const struct pd_rank_device none = {.dev = NULL};
    char *text = NULL;
    cr_assert_eq(pd_computed_on(NULL, &text, NULL), PD_OK);
    cr_assert_str_eq(text, "");
    free(text);
    cr_assert_eq(pd_computed_on(&none, &text, NULL), PD_OK);
    cr_assert_str_eq(text, "");
    free(text);
}

Test(gpus, a_device_is_named)
{
    struct pd_dev dev = {.description = "NVIDIA \"H100\""};
    const struct pd_rank_device device = {.dev = &dev};
    char *text = NULL, said[64];
    cr_assert_eq(pd_computed_on(&device, &text, NULL), PD_OK);
    cr_assert_eq(strncmp(text, "{\"device\":\"NVIDIA \\\"H100\\\"\"", 27), 0, "%s", text);
    pd_computed_on_describe(text, said, sizeof said);
    cr_assert_eq(strncmp(said, "NVIDIA \"H100\"", 13), 0, "%s", said);
    free(text);
}

Test(gpus, what_records_hold_is_said)
{
    static const struct {
        const char *text, *said;
    } cases[] = {{"", "a CPU"},
                 {NULL, "a CPU"},
                 {"{\"device\":\"NVIDIA H100\",\"cublaslt\":\"13.1.0\"}", "NVIDIA H100, cublaslt 13.1.0"},
                 {"{\"device\":7}", "another machine"},
                 {"{}", "another machine"},
                 {"no JSON", "another machine"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char said[64], few[8];
        pd_computed_on_describe(cases[i].text, said, sizeof said);
        cr_assert_str_eq(said, cases[i].said);
        pd_computed_on_describe(cases[i].text, few, sizeof few);
        cr_assert_eq(strncmp(few, said, sizeof few - 1), 0);
    }
}
