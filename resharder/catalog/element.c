/* Conversions are loops over whole blocks that compilers vectorize. None computes with denormal floats: pool threads
 * flush them to zero, and stored ones must survive.
 *
 * Blocks as in GGML (ggml-quants.c, dequantize_row_* and quantize_row_q8_0_ref): an fp16 scale first, then the type's
 * data. */
#include "resharder/catalog/element.h"

#include "ckpt/base/half.h"
#include "ckpt/base/status.h"
#include <math.h>
#include <string.h>

/* As in ckpt/base/half.h, but without branches, so that it vectorizes. */
static float half_to_f32(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = half & 0x7fffu;
    const uint32_t tiny = pd_f32_bits((float)(int32_t)rest * 0x1p-24f); /* denormal halves are normal as floats */
    const uint32_t usual = (rest << 13) + (rest >= 0x7c00u ? 224u << 23 : 112u << 23);
    return pd_f32_of_bits(sign | (rest < 0x400u ? tiny : usual));
}

static uint16_t f32_to_half(float value)
{
    const uint32_t bits = pd_f32_bits(value), rest = bits & 0x7fffffffu;
    const uint32_t tiny =
        pd_f32_bits(pd_f32_of_bits(rest) + 0.5f) - pd_f32_bits(0.5f); /* the sum rounds at 2^-24, the last bit of a half */
    const uint32_t usual = (rest - (112u << 23) + 0xfffu + (rest >> 13 & 1)) >> 13;
    const uint32_t nan = 0x7e00u | (rest >> 13 & 0x3ffu);
    const uint32_t half = rest > 0x7f800000u    ? nan
                          : rest >= 0x477ff000u ? 0x7c00u /* 65520 and more */
                          : rest < 0x38800000u  ? tiny
                                                : usual;
    return (uint16_t)(bits >> 16 & 0x8000u) | (uint16_t)half;
}

static uint16_t half_at(const unsigned char *at)
{
    uint16_t half;
    memcpy(&half, at, sizeof half);
    return half;
}

/* ---- plain types ---- */

#define PLAIN_TO_F32(name, type, conversion)                                     \
    static void name##_to_f32(const void *stored, uint64_t count, float *values) \
    {                                                                            \
        const unsigned char *from = stored;                                      \
        for (uint64_t i = 0; i < count; i++) {                                   \
            type x;                                                              \
            memcpy(&x, from + i * sizeof x, sizeof x);                           \
            values[i] = conversion;                                              \
        }                                                                        \
    }
#define PLAIN_FROM_F32(name, type, conversion)                                     \
    static void name##_from_f32(const float *values, uint64_t count, void *stored) \
    {                                                                              \
        unsigned char *to = stored;                                                \
        for (uint64_t i = 0; i < count; i++) {                                     \
            const float x = values[i];                                             \
            const type y = conversion;                                             \
            memcpy(to + i * sizeof y, &y, sizeof y);                               \
        }                                                                          \
    }

PLAIN_TO_F32(f64, double, (float)x)
PLAIN_FROM_F32(f64, double, (double)x)
PLAIN_TO_F32(f16, uint16_t, half_to_f32(x))
PLAIN_FROM_F32(f16, uint16_t, f32_to_half(x))
PLAIN_TO_F32(bf16, uint16_t, pd_f32_from_bf16(x))
PLAIN_FROM_F32(bf16, uint16_t, pd_bf16_from_f32(x))
PLAIN_TO_F32(i64, int64_t, (float)x)
PLAIN_TO_F32(i32, int32_t, (float)x)
PLAIN_TO_F32(i16, int16_t, (float)x)
PLAIN_TO_F32(i8, int8_t, (float)x)
PLAIN_TO_F32(u8, uint8_t, (float)x)
PLAIN_TO_F32(u16, uint16_t, (float)x)
PLAIN_TO_F32(u32, uint32_t, (float)x)
PLAIN_TO_F32(u64, uint64_t, (float)x)
PLAIN_TO_F32(bool, uint8_t, x != 0 ? 1.0f : 0.0f)

static void f32_to_f32(const void *stored, uint64_t count, float *values)
{
    memmove(values, stored, count * sizeof *values);
}

static void f32_from_f32(const float *values, uint64_t count, void *stored)
{
    memmove(stored, values, count * sizeof *values);
}

static void never_from_f32(const float *values, uint64_t blocks, void *stored)
{
    (void)values;
    (void)stored;
    PD_CHECK(!blocks && "a type that is only read");
}

/* ---- blocks of 32 ---- */

#define Q 32
#define NO_MINIMUM -0.0f /* x + -0.0f is x, even for -0 */

static void q8_0_to_f32(const void *stored, uint64_t blocks, float *values)
{
    const unsigned char *b = stored;
    for (uint64_t n = 0; n < blocks; n++, b += 2 + Q, values += Q) {
        const float scale = half_to_f32(half_at(b));
        for (int i = 0; i < Q; i++)
            values[i] = (float)(int8_t)b[2 + i] * scale;
    }
}

static void q8_0_from_f32(const float *values, uint64_t blocks, void *stored)
{
    unsigned char *b = stored;
    for (uint64_t n = 0; n < blocks; n++, b += 2 + Q, values += Q) {
        float most = 0;
        for (int i = 0; i < Q; i++)
            most = fmaxf(most, fabsf(values[i]));
        const float scale = most / 127.0f, inverse = scale != 0 ? 1.0f / scale : 0;
        const uint16_t half = f32_to_half(scale);
        memcpy(b, &half, sizeof half);
        for (int i = 0; i < Q; i++) {
            const float x = roundf(values[i] * inverse);
            b[2 + i] = (unsigned char)(x >= -127.0f && x <= 127.0f ? (int8_t)x : 0); /* not finite: 0 */
        }
    }
}

/* Splits bytes: low halves are elements 0 to 15, high ones 16 to 31. `fifth` has the fifth bit of each. */
static void nibbles(const unsigned char *bytes, uint32_t fifth, float scale, float zero, float low, float *values)
{
    for (int i = 0; i < Q / 2; i++) {
        const int first = (bytes[i] & 15) | (int)(fifth >> i & 1) << 4;
        const int second = bytes[i] >> 4 | (int)(fifth >> (i + 16) & 1) << 4;
        values[i] = ((float)first - zero) * scale + low;
        values[i + Q / 2] = ((float)second - zero) * scale + low;
    }
}

static uint32_t word_at(const unsigned char *at)
{
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static void q4_0_to_f32(const void *stored, uint64_t blocks, float *values)
{
    const unsigned char *b = stored;
    for (uint64_t n = 0; n < blocks; n++, b += 18)
        nibbles(b + 2, 0, half_to_f32(half_at(b)), 8, NO_MINIMUM, values + n * Q);
}

static void q4_1_to_f32(const void *stored, uint64_t blocks, float *values)
{
    const unsigned char *b = stored;
    for (uint64_t n = 0; n < blocks; n++, b += 20)
        nibbles(b + 4, 0, half_to_f32(half_at(b)), 0, half_to_f32(half_at(b + 2)), values + n * Q);
}

static void q5_0_to_f32(const void *stored, uint64_t blocks, float *values)
{
    const unsigned char *b = stored;
    for (uint64_t n = 0; n < blocks; n++, b += 22)
        nibbles(b + 6, word_at(b + 2), half_to_f32(half_at(b)), 16, NO_MINIMUM, values + n * Q);
}

static void q5_1_to_f32(const void *stored, uint64_t blocks, float *values)
{
    const unsigned char *b = stored;
    for (uint64_t n = 0; n < blocks; n++, b += 24)
        nibbles(b + 8, word_at(b + 4), half_to_f32(half_at(b)), 0, half_to_f32(half_at(b + 2)), values + n * Q);
}

/* ---- blocks of 256 ---- */

#define K 256

/* Eight 6-bit scales and eight 6-bit minima in 12 bytes: the first four of each in the low bits of bytes 0 to 7, the
 * others in the halves of bytes 8 to 11 with their upper bits on top of those. */
static void q4_k_scale(const unsigned char *s, int i, int *scale, int *low)
{
    if (i < 4) {
        *scale = s[i] & 63;
        *low = s[i + 4] & 63;
    } else {
        *scale = (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
        *low = s[i + 4] >> 4 | s[i] >> 6 << 4;
    }
}

static void q4_k_to_f32(const void *stored, uint64_t blocks, float *values)
{
    const unsigned char *b = stored;
    for (uint64_t n = 0; n < blocks; n++, b += 144) {
        const float scale = half_to_f32(half_at(b)), low = half_to_f32(half_at(b + 2));
        for (int part = 0; part < 8; part++, values += 32) { /* pairs of parts share 32 bytes: low halves, high halves */
            int s, m;
            q4_k_scale(b + 4, part, &s, &m);
            const float d = scale * (float)s, least = low * (float)m;
            const unsigned char *q = b + 16 + part / 2 * 32;
            for (int i = 0; i < 32; i++)
                values[i] = d * (float)(part % 2 ? q[i] >> 4 : q[i] & 15) - least;
        }
    }
}

/* 128 bytes of low halves, 64 bytes of upper 2-bit parts, 16 signed scales, the scale of all. */
static void q6_k_to_f32(const void *stored, uint64_t blocks, float *values)
{
    const unsigned char *b = stored;
    for (uint64_t n = 0; n < blocks; n++, b += 210) {
        const float all = half_to_f32(half_at(b + 208));
        for (int part = 0; part < 8; part++, values += 32) { /* four parts in each half of the block */
            const int half = part / 4, quarter = part % 4;
            const unsigned char *low = b + half * 64 + quarter % 2 * 32, *high = b + 128 + half * 32;
            const unsigned char *scales = b + 192 + half * 8 + quarter * 2;
            for (int i = 0; i < 32; i++) {
                const int nibble = quarter < 2 ? low[i] & 15 : low[i] >> 4;
                const int q = (nibble | (high[i] >> (2 * quarter) & 3) << 4) - 32;
                values[i] = all * (float)(int8_t)scales[i / 16] * (float)q;
            }
        }
    }
}

static void f8_e4m3_to_f32(const void *stored, uint64_t count, float *values)
{
    const unsigned char *b = stored;
    for (uint64_t i = 0; i < count; i++) {
        const int exponent = b[i] >> 3 & 15, fraction = b[i] & 7;
        const float value = exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);
        values[i] = (b[i] & 127) == 127 ? NAN : b[i] & 128 ? -value : value;
    }
}

/* An fp8 e5m2 number is the upper byte of a half. */
static void f8_e5m2_to_f32(const void *stored, uint64_t count, float *values)
{
    const unsigned char *b = stored;
    for (uint64_t i = 0; i < count; i++)
        values[i] = half_to_f32((uint16_t)(b[i] << 8));
}

static void c64_to_f32(const void *stored, uint64_t count, float *values)
{
    for (uint64_t i = 0; i < count; i++)
        memcpy(&values[i], (const unsigned char *)stored + 8 * i, sizeof *values);
}

static void c128_to_f32(const void *stored, uint64_t count, float *values)
{
    for (uint64_t i = 0; i < count; i++)
        f64_to_f32((const unsigned char *)stored + 16 * i, 1, &values[i]);
}

const struct pd_element_row pd_elements[PD_ELEMENT_COUNT] = {
    [PD_ELEMENT_F64] = {"fp64", 1, 8, true, f64_to_f32, f64_from_f32},
    [PD_ELEMENT_F32] = {"fp32", 1, 4, true, f32_to_f32, f32_from_f32},
    [PD_ELEMENT_F16] = {"fp16", 1, 2, true, f16_to_f32, f16_from_f32},
    [PD_ELEMENT_BF16] = {"bf16", 1, 2, true, bf16_to_f32, bf16_from_f32},
    [PD_ELEMENT_I64] = {"int64", 1, 8, false, i64_to_f32, never_from_f32},
    [PD_ELEMENT_I32] = {"int32", 1, 4, false, i32_to_f32, never_from_f32},
    [PD_ELEMENT_I16] = {"int16", 1, 2, false, i16_to_f32, never_from_f32},
    [PD_ELEMENT_I8] = {"int8", 1, 1, false, i8_to_f32, never_from_f32},
    [PD_ELEMENT_U8] = {"uint8", 1, 1, false, u8_to_f32, never_from_f32},
    [PD_ELEMENT_U16] = {"uint16", 1, 2, false, u16_to_f32, never_from_f32},
    [PD_ELEMENT_U32] = {"uint32", 1, 4, false, u32_to_f32, never_from_f32},
    [PD_ELEMENT_U64] = {"uint64", 1, 8, false, u64_to_f32, never_from_f32},
    [PD_ELEMENT_BOOL] = {"bool", 1, 1, false, bool_to_f32, never_from_f32},
    [PD_ELEMENT_C64] = {"complex64", 1, 8, false, c64_to_f32, never_from_f32},
    [PD_ELEMENT_C128] = {"complex128", 1, 16, false, c128_to_f32, never_from_f32},
    [PD_ELEMENT_F8_E4M3] = {"fp8_e4m3", 1, 1, true, f8_e4m3_to_f32, never_from_f32},
    [PD_ELEMENT_F8_E5M2] = {"fp8_e5m2", 1, 1, true, f8_e5m2_to_f32, never_from_f32},
    [PD_ELEMENT_Q8_0] = {"q8_0", Q, 34, true, q8_0_to_f32, q8_0_from_f32},
    [PD_ELEMENT_Q4_0] = {"q4_0", Q, 18, true, q4_0_to_f32, never_from_f32},
    [PD_ELEMENT_Q4_1] = {"q4_1", Q, 20, true, q4_1_to_f32, never_from_f32},
    [PD_ELEMENT_Q5_0] = {"q5_0", Q, 22, true, q5_0_to_f32, never_from_f32},
    [PD_ELEMENT_Q5_1] = {"q5_1", Q, 24, true, q5_1_to_f32, never_from_f32},
    [PD_ELEMENT_Q4_K] = {"q4_k", K, 144, true, q4_k_to_f32, never_from_f32},
    [PD_ELEMENT_Q6_K] = {"q6_k", K, 210, true, q6_k_to_f32, never_from_f32},
};

enum pd_element pd_element_of(enum pd_dtype dtype)
{
    static const enum pd_element elements[PD_DTYPE_COUNT] = {
        [PD_F32] = PD_ELEMENT_F32, [PD_BF16] = PD_ELEMENT_BF16,       [PD_F16] = PD_ELEMENT_F16,
        [PD_F64] = PD_ELEMENT_F64, [PD_F8_E4M3] = PD_ELEMENT_F8_E4M3, [PD_F8_E5M2] = PD_ELEMENT_F8_E5M2,
        [PD_I8] = PD_ELEMENT_I8,   [PD_I16] = PD_ELEMENT_I16,         [PD_I32] = PD_ELEMENT_I32,
        [PD_I64] = PD_ELEMENT_I64, [PD_U8] = PD_ELEMENT_U8,           [PD_U16] = PD_ELEMENT_U16,
        [PD_U32] = PD_ELEMENT_U32, [PD_U64] = PD_ELEMENT_U64,         [PD_BOOL] = PD_ELEMENT_BOOL,
        [PD_C64] = PD_ELEMENT_C64, [PD_C128] = PD_ELEMENT_C128,
    };
    return elements[dtype];
}
