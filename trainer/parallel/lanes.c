#include "trainer/parallel/lanes.h"

static uint32_t begin_of(const struct pd_lanes *l, uint64_t lane)
{
    return (uint32_t)(lane * l->micro_batches / l->count);
}

static bool is_begin(const struct pd_lanes *l, uint64_t micro_batch)
{
    return begin_of(l, (micro_batch * l->count + l->micro_batches - 1) / l->micro_batches) == micro_batch;
}

uint32_t pd_lanes_first(const struct pd_lanes *l, uint32_t rank)
{
    return begin_of(l, (uint64_t)rank * l->count / l->ranks);
}

uint32_t pd_lanes_choose(const struct pd_lanes *l, uint32_t rank, uint64_t number)
{
    const uint64_t first = (uint64_t)rank * l->count / l->ranks, end = (rank + UINT64_C(1)) * l->count / l->ranks;
    return begin_of(l, first + number % (end - first));
}

uint32_t pd_lanes_slots(const struct pd_lanes *l)
{
    uint32_t most = 0;
    for (uint32_t r = 0; r < l->ranks; r++) {
        const uint32_t slots = pd_lanes_first(l, r + 1) - pd_lanes_first(l, r);
        most = slots > most ? slots : most;
    }
    return most;
}

bool pd_lanes_is_padding(const struct pd_lanes *l, uint32_t rank, uint32_t slot)
{
    return (uint64_t)pd_lanes_first(l, rank) + slot >= pd_lanes_first(l, rank + 1);
}

bool pd_lanes_begins(const struct pd_lanes *l, uint32_t rank, uint32_t slot)
{
    return is_begin(l, (uint64_t)pd_lanes_first(l, rank) + slot);
}

bool pd_lanes_ends(const struct pd_lanes *l, uint32_t rank, uint32_t slot)
{
    return is_begin(l, (uint64_t)pd_lanes_first(l, rank) + slot + 1);
}

bool pd_lanes_any_ends(const struct pd_lanes *l, uint32_t slot)
{
    for (uint32_t r = 0; r < l->ranks; r++)
        if (!pd_lanes_is_padding(l, r, slot) && pd_lanes_ends(l, r, slot)) return true;
    return false;
}

uint32_t pd_lanes_longest(const struct pd_lanes *l)
{
    return (l->micro_batches + l->count - 1) / l->count;
}
