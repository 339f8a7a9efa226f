#include "offload/update_rule.h"

struct pd_update_place pd_update_place_of(const struct pd_tensor *tensor, uint32_t number, const struct pd_box *box)
{
    const struct pd_box whole = pd_box_whole(tensor);
    struct pd_update_place place = {.tensor = number, .origin = pd_box_offset(&whole, box), .columns = 1, .stride = 1};
    for (uint32_t d = 1; d < PD_TENSOR_DIMS_MAX; d++) {
        place.columns *= box->count[d];
        place.stride *= whole.count[d];
    }
    return place;
}

struct pd_update_range pd_update_range_cut(const struct pd_update_range *range, uint64_t first, uint64_t n)
{
    struct pd_update_range part = *range;
    part.n = n;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        part.state[kind] = (char *)part.state[kind] + first * pd_dtype_bytes(kind == PD_PARAM ? PD_F32 : range->moments);
    part.place.first += first;
    part.grad += first;
    if (part.copy) part.copy = (char *)part.copy + first * pd_dtype_bytes(part.copy_dtype);
    return part;
}
