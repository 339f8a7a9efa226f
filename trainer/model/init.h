/* Counter-based random numbers, for pd_model_init_box and tests. */
#pragma once

#include "trainer/model/model.h"

/* Philox 4x32-10, key = low word then high word.   source  Salmon et al. 2011 */
void pd_philox4x32(const uint32_t counter[4], uint64_t key, uint32_t ret_words[4]);

struct pd_normal {
    uint64_t seed, stream;
    double std;
    bool portable; /* without vector instructions: same bits, for tests */
};

/* The number of a tensor's stream: a hash of its name. */
uint64_t pd_normal_stream(const char *name);
/* Elements [first, first + count) of the stream: normal with mean 0.   dst (count) */
void pd_normal_fill(const struct pd_normal *normal, uint64_t first, uint64_t count, float *dst);
