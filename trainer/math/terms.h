/* Terms: gradient elements as integers, multiples of a quantum. Their sums modulo 2^64 are exact in any order. A sum is
 * correct if its value is below 2^63, even if intermediate sums overflowed.
 *
 *   bits    a term is from * scale (exact in fp64), rounded to nearest even, on every device
 *   limit   every term is below `limit` in magnitude: 2^63 / terms, so that a sum stays in range
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
    double scale;  /* 1 / quantum */
    double limit;  /* 2^63 / terms, as a power of two */
};
struct pd_quantum pd_quantum_of(uint64_t tokens, uint64_t terms, uint32_t coarser);

enum pd_term_source { PD_TERM_F32, PD_TERM_INTEGER /* already terms: scale and limit are ignored */ };

#define PD_TERM_RUNS_MAX 64u

/* to (n) = terms of from (n), or adds them to `to`. */
struct pd_term_run {
    const void *from; /* NULL: zeros */
    int64_t *to;      /* for integers it may be `from`; NULL: only check and flag */
    uint64_t n;
    bool adds;
    int64_t *check;    /* += the sum of the terms; NULL: none. Runs may share it */
    bool check_begins; /* this call starts it at 0; set in one of the runs that share it */
    /* (2) [0] = mark if an element is out of range, [1] = mark if one is not finite; its term is 0. NULL: not recorded */
    uint32_t *flags;
};

struct pd_terms {
    const struct pd_term_run *runs; /* (run_count) in host memory; their `to` must not overlap */
    uint32_t run_count;             /* at most PD_TERM_RUNS_MAX */
    enum pd_term_source source;
    double scale, limit; /* scale: a power of two */
    uint32_t mark;
};

/* out (n) fp32 = sums (n) * quantum, rounded once to nearest even. out may be where sums begin. */
struct pd_term_sums {
    uint64_t n;
    const int64_t *sums;
    float *out;
    float quantum;     /* a power of two */
    int64_t *check;    /* minus the elements: 0 if undamaged; NULL: none */
    uint32_t *damaged; /* = mark if that is not 0 */
    uint32_t mark;
};
