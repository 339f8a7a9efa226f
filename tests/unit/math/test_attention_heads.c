/* Attention of a rank that holds some of the query heads: the bits of one rank that holds them all, when both add up the
 * gradients of key-value heads by the same virtual chunks. */
#include "fixture.h"
#include "reference.h"

enum { SEQUENCES = 2, LENGTH = 75, ROWS = SEQUENCES * LENGTH, D = 18, HEADS_MAX = 16 };

struct shape {
    uint32_t heads, kv_heads, virtual_tp;
};

static const struct shape shapes[] = {{12, 3, 4}, {6, 3, 4},  {8, 2, 4},  {8, 2, 8}, {7, 1, 4},  {7, 1, 8},
                                      {10, 2, 4}, {9, 3, 2},  {5, 5, 4},  {3, 1, 8}, {16, 1, 4}, {16, 2, 8},
                                      {15, 3, 8}, {13, 1, 4}, {14, 2, 2}, {12, 4, 8}};

struct scene {
    struct shape shape;
    uint32_t group, chunk; /* query heads each */
    enum pd_dtype dtype;
    struct array q, k, v, dout; /* (R, H*D), (R, K*D) each, (R, H*D) */
    int32_t *first;
};

/* What attention writes for query heads [begin, end): dense for those heads and the key-value heads they read. */
struct result {
    uint32_t begin, end, kv_begin, kv_end;
    void *out, *dq, *dk, *dv; /* dk and dv of the dtype, or fp32 when partial */
    float *lse;
};

static struct scene scene_new(const struct shape *shape, enum pd_dtype dtype, bool documents)
{
    uint64_t seed = shape->heads * 100 + shape->kv_heads;
    struct scene s = {*shape,
                      shape->heads / shape->kv_heads,
                      (shape->heads + shape->virtual_tp - 1) / shape->virtual_tp,
                      dtype,
                      array_random(dtype, (size_t)ROWS * shape->heads * D, 1, &seed),
                      array_random(dtype, (size_t)ROWS * shape->kv_heads * D, 1, &seed),
                      array_random(dtype, (size_t)ROWS * shape->kv_heads * D, 1, &seed),
                      array_random(dtype, (size_t)ROWS * shape->heads * D, 1, &seed),
                      NULL};
    if (!documents) return s;
    s.first = calloc(ROWS, sizeof *s.first);
    for (int32_t r = 1; r < ROWS; r++)
        s.first[r] = r % LENGTH == 0 ? 0 : random_u64(&seed) % 30 == 0 ? r % LENGTH : s.first[r - 1];
    return s;
}

static void scene_free(struct scene *s)
{
    struct array *all[] = {&s->q, &s->k, &s->v, &s->dout};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        array_free(all[i]);
    free(s->first);
}

static void result_free(struct result *r)
{
    void *all[] = {r->out, r->dq, r->dk, r->dv, r->lse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void *element(const void *data, enum pd_dtype dtype, uint64_t index)
{
    return (char *)(uintptr_t)data + index * pd_dtype_bytes(dtype);
}

/* Heads [begin, end) of a (R, heads*D) array, made dense. */
static void *heads_of(const void *from, enum pd_dtype dtype, uint32_t heads, uint32_t begin, uint32_t end)
{
    uint64_t width = (uint64_t)(end - begin) * D;
    void *to = malloc(ROWS * width * pd_dtype_bytes(dtype) + 1);
    for (uint64_t r = 0; r < ROWS; r++)
        memcpy(element(to, dtype, r * width), element(from, dtype, (r * heads + begin) * D), width * pd_dtype_bytes(dtype));
    return to;
}

/* chunk 0: the gradient of a key-value head is one tree. */
static struct result attend(struct pd_math *math, const struct scene *s, uint32_t begin, uint32_t end, uint32_t chunk,
                            bool partial)
{
    const enum pd_dtype dtype = s->dtype;
    const uint32_t group = s->group, heads = end - begin;
    struct result r = {begin, end, begin / group, (end + group - 1) / group, NULL, NULL, NULL, NULL, NULL};
    if (heads == 0) r.kv_end = r.kv_begin;
    uint64_t width = (uint64_t)heads * D, kv_width = (uint64_t)(r.kv_end - r.kv_begin) * D;
    size_t bytes = pd_dtype_bytes(dtype), kv_bytes = partial ? 4 : bytes;
    r.out = calloc(ROWS * width + 1, bytes), r.dq = calloc(ROWS * width + 1, bytes);
    r.dk = calloc(ROWS * kv_width + 1, kv_bytes), r.dv = calloc(ROWS * kv_width + 1, kv_bytes);
    r.lse = calloc((size_t)ROWS * heads + 1, sizeof *r.lse);
    float *delta = calloc((size_t)ROWS * heads + 1, sizeof *delta);
    void *dout = heads_of(s->dout.data, dtype, s->shape.heads, begin, end);
    struct pd_attention a = {.sequences = SEQUENCES,
                             .length = LENGTH,
                             .heads = heads,
                             .kv_heads = r.kv_end - r.kv_begin,
                             .head_size = D,
                             .group = group,
                             .group_offset = begin - r.kv_begin * group,
                             .head_chunk = chunk,
                             .dtype = dtype,
                             .scale = 0.23f,
                             .q = element(s->q.data, dtype, (uint64_t)begin * D),
                             .k = element(s->k.data, dtype, (uint64_t)r.kv_begin * D),
                             .v = element(s->v.data, dtype, (uint64_t)r.kv_begin * D),
                             .ld_qkv = (uint64_t)s->shape.heads * D,
                             .ld_kv = (uint64_t)s->shape.kv_heads * D,
                             .first = s->first,
                             .out = r.out,
                             .lse = r.lse,
                             .dout = dout,
                             .delta = delta,
                             .dq = r.dq,
                             .dk = r.dk,
                             .dv = r.dv,
                             .ld_dq = width,
                             .ld_dkv = kv_width,
                             .kv_partial = partial};
    MUST(pd_attention_forward(math, &a, &err));
    MUST(pd_attention_backward(math, &a, &err));
    free(delta);
    free(dout);
    return r;
}

/* The tree as the contract words it: the sum over places [begin, begin + 2^level), of those that have a term. */
static const float *tree_sum(const float *const *terms, uint32_t count, uint32_t begin, uint32_t level, float *ret)
{
    if (begin >= count) return NULL;
    if (level == 0) return terms[begin] ? (*ret = *terms[begin], ret) : NULL;
    float left, right;
    const float *l = tree_sum(terms, count, begin, level - 1, &left);
    const float *r = tree_sum(terms, count, begin + (1u << (level - 1)), level - 1, &right);
    if (!l && !r) return NULL;
    *ret = l && r ? left + right : l ? left : right;
    return ret;
}

/* dk or dv of one key-value head from the partial sums of ranks: as the model does it. */
static void combine(struct pd_math *math, const struct scene *s, const struct result *ranks, uint32_t count, uint32_t kv,
                    bool is_key, void *out)
{
    float *copies[HEADS_MAX] = {0};
    const float *parts[HEADS_MAX] = {0};
    for (uint32_t r = 0; r < count; r++) {
        if (kv < ranks[r].kv_begin || kv >= ranks[r].kv_end) continue;
        uint32_t at = kv - ranks[r].kv_begin;
        copies[r] = heads_of(is_key ? ranks[r].dk : ranks[r].dv, PD_F32, ranks[r].kv_end - ranks[r].kv_begin, at, at + 1);
        parts[r] = copies[r];
    }
    struct pd_finish finish = {.rows = ROWS,
                               .columns = D,
                               .part_count = count,
                               .parts = parts,
                               .scale = is_key ? 0.23f : 1.0f,
                               .out = {out, s->dtype, D}};
    MUST(pd_finish(math, &finish, &err));
    for (uint32_t r = 0; r < count; r++)
        free(copies[r]);
}

static void check_key_values(struct pd_math *math, const struct scene *s, const struct result *one,
                             const struct result *ranks, uint32_t count, const char *what)
{
    void *got = calloc(ROWS * D, 4);
    for (uint32_t n = 0; n < 2 * s->shape.kv_heads; n++) {
        uint32_t kv = n / 2;
        bool is_key = n % 2 == 0;
        void *want = heads_of(is_key ? one->dk : one->dv, s->dtype, s->shape.kv_heads, kv, kv + 1);
        combine(math, s, ranks, count, kv, is_key, got);
        for (size_t i = 0; i < ROWS * D; i++) {
            double x = value_get(s->dtype, got, i), y = value_get(s->dtype, want, i);
            cr_assert_eq(x, y, "%s: %s of head %u, %zu: %a, not %a", what, is_key ? "dk" : "dv", kv, i, x, y);
        }
        free(want);
    }
    free(got);
}

static void check_queries(const struct scene *s, const struct result *one, const struct result *rank, const char *what)
{
    size_t bytes = ROWS * (size_t)(rank->end - rank->begin) * D * pd_dtype_bytes(s->dtype);
    const uint32_t heads = s->shape.heads;
    void *out = heads_of(one->out, s->dtype, heads, rank->begin, rank->end);
    void *dq = heads_of(one->dq, s->dtype, heads, rank->begin, rank->end);
    cr_assert_eq(memcmp(out, rank->out, bytes), 0, "%s: out of heads from %u", what, rank->begin);
    cr_assert_eq(memcmp(dq, rank->dq, bytes), 0, "%s: dq of heads from %u", what, rank->begin);
    for (uint32_t q = 0; q < SEQUENCES; q++)
        cr_assert_eq(memcmp(one->lse + (q * heads + rank->begin) * LENGTH,
                            rank->lse + (size_t)q * (rank->end - rank->begin) * LENGTH,
                            sizeof(float) * LENGTH * (rank->end - rank->begin)),
                     0, "%s: lse of heads from %u", what, rank->begin);
    free(out);
    free(dq);
}

static uint32_t at_most(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void check_ranks(struct fixture *f, const struct scene *s, const struct result *one, uint32_t tp)
{
    char what[96];
    snprintf(what, sizeof what, "H%u/%u virtual_tp %u tp %u %s%s", s->shape.heads, s->shape.kv_heads, s->shape.virtual_tp,
             tp, pd_dtype_name(s->dtype), s->first ? " documents" : "");
    struct result ranks[HEADS_MAX];
    uint32_t run = s->chunk * (s->shape.virtual_tp / tp);
    for (uint32_t r = 0; r < tp; r++) {
        uint32_t begin = at_most(r * run, s->shape.heads), end = at_most(begin + run, s->shape.heads);
        ranks[r] = attend(f->math, s, begin, end, s->chunk, true);
        check_queries(s, one, &ranks[r], what);
    }
    check_key_values(f->math, s, one, ranks, tp, what);
    for (uint32_t r = 0; r < tp; r++)
        result_free(&ranks[r]);
}

static void check_shape(struct fixture *f, struct fixture *other, const struct shape *shape, enum pd_dtype dtype,
                        bool documents)
{
    struct scene s = scene_new(shape, dtype, documents);
    struct result one = attend(f->math, &s, 0, shape->heads, s.chunk, false);
    struct result again = attend(other->math, &s, 0, shape->heads, s.chunk, false);
    check_queries(&s, &one, &again, "threads");
    size_t kv_bytes = ROWS * (size_t)shape->kv_heads * D * pd_dtype_bytes(dtype);
    cr_assert_eq(memcmp(one.dk, again.dk, kv_bytes), 0, "dk of H%u/%u on other threads", shape->heads, shape->kv_heads);
    cr_assert_eq(memcmp(one.dv, again.dv, kv_bytes), 0, "dv of H%u/%u on other threads", shape->heads, shape->kv_heads);
    for (uint32_t tp = 1; tp <= shape->virtual_tp; tp *= 2)
        check_ranks(tp % 2 ? f : other, &s, &one, tp);
    result_free(&one);
    result_free(&again);
    scene_free(&s);
}

Test(attention_heads, ranks_add_up_to_one)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1), other = fixture_new(PD_ISA_AUTO, 3);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t d = 0; d < 3; d++)
            check_shape(&f, &other, &shapes[i], all_dtypes[d], (i + d) % 2);
    fixture_free(&f);
    fixture_free(&other);
}

/* One query head a "rank": what its key-value head gets from it alone. Chunks of one key-value head are trees of their own.
 */
static void check_tree(struct fixture *f, const struct shape *shape)
{
    struct scene s = scene_new(shape, PD_F32, false);
    struct result one = attend(f->math, &s, 0, shape->heads, s.chunk, true), heads[HEADS_MAX];
    for (uint32_t h = 0; h < shape->heads; h++)
        heads[h] = attend(f->math, &s, h, h + 1, 0, true);
    for (uint64_t row = 0; row < ROWS; row++)
        for (uint32_t n = 0; n < shape->kv_heads * D; n++) {
            uint32_t kv = n / D;
            float chunk_sums[HEADS_MAX], total;
            const float *chunks[HEADS_MAX] = {0};
            for (uint32_t c = 0; c < shape->virtual_tp; c++) {
                const float *terms[HEADS_MAX] = {0};
                uint32_t count = 0;
                for (uint32_t h = c * s.chunk; h < at_most((c + 1) * s.chunk, shape->heads); h++)
                    if (h / s.group == kv) terms[count++] = (const float *)heads[h].dk + row * D + n % D;
                chunks[c] = tree_sum(terms, count, 0, 4, &chunk_sums[c]);
            }
            cr_assert_not_null(tree_sum(chunks, shape->virtual_tp, 0, 4, &total));
            float got = ((const float *)one.dk)[row * shape->kv_heads * D + n];
            cr_assert_eq(got, total, "H%u/%u virtual_tp %u: row %lu head %u: %a, not %a", shape->heads, shape->kv_heads,
                         shape->virtual_tp, row, kv, (double)got, (double)total);
        }
    for (uint32_t h = 0; h < shape->heads; h++)
        result_free(&heads[h]);
    result_free(&one);
    scene_free(&s);
}

Test(attention_heads, a_tree_inside_chunks_and_over_chunks)
{
    for (unsigned threads = 1; threads <= 3; threads += 2) {
        struct fixture f = fixture_new(PD_ISA_AUTO, threads);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            check_tree(&f, &shapes[i]);
        fixture_free(&f);
    }
}

/* Chunks change the order of additions and nothing else. */
Test(attention_heads, chunks_agree_with_float64)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct scene s = scene_new(&shapes[i], PD_F32, i % 2);
        struct result one = attend(f.math, &s, 0, shapes[i].heads, s.chunk, false);
        size_t width = (size_t)shapes[i].heads * D, kv_width = (size_t)shapes[i].kv_heads * D;
        struct array got[] = {array_new(PD_F32, ROWS * width), array_new(PD_F32, ROWS * width),
                              array_new(PD_F32, ROWS * kv_width), array_new(PD_F32, ROWS * kv_width)};
        struct ref_attention ref = {SEQUENCES,     LENGTH,    shapes[i].heads, shapes[i].kv_heads, D,
                                    (double)0.23f, s.q.exact, s.k.exact,       s.v.exact,          s.first};
        ref_attention_forward(&ref, got[0].exact, NULL);
        ref_attention_backward(&ref, s.dout.exact, got[1].exact, got[2].exact, got[3].exact);
        const void *from[] = {one.out, one.dq, one.dk, one.dv};
        static const char *const names[] = {"out", "dq", "dk", "dv"};
        for (size_t n = 0; n < 4; n++) {
            memcpy(got[n].data, from[n], got[n].count * sizeof(float));
            array_check(&got[n], 256, names[n]);
            array_free(&got[n]);
        }
        result_free(&one);
        scene_free(&s);
    }
    fixture_free(&f);
}
