/* Terms: elements of gradients as integers, multiples of a quantum. Sums of them modulo 2^64 are exact in any order. A sum is
 * what it should be while it is within 2^63, however far it was out of range on its way.
 *
 *   bits    a term is from * scale, which is exact in fp64, rounded to nearest, to even: on every device
 *   limit   every term is below `limit` in size; 2^63 over the terms of a sum keeps the sum in range, too
 *   check   sums carry one integer more, what their elements add up to; a sum that arrives damaged has another */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* For sums of at most `terms` terms of a batch of `tokens` tokens. A mean gradient keeps its bits down to 2^-53 (the grain) and
 * must stay below 1024 (the range), as must every term for its own share of the tokens. `coarser` times both are 2^16 times
 * larger: a step whose finite gradients were out of range is computed again with them. */
#define PD_QUANTUM_COARSER_LOG2 16
struct pd_quantum {
    float quantum; /* 2^(ceil(log2 tokens) - 53 + 16 coarser) */
    double scale;  /* 1 / quantum */
    double limit;  /* 2^63 over the terms, as a power of two */
};
struct pd_quantum pd_quantum_of(uint64_t tokens, uint64_t terms, uint32_t coarser);

enum pd_term_source { PD_TERM_F32, PD_TERM_INTEGER /* terms already: scale and limit mean nothing */ };

#define PD_TERM_RUNS_MAX 64u

/* to (n) = terms of from (n), or to + terms. */
struct pd_term_run {
    const void *from; /* NULL: zeros */
    int64_t *to;      /* of integers it may be `from`; NULL: terms are made for `check` and `flag` alone */
    uint64_t n;
    bool adds;
    int64_t *check;    /* += the sum of the terms; NULL: none. Runs may share it */
    bool check_begins; /* it is 0 before the terms of this call; of one run of those that share it */
    /* (2) [0] = mark where an element is out of range, [1] = mark where one is not finite; the term is 0. NULL: nobody asks */
    uint32_t *flags;
};

struct pd_terms {
    const struct pd_term_run *runs; /* (run_count) host memory; their `to` do not overlap */
    uint32_t run_count;             /* at most PD_TERM_RUNS_MAX */
    enum pd_term_source source;
    double scale, limit; /* scale: a power of two */
    uint32_t mark;
};

/* out (n) fp32 = sums (n) * quantum, rounded once, to nearest, to even. out may be where sums begin. */
struct pd_term_sums {
    uint64_t n;
    const int64_t *sums;
    float *out;
    float quantum;     /* a power of two */
    int64_t *check;    /* less the elements: 0 where nothing was damaged; NULL: none */
    uint32_t *damaged; /* = mark where it is not 0 */
    uint32_t mark;
};
