/* The read cursor runs ahead of the write cursor over the same stretches, by as much as the windows hold; whole blocks are
 * hashed where they were copied to, and full slots go to the disk. What threads do beside it: workers.c.
 *
 *   invariants  1. no byte is copied out of a window before its block verified
 *               2. a shard is written to once it is planned, and finished once it is complete and nothing of it in flight
 *               3. nothing is in flight when a group ends, and no job is left */
#include "resharder/rewrite/internal.h"

#include "ckpt/base/checked.h"
#include "ckpt/shard/open.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_BYTES_MAX (UINT64_C(40) << 20) /* heap of the writers of a group */
#define SOURCES_PER_TARGET_GROUP 64u         /* a group is small enough to need about so many */

uint32_t rewrite_find_box(const struct pd_shard_box *boxes, uint32_t count, const struct pd_stretch *stretch)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const struct pd_shard_box *b = &boxes[middle];
        bool before = b->tensor != stretch->tensor ? b->tensor < stretch->tensor
                      : b->kind != stretch->kind   ? b->kind < stretch->kind
                                                   : b->box.start[1] < stretch->column;
        if (before)
            low = middle + 1;
        else
            high = middle;
    }
    PD_CHECK(low < count && boxes[low].tensor == stretch->tensor && boxes[low].kind == stretch->kind);
    return low;
}

/* ---- transfers ---- */

pd_status rewrite_send(struct rewriter *r, struct rewrite_slot *slot, struct pd_file *file, uint64_t offset, uint64_t bytes,
                       bool is_write, struct pd_error *err)
{
    const struct pd_transfer transfer = {
        .file = file, .data = slot->data, .offset = offset, .bytes = bytes, .is_write = is_write};
    struct pd_transfer_slot *sent = pd_transfer_ring_take(&r->ring);
    PD_CHECK(sent);
    pd_owner_acquire(&slot->owner, "queue");
    r->sent[sent->number] = slot;
    slot->in_flight = true;
    if (slot->target) {
        slot->target->in_flight++;
        r->writes_in_flight++;
    } else {
        r->reads_in_flight++;
    }
    return pd_transfer_ring_submit(&r->ring, sent, &transfer, err);
}

pd_status rewrite_reap(struct rewriter *r, struct pd_error *err)
{
    struct pd_transfer_slot *done = NULL;
    PD_TRY(pd_transfer_ring_next(&r->ring, &done, err));
    PD_CHECK(done);
    pd_transfer_ring_release(&r->ring, done);
    struct rewrite_slot *slot = r->sent[done->number];
    struct rewrite_target *t = slot->target;
    slot->in_flight = false;
    pd_owner_release(&slot->owner, "queue");
    slot->target = NULL;
    if (!t) {
        r->reads_in_flight--;
    } else {
        r->writes_in_flight--;
        t->in_flight--;
    }
    PD_TRY(pd_transfer_error(&done->transfer, err));
    if (!t) return rewrite_read_more(r, err);
    return t->is_written ? rewrite_complete(r, t, err) : PD_OK;
}

/* ---- groups of target shards ---- */

/* As many as the memory allows, and as few as keep the number of source shards low that their rows lie in. */
static pd_status begin_group(struct rewriter *r, struct pd_error *err)
{
    const struct pd_rewrite_request *q = r->request;
    const uint32_t targets = pd_layout_world(q->layout), shards = q->commit->shard_count;
    uint64_t most = (uint64_t)SOURCES_PER_TARGET_GROUP * targets / shards, heap = 0;
    if (most < 1) most = 1;
    if (most > REWRITE_GROUP_MAX) most = REWRITE_GROUP_MAX;
    while (r->group_count < most && r->group_begin + r->group_count < targets && heap < GROUP_BYTES_MAX) {
        struct rewrite_target *t = &r->targets[r->group_count];
        PD_TRY(pd_layout_shard_boxes(q->layout, q->tensors, r->group_begin + r->group_count, &t->boxes, &t->box_count, err));
        heap += rewrite_target_bytes(r, t);
        r->group_count++;
    }
    return PD_OK;
}

/* What is needed first is asked for first: a shard to read from, one to write to, and so on. */
static void add_jobs(struct rewriter *r)
{
    const bool is_first = r->group_begin == 0;
    const bool opens_ahead = is_first && !r->request->feed && rewrite_sources_fit(r);
    const uint32_t sources = opens_ahead ? r->request->commit->shard_count : 0;
    for (uint32_t i = 0; i < sources || i < r->group_count; i++) {
        if (i < sources) {
            r->sources[i].is_awaited = true;
            rewrite_workers_add(r, REWRITE_OPEN, i);
        }
        if (i < r->group_count) rewrite_workers_add(r, REWRITE_PLAN, i);
    }
    if (is_first) rewrite_workers_add(r, REWRITE_INDEX, 0);
}

/* As it comes. Feeds end their pieces where stretches end. */
static pd_status copy_fed(struct rewriter *r, struct rewrite_target *t, const struct pd_stretch *s, struct pd_error *err)
{
    const struct pd_rewrite_feed *feed = r->request->feed;
    for (uint64_t done = 0; done < s->bytes;) {
        const void *data = NULL;
        uint64_t bytes = 0;
        PD_TRY(pd_stop_check(r->request->should_stop, "rewrite.copy.piece", err));
        PD_TRY(feed->next(feed->context, &data, &bytes, err));
        PD_CHECK(bytes && bytes <= s->bytes - done);
        PD_TRY(rewrite_append(r, t, s->target.offset + done, s->target.box_bytes, data, bytes, err));
        done += bytes;
    }
    return PD_OK;
}

static pd_status copy_stored(struct rewriter *r, struct rewrite_target *t, const struct pd_stretch *s, struct pd_error *err)
{
    PD_TRY(rewrite_open_source(r, s->source.shard, err));
    const struct rewrite_source *source = &r->sources[s->source.shard];
    const uint32_t source_box = rewrite_find_box(source->boxes, source->box_count, s);
    r->stretch_end = s->source.offset + s->bytes;
    for (uint64_t done = 0; done < s->bytes;) {
        const unsigned char *data = NULL;
        uint64_t bytes = 0;
        PD_TRY(pd_stop_check(r->request->should_stop, "rewrite.copy.piece", err));
        PD_TRY(rewrite_read(r, s->source.shard, source_box, s->source.offset + done, &data, &bytes, err));
        if (bytes > s->bytes - done) bytes = s->bytes - done;
        PD_TRY(rewrite_append(r, t, s->target.offset + done, s->target.box_bytes, data, bytes, err));
        done += bytes;
    }
    return rewrite_read_done(r, s->source.shard, source_box, err);
}

static pd_status copy_stretch(struct rewriter *r, const struct pd_stretch *s, struct pd_error *err)
{
    struct rewrite_target *t = &r->targets[s->target.shard - r->group_begin];
    if (s->target.offset == 0) {
        PD_TRY(rewrite_workers_wait(r, &t->is_planned, err));
        t->next++;
    }
    const uint32_t box = t->next - 1;
    PD_CHECK(box < t->box_count && t->boxes[box].tensor == s->tensor && t->boxes[box].kind == s->kind);
    PD_TRY(r->request->feed ? copy_fed(r, t, s, err) : copy_stored(r, t, s, err));
    r->done += s->bytes;
    const bool is_last = t->next == t->box_count && s->target.offset + s->bytes == s->target.box_bytes;
    return is_last ? rewrite_complete(r, t, err) : PD_OK;
}

static pd_status copy_group(struct rewriter *r, struct pd_error *err)
{
    struct pd_chunk_stream_cursor cursor = r->ahead;
    struct pd_stretch stretch;
    const struct pd_rewrite_feed *feed = r->request->feed;
    PD_TRY(feed ? feed->begin(feed->context, &cursor, err) : rewrite_read_begin(r, err));
    while (pd_chunk_stream_next(&cursor, &stretch)) {
        PD_TRY(copy_stretch(r, &stretch, err));
        if (r->request->progress) r->request->progress(r->request->context, r->done, r->total);
    }
    for (uint32_t i = 0; i < r->group_count; i++) { /* a rank may own nothing */
        if (r->targets[i].is_written) continue;
        PD_TRY(rewrite_workers_wait(r, &r->targets[i].is_planned, err));
        PD_TRY(rewrite_complete(r, &r->targets[i], err));
    }
    return PD_OK;
}

static void cut_memory(struct rewriter *r)
{
    unsigned char *memory = r->request->buffers;
    uint64_t staging = REWRITE_STAGINGS * PD_REWRITE_STAGING_BYTES;
    staging += rewrite_compressor_cut(r, memory + staging, (r->buffer_bytes - staging) / 3);
    const uint64_t left = r->buffer_bytes - staging, half = left / 2 / PD_VFS_ALIGN * PD_VFS_ALIGN,
                   windows = r->request->feed ? 0 : half;
    if (windows) rewrite_cut_windows(r, memory + staging, windows);
    rewrite_cut_slots(r, memory + staging + windows, r->request->feed ? left / PD_VFS_ALIGN * PD_VFS_ALIGN : half);
}

static pd_status rewrite_group(struct rewriter *r, struct pd_error *err)
{
    r->ahead = (struct pd_chunk_stream_cursor){.tensors = r->request->tensors,
                                               .source = r->stored,
                                               .target = r->request->layout,
                                               .shard_begin = r->group_begin,
                                               .shard_end = r->group_begin + r->group_count};
    cut_memory(r);
    add_jobs(r);
    pd_status st = copy_group(r, err);
    if (r->request->feed) r->request->feed->end(r->request->feed->context);
    while (!st && r->reads_in_flight + r->writes_in_flight)
        st = rewrite_reap(r, err);
    const pd_status drained = pd_transfer_ring_drain(&r->ring, st, err);
    PD_CHECK(drained == st);
    return st ? st : rewrite_workers_finish(r, err);
}

static pd_status rewrite_shards(struct rewriter *r, struct pd_error *err)
{
    const uint32_t shards = pd_layout_world(r->request->layout);
    while (r->group_begin < shards) { /* where a group fails its numbers stay: workers may still be at its jobs */
        PD_TRY(begin_group(r, err));
        PD_TRY(rewrite_group(r, err));
        r->group_begin += r->group_count;
        rewrite_release_targets(r);
    }
    return PD_OK;
}

/* ---- the whole ---- */

static pd_status check_request(const struct pd_rewrite_request *q, struct pd_error *err)
{
    const struct pd_run_state *state = &q->commit->state;
    PD_TRY(pd_layout_check(q->layout, err));
    if (q->layout->virtual_tp != state->layout.virtual_tp || q->layout->virtual_sp != state->layout.virtual_sp)
        PD_FAIL(err, PD_INVALID,
                "the checkpoint has virtual_tp %u and virtual_sp %u; they are numerics, and a reshard keeps them",
                state->layout.virtual_tp, state->layout.virtual_sp);
    if (state->tensor_count != q->tensors->count)
        PD_FAIL(err, PD_INVALID, "%s holds %" PRIu64 " tensors where its configuration gives %u", q->directory,
                state->tensor_count, q->tensors->count);
    for (uint32_t t = 0; t < q->tensors->count; t++)
        PD_CHECK(q->tensors->tensors[t].moments == state->moments);
    return PD_OK;
}

/* pd_shard_verify, and asks before each block. */
static pd_status believe_block(void *context, uint32_t box, uint64_t block, const void *data, uint64_t bytes,
                               pd_status verified, const struct pd_error *damage, struct pd_error *err)
{
    const struct rewriter *r = context;
    (void)box, (void)block, (void)data, (void)bytes;
    PD_TRY(pd_stop_check(r->request->should_stop, "rewrite.read_back.block", err));
    return pd_error_pass(err, verified, damage);
}

static pd_status read_back_shard(struct rewriter *r, uint32_t number, struct pd_error *err)
{
    const struct pd_rewrite_request *q = r->request;
    struct pd_shard *shard = NULL;
    char path[4096 + 32];
    snprintf(path, sizeof path, "%s/shard-%05u.h5", r->directory, number);
    PD_TRY(pd_shard_open(r->vfs, path, &q->commit->state.identity, &r->summaries[number], &shard, err));
    const struct pd_shard_visitor visitor = {r, believe_block};
    pd_status st = pd_shard_verify_rest(shard, err);
    if (st) st = pd_error_context(err, st, "shard %s", path);
    if (!st) st = pd_shard_scan(shard, q->buffers, r->buffer_bytes, &visitor, err);
    r->report.bytes_read_back += r->summaries[number].file_bytes;
    pd_shard_close(shard);
    return st ? pd_error_context(err, st, "reading back what was written") : PD_OK;
}

static pd_status read_back(struct rewriter *r, struct pd_error *err)
{
    for (uint32_t s = 0; r->request->reads_back && s < pd_layout_world(r->request->layout); s++)
        PD_TRY(read_back_shard(r, s, err));
    return PD_OK;
}

static pd_status prepare_and_commit(struct rewriter *r, struct pd_error *err)
{
    const struct pd_rewrite_request *q = r->request;
    struct pd_run_state state = q->commit->state; /* borrowed texts */
    state.layout = *q->layout;
    PD_TRY(pd_store_begin(q->target, &state.identity, r->directory, err));
    *strrchr(r->directory, '/') = '\0';
    pd_status st = rewrite_shards(r, err);
    rewrite_workers_stop(r);
    rewrite_release_targets(r);
    if (!st) st = read_back(r, err);
    return pd_store_commit_all(q->target, st, r->summaries, pd_layout_world(q->layout), &state, err);
}

/* How small chunks get is not known before. From a compressed source it is about what they take there, where levels and
 * cuts differ too; from a plain one all that is certain is that they do not grow. */
static pd_status check_space(struct rewriter *r, struct pd_error *err)
{
    const struct pd_rewrite_request *q = r->request;
    const bool packs = q->codec.codec != PD_CODEC_NONE;
    uint64_t bytes = r->total + r->total / 64, there = 0;
    for (uint32_t s = 0; s < q->commit->shard_count; s++)
        there += q->commit->shards[s].file_bytes;
    there += there / 16;
    const bool is_guess = packs && there < bytes;
    pd_status st = pd_store_check_space(q->target, is_guess ? there : bytes, 1, err);
    if (st == PD_NO_SPACE && packs && !is_guess)
        return pd_error_context(err, st, "compressed shards may take less, but how much is not known before");
    return st;
}

static pd_status prepare(struct rewriter *r, struct pd_error *err)
{
    const struct pd_rewrite_request *q = r->request;
    PD_CHECK(q->buffer_bytes >= PD_REWRITE_BUFFER_BYTES_MIN && (uintptr_t)q->buffers % PD_VFS_ALIGN == 0);
    PD_TRY(check_space(r, err));
    r->sources = calloc(q->commit->shard_count, sizeof *r->sources);
    r->summaries = calloc(pd_layout_world(q->layout), sizeof *r->summaries);
    if (!r->sources || !r->summaries) PD_FAIL(err, PD_NO_MEMORY, "reshard: no memory for %u shards", q->commit->shard_count);
    r->staging = q->buffers;
    PD_TRY(rewrite_compressor_new(&q->codec, &r->compressor, err));
    if (!q->feed) rewrite_look_at_source(r);
    PD_TRY(pd_queue_open(r->vfs, q->buffers, r->buffer_bytes, &r->queue, err));
    pd_transfer_ring_init(&r->ring, r->queue, r->transfers, 2 * REWRITE_SLOTS_MAX, NULL, 0);
    return rewrite_workers_start(r, err);
}

static void release(struct rewriter *r)
{
    rewrite_workers_stop(r);
    rewrite_release_targets(r);
    if (r->queue) pd_queue_close(r->queue);
    rewrite_close_sources(r);
    rewrite_compressor_free(r->compressor);
    pd_store_set_index(r->request->target, NULL, 0);
    free(r->index);
    free(r->sources);
    free(r->summaries);
    free(r);
}

static uint64_t stored_bytes(const struct pd_commit *commit)
{
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < commit->shard_count; s++)
        bytes += commit->shards[s].data_bytes;
    return bytes;
}

pd_status pd_rewrite(struct pd_vfs *vfs, const struct pd_rewrite_request *request, struct pd_rewrite_report *ret_report,
                     struct pd_error *err)
{
    PD_TRY(check_request(request, err));
    struct rewriter *r = calloc(1, sizeof *r);
    if (!r) PD_FAIL(err, PD_NO_MEMORY, "reshard: no memory");
    r->vfs = vfs;
    r->request = request;
    r->stored = &request->commit->state.layout;
    r->total = stored_bytes(request->commit);
    r->buffer_bytes = PD_REWRITE_BUFFER_BYTES_MIN + pd_round_up(4 * r->total, PD_VFS_ALIGN);
    if (r->buffer_bytes > request->buffer_bytes) r->buffer_bytes = request->buffer_bytes;
    pd_status st = prepare(r, err);
    if (!st) st = prepare_and_commit(r, err);
    r->report.shards = pd_layout_world(request->layout);
    r->report.has_index = r->index != NULL;
    if (!st && ret_report) *ret_report = r->report;
    release(r);
    return st ? pd_error_context(err, st, "%s %s", request->feed ? "importing" : "rewriting", request->directory) : PD_OK;
}
