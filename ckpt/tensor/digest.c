/* The layout-independent digest (FORMAT.md, "State digest"). With i the row-major index in the tensor and b the 32 bits:
 *
 *   k = (i + 1) * 0x9e3779b97f4a7c15,  x = k ^ (b << 32 | b),  y = swap(x) + lo(x) * hi(x),  y ^= y >> 29
 *   mix = swap(y) + lo(y) * 0x85ebca6b                       digest = sum of mix, everything modulo 2^64
 *
 * lo and hi are the 32-bit halves of a word and swap exchanges them. Only 32 x 32 -> 64 bit products are used, which every
 * vector unit has.
 */
#include "ckpt/tensor/tensor.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INDEX_FACTOR UINT64_C(0x9e3779b97f4a7c15)
#define LAST_FACTOR UINT64_C(0x85ebca6b)

static inline uint64_t swap_halves(uint64_t x)
{
    return x << 32 | x >> 32;
}

static uint64_t digest_run_portable(uint64_t first, const float *data, uint64_t count)
{
    uint64_t k = (first + 1) * INDEX_FACTOR, sum = 0;
    for (uint64_t e = 0; e < count; e++, k += INDEX_FACTOR) {
        uint32_t bits;
        memcpy(&bits, data + e, sizeof bits);
        uint64_t x = k ^ ((uint64_t)bits << 32 | bits);
        uint64_t y = swap_halves(x) + (x & UINT32_MAX) * (x >> 32);
        y ^= y >> 29;
        sum += swap_halves(y) + (y & UINT32_MAX) * LAST_FACTOR;
    }
    return sum;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static inline __m256i mix_avx2(__m256i k, __m256i bits)
{
    enum { swap = 0xb1 }; /* exchanges neighbouring 32-bit lanes; an enum, for compilers that do not fold a constant */
    __m256i x = _mm256_xor_si256(k, _mm256_or_si256(bits, _mm256_slli_epi64(bits, 32)));
    __m256i swapped = _mm256_shuffle_epi32(x, swap);
    __m256i y = _mm256_add_epi64(swapped, _mm256_mul_epu32(x, swapped));
    y = _mm256_xor_si256(y, _mm256_srli_epi64(y, 29));
    return _mm256_add_epi64(_mm256_shuffle_epi32(y, swap), _mm256_mul_epu32(y, _mm256_set1_epi64x((int64_t)LAST_FACTOR)));
}

__attribute__((target("avx2"))) static uint64_t digest_run_avx2(uint64_t first, const float *data, uint64_t count)
{
    uint64_t keys[8], sums[4];
    for (uint64_t lane = 0; lane < 8; lane++)
        keys[lane] = (first + lane + 1) * INDEX_FACTOR;
    __m256i k0 = _mm256_loadu_si256((const __m256i *)(const void *)keys);
    __m256i k1 = _mm256_loadu_si256((const __m256i *)(const void *)(keys + 4));
    const __m256i stride = _mm256_set1_epi64x((int64_t)(INDEX_FACTOR * 8));
    __m256i sum0 = _mm256_setzero_si256(), sum1 = sum0;
    uint64_t e = 0;
    for (; e + 8 <= count; e += 8) {
        __m256i b0 = _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)(const void *)(data + e)));
        __m256i b1 = _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)(const void *)(data + e + 4)));
        sum0 = _mm256_add_epi64(sum0, mix_avx2(k0, b0));
        sum1 = _mm256_add_epi64(sum1, mix_avx2(k1, b1));
        k0 = _mm256_add_epi64(k0, stride);
        k1 = _mm256_add_epi64(k1, stride);
    }
    _mm256_storeu_si256((__m256i *)(void *)sums, _mm256_add_epi64(sum0, sum1));
    return sums[0] + sums[1] + sums[2] + sums[3] + digest_run_portable(first + e, data + e, count - e);
}
#endif

static uint64_t digest_run(uint64_t first, const float *data, uint64_t count)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return digest_run_avx2(first, data, count);
#endif
    return digest_run_portable(first, data, count);
}

static uint64_t digest_run_of(uint64_t first, enum pd_dtype dtype, const void *data, uint64_t count)
{
    float wide[1024];
    uint64_t sum = 0;
    if (dtype == PD_F32) return digest_run(first, data, count);
    PD_CHECK(dtype == PD_BF16);
    for (uint64_t done = 0, n; done < count; done += n) {
        n = count - done < 1024 ? count - done : 1024;
        pd_widen_bf16(wide, (const uint16_t *)data + done, n);
        sum += digest_run(first + done, wide, n);
    }
    return sum;
}

uint64_t pd_tensor_digest_part(const struct pd_tensor *tensor, const struct pd_box *box, uint64_t first, uint64_t count,
                               enum pd_dtype dtype, const void *data)
{
    const uint32_t element_bytes = pd_dtype_bytes(dtype);
    const struct pd_box whole = pd_box_whole(tensor);
    uint64_t run = 1;
    for (int d = PD_TENSOR_DIMS_MAX; d-- > 0;) { /* merge dimensions that the box fills into the run */
        run *= box->count[d];
        if (box->count[d] != whole.count[d]) break;
    }
    uint64_t sum = 0;
    struct pd_box at = *box;
    for (uint64_t done = 0; done < count;) {
        uint64_t rest = first + done, left = run - rest % run;
        uint64_t piece = count - done < left ? count - done : left;
        for (int d = PD_TENSOR_DIMS_MAX; d-- > 0;) {
            at.start[d] = box->start[d] + rest % box->count[d];
            rest /= box->count[d];
        }
        sum += digest_run_of(pd_box_offset(&whole, &at), dtype, (const char *)data + done * element_bytes, piece);
        done += piece;
    }
    return sum;
}

uint64_t pd_tensor_digest(const struct pd_tensor *tensor, const struct pd_box *box, enum pd_dtype dtype, const void *data)
{
    return pd_tensor_digest_part(tensor, box, 0, pd_box_elements(box), dtype, data);
}
