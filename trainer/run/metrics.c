#include "trainer/run/metrics.h"
#include "ckpt/base/backoff.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/log.h"
#include "ckpt/base/progress.h"
#include "ckpt/base/words.h"
#include "trainer/run/metrics_sink.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE "metrics"

static const struct pd_metrics_sink *const sinks[] = {&pd_metrics_json, &pd_metrics_tensorboard, &pd_metrics_prometheus};
enum { SINKS = sizeof sinks / sizeof *sinks };

/* State of one sink. */
struct outlet {
    void *open;              /* NULL: it is not open */
    uint64_t lost, retry_ns; /* consecutive lost lines; no reopening before retry_ns */
    uint32_t failures;       /* in a row */
};

struct pd_metrics {
    struct pd_metrics_options options;
    struct outlet outlets[SINKS];
    struct pd_metrics_line line; /* the newest */
    struct pd_progress_mode progress;
    uint64_t start_ns, last_line_ns;
    uint64_t first_step; /* of this launch */
    bool drawn;          /* the terminal shows a bar */
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
    struct pd_metrics *m = calloc(1, sizeof *m);
    if (!m) PD_FAIL(err, PD_NO_MEMORY, "metrics: no memory");
    *m = (struct pd_metrics){.options = *options,
                             .progress = pd_progress_mode(),
                             .start_ns = pd_clock_monotonic_ns(NULL),
                             .line = {.validation_loss = NAN}};
    for (int i = 0; i < SINKS; i++) {
        if (!sinks[i]->is_wanted(options->config)) continue;
        const pd_status st = sinks[i]->open(&m->options, &m->outlets[i].open, sinks[i]->is_record ? err : NULL);
        if (!st || !sinks[i]->is_record) continue; /* the first line retries, and logs the error */
        pd_metrics_close(m);
        return st;
    }
    *ret_metrics = m;
    return PD_OK;
}

void pd_metrics_close(struct pd_metrics *m)
{
    if (!m) return;
    if (m->drawn) (void)fputs(PD_PROGRESS_CLEAR, stderr);
    for (int i = 0; i < SINKS; i++)
        if (m->outlets[i].open) sinks[i]->close(m->outlets[i].open);
    free(m);
}

/* All that pass through the model, with a loss or without. */
static double tokens_per_second(const struct pd_metrics *m, const struct pd_metrics_step *s)
{
    const struct pd_config *c = m->options.config;
    return s->seconds > 0 ? (double)c->batch.sequences * c->batch.context / s->seconds : 0;
}

static double gemm_share(const struct pd_metrics *m, const struct pd_metrics_step *s)
{
    if (m->options.gemm_flops_per_second <= 0) return 0;
    return tokens_per_second(m, s) * m->options.flops_per_token / m->options.gemm_flops_per_second;
}

static double eta_seconds(const struct pd_metrics *m, const struct pd_metrics_step *s)
{
    double done = fmax((double)(s->step - m->first_step + 1), 1);
    return pd_clock_seconds_since(m->start_ns) / done * (double)(m->options.config->run.steps - s->step);
}

static void format_eta(double seconds, char *text, size_t capacity)
{
    uint64_t s = seconds > 0 ? (uint64_t)seconds : 0;
    if (s >= 86400)
        snprintf(text, capacity, "%llud%02lluh", (unsigned long long)(s / 86400), (unsigned long long)(s % 86400 / 3600));
    else
        snprintf(text, capacity, "%llu:%02llu:%02llu", (unsigned long long)(s / 3600), (unsigned long long)(s % 3600 / 60),
                 (unsigned long long)(s % 60));
}

/* " bucket 40 (35 s ago), 60: 45% at 120 MiB/s": the newest step there, and the one on its way. */
static void write_buckets(const struct pd_metrics_line *line, FILE *out)
{
    for (uint32_t i = 0; i < line->tier_count; i++) {
        const struct pd_tier_report *tier = &line->tiers[i];
        if (!tier->is_remote) continue;
        fprintf(out, tier->newest_step ? " bucket %llu" : " bucket none", (unsigned long long)tier->newest_step);
        if (tier->age_seconds > 0) fprintf(out, " (%.0f s ago)", tier->age_seconds);
        if (tier->uploading_step)
            fprintf(out, ", %llu: %.0f%% at %s/s", (unsigned long long)tier->uploading_step, 100 * tier->progress,
                    pd_bytes_text(tier->bytes_per_second).text);
    }
}

/* The most important comes first, for narrow terminals. */
static void write_progress(const struct pd_metrics *m, const struct pd_metrics_line *line, FILE *out)
{
    const struct pd_metrics_step *s = &line->step;
    char eta[32], newest[24] = "none";
    format_eta(line->eta_seconds, eta, sizeof eta);
    if (s->last_checkpoint) snprintf(newest, sizeof newest, "%llu", (unsigned long long)s->last_checkpoint);
    fprintf(out, "step %llu/%llu loss %.4f", (unsigned long long)s->step, (unsigned long long)m->options.config->run.steps,
            s->result.loss);
    if (!isnan(line->validation_loss)) fprintf(out, " val %.4f", line->validation_loss);
    fprintf(out, " %.0f tok/s ckpt %s eta %s |g| %.3f lr %.2e %.0f%% of GEMM", line->tokens_per_second, newest, eta,
            s->result.gradient_norm, s->result.learning_rate, 100 * line->gemm_share);
    write_buckets(line, out);
    /* A reason for slow steps: other programs use the cores. */
    double load;
    const uint32_t cores = pd_cpu_cores();
    if (getloadavg(&load, 1) == 1 && load > 1.25 * cores + 1)
        fprintf(out, " (load %.0f on %s)", load, pd_counted(cores, "core").text);
    fprintf(out, " %.2f GiB", (double)s->memory_bytes / (1ull << 30));
    if (m->options.has_stages)
        fprintf(out, " bubble %.0f%% (theory %.0f%%)", 100 * s->result.bubble, 100 * s->result.bubble_theory);
    if (m->options.config->numerics.precision == PD_F16)
        fprintf(out, " scale %g skipped %llu", s->loss_scale, (unsigned long long)s->skipped_steps);
    else if (s->skipped_steps)
        fprintf(out, " skipped %llu", (unsigned long long)s->skipped_steps);
}

/* The last bar stays: only log lines follow. */
static void print_progress(struct pd_metrics *m, const struct pd_metrics_line *line)
{
    const bool is_bar = m->progress.kind == PD_PROGRESS_BAR, is_last = line->step.step == m->options.config->run.steps;
    const size_t columns = is_bar ? pd_progress_columns() : 0;
    char text[512] = "";
    FILE *out = fmemopen(text, sizeof text - 1, "w");
    if (!out) return;
    write_progress(m, line, out);
    (void)fclose(out);
    if (columns && strlen(text) >= columns) { /* a column stays free: a full line would wrap on some terminals */
        text[columns - 1] = '\0';
        char *last = strrchr(text, ' ');
        if (last) *last = '\0'; /* drop a whole word */
    }
    (void)fprintf(stderr, "%s%s%s", is_bar ? PD_PROGRESS_CLEAR : "", text, is_bar && !is_last ? "" : "\n");
    (void)fflush(stderr);
    m->drawn = is_bar && !is_last;
    m->last_line_ns = pd_clock_monotonic_ns(NULL);
}

static bool progress_due(const struct pd_metrics *m, const struct pd_metrics_step *s)
{
    if (m->progress.kind == PD_PROGRESS_OFF || s->kind == PD_METRICS_TO_VALIDATE) return false;
    if (m->progress.kind == PD_PROGRESS_BAR || !m->last_line_ns || s->step == m->options.config->run.steps ||
        !isnan(s->validation_loss))
        return true;
    return pd_clock_seconds_since(m->last_line_ns) >= m->progress.line_seconds;
}

/* Warns once when it breaks, and logs once when it works again. A failed sink is reopened at growing intervals; the record
 * stays open and takes the next line it can. */
static void write_to(struct pd_metrics *m, int number)
{
    const struct pd_metrics_sink *sink = sinks[number];
    struct outlet *o = &m->outlets[number];
    struct pd_error error = {0};
    const unsigned long long step = m->line.step.step;
    if (!o->open && pd_clock_monotonic_ns(NULL) < o->retry_ns) {
        o->lost++;
        return;
    }
    pd_status st = o->open ? PD_OK : sink->open(&m->options, &o->open, &error);
    if (!st) st = sink->write(o->open, &m->line, &error);
    if (!st) {
        if (o->lost)
            pd_log_info(MODULE, "%s is written again from step %llu on; %s lost", sink->name, step,
                        pd_counted(o->lost, "line").text);
        o->lost = o->failures = 0;
        return;
    }
    o->lost++;
    if (o->failures++ == 0)
        pd_log_warn(MODULE, "%s: lines from step %llu on are lost: %s; the run continues", sink->name, step, error.message);
    if (sink->is_record) return;
    o->retry_ns = pd_clock_monotonic_ns(NULL) + pd_backoff_ns(o->failures);
    if (o->open) sink->close(o->open);
    o->open = NULL;
}

static void add_to_totals(struct pd_metrics_totals *t, const struct pd_metrics_step *s)
{
    t->steps++;
    t->tokens += s->result.tokens;
    t->seconds += s->seconds;
    t->saves += s->saves;
    t->save_seconds += s->save_seconds;
    t->stall_seconds += s->stall_seconds;
    for (int i = 0; i < PD_STEP_STAGES; i++)
        t->stage_seconds[i] += s->result.stage_seconds[i];
}

static void make_line(struct pd_metrics *m, const struct pd_metrics_step *s)
{
    struct pd_metrics_line *line = &m->line;
    line->time = (double)pd_clock_wall_ns() / 1e9;
    line->step = *s;
    line->tokens_per_second = tokens_per_second(m, s);
    line->gemm_share = gemm_share(m, s);
    line->eta_seconds = eta_seconds(m, s);
    if (!isnan(s->validation_loss)) line->validation_loss = s->validation_loss;
    line->tier_count = s->tiers ? pd_tiers_count(s->tiers) : 0;
    for (uint32_t i = 0; i < line->tier_count; i++)
        pd_tiers_report(s->tiers, i, &line->tiers[i]);
    if (s->kind != PD_METRICS_VALIDATED) add_to_totals(&line->totals, s);
}

void pd_metrics_write(struct pd_metrics *m, const struct pd_metrics_step *s)
{
    const bool is_before = s->kind == PD_METRICS_VALIDATED; /* a step of an earlier start, if it is the first line */
    if (!m->first_step) m->first_step = s->step + is_before;
    /* A step faster than its GEMMs alone means that something else ran while those were measured. */
    if (m->options.gemm_flops_per_second > 0)
        m->options.gemm_flops_per_second =
            fmax(m->options.gemm_flops_per_second, tokens_per_second(m, s) * m->options.flops_per_token);
    make_line(m, s);
    if (progress_due(m, s)) print_progress(m, &m->line);
    const bool notable = s->step == m->options.config->run.steps || s->kind != PD_METRICS_STEP ||
                         !isnan(s->validation_loss) || s->save_seconds > 0;
    if (notable || s->step % m->options.config->run.log_every == 0) {
        for (int i = 0; i < SINKS; i++)
            if (sinks[i]->is_wanted(m->options.config)) write_to(m, i);
    }
}
