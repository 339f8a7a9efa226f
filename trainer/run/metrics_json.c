/* metrics.jsonl in the run directory: one object per step, appended with one write. A step recomputed after a restart
 * appears again with its launch's fence; one saved before its validation appears again with the result. The last line of a
 * step counts. */
#include "trainer/run/metrics_sink.h"

#include "ckpt/base/json.h"
#include "ckpt/base/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct json_lines {
    const struct pd_metrics_options *options;
    int file;
    char path[4096];
};

/* The run directory exists, but its metrics.jsonl links to something that does not. */
static pd_status fail_to_open(const char *path, int number, struct pd_error *err)
{
    const pd_status st = number == ENOENT ? PD_IO : pd_status_from_errno(number);
    if (number == ENXIO)
        PD_FAIL(err, st, "%s: metrics are appended to a regular file, and this is not one; move it away", path);
    return pd_error_set(err, st, PD_WHERE, number, "%s: opening it to append metrics", path);
}

static pd_status json_open(const struct pd_metrics_options *options, void **ret_sink, struct pd_error *err)
{
    struct json_lines *j = calloc(1, sizeof *j);
    if (!j) PD_FAIL(err, PD_NO_MEMORY, "metrics: no memory");
    j->options = options;
    snprintf(j->path, sizeof j->path, "%s/metrics.jsonl", options->config->run.dir);
    const int number = pd_regular_open(j->path, O_RDWR | O_CREAT | O_APPEND, &j->file);
    if (number) {
        const pd_status st = fail_to_open(j->path, number, err);
        free(j);
        return st;
    }
    *ret_sink = j;
    return PD_OK;
}

static void json_close(void *sink)
{
    struct json_lines *j = sink;
    close(j->file);
    free(j);
}

static void metrics_json_add_tiers(struct pd_json_writer *w, const struct pd_metrics_line *line)
{
    if (!line->tier_count || (line->tier_count < 2 && !line->tiers[0].has_replicas)) return;
    pd_json_array_begin(w, "tiers");
    for (uint32_t i = 0; i < line->tier_count; i++) {
        const struct pd_tier_report *report = &line->tiers[i];
        pd_json_object_begin(w, NULL);
        pd_json_u64(w, "newest", report->newest_step);
        if (report->seconds > 0) pd_json_double(w, "seconds", report->seconds);
        if (report->age_seconds > 0) pd_json_double(w, "age", report->age_seconds);
        if (report->uploading_step) {
            pd_json_u64(w, "uploading", report->uploading_step);
            pd_json_double(w, "progress", report->progress);
        }
        if (report->bytes_per_second > 0) pd_json_double(w, "bytes_per_second", report->bytes_per_second);
        if (report->is_left_out) pd_json_bool(w, "left_out", true);
        if (report->failures) pd_json_u64(w, "failures", report->failures);
        if (report->failures) pd_json_string(w, "cause", report->cause);
        if (report->skipped) pd_json_u64(w, "skipped", report->skipped);
        if (report->has_replicas) {
            pd_json_u64(w, "replicated", report->replicated_step);
            if (report->replica_failures) pd_json_u64(w, "replica_failures", report->replica_failures);
            if (report->replica_failures) pd_json_string(w, "replica_cause", report->replica_cause);
            if (report->replicas_skipped) pd_json_u64(w, "replicas_skipped", report->replicas_skipped);
        }
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
}

static void add_stragglers(struct pd_json_writer *w, const struct pd_metrics_step *s)
{
    if (!s->straggler_count) return;
    pd_json_array_begin(w, "stragglers");
    for (uint32_t i = 0; i < s->straggler_count && i < PD_STRAGGLERS_SAID; i++) {
        const struct pd_straggler *one = &s->stragglers[i];
        pd_json_object_begin(w, NULL);
        pd_json_u64(w, "rank", one->rank);
        pd_json_double(w, "speed", one->speed);
        pd_json_string(w, "at", pd_spent_names[one->at]);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
}

static void add_experts(struct pd_json_writer *w, const struct pd_model_config *m, const struct pd_step_result *r)
{
    if (!r->experts) return;
    pd_json_measured(w, "router_loss", r->router_loss);
    pd_json_array_begin(w, "experts");
    for (uint32_t block = m->dense_blocks; block < m->layers; block++) {
        const struct pd_expert_report *x = &r->experts[block];
        pd_json_object_begin(w, NULL);
        pd_json_u64(w, "block", block);
        PD_JSON_DOUBLES(w, {"busiest", x->busiest}, {"idlest", x->idlest}, {"entropy", x->entropy});
        if (pd_families[m->family]->selection_bias) pd_json_double(w, "bias_range", x->bias_range);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
}

static void add_result(struct pd_json_writer *w, const struct pd_metrics_options *options, const struct pd_metrics_step *s)
{
    uint64_t loss_bits;
    memcpy(&loss_bits, &s->result.loss, sizeof loss_bits);
    pd_json_u64(w, "step", s->step);
    pd_json_measured(w, "loss", s->result.loss);
    pd_json_hex64(w, "loss_bits", loss_bits);
    if (!isnan(s->validation_loss)) pd_json_measured(w, "validation_loss", s->validation_loss);
    pd_json_measured(w, "gradient_norm", s->result.gradient_norm);
    pd_json_double(w, "learning_rate", s->result.learning_rate);
    add_experts(w, &options->config->model, &s->result);
    if (options->config->numerics.precision == PD_F16) {
        pd_json_double(w, "loss_scale", s->loss_scale);
        pd_json_u64(w, "skipped", s->skipped_steps);
    } else if (s->skipped_steps) {
        pd_json_u64(w, "skipped", s->skipped_steps);
    }
    if (s->rolls_back) pd_json_u64(w, "rolled_back_to", s->rolled_back_to);
    if (s->result.recomputed) pd_json_u64(w, "recomputed", s->result.recomputed);
    if (s->result.coarser) pd_json_u64(w, "coarser", s->result.coarser);
    if (s->result.sent_bytes) pd_json_u64(w, "sent_bytes", s->result.sent_bytes);
    if (s->result.sent_between_hosts) pd_json_u64(w, "sent_between_hosts", s->result.sent_between_hosts);
    if (options->has_stages) {
        pd_json_double(w, "bubble", s->result.bubble);
        pd_json_double(w, "bubble_theory", s->result.bubble_theory);
    }
}

static void add_line(struct pd_json_writer *w, const struct pd_metrics_options *options, const struct pd_metrics_line *line)
{
    const struct pd_metrics_step *s = &line->step;
    pd_json_object_begin(w, NULL);
    add_result(w, options, s);
    pd_json_u64(w, "tokens", s->result.tokens);
    pd_json_double(w, "seconds", s->seconds);
    pd_json_object_begin(w, "stages");
    for (int i = 0; i < PD_STEP_STAGES; i++)
        pd_json_double(w, pd_step_stage_names[i], s->result.stage_seconds[i]);
    pd_json_object_end(w);
    pd_json_double(w, "tokens_per_second", line->tokens_per_second);
    pd_json_double(w, "gemm_share", line->gemm_share);
    pd_json_u64(w, "memory_bytes", s->memory_bytes);
    if (s->device_free_bytes) pd_json_u64(w, "device_free_bytes", s->device_free_bytes);
    pd_json_u64(w, "last_checkpoint", s->last_checkpoint);
    if (s->save_failures) {
        pd_json_u64(w, "save_failures", s->save_failures);
        pd_json_u64(w, "save_failures_since", s->save_failures_since);
    }
    metrics_json_add_tiers(w, line);
    if (s->save_seconds > 0) {
        pd_json_double(w, "save_seconds", s->save_seconds);
        pd_json_double(w, "stall_seconds", s->stall_seconds);
    }
    add_stragglers(w, s);
    pd_json_double(w, "eta_seconds", line->eta_seconds);
    pd_json_u64(w, "ranks", options->ranks);
    pd_json_u64(w, "fence", s->fence);
    pd_json_double(w, "time", (double)(uint64_t)(line->time * 1000) / 1000);
    pd_json_object_end(w);
}

static pd_status json_write(void *sink, const struct pd_metrics_line *line, struct pd_error *err)
{
    struct json_lines *j = sink;
    struct pd_json_writer w;
    const char *text;
    size_t bytes;
    pd_json_writer_init(&w, 0);
    add_line(&w, j->options, line);
    pd_status st = pd_json_writer_finish(&w, &text, &bytes, err);
    const int number = st ? 0 : pd_regular_append(j->file, text, bytes);
    pd_json_writer_deinit(&w);
    if (number) PD_FAIL_ERRNO(err, number, "%s: appending", j->path);
    return st;
}

static bool always(const struct pd_config *config)
{
    (void)config;
    return true;
}

const struct pd_metrics_sink pd_metrics_json = {"metrics.jsonl",   .is_record = true,   .is_wanted = always,
                                                .open = json_open, .write = json_write, .close = json_close};
