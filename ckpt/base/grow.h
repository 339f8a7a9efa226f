/* Arrays that grow item by item, without a separate capacity field. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes space for one more after `count` items of `size` bytes; `items` is the address of the array pointer. The capacity
 * follows from `count`: 16, or a power of two above.   returns  false: no memory; the array is unchanged */
bool pd_grow(void *items, uint64_t count, size_t size);
