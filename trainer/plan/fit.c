#include "trainer/plan/fit.h"

pd_status pd_fit_fewest(pd_fit_probe probe, void *context, uint32_t enough, uint32_t *ret_fewest, struct pd_error *err)
{
    uint32_t too_few = 0;
    while (enough > too_few + 1) {
        const uint32_t middle = too_few + (enough - too_few) / 2;
        bool fits;
        PD_TRY(probe(context, middle, &fits, err));
        *(fits ? &enough : &too_few) = middle;
    }
    *ret_fewest = enough;
    return PD_OK;
}
