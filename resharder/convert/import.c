/* Writes several shards of a layout at a time, in bounded memory and without temporary copies. Data from the feed is
 * hashed and staged as it arrives.
 *
 *   memory      the caller's buffers; 8 bytes for each 64 KiB of the shards being written; HDF5's memory for their metadata.
 *               Shards are taken in groups so that this stays within GROUP_BYTES_MAX
 *   crash       as in the store: without a record there is no checkpoint. The next rewrite removes the leftovers
 *   invariants  1. a shard is written after it is planned, and finished once it is complete
 *               2. nothing is in flight when a group ends, whatever failed: rewrite_release_targets */

#include "resharder/convert/rewrite.h"

#include "ckpt/base/checked.h"
#include "ckpt/shard/open.h"
#include "ckpt/shard/writer.h"
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_BYTES_MAX (UINT64_C(40) << 20) /* heap of the writers of a group */
#define INDEX_BOXES_MAX 100000u              /* HDF5 takes about 100 MiB to build an index of that many */
#define BUFFER_BYTES_MIN (UINT64_C(16) << 20)

/* Skips the index if it would need too much memory: perdure itself does not use it. */
static pd_status build_index(struct rewriter *r, struct pd_error *err)
{
    const struct pd_import_request *q = r->request;
    uint64_t bytes = 0;
    PD_TRY(pd_layout_build_index(q->layout, q->tensors, INDEX_BOXES_MAX, &r->index, &bytes, err));
    if (r->index) pd_store_set_index(q->target, r->index, bytes);
    return PD_OK;
}

/* ---- groups of target shards ---- */

/* Takes as many shards as the memory allows. */
static pd_status begin_group(struct rewriter *r, struct pd_error *err)
{
    const struct pd_import_request *q = r->request;
    const uint32_t most = (uint32_t)pd_min_u64(r->parts_bytes / PD_SHARD_BUFFERS_MIN, REWRITE_GROUP_MAX),
                   left = pd_layout_world(q->layout) - r->group_begin;
    uint64_t heap = 0;
    while (r->group_count < most && r->group_count < left && heap < GROUP_BYTES_MAX) {
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

static void count_expert(struct rewriter *r, const struct pd_chunk_range *s, const struct pd_shard_box *box)
{
    const struct pd_tensor *tensor = &r->request->tensors->tensors[s->tensor];
    if (!tensor->expert || s->kind != PD_PARAM) return;
    bool is_first = s->target.offset == 0;
    for (uint32_t d = 0; d < tensor->ndim; d++)
        is_first &= box->box.start[d] == 0;
    r->report.expert_tensors += is_first;
    r->report.expert_bytes += s->bytes;
    r->report.expert_elements += s->bytes / pd_tensor_element_bytes(tensor, PD_PARAM);
}

static pd_status copy_range(struct rewriter *r, const struct pd_chunk_range *s, struct pd_error *err)
{
    struct rewrite_target *t = &r->targets[s->target.shard - r->group_begin];
    if (s->target.offset == 0) {
        if (!t->stream) PD_TRY(rewrite_plan(r, t, err));
        t->next++;
    }
    const uint32_t box = t->next - 1;
    PD_CHECK(box < t->box_count && t->boxes[box].tensor == s->tensor && t->boxes[box].kind == s->kind);
    const bool packs = r->compressor && s->target.box_bytes >= PD_VFS_ALIGN;
    pd_status (*append)(struct rewriter *, struct rewrite_target *, uint64_t, uint64_t, const unsigned char *, uint64_t,
                        struct pd_error *) = packs ? rewrite_compressor_append : rewrite_append;
    for (uint64_t done = 0; done < s->bytes;) {
        const void *data = NULL;
        uint64_t bytes = 0;
        PD_TRY(pd_stop_check(r->request->should_stop, "rewrite.copy.piece", err));
        PD_TRY(feed_next(r->feed, s->bytes - done, &data, &bytes, err));
        PD_CHECK(bytes);
        PD_TRY(append(r, t, s->target.offset + done, s->target.box_bytes, data, bytes, err));
        done += bytes;
    }
    r->done += s->bytes;
    count_expert(r, s, &t->boxes[box]);
    const bool is_last = t->next == t->box_count && s->target.offset + s->bytes == s->target.box_bytes;
    return is_last ? complete(r, t, err) : PD_OK;
}

static pd_status copy_group(struct rewriter *r, struct pd_error *err)
{
    struct pd_chunk_stream_cursor cursor = {.tensors = r->request->tensors,
                                            .source = &r->source,
                                            .target = r->request->layout,
                                            .shard_begin = r->group_begin,
                                            .shard_end = r->group_begin + r->group_count};
    struct pd_chunk_range range;
    PD_TRY(feed_begin(r->feed, &cursor, err));
    while (pd_chunk_stream_next(&cursor, &range)) {
        PD_TRY(copy_range(r, &range, err));
        if (r->request->progress) r->request->progress(r->request->context, r->done, r->total);
    }
    for (uint32_t i = 0; i < r->group_count; i++) { /* a rank may own nothing */
        if (r->targets[i].is_written) continue;
        PD_TRY(rewrite_plan(r, &r->targets[i], err));
        PD_TRY(complete(r, &r->targets[i], err));
    }
    return PD_OK;
}

static pd_status rewrite_shards(struct rewriter *r, struct pd_error *err)
{
    const uint32_t shards = pd_layout_world(r->request->layout);
    PD_TRY(build_index(r, err));
    (void)malloc_trim(0); /* free HDF5's memory before the buffers are used */
    while (r->group_begin < shards) {
        PD_TRY(begin_group(r, err));
        const pd_status st = copy_group(r, err);
        feed_end(r->feed);
        PD_TRY(st);
        r->group_begin += r->group_count;
        rewrite_release_targets(r);
        (void)malloc_trim(0); /* free HDF5's memory */
    }
    return PD_OK;
}

/* ---- the whole ---- */

/* As pd_shard_verify, but checks for a stop before each block. */
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
    const struct pd_import_request *q = r->request;
    struct pd_shard *shard = NULL;
    char path[4096 + 32];
    snprintf(path, sizeof path, "%s/shard-%05u.h5", r->directory, number);
    PD_TRY(pd_shard_open(r->vfs, path, &q->state->identity, &r->summaries[number], &shard, err));
    const struct pd_shard_visitor visitor = {r, believe_block};
    pd_status st = pd_shard_verify_rest(shard, err);
    if (st) st = pd_error_context(err, st, "shard %s", path);
    if (!st) st = pd_shard_scan(shard, q->buffers, r->buffer_bytes, &visitor, err);
    r->report.bytes_read_back += r->summaries[number].file_bytes;
    pd_shard_close(shard);
    return st ? pd_error_context(err, st, "reading back what was written") : PD_OK;
}

/* The feed of one of our checkpoints has verified its data. */
static pd_status read_back(struct rewriter *r, struct pd_error *err)
{
    for (uint32_t s = 0; !r->request->ours && s < r->report.shards; s++)
        PD_TRY(read_back_shard(r, s, err));
    return PD_OK;
}

static pd_status prepare_and_commit(struct rewriter *r, struct pd_error *err)
{
    const struct pd_import_request *q = r->request;
    struct pd_run_state state = *q->state; /* borrowed texts */
    state.layout = *q->layout;
    state.tensor_count = q->tensors->count;
    PD_TRY(pd_store_begin(q->target, &state.identity, r->directory, err));
    *strrchr(r->directory, '/') = '\0';
    pd_status st = rewrite_shards(r, err);
    rewrite_release_targets(r);
    if (!st) st = read_back(r, err);
    return pd_store_commit_all(q->target, st, r->summaries, r->report.shards, &state, err);
}

/* The size of compressed chunks is not known in advance. From a compressed source it is about the same, although levels
 * and cuts may differ; from a plain one it is certain only that they do not grow. */
static pd_status import_check_space(struct rewriter *r, struct pd_error *err)
{
    const struct pd_import_request *q = r->request;
    const bool packs = q->codec.codec != PD_CODEC_NONE;
    const uint64_t bytes = r->total + r->total / 64;
    uint64_t there = q->ours ? 0 : r->total;
    for (uint32_t s = 0; q->ours && s < q->ours->shard_count; s++)
        there += q->ours->shards[s].file_bytes;
    there += there / 16;
    const bool is_guess = packs && there < bytes;
    pd_status st = pd_store_check_space(q->target, is_guess ? there : bytes, 1, err);
    if (st == PD_NO_SPACE && packs && !is_guess)
        return pd_error_context(err, st, "compressed shards may take less, but how much is not known before");
    return st;
}

/* A shard of very many boxes needs more heap than a group should: the buffers shrink by as much. */
static pd_status size_buffers(struct rewriter *r, struct pd_error *err)
{
    struct rewrite_target t = {0};
    PD_TRY(pd_layout_shard_boxes(r->request->layout, r->request->tensors, 0, &t.boxes, &t.box_count, err));
    const uint64_t heap = rewrite_target_bytes(r, &t), excess = heap > GROUP_BYTES_MAX ? heap - GROUP_BYTES_MAX : 0;
    const uint64_t most = REWRITE_BYTES - pd_min_u64(excess, REWRITE_BYTES - BUFFER_BYTES_MIN);
    r->buffer_bytes =
        pd_min_u64(BUFFER_BYTES_MIN + pd_round_up(4 * r->total, PD_VFS_ALIGN), pd_round_up(most, PD_VFS_ALIGN));
    free(t.boxes);
    return PD_OK;
}

static pd_status import_prepare(struct rewriter *r, struct pd_error *err)
{
    const struct pd_import_request *q = r->request;
    pd_layout_init_dp(&r->source, 1);
    r->source.virtual_tp = q->layout->virtual_tp;
    r->source.virtual_sp = q->layout->virtual_sp;
    r->source.small_bytes = q->layout->small_bytes;
    for (uint32_t i = 0; i < q->tensors->count * PD_KIND_COUNT; i++) {
        const struct pd_tensor *tensor = &q->tensors->tensors[i / PD_KIND_COUNT];
        r->total += pd_tensor_elements(tensor) * pd_tensor_element_bytes(tensor, (enum pd_kind)(i % PD_KIND_COUNT));
    }
    PD_TRY(import_check_space(r, err));
    r->report.shards = pd_layout_world(q->layout);
    r->summaries = calloc(r->report.shards, sizeof *r->summaries);
    if (!r->summaries) PD_FAIL(err, PD_NO_MEMORY, "reshard: no memory for %u shards", r->report.shards);
    PD_TRY(rewrite_compressor_new(&q->codec, &r->compressor, err));
    PD_TRY(size_buffers(r, err));
    const uint64_t packing_bytes = rewrite_compressor_cut(r, q->buffers, r->buffer_bytes / 3);
    r->parts = (unsigned char *)q->buffers + packing_bytes;
    r->parts_bytes = r->buffer_bytes - packing_bytes;
    return PD_OK;
}

static pd_status import(struct rewriter *r, struct pd_error *err)
{
    PD_TRY(feed_new(r->vfs, r->request, &r->report.zeroed, &r->feed, err));
    pd_status st = import_prepare(r, err);
    if (!st) st = prepare_and_commit(r, err);
    r->report.bytes_read = feed_bytes_read(r->feed);
    return st && !r->request->ours ? pd_error_context(err, st, "importing %s", r->request->source) : st;
}

pd_status pd_import(struct pd_vfs *vfs, const struct pd_import_request *request, struct pd_import_report *ret_report,
                    struct pd_error *err)
{
    struct rewriter *r = calloc(1, sizeof *r);
    if (!r) PD_FAIL(err, PD_NO_MEMORY, "reshard: no memory");
    r->vfs = vfs;
    r->request = request;
    const pd_status st = import(r, err);
    r->report.has_index = r->index != NULL;
    if (!st && ret_report) *ret_report = r->report;
    rewrite_release_targets(r);
    feed_free(r->feed);
    rewrite_compressor_free(r->compressor);
    pd_store_set_index(request->target, NULL, 0);
    free(r->index);
    free(r->summaries);
    free(r);
    return st;
}
