#include "resharder/formats/view.h"

#include <criterion/criterion.h>

/* Element by element, as the header says it. */
static uint64_t place(const struct pd_view *view, uint64_t index)
{
    uint64_t at = view->offset;
    for (uint32_t d = view->ndim; d-- > 0; index /= view->count[d])
        at += index % view->count[d] * view->stride[d];
    return at;
}

static void check_runs(const struct pd_view *view)
{
    const uint64_t elements = pd_view_elements(view);
    for (uint64_t first = 0; first < elements; first++) {
        uint64_t count = elements - first;
        const uint64_t at = pd_view_run(view, first, &count);
        cr_assert(count >= 1 && first + count <= elements);
        for (uint64_t i = 0; i < count; i++)
            cr_assert_eq(at + i, place(view, first + i), "element %d + %d", (int)first, (int)i);
        if (first + count < elements)
            cr_assert_neq(at + count, place(view, first + count), "the run at %d goes on", (int)first);
        uint64_t one = 1;
        cr_assert_eq(pd_view_run(view, first, &one), at);
        cr_assert_eq(one, 1);
    }
}

Test(view, runs_are_what_lies_side_by_side)
{
    const struct pd_tensor tensor = {.ndim = 2, .shape = {6, 4}};
    const struct pd_view dense = pd_view_dense(&tensor);
    const struct pd_view views[] = {
        dense,
        {.ndim = 2, .offset = 3, .count = {6, 4}, .stride = {1, 6}},
        {.ndim = 2, .offset = 48, .count = {6, 4}, .stride = {4, 1}},
        {.ndim = 3, .offset = 8, .count = {2, 3, 4}, .stride = {40, 4, 1}},
        {.ndim = 4, .count = {2, 1, 3, 4}, .stride = {12, 999, 4, 1}},
        {.ndim = 3, .count = {3, 2, 4}, .stride = {9, 1, 2}},
        {.ndim = 1, .offset = 5, .count = {9}, .stride = {1}},
        {.ndim = 0, .offset = 7},
    };
    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        check_runs(&views[i]);
    uint64_t count = 24;
    cr_assert_eq(pd_view_run(&dense, 0, &count), 0);
    cr_assert_eq(count, 24);
}

Test(view, views_beyond_their_tensor_are_found)
{
    struct pd_view view = {.ndim = 2, .offset = 2, .count = {3, 4}, .stride = {4, 1}};
    cr_assert(pd_view_is_inside(&view, 14));
    cr_assert_not(pd_view_is_inside(&view, 13));
    view.stride[0] = UINT64_MAX;
    cr_assert_not(pd_view_is_inside(&view, UINT64_MAX));
    view = (struct pd_view){.ndim = 2, .count = {UINT64_C(1) << 33, UINT64_C(1) << 33}};
    cr_assert_not(pd_view_is_inside(&view, UINT64_MAX));
    view = (struct pd_view){.ndim = 1, .offset = 99, .count = {0}, .stride = {1}};
    cr_assert(pd_view_is_inside(&view, 1));
}

Test(view, links_own_their_names)
{
    struct pd_links links = {0};
    char name[] = "wte.weight";
    for (uint32_t i = 0; i < 100; i++)
        cr_assert_eq(pd_links_add(&links, &(struct pd_link){.tensor = i, .name = name}, NULL), PD_OK);
    name[0] = 'x';
    cr_assert_eq(links.count, 100);
    cr_assert_str_eq(links.items[99].name, "wte.weight");
    cr_assert_eq(links.items[99].tensor, 99);
    pd_links_deinit(&links);
}
