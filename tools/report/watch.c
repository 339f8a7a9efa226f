#include "tools/report/watch.h"

#include "ckpt/base/clock.h"
#include "tools/report/figures.h"
#include "trainer/config/config.h"
#include "trainer/run/note.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SILENT_SECONDS 30.0

/* ---- ranks ---- */

/* The third word of /proc/PROCESS/stat, behind the name in parentheses. */
static char state_of(int32_t process)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *f = fopen(path, "re");
    if (!f) return '\0';
    const size_t bytes = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    text[bytes] = '\0';
    const char *end = strrchr(text, ')');
    return end && end[1] ? end[2] : '\0';
}

static void look_at_ranks(struct pd_watch *w)
{
    const struct pd_history *h = &w->history;
    const uint32_t ranks = h->start_count ? h->starts[h->start_count - 1].ranks : 0;
    w->rank_count = 0;
    for (uint32_t rank = 0; h->notes[0] && rank < ranks && rank < PD_WATCH_RANKS_MAX; rank++) {
        struct pd_note_begun note;
        struct stat st;
        char path[4096];
        if (!pd_note_read_process(h->notes, PD_NOTE_BEGUN, rank, &note)) continue;
        struct pd_watch_rank *r = &w->ranks[w->rank_count++];
        *r = (struct pd_watch_rank){rank, note.process, note.is_here, note.is_here ? state_of(note.process) : '\0', NAN};
        snprintf(path, sizeof path, "%s/ready-%u", h->notes, rank);
        if (stat(path, &st) == 0) r->age = fmax(w->now - ((double)st.st_mtim.tv_sec + (double)st.st_mtim.tv_nsec / 1e9), 0);
    }
}

/* ---- the run ---- */

static bool launcher_is_gone(const struct pd_history *h)
{
    char host[64] = "";
    (void)gethostname(host, sizeof host - 1);
    return h->launcher_process && strcmp(host, h->launcher_host) == 0 && !state_of((int32_t)h->launcher_process);
}

static enum pd_watch_state judge(const struct pd_watch *w)
{
    const struct pd_history *h = &w->history;
    const struct pd_history_start *s = h->start_count ? &h->starts[h->start_count - 1] : NULL;
    const double last = pd_history_last(h, PD_COLUMN_TIME);
    if (s && s->exit_code >= 0) return s->is_over ? PD_WATCH_ENDED : launcher_is_gone(h) ? PD_WATCH_GONE : PD_WATCH_BETWEEN;
    if (launcher_is_gone(h)) return PD_WATCH_GONE;
    if (s && !s->rows) return PD_WATCH_STARTING;
    const double usual = pd_history_quantile(h, PD_COLUMN_SECONDS, h->rows > 20 ? h->rows - 20 : 0, h->rows - 1, 0.5);
    return w->now - last > fmax(SILENT_SECONDS, 5 * usual) ? PD_WATCH_SILENT : PD_WATCH_TRAINING;
}

/* run.steps may be raised between two starts. */
static void read_steps(struct pd_watch *w)
{
    struct pd_config config;
    char path[4400];
    snprintf(path, sizeof path, "%s/config.yaml", w->history.dir);
    if (pd_config_load_saved(path, &config, NULL)) return;
    w->steps = config.run.steps;
    pd_config_deinit(&config);
}

pd_status pd_watch_look(struct pd_watch *w, struct pd_error *err)
{
    const uint64_t before = w->history.start_count;
    w->now = (double)pd_clock_wall_ns(NULL) / 1e9;
    PD_TRY(pd_history_refresh(&w->history, err));
    if (!w->steps || before != w->history.start_count) read_steps(w);
    look_at_ranks(w);
    w->state = judge(w);
    return PD_OK;
}

pd_status pd_watch_open(const char *dir, struct pd_watch *ret_watch, struct pd_error *err)
{
    *ret_watch = (struct pd_watch){.steps = 0};
    PD_TRY(pd_history_open(dir, &ret_watch->history, err));
    const pd_status st = pd_watch_look(ret_watch, err);
    if (st) pd_watch_close(ret_watch);
    return st;
}

void pd_watch_close(struct pd_watch *w)
{
    pd_history_close(&w->history);
}

/* ---- lines ---- */

static void add_event(FILE *out, double time, const char *text)
{
    char when[32];
    pd_history_moment(time, when, sizeof when);
    fprintf(out, "%s %s\n", when, text);
}

/* Three of a start: that it begins, that it is open, that it has ended. */
uint64_t pd_watch_events(const struct pd_watch *w, uint64_t first, FILE *out)
{
    const struct pd_history *h = &w->history;
    uint64_t count = 0;
    char text[700], layout[64];
    for (uint64_t i = 0; i < h->start_count; i++) {
        const struct pd_history_start *s = &h->starts[i];
        pd_figures_layout(s, layout, sizeof layout);
        if (!isnan(s->begun) && count++ >= first) {
            snprintf(text, sizeof text, "start %" PRIu64 ": %s", i + 1, layout);
            add_event(out, s->begun, text);
        }
        if (!isnan(s->opened) && s->fence && count++ >= first) {
            snprintf(text, sizeof text, "start %" PRIu64 ": %s from step %" PRIu64, i + 1, layout, s->from_step);
            add_event(out, s->opened, text);
        }
        if (s->exit_code < 0 || count++ < first) continue;
        if (s->exit_code == 0)
            snprintf(text, sizeof text, "start %" PRIu64 ": done at step %" PRIu64, i + 1, s->last_step);
        else
            snprintf(text, sizeof text, "start %" PRIu64 ": ended with %d: %s%s", i + 1, s->exit_code, s->cause,
                     s->is_over ? "" : "; another start follows");
        add_event(out, s->ended, text);
    }
    return count;
}

static const char *const states[] = {"starting",           "training", "no step for a while",
                                     "between two starts", "ended",    "its launcher is gone"};

void pd_watch_line(const struct pd_watch *w, char *ret_text, size_t room)
{
    const struct pd_history *h = &w->history;
    char speed[64], layout[64] = "", steps[32] = "";
    pd_quantity_text(PD_QUANTITY_COUNT, pd_history_last(h, PD_COLUMN_TOKENS_PER_SECOND), speed, sizeof speed);
    if (h->start_count) pd_figures_layout(&h->starts[h->start_count - 1], layout, sizeof layout);
    if (w->steps) snprintf(steps, sizeof steps, "/%" PRIu64, w->steps);
    if (h->rows)
        snprintf(ret_text, room, "step %.0f%s loss %.4f %s tok/s ckpt %" PRIu64 "; %s, %s",
                 pd_history_last(h, PD_COLUMN_STEP), steps, pd_history_last(h, PD_COLUMN_LOSS), speed, h->saved_step, layout,
                 states[w->state]);
    else
        snprintf(ret_text, room, "no step yet; %s%s%s", layout, layout[0] ? ", " : "", states[w->state]);
}

void pd_watch_json(const struct pd_watch *w, struct pd_json_writer *writer)
{
    const struct pd_history *h = &w->history;
    const double step = pd_history_last(h, PD_COLUMN_STEP);
    pd_json_object_begin(writer, NULL);
    pd_json_double(writer, "time", w->now);
    pd_json_string(writer, "state", states[w->state]);
    pd_json_u64(writer, "step", step >= 0 ? (uint64_t)step : 0);
    pd_json_u64(writer, "steps", w->steps);
    pd_json_u64(writer, "saved_step", h->saved_step);
    pd_json_u64(writer, "starts", h->start_count);
    pd_json_measured(writer, "loss", pd_history_last(h, PD_COLUMN_LOSS));
    pd_json_measured(writer, "validation_loss", pd_history_last(h, PD_COLUMN_VALIDATION_LOSS));
    pd_json_measured(writer, "tokens_per_second", pd_history_last(h, PD_COLUMN_TOKENS_PER_SECOND));
    pd_json_measured(writer, "eta_seconds", pd_history_last(h, PD_COLUMN_ETA));
    pd_json_array_begin(writer, "ranks");
    for (uint32_t i = 0; i < w->rank_count; i++) {
        const struct pd_watch_rank *r = &w->ranks[i];
        pd_json_object_begin(writer, NULL);
        pd_json_u64(writer, "rank", r->rank);
        pd_json_i64(writer, "process", r->process);
        pd_json_bool(writer, "is_gone", r->is_here && (!r->state || r->state == 'Z'));
        pd_json_measured(writer, "age_seconds", r->age);
        pd_json_object_end(writer);
    }
    pd_json_array_end(writer);
    pd_json_object_end(writer);
}
