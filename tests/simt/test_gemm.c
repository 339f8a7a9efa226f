/* The plain product on the host: the bits of the CPU backend for random shapes, strides, transposes and types, in any order
 * of threads. PERDURE_TEST_SEED replays a failure. */
#include "tests/simt/simt_order.h"
#include "tests/unit/math/fixture.h"
#include "trainer/math/cuda/gemm.h"

#define GUARD 0x5a

static uint64_t below(uint64_t *state, uint64_t bound)
{
    return random_u64(state) % bound;
}

static struct pd_matrix matrix(enum pd_dtype dtype, uint64_t rows, uint64_t columns, uint64_t *state)
{
    const uint64_t ld = columns + below(state, 9);
    struct pd_matrix m = {malloc((rows * ld + 1) * pd_dtype_bytes(dtype)), dtype, ld};
    for (uint64_t i = 0; i < rows * ld; i++)
        value_put(dtype, m.data, i, below(state, 50) ? random_normal(state) : -0.0);
    return m;
}

static void check(struct pd_math *cpu, const struct pd_gemm *asked, const char *what)
{
    struct pd_gemm ours = *asked, theirs = *asked;
    struct pd_error err;
    const uint64_t bytes = (asked->m * asked->c.ld + 1) * pd_dtype_bytes(asked->c.dtype);
    ours.c.data = malloc(bytes);
    theirs.c.data = malloc(bytes);
    memset(ours.c.data, GUARD, bytes);
    for (uint64_t i = 0; asked->accumulate && i < asked->m * asked->c.ld; i++)
        ((float *)ours.c.data)[i] = i % 7 ? (float)i / 3.0f : -0.0f;
    memcpy(theirs.c.data, ours.c.data, bytes);
    cr_assert_eq(pd_gemm(cpu, &theirs, &err), PD_OK);
    cr_assert_eq(pd_cuda_gemm_plain(NULL, &ours, &err), PD_OK, "%s", err.message);
    cr_assert_arr_eq(ours.c.data, theirs.c.data, bytes, "%s", what);
    free(ours.c.data);
    free(theirs.c.data);
}

static void random_product(struct pd_math *cpu, uint64_t *state, bool is_empty)
{
    const enum pd_dtype operands = (enum pd_dtype)below(state, 3);
    struct pd_gemm g = {.m = 1 + below(state, 150),
                        .n = 1 + below(state, 150),
                        .k = is_empty ? 0 : 1 + below(state, below(state, 4) ? 60 : 1),
                        .trans_a = below(state, 2),
                        .trans_b = below(state, 2),
                        .accumulate = below(state, 2)};
    const enum pd_dtype result = g.accumulate || below(state, 2) ? PD_F32 : operands;
    char what[160];
    g.a = matrix(operands, g.trans_a ? g.k : g.m, g.trans_a ? g.m : g.k, state);
    g.b = matrix(operands, g.trans_b ? g.n : g.k, g.trans_b ? g.k : g.n, state);
    g.c = (struct pd_matrix){NULL, result, g.n + below(state, 5)};
    struct pd_matrix bias = matrix(operands, 1, g.n, state), residual = matrix(operands, g.m, g.n, state);
    if (below(state, 2)) g.bias = bias.data, g.bias_dtype = operands;
    if (below(state, 2)) g.residual = residual;
    snprintf(what, sizeof what, "(%lu, %lu, %lu) of %s into %s, transposed %d %d, onto %d", g.m, g.n, g.k,
             pd_dtype_name(operands), pd_dtype_name(result), g.trans_a, g.trans_b, g.accumulate);
    check(cpu, &g, what);
    free(g.a.data), free(g.b.data), free(bias.data), free(residual.data);
}

Test(simt_gemm, bits_of_the_cpu)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    const char *seed = getenv("PERDURE_TEST_SEED");
    uint64_t state = seed ? strtoull(seed, NULL, 0) : 20;
    for (uint64_t i = 0; i < 60; i++) {
        simt_set_order(i % 4);
        random_product(f.math, &state, i % 20 == 19);
    }
    fixture_free(&f);
}

Test(simt_gemm, nothing_is_multiplied_into_nothing)
{
    const struct pd_gemm none = {.m = 0, .n = 5, .k = 3};
    struct pd_error err;
    cr_assert_eq(pd_cuda_gemm_plain(NULL, &none, &err), PD_OK);
    cr_assert_eq(pd_cuda_gemms_run(NULL, NULL, &none, &err), PD_OK);
}
