/* A fixed pool of threads for data-parallel loops.
 *
 * pd_parallel runs `body(context, index)` once for every index in [0, count), the caller included, and returns when all
 * are done. Any thread may run any index, so results must not depend on it: an index owns its output. A pool of 1 thread
 * runs everything in the caller. Every pool thread sets flush-to-zero and denormals-are-zero; pd_numerics_thread_init
 * does the same for a thread made elsewhere.
 *   threads  one caller at a time per pool; bodies must not call pd_parallel on the same pool
 */
#pragma once

#include "ckpt/base/status.h"
#include <stdint.h>

struct pd_thread_pool;

PD_MUST_USE pd_status pd_thread_pool_new(unsigned thread_count, struct pd_thread_pool **ret_pool, struct pd_error *err);
void pd_thread_pool_free(struct pd_thread_pool *pool);           /* NULL is fine */
unsigned pd_thread_pool_size(const struct pd_thread_pool *pool); /* at least 1; NULL counts as 1 */

/* pool NULL: runs in the caller. */
void pd_parallel(struct pd_thread_pool *pool, uint64_t count, void (*body)(void *context, uint64_t index), void *context);

void pd_numerics_thread_init(void);
