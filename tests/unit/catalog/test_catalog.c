#include "resharder/catalog/catalog.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define F32(name_, ...) (&(struct pd_foreign_tensor){.name = (char *)(name_), .element = PD_ELEMENT_F32, __VA_ARGS__})

static struct pd_error err;

static void start(struct pd_catalog *c, uint64_t bytes)
{
    pd_catalog_init(c, "test");
    cr_assert_eq(pd_catalog_add_file(c, "a.bin", bytes, NULL, &err), PD_OK);
}

static void expect(struct pd_catalog *c, const char *message)
{
    const pd_status st = pd_catalog_finish(c, &err);
    if (message) {
        cr_assert_eq(st, PD_CORRUPT, "finished where expected: %s", message);
        cr_assert_not_null(strstr(err.message, message), "%s", err.message);
    } else {
        cr_assert_eq(st, PD_OK, "%s", err.message);
    }
    pd_catalog_deinit(c);
}

Test(catalog, keeps_what_it_is_given_and_finds_it)
{
    struct pd_catalog c;
    start(&c, 1000);
    cr_assert_eq(pd_catalog_add_dense(&c, F32("w", .ndim = 2, .shape = {5, 10}), 0, 100, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_dense(&c, F32("w", .kind = PD_EXP_AVG, .ndim = 2, .shape = {5, 10}), 0, 300, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_dense(&c, F32("b", .ndim = 0), 0, 996, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_dense(&c, F32("empty", .ndim = 2, .shape = {0, 7}), 0, 1000, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_text(&c, "config.json", "{}\0x", 4, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_unmapped(&c, "optimizer.betas", &err), PD_OK);
    cr_assert_eq(pd_catalog_finish(&c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_catalog_find(&c, "w", PD_PARAM), 0);
    cr_assert_eq(pd_catalog_find(&c, "w", PD_EXP_AVG), 1);
    cr_assert_eq(pd_catalog_find(&c, "w", PD_EXP_AVG_SQ), -1);
    cr_assert_eq(pd_catalog_find(&c, "b", PD_PARAM), 2);
    cr_assert_eq(pd_catalog_find(&c, "a", PD_PARAM), -1);
    cr_assert_eq(pd_foreign_bytes(&c.tensors[0]), 200);
    cr_assert_eq(pd_foreign_elements(&c.tensors[2]), 1);
    cr_assert_eq(c.tensors[3].piece_count, 0);
    cr_assert_eq(c.pieces[c.tensors[1].piece_begin].offset, 300);
    cr_assert_eq(pd_catalog_text(&c, "config.json")->bytes, 4);
    cr_assert_eq(pd_catalog_text(&c, "config.json")->text[4], '\0');
    cr_assert_null(pd_catalog_text(&c, "other"));
    pd_catalog_deinit(&c);
}

Test(catalog, names_and_shapes_are_checked)
{
    struct pd_catalog c;
    char longest[PD_FOREIGN_NAME_MAX + 1];
    memset(longest, 'x', sizeof longest);
    longest[PD_FOREIGN_NAME_MAX] = '\0';
    start(&c, 1000);
    cr_assert_eq(pd_catalog_add_tensor(&c, F32(longest, .ndim = 0), NULL, &err), PD_CORRUPT);
    cr_assert_eq(pd_catalog_add_tensor(&c, F32("", .ndim = 0), NULL, &err), PD_CORRUPT);
    cr_assert_eq(pd_catalog_add_tensor(&c, F32("w", .ndim = 9), NULL, &err), PD_CORRUPT);
    cr_assert_eq(pd_catalog_add_tensor(&c, F32("w", .ndim = 2, .shape = {UINT64_C(1) << 40, UINT64_C(1) << 40}), NULL, &err),
                 PD_CORRUPT);
    cr_assert_eq(pd_catalog_add_tensor(&c, F32("w", .ndim = 1, .shape = {UINT64_C(1) << 62}), NULL, &err), PD_CORRUPT);
    struct pd_foreign_tensor blocks = {.name = "q", .element = PD_ELEMENT_Q4_K, .ndim = 2, .shape = {256, 128}};
    cr_assert_eq(pd_catalog_add_tensor(&c, &blocks, NULL, &err), PD_CORRUPT);
    cr_assert_eq(pd_catalog_add_dense(&c, F32("w", .ndim = 0), 0, 0, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_dense(&c, F32("w", .ndim = 0), 0, 4, &err), PD_OK);
    expect(&c, "tensor w (param) occurs twice");
    start(&c, 1000);
    cr_assert_eq(pd_catalog_add_dense(&c, F32("w", .ndim = 2, .shape = {25, 10}), 0, 4, &err), PD_OK);
    expect(&c, "a.bin: tensor w begins at byte 4 and ends beyond the file's 1000 bytes");
    start(&c, 1000);
    cr_assert_eq(pd_catalog_add_dense(&c, F32("w", .ndim = 0), 0, UINT64_MAX - 1, &err), PD_OK);
    expect(&c, "ends beyond");
}

struct cut {
    uint64_t row, column, rows, columns;
};

/* Of a tensor of 8 rows and 6 columns. */
static void expect_cover(const struct cut *cuts, size_t count, const char *message)
{
    struct pd_catalog c;
    uint32_t t;
    start(&c, 4096);
    cr_assert_eq(pd_catalog_add_tensor(&c, F32("w", .ndim = 2, .shape = {8, 6}), &t, &err), PD_OK);
    for (size_t i = 0; i < count; i++) {
        const struct pd_piece piece = {
            .offset = 64 * i, .start = {cuts[i].row, cuts[i].column}, .count = {cuts[i].rows, cuts[i].columns}};
        cr_assert_eq(pd_catalog_add_piece(&c, t, &piece, &err), PD_OK);
    }
    expect(&c, message);
}
#define EXPECT_COVER(message, ...)                                  \
    do {                                                            \
        const struct cut cuts_[] = {__VA_ARGS__};                   \
        expect_cover(cuts_, sizeof cuts_ / sizeof *cuts_, message); \
    } while (0)

Test(catalog, boxes_cover_their_tensor_once)
{
    EXPECT_COVER(NULL, {4, 0, 4, 6}, {0, 0, 4, 6});
    EXPECT_COVER(NULL, {4, 3, 4, 3}, {0, 0, 4, 3}, {0, 3, 4, 3}, {4, 0, 4, 3});
    EXPECT_COVER(NULL, {0, 0, 8, 2}, {0, 2, 3, 4}, {3, 2, 5, 1}, {3, 3, 5, 3}, {8, 0, 0, 6});
    EXPECT_COVER(NULL, {0, 0, 8, 6}, {0, 0, 8, 6}); /* a replica */
    EXPECT_COVER("hold 24 elements where its shape has 48", {0, 0, 4, 6});
    EXPECT_COVER("hold 60 elements", {0, 0, 8, 6}, {0, 0, 2, 6});
    EXPECT_COVER("overlap", {0, 0, 4, 6}, {3, 0, 4, 6});
    EXPECT_COVER("overlap", {0, 0, 8, 3}, {0, 2, 8, 3});
    EXPECT_COVER("beyond its shape", {0, 0, 8, 6}, {8, 0, 1, 6});
    EXPECT_COVER("beyond its shape", {0, UINT64_MAX, 8, 6});
}

Test(catalog, ranges_cover_their_tensor_once)
{
    static const struct {
        uint64_t start[3], count[3];
        const char *message;
    } cases[] = {
        {{16, 0, 40}, {24, 16, 8}, NULL},
        {{16, 0, 39}, {24, 16, 8}, "overlap"},
        {{16, 0, 41}, {24, 16, 8}, "beyond its shape"},
        {{16, 0, 40}, {24, 16, 7}, "hold 47 elements"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pd_catalog c;
        uint32_t t;
        start(&c, 4096);
        cr_assert_eq(pd_catalog_add_tensor(&c, F32("w", .ndim = 2, .shape = {8, 6}), &t, &err), PD_OK);
        for (int p = 0; p < 3; p++) {
            const struct pd_piece piece = {.is_range = true, .start = {cases[i].start[p]}, .count = {cases[i].count[p]}};
            cr_assert_eq(pd_catalog_add_piece(&c, t, &piece, &err), PD_OK);
        }
        expect(&c, cases[i].message);
    }
}

Test(catalog, strides_stay_inside_the_file)
{
    for (int i = 0; i < 2; i++) {
        struct pd_catalog c;
        uint32_t t;
        start(&c, 4 * (7 + 5 * 8 + 1) - (uint64_t)i);
        cr_assert_eq(pd_catalog_add_tensor(&c, F32("w", .ndim = 2, .shape = {8, 6}), &t, &err), PD_OK);
        const struct pd_piece piece = {.count = {8, 6}, .stride = {1, 8}};
        cr_assert_eq(pd_catalog_add_piece(&c, t, &piece, &err), PD_OK);
        expect(&c, i ? "ends beyond" : NULL);
    }
}

Test(catalog, strides_that_say_nothing_are_none)
{
    struct pd_catalog c;
    uint32_t t;
    start(&c, 4 * 48 * 3);
    cr_assert_eq(pd_catalog_add_tensor(&c, F32("w", .ndim = 3, .shape = {3, 8, 6}), &t, &err), PD_OK);
    const struct pd_piece pieces[] = {{.count = {1, 8, 6}, .stride = {7, 6, 1}},
                                      {.start = {1}, .count = {1, 8, 6}, .stride = {48, 1, 8}},
                                      {.start = {2}, .count = {1, 8, 6}}};
    for (int i = 0; i < 3; i++)
        cr_assert_eq(pd_catalog_add_piece(&c, t, &pieces[i], &err), PD_OK);
    cr_assert_eq(pd_catalog_finish(&c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(c.pieces[0].stride[0] | c.pieces[0].stride[1] | c.pieces[0].stride[2], 0);
    cr_assert_eq(c.pieces[1].stride[2], 8);
    pd_catalog_deinit(&c);
}

Test(catalog, blocks_and_strides_that_cannot_be)
{
    static const struct {
        enum pd_element element;
        struct pd_piece piece; /* of a tensor of 2 rows of 64 */
        const char *message;
    } cases[] = {
        {PD_ELEMENT_Q8_0, {.start = {0, 16}, .count = {2, 32}}, "cuts its blocks of 32 elements"},
        {PD_ELEMENT_Q8_0, {.count = {2, 48}}, "cuts its blocks of 32 elements"},
        {PD_ELEMENT_Q8_0, {.count = {2, 64}, .stride = {1, 2}}, "cuts its blocks of 32 elements"},
        {PD_ELEMENT_F32, {.is_range = true, .count = {128}, .stride = {2}}, "a range of tensor w has strides"},
        {PD_ELEMENT_F32, {.count = {2, 64}, .stride = {1, UINT64_MAX / 2}}, "ends beyond"},
        {PD_ELEMENT_F32, {.count = {2, 2}, .stride = {UINT64_MAX, UINT64_MAX}}, "ends beyond"},
        {PD_ELEMENT_F32, {.count = {2, 1}, .stride = {UINT64_MAX, 1}}, "ends beyond"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pd_catalog c;
        uint32_t t;
        const struct pd_foreign_tensor tensor = {
            .name = "w", .element = cases[i].element, .ndim = 2, .shape = {2, 64, 1, 1, 1, 1, 1, 1}};
        struct pd_piece piece = cases[i].piece;
        for (uint32_t d = 0; d < PD_FOREIGN_DIMS_MAX; d++)
            if (!piece.count[d]) piece.count[d] = 1;
        start(&c, 4096);
        cr_assert_eq(pd_catalog_add_tensor(&c, &tensor, &t, &err), PD_OK);
        cr_assert_eq(pd_catalog_add_piece(&c, t, &piece, &err), PD_OK);
        expect(&c, cases[i].message);
    }
}

/* Of equal boxes the one in the first file is kept, in whatever order they came; boxes and ranges do not go together. */
Test(catalog, replicas_in_several_files)
{
    struct pd_catalog c;
    uint32_t t;
    start(&c, 4096);
    for (int f = 1; f < 4; f++)
        cr_assert_eq(pd_catalog_add_file(&c, "more.bin", 4096, NULL, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_tensor(&c, F32("w", .ndim = 1, .shape = {48}), &t, &err), PD_OK);
    for (uint32_t f = 0; f < 4; f++)
        cr_assert_eq(pd_catalog_add_piece(&c, t, &(struct pd_piece){.file = (f + 2) % 4, .count = {48}}, &err), PD_OK);
    cr_assert_eq(pd_catalog_finish(&c, &err), PD_OK, "%s", err.message);
    cr_assert(c.tensors[0].piece_count == 1 && c.pieces[0].file == 0);
    pd_catalog_deinit(&c);
    start(&c, 4096);
    cr_assert_eq(pd_catalog_add_tensor(&c, F32("w", .ndim = 1, .shape = {48}), &t, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_piece(&c, t, &(struct pd_piece){.count = {24}}, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_piece(&c, t, &(struct pd_piece){.is_range = true, .start = {24}, .count = {24}}, &err),
                 PD_OK);
    expect(&c, "stored both as boxes and as ranges");
}

static pd_status read_nothing(void *context, uint64_t piece, uint64_t offset, uint64_t bytes, void *data,
                              struct pd_error *failed)
{
    (void)context, (void)piece, (void)offset, (void)bytes, (void)data;
    PD_FAIL(failed, PD_BUG, "nobody reads");
}

/* Pieces whose places the format answers for may be of any size, and their elements more than can be counted. */
Test(catalog, more_elements_than_can_be_counted)
{
    struct pd_catalog c;
    uint32_t t;
    start(&c, 4096);
    c.source.read = read_nothing;
    cr_assert_eq(pd_catalog_add_tensor(&c, F32("w", .ndim = 1, .shape = {UINT64_C(1) << 60}), &t, &err), PD_OK);
    for (uint64_t i = 0; i < 20; i++) {
        const struct pd_piece piece = {.start = {i}, .count = {(UINT64_C(1) << 60) - i}};
        cr_assert_eq(pd_catalog_add_piece(&c, t, &piece, &err), PD_OK);
    }
    expect(&c, "hold 18446744073709551615 elements");
}

Test(catalog, lists_end_somewhere)
{
    struct pd_catalog c;
    pd_status st = PD_OK;
    start(&c, 1000);
    cr_assert_eq(pd_catalog_add_text(&c, "", "", 0, &err), PD_CORRUPT);
    cr_assert_eq(pd_catalog_add_text(&c, "config.json", "", PD_CATALOG_TEXT_MAX + 1, &err), PD_CORRUPT);
    cr_assert_not_null(strstr(err.message, "config.json has 67108865 bytes; perdure reads at most 67108864"), "%s",
                       err.message);
    for (int i = 0; !st && i < 5000; i++)
        st = pd_catalog_add_text(&c, "text", "", 0, &err);
    cr_assert(st == PD_CORRUPT && strstr(err.message, "more than 4096 texts"), "%s", err.message);
    for (st = PD_OK; !st && c.file_count <= 1u << 20;)
        st = pd_catalog_add_file(&c, "a", 1, NULL, &err);
    cr_assert(st == PD_CORRUPT && strstr(err.message, "more than 1048576 files"), "%s", err.message);
    for (st = PD_OK; !st && c.unmapped_count <= 1u << 20;)
        st = pd_catalog_add_unmapped(&c, "a", &err);
    cr_assert(st == PD_CORRUPT && strstr(err.message, "more than 1048576 entries that a checkpoint has no place for"), "%s",
              err.message);
    for (st = PD_OK; !st && c.tensor_count <= PD_CATALOG_TENSORS_MAX;)
        st = pd_catalog_add_tensor(&c, F32("w", .ndim = 0), NULL, &err);
    cr_assert(st == PD_CORRUPT && strstr(err.message, "more than 1048576 tensors"), "%s", err.message);
    pd_catalog_deinit(&c);
}
