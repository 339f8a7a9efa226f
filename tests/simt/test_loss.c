/* Cross-entropy: losses, gradients, and the three calls of a cut vocabulary have the CPU's bits. */
#include "simt_fixture.h"

struct scene {
    size_t rows, vocab, ld;
    enum pd_dtype dtype;
    uint32_t chunks;
    uint64_t chunk, first_column; /* of a cut vocabulary */
    bool overlay, loss_only;
};

static int32_t *targets_of(const struct scene *s, size_t words, uint64_t *seed)
{
    int32_t *targets = malloc(s->rows * sizeof *targets);
    for (size_t r = 0; r < s->rows; r++)
        targets[r] = r % 5 == 3 ? -1 : (int32_t)(random_u64(seed) % words);
    return targets;
}

static struct pd_cross_entropy loss_of(const struct scene *s, struct room *logits, const int32_t *targets,
                                       struct room *losses, struct room *gradient)
{
    const size_t wide = s->dtype == PD_F32 ? 1 : 2;
    return (struct pd_cross_entropy){.rows = s->rows,
                                     .vocab = s->vocab,
                                     .ld = s->ld,
                                     .chunks = s->chunks,
                                     .chunk = s->chunk,
                                     .first_column = s->first_column,
                                     .logits = logits->data,
                                     .targets = targets,
                                     .losses = losses->data,
                                     .dlogits = s->loss_only ? NULL
                                                : s->overlay ? logits->data
                                                             : gradient->data,
                                     .ld_dlogits = s->overlay ? wide * s->ld : s->ld + 1,
                                     .dtype = s->dtype,
                                     .scale = 0.25f};
}

static void check(struct fixture *f, const struct scene *s)
{
    uint64_t seed = s->vocab + s->chunks;
    struct room logits[2] = {room_random(PD_F32, s->rows * s->ld, 0, 4, &seed)};
    struct room losses[2], gradient[2];
    int32_t *targets = targets_of(s, s->vocab, &seed);
    logits[1] = room_copy(&logits[0]);
    for (int i = 0; i < 2; i++) {
        losses[i] = room_new(PD_F32, s->rows, 0), gradient[i] = room_new(s->dtype, s->rows * (s->ld + 1), 0);
        const struct pd_cross_entropy l = loss_of(s, &logits[i], targets, &losses[i], &gradient[i]);
        if (i == 0) MUST(pd_cross_entropy(f->math, &l, &err));
        if (i == 1) MUST(pd_cuda_cross_entropy(NULL, &l, &err));
    }
    rooms_equal(&losses[1], &losses[0], "losses");
    rooms_equal(&gradient[1], &gradient[0], "gradient");
    if (s->overlay) { /* what lies behind a gradient is half overwritten logits: only gradients are promised */
        const size_t bytes = pd_dtype_bytes(s->dtype);
        for (size_t r = 0; r < s->rows; r++)
            cr_assert_arr_eq((float *)logits[1].data + r * s->ld, (float *)logits[0].data + r * s->ld, s->vocab * bytes);
    } else {
        rooms_equal(&logits[1], &logits[0], "logits");
    }
    for (int i = 0; i < 2; i++)
        room_free(&logits[i]), room_free(&losses[i]), room_free(&gradient[i]);
    free(targets);
}

Test(loss, whole_vocabulary)
{
    static const struct {
        size_t vocab, ld;
        uint32_t chunks;
    } sizes[] = {{1, 1, 1}, {17, 20, 1}, {256, 256, 2}, {2048, 2048, 1}, {2500, 2503, 4}, {5000, 5000, 16}, {9, 9, 8}};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t o = 0; o < SOME_ORDERS; o++) {
        simt_set_order(some_orders[o]);
        for (size_t d = 0; d < 3; d++)
            for (size_t z = 0; z < 7; z++)
                for (int how = 0; how < 3; how++)
                    check(&f, &(struct scene){.rows = 6,
                                              .vocab = sizes[z].vocab,
                                              .ld = sizes[z].ld,
                                              .dtype = all_dtypes[d],
                                              .chunks = sizes[z].chunks,
                                              .overlay = how == 1,
                                              .loss_only = how == 2});
    }
    fixture_free(&f);
}

/* A rank's columns: each call beside the CPU's, with what ranks would exchange in between made up. */
static void check_cut(struct fixture *f, const struct scene *s)
{
    uint64_t seed = s->vocab + s->first_column;
    struct room logits = room_random(PD_F32, s->rows * s->ld, 0, 4, &seed);
    int32_t *targets = targets_of(s, s->first_column + 2 * s->vocab + 3, &seed);
    struct room losses[2], gradient[2], max[2], sum[2], target[2];
    for (int i = 0; i < 2; i++) {
        losses[i] = room_new(PD_F32, s->rows, 0), gradient[i] = room_new(s->dtype, s->rows * (s->ld + 1), 0);
        max[i] = room_new(PD_F32, s->rows, 0), sum[i] = room_new(PD_F32, s->rows, 0);
        target[i] = room_new(PD_F32, s->rows, 0);
        for (size_t r = 0; r < s->rows; r++)
            ((float *)target[i].data)[r] = 0.5f;
        struct pd_cross_entropy l = loss_of(s, &logits, targets, &losses[i], &gradient[i]);
        l.max = max[i].data, l.sum = sum[i].data, l.target_logit = target[i].data;
        if (i == 0) MUST(pd_logits_max(f->math, &l, &err));
        if (i == 1) MUST(pd_cuda_logits_max(NULL, &l, &err));
        for (size_t r = 0; r < s->rows; r++)
            if (!isfinite(l.max[r])) l.max[r] = 3;
        if (i == 0) MUST(pd_logits_sum(f->math, &l, &err));
        if (i == 1) MUST(pd_cuda_logits_sum(NULL, &l, &err));
        for (size_t r = 0; r < s->rows; r++)
            l.sum[r] += 1.5f;
        if (i == 0) MUST(pd_cross_entropy(f->math, &l, &err));
        if (i == 1) MUST(pd_cuda_cross_entropy(NULL, &l, &err));
    }
    rooms_equal(&max[1], &max[0], "max");
    rooms_equal(&sum[1], &sum[0], "sum");
    rooms_equal(&target[1], &target[0], "target's logit");
    rooms_equal(&losses[1], &losses[0], "losses");
    rooms_equal(&gradient[1], &gradient[0], "gradient");
    for (int i = 0; i < 2; i++)
        room_free(&losses[i]), room_free(&gradient[i]), room_free(&max[i]), room_free(&sum[i]), room_free(&target[i]);
    room_free(&logits), free(targets);
}

Test(loss, cut_vocabulary)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t d = 0; d < 3; d++) {
        check_cut(&f, &(struct scene){9, 600, 601, all_dtypes[d], 4, 150, 0, false, false});
        check_cut(&f, &(struct scene){9, 500, 500, all_dtypes[d], 4, 150, 600, false, false});
        check_cut(&f, &(struct scene){9, 2100, 2104, all_dtypes[d], 1, 2100, 4200, false, false});
        check_cut(&f, &(struct scene){9, 0, 1, all_dtypes[d], 2, 150, 1200, false, false});
    }
    fixture_free(&f);
}

Test(loss, ranks_of_a_cut_vocabulary_are_joined)
{
    enum { ROWS = 300, LD = 304, RANKS = 3, COLUMNS = 50 };
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    uint64_t seed = 9;
    struct room all_max = room_random(PD_F32, (size_t)RANKS * LD, 0, 4, &seed);
    struct room all_targets = room_random(PD_F32, (size_t)RANKS * LD, 0, 4, &seed), max[2], target[2];
    int32_t targets[ROWS];
    for (int i = 0; i < ROWS; i++)
        targets[i] = i % 7 == 0 ? -1 : i * 11 % (RANKS * COLUMNS - 4);
    ((float *)all_max.data)[5] = -INFINITY;
    ((float *)all_max.data)[2 * LD + 6] = INFINITY;
    for (int i = 0; i < 2; i++) {
        max[i] = room_new(PD_F32, ROWS, 0), target[i] = room_new(PD_F32, ROWS, 0);
        struct pd_logits_join j = {
            .rows = ROWS, .ld = LD, .ranks = RANKS, .all_max = all_max.data, .max = max[i].data, .rank_columns = COLUMNS};
        MUST(i == 0 ? pd_logits_join(f.math, &j, &err) : pd_cuda_logits_join(NULL, &j, &err));
        j.max = NULL, j.all_targets = all_targets.data, j.target_logit = target[i].data, j.targets = targets;
        MUST(i == 0 ? pd_logits_join(f.math, &j, &err) : pd_cuda_logits_join(NULL, &j, &err));
    }
    rooms_equal(&max[1], &max[0], "max");
    rooms_equal(&target[1], &target[0], "target's logit");
    cr_assert_eq(((float *)max[0].data)[6], INFINITY);
    cr_assert_eq(((float *)target[0].data)[9], ((float *)all_targets.data)[99 / COLUMNS * LD + 9]);
    for (int i = 0; i < 2; i++)
        room_free(&max[i]), room_free(&target[i]);
    room_free(&all_max), room_free(&all_targets), fixture_free(&f);
}

Test(loss, a_target_outside_is_found)
{
    float logits[4] = {1, 2, 3, 4}, loss;
    const int32_t target = 4;
    struct pd_error err = {0};
    const struct pd_cross_entropy l = {
        .rows = 1, .vocab = 4, .ld = 4, .chunks = 1, .logits = logits, .targets = &target, .losses = &loss, .scale = 1};
    cr_assert_eq(pd_cuda_cross_entropy(NULL, &l, &err), PD_BUG);
    cr_assert(strstr(err.message, "target_column"), "%s", err.message);
}
