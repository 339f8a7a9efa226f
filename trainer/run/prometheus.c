#include "trainer/run/prometheus.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A label's value: backslash, quote and newline are escaped. */
static void escape(const char *text, char *ret, size_t room)
{
    size_t used = 0;
    for (; *text && used + 3 < room; text++) {
        if (strchr("\\\"\n", *text)) ret[used++] = '\\';
        ret[used++] = *text == '\n' ? 'n' : *text;
    }
    ret[used] = '\0';
}

void pd_prometheus_init(struct pd_prometheus *ret_prometheus, const struct pd_metrics_options *options)
{
    const struct pd_config *c = options->config;
    struct pd_tier_options tiers[PD_TIERS_MAX];
    struct pd_prometheus *p = ret_prometheus;
    *p = (struct pd_prometheus){.ranks = options->ranks, .planned_bytes = options->planned_bytes, .steps = c->run.steps};
    escape(c->run.dir, p->run, sizeof p->run);
    p->tier_count = pd_config_tiers(c, tiers);
    for (uint32_t i = 0; i < p->tier_count; i++)
        escape(tiers[i].dir, p->tiers[i], sizeof p->tiers[i]);
}

struct text {
    FILE *f;
    const char *run;
};

static void head(const struct text *t, const char *name, const char *type, const char *help)
{
    fprintf(t->f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void value(const struct text *t, double number)
{
    if (isnan(number))
        fputs(" NaN\n", t->f);
    else if (isinf(number))
        fputs(number > 0 ? " +Inf\n" : " -Inf\n", t->f);
    else
        fprintf(t->f, " %.17g\n", number);
}

static void labelled(const struct text *t, const char *name, const char *label, const char *of, double number)
{
    fprintf(t->f, "%s{run=\"%s\",%s=\"%s\"}", name, t->run, label, of);
    value(t, number);
}

static void one(const struct text *t, const char *name, const char *type, const char *help, double number)
{
    head(t, name, type, help);
    fprintf(t->f, "%s{run=\"%s\"}", name, t->run);
    value(t, number);
}

/* A summary without quantiles: rate(sum) / rate(count) is the mean of any window. */
static void summary(const struct text *t, const char *name, const char *help, double sum, uint64_t count)
{
    head(t, name, "summary", help);
    fprintf(t->f, "%s_sum{run=\"%s\"}", name, t->run);
    value(t, sum);
    fprintf(t->f, "%s_count{run=\"%s\"} %" PRIu64 "\n", name, t->run, count);
}

static void add_memory(const struct text *t, const struct pd_prometheus *p, const struct pd_metrics_step *s)
{
    one(t, "perdure_memory_bytes", "gauge", "Resident memory of the process of rank 0.", (double)s->memory_bytes);
    one(t, "perdure_planned_memory_bytes", "gauge", "Memory of rank 0 by the plan.", (double)p->planned_bytes);
    if (s->device_free_bytes)
        one(t, "perdure_device_free_bytes", "gauge", "Free memory of the GPU of rank 0.", (double)s->device_free_bytes);
}

static void add_saves(const struct text *t, const struct pd_metrics_line *line)
{
    const struct pd_metrics_totals *totals = &line->totals;
    one(t, "perdure_checkpoint_step", "gauge", "Newest committed step.", (double)line->step.last_checkpoint);
    one(t, "perdure_save_failures", "gauge", "Saves that failed in a row, in every tier.", (double)line->step.save_failures);
    summary(t, "perdure_save_seconds", "Time of saves since this start.", totals->save_seconds, totals->saves);
    one(t, "perdure_save_stall_seconds_total", "counter", "Time that training waited for saves since this start.",
        totals->stall_seconds);
}

static void add_tiers(const struct text *t, const struct pd_prometheus *p, const struct pd_metrics_line *line)
{
    const uint32_t count = line->tier_count < p->tier_count ? line->tier_count : p->tier_count;
    if (!count) return;
    head(t, "perdure_tier_step", "gauge", "Newest step that lies in a tier.");
    for (uint32_t i = 0; i < count; i++)
        labelled(t, "perdure_tier_step", "dir", p->tiers[i], (double)line->tiers[i].newest_step);
    head(t, "perdure_tier_failures", "gauge", "Saves into a tier that failed in a row.");
    for (uint32_t i = 0; i < count; i++)
        labelled(t, "perdure_tier_failures", "dir", p->tiers[i], line->tiers[i].failures);
    head(t, "perdure_tier_skipped_total", "counter", "Steps that were due in a tier and gave way to newer ones.");
    for (uint32_t i = 0; i < count; i++)
        labelled(t, "perdure_tier_skipped_total", "dir", p->tiers[i], (double)line->tiers[i].skipped);
}

pd_status pd_prometheus_text(const struct pd_prometheus *p, const struct pd_metrics_line *line, char **ret_text,
                             struct pd_error *err)
{
    char *text = NULL;
    size_t bytes;
    const struct text t = {open_memstream(&text, &bytes), p->run};
    if (!t.f) PD_FAIL(err, PD_NO_MEMORY, "metrics: no memory");
    const struct pd_metrics_step *s = &line->step;
    one(&t, "perdure_step", "gauge", "Newest step.", (double)s->step);
    one(&t, "perdure_planned_steps", "gauge", "Steps of the whole run.", (double)p->steps);
    one(&t, "perdure_loss", "gauge", "Mean loss of the newest step, in nats a token.", s->result.loss);
    if (!isnan(line->validation_loss))
        one(&t, "perdure_validation_loss", "gauge", "Newest validation loss, in nats a token.", line->validation_loss);
    one(&t, "perdure_gradient_norm", "gauge", "Global norm of the gradient before clipping.", s->result.gradient_norm);
    one(&t, "perdure_learning_rate", "gauge", "Learning rate of the newest step.", s->result.learning_rate);
    one(&t, "perdure_last_step_timestamp_seconds", "gauge", "When the newest step ended.", line->time);
    one(&t, "perdure_start_fence", "gauge", "Number of the start: it grows with every restart.", (double)s->fence);
    one(&t, "perdure_ranks", "gauge", "Ranks of this start.", p->ranks);
    one(&t, "perdure_stragglers", "gauge", "Ranks that are slower than others with the same work.", s->straggler_count);
    one(&t, "perdure_eta_seconds", "gauge", "Expected time to the last step.", line->eta_seconds);
    const struct pd_metrics_totals *totals = &line->totals;
    one(&t, "perdure_tokens_total", "counter", "Tokens trained on since this start.", (double)totals->tokens);
    one(&t, "perdure_tokens_per_second", "gauge", "Tokens a second of the newest step.", line->tokens_per_second);
    one(&t, "perdure_gemm_ratio", "gauge", "Speed as a share of what bare matrix products reached.", line->gemm_share);
    summary(&t, "perdure_step_seconds", "Time of steps since this start.", totals->seconds, totals->steps);
    head(&t, "perdure_stage_seconds_total", "counter", "Time of rank 0 in each part of its steps since this start.");
    for (int i = 0; i < PD_STEP_STAGES; i++)
        labelled(&t, "perdure_stage_seconds_total", "stage", pd_step_stage_names[i], totals->stage_seconds[i]);
    add_memory(&t, p, &line->step);
    add_saves(&t, line);
    add_tiers(&t, p, line);
    if (fclose(t.f) == 0) {
        *ret_text = text;
        return PD_OK;
    }
    free(text);
    PD_FAIL(err, PD_NO_MEMORY, "metrics: no memory");
}
