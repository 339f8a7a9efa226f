/* Finds contiguous runs of an item between a stored and a wanted box. */
#include "resharder/plan.h"

struct run_walk {
    const struct pd_box *stored, *wanted; /* 2-dimensional views: rows x columns */
    uint64_t item_begin, item_end;        /* range in the stored box */
    uint32_t wanted_box, element_bytes;
    void (*visit)(void *, const struct pd_transfer_run *);
    void *context;
};

/* Visits elements [begin, end) of the stored box, which lie in one row, or in whole rows of equal width on both sides. */
static void visit_run(const struct run_walk *w, uint64_t begin, uint64_t end, uint64_t wanted_element)
{
    if (end > w->item_end) end = w->item_end;
    if (begin < w->item_begin) {
        wanted_element += w->item_begin - begin;
        begin = w->item_begin;
    }
    if (begin >= end) return;
    struct pd_transfer_run run = {(begin - w->item_begin) * w->element_bytes, w->wanted_box,
                                  wanted_element * w->element_bytes, (end - begin) * w->element_bytes};
    w->visit(w->context, &run);
}

static void walk_runs(const struct run_walk *w)
{
    struct pd_box part;
    if (!pd_box_intersect(w->stored, w->wanted, &part)) return;
    uint64_t width = 1, stored_width = 1, wanted_width = 1;
    for (int d = 1; d < PD_TENSOR_DIMS_MAX; d++) {
        width *= part.count[d];
        stored_width *= w->stored->count[d];
        wanted_width *= w->wanted->count[d];
    }
    uint64_t stored_first = pd_box_offset(w->stored, &part), wanted_first = pd_box_offset(w->wanted, &part);
    if (width == stored_width && width == wanted_width) {
        visit_run(w, stored_first, stored_first + part.count[0] * width, wanted_first);
        return;
    }
    uint64_t first_row = 0;
    if (w->item_begin > stored_first + width) first_row = (w->item_begin - stored_first - width) / stored_width;
    for (uint64_t row = first_row; row < part.count[0]; row++) {
        uint64_t begin = stored_first + row * stored_width;
        if (begin >= w->item_end) break;
        visit_run(w, begin, begin + width, wanted_first + row * wanted_width);
    }
}

void pd_plan_runs(const struct pd_plan *plan, const struct pd_read_item *item, uint32_t rank,
                  void (*visit)(void *context, const struct pd_transfer_run *run), void *context)
{
    const struct pd_tensor *tensor = &plan->input.tensors->tensors[item->tensor];
    uint32_t element_bytes = pd_plan_element_bytes(plan, item->tensor, item->kind);
    struct pd_box wanted[PD_LAYOUT_CHUNKS_MAX];
    uint32_t count = pd_layout_owned_boxes(plan->input.wanted, tensor, item->tensor, rank, wanted, PD_LAYOUT_CHUNKS_MAX);
    uint64_t begin = item->first_block * PD_SHARD_BLOCK_BYTES / element_bytes;
    for (uint32_t b = 0; b < count; b++) {
        struct run_walk walk = {&item->stored, &wanted[b], begin,  begin + item->bytes / element_bytes, b,
                                element_bytes, visit,      context};
        walk_runs(&walk);
    }
}
