/* Internals of the CPU backend that the slots of all instruction sets share.
 *
 *   workspace  one piece of PD_CPU_WORKSPACE_BYTES per thread. A body of pd_parallel uses the piece of its start index, so
 *              at most `threads` bodies may need one
 *   threads    arithmetic runs only in bodies of pd_parallel, whose threads flush denormals to zero */
#pragma once

/* CPU slots cannot fail, and many do not use the table. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#include "trainer/math/math.h"

#include <stdatomic.h>

#define PD_CPU_WORKSPACE_BYTES (UINT64_C(4) << 20)
#define PD_CPU_HEAD_SIZE_MAX 256u
#define PD_CPU_HEAD_GROUP_MAX 64u /* query heads of one key-value head */

struct pd_math_cpu {
    struct pd_math base;      /* must be first: the table casts to this */
    unsigned threads;         /* at least 1 */
    unsigned char *workspace; /* (threads, PD_CPU_WORKSPACE_BYTES), from the arena */
    void *gemm_workspace;     /* for this mode's GEMM, from the arena */
};

static inline struct pd_math_cpu *pd_math_cpu_of(struct pd_math *math)
{
    return (struct pd_math_cpu *)math;
}

/* Runs body(operands, i) for i below count on the table's threads. Bodies may write only their own part of a job. */
static inline pd_status pd_cpu_run(struct pd_math *math, uint64_t count, void (*body)(void *, uint64_t),
                                   const void *operands)
{
    pd_parallel(math->pool, count, body, (void *)(uintptr_t)operands);
    return PD_OK;
}

/* Work items of different sizes, handed out in order to `threads` bodies, each with its own workspace. */
struct pd_cpu_queue {
    _Atomic uint64_t next;
    uint64_t count;
};

static inline bool pd_cpu_queue_take(struct pd_cpu_queue *queue, uint64_t *ret_item)
{
    uint64_t item = atomic_fetch_add_explicit(&queue->next, 1, memory_order_relaxed);
    if (item >= queue->count) return false;
    *ret_item = item;
    return true;
}

extern const struct pd_math_ops pd_cpu_ops_portable;
#if defined(__x86_64__)
extern const struct pd_math_ops pd_cpu_ops_avx2, pd_cpu_ops_avx512;
#endif

/* Shared by the tables. */
#define PD_CPU_SHARED_SLOT(name, operands, ...) \
    pd_status pd_cpu_##name##_slot(struct pd_math *math, PD_MATH_OPERANDS operands, struct pd_error *err);
PD_MATH_PLAIN(PD_CPU_SHARED_SLOT)
PD_MATH_OTHERS(PD_CPU_SHARED_SLOT)
#undef PD_CPU_SHARED_SLOT
pd_status pd_cpu_sync_slot(struct pd_math *math, struct pd_error *err);
void pd_cpu_free_slot(struct pd_math *math);
