#include "fixture.h"
#include "reference.h"

static const size_t counts[] = {1, 15, 16, 17, 33, 1000, 40003};

Test(pointwise, gelu_agrees_with_float64)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t c = 0; c < 7; c++) {
        for (size_t d = 0; d < 3; d++) {
            uint64_t seed = c + 1;
            enum pd_dtype dtype = all_dtypes[d];
            struct array x = array_random(dtype, counts[c], 3, &seed), dout = array_random(dtype, counts[c], 1, &seed);
            struct array out = array_new(dtype, counts[c]), dx = array_new(dtype, counts[c]);
            MUST(pd_gelu_forward(f.math, counts[c], dtype, x.data, out.data, &err));
            ref_gelu_forward(counts[c], x.exact, out.exact);
            array_check(&out, 4, "gelu");
            MUST(pd_gelu_backward(f.math, counts[c], dtype, x.data, dout.data, dx.data, &err));
            ref_gelu_backward(counts[c], x.exact, dout.exact, dx.exact);
            array_check(&dx, 32, "gelu backward");
            MUST(pd_gelu_backward(f.math, counts[c], dtype, x.data, dout.data, x.data, &err));
            cr_assert_arr_eq(x.data, dx.data, counts[c] * pd_dtype_bytes(dtype), "dx over x");
            struct array *all[] = {&x, &dout, &out, &dx};
            for (size_t i = 0; i < 4; i++)
                array_free(all[i]);
        }
    }
    fixture_free(&f);
}

/* Values where a careless formula overflows or cancels. */
Test(pointwise, gelu_of_extremes)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    float x[9] = {-1e30f, -1e4f, -30, -9, 0, 9, 30, 1e4f, 1e30f}, one[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, out[9], dx[9];
    MUST(pd_gelu_forward(f.math, 9, PD_F32, x, out, &err));
    MUST(pd_gelu_backward(f.math, 9, PD_F32, x, one, dx, &err));
    for (int i = 0; i < 9; i++) {
        cr_assert_float_eq(out[i] / (x[i] > 0 ? x[i] : 1), x[i] > 0 ? 1 : 0, 1e-6, "gelu(%g) = %g", (double)x[i],
                           (double)out[i]);
        if (fabsf(x[i]) < 1e9f)
            cr_assert_float_eq(dx[i],
                               x[i] > 0   ? 1
                               : x[i] < 0 ? 0
                                          : 0.5f,
                               1e-6, "gelu'(%g) = %g", (double)x[i], (double)dx[i]);
    }
    fixture_free(&f);
}

Test(pointwise, swiglu_agrees_with_float64)
{
    static const size_t sizes[][2] = {{1, 1}, {3, 15}, {2, 16}, {5, 17}, {4, 33}, {9, 1000}};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t s = 0; s < 6; s++) {
        for (size_t d = 0; d < 3; d++) {
            uint64_t seed = s + 1;
            size_t rows = sizes[s][0], columns = sizes[s][1], count = rows * columns;
            enum pd_dtype dtype = all_dtypes[d];
            struct array x = array_random(dtype, 2 * count, 3, &seed), dout = array_random(dtype, count, 1, &seed);
            struct array out = array_new(dtype, count), dx = array_new(dtype, 2 * count);
            MUST(pd_swiglu_forward(f.math, rows, columns, dtype, x.data, out.data, &err));
            ref_swiglu_forward(rows, columns, x.exact, out.exact);
            array_check(&out, 4, "swiglu");
            MUST(pd_swiglu_backward(f.math, rows, columns, dtype, x.data, dout.data, dx.data, &err));
            ref_swiglu_backward(rows, columns, x.exact, dout.exact, dx.exact);
            array_check(&dx, 4, "swiglu backward");
            MUST(pd_swiglu_backward(f.math, rows, columns, dtype, x.data, dout.data, x.data, &err));
            cr_assert_arr_eq(x.data, dx.data, 2 * count * pd_dtype_bytes(dtype), "in place");
            struct array *all[] = {&x, &dout, &out, &dx};
            for (size_t i = 0; i < 4; i++)
                array_free(all[i]);
        }
    }
    fixture_free(&f);
}

Test(pointwise, rope_agrees_with_float64_and_turns_back)
{
    static const size_t sizes[][3] = {{1, 1, 2}, {5, 2, 6}, {3, 1, 30}, {4, 3, 32}, {7, 2, 34}, {33, 4, 64}, {2, 1, 256}};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t s = 0; s < 7; s++) {
        for (size_t d = 0; d < 3; d++) {
            uint64_t seed = s + 1;
            enum { POSITIONS = 50 };
            size_t rows = sizes[s][0], heads = sizes[s][1], size = sizes[s][2], count = rows * heads * size;
            enum pd_dtype dtype = all_dtypes[d];
            struct array x = array_random(dtype, count, 1, &seed), table = array_new(PD_F32, POSITIONS * size);
            int32_t positions[33];
            for (size_t r = 0; r < rows; r++)
                positions[r] = (int32_t)(random_u64(&seed) % POSITIONS);
            for (size_t i = 0; i < POSITIONS * size / 2; i++) {
                double angle = 6.28 * (double)(random_u64(&seed) % 1000) / 1000;
                value_put(PD_F32, table.data, 2 * i, cos(angle));
                value_put(PD_F32, table.data, 2 * i + 1, sin(angle));
            }
            for (size_t i = 0; i < POSITIONS * size; i++)
                table.exact[i] = value_get(PD_F32, table.data, i);
            struct pd_rope rope = {.rows = rows,
                                   .heads = (uint32_t)heads,
                                   .head_size = (uint32_t)size,
                                   .dtype = dtype,
                                   .x = x.data,
                                   .ld = heads * size,
                                   .positions = positions,
                                   .cos_sin = table.data};
            MUST(pd_rope(f.math, &rope, &err));
            ref_rope(rows, heads, size, x.exact, positions, table.exact, false);
            array_check(&x, 4, "rope");
            for (size_t i = 0; i < count; i++)
                x.exact[i] = value_get(dtype, x.data, i);
            rope.inverse = true;
            MUST(pd_rope(f.math, &rope, &err));
            ref_rope(rows, heads, size, x.exact, positions, table.exact, true);
            array_check(&x, 4, "rope backward");
            array_free(&x);
            array_free(&table);
        }
    }
    fixture_free(&f);
}

/* Every bit pattern of both 16-bit formats, and what rounds to them. */
Test(pointwise, cast_rounds_as_the_formats_say)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    enum { ALL = 65536 };
    uint16_t *half = malloc(ALL * sizeof *half), *back = malloc(ALL * sizeof *back);
    float *wide = malloc(ALL * sizeof *wide);
    for (int i = 0; i < ALL; i++)
        half[i] = (uint16_t)i;
    for (int d = 1; d < 3; d++) {
        enum pd_dtype dtype = all_dtypes[d];
        MUST(pd_cast(f.math, ALL, PD_F32, wide, dtype, half, &err));
        MUST(pd_cast(f.math, ALL, dtype, back, PD_F32, wide, &err));
        for (int i = 0; i < ALL; i++) {
            float want = dtype == PD_BF16 ? pd_f32_from_bf16(half[i]) : pd_f32_from_f16(half[i]);
            cr_assert(isnan(want) ? isnan(wide[i]) : memcmp(&want, &wide[i], 4) == 0, "%s %04x", pd_dtype_name(dtype), i);
            cr_assert(isnan(want) || back[i] == half[i], "%s %04x came back %04x", pd_dtype_name(dtype), i, back[i]);
        }
        uint64_t seed = 5;
        for (int i = 0; i < ALL; i++) { /* around the middle between two neighbours */
            uint32_t bits = (uint32_t)random_u64(&seed), middle = dtype == PD_BF16 ? 0x8000 : 0x1000;
            if (i % 2) bits = (bits & ~(2 * middle - 1)) + middle + (uint32_t)(random_u64(&seed) % 3) - 1;
            if (((bits >> 23) & 255) < 100 || ((bits >> 23) & 255) == 255) bits = (bits & 0x807fffff) | 0x3f800000;
            memcpy(&wide[i], &bits, 4);
        }
        MUST(pd_cast(f.math, ALL, dtype, back, PD_F32, wide, &err));
        for (int i = 0; i < ALL; i++) {
            uint16_t want = dtype == PD_BF16 ? pd_bf16_from_f32(wide[i]) : pd_f16_from_f32(wide[i]);
            cr_assert_eq(back[i], want, "%s of %a: %04x, not %04x", pd_dtype_name(dtype), (double)wide[i], back[i], want);
        }
    }
    free(half);
    free(back);
    free(wide);
    fixture_free(&f);
}

Test(pointwise, cast_between_the_half_formats_and_to_itself)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    uint64_t seed = 4;
    struct array x = array_random(PD_BF16, 37, 1, &seed);
    uint16_t copy[37], f16[37];
    MUST(pd_cast(f.math, 37, PD_BF16, copy, PD_BF16, x.data, &err));
    cr_assert_arr_eq(copy, x.data, sizeof copy);
    MUST(pd_cast(f.math, 37, PD_F16, f16, PD_BF16, x.data, &err));
    for (size_t i = 0; i < 37; i++)
        cr_assert_eq(f16[i], pd_f16_from_f32((float)x.exact[i]));
    array_free(&x);
    fixture_free(&f);
}

Test(pointwise, add)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t c = 0; c < 7; c++) {
        uint64_t seed = c + 1;
        struct array sum = array_random(PD_F32, counts[c], 1, &seed), more = array_random(PD_F32, counts[c], 1, &seed);
        MUST(pd_add(f.math, counts[c], sum.data, more.data, &err));
        for (size_t i = 0; i < counts[c]; i++)
            cr_assert_eq(value_get(PD_F32, sum.data, i), (float)(sum.exact[i] + more.exact[i]));
        array_free(&sum);
        array_free(&more);
    }
    fixture_free(&f);
}

Test(pointwise, column_sum_adds_rows_in_order)
{
    static const size_t sizes[][3] = {{0, 5, 5}, {1, 1, 1}, {4, 15, 20}, {9, 64, 64}, {33, 200, 211}, {500, 65, 65}};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t s = 0; s < 6; s++) {
        for (size_t d = 0; d < 3; d++) {
            uint64_t seed = s + 1;
            size_t rows = sizes[s][0], n = sizes[s][1], ld = sizes[s][2];
            struct array x = array_random(all_dtypes[d], rows * ld + 1, 1, &seed);
            float out[200];
            MUST(pd_column_sum(f.math, rows, n, ld, all_dtypes[d], x.data, out, &err));
            for (size_t j = 0; j < n; j++) {
                float want = 0;
                for (size_t r = 0; r < rows; r++)
                    want += (float)x.exact[r * ld + j];
                cr_assert_eq(out[j], want, "(%zu,%zu) column %zu", rows, n, j);
            }
            array_free(&x);
        }
    }
    fixture_free(&f);
}

Test(pointwise, row_squares_in_sixteen_lanes)
{
    static const size_t sizes[][2] = {{1, 1}, {3, 15}, {2, 16}, {5, 17}, {4, 1000}, {300, 200}};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t s = 0; s < 6; s++) {
        uint64_t seed = s + 1;
        size_t rows = sizes[s][0], columns = sizes[s][1];
        struct array x = array_random(PD_F32, rows * columns, 1e-20, &seed);
        double sums[300];
        MUST(pd_row_squares(f.math, rows, columns, x.data, sums, &err));
        for (size_t r = 0; r < rows; r++) {
            double lane[16] = {0};
            for (size_t i = 0; i < columns; i++)
                lane[i % 16] += x.exact[r * columns + i] * x.exact[r * columns + i];
            for (int half = 8; half >= 1; half /= 2)
                for (int l = 0; l < half; l++)
                    lane[l] += lane[l + half];
            cr_assert_eq(sums[r], lane[0], "(%zu,%zu) row %zu: %a, not %a", rows, columns, r, sums[r], lane[0]);
        }
        array_free(&x);
    }
    fixture_free(&f);
}

/* Several tasks of rows; what lies between rows stays. */
Test(pointwise, rows_are_copied_alone)
{
    enum { ROWS = 30000, BYTES = 6, FROM = 11, TO = 8 };
    static unsigned char from[ROWS * FROM], to[ROWS * TO];
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)(i * 7 + i / 251);
    memset(to, 0xEE, sizeof to);
    MUST(pd_copy_rows(f.math, ROWS, BYTES, to, TO, from, FROM, &err));
    for (size_t i = 0; i < sizeof to; i++) {
        const unsigned char want = i % TO < BYTES ? from[i / TO * FROM + i % TO] : 0xEE;
        cr_assert_eq(to[i], want, "byte %zu of row %zu", i % TO, i / TO);
    }
    fixture_free(&f);
}
