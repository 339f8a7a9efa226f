/* One thread, one save after another. The caller's view is four counters that only grow, under one lock:
 *
 *   collected <= finished <= copied <= started
 *
 * A save's place is its number modulo the places. started - collected never exceeds them: in_flight are under way, and one
 * more has ended here and is still told to the other ranks. */
#include "trainer/run/save.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/rank.h"
#include "ckpt/base/trace.h"
#include "ckpt/store/index.h"
#include "resharder/layout.h"
#include "trainer/engine/state_files.h"

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLACES (PD_SAVER_IN_FLIGHT_MAX + 1u)

struct save {
    struct pd_run_state state; /* its texts are the caller's */
    bool is_everywhere, is_last;
    double leave_seconds; /* is_last */
    uint64_t start_ns;
    struct pd_saver_outcome outcome;
    pd_status completed; /* state in files: what became of its newest generation; on a GPU: whether its copy began */
    struct pd_shard_summary summaries[PD_LAYOUT_STRIPES_MAX];
    uint32_t slots[PD_LAYOUT_STRIPES_MAX];
};

struct pd_saver {
    struct pd_tiers *tiers;
    struct pd_group *group;
    struct pd_engine *engine;
    struct pd_shard_box *boxes;
    uint32_t box_count, in_flight;
    const void **data;                             /* (box_count) */
    struct pd_shard_writer *writers[PD_TIERS_MAX]; /* of each tier; tiers of equal compression share the first one's */
    struct pd_thread_pool *pool;                   /* compresses; NULL where nothing does */
    void *index;

    pthread_t thread;
    bool is_running;
    int rank; /* for log lines and fault points of the thread */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    struct save saves[PLACES];
    uint64_t started, copied, finished, collected;
    uint64_t released; /* saves before this one may no longer be what the boxes hold */
    bool keeps_ready, is_ready_due, is_closing;
};

struct writing {
    struct pd_saver *saver;
    const struct save *next;
};

/* ---- preparing ---- */

static void copied(void *context)
{
    struct pd_saver *s = context;
    pthread_mutex_lock(&s->lock);
    s->copied = s->finished + 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* The save under way has failed: its boxes are kept as they are until it has ended, where no update may have begun. */
static bool hold(void *context)
{
    const struct writing *w = context;
    struct pd_saver *s = w->saver;
    pthread_mutex_lock(&s->lock);
    const bool is_held = s->released <= s->finished;
    if (is_held) s->copied = s->finished;
    pthread_mutex_unlock(&s->lock);
    return is_held;
}

/* Whole tensors for people: every rank's boxes, from the layout function alone. */
static pd_status build_index(struct pd_saver *s, struct pd_error *err)
{
    const uint32_t shards = pd_layout_shards(&s->engine->grid.layout);
    const struct pd_tensor_table *tensors = &s->engine->options.model->tensors;
    struct pd_index_source *sources = calloc(shards, sizeof *sources);
    char(*names)[32] = calloc(shards, sizeof *names);
    uint64_t bytes = 0;
    pd_status st =
        sources && names ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "index: no memory for %u shards", shards);
    for (uint32_t r = 0; !st && r < shards; r++) {
        struct pd_shard_box *boxes = NULL;
        st = pd_layout_shard_boxes(&s->engine->grid.layout, tensors, r, &boxes, &sources[r].box_count, err);
        snprintf(names[r], sizeof names[r], "shard-%05u.h5", r);
        sources[r].file_name = names[r];
        sources[r].boxes = boxes;
    }
    if (!st) st = pd_index_build(tensors, sources, shards, &s->index, &bytes, err);
    (void)malloc_trim(0); /* HDF5 took much more than it leaves */
    if (!st) pd_tiers_set_index(s->tiers, s->index, bytes);
    for (uint32_t r = 0; sources && r < shards; r++)
        free((void *)sources[r].boxes);
    free(sources);
    free(names);
    return st;
}

/* Tiers that save the same bytes have one writer. */
static pd_status plan_tier(struct pd_saver *s, struct pd_vfs *vfs, uint32_t tier, struct pd_error *err)
{
    const struct pd_engine *e = s->engine;
    struct pd_shard_codec codec = *pd_tiers_codec(s->tiers, tier);
    for (uint32_t i = 0; i < tier; i++) {
        const struct pd_shard_codec *other = pd_tiers_codec(s->tiers, i);
        if (other->codec != codec.codec || other->level != codec.level || other->is_auto != codec.is_auto) continue;
        s->writers[tier] = s->writers[i];
        return PD_OK;
    }
    if (codec.codec != PD_CODEC_NONE && !s->pool) PD_TRY(pd_thread_pool_new(e->options.threads, &s->pool, err));
    codec.pool = s->pool;
    PD_TRY(pd_shard_writer_new_compressed(vfs, &e->options.model->tensors, s->boxes, s->box_count, e->io_buffers,
                                          e->io_bytes, &codec, &s->writers[tier], err));
    pd_shard_writer_on_copied(s->writers[tier], copied, s);
    return PD_OK;
}

static pd_status prepare(struct pd_saver *s, struct pd_vfs *vfs, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &s->engine->options.model->tensors;
    if (s->engine->files) return s->group->rank == 0 || s->group->host_count > 1 ? build_index(s, err) : PD_OK;
    PD_TRY(pd_layout_shard_boxes(&s->engine->grid.layout, tensors, s->group->rank, &s->boxes, &s->box_count, err));
    s->data = calloc(s->box_count + 1ull, sizeof *s->data);
    if (!s->data) PD_FAIL(err, PD_NO_MEMORY, "save: no memory for %u boxes", s->box_count);
    for (uint32_t b = 0, number = 0; b < s->box_count; b++) {
        const struct pd_shard_box *box = &s->boxes[b];
        bool is_first = b == 0 || box[-1].tensor != box->tensor || box[-1].kind != box->kind;
        number = is_first ? 0 : number + 1;
        s->data[b] = pd_engine_box_data(s->engine, box->tensor, box->kind, number);
    }
    for (uint32_t tier = 0; tier < pd_tiers_count(s->tiers); tier++)
        PD_TRY(plan_tier(s, vfs, tier, err));
    return s->group->rank == 0 || s->group->host_count > 1 ? build_index(s, err) : PD_OK;
}

/* ---- a save, in the thread ---- */

/* Where this rank's shard comes from: memory. Tells of `copied` on the way. */
static pd_status write_shard(void *context, struct pd_store *store, uint32_t tier, pd_status *ret_written,
                             struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    const struct writing *w = context;
    struct pd_saver *s = w->saver;
    char path[4096];
    PD_TRY(pd_store_begin(store, &w->next->state.identity, path, err));
    *ret_written =
        pd_shard_write(s->writers[tier], path, &w->next->state.identity, s->group->rank, s->data, ret_summary, err);
    return PD_OK;
}

/* Or from files: the newest generation is a whole file by now and gets one more name; in another tier it is copied. */
static pd_status link_generation(void *context, struct pd_store *store, uint32_t tier, pd_status *ret_written,
                                 struct pd_shard_summary *ret_summaries, struct pd_error *err)
{
    const struct writing *w = context;
    const struct pd_engine *e = w->saver->engine;
    char path[4096];
    const uint32_t stripes = pd_layout_stripes(&e->grid.layout);
    memcpy(ret_summaries, w->next->summaries, stripes * sizeof *ret_summaries);
    *ret_written = PD_OK;
    if (tier == 0) {
        PD_TRY(pd_store_begin_generation(store, &w->next->state.identity, w->next->slots, e->io_buffers, e->io_bytes, err));
    } else {
        PD_TRY(pd_store_begin(store, &w->next->state.identity, path, err));
        for (uint32_t k = 0; !*ret_written && k < stripes; k++) {
            if (k) pd_store_begin_shard(store, k, path);
            *ret_written = pd_state_files_copy(e, k, path, &w->next->state.identity, err);
        }
    }
    copied(w->saver); /* from here on the checkpoint alone decides about the file */
    return PD_OK;
}

/* What went wrong before is in *err already. */
static pd_status finish_generation(struct pd_saver *s, struct save *next, struct pd_error *err)
{
    return next->completed ? next->completed : pd_state_files_finish(s->engine, next->summaries, next->slots, err);
}

/* What went wrong before is in *err already. */
static pd_status wait_for_boxes(struct pd_saver *s, struct save *next, struct pd_error *err)
{
    return next->completed ? next->completed : pd_engine_boxes_wait(s->engine, err);
}

static pd_status save(struct pd_saver *s, struct save *next, struct pd_error *err)
{
    struct writing writing = {s, next};
    const struct pd_tiers_save request = {&next->state, next->is_everywhere,
                                          s->engine->files ? link_generation : write_shard, hold, &writing};
    uint32_t tier;
    if (s->engine->files) PD_TRY(pd_group_agree(s->group, finish_generation(s, next, err), err));
    if (pd_engine_boxes_are_apart(s->engine)) PD_TRY(pd_group_agree(s->group, wait_for_boxes(s, next, err), err));
    if (next->is_last) return pd_tiers_finish(s->tiers, &request, next->leave_seconds, err);
    PD_TRY(pd_tiers_save(s->tiers, &request, &tier, err));
    pd_fault_point("worker.saved");
    return PD_OK;
}

/* Called with the lock, which is open meanwhile. */
static void run_save(struct pd_saver *s, struct save *next)
{
    pthread_mutex_unlock(&s->lock);
    const uint64_t begin = pd_trace_begin(), step = next->state.identity.step;
    pd_status st = save(s, next, &next->outcome.error);
    pd_trace_end(begin, "save", "save", step);
    double seconds = pd_clock_seconds_since(NULL, next->start_ns);
    pthread_mutex_lock(&s->lock);
    next->outcome.status = st;
    next->outcome.save_seconds = seconds;
    s->finished++;
    if (s->copied < s->finished) s->copied = s->finished;
    s->is_ready_due = s->keeps_ready;
    pthread_cond_broadcast(&s->changed);
}

static void make_ready(struct pd_saver *s)
{
    s->is_ready_due = false;
    pthread_mutex_unlock(&s->lock);
    struct pd_tier_report first;
    pd_tiers_report(s->tiers, 0, &first);
    struct pd_store *store = first.is_left_out ? NULL : pd_tiers_store(s->tiers, 0);
    if (store) pd_store_keep_ready(store, pd_saver_file_bytes(s, 0), s->engine->io_buffers, s->engine->io_bytes);
    pthread_mutex_lock(&s->lock);
}

static void *thread_main(void *argument)
{
    struct pd_saver *s = argument;
    pd_rank_set_thread(s->rank);
    pthread_mutex_lock(&s->lock);
    while (!s->is_closing || s->finished < s->started) {
        if (s->finished < s->started)
            run_save(s, &s->saves[s->finished % PLACES]);
        else if (s->is_ready_due)
            make_ready(s);
        else
            pthread_cond_wait(&s->changed, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Signals are for the threads of the program. */
static pd_status start_thread(struct pd_saver *s, struct pd_error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int number = pthread_create(&s->thread, NULL, thread_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (number) PD_FAIL_ERRNO(err, number, "save: starting its thread");
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
    s->in_flight = in_flight;
    s->rank = pd_rank_current();
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    pd_status st = prepare(s, vfs, err);
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

uint64_t pd_saver_file_bytes(const struct pd_saver *s, uint32_t stripe)
{
    if (s->engine->files) return pd_state_files_file_bytes(s->engine, stripe);
    uint64_t most = 0;
    for (uint32_t tier = 0; tier < pd_tiers_count(s->tiers); tier++) {
        const uint64_t bytes = pd_shard_writer_file_bytes(s->writers[tier]);
        if (bytes > most) most = bytes;
    }
    return most;
}

void pd_saver_keep_ready(struct pd_saver *s)
{
    if (s->engine->files) return; /* they are the files */
    pthread_mutex_lock(&s->lock);
    s->keeps_ready = s->is_ready_due = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* With the lock, which is open meanwhile. State in files belongs to the caller's thread, and the pool it lies in to one
 * thread at a time: nothing else is under way. */
static void complete_generation(struct pd_saver *s, struct save *next)
{
    while (s->finished < s->started)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    next->completed = pd_state_files_complete(s->engine, &next->state.identity, &next->outcome.error);
    pthread_mutex_lock(&s->lock);
}

static void start(struct pd_saver *s, const struct save *what)
{
    const uint64_t start_ns = pd_clock_monotonic_ns(NULL);
    if (pd_engine_boxes_are_apart(s->engine)) pd_saver_let_go(s);
    pthread_mutex_lock(&s->lock);
    PD_CHECK(s->started - s->collected < PLACES);
    while (s->started - s->finished >= s->in_flight)
        pthread_cond_wait(&s->changed, &s->lock);
    struct save *next = &s->saves[s->started % PLACES];
    *next = *what;
    next->start_ns = start_ns;
    next->outcome = (struct pd_saver_outcome){.step = what->state.identity.step};
    if (s->engine->files)
        complete_generation(s, next);
    else
        next->completed = pd_engine_boxes_begin(s->engine, &next->outcome.error);
    next->outcome.stall_seconds = pd_clock_seconds_since(NULL, start_ns);
    s->started++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void pd_saver_start(struct pd_saver *s, const struct pd_run_state *state, bool everywhere)
{
    start(s, &(struct save){.state = *state, .is_everywhere = everywhere});
}

void pd_saver_let_go(struct pd_saver *s)
{
    const uint64_t start = pd_clock_monotonic_ns(NULL), begin = pd_trace_begin();
    pthread_mutex_lock(&s->lock);
    const bool waits = s->copied < s->started;
    while (s->copied < s->started)
        pthread_cond_wait(&s->changed, &s->lock);
    /* Not collected yet: that comes from this caller, later. */
    if (waits) s->saves[(s->started - 1) % PLACES].outcome.stall_seconds += pd_clock_seconds_since(NULL, start);
    s->released = s->started;
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
        pthread_cond_wait(&s->changed, &s->lock);
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

static pd_status start_and_collect(struct pd_saver *s, const struct save *what, struct pd_error *err)
{
    struct pd_saver_outcome outcome;
    start(s, what);
    pd_saver_wait(s);
    PD_CHECK(pd_saver_collect(s, pd_saver_finished(s), &outcome) && outcome.step == what->state.identity.step);
    if (outcome.status && err) *err = outcome.error;
    return outcome.status;
}

pd_status pd_saver_save(struct pd_saver *s, const struct pd_run_state *state, struct pd_error *err)
{
    return start_and_collect(s, &(struct save){.state = *state, .is_everywhere = true}, err);
}

pd_status pd_saver_finish(struct pd_saver *s, const struct pd_run_state *state, double leave_seconds, struct pd_error *err)
{
    return start_and_collect(
        s, &(struct save){.state = *state, .is_everywhere = true, .is_last = true, .leave_seconds = leave_seconds}, err);
}
