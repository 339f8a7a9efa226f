#include "trainer/parallel/zero.h"

#include "trainer/parallel/zero_internal.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_ALIGNED_ELEMENTS_MIN (UINT64_C(1) << 18) /* smaller ones are staged by saves anyway */

bool pd_zero_is_end(const struct pd_zero *zero, uint32_t set)
{
    return set == 0 || set == zero->set_count - 1;
}

static uint64_t largest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t elements_of(const struct pd_box *boxes, uint32_t count)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < count; i++)
        elements += pd_box_elements(&boxes[i]);
    return elements;
}

static uint64_t mine(const struct pd_zero *zero, uint32_t tensor, enum pd_zero_boxes kind, uint32_t *ret_count)
{
    struct pd_box boxes[PD_ZERO_BOXES_MAX];
    uint32_t count = pd_zero_boxes_of(zero, tensor, kind, zero->q, zero->grid->place.tp, boxes);
    if (ret_count) *ret_count = count;
    return elements_of(boxes, count);
}

/* ---- sets ---- */

static void add_to_set(struct pd_zero *zero, struct pd_zero_set *set, uint32_t tensor)
{
    PD_CHECK(set->count < PD_ZERO_SET_TENSORS_MAX);
    uint32_t e = set->count++, needed, computed;
    set->tensors[e] = tensor;
    set->needed[e + 1] = set->needed[e] + mine(zero, tensor, PD_ZERO_NEEDED, &needed);
    set->computed[e + 1] = set->computed[e] + mine(zero, tensor, PD_ZERO_COMPUTED, &computed);
    set->gradient[e] = zero->gradient_elements;
    zero->gradient_elements += mine(zero, tensor, PD_ZERO_HELD, NULL);
    /* Boxes of any rank: a chunk each where dimension 1 is cut, one otherwise; of two ranks one box meets two at most. */
    uint32_t chunks = pd_partition_chunk_count(&zero->grid->partition);
    set->pieces_most += zero->model->tensors.tensors[tensor].tp_dim == 1 ? chunks : 2;
}

/* Elements of the set that one rank owns at most. Small tensors belong to one rank each, the others are cut evenly. */
static uint64_t owned_most(const struct pd_zero *zero, const struct pd_zero_set *set, uint64_t *by_part)
{
    uint64_t most = 0;
    for (uint32_t tp = 0; tp < zero->grid->layout.tp; tp++) {
        uint64_t everywhere = 0, here = 0;
        memset(by_part, 0, zero->parts * sizeof *by_part);
        for (uint32_t e = 0; e < set->count; e++) {
            const struct pd_tensor *t = &zero->model->tensors.tensors[set->tensors[e]];
            struct pd_layout_cut cut;
            if (!pd_layout_cut_of(&zero->grid->layout, t, set->tensors[e], tp, &cut)) continue;
            struct pd_box boxes[PD_ZERO_BOXES_MAX];
            uint32_t count = pd_zero_boxes_of(zero, set->tensors[e], PD_ZERO_OWNED, cut.q_first, tp, boxes);
            uint64_t elements = elements_of(boxes, count); /* of the first part, the largest */
            if (cut.part_count > 1)
                everywhere += elements;
            else
                here = largest(here, by_part[cut.q_first] += elements);
        }
        most = largest(most, everywhere + here);
    }
    return most;
}

static bool is_of_stage(const struct pd_zero *zero, uint32_t unit)
{
    return pd_layout_unit_pp(&zero->grid->layout, unit) == zero->grid->place.pp;
}

static pd_status describe_sets(struct pd_zero *zero, struct pd_error *err)
{
    const struct pd_model *model = zero->model;
    uint64_t *by_part = calloc(zero->parts, sizeof *by_part);
    if (!by_part) PD_FAIL(err, PD_NO_MEMORY, "zero: no memory for %u parts", zero->parts);
    for (uint32_t unit = 0; unit < model->unit_count; unit++) {
        struct pd_zero_set *set = &zero->sets[unit];
        if (!is_of_stage(zero, unit)) continue;
        for (uint32_t t = model->unit_first[unit]; t < model->unit_first[unit + 1]; t++)
            add_to_set(zero, set, t);
        if (unit + 1 == model->unit_count && model->config.tie_embeddings) add_to_set(zero, set, 0);
        set->owned_most = owned_most(zero, set, by_part);
        zero->window_elements =
            pd_zero_is_end(zero, unit) ? zero->window_elements : largest(zero->window_elements, set->owned_most);
    }
    free(by_part);
    if (!zero->window_elements) zero->window_elements = 1;
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
    return begins ? (zero->held + page - 1) / page * page : zero->held;
}

struct describing {
    uint32_t tensor;
    uint64_t gradient, tied_gradient; /* of the tensor's first held box; UINT64_MAX: none */
    uint64_t offset;
    uint32_t owned;
};

static void add_box(struct pd_zero *zero, struct describing *d, const struct pd_box *box, bool owned)
{
    uint64_t elements = pd_box_elements(box), behind = d->offset - zero->tensor_offset[d->tensor];
    struct pd_zero_box b = {.tensor = d->tensor, .owned = owned, .number = owned ? d->owned++ : 0, .box = *box};
    b.offset = d->offset;
    b.elements = elements;
    b.gradient_offset = d->gradient + behind;
    b.tied_gradient_offset = d->tied_gradient == UINT64_MAX ? UINT64_MAX : d->tied_gradient + behind;
    zero->boxes[zero->box_count++] = b;
    d->offset += elements;
    if (owned) zero->owned += elements;
}

/* A held box, cut by owners where it is more than one rank's: stage 0. */
static void add_held(struct pd_zero *zero, struct describing *d, const struct pd_box *held)
{
    const struct pd_layout *layout = &zero->grid->layout;
    const struct pd_tensor *tensor = &zero->model->tensors.tensors[d->tensor];
    struct pd_layout_cut cut;
    if (layout->zero_stage > 0) {
        add_box(zero, d, held, zero->q < zero->parts);
        return;
    }
    PD_CHECK(pd_layout_cut_of(layout, tensor, d->tensor, zero->grid->place.tp, &cut));
    for (uint32_t part = 0; part < cut.part_count; part++) {
        uint64_t begin = cut.row_begin + part * cut.part_rows, end = begin + cut.part_rows;
        if (begin >= cut.row_end) break;
        if (part + 1 == cut.part_count || end > cut.row_end) end = cut.row_end;
        struct pd_box box = *held;
        box.start[0] = begin;
        box.count[0] = end - begin;
        add_box(zero, d, &box, zero->q == cut.q_first + part);
    }
}

static uint64_t gradient_of(const struct pd_zero *zero, uint32_t set, uint32_t tensor)
{
    const struct pd_zero_set *s = &zero->sets[set];
    for (uint32_t e = 0; e < s->count; e++)
        if (s->tensors[e] == tensor) return s->gradient[e];
    return UINT64_MAX;
}

static uint32_t boxes_most(const struct pd_zero *zero)
{
    uint64_t parts = zero->grid->layout.zero_stage == 0 ? zero->parts : 1, most = 0;
    for (uint32_t s = 0; s < zero->set_count; s++)
        most += zero->sets[s].pieces_most * parts;
    return (uint32_t)most;
}

static pd_status describe_boxes(struct pd_zero *zero, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &zero->model->tensors;
    zero->boxes = calloc(boxes_most(zero) + 1u, sizeof *zero->boxes);
    if (!zero->boxes) PD_FAIL(err, PD_NO_MEMORY, "zero: no memory for the boxes of %u tensors", tensors->count);
    for (uint32_t t = 0; t < tensors->count; t++) {
        struct pd_box boxes[PD_ZERO_BOXES_MAX];
        zero->tensor_offset[t] = zero->held;
        if (!is_of_stage(zero, tensors->tensors[t].unit)) continue;
        uint32_t count = pd_zero_boxes_of(zero, t, PD_ZERO_HELD, zero->q, zero->grid->place.tp, boxes);
        if (!count) continue;
        bool is_tied = t == 0 && zero->model->config.tie_embeddings;
        struct describing d = {.tensor = t};
        d.gradient = gradient_of(zero, tensors->tensors[t].unit, t);
        d.tied_gradient = is_tied ? gradient_of(zero, zero->set_count - 1, t) : UINT64_MAX;
        d.offset = zero->tensor_offset[t] = first_offset(zero, t, elements_of(boxes, count));
        for (uint32_t i = 0; i < count; i++)
            add_held(zero, &d, &boxes[i]);
        zero->held = d.offset;
    }
    return PD_OK;
}

static void take_state(struct pd_zero *zero, struct pd_arena *arena)
{
    const uint64_t compute = pd_dtype_bytes(zero->options.compute);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        zero->state[kind] = pd_arena_take(arena, PD_MEMORY_OPTIMIZER, zero->held * sizeof(float));
    if (zero->options.compute != PD_F32) zero->compute = pd_arena_take(arena, PD_MEMORY_PARAMETERS, zero->held * compute);
    zero->gradient = pd_arena_take(arena, PD_MEMORY_GRADIENTS, zero->gradient_elements * sizeof(float));
    if (!zero->is_mirrored) return;
    if (is_of_stage(zero, 0))
        zero->mirrored_gradient =
            pd_arena_take(arena, PD_MEMORY_GRADIENTS, mine(zero, 0, PD_ZERO_OWNED, NULL) * sizeof(float));
    if (is_of_stage(zero, zero->set_count - 1))
        zero->mirror = pd_arena_take(arena, PD_MEMORY_PARAMETERS, mine(zero, 0, PD_ZERO_HELD, NULL) * compute);
}

/* ---- buffers ---- */

static void take_pieces(struct pd_zero *zero, struct pd_arena *arena, uint32_t boxes, struct pd_comm_piece **sends,
                        struct pd_comm_piece **recvs)
{
    uint64_t bytes = (uint64_t)zero->data_ranks * zero->grid->layout.tp * boxes * sizeof(struct pd_comm_piece);
    *sends = pd_arena_take(arena, PD_MEMORY_BUFFERS, bytes);
    *recvs = pd_arena_take(arena, PD_MEMORY_BUFFERS, bytes);
}

struct sizes {
    uint64_t needed, computed; /* elements of the largest set */
    uint32_t pieces;
};

static struct sizes sizes_of(const struct pd_zero *zero, bool ends, bool blocks)
{
    struct sizes most = {0};
    for (uint32_t s = 0; s < zero->set_count; s++) {
        const struct pd_zero_set *set = &zero->sets[s];
        if (!set->count || !(pd_zero_is_end(zero, s) ? ends : blocks)) continue;
        most.needed = largest(most.needed, set->needed[set->count]);
        most.computed = largest(most.computed, set->computed[set->count]);
        most.pieces = (uint32_t)largest(most.pieces, set->pieces_most);
    }
    return most;
}

static void take_gather_buffer(struct pd_zero *zero, struct pd_arena *arena, struct pd_zero_buffer *buffer,
                               uint64_t elements, uint32_t pieces)
{
    buffer->set = PD_ZERO_NO_SET;
    buffer->data = pd_arena_take(arena, PD_MEMORY_PARAMETERS, elements * pd_dtype_bytes(zero->options.compute));
    take_pieces(zero, arena, pieces, &buffer->sends, &buffer->recvs);
}

/* Stage 3: two blocks and one end; below, every set of this stage has a place of its own. */
static void take_gather_buffers(struct pd_zero *zero, struct pd_arena *arena)
{
    const struct sizes blocks = sizes_of(zero, false, true), ends = sizes_of(zero, true, false);
    if (zero->in_place) return;
    if (zero->grid->layout.zero_stage == 3) {
        zero->buffer_count = PD_ZERO_BLOCK_BUFFERS + 1;
        for (uint32_t i = 0; i < PD_ZERO_BLOCK_BUFFERS; i++)
            take_gather_buffer(zero, arena, &zero->buffers[i], blocks.needed, blocks.pieces);
        take_gather_buffer(zero, arena, &zero->buffers[PD_ZERO_BLOCK_BUFFERS], ends.needed, ends.pieces);
        return;
    }
    zero->buffer_count = zero->set_count;
    for (uint32_t s = 0; s < zero->set_count; s++) {
        const struct pd_zero_set *set = &zero->sets[s];
        take_gather_buffer(zero, arena, &zero->buffers[s], set->needed[set->count], set->pieces_most);
    }
}

static void take_exchange(struct pd_zero *zero, struct pd_arena *arena)
{
    const struct sizes all = sizes_of(zero, true, true), blocks = sizes_of(zero, false, true),
                       ends = sizes_of(zero, true, false);
    const enum pd_dtype type = zero->options.gradient_type;
    const bool direct = zero->alone && zero->options.leaves == 1 && type == PD_F32;
    for (uint32_t i = 0; i <= PD_ZERO_BLOCK_BUFFERS && !direct; i++) {
        uint64_t elements = i < PD_ZERO_BLOCK_BUFFERS ? blocks.computed : ends.computed;
        if (zero->alone && i == 1) continue;
        zero->leaf_gradients[i] = pd_arena_take(arena, PD_MEMORY_GRADIENTS, elements * sizeof(float));
    }
    if (zero->alone) zero->leaf_gradients[1] = zero->leaf_gradients[0];
    zero->exchange.set = PD_ZERO_NO_SET;
    if (type != PD_F32) {
        uint64_t elements = zero->sent == type ? all.computed : zero->window_elements;
        zero->rounded = pd_arena_take(arena, PD_MEMORY_GRADIENTS, elements * pd_dtype_bytes(type));
    }
    if (zero->alone) return;
    take_pieces(zero, arena, all.pieces, &zero->exchange.sends, &zero->exchange.recvs);
    zero->window =
        pd_arena_take(arena, PD_MEMORY_GRADIENTS, zero->data_ranks * zero->window_elements * pd_dtype_bytes(zero->sent));
}

/* ---- life ---- */

static pd_status build(struct pd_zero *zero, struct pd_arena *arena, struct pd_error *err)
{
    const uint32_t tensors = zero->model->tensors.count;
    zero->sets = calloc(zero->set_count, sizeof *zero->sets);
    zero->tensor_offset = calloc(tensors, sizeof *zero->tensor_offset);
    zero->buffers = calloc(zero->set_count + PD_ZERO_BLOCK_BUFFERS + 1u, sizeof *zero->buffers);
    if (!zero->sets || !zero->tensor_offset || !zero->buffers)
        PD_FAIL(err, PD_NO_MEMORY, "zero: no memory for the tables of %u tensors", tensors);
    PD_TRY(describe_sets(zero, err));
    PD_TRY(describe_boxes(zero, err));
    take_state(zero, arena);
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
    zero->math = math;
    zero->q = grid->place.dp * layout->sp + grid->place.sp;
    zero->data_ranks = data_ranks;
    zero->parts = layout->zero_shard;
    zero->alone = data_ranks * layout->tp == 1;
    zero->in_place = zero->alone || (layout->zero_stage == 0 && layout->tp == 1);
    zero->set_count = model->unit_count;
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
    free(zero->boxes);
    free(zero->tensor_offset);
    free(zero->buffers);
    free(zero);
}

uint64_t pd_zero_held_elements(const struct pd_zero *zero)
{
    return zero->held;
}

uint64_t pd_zero_owned_elements(const struct pd_zero *zero)
{
    return zero->owned;
}

uint32_t pd_zero_box_count(const struct pd_zero *zero)
{
    return zero->box_count;
}

const struct pd_zero_box *pd_zero_boxes(const struct pd_zero *zero)
{
    return zero->boxes;
}

float *pd_zero_state(struct pd_zero *zero, enum pd_kind kind)
{
    return zero->state[kind];
}

float *pd_zero_gradient(struct pd_zero *zero)
{
    return zero->gradient;
}

void *pd_zero_compute_copy(struct pd_zero *zero)
{
    return zero->compute;
}

uint32_t pd_zero_set_count(const struct pd_zero *zero)
{
    return zero->set_count;
}

void *pd_zero_parameters(struct pd_zero *zero, uint32_t set, uint32_t e)
{
    uint32_t tensor = zero->sets[set].tensors[e];
    if (zero->mirror && set == zero->set_count - 1 && tensor == 0) return zero->mirror;
    char *base = zero->compute ? zero->compute : (char *)zero->state[PD_PARAM];
    return base + zero->tensor_offset[tensor] * pd_dtype_bytes(zero->options.compute);
}

pd_status pd_zero_updated(struct pd_zero *zero, struct pd_error *err)
{
    pd_zero_invalidate(zero);
    return pd_zero_mirror_parameters(zero, err);
}

pd_status pd_zero_refresh_compute(struct pd_zero *zero, struct pd_error *err)
{
    if (zero->compute)
        PD_TRY(pd_cast(zero->math, zero->held, zero->options.compute, zero->compute, PD_F32, zero->state[PD_PARAM], err));
    return pd_zero_updated(zero, err);
}

static pd_status join_tied(struct pd_zero *zero, struct pd_error *err)
{
    for (uint32_t i = 0; i < zero->box_count; i++) {
        const struct pd_zero_box *b = &zero->boxes[i];
        if (b->tied_gradient_offset == UINT64_MAX || !b->owned) continue;
        PD_TRY(pd_add(zero->math, b->elements, zero->gradient + b->gradient_offset, PD_F32,
                      zero->gradient + b->tied_gradient_offset, false, err));
    }
    return PD_OK;
}

pd_status pd_zero_finish_gradients(struct pd_zero *zero, struct pd_error *err)
{
    PD_TRY(pd_zero_drain(zero, err));
    PD_TRY(zero->is_mirrored ? pd_zero_mirror_gradients(zero, err) : join_tied(zero, err));
    return pd_zero_share_gradients(zero, err);
}

void pd_zero_settle(struct pd_zero *zero)
{
    for (uint32_t i = 0; i < zero->buffer_count; i++) {
        struct pd_zero_buffer *buffer = &zero->buffers[i];
        if (buffer->in_flight) (void)!pd_comm_wait(zero->comm, &buffer->op, NULL);
        buffer->in_flight = false;
    }
    if (zero->exchange.in_flight) (void)!pd_comm_wait(zero->comm, &zero->exchange.op, NULL);
    zero->exchange.in_flight = false;
    zero->exchange.set = PD_ZERO_NO_SET;
}
