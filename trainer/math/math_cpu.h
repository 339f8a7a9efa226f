/* The CPU backend from inside: what the slots of all instruction sets share.
 *
 *   workspace  one piece a thread of the pool, PD_CPU_WORKSPACE_BYTES each; a body of pd_parallel finds its piece by the
 * index it was started with, so at most `threads` bodies use them at a time threads    flush-to-zero must be set where
 * arithmetic runs: arithmetic belongs into bodies of pd_parallel, which sets it */
#ifndef PD_TRAINER_MATH_MATH_CPU_H
#define PD_TRAINER_MATH_MATH_CPU_H

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
pd_status pd_cpu_gemm_slot(struct pd_math *math, const struct pd_gemm *gemm, struct pd_error *err);
pd_status pd_cpu_adam_slot(struct pd_math *math, const struct pd_adam_step *step, const struct pd_adam_range *range,
                           struct pd_error *err);
pd_status pd_cpu_copy_slot(struct pd_math *math, void *dst, const void *src, uint64_t bytes, struct pd_error *err);
pd_status pd_cpu_sync_slot(struct pd_math *math, struct pd_error *err);
pd_status pd_cpu_superaccumulate_slot(struct pd_math *math, uint64_t n, const double *terms, struct pd_superaccumulator *sum,
                                      struct pd_error *err);
pd_status pd_cpu_mark_slot(struct pd_math *math, struct pd_math_mark *mark, struct pd_error *err);
pd_status pd_cpu_reach_slot(struct pd_math *math, const struct pd_math_mark *mark, struct pd_error *err);
pd_status pd_cpu_replay_slot(struct pd_math *math, const struct pd_math_key *key, bool *ret_done, struct pd_error *err);
pd_status pd_cpu_keep_slot(struct pd_math *math, bool is_whole, bool *ret_again, struct pd_error *err);
void pd_cpu_free_slot(struct pd_math *math);

#endif
