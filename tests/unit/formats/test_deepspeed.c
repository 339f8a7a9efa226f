/* Checkpoints that DeepSpeed wrote with 3 ranks against what DeepSpeed itself gathered from the engine that wrote them. */
#include "resharder/formats/format.h"
#include "resharder/torch/archive.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN PERDURE_SOURCE_DIR "/tests/golden/formats/deepspeed"

static struct pd_error err;
static struct pd_vfs *vfs;

static float element(const char *path, uint64_t offset)
{
    struct pd_file *file = NULL;
    float value = 0;
    cr_assert_eq(pd_file_open(vfs, path, PD_OPEN_READ, &file, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_file_read(file, offset, &value, sizeof value, &err), PD_OK, "%s", err.message);
    pd_file_close_readonly(file);
    return value;
}

static void check_tensor(const struct pd_catalog *c, const char *name, enum pd_kind kind,
                         const struct pd_torch_tensor *expected, const char *expected_path)
{
    const int64_t found = pd_catalog_find(c, name, kind);
    cr_assert(found >= 0, "%s %d", name, kind);
    const struct pd_foreign_tensor *t = &c->tensors[found];
    uint64_t seen = 0;
    cr_assert(t->ndim == expected->ndim && memcmp(t->shape, expected->shape, sizeof t->shape) == 0);
    for (uint64_t p = t->piece_begin; p < t->piece_begin + t->piece_count; p++) {
        const struct pd_piece *piece = &c->pieces[p];
        cr_assert(piece->is_range && piece->start[0] == seen);
        for (uint64_t i = 0; i < piece->count[0]; i++, seen++) {
            const float is = element(c->files[piece->file].path, piece->offset + 4 * i);
            const float should = element(expected_path, expected->offset + 4 * seen);
            cr_assert_eq(is, should, "%s %d: element %d is %g, not %g", name, kind, (int)seen, (double)is, (double)should);
        }
    }
    cr_assert_eq(seen, pd_foreign_elements(t));
}

static void check(int stage, const char *path, const char *format_name)
{
    static const char *const fields[PD_KIND_COUNT] = {"param", "exp_avg", "exp_avg_sq"};
    char expected_path[512];
    const struct pd_format *format = NULL;
    struct pd_catalog c;
    struct pd_torch_archive expected;
    struct pd_file *file = NULL;
    struct pd_stat stat;
    snprintf(expected_path, sizeof expected_path, GOLDEN "/expected-%d.pt", stage);
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    cr_assert_eq(pd_format_of(vfs, path, &format, &err), PD_OK, "%s", err.message);
    cr_assert_str_eq(format->name, format_name);
    pd_catalog_init(&c, format->name);
    cr_assert_eq(format->read(vfs, path, &c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_catalog_finish(&c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_file_open(vfs, expected_path, PD_OPEN_READ, &file, &err), PD_OK);
    cr_assert_eq(pd_file_stat(file, &stat, &err), PD_OK);
    cr_assert_eq(pd_torch_open(file, expected_path, 0, stat.bytes, &expected, &err), PD_OK, "%s", err.message);
    const struct pd_pickle_node *root = pd_pickle_root(expected.pickle);
    cr_assert_eq(root->count, 2 * 5);
    for (uint32_t i = 0; i < root->count; i += 2)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            const char *name = pd_pickle_text(root->items[i]);
            struct pd_torch_tensor t;
            cr_assert_eq(pd_torch_tensor(&expected, name, pd_pickle_member(root->items[i + 1], fields[kind]), &t, &err),
                         PD_OK);
            check_tensor(&c, name, (enum pd_kind)kind, &t, expected_path);
        }
    cr_assert_eq(c.tensor_count, 5 * PD_KIND_COUNT);
    if (strcmp(format_name, "deepspeed") == 0) {
        cr_assert(c.counters.has_step && c.counters.step == 2);
        cr_assert(c.counters.has_updates && c.counters.updates == 2);
        cr_assert(c.counters.has_samples && c.counters.samples == 6);
    }
    pd_torch_close(&expected);
    pd_file_close_readonly(file);
    pd_catalog_deinit(&c);
    pd_vfs_free(vfs);
}

Test(deepspeed, parameters_that_zero_3_cut_are_whole_again)
{
    check(3, GOLDEN "/zero3", "deepspeed");
    check(3, GOLDEN "/zero3/global_step2", "deepspeed"); /* without `latest` */
}

Test(deepspeed, parameters_in_the_partitions_of_zero_1_and_2_are_whole_again)
{
    check(1, GOLDEN "/zero1", "deepspeed");
    check(2, GOLDEN "/zero2", "deepspeed");
}

/* ds_to_universal.py of the same checkpoint: flat tensors, whose shapes are those of the model's states beside them. */
Test(deepspeed, a_universal_checkpoint_has_the_same_tensors)
{
    check(3, GOLDEN "/universal3", "universal");
}
