#include "trainer/engine/advance.h"

#include "ckpt/base/log.h"
#include "ckpt/base/words.h"

#include <math.h>
#include <string.h>

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

/* A step that was computed, and the state before it. */
struct judged {
    const struct pd_config *config;
    const struct pd_step_result *result;
    const struct pd_run_state *state;
    uint64_t step;
};

static double spread(const struct judged *j)
{
    return sqrt(j->state->guard.variance);
}

/* The reason to roll back, or NULL. fp16 overflows by design, so there only the loss counts. */
static const char *rollback_cause(const struct judged *j)
{
    const struct pd_guard_state *g = &j->state->guard;
    const bool is_finite = j->config->numerics.precision == PD_F16 ? isfinite(j->result->loss) : !j->result->skipped;
    if (!is_finite && j->config->guard.non_finite == PD_GUARD_ROLLBACK) return "is not finite";
    if (j->result->skipped || j->config->guard.spike_z <= 0 || g->losses < j->config->guard.spike_window) return NULL;
    return j->result->loss > g->mean + j->config->guard.spike_z * spread(j) ? "is a spike (guard.spike_z)" : NULL;
}

/* Mean and variance of the losses so far, of about the last spike_window of them. */
static void remember(const struct pd_config *c, double loss, struct pd_guard_state *g)
{
    const uint64_t window = c->guard.spike_window;
    const double share = 1 / (double)(g->losses < window ? g->losses + 1 : window), off = loss - g->mean;
    g->mean += share * off;
    g->variance = (1 - share) * (g->variance + share * off * off);
    g->losses++;
}

static pd_status skip(const struct judged *j, bool says, struct pd_run_state *state, struct pd_error *err)
{
    state->skipped_steps++;
    if (++state->guard.skips > j->config->guard.skips)
        PD_FAIL(err, PD_DIVERGED,
                "loss %g, gradient norm %g at step %llu: %s in a row were not finite (guard.skips); lower optimizer.lr",
                j->result->loss, j->result->gradient_norm, (unsigned long long)j->step,
                pd_counted(state->guard.skips, "step").text);
    if (says) {
        const uint64_t first = j->state->samples;
        pd_log_warn(MODULE, "step %llu is skipped (guard.non_finite): loss %g, gradient norm %g on samples %llu to %llu",
                    (unsigned long long)j->step, j->result->loss, j->result->gradient_norm, (unsigned long long)first,
                    (unsigned long long)first + j->config->batch.sequences - 1);
    }
    return PD_OK;
}

/* Not to before the previous rollback's end: what that undid stays undone. */
static pd_status roll_back(const struct judged *j, const char *what, bool says, struct pd_rollbacks *all,
                           struct pd_error *err)
{
    const struct pd_guard_state *g = &j->state->guard;
    const uint64_t steps = j->config->guard.rollback_steps, before = j->step > steps ? j->step - steps : 0;
    struct pd_rollback r = {.at = j->step, .to = before > g->rolled_back ? before : g->rolled_back, .in_a_row = 1};
    if (g->rolled_back && before <= g->rolled_back) r.in_a_row = g->rollbacks + 1;
    if (r.in_a_row > j->config->guard.skips)
        PD_FAIL(err, PD_DIVERGED,
                "loss %g at step %llu %s, and still after %llu rollbacks (guard.skips); lower optimizer.lr, or look at the "
                "data of samples %llu to %llu",
                j->result->loss, (unsigned long long)j->step, what, (unsigned long long)r.in_a_row - 1,
                (unsigned long long)j->state->samples,
                (unsigned long long)j->state->samples + j->config->batch.sequences - 1);
    if (says)
        pd_log_warn(MODULE,
                    "loss %g, gradient norm %g at step %llu %s (mean %.4g, deviation %.3g): back to the state of step %llu; "
                    "batches of the steps behind it are left out",
                    j->result->loss, j->result->gradient_norm, (unsigned long long)j->step, what, g->mean, spread(j),
                    (unsigned long long)r.to);
    bool is_known = false;
    for (uint32_t i = 0; i < all->count && i < PD_ROLLBACKS_MAX; i++)
        is_known |= all->known[i].at == r.at;
    if (!is_known) all->known[all->count++ % PD_ROLLBACKS_MAX] = r;
    all->goes_back = true;
    all->target = r.to;
    return PD_OK;
}

static pd_status guard(const struct judged *j, bool says, struct pd_run_state *state, struct pd_rollbacks *rollbacks,
                       struct pd_error *err)
{
    const bool is_scaled = j->config->numerics.precision == PD_F16;
    const char *cause = rollback_cause(j);
    if (cause) return roll_back(j, cause, says, rollbacks, err);
    if (!j->result->skipped) remember(j->config, j->result->loss, &state->guard);
    if (is_scaled) return pd_loss_scale_advance(state, j->result->skipped, j->config->numerics.loss_scale_interval, err);
    if (j->result->skipped) return skip(j, says, state, err);
    state->guard.skips = 0;
    return PD_OK;
}

/* A skipped step consumes its samples and updates nothing. */
pd_status pd_advance(const struct pd_config *c, const struct pd_step_result *result, bool says, struct pd_run_state *state,
                     struct pd_rollbacks *rollbacks, struct pd_error *err)
{
    const struct judged judged = {c, result, state, state->identity.step + 1};
    PD_TRY(guard(&judged, says, state, rollbacks, err));
    state->identity.step++;
    state->updates += !result->skipped;
    state->samples += c->batch.sequences;
    state->tokens += result->tokens;
    state->last_loss = result->loss;
    _Static_assert(sizeof state->gradient_sizes == sizeof result->gradient_sizes, "one for each class");
    memcpy(state->gradient_sizes, result->gradient_sizes.log2, sizeof state->gradient_sizes);
    if (result->compared) state->agreed_step = state->identity.step;
    if (result->skipped && says && c->numerics.precision == PD_F16)
        pd_log(PD_LOG_WARN, MODULE, "step %llu is skipped: a gradient overflowed fp16 (%s so far); loss scale %g",
               (unsigned long long)state->identity.step, pd_counted(state->skipped_steps, "skip").text, state->loss_scale);
    return PD_OK;
}

/* ---- going on from a rollback ---- */

void pd_rollbacks_pass(const struct pd_rollbacks *all, const struct pd_config *c, bool says, struct pd_run_state *state)
{
    for (uint32_t i = 0; i < all->count && i < PD_ROLLBACKS_MAX; i++) {
        const struct pd_rollback *r = &all->known[i];
        if (r->to != state->identity.step) continue;
        state->identity.step = r->at;
        state->samples += (r->at - r->to) * c->batch.sequences;
        state->skipped_steps += r->at - r->to;
        state->guard.rolled_back = r->at;
        state->guard.rollbacks = r->in_a_row;
        if (says)
            pd_log_info(MODULE, "back at the state of step %llu: continuing with step %llu", (unsigned long long)r->to,
                        (unsigned long long)r->at + 1);
        i = UINT32_MAX; /* another may begin where this one ended */
    }
}

bool pd_rollbacks_is_behind(const struct pd_rollbacks *all, const struct pd_run_state *state)
{
    for (uint32_t i = 0; i < all->count && i < PD_ROLLBACKS_MAX; i++)
        if (all->known[i].at > state->identity.step) return true;
    return false;
}
