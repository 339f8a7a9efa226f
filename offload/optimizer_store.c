/* Two generations in turn: `current` is whole and read; the other is being made, or was before and is free to become the
 * next. Each has a shard writer of its own, which keeps the checksums of what it wrote.
 *
 *   none ──begin──▶ filling ──end──▶ current ──update──▶ current' (the one before is let go)
 *                                     │    └─fails─▶ current, as it was; what was begun is thrown away
 *                                     └─finish─▶ current, its file a whole shard
 *
 *   invariants  1. a slot of the store is held from the moment its file may be written until it is not read any more
 *               2. no byte is used before its block verified: what lies on disk is believed no more than a checkpoint is
 *               3. boxes that stay in memory lie there once for each generation, so that a failure leaves the old ones
 */
#include "offload/optimizer_store.h"
#include "offload/optimizer_extents.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IN_FILE UINT64_MAX
#define WRITER_BUFFER_MAX (UINT64_C(16) << 20) /* metadata and tables need no more */
#define OWN_FILES 3u                           /* without a store: read, written, one to spare */

struct generation {
    struct pd_shard_writer *writer;
    struct pd_shard_stream *stream; /* until its file is finished or given up */
    float *resident;                /* (resident_elements) */
    struct pd_identity identity;
    char path[4096];
    uint32_t slot;
    bool is_held, is_finished;
    struct pd_shard_summary summary; /* once finished, and well */
    pd_status finish_status;
    struct pd_error finish_error;
};

/* An extent while it is in the ring: its parts and where they lie. */
struct flight {
    struct pd_optimizer_part parts[PD_OPTIMIZER_PARTS_MAX];
    uint64_t first_block[PD_OPTIMIZER_PARTS_MAX + 1]; /* in the extent, all parts one behind the other */
    uint32_t piece[PD_OPTIMIZER_PARTS_MAX][PD_KIND_COUNT];
    float *data[PD_OPTIMIZER_PARTS_MAX][PD_KIND_COUNT];
    const float *gradient[PD_OPTIMIZER_PARTS_MAX];
    char *copy[PD_OPTIMIZER_PARTS_MAX];
    uint32_t count;
};

struct pd_optimizer_store {
    struct pd_optimizer_store_options options;
    struct pd_ring *ring;
    struct pd_optimizer_groups groups;
    uint64_t *resident_at; /* (box_count) first element in a generation's `resident`, or IN_FILE */
    uint64_t resident_elements;
    struct generation generations[2];
    uint32_t current;
    bool has_current, is_filling;
    struct flight flights[PD_RING_SLOTS];
};

static uint64_t page_bytes(uint64_t bytes)
{
    return (bytes + PD_DOOR_ALIGN - 1) / PD_DOOR_ALIGN * PD_DOOR_ALIGN;
}

static struct generation *current_of(struct pd_optimizer_store *store)
{
    return &store->generations[store->current];
}

static struct generation *next_of(struct pd_optimizer_store *store)
{
    return &store->generations[1 - store->current];
}

static uint64_t box_elements(const struct pd_optimizer_store *store, uint32_t box)
{
    return pd_box_elements(&store->options.boxes[box].box);
}

static float *resident_of(const struct pd_optimizer_store *store, const struct generation *g, uint32_t box)
{
    return g->resident + store->resident_at[box];
}

/* ---- making one ---- */

static uint64_t count_resident(const struct pd_optimizer_groups *groups)
{
    uint64_t elements = 0;
    for (uint32_t g = 0; g < groups->count; g++)
        if (pd_optimizer_is_resident(&groups->groups[g])) elements += PD_KIND_COUNT * groups->groups[g].elements;
    return elements;
}

static void place_resident(struct pd_optimizer_store *store)
{
    for (uint32_t g = 0; g < store->groups.count; g++) {
        const struct pd_optimizer_group *group = &store->groups.groups[g];
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            bool stays = pd_optimizer_is_resident(group);
            store->resident_at[group->box[kind]] = stays ? store->resident_elements : IN_FILE;
            if (stays) store->resident_elements += group->elements;
        }
    }
}

static pd_status build(struct pd_optimizer_store *store, struct pd_error *err)
{
    const struct pd_optimizer_store_options *o = &store->options;
    PD_TRY(pd_optimizer_groups_init(o->tensors, o->boxes, o->box_count, &store->groups, err));
    store->resident_at = calloc((size_t)o->box_count + 1, sizeof *store->resident_at);
    if (!store->resident_at) PD_FAIL(err, PD_NO_MEMORY, "no memory for the state of %u boxes", o->box_count);
    place_resident(store);
    uint64_t writer_bytes = o->buffer_bytes < WRITER_BUFFER_MAX ? o->buffer_bytes : WRITER_BUFFER_MAX;
    for (int g = 0; g < 2; g++) {
        struct generation *generation = &store->generations[g];
        generation->resident = calloc(store->resident_elements + 1, sizeof *generation->resident);
        if (!generation->resident) PD_FAIL(err, PD_NO_MEMORY, "no memory for boxes that stay in memory");
        PD_TRY(pd_shard_writer_new(o->door, o->tensors, o->boxes, o->box_count, o->buffers, writer_bytes,
                                   &generation->writer, err));
    }
    return pd_ring_new(o->door, o->buffers, o->buffer_bytes, &store->ring, err);
}

pd_status pd_optimizer_store_new(const struct pd_optimizer_store_options *options, struct pd_optimizer_store **ret_store,
                                 struct pd_error *err)
{
    PD_CHECK(options->buffer_bytes >= PD_OPTIMIZER_STORE_BUFFERS_MIN && (options->store || options->directory));
    struct pd_optimizer_store *store = calloc(1, sizeof *store);
    if (!store) PD_FAIL(err, PD_NO_MEMORY, "no memory for optimizer state in files");
    store->options = *options;
    pd_status st = build(store, err);
    if (st) {
        pd_optimizer_store_free(store);
        return pd_error_context(err, st, "optimizer state in files");
    }
    *ret_store = store;
    return PD_OK;
}

pd_status pd_optimizer_store_plan(const struct pd_tensor_table *tensors, const struct pd_shard_box *boxes,
                                  uint32_t box_count, uint64_t buffer_bytes, uint64_t *ret_heap_bytes,
                                  uint64_t *ret_file_bytes, struct pd_error *err)
{
    struct pd_optimizer_groups groups;
    struct pd_shard_writer *writer = NULL;
    PD_TRY(pd_optimizer_groups_init(tensors, boxes, box_count, &groups, err));
    uint64_t resident = (count_resident(&groups) + 1) * sizeof(float);
    pd_optimizer_groups_deinit(&groups);
    PD_TRY(pd_shard_writer_new(NULL, tensors, boxes, box_count, NULL, WRITER_BUFFER_MAX, &writer, err));
    *ret_heap_bytes = sizeof(struct pd_optimizer_store) + pd_ring_bytes(buffer_bytes) +
                      ((uint64_t)box_count + 1) * (sizeof *groups.groups + sizeof(uint64_t)) +
                      2 * (resident + pd_shard_writer_bytes(writer) + pd_shard_writer_stream_bytes(writer));
    *ret_file_bytes = pd_shard_writer_file_bytes(writer);
    pd_shard_writer_free(writer);
    return PD_OK;
}

uint64_t pd_optimizer_store_file_bytes(const struct pd_optimizer_store *store)
{
    return pd_shard_writer_file_bytes(store->generations[0].writer);
}

const struct pd_identity *pd_optimizer_store_identity(const struct pd_optimizer_store *store)
{
    PD_CHECK(store->has_current);
    return &store->generations[store->current].identity;
}

const char *pd_optimizer_store_path(const struct pd_optimizer_store *store)
{
    PD_CHECK(store->has_current);
    return store->generations[store->current].path;
}

/* ---- files of generations ---- */

static pd_status take_own_file(struct pd_optimizer_store *store, struct generation *g, struct pd_error *err)
{
    const struct generation *other = g == &store->generations[0] ? &store->generations[1] : &store->generations[0];
    g->slot = other->is_held ? (other->slot + 1) % OWN_FILES : 0;
    int length = snprintf(g->path, sizeof g->path, "%s/generation-%05u-%u.h5", store->options.directory, store->options.rank,
                          g->slot);
    if (length < 0 || (size_t)length >= sizeof g->path)
        PD_FAIL(err, PD_INVALID, "%s: the path is too long", store->options.directory);
    return PD_OK;
}

static pd_status take_file(struct pd_optimizer_store *store, struct generation *g, struct pd_error *err)
{
    PD_CHECK(!g->is_held && !g->stream);
    if (store->options.store)
        PD_TRY(pd_store_generation_take(store->options.store, &g->slot, g->path, err));
    else
        PD_TRY(take_own_file(store, g, err));
    g->is_held = true;
    return PD_OK;
}

static void let_go(struct pd_optimizer_store *store, struct generation *g, bool is_bad)
{
    pd_shard_stream_abort(g->stream);
    g->stream = NULL;
    if (!g->is_held) return;
    g->is_held = false;
    if (store->options.store)
        pd_store_generation_release(store->options.store, g->slot, is_bad);
    else if (is_bad)
        (void)!pd_door_unlink(store->options.door, g->path, NULL);
}

/* Makes the generation beside the current one ready to be written. */
static pd_status open_next(struct pd_optimizer_store *store, const struct pd_identity *identity, struct pd_error *err)
{
    struct generation *g = next_of(store);
    PD_TRY(take_file(store, g, err));
    g->identity = *identity;
    g->is_finished = false;
    pd_status st = pd_shard_stream_begin(g->writer, g->path, identity, store->options.rank, &g->stream, err);
    if (st) let_go(store, g, true);
    return st;
}

static void accept_next(struct pd_optimizer_store *store)
{
    if (store->has_current)
        let_go(store, current_of(store), current_of(store)->is_finished && current_of(store)->finish_status);
    store->current = 1 - store->current;
    store->has_current = true;
}

void pd_optimizer_store_free(struct pd_optimizer_store *store)
{
    if (!store) return;
    for (int g = 0; g < 2; g++) {
        let_go(store, &store->generations[g], false);
        pd_shard_writer_free(store->generations[g].writer);
        free(store->generations[g].resident);
    }
    pd_ring_free(store->ring);
    pd_optimizer_groups_deinit(&store->groups);
    free(store->resident_at);
    free(store);
}

/* ---- a pass over the state ---- */

struct pass {
    struct pd_optimizer_store *store;
    const struct pd_optimizer_store_step *step; /* NULL: only read */
    struct generation *old, *new;
    struct pd_file *from, *to;
    uint32_t kinds; /* that are read */
    void *context;
    pd_status (*visit)(void *context, uint32_t box, uint64_t first, const float *data, uint64_t n, struct pd_error *err);
    struct pd_optimizer_cursor cursor;
    uint32_t next_group; /* those before it were met */
    struct flight *now;  /* being worked on */
    pthread_mutex_t mutex;
    _Atomic bool failed;
    uint64_t failed_at; /* block of the extent: the first one is reported, whichever thread was quicker */
    pd_status status;
    struct pd_error error;
};

static const struct pd_optimizer_group *group_of(const struct pass *pass, const struct pd_optimizer_part *part)
{
    return &pass->store->groups.groups[part->group];
}

/* One page-aligned range of a box in both files. */
static struct pd_ring_piece piece_of(const struct pass *pass, const struct pd_optimizer_part *part, int kind)
{
    const uint32_t box = group_of(pass, part)->box[kind];
    const struct generation *any = pass->old ? pass->old : pass->new; /* files of all generations are laid out alike */
    const uint64_t offset = pd_shard_writer_box_offset(any->writer, box) + part->first * sizeof(float);
    return (struct pd_ring_piece){.from = pass->from,
                                  .from_offset = offset,
                                  .to = pass->to,
                                  .to_offset = offset,
                                  .bytes = page_bytes(part->n * sizeof(float))};
}

/* Pieces in the order of the file, so that neighbours travel together. */
static void add_piece(struct pd_ring_extent *extent, struct flight *flight, uint16_t *tags, struct pd_ring_piece piece,
                      uint16_t tag)
{
    uint32_t at = extent->count++;
    for (; at > 0 && extent->pieces[at - 1].from_offset > piece.from_offset; at--) {
        extent->pieces[at] = extent->pieces[at - 1];
        tags[at] = tags[at - 1];
        flight->piece[tags[at] / PD_KIND_COUNT][tags[at] % PD_KIND_COUNT] = at;
    }
    extent->pieces[at] = piece;
    tags[at] = tag;
    flight->piece[tag / PD_KIND_COUNT][tag % PD_KIND_COUNT] = at;
}

static void describe(void *context, uint64_t i, struct pd_ring_extent *extent)
{
    struct pass *pass = context;
    struct flight *flight = &pass->store->flights[i % PD_RING_SLOTS];
    uint16_t tags[PD_RING_PIECES_MAX];
    extent->user = flight;
    flight->count = pd_optimizer_cursor_next(&pass->cursor, flight->parts);
    flight->first_block[0] = 0;
    for (uint32_t p = 0; p < flight->count; p++) {
        const struct pd_optimizer_part *part = &flight->parts[p];
        flight->first_block[p + 1] =
            flight->first_block[p] + (part->n + PD_OPTIMIZER_BLOCK_ELEMENTS - 1) / PD_OPTIMIZER_BLOCK_ELEMENTS;
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            if (pass->kinds >> kind & 1)
                add_piece(extent, flight, tags, piece_of(pass, part, kind), (uint16_t)(p * PD_KIND_COUNT + (unsigned)kind));
    }
}

/* ---- one block ---- */

/* Where in a box, and in memory, one index of the pool works. */
struct place {
    const struct pd_optimizer_part *part;
    const struct pd_optimizer_group *group;
    uint64_t block;   /* of the box */
    uint64_t skip, n; /* elements: from the part's first, and how many */
    uint64_t bytes;   /* of data */
    float *data[PD_KIND_COUNT];
    const float *gradient;
    char *copy;
};

static struct place place_of(const struct pass *pass, uint64_t index)
{
    const struct flight *flight = pass->now;
    uint32_t p = 0, end = flight->count;
    while (end - p > 1) {
        uint32_t middle = p + (end - p) / 2;
        if (flight->first_block[middle] <= index)
            p = middle;
        else
            end = middle;
    }
    struct place place = {.part = &flight->parts[p], .group = group_of(pass, &flight->parts[p])};
    place.skip = (index - flight->first_block[p]) * PD_OPTIMIZER_BLOCK_ELEMENTS;
    uint64_t left = place.part->n - place.skip;
    place.n = left < PD_OPTIMIZER_BLOCK_ELEMENTS ? left : PD_OPTIMIZER_BLOCK_ELEMENTS;
    place.bytes = place.n * sizeof(float);
    place.block = (place.part->first + place.skip) / PD_OPTIMIZER_BLOCK_ELEMENTS;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        if (pass->kinds >> kind & 1) place.data[kind] = flight->data[p][kind] + place.skip;
    if (!pass->step || !pass->step->adam) return place;
    place.gradient = flight->gradient[p] + place.skip;
    if (flight->copy[p]) place.copy = flight->copy[p] + place.skip * pd_dtype_bytes(pass->step->copy_dtype);
    return place;
}

static pd_status verify(const struct pass *pass, const struct place *place, int kind, struct pd_error *err)
{
    const uint32_t box = place->group->box[kind];
    const struct pd_shard_writer *writer = pass->old->writer;
    pd_status st = pd_shard_writer_verify_block(writer, box, place->block, place->data[kind], place->bytes, NULL);
    if (!st) return PD_OK;
    const uint64_t offset = pd_shard_writer_box_offset(writer, box) + place->block * PD_SHARD_BLOCK_BYTES;
    PD_TRY(pd_file_read(pass->from, offset, place->data[kind], page_bytes(place->bytes), err));
    st = pd_shard_writer_verify_block(writer, box, place->block, place->data[kind], place->bytes, err);
    return st ? pd_error_context(err, st, "%s", pass->old->path) : PD_OK;
}

static void note_failure(struct pass *pass, uint64_t index, pd_status st, const struct pd_error *error)
{
    pthread_mutex_lock(&pass->mutex);
    if (!atomic_load(&pass->failed) || index < pass->failed_at) {
        pass->failed_at = index;
        pass->status = st;
        pass->error = *error;
    }
    atomic_store(&pass->failed, true);
    pthread_mutex_unlock(&pass->mutex);
}

static bool decays(const struct pd_optimizer_store *store, const struct pd_optimizer_group *group)
{
    return store->options.tensors->tensors[store->options.boxes[group->box[PD_PARAM]].tensor].decay;
}

static void update_place(const struct pass *pass, const struct place *place)
{
    const struct pd_optimizer_store *store = pass->store;
    const struct pd_adam_range range = {.n = place->n,
                                        .decay = decays(store, place->group),
                                        .param = place->data[PD_PARAM],
                                        .exp_avg = place->data[PD_EXP_AVG],
                                        .exp_avg_sq = place->data[PD_EXP_AVG_SQ],
                                        .grad = place->gradient,
                                        .copy = place->copy,
                                        .copy_dtype = pass->step->copy_dtype};
    pd_cpu_adam(NULL, store->options.isa, pass->step->adam, &range);
}

/* Checked, updated and hashed while it is in the cache. */
static void work_block(void *context, uint64_t index)
{
    struct pass *pass = context;
    const struct place place = place_of(pass, index);
    struct pd_error error;
    pd_status st = PD_OK;
    for (int kind = 0; !st && kind < PD_KIND_COUNT; kind++)
        if (place.data[kind]) st = verify(pass, &place, kind, &error);
    if (st) {
        note_failure(pass, index, st, &error);
        return;
    }
    if (!pass->step) return;
    if (pass->step->adam) update_place(pass, &place);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        memset((char *)place.data[kind] + place.bytes, 0, page_bytes(place.bytes) - place.bytes);
        pd_shard_stream_block(pass->new->stream, place.group->box[kind], place.block, place.data[kind], place.bytes);
    }
}

/* ---- boxes that stay ---- */

static pd_status update_resident(struct pass *pass, const struct pd_optimizer_group *group, struct pd_error *err)
{
    const struct pd_optimizer_store *store = pass->store;
    const struct pd_optimizer_store_step *step = pass->step;
    float *data[PD_KIND_COUNT];
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        data[kind] = resident_of(store, pass->new, group->box[kind]);
        memcpy(data[kind], resident_of(store, pass->old, group->box[kind]), group->elements * sizeof(float));
    }
    const float *gradient;
    void *copy;
    if (!step->adam) return PD_OK;
    PD_TRY(step->meet(step->context, group->box[PD_PARAM], 0, group->elements, &gradient, &copy, err));
    const struct pd_adam_range range = {.n = group->elements,
                                        .decay = decays(store, group),
                                        .param = data[PD_PARAM],
                                        .exp_avg = data[PD_EXP_AVG],
                                        .exp_avg_sq = data[PD_EXP_AVG_SQ],
                                        .grad = gradient,
                                        .copy = copy,
                                        .copy_dtype = step->copy_dtype};
    pd_cpu_adam(NULL, store->options.isa, step->adam, &range);
    return PD_OK;
}

static pd_status visit_resident(struct pass *pass, const struct pd_optimizer_group *group, struct pd_error *err)
{
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        if (!(pass->kinds >> kind & 1)) continue;
        const float *data = resident_of(pass->store, pass->old, group->box[kind]);
        PD_TRY(pass->visit(pass->context, group->box[kind], 0, data, group->elements, err));
    }
    return PD_OK;
}

/* Those before `end`, so that all groups are met in ascending order. */
static pd_status pass_residents(struct pass *pass, uint32_t end, struct pd_error *err)
{
    for (; pass->next_group < end; pass->next_group++) {
        const struct pd_optimizer_group *group = &pass->store->groups.groups[pass->next_group];
        if (!pd_optimizer_is_resident(group)) continue;
        PD_TRY(pass->step ? update_resident(pass, group, err) : visit_resident(pass, group, err));
    }
    return PD_OK;
}

/* ---- one extent ---- */

static pd_status visit_part(struct pass *pass, uint32_t p, struct pd_error *err)
{
    const struct pd_optimizer_part *part = &pass->now->parts[p];
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        if (!(pass->kinds >> kind & 1)) continue;
        const uint32_t box = group_of(pass, part)->box[kind];
        PD_TRY(pass->visit(pass->context, box, part->first, pass->now->data[p][kind], part->n, err));
    }
    return PD_OK;
}

static pd_status meet_part(struct pass *pass, uint32_t p, struct pd_error *err)
{
    struct flight *flight = pass->now;
    const struct pd_optimizer_part *part = &flight->parts[p];
    const struct pd_optimizer_store_step *step = pass->step;
    const uint32_t box = group_of(pass, part)->box[PD_PARAM];
    PD_TRY(pass_residents(pass, part->group, err));
    if (!step) return visit_part(pass, p, err);
    if (!step->adam) return PD_OK;
    void *copy;
    PD_TRY(step->meet(step->context, box, part->first, part->n, &flight->gradient[p], &copy, err));
    flight->copy[p] = copy;
    return PD_OK;
}

static pd_status meet_parts(struct pass *pass, struct pd_error *err)
{
    for (uint32_t p = 0; p < pass->now->count; p++)
        PD_TRY(meet_part(pass, p, err));
    return PD_OK;
}

static pd_status work_blocks(struct pass *pass, struct pd_error *err)
{
    pd_parallel(pass->store->options.pool, pass->now->first_block[pass->now->count], work_block, pass);
    if (!atomic_load(&pass->failed)) return PD_OK;
    if (err) *err = pass->error;
    return pass->status;
}

static pd_status work(void *context, uint64_t i, struct pd_ring_extent *extent, struct pd_error *err)
{
    struct pass *pass = context;
    struct flight *flight = extent->user;
    (void)i;
    pass->now = flight;
    for (uint32_t p = 0; p < flight->count; p++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            if (pass->kinds >> kind & 1) flight->data[p][kind] = extent->pieces[flight->piece[p][kind]].data;
    if (pass->step) PD_TRY(meet_parts(pass, err)); /* gradients are asked for before */
    PD_TRY(work_blocks(pass, err));
    return pass->step ? PD_OK : meet_parts(pass, err); /* what is shown was verified */
}

static void start_cursor(struct pass *pass, enum pd_optimizer_select select)
{
    pass->cursor = (struct pd_optimizer_cursor){.groups = &pass->store->groups,
                                                .select = select,
                                                .slot_bytes = pd_ring_slot_bytes(pass->store->ring),
                                                .by_unit = pass->step && pass->step->by_unit};
}

static pd_status run_pass(struct pass *pass, struct pd_ring_report *ret_report, struct pd_error *err)
{
    struct pd_optimizer_store *store = pass->store;
    pthread_mutex_init(&pass->mutex, NULL);
    start_cursor(pass, PD_OPTIMIZER_STREAMED);
    const struct pd_ring_job job = {
        .extent_count = pd_optimizer_cursor_count(pass->cursor), .context = pass, .describe = describe, .work = work};
    pd_status st = pd_file_open(store->options.door, pass->old->path, PD_OPEN_READ | PD_OPEN_DIRECT, &pass->from, err);
    if (!st) st = pd_ring_run(store->ring, &job, ret_report, err);
    if (!st) st = pass_residents(pass, store->groups.count, err);
    pd_file_close_readonly(pass->from);
    pthread_mutex_destroy(&pass->mutex);
    return st;
}

pd_status pd_optimizer_store_update(struct pd_optimizer_store *store, const struct pd_optimizer_store_step *step,
                                    struct pd_ring_report *ret_report, struct pd_error *err)
{
    PD_CHECK(store->has_current && !store->is_filling);
    PD_TRY(open_next(store, &step->identity, err));
    struct pass pass = {.store = store,
                        .step = step,
                        .old = current_of(store),
                        .new = next_of(store),
                        .to = pd_shard_stream_file(next_of(store)->stream),
                        .kinds = (1u << PD_KIND_COUNT) - 1};
    pd_status st = run_pass(&pass, ret_report, err);
    if (st)
        let_go(store, next_of(store), true);
    else
        accept_next(store);
    return st;
}

pd_status pd_optimizer_store_read(struct pd_optimizer_store *store, uint32_t kinds, void *context,
                                  pd_status (*visit)(void *context, uint32_t box, uint64_t first, const float *data,
                                                     uint64_t n, struct pd_error *err),
                                  struct pd_error *err)
{
    PD_CHECK(store->has_current && !store->is_filling && kinds >> PD_KIND_COUNT == 0);
    struct pass pass = {.store = store, .old = current_of(store), .kinds = kinds, .context = context, .visit = visit};
    return kinds ? run_pass(&pass, NULL, err) : PD_OK;
}

/* ---- the first generation ---- */

pd_status pd_optimizer_store_begin(struct pd_optimizer_store *store, const struct pd_identity *identity,
                                   struct pd_error *err)
{
    if (store->is_filling) let_go(store, next_of(store), true);
    store->is_filling = false;
    PD_TRY(open_next(store, identity, err));
    store->is_filling = true;
    return PD_OK;
}

struct filling {
    struct pd_shard_stream *stream;
    uint32_t box;
    uint64_t first_block;
    const char *data;
    char *staged;
    uint64_t bytes;
};

static void stage_block(void *context, uint64_t index)
{
    const struct filling *f = context;
    uint64_t at = index * PD_SHARD_BLOCK_BYTES, left = f->bytes - at;
    uint64_t bytes = left < PD_SHARD_BLOCK_BYTES ? left : PD_SHARD_BLOCK_BYTES;
    memcpy(f->staged + at, f->data + at, bytes);
    memset(f->staged + at + bytes, 0, page_bytes(bytes) - bytes);
    pd_shard_stream_block(f->stream, f->box, f->first_block + index, f->staged + at, bytes);
}

static pd_status put_streamed(struct pd_optimizer_store *store, uint32_t box, uint64_t first, const float *data,
                              uint64_t elements, struct pd_error *err)
{
    struct generation *g = next_of(store);
    const uint64_t room = store->options.buffer_bytes / PD_SHARD_BLOCK_BYTES * PD_SHARD_BLOCK_BYTES;
    const uint64_t offset = pd_shard_writer_box_offset(g->writer, box) + first * sizeof *data;
    for (uint64_t at = 0, bytes; at < elements * sizeof *data; at += bytes) {
        bytes = elements * sizeof *data - at;
        if (bytes > room) bytes = room;
        struct filling filling = {.stream = g->stream,
                                  .box = box,
                                  .first_block = first / PD_OPTIMIZER_BLOCK_ELEMENTS + at / PD_SHARD_BLOCK_BYTES,
                                  .data = (const char *)data + at,
                                  .staged = store->options.buffers,
                                  .bytes = bytes};
        pd_parallel(store->options.pool, (bytes + PD_SHARD_BLOCK_BYTES - 1) / PD_SHARD_BLOCK_BYTES, stage_block, &filling);
        PD_TRY(pd_file_write(pd_shard_stream_file(g->stream), offset + at, filling.staged, page_bytes(bytes), err));
    }
    return PD_OK;
}

pd_status pd_optimizer_store_put(struct pd_optimizer_store *store, uint32_t box, uint64_t first_element, const float *data,
                                 uint64_t elements, struct pd_error *err)
{
    PD_CHECK(store->is_filling && box < store->options.box_count);
    const uint64_t whole = box_elements(store, box);
    PD_CHECK(first_element <= whole && elements <= whole - first_element);
    if (store->resident_at[box] != IN_FILE) {
        memcpy(resident_of(store, next_of(store), box) + first_element, data, elements * sizeof *data);
        return PD_OK;
    }
    PD_CHECK(first_element % PD_OPTIMIZER_BLOCK_ELEMENTS == 0);
    PD_CHECK(first_element + elements == whole || elements % PD_OPTIMIZER_BLOCK_ELEMENTS == 0);
    return put_streamed(store, box, first_element, data, elements, err);
}

pd_status pd_optimizer_store_end(struct pd_optimizer_store *store, struct pd_error *err)
{
    (void)err;
    PD_CHECK(store->is_filling);
    store->is_filling = false;
    accept_next(store);
    return PD_OK;
}

/* ---- a whole shard ---- */

/* Boxes of a page and more that stay in memory, as the caller of a stream writes them. */
static pd_status work_resident(void *context, uint64_t i, struct pd_ring_extent *extent, struct pd_error *err)
{
    const struct pass *pass = context;
    const struct flight *flight = extent->user;
    (void)i;
    (void)err;
    for (uint32_t p = 0; p < flight->count; p++) {
        const struct pd_optimizer_group *group = group_of(pass, &flight->parts[p]);
        const uint64_t bytes = group->elements * sizeof(float);
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            char *data = extent->pieces[flight->piece[p][kind]].data;
            memcpy(data, resident_of(pass->store, pass->new, group->box[kind]), bytes);
            memset(data + bytes, 0, page_bytes(bytes) - bytes);
            pd_shard_stream_block(pass->new->stream, group->box[kind], 0, data, bytes);
        }
    }
    return PD_OK;
}

static void hand_over_small(struct pd_optimizer_store *store, struct generation *g)
{
    for (uint32_t box = 0; box < store->options.box_count; box++) {
        uint64_t bytes = box_elements(store, box) * sizeof(float);
        if (bytes < PD_DOOR_ALIGN) pd_shard_stream_block(g->stream, box, 0, resident_of(store, g, box), bytes);
    }
}

static pd_status finish_file(struct pd_optimizer_store *store, struct generation *g, struct pd_error *err)
{
    struct pass pass = {.store = store, .new = g, .to = pd_shard_stream_file(g->stream), .kinds = (1u << PD_KIND_COUNT) - 1};
    start_cursor(&pass, PD_OPTIMIZER_RESIDENT_PAGES);
    const struct pd_ring_job job = {.extent_count = pd_optimizer_cursor_count(pass.cursor),
                                    .context = &pass,
                                    .describe = describe,
                                    .work = work_resident};
    pd_status st = pd_ring_run(store->ring, &job, NULL, err);
    if (st) {
        pd_shard_stream_abort(g->stream);
    } else {
        hand_over_small(store, g);
        st = pd_shard_stream_finish(g->stream, &g->summary, err);
    }
    g->stream = NULL;
    return st;
}

pd_status pd_optimizer_store_finish(struct pd_optimizer_store *store, struct pd_shard_summary *ret_summary,
                                    uint32_t *ret_slot, struct pd_error *err)
{
    PD_CHECK(store->has_current && !store->is_filling);
    struct generation *g = current_of(store);
    if (!g->is_finished) {
        g->finish_status = finish_file(store, g, &g->finish_error);
        g->is_finished = true;
    }
    if (g->finish_status) {
        if (err) *err = g->finish_error;
        return g->finish_status;
    }
    *ret_summary = g->summary;
    *ret_slot = g->slot;
    return PD_OK;
}
