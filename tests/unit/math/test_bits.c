/* Equal bits: every operation, one table. A case fills a block of memory by its seed, runs, and the whole block must come
 * out the same for every instruction set and thread count; portable on one thread is the measure. */
#include "fixture.h"

#include <criterion/logging.h>

#define BLOCK_BYTES (UINT64_C(6) << 20)

struct scene {
    struct pd_math *math;
    enum pd_dtype dtype;
    unsigned char *block;
    uint64_t used, seed;
};

static void *take(struct scene *s, enum pd_dtype dtype, uint64_t count, double deviation)
{
    void *data = s->block + s->used;
    s->used += (count * pd_dtype_bytes(dtype) + 63) / 64 * 64;
    cr_assert_leq(s->used, BLOCK_BYTES);
    for (uint64_t i = 0; i < count; i++)
        value_put(dtype, data, i, deviation * random_normal(&s->seed));
    return data;
}

static int32_t *take_indices(struct scene *s, uint64_t count, int32_t low, int32_t end)
{
    int32_t *data = take(s, PD_F32, count, 0);
    for (uint64_t i = 0; i < count; i++)
        data[i] = low + (int32_t)(random_u64(&s->seed) % (uint64_t)(end - low));
    return data;
}

static void run_gemm(struct scene *s)
{
    struct pd_gemm g = {.m = 37,
                        .n = 53,
                        .k = 301,
                        .a = {take(s, s->dtype, 37 * 301, 1), s->dtype, 301},
                        .trans_b = true,
                        .b = {take(s, s->dtype, 53 * 301, 1), s->dtype, 301},
                        .c = {take(s, s->dtype, 37 * 53, 1), s->dtype, 53},
                        .bias = take(s, s->dtype, 53, 1),
                        .bias_dtype = s->dtype,
                        .residual = {take(s, s->dtype, 37 * 53, 1), s->dtype, 53}};
    MUST(pd_gemm(s->math, &g, &err));
}

static void run_norm(struct scene *s, uint64_t rows, uint64_t columns, bool layer)
{
    struct pd_norm n = {.rows = rows,
                        .columns = columns,
                        .dtype = s->dtype,
                        .epsilon = 1e-5f,
                        .x = take(s, s->dtype, rows * columns, 2),
                        .weight = take(s, s->dtype, columns, 1),
                        .bias = layer ? take(s, s->dtype, columns, 1) : NULL,
                        .mean = layer ? take(s, PD_F32, rows, 0) : NULL,
                        .rstd = take(s, PD_F32, rows, 0),
                        .out = take(s, s->dtype, rows * columns, 0),
                        .dout = take(s, s->dtype, rows * columns, 1),
                        .dx = take(s, s->dtype, rows * columns, 1),
                        .dweight = take(s, PD_F32, columns, 0),
                        .dbias = layer ? take(s, PD_F32, columns, 0) : NULL};
    n.dresidual = n.dx;
    MUST(pd_norm_forward(s->math, &n, &err));
    MUST(pd_norm_backward(s->math, &n, &err));
}

static void run_rms(struct scene *s)
{
    run_norm(s, 70, 333, false);
    run_norm(s, 1, 1, false);
}

static void run_layer(struct scene *s)
{
    run_norm(s, 70, 333, true);
    run_norm(s, 3, 17, true);
}

static void run_rope(struct scene *s)
{
    struct pd_rope r = {.rows = 41,
                        .heads = 3,
                        .head_size = 34,
                        .dtype = s->dtype,
                        .ld = 110,
                        .x = take(s, s->dtype, 41 * 110, 1),
                        .positions = take_indices(s, 41, 0, 50),
                        .cos_sin = take(s, PD_F32, 50 * 34, 1)};
    MUST(pd_rope(s->math, &r, &err));
    r.inverse = true;
    MUST(pd_rope(s->math, &r, &err));
}

static void run_head_norms(struct scene *s)
{
    enum { TOKENS = 70, HEADS = 5, SIZE = 34, LD = 200 };
    struct pd_norm n = {.rows = TOKENS * HEADS,
                        .columns = SIZE,
                        .heads = HEADS,
                        .kept_heads = HEADS,
                        .ld = LD,
                        .dtype = s->dtype,
                        .epsilon = 1e-6f,
                        .kept = take(s, s->dtype, TOKENS * HEADS * SIZE, 0),
                        .positions = take_indices(s, TOKENS, 0, 50),
                        .cos_sin = take(s, PD_F32, 50 * SIZE, 1),
                        .other_weight = take(s, s->dtype, SIZE, 1),
                        .other_first = 3,
                        .x = take(s, s->dtype, TOKENS * LD, 1),
                        .weight = take(s, s->dtype, SIZE, 1),
                        .rstd = take(s, PD_F32, TOKENS * HEADS, 0)};
    n.out = (void *)(uintptr_t)n.x;
    MUST(pd_norm_forward(s->math, &n, &err));
    n.x = n.kept;
    n.kept = NULL;
    n.other_weight = NULL;
    n.dout = n.dx = take(s, s->dtype, TOKENS * LD, 1);
    n.dweight = take(s, PD_F32, SIZE, 0);
    MUST(pd_norm_backward(s->math, &n, &err));
}

static void attend(struct scene *s, uint32_t sequences, uint32_t length, uint32_t heads, uint32_t kv, uint32_t d,
                   bool documents)
{
    uint64_t rows = (uint64_t)sequences * length, ld = (heads + 2 * kv) * (uint64_t)d, width = (uint64_t)heads * d;
    char *qkv = take(s, s->dtype, rows * ld, 1), *gradient = take(s, s->dtype, rows * ld, 0);
    uint64_t bytes = pd_dtype_bytes(s->dtype);
    struct pd_attention a = {.sequences = sequences,
                             .length = length,
                             .heads = heads,
                             .kv_heads = kv,
                             .head_size = d,
                             .dtype = s->dtype,
                             .scale = 0.2f,
                             .q = qkv,
                             .k = qkv + width * bytes,
                             .v = qkv + (width + (uint64_t)kv * d) * bytes,
                             .ld_qkv = ld,
                             .out = take(s, s->dtype, rows * width, 0),
                             .lse = take(s, PD_F32, rows * heads, 0),
                             .dout = take(s, s->dtype, rows * width, 1),
                             .delta = take(s, PD_F32, rows * heads, 0),
                             .dq = gradient,
                             .dk = gradient + width * bytes,
                             .dv = gradient + (width + (uint64_t)kv * d) * bytes};
    if (documents) {
        int32_t *first = take_indices(s, rows, 0, 30);
        for (uint64_t r = 0; r < rows; r++) {
            int32_t t = (int32_t)(r % length);
            first[r] = t == 0 ? 0 : first[r] == 0 ? t : first[r - 1];
        }
        a.first = first;
    }
    MUST(pd_attention_forward(s->math, &a, &err));
    MUST(pd_attention_backward(s->math, &a, &err));
}

static void run_attention(struct scene *s)
{
    attend(s, 2, 100, 6, 2, 40, false);
    attend(s, 1, 150, 2, 2, 64, true);
    attend(s, 1, 5, 1, 1, 3, false);
}

/* Fewer key-value heads than threads: one thread takes a whole head at once, several take it in pieces. */
static void run_attention_of_one_head(struct scene *s)
{
    attend(s, 1, 200, 5, 1, 24, true);
    attend(s, 1, 130, 7, 1, 16, false);
}

static void run_experts(struct scene *s)
{
    enum { ROWS = 83, EXPERTS = 21, CHOSEN = 3, COLUMNS = 75, SLOTS = ROWS * CHOSEN };
    struct pd_route r = {.rows = ROWS,
                         .experts = EXPERTS,
                         .per_token = CHOSEN,
                         .groups = 1,
                         .groups_kept = 1,
                         .renormalise = true,
                         .scale = 1.5f,
                         .logits = take(s, PD_F32, ROWS * EXPERTS, 2),
                         .scores = take(s, PD_F32, ROWS * EXPERTS, 0),
                         .choice = take(s, PD_F32, SLOTS, 0),
                         .weights = take(s, PD_F32, SLOTS, 0),
                         .lse = take(s, PD_F32, ROWS, 0),
                         .dweights = take(s, PD_F32, SLOTS, 1),
                         .balance = take(s, PD_F32, EXPERTS, 1),
                         .z = 0.1f,
                         .dlogits = take(s, PD_F32, ROWS * EXPERTS, 0)};
    const int32_t *slots = take_indices(s, SLOTS, 0, ROWS);
    struct pd_weighted_swiglu w = {.rows = SLOTS,
                                   .columns = COLUMNS,
                                   .dtype = s->dtype,
                                   .gate_up = take(s, s->dtype, 2 * SLOTS * COLUMNS, 1),
                                   .weights = r.weights,
                                   .out = take(s, s->dtype, SLOTS * COLUMNS, 0),
                                   .dout = take(s, s->dtype, SLOTS * COLUMNS, 1),
                                   .dgate_up = take(s, s->dtype, 2 * SLOTS * COLUMNS, 0),
                                   .chunks = 4,
                                   .chunk = 19,
                                   .dweights = take(s, PD_F32, 4 * SLOTS, 0)};
    const float *parts = take(s, PD_F32, ROWS * COLUMNS, 1);
    struct pd_combine c = {ROWS, COLUMNS, CHOSEN, parts, slots, take(s, PD_F32, ROWS * COLUMNS, 0), PD_F32};
    MUST(pd_route_forward(s->math, &r, &err));
    MUST(pd_route_backward(s->math, &r, &err));
    MUST(pd_gather_rows(s->math, SLOTS, COLUMNS * sizeof(float), slots, parts, take(s, PD_F32, SLOTS * COLUMNS, 0), &err));
    MUST(pd_combine(s->math, &c, &err));
    MUST(pd_weighted_swiglu_forward(s->math, &w, &err));
    MUST(pd_weighted_swiglu_backward(s->math, &w, &err));
}

static void run_swiglu(struct scene *s)
{
    uint64_t rows = 19, columns = 203;
    void *x = take(s, s->dtype, rows * 2 * columns, 3), *out = take(s, s->dtype, rows * columns, 1);
    MUST(pd_swiglu_forward(s->math, rows, columns, s->dtype, x, out, &err));
    MUST(pd_swiglu_backward(s->math, rows, columns, s->dtype, x, out, take(s, s->dtype, rows * 2 * columns, 0), &err));
}

static void run_gelu(struct scene *s)
{
    uint64_t n = 40003;
    void *x = take(s, s->dtype, n, 4), *out = take(s, s->dtype, n, 1);
    value_put(s->dtype, x, 5, -1e4);
    value_put(s->dtype, x, 6, 1e4);
    value_put(s->dtype, x, 7, -0.0);
    MUST(pd_gelu_forward(s->math, n, s->dtype, x, out, &err));
    MUST(pd_gelu_backward(s->math, n, s->dtype, x, out, take(s, s->dtype, n, 0), &err));
}

static void run_embedding(struct scene *s)
{
    struct pd_embedding e = {.rows = 90,
                             .columns = 301,
                             .vocab = 40,
                             .dtype = s->dtype,
                             .tokens = take_indices(s, 90, 0, 40),
                             .positions = take_indices(s, 90, 0, 30),
                             .token_table = take(s, s->dtype, 40 * 301, 1),
                             .position_table = take(s, s->dtype, 30 * 301, 1),
                             .context = 30,
                             .out = take(s, s->dtype, 90 * 301, 0),
                             .dout = take(s, s->dtype, 90 * 301, 1),
                             .dtoken_table = take(s, PD_F32, 40 * 301, 1),
                             .dposition_table = take(s, PD_F32, 30 * 301, 1)};
    MUST(pd_embedding_forward(s->math, &e, &err));
    MUST(pd_embedding_backward(s->math, &e, &err));
}

static void run_loss(struct scene *s)
{
    for (uint32_t chunks = 1; chunks <= 8; chunks *= 2) {
        uint64_t rows = 11, vocab = 1003, ld = 1010, per_logit = sizeof(float) / pd_dtype_bytes(s->dtype);
        float *logits = take(s, PD_F32, rows * ld, 6);
        struct pd_cross_entropy l = {.rows = rows,
                                     .vocab = vocab,
                                     .ld = ld,
                                     .chunks = chunks,
                                     .logits = logits,
                                     .targets = take_indices(s, rows, -200, 1003),
                                     .losses = take(s, PD_F32, rows, 0),
                                     .dlogits = chunks == 2 ? (void *)logits : take(s, s->dtype, rows * ld * per_logit, 0),
                                     .ld_dlogits = ld * per_logit,
                                     .dtype = s->dtype,
                                     .scale = 0.01f};
        MUST(pd_cross_entropy(s->math, &l, &err));
    }
}

static void run_embedding_cut(struct scene *s)
{
    struct pd_embedding e = {.rows = 90,
                             .columns = 301,
                             .vocab = 25,
                             .first_token = 10,
                             .dtype = s->dtype,
                             .tokens = take_indices(s, 90, 0, 40),
                             .dout = take(s, s->dtype, 90 * 301, 1),
                             .dtoken_table = take(s, PD_F32, 25 * 301, 1)};
    MUST(pd_embedding_backward(s->math, &e, &err));
}

static void run_finish(struct scene *s)
{
    const float *parts[8] = {take(s, PD_F32, 70 * 310, 1), NULL, take(s, PD_F32, 70 * 310, 1),
                             take(s, PD_F32, 70 * 310, 1), NULL, NULL,
                             take(s, PD_F32, 70 * 310, 1), NULL};
    struct pd_finish f = {.rows = 70,
                          .columns = 301,
                          .part_count = 8,
                          .parts = parts,
                          .ld_parts = 310,
                          .scale = 0.3f,
                          .bias = take(s, s->dtype, 301, 1),
                          .bias_dtype = s->dtype,
                          .residual = {take(s, s->dtype, 70 * 301, 1), s->dtype, 301},
                          .out = {take(s, s->dtype, 70 * 301, 0), s->dtype, 301}};
    MUST(pd_finish(s->math, &f, &err));
}

/* Columns 300 .. 900 of a wider vocabulary, in chunks of 128. */
static void run_loss_cut(struct scene *s)
{
    const uint64_t rows = 17, vocab = 600;
    struct pd_cross_entropy l = {.rows = rows,
                                 .vocab = vocab,
                                 .ld = vocab,
                                 .first_column = 300,
                                 .chunk = 128,
                                 .chunks = 8,
                                 .logits = take(s, PD_F32, rows * vocab, 6),
                                 .targets = take_indices(s, rows, -200, 1003),
                                 .losses = take(s, PD_F32, rows, 0),
                                 .dlogits = take(s, s->dtype, rows * vocab, 0),
                                 .ld_dlogits = vocab,
                                 .dtype = s->dtype,
                                 .scale = 0.01f,
                                 .max = take(s, PD_F32, rows, 0),
                                 .sum = take(s, PD_F32, rows, 0),
                                 .target_logit = take(s, PD_F32, rows, 1)};
    MUST(pd_logits_max(s->math, &l, &err));
    MUST(pd_logits_sum(s->math, &l, &err));
    MUST(pd_cross_entropy(s->math, &l, &err));
    l.vocab = 300;
    l.max = take(s, PD_F32, rows, 0), l.sum = take(s, PD_F32, rows, 0), l.target_logit = take(s, PD_F32, rows, 1);
    for (; l.first_column <= 600; l.first_column += 300, l.logits = (float *)l.logits + 300, l.goes_on = true)
        MUST(pd_logits_part(s->math, &l, &err));
    MUST(pd_logits_rescale(s->math, rows, take(s, PD_F32, rows, 1), l.max, l.sum, &err));
}

static void run_sums(struct scene *s)
{
    void *x = take(s, s->dtype, 77 * 310, 1);
    float *wide = take(s, PD_F32, 77 * 310, 1);
    MUST(pd_column_sum(s->math, 77, 301, 310, s->dtype, x, take(s, PD_F32, 301, 0), &err));
    MUST(pd_add(s->math, 77 * 310, wide, take(s, PD_F32, 77 * 310, 1), &err));
    MUST(pd_row_squares(s->math, 77, 310, wide, take(s, PD_F32, 2 * 77, 0), &err));
}

static void run_cast(struct scene *s)
{
    uint64_t n = 33333;
    float *x = take(s, PD_F32, n, 1);
    for (uint64_t i = 0; i < n; i++) { /* all magnitudes, fp32 denormals and infinity among them */
        uint32_t bits = (uint32_t)random_u64(&s->seed);
        memcpy(&x[i], &bits, sizeof bits);
    }
    void *there = take(s, s->dtype, n, 0);
    MUST(pd_cast(s->math, n, s->dtype, there, PD_F32, x, &err));
    MUST(pd_cast(s->math, n, PD_F32, take(s, PD_F32, n, 0), s->dtype, there, &err));
    MUST(pd_cast(s->math, n, PD_BF16, take(s, PD_BF16, n, 0), s->dtype, there, &err));
}

/* Results in the denormal range: flushed by every thread, the caller's included. */
static void run_denormals(struct scene *s)
{
    uint64_t n = 5003;
    void *x = take(s, s->dtype, n, s->dtype == PD_F16 ? 1e-7 : 1e-38);
    float *sum = take(s, PD_F32, n, 1e-38);
    MUST(pd_add(s->math, n, sum, take(s, PD_F32, n, 1e-38), &err));
    void *out = take(s, s->dtype, n, 0);
    MUST(pd_gelu_forward(s->math, n, s->dtype, x, out, &err));
    struct pd_gemm g = {.m = 20,
                        .n = 20,
                        .k = 20,
                        .a = {take(s, PD_F32, 400, 1e-20), PD_F32, 20},
                        .b = {take(s, PD_F32, 400, 1e-18), PD_F32, 20},
                        .c = {take(s, PD_F32, 400, 0), PD_F32, 20}};
    MUST(pd_gemm(s->math, &g, &err));
}

static const struct {
    const char *name;
    void (*run)(struct scene *);
} cases[] = {
    {"gemm", run_gemm},
    {"rms norm", run_rms},
    {"layer norm", run_layer},
    {"rope", run_rope},
    {"norms of heads, rotated", run_head_norms},
    {"attention", run_attention},
    {"attention of one head", run_attention_of_one_head},
    {"swiglu", run_swiglu},
    {"experts", run_experts},
    {"gelu", run_gelu},
    {"embedding", run_embedding},
    {"cross-entropy", run_loss},
    {"sums", run_sums},
    {"cast", run_cast},
    {"denormals", run_denormals},
    {"finish", run_finish},
    {"cross-entropy of a cut vocabulary", run_loss_cut},
    {"embedding in pieces", run_embedding_cut},
};
enum { CASES = sizeof cases / sizeof *cases };

static void run_case(struct fixture *f, size_t c, enum pd_dtype dtype, unsigned char *block)
{
    memset(block, 0, BLOCK_BYTES);
    struct scene s = {f->math, dtype, block, 0, 1000 + c};
    cases[c].run(&s);
}

/* NaN is NaN, whatever its payload: operands of an addition may be swapped by a compiler. */
static void check_equal(const unsigned char *got, const unsigned char *want, const char *name, enum pd_isa isa,
                        unsigned threads, enum pd_dtype dtype)
{
    if (memcmp(got, want, BLOCK_BYTES) == 0) return;
    for (uint64_t i = 0; i < BLOCK_BYTES; i += 4) {
        cr_assert_eq(memcmp(got + i, want + i, 4), 0,
                     "%s, %s, %s on %u threads: bits differ from portable at byte %lu of the scene", name,
                     pd_dtype_name(dtype), pd_isa_name(isa), threads, i);
    }
}

static void check_isa(enum pd_isa isa)
{
    if (!pd_isa_available(isa)) {
        cr_skip_test("this processor has no %s", pd_isa_name(isa));
    }
    unsigned char *want = malloc(BLOCK_BYTES), *got = malloc(BLOCK_BYTES);
    struct fixture one = fixture_new(PD_ISA_PORTABLE, 1);
    for (size_t c = 0; c < CASES; c++) {
        for (size_t d = 0; d < 3; d++) {
            run_case(&one, c, all_dtypes[d], want);
            for (unsigned threads = isa == PD_ISA_PORTABLE ? 2 : 1; threads <= 3; threads++) {
                struct fixture f = fixture_new(isa, threads);
                cr_assert_eq(f.math->isa, isa);
                run_case(&f, c, all_dtypes[d], got);
                check_equal(got, want, cases[c].name, isa, threads, all_dtypes[d]);
                fixture_free(&f);
            }
        }
    }
    fixture_free(&one);
    free(want);
    free(got);
}

Test(bits, portable_on_any_threads)
{
    check_isa(PD_ISA_PORTABLE);
}

Test(bits, avx2_as_portable)
{
    check_isa(PD_ISA_AVX2);
}

Test(bits, avx512_as_portable)
{
    check_isa(PD_ISA_AVX512);
}

/* Bits do not depend on what else is in the call: a sequence alone, and between others. */
Test(bits, a_sequence_alone_and_in_a_batch)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    enum { T = 90, H = 4, K = 2, D = 32, LD = (H + 2 * K) * D };
    uint64_t seed = 44;
    struct array qkv = array_random(PD_F32, 3 * T * LD, 1, &seed), dout = array_random(PD_F32, 3 * T * H * D, 1, &seed);
    float *out = malloc(2 * 3 * T * H * D * sizeof *out), *lse = malloc(3 * 2 * T * H * sizeof *lse),
          *delta = malloc(3 * T * H * sizeof *delta);
    float *gradient = calloc(2 * 3 * T * LD, sizeof *gradient), *x = qkv.data, *d = dout.data;
    struct pd_attention a = {.sequences = 3,
                             .length = T,
                             .heads = H,
                             .kv_heads = K,
                             .head_size = D,
                             .scale = 0.2f,
                             .q = x,
                             .k = x + H * D,
                             .v = x + (H + K) * D,
                             .ld_qkv = LD,
                             .out = out,
                             .lse = lse,
                             .dout = d,
                             .delta = delta,
                             .dq = gradient,
                             .dk = gradient + H * D,
                             .dv = gradient + (H + K) * D};
    MUST(pd_attention_forward(f.math, &a, &err));
    MUST(pd_attention_backward(f.math, &a, &err));
    for (size_t s = 0; s < 3; s++) {
        float *alone = gradient + 3 * T * LD, *out_alone = out + 3 * T * H * D;
        size_t rows = s * T;
        struct pd_attention b = a;
        b.sequences = 1;
        b.q = x + rows * LD;
        b.k = (const float *)b.q + H * D;
        b.v = (const float *)b.q + (H + K) * D;
        b.dout = d + rows * H * D;
        b.out = out_alone;
        b.lse = lse + 3 * T * H;
        b.dq = alone;
        b.dk = alone + H * D;
        b.dv = alone + (H + K) * D;
        MUST(pd_attention_forward(f.math, &b, &err));
        MUST(pd_attention_backward(f.math, &b, &err));
        cr_assert_eq(memcmp(out_alone, out + rows * H * D, T * H * D * sizeof *out), 0, "out of sequence %zu", s);
        cr_assert_eq(memcmp(alone, gradient + rows * LD, T * LD * sizeof *alone), 0, "gradient of sequence %zu", s);
    }
    array_free(&qkv);
    array_free(&dout);
    free(out);
    free(lse);
    free(delta);
    free(gradient);
    fixture_free(&f);
}

/* (0,1), (2,3), ... then up, in fp32: the order that any tensor parallelism can keep. */
static float tree_of(const float *terms, size_t count, size_t stride)
{
    float level[16];
    for (size_t i = 0; i < count; i++)
        level[i] = terms[i * stride];
    while (count > 1) {
        for (size_t i = 0; i < count / 2; i++)
            level[i] = level[2 * i] + level[2 * i + 1];
        if (count % 2) level[count / 2] = level[count - 1];
        count = (count + 1) / 2;
    }
    return level[0];
}

/* The gradient of a shared key-value head against those of as many heads that share nothing. */
static void check_tree(struct fixture *f, uint32_t group, uint32_t length)
{
    enum { D = 16 };
    uint64_t seed = group, wide = (uint64_t)group * D, ld = wide + 2 * D, ld_alone = 3 * wide;
    struct array qkv = array_random(PD_F32, length * ld, 1, &seed), dout = array_random(PD_F32, length * wide, 1, &seed);
    float *x = qkv.data, *alone = calloc(length * ld_alone, sizeof *alone), *out = calloc(length * wide, sizeof *out);
    float *shared_gradient = calloc(length * ld, sizeof *out), *gradient = calloc(length * ld_alone, sizeof *gradient);
    float *lse = calloc(length * group, sizeof *lse), *delta = calloc(length * group, sizeof *delta);
    for (uint64_t r = 0; r < length; r++) {
        memcpy(alone + r * ld_alone, x + r * ld, wide * sizeof *x);
        for (uint32_t g = 0; g < group; g++) {
            memcpy(alone + r * ld_alone + wide + g * D, x + r * ld + wide, D * sizeof *x);
            memcpy(alone + r * ld_alone + 2 * wide + g * D, x + r * ld + wide + D, D * sizeof *x);
        }
    }
    struct pd_attention a = {.sequences = 1,
                             .length = length,
                             .heads = group,
                             .kv_heads = 1,
                             .head_size = D,
                             .scale = 0.25f,
                             .q = x,
                             .k = x + wide,
                             .v = x + wide + D,
                             .ld_qkv = ld,
                             .out = out,
                             .lse = lse,
                             .dout = dout.data,
                             .delta = delta,
                             .dq = shared_gradient,
                             .dk = shared_gradient + wide,
                             .dv = shared_gradient + wide + D};
    struct pd_attention b = a;
    b.kv_heads = group;
    b.q = alone;
    b.k = alone + wide;
    b.v = alone + 2 * wide;
    b.ld_qkv = ld_alone;
    b.dq = gradient;
    b.dk = gradient + wide;
    b.dv = gradient + 2 * wide;
    MUST(pd_attention_forward(f->math, &a, &err));
    MUST(pd_attention_backward(f->math, &a, &err));
    MUST(pd_attention_backward(f->math, &b, &err));
    for (uint64_t r = 0; r < length; r++) {
        for (uint64_t i = 0; i < 2 * D; i++) {
            const float *parts = gradient + r * ld_alone + (i < D ? wide + i : 2 * wide + i - D);
            float got = shared_gradient[r * ld + wide + i], want = tree_of(parts, group, D);
            cr_assert_eq(got, want, "%u heads, row %lu, %s %lu: %a, not %a", group, r, i < D ? "dk" : "dv", i % D,
                         (double)got, (double)want);
        }
    }
    array_free(&qkv);
    array_free(&dout);
    float *all[] = {alone, out, shared_gradient, gradient, lse, delta};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

Test(bits, grouped_heads_add_up_as_a_tree)
{
    for (unsigned threads = 1; threads <= 2; threads++) {
        struct fixture f = fixture_new(PD_ISA_AUTO, threads);
        for (uint32_t group = 2; group <= 9; group++)
            check_tree(&f, group, 70);
        fixture_free(&f);
    }
}

/* The sum of squares of a row as the contract words it, one lane after the other. */
Test(bits, a_row_is_summed_in_sixteen_lanes)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    enum { ROWS = 40, COLUMNS = 777 };
    uint64_t seed = 21;
    struct array x = array_random(PD_F32, ROWS * COLUMNS, 1, &seed), weight = array_random(PD_F32, COLUMNS, 1, &seed);
    float *out = malloc(ROWS * COLUMNS * sizeof *out), rstd[ROWS];
    struct pd_norm n = {
        .rows = ROWS, .columns = COLUMNS, .epsilon = 1e-5f, .x = x.data, .weight = weight.data, .rstd = rstd, .out = out};
    MUST(pd_norm_forward(f.math, &n, &err));
    for (size_t r = 0; r < ROWS; r++) {
        float lane[16] = {0};
        for (size_t i = 0; i < COLUMNS; i++) {
            float e = ((const float *)x.data)[r * COLUMNS + i];
            lane[i % 16] = fmaf(e, e, lane[i % 16]);
        }
        for (int half = 8; half >= 1; half /= 2)
            for (int l = 0; l < half; l++)
                lane[l] += lane[l + half];
        cr_assert_eq(rstd[r], 1.0f / sqrtf(lane[0] / COLUMNS + 1e-5f), "row %zu", r);
    }
    array_free(&x);
    array_free(&weight);
    free(out);
    fixture_free(&f);
}
