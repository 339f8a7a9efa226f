/* Arrays of more elements than 32 bits count: of each launch the last block alone runs, and leaves at the end of large
 * arrays what it leaves in small ones. All of them begin with zeros; of the large ones only the pages that are touched are
 * there. */
#include "tests/simt/simt_fixture.h"

#include "offload/cpu_adam.h"

#include <sys/mman.h>

#define LARGE (UINT64_C(1) << 32)
#define ROWS (UINT64_C(1) << 20) /* and a few more */
#define FEW 3u
#define COLUMNS 5120u
#define TAIL 2000u /* elements behind LARGE */

static struct pd_error err;
#define DONE(call) cr_assert_eq(call, PD_OK, "%s", err.message)

static void *zeros(uint64_t count, uint64_t element_bytes)
{
    void *data =
        mmap(NULL, count * element_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) cr_skip_test("vm.overcommit_memory or ulimit -v gives nobody addresses of 16 GiB and more");
    return data;
}

/* Random from `from` on, zeros before. */
static void *ending(enum pd_dtype dtype, uint64_t from, uint64_t count, uint64_t seed)
{
    void *data = zeros(from + count, pd_dtype_bytes(dtype));
    for (uint64_t i = 0; i < count; i++)
        value_put(dtype, data, from + i, random_normal(&seed));
    return data;
}

static void *behind(enum pd_dtype dtype, const void *data, uint64_t elements)
{
    return (char *)(uintptr_t)data + elements * pd_dtype_bytes(dtype);
}

/* Of `count` elements `got` behind `from` and `want` are the same, and not all zeros. */
static void same(enum pd_dtype dtype, const void *got, uint64_t from, const void *want, uint64_t count, const char *what)
{
    const uint64_t bytes = count * pd_dtype_bytes(dtype);
    bool is_there = false;
    for (uint64_t i = 0; i < bytes; i++)
        is_there = is_there || ((const char *)want)[i];
    cr_assert(is_there, "%s: nothing was written", what);
    cr_assert_eq(memcmp(behind(dtype, got, from), want, bytes), 0, "%s", what);
}

static void begin(void)
{
    simt_set_order(0);
    simt_run_last_block_alone(true);
}

/* ---- element by element ---- */

Test(simt_sizes, gelu, .init = begin)
{
    const void *x = ending(PD_BF16, LARGE, TAIL, 1), *dout = ending(PD_BF16, LARGE, TAIL, 2);
    void *out = zeros(LARGE + TAIL, 2), *dx = zeros(LARGE + TAIL, 2), *few = zeros(TAIL, 2);
    DONE(pd_cuda_gelu_forward(NULL, LARGE + TAIL, PD_BF16, x, out, &err));
    DONE(pd_cuda_gelu_forward(NULL, TAIL, PD_BF16, behind(PD_BF16, x, LARGE), few, &err));
    same(PD_BF16, out, LARGE, few, TAIL, "gelu");
    DONE(pd_cuda_gelu_backward(NULL, LARGE + TAIL, PD_BF16, x, dout, dx, &err));
    DONE(pd_cuda_gelu_backward(NULL, TAIL, PD_BF16, behind(PD_BF16, x, LARGE), behind(PD_BF16, dout, LARGE), few, &err));
    same(PD_BF16, dx, LARGE, few, TAIL, "gelu backward");
}

Test(simt_sizes, sums_and_casts, .init = begin)
{
    const void *x = ending(PD_F32, LARGE, TAIL, 3), *tail = behind(PD_F32, x, LARGE);
    void *sum = zeros(LARGE + TAIL, 4), *out = zeros(LARGE + TAIL, 2), *few = zeros(TAIL, 4);
    DONE(pd_cuda_add(NULL, LARGE + TAIL, sum, x, &err));
    DONE(pd_cuda_add(NULL, TAIL, few, tail, &err));
    same(PD_F32, sum, LARGE, few, TAIL, "add");
    DONE(pd_cuda_cast(NULL, LARGE + TAIL, PD_BF16, out, PD_F32, x, &err));
    DONE(pd_cuda_cast(NULL, TAIL, PD_BF16, few, PD_F32, tail, &err));
    same(PD_BF16, out, LARGE, few, TAIL, "cast");
}

Test(simt_sizes, adam, .init = begin)
{
    const struct pd_update_config config = {
        .rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .scale = 1, .step = 3};
    const struct pd_adam_step step = pd_adam_step_make(&config);
    const void *grad = ending(PD_F32, LARGE, TAIL, 4);
    const struct pd_update_range many = {.n = LARGE + TAIL,
                                         .param = ending(PD_F32, LARGE, TAIL, 5),
                                         .exp_avg = zeros(LARGE + TAIL, 4),
                                         .exp_avg_sq = zeros(LARGE + TAIL, 4),
                                         .grad = grad,
                                         .copy = zeros(LARGE + TAIL, 2),
                                         .copy_dtype = PD_BF16};
    const struct pd_update_range few = {.n = TAIL,
                                        .param = ending(PD_F32, 0, TAIL, 5),
                                        .exp_avg = zeros(TAIL, 4),
                                        .exp_avg_sq = zeros(TAIL, 4),
                                        .grad = behind(PD_F32, grad, LARGE),
                                        .copy = zeros(TAIL, 2),
                                        .copy_dtype = PD_BF16};
    DONE(pd_cuda_adam(NULL, &step, &many, &err));
    DONE(pd_cuda_adam(NULL, &step, &few, &err));
    same(PD_F32, many.param, LARGE, few.param, TAIL, "parameters");
    same(PD_F32, many.exp_avg, LARGE, few.exp_avg, TAIL, "first moments");
    same(PD_F32, many.exp_avg_sq, LARGE, few.exp_avg_sq, TAIL, "second moments");
    same(PD_BF16, many.copy, LARGE, few.copy, TAIL, "copies");
}

/* ---- row by row ---- */

Test(simt_sizes, swiglu, .init = begin)
{
    const uint64_t before = ROWS * COLUMNS;
    const void *x = ending(PD_BF16, 2 * before, 2 * COLUMNS, 6), *dout = ending(PD_BF16, before, COLUMNS, 7);
    const void *last = behind(PD_BF16, x, 2 * before);
    void *out = zeros(before + COLUMNS, 2), *dx = zeros(2 * before + 2 * COLUMNS, 2), *few = zeros(2 * COLUMNS, 2);
    DONE(pd_cuda_swiglu_forward(NULL, ROWS + 1, COLUMNS, PD_BF16, x, out, &err));
    DONE(pd_cuda_swiglu_forward(NULL, 1, COLUMNS, PD_BF16, last, few, &err));
    same(PD_BF16, out, before, few, COLUMNS, "swiglu");
    memset(few, 0, 2 * COLUMNS);
    DONE(pd_cuda_swiglu_backward(NULL, ROWS + 1, COLUMNS, PD_BF16, x, dout, dx, &err));
    DONE(pd_cuda_swiglu_backward(NULL, 1, COLUMNS, PD_BF16, last, behind(PD_BF16, dout, before), few, &err));
    same(PD_BF16, dx, 2 * before, few, 2 * COLUMNS, "swiglu backward");
}

Test(simt_sizes, rope, .init = begin)
{
    enum { HEADS = 40, SIZE = 128, LD = 7168 };
    int32_t *positions = zeros(ROWS + 1, sizeof *positions);
    const float *angles = ending(PD_F32, 0, SIZE, 8);
    void *x = ending(PD_BF16, ROWS * LD, LD, 9), *few = ending(PD_BF16, 0, LD, 9);
    const struct pd_rope many = {ROWS + 1, HEADS, SIZE, PD_BF16, x, LD, positions, angles, false, NULL, 0, 0};
    const struct pd_rope last = {1, HEADS, SIZE, PD_BF16, few, LD, positions, angles, false, NULL, 0, 0};
    DONE(pd_cuda_rope(NULL, &many, &err));
    DONE(pd_cuda_rope(NULL, &last, &err));
    same(PD_BF16, x, ROWS * LD, few, LD, "rope");
}

static struct pd_norm norm_of(uint64_t rows, const void *x, const void *dout, const void *weight)
{
    return (struct pd_norm){.rows = rows,
                            .columns = COLUMNS,
                            .dtype = PD_BF16,
                            .epsilon = 1e-5f,
                            .x = x,
                            .weight = weight,
                            .rstd = zeros(rows, 4),
                            .out = zeros(rows * COLUMNS, 2),
                            .dout = dout,
                            .dx = zeros(rows * COLUMNS, 2),
                            .dweight = zeros(COLUMNS, 4)};
}

Test(simt_sizes, norms, .init = begin)
{
    const uint64_t before = ROWS * COLUMNS;
    const void *x = ending(PD_BF16, before, FEW * COLUMNS, 10), *dout = ending(PD_BF16, before, FEW * COLUMNS, 11);
    const void *weight = ending(PD_BF16, 0, COLUMNS, 12);
    struct pd_norm many = norm_of(ROWS + FEW, x, dout, weight);
    struct pd_norm few = norm_of(FEW, behind(PD_BF16, x, before), behind(PD_BF16, dout, before), weight);
    DONE(pd_cuda_norm_forward(NULL, &many, &err));
    DONE(pd_cuda_norm_forward(NULL, &few, &err));
    same(PD_BF16, many.out, before, few.out, FEW * COLUMNS, "rmsnorm");
    same(PD_F32, many.rstd, ROWS, few.rstd, FEW, "rstd");
    const uint64_t bytes = pd_cuda_norm_workspace_bytes(&many);
    DONE(pd_cuda_norm_backward(NULL, &many, (struct pd_cuda_workspace){zeros(bytes, 1), bytes, NULL}, &err));
    DONE(pd_cuda_norm_backward(NULL, &few, (struct pd_cuda_workspace){zeros(bytes, 1), bytes, NULL}, &err));
    same(PD_BF16, many.dx, before, few.dx, FEW * COLUMNS, "dx");
    same(PD_F32, many.dweight, 0, few.dweight, COLUMNS, "dweight"); /* rows in front of the last ones are zeros */
}

Test(simt_sizes, sums_along_rows_and_down_columns, .init = begin)
{
    const uint64_t before = ROWS * COLUMNS, wide = UINT64_C(1) << 22, rows = 1030;
    const float *x = ending(PD_F32, before, FEW * COLUMNS, 13);
    double *many = zeros(ROWS + FEW, 8), *few = zeros(FEW, 8);
    DONE(pd_cuda_row_squares(NULL, ROWS + FEW, COLUMNS, x, many, &err));
    DONE(pd_cuda_row_squares(NULL, FEW, COLUMNS, x + before, few, &err));
    cr_assert(few[FEW - 1] > 0 && memcmp(many + ROWS, few, FEW * sizeof *few) == 0, "squares");
    float *columns = ending(PD_F32, (rows - 1) * wide + wide - FEW, FEW, 14), *all = zeros(wide, 4), *last = zeros(FEW, 4);
    DONE(pd_cuda_column_sum(NULL, rows, wide, wide, PD_F32, columns, all, &err));
    DONE(pd_cuda_column_sum(NULL, rows, FEW, wide, PD_F32, columns + wide - FEW, last, &err));
    same(PD_F32, all, wide - FEW, last, FEW, "column sums");
}

Test(simt_sizes, finish, .init = begin)
{
    const uint64_t before = ROWS * COLUMNS;
    const float *parts[] = {ending(PD_F32, before, COLUMNS, 15), ending(PD_F32, before, COLUMNS, 16)};
    const float *last[] = {parts[0] + before, parts[1] + before};
    void *out = zeros(before + COLUMNS, 2), *few = zeros(COLUMNS, 2);
    struct pd_finish f = {.rows = ROWS + 1, .columns = COLUMNS, .part_count = 2, .parts = parts, .scale = 1};
    f.out = (struct pd_matrix){out, PD_BF16, COLUMNS};
    DONE(pd_cuda_finish(NULL, &f, &err));
    f.rows = 1, f.parts = last, f.out.data = few;
    DONE(pd_cuda_finish(NULL, &f, &err));
    same(PD_BF16, out, before, few, COLUMNS, "finish");
}

/* ---- tokens ---- */

Test(simt_sizes, embedding, .init = begin)
{
    const uint64_t before = ROWS * COLUMNS;
    int32_t *tokens = zeros(ROWS + FEW, sizeof *tokens);
    const void *dout = ending(PD_BF16, before, FEW * COLUMNS, 18);
    for (uint64_t i = 0; i < FEW; i++)
        tokens[ROWS + i] = (int32_t)ROWS;
    const struct pd_embedding many = {.rows = ROWS + FEW,
                                      .columns = COLUMNS,
                                      .vocab = ROWS + 1,
                                      .dtype = PD_BF16,
                                      .tokens = tokens,
                                      .token_table = ending(PD_BF16, before, COLUMNS, 17),
                                      .out = zeros(before + FEW * COLUMNS, 2),
                                      .dout = dout,
                                      .dtoken_table = zeros(before + COLUMNS, 4)};
    struct pd_embedding few = many;
    few.rows = FEW, few.vocab = 1, few.first_token = (int32_t)ROWS, few.tokens = tokens + ROWS;
    few.token_table = behind(PD_BF16, many.token_table, before);
    few.dout = behind(PD_BF16, dout, before);
    few.out = zeros(FEW * COLUMNS, 2), few.dtoken_table = zeros(COLUMNS, 4);
    DONE(pd_cuda_embedding_forward(NULL, &many, &err));
    DONE(pd_cuda_embedding_forward(NULL, &few, &err));
    same(PD_BF16, many.out, before, few.out, FEW * COLUMNS, "embedding");
    DONE(pd_cuda_embedding_backward(NULL, &many, &err));
    DONE(pd_cuda_embedding_backward(NULL, &few, &err));
    same(PD_F32, many.dtoken_table, before, few.dtoken_table, COLUMNS, "embedding backward");
}

Test(simt_sizes, cross_entropy, .init = begin)
{
    enum { VOCAB = 151936, LD = 152064 };
    const uint64_t rows = UINT64_C(1) << 15;
    int32_t *targets = zeros(rows + 1, sizeof *targets);
    targets[rows] = VOCAB - 1;
    const struct pd_cross_entropy many = {.rows = rows + 1,
                                          .vocab = VOCAB,
                                          .ld = LD,
                                          .chunks = 1,
                                          .logits = ending(PD_F32, rows * LD, LD, 19),
                                          .targets = targets,
                                          .losses = zeros(rows + 1, 4),
                                          .dtype = PD_BF16,
                                          .scale = 0.5f};
    struct pd_cross_entropy last = many, cut = many, cut_last;
    last.rows = 1, last.logits = ending(PD_F32, 0, LD, 19), last.targets = targets + rows, last.losses = zeros(1, 4);
    cut.max = zeros(rows + 1, 4), cut.sum = zeros(rows + 1, 4), cut.target_logit = zeros(rows + 1, 4);
    cut_last = last;
    cut_last.max = zeros(1, 4), cut_last.sum = zeros(1, 4), cut_last.target_logit = zeros(1, 4);
    DONE(pd_cuda_logits_max(NULL, &cut, &err));
    DONE(pd_cuda_logits_max(NULL, &cut_last, &err));
    same(PD_F32, cut.max, rows, cut_last.max, 1, "maximum");
    DONE(pd_cuda_logits_sum(NULL, &cut, &err));
    DONE(pd_cuda_logits_sum(NULL, &cut_last, &err));
    same(PD_F32, cut.sum, rows, cut_last.sum, 1, "sum");
    same(PD_F32, cut.target_logit, rows, cut_last.target_logit, 1, "logit of the target");
    DONE(pd_cuda_logits_part(NULL, &cut, &err));
    DONE(pd_cuda_logits_part(NULL, &cut_last, &err));
    same(PD_F32, cut.max, rows, cut_last.max, 1, "maximum of a part");
    same(PD_F32, cut.sum, rows, cut_last.sum, 1, "sum of a part");
    struct pd_cross_entropy whole = many;
    whole.dlogits = whole.logits, last.dlogits = last.logits;
    whole.ld_dlogits = last.ld_dlogits = 2 * LD;
    DONE(pd_cuda_cross_entropy(NULL, &whole, &err));
    DONE(pd_cuda_cross_entropy(NULL, &last, &err));
    same(PD_F32, whole.losses, rows, last.losses, 1, "loss");
    same(PD_BF16, whole.dlogits, rows * 2 * LD, last.dlogits, VOCAB, "gradient");
}

/* ---- products ---- */

/* More rows than a grid has: the second launch's last block. */
Test(simt_sizes, products, .init = begin)
{
    enum { K = 20, N = 1029 };
    const uint64_t rows = UINT64_C(65535) * 64;
    const void *a = ending(PD_BF16, rows * K, FEW * K, 20), *b = ending(PD_BF16, 0, K * N, 21);
    float *c = zeros((rows + FEW) * N, 4), *few = zeros(FEW * N, 4);
    struct pd_gemm g = {.m = rows + FEW, .n = N, .k = K};
    g.a = (struct pd_matrix){(void *)(uintptr_t)a, PD_BF16, K};
    g.b = (struct pd_matrix){(void *)(uintptr_t)b, PD_BF16, N};
    g.c = (struct pd_matrix){c, PD_F32, N};
    DONE(pd_cuda_gemm_plain(NULL, &g, &err));
    g.m = FEW, g.a.data = behind(PD_BF16, a, rows * K), g.c.data = few;
    DONE(pd_cuda_gemm_plain(NULL, &g, &err));
    same(PD_F32, c, rows * N, few, FEW * N, "product");
}

Test(simt_sizes, codes, .init = begin)
{
    enum { SIDE = 64 };
    const uint64_t before = ROWS * COLUMNS, columns = COLUMNS, rows = ROWS + FEW;
    const void *x = ending(PD_BF16, before, FEW * COLUMNS, 22);
    struct pd_quantize many = {.rows = rows, .columns = columns, .format = PD_FP8_E4M3, .ld_codes = columns, .transposed_rows = rows};
    many.x = (struct pd_matrix){(void *)(uintptr_t)x, PD_BF16, columns};
    many.codes = zeros(rows, columns), many.transposed = zeros(columns, rows), many.ld_transposed = rows;
    many.scale = zeros(PD_FP8_SCALE_FLOATS, 4);
    struct pd_quantize few = many;
    few.rows = few.transposed_rows = few.ld_transposed = FEW, few.x.data = behind(PD_BF16, x, before);
    few.codes = zeros(FEW, columns), few.transposed = zeros(columns, FEW), few.scale = zeros(PD_FP8_SCALE_FLOATS, 4);
    DONE(pd_cuda_quantize(NULL, &many, &err));
    DONE(pd_cuda_quantize(NULL, &few, &err));
    cr_assert_eq(memcmp(many.codes + before, few.codes, FEW * columns), 0, "codes");
    for (uint64_t row = 0; row < FEW; row++)
        for (uint64_t column = columns - SIDE; column < columns; column++) {
            const uint8_t code = few.codes[row * columns + column];
            cr_assert_eq(many.transposed[column * rows + ROWS + row], code, "transposed");
            cr_assert_eq(few.transposed[column * FEW + row], code);
        }
}

/* ---- attention ---- */

enum { SEQUENCES = 8, LENGTH = 128, HEAD = 64, APART = 1 << 23 };

/* Rows of one head, APART elements apart, of the last sequence. */
static void *head_rows(uint64_t sequences, uint64_t seed)
{
    const uint64_t rows = sequences * LENGTH;
    uint16_t *data = zeros(rows * APART, 2);
    for (uint64_t row = rows - LENGTH; row < rows; row++)
        for (uint64_t i = 0; i < HEAD; i++)
            value_put(PD_BF16, data, row * APART + i, random_normal(&seed));
    return data;
}

static struct pd_attention attention_of(uint32_t sequences)
{
    const uint64_t rows = (uint64_t)sequences * LENGTH, dense = rows * HEAD, before = dense - LENGTH * HEAD;
    return (struct pd_attention){.sequences = sequences,
                                 .length = LENGTH,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .head_size = HEAD,
                                 .dtype = PD_BF16,
                                 .scale = 0.125f,
                                 .q = head_rows(sequences, 23),
                                 .k = head_rows(sequences, 24),
                                 .v = head_rows(sequences, 25),
                                 .ld_qkv = APART,
                                 .out = zeros(dense, 2),
                                 .lse = zeros(rows, 4),
                                 .dout = ending(PD_BF16, before, LENGTH * HEAD, 26),
                                 .delta = zeros(rows, 4),
                                 .dq = zeros(rows * APART, 2),
                                 .dk = zeros(rows * APART, 2),
                                 .dv = zeros(rows * APART, 2)};
}

/* Of the last sequence, whose rows lie APART apart. */
static void same_rows(const void *got, const void *want, const char *what)
{
    const uint64_t before = (uint64_t)(SEQUENCES - 1) * LENGTH * APART;
    bool is_there = false;
    for (uint64_t row = 0; row < LENGTH; row++) {
        const char *one = behind(PD_BF16, got, before + row * APART), *other = behind(PD_BF16, want, row * APART);
        cr_assert_eq(memcmp(one, other, HEAD * 2), 0, "%s, row %llu", what, (unsigned long long)row);
        for (uint64_t i = 0; i < HEAD * 2; i++)
            is_there = is_there || other[i];
    }
    cr_assert(is_there, "%s: nothing was written", what);
}

static void attend(const char *kernels)
{
    uint32_t begun = 0;
    const struct pd_cuda_workspace none = {NULL, 0, &begun};
    const uint64_t before = (uint64_t)(SEQUENCES - 1) * LENGTH;
    const struct pd_attention many = attention_of(SEQUENCES), one = attention_of(1);
    setenv("PERDURE_ATTENTION", kernels, 1);
    DONE(pd_cuda_attention_forward(NULL, &many, none, &err));
    DONE(pd_cuda_attention_forward(NULL, &one, none, &err));
    same(PD_BF16, many.out, before * HEAD, one.out, LENGTH * HEAD, kernels);
    same(PD_F32, many.lse, before, one.lse, LENGTH, kernels);
    DONE(pd_cuda_attention_backward(NULL, &many, none, &err));
    DONE(pd_cuda_attention_backward(NULL, &one, none, &err));
    /* The last block of plain has made the output of other rows than the last block of delta reads. */
    if (strcmp(kernels, "plain") != 0) same(PD_F32, many.delta, before, one.delta, LENGTH, kernels);
    same_rows(many.dq, one.dq, kernels);
    same_rows(many.dk, one.dk, kernels);
    same_rows(many.dv, one.dv, kernels);
}

Test(simt_sizes, attention, .init = begin)
{
    attend("mma");
    attend("wgmma");
    attend("plain");
}
