#include "trainer/run/stragglers.h"

#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WINDOWS 3u
#define SLOW_SPEED 0.75
#define NOTABLE_SHARE 0.05

const char *const pd_spent_names[PD_SPENT_KINDS] = {"computing", "reading data", "waiting for storage"};

static double all_of(const struct pd_rank_window *w)
{
    double seconds = 0;
    for (int i = 0; i < PD_SPENT_KINDS; i++)
        seconds += w->seconds[i];
    return seconds;
}

/* ---- detection ---- */

/* kind PD_SPENT_KINDS: of all kinds together. */
static double value_of(const struct pd_rank_window *w, int kind)
{
    return kind == PD_SPENT_KINDS ? all_of(w) : w->seconds[kind];
}

struct work {
    uint32_t stage, micro_batches, rank;
    double value;
};

static int stragglers_compare(const void *a, const void *b)
{
    const struct work *x = a, *y = b;
    if (x->stage != y->stage) return x->stage < y->stage ? -1 : 1;
    if (x->micro_batches != y->micro_batches) return x->micro_batches < y->micro_batches ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

/* Medians over ranks with the same work as each; for an even number the mean of the middle two. Sorts once. */
static void medians_set(const struct pd_rank_window *ranks, uint32_t count, int kind, struct work *scratch,
                        double *ret_medians)
{
    for (uint32_t r = 0; r < count; r++)
        scratch[r] = (struct work){ranks[r].stage, ranks[r].micro_batches, r, value_of(&ranks[r], kind)};
    qsort(scratch, count, sizeof *scratch, stragglers_compare);
    for (uint32_t begin = 0, end = 0; begin < count; begin = end) {
        while (end < count && scratch[end].stage == scratch[begin].stage &&
               scratch[end].micro_batches == scratch[begin].micro_batches)
            end++;
        const uint32_t n = end - begin;
        const double median = (scratch[begin + (n - 1) / 2].value + scratch[begin + n / 2].value) / 2;
        for (uint32_t i = begin; i < end; i++)
            ret_medians[scratch[i].rank] = median;
    }
}

static bool judge_speed(const struct pd_rank_window *w, double usual, double window_seconds, struct pd_straggler *s)
{
    const double mine = all_of(w);
    s->speed = mine > 0 ? usual / mine : 1;
    const bool is_slow = s->speed < SLOW_SPEED && mine - usual >= NOTABLE_SHARE * window_seconds;
    s->windows = is_slow ? s->windows + 1 : 0;
    s->lost = -1;
    return is_slow;
}

static void judge_kind(const struct pd_rank_window *w, double usual, int kind, struct pd_straggler *s)
{
    const double lost = w->seconds[kind] - usual;
    if (!s->windows || lost <= s->lost) return;
    s->at = (enum pd_spent)kind;
    s->lost = lost;
    s->seconds = w->seconds[kind];
}

void pd_stragglers_judge(const struct pd_rank_window *ranks, uint32_t count, double window_seconds, struct pd_straggler *all)
{
    struct work *scratch = malloc(count * sizeof *scratch);
    double *medians = malloc(count * sizeof *medians);
    bool is_any_slow = false;
    if (scratch && medians) medians_set(ranks, count, PD_SPENT_KINDS, scratch, medians);
    for (uint32_t r = 0; scratch && medians && r < count; r++) {
        all[r].rank = r;
        is_any_slow |= judge_speed(&ranks[r], medians[r], window_seconds, &all[r]);
    }
    for (int kind = 0; kind < PD_SPENT_KINDS && is_any_slow; kind++) {
        medians_set(ranks, count, kind, scratch, medians);
        for (uint32_t r = 0; r < count; r++)
            judge_kind(&ranks[r], medians[r], kind, &all[r]);
    }
    free(scratch);
    free(medians);
}

/* ---- windows ---- */

pd_status pd_stragglers_init(struct pd_stragglers *s, const struct pd_group *group, struct pd_error *err)
{
    if (group->rank != 0) return PD_OK;
    s->all = calloc(group->size, sizeof *s->all);
    s->ranks = calloc(group->size, sizeof *s->ranks);
    if (!s->all || !s->ranks) PD_FAIL(err, PD_NO_MEMORY, "no memory to compare %u ranks", group->size);
    return PD_OK;
}

static void log_change(const struct pd_stragglers *s, const struct pd_rank_window *w, const struct pd_straggler *one,
                       uint32_t before)
{
    if (one->windows == WINDOWS)
        pd_log_warn(
            "worker",
            "rank %u (host %s) is slow: %.0f%% of the median speed of ranks with the same work, for %u windows of %g "
            "s, by %s, %.1f s of the last one and %.1f s more than the median; look at its host, or leave it out",
            one->rank, w->host, 100 * one->speed, WINDOWS, s->window_seconds, pd_spent_names[one->at], one->seconds,
            one->lost);
    else if (before >= WINDOWS && !one->windows)
        pd_log_info("worker", "rank %u (host %s) is as fast as the others again", one->rank, w->host);
}

static void judge_window(struct pd_stragglers *s, uint32_t count, double seconds)
{
    uint32_t *before = calloc(count, sizeof *before);
    for (uint32_t r = 0; before && r < count; r++)
        before[r] = s->all[r].windows;
    if (before) pd_stragglers_judge(s->ranks, count, seconds, s->all);
    for (uint32_t r = 0; before && r < count; r++)
        log_change(s, &s->ranks[r], &s->all[r], before[r]);
    free(before);
}

pd_status pd_stragglers_look(struct pd_stragglers *s, struct pd_group *group, uint64_t now_ns, struct pd_error *err)
{
    uint64_t spent_ns[PD_SPENT_KINDS];
    struct pd_rank_window mine = {.stage = s->stage, .micro_batches = s->micro_batches};
    const double seconds = (double)(now_ns - s->began_ns) * 1e-9;
    if (group->size == 1 || s->window_seconds <= 0 || (s->began_ns && seconds < s->window_seconds)) return PD_OK;
    uint64_t ns[PD_HEARTBEAT_PLACES];
    pd_heartbeat_spent(ns);
    spent_ns[PD_SPENT_COMPUTING] = ns[PD_HEARTBEAT_COMPUTING];
    spent_ns[PD_SPENT_READING] = ns[PD_HEARTBEAT_READING];
    spent_ns[PD_SPENT_STORAGE] = ns[PD_HEARTBEAT_SAVING] + ns[PD_HEARTBEAT_UPDATING_FILES] + ns[PD_HEARTBEAT_STORAGE];
    for (int i = 0; i < PD_SPENT_KINDS; i++)
        mine.seconds[i] = s->is_gpu && i == PD_SPENT_COMPUTING ? 0 : (double)(spent_ns[i] - s->spent_ns[i]) * 1e-9;
    const bool is_first = !s->began_ns;
    s->began_ns = now_ns;
    memcpy(s->spent_ns, spent_ns, sizeof spent_ns);
    if (is_first) return PD_OK; /* the first step includes the start */
    (void)gethostname(mine.host, sizeof mine.host - 1);
    PD_TRY(pd_group_gather(group, 0, &mine, sizeof mine, s->ranks, err));
    if (group->rank == 0) judge_window(s, group->size, seconds);
    return PD_OK;
}

uint32_t pd_stragglers_named(const struct pd_stragglers *s, uint32_t ranks, struct pd_straggler *ret_said)
{
    uint32_t count = 0;
    for (uint32_t r = 0; s->all && r < ranks; r++) {
        if (s->all[r].windows < WINDOWS) continue;
        if (count < PD_STRAGGLERS_SAID) ret_said[count] = s->all[r];
        count++;
    }
    return count;
}

void pd_stragglers_deinit(struct pd_stragglers *s)
{
    free(s->all);
    free(s->ranks);
    s->all = NULL;
    s->ranks = NULL;
}
