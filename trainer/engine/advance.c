#include "trainer/engine/advance.h"

#include "ckpt/base/log.h"
#include "ckpt/base/words.h"

#define MODULE "worker"

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

/* Where fp16 does not lower its scale for it. */
static pd_status guard(const struct pd_config *c, const struct pd_step_result *result, bool says, struct pd_run_state *state,
                       uint32_t *skips, struct pd_error *err)
{
    const uint64_t step = state->identity.step + 1, first = state->samples, last = first + c->batch.sequences - 1;
    if (!result->skipped) {
        *skips = 0;
        return PD_OK;
    }
    state->skipped_steps++;
    if (++*skips > c->guard.skips)
        PD_FAIL(err, PD_DIVERGED,
                "loss %g, gradient norm %g at step %llu: %s in a row were not finite (guard.skips); lower optimizer.lr",
                result->loss, result->gradient_norm, (unsigned long long)step, pd_counted(*skips, "step").text);
    if (says)
        pd_log_warn(MODULE, "step %llu is skipped (guard.non_finite): loss %g, gradient norm %g on samples %llu to %llu",
                    (unsigned long long)step, result->loss, result->gradient_norm, (unsigned long long)first,
                    (unsigned long long)last);
    return PD_OK;
}

/* A skipped step consumes its samples and updates nothing. */
pd_status pd_advance(const struct pd_config *c, const struct pd_step_result *result, bool says, struct pd_run_state *state,
                     uint32_t *skips, struct pd_error *err)
{
    const bool is_scaled = c->numerics.precision == PD_F16;
    if (is_scaled)
        PD_TRY(pd_loss_scale_advance(state, result->skipped, c->numerics.loss_scale_interval, err));
    else
        PD_TRY(guard(c, result, says, state, skips, err));
    state->identity.step++;
    state->updates += !result->skipped;
    state->samples += c->batch.sequences;
    state->tokens += result->tokens;
    state->last_loss = result->loss;
    if (result->skipped && says && is_scaled)
        pd_log(PD_LOG_WARN, MODULE, "step %llu is skipped: a gradient overflowed fp16 (%s so far); loss scale %g",
               (unsigned long long)state->identity.step, pd_counted(state->skipped_steps, "skip").text, state->loss_scale);
    return PD_OK;
}
