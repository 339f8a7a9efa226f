/* Attention's kernels against the CPU backend and float64. Without tensor cores they have the CPU's bits; with them, errors
 * of the operands' precision, and bits that do not depend on neighbours, order of blocks, alignment or who holds which
 * heads. Types and orders of one case go round by shares (helpers/scale.h). */
#include "tests/helpers/scale.h"
#include "tests/simt/simt_order.h"
#include "tests/unit/math/fixture.h"
#include "tests/unit/math/reference.h"
#include "trainer/math/cuda/kernels.h"

struct shape {
    uint32_t sequences, length, heads, kv_heads, d;
    bool documents;
};

struct problem {
    struct shape s;
    enum pd_dtype dtype;
    uint32_t chunk;             /* query heads; 0: one chunk */
    struct array q, k, v, dout; /* (R, H*D), (R, K*D) each, (R, H*D) */
    int32_t *first;
};

/* Query heads [begin, end) of a problem, rows `pad` elements longer than they need be. */
struct share {
    uint32_t begin, end, pad;
    bool partial;
};

/* (R, heads*D), (R, kv heads*D), dense, and (S, heads, T) */
struct result {
    void *out, *dq, *dk, *dv;
    float *lse;
    size_t out_bytes, kv_bytes, lse_bytes;
};

static struct problem problem_new(struct shape s, enum pd_dtype dtype, uint32_t chunk, uint64_t seed)
{
    size_t rows = (size_t)s.sequences * s.length;
    struct problem p = {.s = s, .dtype = dtype, .chunk = chunk};
    p.q = array_random(dtype, rows * s.heads * s.d, 1, &seed);
    p.k = array_random(dtype, rows * s.kv_heads * s.d, 1, &seed);
    p.v = array_random(dtype, rows * s.kv_heads * s.d, 1, &seed);
    p.dout = array_random(dtype, rows * s.heads * s.d, 1, &seed);
    if (!s.documents) return p;
    p.first = calloc(rows, sizeof *p.first);
    for (size_t r = 1; r < rows; r++) {
        int32_t t = (int32_t)(r % s.length);
        p.first[r] = t == 0 ? 0 : random_u64(&seed) % 40 == 0 ? t : p.first[r - 1];
    }
    return p;
}

static void problem_free(struct problem *p)
{
    array_free(&p->q);
    array_free(&p->k);
    array_free(&p->v);
    array_free(&p->dout);
    free(p->first);
}

static void result_free(struct result *r)
{
    void *all[] = {r->out, r->dq, r->dk, r->dv, r->lse};
    for (size_t i = 0; i < 5; i++)
        free(all[i]);
}

/* Bytes that nobody wrote are NaN. */
static void *unset(size_t bytes)
{
    void *data = malloc(bytes + 1);
    cr_assert(data);
    memset(data, 0xff, bytes);
    return data;
}

/* Columns [begin, begin + columns) of a dense (rows, width) array <-> rows of `columns + pad`. */
static void *widen(const void *from, size_t element, size_t rows, size_t width, size_t begin, size_t columns, size_t pad)
{
    char *to = unset(rows * (columns + pad) * element);
    for (size_t r = 0; r < rows; r++)
        memcpy(to + r * (columns + pad) * element, (const char *)from + (r * width + begin) * element, columns * element);
    return to;
}

static void *narrow(void *from, size_t element, size_t rows, size_t columns, size_t pad)
{
    char *to = unset(rows * columns * element), *row = from;
    for (size_t r = 0; r < rows; r++, row += (columns + pad) * element) {
        memcpy(to + r * columns * element, row, columns * element);
        for (size_t i = columns * element; i < (columns + pad) * element; i++)
            cr_assert_eq((unsigned char)row[i], 0xff, "wrote beside its rows");
    }
    free(from);
    return to;
}

/* Waiting terms of the tree over query heads that there is room for; 0: as many as are asked for. */
static uint64_t workspace_rows; /* of terms of all query heads; 0: as much as is asked for */

/* Kernels on tensor cores: of mma.sync, and of compute capability 9.0, backward in two passes and in one. */
static const char *const ways[] = {"mma", "wgmma", "onepass"};
enum { WAYS = 3 };

static void use(const char *way)
{
    cr_assert_eq(setenv("PERDURE_ATTENTION", way, 1), 0);
}

/* By the table where there is one, else by the kernels on the host. */
static void call(struct pd_math *math, const struct pd_attention *a)
{
    if (math) {
        MUST(pd_attention_forward(math, a, &err));
        MUST(pd_attention_backward(math, a, &err));
        return;
    }
    uint32_t begun = 0;
    struct pd_cuda_workspace workspace = {NULL, pd_cuda_attention_workspace_bytes(a), &begun};
    if (workspace_rows) workspace.bytes = workspace_rows * 2 * a->heads * a->head_size * sizeof(float);
    if (workspace.bytes) workspace.data = unset(workspace.bytes);
    MUST(pd_cuda_attention_forward(NULL, a, workspace, &err));
    MUST(pd_cuda_attention_backward(NULL, a, workspace, &err));
    cr_assert_eq(begun, 0);
    free(workspace.data);
}

static struct result attend_share(struct pd_math *math, const struct problem *p, struct share share)
{
    const uint32_t group = p->s.heads / p->s.kv_heads, heads = share.end - share.begin, d = p->s.d, pad = share.pad;
    const uint32_t kv_begin = share.begin / group, kv_heads = (share.end + group - 1) / group - kv_begin;
    const size_t rows = (size_t)p->s.sequences * p->s.length, e = pd_dtype_bytes(p->dtype), ke = share.partial ? 4 : e;
    const size_t width = (size_t)heads * d, kv_width = (size_t)kv_heads * d, all = (size_t)p->s.heads * d;
    const size_t kv_all = (size_t)p->s.kv_heads * d, kv_at = (size_t)kv_begin * d;
    struct result r = {.out_bytes = rows * width * e, .kv_bytes = rows * kv_width * ke, .lse_bytes = rows * heads * 4};
    void *q = widen(p->q.data, e, rows, all, (size_t)share.begin * d, width, pad);
    void *dout = widen(p->dout.data, e, rows, all, (size_t)share.begin * d, width, 0);
    void *k = widen(p->k.data, e, rows, kv_all, kv_at, kv_width, pad);
    void *v = widen(p->v.data, e, rows, kv_all, kv_at, kv_width, pad);
    void *dq = unset(rows * (width + pad) * e), *dk = unset(rows * (kv_width + pad) * ke);
    void *dv = unset(rows * (kv_width + pad) * ke), *delta = unset(r.lse_bytes);
    r.out = unset(r.out_bytes), r.lse = unset(r.lse_bytes);
    struct pd_attention a = {.sequences = p->s.sequences,
                             .length = p->s.length,
                             .heads = heads,
                             .kv_heads = kv_heads,
                             .head_size = d,
                             .group = group,
                             .group_offset = share.begin - kv_begin * group,
                             .head_chunk = p->chunk,
                             .dtype = p->dtype,
                             .scale = 1.0f / sqrtf((float)d),
                             .q = q,
                             .k = k,
                             .v = v,
                             .ld_qkv = width + pad,
                             .ld_kv = kv_width + pad,
                             .first = p->first,
                             .out = r.out,
                             .lse = r.lse,
                             .dout = dout,
                             .delta = delta,
                             .dq = dq,
                             .dk = dk,
                             .dv = dv,
                             .kv_partial = share.partial};
    call(math, &a);
    r.dq = narrow(dq, e, rows, width, pad);
    r.dk = narrow(dk, ke, rows, kv_width, pad);
    r.dv = narrow(dv, ke, rows, kv_width, pad);
    void *operands[] = {q, k, v, dout, delta};
    for (size_t i = 0; i < 5; i++)
        free(operands[i]);
    return r;
}

static struct result attend(struct pd_math *math, const struct problem *p)
{
    return attend_share(math, p, (struct share){0, p->s.heads, 0, false});
}

static void check_same(const struct problem *p, const struct result *a, const struct result *b, const char *what)
{
    const struct {
        const char *name;
        const void *a, *b;
        size_t bytes;
    } all[] = {{"out", a->out, b->out, a->out_bytes},
               {"lse", a->lse, b->lse, a->lse_bytes},
               {"dq", a->dq, b->dq, a->out_bytes},
               {"dk", a->dk, b->dk, a->kv_bytes},
               {"dv", a->dv, b->dv, a->kv_bytes}};
    for (size_t i = 0; i < 5; i++)
        cr_assert_eq(memcmp(all[i].a, all[i].b, all[i].bytes), 0, "S%u T%u H%u/%u D%u %s%s, %s: %s differs", p->s.sequences,
                     p->s.length, p->s.heads, p->s.kv_heads, p->s.d, pd_dtype_name(p->dtype), p->first ? " documents" : "",
                     what, all[i].name);
}

/* |got - want| / |want|, over all elements. */
static double relative_error(enum pd_dtype dtype, const void *got, const double *want, size_t count)
{
    double error = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        double difference = value_get(dtype, got, i) - want[i];
        error += difference * difference;
        size += want[i] * want[i];
    }
    return sqrt(error / size);
}

static void check_values(const struct problem *p, const struct result *r)
{
    const size_t rows = (size_t)p->s.sequences * p->s.length, width = rows * p->s.heads * p->s.d;
    const size_t kv_width = rows * p->s.kv_heads * p->s.d;
    const struct ref_attention ref = {
        p->s.sequences, p->s.length, p->s.heads, p->s.kv_heads, p->s.d, (double)(1.0f / sqrtf((float)p->s.d)),
        p->q.exact,     p->k.exact,  p->v.exact, p->first};
    double *out = calloc(width, sizeof *out), *lse = calloc(rows * p->s.heads, sizeof *lse);
    double *dq = calloc(width, sizeof *dq), *dk = calloc(kv_width, sizeof *dk), *dv = calloc(kv_width, sizeof *dv);
    ref_attention_forward(&ref, out, lse);
    ref_attention_backward(&ref, p->dout.exact, dq, dk, dv);
    const double bound = p->dtype == PD_BF16 ? 1e-2 : 1.5e-3;
    const struct {
        const char *name;
        enum pd_dtype dtype;
        const void *got;
        const double *want;
        size_t count;
        double bound;
    } all[] = {{"out", p->dtype, r->out, out, width, bound},
               {"lse", PD_F32, r->lse, lse, rows * p->s.heads, 1e-6},
               {"dq", p->dtype, r->dq, dq, width, bound},
               {"dk", p->dtype, r->dk, dk, kv_width, bound},
               {"dv", p->dtype, r->dv, dv, kv_width, bound}};
    for (size_t i = 0; i < 5; i++) {
        bool is_zero = p->s.length == 1 && (i == 2 || i == 3); /* one key: its weight is 1 whatever the scores */
        double error = is_zero ? 0 : relative_error(all[i].dtype, all[i].got, all[i].want, all[i].count);
        cr_assert(error <= all[i].bound, "S%u T%u H%u/%u D%u %s%s: %s is off by %.2e, bound %.0e", p->s.sequences,
                  p->s.length, p->s.heads, p->s.kv_heads, p->s.d, pd_dtype_name(p->dtype), p->first ? " documents" : "",
                  all[i].name, error, all[i].bound);
    }
    void *mine[] = {out, lse, dq, dk, dv};
    for (size_t i = 0; i < 5; i++)
        free(mine[i]);
}

static const struct shape plain_shapes[] = {
    {1, 1, 1, 1, 1, false},    {2, 15, 2, 1, 2, false},  {1, 33, 4, 2, 17, true},
    {1, 65, 6, 2, 24, true},   {1, 90, 8, 1, 32, false}, {1, 70, 2, 2, 96, true},
    {1, 40, 1, 1, 256, false}, {1, 130, 2, 1, 64, true}, {1, 50, 4, 2, 168, true},
};

Test(attention, without_tensor_cores_has_the_bits_of_the_cpu)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t i = 0; i < sizeof plain_shapes / sizeof *plain_shapes; i++)
        for (size_t d = 0; d < 3; d++) {
            if (plain_shapes[i].d == 64 && all_dtypes[d] != PD_F32) continue;
            struct problem p = problem_new(plain_shapes[i], all_dtypes[d], i % 2 ? 2 : 0, 31 * i + 7);
            struct result want = attend(f.math, &p), got = attend(NULL, &p);
            check_same(&p, &want, &got, "against the CPU");
            result_free(&want);
            result_free(&got);
            problem_free(&p);
        }
    fixture_free(&f);
}

static const struct shape tile_shapes[] = {
    {1, 1, 1, 1, 64, false},  {2, 15, 2, 1, 64, true},    {1, 64, 4, 1, 64, false},
    {1, 65, 2, 2, 128, true}, {1, 127, 8, 1, 64, true},   {1, 129, 2, 1, 128, true},
    {1, 200, 2, 2, 64, true}, {1, 260, 1, 1, 128, false}, {1, 400, 2, 1, 64, true},
};

Test(attention, on_tensor_cores_agrees_with_float64)
{
    const size_t shapes = sizeof tile_shapes / sizeof *tile_shapes;
    for (size_t i = 0; i < shapes * WAYS; i++)
        for (size_t d = 1; d < 3; d++) {
            if (!test_has_turn(i / WAYS + i % WAYS + d, 4)) continue;
            struct problem p = problem_new(tile_shapes[i / WAYS], all_dtypes[d], 0, 91 * (i / WAYS) + d);
            use(ways[i % WAYS]);
            struct result got = attend(NULL, &p);
            check_values(&p, &got);
            result_free(&got);
            problem_free(&p);
        }
}

/* Blocks and threads in other orders, rows that lie farther apart. */
Test(attention, has_the_same_bits_in_any_order_and_place)
{
    static const struct shape shapes[] = {{2, 130, 4, 2, 64, true}, {1, 70, 3, 1, 128, false}, {1, 50, 4, 1, 20, true}};
    for (size_t i = 0; i < 3 * WAYS; i++) {
        struct problem p = problem_new(shapes[i / WAYS], i / WAYS == 1 ? PD_F16 : PD_BF16, 0, 5 + i);
        use(ways[i % WAYS]);
        struct result want = attend(NULL, &p);
        for (uint64_t order = 1; order < 4; order++) {
            if (!test_has_turn(i + order, 3)) continue;
            simt_set_order(order * order);
            struct result got = attend_share(NULL, &p, (struct share){0, p.s.heads, order == 1 ? 0 : 8, false});
            check_same(&p, &want, &got, "another order");
            result_free(&got);
        }
        simt_set_order(0);
        result_free(&want);
        problem_free(&p);
    }
}

/* dQ goes from block to block, in the order of the keys; dK and dV have their tree over query heads in a kernel of their own. */
Test(attention, backward_in_one_pass_has_the_bits_of_two)
{
    static const struct shape shapes[] = {
        {2, 300, 2, 2, 64, true}, {1, 385, 7, 1, 64, false}, {1, 320, 3, 1, 128, true}, {1, 257, 1, 1, 128, false}};
    static const uint64_t orders[] = {1, 4, 25}; /* the latter hold the last and the first of two consumers back */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct problem p = problem_new(shapes[i], i % 2 ? PD_F16 : PD_BF16, i == 1 ? 3 : 0, 61 + i);
        use("wgmma");
        struct result want = attend(NULL, &p);
        use("onepass");
        for (size_t order = 0; order < 3; order++) {
            if (!test_has_turn(i + order, 3)) continue;
            simt_set_order(orders[order]);
            struct result got = attend_share(NULL, &p, (struct share){0, p.s.heads, order == 1 ? 8 : 0, false});
            check_same(&p, &want, &got, "one pass");
            result_free(&got);
        }
        simt_set_order(0);
        result_free(&want);
        problem_free(&p);
    }
}

static void fill(struct array *a, size_t count, uint16_t bits)
{
    for (size_t i = 0; i < count; i++)
        ((uint16_t *)a->data)[i] = bits;
}

/* Scores so low that a key of zeros would weigh more than numbers hold: there is none behind the last. */
Test(attention, keys_beyond_the_end_have_no_weight)
{
    static const struct shape shapes[] = {{1, 65, 1, 1, 64, false}, {1, 129, 1, 1, 128, false}};
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
        const struct shape s = shapes[i / 2];
        const bool is_bf16 = i % 2;
        struct problem p = problem_new(s, is_bf16 ? PD_BF16 : PD_F16, 0, 17 + i);
        fill(&p.q, (size_t)s.length * s.d, is_bf16 ? 0xc060 : 0xbe00); /* -3.5, -1.5 */
        fill(&p.k, (size_t)s.length * s.d, is_bf16 ? 0x4060 : 0x3e00); /* 3.5, 1.5 */
        use("wgmma");
        struct result want = attend(NULL, &p);
        use("onepass");
        struct result got = attend(NULL, &p);
        check_same(&p, &want, &got, "one pass");
        result_free(&want);
        result_free(&got);
        problem_free(&p);
    }
}

/* A sequence alone, and terms of one sequence at a time. */
Test(attention, of_many_sequences_is_that_of_each)
{
    for (size_t i = 0; i < 3; i++) {
        const uint32_t d = i < 2 ? 64 : 20, t = 66, e = 2;
        use(ways[i % WAYS]);
        struct problem all = problem_new((struct shape){3, t, 6, 2, d, true}, PD_BF16, 0, 17), one = all;
        one.s.sequences = 1;
        struct result want = attend(NULL, &all);
        workspace_rows = t + 1;
        struct result narrow_one = attend(NULL, &all);
        check_same(&all, &want, &narrow_one, "with little workspace");
        workspace_rows = 0;
        const size_t q = (size_t)2 * t * 6 * d * e, kv = (size_t)2 * t * 2 * d * e;
        one.q.data = (char *)all.q.data + q, one.dout.data = (char *)all.dout.data + q;
        one.k.data = (char *)all.k.data + kv, one.v.data = (char *)all.v.data + kv;
        one.first = all.first + (size_t)2 * t;
        struct result got = attend(NULL, &one);
        struct result here = {(char *)want.out + q,         (char *)want.dq + q, (char *)want.dk + kv, (char *)want.dv + kv,
                              want.lse + (size_t)2 * t * 6, got.out_bytes,       got.kv_bytes,         got.lse_bytes};
        check_same(&one, &here, &got, "one sequence of many");
        result_free(&got);
        result_free(&narrow_one);
        result_free(&want);
        problem_free(&all);
    }
}

/* Terms of query heads of a few keys at a time: trees of 7 and of 12 heads, chunks, a rank's heads that begin and end inside
 * key-value heads. */
static const struct by_heads {
    struct shape s;
    uint32_t chunk;
    struct share share;
} by_heads[] = {{{2, 70, 14, 2, 64, true}, 0, {0, 14, 0, false}},
                {{1, 30, 12, 1, 128, false}, 5, {0, 12, 8, false}},
                {{1, 66, 12, 3, 64, true}, 3, {3, 9, 0, true}},
                {{1, 20, 9, 1, 20, false}, 0, {2, 9, 1, true}}};

Test(attention, a_few_keys_at_a_time_have_the_bits_of_all)
{
    for (size_t i = 0; i < WAYS * (sizeof by_heads / sizeof *by_heads); i++) {
        const struct by_heads *c = &by_heads[i / WAYS];
        if (!test_has_turn(i / WAYS + i % WAYS, 2)) continue;
        struct problem p = problem_new(c->s, i / WAYS == 1 ? PD_F16 : PD_BF16, c->chunk, 23 + i);
        use(ways[i % WAYS]);
        struct result want = attend_share(NULL, &p, c->share);
        workspace_rows = c->s.length / 3;
        for (uint64_t order = 0; order < 3; order++) {
            if (!test_has_turn(i + order, 3)) continue;
            simt_set_order(order);
            struct result got = attend_share(NULL, &p, c->share);
            check_same(&p, &want, &got, "a few keys at a time");
            result_free(&got);
        }
        workspace_rows = 0;
        simt_set_order(0);
        result_free(&want);
        problem_free(&p);
    }
}

/* The tree of query heads as ranks cut it: aligned runs of chunks, which begin and end inside key-value heads. */
static const struct cut {
    struct shape s;
    uint32_t chunk, ranks, bounds[5];
} cuts[] = {{{1, 66, 12, 3, 64, true}, 3, 4, {0, 3, 6, 9, 12}},
            {{1, 66, 6, 1, 64, false}, 2, 2, {0, 4, 6}},
            {{1, 40, 16, 2, 24, true}, 2, 2, {0, 8, 16}},
            {{1, 30, 7, 1, 128, false}, 2, 2, {0, 4, 7}}};

/* Sums of ranks, which hold nodes of the tree: as many as there are, joined pairwise by place. */
static float join(const float *terms, const bool *there, uint32_t begin, uint32_t count, bool *ret_any)
{
    if (count == 1) return *ret_any = there[begin], terms[begin];
    bool left_any, right_any;
    float left = join(terms, there, begin, count / 2, &left_any);
    float right = join(terms, there, begin + count / 2, count / 2, &right_any);
    *ret_any = left_any || right_any;
    return left_any && right_any ? left + right : left_any ? left : right;
}

static void check_joined(const struct problem *p, const struct cut *c, const struct result *ranks, const void *whole,
                         bool is_key)
{
    const uint32_t group = p->s.heads / p->s.kv_heads, d = p->s.d, kv_width = p->s.kv_heads * d;
    for (size_t i = 0; i < (size_t)p->s.sequences * p->s.length * kv_width; i++) {
        const uint32_t column = (uint32_t)(i % kv_width), kv = column / d;
        float terms[4] = {0};
        bool there[4] = {false}, any;
        for (uint32_t r = 0; r < c->ranks; r++) {
            const uint32_t begin = c->bounds[r] / group, end = (c->bounds[r + 1] + group - 1) / group;
            const size_t at = i / kv_width * (end - begin) * d + (kv - begin) * d + column % d;
            if (kv < begin || kv >= end) continue;
            terms[r] = ((const float *)(is_key ? ranks[r].dk : ranks[r].dv))[at];
            there[r] = true;
        }
        const float sum = join(terms, there, 0, 4, &any), scale = is_key ? 1.0f / sqrtf((float)d) : 1.0f;
        uint16_t want[2] = {0};
        value_put(p->dtype, want, 0, (double)(sum * scale));
        cr_assert_eq(want[0], ((const uint16_t *)whole)[i], "H%u/%u D%u: %s element %zu", p->s.heads, p->s.kv_heads, d,
                     is_key ? "dk" : "dv", i);
    }
}

Test(attention, of_a_rank_is_a_node_of_the_tree_of_all)
{
    for (size_t i = 0; i < WAYS * (sizeof cuts / sizeof *cuts); i++) {
        const struct cut *c = &cuts[i / WAYS];
        struct problem p = problem_new(c->s, i / WAYS == 1 ? PD_F16 : PD_BF16, c->chunk, 3 + i);
        use(ways[i % WAYS]);
        struct result whole = attend(NULL, &p), ranks[4];
        const size_t width = p.s.d * pd_dtype_bytes(p.dtype), row = p.s.heads * width;
        for (uint32_t r = 0; r < c->ranks; r++) {
            const uint32_t begin = c->bounds[r], heads = c->bounds[r + 1] - begin;
            ranks[r] = attend_share(NULL, &p, (struct share){begin, begin + heads, 0, true});
            for (size_t t = 0; t < p.s.length; t++) {
                const size_t mine = t * heads * width, theirs = t * row + begin * width;
                cr_assert_arr_eq((char *)ranks[r].out + mine, (char *)whole.out + theirs, heads * width);
                cr_assert_arr_eq((char *)ranks[r].dq + mine, (char *)whole.dq + theirs, heads * width);
            }
        }
        check_joined(&p, c, ranks, whole.dk, true);
        check_joined(&p, c, ranks, whole.dv, false);
        for (uint32_t r = 0; r < c->ranks; r++)
            result_free(&ranks[r]);
        result_free(&whole);
        problem_free(&p);
    }
}

Test(attention, by_plain_kernels_where_they_are_asked_for)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    struct problem p = problem_new((struct shape){1, 70, 2, 1, 64, true}, PD_BF16, 0, 8);
    struct result want = attend(f.math, &p);
    use("plain");
    struct result got = attend(NULL, &p);
    check_same(&p, &want, &got, "against the CPU");
    result_free(&want);
    result_free(&got);
    problem_free(&p);
    fixture_free(&f);
}

Test(attention, by_kernels_that_there_are_not_says_so)
{
    struct pd_attention a = {.sequences = 1, .length = 4, .heads = 1, .kv_heads = 1, .head_size = 64, .dtype = PD_BF16};
    const struct pd_cuda_workspace none = {NULL, 0, NULL};
    struct pd_error err = {0};
    use("flash");
    cr_assert_eq(pd_cuda_attention_forward(NULL, &a, none, &err), PD_USAGE);
    cr_assert(strstr(err.message, "PERDURE_ATTENTION=flash"), "%s", err.message);
    cr_assert(strstr(err.message, "wgmma"), "%s", err.message);
}

Test(attention, of_heads_that_no_kernel_takes_says_so)
{
    struct pd_attention a = {.sequences = 1, .length = 4, .heads = 1, .kv_heads = 1, .head_size = 264, .dtype = PD_BF16};
    const struct pd_cuda_workspace none = {NULL, 0, NULL};
    struct pd_error err = {0};
    cr_assert_eq(pd_cuda_attention_forward(NULL, &a, none, &err), PD_UNSUPPORTED);
    cr_assert(strstr(err.message, "264"), "%s", err.message);
    a.head_size = 64, a.heads = 65;
    cr_assert_eq(pd_cuda_attention_forward(NULL, &a, none, &err), PD_UNSUPPORTED);
    cr_assert(strstr(err.message, "65 query heads"), "%s", err.message);
}
