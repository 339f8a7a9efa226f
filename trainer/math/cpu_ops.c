/* The function table of one instruction set. */
#include "trainer/math/cpu_ops.h"

#define OWN(name, ...) .name = PD_CPU(name),
#define SHARED(name, ...) .name = pd_cpu_##name##_slot,

const struct pd_math_ops PD_CPU(ops) = {.name = "cpu",
                                        .sync = pd_cpu_sync_slot,
                                        .free = pd_cpu_free_slot,
                                        PD_MATH_WORKSPACE(OWN) PD_MATH_KERNELS(OWN) PD_MATH_PLAIN(SHARED)
                                            PD_MATH_OTHERS(SHARED)};
