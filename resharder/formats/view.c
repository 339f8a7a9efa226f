#include "resharder/formats/view.h"

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
    if (links->count == links->capacity) {
        const uint32_t capacity = links->capacity ? 2 * links->capacity : 64;
        struct pd_link *items = realloc(links->items, capacity * sizeof *items);
        if (!items) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u links of tensors", capacity);
        links->items = items;
        links->capacity = capacity;
    }
    char *name = strdup(link->name);
    if (!name) PD_FAIL(err, PD_NO_MEMORY, "no memory for the name %s", link->name);
    links->items[links->count] = *link;
    links->items[links->count++].name = name;
    return PD_OK;
}

struct pd_view pd_view_dense(const struct pd_tensor *tensor)
{
    struct pd_view view = {.ndim = tensor->ndim};
    uint64_t stride = 1;
    for (uint32_t d = tensor->ndim; d-- > 0; stride *= tensor->shape[d]) {
        view.count[d] = tensor->shape[d];
        view.stride[d] = stride;
    }
    return view;
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
        goes_on = goes_on && view->stride[d] == dense; /* and all further in are dense too */
        if (goes_on) run += (view->count[d] - 1 - index) * dense;
        dense *= view->count[d];
    }
    if (*count > run) *count = run;
    return at;
}
