/* Rounding at random, with the CPU's bits: integers alone. */
#include "trainer/math/cuda/element.h"

#include "ckpt/base/random_bits.h"

static __global__ void round_elements(struct pd_round r)
{
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= r.n) return;
    const uint64_t place = r.first + i;
    const uint64_t index = r.origin + place / r.columns * r.stride + place % r.columns;
    r.out[i] = pd_bf16_at_random(r.x[i], pd_random_bits(r.key, index));
}

pd_status pd_cuda_round(void *stream, const struct pd_round *round, struct pd_error *err)
{
    return PD_LAUNCH(err, round_elements, pd_blocks(round->n, PD_THREADS), PD_THREADS, 0, stream, *round);
}
