/* The slots of one instruction set, for files that are compiled once per instruction set. */
#pragma once

#include "trainer/math/math_cpu.h"
#include "trainer/math/simd.h"

#define PD_CPU_SLOT(name, operands, ...) \
    pd_status PD_CPU(name)(struct pd_math * math, PD_MATH_OPERANDS operands, struct pd_error * err);
PD_MATH_WORKSPACE(PD_CPU_SLOT)
PD_MATH_KERNELS(PD_CPU_SLOT)
#undef PD_CPU_SLOT
