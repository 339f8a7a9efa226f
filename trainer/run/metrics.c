#include "trainer/run/metrics.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/progress.h"
#include "trainer/run/metrics_sink.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const struct pd_metrics_sink *const sinks[] = {&pd_metrics_json};
enum { SINKS = sizeof sinks / sizeof *sinks };

struct pd_metrics {
    struct pd_metrics_options options;
    void *open[SINKS]; /* NULL: not opened */
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
    struct pd_metrics *m = calloc(1, sizeof *m);
    if (!m) PD_FAIL(err, PD_NO_MEMORY, "metrics: no memory");
    *m = (struct pd_metrics){.options = *options,
                             .progress = pd_progress_mode(),
                             .start_ns = pd_clock_monotonic_ns(NULL),
                             .validation_loss = NAN};
    pd_status st = PD_OK;
    for (int i = 0; !st && i < SINKS; i++)
        st = sinks[i]->open(options, &m->open[i], err);
    if (st) {
        pd_metrics_close(m);
        return st;
    }
    *ret_metrics = m;
    return PD_OK;
}

void pd_metrics_close(struct pd_metrics *m)
{
    if (!m) return;
    if (m->drawn) fputc('\n', stderr);
    for (int i = 0; i < SINKS; i++)
        if (m->open[i]) sinks[i]->close(m->open[i]);
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

static void format_eta(double seconds, char *text, size_t room)
{
    uint64_t s = seconds > 0 ? (uint64_t)seconds : 0;
    if (s >= 86400)
        snprintf(text, room, "%llud%02lluh", (unsigned long long)(s / 86400), (unsigned long long)(s % 86400 / 3600));
    else
        snprintf(text, room, "%llu:%02llu:%02llu", (unsigned long long)(s / 3600), (unsigned long long)(s % 3600 / 60),
                 (unsigned long long)(s % 60));
}

static void print_progress(struct pd_metrics *m, const struct pd_metrics_line *line)
{
    const struct pd_metrics_step *s = line->step;
    char eta[32], validation[32] = "", checkpoint[48] = "none", bubble[64] = "", scale[64] = "";
    format_eta(line->eta_seconds, eta, sizeof eta);
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
            s->result.learning_rate, line->tokens_per_second, 100 * line->gemm_share, bubble, scale,
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

/* Every sink gets the line; the first failure is the caller's to log. */
static pd_status write_sinks(struct pd_metrics *m, const struct pd_metrics_line *line, struct pd_error *err)
{
    pd_status first = PD_OK;
    for (int i = 0; i < SINKS; i++) {
        const pd_status st = sinks[i]->write(m->open[i], line, first ? NULL : err);
        if (!first) first = st;
    }
    return first;
}

pd_status pd_metrics_write(struct pd_metrics *m, const struct pd_metrics_step *s, struct pd_error *err)
{
    if (!m->first_step) m->first_step = s->step;
    if (!isnan(s->validation_loss)) m->validation_loss = s->validation_loss;
    raise_bound(m, s);
    const struct pd_metrics_line line = {&m->options, s, tokens_per_second(s), gemm_share(m, s), eta_seconds(m, s)};
    if (progress_due(m, s)) print_progress(m, &line);
    const bool notable = s->step == m->options.steps || !isnan(s->validation_loss) || s->save_seconds > 0;
    return notable || s->step % m->options.log_every == 0 ? write_sinks(m, &line, err) : PD_OK;
}
