/* Optimizer state in compute memory. On a GPU the host uses a mirror of it. */
#include "offload/adamw.h"
#include "trainer/engine/state_internal.h"

#include <stdlib.h>

static pd_status state_device_take(struct pd_state *s, struct pd_arena *arena, struct pd_error *err)
{
    if (!s->engine->options.is_gpu) return PD_OK;
    s->mirror = calloc(1, sizeof *s->mirror);
    if (!s->mirror) PD_FAIL(err, PD_NO_MEMORY, "no memory for the mirror of optimizer state");
    return pd_state_mirror_init(s->mirror, s->engine->options.device, pd_zero_held(s->engine->zero), arena, err);
}

pd_status pd_state_update_on_device(struct pd_state *s, const struct pd_update_step *step,
                                    const struct pd_update_range *range, struct pd_error *err)
{
    const struct pd_adam_step factors = pd_adamw_factors(step);
    return pd_adam(s->engine->math, &factors, range, err);
}

pd_status pd_state_update_boxes(struct pd_state *s, const struct pd_update_step *step,
                                pd_status (*state_device_update)(struct pd_state *s, const struct pd_update_step *step,
                                                                 const struct pd_update_range *range, struct pd_error *err),
                                struct pd_error *err)
{
    struct pd_zero *zero = s->engine->zero;
    const bool asks = pd_updates_by_bucket(&s->engine->options), has_copy = pd_zero_held(zero)->copy != NULL;
    if (asks) PD_TRY(pd_zero_update_begin(zero, err));
    for (uint32_t i = 0; i < pd_zero_held(zero)->box_count; i++) {
        struct pd_update_range range = pd_state_range(s, &pd_zero_held(zero)->boxes[i]);
        if (asks) PD_TRY(pd_zero_update_box(zero, i, &range.grad, &range.copy, err));
        if (!has_copy) range.copy = NULL; /* the master serves */
        PD_TRY(state_device_update(s, step, &range, err));
    }
    if (asks) PD_TRY(pd_zero_update_end(zero, err));
    return pd_zero_updated(zero, err);
}

static pd_status state_device_update(struct pd_state *s, const struct pd_update_step *step,
                                     const struct pd_before_update *before, struct pd_error *err)
{
    if (s->mirror)
        PD_TRY(pd_state_mirror_before_update(s->mirror, err));
    else
        pd_state_wait_for_readers(before);
    return pd_state_update_boxes(s, step, pd_state_update_on_device, err);
}

static void free_mirror(struct pd_state *s)
{
    if (s->mirror) pd_state_mirror_deinit(s->mirror);
    free(s->mirror);
}

const struct pd_state_ops pd_state_on_device = {PD_STATE_MEMORY_SLOTS, .take = state_device_take,
                                                .update = state_device_update, .free = free_mirror};
