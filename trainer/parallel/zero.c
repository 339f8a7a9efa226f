#include "trainer/parallel/zero.h"

#include "resharder/layout.h"
#include "trainer/parallel/zero_internal.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_ALIGNED_ELEMENTS_MIN (UINT64_C(1) << 18) /* smaller ones are staged by saves anyway */

bool pd_zero_is_end(const struct pd_zero *zero, uint32_t set)
{
    return set == 0 || set == zero->set_count - 1;
}

uint64_t pd_zero_runs_elements(const struct pd_zero_run *runs, uint32_t count)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < count; i++)
        elements += runs[i].elements;
    return elements;
}

uint32_t pd_zero_runs(const struct pd_zero *zero, uint32_t set, uint32_t r, struct pd_zero_run *ret_runs)
{
    const struct pd_zero_set *s = &zero->sets[set];
    uint32_t count = 0;
    for (uint32_t e = 0; e < s->count; e++) {
        const struct pd_tensor *tensor = &zero->model->tensors.tensors[s->tensors[e]];
        struct pd_box box;
        if (!pd_layout_owned_boxes(&zero->grid->layout, tensor, s->tensors[e], r, &box, 1)) continue;
        struct pd_box whole = pd_box_whole(tensor);
        ret_runs[count++] = (struct pd_zero_run){s->offsets[e] + pd_box_offset(&whole, &box), pd_box_elements(&box)};
    }
    return count;
}

static void add_to_set(struct pd_zero *zero, struct pd_zero_set *set, uint32_t tensor)
{
    PD_CHECK(set->count < PD_ZERO_SET_TENSORS_MAX);
    uint64_t end = set->offsets[set->count];
    set->tensors[set->count++] = tensor;
    set->offsets[set->count] = end + pd_tensor_elements(&zero->model->tensors.tensors[tensor]);
}

static void describe_sets(struct pd_zero *zero)
{
    const struct pd_model *model = zero->model;
    for (uint32_t unit = 0; unit < model->unit_count; unit++)
        for (uint32_t t = model->unit_first[unit]; t < model->unit_first[unit + 1]; t++)
            add_to_set(zero, &zero->sets[unit], t);
    if (model->config.tie_embeddings) add_to_set(zero, &zero->sets[zero->set_count - 1], 0);
}

/* Gradients are kept in set order, so a set's owned run is contiguous; a tied tensor lies in two sets. */
static uint64_t describe_gradients(struct pd_zero *zero)
{
    uint64_t total = 0;
    for (uint32_t s = 0; s < zero->set_count; s++) {
        struct pd_zero_run runs[PD_ZERO_SET_TENSORS_MAX];
        zero->gradient_set_offset[s] = total;
        total += pd_zero_runs_elements(runs, pd_zero_runs(zero, s, zero->grid->rank, runs));
    }
    return total;
}

/* Place of tensor `tensor`'s owned box inside the gradients of `set`; UINT64_MAX when it is not there. */
static uint64_t gradient_place(const struct pd_zero *zero, uint32_t set, uint32_t tensor)
{
    const struct pd_zero_set *s = &zero->sets[set];
    uint64_t place = zero->gradient_set_offset[set];
    for (uint32_t e = 0; e < s->count; e++) {
        struct pd_box box;
        bool owned = pd_layout_owned_boxes(&zero->grid->layout, &zero->model->tensors.tensors[s->tensors[e]], s->tensors[e],
                                           zero->grid->rank, &box, 1);
        if (s->tensors[e] == tensor) return owned ? place : UINT64_MAX;
        if (owned) place += pd_box_elements(&box);
    }
    return UINT64_MAX;
}

/* Where the box of tensor t begins. A large matrix behind a vector begins a page, so that saves and loads move it by direct
 * I/O without a copy; matrices that are used as one (q, k, v) follow each other and stay together. */
static uint64_t box_offset(const struct pd_zero *zero, uint32_t t, uint64_t elements)
{
    const struct pd_tensor *tensors = zero->model->tensors.tensors;
    const uint64_t page = PD_ARENA_ALIGN / sizeof(float);
    bool begins = tensors[t].ndim > 1 && t > 0 && tensors[t - 1].ndim == 1 && elements >= PAGE_ALIGNED_ELEMENTS_MIN;
    return begins ? (zero->owned + page - 1) / page * page : zero->owned;
}

static void describe_boxes(struct pd_zero *zero)
{
    const struct pd_tensor_table *tensors = &zero->model->tensors;
    for (uint32_t t = 0; t < tensors->count; t++) {
        struct pd_zero_box *b = &zero->boxes[zero->box_count];
        zero->tensor_offset[t] = zero->owned;
        uint32_t count = pd_layout_owned_boxes(&zero->grid->layout, &tensors->tensors[t], t, zero->grid->rank, &b->box, 1);
        if (!count) continue;
        PD_CHECK(count == 1);
        b->tensor = t;
        b->owned = true;
        b->elements = pd_box_elements(&b->box);
        b->offset = zero->tensor_offset[t] = box_offset(zero, t, b->elements);
        b->gradient_offset = gradient_place(zero, tensors->tensors[t].unit, t);
        b->tied_gradient_offset = UINT64_MAX;
        if (t == 0 && zero->model->config.tie_embeddings)
            b->tied_gradient_offset = gradient_place(zero, zero->set_count - 1, t);
        zero->owned = b->offset + b->elements;
        zero->box_count++;
    }
}

static pd_status describe(struct pd_zero *zero, struct pd_error *err)
{
    uint32_t tensors = zero->model->tensors.count;
    zero->sets = calloc(zero->set_count, sizeof *zero->sets);
    zero->boxes = calloc(tensors, sizeof *zero->boxes);
    zero->tensor_offset = calloc(tensors, sizeof *zero->tensor_offset);
    zero->gradient_set_offset = calloc(zero->set_count, sizeof *zero->gradient_set_offset);
    if (!zero->sets || !zero->boxes || !zero->tensor_offset || !zero->gradient_set_offset)
        PD_FAIL(err, PD_NO_MEMORY, "zero: no memory for the tables of %u tensors", tensors);
    describe_sets(zero);
    return PD_OK;
}

static void take_state(struct pd_zero *zero, struct pd_arena *arena)
{
    uint64_t gradients = describe_gradients(zero);
    describe_boxes(zero);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        zero->state[kind] = pd_arena_take(arena, PD_MEMORY_OPTIMIZER, zero->owned * sizeof(float));
    if (zero->options.compute != PD_F32)
        zero->compute = pd_arena_take(arena, PD_MEMORY_PARAMETERS, zero->owned * pd_dtype_bytes(zero->options.compute));
    zero->gradient = pd_arena_take(arena, PD_MEMORY_GRADIENTS, gradients * sizeof(float));
}

static uint64_t set_elements(const struct pd_zero *zero, uint32_t set)
{
    return zero->sets[set].offsets[zero->sets[set].count];
}

static uint64_t largest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Most elements of a block that one rank owns: what a window has to take of each peer. */
static uint64_t window_elements_of(const struct pd_zero *zero)
{
    uint64_t most = 1;
    for (uint32_t s = 1; s + 1 < zero->set_count; s++)
        for (uint32_t r = 0; r < zero->dp; r++) {
            struct pd_zero_run runs[PD_ZERO_SET_TENSORS_MAX];
            most = largest(most, pd_zero_runs_elements(runs, pd_zero_runs(zero, s, r, runs)));
        }
    return most;
}

static void take_pieces(struct pd_zero *zero, struct pd_arena *arena, struct pd_comm_piece **sends,
                        struct pd_comm_piece **recvs)
{
    uint64_t bytes = (uint64_t)zero->dp * PD_ZERO_SET_TENSORS_MAX * sizeof(struct pd_comm_piece);
    *sends = pd_arena_take(arena, PD_MEMORY_BUFFERS, bytes);
    *recvs = pd_arena_take(arena, PD_MEMORY_BUFFERS, bytes);
}

static void take_buffers(struct pd_zero *zero, struct pd_arena *arena)
{
    uint64_t block = 0, end = largest(set_elements(zero, 0), set_elements(zero, zero->set_count - 1));
    for (uint32_t s = 1; s + 1 < zero->set_count; s++)
        block = largest(block, set_elements(zero, s));
    const enum pd_dtype type = zero->options.gradient_type;
    bool direct = zero->alone && zero->options.leaves == 1 && type == PD_F32;
    for (uint32_t i = 0; i <= PD_ZERO_BLOCK_BUFFERS; i++) {
        uint64_t elements = i < PD_ZERO_BLOCK_BUFFERS ? block : end;
        struct pd_zero_buffer *buffer = &zero->buffers[i];
        buffer->set = PD_ZERO_NO_SET;
        if (!zero->alone) {
            buffer->data = pd_arena_take(arena, PD_MEMORY_PARAMETERS, elements * pd_dtype_bytes(zero->options.compute));
            take_pieces(zero, arena, &buffer->sends, &buffer->recvs);
        }
        if (!direct && !(zero->alone && i == 1))
            zero->leaf_gradients[i] = pd_arena_take(arena, PD_MEMORY_GRADIENTS, elements * sizeof(float));
    }
    if (zero->alone) zero->leaf_gradients[1] = zero->leaf_gradients[0];
    zero->exchange.set = PD_ZERO_NO_SET;
    if (type != PD_F32)
        zero->rounded = pd_arena_take(arena, PD_MEMORY_GRADIENTS, largest(block, end) * pd_dtype_bytes(type));
    if (zero->alone) return;
    take_pieces(zero, arena, &zero->exchange.sends, &zero->exchange.recvs);
    zero->window_elements = window_elements_of(zero);
    zero->window = pd_arena_take(arena, PD_MEMORY_GRADIENTS, zero->dp * zero->window_elements * pd_dtype_bytes(type));
}

pd_status pd_zero_new(const struct pd_model *model, const struct pd_zero_options *options, const struct pd_grid *grid,
                      struct pd_math *math, struct pd_arena *arena, struct pd_zero **ret_zero, struct pd_error *err)
{
    const struct pd_layout *layout = &grid->layout;
    PD_TRY(pd_layout_check(layout, err));
    if (layout->tp * layout->pp * layout->sp > 1 || layout->virtual_tp > 1 || layout->zero_shard != layout->dp)
        PD_FAIL(err, PD_UNSUPPORTED,
                "layout: training runs data parallel, ZeRO-3 over all ranks; set tp, pp, sp and virtual_tp to 1");
    struct pd_zero *zero = calloc(1, sizeof *zero);
    if (!zero) PD_FAIL(err, PD_NO_MEMORY, "zero: no memory");
    zero->model = model;
    zero->options = *options;
    zero->grid = grid;
    zero->comm = grid->stage;
    zero->math = math;
    zero->dp = layout->dp;
    zero->alone = layout->dp == 1;
    zero->set_count = model->unit_count;
    pd_status st = describe(zero, err);
    if (st) {
        pd_zero_free(zero);
        return st;
    }
    take_state(zero, arena);
    take_buffers(zero, arena);
    *ret_zero = zero;
    return PD_OK;
}

void pd_zero_free(struct pd_zero *zero)
{
    if (!zero) return;
    free(zero->sets);
    free(zero->boxes);
    free(zero->tensor_offset);
    free(zero->gradient_set_offset);
    free(zero);
}

uint64_t pd_zero_held_elements(const struct pd_zero *zero)
{
    return zero->owned;
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

pd_status pd_zero_share_state(struct pd_zero *zero, struct pd_error *err)
{
    (void)zero, (void)err;
    return PD_OK;
}

pd_status pd_zero_updated(struct pd_zero *zero, struct pd_error *err)
{
    (void)err;
    pd_zero_invalidate(zero);
    return PD_OK;
}

pd_status pd_zero_refresh_compute(struct pd_zero *zero, struct pd_error *err)
{
    if (zero->compute)
        PD_TRY(pd_cast(zero->math, zero->owned, zero->options.compute, zero->compute, PD_F32, zero->state[PD_PARAM], err));
    return pd_zero_updated(zero, err);
}

pd_status pd_zero_finish_gradients(struct pd_zero *zero, struct pd_error *err)
{
    PD_TRY(pd_zero_drain(zero, err));
    for (uint32_t i = 0; i < zero->box_count; i++) {
        const struct pd_zero_box *b = &zero->boxes[i];
        if (b->tied_gradient_offset == UINT64_MAX) continue;
        PD_TRY(pd_add(zero->math, b->elements, zero->gradient + b->gradient_offset, PD_F32,
                      zero->gradient + b->tied_gradient_offset, false, err));
    }
    return PD_OK;
}
