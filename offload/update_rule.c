#include "offload/update_rule.h"

struct pd_update_range pd_update_range_cut(const struct pd_update_range *range, uint64_t first, uint64_t n)
{
    struct pd_update_range part = *range;
    part.n = n;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        part.state[kind] += first;
    part.grad += first;
    if (part.copy) part.copy = (char *)part.copy + first * pd_dtype_bytes(part.copy_dtype);
    return part;
}
