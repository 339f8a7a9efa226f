#include "offload/adamw.h"

#include <string.h>

_Static_assert(sizeof(struct pd_adam_step) <= PD_UPDATE_FACTORS_MAX * sizeof(float), "factors of AdamW");

static struct pd_update_step adamw_prepare(const struct pd_update_config *config)
{
    const struct pd_adam_step factors = pd_adam_step_make(config);
    struct pd_update_step step = {.rule = &pd_adamw};
    memcpy(step.factors, &factors, sizeof factors);
    return step;
}

struct pd_adam_step pd_adamw_factors(const struct pd_update_step *step)
{
    struct pd_adam_step factors;
    memcpy(&factors, step->factors, sizeof factors);
    return factors;
}

static void adamw_update(struct pd_thread_pool *pool, enum pd_isa isa, const struct pd_update_step *step,
                         const struct pd_update_range *range)
{
    const struct pd_adam_step factors = pd_adamw_factors(step);
    pd_cpu_adam(pool, isa, &factors, range);
}

const struct pd_update_rule pd_adamw = {.name = "adamw", .title = "AdamW", .prepare = adamw_prepare, .update = adamw_update};
