/* Chooses the kernels that this processor can run.
 *
 * Each kernel source is built up to three times (portable C, AVX2 with FMA and F16C, AVX-512). All builds give the same
 * bits, so the choice affects speed alone; PERDURE_ISA=portable|avx2|avx512 overrides it for tests.
 */
#pragma once

#include "ckpt/base/cgroup.h"
#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

enum pd_isa { PD_ISA_AUTO, PD_ISA_PORTABLE, PD_ISA_AVX2, PD_ISA_AVX512, PD_ISA_COUNT };

/* For files compiled once per instruction set (perdure_isa_sources): name_portable, name_avx2, name_avx512. */
#define PD_ISA_PASTE2_(name, isa) name##_##isa
#define PD_ISA_PASTE1_(name, isa) PD_ISA_PASTE2_(name, isa)
#define PD_ISA_SYMBOL(name) PD_ISA_PASTE1_(name, PD_ISA_NAME)

const char *pd_isa_name(enum pd_isa isa); /* "auto", "portable", "avx2", "avx512" */
/* True if this processor, its system and this build can run `isa`. AUTO and PORTABLE always can. */
bool pd_isa_available(enum pd_isa isa);
/* Resolves AUTO to PERDURE_ISA if it is set, else to the best available.
 *   errors  PD_UNSUPPORTED: not available here; PD_INVALID: PERDURE_ISA names no instruction set */
PD_MUST_USE pd_status pd_isa_resolve(enum pd_isa asked, enum pd_isa *ret_isa, struct pd_error *err);

/* Number of cores this process may keep busy: the size of its affinity mask (set by taskset, a batch system or a
 * container), or the whole cores of the smallest CPU quota of its cgroups if that is less. At least 1. */
uint32_t pd_cpu_cores(void);
/* Smallest CPU quota in cores; INFINITY if there is none. places: NULL for this process. */
double pd_cpu_quota(const struct pd_cgroup_places *places);
