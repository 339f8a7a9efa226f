#include "ckpt/base/cpu.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static pd_status resolve(const char *variable, enum pd_isa asked, enum pd_isa *ret, struct pd_error *err)
{
    if (variable)
        setenv("PERDURE_ISA", variable, 1);
    else
        unsetenv("PERDURE_ISA");
    return pd_isa_resolve(asked, ret, err);
}

Test(cpu, what_is_asked_for_goes_before_the_variable_and_that_before_the_best)
{
    enum pd_isa best, isa;
    cr_assert_eq(resolve(NULL, PD_ISA_AUTO, &best, NULL), PD_OK);
    cr_assert(best >= PD_ISA_PORTABLE && pd_isa_available(best));
    for (enum pd_isa better = best + 1; better < PD_ISA_COUNT; better++)
        cr_expect(!pd_isa_available(better), "%s", pd_isa_name(better));
    static const char *const nothing[] = {"", "auto"};
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(resolve(nothing[i], PD_ISA_AUTO, &isa, NULL), PD_OK);
        cr_expect_eq(isa, best);
    }
    cr_assert_eq(resolve("portable", PD_ISA_AUTO, &isa, NULL), PD_OK);
    cr_expect_eq(isa, PD_ISA_PORTABLE);
    cr_assert_eq(resolve("portable", best, &isa, NULL), PD_OK);
    cr_expect_eq(isa, best);
}

Test(cpu, what_there_is_not_is_refused_by_name)
{
    enum pd_isa isa = PD_ISA_COUNT;
    struct pd_error err = {0};
    cr_assert_eq(resolve("sse9", PD_ISA_AUTO, &isa, &err), PD_INVALID);
    cr_expect(strstr(err.message, "PERDURE_ISA=sse9") && strstr(err.message, "portable, avx2, avx512 or auto"), "%s",
              err.message);
    for (enum pd_isa asked = PD_ISA_PORTABLE; asked < PD_ISA_COUNT; asked++)
        if (!pd_isa_available(asked)) {
            cr_assert_eq(resolve(NULL, asked, &isa, &err), PD_UNSUPPORTED);
            cr_expect(strstr(err.message, pd_isa_name(asked)), "%s", err.message);
        }
    cr_assert_eq(resolve(NULL, PD_ISA_COUNT, &isa, &err), PD_UNSUPPORTED);
    cr_expect(strstr(err.message, "unknown"), "%s", err.message);
    cr_expect_eq(isa, PD_ISA_COUNT);
    cr_expect_geq(pd_cpu_cores(), 1u);
}
