/* perdure report --json: the numbers of a report. */
#include "tools/report/page.h"

#include <math.h>

static void add_starts(struct pd_json_writer *w, const struct pd_history *h)
{
    pd_json_array_begin(w, "starts");
    for (uint64_t i = 0; i < h->start_count; i++) {
        const struct pd_history_start *s = &h->starts[i];
        pd_json_object_begin(w, NULL);
        pd_json_u64(w, "fence", s->fence);
        pd_json_measured(w, "begun", s->begun);
        pd_json_measured(w, "opened", s->opened);
        pd_json_measured(w, "ended", s->ended);
        PD_JSON_U64S(w, {"ranks", s->ranks}, {"hosts", s->hosts}, {"threads", s->threads}, {"dp", s->dp}, {"tp", s->tp},
                     {"pp", s->pp}, {"sp", s->sp}, {"zero_stage", s->zero_stage});
        pd_json_string(w, "device", s->device);
        PD_JSON_U64S(w, {"from_step", s->from_step}, {"last_step", s->last_step}, {"lost_steps", s->lost_steps});
        pd_json_double(w, "lost_seconds", s->lost_seconds);
        pd_json_u64(w, "planned_bytes", s->planned_bytes);
        pd_json_u64(w, "checkpoint_bytes", s->checkpoint_bytes);
        if (s->exit_code < 0)
            pd_json_null(w, "exit_code");
        else
            pd_json_i64(w, "exit_code", s->exit_code);
        pd_json_string(w, "cause", s->cause[0] ? s->cause : NULL);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
}

static void add_numbers(struct pd_json_writer *w, const struct pd_history *h)
{
    const uint64_t last = h->rows - 1;
    pd_json_measured(w, "step", pd_history_last(h, PD_COLUMN_STEP));
    pd_json_u64(w, "checkpoint_step", h->saved_step);
    pd_json_measured(w, "loss", pd_history_last(h, PD_COLUMN_LOSS));
    pd_json_measured(w, "validation_loss", pd_history_last(h, PD_COLUMN_VALIDATION_LOSS));
    pd_json_measured(w, "best_validation_loss", pd_history_quantile(h, PD_COLUMN_VALIDATION_LOSS, 0, last, 0));
    pd_json_measured(w, "tokens_per_second_median", pd_history_quantile(h, PD_COLUMN_TOKENS_PER_SECOND, 0, last, 0.5));
    pd_json_measured(w, "gemm_share_median", pd_history_quantile(h, PD_COLUMN_GEMM_SHARE, 0, last, 0.5));
    pd_json_measured(w, "step_seconds_median", pd_history_quantile(h, PD_COLUMN_SECONDS, 0, last, 0.5));
    pd_json_measured(w, "step_seconds_max", pd_history_quantile(h, PD_COLUMN_SECONDS, 0, last, 1));
    pd_json_measured(w, "gradient_norm_max", pd_history_quantile(h, PD_COLUMN_GRADIENT_NORM, 0, last, 1));
    pd_json_measured(w, "memory_bytes_max", pd_history_quantile(h, PD_COLUMN_MEMORY, 0, last, 1));
    pd_json_measured(w, "save_seconds_median", pd_history_quantile(h, PD_COLUMN_SAVE_SECONDS, 0, last, 0.5));
    pd_json_measured(w, "save_seconds_max", pd_history_quantile(h, PD_COLUMN_SAVE_SECONDS, 0, last, 1));
    pd_json_measured(w, "stall_seconds_max", pd_history_quantile(h, PD_COLUMN_STALL_SECONDS, 0, last, 1));
    const uint64_t since = pd_history_not_finite_since(h, NULL, 0);
    pd_json_measured(w, "loss_not_finite_since", since ? (double)since : NAN);
    pd_json_measured(w, "skipped_steps", pd_history_last(h, PD_COLUMN_SKIPPED));
    pd_json_u64(w, "lines", h->rows);
    pd_json_u64(w, "damaged_lines", h->damaged_lines);
}

static void add_tiers(struct pd_json_writer *w, const struct pd_history *h)
{
    pd_json_array_begin(w, "tiers");
    for (uint32_t i = 0; i < h->tier_count; i++) {
        pd_json_object_begin(w, NULL);
        pd_json_string(w, "directory", h->tiers[i].dir);
        pd_json_u64(w, "saves", pd_history_saves(h, i, NULL));
        pd_json_measured(w, "seconds_mean", h->tiers[i].timed ? h->tiers[i].seconds / (double)h->tiers[i].timed : NAN);
        pd_json_measured(w, "seconds_max", h->tiers[i].timed ? h->tiers[i].seconds_max : NAN);
        pd_json_u64(w, "newest_step", h->tiers[i].newest);
        pd_json_u64(w, "failures", h->tiers[i].failures);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
}

static void add_store(struct pd_json_writer *w, const struct pd_report_run *run)
{
    pd_json_array_begin(w, "checkpoints");
    for (uint64_t i = 0; i < run->checkpoint_count; i++) {
        const struct pd_report_checkpoint *c = &run->checkpoints[i];
        pd_json_object_begin(w, NULL);
        pd_json_string(w, "name", c->name);
        pd_json_string(w, "directory", c->dir);
        PD_JSON_U64S(w, {"step", c->step}, {"lineage", c->lineage}, {"world", c->ranks}, {"bytes", c->bytes});
        pd_json_measured(w, "loss", c->loss);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
    if (run->store_note[0]) pd_json_string(w, "store_note", run->store_note);
}

void pd_report_json(const struct pd_report_data *r, struct pd_json_writer *w)
{
    pd_json_object_begin(w, NULL);
    pd_json_array_begin(w, "runs");
    for (uint32_t i = 0; i < r->count; i++) {
        const struct pd_report_run *run = &r->runs[i];
        pd_json_object_begin(w, NULL);
        pd_json_string(w, "run_dir", run->history.dir);
        add_numbers(w, &run->history);
        const struct pd_history_life *l = &run->life;
        pd_json_object_begin(w, "seconds");
        PD_JSON_DOUBLES(w, {"whole", l->whole}, {"useful", l->useful}, {"lost", l->lost}, {"saving", l->saving},
                        {"opening", l->opening}, {"down", l->down}, {"idle", l->idle}, {"other", l->other});
        pd_json_object_end(w);
        pd_json_measured(w, "goodput", l->goodput);
        pd_json_u64(w, "failures", l->failures);
        pd_json_u64(w, "lost_steps", l->lost_steps);
        add_starts(w, &run->history);
        add_tiers(w, &run->history);
        add_store(w, run);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
    pd_json_array_begin(w, "differences");
    for (uint32_t k = 0; k < r->difference_count; k++) {
        pd_json_object_begin(w, NULL);
        pd_json_string(w, "key", r->differences[k].key);
        pd_json_array_begin(w, "values");
        for (uint32_t i = 0; i < r->count; i++)
            pd_json_string(w, NULL, r->differences[k].values[i]);
        pd_json_array_end(w);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
    pd_json_object_end(w);
}
