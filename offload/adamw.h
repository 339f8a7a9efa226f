/* AdamW as an update rule: turns a rule's step into arguments of its kernels (offload/cpu_adam.h, the math table). */
#pragma once

#include "offload/cpu_adam.h"
#include "offload/update_rule.h"

struct pd_adam_step pd_adamw_factors(const struct pd_update_step *step);
