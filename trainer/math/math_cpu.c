#include "trainer/math/math_cpu.h"

#include "trainer/math/cpu_gemm.h"

#include <stdlib.h>
#include <string.h>

static const struct pd_math_ops *ops_of(enum pd_isa isa)
{
#if defined(__x86_64__)
    if (isa == PD_ISA_AVX512) return &pd_cpu_ops_avx512;
    if (isa == PD_ISA_AVX2) return &pd_cpu_ops_avx2;
#endif
    PD_CHECK(isa == PD_ISA_PORTABLE);
    return &pd_cpu_ops_portable;
}

pd_status pd_math_cpu_new(struct pd_thread_pool *pool, unsigned thread_count, enum pd_isa isa, struct pd_arena *arena,
                          struct pd_math **ret_math, struct pd_error *err)
{
    PD_CHECK(thread_count >= 1 && pd_thread_pool_size(pool) <= thread_count);
    PD_TRY(pd_isa_resolve(isa, &isa, err));
    void *gemm_workspace = pd_arena_take(arena, PD_MEMORY_BUFFERS, pd_cpu_gemm_workspace_bytes(thread_count));
    void *workspace = pd_arena_take(arena, PD_MEMORY_BUFFERS, thread_count * PD_CPU_WORKSPACE_BYTES);
    if (pd_arena_is_dry(arena)) {
        *ret_math = NULL;
        return PD_OK;
    }
    struct pd_math_cpu *cpu = calloc(1, sizeof *cpu);
    if (!cpu) PD_FAIL(err, PD_NO_MEMORY, "no memory for the CPU backend's table");
    cpu->base = (struct pd_math){ops_of(isa), PD_NUMERICS_INVARIANT, isa, pool};
    cpu->threads = thread_count;
    cpu->workspace = workspace;
    cpu->gemm_workspace = gemm_workspace;
    *ret_math = &cpu->base;
    return PD_OK;
}

pd_status pd_cpu_adam_slot(struct pd_math *math, const struct pd_adam_step *step, const struct pd_update_range *range,
                           struct pd_error *err)
{
    pd_cpu_adam(math->pool, math->isa, step, range);
    return PD_OK;
}

pd_status pd_cpu_copy_slot(struct pd_math *math, void *dst, const void *src, uint64_t bytes, struct pd_error *err)
{
    memcpy(dst, src, bytes);
    return PD_OK;
}

/* A CPU operation is done when its call returns. */
pd_status pd_cpu_sync_slot(struct pd_math *math, struct pd_error *err)
{
    return PD_OK;
}

pd_status pd_cpu_mark_slot(struct pd_math *math, struct pd_math_mark *mark, struct pd_error *err)
{
    return PD_OK;
}

pd_status pd_cpu_reach_slot(struct pd_math *math, const struct pd_math_mark *mark, struct pd_error *err)
{
    return PD_OK;
}

pd_status pd_cpu_superaccumulate_slot(struct pd_math *math, uint64_t n, const double *terms, struct pd_superaccumulator *sum,
                                      struct pd_error *err)
{
    pd_superaccumulator_add_many(sum, terms, n);
    return PD_OK;
}

pd_status pd_cpu_superaccumulate_floats_slot(struct pd_math *math, uint64_t n, const float *terms,
                                             struct pd_superaccumulator *sum, struct pd_error *err)
{
    for (uint64_t i = 0; i < n; i++)
        pd_superaccumulator_add(sum, terms[i]);
    return PD_OK;
}

void pd_cpu_free_slot(struct pd_math *math)
{
    free(pd_math_cpu_of(math));
}

pd_status pd_cpu_gemm_slot(struct pd_math *math, const struct pd_gemm *gemm, struct pd_error *err)
{
    pd_cpu_gemm(math->pool, math->isa, pd_math_cpu_of(math)->gemm_workspace, gemm);
    return PD_OK;
}
