/* The inner loop of AdamW, cpu_adam_kernel.c built for each instruction set. The caller has enabled flush-to-zero. */
#pragma once

#include "offload/cpu_adam.h"

void pd_adam_kernel_portable(const struct pd_adam_step *step, const struct pd_update_range *range);
#if defined(__x86_64__)
void pd_adam_kernel_avx2(const struct pd_adam_step *step, const struct pd_update_range *range);
void pd_adam_kernel_avx512(const struct pd_adam_step *step, const struct pd_update_range *range);
#endif
