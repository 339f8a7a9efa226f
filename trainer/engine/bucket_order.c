#include "trainer/engine/bucket_order.h"

#include <stdlib.h>

struct pd_range pd_action_units(const struct pd_action *a, const struct pd_stage *c, bool learns)
{
    if (a->unit != PD_ALL_UNITS) return (struct pd_range){a->unit, a->unit + 1ull};
    return (struct pd_range){c->has_embedding ? 0 : 1 + c->first_block,
                             1 + c->first_block + c->block_count + (c->has_head && (a->is_backward || !learns))};
}

/* Forward ascends, backward descends and reads no parameters of the embedding. buckets NULL: only counts. */
static uint32_t list_buckets(const struct pd_schedule *schedule, const struct pd_stage *chunks, bool learns,
                             uint32_t *buckets)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < schedule->count; i++) {
        const struct pd_action *a = &schedule->actions[i];
        const struct pd_range units = pd_action_units(a, &chunks[a->chunk], learns);
        for (uint64_t k = units.begin; k < units.end; k++) {
            const uint64_t unit = a->is_backward ? units.end - 1 - (k - units.begin) : k;
            if (a->is_backward && unit == 0) continue;
            if (buckets) buckets[count] = (uint32_t)unit;
            count++;
        }
    }
    return count;
}

pd_status pd_bucket_order_new(const struct pd_schedule *schedule, const struct pd_stage *chunks, bool learns,
                              struct pd_bucket_order *ret_order, struct pd_error *err)
{
    const uint32_t count = list_buckets(schedule, chunks, learns, NULL);
    uint32_t *buckets = malloc((count + 1ull) * sizeof *buckets);
    if (!buckets) PD_FAIL(err, PD_NO_MEMORY, "no memory for the order of %u buckets of parameters", count);
    list_buckets(schedule, chunks, learns, buckets);
    *ret_order = (struct pd_bucket_order){buckets, count};
    return PD_OK;
}

void pd_bucket_order_deinit(struct pd_bucket_order *order)
{
    free(order->buckets);
    *order = (struct pd_bucket_order){0};
}
