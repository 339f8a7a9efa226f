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

/* ---- who is slow ---- */

/* kind PD_SPENT_KINDS: of all kinds together. */
static double value_of(const struct pd_rank_window *w, int kind)
{
    return kind == PD_SPENT_KINDS ? all_of(w) : w->seconds[kind];
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Of ranks that do the same as `rank`; of an even number the mean of the two in the middle. */
static double median(const struct pd_rank_window *ranks, uint32_t count, uint32_t rank, int kind, double *scratch)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < count; r++)
        if (ranks[r].stage == ranks[rank].stage && ranks[r].micro_batches == ranks[rank].micro_batches)
            scratch[n++] = value_of(&ranks[r], kind);
    qsort(scratch, n, sizeof *scratch, compare);
    return (scratch[(n - 1) / 2] + scratch[n / 2]) / 2;
}

static void judge_one(const struct pd_rank_window *ranks, uint32_t count, uint32_t rank, double window_seconds,
                      double *scratch, struct pd_straggler *s)
{
    const double mine = all_of(&ranks[rank]), usual = median(ranks, count, rank, PD_SPENT_KINDS, scratch);
    s->rank = rank;
    s->speed = mine > 0 ? usual / mine : 1;
    if (s->speed >= SLOW_SPEED || mine - usual < NOTABLE_SHARE * window_seconds) {
        s->windows = 0;
        return;
    }
    s->windows++;
    s->lost = -1;
    for (int kind = 0; kind < PD_SPENT_KINDS; kind++) {
        const double lost = value_of(&ranks[rank], kind) - median(ranks, count, rank, kind, scratch);
        if (lost <= s->lost) continue;
        s->at = (enum pd_spent)kind;
        s->lost = lost;
        s->seconds = value_of(&ranks[rank], kind);
    }
}

void pd_stragglers_judge(const struct pd_rank_window *ranks, uint32_t count, double window_seconds, struct pd_straggler *all)
{
    double *scratch = malloc(count * sizeof *scratch);
    for (uint32_t r = 0; scratch && r < count; r++)
        judge_one(ranks, count, r, window_seconds, scratch, &all[r]);
    free(scratch);
}

/* ---- windows ---- */

static void take_spent(uint64_t ret_ns[PD_SPENT_KINDS])
{
    uint64_t ns[PD_HEARTBEAT_PLACES];
    pd_heartbeat_spent(ns);
    ret_ns[PD_SPENT_COMPUTING] = ns[PD_HEARTBEAT_COMPUTING];
    ret_ns[PD_SPENT_READING] = ns[PD_HEARTBEAT_READING];
    ret_ns[PD_SPENT_STORAGE] = ns[PD_HEARTBEAT_SAVING] + ns[PD_HEARTBEAT_UPDATING_FILES] + ns[PD_HEARTBEAT_STORAGE];
}

pd_status pd_stragglers_init(struct pd_stragglers *s, const struct pd_group *group, struct pd_error *err)
{
    s->all = calloc(group->size, sizeof *s->all);
    if (!s->all) PD_FAIL(err, PD_NO_MEMORY, "no memory to compare %u ranks", group->size);
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

static void judge_window(struct pd_stragglers *s, const struct pd_group *group, const struct pd_rank_window *ranks,
                         double seconds, uint32_t *before)
{
    for (uint32_t r = 0; r < group->size; r++)
        before[r] = s->all[r].windows;
    pd_stragglers_judge(ranks, group->size, seconds, s->all);
    for (uint32_t r = 0; group->rank == 0 && r < group->size; r++)
        log_change(s, &ranks[r], &s->all[r], before[r]);
}

pd_status pd_stragglers_look(struct pd_stragglers *s, struct pd_group *group, uint64_t now_ns, struct pd_error *err)
{
    void *all;
    uint64_t spent_ns[PD_SPENT_KINDS];
    struct pd_rank_window mine = {.stage = s->stage, .micro_batches = s->micro_batches};
    const double seconds = (double)(now_ns - s->began_ns) * 1e-9;
    if (group->size == 1 || s->window_seconds <= 0 || (s->began_ns && seconds < s->window_seconds)) return PD_OK;
    take_spent(spent_ns);
    for (int i = 0; i < PD_SPENT_KINDS; i++)
        mine.seconds[i] = s->is_gpu && i == PD_SPENT_COMPUTING ? 0 : (double)(spent_ns[i] - s->spent_ns[i]) * 1e-9;
    const bool is_first = !s->began_ns;
    s->began_ns = now_ns;
    memcpy(s->spent_ns, spent_ns, sizeof spent_ns);
    if (is_first) return PD_OK; /* the first step is that of a start */
    (void)gethostname(mine.host, sizeof mine.host - 1);
    PD_TRY(pd_group_gather_all(group, &mine, sizeof mine, &all, err));
    uint32_t *before = calloc(group->size, sizeof *before);
    if (before) judge_window(s, group, all, seconds, before);
    free(before);
    free(all);
    return PD_OK;
}

uint32_t pd_stragglers_named(const struct pd_stragglers *s, uint32_t ranks, struct pd_straggler *ret_said)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        if (s->all[r].windows < WINDOWS) continue;
        if (count < PD_STRAGGLERS_SAID) ret_said[count] = s->all[r];
        count++;
    }
    return count;
}

void pd_stragglers_deinit(struct pd_stragglers *s)
{
    free(s->all);
    s->all = NULL;
}
