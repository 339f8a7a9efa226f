/* The state of a rank whose device is a GPU, as the host has it: pinned arrays in the order of the device's. Saves read
 * them, loads and initial values fill them.
 *
 *   begin_out -> wait_out: the arrays are what the device held at begin_out, until the next begin_out
 *
 * The copy out goes on beside what comes after begin_out, and the next update waits for it on the device, not on the host.
 *   threads  the engine's caller; wait_out: any one at a time */
#ifndef PD_TRAINER_ENGINE_STATE_MIRROR_H
#define PD_TRAINER_ENGINE_STATE_MIRROR_H

#include "ckpt/base/arena.h"
#include "ckpt/base/owner.h"
#include "ckpt/tensor/tensor.h"
#include "trainer/engine/rank_device.h"

struct pd_state_mirror {
    struct pd_rank_device *device; /* NULL: no mirror */
    float *device_state[PD_KIND_COUNT], *state[PD_KIND_COUNT];
    uint64_t bytes; /* of each kind */
    /* Of `state`: the copy on PD_STREAM_SAVES has it from begin_out until wait_out, which comes once. After that the saver
     * reads it until it lets go of the save, before the next begin_out. */
    struct pd_owner owner;
    struct pd_event *computed, *copied;
    bool is_copied; /* copied has been recorded */
};

/* Takes its arrays (PD_MEMORY_OPTIMIZER, the host's); on a dry arena that is all it does. */
PD_MUST_USE pd_status pd_state_mirror_init(struct pd_state_mirror *mirror, struct pd_rank_device *device,
                                           float *const device_state[PD_KIND_COUNT], uint64_t bytes, struct pd_arena *arena,
                                           struct pd_error *err);
void pd_state_mirror_deinit(struct pd_state_mirror *mirror);

PD_MUST_USE pd_status pd_state_mirror_in(struct pd_state_mirror *mirror, struct pd_error *err);
PD_MUST_USE pd_status pd_state_mirror_begin_out(struct pd_state_mirror *mirror, struct pd_error *err);
PD_MUST_USE pd_status pd_state_mirror_wait_out(struct pd_state_mirror *mirror, struct pd_error *err);
PD_MUST_USE pd_status pd_state_mirror_before_update(struct pd_state_mirror *mirror, struct pd_error *err);

#endif
