#include "offload/adamw.h"

#include <string.h>

_Static_assert(sizeof(struct pd_adam_step) <= PD_UPDATE_FACTORS_MAX * sizeof(float), "factors of AdamW");

static struct pd_update_step prepare(const struct pd_update_config *config)
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

struct pd_adam_range pd_adamw_arrays(const struct pd_update_range *r)
{
    return (struct pd_adam_range){.n = r->n,
                                  .decay = r->decay,
                                  .param = r->state[PD_PARAM],
                                  .exp_avg = r->state[PD_EXP_AVG],
                                  .exp_avg_sq = r->state[PD_EXP_AVG_SQ],
                                  .grad = r->grad,
                                  .copy = r->copy,
                                  .copy_dtype = r->copy_dtype,
                                  .moments = r->moments,
                                  .place = r->place};
}

static void update(struct pd_thread_pool *pool, enum pd_isa isa, const struct pd_update_step *step,
                   const struct pd_update_range *range)
{
    const struct pd_adam_step factors = pd_adamw_factors(step);
    const struct pd_adam_range arrays = pd_adamw_arrays(range);
    pd_cpu_adam(pool, isa, &factors, &arrays);
}

const struct pd_update_rule pd_adamw = {.name = "adamw", .title = "AdamW", .prepare = prepare, .update = update};
