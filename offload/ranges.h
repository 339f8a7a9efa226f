/* Ranges that a profiler (Nsight Systems) shows on the thread that enqueues work, and over what that work is on the GPU:
 * stages, blocks, collectives. NVTX comes as a header of the CUDA toolkit. Without a profiler a call is a load and a branch,
 * and in builds without CUDA nothing.
 *
 *   pd_range_push("backward", slot);   name: a string constant; value: shown as the range's payload
 *   ...
 *   pd_range_pop();                    ranges of a thread nest; after an error they need not be balanced */
#pragma once

#include <stdint.h>

void pd_range_push(const char *name, uint64_t value);
void pd_range_pop(void);
