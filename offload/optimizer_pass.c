#include "offload/optimizer_pass.h"

#include "ckpt/base/checked.h"

#include <string.h>

static const struct pd_optimizer_group *group_of(const struct pd_optimizer_pass *pass, const struct pd_optimizer_part *part)
{
    return &pass->store->groups.groups[part->group];
}

/* Only updates use the kept memory. */
static bool is_kept(const struct pd_optimizer_pass *pass, const struct pd_optimizer_group *group)
{
    return pass->step && group->kept_at != PD_OPTIMIZER_NOT_KEPT;
}

static enum pd_dtype moments_of(const struct pd_optimizer_pass *pass)
{
    return pass->store->groups.moments;
}

static uint64_t optimizer_pass_bytes_of(const struct pd_optimizer_pass *pass, int kind, uint64_t elements)
{
    return elements * pd_optimizer_element_bytes(moments_of(pass), kind);
}

static uint64_t block_elements(const struct pd_optimizer_pass *pass)
{
    return pd_optimizer_block_elements(moments_of(pass));
}

/* Offset of a kind in the kept memory of a group. */
static uint64_t kept_skip(const struct pd_optimizer_pass *pass, const struct pd_optimizer_group *group, int kind)
{
    uint64_t skip = 0;
    for (int before = 0; before < kind; before++)
        skip += pd_optimizer_page_bytes(moments_of(pass), before, group->elements);
    return skip;
}

/* A page-aligned range of a box in both files, which have the same layout. */
static struct pd_ring_piece piece_of(const struct pd_optimizer_pass *pass, const struct pd_optimizer_part *part, int kind)
{
    const struct pd_optimizer_group *group = group_of(pass, part);
    const uint32_t box = group->box[kind];
    const uint64_t first = optimizer_pass_bytes_of(pass, kind, part->first);
    struct pd_ring_piece piece = {.bytes = pd_round_up(optimizer_pass_bytes_of(pass, kind, part->n), PD_VFS_ALIGN)};
    if (is_kept(pass, group))
        piece.own = (char *)pass->store->options.kept + group->kept_at + kept_skip(pass, group, kind) + first;
    if (pass->new) {
        const struct pd_optimizer_file *file = &pass->new->file;
        piece.to = pd_shard_stream_file(file->stream);
        piece.to_offset = pd_shard_writer_box_offset(file->writer, box) + first;
    }
    if (pass->old && !(piece.own && pass->has_kept)) {
        const struct pd_optimizer_file *file = &pass->old->file;
        piece.from = file->from;
        piece.from_offset = pd_shard_writer_box_offset(file->writer, box) + first;
    }
    return piece;
}

/* Orders by file (in any order) and offset. */
static bool comes_before(const struct pd_ring_piece *a, const struct pd_ring_piece *b)
{
    if (a->from != b->from) return (uintptr_t)a->from < (uintptr_t)b->from;
    if (a->to != b->to) return (uintptr_t)a->to < (uintptr_t)b->to;
    return a->from_offset + a->to_offset < b->from_offset + b->to_offset; /* equal, or one is 0 */
}

/* Inserts a piece in file order, so that neighbours become one transfer. */
static void add_piece(struct pd_ring_extent *extent, struct pd_optimizer_flight *flight, uint16_t *tags,
                      struct pd_ring_piece piece, uint16_t tag)
{
    uint32_t at = extent->count++;
    for (; at > 0 && comes_before(&piece, &extent->pieces[at - 1]); at--) {
        extent->pieces[at] = extent->pieces[at - 1];
        tags[at] = tags[at - 1];
        flight->piece[tags[at] / PD_KIND_COUNT][tags[at] % PD_KIND_COUNT] = at;
    }
    extent->pieces[at] = piece;
    tags[at] = tag;
    flight->piece[tag / PD_KIND_COUNT][tag % PD_KIND_COUNT] = at;
}

static void optimizer_pass_describe(void *context, uint64_t i, struct pd_ring_extent *extent)
{
    struct pd_optimizer_pass *pass = context;
    struct pd_optimizer_flight *flight = &pass->store->flights[i % PD_RING_SLOTS];
    uint16_t tags[PD_RING_PIECES_MAX];
    extent->user = flight;
    pass->described = i + 1;
    flight->count = pd_optimizer_cursor_next(&pass->cursor, flight->parts);
    flight->first_block[0] = 0;
    for (uint32_t p = 0; p < flight->count; p++) {
        const struct pd_optimizer_part *part = &flight->parts[p];
        flight->first_block[p + 1] = flight->first_block[p] + pd_divide_up(part->n, block_elements(pass));
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            flight->piece[p][kind] = PD_OPTIMIZER_NO_PIECE;
            if (optimizer_pass_bytes_of(pass, kind, group_of(pass, part)->elements) < PD_VFS_ALIGN) continue;
            add_piece(extent, flight, tags, piece_of(pass, part, kind), (uint16_t)(p * PD_KIND_COUNT + (unsigned)kind));
        }
    }
}

/* ---- one block ---- */

/* The part of a box, and its memory, that one pool index works on. */
struct place {
    const struct pd_optimizer_part *part;
    const struct pd_optimizer_group *group;
    uint64_t skip, n; /* elements: from the part's first, and how many */
    char *data[PD_KIND_COUNT];
    const float *gradient;
    char *copy;
};

static struct place optimizer_pass_place_of(const struct pd_optimizer_pass *pass, uint64_t index)
{
    const struct pd_optimizer_flight *flight = pass->now;
    uint32_t p = 0, end = flight->count;
    while (end - p > 1) {
        uint32_t middle = p + (end - p) / 2;
        if (flight->first_block[middle] <= index)
            p = middle;
        else
            end = middle;
    }
    struct place place = {.part = &flight->parts[p], .group = group_of(pass, &flight->parts[p])};
    place.skip = (index - flight->first_block[p]) * block_elements(pass);
    const uint64_t left = place.part->n - place.skip, most = block_elements(pass);
    place.n = left < most ? left : most;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        place.data[kind] = flight->data[p][kind] + optimizer_pass_bytes_of(pass, kind, place.skip);
    if (!pass->step->update) return place;
    place.gradient = flight->gradient[p] + place.skip;
    if (flight->copy[p]) place.copy = flight->copy[p] + place.skip * pd_dtype_bytes(pass->step->copy_dtype);
    return place;
}

/* A block of a kind's shard; a place has one or two. */
struct piece {
    uint64_t block; /* of the box */
    char *data;
    uint64_t bytes;
};

static bool piece_at(const struct pd_optimizer_pass *pass, const struct place *place, int kind, uint64_t number,
                     struct piece *ret_piece)
{
    const uint64_t bytes = optimizer_pass_bytes_of(pass, kind, place->n), at = number * PD_SHARD_BLOCK_BYTES;
    if (at >= bytes) return false;
    const uint64_t first = optimizer_pass_bytes_of(pass, kind, place->part->first + place->skip) + at;
    *ret_piece = (struct piece){first / PD_SHARD_BLOCK_BYTES, place->data[kind] + at, pd_shard_block_length(bytes, number)};
    return true;
}

static pd_status verify_block(const struct pd_optimizer_pass *pass, uint32_t box, const struct piece *p,
                              struct pd_error *err)
{
    const struct pd_optimizer_file *file = &pass->old->file;
    pd_status st = pd_shard_writer_verify_block(file->writer, box, p->block, p->data, p->bytes, NULL);
    if (!st) return PD_OK;
    const uint64_t offset = pd_shard_writer_box_offset(file->writer, box) + p->block * PD_SHARD_BLOCK_BYTES;
    PD_TRY(pd_file_read(file->from, offset, p->data, pd_round_up(p->bytes, PD_VFS_ALIGN), err));
    st = pd_shard_writer_verify_block(file->writer, box, p->block, p->data, p->bytes, err);
    return st ? pd_error_context(err, st, "%s", file->path) : PD_OK;
}

static pd_status verify(const struct pd_optimizer_pass *pass, const struct place *place, int kind, struct pd_error *err)
{
    struct piece p;
    for (uint64_t i = 0; piece_at(pass, place, kind, i, &p); i++)
        PD_TRY(verify_block(pass, place->group->box[kind], &p, err));
    return PD_OK;
}

static void note_failure(struct pd_optimizer_pass *pass, uint64_t index, pd_status st, const struct pd_error *error)
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

/* Range of a group's elements from `first` on, without state, gradient and copy. */
static struct pd_update_range range_of(const struct pd_optimizer_pass *pass, const struct pd_optimizer_group *group,
                                       uint64_t first, uint64_t n)
{
    const struct pd_optimizer_store *store = pass->store;
    const struct pd_shard_box *box = &store->options.boxes[group->box[PD_PARAM]];
    const struct pd_tensor *tensor = &store->options.tensors->tensors[box->tensor];
    struct pd_update_range range = {.n = n,
                                    .decay = tensor->decay,
                                    .by_sign = tensor->by_sign,
                                    .sign_step = tensor->sign_step,
                                    .copy_dtype = pass->step->copy_dtype,
                                    .moments = moments_of(pass),
                                    .place = pd_update_place_of(tensor, box->tensor, &box->box)};
    range.place.first = first;
    return range;
}

/* Checks, updates and hashes a block while it is in the cache. */
static void work_block(void *context, uint64_t index)
{
    struct pd_optimizer_pass *pass = context;
    const struct place place = optimizer_pass_place_of(pass, index);
    struct pd_error error;
    pd_status st = PD_OK;
    const bool was_read = !(is_kept(pass, place.group) && pass->has_kept);
    for (int kind = 0; was_read && !st && kind < PD_KIND_COUNT; kind++)
        st = verify(pass, &place, kind, &error);
    if (st) {
        note_failure(pass, index, st, &error);
        return;
    }
    if (pass->step->update) {
        struct pd_update_range range = range_of(pass, place.group, place.part->first + place.skip, place.n);
        range.grad = place.gradient;
        range.copy = place.copy;
        memcpy(range.state, place.data, sizeof range.state);
        pd_update(NULL, pass->store->options.isa, pass->step->update, &range);
    }
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        const uint64_t bytes = optimizer_pass_bytes_of(pass, kind, place.n);
        struct piece p;
        memset(place.data[kind] + bytes, 0, pd_round_up(bytes, PD_VFS_ALIGN) - bytes);
        for (uint64_t i = 0; piece_at(pass, &place, kind, i, &p); i++)
            pd_shard_stream_block(pass->new->file.stream, place.group->box[kind], p.block, p.data, p.bytes);
    }
}

/* ---- resident boxes ---- */

static pd_status update_resident(struct pd_optimizer_pass *pass, const struct pd_optimizer_group *group,
                                 struct pd_error *err)
{
    const struct pd_optimizer_store *store = pass->store;
    const struct pd_optimizer_store_step *step = pass->step;
    struct pd_update_range range = range_of(pass, group, 0, group->elements);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        range.state[kind] = pd_optimizer_resident(store, pass->new, group->box[kind]);
        memcpy(range.state[kind], pd_optimizer_resident(store, pass->old, group->box[kind]),
               optimizer_pass_bytes_of(pass, kind, range.n));
    }
    if (!step->update) return PD_OK;
    PD_TRY(step->meet(step->context, group->box[PD_PARAM], 0, range.n, &range.grad, &range.copy, err));
    pd_update(NULL, store->options.isa, step->update, &range);
    return step->left ? step->left(step->context, err) : PD_OK;
}

/* Updates residents before group `end`, so that all groups are met in ascending order. */
static pd_status pass_residents(struct pd_optimizer_pass *pass, uint32_t end, struct pd_error *err)
{
    for (; pass->next_group < end; pass->next_group++) {
        const struct pd_optimizer_group *group = &pass->store->groups.groups[pass->next_group];
        if (!pd_optimizer_is_resident(group)) continue;
        PD_TRY(update_resident(pass, group, err));
    }
    return PD_OK;
}

/* ---- one extent ---- */

static pd_status meet_part(struct pd_optimizer_pass *pass, uint32_t p, struct pd_error *err)
{
    struct pd_optimizer_flight *flight = pass->now;
    const struct pd_optimizer_part *part = &flight->parts[p];
    const struct pd_optimizer_store_step *step = pass->step;
    const uint32_t box = group_of(pass, part)->box[PD_PARAM];
    PD_TRY(pass_residents(pass, part->group, err));
    if (!step->update) return PD_OK;
    void *copy;
    PD_TRY(step->meet(step->context, box, part->first, part->n, &flight->gradient[p], &copy, err));
    flight->copy[p] = copy;
    return PD_OK;
}

static uint32_t unit_of(const struct pd_optimizer_pass *pass, const struct pd_optimizer_flight *flight)
{
    return group_of(pass, &flight->parts[0])->unit;
}

/* Announces extent `now` and, if it is already in the ring, the next one; with by_unit an extent of another unit is
 * announced in its turn. */
static pd_status expect_extents(struct pd_optimizer_pass *pass, uint64_t now, struct pd_error *err)
{
    const struct pd_optimizer_store_step *step = pass->step;
    for (; pass->expected < now + 2 && pass->expected < pass->described; pass->expected++) {
        const struct pd_optimizer_flight *flight = &pass->store->flights[pass->expected % PD_RING_SLOTS];
        if (pass->expected > now && step->by_unit && unit_of(pass, flight) != unit_of(pass, pass->now)) return PD_OK;
        for (uint32_t p = 0; p < flight->count; p++) {
            const struct pd_optimizer_part *part = &flight->parts[p];
            PD_TRY(step->expect(step->context, group_of(pass, part)->box[PD_PARAM], part->first, part->n, p == 0, err));
        }
    }
    return PD_OK;
}

static pd_status work_blocks(struct pd_optimizer_pass *pass, struct pd_error *err)
{
    pd_parallel(pass->store->options.pool, pass->now->first_block[pass->now->count], work_block, pass);
    if (!atomic_load(&pass->failed)) return PD_OK;
    return pd_error_pass(err, pass->status, &pass->error);
}

static pd_status optimizer_pass_work(void *context, uint64_t i, struct pd_ring_extent *extent, struct pd_error *err)
{
    struct pd_optimizer_pass *pass = context;
    struct pd_optimizer_flight *flight = extent->user;
    const bool expects = pass->step->update && pass->step->expect;
    pass->now = flight;
    if (expects && pass->expected == i) PD_TRY(pass_residents(pass, flight->parts[0].group, err)); /* of the previous unit */
    if (expects) PD_TRY(expect_extents(pass, i, err));
    for (uint32_t p = 0; p < flight->count; p++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            flight->data[p][kind] = extent->pieces[flight->piece[p][kind]].data;
    for (uint32_t p = 0; p < flight->count; p++) /* ask for gradients before the work */
        PD_TRY(meet_part(pass, p, err));
    PD_TRY(work_blocks(pass, err));
    return expects ? pass->step->left(pass->step->context, err) : PD_OK;
}

static void start_cursor(struct pd_optimizer_pass *pass, enum pd_optimizer_select select)
{
    pass->cursor = (struct pd_optimizer_cursor){.groups = &pass->store->groups,
                                                .select = select,
                                                .slot_bytes = pd_ring_slot_bytes(pass->store->ring),
                                                .by_unit = pass->step && pass->step->by_unit};
}

static void close_old(struct pd_optimizer_pass *pass)
{
    pd_file_close_readonly(pass->old->file.from);
    pass->old->file.from = NULL;
}

static void optimizer_pass_leave(struct pd_optimizer_pass *pass)
{
    close_old(pass);
    pthread_mutex_destroy(&pass->mutex);
}

pd_status pd_optimizer_pass_begin(struct pd_optimizer_pass *pass, struct pd_error *err)
{
    struct pd_optimizer_store *store = pass->store;
    pthread_mutex_init(&pass->mutex, NULL);
    start_cursor(pass, PD_OPTIMIZER_STREAMED);
    const struct pd_ring_job job = {.extent_count = pd_optimizer_cursor_count(pass->cursor),
                                    .context = pass,
                                    .describe = optimizer_pass_describe,
                                    .work = optimizer_pass_work};
    struct pd_optimizer_file *file = &pass->old->file;
    pd_status st = pd_file_open(pass->store->options.vfs, file->path, PD_OPEN_READ | PD_OPEN_DIRECT, &file->from, err);
    if (!st) st = pd_ring_begin(store->ring, &job, err);
    if (st) optimizer_pass_leave(pass);
    return st;
}

pd_status pd_optimizer_pass_end(struct pd_optimizer_pass *pass, struct pd_ring_report *ret_report, struct pd_error *err)
{
    pd_status st = pd_ring_end(pass->store->ring, ret_report, err);
    if (!st) st = pass_residents(pass, pass->store->groups.count, err);
    optimizer_pass_leave(pass);
    return st;
}

void pd_optimizer_pass_abandon(struct pd_optimizer_pass *pass)
{
    pd_ring_abandon(pass->store->ring);
    optimizer_pass_leave(pass);
}

/* ---- the last writes of a generation ---- */

/* Writes resident boxes of a page or more, as the caller of a stream must. */
static pd_status work_resident(void *context, uint64_t i, struct pd_ring_extent *extent, struct pd_error *err)
{
    const struct pd_optimizer_pass *pass = context;
    const struct pd_optimizer_flight *flight = extent->user;
    (void)i, (void)err;
    for (uint32_t p = 0; p < flight->count; p++) {
        const struct pd_optimizer_group *group = group_of(pass, &flight->parts[p]);
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            const uint64_t bytes = optimizer_pass_bytes_of(pass, kind, group->elements);
            if (flight->piece[p][kind] == PD_OPTIMIZER_NO_PIECE) continue;
            char *data = extent->pieces[flight->piece[p][kind]].data;
            memcpy(data, pd_optimizer_resident(pass->store, pass->new, group->box[kind]), bytes);
            memset(data + bytes, 0, pd_round_up(bytes, PD_VFS_ALIGN) - bytes);
            pd_shard_stream_block(pass->new->file.stream, group->box[kind], 0, data, bytes);
        }
    }
    return PD_OK;
}

static void hand_over_small(const struct pd_optimizer_pass *pass)
{
    const struct pd_optimizer_store *store = pass->store;
    for (uint32_t box = 0; box < store->options.box_count; box++) {
        const struct pd_shard_box *b = &store->options.boxes[box];
        const uint64_t bytes = optimizer_pass_bytes_of(pass, (int)b->kind, pd_box_elements(&b->box));
        if (bytes < PD_VFS_ALIGN)
            pd_shard_stream_block(pass->new->file.stream, box, 0, pd_optimizer_resident(store, pass->new, box), bytes);
    }
}

pd_status pd_optimizer_pass_residents(struct pd_optimizer_store *store, struct pd_optimizer_generation *g,
                                      struct pd_error *err)
{
    struct pd_optimizer_pass pass = {.store = store, .new = g};
    start_cursor(&pass, PD_OPTIMIZER_RESIDENT_PAGES);
    const struct pd_ring_job job = {.extent_count = pd_optimizer_cursor_count(pass.cursor),
                                    .context = &pass,
                                    .describe = optimizer_pass_describe,
                                    .work = work_resident};
    PD_TRY(pd_ring_run(store->ring, &job, NULL, err));
    hand_over_small(&pass);
    return PD_OK;
}
