/* Who has what of a set: all boxes are cut on dimension 0 inside a chunk, so what two of them share is one run in both. */
#include "trainer/parallel/zero_internal.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Held: the part of this group of zero_shard ranks; everything in stage 0. Owned: the first group's part. */
static uint32_t layout_boxes(const struct pd_zero *zero, uint32_t tensor, bool owned, uint32_t q, uint32_t tp,
                             struct pd_box *ret_boxes)
{
    const struct pd_layout *layout = &zero->grid->layout;
    const struct pd_tensor *t = &zero->model->tensors.tensors[tensor];
    struct pd_layout_cut cut;
    if (owned && q >= zero->parts) return 0;
    if (!pd_layout_cut_of(layout, t, tensor, tp, &cut)) return 0;
    uint64_t begin = cut.row_begin, end = cut.row_end;
    if (owned || layout->zero_stage > 0) {
        uint32_t part = q % zero->parts;
        if (part < cut.q_first || part - cut.q_first >= cut.part_count) return 0;
        begin = least(cut.row_begin + (part - cut.q_first) * cut.part_rows, cut.row_end);
        end = least(begin + cut.part_rows, cut.row_end);
    }
    uint32_t count = 0;
    for (uint32_t chunk = cut.chunk_begin; begin < end && chunk < cut.chunk_end; chunk++) {
        struct pd_box box = pd_box_whole(t);
        box.start[0] = begin;
        box.count[0] = end - begin;
        if (t->tp_dim == 1) {
            uint64_t first, last;
            pd_layout_chunk_columns(layout, t, chunk, &first, &last);
            if (first == last) continue;
            box.start[1] = first;
            box.count[1] = last - first;
        }
        ret_boxes[count++] = box;
    }
    return count;
}

uint32_t pd_zero_boxes_of(const struct pd_zero *zero, uint32_t tensor, enum pd_zero_boxes kind, uint32_t q, uint32_t tp,
                          struct pd_box *ret_boxes)
{
    struct pd_partition p = zero->grid->partition;
    p.tp_rank = tp;
    switch (kind) {
    case PD_ZERO_NEEDED:
        return pd_partition_needed(zero->model, &p, tensor, ret_boxes, PD_ZERO_BOXES_MAX);
    case PD_ZERO_COMPUTED:
        return pd_partition_computed(zero->model, &p, tensor, ret_boxes, PD_ZERO_BOXES_MAX);
    case PD_ZERO_HELD:
        return layout_boxes(zero, tensor, false, q, tp, ret_boxes);
    case PD_ZERO_OWNED:
        return layout_boxes(zero, tensor, true, q, tp, ret_boxes);
    }
    return 0;
}

struct side {
    enum pd_zero_boxes kind;
    uint32_t q, tp, count;
    uint64_t at; /* of the tensor's first box */
    struct pd_box boxes[PD_ZERO_BOXES_MAX];
};

static void side_start(const struct pd_zero *zero, uint32_t tensor, struct side *s)
{
    s->count = pd_zero_boxes_of(zero, tensor, s->kind, s->q, s->tp, s->boxes);
    if (s->kind == PD_ZERO_HELD) s->at = 0;
}

static void side_end(struct side *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        s->at += pd_box_elements(&s->boxes[i]);
}

static uint32_t common_runs(const struct side *a, const struct side *b, uint32_t tensor, struct pd_zero_run *ret_runs,
                            uint32_t capacity)
{
    uint32_t count = 0;
    uint64_t at_a = a->at;
    for (uint32_t i = 0; i < a->count; at_a += pd_box_elements(&a->boxes[i]), i++) {
        uint64_t at_b = b->at;
        for (uint32_t j = 0; j < b->count; at_b += pd_box_elements(&b->boxes[j]), j++) {
            struct pd_box part;
            if (!pd_box_intersect(&a->boxes[i], &b->boxes[j], &part)) continue;
            PD_CHECK(count < capacity);
            ret_runs[count++] = (struct pd_zero_run){tensor, at_a + pd_box_offset(&a->boxes[i], &part),
                                                     at_b + pd_box_offset(&b->boxes[j], &part), pd_box_elements(&part)};
        }
    }
    return count;
}

uint32_t pd_zero_runs(const struct pd_zero *zero, uint32_t set, enum pd_zero_boxes a, uint32_t q_a, uint32_t tp_a,
                      enum pd_zero_boxes b, uint32_t q_b, uint32_t tp_b, struct pd_zero_run *ret_runs, uint32_t capacity)
{
    struct side left = {.kind = a, .q = q_a, .tp = tp_a}, right = {.kind = b, .q = q_b, .tp = tp_b};
    uint32_t count = 0;
    for (uint32_t e = 0; e < zero->sets[set].count; e++) {
        uint32_t tensor = zero->sets[set].tensors[e];
        side_start(zero, tensor, &left);
        side_start(zero, tensor, &right);
        /* Every tp rank computes the gradient of a tensor that is not cut; its owner takes its own. */
        bool twice = zero->model->tensors.tensors[tensor].tp_dim < 0 && a == PD_ZERO_COMPUTED && tp_a != tp_b;
        if (!twice) count += common_runs(&left, &right, e, ret_runs + count, capacity - count);
        side_end(&left);
        side_end(&right);
    }
    return count;
}

uint32_t pd_zero_own_runs(const struct pd_zero *zero, uint32_t tensor, struct pd_zero_run *ret_runs)
{
    struct side owned = {.kind = PD_ZERO_OWNED, .q = zero->q, .tp = zero->grid->place.tp};
    struct side held = {.kind = PD_ZERO_HELD, .q = zero->q, .tp = zero->grid->place.tp};
    side_start(zero, tensor, &owned);
    side_start(zero, tensor, &held);
    return common_runs(&owned, &held, 0, ret_runs, PD_ZERO_BOXES_MAX);
}

uint64_t pd_zero_owned_of_set(const struct pd_zero *zero, uint32_t set)
{
    struct side owned = {.kind = PD_ZERO_OWNED, .q = zero->q, .tp = zero->grid->place.tp};
    for (uint32_t e = 0; e < zero->sets[set].count; e++) {
        side_start(zero, zero->sets[set].tensors[e], &owned);
        side_end(&owned);
    }
    return owned.at;
}
