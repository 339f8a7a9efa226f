/* The CPU's table over memory that the host cannot touch (device_memory.h): each operation opens what is its rank's, and
 * nothing else does. So whoever passes here hands addresses on and never looks behind them. */
#pragma once

#include "tests/helpers/device_memory.h"
#include "trainer/math/math.h"

struct device_math {
    struct pd_math base; /* first */
    struct pd_math *near;
    struct device_memory *far;
};

static inline struct device_math *device_math_of(struct pd_math *math)
{
    return (struct device_math *)math;
}

#define FAR_RUN(far_begin, far_end, call)                \
    do {                                                 \
        struct device_math *self = device_math_of(math); \
        struct pd_math *const near = self->near;         \
        far_begin(self->far);                            \
        const pd_status far_st = near->ops->call;        \
        far_end(self->far);                              \
        return far_st;                                   \
    } while (0)

#define FAR_SLOT(name, operands, ...)                                                                         \
    static inline pd_status far_##name(struct pd_math *math, PD_MATH_OPERANDS operands, struct pd_error *err) \
    {                                                                                                         \
        FAR_RUN(far_hide_host, far_show_host, name(near, __VA_ARGS__, err));                                  \
    }

FAR_SLOT(gemm, (const struct pd_gemm *gemm), gemm)
FAR_SLOT(superaccumulate, (uint64_t n, const double *terms, struct pd_superaccumulator *sum), n, terms, sum)
FAR_SLOT(superaccumulate_floats, (uint64_t n, const float *terms, struct pd_superaccumulator *sum), n, terms, sum)
FAR_SLOT(adam, (const struct pd_adam_step *step, const struct pd_update_range *range), step, range)
PD_MATH_WORKSPACE(FAR_SLOT)
PD_MATH_KERNELS(FAR_SLOT)

static inline pd_status far_copy(struct pd_math *math, void *dst, const void *src, uint64_t bytes, struct pd_error *err)
{
    FAR_RUN(far_open, far_close, copy(near, dst, src, bytes, err));
}

static inline pd_status far_sync(struct pd_math *math, struct pd_error *err)
{
    (void)math, (void)err;
    return PD_OK;
}

static inline pd_status far_mark(struct pd_math *math, struct pd_math_mark *mark, struct pd_error *err)
{
    (void)math, (void)mark, (void)err;
    return PD_OK;
}

static inline pd_status far_reach(struct pd_math *math, const struct pd_math_mark *mark, struct pd_error *err)
{
    (void)math, (void)mark, (void)err;
    return PD_OK;
}

static inline void far_free(struct pd_math *math)
{
    (void)math;
}

#define FAR_ENTRY(name, ...) .name = far_##name,
static const struct pd_math_ops far_ops = {.name = "far",
                                           PD_MATH_WORKSPACE(FAR_ENTRY) PD_MATH_KERNELS(FAR_ENTRY) PD_MATH_PLAIN(FAR_ENTRY)
                                               FAR_ENTRY(gemm) FAR_ENTRY(sync) FAR_ENTRY(mark) FAR_ENTRY(reach)
                                                   FAR_ENTRY(free)};

/* near is borrowed, and so is far. */
static inline struct pd_math *device_math_init(struct device_math *math, struct pd_math *near, struct device_memory *far)
{
    *math = (struct device_math){*near, near, far};
    math->base.ops = &far_ops;
    return &math->base;
}

/* The CPU's table with one thread, workspaces in an arena of its own, freed after it. */
static inline pd_status far_near_new(struct pd_arena **ret_arena, struct pd_math **ret_math, struct pd_error *err)
{
    struct pd_memory_plan plan;
    struct pd_arena *dry;
    struct pd_math *none;
    PD_TRY(pd_arena_new_dry(&dry, err));
    PD_TRY(pd_math_cpu_new(NULL, 1, PD_ISA_AUTO, dry, &none, err));
    pd_arena_usage(dry, &plan);
    pd_arena_free(dry);
    PD_TRY(pd_arena_new(&plan, ret_arena, err));
    return pd_math_cpu_new(NULL, 1, PD_ISA_AUTO, *ret_arena, ret_math, err);
}
