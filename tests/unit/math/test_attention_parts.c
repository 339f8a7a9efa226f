/* Attention of a sequence in parts: by value against float64, and by bits against whole sequences, other instruction sets
 * and other threads. Parts lie one after the other, sequence after sequence inside a part. */
#include "fixture.h"
#include "reference.h"

enum { PARTS_MAX = 16, PAD = 3 };

struct problem {
    uint32_t sequences, length, heads, kv_heads, d;
    uint32_t group, offset, chunk; /* as in struct pd_attention */
    bool partial;
    enum pd_dtype dtype;
    struct array q, k, v, dout; /* (S, T, H*D), (S, T, K*D) each, (S, T, H*D) */
    int32_t *first;
};

/* Everything attention writes, in the order of positions. */
struct outcome {
    void *out, *dq, *dk, *dv;
    float *lse; /* (S, T, H) */
};

/* One part's arrays, rows PAD elements longer than they need be. */
struct part {
    uint32_t begin, length;
    void *q, *k, *v, *dout, *out, *dq, *dk, *dv;
    float *lse, *delta, *acc, *max, *sum, *dq_acc, *dk_acc, *dv_acc;
    int32_t *first;
};

static struct problem problem_new(struct problem shape, enum pd_dtype dtype, bool documents)
{
    struct problem p = shape;
    uint64_t seed = shape.length * 77 + shape.heads, rows = (uint64_t)p.sequences * p.length;
    p.dtype = dtype;
    p.q = array_random(dtype, rows * p.heads * p.d, 1, &seed);
    p.k = array_random(dtype, rows * p.kv_heads * p.d, 1, &seed);
    p.v = array_random(dtype, rows * p.kv_heads * p.d, 1, &seed);
    p.dout = array_random(dtype, rows * p.heads * p.d, 1, &seed);
    p.first = NULL;
    if (!documents) return p;
    p.first = calloc(rows, sizeof *p.first);
    for (uint64_t r = 1; r < rows; r++) {
        int32_t t = (int32_t)(r % p.length);
        p.first[r] = t == 0 ? 0 : random_u64(&seed) % 60 == 0 ? t : p.first[r - 1];
    }
    return p;
}

static void problem_free(struct problem *p)
{
    struct array *all[] = {&p->q, &p->k, &p->v, &p->dout};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        array_free(all[i]);
    free(p->first);
}

static size_t kv_bytes(const struct problem *p)
{
    return p->partial ? 4 : pd_dtype_bytes(p->dtype);
}

static struct outcome outcome_new(const struct problem *p)
{
    size_t rows = (size_t)p->sequences * p->length, bytes = pd_dtype_bytes(p->dtype);
    return (struct outcome){calloc(rows * p->heads * p->d, bytes), calloc(rows * p->heads * p->d, bytes),
                            calloc(rows * p->kv_heads * p->d, kv_bytes(p)), calloc(rows * p->kv_heads * p->d, kv_bytes(p)),
                            calloc(rows * p->heads, sizeof(float))};
}

static void outcome_free(struct outcome *o)
{
    void *all[] = {o->out, o->dq, o->dk, o->dv, o->lse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void check_same(const struct problem *p, const struct outcome *a, const struct outcome *b, const char *what)
{
    size_t rows = (size_t)p->sequences * p->length, width = rows * p->heads * p->d * pd_dtype_bytes(p->dtype);
    size_t kv_width = rows * p->kv_heads * p->d * kv_bytes(p);
    const struct {
        const char *name;
        const void *a, *b;
        size_t bytes;
    } all[] = {{"out", a->out, b->out, width},
               {"lse", a->lse, b->lse, rows * p->heads * sizeof(float)},
               {"dq", a->dq, b->dq, width},
               {"dk", a->dk, b->dk, kv_width},
               {"dv", a->dv, b->dv, kv_width}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        cr_assert_eq(memcmp(all[i].a, all[i].b, all[i].bytes), 0, "%s, T%u H%u/%u %s%s: %s differs", what, p->length,
                     p->heads, p->kv_heads, pd_dtype_name(p->dtype), p->first ? " documents" : "", all[i].name);
}

/* Rows of a part, `row` bytes each, between (S, T, ...) and (S, length, ...) with rows `padded` bytes apart. */
static void move(const struct problem *p, const struct part *part, void *all, size_t row, void *rows, size_t padded,
                 bool into_part)
{
    for (uint64_t s = 0; s < p->sequences; s++)
        for (uint64_t t = 0; t < part->length; t++) {
            char *a = (char *)all + (s * p->length + part->begin + t) * row;
            char *b = (char *)rows + (s * part->length + t) * padded;
            memcpy(into_part ? b : a, into_part ? a : b, row);
        }
}

static void move_states(const struct problem *p, const struct part *part, float *all, float *states, bool into_part)
{
    for (uint64_t s = 0; s < p->sequences; s++)
        for (uint64_t t = 0; t < part->length; t++)
            for (uint64_t h = 0; h < p->heads; h++) {
                float *a = all + (s * p->length + part->begin + t) * p->heads + h;
                float *b = states + (s * p->heads + h) * part->length + t;
                *(into_part ? b : a) = *(into_part ? a : b);
            }
}

/* What is not an operand is NaN, so that nobody relies on zeros. */
static void *unset(size_t count, size_t bytes)
{
    void *data = malloc(count * bytes + 1);
    memset(data, 0xff, count * bytes);
    return data;
}

static struct part part_new(const struct problem *p, uint32_t begin, uint32_t end)
{
    struct part x = {.begin = begin, .length = end - begin};
    size_t rows = (size_t)p->sequences * x.length, bytes = pd_dtype_bytes(p->dtype);
    size_t width = (size_t)p->heads * p->d, kv_width = (size_t)p->kv_heads * p->d;
    void **wide[] = {&x.q, &x.dout, &x.out, &x.dq};
    for (size_t i = 0; i < 4; i++)
        *wide[i] = unset(rows * (width + PAD), bytes);
    x.k = unset(rows * (kv_width + PAD), bytes), x.v = unset(rows * (kv_width + PAD), bytes);
    x.dk = unset(rows * (kv_width + PAD), kv_bytes(p)), x.dv = unset(rows * (kv_width + PAD), kv_bytes(p));
    float **states[] = {&x.lse, &x.delta, &x.max, &x.sum}, **accs[] = {&x.acc, &x.dq_acc, &x.dk_acc, &x.dv_acc};
    for (size_t i = 0; i < 4; i++) {
        *states[i] = unset(rows * p->heads, sizeof(float));
        *accs[i] = unset(rows * width, sizeof(float));
    }
    move(p, &x, p->q.data, width * bytes, x.q, (width + PAD) * bytes, true);
    move(p, &x, p->dout.data, width * bytes, x.dout, width * bytes, true);
    move(p, &x, p->k.data, kv_width * bytes, x.k, (kv_width + PAD) * bytes, true);
    move(p, &x, p->v.data, kv_width * bytes, x.v, (kv_width + PAD) * bytes, true);
    if (p->first) {
        x.first = calloc(rows, sizeof *x.first);
        move(p, &x, p->first, sizeof *x.first, x.first, sizeof *x.first, true);
    }
    return x;
}

static void part_free(struct part *x)
{
    void *all[] = {x->q,   x->k,   x->v,   x->dout,  x->out,    x->dq,     x->dk,     x->dv,   x->lse,
                   x->acc, x->max, x->sum, x->delta, x->dq_acc, x->dk_acc, x->dv_acc, x->first};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void part_store(const struct problem *p, const struct part *x, struct outcome *o)
{
    size_t bytes = pd_dtype_bytes(p->dtype), width = (size_t)p->heads * p->d, kv_width = (size_t)p->kv_heads * p->d;
    move(p, x, o->out, width * bytes, x->out, width * bytes, false);
    move(p, x, o->dq, width * bytes, x->dq, (width + PAD) * bytes, false);
    move(p, x, o->dk, kv_width * kv_bytes(p), x->dk, (kv_width + PAD) * kv_bytes(p), false);
    move(p, x, o->dv, kv_width * kv_bytes(p), x->dv, (kv_width + PAD) * kv_bytes(p), false);
    move_states(p, x, o->lse, x->lse, false);
}

static struct pd_attention attention_of(const struct problem *p, const struct part *q, const struct part *k)
{
    uint64_t width = (uint64_t)p->heads * p->d, kv_width = (uint64_t)p->kv_heads * p->d;
    return (struct pd_attention){.sequences = p->sequences,
                                 .length = q->length,
                                 .heads = p->heads,
                                 .kv_heads = p->kv_heads,
                                 .head_size = p->d,
                                 .group = p->group,
                                 .group_offset = p->offset,
                                 .head_chunk = p->chunk,
                                 .dtype = p->dtype,
                                 .scale = 0.21f,
                                 .q = q->q,
                                 .k = k->k,
                                 .v = k->v,
                                 .ld_qkv = width + PAD,
                                 .ld_kv = kv_width + PAD,
                                 .first = q->first,
                                 .out = q->out,
                                 .lse = q->lse,
                                 .query_start = q->begin,
                                 .key_start = k->begin,
                                 .key_length = k->length,
                                 .acc = q->acc,
                                 .max = q->max,
                                 .sum = q->sum,
                                 .dq_acc = q->dq_acc,
                                 .dk_acc = k->dk_acc,
                                 .dv_acc = k->dv_acc,
                                 .dout = q->dout,
                                 .delta = q->delta,
                                 .dq = q->dq,
                                 .dk = k->dk,
                                 .dv = k->dv,
                                 .kv_partial = p->partial};
}

/* Queries of part `at` over all key parts up to their own, forward or backward. */
static void run_queries(struct pd_math *math, const struct problem *p, struct part *parts, uint32_t at, bool backward)
{
    for (uint32_t k = 0; k <= at; k++) {
        struct pd_attention a = attention_of(p, &parts[at], &parts[k]);
        a.first_part = k == 0;
        a.last_part = k == at;
        if (backward)
            MUST(pd_attention_backward_queries(math, &a, &err));
        else
            MUST(pd_attention_forward(math, &a, &err));
    }
}

static void run_keys(struct pd_math *math, const struct problem *p, struct part *parts, uint32_t count, uint32_t at)
{
    for (uint32_t q = at; q < count; q++) {
        struct pd_attention a = attention_of(p, &parts[q], &parts[at]);
        a.first_part = q == at;
        a.last_part = q == count - 1;
        MUST(pd_attention_backward_keys(math, &a, &err));
    }
}

/* `bounds` (count + 1): where parts begin, and the length. `known`: out and lse to go backward from, or NULL. */
static struct outcome run_parts(struct pd_math *math, const struct problem *p, const uint32_t *bounds, uint32_t count,
                                const struct outcome *known)
{
    struct part parts[PARTS_MAX];
    struct outcome o = outcome_new(p);
    size_t row = (size_t)p->heads * p->d * pd_dtype_bytes(p->dtype);
    for (uint32_t i = 0; i < count; i++)
        parts[i] = part_new(p, bounds[i], bounds[i + 1]);
    for (uint32_t i = 0; i < count; i++) {
        run_queries(math, p, parts, i, false);
        if (known) move(p, &parts[i], known->out, row, parts[i].out, row, true);
        if (known) move_states(p, &parts[i], known->lse, parts[i].lse, true);
        struct pd_attention a = attention_of(p, &parts[i], &parts[i]);
        MUST(pd_attention_delta(math, &a, &err));
        run_queries(math, p, parts, i, true);
    }
    for (uint32_t i = 0; i < count; i++)
        run_keys(math, p, parts, count, i);
    for (uint32_t i = 0; i < count; i++) {
        part_store(p, &parts[i], &o);
        part_free(&parts[i]);
    }
    return o;
}

static struct outcome run_whole(struct pd_math *math, const struct problem *p)
{
    struct part all = part_new(p, 0, p->length);
    struct outcome o = outcome_new(p);
    struct pd_attention a = attention_of(p, &all, &all);
    a.acc = a.max = a.sum = a.dq_acc = a.dk_acc = a.dv_acc = NULL;
    a.key_length = 0;
    MUST(pd_attention_forward(math, &a, &err));
    MUST(pd_attention_backward(math, &a, &err));
    part_store(p, &all, &o);
    part_free(&all);
    return o;
}

static const struct problem shapes[] = {
    {.sequences = 2, .length = 260, .heads = 4, .kv_heads = 2, .d = 24},
    {.sequences = 1, .length = 200, .heads = 6, .kv_heads = 2, .d = 17, .chunk = 2},
    {.sequences = 3, .length = 50, .heads = 2, .kv_heads = 2, .d = 32},
    {.sequences = 1, .length = 19, .heads = 3, .kv_heads = 1, .d = 8},
    {.sequences = 1, .length = 330, .heads = 1, .kv_heads = 1, .d = 64},
};

/* A rank's share of 12 query heads over 3: heads 2 to 8, the first and the last key-value head cut short. */
static const struct problem shared = {
    .sequences = 2, .length = 150, .heads = 7, .kv_heads = 3, .d = 20, .group = 4, .offset = 2, .chunk = 3, .partial = true};

static const uint32_t part_counts[] = {1, 2, 4, 8};

static void cut_evenly(uint32_t length, uint32_t count, uint32_t *bounds)
{
    for (uint32_t i = 0; i <= count; i++)
        bounds[i] = (uint32_t)((uint64_t)i * length / count);
}

static void check_values(const struct problem *p, const struct outcome *o, const char *what)
{
    size_t rows = (size_t)p->sequences * p->length, width = rows * p->heads * p->d, kv_width = rows * p->kv_heads * p->d;
    struct ref_attention ref = {p->sequences,  p->length,  p->heads,   p->kv_heads, p->d,
                                (double)0.21f, p->q.exact, p->k.exact, p->v.exact,  p->first};
    struct array out = array_new(p->dtype, width), dq = array_new(p->dtype, width), dk = array_new(p->dtype, kv_width),
                 dv = array_new(p->dtype, kv_width), lse = array_new(PD_F32, rows * p->heads);
    double *states = calloc(rows * p->heads, sizeof *states);
    ref_attention_forward(&ref, out.exact, states);
    ref_attention_backward(&ref, p->dout.exact, dq.exact, dk.exact, dv.exact);
    for (size_t i = 0; i < rows * p->heads; i++) {
        size_t h = i % p->heads, s = i / p->heads / p->length, t = i / p->heads % p->length;
        lse.exact[i] = states[(s * p->heads + h) * p->length + t];
    }
    const struct {
        struct array *array;
        const void *from;
        bool slack; /* delta is taken from `out` as it was rounded */
    } all[] = {{&out, o->out, false}, {&lse, o->lse, false}, {&dq, o->dq, true}, {&dk, o->dk, true}, {&dv, o->dv, false}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct array *a = all[i].array;
        memcpy(a->data, all[i].from, a->count * pd_dtype_bytes(a->dtype));
        array_check(a, 256 + (all[i].slack && p->dtype != PD_F32 ? 4 * rounding_of(p->dtype) / 0x1p-24 : 0), what);
        array_free(a);
    }
    free(states);
}

Test(attention_parts, agree_with_float64)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    uint32_t bounds[PARTS_MAX + 1];
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t n = 0; n < 4 * 3; n++) {
            struct problem p = problem_new(shapes[i], all_dtypes[n % 3], n % 2);
            char what[64];
            snprintf(what, sizeof what, "T%u H%u/%u in %u parts", p.length, p.heads, p.kv_heads, part_counts[n / 3]);
            cut_evenly(p.length, part_counts[n / 3], bounds);
            struct outcome o = run_parts(f.math, &p, bounds, part_counts[n / 3], NULL);
            check_values(&p, &o, what);
            outcome_free(&o);
            problem_free(&p);
        }
    fixture_free(&f);
}

static void check_isas(struct fixture *fixtures, size_t count, const struct problem *p)
{
    uint32_t bounds[PARTS_MAX + 1];
    for (size_t n = 0; n < sizeof part_counts / sizeof *part_counts; n++) {
        cut_evenly(p->length, part_counts[n], bounds);
        struct outcome want = run_parts(fixtures[0].math, p, bounds, part_counts[n], NULL);
        for (size_t i = 1; i < count; i++) {
            struct outcome got = run_parts(fixtures[i].math, p, bounds, part_counts[n], NULL);
            check_same(p, &want, &got, pd_isa_name(fixtures[i].math->isa));
            outcome_free(&got);
        }
        outcome_free(&want);
    }
}

/* AUTO is the best this machine has. */
Test(attention_parts, give_the_same_bits_on_any_instructions_and_threads)
{
    struct fixture f[] = {fixture_new(PD_ISA_PORTABLE, 1), fixture_new(PD_ISA_AUTO, 1), fixture_new(PD_ISA_AUTO, 3)};
    for (size_t d = 0; d < 3; d++) {
        struct problem p = problem_new(shapes[1], all_dtypes[d], d % 2), q = problem_new(shared, all_dtypes[d], d != 1);
        check_isas(f, 3, &p);
        check_isas(f, 3, &q);
        problem_free(&p);
        problem_free(&q);
    }
    for (size_t i = 0; i < 3; i++)
        fixture_free(&f[i]);
}

/* The forward bits are the partition into blocks of 64 keys: parts that begin at multiples of 64 are the whole. */
Test(attention_parts, of_whole_blocks_are_the_whole)
{
    static const uint32_t whole_blocks[][4] = {{0}, {0, 64}, {0, 128}, {0, 64, 128}};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t i = 0; i <= sizeof shapes / sizeof *shapes; i++)
        for (size_t n = 0; n < 6; n++) {
            struct problem p = problem_new(i == 5 ? shared : shapes[i], all_dtypes[n % 3], n % 2);
            struct outcome want = run_whole(f.math, &p);
            for (uint32_t c = 0; c < 4; c++) {
                uint32_t bounds[4], count = c < 2 ? c + 1 : c;
                memcpy(bounds, whole_blocks[c], sizeof whole_blocks[c]);
                bounds[count] = p.length;
                if (bounds[count] <= bounds[count - 1]) continue;
                struct outcome got = run_parts(f.math, &p, bounds, count, NULL);
                check_same(&p, &want, &got, "parts of whole blocks");
                outcome_free(&got);
            }
            outcome_free(&want);
            problem_free(&p);
        }
    fixture_free(&f);
}

/* Backward chains go on from part to part wherever these begin, and over empty ones: from equal outputs come equal
 * gradients. */
Test(attention_parts, of_any_length_continue_the_chains)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t i = 0; i <= sizeof shapes / sizeof *shapes; i++)
        for (size_t n = 0; n < 6; n++) {
            struct problem p = problem_new(i == 5 ? shared : shapes[i], all_dtypes[n % 3], n % 2);
            uint32_t uneven[] = {0, 0, 1, 2 + p.length / 7, p.length / 2, p.length / 2, p.length - 3, p.length, p.length};
            struct outcome want = run_whole(f.math, &p), got = run_parts(f.math, &p, uneven, 8, &want);
            memcpy(got.out, want.out, (size_t)p.sequences * p.length * p.heads * p.d * pd_dtype_bytes(p.dtype));
            check_same(&p, &want, &got, "uneven parts");
            outcome_free(&got);
            outcome_free(&want);
            problem_free(&p);
        }
    fixture_free(&f);
}

/* A rank that holds one sequence computes what a rank of several does. */
Test(attention_parts, of_a_sequence_do_not_depend_on_its_neighbours)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 3);
    struct problem all = problem_new(shapes[0], PD_BF16, true), one = all;
    uint32_t bounds[PARTS_MAX + 1];
    cut_evenly(all.length, 8, bounds);
    struct outcome want = run_parts(f.math, &all, bounds, 8, NULL);
    size_t q = (size_t)all.length * all.heads * all.d * 2, kv = (size_t)all.length * all.kv_heads * all.d * 2;
    one.sequences = 1;
    one.q.data = (char *)all.q.data + q, one.dout.data = (char *)all.dout.data + q;
    one.k.data = (char *)all.k.data + kv, one.v.data = (char *)all.v.data + kv;
    one.first = all.first + all.length;
    struct outcome got = run_parts(f.math, &one, bounds, 8, NULL);
    struct outcome second = {(char *)want.out + q, (char *)want.dq + q, (char *)want.dk + kv, (char *)want.dv + kv,
                             want.lse + (size_t)all.length * all.heads};
    check_same(&one, &second, &got, "alone");
    outcome_free(&got);
    outcome_free(&want);
    problem_free(&all);
    fixture_free(&f);
}

/* A key part that no query sees may be given or left out: here each part is a document of its own. */
Test(attention_parts, that_nobody_sees_add_nothing)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    struct problem p = problem_new(shapes[0], PD_F32, true);
    for (uint32_t r = 0; r < p.sequences * p.length; r++)
        p.first[r] = r % p.length < 130 ? 0 : 130;
    struct part parts[] = {part_new(&p, 0, 130), part_new(&p, 130, 260)};
    size_t bytes = (size_t)p.sequences * 130 * p.heads * p.d * sizeof(float);
    run_queries(f.math, &p, parts, 1, false);
    float *with = malloc(bytes);
    memcpy(with, parts[1].out, bytes);
    struct pd_attention a = attention_of(&p, &parts[1], &parts[1]);
    a.first_part = a.last_part = true;
    MUST(pd_attention_forward(f.math, &a, &err));
    cr_assert_eq(memcmp(with, parts[1].out, bytes), 0);
    free(with);
    part_free(&parts[0]);
    part_free(&parts[1]);
    problem_free(&p);
    fixture_free(&f);
}
