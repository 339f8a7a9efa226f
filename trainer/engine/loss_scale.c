#include "trainer/engine/loss_scale.h"

pd_status pd_loss_scale_advance(struct pd_run_state *state, bool skipped, uint32_t interval, struct pd_error *err)
{
    if (skipped && state->loss_scale <= PD_LOSS_SCALE_MIN)
        PD_FAIL(err, PD_DIVERGED,
                "gradients overflow fp16 even at the smallest loss scale of 2^-24: lower optimizer.lr, or train with "
                "numerics.precision=bf16");
    if (skipped) {
        state->skipped_steps++;
        state->loss_scale_good_steps = 0;
        state->loss_scale /= 2;
    } else if (++state->loss_scale_good_steps >= interval) {
        state->loss_scale_good_steps = 0;
        if (state->loss_scale < PD_LOSS_SCALE_MAX) state->loss_scale *= 2;
    }
    return PD_OK;
}
