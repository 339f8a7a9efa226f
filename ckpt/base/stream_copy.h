/* Copying what the processor will not look at again soon: staging buffers on their way to the disk, state on its way home.
 * The stores go past the caches, so the destination is not read first and nothing useful is thrown out.
 *   threads  any */
#pragma once

#include <stddef.h>

/* As memcpy. Other threads and devices see the bytes as after memcpy. */
void pd_stream_copy(void *dst, const void *src, size_t bytes);
