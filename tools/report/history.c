#include "tools/report/history.h"

#include "ckpt/base/grow.h"
#include "ckpt/base/regular_file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pd_status add_start(struct pd_history *h, struct pd_history_start **ret_start, struct pd_error *err)
{
    if (!pd_grow(&h->starts, h->start_count, sizeof *h->starts))
        PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for %llu starts", h->dir, (unsigned long long)h->start_count + 1);
    struct pd_history_start *start = &h->starts[h->start_count++];
    *start = (struct pd_history_start){.begun = NAN, .opened = NAN, .ended = NAN, .exit_code = -1, .is_over = true};
    for (uint32_t i = 0; i < PD_TIERS_MAX; i++)
        start->tiers_opened[i] = start->tiers_left[i] = NAN;
    *ret_start = start;
    return PD_OK;
}

static uint64_t u64(const struct pd_json_value *object, const char *key)
{
    uint64_t value = 0;
    (void)pd_json_is_u64(pd_json_member(object, key), &value);
    return value;
}

static double history_number_of(const struct pd_json_value *object, const char *key)
{
    double value = NAN;
    return pd_json_is_number(pd_json_member(object, key), &value) && fabs(value) < PD_HISTORY_LARGEST ? value : NAN;
}

static void copy_text(const struct pd_json_value *object, const char *key, char *ret, size_t capacity)
{
    const char *text = pd_json_text(pd_json_member(object, key));
    snprintf(ret, capacity, "%s", text ? text : "");
}

/* ret_newest (PD_TIERS_MAX) for each tier in the event */
static void event_take_tiers(struct pd_history *h, const struct pd_json_value *tiers, double *ret_newest)
{
    h->tier_count = 0;
    for (uint32_t i = 0; i < pd_json_count(tiers) && i < PD_TIERS_MAX; i++) {
        const struct pd_json_value *tier = pd_json_at(tiers, i);
        struct pd_history_tier *t = &h->tiers[h->tier_count++];
        uint64_t newest;
        copy_text(tier, "dir", t->dir, sizeof t->dir);
        (void)pd_json_is_bool(pd_json_member(tier, "in_memory"), &t->in_memory);
        t->is_left_out = false;
        (void)pd_json_is_bool(pd_json_member(tier, "left_out"), &t->is_left_out);
        if (!pd_json_is_u64(pd_json_member(tier, "newest"), &newest)) continue;
        if (newest > t->newest) t->newest = newest;
        ret_newest[i] = (double)newest;
    }
}

static void take_open(struct pd_history *h, struct pd_history_start *start, const struct pd_json_value *e)
{
    start->opened = history_number_of(e, "time");
    if (isnan(start->begun)) start->begun = start->opened;
    start->fence = u64(e, "fence");
    start->from_step = u64(e, "step");
    start->ranks = (uint32_t)u64(e, "ranks");
    start->hosts = (uint32_t)u64(e, "hosts");
    start->threads = (uint32_t)u64(e, "threads");
    start->dp = (uint32_t)u64(e, "dp");
    start->tp = (uint32_t)u64(e, "tp");
    start->pp = (uint32_t)u64(e, "pp");
    start->sp = (uint32_t)u64(e, "sp");
    start->zero_stage = (uint32_t)u64(e, "zero_stage");
    start->planned_bytes = u64(e, "planned_bytes");
    start->checkpoint_bytes = u64(e, "checkpoint_bytes");
    copy_text(e, "device", start->device, sizeof start->device);
    event_take_tiers(h, pd_json_member(e, "tiers"), start->tiers_opened);
}

static void take_ranks(struct pd_history *h, const struct pd_json_value *e)
{
    const struct pd_json_value *all = pd_json_member(e, "ranks");
    for (size_t i = 0; i < pd_json_count(all) && h->process_count < PD_HISTORY_PROCESSES_MAX; i++) {
        const struct pd_json_value *one = pd_json_at(all, i);
        const uint64_t process = u64(one, "process");
        if (!process || process > INT32_MAX) continue;
        h->processes[h->process_count++] = (struct pd_history_process){(uint32_t)u64(one, "rank"), (int32_t)process};
    }
}

static void take_end(struct pd_history_start *start, const struct pd_json_value *e)
{
    bool restarts = false;
    (void)pd_json_is_bool(pd_json_member(e, "restarts"), &restarts);
    start->ended = history_number_of(e, "time");
    start->exit_code = (int)u64(e, "exit_code");
    start->is_over = !restarts;
    copy_text(e, "cause", start->cause, sizeof start->cause);
}

/* An event belongs to the previous start, unless that already has it; a rank without a launcher begins a start itself. */
static pd_status event_take(struct pd_history *h, const struct pd_json_value *e, const char *event, struct pd_error *err)
{
    struct pd_history_start *start = h->start_count ? &h->starts[h->start_count - 1] : NULL;
    const bool is_start = strcmp(event, "start") == 0, is_open = strcmp(event, "open") == 0;
    const bool is_new = is_start || !start || (is_open && (start->fence || !isnan(start->ended)));
    if (strcmp(event, "leave") == 0) {
        const uint64_t step = u64(e, "step");
        if (step > h->saved_step) h->saved_step = step;
        if (!start) return PD_OK;
        start->left_step = step;
        event_take_tiers(h, pd_json_member(e, "tiers"), start->tiers_left);
        return PD_OK;
    }
    if (strcmp(event, "ranks") == 0) take_ranks(h, e);
    if (!is_start && !is_open && strcmp(event, "end") != 0) return PD_OK; /* from a later version */
    if (is_new) PD_TRY(add_start(h, &start, err));
    if (is_start) h->process_count = 0;
    if (is_start) {
        start->begun = history_number_of(e, "time");
        start->ranks = (uint32_t)u64(e, "ranks");
        start->from_step = u64(e, "from_step");
        copy_text(e, "transport", start->transport, sizeof start->transport);
        copy_text(e, "host", h->launcher_host, sizeof h->launcher_host);
        h->launcher_process = u64(e, "process");
    } else if (is_open)
        take_open(h, start, e);
    else
        take_end(start, e);
    return PD_OK;
}

static pd_status take_event(struct pd_history *h, const char *line, size_t bytes, struct pd_error *err)
{
    struct pd_json_document *document;
    const char *event;
    size_t length;
    if (pd_json_parse_member(line, bytes, "event", &document, &event, &length, NULL)) {
        h->damaged_lines++;
        return PD_OK;
    }
    const pd_status st = event_take(h, pd_json_root(document), event, err);
    pd_json_document_free(document);
    return st;
}

const char *const pd_history_stage_names[PD_HISTORY_STAGES] = {"forward", "backward", "sums", "update"};

static const char *const keys[PD_COLUMNS] = {[PD_COLUMN_STEP] = "step",
                                             [PD_COLUMN_FENCE] = "fence",
                                             [PD_COLUMN_TIME] = "time",
                                             [PD_COLUMN_LOSS] = "loss",
                                             [PD_COLUMN_VALIDATION_LOSS] = "validation_loss",
                                             [PD_COLUMN_GRADIENT_NORM] = "gradient_norm",
                                             [PD_COLUMN_LEARNING_RATE] = "learning_rate",
                                             [PD_COLUMN_SECONDS] = "seconds",
                                             [PD_COLUMN_TOKENS_PER_SECOND] = "tokens_per_second",
                                             [PD_COLUMN_GEMM_SHARE] = "gemm_share",
                                             [PD_COLUMN_MEMORY] = "memory_bytes",
                                             [PD_COLUMN_CHECKPOINT] = "last_checkpoint",
                                             [PD_COLUMN_SAVE_SECONDS] = "save_seconds",
                                             [PD_COLUMN_STALL_SECONDS] = "stall_seconds",
                                             [PD_COLUMN_ETA] = "eta_seconds",
                                             [PD_COLUMN_SKIPPED] = "skipped"};

/* ---- rows ---- */

/* Returns 0 if no line has the value. */
static uint64_t whole(double value)
{
    return value > 0 && value < 0x1p63 ? (uint64_t)value : 0;
}

static pd_status history_grow(struct pd_history *h, struct pd_error *err)
{
    bool is_grown = pd_grow(&h->counts, h->rows, sizeof *h->counts);
    for (int c = 0; is_grown && c < PD_COLUMNS; c++)
        is_grown = pd_grow(&h->columns[c], h->rows, sizeof *h->columns[c]);
    return PD_ALLOCATED(is_grown, err, "%s: no memory for %llu lines", h->dir, (unsigned long long)h->rows + 1);
}

static void row_take_tiers(struct pd_history *h, uint64_t row, const struct pd_json_value *tiers)
{
    const uint32_t count = (uint32_t)pd_json_count(tiers);
    for (uint32_t i = 0; i < count && i < PD_TIERS_MAX; i++) {
        const struct pd_json_value *tier = pd_json_at(tiers, i);
        struct pd_history_tier *t = &h->tiers[i];
        const char *cause = pd_json_text(pd_json_member(tier, "cause"));
        double seconds;
        if (u64(tier, "newest") != t->newest && pd_json_is_number(pd_json_member(tier, "seconds"), &seconds) &&
            seconds >= 0 && seconds < 1e15) {
            t->timed++;
            t->seconds += seconds;
            t->seconds_max = fmax(t->seconds_max, seconds);
        }
        t->newest = u64(tier, "newest");
        t->failures = u64(tier, "failures");
        t->skipped = u64(tier, "skipped");
        t->uploading = u64(tier, "uploading");
        if (!pd_json_is_number(pd_json_member(tier, "progress"), &t->progress)) t->progress = 0;
        double rate; /* absent while an upload has only begun: the one before counts */
        if (pd_json_is_number(pd_json_member(tier, "bytes_per_second"), &rate)) t->bytes_per_second = rate;
        if (!pd_json_is_number(pd_json_member(tier, "age"), &t->age)) t->age = NAN;
        snprintf(t->cause, sizeof t->cause, "%s", cause ? cause : "");
        h->columns[PD_COLUMN_TIER + i][row] = (double)t->newest;
    }
    if (count > h->tier_count) h->tier_count = count < PD_TIERS_MAX ? count : PD_TIERS_MAX;
}

const char *const pd_history_expert_names[PD_HISTORY_EXPERT_FIGURES] = {"busiest", "idlest", "entropy", "bias_range"};

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The worst block is the one whose tokens are spread least evenly. */
static void row_take_experts(struct pd_history *h, uint64_t row, const struct pd_json_value *blocks)
{
    const uint32_t count = (uint32_t)pd_json_count(blocks);
    h->block_count = count < PD_HISTORY_BLOCKS_MAX ? count : PD_HISTORY_BLOCKS_MAX;
    for (uint32_t f = 0; f < PD_HISTORY_EXPERT_FIGURES; f++) {
        const bool is_low_worse = f == 1 || f == 2;
        double values[PD_HISTORY_BLOCKS_MAX], value;
        uint32_t used = 0;
        for (uint32_t i = 0; i < h->block_count; i++) {
            const struct pd_json_value *block = pd_json_at(blocks, i);
            const bool is_there = pd_json_is_number(pd_json_member(block, pd_history_expert_names[f]), &value);
            h->blocks[i].block = (uint32_t)u64(block, "block");
            h->blocks[i].figures[f] = is_there ? value : NAN;
            if (is_there) values[used++] = value;
        }
        if (!used) continue;
        qsort(values, used, sizeof *values, ascending);
        h->columns[PD_COLUMN_EXPERTS + 2 * f][row] = values[is_low_worse ? 0 : used - 1];
        h->columns[PD_COLUMN_EXPERTS + 2 * f + 1][row] = values[used / 2];
    }
}

/* With one tier lines have no list of tiers. */
static void take_only_tier(struct pd_history *h, uint64_t row)
{
    const double newest = h->columns[PD_COLUMN_CHECKPOINT][row];
    if (!isnan(h->columns[PD_COLUMN_TIER][row]) || isnan(newest)) return;
    h->columns[PD_COLUMN_TIER][row] = newest;
    h->tiers[0].newest = whole(newest);
}

static void drop_impossible(struct pd_history *h, uint64_t row)
{
    const enum pd_column times[] = {PD_COLUMN_TIME, PD_COLUMN_SECONDS, PD_COLUMN_SAVE_SECONDS, PD_COLUMN_STALL_SECONDS};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (fabs(h->columns[times[i]][row]) >= PD_HISTORY_LARGEST) h->columns[times[i]][row] = NAN;
}

static pd_status take_row(struct pd_history *h, const char *line, size_t bytes, struct pd_error *err)
{
    struct pd_json_document *document;
    uint64_t step;
    if (pd_json_parse("metrics.jsonl", line, bytes, &document, NULL)) {
        h->damaged_lines++;
        return PD_OK;
    }
    const struct pd_json_value *object = pd_json_root(document);
    pd_status st = PD_OK;
    if (!pd_json_is_u64(pd_json_member(object, "step"), &step))
        h->damaged_lines++;
    else if (!(st = history_grow(h, err))) {
        const double fence = (double)u64(object, "fence");
        const bool is_again = h->rows && h->columns[PD_COLUMN_STEP][h->rows - 1] == (double)step &&
                              h->columns[PD_COLUMN_FENCE][h->rows - 1] == fence; /* the same step, now with its validation */
        const uint64_t row = is_again ? h->rows - 1 : h->rows++;
        for (int c = 0; c < PD_COLUMNS; c++) {
            h->columns[c][row] = NAN;
            if (keys[c]) (void)pd_json_is_number(pd_json_member(object, keys[c]), &h->columns[c][row]);
        }
        drop_impossible(h, row);
        if (h->columns[PD_COLUMN_CHECKPOINT][row] >= 0) h->saved_step = whole(h->columns[PD_COLUMN_CHECKPOINT][row]);
        const struct pd_json_value *stages = pd_json_member(object, "stages");
        for (uint32_t i = 0; i < PD_HISTORY_STAGES; i++)
            (void)pd_json_is_number(pd_json_member(stages, pd_history_stage_names[i]),
                                    &h->columns[PD_COLUMN_STAGE + i][row]);
        row_take_experts(h, row, pd_json_member(object, "experts"));
        row_take_tiers(h, row, pd_json_member(object, "tiers"));
        take_only_tier(h, row);
    }
    pd_json_document_free(document);
    return st;
}

/* ---- files ---- */

typedef pd_status (*take_line)(struct pd_history *history, const char *line, size_t bytes, struct pd_error *err);

/* Reads whole lines after *offset; the rest is still being written. A file that has shrunk belongs to another run. */
static pd_status read_lines(struct pd_history *h, const char *name, uint64_t *offset, take_line take, struct pd_error *err)
{
    char path[4400], *line = NULL;
    size_t capacity = 0;
    snprintf(path, sizeof path, "%s/%s", h->dir, name);
    FILE *f = pd_regular_fopen(path, false);
    if (!f && errno == ENOENT) return PD_OK;
    if (!f) PD_FAIL_ERRNO(err, errno, "%s: reading it", path);
    pd_status st = fseeko(f, (off_t)*offset, SEEK_SET) ? PD_IO : PD_OK;
    ssize_t bytes;
    while (!st && (bytes = getline(&line, &capacity, f)) > 0 && line[bytes - 1] == '\n') {
        *offset += (uint64_t)bytes;
        if (bytes > 1) st = take(h, line, (size_t)bytes - 1, err);
    }
    if (ferror(f) && !st) st = pd_error_set(err, PD_IO, PD_WHERE, errno, "%s: reading it", path);
    free(line);
    (void)fclose(f);
    return st;
}

/* ---- derived values ---- */

static struct pd_history_start *start_of_fence(struct pd_history *h, uint64_t fence)
{
    for (uint64_t i = h->start_count; i-- > 0;)
        if (h->starts[i].fence == fence) return &h->starts[i];
    return NULL;
}

static void count_rows(struct pd_history *h)
{
    double first_after = INFINITY;
    for (uint64_t row = h->rows; row-- > 0;) {
        const double step = h->columns[PD_COLUMN_STEP][row];
        h->counts[row] = step < first_after;
        if (h->counts[row]) {
            first_after = step;
            continue;
        }
        struct pd_history_start *start = start_of_fence(h, whole(h->columns[PD_COLUMN_FENCE][row]));
        if (!start) continue;
        start->lost_steps++;
        start->lost_seconds += h->columns[PD_COLUMN_SECONDS][row];
    }
}

pd_status pd_history_refresh(struct pd_history *h, struct pd_error *err)
{
    const uint64_t rows = h->rows, events = h->events_bytes;
    PD_TRY(read_lines(h, "metrics.jsonl", &h->metrics_bytes, take_row, err));
    PD_TRY(read_lines(h, "events.jsonl", &h->events_bytes, take_event, err)); /* read later: a leave follows the last line */
    if (rows == h->rows && events == h->events_bytes) return PD_OK;
    /* Runs without events.jsonl have the starts that their rows imply. */
    struct pd_history_start *start = NULL;
    for (uint64_t i = 0; i < h->start_count; i++)
        h->starts[i].rows = h->starts[i].lost_steps = 0, h->starts[i].lost_seconds = 0;
    for (uint64_t row = 0; row < h->rows; row++) {
        const uint64_t fence = whole(h->columns[PD_COLUMN_FENCE][row]), step = whole(h->columns[PD_COLUMN_STEP][row]);
        if (!start || start->fence != fence) start = start_of_fence(h, fence);
        if (!start) {
            PD_TRY(add_start(h, &start, err));
            start->fence = fence;
            start->from_step = step ? step - 1 : 0;
            start->opened = start->begun = h->columns[PD_COLUMN_TIME][row] - h->columns[PD_COLUMN_SECONDS][row];
        }
        if (!start->rows++) start->first_row = row;
        start->last_row = row;
        start->last_step = step;
    }
    for (uint64_t i = 0; i < h->start_count; i++) /* lines are missing if the disk was full */
        if (h->starts[i].left_step > h->starts[i].last_step) h->starts[i].last_step = h->starts[i].left_step;
    count_rows(h);
    return PD_OK;
}

pd_status pd_history_open(const char *dir, struct pd_history *ret_history, struct pd_error *err)
{
    struct pd_history h = {.rows = 0};
    struct stat st;
    char path[4400];
    if (strlen(dir) >= sizeof h.dir)
        PD_FAIL(err, PD_USAGE, "%.60s... is too long a path; go there and name it . instead", dir);
    snprintf(h.dir, sizeof h.dir, "%s", dir);
    if (stat(dir, &st) || !S_ISDIR(st.st_mode))
        PD_FAIL(err, PD_NOT_FOUND, "%s is not a directory; name the run.dir of a run", dir);
    size_t end = strlen(h.dir);
    while (end > 1 && h.dir[end - 1] == '/')
        h.dir[--end] = '\0';
    const char *slash = strrchr(h.dir, '/');
    snprintf(h.name, sizeof h.name, "%.255s", slash && slash[1] ? slash + 1 : h.dir);
    if (strcmp(h.name, ".") == 0 || strcmp(h.name, "..") == 0) {
        char *real = realpath(h.dir, NULL);
        if (real) snprintf(h.name, sizeof h.name, "%.255s", strrchr(real, '/') + 1);
        free(real);
    }
    snprintf(path, sizeof path, "%s/metrics.jsonl", h.dir);
    const bool has_metrics = access(path, F_OK) == 0;
    snprintf(path, sizeof path, "%s/events.jsonl", h.dir);
    if (!has_metrics && access(path, F_OK))
        PD_FAIL(err, PD_NOT_FOUND, "%s holds neither metrics.jsonl nor events.jsonl; name the run.dir of a run", dir);
    const pd_status read = pd_history_refresh(&h, err);
    if (read) {
        pd_history_close(&h);
        return read;
    }
    *ret_history = h;
    return PD_OK;
}

void pd_history_close(struct pd_history *h)
{
    for (int c = 0; c < PD_COLUMNS; c++)
        free(h->columns[c]);
    free(h->counts);
    free(h->starts);
    *h = (struct pd_history){.rows = 0};
}

/* ---- questions ---- */

void pd_history_moment(double seconds, char *ret_text, size_t capacity)
{
    struct tm local;
    const bool is_time = fabs(seconds) < PD_HISTORY_LARGEST;
    const time_t moment = is_time ? (time_t)seconds : 0;
    snprintf(ret_text, capacity, "–");
    if (is_time && localtime_r(&moment, &local)) strftime(ret_text, capacity, "%Y-%m-%d %H:%M:%S", &local);
}

/* Takes the next value of a tier. If it decreased, the run went back, or the tier lost checkpoints. */
static uint64_t arrive(double newest, double step, double *before, double *ret_steps, uint64_t used)
{
    const bool is_new = newest > *before;
    if (is_new && ret_steps) ret_steps[used] = step;
    if (!isnan(newest)) *before = newest;
    return used + is_new;
}

uint64_t pd_history_saves(const struct pd_history *h, uint32_t tier, double *ret_steps)
{
    double newest = 0;
    uint64_t used = 0;
    for (uint64_t i = 0; i < h->start_count; i++) {
        const struct pd_history_start *s = &h->starts[i];
        if (!isnan(s->tiers_opened[tier])) newest = s->tiers_opened[tier];
        for (uint64_t row = s->first_row; s->rows && row <= s->last_row; row++)
            if (whole(h->columns[PD_COLUMN_FENCE][row]) == s->fence)
                used = arrive(h->columns[PD_COLUMN_TIER + tier][row], h->columns[PD_COLUMN_STEP][row], &newest, ret_steps,
                              used);
        used = arrive(s->tiers_left[tier], s->tiers_left[tier], &newest, ret_steps, used);
    }
    return used;
}

double pd_history_last(const struct pd_history *h, enum pd_column column)
{
    for (uint64_t row = h->rows; row-- > 0;)
        if (!isnan(h->columns[column][row])) return h->columns[column][row];
    return NAN;
}

uint64_t pd_history_not_finite_since(const struct pd_history *h, char *ret_text, size_t capacity)
{
    uint64_t first = h->rows;
    while (first > 0 && !isfinite(h->columns[PD_COLUMN_LOSS][first - 1]))
        first--;
    if (capacity) ret_text[0] = '\0';
    if (first == h->rows) return 0;
    const uint64_t step = whole(h->columns[PD_COLUMN_STEP][first]), skipped = whole(pd_history_last(h, PD_COLUMN_SKIPPED));
    const int used = snprintf(ret_text, capacity, "not finite since step %llu", (unsigned long long)step);
    if (skipped && used > 0 && (size_t)used < capacity)
        snprintf(ret_text + used, capacity - (size_t)used, "; %llu skipped", (unsigned long long)skipped);
    return step;
}

double pd_history_quantile(const struct pd_history *h, enum pd_column column, uint64_t first, uint64_t last, double share)
{
    uint64_t count = 0;
    if (first > last || last >= h->rows) return NAN;
    double *values = malloc((last - first + 1) * sizeof *values), found = NAN;
    for (uint64_t row = first; values && row <= last; row++)
        if (isfinite(h->columns[column][row])) values[count++] = h->columns[column][row];
    if (count) {
        qsort(values, count, sizeof *values, ascending);
        found = values[(uint64_t)(share * (double)(count - 1))];
    }
    free(values);
    return found;
}

/* When a start ended: from the launcher, or from its last line. */
static double end_of(const struct pd_history *h, const struct pd_history_start *s)
{
    if (!isnan(s->ended)) return s->ended;
    if (s->rows && !isnan(h->columns[PD_COLUMN_TIME][s->last_row])) return h->columns[PD_COLUMN_TIME][s->last_row];
    return isnan(s->opened) ? s->begun : s->opened;
}

/* A line stands for all steps since the previous line (run.log_every), which took as long as its own; at most the time
 * that has passed. */
static double seconds_of(const struct pd_history *h, const struct pd_history_start *s, uint64_t row)
{
    const double *step = h->columns[PD_COLUMN_STEP], *time = h->columns[PD_COLUMN_TIME],
                 one = h->columns[PD_COLUMN_SECONDS][row];
    if (isnan(one) || row == s->first_row) return isnan(one) ? 0 : one;
    const double all = one * fmax(step[row] - step[row - 1], 1), passed = time[row] - time[row - 1];
    return isnan(passed) ? all : fmin(all, fmax(passed, one));
}

#define PREEMPTED 75 /* exit code */

bool pd_history_failed(const struct pd_history_start *s)
{
    return s->exit_code > 0 && !(s->exit_code == PREEMPTED && s->left_step);
}

void pd_history_life(const struct pd_history *h, struct pd_history_life *ret_life)
{
    struct pd_history_life life = {.begun = NAN, .ended = NAN};
    for (uint64_t i = 0; i < h->start_count; i++) {
        const struct pd_history_start *s = &h->starts[i];
        const double first =
            s->rows ? h->columns[PD_COLUMN_TIME][s->first_row] - h->columns[PD_COLUMN_SECONDS][s->first_row] : end_of(h, s);
        if (isnan(life.begun)) life.begun = s->begun;
        if (!isnan(life.ended) && s->begun > life.ended) *(s[-1].is_over ? &life.idle : &life.down) += s->begun - life.ended;
        if (first > s->begun) life.opening += first - s->begun;
        for (uint64_t row = s->first_row; s->rows && row <= s->last_row; row++) {
            const double seconds = seconds_of(h, s, row), stall = h->columns[PD_COLUMN_STALL_SECONDS][row];
            *(h->counts[row] ? &life.useful : &life.lost) += seconds;
            if (!isnan(stall)) life.saving += stall;
        }
        life.ended = end_of(h, s);
        life.lost_steps += s->lost_steps;
        life.failures += pd_history_failed(s) && s->cause[0];
    }
    life.whole = life.ended > life.begun ? life.ended - life.begun : 0;
    /* Training waits for saves inside steps: that time is not useful. */
    life.saving = fmin(life.saving, life.useful);
    life.useful -= life.saving;
    life.other = fmax(life.whole - life.useful - life.lost - life.saving - life.opening - life.down - life.idle, 0);
    life.goodput = life.whole > life.idle ? life.useful / (life.whole - life.idle) : NAN;
    *ret_life = life;
}
