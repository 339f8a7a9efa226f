#include "trainer/run/recorded.h"

#include "ckpt/base/json.h"
#include "ckpt/base/regular_file.h"

#include <stdlib.h>
#include <string.h>

#define TAIL_BYTES (4 << 20)

struct reading {
    struct pd_recorded *ret;
    uint64_t outlive; /* tiers that outlive a reboot, by bit */
    char first[1024]; /* directory of the first tier */
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
        if (!dir || !pd_json_is_bool(pd_json_member(tier, "in_memory"), &in_memory) || in_memory) continue;
        if (!r->outlive) snprintf(r->first, sizeof r->first, "%.1000s", dir);
        r->outlive |= UINT64_C(1) << i;
        if (pd_json_is_u64(pd_json_member(tier, "newest"), &newest)) take_step(r, newest, dir);
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
        (void)pd_json_is_number(pd_json_member(event, "time"), &r->ret->since);
    }
    const char *run_id = is_open ? pd_json_text(pd_json_member(event, "run_id")) : NULL;
    if (run_id) snprintf(r->ret->run_id, PD_RUN_ID_BYTES, "%.32s", run_id);
    if (is_open || strcmp(what, "leave") == 0) take_tiers(r, pd_json_member(event, "tiers"));
}

/* Of a line of metrics; where there are several tiers it has the newest step of each. */
static void take_metrics(struct reading *r, const struct pd_json_value *line)
{
    const struct pd_json_value *tiers = pd_json_member(line, "tiers");
    double time = 0;
    uint64_t step = 0;
    if (!pd_json_is_number(pd_json_member(line, "time"), &time) || time < r->ret->since) return; /* of the run before */
    const bool has_step = pd_json_is_u64(pd_json_member(line, "last_checkpoint"), &step);
    if (!tiers && r->outlive && has_step) take_step(r, step, r->first);
    for (size_t i = 0; i < pd_json_count(tiers) && i < PD_TIERS_MAX; i++)
        if (r->outlive >> i & 1 && pd_json_is_u64(pd_json_member(pd_json_at(tiers, i), "newest"), &step))
            take_step(r, step, r->first);
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

void pd_recorded_read(const char *run_dir, struct pd_recorded *ret)
{
    char *line = NULL, last[16384], path[4200];
    size_t room = 0;
    ssize_t bytes;
    struct reading r = {.ret = ret};
    *ret = (struct pd_recorded){0};
    snprintf(path, sizeof path, "%.4000s/events.jsonl", run_dir);
    FILE *f = pd_regular_fopen(path, false);
    while (f && (bytes = getline(&line, &room, f)) > 0)
        take_line(&r, line, (size_t)bytes, take_event);
    free(line);
    if (f) (void)fclose(f);
    pd_recorded_last_line(run_dir, last, sizeof last);
    take_line(&r, last, strlen(last), take_metrics);
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
