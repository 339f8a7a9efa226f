/* PERDURE_TEST_SCALE: 1 by default; from 10 on tests try everything, between them more and more. At 1 they try a share, which
 * PERDURE_TEST_SHARE picks: tools/test.sh derives it from the commit, so that a commit has the same tests every time and
 * many commits try all. */
#pragma once

#include "ckpt/base/parse.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static inline uint64_t test_scale(void)
{
    const char *text = getenv("PERDURE_TEST_SCALE");
    uint64_t scale = 1;
    return text && pd_parse_u64(text, &scale) ? scale : 1;
}

/* 0 unless PERDURE_TEST_SHARE says otherwise, and above scale 1. */
static inline uint64_t test_share(void)
{
    static bool is_said;
    const char *text = getenv("PERDURE_TEST_SHARE");
    uint64_t share = 0;
    if (test_scale() > 1 || (text && !pd_parse_u64(text, &share))) return 0;
    if (!is_said) fprintf(stderr, "PERDURE_TEST_SHARE=%llu\n", (unsigned long long)share);
    is_said = true;
    return share;
}

/* Of a campaign that tries every `stride`th operation in four shares of scale 1. */
static inline uint64_t test_stride(uint64_t stride)
{
    const uint64_t scale = test_scale(), every = scale >= 10 ? 1 : scale > 1 ? stride / (scale * scale) : stride * 4;
    return every && stride > 1 ? every : 1;
}

/* Whether a case of this number has its turn: once in `shares` shares at scale 1, always above. */
static inline bool test_has_turn(uint64_t number, uint64_t shares)
{
    return test_scale() > 1 || (number + test_share()) % shares == 0;
}

/* The first of every `stride`th operation, from 1 on. */
static inline uint64_t test_first(uint64_t dice, uint64_t stride)
{
    return 1 + (dice + test_share() % stride) % stride;
}
