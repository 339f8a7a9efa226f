/* Initial values: element i of a tensor is a pure function of (seed, tensor name, i).
 *
 *   block q = philox4x32-10(counter = (q, name), key = seed)     four 32-bit words for the elements 4q .. 4q+3
 *   words (a, b) -> two normals: r = sqrt(-2 ln((2a+1) / 2^33)), angle = 2 pi b / 2^32, (std r cos, std r sin)
 *
 * The angle is reduced in integers, so only the polynomials round. Values reach at most 6.8 standard deviations.
 *
 *   sources  Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; Box and Muller 1958 */
#include "trainer/model/init.h"

#include "trainer/model/polynomial.h"

#include <math.h>
#include <string.h>

#define QUADS_AT_ONCE 16u

/* Words are 64 bits wide, as the multiplication needs and so that it vectorises. */
#define PHILOX_ROUND(c0, c1, c2, c3, k0, k1)                                     \
    do {                                                                         \
        uint64_t p0 = UINT64_C(0xD2511F53) * c0, p1 = UINT64_C(0xCD9E8D57) * c2; \
        c0 = (p1 >> 32) ^ c1 ^ (k0);                                             \
        c2 = (p0 >> 32) ^ c3 ^ (k1);                                             \
        c1 = p1 & 0xffffffffu;                                                   \
        c3 = p0 & 0xffffffffu;                                                   \
    } while (0)

struct round_keys {
    uint64_t k0[10], k1[10];
};

static void round_keys_init(struct round_keys *ret_keys, uint64_t key)
{
    for (uint32_t i = 0; i < 10; i++) {
        ret_keys->k0[i] = (uint32_t)((uint32_t)key + i * 0x9E3779B9u);
        ret_keys->k1[i] = (uint32_t)((uint32_t)(key >> 32) + i * 0xBB67AE85u);
    }
}

void pd_philox4x32(const uint32_t counter[4], uint64_t key, uint32_t ret_words[4])
{
    struct round_keys keys;
    round_keys_init(&keys, key);
    uint64_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int r = 0; r < 10; r++)
        PHILOX_ROUND(c0, c1, c2, c3, keys.k0[r], keys.k1[r]);
    const uint64_t words[4] = {c0, c1, c2, c3};
    for (int i = 0; i < 4; i++)
        ret_words[i] = (uint32_t)words[i];
}

/* One simple loop per operation over QUADS_AT_ONCE quads in the L1 cache, so that each vectorises. */
struct scratch {
    uint64_t words[4][QUADS_AT_ONCE];
    double normals[4][QUADS_AT_ONCE];
};

PD_POLYNOMIAL_INLINE void fill_words(const struct pd_normal *normal, uint64_t first, struct scratch *x)
{
    const uint64_t low = 0xffffffffu;
    struct round_keys k;
    round_keys_init(&k, normal->seed);
    for (uint64_t i = 0; i < QUADS_AT_ONCE; i++) {
        uint64_t c0 = (first + i) & low, c1 = (first + i) >> 32, c2 = normal->stream & low, c3 = normal->stream >> 32;
#pragma GCC unroll 10
        for (int r = 0; r < 10; r++)
            PHILOX_ROUND(c0, c1, c2, c3, k.k0[r], k.k1[r]);
        x->words[0][i] = c0;
        x->words[1][i] = c1;
        x->words[2][i] = c2;
        x->words[3][i] = c3;
    }
}

PD_POLYNOMIAL_INLINE void fill_normals(const uint64_t *restrict a, const uint64_t *restrict b, double std,
                                       double *restrict ret_first, double *restrict ret_second)
{
    for (uint32_t i = 0; i < QUADS_AT_ONCE; i++) {
        double radius = std * sqrt(-2.0 * pd_polynomial_log(pd_double_from_u52(2 * a[i] + 1), 33.0));
        /* b = quarters * 2^30 + rest, rest in [-2^29, 2^29) */
        uint64_t moved = b[i] + (UINT64_C(1) << 29);
        double rest = pd_double_from_u52(moved & 0x3fffffffu) - 0x1p29;
        double c, s;
        pd_polynomial_cos_sin(rest * (0x1.921fb54442d18p+2 * 0x1p-32), moved >> 30, &c, &s);
        ret_first[i] = radius * c;
        ret_second[i] = radius * s;
    }
}

PD_POLYNOMIAL_INLINE void normal_block(const struct pd_normal *normal, uint64_t first, float *restrict dst)
{
    struct scratch x;
    fill_words(normal, first, &x);
    fill_normals(x.words[0], x.words[1], normal->std, x.normals[0], x.normals[1]);
    fill_normals(x.words[2], x.words[3], normal->std, x.normals[2], x.normals[3]);
    for (uint32_t i = 0; i < QUADS_AT_ONCE; i++)
        for (uint32_t k = 0; k < 4; k++)
            dst[4 * i + k] = (float)x.normals[k][i];
}

/* QUADS_AT_ONCE quads from quad `first`. */
typedef void block_function(const struct pd_normal *normal, uint64_t first, float *dst);

static void normal_block_portable(const struct pd_normal *normal, uint64_t first, float *dst)
{
    normal_block(normal, first, dst);
}

#if defined(__x86_64__)
/* The same operations, four lanes at a time: each is exact or correctly rounded, so the bits are the same. */
__attribute__((target("avx2"))) static void normal_block_avx2(const struct pd_normal *normal, uint64_t first, float *dst)
{
    normal_block(normal, first, dst);
}
#endif

static block_function *block_of_this_machine(bool portable)
{
#if defined(__x86_64__)
    if (!portable && __builtin_cpu_supports("avx2")) return normal_block_avx2;
#endif
    (void)portable;
    return normal_block_portable;
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
    block_function *fill = block_of_this_machine(normal->portable);
    float block[4 * QUADS_AT_ONCE];
    while (count) {
        uint64_t skip = first % 4, usable = 4 * QUADS_AT_ONCE - skip, taken = usable < count ? usable : count;
        if (taken == 4 * QUADS_AT_ONCE) {
            fill(normal, first / 4, dst);
        } else {
            fill(normal, first / 4, block);
            memcpy(dst, block + skip, taken * sizeof *dst);
        }
        first += taken;
        count -= taken;
        dst += taken;
    }
}

void pd_model_init_box(const struct pd_model *model, uint32_t tensor, const struct pd_box *box, uint64_t seed, float *dst)
{
    PD_CHECK(tensor < model->tensors.count);
    const struct pd_tensor *t = &model->tensors.tensors[tensor];
    const struct pd_tensor_init *how = &model->init[tensor];
    uint64_t count = pd_box_elements(box);
    if (how->init != PD_INIT_NORMAL) {
        float value = how->init == PD_INIT_ONES ? 1.0f : 0.0f;
        for (uint64_t i = 0; i < count; i++)
            dst[i] = value;
        return;
    }
    struct pd_normal normal = {.seed = seed, .stream = pd_normal_stream(t->name), .std = how->std};
    /* A box is whole rows or a run of columns: dimension 0 counts runs. */
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
