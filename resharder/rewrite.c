/* One thread, one queue. The read cursor runs ahead of the write cursor over the same stretches, by as much as the ring of
 * read slots holds; whole blocks are hashed in the write slot they were copied into, and full slots go to the disk.
 *
 *   invariants  1. no byte is copied out of a segment before its block verified
 *               2. boxes of a target shard are begun in file order, each finished before the next one
 *               3. a source shard stays open while a segment of it is in the ring
 *               4. nothing is in flight when a group ends */
#include "resharder/rewrite.h"

#include "ckpt/base/fault.h"
#include "ckpt/index.h"
#include "resharder/strand.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SLOT_BYTES (UINT64_C(256) << 10)
#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)
#define SLOTS_MAX 128u
#define WRITER_BUFFER_BYTES (UINT64_C(4) << 20)
#define GROUP_SHARDS_MAX 128u                 /* files open for writing */
#define GROUP_BYTES_MAX (UINT64_C(40) << 20)  /* heap of their writers */
#define SOURCE_SHARDS_MAX 512u                /* files open for reading */
#define SOURCE_BYTES_MAX (UINT64_C(48) << 20) /* heap of their tables */
#define SOURCES_PER_TARGET_GROUP 64u          /* a group is small enough to need about so many */
#define INDEX_BOXES_MAX 8000u                 /* of 10 KiB each while HDF5 builds it */

struct slot {
    struct pd_transfer transfer;
    unsigned char *data;
    bool in_flight;
};

struct source {
    struct pd_shard *shard;
    struct pd_shard_box *boxes; /* (box_count) as the layout says, numbers of the model's table */
    uint32_t box_count, segments;
    uint64_t bytes, used_at;
};

/* Blocks of a source box in a slot. */
struct segment {
    struct slot *slot;
    uint32_t shard, box;
    uint64_t first_block, block_count;
    uint64_t skip; /* in the slot, before the first block */
    bool is_verified;
};

struct target {
    struct pd_shard_box *boxes;
    struct pd_shard_writer *writer;
    struct pd_shard_stream *stream;
    uint32_t box_count, next; /* next: box to begin */
};

struct rewriter {
    struct pd_door *door;
    const struct pd_rewrite_request *request;
    const struct pd_layout *stored;
    char directory[4096]; /* being prepared */
    unsigned char *buffers;
    struct pd_queue *queue;
    struct slot slots[SLOTS_MAX];
    uint32_t read_slots, write_slots; /* the first ones read */

    struct source *sources; /* (stored shards) */
    uint32_t open_sources;
    uint64_t source_bytes, clock;

    struct pd_strand_cursor ahead; /* what is read next */
    struct pd_stretch reading;
    bool is_reading;
    uint32_t read_shard, read_box; /* last submitted */
    uint64_t next_block, end_block;
    struct segment ring[SLOTS_MAX]; /* (read_slots) */
    uint32_t ring_first, ring_count;

    struct target targets[GROUP_SHARDS_MAX];
    uint32_t group_begin, group_count;
    struct slot *filling; /* holds the tail of the box being written */
    uint64_t filled, hashed;

    struct pd_shard_summary *summaries; /* (target shards) */
    uint64_t done, total;
    struct pd_rewrite_report report;
};

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + PD_DOOR_ALIGN - 1) / PD_DOOR_ALIGN * PD_DOOR_ALIGN;
}

/* ---- transfers ---- */

static pd_status reap_some(struct rewriter *r, struct pd_error *err)
{
    struct pd_transfer *done[SLOTS_MAX];
    uint32_t count = 0;
    pd_status st = PD_OK;
    PD_TRY(pd_queue_reap(r->queue, done, SLOTS_MAX, &count, err));
    PD_CHECK(count > 0);
    for (uint32_t i = 0; i < count; i++) {
        ((struct slot *)done[i]->user)->in_flight = false;
        if (done[i]->status && !st) st = pd_transfer_error(done[i], err);
    }
    return st;
}

static pd_status wait_for(struct rewriter *r, const struct slot *slot, struct pd_error *err)
{
    while (slot->in_flight)
        PD_TRY(reap_some(r, err));
    return PD_OK;
}

static pd_status drain(struct rewriter *r, struct pd_error *err)
{
    pd_status st = PD_OK;
    for (uint32_t i = 0; i < r->read_slots + r->write_slots; i++)
        while (r->slots[i].in_flight) {
            pd_status one = reap_some(r, st ? NULL : err);
            if (!st) st = one;
        }
    return st;
}

static pd_status send(struct rewriter *r, struct slot *slot, struct pd_file *file, uint64_t offset, uint64_t bytes,
                      bool is_write, struct pd_error *err)
{
    slot->transfer = (struct pd_transfer){
        .file = file, .data = slot->data, .offset = offset, .bytes = bytes, .is_write = is_write, .user = slot};
    struct pd_transfer *transfer = &slot->transfer;
    slot->in_flight = true;
    pd_status st = pd_queue_submit(r->queue, &transfer, 1, err);
    if (st) slot->in_flight = false;
    return st;
}

/* ---- source shards ---- */

static void close_source(struct rewriter *r, struct source *s)
{
    if (!s->shard && !s->boxes) return;
    pd_shard_close(s->shard);
    free(s->boxes);
    r->open_sources--;
    r->source_bytes -= s->bytes;
    *s = (struct source){0};
}

/* The least recently used ones go until there is room for one more. */
static void make_room(struct rewriter *r)
{
    while (r->open_sources >= SOURCE_SHARDS_MAX || r->source_bytes > SOURCE_BYTES_MAX) {
        struct source *oldest = NULL;
        for (uint32_t i = 0; i < r->request->commit->shard_count; i++) {
            struct source *s = &r->sources[i];
            if (s->shard && !s->segments && (!oldest || s->used_at < oldest->used_at)) oldest = s;
        }
        if (!oldest) return;
        close_source(r, oldest);
    }
}

static pd_status check_boxes(const struct rewriter *r, const struct source *s, uint32_t number, struct pd_error *err)
{
    const struct pd_shard_box *have = pd_shard_boxes(s->shard);
    const struct pd_tensor_table *tensors = pd_shard_tensors(s->shard);
    bool same = pd_shard_box_count(s->shard) == s->box_count;
    for (uint32_t b = 0; same && b < s->box_count; b++) {
        const struct pd_tensor *is = &tensors->tensors[have[b].tensor],
                               *shall = &r->request->tensors->tensors[s->boxes[b].tensor];
        same = !strcmp(is->name, shall->name) && !memcmp(is->shape, shall->shape, sizeof is->shape) &&
               have[b].kind == s->boxes[b].kind && !memcmp(&have[b].box, &s->boxes[b].box, sizeof have[b].box);
    }
    if (same) return PD_OK;
    PD_FAIL(err, PD_CORRUPT, "shard-%05u.h5 does not hold what its layout and its configuration give it", number);
}

static pd_status open_source(struct rewriter *r, uint32_t number, struct pd_error *err)
{
    const struct pd_commit *commit = r->request->commit;
    struct source *s = &r->sources[number];
    char path[4096 + 32];
    s->used_at = ++r->clock;
    if (s->shard) return PD_OK;
    make_room(r);
    snprintf(path, sizeof path, "%s/shard-%05u.h5", r->request->directory, number);
    PD_TRY(pd_shard_open(r->door, path, &commit->state.identity, &commit->shards[number], &s->shard, err));
    r->open_sources++;
    s->bytes = 2 * commit->shards[number].table_bytes + commit->shards[number].box_count * sizeof *s->boxes;
    r->source_bytes += s->bytes;
    PD_TRY(pd_layout_shard_boxes(r->stored, r->request->tensors, number, &s->boxes, &s->box_count, err));
    return check_boxes(r, s, number, err);
}

/* Boxes ascend by tensor, kind, column. */
static uint32_t find_box(const struct pd_shard_box *boxes, uint32_t count, const struct pd_stretch *stretch)
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

/* ---- reading ahead ---- */

/* The stretch after this one; a block it shares with the one before is not read again. */
static pd_status read_next_stretch(struct rewriter *r, struct pd_error *err)
{
    const struct pd_stretch *s = &r->reading;
    r->is_reading = pd_strand_next(&r->ahead, &r->reading);
    if (!r->is_reading) return PD_OK;
    PD_TRY(open_source(r, s->source.rank, err));
    const struct source *source = &r->sources[s->source.rank];
    const uint32_t box = find_box(source->boxes, source->box_count, s);
    uint64_t first = s->source.offset / PD_SHARD_BLOCK_BYTES;
    const bool goes_on = s->source.rank == r->read_shard && box == r->read_box;
    if (goes_on && first < r->next_block) first = r->next_block;
    r->read_shard = s->source.rank;
    r->read_box = box;
    r->next_block = first;
    r->end_block = (s->source.offset + s->bytes - 1) / PD_SHARD_BLOCK_BYTES + 1;
    return PD_OK;
}

static pd_status read_segment(struct rewriter *r, struct pd_error *err)
{
    const uint32_t place = (r->ring_first + r->ring_count) % r->read_slots;
    struct source *source = &r->sources[r->read_shard];
    PD_TRY(open_source(r, r->read_shard, err)); /* it may have been let go */
    const uint64_t at = pd_shard_box_offset(source->shard, r->read_box),
                   bytes = pd_shard_box_bytes(source->shard, r->read_box);
    struct segment *s = &r->ring[place];
    *s = (struct segment){.slot = &r->slots[place],
                          .shard = r->read_shard,
                          .box = r->read_box,
                          .first_block = r->next_block,
                          .block_count = min_u64(r->end_block - r->next_block, SLOT_BYTES / PD_SHARD_BLOCK_BYTES),
                          .skip = at % PD_DOOR_ALIGN};
    const uint64_t begin = s->first_block * PD_SHARD_BLOCK_BYTES;
    const uint64_t length = min_u64(bytes - begin, s->block_count * PD_SHARD_BLOCK_BYTES);
    PD_TRY(send(r, s->slot, pd_shard_file(source->shard), at - s->skip + begin, align_up(s->skip + length), false, err));
    source->segments++;
    r->ring_count++;
    r->next_block += s->block_count;
    r->report.bytes_read += align_up(s->skip + length);
    return PD_OK;
}

static pd_status read_ahead(struct rewriter *r, struct pd_error *err)
{
    while (r->ring_count < r->read_slots) {
        while (r->is_reading && r->next_block >= r->end_block)
            PD_TRY(read_next_stretch(r, err));
        if (!r->is_reading) return PD_OK;
        PD_TRY(read_segment(r, err));
    }
    return PD_OK;
}

static pd_status verify_segment(struct rewriter *r, struct segment *s, struct pd_error *err)
{
    struct pd_shard *shard = r->sources[s->shard].shard;
    PD_TRY(wait_for(r, s->slot, err));
    for (uint64_t b = 0; !s->is_verified && b < s->block_count; b++) {
        unsigned char *data = s->slot->data + s->skip + b * PD_SHARD_BLOCK_BYTES;
        if (pd_shard_verify_block(shard, s->box, s->first_block + b, data, NULL) != PD_OK)
            PD_TRY(pd_shard_read_blocks(shard, s->box, s->first_block + b, 1, data, err));
    }
    s->is_verified = true;
    return PD_OK;
}

/* Verified bytes of a source box from `offset` on; segments before it are done with. */
static pd_status source_bytes(struct rewriter *r, uint32_t shard, uint32_t box, uint64_t offset,
                              const unsigned char **ret_data, uint64_t *ret_bytes, struct pd_error *err)
{
    const uint64_t block = offset / PD_SHARD_BLOCK_BYTES;
    for (;;) {
        PD_CHECK(r->ring_count > 0);
        struct segment *s = &r->ring[r->ring_first];
        if (s->shard == shard && s->box == box && block >= s->first_block && block < s->first_block + s->block_count) {
            const uint64_t skip = offset - s->first_block * PD_SHARD_BLOCK_BYTES;
            PD_TRY(verify_segment(r, s, err));
            *ret_data = s->slot->data + s->skip + skip;
            *ret_bytes = s->block_count * PD_SHARD_BLOCK_BYTES - skip;
            return PD_OK;
        }
        PD_TRY(wait_for(r, s->slot, err));
        r->sources[s->shard].segments--;
        r->ring_first = (r->ring_first + 1) % r->read_slots;
        r->ring_count--;
        PD_TRY(read_ahead(r, err));
    }
}

/* ---- writing ---- */

static pd_status take_slot(struct rewriter *r, struct pd_error *err)
{
    while (!r->filling) {
        for (uint32_t i = r->read_slots; i < r->read_slots + r->write_slots; i++)
            if (!r->slots[i].in_flight) r->filling = &r->slots[i];
        if (!r->filling) PD_TRY(reap_some(r, err));
    }
    return PD_OK;
}

/* Tells the stream of whole blocks, and at the end of the box of the last one. `end`: bytes of the box so far. */
static void hash_blocks(struct rewriter *r, struct target *t, uint32_t box, uint64_t end, bool is_end)
{
    while (r->filled - r->hashed >= PD_SHARD_BLOCK_BYTES || (is_end && r->filled > r->hashed)) {
        const uint64_t bytes = min_u64(r->filled - r->hashed, PD_SHARD_BLOCK_BYTES);
        const uint64_t at = end - r->filled + r->hashed;
        pd_shard_stream_block(t->stream, box, at / PD_SHARD_BLOCK_BYTES, r->filling->data + r->hashed, bytes);
        r->hashed += bytes;
    }
}

static pd_status write_slot(struct rewriter *r, struct target *t, uint32_t box, uint64_t end, struct pd_error *err)
{
    struct slot *slot = r->filling;
    const uint64_t bytes = align_up(r->filled), offset = pd_shard_writer_box_offset(t->writer, box) + end - r->filled;
    memset(slot->data + r->filled, 0, bytes - r->filled);
    r->filling = NULL;
    r->filled = r->hashed = 0;
    r->report.bytes_written += bytes;
    return send(r, slot, pd_shard_stream_file(t->stream), offset, bytes, true, err);
}

static pd_status append(struct rewriter *r, struct target *t, uint32_t box, uint64_t end, uint64_t box_bytes,
                        struct pd_error *err)
{
    const bool is_end = end == box_bytes;
    hash_blocks(r, t, box, end, is_end);
    if (is_end && box_bytes < PD_DOOR_ALIGN) { /* the stream keeps it */
        r->filled = r->hashed = 0;
        return PD_OK;
    }
    return is_end || r->filled == SLOT_BYTES ? write_slot(r, t, box, end, err) : PD_OK;
}

static pd_status copy_stretch(struct rewriter *r, const struct pd_stretch *s, struct pd_error *err)
{
    struct target *t = &r->targets[s->target.rank - r->group_begin];
    if (s->target.offset == 0) t->next++;
    const uint32_t box = t->next - 1;
    PD_CHECK(box < t->box_count && t->boxes[box].tensor == s->tensor && t->boxes[box].kind == s->kind);
    PD_TRY(open_source(r, s->source.rank, err));
    const struct source *source = &r->sources[s->source.rank];
    const uint32_t source_box = find_box(source->boxes, source->box_count, s);
    for (uint64_t done = 0; done < s->bytes;) {
        const unsigned char *data = NULL;
        uint64_t bytes = 0;
        PD_TRY(source_bytes(r, s->source.rank, source_box, s->source.offset + done, &data, &bytes, err));
        PD_TRY(take_slot(r, err));
        bytes = min_u64(min_u64(bytes, s->bytes - done), SLOT_BYTES - r->filled);
        /* A block at a time: it is hashed while it is in the cache. */
        bytes = min_u64(bytes, PD_SHARD_BLOCK_BYTES - r->filled % PD_SHARD_BLOCK_BYTES);
        memcpy(r->filling->data + r->filled, data, bytes);
        r->filled += bytes;
        done += bytes;
        PD_TRY(append(r, t, box, s->target.offset + done, s->target.box_bytes, err));
    }
    r->done += s->bytes;
    return PD_OK;
}

/* ---- groups of target shards ---- */

static pd_status begin_target(struct rewriter *r, uint32_t rank, struct target *t, struct pd_error *err)
{
    const struct pd_rewrite_request *q = r->request;
    char path[4096 + 32];
    PD_TRY(pd_layout_shard_boxes(q->layout, q->tensors, rank, &t->boxes, &t->box_count, err));
    PD_TRY(
        pd_shard_writer_new(r->door, q->tensors, t->boxes, t->box_count, r->buffers, WRITER_BUFFER_BYTES, &t->writer, err));
    snprintf(path, sizeof path, "%s/shard-%05u.h5", r->directory, rank);
    return pd_shard_stream_begin(t->writer, path, &q->commit->state.identity, rank, &t->stream, err);
}

static void release_target(struct target *t)
{
    pd_shard_stream_abort(t->stream);
    pd_shard_writer_free(t->writer);
    free(t->boxes);
    *t = (struct target){0};
}

/* As many as the memory allows, and as few as keep the number of source shards low that their rows lie in. */
static pd_status begin_group(struct rewriter *r, struct pd_error *err)
{
    const uint32_t world = pd_layout_world(r->request->layout), shards = r->request->commit->shard_count;
    uint64_t most = (uint64_t)SOURCES_PER_TARGET_GROUP * world / shards, heap = 0;
    if (most < 1) most = 1;
    if (most > GROUP_SHARDS_MAX) most = GROUP_SHARDS_MAX;
    r->group_count = 0;
    while (r->group_count < most && r->group_begin + r->group_count < world && heap < GROUP_BYTES_MAX) {
        struct target *t = &r->targets[r->group_count];
        r->group_count++; /* so that a half-made one is released */
        PD_TRY(begin_target(r, r->group_begin + r->group_count - 1, t, err));
        heap += pd_shard_writer_bytes(t->writer) + t->box_count * sizeof *t->boxes;
    }
    r->report.groups++;
    return PD_OK;
}

static pd_status end_group(struct rewriter *r, struct pd_error *err)
{
    for (uint32_t i = 0; i < r->group_count; i++) {
        struct target *t = &r->targets[i];
        struct pd_shard_stream *stream = t->stream;
        PD_CHECK(t->next == t->box_count);
        t->stream = NULL;
        PD_TRY(pd_shard_stream_finish(stream, &r->summaries[r->group_begin + i], err));
        release_target(t);
        pd_fault_point("rewrite.shard.finished");
    }
    return PD_OK;
}

static pd_status copy_group(struct rewriter *r, struct pd_error *err)
{
    struct pd_strand_cursor cursor = {.tensors = r->request->tensors,
                                      .source = r->stored,
                                      .target = r->request->layout,
                                      .rank_begin = r->group_begin,
                                      .rank_end = r->group_begin + r->group_count};
    struct pd_stretch stretch;
    r->ahead = cursor;
    r->is_reading = true;
    r->next_block = r->end_block = 0;
    r->read_shard = r->read_box = UINT32_MAX;
    r->ring_first = r->ring_count = 0;
    PD_TRY(read_ahead(r, err));
    while (pd_strand_next(&cursor, &stretch)) {
        PD_TRY(copy_stretch(r, &stretch, err));
        if (r->request->progress) r->request->progress(r->request->context, r->done, r->total);
    }
    while (r->ring_count > 0)
        r->sources[r->ring[(r->ring_first + --r->ring_count) % r->read_slots].shard].segments--;
    return PD_OK;
}

static pd_status rewrite_group(struct rewriter *r, struct pd_error *err)
{
    pd_status st = begin_group(r, err);
    if (!st) st = copy_group(r, err);
    pd_status drained = drain(r, st ? NULL : err);
    if (!st) st = drained;
    if (!st) st = end_group(r, err);
    for (uint32_t i = 0; i < r->group_count; i++)
        release_target(&r->targets[i]);
    return st;
}

static pd_status rewrite_shards(struct rewriter *r, struct pd_error *err)
{
    const uint32_t world = pd_layout_world(r->request->layout);
    for (r->group_begin = 0; r->group_begin < world; r->group_begin += r->group_count)
        PD_TRY(rewrite_group(r, err));
    return PD_OK;
}

/* ---- the whole ---- */

static pd_status check_request(const struct pd_rewrite_request *q, struct pd_error *err)
{
    const struct pd_run_state *state = &q->commit->state;
    PD_TRY(pd_layout_check(q->layout, err));
    if (pd_layout_world(&state->layout) != q->commit->shard_count)
        PD_FAIL(err, PD_CORRUPT, "%s: the record lists %u shards where its layout has %u ranks", q->directory,
                q->commit->shard_count, pd_layout_world(&state->layout));
    if (q->layout->virtual_tp != state->layout.virtual_tp || q->layout->virtual_sp != state->layout.virtual_sp)
        PD_FAIL(err, PD_INVALID,
                "the checkpoint has virtual_tp %u and virtual_sp %u; they are numerics, and a reshard keeps them",
                state->layout.virtual_tp, state->layout.virtual_sp);
    if (state->tensor_count != q->tensors->count)
        PD_FAIL(err, PD_INVALID, "%s holds %" PRIu64 " tensors where its configuration gives %u", q->directory,
                state->tensor_count, q->tensors->count);
    return PD_OK;
}

static pd_status take_memory(struct rewriter *r, struct pd_error *err)
{
    const uint64_t bytes = r->request->buffer_bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    PD_CHECK(bytes >= PD_REWRITE_BUFFER_BYTES_MIN);
    r->sources = calloc(r->request->commit->shard_count, sizeof *r->sources);
    r->summaries = calloc(pd_layout_world(r->request->layout), sizeof *r->summaries);
    r->buffers = aligned_alloc(HUGE_PAGE_BYTES, bytes);
    if (!r->sources || !r->summaries || !r->buffers)
        PD_FAIL(err, PD_NO_MEMORY, "reshard: no memory for %" PRIu64 " MiB of buffers", bytes >> 20);
    (void)madvise(r->buffers, bytes, MADV_HUGEPAGE); /* fewer pieces a transfer; without it all works */
    uint64_t slots = (bytes - WRITER_BUFFER_BYTES) / SLOT_BYTES;
    if (slots > SLOTS_MAX) slots = SLOTS_MAX;
    r->write_slots = (uint32_t)slots / 2;
    r->read_slots = (uint32_t)slots - r->write_slots;
    for (uint32_t i = 0; i < slots; i++)
        r->slots[i].data = r->buffers + WRITER_BUFFER_BYTES + i * SLOT_BYTES;
    return pd_queue_open(r->door, r->buffers, bytes, &r->queue, err);
}

static void release(struct rewriter *r)
{
    if (r->queue) pd_queue_close(r->queue);
    for (uint32_t i = 0; r->sources && i < r->request->commit->shard_count; i++)
        close_source(r, &r->sources[i]);
    free(r->sources);
    free(r->summaries);
    free(r->buffers);
    free(r);
}

static pd_status index_boxes(const struct pd_rewrite_request *q, struct pd_index_source *sources, char (*names)[32],
                             bool *ret_fits, struct pd_error *err)
{
    uint64_t total = 0;
    for (uint32_t s = 0; s < pd_layout_world(q->layout) && total <= INDEX_BOXES_MAX; s++) {
        struct pd_shard_box *boxes = NULL;
        PD_TRY(pd_layout_shard_boxes(q->layout, q->tensors, s, &boxes, &sources[s].box_count, err));
        snprintf(names[s], sizeof names[s], "shard-%05u.h5", s);
        sources[s].file_name = names[s];
        sources[s].boxes = boxes;
        total += sources[s].box_count;
    }
    *ret_fits = total <= INDEX_BOXES_MAX;
    return PD_OK;
}

/* index.h5 of the new layout, unless it grows too large for the memory: perdure itself does without. */
static pd_status build_index(const struct pd_rewrite_request *q, void **ret_index, struct pd_error *err)
{
    const uint32_t world = pd_layout_world(q->layout);
    struct pd_index_source *sources = calloc(world, sizeof *sources);
    char(*names)[32] = calloc(world, sizeof *names);
    uint64_t bytes = 0;
    bool fits = false;
    pd_status st = sources && names ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "reshard: no memory");
    if (!st) st = index_boxes(q, sources, names, &fits, err);
    if (!st && fits) st = pd_index_build(q->tensors, sources, world, ret_index, &bytes, err);
    if (!st && fits) pd_store_set_index(q->target, *ret_index, bytes);
    for (uint32_t s = 0; sources && s < world; s++)
        free((void *)(uintptr_t)sources[s].boxes);
    free(sources);
    free(names);
    return st;
}

static pd_status prepare_and_commit(struct rewriter *r, struct pd_error *err)
{
    const struct pd_rewrite_request *q = r->request;
    struct pd_run_state state = q->commit->state; /* borrowed texts */
    state.layout = *q->layout;
    PD_TRY(pd_store_begin(q->target, &state.identity, r->directory, err));
    *strrchr(r->directory, '/') = '\0';
    pd_status st = rewrite_shards(r, err);
    return pd_store_commit_all(q->target, st, r->summaries, pd_layout_world(q->layout), &state, err);
}

static uint64_t stored_bytes(const struct pd_commit *commit)
{
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < commit->shard_count; s++)
        bytes += commit->shards[s].data_bytes;
    return bytes;
}

pd_status pd_rewrite(struct pd_door *door, const struct pd_rewrite_request *request, struct pd_rewrite_report *ret_report,
                     struct pd_error *err)
{
    void *index = NULL;
    PD_TRY(check_request(request, err));
    struct rewriter *r = calloc(1, sizeof *r);
    if (!r) PD_FAIL(err, PD_NO_MEMORY, "reshard: no memory");
    r->door = door;
    r->request = request;
    r->stored = &request->commit->state.layout;
    r->total = stored_bytes(request->commit);
    pd_status st = pd_store_check_space(request->target, r->total + r->total / 64, 1, err);
    if (!st) st = take_memory(r, err);
    if (!st) st = build_index(request, &index, err);
    if (!st) st = prepare_and_commit(r, err);
    r->report.shards = pd_layout_world(request->layout);
    r->report.has_index = index != NULL;
    if (!st && ret_report) *ret_report = r->report;
    pd_store_set_index(request->target, NULL, 0);
    free(index);
    release(r);
    return st ? pd_error_context(err, st, "rewriting %s", request->directory) : PD_OK;
}
