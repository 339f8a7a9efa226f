#include "resharder/convert/export_tasks.h"

#include <stdlib.h>
#include <string.h>

/* ---- links ---- */

static uint64_t export_tasks_place(const struct pd_view *view, uint64_t element)
{
    uint64_t one = 1;
    return pd_view_run(view, element, &one);
}

/* True if sorted dimensions are nested, so that elements ascend. */
static bool ascends(const struct pd_view *sorted)
{
    uint64_t extent = 0; /* span of the inner dimensions, less one */
    for (uint32_t d = sorted->ndim; d-- > 0;) {
        if (sorted->count[d] == 1) continue;
        if (sorted->stride[d] <= extent) return false;
        extent += (sorted->count[d] - 1) * sorted->stride[d];
    }
    return true;
}

/* Returns the source of a model tensor: from a link, or by its own name. */
static struct pd_link origin_of(const struct pd_export_request *q, const struct pd_link *link)
{
    struct pd_tensor *tensor = &q->tensors->tensors[link->tensor];
    for (uint32_t i = 0; q->source_links && i < q->source_links->count; i++)
        if (q->source_links->items[i].tensor == link->tensor && q->source_links->items[i].kind == link->kind)
            return q->source_links->items[i];
    return (struct pd_link){.name = tensor->name, .view = pd_view_dense(tensor)};
}

static pd_status make_source(const struct pd_export_request *q, const struct pd_link *from,
                             const struct pd_foreign_tensor *stored, const struct pd_link *link,
                             const struct pd_foreign_tensor *wanted, struct export_source *ret, struct pd_error *err)
{
    const uint64_t elements = pd_tensor_elements(&q->tensors->tensors[link->tensor]);
    if (!pd_elements[stored->element].is_float)
        PD_FAIL(err, PD_INVALID, "tensor %s of %s is %s, and weights are never of that type", stored->name, q->source,
                pd_elements[stored->element].name);
    if (pd_view_elements(&link->view) != elements || pd_view_elements(&from->view) != elements ||
        !pd_view_is_inside(&link->view, pd_foreign_elements(wanted)) ||
        !pd_view_is_inside(&from->view, pd_foreign_elements(stored)))
        PD_FAIL(err, PD_INVALID, "tensor %s of %s does not have the shape that %s needs", stored->name, q->source,
                link->name);
    if (!pd_view_pair(&link->view, &from->view, &ret->to, &ret->from))
        PD_FAIL(err, PD_UNSUPPORTED, "tensor %s of %s cannot become %s in one step: import it first, then export that",
                stored->name, q->source, link->name);
    if (!ascends(&ret->to))
        PD_FAIL(err, PD_UNSUPPORTED, "the view of tensor %s in %s overlaps itself", stored->name, link->name);
    ret->is_turned = !pd_view_is_sorted(&ret->from);
    return PD_OK;
}

/* Adds nothing for a tensor that is not wanted, or a moment that begins at zero. */
static pd_status add_source(struct export_tasks *t, const struct pd_export_request *q, const struct pd_link *link,
                            bool only_counts, struct pd_error *err)
{
    const int64_t foreign = pd_catalog_find(t->wanted, link->name, link->kind);
    if (foreign < 0) return PD_OK;
    const struct pd_link from = origin_of(q, link);
    const int64_t found = pd_catalog_find(q->catalog, from.name, link->kind);
    if (found < 0 && link->kind != PD_PARAM && q->fresh_optimizer) return PD_OK;
    if (found < 0)
        PD_FAIL(err, PD_INVALID, "%s has no %s of tensor %s, which %s needs", q->source, pd_kind_name(link->kind), from.name,
                link->name);
    struct export_source *source = &t->sources[t->first[foreign]++];
    source->tensor = (uint32_t)found;
    if (only_counts) return PD_OK;
    return make_source(q, &from, &q->catalog->tensors[found], link, &t->wanted->tensors[foreign], source, err);
}

/* ---- pieces ---- */

static int by_place(const void *a, const void *b, void *pieces)
{
    const struct pd_piece *p = pieces, *x = &p[*(const uint64_t *)a], *y = &p[*(const uint64_t *)b];
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* True if a piece is one run of elements of its tensor. */
static bool is_run(const struct pd_foreign_tensor *tensor, const struct pd_piece *piece)
{
    for (uint32_t d = 0; d < PD_FOREIGN_DIMS_MAX; d++)
        if (piece->stride[d]) return false;
    for (uint32_t d = 1; d < tensor->ndim && !piece->is_range; d++)
        if (piece->count[d] != tensor->shape[d]) return false;
    return true;
}

static void order_pieces(struct export_tasks *t)
{
    uint64_t count = 0;
    for (uint32_t f = 0; f < t->wanted->tensor_count; f++) {
        const struct pd_foreign_tensor *tensor = &t->wanted->tensors[f];
        for (uint64_t p = tensor->piece_begin; p < tensor->piece_begin + tensor->piece_count; p++) {
            PD_CHECK(is_run(tensor, &t->wanted->pieces[p])); /* all writers make such pieces */
            t->tensor_of[p] = f;
            t->order[count++] = p;
        }
    }
    qsort_r(t->order, count, sizeof *t->order, by_place, t->wanted->pieces);
    t->order[count] = UINT64_MAX;
}

pd_status export_tasks_init(struct export_tasks *t, const struct pd_catalog *wanted, const struct pd_export_request *q,
                            struct pd_error *err)
{
    *t = (struct export_tasks){.wanted = wanted};
    t->sources = calloc((size_t)q->links->count + 1, sizeof *t->sources);
    t->first = calloc((size_t)wanted->tensor_count + 1, sizeof *t->first);
    t->order = calloc(wanted->piece_count + 1, sizeof *t->order);
    t->tensor_of = calloc(wanted->piece_count + 1, sizeof *t->tensor_of);
    if (!t->sources || !t->first || !t->order || !t->tensor_of)
        PD_FAIL(err, PD_NO_MEMORY, "no memory for the links of %u tensors", wanted->tensor_count);
    uint64_t *next = t->first; /* counts first, then the next index of each tensor */
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < q->links->count; i++)
            PD_TRY(add_source(t, q, &q->links->items[i], pass == 0, err));
        uint64_t at = 0;
        for (uint32_t f = 0; f <= t->wanted->tensor_count; f++) {
            const uint64_t count = pass ? next[f] - at : next[f];
            next[f] = at;
            at += count;
        }
    }
    for (uint32_t f = 0; f < t->wanted->tensor_count; f++)
        if (t->first[f] == t->first[f + 1] && pd_foreign_elements(&t->wanted->tensors[f]) &&
            !(q->fresh_optimizer && t->wanted->tensors[f].kind != PD_PARAM))
            PD_FAIL(err, PD_INVALID, "%s has nothing to make %s of tensor %s from", q->source,
                    pd_kind_name(t->wanted->tensors[f].kind), t->wanted->tensors[f].name);
    order_pieces(t);
    return PD_OK;
}

void export_tasks_deinit(struct export_tasks *t)
{
    free(t->sources);
    free(t->first);
    free(t->order);
    free(t->tensor_of);
}

/* ---- tasks ---- */

/* Number of elements of a link before `element` of the foreign tensor. */
static uint64_t elements_before(const struct pd_view *to, uint64_t element)
{
    uint64_t low = 0, high = pd_view_elements(to);
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (export_tasks_place(to, middle) < element)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Elements in one step of the piece's first dimension. */
static uint64_t step_of(const struct export_tasks *t, uint64_t piece)
{
    const struct pd_foreign_tensor *tensor = &t->wanted->tensors[t->tensor_of[piece]];
    uint64_t step = 1;
    for (uint32_t d = 1; d < tensor->ndim && !t->wanted->pieces[piece].is_range; d++)
        step *= tensor->shape[d];
    return step;
}

uint64_t export_tasks_low(const struct export_tasks *t, uint64_t piece)
{
    return t->wanted->pieces[piece].start[0] * step_of(t, piece);
}

static void begin_band(struct export_tasks *t, uint32_t tensor)
{
    uint64_t bytes = PD_EXPORT_RUN_BYTES;
    t->source = t->first[tensor];
    t->sources_end = t->first[tensor + 1];
    for (uint64_t s = t->source; s < t->sources_end; s++)
        if (t->sources[s].is_turned) bytes = PD_EXPORT_BAND_BYTES;
    t->low = t->high;
    t->high = t->piece_high - t->low < bytes / sizeof(float) ? t->piece_high : t->low + bytes / sizeof(float);
    t->part = t->part_count = 0;
    t->is_open = true;
    t->has_any = false;
}

/* Advances to the next part of the band; false: no more. */
static bool next_part(struct export_tasks *t)
{
    while (t->part == t->part_count) {
        if (t->source == t->sources_end) return false;
        const struct export_source *s = &t->sources[t->source++];
        const uint64_t first = elements_before(&s->to, t->low), end = elements_before(&s->to, t->high);
        t->part = 0;
        t->part_count = pd_view_cut(&s->from, first, end - first, t->from);
        (void)pd_view_cut(&s->to, first, end - first, t->to);
    }
    return true;
}

bool export_tasks_next(void *context, struct pd_read_task *ret_task)
{
    struct export_tasks *t = context;
    if (!t->is_open) {
        if (t->high == t->piece_high) {
            if (t->order[t->next_piece] == UINT64_MAX) return false;
            uint64_t piece = t->order[t->next_piece++];
            t->high = export_tasks_low(t, piece);
            t->piece_high = t->high + t->wanted->pieces[piece].count[0] * step_of(t, piece);
        }
        begin_band(t, t->tensor_of[t->order[t->next_piece - 1]]);
    }
    struct export_fill *fill = &t->fills[t->number % (PD_READ_LINE_MAX + 1)];
    *fill =
        (struct export_fill){.piece = t->order[t->next_piece - 1], .low = t->low, .high = t->high, .is_first = !t->has_any};
    *ret_task = (struct pd_read_task){.tensor = PD_READ_NOTHING, .user = t->number++};
    if (next_part(t)) {
        ret_task->tensor = t->sources[t->source - 1].tensor;
        ret_task->view = t->from[t->part];
        fill->to = t->to[t->part++];
    }
    t->has_any = true;
    fill->is_last = !next_part(t);
    t->is_open = !fill->is_last;
    return true;
}

const struct export_fill *export_tasks_fill(const struct export_tasks *t, const struct pd_read_task *task)
{
    return &t->fills[task->user % (PD_READ_LINE_MAX + 1)];
}
