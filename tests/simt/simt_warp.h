/* Operations of a warp: every lane of the mask deposits what it has, and goes on when all have. Included by simt.h only. */
#pragma once

#define SIMT_LANE_BYTES 48u

struct simt_lanes {
    uint32_t mask;
    struct __attribute__((aligned(16))) {
        unsigned char bytes[SIMT_LANE_BYTES];
    } lane[32];
};

unsigned simt_lane(void);
/* Deposits of all lanes of `mask`, which must be in the same operation (`name`, a literal) with the same mask. Valid until
 * the warp's next operation. */
const simt_lanes *simt_exchange(const char *name, uint32_t mask, const void *deposit, size_t bytes);
/* Of a warp that is there as a whole: mma and ldmatrix. */
void simt_ldmatrix(uint32_t *r, unsigned matrices, bool transposed, const void *row);
void simt_mma_m16n8k16(float *c, const uint32_t *a, const uint32_t *b, bool bf16);
void simt_cp_async16(void *shared, const void *global, bool valid);
void simt_cp_async_commit(void);
void simt_cp_async_wait(unsigned pending);

template <typename T> T simt_shuffle(const char *name, uint32_t mask, T value, unsigned from)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles 4 or 8 bytes");
    const simt_lanes *lanes = simt_exchange(name, mask, &value, sizeof value);
    if (!(lanes->mask >> from & 1u)) simt_fail("shuffle from a lane that is not in the mask");
    memcpy(&value, lanes->lane[from].bytes, sizeof value);
    return value;
}

template <typename T> T __shfl_sync(uint32_t mask, T value, int lane, int width = 32)
{
    const unsigned base = simt_lane() & ~(static_cast<unsigned>(width) - 1);
    return simt_shuffle("__shfl_sync", mask, value,
                        base + (static_cast<unsigned>(lane) & (static_cast<unsigned>(width) - 1)));
}

template <typename T> T __shfl_xor_sync(uint32_t mask, T value, int lanes, int width = 32)
{
    const unsigned from = simt_lane() ^ static_cast<unsigned>(lanes), w = static_cast<unsigned>(width);
    return simt_shuffle("__shfl_xor_sync", mask, value, from / w <= simt_lane() / w ? from : simt_lane());
}

template <typename T> T __shfl_down_sync(uint32_t mask, T value, unsigned lanes, int width = 32)
{
    const unsigned w = static_cast<unsigned>(width), here = simt_lane();
    return simt_shuffle("__shfl_down_sync", mask, value, here % w + lanes < w ? here + lanes : here);
}

template <typename T> T __shfl_up_sync(uint32_t mask, T value, unsigned lanes, int width = 32)
{
    const unsigned w = static_cast<unsigned>(width), here = simt_lane();
    return simt_shuffle("__shfl_up_sync", mask, value, here % w >= lanes ? here - lanes : here);
}

static inline __attribute__((unused)) void __syncwarp(uint32_t mask = 0xffffffffu)
{
    simt_exchange("__syncwarp", mask, nullptr, 0);
}

static inline __attribute__((unused)) unsigned __ballot_sync(uint32_t mask, int predicate)
{
    const simt_lanes *lanes = simt_exchange("__ballot_sync", mask, &predicate, sizeof predicate);
    unsigned result = 0;
    for (unsigned l = 0; l < 32; l++) {
        int is = 0;
        if (mask >> l & 1u) memcpy(&is, lanes->lane[l].bytes, sizeof is);
        result |= static_cast<unsigned>(is != 0) << l;
    }
    return result;
}

static inline __attribute__((unused)) int __any_sync(uint32_t mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}

static inline __attribute__((unused)) int __all_sync(uint32_t mask, int predicate)
{
    return __ballot_sync(mask, predicate) == mask;
}

/* ---- atomics: integers only, so that a sum of floating-point numbers cannot depend on who came first ---- */

#define SIMT_ATOMIC(name, T, expression)                         \
    static inline __attribute__((unused)) T name(T *at, T value) \
    {                                                            \
        const T old = *at;                                       \
        *at = (expression);                                      \
        return old;                                              \
    }
#define SIMT_ATOMICS(T)                                    \
    SIMT_ATOMIC(atomicAdd, T, static_cast<T>(old + value)) \
    SIMT_ATOMIC(atomicMax, T, old > value ? old : value)   \
    SIMT_ATOMIC(atomicMin, T, old < value ? old : value)   \
    SIMT_ATOMIC(atomicOr, T, old | value)                  \
    SIMT_ATOMIC(atomicExch, T, value)
SIMT_ATOMICS(int)
SIMT_ATOMICS(unsigned)
SIMT_ATOMICS(unsigned long long)
float atomicAdd(float *, float) = delete;
double atomicAdd(double *, double) = delete;

/* ---- see trainer/math/cuda/grid.h ---- */

static inline __attribute__((unused)) void pd_ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
    simt_ldmatrix(r, 4, false, row);
}

static inline __attribute__((unused)) void pd_ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
    simt_ldmatrix(r, 4, true, row);
}

template <enum pd_dtype D> void pd_mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    static_assert(D == PD_BF16 || D == PD_F16, "no such step");
    simt_mma_m16n8k16(c, a, b, D == PD_BF16);
}

static inline __attribute__((unused)) void pd_cp_async16(void *shared, const void *global, bool valid)
{
    simt_cp_async16(shared, global, valid);
}

static inline __attribute__((unused)) void pd_cp_async_commit(void)
{
    simt_cp_async_commit();
}

template <int pending> void pd_cp_async_wait(void)
{
    simt_cp_async_wait(pending);
}
