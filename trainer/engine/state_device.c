/* Optimizer state in the memory that computes. On a GPU the host reads and writes a mirror of it. */
#include "trainer/engine/state_internal.h"

#include "trainer/engine/state_mirror.h"
#include "trainer/engine/update_device.h"

#include <stdlib.h>

static struct pd_state_mirror *mirror_of(const struct pd_state *s)
{
    return s->own;
}

static pd_status take_mirror(struct pd_state *s, struct pd_arena *arena, struct pd_error *err)
{
    float *device_state[PD_KIND_COUNT];
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        device_state[kind] = pd_zero_state(s->with.zero, (enum pd_kind)kind);
    s->own = calloc(1, sizeof(struct pd_state_mirror));
    if (!s->own) PD_FAIL(err, PD_NO_MEMORY, "no memory for the mirror of optimizer state");
    return pd_state_mirror_init(mirror_of(s), s->with.device, device_state,
                                pd_zero_held_elements(s->with.zero) * sizeof(float), arena, err);
}

static pd_status take(struct pd_state *s, struct pd_arena *arena, struct pd_error *err)
{
    return s->with.is_gpu ? take_mirror(s, arena, err) : PD_OK;
}

static float *box(struct pd_state *s, enum pd_kind kind, const struct pd_zero_box *b)
{
    return (s->own ? mirror_of(s)->state[kind] : pd_zero_state(s->with.zero, kind)) + b->offset;
}

static pd_status init(struct pd_state *s, const struct pd_identity *identity, struct pd_error *err)
{
    (void)identity;
    pd_state_init_memory(s);
    if (s->own) PD_TRY(pd_state_mirror_in(mirror_of(s), err));
    return pd_zero_refresh_compute(s->with.zero, err);
}

static pd_status load(struct pd_state *s, struct pd_vfs *vfs, struct pd_group *group, struct pd_load_request *request,
                      const struct pd_identity *identity, struct pd_load_report *ret_report, struct pd_error *err)
{
    (void)identity;
    PD_TRY(pd_state_load_memory(s, vfs, group, request, ret_report, err));
    if (s->own) PD_TRY(pd_state_mirror_in(mirror_of(s), err));
    PD_TRY(pd_zero_share_state(s->with.zero, err));
    return pd_zero_refresh_compute(s->with.zero, err);
}

static pd_status update_boxes(struct pd_state *s, const struct pd_update_step *step, struct pd_error *err)
{
    struct pd_zero *zero = s->with.zero;
    const bool asks = s->with.blocks_leave_device, has_copy = pd_zero_working_copy(zero) != NULL;
    if (asks) PD_TRY(pd_zero_update_begin(zero, err));
    for (uint32_t i = 0; i < pd_zero_box_count(zero); i++) {
        struct pd_update_range range = pd_state_range(s, &pd_zero_boxes(zero)[i]);
        if (asks) PD_TRY(pd_zero_update_box(zero, i, &range.grad, &range.copy, err));
        if (!has_copy) range.copy = NULL; /* the master serves */
        PD_TRY(pd_update_on_device(s->with.math, step, &range, err));
    }
    return asks ? pd_zero_update_end(zero, err) : PD_OK;
}

static pd_status update(struct pd_state *s, const struct pd_update_step *step, const struct pd_before_update *before,
                        struct pd_error *err)
{
    if (s->own)
        PD_TRY(pd_state_mirror_before_update(mirror_of(s), err));
    else
        pd_state_wait_for_readers(before);
    PD_TRY(update_boxes(s, step, err));
    return pd_zero_updated(s->with.zero, err);
}

static pd_status save_begin(struct pd_state *s, const struct pd_identity *identity, struct pd_error *err)
{
    (void)identity;
    return s->own ? pd_state_mirror_begin_out(mirror_of(s), err) : PD_OK;
}

static pd_status save_wait(struct pd_state *s, struct pd_shard_summary *ret_summaries, uint32_t *ret_slots,
                           struct pd_error *err)
{
    (void)ret_summaries, (void)ret_slots;
    return s->own ? pd_state_mirror_wait_out(mirror_of(s), err) : PD_OK;
}

static void free_own(struct pd_state *s)
{
    if (s->own) pd_state_mirror_deinit(mirror_of(s));
    free(s->own);
}

const struct pd_state_ops pd_state_on_device = {.take = take,
                                                .open = pd_state_open_nothing,
                                                .close = pd_state_close_nothing,
                                                .init = init,
                                                .load = load,
                                                .begin = pd_state_begin_nothing,
                                                .update = update,
                                                .end = pd_state_end_nothing,
                                                .box = box,
                                                .save_begin = save_begin,
                                                .save_wait = save_wait,
                                                .free = free_own};
