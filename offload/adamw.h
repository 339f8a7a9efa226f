/* AdamW as an update rule: what its kernels (offload/cpu_adam.h, the math table's) take, out of the step of a rule. */
#pragma once

#include "offload/cpu_adam.h"
#include "offload/update_rule.h"

struct pd_adam_step pd_adamw_factors(const struct pd_update_step *step);
