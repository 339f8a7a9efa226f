/* What tests in C ask of the machine: in which order the fibers of a kernel run, and what it counted. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which thread, and which block, runs first: 0 ascending, 1 descending, else the seed of permutations. Without a call it is
 * PERDURE_SIMT_ORDER, or 0. */
void simt_set_order(uint64_t order);
/* Of each launch from here on the last block is the only one that runs. */
void simt_run_last_block_alone(bool alone);
/* GPUs on which this process would have made a context, a bit each (machine.h). */
uint32_t simt_contexts(void);

#ifdef __cplusplus
}
#endif
