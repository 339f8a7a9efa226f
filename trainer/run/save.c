/* A queue of saves and the thread that processes it. Three counters under one lock; each only grows:
 *
 *   collected <= finished <= started
 *
 * A save is stored at its number modulo PLACES. started - collected never exceeds PLACES: in_flight saves are running, and
 * one more has ended here but is still being agreed on. Each running save records whether it pins the state. */
#include "trainer/run/save.h"
#include "ckpt/base/backoff.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/owner.h"
#include "ckpt/base/rank.h"
#include "ckpt/base/thread.h"
#include "ckpt/base/trace.h"
#include "ckpt/tiers/tiers.h"
#include "resharder/layout.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/state_files.h"
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LEAVING_RETRY_NS UINT64_C(1000000000)
#define OVER_RETRY_NS_MAX UINT64_C(15000000000)

static uint64_t ns_of(double seconds)
{
    return (uint64_t)(seconds * 1e9); /* a key's: 6e7 seconds at most */
}

uint64_t pd_save_failures_deadline(const struct pd_save_failures *f, double give_up_seconds)
{
    const bool is_brief = f->status == PD_NO_MEMORY || f->status == PD_UNSUPPORTED;
    uint64_t end = f->since_ns + ns_of(is_brief ? fmin(give_up_seconds, PD_SAVE_BRIEF_SECONDS) : give_up_seconds);
    if (f->leave_ns) end = pd_min_u64(end, f->leave_ns);
    return f->over_ns ? pd_min_u64(end, f->over_ns) : end;
}

/* From one attempt to the next. */
static uint64_t pause_ns(const struct pd_save_failures *f)
{
    if (f->leave_ns) return LEAVING_RETRY_NS;
    return f->over_ns ? pd_min_u64(pd_backoff_ns(f->count), OVER_RETRY_NS_MAX) : pd_backoff_ns(f->count);
}

void pd_save_failures_add(struct pd_save_failures *f, pd_status status, uint64_t step, uint64_t now_ns,
                          double give_up_seconds)
{
    f->status = status;
    if (!f->count++) {
        f->first_step = step;
        f->since_ns = now_ns;
    }
    f->retry_ns = pd_min_u64(now_ns + pause_ns(f), pd_save_failures_deadline(f, give_up_seconds));
}

void pd_save_failures_clear(struct pd_save_failures *f)
{
    f->count = 0;
    f->retry_ns = 0;
}

void pd_save_failures_leave(struct pd_save_failures *f, uint64_t now_ns, double leave_seconds)
{
    f->leave_ns = now_ns + ns_of(leave_seconds);
    f->retry_ns = 0;
}

void pd_save_failures_over(struct pd_save_failures *f, uint64_t now_ns)
{
    if (!f->over_ns) f->over_ns = now_ns + ns_of(PD_SAVE_LAST_SECONDS);
}

bool pd_save_failures_is_backing_off(const struct pd_save_failures *f, uint64_t now_ns)
{
    return f->count && now_ns < f->retry_ns;
}

bool pd_save_failures_is_too_long(const struct pd_save_failures *f, uint64_t now_ns, double give_up_seconds)
{
    return f->count && now_ns >= pd_save_failures_deadline(f, give_up_seconds);
}

/* ---- the queue ---- */

/* How a save relates to earlier ones. */
enum save_order {
    SAVE_BESIDE,     /* may start while others run */
    SAVE_AFTER_COPY, /* GPU state with one mirror: the previous save must have copied it */
    SAVE_ALONE       /* state in files, whose pool has one user at a time: all others must have ended */
};

/* Results of pd_state_save_wait for state in files. */
struct shard {
    struct pd_shard_summary summary;
    uint32_t slot;
};

#define PLACES (PD_SAVER_IN_FLIGHT_MAX + 1u)

/* start: the caller writes everything before `started` grows. Then only the saver's thread, until `finished` grows, except
 * the two marks and the outcome's stall_seconds, which the lock guards. */
struct save {
    struct pd_run_state state; /* its texts are the caller's */
    bool is_everywhere, is_last;
    double leave_seconds; /* is_last */
    uint64_t start_ns;
    bool is_pinned;      /* the state in memory is not read yet and must not change */
    bool is_overwritten; /* it may have changed: this save cannot read it again */
    pd_status begun;     /* result of pd_state_save_begin, with its error in the outcome */
    struct pd_saver_outcome outcome;
    struct shard shard;
};

struct pd_saver {
    struct pd_tiers *tiers;
    struct pd_group *group;
    struct pd_engine *engine;
    enum save_order order;
    uint32_t in_flight;

    struct pd_shard_box *boxes;
    uint32_t box_count;
    const void *
        *data; /* (box_count) boxes in memory: the saver's thread reads them until on_copied; later updates write them */
    /* Writers of each tier; tiers with equal compression share the first one's. The saver's thread owns them, and
     * engine->staging, from which they write; the owner is checked on each use. */
    struct pd_shard_writer *writers[PD_TIERS_MAX];
    struct pd_thread_pool *pool; /* compresses, and writes into memory; NULL: neither is needed */
    void *index;                 /* of whole tensors, for the commit */

    pthread_t thread;
    bool is_running;
    int rank; /* for log lines and fault points of the thread */

    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    struct save saves[PLACES];
    uint64_t started, finished, collected;
    bool makes_files, is_file_due, is_closing;
    /* The state in memory: saves own it while one pins it, otherwise "updates". */
    struct pd_owner state;
};

/* ---- sources of a save's bytes ----
 *
 *   begin    the caller's thread (pd_state_save_begin), right after an update: the state stays until on_copied
 *   wait     the saver's thread (pd_state_save_wait), before ranks meet: for what the shard needs
 *   write    the saver's thread, once per tier tried: writes this rank's shard into `store`
 *
 *              state in memory                             state in files
 *   begin      on a GPU the copy to the mirror starts      writes what is still in memory
 *   wait       it has arrived                              tables and one sync
 *   write      the boxes are copied                        the file gets one more name
 */

static void on_copied(void *saver);

/* The first tier links the files, which are complete by now; another tier copies them. */
static pd_status files_write(struct pd_saver *s, struct save *save, struct pd_store *store, uint32_t tier,
                             pd_status *ret_written, struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    struct pd_engine *e = s->engine;
    char path[4096];
    *ret_summary = save->shard.summary;
    *ret_written = PD_OK;
    if (tier == 0) {
        PD_TRY(pd_store_begin_generation(store, &save->state.identity, save->shard.slot, e->staging.data, e->staging.bytes,
                                         err));
    } else {
        PD_TRY(pd_store_begin(store, &save->state.identity, path, err));
        *ret_written = pd_state_files_copy(e->state, path, &save->state.identity, e->staging.data, e->staging.bytes, err);
    }
    on_copied(s); /* from now on only the checkpoint decides about the file */
    return PD_OK;
}

static pd_status memory_write(struct pd_saver *s, struct save *save, struct pd_store *store, uint32_t tier,
                              pd_status *ret_written, struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    char path[4096];
    PD_TRY(pd_store_begin(store, &save->state.identity, path, err));
    *ret_written = pd_shard_write(s->writers[tier], path, &save->state.identity, s->group->rank, s->data, ret_summary, err);
    return PD_OK;
}

uint64_t pd_saver_file_bytes(const struct pd_saver *s)
{
    uint64_t most = 0;
    if (s->order == SAVE_ALONE) return pd_state_files_file_bytes(s->engine->state);
    for (uint32_t tier = 0; tier < pd_tiers_count(s->tiers); tier++)
        most = pd_max_u64(most, pd_shard_writer_file_bytes(s->writers[tier]));
    return most;
}

/* Prepares one file for the next save, if files are in memory. Runs on the saver's thread between saves. */
static void make_file(struct pd_saver *s)
{
    struct pd_tier_report first;
    pd_tiers_report(s->tiers, 0, &first);
    struct pd_store *store = first.is_left_out ? NULL : pd_tiers_store(s->tiers, 0);
    if (!store) return;
    pd_owner_acquire(&s->engine->staging.owner, "a file made ready");
    pd_store_keep_ready(store, pd_saver_file_bytes(s), s->engine->staging.data, s->engine->staging.bytes);
    pd_owner_release(&s->engine->staging.owner, "a file made ready");
}

/* Whole tensors for people: every rank's boxes, from the layout function alone. */
static pd_status build_index(struct pd_saver *s, struct pd_error *err)
{
    uint64_t bytes = 0;
    PD_TRY(pd_layout_build_index(&s->engine->grid.layout, &s->engine->options.model->tensors, UINT64_MAX, &s->index, &bytes,
                                 err));
    (void)malloc_trim(0); /* HDF5 took much more than it leaves */
    pd_tiers_set_index(s->tiers, s->index, bytes);
    return PD_OK;
}

/* Tiers that save the same bytes have one writer. */
static pd_status plan_tier(struct pd_saver *s, struct pd_vfs *vfs, uint32_t tier, struct pd_error *err)
{
    const struct pd_engine *e = s->engine;
    struct pd_shard_codec codec = *pd_tiers_codec(s->tiers, tier);
    struct pd_tier_report report;
    for (uint32_t i = 0; i < tier; i++) {
        const struct pd_shard_codec *other = pd_tiers_codec(s->tiers, i);
        if (other->codec != codec.codec || other->level != codec.level) continue;
        s->writers[tier] = s->writers[i];
        return PD_OK;
    }
    pd_tiers_report(s->tiers, tier, &report);
    if ((codec.codec != PD_CODEC_NONE || report.in_memory) && !s->pool)
        PD_TRY(pd_thread_pool_new(e->options.threads, &s->pool, err));
    codec.pool = s->pool;
    PD_TRY(pd_shard_writer_new(vfs, &e->options.model->tensors, s->boxes, s->box_count, e->staging.data, e->staging.bytes,
                               &codec, &s->writers[tier], err));
    pd_shard_writer_on_copied(s->writers[tier], on_copied, s);
    return PD_OK;
}

static pd_status list_boxes(struct pd_saver *s, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &s->engine->options.model->tensors;
    PD_TRY(pd_layout_shard_boxes(&s->engine->grid.layout, tensors, s->group->rank, &s->boxes, &s->box_count, err));
    s->data = calloc(s->box_count + 1ull, sizeof *s->data);
    if (!s->data) PD_FAIL(err, PD_NO_MEMORY, "save: no memory for %u boxes", s->box_count);
    for (uint32_t b = 0, number = 0; b < s->box_count; b++) {
        const struct pd_shard_box *box = &s->boxes[b];
        bool is_first = b == 0 || box[-1].tensor != box->tensor || box[-1].kind != box->kind;
        number = is_first ? 0 : number + 1;
        s->data[b] = pd_state_box(s->engine->state, box->tensor, box->kind, number);
    }
    return PD_OK;
}

static pd_status save_build(struct pd_saver *s, struct pd_vfs *vfs, struct pd_error *err)
{
    if (s->order != SAVE_ALONE) {
        PD_TRY(list_boxes(s, err));
        for (uint32_t tier = 0; tier < pd_tiers_count(s->tiers); tier++)
            PD_TRY(plan_tier(s, vfs, tier, err));
    }
    /* Leaders place a shared directory, and leaders are the first ranks of hosts. */
    const struct pd_comm *comm = s->engine->grid.comm;
    return s->group->rank == 0 || (comm && comm->rank_here == 0) ? build_index(s, err) : PD_OK;
}

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

/* The state may change from now on: a running save that has not read it cannot be retried. */
static void mark_overwritten(struct pd_saver *s)
{
    for (uint64_t i = s->finished; i < s->started; i++)
        s->saves[i % PLACES].is_overwritten = true;
}

/* ---- a save, in the thread ---- */

/* The thread works on the oldest running save. */
static void on_copied(void *context)
{
    struct pd_saver *s = context;
    pthread_mutex_lock(&s->lock);
    unpin(s, &s->saves[s->finished % PLACES]);
    pthread_mutex_unlock(&s->lock);
}

/* A tier failed and the next is tried: keeps the state, if no update may have begun. */
static bool hold(void *context)
{
    struct pd_saver *s = context;
    struct save *save = &s->saves[s->finished % PLACES];
    pthread_mutex_lock(&s->lock);
    const bool is_held = !save->is_overwritten;
    if (is_held && !save->is_pinned) pin(s, save);
    pthread_mutex_unlock(&s->lock);
    return is_held;
}

static pd_status saver_write(void *context, struct pd_store *store, uint32_t tier, pd_status *ret_written,
                             struct pd_shard_summary *ret_summaries, struct pd_error *err)
{
    struct pd_saver *s = context;
    struct save *save = &s->saves[s->finished % PLACES];
    pd_owner_acquire(&s->engine->staging.owner, "a save");
    const pd_status st =
        (s->order == SAVE_ALONE ? files_write : memory_write)(s, save, store, tier, ret_written, ret_summaries, err);
    pd_owner_release(&s->engine->staging.owner, "a save");
    return st;
}

static pd_status write_save(struct pd_saver *s, struct save *save, struct pd_error *err)
{
    const struct pd_tiers_save request = {&save->state, save->is_everywhere, saver_write, hold, s};
    uint32_t tier;
    if (s->order != SAVE_BESIDE) {
        const pd_status st = save->begun
                                 ? save->begun /* with its error in *err */
                                 : pd_state_save_wait(s->engine->state, &save->shard.summary, &save->shard.slot, err);
        PD_TRY(pd_group_agree(s->group, st, err));
    }
    if (save->is_last) return pd_tiers_finish(s->tiers, &request, save->leave_seconds, err);
    PD_TRY(pd_tiers_save(s->tiers, &request, &tier, err));
    pd_fault_point("worker.saved");
    return PD_OK;
}

/* Called with the lock held; releases it meanwhile. */
static void run_save(struct pd_saver *s, struct save *save)
{
    pthread_mutex_unlock(&s->lock);
    const uint64_t begin = pd_trace_begin();
    const pd_status st = write_save(s, save, &save->outcome.error);
    pd_trace_end(begin, "save", "save", save->state.identity.step);
    const double seconds = pd_clock_seconds_since(save->start_ns);
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
            /* Called with the lock held; releases it meanwhile. */
            s->is_file_due = false;
            pthread_mutex_unlock(&s->lock);
            make_file(s);
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
    s->engine = engine;
    s->order = pd_state_is_in_files(engine->state)   ? SAVE_ALONE
               : pd_state_is_mirrored(engine->state) ? SAVE_AFTER_COPY
                                                     : SAVE_BESIDE;
    s->in_flight = in_flight;
    s->rank = pd_rank_current();
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    pd_owner_acquire(&s->state, "updates");
    pd_status st = save_build(s, vfs, err);
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
    for (uint32_t i = 0; i < PD_TIERS_MAX; i++) {
        bool is_shared = false;
        for (uint32_t k = 0; k < i; k++)
            is_shared |= s->writers[k] == s->writers[i];
        if (!is_shared) pd_shard_writer_free(s->writers[i]);
    }
    pd_thread_pool_free(s->pool);
    free(s->boxes);
    free(s->data);
    free(s->index);
    free(s);
}

void pd_saver_keep_ready(struct pd_saver *s)
{
    if (s->order == SAVE_ALONE) return; /* its own files are the checkpoint */
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
    return s->order == SAVE_ALONE ? 1 : s->in_flight;
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

static void save_start(struct pd_saver *s, const struct save *what)
{
    const uint64_t start_ns = pd_clock_monotonic_ns(NULL);
    pthread_mutex_lock(&s->lock);
    /* Wait until there is a place and the source may begin. */
    const enum save_order order = s->order;
    PD_CHECK(s->started - s->collected < PLACES);
    while (s->started - s->finished >= pd_saver_in_flight(s) || (order == SAVE_AFTER_COPY && has_pins(s)))
        wait_changed(s);
    if (order == SAVE_AFTER_COPY) mark_overwritten(s);
    pthread_mutex_unlock(&s->lock);
    struct save *next = &s->saves[s->started % PLACES]; /* the thread reads it only once `started` has grown */
    *next = *what;
    next->start_ns = start_ns;
    next->outcome = (struct pd_saver_outcome){.step = what->state.identity.step};
    next->begun = pd_state_save_begin(s->engine->state, &next->state.identity, &next->outcome.error);
    next->outcome.stall_seconds = pd_clock_seconds_since(start_ns);
    pthread_mutex_lock(&s->lock);
    pin(s, next);
    s->started++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void pd_saver_start(struct pd_saver *s, const struct pd_run_state *state, bool everywhere)
{
    save_start(s, &(struct save){.state = *state, .is_everywhere = everywhere});
}

void pd_saver_unpin(struct pd_saver *s)
{
    const uint64_t save_start = pd_clock_monotonic_ns(NULL), begin = pd_trace_begin();
    pthread_mutex_lock(&s->lock);
    const bool waits = has_pins(s);
    while (has_pins(s))
        wait_changed(s);
    /* Not collected yet: this caller does that later. */
    if (waits) s->saves[(s->started - 1) % PLACES].outcome.stall_seconds += pd_clock_seconds_since(save_start);
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
    save_start(s, &(struct save){.state = *state, .is_everywhere = true, .is_last = true, .leave_seconds = leave_seconds});
    pd_saver_wait(s);
    PD_CHECK(pd_saver_collect(s, pd_saver_finished(s), &outcome) && outcome.step == state->identity.step);
    if (outcome.status && err) *err = outcome.error;
    return outcome.status;
}
