/* A queue of saves and the one thread that works through it. Three counters under one lock, each only grows:
 *
 *   collected <= finished <= started
 *
 * A save's place is its number modulo the places. started - collected never exceeds them: in_flight are under way, and one
 * more has ended here and is still told to the other ranks. Each save under way says whether it pins the state. */
#include "trainer/run/save.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/owner.h"
#include "ckpt/base/rank.h"
#include "ckpt/base/thread.h"
#include "ckpt/base/trace.h"
#include "trainer/run/save_source.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define PLACES (PD_SAVER_IN_FLIGHT_MAX + 1u)

/* start: the caller writes all of it before `started` grows. Then the saver's thread alone, until `finished` grows; but for
 * the two marks and the outcome's stall_seconds, which the lock guards. */
struct save {
    struct pd_run_state state; /* its texts are the caller's */
    bool is_everywhere, is_last;
    double leave_seconds; /* is_last */
    uint64_t start_ns;
    bool is_pinned;      /* the state in memory is still to be read, and may not change */
    bool is_overwritten; /* it may have changed: this save cannot read it again */
    pd_status begun;     /* what became of pd_save_source_begin, with its error in the outcome */
    struct pd_saver_outcome outcome;
    struct pd_save_shard shard;
};

struct pd_saver {
    struct pd_tiers *tiers;
    struct pd_group *group;
    struct pd_save_source *source;
    uint32_t in_flight;

    pthread_t thread;
    bool is_running;
    int rank; /* for log lines and fault points of the thread */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    struct save saves[PLACES];
    uint64_t started, finished, collected;
    bool makes_files, is_file_due, is_closing;
    /* The state in memory: "updates" have it while no save pins it, and saves while one does. */
    struct pd_owner state;
};

/* The save that the thread works on, for the callbacks of a save. */
struct writing {
    struct pd_saver *saver;
    struct save *save;
};

/* ---- pins: with the lock ---- */

static bool has_pins(const struct pd_saver *s)
{
    bool any = false;
    for (uint64_t i = s->finished; i < s->started; i++)
        any |= s->saves[i % PLACES].is_pinned;
    return any;
}

static void pin(struct pd_saver *s, struct save *save)
{
    if (!has_pins(s)) {
        pd_owner_release(&s->state, "updates");
        pd_owner_acquire(&s->state, "saves");
    }
    save->is_pinned = true;
}

static void unpin(struct pd_saver *s, struct save *save)
{
    if (!save->is_pinned) return;
    save->is_pinned = false;
    if (has_pins(s)) return;
    pd_owner_release(&s->state, "saves");
    pd_owner_acquire(&s->state, "updates");
    pthread_cond_broadcast(&s->changed);
}

/* The state may change from here on: a save under way that has not read it cannot be tried again. */
static void mark_overwritten(struct pd_saver *s)
{
    for (uint64_t i = s->finished; i < s->started; i++)
        s->saves[i % PLACES].is_overwritten = true;
}

/* ---- a save, in the thread ---- */

/* The oldest save under way is the one that the thread works on. */
static void on_copied(void *context)
{
    struct pd_saver *s = context;
    pthread_mutex_lock(&s->lock);
    unpin(s, &s->saves[s->finished % PLACES]);
    pthread_mutex_unlock(&s->lock);
}

/* A tier has failed and the next one is to be asked: the state stays as it is, if no update may have begun. */
static bool hold(void *context)
{
    const struct writing *w = context;
    struct pd_saver *s = w->saver;
    pthread_mutex_lock(&s->lock);
    const bool is_held = !w->save->is_overwritten;
    if (is_held && !w->save->is_pinned) pin(s, w->save);
    pthread_mutex_unlock(&s->lock);
    return is_held;
}

static pd_status prepare(void *context, struct pd_store *store, uint32_t tier, pd_status *ret_written,
                         struct pd_shard_summary *ret_summaries, struct pd_error *err)
{
    const struct writing *w = context;
    return pd_save_source_write(w->saver->source, &w->save->state.identity, &w->save->shard, store, tier, ret_written,
                                ret_summaries, err);
}

static pd_status write_save(struct pd_saver *s, struct save *save, struct pd_error *err)
{
    struct writing writing = {s, save};
    const struct pd_tiers_save request = {&save->state, save->is_everywhere, prepare, hold, &writing};
    uint32_t tier;
    if (pd_save_source_order(s->source) != PD_SAVE_BESIDE) {
        const pd_status st = save->begun ? save->begun /* with its error in *err */
                                         : pd_save_source_ready(s->source, &save->shard, err);
        PD_TRY(pd_group_agree(s->group, st, err));
    }
    if (save->is_last) return pd_tiers_finish(s->tiers, &request, save->leave_seconds, err);
    PD_TRY(pd_tiers_save(s->tiers, &request, &tier, err));
    pd_fault_point("worker.saved");
    return PD_OK;
}

/* Called with the lock, which is open meanwhile. */
static void run_save(struct pd_saver *s, struct save *save)
{
    pthread_mutex_unlock(&s->lock);
    const uint64_t begin = pd_trace_begin();
    const pd_status st = write_save(s, save, &save->outcome.error);
    pd_trace_end(begin, "save", "save", save->state.identity.step);
    const double seconds = pd_clock_seconds_since(NULL, save->start_ns);
    pthread_mutex_lock(&s->lock);
    save->outcome.status = st;
    save->outcome.save_seconds = seconds;
    unpin(s, save);
    s->finished++;
    s->is_file_due = s->makes_files;
    pthread_cond_broadcast(&s->changed);
}

static void *thread_main(void *argument)
{
    struct pd_saver *s = argument;
    pd_rank_set_thread(s->rank);
    pthread_mutex_lock(&s->lock);
    while (!s->is_closing || s->finished < s->started) {
        if (s->finished < s->started)
            run_save(s, &s->saves[s->finished % PLACES]);
        else if (s->is_file_due) {
            /* Called with the lock, which is open meanwhile. */
            s->is_file_due = false;
            pthread_mutex_unlock(&s->lock);
            pd_save_source_make_file(s->source);
            pthread_mutex_lock(&s->lock);
        } else
            pthread_cond_wait(&s->changed, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static pd_status start_thread(struct pd_saver *s, struct pd_error *err)
{
    int number = pd_thread_start(&s->thread, NULL, thread_main, s);
    if (number) PD_FAIL_THREAD(err, number, "the thread that saves");
    s->is_running = true;
    pthread_setname_np(s->thread, "pd-saver");
    return PD_OK;
}

/* ---- the caller's side ---- */

pd_status pd_saver_new(struct pd_vfs *vfs, struct pd_tiers *tiers, struct pd_group *group, struct pd_engine *engine,
                       uint32_t in_flight, struct pd_saver **ret_saver, struct pd_error *err)
{
    PD_CHECK(in_flight >= 1 && in_flight <= PD_SAVER_IN_FLIGHT_MAX);
    struct pd_saver *s = calloc(1, sizeof *s);
    if (!s) PD_FAIL(err, PD_NO_MEMORY, "save: no memory");
    s->tiers = tiers;
    s->group = group;
    s->in_flight = in_flight;
    s->rank = pd_rank_current();
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    pd_owner_acquire(&s->state, "updates");
    pd_status st = pd_save_source_new(vfs, tiers, group, engine, on_copied, s, &s->source, err);
    if (!st) st = start_thread(s, err);
    if (st) {
        pd_saver_free(s);
        return st;
    }
    *ret_saver = s;
    return PD_OK;
}

void pd_saver_free(struct pd_saver *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->is_closing = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->is_running) pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    pd_save_source_free(s->source);
    free(s);
}

uint64_t pd_saver_file_bytes(const struct pd_saver *s)
{
    return pd_save_source_file_bytes(s->source);
}

void pd_saver_keep_ready(struct pd_saver *s)
{
    if (pd_save_source_order(s->source) == PD_SAVE_ALONE) return; /* its own files are the checkpoint */
    pthread_mutex_lock(&s->lock);
    s->makes_files = s->is_file_due = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* The rank's thread waits for the saver's. */
static void wait_changed(struct pd_saver *s)
{
    const enum pd_heartbeat_place before = pd_heartbeat_enter(PD_HEARTBEAT_SAVING);
    pthread_cond_wait(&s->changed, &s->lock);
    pd_heartbeat_enter(before);
}

uint32_t pd_saver_in_flight(const struct pd_saver *s)
{
    return pd_save_source_order(s->source) == PD_SAVE_ALONE ? 1 : s->in_flight;
}

void pd_saver_wait_turn(struct pd_saver *s, double seconds)
{
    struct timespec until;
    if (seconds <= 0) return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t until_ns = (uint64_t)until.tv_nsec + (uint64_t)(seconds * 1e9);
    until.tv_sec += (time_t)(until_ns / 1000000000);
    until.tv_nsec = (long)(until_ns % 1000000000);
    const enum pd_heartbeat_place before = pd_heartbeat_enter(PD_HEARTBEAT_SAVING);
    pthread_mutex_lock(&s->lock);
    for (int number = 0; !number && s->started - s->finished >= pd_saver_in_flight(s);)
        number = pthread_cond_clockwait(&s->changed, &s->lock, CLOCK_MONOTONIC, &until);
    pthread_mutex_unlock(&s->lock);
    pd_heartbeat_enter(before);
}

static void start(struct pd_saver *s, const struct save *what)
{
    const uint64_t start_ns = pd_clock_monotonic_ns(NULL);
    pthread_mutex_lock(&s->lock);
    /* Until a place is free and the source may begin. */
    const enum pd_save_order order = pd_save_source_order(s->source);
    PD_CHECK(s->started - s->collected < PLACES);
    while (s->started - s->finished >= pd_saver_in_flight(s) || (order == PD_SAVE_AFTER_COPY && has_pins(s)))
        wait_changed(s);
    if (order == PD_SAVE_AFTER_COPY) mark_overwritten(s);
    pthread_mutex_unlock(&s->lock);
    struct save *next = &s->saves[s->started % PLACES]; /* the thread does not look at it before `started` grows */
    *next = *what;
    next->start_ns = start_ns;
    next->outcome = (struct pd_saver_outcome){.step = what->state.identity.step};
    next->begun = pd_save_source_begin(s->source, &next->state.identity, &next->outcome.error);
    next->outcome.stall_seconds = pd_clock_seconds_since(NULL, start_ns);
    pthread_mutex_lock(&s->lock);
    pin(s, next);
    s->started++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void pd_saver_start(struct pd_saver *s, const struct pd_run_state *state, bool everywhere)
{
    start(s, &(struct save){.state = *state, .is_everywhere = everywhere});
}

void pd_saver_unpin(struct pd_saver *s)
{
    const uint64_t start = pd_clock_monotonic_ns(NULL), begin = pd_trace_begin();
    pthread_mutex_lock(&s->lock);
    const bool waits = has_pins(s);
    while (has_pins(s))
        wait_changed(s);
    /* Not collected yet: that comes from this caller, later. */
    if (waits) s->saves[(s->started - 1) % PLACES].outcome.stall_seconds += pd_clock_seconds_since(NULL, start);
    mark_overwritten(s);
    pthread_mutex_unlock(&s->lock);
    if (waits) pd_trace_end(begin, "wait", "copy of the state", 0);
}

uint64_t pd_saver_finished(struct pd_saver *s)
{
    pthread_mutex_lock(&s->lock);
    const uint64_t finished = s->finished;
    pthread_mutex_unlock(&s->lock);
    return finished;
}

void pd_saver_wait(struct pd_saver *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->finished < s->started)
        wait_changed(s);
    pthread_mutex_unlock(&s->lock);
}

bool pd_saver_collect(struct pd_saver *s, uint64_t finished, struct pd_saver_outcome *ret_outcome)
{
    pthread_mutex_lock(&s->lock);
    PD_CHECK(finished <= s->finished);
    const bool is_one = s->collected < finished;
    if (is_one) *ret_outcome = s->saves[s->collected++ % PLACES].outcome;
    pthread_mutex_unlock(&s->lock);
    return is_one;
}

pd_status pd_saver_finish(struct pd_saver *s, const struct pd_run_state *state, double leave_seconds, struct pd_error *err)
{
    struct pd_saver_outcome outcome;
    start(s, &(struct save){.state = *state, .is_everywhere = true, .is_last = true, .leave_seconds = leave_seconds});
    pd_saver_wait(s);
    PD_CHECK(pd_saver_collect(s, pd_saver_finished(s), &outcome) && outcome.step == state->identity.step);
    if (outcome.status && err) *err = outcome.error;
    return outcome.status;
}
