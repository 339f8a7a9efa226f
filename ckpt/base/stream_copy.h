/* Copies data that the processor will not use again soon, such as staging buffers on their way to the disk. The stores
 * bypass the caches, so they neither read the destination nor evict useful lines.
 *   threads  any */
#pragma once

#include <stddef.h>

/* As memcpy, and with the same visibility to other threads and devices. */
void pd_stream_copy(void *dst, const void *src, size_t bytes);
