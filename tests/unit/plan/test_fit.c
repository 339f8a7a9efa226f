#include "trainer/plan/auto_layout.h"

#include <criterion/criterion.h>

struct asked {
    uint32_t fewest, probes, fails_at; /* fails_at: 0 never */
};

static pd_status probe(void *context, uint32_t count, bool *ret_fits, struct pd_error *err)
{
    struct asked *a = context;
    a->probes++;
    if (count == a->fails_at) PD_FAIL(err, PD_NO_MEMORY, "no memory");
    *ret_fits = count >= a->fewest;
    return PD_OK;
}

Test(fit, the_fewest_in_few_probes)
{
    for (uint32_t enough = 1; enough <= 40; enough++) {
        for (uint32_t fewest = 1; fewest <= enough; fewest++) {
            struct asked a = {.fewest = fewest};
            struct pd_error err;
            uint32_t found = 0;
            cr_assert_eq(pd_fit_fewest(probe, &a, enough, &found, &err), PD_OK);
            cr_expect_eq(found, fewest, "%u of %u: %u", fewest, enough, found);
            cr_expect_leq(1u << (a.probes ? a.probes - 1 : 0), enough, "%u probes for %u", a.probes, enough);
        }
    }
}

Test(fit, a_probe_that_fails_ends_it)
{
    struct asked a = {.fewest = 3, .fails_at = 4};
    struct pd_error err;
    uint32_t found = 77;
    cr_expect_eq(pd_fit_fewest(probe, &a, 8, &found, &err), PD_NO_MEMORY);
    cr_expect_eq(found, 77);
}
