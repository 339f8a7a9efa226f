/* A vocabulary cut over ranks: three calls and exchanges between them give the bits of one call on one rank. */
#include "fixture.h"

#define CHUNKS 8u

struct cut {
    size_t rows, vocab;
    enum pd_dtype dtype;
    uint32_t chunks; /* of the whole: virtual_tp */
    float *logits;
    int32_t *targets;
    float *losses;
    void *dlogits;
};

static void one_rank(struct fixture *f, const struct cut *c)
{
    struct pd_cross_entropy l = {.rows = c->rows,
                                 .vocab = c->vocab,
                                 .ld = c->vocab,
                                 .chunks = c->chunks,
                                 .logits = c->logits,
                                 .targets = c->targets,
                                 .losses = c->losses,
                                 .dlogits = c->dlogits,
                                 .ld_dlogits = c->vocab,
                                 .dtype = c->dtype,
                                 .scale = 0.25f};
    MUST(pd_cross_entropy(f->math, &l, &err));
}

struct ranks {
    uint32_t count;
    struct pd_cross_entropy loss[CHUNKS];
    float *max, *sum, *target;
};

/* Each rank has logits of its own columns only, and sums, maxima and targets of its own. */
static void ranks_init(struct ranks *r, const struct cut *c)
{
    const size_t chunk = (c->vocab + c->chunks - 1) / c->chunks, bytes = pd_dtype_bytes(c->dtype);
    for (uint32_t i = 0; i < r->count; i++) {
        size_t run = chunk * (c->chunks / r->count), begin = i * run < c->vocab ? i * run : c->vocab;
        size_t width = c->vocab - begin < run ? c->vocab - begin : run;
        r->loss[i] = (struct pd_cross_entropy){.rows = c->rows,
                                               .vocab = width,
                                               .ld = width + 3,
                                               .first_column = begin,
                                               .chunk = chunk,
                                               .chunks = c->chunks / r->count,
                                               .logits = malloc(c->rows * (width + 3) * sizeof(float)),
                                               .targets = c->targets,
                                               .losses = malloc(c->rows * sizeof(float)),
                                               .dlogits = malloc(c->rows * (width + 3) * bytes),
                                               .ld_dlogits = width + 3,
                                               .dtype = c->dtype,
                                               .scale = 0.25f,
                                               .max = malloc(c->rows * sizeof(float)),
                                               .sum = malloc(c->rows * sizeof(float)),
                                               .target_logit = malloc(c->rows * sizeof(float))};
        for (size_t row = 0; row < c->rows; row++) {
            memcpy((float *)r->loss[i].logits + row * (width + 3), c->logits + row * c->vocab + begin,
                   width * sizeof(float));
            r->loss[i].target_logit[row] = NAN;
        }
    }
}

static void ranks_free(struct ranks *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        struct pd_cross_entropy *l = &r->loss[i];
        void *all[] = {l->logits, l->losses, l->dlogits, l->max, l->sum, l->target_logit};
        for (size_t a = 0; a < 6; a++)
            free(all[a]);
    }
}

static void exchange_max(struct ranks *r, size_t row)
{
    float max = r->loss[0].max[row];
    for (uint32_t i = 1; i < r->count; i++)
        max = fmaxf(max, r->loss[i].max[row]);
    for (uint32_t i = 0; i < r->count; i++)
        r->loss[i].max[row] = max;
}

static void exchange_sum(struct ranks *r, size_t row)
{
    float tree[CHUNKS], target = NAN;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct pd_cross_entropy *l = &r->loss[i];
        size_t column = (size_t)l->targets[row] - l->first_column;
        tree[i] = l->sum[row];
        if (l->targets[row] >= 0 && column < l->vocab) target = l->target_logit[row];
    }
    for (uint32_t width = r->count / 2; width; width /= 2)
        for (uint32_t i = 0; i < width; i++)
            tree[i] = tree[2 * i] + tree[2 * i + 1];
    for (uint32_t i = 0; i < r->count; i++) {
        r->loss[i].sum[row] = tree[0];
        r->loss[i].target_logit[row] = target;
    }
}

static void run_ranks(struct fixture *f, struct ranks *r, size_t rows)
{
    for (uint32_t i = 0; i < r->count; i++)
        MUST(pd_logits_max(f->math, &r->loss[i], &err));
    for (size_t row = 0; row < rows; row++)
        exchange_max(r, row);
    for (uint32_t i = 0; i < r->count; i++)
        MUST(pd_logits_sum(f->math, &r->loss[i], &err));
    for (size_t row = 0; row < rows; row++)
        exchange_sum(r, row);
    for (uint32_t i = 0; i < r->count; i++)
        MUST(pd_cross_entropy(f->math, &r->loss[i], &err));
}

static void compare(const struct ranks *r, const struct cut *c)
{
    const size_t bytes = pd_dtype_bytes(c->dtype);
    for (uint32_t i = 0; i < r->count; i++) {
        const struct pd_cross_entropy *l = &r->loss[i];
        cr_assert_arr_eq(l->losses, c->losses, c->rows * sizeof(float), "losses of rank %u of %u", i, r->count);
        for (size_t row = 0; row < c->rows; row++) {
            const char *whole = (const char *)c->dlogits + (row * c->vocab + l->first_column) * bytes;
            cr_assert_eq(memcmp((char *)l->dlogits + row * l->ld_dlogits * bytes, whole, l->vocab * bytes), 0,
                         "gradient of row %zu, rank %u of %u, vocabulary %zu, %u chunks", row, i, r->count, c->vocab,
                         c->chunks);
        }
    }
}

static void check(struct fixture *f, size_t vocab, uint32_t chunks, enum pd_dtype dtype)
{
    uint64_t seed = vocab + chunks;
    struct cut c = {.rows = 12, .vocab = vocab, .dtype = dtype, .chunks = chunks};
    struct array logits = array_random(PD_F32, c.rows * vocab, 4, &seed);
    c.logits = logits.data;
    c.targets = malloc(c.rows * sizeof *c.targets);
    c.losses = malloc(c.rows * sizeof *c.losses);
    c.dlogits = malloc(c.rows * vocab * sizeof(float));
    for (size_t row = 0; row < c.rows; row++)
        c.targets[row] = row == 4 ? -100 : (int32_t)(random_u64(&seed) % vocab);
    c.targets[0] = 0;
    c.targets[1] = (int32_t)vocab - 1;
    one_rank(f, &c);
    for (uint32_t count = 1; count <= chunks; count *= 2) {
        struct ranks ranks = {.count = count};
        ranks_init(&ranks, &c);
        run_ranks(f, &ranks, c.rows);
        compare(&ranks, &c);
        ranks_free(&ranks);
    }
    array_free(&logits);
    free(c.targets);
    free(c.losses);
    free(c.dlogits);
}

Test(loss_cut, ranks_give_the_bits_of_one)
{
    static const size_t vocabs[] = {50257, 1000, 33, 9, 5, 3}; /* of 5 and 3 the last chunks are empty */
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++)
        for (uint32_t chunks = 2; chunks <= CHUNKS; chunks *= 2)
            for (size_t d = 0; d < 3; d++)
                check(&f, vocabs[v], chunks, all_dtypes[d]);
    fixture_free(&f);
}
