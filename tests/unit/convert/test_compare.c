/* Two catalogs of different formats, tensor by tensor: what is the same, what differs and where, what one side lacks. */
#include "resharder/convert/compare.h"
#include "resharder/formats/perdure.h"
#include "tests/unit/resharder/state_fixture.h"

#include <math.h>

enum { ALTERED = 2, NOT_A_NUMBER = 4, MISSING = 5, PLACE = 7 };

struct sides {
    struct state s;
    struct pd_commit commit;
    struct pd_catalog stored, plain;
    struct pd_links links[2];
    void *buffers;
};

/* All parameters as one file of fp32, under names of its own where `renames`; one altered, one not there. */
static void make_plain(struct sides *x, bool renames, bool alters)
{
    struct pd_file *file = NULL;
    uint64_t offset = 0, bytes = 0;
    for (uint32_t t = 0; t < STATE_TENSORS; t++)
        bytes += pd_tensor_elements(&x->s.tensors[t]) * sizeof(float);
    pd_catalog_init(&x->plain, "test");
    OK(pd_catalog_add_file(&x->plain, "/plain", bytes, NULL, err));
    OK(pd_file_open(x->s.vfs, "/plain", PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    for (uint32_t t = 0; t < STATE_TENSORS; t++) {
        const struct pd_tensor *tensor = &x->s.tensors[t];
        const uint64_t elements = pd_tensor_elements(tensor);
        float *values = malloc(elements * sizeof *values);
        char name[64];
        for (uint64_t i = 0; i < elements; i++)
            values[i] = state_value(t, PD_PARAM, i);
        if (alters && t == ALTERED) values[PLACE] += 0.5f, values[PLACE + 3] += 2;
        if (alters && t == NOT_A_NUMBER) values[elements - 1] = NAN;
        OK(pd_file_write(file, offset, values, elements * sizeof *values, err));
        free(values);
        snprintf(name, sizeof name, renames ? "other.%u" : "layers.%u.weight", t);
        struct pd_foreign_tensor foreign = {.name = name, .element = PD_ELEMENT_F32, .ndim = tensor->ndim};
        for (uint32_t d = 0; d < PD_FOREIGN_DIMS_MAX; d++)
            foreign.shape[d] = d < tensor->ndim ? tensor->shape[d] : 1;
        if (!alters || t != MISSING) OK(pd_catalog_add_dense(&x->plain, &foreign, 0, offset, err));
        offset += elements * sizeof(float);
    }
    OK(pd_file_close(file, err));
    OK(pd_catalog_finish(&x->plain, err));
}

static void setup(struct sides *x, uint64_t seed, bool renames, bool alters)
{
    *x = (struct sides){.buffers = aligned_alloc(PD_VFS_ALIGN, PD_COMPARE_BUFFER_BYTES)};
    state_init(&x->s, seed);
    state_enlarge(&x->s);
    const struct pd_layout layout = state_layout(&x->s, 4);
    state_save(&x->s, &layout, "/stored", &x->commit);
    pd_catalog_init(&x->stored, "perdure");
    OK(pd_format_perdure.read(x->s.vfs, "/stored", &x->stored, err));
    OK(pd_catalog_finish(&x->stored, err));
    make_plain(x, renames, alters);
}

static void teardown(struct sides *x)
{
    for (int i = 0; i < 2; i++)
        pd_links_deinit(&x->links[i]);
    pd_catalog_deinit(&x->plain);
    pd_catalog_deinit(&x->stored);
    pd_commit_deinit(&x->commit);
    state_deinit(&x->s);
    free(x->buffers);
}

static const struct pd_diff_row *row_of(const struct pd_diff *diff, uint32_t t, enum pd_kind kind)
{
    char name[64];
    snprintf(name, sizeof name, "layers.%u.weight", t);
    for (uint64_t i = 0; i < diff->count; i++)
        if (diff->rows[i].kind == kind && strcmp(diff->rows[i].name, name) == 0) return &diff->rows[i];
    cr_assert_fail("no row of %s, kind %d", name, kind);
    return NULL;
}

static void check_altered(const struct pd_diff *diff)
{
    const struct pd_diff_row *altered = row_of(diff, ALTERED, PD_PARAM), *strange = row_of(diff, NOT_A_NUMBER, PD_PARAM);
    cr_assert_eq(altered->difference, PD_DIFFERENT);
    cr_assert_eq(altered->differing, 2u);
    cr_assert_eq(altered->first, PLACE);
    cr_assert_eq(altered->max_abs, 2.0);
    cr_assert_eq(altered->left, (double)state_value(ALTERED, PD_PARAM, PLACE));
    cr_assert_eq(altered->right, altered->left + 0.5);
    cr_assert_eq(strange->difference, PD_DIFFERENT);
    cr_assert_eq(strange->first, strange->elements - 1);
    cr_assert(isinf(strange->max_abs) && isnan(strange->right));
    cr_assert_eq(row_of(diff, MISSING, PD_PARAM)->difference, PD_ONLY_LEFT);
    for (uint32_t t = 0; t < STATE_TENSORS; t++) {
        if (t != ALTERED && t != NOT_A_NUMBER && t != MISSING) cr_assert_eq(row_of(diff, t, PD_PARAM)->difference, PD_SAME);
        cr_assert_eq(row_of(diff, t, PD_EXP_AVG)->difference, PD_ONLY_LEFT);
    }
    cr_assert_eq(diff->different_count, 3u + 2 * STATE_TENSORS);
}

Test(compare, by_names)
{
    struct sides x;
    struct pd_diff diff;
    setup(&x, 1, false, true);
    const struct pd_compare_request request = {
        .left = {.catalog = &x.stored}, .right = {.catalog = &x.plain}, .buffers = x.buffers};
    OK(pd_compare(x.s.vfs, &request, &diff, err));
    check_altered(&diff);
    pd_diff_deinit(&diff);
    teardown(&x);
}

/* The same tensors by the names of each side. */
static void link_both(struct sides *x)
{
    for (uint32_t t = 0; t < STATE_TENSORS; t++) {
        char name[64];
        struct pd_link link = {.tensor = t, .name = x->s.tensors[t].name, .view = pd_view_dense(&x->s.tensors[t])};
        OK(pd_links_add(&x->links[0], &link, err));
        snprintf(name, sizeof name, "other.%u", t);
        link.name = name;
        OK(pd_links_add(&x->links[1], &link, err));
    }
}

Test(compare, by_links)
{
    struct sides x;
    struct pd_diff diff;
    setup(&x, 2, true, false);
    link_both(&x);
    const struct pd_compare_request request = {.left = {.catalog = &x.stored, .links = &x.links[0]},
                                               .right = {.catalog = &x.plain, .links = &x.links[1]},
                                               .tensors = &x.s.table,
                                               .buffers = x.buffers};
    OK(pd_compare(x.s.vfs, &request, &diff, err));
    for (uint32_t t = 0; t < STATE_TENSORS; t++)
        cr_assert_eq(row_of(&diff, t, PD_PARAM)->difference, PD_SAME);
    cr_assert_eq(diff.different_count, 0u);
    pd_diff_deinit(&diff);
    teardown(&x);
}

Test(compare, reports_of_equal_values_are_equal_in_every_format)
{
    struct sides x;
    setup(&x, 3, false, true);
    struct pd_tensor_report *ours = calloc(x.stored.tensor_count, sizeof *ours),
                            *theirs = calloc(x.plain.tensor_count, sizeof *theirs);
    struct pd_compare_request request = {.left = {.catalog = &x.stored}, .buffers = x.buffers};
    OK(pd_compare_report(x.s.vfs, &request, NULL, ours, NULL, err));
    request.left.catalog = &x.plain;
    OK(pd_compare_report(x.s.vfs, &request, NULL, theirs, NULL, err));
    for (uint32_t t = 0; t < STATE_TENSORS; t++) {
        const int64_t a = pd_catalog_find(&x.stored, x.s.tensors[t].name, PD_PARAM),
                      b = pd_catalog_find(&x.plain, x.s.tensors[t].name, PD_PARAM);
        cr_assert_geq(a, 0);
        cr_assert_eq(b < 0, t == MISSING);
        if (b < 0) continue;
        cr_assert_eq(ours[a].digest == theirs[b].digest, t != ALTERED && t != NOT_A_NUMBER, "tensor %u", t);
        cr_assert_eq(theirs[b].nan_count, t == NOT_A_NUMBER);
        if (t != ALTERED && t != NOT_A_NUMBER) cr_assert_eq(ours[a].rms, theirs[b].rms);
    }
    free(ours);
    free(theirs);
    teardown(&x);
}

/* ---- small catalogs, a file of fp32 each ---- */

struct small {
    const char *name;
    uint32_t ndim;
    uint64_t shape[2];
};

static void make_small(struct pd_vfs *vfs, struct pd_catalog *c, const char *path, const struct small *tensors,
                       const float *values, uint32_t count)
{
    struct pd_file *file = NULL;
    uint64_t offset = 0;
    pd_catalog_init(c, "test");
    OK(pd_catalog_add_file(c, path, count * sizeof *values, NULL, err));
    OK(pd_file_open(vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    OK(pd_file_write(file, 0, values, count * sizeof *values, err));
    OK(pd_file_close(file, err));
    for (const struct small *t = tensors; t->name; t++) {
        struct pd_foreign_tensor tensor = {.name = (char *)(uintptr_t)t->name,
                                           .element = PD_ELEMENT_F32,
                                           .ndim = t->ndim,
                                           .shape = {t->shape[0], t->shape[1]}};
        for (uint32_t d = 2; d < PD_FOREIGN_DIMS_MAX; d++)
            tensor.shape[d] = 1;
        OK(pd_catalog_add_dense(c, &tensor, 0, offset, err));
        offset += t->shape[0] * t->shape[1] * sizeof(float);
    }
    cr_assert_eq(offset, count * sizeof *values);
    OK(pd_catalog_finish(c, err));
}

struct progress {
    uint64_t done, total;
};

static void note_progress(void *context, uint64_t done, uint64_t total)
{
    struct progress *p = context;
    cr_assert(done > p->done && done <= total && (!p->total || p->total == total));
    *p = (struct progress){done, total};
}

Test(compare, shapes_that_differ_and_what_only_one_side_has)
{
    static const struct small left[] = {{"a", 1, {4, 1}}, {"b", 2, {2, 3}}, {"c", 1, {6, 1}}, {"e", 1, {1, 1}}, {0}},
                              right[] = {{"a", 1, {4, 1}}, {"b", 2, {3, 2}}, {"c", 2, {2, 3}}, {"d", 1, {1, 1}}, {0}};
    static const float values[17] = {1, 2, 3};
    static const struct {
        const char *name;
        enum pd_difference difference;
    } rows[] = {{"a", PD_SAME}, {"b", PD_OTHER_SHAPE}, {"c", PD_OTHER_SHAPE}, {"e", PD_ONLY_LEFT}, {"d", PD_ONLY_RIGHT}};
    struct state s;
    struct pd_catalog catalogs[2];
    struct pd_diff diff;
    struct progress progress = {0};
    state_init(&s, 1);
    make_small(s.vfs, &catalogs[0], "/left", left, values, 17);
    make_small(s.vfs, &catalogs[1], "/right", right, values, 17);
    const struct pd_compare_request request = {.left = {.catalog = &catalogs[0]},
                                               .right = {.catalog = &catalogs[1]},
                                               .buffers = aligned_alloc(PD_VFS_ALIGN, PD_COMPARE_BUFFER_BYTES),
                                               .progress = note_progress,
                                               .context = &progress};
    OK(pd_compare(s.vfs, &request, &diff, err));
    cr_assert_eq(diff.count, sizeof rows / sizeof *rows);
    for (uint32_t i = 0; i < diff.count; i++)
        cr_assert(strcmp(diff.rows[i].name, rows[i].name) == 0 && diff.rows[i].difference == rows[i].difference, "%s",
                  rows[i].name);
    cr_assert_eq(diff.different_count, 4u);
    cr_assert(progress.total > 0 && progress.done == progress.total);
    pd_diff_deinit(&diff);
    free(request.buffers);
    pd_catalog_deinit(&catalogs[0]);
    pd_catalog_deinit(&catalogs[1]);
    state_deinit(&s);
}

/* A tensor of the model that a side has no link for, or a link to nothing. */
Test(compare, links_that_lead_nowhere)
{
    struct sides x;
    struct pd_diff diff;
    setup(&x, 2, true, false);
    link_both(&x);
    x.links[1].items[1].kind = PD_EXP_AVG; /* which there is none of */
    free(x.links[0].items[2].name);
    x.links[0].items[2].name = strdup("nobody's");
    free(x.links[1].items[3].name);
    x.links[1].items[3].name = strdup("nobody's");
    free(x.links[0].items[3].name);
    x.links[0].items[3].name = strdup("nobody's either");
    const struct pd_compare_request request = {.left = {.catalog = &x.stored, .links = &x.links[0]},
                                               .right = {.catalog = &x.plain, .links = &x.links[1]},
                                               .tensors = &x.s.table,
                                               .buffers = x.buffers};
    OK(pd_compare(x.s.vfs, &request, &diff, err));
    cr_assert_eq(diff.count, STATE_TENSORS - 1u, "3 is on no side");
    cr_assert_eq(row_of(&diff, 1, PD_PARAM)->difference, PD_ONLY_LEFT);
    cr_assert_eq(row_of(&diff, 2, PD_PARAM)->difference, PD_ONLY_RIGHT);
    cr_assert_eq(diff.different_count, 2u);
    pd_diff_deinit(&diff);
    teardown(&x);
}

Test(compare, reports_count_what_is_not_finite)
{
    static const struct small tensors[] = {{"a", 1, {6, 1}}, {"nothing", 1, {2, 1}}, {"unwanted", 1, {1, 1}}, {0}};
    static const bool wanted[] = {true, true, false};
    const float values[9] = {2, -INFINITY, NAN, -4, INFINITY, 0, NAN, INFINITY, 7};
    struct state s;
    struct pd_catalog c;
    struct pd_tensor_report reports[3];
    struct progress progress = {0};
    state_init(&s, 1);
    make_small(s.vfs, &c, "/values", tensors, values, 9);
    const struct pd_compare_request request = {.left = {.catalog = &c},
                                               .buffers = aligned_alloc(PD_VFS_ALIGN, PD_COMPARE_BUFFER_BYTES),
                                               .progress = note_progress,
                                               .context = &progress};
    OK(pd_compare_report(s.vfs, &request, wanted, reports, NULL, err));
    cr_assert(reports[0].elements == 6 && reports[0].nan_count == 1 && reports[0].inf_count == 2);
    cr_assert(reports[0].min == -4 && reports[0].max == 2 && reports[0].rms == sqrt(20.0 / 3));
    cr_assert_float_eq(reports[0].mean, -2.0 / 3, 1e-12);
    cr_assert(reports[1].elements == 2 && reports[1].nan_count == 1 && reports[1].inf_count == 1 && reports[1].rms == 0);
    cr_assert(!reports[2].elements && !reports[2].digest);
    cr_assert(progress.done == 8 * sizeof(float) && progress.total == progress.done);
    free(request.buffers);
    pd_catalog_deinit(&c);
    state_deinit(&s);
}

/* Numbers that are one in fp32. */
static void make_wide(struct state *s, const char *path, const int64_t *values, uint64_t rows, struct pd_catalog *ret)
{
    struct pd_file *file = NULL;
    const struct pd_foreign_tensor wide = {
        .name = "wide", .element = PD_ELEMENT_I64, .ndim = 2, .shape = {rows, 2, 1, 1, 1, 1, 1, 1}};
    OK(pd_file_open(s->vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    OK(pd_file_write(file, 0, values, rows * 16, err));
    OK(pd_file_close(file, err));
    pd_catalog_init(ret, "test");
    OK(pd_catalog_add_file(ret, path, rows * 16, NULL, err));
    OK(pd_catalog_add_dense(ret, &wide, 0, 0, err));
    OK(pd_catalog_finish(ret, err));
}

Test(compare, integers_that_fp32_does_not_hold)
{
    enum { ROWS = 300000 }; /* of two numbers: more than are read at once */
    struct state s;
    struct pd_catalog sides[2];
    struct pd_diff diff;
    int64_t *values = malloc(ROWS * 2 * sizeof *values);
    void *buffers = aligned_alloc(PD_VFS_ALIGN, PD_COMPARE_BUFFER_BYTES);
    state_init(&s, 8);
    for (uint64_t i = 0; i < ROWS * 2; i++)
        values[i] = (INT64_C(1) << 60) + (int64_t)i;
    make_wide(&s, "/left", values, ROWS, &sides[0]);
    values[7]++;
    values[ROWS * 2 - 1]--;
    make_wide(&s, "/right", values, ROWS, &sides[1]);
    struct pd_compare_request request = {
        .left = {.catalog = &sides[0]}, .right = {.catalog = &sides[1]}, .buffers = buffers};
    OK(pd_compare(s.vfs, &request, &diff, err));
    cr_assert_eq(diff.rows[0].difference, PD_DIFFERENT);
    cr_assert_eq(diff.rows[0].differing, 2);
    cr_assert_eq(diff.rows[0].first, 7);
    pd_diff_deinit(&diff);
    request.right.catalog = &sides[0];
    OK(pd_compare(s.vfs, &request, &diff, err));
    cr_assert_eq(diff.different_count, 0);
    pd_diff_deinit(&diff);
    pd_catalog_deinit(&sides[0]);
    pd_catalog_deinit(&sides[1]);
    state_deinit(&s);
    free(buffers);
    free(values);
}
