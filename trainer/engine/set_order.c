#include "trainer/engine/set_order.h"

#include <stdlib.h>

/* Sets of one action, embedding first and head last in forward, the other way in backward. `add` counts where sets is NULL. */
struct list {
    uint32_t *sets;
    uint32_t count;
};

static void add(struct list *l, uint32_t set)
{
    if (l->sets) l->sets[l->count] = set;
    l->count++;
}

/* Backward of the embedding reads no parameters. */
static void add_backward(struct list *l, const struct pd_stage *c, uint32_t head)
{
    if (c->has_head) add(l, head);
    for (uint32_t i = c->block_count; i-- > 0;)
        add(l, 1 + c->first_block + i);
}

static void add_action(struct list *l, const struct pd_action *a, const struct pd_stage *c, uint32_t head, bool learns)
{
    if (a->unit == PD_ALL_UNITS) {
        if (a->is_backward)
            add_backward(l, c, head);
        else {
            if (c->has_embedding) add(l, 0);
            for (uint32_t i = 0; i < c->block_count; i++)
                add(l, 1 + c->first_block + i);
            if (c->has_head && !learns) add(l, head);
        }
    } else if (!a->is_backward || a->unit > 0) {
        add(l, a->unit);
    }
}

static void add_all(struct list *l, const struct pd_schedule *schedule, const struct pd_stage *chunks, uint32_t head,
                    bool learns)
{
    for (uint32_t i = 0; i < schedule->count; i++)
        add_action(l, &schedule->actions[i], &chunks[schedule->actions[i].chunk], head, learns);
}

pd_status pd_set_order_new(const struct pd_schedule *schedule, const struct pd_stage *chunks, uint32_t head, bool learns,
                           struct pd_set_order *ret_order, struct pd_error *err)
{
    struct list list = {0};
    add_all(&list, schedule, chunks, head, learns);
    list.sets = malloc((list.count + 1ull) * sizeof *list.sets);
    if (!list.sets) PD_FAIL(err, PD_NO_MEMORY, "no memory for the order of %u sets of parameters", list.count);
    list.count = 0;
    add_all(&list, schedule, chunks, head, learns);
    *ret_order = (struct pd_set_order){list.sets, list.count};
    return PD_OK;
}

void pd_set_order_deinit(struct pd_set_order *order)
{
    free(order->sets);
    *order = (struct pd_set_order){0};
}
