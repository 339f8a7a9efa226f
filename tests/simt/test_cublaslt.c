/* GEMMs by cuBLASLt's stand-in (cublaslt.c) beside those of our own kernel: what is described to the library, which of its
 * algorithms is taken, and what is said where it has none. */
#include "ckpt/base/log.h"
#include "tests/helpers/scale.h"
#include "tests/simt/cublaslt.h"
#include "tests/simt/simt_fixture.h"
#include "trainer/math/cuda/gemm.h"

static struct pd_error err;
#define DONE(call) cr_assert_eq(call, PD_OK, "%s", err.message)

static uint32_t multiprocessors; /* of gemms_new */

static struct pd_cuda_gemms *gemms_new(bool invariant, bool any_shape)
{
    struct pd_cuda_gemms *gemms;
    void *workspace = NULL;
    cr_assert_eq(posix_memalign(&workspace, 256, PD_CUDA_GEMM_WORKSPACE_BYTES), 0);
    const struct pd_cuda_gemms_options options = {invariant, any_shape, multiprocessors, workspace};
    DONE(pd_cuda_gemms_new(&options, &gemms, &err));
    return gemms;
}

struct form {
    uint64_t m, n, k, pad; /* pad: elements between rows; of 3 A begins one element too late, of 5 B */
    enum pd_dtype in, out;
    bool trans_a, trans_b, accumulate, bias, residual, in_place; /* in_place: the residual is C */
    enum pd_fp8 a_format, b_format;
    bool rows_vary;
};

static struct buffer operand(const struct form *f, uint64_t rows, uint64_t columns, enum pd_fp8 format, size_t shift,
                             uint64_t *seed)
{
    struct buffer r = buffer_random(f->in, rows * (columns + f->pad), shift, 1, seed);
    for (size_t i = 0; i < r.count && format; i++)
        ((uint8_t *)r.data)[i] = (uint8_t)(random_u64(seed) % 0x70); /* finite in either format */
    return r;
}

/* The product by cuBLASLt and by our kernel, on the same operands; whether the library made it. */
static bool agree(struct pd_cuda_gemms *gemms, const struct form *f, const char *what)
{
    uint64_t seed = 99;
    const float a_scale = 0.5f, b_scale = 0.25f;
    const uint64_t a_columns = f->trans_a ? f->m : f->k, b_columns = f->trans_b ? f->k : f->n;
    struct buffer a = operand(f, f->trans_a ? f->k : f->m, a_columns, f->a_format, f->pad == 3, &seed);
    struct buffer b = operand(f, f->trans_b ? f->n : f->k, b_columns, f->b_format, f->pad == 5, &seed);
    struct buffer want = buffer_random(f->out, f->m * (f->n + f->pad), 0, 1, &seed), got = buffer_copy(&want);
    struct buffer bias = buffer_random(f->out, f->n, 0, 1, &seed), residual = buffer_random(f->out, want.count, 0, 1, &seed);
    struct pd_gemm g = {.m = f->m, .n = f->n, .k = f->k, .trans_a = f->trans_a, .trans_b = f->trans_b};
    g.a = (struct pd_matrix){a.data, f->in, a_columns + f->pad};
    g.b = (struct pd_matrix){b.data, f->in, b_columns + f->pad};
    g.c = (struct pd_matrix){want.data, f->out, f->n + f->pad};
    g.accumulate = f->accumulate;
    g.varies = !f->rows_vary ? PD_VARIES_NOT : f->trans_a ? PD_VARIES_K : PD_VARIES_M;
    g.bias = f->bias ? bias.data : NULL;
    g.bias_dtype = f->out;
    if (f->residual) g.residual = (struct pd_matrix){residual.data, f->out, f->n + f->pad};
    if (f->in_place) g.residual = g.c;
    g.a_format = f->a_format, g.b_format = f->b_format;
    g.a_scale = &a_scale, g.b_scale = &b_scale;
    DONE(pd_cuda_gemm_plain(NULL, &g, &err));
    g.c.data = got.data;
    if (f->in_place) g.residual = g.c;
    const uint32_t before = simt_cublaslt_counted().gemms;
    DONE(pd_cuda_gemms_run(gemms, NULL, &g, &err));
    double difference = 0, size = 0;
    for (size_t i = 0; i < want.count; i++) {
        const double x = value_get(f->out, want.data, i), d = value_get(f->out, got.data, i) - x;
        difference += d * d, size += x * x;
    }
    const double off = sqrt(difference / size), most = f->out == PD_F32 ? 1e-5 : 5e-4;
    cr_assert(off < most, "%s, %llu x %llu x %llu, transposed %d %d, in %d out %d: off by %g", what,
              (unsigned long long)f->m, (unsigned long long)f->n, (unsigned long long)f->k, f->trans_a, f->trans_b, f->in,
              f->out, off);
    buffer_free(&a), buffer_free(&b), buffer_free(&want), buffer_free(&got), buffer_free(&bias), buffer_free(&residual);
    return simt_cublaslt_counted().gemms > before;
}

/* Everything that is added, and every transposition. */
static void agree_in_all_ways(struct pd_cuda_gemms *gemms, struct form f)
{
    for (int way = 0; way < 4; way++)
        for (int added = 0; added < 5; added++) {
            f.trans_a = way & 1, f.trans_b = way & 2;
            f.bias = added == 1 || added == 2;
            f.residual = added == 2;
            f.in_place = added == 3;
            f.accumulate = added == 4 && f.out == PD_F32;
            cr_assert(agree(gemms, &f, "in all ways"), "the library is not asked for %d, %d", way, added);
        }
}

Test(simt_cublaslt, are_what_the_library_is_told)
{
    static const enum pd_dtype types[][2] = {
        {PD_BF16, PD_BF16}, {PD_BF16, PD_F32}, {PD_F16, PD_F16}, {PD_F16, PD_F32}, {PD_F32, PD_F32}};
    for (int invariant = 0; invariant < 2; invariant++)
        for (int any_shape = 0; any_shape <= invariant; any_shape++) {
            struct pd_cuda_gemms *gemms = gemms_new(invariant, any_shape);
            for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
                agree_in_all_ways(gemms, (struct form){24, 40, 128, 0, types[t][0], types[t][1], .a_format = 0});
                agree_in_all_ways(gemms, (struct form){7, 13, 35, 3, types[t][0], types[t][1], .a_format = 0});
                agree_in_all_ways(gemms, (struct form){1, 9, 20, 5, types[t][0], types[t][1], .a_format = 0});
            }
            pd_cuda_gemms_free(gemms);
        }
}

/* Both operands contiguous along k, rows of multiples of 16, not E5M2 twice; the others are ours. */
Test(simt_cublaslt, codes_are_in_the_form_that_the_library_takes)
{
    struct pd_cuda_gemms *gemms = gemms_new(true, false);
    struct form f = {.m = 24, .n = 48, .k = 128, .in = PD_BF16, .out = PD_BF16, .trans_b = true};
    f.a_format = PD_FP8_E5M2, f.b_format = PD_FP8_E4M3;
    cr_assert(agree(gemms, &f, "E5M2 and E4M3"));
    f.a_format = PD_FP8_E4M3, f.bias = true;
    cr_assert(agree(gemms, &f, "with a bias"));
    f.residual = true;
    cr_assert(agree(gemms, &f, "with a residual"));
    f.bias = f.residual = false, f.out = PD_F32, f.in_place = true;
    cr_assert(agree(gemms, &f, "sums that continue"));
    f.in_place = false, f.k = 120;
    cr_assert_not(agree(gemms, &f, "k of no multiple of 16"));
    f.k = 128, f.n = 40;
    cr_assert_not(agree(gemms, &f, "rows of no multiple of 16"));
    pd_cuda_gemms_free(gemms);
}

/* Gradients keep full sums, and so does everything in the invariant mode. */
Test(simt_cublaslt, fast_sums_codes_of_a_forward_pass_fast)
{
    struct pd_cuda_gemms *invariant = gemms_new(true, false), *fast = gemms_new(false, false);
    struct form f = {.m = 24, .n = 48, .k = 128, .in = PD_BF16, .out = PD_BF16, .trans_b = true};
    f.a_format = f.b_format = PD_FP8_E4M3;
    cr_assert(agree(invariant, &f, "forward, invariant"));
    cr_assert_eq(simt_cublaslt_counted().fast, 0);
    cr_assert(agree(fast, &f, "forward, fast"));
    cr_assert_eq(simt_cublaslt_counted().fast, 1);
    f.a_format = PD_FP8_E5M2;
    cr_assert(agree(fast, &f, "backward, fast"));
    f.a_format = f.b_format = PD_FP8_NONE;
    cr_assert(agree(fast, &f, "bf16, fast"));
    cr_assert_eq(simt_cublaslt_counted().fast, 1);
    pd_cuda_gemms_free(invariant), pd_cuda_gemms_free(fast);
}

/* Of 300 steps the library's split would lose 44, and bf16 sums would be rounded on their way. */
Test(simt_cublaslt, a_split_of_k_loses_nothing)
{
    for (int invariant = 0; invariant < 2; invariant++) {
        struct pd_cuda_gemms *gemms = gemms_new(invariant, false);
        for (uint64_t k = 256; k <= 400; k += 12) {
            const struct form f = {.m = 16, .n = 24, .k = k, .in = PD_BF16, .out = PD_BF16, .trans_b = true};
            cr_assert(agree(gemms, &f, "k"));
        }
        pd_cuda_gemms_free(gemms);
    }
}

/* INPLACE adds partial sums in the result's type: admitted into fp32 alone. */
Test(simt_cublaslt, fast_adds_no_partial_sums_in_16_bits)
{
    struct pd_cuda_gemms *gemms = gemms_new(false, false);
    simt_cublaslt_offer(true, false);
    struct form f = {.m = 16, .n = 24, .k = 1024, .in = PD_BF16, .out = PD_BF16, .trans_b = true};
    cr_assert(agree(gemms, &f, "bf16 into bf16"));
    cr_assert_eq(simt_cublaslt_counted().split, 0, "split in the result's type");
    f.out = PD_F32;
    cr_assert(agree(gemms, &f, "bf16 into fp32"));
    cr_assert_eq(simt_cublaslt_counted().split, 1, "not split into fp32");
    pd_cuda_gemms_free(gemms);
}

static char said[8][256];
static uint32_t lines;

static void keep_line(void *context, const char *line, size_t bytes)
{
    (void)context;
    snprintf(said[lines++ % 8], sizeof said[0], "%.*s", (int)bytes, line);
}

/* Many times slower, and said once a shape. */
Test(simt_cublaslt, a_gemm_without_an_algorithm_is_told_once_a_shape)
{
    struct pd_cuda_gemms *gemms = gemms_new(true, false);
    pd_log_set_sink(keep_line, NULL);
    simt_cublaslt_offer(false, true);
    const struct form one = {.m = 16, .n = 24, .k = 64, .in = PD_BF16, .out = PD_BF16}, other = {.m = 16, .n = 8, .k = 64};
    for (int i = 0; i < 3; i++)
        cr_assert_not(agree(gemms, &one, "nothing is offered"));
    cr_assert_eq(lines, 1, "%u lines", lines);
    cr_assert(strstr(said[0], " warn math") && strstr(said[0], "(16, 64) by (64, 24)") && strstr(said[0], "no algorithm"),
              "%s", said[0]);
    simt_cublaslt_offer(false, false);
    struct form odd = other;
    odd.in = PD_BF16, odd.out = PD_BF16, odd.a_format = PD_FP8_E4M3, odd.b_format = PD_FP8_E4M3, odd.trans_b = true;
    odd.m = 24, odd.n = 40, odd.k = 128;
    for (int i = 0; i < 3; i++)
        cr_assert_not(agree(gemms, &odd, "rows of no multiple of 16"));
    cr_assert_eq(lines, 2, "%u lines", lines);
    cr_assert(strstr(said[1], "does not take"), "%s", said[1]);
    cr_assert_eq(pd_cuda_gemms_plain_shapes(gemms), 2);
    pd_log_set_sink(NULL, NULL);
    pd_cuda_gemms_free(gemms);
}

/* By the shape alone: of how many tiles C is, and of how many steps of k. */
Test(simt_cublaslt, few_tiles_are_made_in_parts_of_k)
{
    static const struct {
        uint64_t m, n, k;
        uint32_t parts;
    } shapes[] = {{24, 40, 4096, 4},      {7, 13, 4608, 4},      {129, 127, 4096, 4},    {24, 40, 4095, 1},
                  {24, 40, 3584, 1},      {24, 40, 4224, 1},     {1, 33 * 128, 4096, 4}, {1, 34 * 128, 4096, 2},
                  {1, 66 * 128, 4096, 2}, {1, 67 * 128, 4096, 1}};
    struct pd_cuda_gemms *gemms = gemms_new(true, false), *fast = gemms_new(false, false), *cut = gemms_new(true, true);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct form f = {shapes[i].m, shapes[i].n, shapes[i].k, 0, PD_BF16, PD_F32, .trans_a = true};
        if (!test_has_turn(i, 2)) continue;
        const uint32_t before = simt_cublaslt_counted().parts;
        cr_assert(agree(gemms, &f, "in parts"));
        cr_assert_eq(simt_cublaslt_counted().parts - before, shapes[i].parts, "%llu x %llu x %llu", (unsigned long long)f.m,
                     (unsigned long long)f.n, (unsigned long long)f.k);
        if (f.n > 128) continue;
        f.in_place = true, f.pad = 3;
        cr_assert(agree(gemms, &f, "added to what is there"));
        f.in_place = false, f.accumulate = true;
        cr_assert(agree(gemms, &f, "a chain that continues"));
        f.accumulate = false, f.residual = true, f.trans_a = false, f.trans_b = true;
        cr_assert(agree(gemms, &f, "k contiguous"));
    }
    const struct form both = {24, 40, 4096, 0, PD_BF16, PD_F32, .accumulate = true, .residual = true};
    cr_assert_not(agree(gemms, &both, "a chain that continues, and a residual"));
    const struct form one = {24, 40, 4096, 0, PD_BF16, PD_F32, .trans_a = true},
                      half = {24, 40, 4096, 0, PD_BF16, PD_BF16, .trans_a = true};
    const uint32_t before = simt_cublaslt_counted().parts;
    cr_assert(agree(fast, &one, "fast leaves it to the library") && agree(cut, &one, "layouts cut the shape") &&
              agree(gemms, &half, "a result that would be rounded twice"));
    cr_assert_eq(simt_cublaslt_counted().parts - before, 3);
    pd_cuda_gemms_free(gemms), pd_cuda_gemms_free(fast), pd_cuda_gemms_free(cut);
}

/* Whole, in parts of k, and by an algorithm chosen for another shape: beside NCCL's kernels all of them take fewer. */
Test(simt_cublaslt, products_leave_multiprocessors)
{
    const struct form whole = {24, 40, 64, 0, PD_BF16, PD_BF16, .trans_a = false},
                      parts = {24, 40, 4096, 0, PD_BF16, PD_F32, .trans_a = true};
    multiprocessors = 116;
    struct pd_cuda_gemms *each = gemms_new(true, false), *any = gemms_new(true, true), *fast = gemms_new(false, false);
    cr_assert(agree(each, &whole, "whole") && agree(each, &parts, "in parts") && agree(any, &whole, "of any shape") &&
              agree(fast, &parts, "fast"));
    cr_expect_eq(simt_cublaslt_counted().multiprocessors_min, 116);
    cr_expect_eq(simt_cublaslt_counted().multiprocessors_max, 116);
    multiprocessors = 0;
    struct pd_cuda_gemms *all = gemms_new(true, false);
    cr_assert(agree(all, &whole, "with all"));
    cr_expect_eq(simt_cublaslt_counted().multiprocessors_min, 0, "the library's default");
    pd_cuda_gemms_free(each), pd_cuda_gemms_free(any), pd_cuda_gemms_free(fast), pd_cuda_gemms_free(all);
}

/* A library that knows no algorithm for parts multiplies the whole. */
Test(simt_cublaslt, parts_without_an_algorithm_are_one_product)
{
    struct pd_cuda_gemms *gemms = gemms_new(true, false);
    const struct form f = {24, 40, 4096, 0, PD_BF16, PD_F32, .trans_a = true};
    simt_cublaslt_refuse_parts(true);
    cr_assert(agree(gemms, &f, "whole"));
    cr_assert_eq(simt_cublaslt_counted().parts, 1);
    cr_assert_eq(pd_cuda_gemms_plain_shapes(gemms), 0);
    simt_cublaslt_refuse_parts(false);
    pd_cuda_gemms_free(gemms);
}

Test(simt_cublaslt, an_algorithm_is_asked_for_once_a_shape)
{
    struct pd_cuda_gemms *each = gemms_new(true, false), *any = gemms_new(true, true);
    const struct form one = {.m = 16, .n = 24, .k = 64, .in = PD_BF16, .out = PD_BF16},
                      other = {.m = 48, .n = 8, .k = 64, .in = PD_BF16, .out = PD_BF16};
    uint32_t before = simt_cublaslt_counted().asked;
    for (int i = 0; i < 3; i++)
        cr_assert(agree(each, &one, "one") && agree(each, &other, "other"));
    cr_assert_eq(simt_cublaslt_counted().asked - before, 2);
    before = simt_cublaslt_counted().asked;
    for (int i = 0; i < 3; i++)
        cr_assert(agree(any, &one, "one") && agree(any, &other, "other"));
    cr_assert_eq(simt_cublaslt_counted().asked - before, 1, "by k alone");
    pd_cuda_gemms_free(each);
    pd_cuda_gemms_free(any);
}

/* Rows that data decides: the next power of two is asked for, once, and the product has its own rows. k is none of it, unless
 * rows are what is summed over. */
Test(simt_cublaslt, rows_that_vary_take_the_algorithm_of_a_power_of_two)
{
    struct pd_cuda_gemms *gemms = gemms_new(true, false);
    struct form f = {.n = 40, .k = 64, .in = PD_BF16, .out = PD_BF16, .trans_b = true, .rows_vary = true};
    const uint32_t before = simt_cublaslt_counted().asked;
    for (f.m = 1; f.m <= 40; f.m++)
        cr_assert(agree(gemms, &f, "rows"));
    cr_assert_eq(simt_cublaslt_counted().asked - before, 3, "16, 32 and 64 rows");
    f = (struct form){.m = 24, .n = 40, .in = PD_BF16, .out = PD_F32, .trans_a = true, .in_place = true, .rows_vary = true};
    for (f.k = 1; f.k <= 40; f.k++)
        cr_assert(agree(gemms, &f, "rows that are summed over"));
    cr_assert_eq(simt_cublaslt_counted().asked - before, 6);
    pd_cuda_gemms_free(gemms);
}
