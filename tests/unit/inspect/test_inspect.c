#include "ckpt/inspect/inspect.h"
#include "tests/helpers/box_copy.h"
#include "tests/unit/inspect/checkpoint_fixture.h"

static const struct checkpoint_cut cuts[] = {{1, 0, 0}, {3, 0, 0}, {4, 17, 0}, {7, 32, 0}};
#define CUTS (sizeof cuts / sizeof *cuts)

Test(inspect, every_cut_holds_the_same_state)
{
    struct fixture f;
    uint64_t state = 0;
    checkpoint_model(&f);
    for (size_t c = 0; c < CUTS; c++) {
        char directory[256], name[16];
        struct pd_inspect *in = NULL;
        struct pd_state_report report = {0};
        snprintf(name, sizeof name, "c%zu", c);
        checkpoint_write(&f, name, &cuts[c], directory, sizeof directory);
        OK(pd_inspect_open(f.vfs, directory, &in, err));
        OK(pd_inspect_check_complete(in, err));
        OK(pd_inspect_report(in, true, NULL, NULL, &report, err));
        cr_assert_eq(report.tensor_count, f.tensors.count);
        for (uint32_t t = 0; t < f.tensors.count; t++) {
            for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
                const struct pd_tensor *tensor = &pd_inspect_tensors(in)->tensors[t];
                cr_assert_str_eq(tensor->name, f.tensors.tensors[t].name);
                float *values = checkpoint_values(&f, t, kind);
                struct pd_box whole = pd_box_whole(tensor);
                const struct pd_tensor_report *row = &report.rows[t * PD_KIND_COUNT + (unsigned)kind];
                cr_assert_eq(row->digest, pd_tensor_digest(tensor, &whole, PD_F32, values), "%s", tensor->name);
                cr_assert_eq(row->elements, pd_tensor_elements(tensor));
                double sum = 0, squares = 0;
                for (uint64_t i = 0; i < row->elements; i++) {
                    sum += values[i];
                    squares += (double)values[i] * values[i];
                    cr_assert(values[i] >= row->min && values[i] <= row->max);
                }
                cr_assert_float_eq(row->mean, sum / (double)row->elements, 1e-12);
                cr_assert_float_eq(row->rms, sqrt(squares / (double)row->elements), 1e-12);
                free(values);
            }
        }
        if (c == 0) state = report.state_digest;
        cr_assert_eq(report.state_digest, state);
        pd_state_report_deinit(&report);
        pd_inspect_close(in);
    }
    fixture_deinit(&f);
}

Test(inspect, reads_any_box_of_any_cut)
{
    struct fixture f;
    uint64_t random = 5;
    checkpoint_model(&f);
    for (size_t c = 0; c < CUTS; c++) {
        char directory[256], name[16];
        struct pd_inspect *in = NULL;
        snprintf(name, sizeof name, "c%zu", c);
        checkpoint_write(&f, name, &cuts[c], directory, sizeof directory);
        OK(pd_inspect_open(f.vfs, directory, &in, err));
        for (int trial = 0; trial < 50; trial++) {
            uint32_t t = (uint32_t)(fixture_random(&random) % f.tensors.count);
            int kind = (int)(fixture_random(&random) % PD_KIND_COUNT);
            const struct pd_tensor *tensor = &f.tensors.tensors[t];
            struct pd_box whole = pd_box_whole(tensor), box = whole;
            for (int d = 0; d < 2; d++) {
                box.start[d] = fixture_random(&random) % tensor->shape[d];
                box.count[d] = 1 + fixture_random(&random) % (tensor->shape[d] - box.start[d]);
            }
            float *values = checkpoint_values(&f, t, kind), *part = malloc(pd_box_elements(&box) * sizeof *part);
            float *got = malloc(pd_box_elements(&box) * sizeof *got);
            pd_box_copy(part, &box, values, &whole, &box, sizeof *part);
            OK(pd_inspect_read(in, t, (enum pd_kind)kind, &box, got, err));
            cr_assert_eq(memcmp(got, part, pd_box_elements(&box) * sizeof *part), 0);
            free(values);
            free(part);
            free(got);
        }
        pd_inspect_close(in);
    }
    fixture_deinit(&f);
}

static uint32_t count_damage(struct fixture *f, const char *directory, struct pd_damage *ret_first)
{
    struct pd_inspect *in = NULL;
    struct pd_damage_list list = {0};
    OK(pd_inspect_open(f->vfs, directory, &in, err));
    OK(pd_inspect_verify(in, NULL, NULL, &list, err));
    uint32_t count = list.count;
    if (count) *ret_first = list.items[0];
    pd_damage_list_deinit(&list);
    pd_inspect_close(in);
    return count;
}

Test(inspect, verify_names_every_damage)
{
    struct fixture f;
    struct pd_damage first = {0};
    char directory[256], path[300];
    checkpoint_model(&f);
    checkpoint_write(&f, "c", &cuts[1], directory, sizeof directory);
    cr_assert_eq(count_damage(&f, directory, &first), 0);

    struct pd_inspect *in = NULL;
    for (int s = 0; s < 2; s++) {
        struct pd_shard *shard = NULL;
        uint32_t large = 0;
        snprintf(path, sizeof path, "%s/shard-%05d.h5", directory, s);
        OK(pd_shard_open(f.vfs, path, NULL, NULL, &shard, err));
        while (pd_shard_boxes(shard)[large].kind != PD_EXP_AVG || pd_shard_box_bytes(shard, large) <= 4096)
            cr_assert_lt(++large, pd_shard_box_count(shard));
        checkpoint_flip(path, (pd_shard_box_offset(shard, large) + 5) * 8);
        pd_shard_close(shard);
    }
    cr_assert_eq(count_damage(&f, directory, &first), 2);
    cr_assert_str_eq(first.file, "shard-00000.h5");
    cr_assert_str_eq(first.tensor, "embed.weight");
    cr_assert_eq(first.kind, PD_EXP_AVG);
    cr_assert_eq(first.block, 0);
    cr_assert_not_null(strstr(first.text, "block 0"));

    snprintf(path, sizeof path, "%s/shard-00002.h5", directory);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(count_damage(&f, directory, &first), 3);
    struct pd_error error;
    OK(pd_inspect_open(f.vfs, directory, &in, err));
    cr_assert_eq(pd_inspect_check_complete(in, &error), PD_NOT_FOUND);
    cr_assert_not_null(strstr(error.message, "shard-00002.h5"));
    pd_inspect_close(in);
    fixture_deinit(&f);
}

Test(inspect, no_checkpoint_is_said_so)
{
    struct fixture f;
    struct pd_inspect *in = NULL;
    struct pd_error error;
    checkpoint_model(&f);
    cr_assert_eq(pd_inspect_open(f.vfs, f.directory, &in, &error), PD_NOT_FOUND);
    cr_assert_not_null(strstr(error.message, "commit.h5"));
    cr_assert_null(in);
    fixture_deinit(&f);
}

Test(inspect, difference_across_layouts)
{
    struct fixture f;
    char left_directory[256], right_directory[256];
    struct pd_inspect *left = NULL, *right = NULL;
    struct pd_diff diff = {0};
    checkpoint_model(&f);
    checkpoint_write(&f, "left", &cuts[1], left_directory, sizeof left_directory);
    checkpoint_write(&f, "right", &cuts[3], right_directory, sizeof right_directory);
    OK(pd_inspect_open(f.vfs, left_directory, &left, err));
    OK(pd_inspect_open(f.vfs, right_directory, &right, err));
    OK(pd_inspect_diff(left, right, NULL, NULL, &diff, err));
    cr_assert_eq(diff.count, f.tensors.count * PD_KIND_COUNT);
    cr_assert_eq(diff.different_count, 0);
    pd_diff_deinit(&diff);
    pd_inspect_close(right);

    /* The same model under other names for two tensors: other values come from other numbers. */
    struct fixture g;
    fixture_init(&g, 5, 1);
    fixture_tensor(&g, 0, "embed.weight", 2, 101, 33);
    fixture_tensor(&g, 1, "norm.weight", 1, 32, 1);
    fixture_tensor(&g, 2, "mlp.down.weight", 2, 70, 600);
    fixture_tensor(&g, 3, "mlp.up.weight", 2, 600, 70);
    fixture_tensor(&g, 4, "extra", 1, 1, 1);
    checkpoint_write(&g, "other", &cuts[2], right_directory, sizeof right_directory);
    OK(pd_inspect_open(g.vfs, right_directory, &right, err));
    OK(pd_inspect_diff(left, right, NULL, NULL, &diff, err));
    cr_assert_eq(diff.count, 6 * PD_KIND_COUNT);
    for (uint64_t r = 0; r < diff.count; r++) {
        const struct pd_diff_row *row = &diff.rows[r];
        if (!strcmp(row->name, "embed.weight")) cr_assert_eq(row->difference, PD_SAME);
        if (!strcmp(row->name, "norm.weight")) cr_assert_eq(row->difference, PD_OTHER_SHAPE);
        if (!strcmp(row->name, "scale")) cr_assert_eq(row->difference, PD_ONLY_LEFT);
        if (!strcmp(row->name, "extra")) cr_assert_eq(row->difference, PD_ONLY_RIGHT);
        if (strcmp(row->name, "mlp.up.weight") != 0) continue;
        cr_assert_eq(row->difference, PD_DIFFERENT);
        float *a = checkpoint_values(&f, 2, (int)row->kind), *b = checkpoint_values(&g, 3, (int)row->kind);
        uint64_t differing = 0, first = 0;
        double max_abs = 0;
        for (uint64_t i = 0; i < 600 * 70; i++) {
            if (a[i] == b[i]) continue;
            if (!differing++) first = i;
            max_abs = fmax(max_abs, fabs((double)a[i] - b[i]));
        }
        cr_assert_eq(row->differing, differing);
        cr_assert_eq(row->first, first);
        cr_assert_eq(row->left, a[first]);
        cr_assert_eq(row->right, b[first]);
        cr_assert_eq(row->max_abs, max_abs);
        free(a);
        free(b);
    }
    cr_assert_eq(diff.different_count, 5 * PD_KIND_COUNT);
    pd_diff_deinit(&diff);
    pd_inspect_close(left);
    pd_inspect_close(right);
    fixture_deinit(&f);
    fixture_deinit(&g);
}

static void count_calls(void *context, uint64_t done, uint64_t total)
{
    uint64_t *calls = context;
    cr_assert_leq(done, total);
    ++*calls;
}

/* Of a tensor that is compared in several parts, whose last and odd one differ. */
Test(inspect, differences_that_have_no_size)
{
    struct fixture f, g;
    char left_directory[256], right_directory[256];
    struct pd_inspect *left = NULL, *right = NULL;
    struct pd_diff diff = {0};
    uint64_t calls = 0;
    fixture_init(&f, 4, 1);
    fixture_tensor(&f, 0, "scale", 1, 1, 1);
    fixture_tensor(&f, 1, "odd.weight", 1, 3, 1);
    fixture_tensor(&f, 2, "long.weight", 2, 2, 1200000);
    fixture_tensor(&f, 3, "wide.weight", 2, 2200, 1100);
    checkpoint_write(&f, "left", &cuts[0], left_directory, sizeof left_directory);
    fixture_init(&g, 4, 1);
    fixture_tensor(&g, 0, "odd.weight", 1, 3, 1);
    fixture_tensor(&g, 1, "scale", 1, 1, 1);
    fixture_tensor(&g, 2, "long.weight", 2, 2, 1200000);
    fixture_tensor(&g, 3, "wide.weight", 2, 2200, 1100);
    checkpoint_write(&g, "right", &cuts[1], right_directory, sizeof right_directory);
    OK(pd_inspect_open(f.vfs, left_directory, &left, err));
    OK(pd_inspect_open(g.vfs, right_directory, &right, err));
    OK(pd_inspect_diff(left, right, count_calls, &calls, &diff, err));
    cr_assert_gt(calls, PD_KIND_COUNT);
    for (uint64_t r = 0; r < diff.count; r++) {
        const struct pd_diff_row *row = &diff.rows[r];
        if (strcmp(row->name, "wide.weight") == 0 || strcmp(row->name, "long.weight") == 0)
            cr_assert_eq(row->difference, PD_SAME);
        if (strcmp(row->name, "odd.weight") != 0) continue;
        cr_assert(row->difference == PD_DIFFERENT && row->differing == 3 && row->first == 0 && isinf(row->max_abs));
        cr_assert(isinf(row->left) && isnan(row->right));
    }
    pd_diff_deinit(&diff);
    pd_inspect_close(left);
    pd_inspect_close(right);
    fixture_deinit(&f);
    fixture_deinit(&g);
}

/* What is asked for is reported as it is among all, and what is not finite is counted and takes no part in the rest. */
Test(inspect, some_tensors_alone)
{
    struct fixture f;
    char directory[256];
    struct pd_inspect *in = NULL;
    struct pd_state_report all = {0}, some = {0};
    const bool wanted[] = {false, true, false, true};
    uint64_t calls = 0;
    fixture_init(&f, 4, 1);
    fixture_tensor(&f, 0, "embed.weight", 2, 101, 33);
    fixture_tensor(&f, 1, "odd.weight", 2, 1100, 700); /* of several blocks */
    fixture_tensor(&f, 2, "norm.weight", 1, 33, 1);
    fixture_tensor(&f, 3, "scale", 1, 1, 1);
    checkpoint_write(&f, "c", &cuts[1], directory, sizeof directory);
    OK(pd_inspect_open(f.vfs, directory, &in, err));
    OK(pd_inspect_report(in, true, count_calls, &calls, &all, err));
    OK(pd_inspect_report_some(in, wanted, count_calls, &calls, &some, err));
    cr_assert_geq(calls, 2);
    cr_assert_lt(some.bytes_read, all.bytes_read);
    for (uint32_t key = 0; key < 4 * PD_KIND_COUNT; key++) {
        const struct pd_tensor_report *a = &all.rows[key], *b = &some.rows[key];
        if (!wanted[key / PD_KIND_COUNT])
            cr_assert_eq(b->elements, 0);
        else
            cr_assert(a->digest == b->digest && a->elements == b->elements && a->nan_count == b->nan_count &&
                      a->mean == b->mean && a->rms == b->rms && a->min == b->min && a->max == b->max);
        cr_assert(a->nan_count == (key / PD_KIND_COUNT == 1) && a->inf_count == (key / PD_KIND_COUNT == 1));
        cr_assert(isfinite(a->mean) && isfinite(a->rms) && isfinite(a->min) && isfinite(a->max));
    }
    pd_state_report_deinit(&some);
    pd_state_report_deinit(&all);
    pd_inspect_close(in);
    fixture_deinit(&f);
}

/* Each shard is whole; together they are not the state. */
Test(inspect, shards_that_do_not_fit_together_are_found)
{
    static const struct {
        struct checkpoint_cut cut;
        const char *damage;
    } rows[] = {{{3, 0, 1}, "boxes of shards 0 and 1 overlap"},
                {{3, 0, -1}, "the shards hold"},
                {{2, 16, 2}, "boxes of shards 0 and 1 overlap"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fixture f;
        struct pd_damage first = {0};
        struct pd_inspect *in = NULL;
        struct pd_state_report report = {0};
        struct pd_error error = {0};
        char directory[256];
        checkpoint_model(&f);
        checkpoint_write(&f, "c", &rows[i].cut, directory, sizeof directory);
        cr_assert_geq(count_damage(&f, directory, &first), 1);
        cr_assert(first.status == PD_CORRUPT && strstr(first.text, rows[i].damage), "%zu: %s", i, first.text);
        OK(pd_inspect_open(f.vfs, directory, &in, err));
        cr_assert_eq(pd_inspect_report(in, false, NULL, NULL, &report, &error), PD_CORRUPT);
        cr_assert(strstr(error.message, "elements of tensor"), "%s", error.message);
        pd_inspect_close(in);
        fixture_deinit(&f);
    }
}

Test(inspect, an_index_of_other_bytes_is_found)
{
    struct fixture f;
    char directory[256], path[300];
    struct pd_inspect *in = NULL;
    struct pd_error error = {0};
    checkpoint_model(&f);
    checkpoint_write(&f, "c", &cuts[1], directory, sizeof directory);
    snprintf(path, sizeof path, "%s/index.h5", directory);
    OK(pd_inspect_open(f.vfs, directory, &in, err));
    OK(pd_inspect_check_index(in, err));
    checkpoint_flip(path, 40001);
    cr_assert_eq(pd_inspect_check_index(in, &error), PD_CORRUPT);
    cr_assert(strstr(error.message, "index.h5 does not match the digest in commit.h5"), "%s", error.message);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(pd_inspect_check_index(in, &error), PD_NOT_FOUND);
    pd_inspect_close(in);
    fixture_deinit(&f);
}

/* Two columns of a tensor lie in more bytes than are read at once. */
Test(inspect, a_box_that_is_spread_over_much_is_read_in_halves)
{
    struct fixture f;
    char directory[256];
    struct pd_inspect *in = NULL;
    fixture_init(&f, 1, 1);
    fixture_tensor(&f, 0, "wide.weight", 2, 2200, 2200);
    checkpoint_write(&f, "c", &cuts[0], directory, sizeof directory);
    OK(pd_inspect_open(f.vfs, directory, &in, err));
    const struct pd_box box = {{1, 700, 0, 0}, {2199, 2, 1, 1}}, whole = pd_box_whole(&f.tensors.tensors[0]);
    float *values = checkpoint_values(&f, 0, PD_PARAM), *part = malloc(pd_box_elements(&box) * sizeof *part);
    float *got = malloc(pd_box_elements(&box) * sizeof *got);
    pd_box_copy(part, &box, values, &whole, &box, sizeof *part);
    OK(pd_inspect_read(in, 0, PD_PARAM, &box, got, err));
    cr_assert_eq(memcmp(got, part, pd_box_elements(&box) * sizeof *part), 0);
    free(values);
    free(part);
    free(got);
    pd_inspect_close(in);
    fixture_deinit(&f);
}
