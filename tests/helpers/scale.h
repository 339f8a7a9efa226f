/* PERDURE_TEST_SCALE: 1 by default; from 10 on tests try everything, between them more and more. At 1 a share by the day, so that days in a
 * row try all; PERDURE_TEST_SEED, which is printed, picks the day. */
#pragma once

#include "ckpt/base/parse.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline uint64_t test_scale(void)
{
    const char *text = getenv("PERDURE_TEST_SCALE");
    uint64_t scale = 1;
    return text && pd_parse_u64(text, &scale) ? scale : 1;
}

/* Above scale 1 every day is the same, 0. */
static inline uint64_t test_day(void)
{
    static bool is_said;
    const char *text = getenv("PERDURE_TEST_SEED");
    uint64_t day = (uint64_t)time(NULL) / 86400;
    if (test_scale() > 1 || (text && !pd_parse_u64(text, &day))) return 0;
    if (!is_said) fprintf(stderr, "PERDURE_TEST_SEED=%llu\n", (unsigned long long)day);
    is_said = true;
    return day;
}

/* Of a campaign that tries every `stride`th operation in two days of scale 1. */
static inline uint64_t test_stride(uint64_t stride)
{
    const uint64_t scale = test_scale(), every = scale >= 10 ? 1 : scale > 1 ? stride / (scale * scale) : stride * 2;
    return every && stride > 1 ? every : 1;
}

/* Whether a case of this number has its turn: once in `shares` days at scale 1, always above. */
static inline bool test_is_todays(uint64_t number, uint64_t shares)
{
    return test_scale() > 1 || (number + test_day()) % shares == 0;
}

/* The first of every `stride`th operation, from 1 on. */
static inline uint64_t test_first(uint64_t dice, uint64_t stride)
{
    return 1 + (dice + test_day() % stride) % stride;
}
