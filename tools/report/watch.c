#include "tools/report/watch.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/utf8.h"
#include "tools/report/figures.h"
#include "trainer/config/config.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define SILENT_SECONDS 30.0

/* ---- ranks ---- */

/* The third word of /proc/PROCESS/stat, after the name in parentheses. */
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

static bool is_gone(int32_t process)
{
    const char state = state_of(process);
    return !state || state == 'Z';
}

static bool is_stopped(int32_t process)
{
    return state_of(process) == 'T';
}

/* ---- the run ---- */

static enum pd_watch_state watch_judge(const struct pd_watch *w)
{
    const struct pd_history *h = &w->history;
    const struct pd_history_start *s = h->start_count ? &h->starts[h->start_count - 1] : NULL;
    const double last = pd_history_last(h, PD_COLUMN_TIME);
    const bool is_alone =
        w->is_here && h->launcher_process && !state_of((int32_t)h->launcher_process); /* ranks run without their launcher */
    if (s && s->exit_code >= 0) return s->is_over ? PD_WATCH_ENDED : is_alone ? PD_WATCH_GONE : PD_WATCH_BETWEEN;
    if (is_alone) return PD_WATCH_GONE;
    if (s && !s->rows) return PD_WATCH_STARTING;
    const double usual = pd_history_quantile(h, PD_COLUMN_SECONDS, h->rows > 20 ? h->rows - 20 : 0, h->rows - 1, 0.5);
    return w->now - last > fmax(SILENT_SECONDS, 5 * usual) ? PD_WATCH_SILENT : PD_WATCH_TRAINING;
}

/* run.steps may be raised between two starts; rank 0 writes it some time after the launcher's start event. */
static void read_steps(struct pd_watch *w)
{
    struct pd_config config;
    struct stat st, *read = &w->config;
    char path[4400];
    snprintf(path, sizeof path, "%s/config.yaml", w->history.dir);
    if (stat(path, &st) || !S_ISREG(st.st_mode)) return;
    if (st.st_ino == read->st_ino && st.st_size == read->st_size && st.st_mtim.tv_sec == read->st_mtim.tv_sec &&
        st.st_mtim.tv_nsec == read->st_mtim.tv_nsec)
        return;
    *read = st;
    if (pd_config_load_saved(path, &config, NULL)) return;
    w->steps = config.run.steps;
    pd_config_deinit(&config);
}

/* True if it was removed, moved or replaced. A file system that does not answer for a while does not count. */
static bool has_no_directory(const struct pd_watch *w)
{
    struct stat st;
    if (stat(w->history.dir, &st)) return errno == ENOENT || errno == ENOTDIR;
    return st.st_ino != w->directory.st_ino || !st.st_nlink;
}

/* If the disk was full, lines of metrics.jsonl are missing; the leave event still has the step. */
static double newest_step(const struct pd_history *h)
{
    const double step = pd_history_last(h, PD_COLUMN_STEP);
    const double left = h->start_count ? (double)h->starts[h->start_count - 1].left_step : 0;
    return left > 0 && !(step >= left) ? left : step;
}

pd_status pd_watch_look(struct pd_watch *w, struct pd_error *err)
{
    w->now = (double)pd_clock_wall_ns() / 1e9;
    if (has_no_directory(w)) {
        w->state = PD_WATCH_NO_DIRECTORY;
        return PD_OK;
    }
    PD_TRY(pd_history_refresh(&w->history, err));
    w->step = newest_step(&w->history);
    read_steps(w);
    char host[64] = "";
    (void)gethostname(host, sizeof host - 1);
    w->is_here = strcmp(host, w->history.launcher_host) == 0;
    w->state = watch_judge(w);
    return PD_OK;
}

pd_status pd_watch_open(const char *dir, struct pd_watch *ret_watch, struct pd_error *err)
{
    *ret_watch = (struct pd_watch){.steps = 0};
    PD_TRY(pd_history_open(dir, &ret_watch->history, err));
    pd_status st = PD_OK;
    if (stat(dir, &ret_watch->directory)) st = pd_error_set(err, PD_IO, PD_WHERE, errno, "%s: looking at it", dir);
    if (!st) st = pd_watch_look(ret_watch, err);
    if (st) pd_watch_close(ret_watch);
    return st;
}

void pd_watch_close(struct pd_watch *w)
{
    pd_history_close(&w->history);
}

/* ---- lines ---- */

/* Prints a line; escapes anything in a cause that could control the terminal. */
static void add_event(FILE *out, double time, char *text)
{
    char when[32];
    pd_utf8_clean(text);
    for (char *c = text; (c = strpbrk(c, "\n\t"));)
        *c = ' ';
    pd_history_moment(time, when, sizeof when);
    fprintf(out, "%s %s\n", when, text);
}

/* Three events of a start: begun, open, ended. */
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

static const char *const states[PD_WATCH_STATES] = {
    "starting", "training", "no step for a while", "between two starts", "ended", "its launcher is gone", "run.dir is gone"};

/* "", "; rank 1 is stopped", "; 2 ranks are gone", "; all ranks are gone". */
static void add_ranks(const struct pd_watch *w, const char *word, bool (*is)(int32_t process), char *ret_text,
                      size_t capacity)
{
    const struct pd_history *h = &w->history;
    const size_t used = strlen(ret_text);
    uint32_t count = 0, first = 0;
    if (w->state == PD_WATCH_ENDED || w->state == PD_WATCH_BETWEEN || !w->is_here) return;
    for (uint32_t i = h->process_count; i-- > 0;)
        if (is(h->processes[i].process)) count++, first = h->processes[i].rank;
    const struct pd_history_start *start = count ? &h->starts[h->start_count - 1] : NULL;
    if (start && start->ranks > 1 && (count == start->ranks || strcmp(start->transport, "local") == 0)) /* for one process */
        snprintf(ret_text + used, capacity - used, "; all ranks are %s", word);
    else if (count > 1)
        snprintf(ret_text + used, capacity - used, "; %u ranks are %s", count, word);
    else if (count)
        snprintf(ret_text + used, capacity - used, "; rank %u is %s", first, word);
}

void pd_watch_state(const struct pd_watch *w, char *ret_text, size_t capacity)
{
    snprintf(ret_text, capacity, "%s", states[w->state]);
    add_ranks(w, "stopped", is_stopped, ret_text, capacity);
    add_ranks(w, "gone", is_gone, ret_text, capacity);
}

void pd_watch_line(const struct pd_watch *w, char *ret_text, size_t capacity)
{
    const struct pd_history *h = &w->history;
    char layout[64] = "", steps[32] = "", loss[96], state[128];
    pd_watch_state(w, state, sizeof state);
    const double speed = pd_history_last(h, PD_COLUMN_TOKENS_PER_SECOND);
    if (h->start_count) pd_figures_layout(&h->starts[h->start_count - 1], layout, sizeof layout);
    if (w->steps) snprintf(steps, sizeof steps, "/%" PRIu64, w->steps);
    if (!pd_history_not_finite_since(h, loss, sizeof loss))
        snprintf(loss, sizeof loss, "%.4f", pd_history_last(h, PD_COLUMN_LOSS));
    if (h->rows)
        snprintf(ret_text, capacity, "step %.0f%s loss %s%s %s tok/s ckpt %" PRIu64 "; %s, %s", w->step, steps, loss,
                 loss[0] == 'n' ? ";" : "", pd_quantity_text(PD_QUANTITY_COUNT, speed).text, h->saved_step, layout, state);
    else
        snprintf(ret_text, capacity, "no step yet; %s%s%s", layout, layout[0] ? ", " : "", state);
}

void pd_watch_json(const struct pd_watch *w, struct pd_json_writer *writer)
{
    const struct pd_history *h = &w->history;
    char text[96];
    const uint64_t not_finite_since = pd_history_not_finite_since(h, text, sizeof text);
    const double skipped = pd_history_last(h, PD_COLUMN_SKIPPED);
    pd_json_object_begin(writer, NULL);
    pd_json_double(writer, "time", w->now);
    pd_json_string(writer, "state", states[w->state]);
    PD_JSON_U64S(writer, {"step", w->step >= 0 ? (uint64_t)w->step : 0}, {"steps", w->steps}, {"saved_step", h->saved_step},
                 {"starts", h->start_count});
    pd_json_measured(writer, "loss", not_finite_since ? NAN : pd_history_last(h, PD_COLUMN_LOSS));
    if (not_finite_since) pd_json_u64(writer, "not_finite_since", not_finite_since);
    if (!isnan(skipped)) pd_json_measured(writer, "skipped", skipped);
    pd_json_measured(writer, "validation_loss", pd_history_last(h, PD_COLUMN_VALIDATION_LOSS));
    pd_json_measured(writer, "tokens_per_second", pd_history_last(h, PD_COLUMN_TOKENS_PER_SECOND));
    pd_json_measured(writer, "eta_seconds", pd_history_last(h, PD_COLUMN_ETA));
    pd_json_array_begin(writer, "ranks");
    for (uint32_t i = 0; i < h->process_count; i++) {
        const struct pd_history_process *r = &h->processes[i];
        pd_json_object_begin(writer, NULL);
        pd_json_u64(writer, "rank", r->rank);
        pd_json_i64(writer, "process", r->process);
        pd_json_bool(writer, "is_gone", w->is_here && is_gone(r->process));
        pd_json_bool(writer, "is_stopped", w->is_here && is_stopped(r->process));
        pd_json_object_end(writer);
    }
    pd_json_array_end(writer);
    pd_json_object_end(writer);
}
