#include "trainer/comm/sums.h"

#include <string.h>

enum { LANES = 8 };

typedef uint64_t lanes __attribute__((vector_size(LANES * sizeof(uint64_t)), aligned(1), may_alias));

void pd_sum_add(void *target, const void *a, const void *b, uint64_t count)
{
    uint8_t *out = target;
    const uint8_t *left = a, *right = b;
    uint64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const uint64_t at = i * sizeof(uint64_t);
        *(lanes *)(out + at) = *(const lanes *)(left + at) + *(const lanes *)(right + at);
    }
    for (; i < count; i++) {
        uint64_t x, y;
        memcpy(&x, left + i * sizeof x, sizeof x);
        memcpy(&y, right + i * sizeof y, sizeof y);
        x += y;
        memcpy(out + i * sizeof x, &x, sizeof x);
    }
}
