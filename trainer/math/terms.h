/* Terms: gradient elements as integers of 64 or 32 bits, multiples of a quantum. Their sums modulo 2^64 (or 2^32) are exact in
 * any order. A sum is correct if its value is below 2^63 (2^31), even if intermediate sums overflowed.
 *
 *   bits    a term is from * scale (exact in fp64), rounded to nearest even, on every device
 *   limit   every term is below `limit` in magnitude: 2^63 (2^31) / terms, so that a sum stays in range
 *   check   sums carry one more integer, the sum of their elements, to detect damage in transfer */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* For sums of at most `terms` terms, of a batch of `tokens` tokens. A mean gradient keeps its bits down to 2^-53 (the grain)
 * and must be below 1024 (the range), as must every term relative to its share of the tokens. Each `coarser` makes both 2^16
 * times larger: a step whose finite gradients were out of range is recomputed so. */
#define PD_QUANTUM_COARSER_LOG2 16
struct pd_quantum {
    float quantum; /* 2^(ceil(log2 tokens) - 53 + 16 coarser) */
    float scale;   /* 1 / quantum */
    double limit;  /* 2^63 / terms, as a power of two */
};
struct pd_quantum pd_quantum_of(uint64_t tokens, uint64_t terms, uint32_t coarser);

/* The same for terms of 32 bits. 2^size: at least the largest mean gradient that is expected. The range is 2^8 times that, and
 * the grain 2^31 times smaller than the range; each `coarser` makes both 2^8 times larger. */
#define PD_QUANTUM32_ROOM_LOG2 8
struct pd_quantum pd_quantum32_of(uint64_t tokens, uint64_t terms, int size, uint32_t coarser);

/* Expected sizes of the gradients of each class: a role, and whether it is a bias. Saved with the run, so resumes keep bits. */
#define PD_GRADIENT_CLASSES 64u
struct pd_gradient_sizes {
    int8_t log2[PD_GRADIENT_CLASSES];
};
void pd_gradient_sizes_init(struct pd_gradient_sizes *ret_sizes);

/* Expected size in a step, from that in the step before and the largest sum of a gradient in it (as PD_TERM_F32 gives it, over
 * `tokens` tokens; 0: none). It rises at once and falls by one. */
#define PD_GRADIENT_SIZE_FIRST (-5) /* of a run's first step: a range of 8, a grain below AdamW's epsilon */
#define PD_GRADIENT_SIZE_MIN (-64)
#define PD_GRADIENT_SIZE_MAX 63
int pd_gradient_size_next(int size, float largest, uint64_t tokens);

enum pd_term_source { PD_TERM_F32, PD_TERM_INTEGER /* already terms: scale and limit are ignored */ };

#define PD_TERM_RUNS_MAX 64u

/* to (n) = terms of from (n), or adds them to `to`. */
struct pd_term_run {
    const void *from; /* NULL: zeros */
    void *to;         /* for integers it may be `from`; NULL: only check and flag */
    uint64_t n;
    bool adds;
    bool check_begins; /* this call starts `check` at 0; set in one of the runs that share it */
    float scale;       /* a power of two; of PD_TERM_F32 */
    void *check;       /* += the sum of the terms; NULL: none. Runs may share it */
    /* (2) [0] = mark if an element is out of range, [1] = mark if one is not finite; its term is 0. NULL: not recorded */
    uint32_t *flags;
};

struct pd_terms {
    const struct pd_term_run *runs; /* (run_count) in host memory; their `to` must not overlap */
    uint32_t run_count;             /* at most PD_TERM_RUNS_MAX */
    enum pd_term_source source;
    double limit; /* of PD_TERM_F32 */
    uint32_t mark;
    bool are_narrow; /* terms, sums and checks have 32 bits instead of 64 */
};

/* out (n) fp32 = sums (n) * quantum, rounded once to nearest even. out may be where sums begin. */
struct pd_term_sums {
    uint64_t n;
    const void *sums;
    float *out;
    float quantum;     /* a power of two */
    void *check;       /* minus the elements: 0 if undamaged; NULL: none */
    uint32_t *damaged; /* = mark if that is not 0; NULL: more elements follow */
    uint32_t mark;
    bool are_narrow;
    float *largest; /* of all magnitudes and its value before; NULL: not recorded. Narrow sums only */
};
