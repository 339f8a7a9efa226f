#include "resharder/catalog/view.h"
#include "ckpt/base/grow.h"

#include "ckpt/base/checked.h"
#include <stdlib.h>
#include <string.h>

void pd_links_deinit(struct pd_links *links)
{
    if (!links) return;
    for (uint32_t i = 0; i < links->count; i++)
        free(links->items[i].name);
    free(links->items);
    *links = (struct pd_links){0};
}

pd_status pd_links_add(struct pd_links *links, const struct pd_link *link, struct pd_error *err)
{
    if (!pd_grow(&links->items, links->count, sizeof *links->items))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %u links of tensors", links->count + 1);
    char *name = strdup(link->name);
    if (!name) PD_FAIL(err, PD_NO_MEMORY, "no memory for the name %s", link->name);
    links->items[links->count] = *link;
    links->items[links->count++].name = name;
    return PD_OK;
}

pd_status pd_links_add_own(struct pd_links *links, const struct pd_tensor_table *tensors, uint32_t t, enum pd_kind kind,
                           struct pd_error *err)
{
    const struct pd_tensor *tensor = &tensors->tensors[t];
    const struct pd_link link = {
        .tensor = t, .kind = kind, .name = (char *)(uintptr_t)tensor->name, .view = pd_view_dense(tensor)};
    return pd_links_add(links, &link, err);
}

struct pd_view pd_view_of_shape(const uint64_t *shape, uint32_t ndim)
{
    struct pd_view view = {.ndim = ndim};
    uint64_t stride = 1;
    PD_CHECK(ndim <= PD_VIEW_DIMS_MAX);
    for (uint32_t d = ndim; d-- > 0; stride *= shape[d]) {
        view.count[d] = shape[d];
        view.stride[d] = stride;
    }
    return view;
}

struct pd_view pd_view_dense(const struct pd_tensor *tensor)
{
    return pd_view_of_shape(tensor->shape, tensor->ndim);
}

uint64_t pd_view_elements(const struct pd_view *view)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < view->ndim; d++)
        elements *= view->count[d];
    return elements;
}

bool pd_view_is_inside(const struct pd_view *view, uint64_t elements)
{
    uint64_t last = view->offset, product = 1;
    if (view->ndim > PD_VIEW_DIMS_MAX) return false;
    for (uint32_t d = 0; d < view->ndim; d++) {
        uint64_t step;
        if (!pd_checked_mul_u64(product, view->count[d], &product)) return false;
        if (!view->count[d]) continue;
        if (!pd_checked_mul_u64(view->count[d] - 1, view->stride[d], &step) || !pd_checked_add_u64(last, step, &last))
            return false;
    }
    return product == 0 || last < elements;
}

uint64_t pd_view_run(const struct pd_view *view, uint64_t first, uint64_t *count)
{
    uint64_t at = view->offset, rest = first, run = 1, dense = 1;
    bool goes_on = true;
    for (uint32_t d = view->ndim; d-- > 0;) {
        const uint64_t index = rest % view->count[d];
        rest /= view->count[d];
        at += index * view->stride[d];
        if (view->count[d] == 1) continue;
        goes_on = goes_on && view->stride[d] == dense; /* and all inner dimensions are dense too */
        if (goes_on) run += (view->count[d] - 1 - index) * dense;
        dense *= view->count[d];
    }
    if (*count > run) *count = run;
    return at;
}

/* Elements below `d` form a box; what is cut off before and after it is handled one dimension further in. */
uint32_t pd_view_cut(const struct pd_view *view, uint64_t first, uint64_t count, struct pd_view ret_parts[PD_VIEW_PARTS_MAX])
{
    uint32_t parts = 0;
    while (count) {
        uint64_t inner = 1; /* elements in one step of dimension d */
        uint32_t d = view->ndim;
        while (d > 0 && first % (inner * view->count[d - 1]) == 0 && count >= inner * view->count[d - 1])
            inner *= view->count[--d];
        struct pd_view *part = &ret_parts[parts++];
        *part = *view;
        uint64_t rest = first / inner, taken = inner;
        for (uint32_t o = d; o-- > 0; rest /= view->count[o]) {
            const uint64_t index = rest % view->count[o];
            part->offset += index * view->stride[o];
            part->count[o] = 1;
            if (o + 1 != d) continue;
            part->count[o] = count / inner < view->count[o] - index ? count / inner : view->count[o] - index;
            taken = inner * part->count[o];
        }
        first += taken;
        count -= taken;
    }
    return parts;
}

bool pd_view_cut_dimension(struct pd_view *view, uint32_t d, uint64_t part, uint64_t parts)
{
    if (d >= view->ndim || view->count[d] % parts) return false;
    view->count[d] /= parts;
    view->offset += part * view->count[d] * view->stride[d];
    return true;
}

bool pd_view_columns(const struct pd_view *view, uint64_t columns, uint64_t begin, uint64_t end, struct pd_view *ret_view)
{
    *ret_view = *view;
    if (begin == 0 && end == columns) return true;
    if (!view->ndim || view->count[view->ndim - 1] != columns) return false;
    ret_view->offset += begin * view->stride[view->ndim - 1];
    ret_view->count[view->ndim - 1] = end - begin;
    return true;
}

/* Sorts `sorted` by descending stride, and permutes the dimensions of `with` alike. */
static void sort_with(struct pd_view *sorted, struct pd_view *with)
{
    for (uint32_t i = 1; i < sorted->ndim; i++) /* insertion sort: few dimensions, and stable for equal strides */
        for (uint32_t d = i; d > 0 && sorted->stride[d - 1] < sorted->stride[d]; d--) {
            uint64_t *const pairs[] = {sorted->count, sorted->stride, with->count, with->stride};
            for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++) {
                const uint64_t swapped = pairs[p][d];
                pairs[p][d] = pairs[p][d - 1];
                pairs[p][d - 1] = swapped;
            }
        }
}

void pd_view_sort(const struct pd_view *view, struct pd_view *ret_sorted, struct pd_view *ret_inner)
{
    struct pd_view sorted = *view, inner = pd_view_of_shape(view->count, view->ndim);
    sort_with(&sorted, &inner);
    *ret_sorted = sorted;
    *ret_inner = inner;
}

/* Elements of dimension *d - 1 left after `taken`; moves on if none is left. */
static uint64_t left_of(const struct pd_view *view, uint32_t *d, uint64_t *taken)
{
    while (*d && *taken == view->count[*d - 1]) {
        *taken = 1;
        --*d;
    }
    return *d ? view->count[*d - 1] / *taken : 1;
}

/* From the innermost dimension outwards, in steps that both sides share. */
bool pd_view_pair(const struct pd_view *to, const struct pd_view *from, struct pd_view *ret_to, struct pd_view *ret_from)
{
    uint64_t counts[PD_VIEW_DIMS_MAX], strides[2][PD_VIEW_DIMS_MAX], taken[2] = {1, 1};
    uint32_t at[2] = {to->ndim, from->ndim}, n = 0;
    for (;;) {
        const uint64_t a = left_of(to, &at[0], &taken[0]), b = left_of(from, &at[1], &taken[1]), count = a < b ? a : b;
        if (!at[0] && !at[1]) break;
        if (!at[0] || !at[1] || n == PD_VIEW_DIMS_MAX || !count || a % count || b % count) return false;
        counts[n] = count;
        strides[0][n] = to->stride[at[0] - 1] * taken[0];
        strides[1][n++] = from->stride[at[1] - 1] * taken[1];
        taken[0] *= count;
        taken[1] *= count;
    }
    *ret_to = (struct pd_view){.ndim = n, .offset = to->offset};
    *ret_from = (struct pd_view){.ndim = n, .offset = from->offset};
    for (uint32_t d = 0; d < n; d++) {
        ret_to->count[d] = ret_from->count[d] = counts[n - 1 - d];
        ret_to->stride[d] = strides[0][n - 1 - d];
        ret_from->stride[d] = strides[1][n - 1 - d];
    }
    sort_with(ret_to, ret_from);
    return true;
}

bool pd_view_is_sorted(const struct pd_view *view)
{
    uint64_t last = UINT64_MAX;
    for (uint32_t d = 0; d < view->ndim; d++) {
        if (view->count[d] == 1) continue;
        if (view->stride[d] > last) return false;
        last = view->stride[d];
    }
    return true;
}
