/* Results of each tier's jobs, for metrics and logs. */
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/tiers/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void tier_report_init(struct tier *tier)
{
    pthread_mutex_init(&tier->outcome.mutex, NULL);
}

void tier_report_deinit(struct tier *tier)
{
    pthread_mutex_destroy(&tier->outcome.mutex);
}

/* Returns true if the tier has just begun to fail or to work again. */
static bool note_result(struct tier_outcome *o, uint64_t step, double seconds, pd_status st, const struct pd_error *err)
{
    pthread_mutex_lock(&o->mutex);
    const bool has_turned = st == PD_OK ? o->report.failures > 0 : o->report.failures == 0;
    o->status = st;
    o->error = *err;
    if (st == PD_OK) {
        o->report.newest_step = step;
        o->report.seconds = seconds;
        o->newest_ns = pd_clock_monotonic_ns(NULL);
        o->report.failures = 0;
    } else if (st != PD_STOPPED) {
        o->report.failures++;
        snprintf(o->report.cause, sizeof o->report.cause, "%.255s", err->message);
    }
    pthread_mutex_unlock(&o->mutex);
    return has_turned;
}

void tier_report_result(struct tier *tier, uint64_t step, double seconds, pd_status st, const struct pd_error *err)
{
    const bool has_turned = note_result(&tier->outcome, step, seconds, st, err);
    /* With a single tier the save itself failed, and its caller logs that. */
    if (tier->tiers->count == 1 || tier->group->rank || !has_turned) return;
    if (!st) pd_log_info(TIERS_MODULE, "%s works again: it has step %" PRIu64, tier->dir, step);
    if (st && st != PD_STOPPED && !tiers_is_fatal(st))
        pd_log_error(TIERS_MODULE, "%s did not get step %" PRIu64 "; %s until it works again: %s", tier->dir, step,
                     tier->is_remote ? "it is tried again and again" : "saves go to the other tiers", err->message);
}

void tier_report_found(struct tier *tier, uint64_t newest_step)
{
    pthread_mutex_lock(&tier->outcome.mutex);
    tier->outcome.report.newest_step = newest_step;
    tier->outcome.report.seconds = 0;
    pthread_mutex_unlock(&tier->outcome.mutex);
}

void tier_report_upload(struct tier *tier, uint64_t step, uint64_t bytes, uint64_t bytes_here)
{
    struct tier_outcome *o = &tier->outcome;
    pthread_mutex_lock(&o->mutex);
    atomic_store(&o->sent, 0);
    if (step) o->report.upload_bytes = bytes;
    o->upload = (struct tier_upload){step, bytes, bytes_here, pd_clock_monotonic_ns(NULL)};
    pthread_mutex_unlock(&o->mutex);
}

void tier_report_begin_failed(struct tier *tier, const struct pd_error *cause)
{
    struct pd_tier_report *report = &tier->outcome.report;
    pthread_mutex_lock(&tier->outcome.mutex);
    report->failures = 1;
    snprintf(report->cause, sizeof report->cause, "%.255s", cause->message);
    pthread_mutex_unlock(&tier->outcome.mutex);
}

void tier_report_skip(struct tier *tier, uint64_t skipped, uint64_t by)
{
    struct tier_outcome *o = &tier->outcome;
    pthread_mutex_lock(&o->mutex);
    const bool is_first = !o->has_logged_skip;
    o->report.skipped++;
    o->has_logged_skip = true;
    pthread_mutex_unlock(&o->mutex);
    if (is_first && tier->group->rank == 0)
        pd_log_warn(TIERS_MODULE,
                    "%s cannot keep up: step %" PRIu64 " is skipped for step %" PRIu64
                    ", and more will be; save to it less often",
                    tier->dir, skipped, by);
}

pd_status tier_report_cause(struct tier *tier, char cause[600])
{
    struct tier_outcome *o = &tier->outcome;
    pthread_mutex_lock(&o->mutex);
    const char *text = o->error.message[0] ? o->error.message : o->report.cause;
    snprintf(cause, 600, "%.599s", text[0] ? text : "it was not saved");
    const pd_status st = o->status ? o->status : PD_IO;
    pthread_mutex_unlock(&o->mutex);
    return st;
}

void tier_report_error(struct tier *tier, struct pd_error *ret_error)
{
    pthread_mutex_lock(&tier->outcome.mutex);
    *ret_error = tier->outcome.error;
    pthread_mutex_unlock(&tier->outcome.mutex);
}

static void add_upload(const struct tier_outcome *o, struct pd_tier_report *ret_report)
{
    const double seconds = pd_clock_seconds_since(o->upload.begin_ns);
    ret_report->uploading_step = o->upload.step;
    if (!o->upload.step && ret_report->seconds > 0)
        ret_report->bytes_per_second = (double)ret_report->upload_bytes / ret_report->seconds;
    if (!o->upload.step || !o->upload.bytes_here || seconds <= 0) return;
    const double progress = (double)atomic_load(&o->sent) / (double)o->upload.bytes_here;
    ret_report->progress = progress < 1 ? progress : 1; /* index.h5 is not in the total */
    ret_report->bytes_per_second = ret_report->progress * (double)o->upload.bytes / seconds;
}

/* Adds the replicator's report to the first tier's. */
static void add_replicas(struct tier *replicator, struct pd_tier_report *ret_report)
{
    struct tier_outcome *o = &replicator->outcome;
    pthread_mutex_lock(&o->mutex);
    ret_report->has_replicas = true;
    ret_report->replicated_step = o->report.newest_step;
    ret_report->replica_failures = o->report.failures;
    ret_report->replicas_skipped = o->report.skipped;
    memcpy(ret_report->replica_cause, o->report.cause, sizeof ret_report->replica_cause);
    pthread_mutex_unlock(&o->mutex);
}

void pd_tiers_report(struct pd_tiers *t, uint32_t number, struct pd_tier_report *ret_report)
{
    PD_CHECK(number < t->count);
    struct tier *tier = &t->tiers[number];
    pthread_mutex_lock(&tier->outcome.mutex);
    *ret_report = tier->outcome.report;
    if (tier->outcome.newest_ns) ret_report->age_seconds = pd_clock_seconds_since(tier->outcome.newest_ns);
    add_upload(&tier->outcome, ret_report);
    pthread_mutex_unlock(&tier->outcome.mutex);
    ret_report->dir = tier->dir;
    ret_report->in_memory = tier->in_memory;
    ret_report->is_remote = tier->is_remote;
    ret_report->is_left_out = tier->is_left_out;
    if (number == 0 && t->replicator) add_replicas(t->replicator, ret_report);
}
