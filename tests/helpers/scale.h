/* PERDURE_TEST_SCALE: 1 by default; from 10 on tests try everything, between them more and more. */
#pragma once

#include "ckpt/base/parse.h"

#include <stdlib.h>

static inline uint64_t test_scale(void)
{
    const char *text = getenv("PERDURE_TEST_SCALE");
    uint64_t scale = 1;
    return text && pd_parse_u64(text, &scale) ? scale : 1;
}

/* Of a campaign that tries every `stride`th operation at scale 1. */
static inline uint64_t test_stride(uint64_t stride)
{
    const uint64_t scale = test_scale(), every = scale < 10 ? stride / (scale * scale + !scale) : 1;
    return every ? every : 1;
}
