#include "tools/report/events.h"
#include "ckpt/base/grow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

pd_status pd_history_add_start(struct pd_history *h, struct pd_history_start **ret_start, struct pd_error *err)
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

uint64_t pd_history_u64(const struct pd_json_value *object, const char *key)
{
    uint64_t value = 0;
    (void)pd_json_is_u64(pd_json_member(object, key), &value);
    return value;
}

static double number_of(const struct pd_json_value *object, const char *key)
{
    double value = NAN;
    return pd_json_is_number(pd_json_member(object, key), &value) && fabs(value) < PD_HISTORY_LARGEST ? value : NAN;
}

static void copy_text(const struct pd_json_value *object, const char *key, char *ret, size_t room)
{
    const char *text = pd_json_text(pd_json_member(object, key));
    snprintf(ret, room, "%s", text ? text : "");
}

/*   ret_newest  (PD_TIERS_MAX) of each that says it */
static void take_tiers(struct pd_history *h, const struct pd_json_value *tiers, double *ret_newest)
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
    start->opened = number_of(e, "time");
    if (isnan(start->begun)) start->begun = start->opened;
    start->fence = pd_history_u64(e, "fence");
    start->from_step = pd_history_u64(e, "step");
    start->ranks = (uint32_t)pd_history_u64(e, "ranks");
    start->hosts = (uint32_t)pd_history_u64(e, "hosts");
    start->threads = (uint32_t)pd_history_u64(e, "threads");
    start->dp = (uint32_t)pd_history_u64(e, "dp");
    start->tp = (uint32_t)pd_history_u64(e, "tp");
    start->pp = (uint32_t)pd_history_u64(e, "pp");
    start->sp = (uint32_t)pd_history_u64(e, "sp");
    start->zero_stage = (uint32_t)pd_history_u64(e, "zero_stage");
    start->planned_bytes = pd_history_u64(e, "planned_bytes");
    start->checkpoint_bytes = pd_history_u64(e, "checkpoint_bytes");
    copy_text(e, "device", start->device, sizeof start->device);
    take_tiers(h, pd_json_member(e, "tiers"), start->tiers_opened);
}

static void take_ranks(struct pd_history *h, const struct pd_json_value *e)
{
    const struct pd_json_value *all = pd_json_member(e, "ranks");
    for (size_t i = 0; i < pd_json_count(all) && h->process_count < PD_HISTORY_PROCESSES_MAX; i++) {
        const struct pd_json_value *one = pd_json_at(all, i);
        const uint64_t process = pd_history_u64(one, "process"), heartbeat = pd_history_u64(one, "heartbeat");
        if (!process || process > INT32_MAX || heartbeat > INT32_MAX) continue;
        h->processes[h->process_count++] =
            (struct pd_history_process){(uint32_t)pd_history_u64(one, "rank"), (int32_t)process, (int32_t)heartbeat};
    }
}

static void take_end(struct pd_history_start *start, const struct pd_json_value *e)
{
    bool restarts = false;
    (void)pd_json_is_bool(pd_json_member(e, "restarts"), &restarts);
    start->ended = number_of(e, "time");
    start->exit_code = (int)pd_history_u64(e, "exit_code");
    start->is_over = !restarts;
    copy_text(e, "cause", start->cause, sizeof start->cause);
}

/* An event belongs to the start before it, as long as that has not had it; a rank without a launcher opens by itself. */
static pd_status take(struct pd_history *h, const struct pd_json_value *e, const char *event, struct pd_error *err)
{
    struct pd_history_start *start = h->start_count ? &h->starts[h->start_count - 1] : NULL;
    const bool is_start = strcmp(event, "start") == 0, is_open = strcmp(event, "open") == 0;
    const bool is_new = is_start || !start || (is_open && (start->fence || !isnan(start->ended)));
    if (strcmp(event, "leave") == 0) {
        const uint64_t step = pd_history_u64(e, "step");
        if (step > h->saved_step) h->saved_step = step;
        if (!start) return PD_OK;
        start->left_step = step;
        take_tiers(h, pd_json_member(e, "tiers"), start->tiers_left);
        return PD_OK;
    }
    if (strcmp(event, "ranks") == 0) take_ranks(h, e);
    if (!is_start && !is_open && strcmp(event, "end") != 0) return PD_OK; /* of a later version */
    if (is_new) PD_TRY(pd_history_add_start(h, &start, err));
    if (is_start) h->process_count = 0;
    if (is_start) {
        start->begun = number_of(e, "time");
        start->ranks = (uint32_t)pd_history_u64(e, "ranks");
        start->from_step = pd_history_u64(e, "from_step");
        copy_text(e, "transport", start->transport, sizeof start->transport);
        copy_text(e, "host", h->launcher_host, sizeof h->launcher_host);
        h->launcher_process = pd_history_u64(e, "process");
    } else if (is_open)
        take_open(h, start, e);
    else
        take_end(start, e);
    return PD_OK;
}

pd_status pd_history_take_event(struct pd_history *h, const char *line, size_t bytes, struct pd_error *err)
{
    struct pd_json_document *document;
    const char *event;
    size_t length;
    if (pd_json_parse_member(line, bytes, "event", &document, &event, &length, NULL)) {
        h->damaged_lines++;
        return PD_OK;
    }
    const pd_status st = take(h, pd_json_root(document), event, err);
    pd_json_document_free(document);
    return st;
}
