#include "trainer/parallel/zero.h"

#include "ckpt/base/checked.h"
#include "trainer/parallel/zero_internal.h"

#include <stdlib.h>

#define PAGE_ALIGNED_ELEMENTS_MIN (UINT64_C(1) << 18) /* smaller ones are staged by saves anyway */

bool pd_zero_is_end(const struct pd_zero *zero, uint32_t set)
{
    return set == 0 || set == zero->has.set_count - 1;
}

static uint64_t held_elements(const struct pd_zero *zero, const struct pd_zero_place *place, uint32_t tensor)
{
    const struct pd_zero_slab held = pd_zero_held_slab(zero, place, zero->q);
    return pd_zero_slab_elements(zero, tensor, &held);
}

/* ---- sets ---- */

/* *sums: where the tensor's sums begin, and then where the next one's do. */
static void add_to_set(struct pd_zero *zero, struct pd_zero_set *set, uint32_t tensor, uint64_t *sums)
{
    PD_CHECK(set->count < PD_ZERO_SET_TENSORS_MAX);
    const struct pd_zero_place place = pd_zero_place_of(zero, tensor, zero->grid->place.tp);
    uint32_t e = set->count++;
    set->tensors[e] = tensor;
    set->needed[e + 1] = set->needed[e] + pd_zero_slab_elements(zero, tensor, &place.needed);
    set->computed[e + 1] = set->computed[e] + pd_zero_slab_elements(zero, tensor, &place.computed);
    set->gradient[e] = *sums;
    *sums += held_elements(zero, &place, tensor);
    set->pieces_most += zero->model->tensors.tensors[tensor].tp_dim == 1 ? pd_partition_chunk_count(&zero->grid->partition)
                                                                         : zero->grid->layout.tp;
}

/* Elements of the set that one rank owns at most. Small tensors belong to one rank each, the others are cut evenly. */
static uint64_t owned_most(const struct pd_zero *zero, const struct pd_zero_set *set, uint64_t *by_part)
{
    uint64_t most = 0;
    for (uint32_t tp = 0; tp < zero->grid->layout.tp; tp++) {
        uint64_t everywhere = 0, here = 0;
        by_part[0] = 0;
        for (uint32_t e = 0; e < set->count; e++)
            by_part[set->tensors[e] % zero->parts] = 0;
        for (uint32_t e = 0; e < set->count; e++) {
            const uint32_t tensor = set->tensors[e];
            struct pd_zero_place place = {.is_here = true};
            if (!pd_layout_cut_of(&zero->grid->layout, &zero->model->tensors.tensors[tensor], tensor, tp, &place.cut))
                continue;
            const struct pd_zero_slab first = pd_zero_owned_slab(zero, &place, place.cut.q_first); /* the largest */
            const uint64_t elements = pd_zero_slab_elements(zero, tensor, &first);
            if (place.cut.part_count > 1)
                everywhere += elements;
            else
                here = pd_max_u64(here, by_part[place.cut.q_first] += elements);
        }
        most = pd_max_u64(most, everywhere + here);
    }
    return most;
}

static bool is_of_stage(const struct pd_zero *zero, uint32_t unit)
{
    return pd_layout_unit_pp(&zero->grid->layout, unit) == zero->grid->place.pp;
}

static uint64_t sums_of_unit(const struct pd_zero *zero, uint32_t unit)
{
    uint64_t elements = 0;
    for (uint32_t t = zero->model->unit_first[unit]; t < zero->model->unit_first[unit + 1]; t++) {
        const struct pd_zero_place place = pd_zero_place_of(zero, t, zero->grid->place.tp);
        elements += held_elements(zero, &place, t);
    }
    return elements;
}

/* Sums of blocks in files share two places, each at a page; those of the first blocks, which fit the budget, stay. */
static void size_sums(struct pd_zero *zero)
{
    const uint64_t page = PD_ARENA_ALIGN / sizeof(float);
    uint64_t left = zero->options.gradients_budget / sizeof(float);
    for (zero->has.sums_away = 1; zero->has.sums_away + 1 < zero->has.set_count; zero->has.sums_away++) {
        const uint64_t elements = is_of_stage(zero, zero->has.sums_away) ? sums_of_unit(zero, zero->has.sums_away) : 0;
        if (elements > left) break;
        left -= elements;
    }
    for (uint32_t unit = zero->has.sums_away; unit + 1 < zero->has.set_count; unit++)
        if (is_of_stage(zero, unit))
            zero->sums_elements = pd_max_u64(zero->sums_elements, (sums_of_unit(zero, unit) + page - 1) / page * page);
    zero->has.gradient_elements = 2 * zero->sums_elements;
}

static pd_status describe_sets(struct pd_zero *zero, struct pd_error *err)
{
    const struct pd_model *model = zero->model;
    uint64_t most[2] = {0}; /* of blocks, of ends */
    uint64_t *by_part = calloc(zero->parts, sizeof *by_part);
    if (!by_part) PD_FAIL(err, PD_NO_MEMORY, "zero: no memory for %u parts", zero->parts);
    if (zero->options.gradients_in_files) size_sums(zero);
    for (uint32_t unit = 0; unit < model->unit_count; unit++) {
        struct pd_zero_set *set = &zero->sets[unit];
        if (!is_of_stage(zero, unit)) continue;
        uint64_t parity = unit % 2 * zero->sums_elements;
        const bool is_filed = zero->options.gradients_in_files && unit >= zero->has.sums_away && !pd_zero_is_end(zero, unit);
        uint64_t *sums = is_filed ? &parity : &zero->has.gradient_elements;
        for (uint32_t t = model->unit_first[unit]; t < model->unit_first[unit + 1]; t++)
            add_to_set(zero, set, t, sums);
        if (unit + 1 == model->unit_count && model->config.tie_embeddings) add_to_set(zero, set, 0, sums);
        *sums = (*sums + 3) / 4 * 4; /* each set on 16 bytes, as where a micro-batch's are made: a GPU multiplies alike */
        set->owned_most = owned_most(zero, set, by_part);
        most[pd_zero_is_end(zero, unit)] = pd_max_u64(most[pd_zero_is_end(zero, unit)], set->owned_most);
    }
    free(by_part);
    /* Pieces of all data ranks together take about one block, also where few ranks own all of it. */
    const uint64_t share = most[0] ? most[0] : most[1];
    zero->window_elements = pd_max_u64(1, (share * zero->parts + zero->data_ranks - 1) / zero->data_ranks);
    return PD_OK;
}

/* ---- held state ---- */

/* Where the boxes of tensor t begin. A large matrix behind a vector begins a page, so that saves and loads move it by direct
 * I/O without a copy; matrices that are used as one (q, k, v) follow each other and stay together. */
static uint64_t first_offset(const struct pd_zero *zero, uint32_t t, uint64_t elements)
{
    const struct pd_tensor *tensors = zero->model->tensors.tensors;
    const uint64_t page = PD_ARENA_ALIGN / sizeof(float);
    bool begins = tensors[t].ndim > 1 && t > 0 && tensors[t - 1].ndim == 1 && elements >= PAGE_ALIGNED_ELEMENTS_MIN;
    return begins ? (zero->has.elements + page - 1) / page * page : zero->has.elements;
}

struct describing {
    uint32_t tensor;
    struct pd_zero_slab held, owned;
    uint64_t gradient, tied_gradient; /* of the tensor's first held box; UINT64_MAX: none */
};

static void add_box(struct pd_zero *zero, const struct describing *d, uint32_t chunk, uint64_t row, uint64_t row_end,
                    bool owned)
{
    const struct pd_tensor *tensor = &zero->model->tensors.tensors[d->tensor];
    struct pd_zero_box b = {.tensor = d->tensor, .owned = owned, .box = pd_box_whole(tensor)};
    uint64_t column, column_end;
    pd_layout_chunk_columns(&zero->grid->layout, tensor, chunk, &column, &column_end);
    if (row == row_end || column == column_end) return;
    const uint64_t behind = pd_zero_slab_offset(zero, d->tensor, &d->held, chunk, row);
    b.number = chunk - d->held.chunk_begin;
    b.box.start[0] = row;
    b.box.count[0] = row_end - row;
    b.box.start[1] = column;
    b.box.count[1] = column_end - column;
    b.elements = pd_box_elements(&b.box);
    b.offset = zero->tensor_offset[d->tensor] + behind;
    b.gradient_offset = d->gradient + behind;
    b.tied_gradient_offset = d->tied_gradient == UINT64_MAX ? UINT64_MAX : d->tied_gradient + behind;
    zero->has.boxes[zero->has.box_count++] = b;
}

/* In stage 0 rows before and behind those of this rank's part are held beside them. */
static void add_boxes(struct pd_zero *zero, const struct describing *d)
{
    const bool owns = d->owned.row_begin < d->owned.row_end;
    const uint64_t begin = owns ? d->owned.row_begin : d->held.row_end, end = owns ? d->owned.row_end : d->held.row_end;
    for (uint32_t chunk = d->held.chunk_begin; chunk < d->held.chunk_end; chunk++) {
        add_box(zero, d, chunk, d->held.row_begin, begin, false);
        add_box(zero, d, chunk, begin, end, true);
        add_box(zero, d, chunk, end, d->held.row_end, false);
    }
}

static uint64_t gradient_of(const struct pd_zero *zero, uint32_t set, uint32_t tensor)
{
    const struct pd_zero_set *s = &zero->sets[set];
    for (uint32_t e = 0; e < s->count; e++)
        if (s->tensors[e] == tensor) return s->gradient[e];
    return UINT64_MAX;
}

static uint64_t boxes_most(const struct pd_zero *zero)
{
    uint64_t most = 0;
    for (uint32_t s = 0; s < zero->has.set_count; s++)
        for (uint32_t e = 0; e < zero->sets[s].count; e++)
            most += zero->model->tensors.tensors[zero->sets[s].tensors[e]].tp_dim == 1
                        ? pd_partition_chunk_count(&zero->grid->partition)
                        : 1;
    return most * (zero->grid->layout.zero_stage == 0 ? 3 : 1);
}

static pd_status describe_boxes(struct pd_zero *zero, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &zero->model->tensors;
    zero->has.boxes = calloc(boxes_most(zero) + 1, sizeof *zero->has.boxes);
    if (!zero->has.boxes) PD_FAIL(err, PD_NO_MEMORY, "zero: no memory for the boxes of %u tensors", tensors->count);
    for (uint32_t t = 0; t < tensors->count; t++) {
        zero->tensor_offset[t] = zero->has.elements;
        if (!is_of_stage(zero, tensors->tensors[t].unit)) continue;
        const struct pd_zero_place place = pd_zero_place_of(zero, t, zero->grid->place.tp);
        const uint64_t elements = held_elements(zero, &place, t);
        if (!elements) continue;
        bool is_tied = t == 0 && zero->model->config.tie_embeddings;
        struct describing d = {.tensor = t, .held = pd_zero_held_slab(zero, &place, zero->q)};
        d.owned = pd_zero_owned_slab(zero, &place, zero->q);
        d.gradient = gradient_of(zero, tensors->tensors[t].unit, t);
        d.tied_gradient = is_tied ? gradient_of(zero, zero->has.set_count - 1, t) : UINT64_MAX;
        zero->tensor_offset[t] = first_offset(zero, t, elements);
        add_boxes(zero, &d);
        zero->has.elements = zero->tensor_offset[t] + elements;
    }
    return PD_OK;
}

static void take_state(struct pd_zero *zero, struct pd_arena *arena)
{
    const uint64_t compute = pd_dtype_bytes(zero->options.compute);
    for (int kind = 0; kind < PD_KIND_COUNT && !zero->options.state_in_files; kind++)
        zero->has.state[kind] = (zero->options.state_on_host ? pd_arena_take_host : pd_arena_take)(
            arena, PD_MEMORY_OPTIMIZER, zero->has.elements * sizeof(float));
    if (zero->options.compute != PD_F32 || zero->options.state_in_files || zero->options.state_on_host ||
        zero->options.parameters_in_files)
        zero->has.copy = pd_arena_take(arena, PD_MEMORY_PARAMETERS, zero->copy_elements * compute);
    zero->has.gradient = pd_arena_take(arena, PD_MEMORY_GRADIENTS, zero->has.gradient_elements * sizeof(float));
    if (!zero->is_mirrored) return;
    const struct pd_zero_place table = pd_zero_place_of(zero, 0, zero->grid->place.tp);
    const struct pd_zero_slab owned = pd_zero_owned_slab(zero, &table, zero->q);
    if (is_of_stage(zero, 0))
        zero->mirrored_gradient =
            pd_arena_take(arena, PD_MEMORY_GRADIENTS, pd_zero_slab_elements(zero, 0, &owned) * sizeof(float));
    if (is_of_stage(zero, zero->has.set_count - 1))
        zero->mirror = pd_arena_take(arena, PD_MEMORY_PARAMETERS, held_elements(zero, &table, 0) * compute);
}

/* ---- buffers ---- */

/* For sets of at most `pieces`, exchanged with `peers` data ranks. */
static void take_pieces(struct pd_arena *arena, uint64_t peers, uint32_t pieces, struct pd_comm_piece **sends,
                        struct pd_comm_piece **recvs)
{
    uint64_t bytes = peers * pieces * sizeof(struct pd_comm_piece);
    *sends = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, bytes);
    *recvs = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, bytes);
}

struct sizes {
    uint64_t needed, computed; /* elements of the largest set */
    uint32_t pieces;
};

static struct sizes sizes_of(const struct pd_zero *zero, bool ends, bool blocks)
{
    struct sizes most = {0};
    for (uint32_t s = 0; s < zero->has.set_count; s++) {
        const struct pd_zero_set *set = &zero->sets[s];
        if (!set->count || !(pd_zero_is_end(zero, s) ? ends : blocks)) continue;
        most.needed = pd_max_u64(most.needed, set->needed[set->count]);
        most.computed = pd_max_u64(most.computed, set->computed[set->count]);
        most.pieces = (uint32_t)pd_max_u64(most.pieces, set->pieces_most);
    }
    return most;
}

static void take_gather_buffer(struct pd_zero *zero, struct pd_arena *arena, uint64_t elements, uint32_t lane)
{
    struct pd_zero_buffer *buffer = &zero->gather.buffers[zero->gather.buffer_count++];
    buffer->set = PD_ZERO_NO_SET;
    buffer->lane = lane;
    buffer->data = pd_arena_take(arena, PD_MEMORY_PARAMETERS, elements * pd_dtype_bytes(zero->options.compute));
}

/* Stage 3: two blocks and one end; below, every set of this stage has a place of its own, and is gathered in one of three
 * lanes. */
static void take_gather_buffers(struct pd_zero *zero, struct pd_arena *arena)
{
    const struct sizes blocks = sizes_of(zero, false, true), ends = sizes_of(zero, true, false);
    const uint64_t peers = zero->grid->layout.zero_stage > 0 ? zero->parts : 1;
    struct pd_comm_piece *sends[PD_ZERO_BLOCK_BUFFERS + 1], *recvs[PD_ZERO_BLOCK_BUFFERS + 1];
    if (zero->in_place) return;
    for (uint32_t lane = 0; lane <= PD_ZERO_BLOCK_BUFFERS; lane++) {
        const bool is_end = lane == PD_ZERO_BLOCK_BUFFERS;
        take_pieces(arena, peers, is_end ? ends.pieces : blocks.pieces, &sends[lane], &recvs[lane]);
        if (zero->grid->layout.zero_stage == 3) take_gather_buffer(zero, arena, is_end ? ends.needed : blocks.needed, lane);
    }
    for (uint32_t s = 0; s < zero->has.set_count && zero->grid->layout.zero_stage < 3; s++)
        take_gather_buffer(zero, arena, zero->sets[s].needed[zero->sets[s].count],
                           pd_zero_is_end(zero, s) ? PD_ZERO_BLOCK_BUFFERS : s % PD_ZERO_BLOCK_BUFFERS);
    for (uint32_t i = 0; i < zero->gather.buffer_count; i++) {
        zero->gather.buffers[i].sends = sends[zero->gather.buffers[i].lane];
        zero->gather.buffers[i].recvs = recvs[zero->gather.buffers[i].lane];
    }
}

static void take_exchange(struct pd_zero *zero, struct pd_arena *arena)
{
    const struct sizes all = sizes_of(zero, true, true), blocks = sizes_of(zero, false, true),
                       ends = sizes_of(zero, true, false);
    const enum pd_dtype type = zero->options.gradient_type;
    const bool direct = pd_zero_makes_sums(zero) || (zero->alone && zero->options.micro_batches == 1 && type == PD_F32);
    for (uint32_t i = 0; i <= PD_ZERO_BLOCK_BUFFERS && !direct; i++) {
        uint64_t elements = i < PD_ZERO_BLOCK_BUFFERS ? blocks.computed : ends.computed;
        if (zero->alone && i == 1) continue;
        zero->micro_batch_gradients[i] = pd_arena_take(arena, PD_MEMORY_GRADIENTS, elements * sizeof(float));
    }
    if (zero->alone) zero->micro_batch_gradients[1] = zero->micro_batch_gradients[0];
    zero->exchange.set = PD_ZERO_NO_SET;
    const bool adds = zero->q < zero->parts; /* others own nothing */
    const uint64_t rounded = zero->sent == type ? all.computed : adds ? zero->window_elements : 0;
    if (type != PD_F32) zero->rounded = pd_arena_take(arena, PD_MEMORY_GRADIENTS, rounded * pd_dtype_bytes(type));
    if (zero->alone) return;
    take_pieces(arena, zero->data_ranks, all.pieces, &zero->exchange.sends, &zero->exchange.recvs);
    const uint64_t window = adds ? zero->data_ranks * zero->window_elements : 0;
    zero->window = pd_arena_take(arena, PD_MEMORY_GRADIENTS, window * pd_dtype_bytes(zero->sent));
}

/* ---- life ---- */

static pd_status build(struct pd_zero *zero, struct pd_arena *arena, struct pd_error *err)
{
    const uint32_t tensors = zero->model->tensors.count;
    zero->sets = calloc(zero->has.set_count, sizeof *zero->sets);
    zero->tensor_offset = calloc(tensors, sizeof *zero->tensor_offset);
    zero->copy_offset = calloc(tensors, sizeof *zero->copy_offset);
    zero->has.first_box = calloc(zero->has.set_count + 1ull, sizeof *zero->has.first_box);
    zero->gather.buffers = calloc(zero->has.set_count + PD_ZERO_BLOCK_BUFFERS + 1u, sizeof *zero->gather.buffers);
    zero->places.of = calloc((size_t)zero->grid->layout.tp * PD_ZERO_SET_TENSORS_MAX, sizeof *zero->places.of);
    zero->places.set = PD_ZERO_NO_SET;
    if (!zero->sets || !zero->tensor_offset || !zero->copy_offset || !zero->has.first_box || !zero->gather.buffers ||
        !zero->places.of)
        PD_FAIL(err, PD_NO_MEMORY, "zero: no memory for the tables of %u tensors", tensors);
    PD_TRY(describe_sets(zero, err));
    PD_TRY(describe_boxes(zero, err));
    zero->files.landing_place = calloc(zero->has.box_count + 1ull, sizeof *zero->files.landing_place);
    if (!zero->files.landing_place) PD_FAIL(err, PD_NO_MEMORY, "zero: no memory for %u boxes", zero->has.box_count);
    pd_zero_describe_files(zero);
    take_state(zero, arena);
    pd_zero_take_files(zero, arena);
    take_gather_buffers(zero, arena);
    take_exchange(zero, arena);
    return PD_OK;
}

pd_status pd_zero_new(const struct pd_model *model, const struct pd_zero_options *options, const struct pd_grid *grid,
                      struct pd_math *math, struct pd_arena *arena, struct pd_zero **ret_zero, struct pd_error *err)
{
    const struct pd_layout *layout = &grid->layout;
    const uint32_t data_ranks = layout->dp * layout->sp;
    PD_TRY(pd_layout_check(layout, err));
    if (data_ranks % layout->zero_shard)
        PD_FAIL(err, PD_INVALID, "layout: zero_shard %u does not divide the %u data ranks (dp x sp)", layout->zero_shard,
                data_ranks);
    struct pd_zero *zero = calloc(1, sizeof *zero);
    if (!zero) PD_FAIL(err, PD_NO_MEMORY, "zero: no memory");
    zero->model = model;
    zero->options = *options;
    zero->grid = grid;
    zero->comm = grid->stage;
    zero->gathers = grid->gathers;
    zero->math = math;
    zero->q = grid->place.dp * layout->sp + grid->place.sp;
    zero->data_ranks = data_ranks;
    zero->parts = layout->zero_shard;
    zero->alone = data_ranks * layout->tp == 1;
    zero->in_place = !pd_grid_has_gathers(layout);
    zero->has.set_count = model->unit_count;
    zero->sent = layout->sp > 1 ? PD_F32 : options->gradient_type;
    zero->is_mirrored =
        model->config.tie_embeddings && pd_layout_unit_pp(layout, 0) != pd_layout_unit_pp(layout, model->unit_count - 1);
    pd_status st = build(zero, arena, err);
    if (st) {
        pd_zero_free(zero);
        return st;
    }
    *ret_zero = zero;
    return PD_OK;
}

void pd_zero_free(struct pd_zero *zero)
{
    if (!zero) return;
    free(zero->sets);
    free(zero->has.boxes);
    free(zero->tensor_offset);
    free(zero->copy_offset);
    free(zero->has.first_box);
    free(zero->files.landing_place);
    free(zero->gather.buffers);
    free(zero->places.of);
    free(zero);
}

const struct pd_zero_held *pd_zero_held(const struct pd_zero *zero)
{
    return &zero->has;
}

void *pd_zero_parameters(struct pd_zero *zero, uint32_t set, uint32_t e)
{
    uint32_t tensor = zero->sets[set].tensors[e];
    if (zero->mirror && set == zero->has.set_count - 1 && tensor == 0) return zero->mirror;
    char *base = zero->has.copy ? zero->has.copy : (char *)zero->has.state[PD_PARAM];
    const uint64_t bytes = pd_dtype_bytes(zero->options.compute);
    if (!pd_zero_is_filed(zero, set)) return base + zero->copy_offset[tensor] * bytes;
    PD_CHECK(zero->files.image_set == set);
    return zero->files.image + (zero->tensor_offset[tensor] - zero->tensor_offset[zero->sets[set].tensors[0]]) * bytes;
}

pd_status pd_zero_updated(struct pd_zero *zero, struct pd_error *err)
{
    pd_zero_invalidate(zero);
    return pd_zero_mirror_parameters(zero, err);
}

/* Box by box; a master on the host passes through the memory of the gradients, of which there are none yet. */
static pd_status put_boxes(struct pd_zero *zero, struct pd_error *err)
{
    for (uint32_t i = 0; i < zero->has.box_count; i++) {
        const struct pd_zero_box *b = &zero->has.boxes[i];
        float *master = zero->has.state[PD_PARAM] + b->offset, *passage = zero->has.gradient + b->gradient_offset;
        if (zero->options.state_on_host)
            PD_TRY(pd_math_copy(zero->math, passage, master, b->elements * sizeof *master, err));
        PD_TRY(pd_zero_put_parameters(zero, i, zero->options.state_on_host ? passage : master, err));
    }
    return pd_math_sync(zero->math, err);
}

pd_status pd_zero_refresh_compute(struct pd_zero *zero, struct pd_error *err)
{
    if (!zero->options.state_in_files && (zero->options.state_on_host || zero->options.parameters_in_files))
        PD_TRY(put_boxes(zero, err));
    else if (zero->has.copy && !zero->options.state_in_files)
        PD_TRY(pd_cast(zero->math, zero->has.elements, zero->options.compute, zero->has.copy, PD_F32,
                       zero->has.state[PD_PARAM], err));
    return pd_zero_updated(zero, err);
}

static pd_status join_tied(struct pd_zero *zero, struct pd_error *err)
{
    for (uint32_t i = 0; i < zero->has.box_count; i++) {
        const struct pd_zero_box *b = &zero->has.boxes[i];
        if (b->tied_gradient_offset == UINT64_MAX || !b->owned) continue;
        PD_TRY(pd_add(zero->math, b->elements, zero->has.gradient + b->gradient_offset, PD_F32,
                      zero->has.gradient + b->tied_gradient_offset, false, err));
    }
    return PD_OK;
}

pd_status pd_zero_finish_gradients(struct pd_zero *zero, struct pd_error *err)
{
    PD_TRY(pd_zero_drain(zero, err));
    PD_TRY(zero->is_mirrored ? pd_zero_mirror_gradients(zero, err) : join_tied(zero, err));
    return pd_zero_share_gradients(zero, err);
}

void pd_zero_sync(struct pd_zero *zero)
{
    for (uint32_t i = 0; i < zero->gather.buffer_count; i++)
        (void)!pd_zero_wait_gather(zero, &zero->gather.buffers[i], NULL);
    (void)!pd_zero_wait_round(zero, NULL);
    zero->exchange.set = PD_ZERO_NO_SET;
}
