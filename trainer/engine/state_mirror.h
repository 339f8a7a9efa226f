/* A host copy of the boxes that a rank owns, whose state is in GPU memory: one pinned array per kind. Saves read it; loads
 * and initial values fill it. Boxes that the GPU holds as a replica have no mirror.
 *
 *   begin_out -> wait_out: the arrays hold the device's state at begin_out, until the next begin_out
 *
 * The copy runs beside the work after begin_out. The next update waits for it on the device, not on the host.
 *   threads  the engine's caller; wait_out: any, one at a time */
#pragma once

#include "ckpt/base/arena.h"
#include "ckpt/base/owner.h"
#include "trainer/engine/rank_device.h"
#include "trainer/parallel/zero.h"

struct pd_state_mirror {
    struct pd_rank_device *device; /* NULL: no mirror */
    const struct pd_zero_held *held;
    void *state[PD_KIND_COUNT];
    uint64_t *offsets; /* (box_count) elements in each array before an owned box */
    bool is_whole;     /* this rank owns all it holds: the arrays equal the device's, in one piece */
    /* Owner of `state`: the copy on PD_STREAM_SAVES from begin_out until wait_out, which comes once. Then the saver reads it
     * until it releases the save, before the next begin_out. */
    struct pd_owner owner;
    struct pd_event *computed, *copied;
    bool is_copied; /* copied has been recorded */
};

/* Allocates its arrays (PD_MEMORY_OPTIMIZER, host); on a dry arena nothing else. Borrows `held`. */
PD_MUST_USE pd_status pd_state_mirror_init(struct pd_state_mirror *mirror, struct pd_rank_device *device,
                                           const struct pd_zero_held *held, struct pd_arena *arena, struct pd_error *err);
void pd_state_mirror_deinit(struct pd_state_mirror *mirror);

/* box: one that this rank owns. */
void *pd_state_mirror_box(const struct pd_state_mirror *mirror, enum pd_kind kind, const struct pd_zero_box *box);
PD_MUST_USE pd_status pd_state_mirror_in(struct pd_state_mirror *mirror, struct pd_error *err);
PD_MUST_USE pd_status pd_state_mirror_begin_out(struct pd_state_mirror *mirror, struct pd_error *err);
PD_MUST_USE pd_status pd_state_mirror_wait_out(struct pd_state_mirror *mirror, struct pd_error *err);
PD_MUST_USE pd_status pd_state_mirror_before_update(struct pd_state_mirror *mirror, struct pd_error *err);
