/* Checkpoints of ours, cut in several ways: one state, whatever the cut, and what differs between two. */
#include "resharder/convert/compare.h"
#include "resharder/formats/perdure.h"
#include "tests/unit/inspect/checkpoint_fixture.h"

static const struct checkpoint_cut cuts[] = {{1, 0, 0}, {3, 0, 0}, {4, 17, 0}, {7, 32, 0}};
enum { CUTS = sizeof cuts / sizeof *cuts };

static void read_cut(struct fixture *f, const char *name, const struct checkpoint_cut *cut, struct pd_catalog *ret)
{
    char directory[256];
    checkpoint_write(f, name, cut, directory, sizeof directory);
    pd_catalog_init(ret, "perdure");
    OK(pd_format_perdure.read(f->vfs, directory, ret, err));
    OK(pd_catalog_finish(ret, err));
}

static void report(struct fixture *f, const struct pd_catalog *c, const bool *wanted, struct pd_tensor_report *reports,
                   uint64_t *ret_bytes)
{
    const struct pd_compare_request request = {.left = {.catalog = c},
                                               .buffers = aligned_alloc(PD_VFS_ALIGN, PD_COMPARE_BUFFER_BYTES)};
    OK(pd_compare_report(f->vfs, &request, wanted, reports, ret_bytes, err));
    free(request.buffers);
}

static void check_report(const struct fixture *f, uint32_t t, int kind, const struct pd_tensor_report *row)
{
    const struct pd_tensor *tensor = &f->tensors.tensors[t];
    const struct pd_box whole = pd_box_whole(tensor);
    float *values = checkpoint_values(f, t, kind);
    double sum = 0, squares = 0;
    cr_assert_eq(row->digest, pd_tensor_digest(tensor, &whole, PD_F32, values), "%s", tensor->name);
    cr_assert_eq(row->elements, pd_tensor_elements(tensor));
    for (uint64_t i = 0; i < row->elements; i++) {
        sum += values[i];
        squares += (double)values[i] * values[i];
        cr_assert(values[i] >= row->min && values[i] <= row->max);
    }
    cr_assert_float_eq(row->mean, sum / (double)row->elements, 1e-12);
    cr_assert_float_eq(row->rms, sqrt(squares / (double)row->elements), 1e-12);
    free(values);
}

Test(compare_stored, every_cut_holds_the_same_state)
{
    struct fixture f;
    uint64_t first = 0, digest = 0;
    checkpoint_model(&f);
    for (size_t c = 0; c < CUTS; c++) {
        char name[16];
        struct pd_catalog catalog;
        struct pd_tensor_report reports[5 * PD_KIND_COUNT];
        snprintf(name, sizeof name, "c%zu", c);
        read_cut(&f, name, &cuts[c], &catalog);
        cr_assert_eq(catalog.tensor_count, 5 * PD_KIND_COUNT);
        report(&f, &catalog, NULL, reports, NULL);
        for (uint32_t i = 0; i < 5 * PD_KIND_COUNT; i++) {
            cr_assert_str_eq(catalog.tensors[i].name, f.tensors.tensors[i / PD_KIND_COUNT].name);
            check_report(&f, i / PD_KIND_COUNT, i % PD_KIND_COUNT, &reports[i]);
        }
        OK(pd_compare_state_digest(&catalog, reports, &digest, err));
        if (c == 0) first = digest;
        cr_assert_eq(digest, first);
        pd_catalog_deinit(&catalog);
    }
    fixture_deinit(&f);
}

/* What is asked for is reported as it is among all, and nothing else is read. */
Test(compare_stored, some_tensors_alone)
{
    struct fixture f;
    struct pd_catalog catalog;
    struct pd_tensor_report all[4 * PD_KIND_COUNT], some[4 * PD_KIND_COUNT];
    bool wanted[4 * PD_KIND_COUNT];
    uint64_t all_bytes, some_bytes;
    fixture_init(&f, 4, 1);
    fixture_tensor(&f, 0, "embed.weight", 2, 101, 33);
    fixture_tensor(&f, 1, "odd.weight", 2, 1100, 700); /* of several blocks, with numbers that are not finite */
    fixture_tensor(&f, 2, "norm.weight", 1, 33, 1);
    fixture_tensor(&f, 3, "scale", 1, 1, 1);
    read_cut(&f, "c", &cuts[1], &catalog);
    for (uint32_t i = 0; i < 4 * PD_KIND_COUNT; i++)
        wanted[i] = i / PD_KIND_COUNT % 2;
    report(&f, &catalog, NULL, all, &all_bytes);
    report(&f, &catalog, wanted, some, &some_bytes);
    cr_assert_lt(some_bytes, all_bytes);
    for (uint32_t i = 0; i < 4 * PD_KIND_COUNT; i++) {
        if (!wanted[i])
            cr_assert_eq(some[i].elements, 0);
        else
            cr_assert_eq(memcmp(&some[i], &all[i], sizeof all[i]), 0);
        cr_assert(all[i].nan_count == (i / PD_KIND_COUNT == 1) && all[i].inf_count == (i / PD_KIND_COUNT == 1));
        cr_assert(isfinite(all[i].mean) && isfinite(all[i].rms) && isfinite(all[i].min) && isfinite(all[i].max));
    }
    pd_catalog_deinit(&catalog);
    fixture_deinit(&f);
}

static void compare(struct fixture *f, const struct pd_catalog *left, const struct pd_catalog *right, struct pd_diff *ret)
{
    const struct pd_compare_request request = {.left = {.catalog = left},
                                               .right = {.catalog = right},
                                               .buffers = aligned_alloc(PD_VFS_ALIGN, PD_COMPARE_BUFFER_BYTES)};
    OK(pd_compare(f->vfs, &request, ret, err));
    free(request.buffers);
}

static void check_altered(const struct fixture *f, const struct fixture *g, const struct pd_diff_row *row)
{
    float *a = checkpoint_values(f, 2, (int)row->kind), *b = checkpoint_values(g, 3, (int)row->kind);
    uint64_t differing = 0, first = 0;
    double max_abs = 0;
    for (uint64_t i = 0; i < row->elements; i++) {
        if (a[i] == b[i]) continue;
        if (!differing++) first = i;
        max_abs = fmax(max_abs, fabs((double)a[i] - b[i]));
    }
    cr_assert_eq(row->difference, PD_DIFFERENT);
    cr_assert_eq(row->differing, differing);
    cr_assert_eq(row->first, first);
    cr_assert(row->left == a[first] && row->right == b[first] && row->max_abs == max_abs);
    free(a);
    free(b);
}

Test(compare_stored, difference_across_layouts)
{
    static const struct {
        const char *name;
        enum pd_difference difference;
    } rows[] = {{"embed.weight", PD_SAME},         {"norm.weight", PD_OTHER_SHAPE}, {"mlp.up.weight", PD_DIFFERENT},
                {"mlp.down.weight", PD_DIFFERENT}, {"scale", PD_ONLY_LEFT},         {"extra", PD_ONLY_RIGHT}};
    struct fixture f, g;
    struct pd_catalog left, right, other;
    struct pd_diff diff;
    checkpoint_model(&f);
    read_cut(&f, "left", &cuts[1], &left);
    read_cut(&f, "right", &cuts[3], &right);
    compare(&f, &left, &right, &diff);
    cr_assert(diff.count == 5 * PD_KIND_COUNT && diff.different_count == 0);
    pd_diff_deinit(&diff);

    /* The same model under other names for two tensors: other values come from other numbers. */
    fixture_init(&g, 5, 1);
    fixture_tensor(&g, 0, "embed.weight", 2, 101, 33);
    fixture_tensor(&g, 1, "norm.weight", 1, 32, 1);
    fixture_tensor(&g, 2, "mlp.down.weight", 2, 70, 600);
    fixture_tensor(&g, 3, "mlp.up.weight", 2, 600, 70);
    fixture_tensor(&g, 4, "extra", 1, 1, 1);
    read_cut(&g, "other", &cuts[2], &other);
    compare(&f, &left, &other, &diff);
    cr_assert(diff.count == 6 * PD_KIND_COUNT && diff.different_count == 5 * PD_KIND_COUNT);
    for (uint64_t r = 0; r < diff.count; r++) {
        cr_assert_str_eq(diff.rows[r].name, rows[r / PD_KIND_COUNT].name);
        cr_assert_eq(diff.rows[r].difference, rows[r / PD_KIND_COUNT].difference, "%s", diff.rows[r].name);
        if (r / PD_KIND_COUNT == 2) check_altered(&f, &g, &diff.rows[r]);
    }
    pd_diff_deinit(&diff);
    pd_catalog_deinit(&left);
    pd_catalog_deinit(&right);
    pd_catalog_deinit(&other);
    fixture_deinit(&f);
    fixture_deinit(&g);
}

/* Each shard is whole; together they are not the state. */
Test(compare_stored, shards_that_do_not_fit_together_are_refused)
{
    static const struct checkpoint_cut bad[] = {{3, 0, 1}, {3, 0, -1}, {2, 16, 2}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fixture f;
        struct pd_catalog catalog;
        struct pd_error error = {0};
        char directory[256];
        checkpoint_model(&f);
        checkpoint_write(&f, "c", &bad[i], directory, sizeof directory);
        pd_catalog_init(&catalog, "perdure");
        pd_status st = pd_format_perdure.read(f.vfs, directory, &catalog, &error);
        if (!st) st = pd_catalog_finish(&catalog, &error);
        cr_assert_eq(st, PD_CORRUPT);
        cr_assert(strstr(error.message, "tensor "), "%zu: %s", i, error.message);
        pd_catalog_deinit(&catalog);
        fixture_deinit(&f);
    }
}
