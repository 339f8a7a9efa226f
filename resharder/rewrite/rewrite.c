/* What the feed brings is written as it comes: whole blocks are hashed where they were copied to, and full slots go to the disk.
 * What threads do beside it: workers.c.
 *
 *   invariants  1. a shard is written to once it is planned, and finished once it is complete and nothing of it in flight
 *               2. nothing is in flight when a group ends, and no job is left */
#include "resharder/rewrite/internal.h"

#include "ckpt/base/checked.h"
#include "ckpt/shard/open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_BYTES_MAX (UINT64_C(40) << 20) /* heap of the writers of a group */

/* ---- groups of target shards ---- */

/* As many as the memory allows. */
static pd_status begin_group(struct rewriter *r, struct pd_error *err)
{
    const struct pd_rewrite_request *q = r->request;
    const uint32_t targets = pd_layout_world(q->layout);
    uint64_t heap = 0;
    while (r->group_count < REWRITE_GROUP_MAX && r->group_begin + r->group_count < targets && heap < GROUP_BYTES_MAX) {
        struct rewrite_target *t = &r->targets[r->group_count];
        PD_TRY(pd_layout_shard_boxes(q->layout, q->tensors, r->group_begin + r->group_count, &t->boxes, &t->box_count, err));
        heap += rewrite_target_bytes(r, t);
        r->group_count++;
    }
    return PD_OK;
}

static pd_status complete(struct rewriter *r, struct rewrite_target *t, struct pd_error *err)
{
    PD_CHECK(t->next == t->box_count);
    PD_TRY(rewrite_compressor_finish(r, t, err));
    return rewrite_complete(r, t, err);
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
    /* As it comes. Feeds end their pieces where stretches end. */
    const struct pd_rewrite_feed *feed = r->request->feed;
    const bool packs = r->compressor && s->target.box_bytes >= PD_VFS_ALIGN;
    pd_status (*append)(struct rewriter *, struct rewrite_target *, uint64_t, uint64_t, const unsigned char *, uint64_t,
                        struct pd_error *) = packs ? rewrite_compressor_append : rewrite_append;
    for (uint64_t done = 0; done < s->bytes;) {
        const void *data = NULL;
        uint64_t bytes = 0;
        PD_TRY(pd_stop_check(r->request->should_stop, "rewrite.copy.piece", err));
        PD_TRY(feed->next(feed->context, &data, &bytes, err));
        PD_CHECK(bytes && bytes <= s->bytes - done);
        PD_TRY(append(r, t, s->target.offset + done, s->target.box_bytes, data, bytes, err));
        done += bytes;
    }
    r->done += s->bytes;
    const bool is_last = t->next == t->box_count && s->target.offset + s->bytes == s->target.box_bytes;
    return is_last ? complete(r, t, err) : PD_OK;
}

static pd_status copy_group(struct rewriter *r, const struct pd_chunk_stream_cursor *begin, struct pd_error *err)
{
    const struct pd_rewrite_feed *feed = r->request->feed;
    struct pd_chunk_stream_cursor cursor = *begin;
    struct pd_stretch stretch;
    PD_TRY(feed->begin(feed->context, &cursor, err));
    while (pd_chunk_stream_next(&cursor, &stretch)) {
        PD_TRY(copy_stretch(r, &stretch, err));
        if (r->request->progress) r->request->progress(r->request->context, r->done, r->total);
    }
    for (uint32_t i = 0; i < r->group_count; i++) { /* a rank may own nothing */
        if (r->targets[i].is_written) continue;
        PD_TRY(rewrite_workers_wait(r, &r->targets[i].is_planned, err));
        PD_TRY(complete(r, &r->targets[i], err));
    }
    return PD_OK;
}

static pd_status rewrite_group(struct rewriter *r, struct pd_error *err)
{
    const struct pd_chunk_stream_cursor begin = {.tensors = r->request->tensors,
                                                 .source = &r->request->commit->state.layout,
                                                 .target = r->request->layout,
                                                 .shard_begin = r->group_begin,
                                                 .shard_end = r->group_begin + r->group_count};
    unsigned char *memory = r->request->buffers;
    uint64_t staging = REWRITE_STAGINGS * PD_REWRITE_STAGING_BYTES;
    staging += rewrite_compressor_cut(r, memory + staging, (r->buffer_bytes - staging) / 3);
    rewrite_cut_slots(r, memory + staging, (r->buffer_bytes - staging) / PD_VFS_ALIGN * PD_VFS_ALIGN);
    for (uint32_t i = 0; i < r->group_count; i++)
        rewrite_workers_add(r, REWRITE_PLAN, i);
    if (r->group_begin == 0) rewrite_workers_add(r, REWRITE_INDEX, 0);
    pd_status st = copy_group(r, &begin, err);
    r->request->feed->end(r->request->feed->context);
    while (!st && r->writes_in_flight)
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
    there = q->commit->shards[0].file_bytes;
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
    r->summaries = calloc(pd_layout_world(q->layout), sizeof *r->summaries);
    if (!r->summaries) PD_FAIL(err, PD_NO_MEMORY, "reshard: no memory for %u shards", pd_layout_world(q->layout));
    r->staging = q->buffers;
    PD_TRY(rewrite_compressor_new(&q->codec, &r->compressor, err));
    PD_TRY(pd_queue_open(r->vfs, q->buffers, r->buffer_bytes, &r->queue, err));
    pd_transfer_ring_init(&r->ring, r->queue, r->transfers, REWRITE_SLOTS_MAX, NULL, 0);
    return rewrite_workers_start(r, err);
}

static void release(struct rewriter *r)
{
    rewrite_workers_stop(r);
    rewrite_release_targets(r);
    if (r->queue) pd_queue_close(r->queue);
    rewrite_compressor_free(r->compressor);
    pd_store_set_index(r->request->target, NULL, 0);
    free(r->index);
    free(r->summaries);
    free(r);
}

pd_status pd_rewrite(struct pd_vfs *vfs, const struct pd_rewrite_request *request, struct pd_rewrite_report *ret_report,
                     struct pd_error *err)
{
    PD_CHECK(request->commit->shard_count == 1);
    struct rewriter *r = calloc(1, sizeof *r);
    if (!r) PD_FAIL(err, PD_NO_MEMORY, "reshard: no memory");
    r->vfs = vfs;
    r->request = request;
    r->total = request->commit->shards[0].data_bytes;
    r->buffer_bytes = PD_REWRITE_BUFFER_BYTES_MIN + pd_round_up(4 * r->total, PD_VFS_ALIGN);
    if (r->buffer_bytes > request->buffer_bytes) r->buffer_bytes = request->buffer_bytes;
    pd_status st = prepare(r, err);
    if (!st) st = prepare_and_commit(r, err);
    r->report.shards = pd_layout_world(request->layout);
    r->report.has_index = r->index != NULL;
    if (!st && ret_report) *ret_report = r->report;
    release(r);
    return st;
}
