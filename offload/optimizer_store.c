/* Two generations take turns. `current` is complete and read; the other is being made, or was the previous one and is
 * free to become the next. Each has its own shard writer, which keeps the checksums of what it wrote.
 *
 *   none ──begin──▶ filling ──end──▶ current ──update begin──▶ updating ──end──▶ current' (the old one is released)
 *                                     │                          └─abandon, fails─▶ current, unchanged; the new one is
 *                                     │                                             discarded
 *                                     └─finish─▶ current, its file a complete shard
 *
 *   invariants  1. a slot of the store is held from the moment its file may be written until it is no longer read
 *               2. resident boxes exist once for each generation, so that a failure leaves the old ones intact
 *               3. state kept in memory (options.kept) is also in the files: after a failure it is read from there
 */
#include "ckpt/base/checked.h"
#include "ckpt/shard/stream.h"
#include "offload/optimizer_pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRITER_BUFFER_MAX (UINT64_C(16) << 20) /* metadata and tables need no more */
#define OWN_FILES 3u                           /* without a store: one read, one written, one spare */

static struct pd_optimizer_generation *current_of(struct pd_optimizer_store *store)
{
    return &store->generations[store->current];
}

static struct pd_optimizer_generation *next_of(struct pd_optimizer_store *store)
{
    return &store->generations[1 - store->current];
}

/* ---- making one ---- */

/* Resident bytes of a box: each begins at a multiple of 4. */
static uint64_t resident_size(uint64_t elements, uint32_t element_bytes)
{
    return pd_round_up(elements * element_bytes, sizeof(float));
}

static void place_resident(struct pd_optimizer_store *store)
{
    for (uint32_t g = 0; g < store->groups.count; g++) {
        const struct pd_optimizer_group *group = &store->groups.groups[g];
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            bool stays = pd_optimizer_is_resident(group);
            const uint32_t element_bytes = pd_optimizer_element_bytes(store->groups.moments, kind);
            store->resident_at[group->box[kind]] = stays ? store->resident_bytes : PD_OPTIMIZER_IN_FILE;
            if (stays) store->resident_bytes += resident_size(group->elements, element_bytes);
        }
    }
}

static pd_status build_generation(struct pd_optimizer_store *store, struct pd_optimizer_generation *generation,
                                  struct pd_error *err)
{
    const struct pd_optimizer_store_options *o = &store->options;
    const uint64_t buffer_bytes = o->buffer_bytes < WRITER_BUFFER_MAX ? o->buffer_bytes : WRITER_BUFFER_MAX;
    generation->resident = calloc(store->resident_bytes + 1, 1);
    if (!generation->resident) PD_FAIL(err, PD_NO_MEMORY, "no memory for boxes that stay in memory");
    return pd_shard_writer_new(o->vfs, o->tensors, o->boxes, o->box_count, o->buffers, buffer_bytes, NULL,
                               &generation->file.writer, err);
}

static pd_status optimizer_store_build(struct pd_optimizer_store *store, struct pd_error *err)
{
    const struct pd_optimizer_store_options *o = &store->options;
    PD_TRY(pd_optimizer_groups_init(o->tensors, o->boxes, o->box_count, &store->groups, err));
    PD_CHECK(!o->kept || (uintptr_t)o->kept % PD_VFS_ALIGN == 0);
    (void)pd_optimizer_groups_keep(&store->groups, o->kept ? o->kept_bytes : 0);
    store->resident_at = calloc((size_t)o->box_count + 1, sizeof *store->resident_at);
    if (!store->resident_at) PD_FAIL(err, PD_NO_MEMORY, "no memory for the state of %u boxes", o->box_count);
    place_resident(store);
    for (int g = 0; g < 2; g++)
        PD_TRY(build_generation(store, &store->generations[g], err));
    return pd_ring_new(o->vfs, o->buffers, o->buffer_bytes, &store->ring, err);
}

/* Heap beside the shard writers. */
static uint64_t own_bytes(uint32_t box_count, uint64_t resident_bytes, uint64_t buffer_bytes)
{
    return sizeof(struct pd_optimizer_store) + pd_ring_bytes(buffer_bytes) +
           ((uint64_t)box_count + 1) * (sizeof(struct pd_optimizer_group) + sizeof(uint64_t)) + 2 * (resident_bytes + 1);
}

static uint64_t writer_bytes(const struct pd_shard_writer *writer)
{
    return pd_shard_writer_bytes(writer) + pd_shard_writer_stream_bytes(writer);
}

pd_status pd_optimizer_store_new(const struct pd_optimizer_store_options *options, struct pd_optimizer_store **ret_store,
                                 struct pd_error *err)
{
    PD_CHECK(options->buffer_bytes >= PD_OPTIMIZER_STORE_BUFFERS_MIN && (options->store || options->directory));
    struct pd_optimizer_store *store = calloc(1, sizeof *store);
    if (!store) PD_FAIL(err, PD_NO_MEMORY, "no memory for optimizer state in files");
    store->options = *options;
    pd_status st = optimizer_store_build(store, err);
    if (st) {
        pd_optimizer_store_free(store);
        return pd_error_context(err, st, "optimizer state in files");
    }
    /* Checks that the plan's bound holds. */
    const struct pd_optimizer_store_options *o = &store->options;
    const uint64_t bytes = own_bytes(o->box_count, store->resident_bytes, o->buffer_bytes) +
                           writer_bytes(store->generations[0].file.writer) + writer_bytes(store->generations[1].file.writer);
    PD_CHECK(bytes <= pd_optimizer_store_most_bytes(o->tensors, o->boxes, o->box_count, o->buffer_bytes));
    *ret_store = store;
    return PD_OK;
}

pd_status pd_optimizer_store_plan(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                  uint32_t box_count, uint64_t *ret_file_bytes, struct pd_error *err)
{
    struct pd_shard_writer *writer = NULL;
    PD_TRY(pd_shard_writer_new(NULL, tensors, boxes, box_count, NULL, WRITER_BUFFER_MAX, NULL, &writer, err));
    *ret_file_bytes = pd_shard_writer_file_bytes(writer);
    pd_shard_writer_free(writer);
    return PD_OK;
}

uint64_t pd_optimizer_store_most_bytes(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                       uint32_t box_count, uint64_t buffer_bytes)
{
    uint64_t resident = 0;
    for (uint32_t b = 0; b < box_count; b++) {
        const uint64_t elements = pd_box_elements(&boxes[b].box);
        const struct pd_tensor *tensor = &tensors->tensors[boxes[b].tensor];
        if (elements < PD_OPTIMIZER_STREAMED_MIN)
            resident += resident_size(elements, pd_tensor_element_bytes(tensor, boxes[b].kind));
    }
    return own_bytes(box_count, resident, buffer_bytes) + 2 * pd_shard_writer_most_bytes(tensors, boxes, box_count);
}

pd_status pd_optimizer_store_kept_bytes(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                        uint32_t box_count, uint64_t budget, uint64_t *ret_bytes, struct pd_error *err)
{
    struct pd_optimizer_groups groups;
    PD_TRY(pd_optimizer_groups_init(tensors, boxes, box_count, &groups, err));
    *ret_bytes = pd_optimizer_groups_keep(&groups, budget);
    pd_optimizer_groups_deinit(&groups);
    return PD_OK;
}

uint64_t pd_optimizer_store_extent_elements(uint64_t buffer_bytes, enum pd_dtype moments)
{
    const uint64_t page_elements = PD_VFS_ALIGN / sizeof(float);
    return buffer_bytes / PD_RING_SLOTS / pd_kinds_bytes(moments) / page_elements * page_elements;
}

uint64_t pd_optimizer_store_file_bytes(const struct pd_optimizer_store *store)
{
    return pd_shard_writer_file_bytes(store->generations[0].file.writer);
}

const struct pd_identity *pd_optimizer_store_identity(const struct pd_optimizer_store *store)
{
    PD_CHECK(store->has_current);
    return &store->generations[store->current].identity;
}

const char *pd_optimizer_store_path(const struct pd_optimizer_store *store)
{
    PD_CHECK(store->has_current);
    return store->generations[store->current].file.path;
}

/* ---- files of generations ---- */

static pd_status take_own_file(struct pd_optimizer_store *store, struct pd_optimizer_generation *g, struct pd_error *err)
{
    const struct pd_optimizer_generation *other =
        g == &store->generations[0] ? &store->generations[1] : &store->generations[0];
    struct pd_optimizer_file *file = &g->file;
    file->slot = other->file.is_held ? (other->file.slot + 1) % OWN_FILES : 0;
    int length = snprintf(file->path, sizeof file->path, "%s/generation-%05u-%u.h5", store->options.directory,
                          store->options.rank, file->slot);
    if (length < 0 || (size_t)length >= sizeof file->path)
        PD_FAIL(err, PD_INVALID, "%s: the path is too long", store->options.directory);
    return PD_OK;
}

static pd_status take_file(struct pd_optimizer_store *store, struct pd_optimizer_generation *g, struct pd_error *err)
{
    struct pd_optimizer_file *file = &g->file;
    PD_CHECK(!file->is_held && !file->stream);
    if (store->options.store)
        PD_TRY(pd_store_generation_take(store->options.store, &file->slot, file->path, err));
    else
        PD_TRY(take_own_file(store, g, err));
    file->is_held = true;
    return PD_OK;
}

static void let_go(struct pd_optimizer_store *store, struct pd_optimizer_generation *g, bool is_bad)
{
    struct pd_optimizer_file *file = &g->file;
    pd_shard_stream_abort(file->stream);
    file->stream = NULL;
    if (!file->is_held) return;
    file->is_held = false;
    if (store->options.store)
        pd_store_generation_release(store->options.store, file->slot, is_bad);
    else if (is_bad)
        (void)!pd_vfs_unlink(store->options.vfs, file->path, NULL);
}

static pd_status optimizer_store_open_file(struct pd_optimizer_store *store, struct pd_optimizer_generation *g,
                                           struct pd_error *err)
{
    struct pd_optimizer_file *file = &g->file;
    PD_TRY(take_file(store, g, err));
    return pd_shard_stream_begin(file->writer, file->path, &g->identity, store->options.rank, &file->stream, err);
}

/* Opens the file of the generation after the current one for writing. */
static pd_status open_next(struct pd_optimizer_store *store, const struct pd_identity *identity, struct pd_error *err)
{
    struct pd_optimizer_generation *g = next_of(store);
    g->identity = *identity;
    g->has_residents = g->is_finished = false;
    pd_status st = optimizer_store_open_file(store, g, err);
    if (st) let_go(store, g, true);
    return st;
}

static void accept_next(struct pd_optimizer_store *store, bool has_kept)
{
    if (store->has_current)
        let_go(store, current_of(store), current_of(store)->is_finished && current_of(store)->finish_status);
    store->current = 1 - store->current;
    store->has_current = true;
    store->has_kept = has_kept;
}

static void free_generation(struct pd_optimizer_store *store, struct pd_optimizer_generation *g)
{
    let_go(store, g, false);
    pd_shard_writer_free(g->file.writer);
    free(g->resident);
}

void pd_optimizer_store_free(struct pd_optimizer_store *store)
{
    if (!store) return;
    pd_optimizer_store_update_abandon(store);
    for (int g = 0; g < 2; g++)
        free_generation(store, &store->generations[g]);
    pd_ring_free(store->ring);
    pd_optimizer_groups_deinit(&store->groups);
    free(store->resident_at);
    free(store);
}

pd_status pd_optimizer_store_update_begin(struct pd_optimizer_store *store, const struct pd_optimizer_store_step *step,
                                          struct pd_error *err)
{
    PD_CHECK(store->has_current && !store->is_filling && !store->is_updating);
    PD_TRY(open_next(store, &step->identity, err));
    store->step = *step;
    store->step.update = NULL;
    store->pass = (struct pd_optimizer_pass){
        .store = store, .step = &store->step, .old = current_of(store), .new = next_of(store), .has_kept = store->has_kept};
    pd_status st = pd_optimizer_pass_begin(&store->pass, err);
    if (st) let_go(store, next_of(store), true);
    store->is_updating = !st;
    return st;
}

pd_status pd_optimizer_store_update_end(struct pd_optimizer_store *store, const struct pd_update_step *update,
                                        struct pd_ring_report *ret_report, struct pd_error *err)
{
    PD_CHECK(store->is_updating);
    store->is_updating = false;
    store->step.update = update;
    store->has_kept = false;
    pd_status st = pd_optimizer_pass_end(&store->pass, ret_report, err);
    if (st)
        let_go(store, next_of(store), true);
    else
        accept_next(store, true);
    return st;
}

/* Nothing was written yet, so the next update can use the file. */
void pd_optimizer_store_update_abandon(struct pd_optimizer_store *store)
{
    if (!store->is_updating) return;
    store->is_updating = false;
    pd_optimizer_pass_abandon(&store->pass);
    let_go(store, next_of(store), false);
}

pd_status pd_optimizer_store_update(struct pd_optimizer_store *store, const struct pd_optimizer_store_step *step,
                                    struct pd_ring_report *ret_report, struct pd_error *err)
{
    PD_TRY(pd_optimizer_store_update_begin(store, step, err));
    return pd_optimizer_store_update_end(store, step->update, ret_report, err);
}

/* ---- the first generation ---- */

pd_status pd_optimizer_store_begin(struct pd_optimizer_store *store, const struct pd_identity *identity,
                                   struct pd_error *err)
{
    PD_CHECK(!store->is_updating);
    if (store->is_filling) let_go(store, next_of(store), true);
    store->is_filling = false;
    PD_TRY(open_next(store, identity, err));
    store->is_filling = true;
    return PD_OK;
}

/* A piece of a box on its way into the file: copied into staging and hashed there. */
struct filling {
    struct pd_shard_stream *stream;
    uint32_t box;
    uint64_t first_block; /* of the box */
    const char *data;
    unsigned char *staged;
    uint64_t bytes;
};

static void stage_block(void *context, uint64_t index)
{
    const struct filling *f = context;
    const uint64_t skip = index * PD_SHARD_BLOCK_BYTES, bytes = pd_min_u64(f->bytes - skip, PD_SHARD_BLOCK_BYTES);
    memcpy(f->staged + skip, f->data + skip, bytes);
    memset(f->staged + skip + bytes, 0, pd_round_up(bytes, PD_VFS_ALIGN) - bytes);
    pd_shard_stream_block(f->stream, f->box, f->first_block + index, f->staged + skip, bytes);
}

/* Pieces are whole blocks except for the last; so are slots. */
static pd_status stage_range(const struct pd_optimizer_store *store, struct filling f, uint64_t offset, struct pd_error *err)
{
    const uint64_t padded = pd_round_up(f.bytes, PD_VFS_ALIGN);
    struct filling piece = f;
    for (uint64_t done = 0, space; done < padded; done += space) {
        PD_TRY(pd_shard_staging_reserve(&f.stream->staging, offset + done, padded - done, &piece.staged, &space, err));
        piece.bytes = pd_min_u64(f.bytes - done, space);
        piece.data = f.data + done;
        piece.first_block = f.first_block + done / PD_SHARD_BLOCK_BYTES;
        pd_parallel(store->options.pool, pd_divide_up(piece.bytes, PD_SHARD_BLOCK_BYTES), stage_block, &piece);
    }
    return PD_OK;
}

pd_status pd_optimizer_store_put(struct pd_optimizer_store *store, uint32_t box, uint64_t first_element, const void *data,
                                 uint64_t elements, struct pd_error *err)
{
    PD_CHECK(store->is_filling && box < store->options.box_count);
    const uint64_t whole = pd_box_elements(&store->options.boxes[box].box);
    const uint64_t element_bytes = pd_optimizer_element_bytes(store->groups.moments, (int)store->options.boxes[box].kind),
                   first = first_element * element_bytes, bytes = elements * element_bytes;
    PD_CHECK(first_element <= whole && elements <= whole - first_element);
    if (store->resident_at[box] != PD_OPTIMIZER_IN_FILE) {
        memcpy((char *)pd_optimizer_resident(store, next_of(store), box) + first, data, bytes);
        return PD_OK;
    }
    PD_CHECK(first % PD_SHARD_BLOCK_BYTES == 0);
    PD_CHECK(first_element + elements == whole || bytes % PD_SHARD_BLOCK_BYTES == 0);
    /* Leaves nothing in flight: between two ranges the buffers may serve somebody else. */
    const struct pd_optimizer_file *file = &next_of(store)->file;
    const struct filling filling = {
        .stream = file->stream, .box = box, .first_block = first / PD_SHARD_BLOCK_BYTES, .data = data, .bytes = bytes};
    PD_TRY(pd_shard_stream_stage(file->stream, false, err));
    const pd_status st = stage_range(store, filling, pd_shard_writer_box_offset(file->writer, box) + first, err);
    return pd_shard_staging_finish(&file->stream->staging, st, err);
}

pd_status pd_optimizer_store_end(struct pd_optimizer_store *store, struct pd_error *err)
{
    (void)err;
    PD_CHECK(store->is_filling);
    store->is_filling = false;
    accept_next(store, false);
    return PD_OK;
}

/* ---- a whole shard ---- */

static pd_status say_finished(const struct pd_optimizer_generation *g, struct pd_error *err)
{
    return pd_error_pass(err, g->finish_status, &g->finish_error);
}

/* The ring stays with the caller's thread. If another thread calls, it is recreated and buffers are registered again. */
pd_status pd_optimizer_store_complete(struct pd_optimizer_store *store, struct pd_error *err)
{
    PD_CHECK(store->has_current && !store->is_filling && !store->is_updating);
    struct pd_optimizer_generation *g = current_of(store);
    if (g->has_residents) return g->is_finished ? say_finished(g, err) : PD_OK;
    g->has_residents = true;
    g->finish_status = pd_optimizer_pass_residents(store, g, &g->finish_error);
    if (!g->finish_status) return PD_OK;
    g->is_finished = true;
    pd_shard_stream_abort(g->file.stream);
    g->file.stream = NULL;
    return say_finished(g, err);
}

pd_status pd_optimizer_store_finish(struct pd_optimizer_store *store, struct pd_shard_summary *ret_summary,
                                    uint32_t *ret_slot, struct pd_error *err)
{
    PD_TRY(pd_optimizer_store_complete(store, err));
    struct pd_optimizer_generation *g = current_of(store);
    if (!g->is_finished) {
        g->finish_status = pd_shard_stream_finish(g->file.stream, &g->file.summary, &g->finish_error);
        g->file.stream = NULL;
        g->is_finished = true;
    }
    PD_TRY(say_finished(g, err));
    *ret_summary = g->file.summary;
    *ret_slot = g->file.slot;
    return PD_OK;
}
