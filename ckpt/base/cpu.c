#include "ckpt/base/cpu.h"

#include "ckpt/base/parse.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const isa_names[PD_ISA_COUNT] = {"auto", "portable", "avx2", "avx512"};

const char *pd_isa_name(enum pd_isa isa)
{
    return (unsigned)isa < PD_ISA_COUNT ? isa_names[isa] : "unknown";
}

#if defined(__x86_64__)
/* clang's __builtin_cpu_supports does not know F16C. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

/* __builtin_cpu_supports checks the processor, and that the system saves the registers. */
bool pd_isa_available(enum pd_isa isa)
{
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    if (isa == PD_ISA_AVX2) return avx2;
    if (isa == PD_ISA_AVX512)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return isa == PD_ISA_AUTO || isa == PD_ISA_PORTABLE;
}

static enum pd_isa isa_best(void)
{
    enum pd_isa isa = PD_ISA_AVX512;
    while (!pd_isa_available(isa))
        isa--;
    return isa;
}

pd_status pd_isa_resolve(enum pd_isa asked, enum pd_isa *ret_isa, struct pd_error *err)
{
    unsigned number = asked;
    const char *variable = getenv("PERDURE_ISA");
    if (asked == PD_ISA_AUTO && variable && *variable &&
        !pd_parse_name(variable, strlen(variable), isa_names, PD_ISA_COUNT, &number))
        PD_FAIL(err, PD_INVALID, "PERDURE_ISA=%s: no such instruction set; use portable, avx2, avx512 or auto", variable);
    enum pd_isa isa = number == PD_ISA_AUTO ? isa_best() : (enum pd_isa)number;
    if (!pd_isa_available(isa))
        PD_FAIL(err, PD_UNSUPPORTED, "kernels for %s cannot run on this processor; the best it has is %s", pd_isa_name(isa),
                pd_isa_name(isa_best()));
    *ret_isa = isa;
    return PD_OK;
}

static void take_quota(void *context, const struct pd_cgroup *group)
{
    double *least = context;
    uint64_t quota = 0, period = 0; /* "max" and -1 do not parse: no quota */
    FILE *file = pd_cgroup_open(group, group->is_v2 ? "cpu.max" : "cpu.cfs_quota_us");
    const int fields = file ? fscanf(file, "%" SCNu64 " %" SCNu64, &quota, &period) : 0;
    if (file) (void)fclose(file);
    if (!group->is_v2 && fields == 1) (void)pd_cgroup_number(group, "cpu.cfs_period_us", &period);
    if (fields >= 1 && period && quota <= INT64_MAX && (double)quota / (double)period < *least)
        *least = (double)quota / (double)period;
}

double pd_cpu_quota(const struct pd_cgroup_places *places)
{
    double least = INFINITY;
    pd_cgroup_walk(places, "cpu", take_quota, &least);
    return least;
}

static uint32_t cores_of_mask(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return (uint32_t)CPU_COUNT(&set);
    const long online = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than a cpu_set_t has bits */
    return online > 0 ? (uint32_t)online : 1;
}

uint32_t pd_cpu_cores(void)
{
    const uint32_t cores = cores_of_mask();
    const double quota = pd_cpu_quota(NULL);
    if (quota >= cores) return cores;
    return quota < 1 ? 1 : (uint32_t)quota;
}
