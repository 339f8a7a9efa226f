/* The operations of a training step, behind one constant table with a CPU and a CUDA version.
 *
 * Letters: R rows = tokens of a micro-batch (sequences * T); C hidden size; V vocabulary; H query heads, K key-value heads,
 * D head size. "act" is the activation dtype (PD_F32, PD_BF16, PD_F16): everything that may be saved, sent or recomputed is
 * rounded to it once, to nearest even, before it is read. Arithmetic inside an operation is fp32.
 *
 * Bits (numerics invariant). Every GEMM element is one chain of fused multiply-adds in ascending k, fp32, from 0 (or from
 * the old C when accumulating); then bias and residual are added; then one rounding. Sums over the last dimension use 16
 * virtual lanes (lane l adds elements l, l+16, ... in order; then the lanes are added as a binary tree: 0+8, 1+9, ..., then
 * +4, +2, +1). Sums over rows add in ascending row order. Results depend only on operands and sizes: not on threads, M, N,
 * leading dimensions or instruction set. Numerics fast lets a vendor library do the GEMM.
 *
 *   ownership  all pointers are borrowed and in memory of the table's device, except pd_finish.parts, a host array
 *   order      operations run in the order of calls. A GPU call only queues its operation: keep its operands until
 *              pd_math_sync
 *   errors     pd_status of the device; wrong sizes are PD_CHECK failures (our bug)
 *   threads    one caller per pd_math
 */
#pragma once

#include "ckpt/base/arena.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/thread_pool.h"
#include "offload/cpu_adam.h"
#include "trainer/math/operation_list.h"
#include "trainer/math/operations.h"
#include "trainer/math/superaccumulator.h"

enum pd_numerics_mode { PD_NUMERICS_INVARIANT, PD_NUMERICS_FAST };

struct pd_math;

struct pd_math_ops {
    const char *name;
#define PD_MATH_SLOT(name, operands, ...) \
    pd_status (*name)(struct pd_math * math, PD_MATH_OPERANDS operands, struct pd_error * err);
    PD_MATH_ALL(PD_MATH_SLOT)
#undef PD_MATH_SLOT
    /* Waits for all operations so far. Afterwards host copies may be read, and sources of copies overwritten. */
    pd_status (*sync)(struct pd_math *math, struct pd_error *err);
    void (*free)(struct pd_math *math);
};

struct pd_math {
    const struct pd_math_ops *ops;
    enum pd_numerics_mode mode;
    enum pd_isa isa;             /* resolved */
    struct pd_thread_pool *pool; /* borrowed */
};

/* CPU backend. Borrows `pool`. Workspaces come from `arena` (PD_MEMORY_BUFFERS), equally large for every isa; a dry arena
 * only counts, and *ret_math is NULL. isa AUTO: PERDURE_ISA, else the best of this machine.
 *   errors  PD_UNSUPPORTED: this machine lacks the isa */
PD_MUST_USE pd_status pd_math_cpu_new(struct pd_thread_pool *pool, unsigned thread_count, enum pd_isa isa,
                                      struct pd_arena *arena, struct pd_math **ret_math, struct pd_error *err);
void pd_math_free(struct pd_math *math);

/* One checked wrapper per slot: pd_norm_forward(math, norm, err) etc. */
#define PD_MATH_WRAPPER(name, operands, ...) \
    PD_MUST_USE pd_status pd_##name(struct pd_math *math, PD_MATH_OPERANDS operands, struct pd_error *err);
PD_MATH_WORKSPACE(PD_MATH_WRAPPER)
PD_MATH_KERNELS(PD_MATH_WRAPPER)
#undef PD_MATH_WRAPPER
PD_MUST_USE pd_status pd_gemm(struct pd_math *math, const struct pd_gemm *gemm, struct pd_error *err);
PD_MUST_USE pd_status pd_superaccumulate(struct pd_math *math, uint64_t n, const double *terms,
                                         struct pd_superaccumulator *sum, struct pd_error *err);
PD_MUST_USE pd_status pd_superaccumulate_floats(struct pd_math *math, uint64_t n, const float *terms,
                                                struct pd_superaccumulator *sum, struct pd_error *err);
PD_MUST_USE pd_status pd_adam(struct pd_math *math, const struct pd_adam_step *step, const struct pd_update_range *range,
                              struct pd_error *err);
PD_MUST_USE pd_status pd_math_copy(struct pd_math *math, void *dst, const void *src, uint64_t bytes, struct pd_error *err);
PD_MUST_USE pd_status pd_math_sync(struct pd_math *math, struct pd_error *err);
PD_MUST_USE pd_status pd_math_mark(struct pd_math *math, struct pd_math_mark *mark, struct pd_error *err);
PD_MUST_USE pd_status pd_math_reach(struct pd_math *math, const struct pd_math_mark *mark, struct pd_error *err);
