#include "trainer/run/metrics.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/json.h"
#include "ckpt/base/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct pd_metrics {
    struct pd_metrics_options options;
    int file;
    struct pd_progress_mode progress;
    uint64_t start_ns, last_line_ns;
    uint64_t first_step;    /* of this launch */
    double validation_loss; /* newest */
    bool drawn;             /* a bar stands on the terminal's line */
};

uint64_t pd_metrics_resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long long pages = 0, resident = 0;
    if (!f) return 0;
    int fields = fscanf(f, "%llu %llu", &pages, &resident);
    fclose(f);
    return fields == 2 ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

pd_status pd_metrics_open(const struct pd_metrics_options *options, struct pd_metrics **ret_metrics, struct pd_error *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/metrics.jsonl", options->directory);
    struct pd_metrics *m = calloc(1, sizeof *m);
    if (!m) PD_FAIL(err, PD_NO_MEMORY, "metrics: no memory");
    m->file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (m->file < 0) {
        int number = errno;
        free(m);
        PD_FAIL_ERRNO(err, number, "%s: opening it to append metrics", path);
    }
    m->options = *options;
    m->progress = pd_progress_mode();
    m->start_ns = pd_clock_monotonic_ns(NULL);
    m->validation_loss = NAN;
    *ret_metrics = m;
    return PD_OK;
}

void pd_metrics_close(struct pd_metrics *m)
{
    if (!m) return;
    if (m->drawn) fputc('\n', stderr);
    close(m->file);
    free(m);
}

static double tokens_per_second(const struct pd_metrics_step *s)
{
    return s->seconds > 0 ? (double)s->result.tokens / s->seconds : 0;
}

static double gemm_share(const struct pd_metrics *m, const struct pd_metrics_step *s)
{
    if (m->options.gemm_flops_per_second <= 0) return 0;
    return tokens_per_second(s) * m->options.flops_per_token / m->options.gemm_flops_per_second;
}

/* A step that is faster than its products alone says that something else ran while those were measured. */
static void raise_bound(struct pd_metrics *m, const struct pd_metrics_step *s)
{
    if (m->options.gemm_flops_per_second > 0)
        m->options.gemm_flops_per_second =
            fmax(m->options.gemm_flops_per_second, tokens_per_second(s) * m->options.flops_per_token);
}

static double eta_seconds(const struct pd_metrics *m, const struct pd_metrics_step *s)
{
    double done = (double)(s->step - m->first_step + 1);
    return pd_clock_seconds_since(NULL, m->start_ns) / done * (double)(m->options.steps - s->step);
}

static void add_copies(struct pd_json_writer *w, const struct pd_tier_report *report)
{
    pd_json_u64(w, "copied", report->copied_step);
    if (report->copy_failures) pd_json_u64(w, "copy_failures", report->copy_failures);
    if (report->copy_failures) pd_json_string(w, "copy_cause", report->copy_cause);
    if (report->copies_skipped) pd_json_u64(w, "copies_skipped", report->copies_skipped);
}

/* In the order of checkpoint.tiers. */
static void add_tiers(struct pd_json_writer *w, struct pd_tiers *tiers)
{
    struct pd_tier_report first;
    if (!tiers) return;
    pd_tiers_report(tiers, 0, &first);
    if (pd_tiers_count(tiers) < 2 && !first.has_copies) return;
    pd_json_array_begin(w, "tiers");
    for (uint32_t i = 0; i < pd_tiers_count(tiers); i++) {
        struct pd_tier_report report;
        pd_tiers_report(tiers, i, &report);
        pd_json_object_begin(w, NULL);
        pd_json_u64(w, "newest", report.newest_step);
        if (report.is_left_out) pd_json_bool(w, "left_out", true);
        if (report.failures) pd_json_u64(w, "failures", report.failures);
        if (report.failures) pd_json_string(w, "cause", report.cause);
        if (report.skipped) pd_json_u64(w, "skipped", report.skipped);
        if (report.has_copies) add_copies(w, &report);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
}

static pd_status append_json(struct pd_metrics *m, const struct pd_metrics_step *s, struct pd_error *err)
{
    struct pd_json_writer w;
    uint64_t loss_bits;
    const char *text;
    size_t bytes;
    memcpy(&loss_bits, &s->result.loss, sizeof loss_bits);
    pd_json_writer_init(&w, 0);
    pd_json_object_begin(&w, NULL);
    pd_json_u64(&w, "step", s->step);
    pd_json_measured(&w, "loss", s->result.loss);
    pd_json_hex64(&w, "loss_bits", loss_bits);
    if (!isnan(s->validation_loss)) pd_json_measured(&w, "validation_loss", s->validation_loss);
    pd_json_measured(&w, "gradient_norm", s->result.gradient_norm);
    pd_json_double(&w, "learning_rate", s->result.learning_rate);
    if (m->options.has_loss_scale) {
        pd_json_double(&w, "loss_scale", s->loss_scale);
        pd_json_u64(&w, "skipped", s->skipped_steps);
    }
    if (m->options.has_stages) {
        pd_json_double(&w, "bubble", s->result.bubble);
        pd_json_double(&w, "bubble_theory", s->result.bubble_theory);
    }
    pd_json_u64(&w, "tokens", s->result.tokens);
    pd_json_double(&w, "seconds", s->seconds);
    pd_json_double(&w, "tokens_per_second", tokens_per_second(s));
    pd_json_double(&w, "gemm_share", gemm_share(m, s));
    pd_json_u64(&w, "memory_bytes", s->memory_bytes);
    if (s->device_free_bytes) pd_json_u64(&w, "device_free_bytes", s->device_free_bytes);
    pd_json_u64(&w, "last_checkpoint", s->last_checkpoint);
    add_tiers(&w, s->tiers);
    if (s->save_seconds > 0) {
        pd_json_double(&w, "save_seconds", s->save_seconds);
        pd_json_double(&w, "stall_seconds", s->stall_seconds);
    }
    pd_json_double(&w, "eta_seconds", eta_seconds(m, s));
    pd_json_u64(&w, "ranks", m->options.ranks);
    pd_json_u64(&w, "fence", s->fence);
    pd_json_object_end(&w);
    pd_status st = pd_json_writer_finish(&w, &text, &bytes, err);
    if (!st) {
        ssize_t written = write(m->file, text, bytes);
        int number = written < 0 ? errno : ENOSPC; /* a short write is a full disk */
        if (written != (ssize_t)bytes)
            st = pd_error_set(err, pd_status_from_errno(number), PD_WHERE, number, "%s/metrics.jsonl: appending",
                              m->options.directory);
    }
    pd_json_writer_deinit(&w);
    return st;
}

static void format_eta(double seconds, char *text, size_t room)
{
    uint64_t s = seconds > 0 ? (uint64_t)seconds : 0;
    if (s >= 86400)
        snprintf(text, room, "%llud%02lluh", (unsigned long long)(s / 86400), (unsigned long long)(s % 86400 / 3600));
    else
        snprintf(text, room, "%llu:%02llu:%02llu", (unsigned long long)(s / 3600), (unsigned long long)(s % 3600 / 60),
                 (unsigned long long)(s % 60));
}

static void print_progress(struct pd_metrics *m, const struct pd_metrics_step *s)
{
    char eta[32], validation[32] = "", checkpoint[48] = "none", bubble[64] = "", scale[64] = "";
    format_eta(eta_seconds(m, s), eta, sizeof eta);
    if (!isnan(m->validation_loss)) snprintf(validation, sizeof validation, " val %.4f", m->validation_loss);
    if (m->options.has_stages)
        snprintf(bubble, sizeof bubble, " bubble %.0f%% (theory %.0f%%)", 100 * s->result.bubble,
                 100 * s->result.bubble_theory);
    if (m->options.has_loss_scale)
        snprintf(scale, sizeof scale, " scale %g skipped %llu", s->loss_scale, (unsigned long long)s->skipped_steps);
    if (s->last_checkpoint) snprintf(checkpoint, sizeof checkpoint, "%llu", (unsigned long long)s->last_checkpoint);
    fprintf(stderr, "%sstep %llu/%llu loss %.4f%s |g| %.3f lr %.2e %.0f tok/s %.0f%% of GEMM%s%s %.2f GiB ckpt %s eta %s%s",
            m->progress.kind == PD_PROGRESS_BAR ? "\r\033[K" : "", (unsigned long long)s->step,
            (unsigned long long)m->options.steps, s->result.loss, validation, s->result.gradient_norm,
            s->result.learning_rate, tokens_per_second(s), 100 * gemm_share(m, s), bubble, scale,
            (double)s->memory_bytes / (1ull << 30), checkpoint, eta, m->progress.kind == PD_PROGRESS_BAR ? "" : "\n");
    fflush(stderr);
    m->drawn = m->progress.kind == PD_PROGRESS_BAR;
    m->last_line_ns = pd_clock_monotonic_ns(NULL);
}

static bool progress_due(const struct pd_metrics *m, const struct pd_metrics_step *s)
{
    if (m->progress.kind == PD_PROGRESS_OFF) return false;
    if (m->progress.kind == PD_PROGRESS_BAR || !m->last_line_ns || s->step == m->options.steps) return true;
    return pd_clock_seconds_since(NULL, m->last_line_ns) >= m->progress.line_seconds;
}

pd_status pd_metrics_write(struct pd_metrics *m, const struct pd_metrics_step *s, struct pd_error *err)
{
    if (!m->first_step) m->first_step = s->step;
    if (!isnan(s->validation_loss)) m->validation_loss = s->validation_loss;
    raise_bound(m, s);
    if (progress_due(m, s)) print_progress(m, s);
    bool notable = s->step == m->options.steps || !isnan(s->validation_loss) || s->save_seconds > 0;
    return notable || s->step % m->options.log_every == 0 ? append_json(m, s, err) : PD_OK;
}
