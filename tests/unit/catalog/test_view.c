#include "resharder/catalog/view.h"

#include <criterion/criterion.h>
#include <string.h>

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
            cr_assert_neq(at + count, place(view, first + count), "the run at %d continues", (int)first);
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

static void check_cut(const struct pd_view *view, uint64_t first, uint64_t count)
{
    struct pd_view parts[PD_VIEW_PARTS_MAX];
    const uint32_t n = pd_view_cut(view, first, count, parts);
    uint64_t at = first;
    cr_assert_leq(n, PD_VIEW_PARTS_MAX);
    for (uint32_t p = 0; p < n; p++)
        for (uint64_t i = 0; i < pd_view_elements(&parts[p]); i++, at++)
            cr_assert_eq(place(&parts[p], i), place(view, at), "element %d", (int)at);
    cr_assert_eq(at, first + count);
}

Test(view, every_stretch_is_a_few_views)
{
    const struct pd_view views[] = {
        {.ndim = 1, .offset = 2, .count = {9}, .stride = {3}},
        {.ndim = 2, .count = {6, 4}, .stride = {1, 6}},
        {.ndim = 3, .offset = 8, .count = {2, 3, 4}, .stride = {40, 4, 1}},
        {.ndim = 4, .count = {2, 1, 3, 2}, .stride = {1, 999, 2, 6}},
    };
    for (size_t v = 0; v < sizeof views / sizeof *views; v++)
        for (uint64_t first = 0, elements = pd_view_elements(&views[v]); first < elements; first++)
            for (uint64_t count = 1; first + count <= elements; count++)
                check_cut(&views[v], first, count);
}

Test(view, sorted_views_say_where_elements_go)
{
    const struct pd_view view = {.ndim = 3, .offset = 5, .count = {3, 2, 4}, .stride = {4, 100, 1}};
    struct pd_view sorted, inner;
    pd_view_sort(&view, &sorted, &inner);
    cr_assert(sorted.stride[0] == 100 && sorted.stride[1] == 4 && sorted.stride[2] == 1);
    uint64_t last = 0;
    for (uint64_t i = 0; i < 24; i++) {
        cr_assert(i == 0 || place(&sorted, i) > last);
        last = place(&sorted, i);
        cr_assert_eq(place(&view, place(&inner, i)), last);
    }
}

Test(view, columns_are_cut_where_they_are_one_dimension)
{
    const struct pd_view view = {.ndim = 2, .offset = 5, .count = {3, 8}, .stride = {1, 3}};
    const struct pd_view odd = {.ndim = 3, .count = {3, 2, 4}, .stride = {8, 1, 2}};
    struct pd_view part;
    cr_assert(pd_view_columns(&view, 8, 2, 6, &part));
    cr_assert(part.offset == 11 && part.count[1] == 4 && part.count[0] == 3);
    cr_assert(pd_view_columns(&odd, 8, 0, 8, &part));
    cr_assert_not(pd_view_columns(&odd, 8, 0, 4, &part));
}

/* Every element of the tensor lies where both views say it does, in the order in which `to` lies. */
static void check_pair(const struct pd_view *to, const struct pd_view *from)
{
    struct pd_view a, b;
    cr_assert(pd_view_pair(to, from, &a, &b));
    const uint64_t elements = pd_view_elements(to);
    uint64_t *origin = calloc(4096, sizeof *origin), last = 0;
    for (uint64_t i = 0; i < elements; i++)
        origin[place(to, i)] = place(from, i) + 1;
    cr_assert_eq(pd_view_elements(&a), elements);
    for (uint64_t i = 0; i < elements; i++) {
        cr_assert(i == 0 || place(&a, i) > last);
        last = place(&a, i);
        cr_assert_eq(origin[last], place(&b, i) + 1, "element %d", (int)i);
    }
    free(origin);
}

Test(view, two_arrangements_of_a_tensor_are_one_walk)
{
    /* 8 heads of 4 rows and 3 columns: as they are; turned; RoPE's other order of rows; by key-value head beside k and v; the
     * layer of a stack. */
    const struct pd_view views[] = {
        {.ndim = 2, .count = {32, 3}, .stride = {3, 1}},
        {.ndim = 2, .offset = 32, .count = {32, 3}, .stride = {1, 96}},
        {.ndim = 4, .count = {8, 2, 2, 3}, .stride = {12, 3, 6, 1}},
        {.ndim = 3, .count = {2, 16, 3}, .stride = {72, 3, 1}},
        {.ndim = 5, .offset = 500, .count = {2, 4, 2, 2, 3}, .stride = {72, 12, 3, 6, 1}},
        {.ndim = 3, .offset = 960, .count = {1, 32, 3}, .stride = {96, 3, 1}},
    };
    const size_t count = sizeof views / sizeof *views;
    for (size_t i = 0; i < count * count; i++)
        check_pair(&views[i / count], &views[i % count]);
}

Test(view, arrangements_that_share_no_dimensions_are_not_paired)
{
    const struct pd_view six = {.ndim = 2, .count = {4, 6}, .stride = {6, 1}},
                         four = {.ndim = 2, .count = {6, 4}, .stride = {4, 1}};
    const struct pd_view fewer = {.ndim = 1, .count = {12}, .stride = {1}};
    struct pd_view a, b;
    cr_assert_not(pd_view_pair(&six, &four, &a, &b));
    cr_assert_not(pd_view_pair(&six, &fewer, &a, &b));
}

Test(view, what_no_memory_could_hold_is_not_inside)
{
    const struct pd_view views[] = {
        {.ndim = PD_VIEW_DIMS_MAX + 1},
        {.ndim = 1, .count = {3}, .stride = {UINT64_MAX / 2 + 1}},
        {.ndim = 1, .offset = 2, .count = {2}, .stride = {UINT64_MAX}},
        {.ndim = 2, .count = {UINT64_C(1) << 40, UINT64_C(1) << 40}, .stride = {0, 0}},
    };
    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        cr_assert_not(pd_view_is_inside(&views[i], UINT64_MAX), "%zu", i);
}

Test(view, dimensions_are_cut_where_there_are_such_parts)
{
    const struct pd_view whole = {.ndim = 2, .offset = 5, .count = {6, 4}, .stride = {4, 1}};
    struct pd_view view = whole, columns;
    cr_assert_not(pd_view_cut_dimension(&view, 2, 0, 2));
    cr_assert_not(pd_view_cut_dimension(&view, 0, 0, 4));
    cr_assert_eq(memcmp(&view, &whole, sizeof view), 0);
    cr_assert(pd_view_cut_dimension(&view, 0, 2, 3));
    cr_assert(view.offset == 21 && view.count[0] == 2 && view.count[1] == 4);
    cr_assert_not(pd_view_columns(&whole, 3, 0, 2, &columns));
    cr_assert_not(pd_view_columns(&(struct pd_view){.ndim = 0}, 3, 0, 2, &columns));
}

/* Where one side says that there is nothing, or has more steps than are kept. */
Test(view, arrangements_of_nothing_and_of_too_many_steps_are_not_paired)
{
    const struct pd_view nothing = {.ndim = 1, .count = {0}, .stride = {1}}, one = {.ndim = 1, .count = {2}, .stride = {1}};
    const struct pd_view left = {.ndim = 6, .count = {2, 4, 4, 4, 4, 4}, .stride = {1024, 256, 64, 16, 4, 1}},
                         right = {.ndim = 6, .count = {4, 4, 4, 4, 4, 2}, .stride = {512, 128, 32, 8, 2, 1}};
    struct pd_view a, b;
    cr_assert_not(pd_view_pair(&nothing, &one, &a, &b));
    cr_assert_not(pd_view_pair(&left, &right, &a, &b));
    cr_assert(pd_view_is_sorted(&(struct pd_view){.ndim = 3, .count = {2, 1, 3}, .stride = {3, 99, 1}}));
}
