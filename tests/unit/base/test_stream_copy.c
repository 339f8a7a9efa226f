#include "ckpt/base/stream_copy.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#define ROOM 70000u

static unsigned char src[ROOM], dst[ROOM], expected[ROOM];

static uint64_t next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static void check(size_t to, size_t from, size_t bytes)
{
    memset(dst, 0xa5, ROOM);
    memset(expected, 0xa5, ROOM);
    memcpy(expected + to, src + from, bytes);
    pd_stream_copy(dst + to, src + from, bytes);
    cr_assert(memcmp(dst, expected, ROOM) == 0, "%zu bytes from %zu to %zu", bytes, from, to);
}

Test(stream_copy, is_memcpy_at_every_alignment_and_length)
{
    uint64_t state = 1;
    for (uint32_t i = 0; i < ROOM; i++)
        src[i] = (unsigned char)next(&state);
    for (size_t to = 0; to < 65; to++)
        for (size_t extra = 0; extra < 130; extra += 13)
            check(to, (to * 7) % 64, 4096 + extra);
    for (int i = 0; i < 2000; i++) {
        size_t to = next(&state) % 200, from = next(&state) % 200;
        check(to, from, next(&state) % (ROOM - 200));
    }
    check(0, 0, 0);
}
