/* Which kernels a GPU gets, by the name of its compute capability. */
#include "trainer/math/cuda/architectures.h"

#include <criterion/criterion.h>

Test(architectures, each_has_a_row_and_its_kernels)
{
    const struct {
        uint32_t capability;
        enum pd_attention_kernels attention;
        uint32_t code;
    } expected[PD_ARCHITECTURES] = {{80, PD_ATTENTION_MMA, 80},   {86, PD_ATTENTION_MMA, 80},
                                    {89, PD_ATTENTION_MMA, 80},   {90, PD_ATTENTION_WGMMA, 90},
                                    {100, PD_ATTENTION_MMA, 100}, {120, PD_ATTENTION_MMA, 120}};
    for (uint32_t i = 0; i < PD_ARCHITECTURES; i++) {
        const struct pd_architecture *a = pd_architecture_of(expected[i].capability);
        cr_assert_not_null(a, "%u", expected[i].capability);
        cr_expect_eq(a->code, expected[i].code, "%u", a->capability);
        cr_expect_eq(pd_attention_kernels_of(a->capability, true), expected[i].attention, "%u", a->capability);
        cr_expect_eq(pd_attention_kernels_of(a->capability, false), PD_ATTENTION_MMA, "%u", a->capability);
        cr_expect_eq(a->code / 10, a->capability / 10, "machine code does not run over a major number: %u", a->capability);
        cr_expect_leq(a->code, a->capability);
        cr_expect_geq(a->shared_bytes, 99u << 10, "kernels but wgmma are held to 99 KiB: %u", a->capability);
    }
}

Test(architectures, what_is_not_listed_runs_from_ptx_without_wgmma)
{
    const uint32_t unlisted[] = {87, 91, 101, 103, 110, 121, 130};
    for (size_t i = 0; i < sizeof unlisted / sizeof *unlisted; i++) {
        cr_expect_null(pd_architecture_of(unlisted[i]));
        cr_expect_eq(pd_attention_kernels_of(unlisted[i], true), PD_ATTENTION_MMA, "%u", unlisted[i]);
    }
}
