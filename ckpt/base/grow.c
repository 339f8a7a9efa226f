#include "ckpt/base/grow.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST = 16 };

bool pd_grow(void *items, uint64_t count, size_t size)
{
    void *old, *grown;
    if (count && (count < FIRST || count & (count - 1))) return true;
    memcpy(&old, items, sizeof old);
    grown = reallocarray(old, count ? 2 * count : FIRST, size);
    if (grown) memcpy(items, &grown, sizeof grown);
    return grown;
}
