/* Quantised blocks are held against digests of what GGML's own Python package (gguf 0.17, gguf.quants.dequantize and quantize) makes
 * of the same bytes. */
#include "ckpt/base/digest.h"
#include "resharder/catalog/element.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void fill(unsigned char *bytes, size_t count, uint64_t state)
{
    for (size_t i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bytes[i] = (unsigned char)(state >> 56);
    }
}

static double half_value(uint16_t half)
{
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    const double value = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return half & 0x8000 ? -value : value;
}

Test(element, every_half_has_its_value_and_comes_back)
{
    for (uint32_t h = 0; h < 65536; h++) {
        const uint16_t half = (uint16_t)h;
        uint16_t back = 0;
        float value;
        pd_elements[PD_ELEMENT_F16].to_f32(&half, 1, &value);
        pd_elements[PD_ELEMENT_F16].from_f32(&value, 1, &back);
        if ((half & 0x7fff) > 0x7c00) {
            cr_assert(isnan(value) && (back & 0x7fff) > 0x7c00, "%04x", h);
            continue;
        }
        cr_assert_eq(back, half, "%04x came back as %04x", h, back);
        if ((half & 0x7fff) == 0x7c00)
            cr_assert(isinf(value));
        else
            cr_assert_eq((double)value, half_value(half), "%04x", h);
    }
}

static uint16_t rounded(enum pd_element element, double value)
{
    const float x = (float)value;
    uint16_t half;
    cr_assert_eq((double)x, value);
    pd_elements[element].from_f32(&x, 1, &half);
    return half;
}

Test(element, halves_are_rounded_to_nearest_even)
{
    for (uint32_t h = 0; h < 0x7bff; h++) { /* between h and the next: the middle, and just beside it */
        const double low = half_value((uint16_t)h), middle = (low + half_value((uint16_t)(h + 1))) / 2;
        const uint16_t even = (uint16_t)(h + (h & 1));
        cr_assert_eq(rounded(PD_ELEMENT_F16, middle), even, "%04x", h);
        cr_assert_eq(rounded(PD_ELEMENT_F16, -middle), even | 0x8000, "%04x", h);
        cr_assert_eq(rounded(PD_ELEMENT_F16, nextafterf((float)middle, 0)), h, "%04x", h);
        cr_assert_eq(rounded(PD_ELEMENT_F16, nextafterf((float)middle, INFINITY)), h + 1, "%04x", h);
    }
    cr_assert_eq(rounded(PD_ELEMENT_F16, 65519), 0x7bff);
    cr_assert_eq(rounded(PD_ELEMENT_F16, 65520), 0x7c00);
    cr_assert_eq(rounded(PD_ELEMENT_F16, 1e30f), 0x7c00);
    cr_assert_eq(rounded(PD_ELEMENT_F16, 1e-30f), 0);
}

Test(element, bf16_is_the_upper_half_rounded)
{
    for (uint32_t h = 0; h < 65536; h++) {
        const uint16_t half = (uint16_t)h;
        uint16_t back = 0;
        float value;
        uint32_t bits;
        pd_elements[PD_ELEMENT_BF16].to_f32(&half, 1, &value);
        memcpy(&bits, &value, sizeof bits);
        cr_assert_eq(bits, h << 16);
        pd_elements[PD_ELEMENT_BF16].from_f32(&value, 1, &back);
        cr_assert_eq(back, (half & 0x7fff) > 0x7f80 ? half | 0x40 : half, "%04x", h);
    }
    cr_assert_eq(rounded(PD_ELEMENT_BF16, 1 + 0x1p-8), 0x3f80);
    cr_assert_eq(rounded(PD_ELEMENT_BF16, 1 + 0x3p-8), 0x3f82);
    cr_assert_eq(rounded(PD_ELEMENT_BF16, 1 + 0x1.2p-8), 0x3f81);
    cr_assert_eq(rounded(PD_ELEMENT_BF16, 0x1.fffffep127f), 0x7f80);
}

Test(element, integers_and_doubles_have_their_value)
{
    const int64_t i64 = -5;
    const int32_t i32 = 7;
    const int16_t i16 = -300;
    const int8_t i8 = -1;
    const uint8_t u8 = 255, yes = 3, e4m3[] = {0x38, 0xfe, 0x01},
                  e5m2[] = {0x3c, 0xfb, 0x01}; /* 1, the least, the smallest */
    const double f64 = 0.1;
    const struct {
        enum pd_element element;
        const void *stored;
        float value;
    } cases[] = {{PD_ELEMENT_I64, &i64, -5},
                 {PD_ELEMENT_I32, &i32, 7},
                 {PD_ELEMENT_I16, &i16, -300},
                 {PD_ELEMENT_I8, &i8, -1},
                 {PD_ELEMENT_U8, &u8, 255},
                 {PD_ELEMENT_BOOL, &yes, 1},
                 {PD_ELEMENT_F64, &f64, 0.1f},
                 {PD_ELEMENT_F8_E4M3, &e4m3[0], 1},
                 {PD_ELEMENT_F8_E4M3, &e4m3[1], -448},
                 {PD_ELEMENT_F8_E4M3, &e4m3[2], 0x1p-9f},
                 {PD_ELEMENT_F8_E5M2, &e5m2[0], 1},
                 {PD_ELEMENT_F8_E5M2, &e5m2[1], -57344},
                 {PD_ELEMENT_F8_E5M2, &e5m2[2], 0x1p-16f}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float value;
        pd_elements[cases[i].element].to_f32(cases[i].stored, 1, &value);
        cr_assert_eq(value, cases[i].value, "%s", pd_elements[cases[i].element].name);
    }
}

Test(element, quantised_blocks_are_read_as_by_the_reference)
{
    static const struct {
        enum pd_element element;
        int halves[2]; /* where scales lie: they are made finite */
        uint64_t digest;
    } cases[] = {
        {PD_ELEMENT_Q8_0, {0, 0}, 0xa7fc7cf95227ec07},     {PD_ELEMENT_Q4_0, {0, 0}, 0xd61ec0ea26daea77},
        {PD_ELEMENT_Q4_1, {0, 2}, 0xbb4a8e1266dbcf69},     {PD_ELEMENT_Q5_0, {0, 0}, 0x3fa2b9ec98b1c7f7},
        {PD_ELEMENT_Q5_1, {0, 2}, 0x08fb45671ca10e58},     {PD_ELEMENT_Q4_K, {0, 2}, 0x2c26f9f00c99dc21},
        {PD_ELEMENT_Q6_K, {208, 208}, 0xbf925509aba6138a},
    };
    enum { BLOCKS = 64, BYTES = BLOCKS * 210, VALUES = BLOCKS * 256 };
    unsigned char *stored = malloc(BYTES);
    float *values = malloc(VALUES * sizeof *values);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct pd_element_row *row = &pd_elements[cases[i].element];
        fill(stored, BLOCKS * row->block_bytes, 100 + i);
        for (size_t b = 0; b < BLOCKS; b++)
            for (int h = 0; h < (cases[i].halves[0] == cases[i].halves[1] ? 1 : 2); h++)
                stored[b * row->block_bytes + (size_t)cases[i].halves[h] + 1] &= 0xbf;
        row->to_f32(stored, BLOCKS, values);
        cr_assert_eq(pd_digest64(values, BLOCKS * row->block_elements * sizeof *values, 0), cases[i].digest, "%s",
                     row->name);
    }
    free(stored);
    free(values);
}

Test(element, q8_0_is_written_as_by_the_reference)
{
    enum { VALUES = 2048 };
    unsigned char bytes[4 * VALUES], stored[VALUES / 32 * 34];
    float values[VALUES];
    fill(bytes, sizeof bytes, 200);
    for (int i = 0; i < VALUES; i++) {
        uint32_t word;
        memcpy(&word, bytes + 4 * i, sizeof word);
        values[i] = ((float)(word >> 8) - 0x1p23f) * 0x1p-20f;
    }
    pd_elements[PD_ELEMENT_Q8_0].from_f32(values, VALUES / 32, stored);
    cr_assert_eq(pd_digest64(stored, sizeof stored, 0), 0xe459ffca5051e2c3);
    const float odd[32] = {NAN, INFINITY, -INFINITY, 1};
    pd_elements[PD_ELEMENT_Q8_0].from_f32(odd, 1, stored); /* no value of it is defined; the sanitizer watches */
}
