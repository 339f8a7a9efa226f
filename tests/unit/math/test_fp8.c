/* fp8: every code and what lies between neighbours, scales, codes of matrices on every instruction set, and products of
 * codes against the chain of fused multiply-adds of what they stand for. */
#include "fixture.h"
#include "trainer/math/fp8.h"

enum { CODES = 128 };

static const enum pd_fp8 formats[] = {PD_FP8_E4M3, PD_FP8_E5M2};

/* From the definition of the formats; infinity and NaN are not asked for. */
static double value_of(enum pd_fp8 format, uint32_t code)
{
    const int mantissa = format == PD_FP8_E4M3 ? 3 : 2, bias = format == PD_FP8_E4M3 ? 7 : 15;
    const int exponent = (int)(code & 0x7f) >> mantissa;
    const double fraction = (double)(code & ((1u << mantissa) - 1)) / (1 << mantissa), sign = code & 0x80 ? -1 : 1;
    return sign * (exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias));
}

static uint32_t largest_code(enum pd_fp8 format)
{
    return format == PD_FP8_E4M3 ? 0x7e : 0x7b;
}

Test(fp8, every_code_is_what_the_format_says)
{
    for (int f = 0; f < 2; f++) {
        const enum pd_fp8 format = formats[f];
        cr_assert_eq(value_of(format, largest_code(format)), format == PD_FP8_E4M3 ? 448 : 57344);
        for (uint32_t code = 0; code < 256; code++) {
            const float got = pd_f32_of_fp8(format, (uint8_t)code);
            const uint32_t size = code & 0x7f;
            if (size <= largest_code(format)) {
                cr_assert_eq((double)got, value_of(format, code), "format %d, code %02x", format, code);
                cr_assert_eq(signbit(got) != 0, code >> 7, "format %d, code %02x", format, code);
                cr_assert_eq(pd_fp8_of_f32(format, got), code, "format %d, code %02x", format, code);
            } else if (format == PD_FP8_E5M2 && size == 0x7c) {
                cr_assert_eq((double)got, code & 0x80 ? -INFINITY : INFINITY);
                cr_assert_eq(pd_fp8_of_f32(format, got), code);
            } else {
                cr_assert(isnan(got), "format %d, code %02x", format, code);
                cr_assert_eq(pd_fp8_of_f32(format, got) & 0x7f, 0x7f);
            }
        }
    }
}

Test(fp8, rounds_to_nearest_even)
{
    for (int f = 0; f < 2; f++)
        for (uint32_t i = 0; i < 2 * largest_code(formats[f]); i++) {
            const enum pd_fp8 format = formats[f];
            const uint32_t sign = i & 1 ? 0x80 : 0, size = i / 2;
            const double here = value_of(format, size), next = value_of(format, size + 1), s = sign ? -1 : 1;
            const float middle = (float)((here + next) / 2);
            cr_assert_eq(pd_fp8_of_f32(format, (float)(s * middle)), sign | (size + (size & 1)), "code %02x", size);
            cr_assert_eq(pd_fp8_of_f32(format, (float)(s * nextafterf(middle, 0))), sign | size, "code %02x", size);
            cr_assert_eq(pd_fp8_of_f32(format, (float)(s * nextafterf(middle, 1e30f))), sign | (size + 1), "code %02x",
                         size);
        }
}

Test(fp8, stops_at_the_largest_and_keeps_what_is_not_finite)
{
    static const float beyond[] = {448, 449, 464, 480, 1e6f, 57344, 61440, 65536, 3e38f};
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        cr_assert_eq(pd_fp8_of_f32(PD_FP8_E4M3, beyond[i]), 0x7e, "%g", (double)beyond[i]);
        cr_assert_eq(pd_fp8_of_f32(PD_FP8_E4M3, -beyond[i]), 0xfe);
        if (beyond[i] >= 57344) cr_assert_eq(pd_fp8_of_f32(PD_FP8_E5M2, beyond[i]), 0x7b, "%g", (double)beyond[i]);
    }
    cr_assert_eq(pd_fp8_of_f32(PD_FP8_E4M3, INFINITY), 0x7f);
    cr_assert_eq(pd_fp8_of_f32(PD_FP8_E5M2, INFINITY), 0x7c);
    cr_assert_eq(pd_fp8_of_f32(PD_FP8_E5M2, -INFINITY), 0xfc);
    cr_assert_eq(pd_fp8_of_f32(PD_FP8_E4M3, NAN) & 0x7f, 0x7f);
    cr_assert_eq(pd_fp8_of_f32(PD_FP8_E5M2, NAN) & 0x7f, 0x7f);
    cr_assert_eq(pd_fp8_of_f32(PD_FP8_E4M3, -0.0f), 0x80);
    cr_assert_eq(pd_fp8_of_f32(PD_FP8_E4M3, 1e-40f), 0);
}

static float scale_of(enum pd_fp8 format, float largest)
{
    return pd_fp8_scale_of(format, pd_fp8_bits(largest));
}

Test(fp8, a_scale_puts_the_largest_as_high_as_it_goes)
{
    cr_assert_eq(scale_of(PD_FP8_E4M3, 448), 1);
    cr_assert_eq(scale_of(PD_FP8_E4M3, 449), 2);
    cr_assert_eq(scale_of(PD_FP8_E5M2, 57344), 1);
    cr_assert_eq(scale_of(PD_FP8_E5M2, 57345), 2);
    cr_assert_eq(scale_of(PD_FP8_E4M3, 0), 1);
    cr_assert_eq(scale_of(PD_FP8_E4M3, INFINITY), 1);
    cr_assert_eq(scale_of(PD_FP8_E5M2, NAN), 1);
    cr_assert_eq(scale_of(PD_FP8_E5M2, 1e-40f), 0x1p-63f);
    uint64_t state = 3;
    for (int i = 0; i < 10000; i++) {
        const enum pd_fp8 format = formats[i & 1];
        const double most = format == PD_FP8_E4M3 ? 448 : 57344;
        const float x = (float)ldexp(1 + (double)(random_u64(&state) >> 12) * 0x1p-52, (int)(random_u64(&state) % 160) - 47);
        const float scale = scale_of(format, x), inverse = pd_fp8_inverse(scale);
        int exponent;
        cr_assert_eq(frexpf(scale, &exponent), 0.5f, "%a of %a is not a power of two", (double)scale, (double)x);
        cr_assert_eq(scale * inverse, 1);
        cr_assert(x * inverse <= most && x * inverse > most / 2, "%a of %a", (double)scale, (double)x);
    }
}

/* ---- codes of matrices ---- */

struct codes {
    uint64_t rows, columns, ld, ld_across;
    uint8_t *plain, *across;
    float scale[PD_FP8_SCALE_FLOATS];
};

static struct codes quantized(struct pd_math *math, enum pd_fp8 format, const struct array *x, uint64_t rows,
                              uint64_t columns, uint64_t ld)
{
    const uint64_t padded = rows % 2 ? (rows + 15) / 16 * 16 : rows;
    struct codes c = {.rows = rows, .columns = columns, .ld = columns + 3, .ld_across = padded + 5};
    struct pd_error err;
    c.plain = malloc(rows * c.ld);
    c.across = malloc(columns * c.ld_across);
    memset(c.plain, 0x55, rows * c.ld);
    memset(c.across, 0x55, columns * c.ld_across);
    const struct pd_quantize q = {.rows = rows,
                                  .columns = columns,
                                  .x = {x->data, x->dtype, ld},
                                  .format = format,
                                  .codes = c.plain,
                                  .transposed = c.across,
                                  .ld_codes = c.ld,
                                  .ld_transposed = c.ld_across,
                                  .transposed_rows = padded > rows ? padded : 0,
                                  .scale = c.scale};
    cr_assert_eq(pd_quantize(math, &q, &err), PD_OK);
    return c;
}

static void codes_free(struct codes *c)
{
    free(c->plain);
    free(c->across);
}

static void check_matrix_codes(struct fixture *f, enum pd_fp8 format, enum pd_dtype dtype, uint64_t rows, uint64_t columns)
{
    uint64_t state = rows * 31 + columns, ld = columns + 2;
    struct array x = array_random(dtype, rows * ld, 0.01, &state);
    struct codes c = quantized(f->math, format, &x, rows, columns, ld);
    float largest = 0;
    for (uint64_t i = 0; i < rows * columns; i++)
        largest = fmaxf(largest, fabsf((float)x.exact[i / columns * ld + i % columns]));
    const float scale = scale_of(format, largest);
    cr_assert_eq(c.scale[0], scale, "%s: scale %a, not %a", pd_isa_name(f->math->isa), (double)c.scale[0], (double)scale);
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t k = 0; k < c.ld; k++) {
            const float value = k < columns ? (float)x.exact[i * ld + k] * pd_fp8_inverse(scale) : 0;
            const uint8_t want = k < columns ? pd_fp8_of_f32(format, value) : 0x55;
            cr_assert_eq(c.plain[i * c.ld + k], want, "%s, %s, (%lu, %lu)", pd_isa_name(f->math->isa), pd_dtype_name(dtype),
                         i, k);
            if (k < columns) cr_assert_eq(c.across[k * c.ld_across + i], want, "across (%lu, %lu)", k, i);
        }
    for (uint64_t k = 0; k < columns; k++)
        for (uint64_t i = rows; i < c.ld_across; i++)
            cr_assert_eq(c.across[k * c.ld_across + i], i + 5 < c.ld_across ? 0 : 0x55, "across (%lu, %lu)", k, i);
    codes_free(&c);
    array_free(&x);
}

/* out = x (m,k) y (n,k)^T + bias + residual: bits of the chain of what codes stand for, in fp32 or rounded once. */
static void check_product(struct fixture *f, enum pd_dtype result, uint64_t m, uint64_t n, uint64_t k)
{
    uint64_t state = m + 100 * n + 10000 * k;
    struct array x = array_random(PD_BF16, m * k, 3, &state), y = array_random(PD_BF16, n * k, 0.02, &state);
    struct array bias = array_random(result, n, 1, &state), added = array_random(result, m * n, 1, &state);
    struct array out = array_new(result, m * n);
    struct codes a = quantized(f->math, PD_FP8_E5M2, &x, m, k, k), b = quantized(f->math, PD_FP8_E4M3, &y, n, k, k);
    const struct pd_gemm g = {.m = m,
                              .n = n,
                              .k = k,
                              .trans_b = true,
                              .a = {a.plain, PD_F32, a.ld},
                              .b = {b.plain, PD_F32, b.ld},
                              .c = {out.data, result, n},
                              .bias = bias.data,
                              .bias_dtype = result,
                              .residual = {added.data, result, n},
                              .a_format = PD_FP8_E5M2,
                              .b_format = PD_FP8_E4M3,
                              .a_scale = a.scale,
                              .b_scale = b.scale};
    struct pd_error err;
    double worst = 0, size = 0;
    cr_assert_eq(pd_gemm(f->math, &g, &err), PD_OK);
    for (uint64_t i = 0; i < m; i++)
        for (uint64_t j = 0; j < n; j++) {
            float sum = 0, want;
            double exact = 0, unrounded = 0;
            for (uint64_t l = 0; l < k; l++) {
                const float p = pd_f32_of_fp8(PD_FP8_E5M2, a.plain[i * a.ld + l]) * a.scale[0];
                const float q = pd_f32_of_fp8(PD_FP8_E4M3, b.plain[j * b.ld + l]) * b.scale[0];
                sum = fmaf(p, q, sum);
                exact += (double)p * (double)q;
                unrounded += x.exact[i * k + l] * y.exact[j * k + l];
            }
            sum += (float)bias.exact[j];
            sum += (float)added.exact[i * n + j];
            exact += bias.exact[j] + added.exact[i * n + j];
            value_put(result, out.exact, 0, (double)sum); /* rounded once, by way of memory of its own */
            want = (float)value_get(result, out.exact, 0);
            cr_assert_eq((float)value_get(result, out.data, i * n + j), want, "%s: (%lu, %lu)", pd_isa_name(f->math->isa), i,
                         j);
            cr_assert_float_eq((double)sum, exact, 1e-5 * (fabs(exact) + 10));
            worst = fmax(worst, fabs(exact - bias.exact[j] - added.exact[i * n + j] - unrounded));
            size = fmax(size, fabs(unrounded));
        }
    cr_assert_lt(worst, 0.2 * size + 0.2, "codes are far from what they stand for: %g of %g", worst, size);
    codes_free(&a), codes_free(&b);
    array_free(&x), array_free(&y), array_free(&bias), array_free(&added), array_free(&out);
}

/* Two products onto one sum: the second chain goes on from the first, whatever their scales. */
static void check_accumulation(struct fixture *f)
{
    const uint64_t m = 19, n = 33, k = 40;
    uint64_t state = 8;
    struct array x = array_random(PD_F32, m * k, 1, &state), y = array_random(PD_F32, n * k, 1e-3, &state);
    struct array out = array_random(PD_F32, m * n, 1, &state);
    struct codes a = quantized(f->math, PD_FP8_E4M3, &x, m, k, k), b = quantized(f->math, PD_FP8_E4M3, &y, n, k, k);
    const struct pd_gemm g = {.m = m,
                              .n = n,
                              .k = k,
                              .trans_b = true,
                              .accumulate = true,
                              .a = {a.plain, PD_F32, a.ld},
                              .b = {b.plain, PD_F32, b.ld},
                              .c = {out.data, PD_F32, n},
                              .a_format = PD_FP8_E4M3,
                              .b_format = PD_FP8_E4M3,
                              .a_scale = a.scale,
                              .b_scale = b.scale};
    struct pd_error err;
    cr_assert_eq(pd_gemm(f->math, &g, &err), PD_OK);
    for (uint64_t i = 0; i < m * n; i++) {
        float sum = (float)out.exact[i];
        for (uint64_t l = 0; l < k; l++)
            sum = fmaf(pd_f32_of_fp8(PD_FP8_E4M3, a.plain[i / n * a.ld + l]) * a.scale[0],
                       pd_f32_of_fp8(PD_FP8_E4M3, b.plain[i % n * b.ld + l]) * b.scale[0], sum);
        cr_assert_eq(((float *)out.data)[i], sum, "element %lu", i);
    }
    codes_free(&a), codes_free(&b);
    array_free(&x), array_free(&y), array_free(&out);
}

Test(fp8, matrices_and_products_on_every_instruction_set)
{
    static const enum pd_isa isas[] = {PD_ISA_PORTABLE, PD_ISA_AVX2, PD_ISA_AVX512};
    static const uint64_t sizes[][2] = {{1, 1}, {3, 130}, {64, 64}, {65, 15}, {130, 97}};
    for (size_t i = 0; i < 3; i++) {
        if (!pd_isa_available(isas[i])) continue;
        struct fixture f = fixture_new(isas[i], 1 + (unsigned)i);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int dtype = 0; dtype < 3; dtype++)
                check_matrix_codes(&f, formats[(s + (size_t)dtype) % 2], (enum pd_dtype)dtype, sizes[s][0], sizes[s][1]);
        check_product(&f, PD_F32, 5, 3, 7);
        check_product(&f, PD_BF16, 33, 70, 130);
        check_product(&f, PD_F16, 70, 33, 65);
        check_product(&f, PD_F32, 20, 40, 1100);
        check_accumulation(&f);
        fixture_free(&f);
    }
}

Test(fp8, what_is_not_finite_stays_that)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    uint64_t state = 1;
    struct array x = array_random(PD_F32, 100, 1, &state);
    ((float *)x.data)[17] = INFINITY;
    struct codes c = quantized(f.math, PD_FP8_E5M2, &x, 10, 10, 10);
    cr_assert_eq(c.plain[1 * c.ld + 7], 0x7c);
    cr_assert_eq(c.scale[0], 1);
    codes_free(&c);
    ((float *)x.data)[17] = NAN;
    c = quantized(f.math, PD_FP8_E4M3, &x, 10, 10, 10);
    cr_assert_eq(c.plain[1 * c.ld + 7] & 0x7f, 0x7f);
    codes_free(&c);
    array_free(&x);
    fixture_free(&f);
}
