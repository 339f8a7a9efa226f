/* The loop of a rank:
 *
 *   [step -> advance -> agree -> metrics -> begin a save -> validate]* -> last save -> leave
 *
 * Ranks check signals between micro-batches and agree on them. An unfinished step changes nothing, so the state saved is
 * that of the last update. Saves run in the background (save.h). The same agreement includes how many saves have ended on
 * all ranks, so all act on the same outcomes at the same step. It also includes the root's clock, used to retry failed saves
 * (save.h). */
#include "trainer/run/internal.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "ckpt/base/words.h"
#include "trainer/run/events.h"
#include "trainer/run/launched.h"
#include "trainer/run/signals.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODULE "worker"
#define POLL_NS UINT64_C(100000000)

static double give_up_seconds(const struct run *r)
{
    return r->config->checkpoint.give_up_minutes * 60;
}

static double leave_seconds(const struct run *r)
{
    return pd_launched_leave_seconds(r->config->checkpoint.leave_seconds);
}

static pd_status add_last_save(const struct run *r, pd_status st, struct pd_error *err)
{
    if (!r->saved_step) return pd_error_context(err, st, "no save has worked; fix this, then run the same command again");
    return pd_error_context(err, st,
                            "no save since step %llu has worked; fix this, and the same command continues from there",
                            (unsigned long long)r->saved_step);
}

static struct pd_counted in_words(uint64_t from_ns, uint64_t to_ns)
{
    struct pd_counted t;
    const double seconds = to_ns > from_ns ? 1e-9 * (double)(to_ns - from_ns) : 0;
    snprintf(t.text, sizeof t.text, seconds < 120 ? "%.0f s" : "%.0f minutes", seconds < 120 ? seconds : seconds / 60);
    return t;
}

/* Logs every failure: the cause, what happens next, and when. */
static void log_failure(const struct run *r, const struct pd_saver_outcome *o)
{
    const struct pd_save_failures *f = &r->failures;
    const uint64_t last_ns = pd_save_failures_deadline(f, give_up_seconds(r));
    char newest[64] = "there is no checkpoint yet", last[64] = ", which is the last", loop_leave[80] = "";
    if (r->saved_step)
        snprintf(newest, sizeof newest, "the newest checkpoint is of step %llu", (unsigned long long)r->saved_step);
    if (f->retry_ns < last_ns) snprintf(last, sizeof last, ", the last one in %s", in_words(r->now_ns, last_ns).text);
    if (f->over_ns) snprintf(loop_leave, sizeof loop_leave, "; TERM or Ctrl-C ends it within %g s", leave_seconds(r));
    pd_log(PD_LOG_ERROR, MODULE, "%sstep %llu is not saved, %s; the next try is in %s%s%s: %s",
           f->over_ns ? "training is over, and " : "", (unsigned long long)o->step, newest,
           in_words(r->now_ns, f->retry_ns).text, last, loop_leave, o->error.message);
}

/* All tiers were removed: nothing can be saved or loaded, and waiting does not help. */
static bool are_tiers_removed(struct run *r)
{
    uint64_t any_is_there;
    PD_ON_STORAGE(any_is_there = !pd_tier_places_are_removed(&r->places));
    return pd_comm_all_reduce(r->comm, &any_is_there, 1, PD_REDUCE_MAX_U64, NULL) == PD_OK && !any_is_there;
}

/* Training continues, unless that would be useless. */
static pd_status take_failure(struct run *r, const struct pd_saver_outcome *o, struct pd_error *err)
{
    const pd_status st = o->status;
    const bool is_final = st == PD_PEER_LOST || st == PD_EXISTS || st == PD_BUSY;
    if (r->started_step == o->step) r->started_step = 0;
    if (r->state.identity.step >= r->config->run.steps) pd_save_failures_over(&r->failures, r->now_ns);
    pd_save_failures_add(&r->failures, st, o->step, r->now_ns, give_up_seconds(r));
    if (!is_final && are_tiers_removed(r)) {
        struct pd_tier_options tiers[PD_TIERS_MAX];
        const uint32_t count = pd_config_tiers(r->config, tiers);
        PD_FAIL(err, PD_IO,
                "%s%s was removed while the run used it: nothing can be saved, and the checkpoints there are gone. Put it "
                "back, then run the same command again",
                tiers[0].dir, count > 1 ? ", with the directories of the other tiers," : "");
    }
    if (is_final || pd_save_failures_is_too_long(&r->failures, r->now_ns, give_up_seconds(r))) {
        if (err) *err = o->error;
        pd_error_context(err, st, "saving step %llu", (unsigned long long)o->step);
        if (is_final) return st;
        return add_last_save(r, st == PD_NOT_FOUND ? PD_IO : st, err); /* it was there when the run began */
    }
    if (r->comm->rank == 0 && (r->failures.count == 1 || !r->failures.leave_ns)) log_failure(r, o);
    return PD_OK;
}

/* Where only a bucket outlives this machine: whether the last step gets there between a notice and the end. Said once. */
static void look_at_notice(struct run *r)
{
    const double grace = pd_launched_grace_seconds();
    struct pd_tier_report tier = {.in_memory = true};
    for (uint32_t i = 0; i < pd_tiers_count(r->tiers) && (tier.in_memory || tier.is_left_out); i++)
        pd_tiers_report(r->tiers, i, &tier);
    if (r->has_said_short || !tier.upload_bytes || tier.seconds <= grace) return;
    r->has_said_short = true;
    pd_log(
        PD_LOG_WARN, MODULE,
        "%.400s: step %llu took %.3g s to get there (%s at %s/s), and after a notice there are %.3g s (PERDURE_GRACE_S): "
        "too short for "
        "the last step, so a machine that is taken loses the steps since the last upload. Save there more often, or name a "
        "disk that outlives the machine before it",
        tier.dir, (unsigned long long)tier.newest_step, tier.seconds, pd_bytes_text((double)tier.upload_bytes).text,
        pd_bytes_text((double)tier.upload_bytes / tier.seconds).text, grace);
}

static pd_status take_outcome(struct run *r, const struct pd_saver_outcome *o, struct pd_error *err)
{
    r->saves++;
    r->save_seconds += o->save_seconds;
    r->stall_seconds += o->stall_seconds;
    if (o->status) return take_failure(r, o, err);
    if (r->failures.count && r->comm->rank == 0)
        pd_log(PD_LOG_INFO, MODULE, "saves work again: step %llu is saved, after %s since step %llu",
               (unsigned long long)o->step, pd_counted(r->failures.count, "failure").text,
               (unsigned long long)r->failures.first_step);
    r->saved_step = o->step;
    if (r->comm->rank == 0) pd_launched_saved(o->step);
    if (r->comm->rank == 0) look_at_notice(r);
    pd_save_failures_clear(&r->failures);
    return PD_OK;
}

static void note_finished(struct run *r, uint64_t finished)
{
    if (finished > r->saves_finished) r->saves_moved_ns = r->now_ns;
    r->saves_finished = finished;
}

/* Handles the results of the first `finished` saves, which have ended on all ranks. */
static pd_status take_outcomes(struct run *r, uint64_t finished, struct pd_error *err)
{
    struct pd_saver_outcome outcome;
    note_finished(r, finished);
    while (pd_saver_collect(r->saver, finished, &outcome))
        PD_TRY(take_outcome(r, &outcome, err));
    return PD_OK;
}

static void begin_save(struct run *r, bool everywhere)
{
    if (r->saves_begun++ == r->saves_finished) r->saves_moved_ns = r->now_ns;
    r->started_step = r->state.identity.step;
    r->is_save_owed = false;
    pd_saver_start(r->saver, &r->state, everywhere || r->started_step == r->config->run.steps);
}

/* Agrees on the strongest request of any rank, the saves that have ended on all, and the root's clock. */
static pd_status agree(struct run *r, enum pd_signal *ret_signal, uint64_t *ret_finished, struct pd_error *err)
{
    uint64_t words[3] = {pd_signals_pending(), UINT64_MAX - pd_saver_finished(r->saver),
                         r->comm->rank ? 0 : pd_clock_monotonic_ns(NULL)};
    PD_TRY(pd_comm_all_reduce(r->comm, words, 3, PD_REDUCE_MAX_U64, err));
    *ret_signal = (enum pd_signal)words[0];
    *ret_finished = UINT64_MAX - words[1];
    r->now_ns = words[2];
    if (*ret_signal == PD_SIGNAL_SAVE) pd_signals_clear_save();
    return PD_OK;
}

/* Waits for running saves, which end alike on all ranks. If a peer is lost, the save's error says more. */
static pd_status finish_saves(struct run *r, struct pd_error *err)
{
    struct pd_error lost = {0};
    enum pd_signal signal;
    uint64_t finished;
    pd_saver_wait(r->saver);
    const pd_status agreed = agree(r, &signal, &finished, &lost);
    PD_TRY(take_outcomes(r, pd_saver_finished(r->saver), err));
    if (agreed && err) *err = lost;
    return agreed;
}

static pd_status save_and_wait(struct run *r, struct pd_error *err)
{
    if (r->started_step != r->state.identity.step || !r->state.identity.step) begin_save(r, true);
    return finish_saves(r, err);
}

static bool save_is_due(const struct run *r, enum pd_signal signal)
{
    const uint64_t step = r->state.identity.step;
    if (r->saved_step == step || r->started_step == step || pd_rollbacks_is_behind(r->rollbacks, &r->state)) return false;
    if (signal != PD_SIGNAL_NONE || step == r->config->run.steps) return true;
    if (!r->failures.count) return r->is_save_owed || pd_tiers_is_due(r->tiers, step);
    const bool is_under_way = r->started_step > 0; /* another try is: none ended well since saves fail */
    return !is_under_way && !pd_save_failures_is_backing_off(&r->failures, r->now_ns);
}

/* Only saving is left: waits until the next try. A signal ends the wait of a run that is not leaving yet. */
static pd_status wait_for_try(struct run *r, enum pd_signal *ret_signal, struct pd_error *err)
{
    const bool is_leaving = r->failures.leave_ns > 0;
    uint64_t finished;
    *ret_signal = PD_SIGNAL_NONE;
    while (pd_save_failures_is_backing_off(&r->failures, r->now_ns) && (is_leaving || *ret_signal == PD_SIGNAL_NONE)) {
        pd_clock_sleep_ns(POLL_NS);
        PD_TRY(agree(r, ret_signal, &finished, err));
    }
    return PD_OK;
}

/* After the last step of the run. */
static pd_status save_last_step(struct run *r, struct pd_error *err)
{
    enum pd_signal signal;
    PD_TRY(wait_for_try(r, &signal, err));
    if (signal < PD_SIGNAL_SAVE_AND_LEAVE) return save_and_wait(r, err);
    PD_FAIL(err, PD_STOPPED, "asked to leave after the last step");
}

/* Logs the step that other hosts have copies of, or without copies, the saved step. */
static void log_kept(struct run *r)
{
    struct pd_tier_report first;
    pd_tiers_report(r->tiers, 0, &first);
    const uint64_t kept = first.has_replicas ? first.replicated_step : r->saved_step;
    if (kept > r->step_log.line.kept) r->step_log.line.kept = kept;
    pd_step_log_write(&r->step_log);
}

static pd_status save_and_leave(struct run *r, struct pd_error *err)
{
    if (r->state.identity.step == 0)
        PD_FAIL(err, PD_STOPPED, "asked to leave before the first step; there was nothing to save");
    if (r->rollbacks->goes_back || pd_rollbacks_is_behind(r->rollbacks, &r->state))
        PD_FAIL(err, PD_STOPPED, "asked to leave while going back to an earlier step; the same command does so again");
    pd_save_failures_leave(&r->failures, r->now_ns, leave_seconds(r));
    PD_TRY(finish_saves(r, err));
    while (r->saved_step != r->state.identity.step) {
        enum pd_signal signal;
        PD_TRY(wait_for_try(r, &signal, err));
        PD_TRY(save_and_wait(r, err));
    }
    PD_TRY(pd_saver_finish(r->saver, &r->state, leave_seconds(r), err));
    log_kept(r);
    pd_event_leave(r);
    PD_FAIL(err, PD_STOPPED, "asked to leave; the state of step %llu is saved, the same command continues from there",
            (unsigned long long)r->state.identity.step);
}

/* Every rank stopped at the same place; some may not have seen the signal. */
static pd_status loop_leave(struct run *r, struct pd_error *err)
{
    enum pd_signal signal;
    uint64_t finished;
    PD_TRY(agree(r, &signal, &finished, err));
    return save_and_leave(r, err);
}

/* Writes the line first: a step committed just before a kill is not recomputed. */
static void write_metrics(struct run *r, struct pd_metrics_step *m)
{
    struct pd_dev_memory device;
    m->step = r->state.identity.step;
    m->fence = r->state.fence;
    m->skipped_steps = r->state.skipped_steps;
    m->last_checkpoint = r->saved_step;
    m->save_failures = r->failures.count;
    m->save_failures_since = r->failures.first_step;
    m->tiers = r->tiers;
    m->saves = r->saves;
    m->save_seconds = r->save_seconds;
    m->stall_seconds = r->stall_seconds;
    m->straggler_count = pd_stragglers_named(&r->stragglers, r->comm->size, m->stragglers);
    m->memory_bytes = pd_metrics_resident_bytes();
    if (r->metrics && r->device.dev && !pd_dev_memory(r->device.dev, &device, NULL))
        m->device_free_bytes = device.free_bytes;
    r->saves = 0;
    r->save_seconds = r->stall_seconds = 0;
    if (r->metrics) pd_metrics_write(r->metrics, m);
    r->step_log.line.step = r->state.identity.step;
    r->step_log.line.time = (double)pd_clock_wall_ns() * 1e-9;
    log_kept(r);
}

static bool validation_is_due(const struct run *r)
{
    const uint64_t every = r->config->validation.every, step = r->state.identity.step;
    return every && (step % every == 0 || step == r->config->run.steps);
}

/* The save of this step has already begun. It does not wait for the validation, and has the best loss of earlier ones.
 *   errors  PD_STOPPED: asked to leave. The next start repeats it, with the same bits */
static pd_status validate(struct run *r, double *ret_loss, struct pd_error *err)
{
    PD_TRY(pd_engine_validate(r->engine, r->validation_sequences, ret_loss, err));
    if (!(r->state.best_validation_loss <= *ret_loss)) r->state.best_validation_loss = *ret_loss;
    return PD_OK;
}

/* Validates the step that the run resumes at, unless metrics.jsonl has the result. */
static pd_status validate_resumed(struct run *r, struct pd_error *err)
{
    struct pd_metrics_step m = {.step = r->state.identity.step,
                                .fence = r->state.fence,
                                .result = {.loss = r->state.last_loss, .gradient_norm = NAN},
                                .loss_scale = r->state.loss_scale,
                                .skipped_steps = r->state.skipped_steps,
                                .last_checkpoint = r->saved_step,
                                .tiers = r->tiers,
                                .kind = PD_METRICS_VALIDATED,
                                .validation_loss = NAN};
    if (!r->saved_step || !validation_is_due(r)) return PD_OK;
    if (r->comm->rank == 0) PD_ON_STORAGE(pd_recorded_step(r->config->run.dir, &m));
    double loss = m.validation_loss;
    PD_TRY(pd_group_broadcast(&r->group, 0, &loss, sizeof loss, err));
    if (!isnan(loss)) {
        if (!(r->state.best_validation_loss <= loss)) r->state.best_validation_loss = loss;
        return PD_OK;
    }
    PD_TRY(validate(r, &m.validation_loss, err));
    m.memory_bytes = pd_metrics_resident_bytes();
    if (r->metrics) pd_metrics_write(r->metrics, &m);
    return PD_OK;
}

static bool has_no_turn(const struct run *r)
{
    return r->saves_begun - r->saves_finished >= pd_saver_in_flight(r->saver);
}

/* Waits for a running save to end. *ret_is_stuck: none ended for restart.hang_seconds, on some rank. Collective. */
static pd_status await_turn(struct run *r, bool *ret_is_stuck, struct pd_error *err)
{
    const double limit = r->config->restart.hang_seconds;
    *ret_is_stuck = false;
    if (!has_no_turn(r) || limit <= 0) return PD_OK;
    pd_saver_wait_turn(r->saver, limit - (double)(r->now_ns - r->saves_moved_ns) * 1e-9);
    uint64_t words[2] = {UINT64_MAX - pd_saver_finished(r->saver), r->comm->rank ? 0 : pd_clock_monotonic_ns(NULL)};
    PD_TRY(pd_comm_all_reduce(r->comm, words, 2, PD_REDUCE_MAX_U64, err));
    r->now_ns = words[1];
    note_finished(r, UINT64_MAX - words[0]);
    *ret_is_stuck = has_no_turn(r);
    return PD_OK;
}

/* Once for each save that is stuck. */
static void owe_save(struct run *r)
{
    if (!r->is_save_owed && r->comm->rank == 0)
        pd_log_warn(MODULE,
                    "step %llu is not saved yet: the save of step %llu into tier %s has not ended for %s. Its storage is "
                    "slow or stuck; training continues, and the next save follows when that one has ended",
                    (unsigned long long)r->state.identity.step, (unsigned long long)r->started_step,
                    pd_tiers_saving_into(r->tiers), in_words(r->saves_moved_ns, r->now_ns).text);
    r->is_save_owed = true;
}

/* The sender of a signal, a user or batch system, waits for the save, so training waits too; other saves run in parallel. */
static pd_status save_if_due(struct run *r, enum pd_signal signal, struct pd_error *err)
{
    bool is_stuck;
    if (!save_is_due(r, signal)) return PD_OK;
    if (signal != PD_SIGNAL_NONE) return save_and_wait(r, err);
    PD_TRY(await_turn(r, &is_stuck, err));
    if (is_stuck && r->state.identity.step < r->config->run.steps)
        owe_save(r);
    else
        begin_save(r, false);
    return PD_OK;
}

/* A step's line is written before its save. */
pd_status pd_run_save_in_validation(void *run, struct pd_error *err)
{
    struct run *r = run;
    enum pd_signal signal;
    uint64_t finished;
    PD_TRY(agree(r, &signal, &finished, err));
    const pd_status saved = take_outcomes(r, finished, err);
    if (r->unwritten && save_is_due(r, signal)) {
        r->unwritten->kind = PD_METRICS_TO_VALIDATE;
        write_metrics(r, r->unwritten);
        r->unwritten = NULL;
    }
    PD_TRY(saved);
    return signal == PD_SIGNAL_SAVE ? save_if_due(r, signal, err) : PD_OK; /* a request to leave returns as PD_STOPPED */
}

/* Ranks got different gradients: results since their last agreement are not trusted. Only the faulty rank knows its GPU. */
static pd_status doubt(struct run *r, struct pd_error *err)
{
    const uint32_t wrong = r->engine->disagreement.rank;
    char where[160] = "", host[64] = "";
    if (r->comm->rank == wrong) {
        (void)gethostname(host, sizeof host - 1);
        snprintf(where, sizeof where, "; it is on host %s%s%s", host, r->device.dev ? ", " : "",
                 r->device.dev ? r->device.dev->description : "");
    }
    if (wrong < r->comm->size) PD_TRY(pd_group_broadcast(&r->group, wrong, where, sizeof where, err));
    r->rollbacks->goes_back = r->rollbacks->doubts = true;
    r->rollbacks->target = r->state.agreed_step;
    if (err) pd_error_set(&r->rollbacks->doubt, PD_DEVICE_LOST, PD_WHERE, 0, "%.600s%s", err->message, where);
    r->rollbacks->wrong_rank = wrong;
    pd_error_clear(err);
    return finish_saves(r, err);
}

static pd_status loop_run_step(struct run *r, struct pd_error *err)
{
    struct pd_metrics_step m = {.loss_scale = r->state.loss_scale, .validation_loss = NAN};
    enum pd_signal signal;
    uint64_t start = pd_clock_monotonic_ns(NULL), finished;
    pd_heartbeat_step(r->state.identity.step + 1);
    r->engine->loss_scale = r->state.loss_scale;
    memcpy(r->engine->gradient_sizes.log2, r->state.gradient_sizes, sizeof r->state.gradient_sizes);
    r->engine->next_identity = r->state.identity;
    r->engine->next_identity.step++;
    const pd_status stepped = pd_engine_step(r->engine, r->state.samples, r->state.updates, &m.result, err);
    if (stepped && r->engine->disagreement.is_there) return doubt(r, err);
    PD_TRY(stepped);
    m.seconds = pd_clock_seconds_since(start);
    PD_TRY(pd_advance(r->config, &m.result, r->comm->rank == 0, &r->state, r->rollbacks, err));
    m.rolls_back = r->rollbacks->goes_back;
    m.rolled_back_to = r->rollbacks->target;
    pd_fault_point("worker.stepped");
    PD_TRY(agree(r, &signal, &finished, err));
    PD_TRY(pd_stragglers_look(&r->stragglers, &r->group, r->now_ns, err));
    pd_status saved = take_outcomes(r, finished, err);
    const bool validates = !saved && !m.rolls_back && signal < PD_SIGNAL_SAVE_AND_LEAVE && validation_is_due(r),
               saves_first = validates && save_is_due(r, signal);
    if (saves_first) m.kind = PD_METRICS_TO_VALIDATE;
    if (!validates || saves_first) write_metrics(r, &m);
    PD_TRY(saved);
    if (m.rolls_back) return finish_saves(r, err);
    PD_TRY(save_if_due(r, signal, err));
    if (signal >= PD_SIGNAL_SAVE_AND_LEAVE)
        PD_FAIL(err, PD_STOPPED, "asked to leave after step %llu", (unsigned long long)m.step);
    if (!validates) return PD_OK;
    r->unwritten = saves_first ? NULL : &m;
    const pd_status validated = validate(r, &m.validation_loss, err);
    const bool is_written = !r->unwritten;
    r->unwritten = NULL;
    m.kind = is_written ? PD_METRICS_VALIDATED : PD_METRICS_STEP;
    if (!is_written && (!validated || validated == PD_STOPPED)) write_metrics(r, &m);
    if (is_written && !validated && r->metrics) pd_metrics_write(r->metrics, &m);
    return validated;
}

/* Back at the beginning, a run has no checkpoint, and could not start beside those in quarantine. */
pd_status pd_run_end_in_doubt(struct run *r, struct pd_error *err)
{
    if (r->state.identity.step == 0) PD_TRY(save_and_wait(r, err));
    return pd_error_pass(err, r->rollbacks->doubt.status, &r->rollbacks->doubt);
}

/* Whether any step or save is left. */
static bool goes_on(struct run *r)
{
    pd_rollbacks_pass(r->rollbacks, r->config, r->comm->rank == 0, &r->state);
    return r->state.identity.step < r->config->run.steps || r->saved_step != r->state.identity.step;
}

pd_status pd_run_steps(struct run *r, struct pd_error *err)
{
    const uint64_t first = r->state.identity.step, last = r->config->run.steps;
    bool frozen = false;
    const pd_status validated = validate_resumed(r, err);
    if (validated == PD_STOPPED) return loop_leave(r, err);
    PD_TRY(validated);
    while (goes_on(r)) {
        pd_status st = r->state.identity.step < last ? loop_run_step(r, err) : save_last_step(r, err);
        if (st == PD_STOPPED) return loop_leave(r, err);
        PD_TRY(st);
        if (r->rollbacks->goes_back) return PD_OK;
        if (!frozen && r->saved_step) {
            pd_arena_freeze(r->arena);
            frozen = true;
        }
    }
    PD_TRY(pd_saver_finish(r->saver, &r->state, -1, err));
    log_kept(r);
    pd_event_leave(r);
    if (r->comm->rank == 0 && first < last)
        pd_log(PD_LOG_INFO, MODULE, "done: step %llu, loss %.6f, saved", (unsigned long long)last, r->state.last_loss);
    else if (r->comm->rank == 0)
        pd_log(PD_LOG_INFO, MODULE,
               "nothing to train: run.steps is %llu, and step %llu is saved; set a larger run.steps to continue",
               (unsigned long long)last, (unsigned long long)first);
    return PD_OK;
}
