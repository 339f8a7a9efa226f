/* The rewrite asks for bytes range by range. A thread goes through the same ranges ahead of it, reads and converts the
 * catalog's tensors, and hands over slots.
 *
 *   invariant  the thread has ended when a group ends, whatever failed */
#include "resharder/convert/rewrite.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/half.h"
#include "ckpt/base/words.h"
#include "resharder/convert/handoff.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS 3u
#define SLOT_BYTES (UINT64_C(24) << 20) /* converted at once, for a view that transposes its tensor */
#define RUN_BYTES (UINT64_C(2) << 20)   /* for other views */
#define READER_BYTES (PD_IMPORT_BUFFER_BYTES - REWRITE_BYTES - SLOTS * SLOT_BYTES)
#define NO_LINK UINT32_MAX
_Static_assert(PD_RESHARD_BUFFER_BYTES == REWRITE_BYTES + READER_BYTES + SLOTS * RUN_BYTES, "what follows divides it so");

struct source {            /* for one tensor and kind */
    uint32_t link, tensor; /* NO_LINK: zeros; index in the catalog */
    bool is_turned;        /* its elements do not ascend in the file */
};

struct slot {
    float *data;    /* (SLOT_BYTES) read as fp32, then converted to the stored type */
    uint64_t bytes; /* of one task, or of several small ones */
};

struct feed {
    const struct pd_import_request *request;
    struct source *sources; /* (tensors * PD_KIND_COUNT) */

    /* used by the thread while it runs */
    struct pd_chunk_stream_cursor cursor;
    struct pd_chunk_range range;
    uint64_t range_done; /* its elements that have tasks */
    struct pd_view parts[PD_VIEW_PARTS_MAX];
    uint32_t part, part_count;

    struct handoff handoff;
    struct slot slots[SLOTS];

    /* the rewrite's */
    const struct slot *taken; /* NULL: none yet */
    uint64_t used;            /* bytes of it */
};

/* ---- checks ---- */

static uint64_t columns_of(const struct pd_tensor *tensor)
{
    return tensor->ndim > 1 ? pd_tensor_elements(tensor) / tensor->shape[0] : 1;
}

static pd_status check_link(const struct pd_import_request *q, const struct pd_link *link, struct source *ret,
                            struct pd_error *err)
{
    const struct pd_tensor *tensor = &q->tensors->tensors[link->tensor];
    const int64_t found = pd_catalog_find(q->catalog, link->name, link->kind);
    if (found < 0)
        PD_FAIL(err, PD_INVALID, "%s has no %s of tensor %s, which becomes %s", q->source, pd_kind_name(link->kind),
                link->name, tensor->name);
    const struct pd_foreign_tensor *foreign = &q->catalog->tensors[found];
    if (pd_view_elements(&link->view) != pd_tensor_elements(tensor) ||
        !pd_view_is_inside(&link->view, pd_foreign_elements(foreign)))
        PD_FAIL(err, PD_INVALID, "tensor %s of %s does not have the shape that %s needs", link->name, q->source,
                tensor->name);
    if (!pd_elements[foreign->element].is_float)
        PD_FAIL(err, PD_INVALID, "tensor %s of %s is %s, and weights are never of that type", link->name, q->source,
                pd_elements[foreign->element].name);
    struct pd_view part;
    if (q->layout->virtual_tp > 1 && tensor->tp_dim == 1 &&
        !pd_view_columns(&link->view, columns_of(tensor), 0, columns_of(tensor) - 1, &part))
        PD_FAIL(err, PD_UNSUPPORTED, "the columns of tensor %s of %s cannot be cut; import it with virtual_tp 1", link->name,
                q->source);
    *ret = (struct source){(uint32_t)(link - q->links->items), (uint32_t)found, !pd_view_is_sorted(&link->view)};
    return PD_OK;
}

static pd_status link_sources(const struct pd_import_request *q, struct source *sources, uint32_t *ret_zeroed,
                              struct pd_error *err)
{
    for (uint32_t i = 0; i < q->tensors->count * PD_KIND_COUNT; i++)
        sources[i].link = NO_LINK;
    for (uint32_t i = 0; i < q->links->count; i++) {
        const struct pd_link *link = &q->links->items[i];
        struct source *source = &sources[link->tensor * PD_KIND_COUNT + link->kind];
        PD_CHECK(link->tensor < q->tensors->count && source->link == NO_LINK);
        PD_TRY(check_link(q, link, source, err));
    }
    uint32_t zeroed = 0;
    for (uint32_t i = 0; i < q->tensors->count * PD_KIND_COUNT; i++) {
        const enum pd_kind kind = (enum pd_kind)(i % PD_KIND_COUNT);
        const char *name = q->tensors->tensors[i / PD_KIND_COUNT].name;
        if (sources[i].link != NO_LINK) continue;
        if (kind == PD_PARAM) PD_FAIL(err, PD_INVALID, "%s has nothing for tensor %s", q->source, name);
        if (!q->fresh_optimizer)
            PD_FAIL(err, PD_INVALID, "%s has no %s of tensor %s; give --fresh-optimizer, and moments begin at zero",
                    q->source, pd_kind_name(kind), name);
        zeroed++;
    }
    *ret_zeroed = zeroed;
    return PD_OK;
}

/* ---- tasks: what to read, in the order of the ranges ---- */

static uint32_t feed_element_bytes(const struct feed *f, const struct pd_chunk_range *s)
{
    return pd_tensor_element_bytes(&f->request->tensors->tensors[s->tensor], s->kind);
}

/* Cuts the next elements of the range into views. */
static void cut_range(struct feed *f)
{
    const struct pd_chunk_range *s = &f->range;
    const uint32_t bytes = feed_element_bytes(f, s);
    const struct pd_tensor *tensor = &f->request->tensors->tensors[s->tensor];
    const struct source *source = &f->sources[s->tensor * PD_KIND_COUNT + s->kind];
    const uint64_t width = s->source.box_bytes / bytes / tensor->shape[0]; /* columns of the tp chunk */
    const uint64_t limit = (source->link != NO_LINK && source->is_turned ? SLOT_BYTES : RUN_BYTES) / sizeof(float);
    const uint64_t first = s->source.offset / bytes + f->range_done;
    uint64_t count = s->bytes / bytes - f->range_done;
    if (count > limit) count = width <= limit ? limit / width * width : limit;
    f->range_done += count;
    f->part = 0;
    f->part_count = 1;
    f->parts[0] = (struct pd_view){.ndim = 1, .count = {count}, .stride = {1}};
    if (source->link == NO_LINK) return;
    struct pd_view chunk;
    const bool is_cut = pd_view_columns(&f->request->links->items[source->link].view, columns_of(tensor), s->column,
                                        s->column + width, &chunk);
    PD_CHECK(is_cut);
    f->part_count = pd_view_cut(&chunk, first, count, f->parts);
}

static bool next_task(void *context, struct pd_read_task *ret_task)
{
    struct feed *f = context;
    if (f->part == f->part_count) {
        if (!f->range.bytes || f->range_done * feed_element_bytes(f, &f->range) == f->range.bytes) {
            if (!pd_chunk_stream_next(&f->cursor, &f->range)) return false;
            f->range_done = 0;
        }
        cut_range(f);
    }
    const struct source *source = &f->sources[f->range.tensor * PD_KIND_COUNT + f->range.kind];
    ret_task->tensor = source->link == NO_LINK ? PD_READ_NOTHING : source->tensor;
    ret_task->user = feed_element_bytes(f, &f->range);
    ret_task->view = f->parts[f->part++];
    return true;
}

/* ---- the thread ---- */

/* Appends the task's elements to the slot. */
static pd_status feed_fill(struct slot *slot, struct pd_reader *reader, const struct pd_read_task *task,
                           struct pd_error *err)
{
    const uint64_t elements = pd_view_elements(&task->view);
    float *data = slot->data + slot->bytes / sizeof *data;
    uint16_t *halves = (uint16_t *)(void *)data;
    slot->bytes += elements * task->user;
    if (task->tensor == PD_READ_NOTHING) {
        memset(data, 0, elements * task->user);
        return PD_OK;
    }
    PD_TRY(pd_reader_read(reader, task->tensor, &task->view, data, err));
    for (uint64_t i = 0; task->user == sizeof *halves && i < elements; i++) { /* bf16 moments, in place, since i <= 2 i */
        float value;
        memcpy(&value, &data[i], sizeof value);
        halves[i] = pd_bf16_from_f32(value);
    }
    return PD_OK;
}

/* Runs until the rewrite ends. Hands a slot over once it has RUN_BYTES, or the next task does not fit. */
static pd_status feed_read_all(void *context, struct pd_reader *reader, struct pd_error *err)
{
    struct feed *f = context;
    struct pd_read_line line;
    struct pd_read_task task;
    const uint64_t limit = f->request->ours ? RUN_BYTES : SLOT_BYTES;
    struct slot *slot = NULL;
    pd_read_line_init(&line, reader, next_task, f);
    for (;;) {
        bool has_one = false;
        uint32_t number = 0;
        PD_TRY(pd_read_line_take(&line, &task, &has_one, err));
        const uint64_t bytes = has_one ? pd_view_elements(&task.view) * sizeof(float) : 0;
        PD_CHECK(bytes <= limit);
        if (slot && (!has_one || slot->bytes + bytes > limit || slot->bytes >= RUN_BYTES || slot->bytes % sizeof(float))) {
            handoff_fill(&f->handoff);
            slot = NULL;
        }
        if (!has_one) return PD_OK;
        if (!slot) {
            if (!handoff_free(&f->handoff, &number)) return PD_OK;
            slot = &f->slots[number];
            slot->bytes = 0;
        }
        PD_TRY(feed_fill(slot, reader, &task, err));
    }
}

/* ---- the rewrite's side ---- */

pd_status feed_begin(struct feed *f, const struct pd_chunk_stream_cursor *cursor, struct pd_error *err)
{
    unsigned char *memory = (unsigned char *)f->request->buffers + REWRITE_BYTES;
    f->handoff.buffers = memory;
    for (uint32_t i = 0; i < SLOTS; i++) /* our own format has no transposed tensors, only runs */
        f->slots[i].data = (float *)(void *)(memory + READER_BYTES + i * (f->request->ours ? RUN_BYTES : SLOT_BYTES));
    f->cursor = *cursor;
    f->range = (struct pd_chunk_range){0};
    f->range_done = f->part = f->part_count = 0;
    f->taken = NULL;
    return handoff_start(&f->handoff, err);
}

pd_status feed_next(struct feed *f, uint64_t wanted, const void **ret_data, uint64_t *ret_bytes, struct pd_error *err)
{
    if (!f->taken || f->used == f->taken->bytes) {
        uint32_t slot = 0;
        bool has_one = false;
        PD_TRY(handoff_next(&f->handoff, &slot, &has_one, err));
        PD_CHECK(has_one);
        f->taken = &f->slots[slot];
        f->used = 0;
    }
    *ret_data = (const unsigned char *)f->taken->data + f->used;
    *ret_bytes = pd_min_u64(f->taken->bytes - f->used, wanted);
    f->used += *ret_bytes;
    return PD_OK;
}

void feed_end(struct feed *f)
{
    handoff_stop(&f->handoff);
}

/* ---- the whole ---- */

pd_status feed_new(struct pd_vfs *vfs, const struct pd_import_request *request, uint32_t *ret_zeroed, struct feed **ret_feed,
                   struct pd_error *err)
{
    struct feed *f = calloc(1, sizeof *f);
    if (f) f->sources = malloc((request->tensors->count * PD_KIND_COUNT + 1) * sizeof *f->sources);
    if (!f || !f->sources) {
        free(f);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for links of %u tensors", request->tensors->count);
    }
    f->request = request;
    f->handoff = (struct handoff){.vfs = vfs,
                                  .catalog = request->catalog,
                                  .buffer_bytes = READER_BYTES,
                                  .read = feed_read_all,
                                  .context = f,
                                  .slots = SLOTS};
    const pd_status st = link_sources(request, f->sources, ret_zeroed, err);
    if (st)
        feed_free(f);
    else
        *ret_feed = f;
    return st;
}

uint64_t feed_bytes_read(const struct feed *f)
{
    return f->handoff.bytes_read;
}

void feed_free(struct feed *f)
{
    if (f) free(f->sources);
    free(f);
}

pd_status pd_import_check(const struct pd_import_request *request, struct pd_error *err)
{
    uint32_t zeroed = 0;
    struct feed *feed = NULL;
    const pd_status st = feed_new(NULL, request, &zeroed, &feed, err);
    feed_free(feed);
    return st;
}
