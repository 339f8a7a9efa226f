/* Arrays that grow item by item, without a capacity beside their count. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room for one more behind `count` items of `size` bytes; `items` is the address of the pointer to them. There is room for 16
 * or for a power of two above, so the count says when it is used up.   returns  false: no memory, and all is as it was */
bool pd_grow(void *items, uint64_t count, size_t size);
