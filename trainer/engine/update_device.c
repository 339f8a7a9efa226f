#include "trainer/engine/update_device.h"

#include "offload/adamw.h"

static pd_status adamw(struct pd_math *math, const struct pd_update_step *step, const struct pd_update_range *range,
                       struct pd_error *err)
{
    const struct pd_adam_step factors = pd_adamw_factors(step);
    const struct pd_adam_range arrays = pd_adamw_arrays(range);
    return pd_adam(math, &factors, &arrays, err);
}

static const struct {
    const struct pd_update_rule *rule;
    pd_status (*update)(struct pd_math *math, const struct pd_update_step *step, const struct pd_update_range *range,
                        struct pd_error *err);
} rows[] = {{&pd_adamw, adamw}};

pd_status pd_update_on_device(struct pd_math *math, const struct pd_update_step *step, const struct pd_update_range *range,
                              struct pd_error *err)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].rule == step->rule) return rows[i].update(math, step, range, err);
    PD_FAIL(err, PD_UNSUPPORTED, "update rule %s has no row for devices", step->rule->name);
}
