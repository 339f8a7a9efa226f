#include "tools/library/experts.h"

#include <inttypes.h>
#include <stdlib.h>

static void count_tensor(const struct pd_catalog *catalog, const char *name, bool *seen, struct pd_expert_side *side)
{
    const int64_t at = pd_catalog_find(catalog, name, PD_PARAM);
    if (at < 0 || seen[at]) return;
    seen[at] = true;
    side->tensors++;
    side->bytes += pd_foreign_bytes(&catalog->tensors[at]);
    side->elements += pd_foreign_elements(&catalog->tensors[at]);
}

pd_status pd_expert_count_catalog(const struct pd_model *model, const struct pd_links *links,
                                  const struct pd_catalog *catalog, struct pd_expert_side *ret_side, struct pd_error *err)
{
    const struct pd_tensor *tensors = model->tensors.tensors;
    bool *seen = calloc((size_t)catalog->tensor_count + 1, sizeof *seen);
    struct pd_expert_side side = {0};
    if (!seen) PD_FAIL(err, PD_NO_MEMORY, "no memory to count %u tensors", catalog->tensor_count);
    for (uint32_t i = 0; links && i < links->count; i++)
        if (links->items[i].kind == PD_PARAM && tensors[links->items[i].tensor].expert)
            count_tensor(catalog, links->items[i].name, seen, &side);
    for (uint32_t t = 0; !links && t < model->tensors.count; t++)
        if (tensors[t].expert) count_tensor(catalog, tensors[t].name, seen, &side);
    free(seen);
    *ret_side = side;
    return PD_OK;
}

pd_status pd_expert_count_compare(const struct pd_expert_count *count, const char *source, struct pd_error *err)
{
    const struct pd_expert_side *in = &count->in, *out = &count->out;
    if (in->elements == out->elements) return PD_OK;
    PD_FAIL(err, PD_CORRUPT,
            "%s: experts have %" PRIu64 " elements in %" PRIu64 " tensors, and %" PRIu64 " elements in %" PRIu64
            " tensors were written; do not use them, and report this, which is a defect of perdure",
            source, in->elements, in->tensors, out->elements, out->tensors);
}
