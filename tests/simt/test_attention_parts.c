/* Attention of sequences in parts, by the kernels: against the CPU backend where they have its bits, else against float64,
 * and backward against whole sequences. */
#include "tests/simt/simt_order.h"
#include "tests/unit/math/fixture.h"
#include "tests/unit/math/reference.h"
#include "trainer/math/cuda/kernels.h"

enum { PARTS_MAX = 4 };

struct problem {
    uint32_t sequences, length, heads, kv_heads, d;
    uint32_t group, offset, chunk; /* as in struct pd_attention */
    bool partial;
    enum pd_dtype dtype;
    struct array q, k, v, dout;
    int32_t *first;
};

/* Arrays of (S, length, columns), in the order of `fields`. */
enum { Q, K, V, DOUT, OUT, DQ, DK, DV, ACC, DQ_ACC, DK_ACC, DV_ACC, MAX, SUM, FIRST, LSE, DELTA, FIELDS };

struct part {
    uint32_t begin, length;
    void *data[FIELDS];
};

/* Bytes of a row. lse and delta are (S, H, length), and counted as rows of H. */
static size_t row_bytes(const struct problem *p, int field)
{
    const size_t e = pd_dtype_bytes(p->dtype), wide = (size_t)p->heads * p->d, kv = (size_t)p->kv_heads * p->d;
    switch (field) {
    case Q:
    case DOUT:
    case OUT:
    case DQ:
        return wide * e;
    case K:
    case V:
        return kv * e;
    case DK:
    case DV:
        return kv * (p->partial ? 4 : e);
    case FIRST:
        return 4;
    case MAX:
    case SUM:
    case LSE:
    case DELTA:
        return (size_t)p->heads * 4;
    default:
        return wide * 4;
    }
}

static struct problem problem_new(struct problem shape, enum pd_dtype dtype, uint32_t border)
{
    struct problem p = shape;
    uint64_t seed = 77 * p.length + p.d, rows = (uint64_t)p.sequences * p.length;
    p.dtype = dtype;
    p.q = array_random(dtype, rows * p.heads * p.d, 1, &seed);
    p.k = array_random(dtype, rows * p.kv_heads * p.d, 1, &seed);
    p.v = array_random(dtype, rows * p.kv_heads * p.d, 1, &seed);
    p.dout = array_random(dtype, rows * p.heads * p.d, 1, &seed);
    p.first = calloc(rows, sizeof *p.first);
    for (uint64_t r = 1; r < rows; r++) {
        const uint32_t t = (uint32_t)(r % p.length);
        p.first[r] = t == 0 ? 0 : t == border || random_u64(&seed) % 60 == 0 ? (int32_t)t : p.first[r - 1];
    }
    return p;
}

static void problem_free(struct problem *p)
{
    struct array *all[] = {&p->q, &p->k, &p->v, &p->dout};
    for (size_t i = 0; i < 4; i++)
        array_free(all[i]);
    free(p->first);
}

/* Rows of a part into or out of the same field of the whole. */
static void move(const struct problem *p, const struct part *part, int field, void *whole, bool into_part)
{
    const size_t row = row_bytes(p, field);
    if (field != LSE && field != DELTA) {
        for (size_t s = 0; s < p->sequences; s++) {
            char *a = (char *)whole + (s * p->length + part->begin) * row;
            char *b = (char *)part->data[field] + s * part->length * row;
            memcpy(into_part ? b : a, into_part ? a : b, part->length * row);
        }
        return;
    }
    for (size_t s = 0; s < (size_t)p->sequences * p->heads; s++) {
        float *a = (float *)whole + s * p->length + part->begin, *b = (float *)part->data[field] + s * part->length;
        memcpy(into_part ? b : a, into_part ? a : b, part->length * sizeof *a);
    }
}

/* Filled with NaN. */
static struct part part_empty(const struct problem *p, uint32_t begin, uint32_t end)
{
    struct part x = {.begin = begin, .length = end - begin};
    for (int f = 0; f < FIELDS; f++) {
        const size_t bytes = (size_t)p->sequences * x.length * row_bytes(p, f);
        x.data[f] = malloc(bytes + 1);
        cr_assert(x.data[f]);
        memset(x.data[f], 0xff, bytes);
    }
    return x;
}

static struct part part_new(const struct problem *p, uint32_t begin, uint32_t end)
{
    struct part x = part_empty(p, begin, end);
    move(p, &x, Q, p->q.data, true);
    move(p, &x, K, p->k.data, true);
    move(p, &x, V, p->v.data, true);
    move(p, &x, DOUT, p->dout.data, true);
    move(p, &x, FIRST, p->first, true);
    return x;
}

static void part_free(struct part *x)
{
    for (int f = 0; f < FIELDS; f++)
        free(x->data[f]);
}

static struct pd_attention attention_of(const struct problem *p, const struct part *q, const struct part *k)
{
    return (struct pd_attention){.sequences = p->sequences,
                                 .length = q->length,
                                 .heads = p->heads,
                                 .kv_heads = p->kv_heads,
                                 .head_size = p->d,
                                 .group = p->group,
                                 .group_offset = p->offset,
                                 .head_chunk = p->chunk,
                                 .dtype = p->dtype,
                                 .scale = 0.11f,
                                 .q = q->data[Q],
                                 .k = k->data[K],
                                 .v = k->data[V],
                                 .ld_qkv = (uint64_t)p->heads * p->d,
                                 .ld_kv = (uint64_t)p->kv_heads * p->d,
                                 .first = q->data[FIRST],
                                 .out = q->data[OUT],
                                 .lse = q->data[LSE],
                                 .query_start = q->begin,
                                 .key_start = k->begin,
                                 .key_length = k->length,
                                 .acc = q->data[ACC],
                                 .max = q->data[MAX],
                                 .sum = q->data[SUM],
                                 .dq_acc = q->data[DQ_ACC],
                                 .dk_acc = k->data[DK_ACC],
                                 .dv_acc = k->data[DV_ACC],
                                 .dout = q->data[DOUT],
                                 .delta = q->data[DELTA],
                                 .dq = q->data[DQ],
                                 .dk = k->data[DK],
                                 .dv = k->data[DV],
                                 .kv_partial = p->partial};
}

/* By the table where there is one, else by the kernels on the host. */
enum slot { FORWARD, DELTAS, QUERIES, KEYS };
static void call(struct pd_math *math, enum slot slot, const struct pd_attention *a)
{
    uint32_t begun = 0;
    struct pd_cuda_workspace w = {NULL, math || slot != KEYS ? 0 : pd_cuda_attention_workspace_bytes(a), &begun};
    if (w.bytes) w.data = malloc(w.bytes);
    if (slot == FORWARD)
        MUST(math ? pd_attention_forward(math, a, &err) : pd_cuda_attention_forward(NULL, a, w, &err));
    else if (slot == DELTAS)
        MUST(math ? pd_attention_delta(math, a, &err) : pd_cuda_attention_delta(NULL, a, &err));
    else if (slot == QUERIES)
        MUST(math ? pd_attention_backward_queries(math, a, &err) : pd_cuda_attention_backward_queries(NULL, a, w, &err));
    else
        MUST(math ? pd_attention_backward_keys(math, a, &err) : pd_cuda_attention_backward_keys(NULL, a, w, &err));
    cr_assert_eq(begun, 0);
    free(w.data);
}

/* Queries of part `at` over all key parts up to their own, or keys of it over all query parts from their own. */
static void walk(struct pd_math *math, const struct problem *p, struct part *parts, uint32_t count, uint32_t at,
                 enum slot slot)
{
    const uint32_t begin = slot == KEYS ? at : 0, end = slot == KEYS ? count : at + 1;
    for (uint32_t other = begin; other < end; other++) {
        struct pd_attention a =
            slot == KEYS ? attention_of(p, &parts[other], &parts[at]) : attention_of(p, &parts[at], &parts[other]);
        a.first_part = other == begin;
        a.last_part = other + 1 == end;
        call(math, slot, &a);
    }
}

/* Everything written, as one part that is the whole. `known`: out and lse to go backward from, or NULL. */
static struct part run(struct pd_math *math, const struct problem *p, const uint32_t *bounds, uint32_t count,
                       const struct part *known)
{
    static const int written[] = {OUT, LSE, DQ, DK, DV};
    struct part parts[PARTS_MAX], whole = part_empty(p, 0, p->length);
    for (uint32_t i = 0; i < count; i++)
        parts[i] = part_new(p, bounds[i], bounds[i + 1]);
    for (uint32_t i = 0; i < count; i++) {
        walk(math, p, parts, count, i, FORWARD);
        if (known) move(p, &parts[i], OUT, known->data[OUT], true);
        if (known) move(p, &parts[i], LSE, known->data[LSE], true);
        struct pd_attention a = attention_of(p, &parts[i], &parts[i]);
        call(math, DELTAS, &a);
        walk(math, p, parts, count, i, QUERIES);
    }
    for (uint32_t i = 0; i < count; i++)
        walk(math, p, parts, count, i, KEYS);
    for (uint32_t i = 0; i < count; i++) {
        for (size_t f = 0; f < 5; f++)
            move(p, &parts[i], written[f], whole.data[written[f]], false);
        part_free(&parts[i]);
    }
    return whole;
}

static void check_same(const struct problem *p, const struct part *a, const struct part *b, const char *what)
{
    static const int written[] = {OUT, LSE, DQ, DK, DV};
    static const char *const names[] = {"out", "lse", "dq", "dk", "dv"};
    for (size_t f = 0; f < 5; f++)
        cr_assert_eq(
            memcmp(a->data[written[f]], b->data[written[f]], (size_t)p->sequences * p->length * row_bytes(p, written[f])), 0,
            "%s, T%u D%u %s: %s differs", what, p->length, p->d, pd_dtype_name(p->dtype), names[f]);
}

/* A rank's share of 12 query heads over 3: heads 2 to 8, the first and the last key-value head cut short. */
static const struct problem plain[] = {
    {.sequences = 2, .length = 150, .heads = 4, .kv_heads = 2, .d = 24},
    {.sequences = 1, .length = 90, .heads = 7, .kv_heads = 3, .d = 20, .group = 4, .offset = 2, .chunk = 3, .partial = true},
};

Test(attention_parts, without_tensor_cores_have_the_bits_of_the_cpu)
{
    static const uint32_t bounds[2][4] = {{0, 41, 130, 150}, {0, 30, 64, 90}};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t i = 0; i < 2; i++)
        for (size_t d = 0; d < 3; d++) {
            struct problem p = problem_new(plain[i], all_dtypes[d], bounds[i][2]);
            struct part want = run(f.math, &p, bounds[i], 3, NULL), got = run(NULL, &p, bounds[i], 3, NULL);
            check_same(&p, &want, &got, "against the CPU");
            part_free(&want);
            part_free(&got);
            problem_free(&p);
        }
    fixture_free(&f);
}

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

static void check_values(const struct problem *p, const struct part *r)
{
    const size_t rows = (size_t)p->sequences * p->length, width = rows * p->heads * p->d;
    const size_t kv_width = rows * p->kv_heads * p->d, counts[] = {width, width, kv_width, kv_width};
    const struct ref_attention ref = {p->sequences,  p->length,  p->heads,   p->kv_heads, p->d,
                                      (double)0.11f, p->q.exact, p->k.exact, p->v.exact,  p->first};
    static const int fields[] = {OUT, DQ, DK, DV};
    double *want[4];
    for (size_t i = 0; i < 4; i++)
        want[i] = calloc(counts[i], sizeof **want);
    ref_attention_forward(&ref, want[0], NULL);
    ref_attention_backward(&ref, p->dout.exact, want[1], want[2], want[3]);
    for (size_t i = 0; i < 4; i++) {
        const double error = relative_error(p->dtype, r->data[fields[i]], want[i], counts[i]);
        cr_assert(error <= (p->dtype == PD_BF16 ? 1e-2 : 1.5e-3), "field %d is off by %.2e", fields[i], error);
        free(want[i]);
    }
}

static const struct problem tiles[] = {{.sequences = 2, .length = 150, .heads = 4, .kv_heads = 2, .d = 64},
                                       {.sequences = 1, .length = 140, .heads = 3, .kv_heads = 1, .d = 128}};

Test(attention_parts, on_tensor_cores_agree_with_float64)
{
    static const uint32_t bounds[2][4] = {{0, 41, 130, 150}, {0, 64, 100, 140}};
    for (size_t i = 0; i < 4; i++) {
        struct problem p = problem_new(tiles[i / 2], i / 2 ? PD_F16 : PD_BF16, bounds[i / 2][2]);
        cr_assert_eq(setenv("PERDURE_ATTENTION", i % 2 ? "wgmma" : "mma", 1), 0);
        struct part got = run(NULL, &p, bounds[i / 2], 3, NULL);
        check_values(&p, &got);
        simt_set_order(99);
        struct part again = run(NULL, &p, bounds[i / 2], 3, NULL);
        simt_set_order(0);
        check_same(&p, &got, &again, "another order");
        part_free(&got);
        part_free(&again);
        problem_free(&p);
    }
}

/* Chains of 16 positions a step go on from part to part: those that begin at multiples of 64 are the whole. */
Test(attention_parts, on_tensor_cores_continue_the_chains_backward)
{
    static const uint32_t one[] = {0, 150}, cut[] = {0, 64, 128, 150};
    for (size_t i = 0; i < 2; i++) {
        struct problem p = problem_new(tiles[0], PD_BF16, 128);
        cr_assert_eq(setenv("PERDURE_ATTENTION", i ? "wgmma" : "mma", 1), 0);
        struct part want = run(NULL, &p, one, 1, NULL), got = run(NULL, &p, cut, 3, &want);
        check_same(&p, &want, &got, "parts of whole tiles");
        part_free(&want);
        part_free(&got);
        problem_free(&p);
    }
}
