#include "trainer/math/terms.h"

#include <math.h>
#include <string.h>

static int log2_up(uint64_t n)
{
    return n > 1 ? 64 - __builtin_clzll(n - 1) : 0;
}

struct pd_quantum pd_quantum_of(uint64_t tokens, uint64_t terms, uint32_t coarser)
{
    const int exponent = log2_up(tokens) - 53 + PD_QUANTUM_COARSER_LOG2 * (int)coarser;
    return (struct pd_quantum){ldexpf(1, exponent), ldexpf(1, -exponent), ldexp(1, 63 - log2_up(terms))};
}

struct pd_quantum pd_quantum32_of(uint64_t tokens, uint64_t terms, int size, uint32_t coarser)
{
    const int exponent = size + log2_up(tokens) + PD_QUANTUM32_ROOM_LOG2 * (1 + (int)coarser) - 31;
    return (struct pd_quantum){ldexpf(1, exponent), ldexpf(1, -exponent), ldexp(1, 31 - log2_up(terms))};
}

void pd_gradient_sizes_init(struct pd_gradient_sizes *ret_sizes)
{
    memset(ret_sizes->log2, PD_GRADIENT_SIZE_FIRST, sizeof ret_sizes->log2);
}

int pd_gradient_size_next(int size, float largest, uint64_t tokens)
{
    int exponent = PD_GRADIENT_SIZE_MIN;
    if (largest > 0) {
        (void)frexpf(largest, &exponent);
        exponent -= log2_up(tokens);
    }
    const int next = exponent > size - 1 ? exponent : size - 1;
    return next < PD_GRADIENT_SIZE_MIN ? PD_GRADIENT_SIZE_MIN : next > PD_GRADIENT_SIZE_MAX ? PD_GRADIENT_SIZE_MAX : next;
}
