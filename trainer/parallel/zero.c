#include "trainer/parallel/zero.h"

#include "ckpt/base/checked.h"
#include "trainer/parallel/zero_internal.h"

#include <stdlib.h>
#include <string.h>

#define NCCL_PACK_BYTES 16u
#define PAGE_ALIGNED_ELEMENTS_MIN (UINT64_C(1) << 18) /* smaller ones are staged by saves anyway */

/* ---- buckets ---- */

/* How many tensors from this one on are of experts that ep_rank does not hold; of a tensor that it holds 0. The tensor is the
 * first of its expert, or held. */
static uint32_t tensors_elsewhere(const struct pd_model *model, uint32_t ep, uint32_t ep_rank, uint32_t tensor)
{
    const uint32_t number = model->tensors.tensors[tensor].expert;
    if (ep <= 1 || !number) return 0;
    const uint32_t left = model->config.experts - (number - 1), own = (ep_rank + ep - (number - 1) % ep) % ep;
    return PD_EXPERT_TENSORS * (ep_rank == PD_ZERO_ALL_RANKS || own > left ? left : own);
}

/* Whether the tensor at here[i] is cut as the same one of the expert before, at here[i - PD_EXPERT_TENSORS]. */
static bool is_next_expert(const struct pd_zero *zero, const struct pd_zero_bucket *s, uint32_t i)
{
    if (i < PD_EXPERT_TENSORS) return false;
    const struct pd_tensor *tensors = zero->model->tensors.tensors, *a = &tensors[s->tensors[s->here[i]]],
                           *b = &tensors[s->tensors[s->here[i - PD_EXPERT_TENSORS]]];
    return a->expert && b->expert && a->tp_dim == b->tp_dim && a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1];
}

static void add_to_spread(const struct pd_zero *zero, struct pd_zero_bucket *bucket, uint32_t e)
{
    if (pd_zero_side_of(zero, bucket->tensors[e]) == PD_ZERO_COMMON || bucket->computed[e] == bucket->computed[e + 1])
        return;
    if (!bucket->spread_end) bucket->spread_begin = bucket->computed[e];
    bucket->spread_end = bucket->computed[e + 1];
}

static void add_to_bucket(struct pd_zero *zero, struct pd_zero_bucket *bucket, uint32_t tensor)
{
    uint32_t e = bucket->count++;
    bucket->tensors[e] = tensor;
    bucket->here[bucket->here_count++] = e;
    if (is_next_expert(zero, bucket, bucket->here_count - 1)) {
        const uint32_t before = bucket->here[bucket->here_count - 1 - PD_EXPERT_TENSORS];
        bucket->needed[e + 1] = bucket->needed[e] + bucket->needed[before + 1] - bucket->needed[before];
        bucket->computed[e + 1] = bucket->computed[e] + bucket->computed[before + 1] - bucket->computed[before];
        add_to_spread(zero, bucket, e);
        return;
    }
    const struct pd_zero_place place = pd_zero_place_of(zero, tensor, zero->grid->place.tp);
    const bool is_read_here = !pd_zero_is_redirected(zero, (uint32_t)(bucket - zero->buckets), e, PD_ZERO_PARAMETERS);
    bucket->needed[e + 1] = bucket->needed[e] + (is_read_here ? pd_zero_slice_elements(zero, tensor, &place.needed) : 0);
    bucket->computed[e + 1] = bucket->computed[e] + pd_zero_slice_elements(zero, tensor, &place.computed);
    add_to_spread(zero, bucket, e);
}

/* Experts of other ep ranks; returns the tensor after them. */
static uint32_t pass_by(struct pd_zero_bucket *bucket, uint32_t tensor, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++, bucket->count++) {
        bucket->tensors[bucket->count] = tensor + i;
        bucket->needed[bucket->count + 1] = bucket->needed[bucket->count];
        bucket->computed[bucket->count + 1] = bucket->computed[bucket->count];
    }
    return tensor + count;
}

/* A small tensor belongs to one rank; others are cut evenly, the first part the largest. In stage 0 there is one part. */
static uint64_t add_part(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t number, uint32_t tp,
                         uint64_t *by_part, uint64_t *everywhere)
{
    struct pd_layout_cut cut;
    uint64_t columns[2], unused;
    if (!pd_layout_cut_of(layout, tensor, number, tp, &cut) || cut.chunk_begin == cut.chunk_end) return 0;
    pd_layout_chunk_columns(layout, tensor, cut.chunk_begin, &columns[0], &unused);
    pd_layout_chunk_columns(layout, tensor, cut.chunk_end - 1, &unused, &columns[1]);
    const bool is_whole = layout->zero_stage == 0;
    const uint64_t rows = cut.row_end - cut.row_begin,
                   elements = (is_whole ? rows : pd_min_u64(cut.part_rows, rows)) * (columns[1] - columns[0]);
    if (cut.part_count <= 1 && !is_whole) return by_part[cut.q_first / cut.q_stride] += elements;
    *everywhere += elements;
    return 0;
}

uint64_t pd_zero_part_elements(const struct pd_model *model, const struct pd_layout *layout, uint32_t unit, uint32_t tp,
                               uint32_t ep_rank, uint64_t *by_part)
{
    uint64_t everywhere = 0, most = 0;
    memset(by_part, 0, layout->zero_shard * sizeof *by_part);
    for (uint32_t t = model->unit_first[unit]; t < model->unit_first[unit + 1]; t++) {
        const uint32_t elsewhere = tensors_elsewhere(model, layout->ep, ep_rank, t);
        const struct pd_tensor *tensor = &model->tensors.tensors[t];
        if (elsewhere) t += elsewhere - 1;
        if (elsewhere || (ep_rank != PD_ZERO_ALL_RANKS && !pd_layout_is_spread(layout, tensor))) continue;
        most = pd_max_u64(most, add_part(layout, tensor, t, tp, by_part, &everywhere));
    }
    return everywhere + most;
}

/* NCCL moves 16 bytes at a time only where every rank's part begins at a multiple of 16. */
static void measure_side(const struct pd_zero *zero, struct pd_zero_side *side, uint64_t part, uint64_t terms,
                         uint32_t copies)
{
    side->part = pd_round_up(part, NCCL_PACK_BYTES / pd_dtype_bytes(zero->options.compute));
    side->stride = pd_round_up(terms + 1, NCCL_PACK_BYTES / zero->term_bytes);
    side->buffer = pd_round_up(side->stride, copies * NCCL_PACK_BYTES / zero->term_bytes);
}

/* The largest part, and this rank's. A tied table's terms are the embedding's, or the head's if that is elsewhere. */
static void measure_parts(struct pd_zero *zero, uint32_t bucket, uint64_t *by_part)
{
    struct pd_zero_bucket *s = &zero->buckets[bucket];
    struct pd_zero_side *common = &s->sides[PD_ZERO_COMMON], *spread = &s->sides[PD_ZERO_SPREAD];
    const struct pd_layout *layout = &zero->grid->layout;
    const uint32_t tp = zero->grid->place.tp, last = s->count - 1, copies = layout->dp * layout->sp / zero->parts;
    const uint64_t most = pd_zero_part_elements(zero->model, layout, bucket, tp, PD_ZERO_ALL_RANKS, by_part);
    const bool is_tied = bucket && s->tensors[last] == 0;
    const uint64_t table = is_tied ? pd_zero_part_elements(zero->model, layout, 0, tp, PD_ZERO_ALL_RANKS, by_part) : 0;
    for (uint32_t i = 0; i < s->here_count; i++) {
        const uint32_t e = s->here[i];
        if (!pd_zero_is_redirected(zero, bucket, e, PD_ZERO_TERMS))
            s->sides[pd_zero_side_of(zero, s->tensors[e])].own += pd_zero_held_elements(zero, s->tensors[e]);
    }
    measure_side(zero, common, most + (pd_zero_is_redirected(zero, bucket, last, PD_ZERO_PARAMETERS) ? 0 : table),
                 most + (pd_zero_is_redirected(zero, bucket, last, PD_ZERO_TERMS) ? 0 : table), copies);
    if (s->spread_begin == s->spread_end) return;
    const uint64_t experts = pd_zero_part_elements(zero->model, layout, bucket, tp, zero->q % zero->ep, by_part);
    measure_side(zero, spread, experts, experts, zero->parts == 1 ? copies / zero->ep : copies);
    spread->parts_at = zero->parts * common->part;
    spread->terms_at = zero->parts == 1 ? common->buffer : zero->parts * common->stride;
    spread->sums_at = common->buffer;
}

/* How many parts have rows of the slice. */
static uint64_t zero_parts_of(const struct pd_zero *zero, const struct pd_zero_place *place,
                              const struct pd_zero_slice *slice)
{
    const struct pd_layout_cut *cut = &place->cut;
    const uint64_t begin = pd_max_u64(cut->row_begin, slice->row_begin), end = pd_min_u64(cut->row_end, slice->row_end);
    if (begin >= end || cut->chunk_begin >= slice->chunk_end || slice->chunk_begin >= cut->chunk_end) return 0;
    if (zero->grid->layout.zero_stage == 0) return 1;
    return (end - 1 - cut->row_begin) / cut->part_rows - (begin - cut->row_begin) / cut->part_rows + 1;
}

/* Shares of a parameter that go to other tensor-parallel ranks or come from them. */
static uint64_t tp_pieces_of(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_place *here)
{
    uint64_t pieces = 0;
    for (uint32_t t = 0; t < zero->grid->layout.tp; t++) {
        if (t == zero->grid->place.tp) continue;
        const struct pd_zero_place there = pd_zero_place_of(zero, tensor, t);
        pieces += zero_parts_of(zero, &there, &here->needed) + zero_parts_of(zero, here, &there.needed);
    }
    return pieces;
}

/* Data shared with other tensor-parallel ranks: shares of parameters, each some rows of one part; and terms of key-value
 * heads that this rank computes and another owns. */
static void zero_count_tp_pieces(struct pd_zero *zero, uint32_t bucket)
{
    struct pd_zero_bucket *s = &zero->buckets[bucket];
    uint64_t pieces[PD_EXPERT_TENSORS];
    s->crosses = !pd_zero_is_end(zero, bucket) && pd_partition_kv_is_apart(&zero->model->config, &zero->grid->partition);
    for (uint32_t i = 0; i < s->here_count; i++) {
        const uint32_t e = s->here[i];
        const bool is_next = is_next_expert(zero, s, i);
        if (is_next) s->tp_pieces += pieces[i % PD_EXPERT_TENSORS];
        if (is_next && !s->crosses) continue;
        const struct pd_zero_place here = pd_zero_place_of(zero, s->tensors[e], zero->grid->place.tp);
        const struct pd_layout_cut *cut = &here.cut;
        const struct pd_zero_slice own = {cut->row_begin, cut->row_end, cut->chunk_begin, cut->chunk_end};
        struct pd_zero_run runs[PD_LAYOUT_CHUNKS_MAX];
        if (!is_next) s->tp_pieces += pieces[i % PD_EXPERT_TENSORS] = tp_pieces_of(zero, s->tensors[e], &here);
        if (!s->crosses || zero->model->tensors.tensors[s->tensors[e]].tp_dim) continue;
        const uint32_t count = pd_zero_runs(zero, s->tensors[e], &here.computed, &own, runs);
        s->elsewhere += pd_zero_slice_elements(zero, s->tensors[e], &here.computed) - (count ? runs[0].elements : 0);
    }
}

/* Floats of the memory in which a bucket is summed and held. */
static uint64_t sums_of_bucket(const struct pd_zero *zero, uint32_t bucket)
{
    const struct pd_zero_bucket *s = &zero->buckets[bucket];
    const struct pd_zero_side *common = &s->sides[PD_ZERO_COMMON], *spread = &s->sides[PD_ZERO_SPREAD];
    if (!zero->has.makes_terms) return common->own;
    return (common->buffer + spread->buffer + (zero->parts == 1 ? s->elsewhere : 0)) * zero->term_bytes / sizeof(float);
}

/* Sums of blocks in files share two page-aligned buffers; the first blocks, which fit the budget, stay. */
static void size_sums(struct pd_zero *zero)
{
    const uint64_t page = PD_ARENA_ALIGN / sizeof(float);
    zero->has.sums_away = pd_zero_first_away(zero, zero->options.gradients_budget / sizeof(float), sums_of_bucket);
    for (uint32_t bucket = zero->has.sums_away; bucket + 1 < zero->has.bucket_count; bucket++)
        zero->sums_elements = pd_max_u64(zero->sums_elements, pd_round_up(sums_of_bucket(zero, bucket), page));
    zero->has.gradient_elements = 2 * zero->sums_elements;
}

/* Tables by tensor, in one allocation for all buckets: a tied table is in the head's too. */
static pd_status make_tables(struct pd_zero *zero, struct pd_error *err)
{
    const struct pd_model *model = zero->model;
    const uint64_t rows = (uint64_t)model->tensors.count + 2ull * model->unit_count;
    uint32_t most = 0, *tensors = calloc(2 * rows, sizeof *tensors);
    uint64_t *elements = calloc(2 * rows, sizeof *elements);
    zero->tables[0] = tensors, zero->tables[1] = elements;
    for (uint32_t unit = 0; unit < model->unit_count && tensors && elements; unit++) {
        const uint32_t count = model->unit_first[unit + 1] - model->unit_first[unit] + 1;
        zero->buckets[unit].tensors = tensors;
        zero->buckets[unit].here = tensors + rows;
        zero->buckets[unit].needed = elements;
        zero->buckets[unit].computed = elements + count + 1;
        tensors += count, elements += 2 * (count + 1);
        most = count > most ? count : most;
    }
    zero->gathers.pointers = calloc(most, sizeof *zero->gathers.pointers);
    zero->micro_batch_pointers = calloc(most, sizeof *zero->micro_batch_pointers);
    zero->users = calloc(2ull * most, sizeof *zero->users);
    zero->owners = zero->users ? zero->users + most : NULL;
    if (!most || !zero->gathers.pointers || !zero->micro_batch_pointers || !zero->users)
        PD_FAIL(err, PD_NO_MEMORY, "zero: no memory for the tables of %u tensors", model->tensors.count);
    return PD_OK;
}

/* Rounded sums of blocks are fp32 in one buffer while one is computed or updated. */
static void size_rounded(struct pd_zero *zero)
{
    for (uint32_t bucket = 0; bucket < zero->has.bucket_count; bucket++)
        if (pd_zero_is_rounded(zero, bucket))
            zero->has.gradient_elements =
                pd_max_u64(zero->has.gradient_elements, pd_round_up(sums_of_bucket(zero, bucket), 4));
}

static pd_status describe_buckets(struct pd_zero *zero, struct pd_error *err)
{
    const struct pd_model *model = zero->model;
    PD_TRY(make_tables(zero, err));
    uint64_t *by_part = calloc(zero->grid->layout.zero_shard, sizeof *by_part);
    if (!by_part) PD_FAIL(err, PD_NO_MEMORY, "zero: no memory for %u parts", zero->grid->layout.zero_shard);
    for (uint32_t unit = 0; unit < model->unit_count; unit++) {
        struct pd_zero_bucket *bucket = &zero->buckets[unit];
        if (pd_layout_unit_pp(&zero->grid->layout, unit) != zero->grid->place.pp) continue;
        for (uint32_t t = model->unit_first[unit]; t < model->unit_first[unit + 1];) {
            const uint32_t elsewhere = tensors_elsewhere(model, zero->ep, zero->ep_rank, t);
            if (elsewhere)
                t = pass_by(bucket, t, elsewhere);
            else
                add_to_bucket(zero, bucket, t++);
        }
        if (unit + 1 == model->unit_count && model->config.tie_embeddings) add_to_bucket(zero, bucket, 0);
        measure_parts(zero, unit, by_part);
        zero_count_tp_pieces(zero, unit);
    }
    free(by_part);
    if (zero->options.gradients_in_files) size_sums(zero);
    if (zero->options.rounds_sums) size_rounded(zero);
    for (uint32_t unit = 0; unit < model->unit_count; unit++)
        if (zero->buckets[unit].count) {
            /* Aligns each bucket to 16 bytes, like a micro-batch's gradients: GPU products then have the same alignment. */
            struct pd_zero_bucket *s = &zero->buckets[unit];
            const bool is_filed = pd_zero_has_filed_sums(zero, unit);
            if (pd_zero_is_rounded(zero, unit)) continue;
            s->sums =
                (is_filed ? unit % 2 * zero->sums_elements : zero->has.gradient_elements) * sizeof(float) / zero->term_bytes;
            if (!is_filed) zero->has.gradient_elements += pd_round_up(sums_of_bucket(zero, unit), 4);
        }
    return PD_OK;
}

/* ---- held state ---- */

/* Rows [row, row_end) of a chunk of tensor t, held at `at` and summed at `gradient`. */
static void zero_add_box(struct pd_zero *zero, uint32_t t, const struct pd_zero_slice *held, uint64_t at, uint64_t gradient,
                         uint32_t chunk, uint64_t row, uint64_t row_end, bool owned)
{
    const struct pd_tensor *tensor = &zero->model->tensors.tensors[t];
    struct pd_zero_box b = {.tensor = t, .number = chunk - held->chunk_begin, .owned = owned};
    uint64_t column, column_end;
    pd_layout_chunk_columns(&zero->grid->layout, tensor, chunk, &column, &column_end);
    if (row == row_end || column == column_end) return;
    const uint64_t behind = pd_zero_slice_offset(zero, t, held, chunk, row);
    b.box = pd_box_part(tensor, row, row_end, column, column_end);
    b.elements = pd_box_elements(&b.box);
    b.offset = at + behind;
    b.gradient_offset = gradient + behind;
    zero->has.boxes[zero->has.box_count++] = b;
}

/* In stage 0 the rank also holds the rows before and after its part. */
static void add_boxes(struct pd_zero *zero, uint32_t t, uint64_t at, uint64_t gradient)
{
    const struct pd_zero_place place = {.cut = pd_zero_cut_of(zero, t)};
    const struct pd_zero_slice held = pd_zero_held_slice(zero, &place, zero->q),
                               owned = pd_zero_owned_slice(zero, &place, zero->q);
    const bool owns = owned.row_begin < owned.row_end;
    const uint64_t begin = owns ? owned.row_begin : held.row_end, end = owns ? owned.row_end : held.row_end;
    for (uint32_t chunk = held.chunk_begin; chunk < held.chunk_end; chunk++) {
        zero_add_box(zero, t, &held, at, gradient, chunk, held.row_begin, begin, false);
        zero_add_box(zero, t, &held, at, gradient, chunk, begin, end, true);
        zero_add_box(zero, t, &held, at, gradient, chunk, end, held.row_end, false);
    }
}

/* Most boxes that a rank holds of a tensor: in stage 0 also the rows before and after its part. */
static uint64_t most_boxes_of(const struct pd_zero *zero, uint32_t t)
{
    const uint64_t chunks =
        zero->model->tensors.tensors[t].tp_dim == 1 ? pd_partition_chunk_count(&zero->grid->partition) : 1;
    return (zero->grid->layout.zero_stage == 0 ? 3 : 1) * chunks;
}

/* A tied table has the embedding's boxes. */
static pd_status describe_boxes(struct pd_zero *zero, struct pd_error *err)
{
    uint64_t most = 1;
    for (uint32_t bucket = 0; bucket < zero->has.bucket_count; bucket++)
        for (uint32_t i = 0; i < zero->buckets[bucket].here_count; i++)
            most += most_boxes_of(zero, zero->buckets[bucket].tensors[zero->buckets[bucket].here[i]]);
    zero->has.boxes = malloc(most * sizeof *zero->has.boxes);
    if (!zero->has.boxes)
        PD_FAIL(err, PD_NO_MEMORY, "zero: no memory for the boxes of %u tensors", zero->model->tensors.count);
    for (uint32_t bucket = 0; bucket < zero->has.bucket_count; bucket++) {
        const struct pd_zero_bucket *s = &zero->buckets[bucket];
        const uint64_t words = zero->term_bytes / sizeof(float); /* of a term */
        /* Sums in files are one span */
        uint64_t gradients[] = {words * s->sums, words * s->sums + (pd_zero_has_filed_sums(zero, bucket)
                                                                        ? s->sides[PD_ZERO_COMMON].own
                                                                        : words * s->sides[PD_ZERO_SPREAD].sums_at)};
        zero->has.first_box[bucket] = zero->has.box_count;
        for (uint32_t i = 0; i < s->here_count; i++) {
            const uint32_t t = s->tensors[s->here[i]];
            const uint64_t elements = pd_zero_held_elements(zero, t);
            if (!elements || (bucket && t == 0)) continue;
            /* Start of tensor t's boxes. A large matrix after a vector starts a page, so that saves and loads use direct I/O
             * without a copy. Matrices used as one (q, k, v) stay contiguous. */
            const struct pd_tensor *tensors = zero->model->tensors.tensors;
            const uint64_t page = PD_ARENA_ALIGN / sizeof(float);
            bool begins = tensors[t].ndim > 1 && t > 0 && tensors[t - 1].ndim == 1 && elements >= PAGE_ALIGNED_ELEMENTS_MIN;
            const uint64_t at = begins ? (zero->has.elements + page - 1) / page * page : zero->has.elements;
            uint64_t *gradient = &gradients[pd_zero_side_of(zero, t)];
            add_boxes(zero, t, at, *gradient);
            zero->has.elements = at + elements;
            *gradient += elements;
        }
    }
    zero->has.first_box[zero->has.bucket_count] = zero->has.box_count;
    return PD_OK;
}

static void take_state(struct pd_zero *zero, struct pd_arena *arena)
{
    const uint64_t compute = pd_dtype_bytes(zero->options.compute);
    zero->has.moments = zero->model->tensors.tensors[0].moments;
    for (int kind = 0; kind < PD_KIND_COUNT && !zero->options.state_in_files; kind++)
        zero->has.state[kind] = (zero->options.state_on_host ? pd_arena_take_host : pd_arena_take)(
            arena, PD_MEMORY_OPTIMIZER, zero->has.elements * pd_zero_element_bytes(&zero->has, (enum pd_kind)kind));
    if (zero->options.compute != PD_F32 || zero->options.state_in_files || zero->options.state_on_host ||
        zero->options.parameters_in_files)
        zero->has.copy = pd_arena_take(arena, PD_MEMORY_PARAMETERS, zero->copy_elements * compute);
    zero->has.gradient = pd_arena_take(arena, PD_MEMORY_GRADIENTS, zero->has.gradient_elements * sizeof(float));
    if (!zero->is_mirrored) return;
    const uint64_t held = pd_zero_held_elements(zero, 0);
    const bool is_first = zero->buckets[0].count, is_last = zero->buckets[zero->has.bucket_count - 1].count;
    if (is_first || is_last)
        zero->mirrored_gradient = pd_arena_take(arena, PD_MEMORY_GRADIENTS, (is_first ? held + 1 : 1) * zero->term_bytes);
    if (is_last) zero->mirror = pd_arena_take(arena, PD_MEMORY_PARAMETERS, held * compute);
}

/* ---- buffers ---- */

/* Stage 3 reads all buckets from one buffer; lower stages have one per bucket. With one rank parts are read in place. */
static void take_gathers(struct pd_zero *zero, struct pd_arena *arena)
{
    struct pd_zero_gathers *g = &zero->gathers;
    const uint64_t bytes = pd_dtype_bytes(zero->options.compute);
    uint64_t parts = 0, needed = 0, tp_pieces = 0;
    g->version = 1;
    g->most = zero->options.gathers_two && !zero->in_place && !zero->options.parameters_in_files ? 2 : 1;
    g->has_one_place = zero->in_place || zero->grid->layout.zero_stage == 3;
    for (uint32_t bucket = 0; bucket < zero->has.bucket_count; bucket++) {
        struct pd_zero_bucket *s = &zero->buckets[bucket];
        if (zero->in_place && !pd_zero_is_filed(zero, bucket)) continue;
        parts = pd_max_u64(parts, pd_zero_parts(zero, PD_ZERO_COMMON) * s->sides[PD_ZERO_COMMON].part +
                                      pd_zero_parts(zero, PD_ZERO_SPREAD) * s->sides[PD_ZERO_SPREAD].part);
        needed = pd_max_u64(needed, s->needed[s->count]);
        tp_pieces = pd_max_u64(tp_pieces, s->tp_pieces);
        if (!g->has_one_place) s->place = pd_arena_take(arena, PD_MEMORY_PARAMETERS, s->needed[s->count] * bytes);
    }
    for (uint32_t i = 0; i < g->most; i++)
        g->turns[i].parts = pd_arena_take(arena, PD_MEMORY_PARAMETERS, parts * bytes);
    zero->tp_pieces = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, tp_pieces * sizeof *zero->tp_pieces);
    if (!g->has_one_place) return;
    char *place = zero->in_place ? g->turns[0].parts : pd_arena_take(arena, PD_MEMORY_PARAMETERS, needed * bytes);
    for (uint32_t bucket = 0; bucket < zero->has.bucket_count; bucket++)
        zero->buckets[bucket].place = place;
}

/* Sums of lanes: one per chain on this rank; breadth first, one bucket at a time. */
static void take_lanes(struct pd_zero *zero, struct pd_arena *arena, uint64_t most)
{
    float *shared = NULL;
    if (zero->has_lanes && zero->has.makes_terms && zero->options.by_layers)
        shared = pd_arena_take(arena, PD_MEMORY_GRADIENTS, most * sizeof(float));
    for (uint32_t bucket = 0; zero->has_lanes && bucket < zero->has.bucket_count; bucket++) {
        struct pd_zero_bucket *s = &zero->buckets[bucket];
        if (!s->count) continue;
        if (pd_zero_is_rounded(zero, bucket))
            s->rounded = pd_arena_take(arena, PD_MEMORY_GRADIENTS, pd_zero_gradients_of(zero, s) * sizeof(uint16_t));
        if (!zero->has.makes_terms)
            s->lane = (float *)pd_zero_sums(zero, bucket);
        else
            s->lane =
                shared ? shared : pd_arena_take(arena, PD_MEMORY_GRADIENTS, pd_zero_gradients_of(zero, s) * sizeof(float));
    }
}

/* Alone, a rank makes terms where they are summed. Otherwise terms wait for their exchange. Ends, and buckets exchanged once a
 * step unless breadth first, have their own buffer; other blocks use two in turn. */
static void take_terms(struct pd_zero *zero, struct pd_arena *arena)
{
    uint64_t turns = 0;
    for (uint32_t bucket = 0; bucket < zero->has.bucket_count; bucket++) {
        struct pd_zero_bucket *s = &zero->buckets[bucket];
        const uint64_t bytes = (pd_zero_terms_end(zero, s) + s->elsewhere) * zero->term_bytes;
        s->terms = &s->own_terms;
        if (zero->parts == 1)
            s->terms->data = pd_arena_is_dry(arena) ? NULL : pd_zero_sums(zero, bucket);
        else if (pd_zero_is_end(zero, bucket) || !(zero->options.by_lane || zero->options.by_layers))
            s->terms->data = pd_arena_take(arena, PD_MEMORY_GRADIENTS, bytes);
        else
            turns = pd_max_u64(turns, bytes);
    }
    for (int i = 0; i < 2; i++)
        zero->turns[i].data = pd_arena_take(arena, PD_MEMORY_GRADIENTS, turns);
}

/* Two of every tensor, one of every bucket. */
static uint64_t marks_of(const struct pd_zero *zero)
{
    return 2 * (uint64_t)zero->model->tensors.count + zero->has.bucket_count;
}

static void take_gradients(struct pd_zero *zero, struct pd_arena *arena)
{
    const bool is_direct = zero->has_lanes && (zero->options.adds_in_place || pd_lanes_longest(&zero->lanes) == 1);
    const uint64_t marks = marks_of(zero) * sizeof *zero->marks;
    uint64_t most = 0;
    for (uint32_t bucket = 0; bucket < zero->has.bucket_count; bucket++)
        if (zero->buckets[bucket].count) most = pd_max_u64(most, pd_zero_gradients_of(zero, &zero->buckets[bucket]));
    for (int i = 0; i < 2; i++)
        zero->exchanges.flights[i].bucket = PD_ZERO_NO_BUCKET;
    take_lanes(zero, arena, most);
    if (!is_direct) zero->micro_batch = pd_arena_take(arena, PD_MEMORY_GRADIENTS, most * sizeof(float));
    if (!zero->has.makes_terms) return;
    zero->marks = pd_arena_take(arena, PD_MEMORY_GRADIENTS, marks);
    zero->host_marks = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, marks);
    if (zero->term_bytes < sizeof(int64_t)) {
        zero->largest = pd_arena_take(arena, PD_MEMORY_GRADIENTS, PD_GRADIENT_CLASSES * sizeof *zero->largest);
        zero->host_largest = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, PD_GRADIENT_CLASSES * sizeof *zero->largest);
    }
    take_terms(zero, arena);
}

/* ---- life ---- */

static pd_status zero_build(struct pd_zero *zero, struct pd_arena *arena, struct pd_error *err)
{
    const uint32_t tensors = zero->model->tensors.count;
    zero->buckets = calloc(zero->has.bucket_count, sizeof *zero->buckets);
    zero->has.first_box = calloc(zero->has.bucket_count + 1ull, sizeof *zero->has.first_box);
    if (!zero->buckets || !zero->has.first_box)
        PD_FAIL(err, PD_NO_MEMORY, "zero: no memory for the tables of %u tensors", tensors);
    PD_TRY(describe_buckets(zero, err));
    PD_TRY(describe_boxes(zero, err));
    zero->files.landing_place = calloc(zero->has.box_count + 1ull, sizeof *zero->files.landing_place);
    if (!zero->files.landing_place) PD_FAIL(err, PD_NO_MEMORY, "zero: no memory for %u boxes", zero->has.box_count);
    pd_zero_describe_files(zero);
    take_state(zero, arena);
    for (int i = 0; i < 2; i++)
        zero->files.landing[i] = pd_arena_take(arena, PD_MEMORY_BUFFERS, zero->files.landing_bytes);
    take_gathers(zero, arena);
    take_gradients(zero, arena);
    return PD_OK;
}

/* FNV-1a over the offset of a buffer in registered memory. */
static uint64_t add_place(uint64_t hash, const void *memory, const void *buffer)
{
    const uint64_t at = buffer ? (uint64_t)((const char *)buffer - (const char *)memory) : UINT64_MAX;
    return (hash ^ at) * UINT64_C(0x100000001b3);
}

static uint64_t places_of_parameters(const struct pd_zero *zero, const void *memory)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint32_t i = 0; i < zero->gathers.most; i++)
        hash = add_place(hash, memory, zero->gathers.turns[i].parts);
    return hash;
}

static uint64_t places_of_gradients(const struct pd_zero *zero, const void *memory)
{
    uint64_t hash = add_place(UINT64_C(0xcbf29ce484222325), memory, zero->has.gradient);
    for (uint32_t bucket = 0; bucket < zero->has.bucket_count; bucket++) {
        const struct pd_zero_bucket *s = &zero->buckets[bucket];
        if (s->count) hash = add_place(hash, memory, s->own_terms.data);
        if (s->count) hash = add_place(hash, zero->has.gradient, pd_zero_sums(zero, bucket));
    }
    for (int i = 0; i < 2; i++)
        hash = add_place(hash, memory, zero->turns[i].data);
    return hash;
}

/* NCCL looks for a peer's buffer at the offset of its own, so memory is registered only if all ranks have all of it at the same
 * places: no bit is set in the places of one rank and in the complement of another's. */
static pd_status register_places(struct pd_comm *comm, void *memory, uint64_t bytes, uint64_t places, struct pd_error *err)
{
    uint64_t found[] = {places, ~places};
    if (!comm || !comm->ops->will_use) return PD_OK;
    PD_TRY(pd_comm_all_reduce(comm, found, 2, PD_REDUCE_OR_U64, err));
    if (!(found[0] & found[1])) pd_comm_will_use(comm, memory, bytes);
    return PD_OK;
}

/* Buffers of parameter parts, terms and sums stay the same in every step. */
static pd_status tell_comms(const struct pd_zero *zero, const struct pd_arena *arena, struct pd_error *err)
{
    const struct pd_grid *grid = zero->grid;
    uint64_t parameters_bytes, gradients_bytes;
    if (pd_arena_is_dry(arena)) return PD_OK;
    void *parameters = pd_arena_mapped(arena, PD_MEMORY_PARAMETERS, &parameters_bytes);
    void *gradients = pd_arena_mapped(arena, PD_MEMORY_GRADIENTS, &gradients_bytes);
    const uint64_t places = places_of_gradients(zero, gradients);
    PD_TRY(register_places(grid->gathers, parameters, parameters_bytes, places_of_parameters(zero, parameters), err));
    PD_TRY(register_places(grid->shard, gradients, gradients_bytes, places, err));
    return register_places(grid->replicas, gradients, gradients_bytes, places, err);
}

/* A lane is a term; with cut sequences, each piece of each micro-batch is. */
struct pd_quantum pd_zero_quantum(const struct pd_zero *zero, uint32_t tensor)
{
    const uint64_t tokens = zero->options.tokens, ends = zero->model->config.tie_embeddings ? 2 : 1,
                   terms = zero->pieces > 1 ? (uint64_t)zero->options.micro_batches * zero->pieces : zero->options.lanes;
    if (zero->term_bytes == sizeof(int64_t)) return pd_quantum_of(tokens, terms * ends, zero->coarser);
    return pd_quantum32_of(tokens, terms * ends, zero->sizes.log2[pd_gradient_class(zero->model, tensor)], zero->coarser);
}

static void zero_describe(struct pd_zero *zero)
{
    const struct pd_zero_options *o = &zero->options;
    const struct pd_layout *layout = &zero->grid->layout;
    const struct pd_model *model = zero->model;
    zero->q = zero->grid->place.dp * layout->sp + zero->grid->place.sp;
    zero->parts = layout->zero_stage ? layout->zero_shard : 1;
    zero->ep = pd_layout_ep(layout);
    zero->ep_rank = zero->q % zero->ep;
    zero->in_place = layout->tp == 1 && zero->parts == 1;
    zero->has.bucket_count = model->unit_count;
    zero->lanes = (struct pd_lanes){o->micro_batches, o->lanes, layout->dp};
    zero->slots = pd_lanes_slots(&zero->lanes);
    zero->pieces = pd_partition_piece_total(&zero->grid->partition);
    zero->has.makes_terms = o->lanes > 1 || layout->virtual_tp > 1 || layout->virtual_sp > 1;
    zero->has_lanes = !zero->has.makes_terms || (zero->pieces == 1 && pd_lanes_longest(&zero->lanes) > 1);
    zero->options.adds_in_place = o->adds_in_place && zero->has_lanes;
    zero->term_bytes = o->narrow_terms ? sizeof(int32_t) : sizeof(int64_t);
    pd_gradient_sizes_init(&zero->sizes);
    zero->quantum = pd_zero_quantum(zero, 0);
    zero->loss_scale = 1;
    zero->is_mirrored =
        model->config.tie_embeddings && pd_layout_unit_pp(layout, 0) != pd_layout_unit_pp(layout, model->unit_count - 1);
    zero->joins_tied = zero->has.makes_terms && model->config.tie_embeddings && !zero->is_mirrored;
    zero->reads_once = layout->zero_stage < 3 && !zero->in_place && model->config.tie_embeddings && !zero->is_mirrored;
}

pd_status pd_zero_new(const struct pd_model *model, const struct pd_zero_options *options, const struct pd_grid *grid,
                      struct pd_math *math, struct pd_arena *arena, struct pd_zero **ret_zero, struct pd_error *err)
{
    const struct pd_layout *layout = &grid->layout;
    if (layout->dp * layout->sp % layout->zero_shard)
        PD_FAIL(err, PD_INVALID, "layout: zero_shard %u does not divide the %u data ranks (dp x sp)", layout->zero_shard,
                layout->dp * layout->sp);
    struct pd_zero *zero = calloc(1, sizeof *zero);
    if (!zero) PD_FAIL(err, PD_NO_MEMORY, "zero: no memory");
    zero->model = model;
    zero->options = *options;
    zero->grid = grid;
    zero->math = math;
    zero_describe(zero);
    pd_status st = zero_build(zero, arena, err);
    if (!st) st = tell_comms(zero, arena, err);
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
    free(zero->buckets);
    free(zero->has.boxes);
    free(zero->has.first_box);
    free(zero->files.landing_place);
    free(zero->tables[0]);
    free(zero->tables[1]);
    free(zero->gathers.pointers);
    free(zero->micro_batch_pointers);
    free(zero->users);
    free(zero);
}

const struct pd_zero_held *pd_zero_held(const struct pd_zero *zero)
{
    return &zero->has;
}

void *pd_zero_parameters(const struct pd_zero *zero, uint32_t bucket, uint32_t e)
{
    const uint32_t tensor = zero->buckets[bucket].tensors[e];
    const uint32_t owner = tensor ? bucket : 0, end = zero->has.first_box[owner + 1];
    uint32_t b = zero->has.first_box[owner];
    if (zero->mirror && bucket == zero->has.bucket_count - 1 && tensor == 0) return zero->mirror;
    while (b < end && zero->has.boxes[b].tensor != tensor)
        b++;
    return b < end ? pd_zero_copies(zero) + zero->has.boxes[b].copy_offset * pd_dtype_bytes(zero->options.compute) : NULL;
}

/* Box by box; a master on the host passes through the gradients' memory, still unused. */
static pd_status put_boxes(struct pd_zero *zero, struct pd_error *err)
{
    for (uint32_t i = 0; i < zero->has.box_count; i++) {
        const struct pd_zero_box *b = &zero->has.boxes[i];
        float *master = pd_zero_state(&zero->has, PD_PARAM, b->offset), *bounce = zero->has.gradient + b->gradient_offset;
        if (zero->options.state_on_host) PD_TRY(pd_math_copy(zero->math, bounce, master, b->elements * sizeof *master, err));
        PD_TRY(pd_zero_put_parameters(zero, i, zero->options.state_on_host ? bounce : master, err));
    }
    return pd_math_sync(zero->math, err);
}

pd_status pd_zero_refresh_compute(struct pd_zero *zero, struct pd_error *err)
{
    const bool is_copied = zero->has.copy || zero->options.parameters_in_files;
    if (is_copied && !zero->options.state_in_files) PD_TRY(put_boxes(zero, err));
    return pd_zero_updated(zero, err);
}

/* ---- marks: problems in a step's gradients ---- */

pd_status pd_zero_begin_step(struct pd_zero *zero, double loss_scale, const struct pd_gradient_sizes *sizes,
                             uint32_t coarser, struct pd_error *err)
{
    const struct pd_term_run clear = {.to = zero->largest, .n = zero->largest ? PD_GRADIENT_CLASSES : 0};
    zero->sizes = *sizes;
    zero->coarser = coarser;
    zero->quantum = pd_zero_quantum(zero, 0);
    zero->loss_scale = loss_scale;
    zero->attempt++;
    for (uint32_t bucket = 0; bucket < zero->has.bucket_count; bucket++) {
        zero->buckets[bucket].has_sums = false;
        zero->buckets[bucket].filled = 0;
    }
    return clear.n ? pd_zero_add_run(zero, &clear, err) : PD_OK;
}

pd_status pd_zero_read_marks(struct pd_zero *zero, struct pd_error *err)
{
    const uint64_t bytes = PD_GRADIENT_CLASSES * sizeof *zero->largest;
    if (!zero->has.makes_terms) return PD_OK;
    if (zero->largest) PD_TRY(pd_math_copy(zero->math, zero->host_largest, zero->largest, bytes, err));
    return pd_math_copy(zero->math, zero->host_marks, zero->marks, marks_of(zero) * sizeof *zero->marks, err);
}

static uint32_t first_marked(const struct pd_zero *zero, uint32_t begin, uint32_t stride, uint32_t count)
{
    for (uint32_t i = 0; zero->has.makes_terms && i < count; i++)
        if (zero->host_marks[begin + stride * i] == zero->attempt) return i;
    return PD_ZERO_NO_BUCKET;
}

uint32_t pd_zero_out_of_range(const struct pd_zero *zero)
{
    return first_marked(zero, 0, 2, zero->model->tensors.count);
}

uint32_t pd_zero_not_finite(const struct pd_zero *zero)
{
    return first_marked(zero, 1, 2, zero->model->tensors.count);
}

uint32_t pd_zero_damage(const struct pd_zero *zero)
{
    return first_marked(zero, 2 * zero->model->tensors.count, 1, zero->has.bucket_count);
}

const float *pd_zero_largest(const struct pd_zero *zero)
{
    return zero->host_largest;
}
