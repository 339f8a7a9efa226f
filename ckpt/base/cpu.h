/* Which kernels this processor can run.
 *
 * Kernels exist in up to three builds of one source (portable C, AVX2 with FMA and F16C, AVX-512). All give the same bits,
 * so the choice is about speed alone; PERDURE_ISA=portable|avx2|avx512 overrides it for tests.
 */
#pragma once

#include "ckpt/base/cgroup.h"
#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

enum pd_isa { PD_ISA_AUTO, PD_ISA_PORTABLE, PD_ISA_AVX2, PD_ISA_AVX512, PD_ISA_COUNT };

/* In a file compiled once for each instruction set (perdure_isa_sources): name_portable, name_avx2, name_avx512. */
#define PD_ISA_PASTE2_(name, isa) name##_##isa
#define PD_ISA_PASTE1_(name, isa) PD_ISA_PASTE2_(name, isa)
#define PD_ISA_SYMBOL(name) PD_ISA_PASTE1_(name, PD_ISA_NAME)

const char *pd_isa_name(enum pd_isa isa); /* "auto", "portable", "avx2", "avx512" */
/* True when this processor, its system and this build can run it. AUTO and PORTABLE always can. */
bool pd_isa_available(enum pd_isa isa);
/* Resolves AUTO: PERDURE_ISA where it is set, else the best available.
 *   errors  PD_UNSUPPORTED: not available here; PD_INVALID: PERDURE_ISA is no name of one */
PD_MUST_USE pd_status pd_isa_resolve(enum pd_isa asked, enum pd_isa *ret_isa, struct pd_error *err);

/* Cores that this process may keep busy: its affinity mask, which taskset, a batch system or a container narrows, or the
 * whole cores of the smallest CPU quota of its cgroups, where that is less. At least 1. */
uint32_t pd_cpu_cores(void);
/* Cores' worth of time by the smallest quota; INFINITY: there is none. places: NULL for this process. */
double pd_cpu_quota(const struct pd_cgroup_places *places);
