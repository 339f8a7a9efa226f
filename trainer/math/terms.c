#include "trainer/math/terms.h"

#include <math.h>

static int log2_up(uint64_t n)
{
    return n > 1 ? 64 - __builtin_clzll(n - 1) : 0;
}

struct pd_quantum pd_quantum_of(uint64_t tokens, uint64_t terms, uint32_t coarser)
{
    const int exponent = log2_up(tokens) - 53 + PD_QUANTUM_COARSER_LOG2 * (int)coarser;
    return (struct pd_quantum){ldexpf(1, exponent), ldexp(1, -exponent), ldexp(1, 63 - log2_up(terms))};
}
