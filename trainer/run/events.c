#include "trainer/run/events.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/base/regular_file.h"
#include "trainer/run/internal.h"
#include "trainer/run/launched.h"
#include "trainer/run/resume.h"
#include "trainer/status/channel.h"
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- reading the record ---- */

#define TAIL_BYTES (4 << 20)

struct reading {
    struct pd_recorded *ret;
    uint64_t outlive;                     /* tiers that outlive a reboot, by bit */
    char first[1024];                     /* directory of the first tier */
    const struct pd_tiers_options *asked; /* find which of these had a checkpoint; NULL: not needed */
    uint64_t bits[PD_TIERS_MAX], used;    /* per tier of the record: bits of the matching `asked`; used */
};

static void take_step(struct reading *r, uint64_t step, const char *dir)
{
    if (step <= r->ret->step) return;
    r->ret->step = step;
    snprintf(r->ret->dir, sizeof r->ret->dir, "%.1000s", dir);
}

static void take_tiers(struct reading *r, const struct pd_json_value *tiers)
{
    r->outlive = 0;
    for (size_t i = 0; i < pd_json_count(tiers) && i < PD_TIERS_MAX; i++) {
        const struct pd_json_value *tier = pd_json_at(tiers, i);
        const char *dir = pd_json_text(pd_json_member(tier, "dir"));
        uint64_t newest = 0;
        bool in_memory = true;
        r->bits[i] = 0;
        for (uint32_t k = 0; r->asked && dir && k < r->asked->count; k++)
            if (strcmp(r->asked->tiers[k].dir, dir) == 0) r->bits[i] |= UINT64_C(1) << k;
        if (pd_json_is_u64(pd_json_member(tier, "newest"), &newest) && newest) r->used |= r->bits[i];
        if (!dir || !pd_json_is_bool(pd_json_member(tier, "in_memory"), &in_memory) || in_memory) continue;
        if (!r->outlive) snprintf(r->first, sizeof r->first, "%.1000s", dir);
        r->outlive |= UINT64_C(1) << i;
        take_step(r, newest, dir);
    }
}

static void take_event(struct reading *r, const struct pd_json_value *event)
{
    const char *what = pd_json_text(pd_json_member(event, "event"));
    bool resumed = true;
    if (!what) return;
    const bool is_open = strcmp(what, "open") == 0;
    if (is_open) (void)pd_json_is_bool(pd_json_member(event, "resumed"), &resumed);
    if (strcmp(what, "fresh") == 0 || !resumed) {
        *r->ret = (struct pd_recorded){0};
        r->used = 0;
        (void)pd_json_is_number(pd_json_member(event, "time"), &r->ret->since);
    }
    const char *run_id = is_open ? pd_json_text(pd_json_member(event, "run_id")) : NULL;
    if (run_id) snprintf(r->ret->run_id, PD_RUN_ID_BYTES, "%.32s", run_id);
    if (is_open || strcmp(what, "leave") == 0) take_tiers(r, pd_json_member(event, "tiers"));
}

/* From a metrics line; with several tiers it has each one's newest step. */
static void take_metrics(struct reading *r, const struct pd_json_value *line)
{
    const struct pd_json_value *tiers = pd_json_member(line, "tiers");
    double time = 0;
    uint64_t step = 0;
    if (!pd_json_is_number(pd_json_member(line, "time"), &time) || time < r->ret->since) return; /* of the run before */
    const bool has_step = pd_json_is_u64(pd_json_member(line, "last_checkpoint"), &step);
    if (!tiers && r->outlive && has_step) take_step(r, step, r->first);
    if (!tiers && has_step && step) r->used |= r->bits[0];
    for (size_t i = 0; i < pd_json_count(tiers) && i < PD_TIERS_MAX; i++) {
        if (!pd_json_is_u64(pd_json_member(pd_json_at(tiers, i), "newest"), &step)) continue;
        if (step) r->used |= r->bits[i];
        if (r->outlive >> i & 1) take_step(r, step, r->first);
    }
}

static void take_line(struct reading *r, const char *line, size_t bytes,
                      void (*take)(struct reading *, const struct pd_json_value *))
{
    struct pd_json_document *document = NULL;
    if (pd_json_parse("a line", line, bytes, &document, NULL)) return;
    take(r, pd_json_root(document));
    pd_json_document_free(document);
}

/* For the caller to free; NULL: it cannot be read. */
static char *read_tail(const char *path, size_t *ret_bytes)
{
    FILE *f = pd_regular_fopen(path, false);
    char *text = f ? malloc(TAIL_BYTES) : NULL;
    if (text) {
        if (fseek(f, -TAIL_BYTES, SEEK_END)) rewind(f);
        *ret_bytes = fread(text, 1, TAIL_BYTES, f);
    }
    if (f) (void)fclose(f);
    return text;
}

void pd_recorded_last_line(const char *run_dir, char *ret_line, size_t bytes)
{
    char path[4200];
    size_t length = 0;
    snprintf(path, sizeof path, "%.4000s/metrics.jsonl", run_dir);
    char *tail = read_tail(path, &length);
    const char *end = tail ? memrchr(tail, '\n', length) : NULL;
    const char *before = end ? memrchr(tail, '\n', (size_t)(end - tail)) : NULL, *line = before ? before + 1 : tail;
    snprintf(ret_line, bytes, "%.*s", end ? (int)(end - line) : 0, end ? line : "");
    free(tail);
}

/* False: there is a record but it cannot be read. */
static bool read_record(const char *run_dir, struct reading *r)
{
    char *line = NULL, last[16384], path[4200];
    size_t capacity = 0;
    ssize_t bytes;
    snprintf(path, sizeof path, "%.4000s/events.jsonl", run_dir);
    FILE *f = pd_regular_fopen(path, false);
    const bool is_read = f || errno == ENOENT;
    while (f && (bytes = getline(&line, &capacity, f)) > 0)
        take_line(r, line, (size_t)bytes, take_event);
    free(line);
    if (f) (void)fclose(f);
    pd_recorded_last_line(run_dir, last, sizeof last);
    take_line(r, last, strlen(last), take_metrics);
    return is_read;
}

void pd_recorded_read(const char *run_dir, struct pd_recorded *ret)
{
    struct reading r = {.ret = ret};
    *ret = (struct pd_recorded){0};
    (void)read_record(run_dir, &r);
}

uint64_t pd_recorded_used(const char *run_dir, const struct pd_tiers_options *options)
{
    struct pd_recorded recorded = {0};
    struct reading r = {.ret = &recorded, .asked = options};
    return read_record(run_dir, &r) ? r.used : UINT64_MAX;
}

static bool take_recorded_step(const struct pd_json_value *line, double since, struct pd_metrics_step *s)
{
    double time;
    uint64_t step;
    if (!pd_json_is_u64(pd_json_member(line, "step"), &step) || step != s->step) return false;
    if (!pd_json_is_number(pd_json_member(line, "time"), &time) || time < since) return false;
    (void)pd_json_is_u64(pd_json_member(line, "fence"), &s->fence);
    (void)pd_json_is_u64(pd_json_member(line, "tokens"), &s->result.tokens);
    (void)pd_json_is_number(pd_json_member(line, "gradient_norm"), &s->result.gradient_norm);
    (void)pd_json_is_number(pd_json_member(line, "learning_rate"), &s->result.learning_rate);
    (void)pd_json_is_number(pd_json_member(line, "seconds"), &s->seconds);
    (void)pd_json_is_number(pd_json_member(line, "validation_loss"), &s->validation_loss);
    const struct pd_json_value *stages = pd_json_member(line, "stages");
    for (int i = 0; i < PD_STEP_STAGES; i++)
        (void)pd_json_is_number(pd_json_member(stages, pd_step_stage_names[i]), &s->result.stage_seconds[i]);
    return true;
}

void pd_recorded_step(const char *run_dir, struct pd_metrics_step *step)
{
    char path[4200];
    size_t length = 0;
    struct pd_recorded recorded;
    bool is_found = false;
    pd_recorded_read(run_dir, &recorded);
    snprintf(path, sizeof path, "%.4000s/metrics.jsonl", run_dir);
    char *tail = read_tail(path, &length);
    for (const char *end = tail ? memrchr(tail, '\n', length) : NULL, *before; end && !is_found; end = before) {
        struct pd_json_document *document = NULL;
        before = memrchr(tail, '\n', (size_t)(end - tail));
        const char *line = before ? before + 1 : tail;
        if (pd_json_parse("a line", line, (size_t)(end - line), &document, NULL)) continue;
        is_found = take_recorded_step(pd_json_root(document), recorded.since, step);
        pd_json_document_free(document);
    }
    free(tail);
}

void pd_recorded_run_id(const uint64_t run_id[2], char ret_text[PD_RUN_ID_BYTES])
{
    snprintf(ret_text, PD_RUN_ID_BYTES, "%016llx%016llx", (unsigned long long)run_id[0], (unsigned long long)run_id[1]);
}

pd_status pd_recorded_check_lost(const struct pd_config *config, struct pd_error *err)
{
    struct pd_recorded recorded;
    struct pd_tier_options tiers[PD_TIERS_MAX];
    (void)pd_config_tiers(config, tiers);
    pd_recorded_read(config->run.dir, &recorded);
    if (!recorded.step) return PD_OK;
    PD_FAIL(
        err, PD_CORRUPT,
        "run.dir, %.200s, has the record of a run that saved step %llu in %.200s, and %.200s holds no checkpoint: put back "
        "what was moved or renamed, mount its disk, or name where it is with checkpoint.dir=DIR; to begin at step 1, "
        "--fresh or another run.dir=DIR",
        config->run.dir, (unsigned long long)recorded.step, recorded.dir, tiers[0].dir);
}

/* ---- events ---- */

void pd_event_begin(struct pd_json_writer *ret_writer, const char *event)
{
    pd_json_writer_init(ret_writer, 0);
    pd_json_object_begin(ret_writer, NULL);
    pd_json_string(ret_writer, "event", event);
    pd_json_double(ret_writer, "time", (double)(pd_clock_wall_ns() / 1000000) / 1000);
}

static int events_append(const char *run_dir, const char *text, size_t bytes)
{
    char path[4200];
    int file;
    snprintf(path, sizeof path, "%.4000s/events.jsonl", run_dir);
    int number = pd_regular_open(path, O_RDWR | O_CREAT | O_APPEND, &file);
    if (number) return number;
    number = pd_regular_append(file, text, bytes);
    close(file);
    return number;
}

/* A missing run.dir has its own error. If the file is not regular, the launcher, which writes first, has reported it. */
static void say_once(const char *run_dir, int number)
{
    static atomic_bool is_said;
    if (number == ENOENT || (number == ENXIO && getenv(PD_CHANNEL_ENV_ADDRESSES))) return;
    if (atomic_exchange(&is_said, true)) return;
    pd_log_warn("events", "%s/events.jsonl: starts and ends of this run are not recorded: %s", run_dir,
                number == ENXIO ? "it is not a regular file; move it away" : strerror(number));
}

void pd_event_end(struct pd_json_writer *w, const char *run_dir)
{
    const char *text;
    size_t bytes;
    const int number = pd_json_writer_finish(w, &text, &bytes, NULL) ? ENOMEM : events_append(run_dir, text, bytes);
    if (number) say_once(run_dir, number);
    pd_json_writer_deinit(w);
}

static void events_add_tiers(struct pd_json_writer *w, const struct run *r)
{
    pd_json_array_begin(w, "tiers");
    for (uint32_t i = 0; i < pd_tiers_count(r->tiers); i++) {
        struct pd_tier_report report;
        pd_tiers_report(r->tiers, i, &report);
        pd_json_object_begin(w, NULL);
        pd_json_string(w, "dir", report.dir);
        pd_json_u64(w, "newest", report.newest_step);
        pd_json_bool(w, "in_memory", report.in_memory);
        if (report.is_left_out) pd_json_bool(w, "left_out", true);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
}

pd_status pd_event_open(struct run *r, const struct pd_resume_report *report, double gemm_flops_per_second,
                        struct pd_error *err)
{
    uint64_t bytes = pd_saver_file_bytes(r->saver);
    struct pd_json_writer w;
    char run_id[PD_RUN_ID_BYTES];
    PD_TRY(pd_comm_all_reduce(r->comm, &bytes, 1, PD_REDUCE_SUM_U64, err));
    if (r->comm->rank) return PD_OK;
    pd_event_begin(&w, "open");
    pd_recorded_run_id(r->state.identity.run_id, run_id);
    pd_json_string(&w, "run_id", run_id);
    PD_JSON_U64S(&w, {"fence", r->state.fence}, {"step", r->state.identity.step}, {"lineage", r->state.identity.lineage});
    pd_json_bool(&w, "resumed", report->resumed);
    if (report->resumed) {
        pd_json_double(&w, "resume_seconds", report->seconds);
        pd_json_u64(&w, "resume_tier", report->from_tier);
        pd_json_u64(&w, "lost_steps", report->lost_steps);
    }
    pd_json_u64(&w, "damaged", report->damaged);
    const struct pd_layout *layout = &r->engine->grid.layout;
    PD_JSON_U64S(&w, {"ranks", r->comm->size}, {"hosts", r->comm->host_count}, {"threads", r->threads}, {"dp", layout->dp},
                 {"tp", layout->tp}, {"pp", layout->pp}, {"sp", layout->sp}, {"zero_stage", layout->zero_stage});
    pd_json_string(&w, "device", r->device.dev ? r->device.dev->description : "CPU");
    pd_json_u64(&w, "parameters", r->model->parameter_count);
    /* In rank 0's process: if ranks are threads, of all of them. */
    struct pd_memory_plan used;
    const uint64_t ranks = r->is_thread ? r->comm->size : 1;
    pd_arena_usage(r->arena, &used);
    pd_json_u64(&w, "planned_bytes", r->planned_bytes * ranks);
    pd_json_object_begin(&w, "memory");
    for (int i = 0; i < PD_MEMORY_CATEGORY_COUNT; i++)
        pd_json_u64(&w, pd_memory_category_name((enum pd_memory_category)i), used.bytes[i] * ranks);
    pd_json_object_end(&w);
    pd_json_u64(&w, "checkpoint_bytes", bytes);
    pd_json_double(&w, "gemm_flops_per_second", gemm_flops_per_second);
    pd_json_double(&w, "flops_per_token", pd_model_flops_per_token(r->model, r->config->batch.context));
    events_add_tiers(&w, r);
    pd_event_end(&w, r->config->run.dir);
    return PD_OK;
}

void pd_event_leave(struct run *r)
{
    struct pd_json_writer w;
    if (r->comm->rank) return;
    pd_event_begin(&w, "leave");
    pd_json_u64(&w, "step", r->state.identity.step);
    events_add_tiers(&w, r);
    pd_event_end(&w, r->config->run.dir);
}
