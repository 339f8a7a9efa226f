/* The CPU backend from inside: what the slots of all instruction sets share.
 *
 *   workspace  a piece of PD_CPU_WORKSPACE_BYTES for each thread of the pool. A body of pd_parallel takes the piece of the
 *              index that it was started with, so at most `threads` bodies may need one
 *   threads    arithmetic happens in bodies of pd_parallel alone, which sets flush-to-zero in its threads */
#pragma once

/* Slots of a CPU do not fail, and many need no table. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#include "trainer/math/math.h"

#include <stdatomic.h>

#define PD_CPU_WORKSPACE_BYTES (UINT64_C(4) << 20)
#define PD_CPU_HEAD_SIZE_MAX 256u
#define PD_CPU_HEAD_GROUP_MAX 64u /* query heads of one key-value head */

struct pd_math_cpu {
    struct pd_math base;      /* first: a struct pd_math of this backend is one of these */
    unsigned threads;         /* at least 1 */
    unsigned char *workspace; /* (threads, PD_CPU_WORKSPACE_BYTES), the arena's */
    void *gemm_workspace;     /* what the product of this mode asks for, the arena's */
};

static inline struct pd_math_cpu *pd_math_cpu_of(struct pd_math *math)
{
    return (struct pd_math_cpu *)math;
}

/* body(operands, i) for i below count, on the table's threads. Bodies leave operands alone but for what they own of a job. */
static inline pd_status pd_cpu_run(struct pd_math *math, uint64_t count, void (*body)(void *, uint64_t),
                                   const void *operands)
{
    pd_parallel(math->pool, count, body, (void *)(uintptr_t)operands);
    return PD_OK;
}

/* Items of work of different sizes, given out in order to `threads` bodies that each own a workspace. */
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
