/* Initial values: element i of a tensor is a pure function of (seed, tensor name, i).
 *
 *   block q = philox4x32-10(counter = (q, name), key = seed)     four 32-bit words for the elements 4q .. 4q+3
 *   words (a, b) -> two normals: r = sqrt(-2 ln((2a+1) / 2^33)), angle = 2 pi b / 2^32, (r cos, r sin)
 *
 * The angle is reduced in integers, so only the polynomials round. Values reach at most 6.8 standard deviations.
 *
 *   sources  Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; Box and Muller 1958 */
#include "trainer/model/init.h"

#include "trainer/model/polynomial.h"

#include <math.h>
#include <string.h>

#define QUADS_AT_ONCE 64u

PD_POLYNOMIAL_INLINE void philox_round(uint64_t c[4], uint64_t k0, uint64_t k1)
{
    const uint64_t low = 0xffffffffu;
    uint64_t p0 = UINT64_C(0xD2511F53) * c[0], p1 = UINT64_C(0xCD9E8D57) * c[2];
    uint64_t n0 = (p1 >> 32) ^ c[1] ^ k0, n2 = (p0 >> 32) ^ c[3] ^ k1;
    c[1] = p1 & low;
    c[3] = p0 & low;
    c[0] = n0;
    c[2] = n2;
}

/* Words are kept in 64 bits each: that is what the multiplication needs, and what vectorises. */
PD_POLYNOMIAL_INLINE void philox(uint64_t c[4], uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma GCC unroll 10
    for (int i = 0; i < 10; i++) {
        philox_round(c, k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

void pd_philox4x32(const uint32_t counter[4], uint64_t key, uint32_t ret_words[4])
{
    uint64_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
    philox(c, key);
    for (int i = 0; i < 4; i++)
        ret_words[i] = (uint32_t)c[i];
}

PD_POLYNOMIAL_INLINE void normal_pair(uint64_t a, uint64_t b, double *ret_first, double *ret_second)
{
    double radius = sqrt(-2.0 * pd_polynomial_log(pd_double_from_u52(2 * a + 1), 33.0));
    /* b = quarters * 2^30 + rest, rest in [-2^29, 2^29) */
    uint64_t moved = b + (UINT64_C(1) << 29);
    double rest = pd_double_from_u52(moved & 0x3fffffffu) - 0x1p29;
    double c, s;
    pd_polynomial_cos_sin(rest * (0x1.921fb54442d18p+2 * 0x1p-32), moved >> 30, &c, &s);
    *ret_first = radius * c;
    *ret_second = radius * s;
}

PD_POLYNOMIAL_INLINE void normal_quads(uint64_t first, uint32_t count, uint64_t stream, uint64_t seed, double std,
                                       float *dst)
{
    const uint64_t low = 0xffffffffu;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t quad = first + i;
        uint64_t c[4] = {quad & low, quad >> 32, stream & low, stream >> 32};
        philox(c, seed);
        double z[4];
        normal_pair(c[0], c[1], &z[0], &z[1]);
        normal_pair(c[2], c[3], &z[2], &z[3]);
        dst[4 * i] = (float)(std * z[0]);
        dst[4 * i + 1] = (float)(std * z[1]);
        dst[4 * i + 2] = (float)(std * z[2]);
        dst[4 * i + 3] = (float)(std * z[3]);
    }
}

typedef void quads_function(uint64_t first, uint32_t count, uint64_t stream, uint64_t seed, double std, float *dst);

static void normal_quads_portable(uint64_t first, uint32_t count, uint64_t stream, uint64_t seed, double std, float *dst)
{
    normal_quads(first, count, stream, seed, std, dst);
}

#if defined(__x86_64__)
/* The same operations, four lanes at a time: each is exact or correctly rounded, so the bits are the same. */
__attribute__((target("avx2"))) static void normal_quads_avx2(uint64_t first, uint32_t count, uint64_t stream, uint64_t seed,
                                                              double std, float *dst)
{
    normal_quads(first, count, stream, seed, std, dst);
}
#endif

static quads_function *quads_of_this_machine(bool portable)
{
#if defined(__x86_64__)
    if (!portable && __builtin_cpu_supports("avx2")) return normal_quads_avx2;
#endif
    (void)portable;
    return normal_quads_portable;
}

uint64_t pd_normal_stream(const char *name)
{
    /* FNV-1a, then a finalizer so that every bit depends on every character. */
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    h = (h ^ (h >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ (h >> 27)) * UINT64_C(0x94d049bb133111eb);
    return h ^ (h >> 31);
}

void pd_normal_fill(const struct pd_normal *normal, uint64_t first, uint64_t count, float *dst)
{
    quads_function *quads = quads_of_this_machine(normal->portable);
    float block[4 * QUADS_AT_ONCE];
    while (count) {
        uint64_t skip = first % 4, wanted = (skip + count + 3) / 4;
        uint32_t made = (uint32_t)(wanted < QUADS_AT_ONCE ? wanted : QUADS_AT_ONCE);
        uint64_t usable = 4 * (uint64_t)made - skip, taken = usable < count ? usable : count;
        if (skip == 0 && taken == 4 * (uint64_t)made) {
            quads(first / 4, made, normal->stream, normal->seed, normal->std, dst);
        } else {
            quads(first / 4, made, normal->stream, normal->seed, normal->std, block);
            memcpy(dst, block + skip, taken * sizeof *dst);
        }
        first += taken;
        count -= taken;
        dst += taken;
    }
}

static void fill_constant(float *dst, uint64_t count, float value)
{
    for (uint64_t i = 0; i < count; i++)
        dst[i] = value;
}

void pd_model_init_box(const struct pd_model *model, uint32_t tensor, const struct pd_box *box, uint64_t seed, float *dst)
{
    PD_CHECK(tensor < model->tensors.count);
    const struct pd_tensor *t = &model->tensors.tensors[tensor];
    const struct pd_tensor_init *how = &model->init[tensor];
    uint64_t count = pd_box_elements(box);
    if (how->init != PD_INIT_NORMAL) {
        fill_constant(dst, count, how->init == PD_INIT_ONES ? 1.0f : 0.0f);
        return;
    }
    struct pd_normal normal = {.seed = seed, .stream = pd_normal_stream(t->name), .std = how->std};
    /* A box is whole rows or a run of columns: dimension 0 counts the runs. */
    PD_CHECK(t->ndim <= 2);
    uint64_t columns = t->shape[1];
    if (count == 0) return;
    if (box->count[1] == columns) {
        pd_normal_fill(&normal, box->start[0] * columns, count, dst);
        return;
    }
    for (uint64_t row = 0; row < box->count[0]; row++)
        pd_normal_fill(&normal, (box->start[0] + row) * columns + box->start[1], box->count[1], dst + row * box->count[1]);
}
