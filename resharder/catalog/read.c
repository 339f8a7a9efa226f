/* A window holds stored bytes [number * W, ...) of one piece; W is whole blocks of its element type. A shared window holds
 * a range of a file with many small pieces, as in a model of thousands of small tensors.
 *
 *          expect, need           the completion is reaped, checked
 *   free ──────────────▶ coming ───────────────────────────────────▶ there ──▶ (used, then reused for another)
 *
 *   invariants  1. no byte of a checked piece is converted before it was checked: with its window, or in a shared window
 *                  when it is needed
 *               2. a window that a task of the line will read is reused only if no other is left: `until` is the number of
 *                  the last such task
 *               3. direct reads end at the last whole page of a file; the rest comes through the page cache */
#include "resharder/catalog/read.h"

#include "ckpt/base/checked.h"
#include "ckpt/io/transfer_ring.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW_BYTES (UINT64_C(1) << 20)
#define WINDOW_BUFFER_BYTES (WINDOW_BYTES + 2 * PD_VFS_ALIGN) /* data may begin and end inside a page */
#define WINDOWS_MAX 60u /* fewer than open files, so one of those has nothing in flight */
#define SMALL_BYTES \
    (UINT64_C(64) << 10) /* most bytes of a piece in a shared window: two windows may both hold the last one */
#define NEAR_BYTES (UINT64_C(64) << 10) /* a shared window that begins so close to the end of the last one is larger */
#define SHARED (UINT64_MAX - 1)
#define TURNED_ROWS 16u /* rows read before they become columns: a cache line of each */
#define TURNED_COLUMNS 2048u
#define TURNED_PITCH (TURNED_COLUMNS + 16u) /* so that rows do not share cache lines */
#define TURNED_AHEAD 32u                    /* columns: prefetch distance */
#define SCATTERED 1024u                     /* most strided elements converted at once; at least a block */

struct window {
    uint64_t piece, number;        /* piece UINT64_MAX: free; SHARED: small pieces */
    uint32_t tensor, file;         /* of a shared one, the first that was wanted */
    uint64_t from, to;             /* shared: range of the file in `buffer` */
    uint64_t checked;              /* shared: the piece checked last */
    struct pd_transfer_slot *slot; /* while it is coming */
    unsigned char *buffer, *data;  /* (WINDOW_BUFFER_BYTES) buffer; address in it of the window's first byte */
    uint64_t bytes, used_at;
    uint64_t until; /* last task of the line expected to read it; 0: none */
    bool is_used;
};

struct open_file {
    uint32_t file; /* UINT32_MAX: none */
    struct pd_file *direct, *buffered;
    uint64_t used_at;
    uint32_t coming;                  /* windows in flight */
    uint64_t shared_to, shared_bytes; /* end and size of the last shared window */
};

struct pd_reader {
    struct pd_vfs *vfs;
    const struct pd_catalog *catalog;
    struct pd_queue *queue;
    struct pd_transfer_ring ring;
    struct pd_transfer_slot slots[WINDOWS_MAX];
    struct window *sent[WINDOWS_MAX]; /* (slot number) */
    struct window windows[WINDOWS_MAX];
    uint32_t window_count;
    struct window *last;       /* last one read */
    struct pd_read_line *line; /* NULL: none */
    uint64_t tasks_done;       /* in the line */
    struct open_file files[PD_READER_FILES_MAX];
    uint64_t clock, bytes_read;
    uint64_t last_piece;
    float turned[TURNED_ROWS * TURNED_PITCH];
};

/* ---- open and close ---- */

static const struct pd_piece *piece_of(const struct pd_reader *r, uint64_t piece)
{
    return &r->catalog->pieces[piece];
}

/* Size of one window: whole blocks. */
static uint64_t window_bytes(const struct pd_reader *r, uint32_t tensor)
{
    const uint32_t block = pd_elements[r->catalog->tensors[tensor].element].block_bytes;
    return WINDOW_BYTES / block * block;
}

static uint64_t window_elements(const struct pd_reader *r, uint32_t tensor)
{
    const struct pd_element_row *element = &pd_elements[r->catalog->tensors[tensor].element];
    return WINDOW_BYTES / element->block_bytes * element->block_elements;
}

/* Windows for all pieces, at most `most`: touching all memory the first time takes longer than reading a small
 * checkpoint. */
static uint32_t count_windows(const struct pd_reader *r, uint64_t most)
{
    uint64_t count = 0;
    for (uint32_t t = 0; t < r->catalog->tensor_count; t++) {
        const struct pd_foreign_tensor *tensor = &r->catalog->tensors[t];
        for (uint64_t p = tensor->piece_begin; p < tensor->piece_begin + tensor->piece_count && count < most; p++)
            count += pd_divide_up(pd_piece_bytes(tensor, piece_of(r, p)), window_bytes(r, t));
    }
    return (uint32_t)pd_max_u64(1, pd_min_u64(count, most));
}

pd_status pd_reader_open(struct pd_vfs *vfs, const struct pd_catalog *catalog, void *buffers, uint64_t buffer_bytes,
                         struct pd_reader **ret_reader, struct pd_error *err)
{
    PD_CHECK(buffer_bytes >= PD_READER_BUFFER_BYTES_MIN && (uintptr_t)buffers % PD_VFS_ALIGN == 0);
    struct pd_reader *r = calloc(1, sizeof *r);
    if (!r) PD_FAIL(err, PD_NO_MEMORY, "no memory to read %s", catalog->format);
    r->vfs = vfs;
    r->catalog = catalog;
    r->window_count = count_windows(r, pd_min_u64(buffer_bytes / WINDOW_BUFFER_BYTES, WINDOWS_MAX));
    for (uint32_t i = 0; i < r->window_count; i++)
        r->windows[i] = (struct window){.piece = UINT64_MAX, .buffer = (unsigned char *)buffers + i * WINDOW_BUFFER_BYTES};
    for (uint32_t i = 0; i < PD_READER_FILES_MAX; i++)
        r->files[i].file = UINT32_MAX;
    const pd_status st = pd_queue_open(vfs, buffers, r->window_count * WINDOW_BUFFER_BYTES, &r->queue, err);
    if (st) {
        free(r);
        return st;
    }
    pd_transfer_ring_init(&r->ring, r->queue, r->slots, r->window_count, NULL, 0);
    *ret_reader = r;
    return PD_OK;
}

static void close_file(struct open_file *f)
{
    pd_file_close_readonly(f->direct);
    pd_file_close_readonly(f->buffered);
    *f = (struct open_file){.file = UINT32_MAX};
}

void pd_reader_close(struct pd_reader *r)
{
    if (!r) return;
    (void)!pd_transfer_ring_drain(&r->ring, PD_OK, NULL); /* nobody needs the data */
    for (uint32_t i = 0; i < PD_READER_FILES_MAX; i++)
        close_file(&r->files[i]);
    pd_queue_close(r->queue);
    free(r);
}

uint64_t pd_reader_bytes(const struct pd_reader *r)
{
    return r->bytes_read;
}

/* Returns an open file; may close the least recently used one for it. */
static pd_status need_file(struct pd_reader *r, uint32_t file, struct open_file **ret_file, struct pd_error *err)
{
    struct open_file *oldest = NULL;
    for (uint32_t i = 0; i < PD_READER_FILES_MAX; i++) {
        struct open_file *f = &r->files[i];
        if (f->file == file) {
            f->used_at = ++r->clock;
            *ret_file = f;
            return PD_OK;
        }
        if (!f->coming && (!oldest || f->used_at < oldest->used_at)) oldest = f;
    }
    if (!oldest) PD_FAIL(err, PD_BUG, "reads of %u files are on their way at once", PD_READER_FILES_MAX);
    close_file(oldest);
    const char *path = r->catalog->files[file].path;
    PD_TRY(pd_file_open(r->vfs, path, PD_OPEN_READ | PD_OPEN_DIRECT, &oldest->direct, err));
    const pd_status st = pd_file_open(r->vfs, path, PD_OPEN_READ, &oldest->buffered, err);
    if (st) {
        close_file(oldest);
        return st;
    }
    oldest->file = file;
    oldest->used_at = ++r->clock;
    *ret_file = oldest;
    return PD_OK;
}

/* ---- windows ---- */

static bool is_plain(const struct pd_reader *r, uint64_t piece)
{
    const struct pd_catalog_source *source = &r->catalog->source;
    return !source->is_plain || source->is_plain(source->context, piece);
}

/* True if the piece is read in a shared window. Its last page must be whole, for direct reads. */
static bool is_small(const struct pd_reader *r, uint32_t tensor, uint64_t number)
{
    const struct pd_piece *piece = piece_of(r, number);
    const uint64_t bytes = pd_piece_bytes(&r->catalog->tensors[tensor], piece);
    return bytes <= SMALL_BYTES && is_plain(r, number) &&
           pd_round_up(piece->offset + bytes, PD_VFS_ALIGN) <= r->catalog->files[piece->file].bytes;
}

static bool shares(const struct window *w, const struct pd_piece *piece, uint64_t bytes)
{
    return w->piece == SHARED && w->file == piece->file && w->from <= piece->offset && w->to >= piece->offset + bytes;
}

static struct window *find_shared(struct pd_reader *r, uint32_t tensor, uint64_t number)
{
    const struct pd_piece *piece = piece_of(r, number);
    const uint64_t bytes = pd_piece_bytes(&r->catalog->tensors[tensor], piece);
    if (r->last && shares(r->last, piece, bytes)) return r->last;
    for (uint32_t i = 0; i < r->window_count; i++)
        if (shares(&r->windows[i], piece, bytes)) return &r->windows[i];
    return NULL;
}

static struct window *find_window(struct pd_reader *r, uint32_t tensor, uint64_t piece, uint64_t number)
{
    if (is_small(r, tensor, piece)) return find_shared(r, tensor, piece);
    if (r->last && r->last->piece == piece && r->last->number == number) return r->last;
    for (uint32_t i = 0; i < r->window_count; i++)
        if (r->windows[i].piece == piece && r->windows[i].number == number) return &r->windows[i];
    return NULL;
}

/* Takes a free window, or the least recently used one that no task will read. If there is none and `may_waste`, takes an
 * unused one that will be read, the one needed last. Never the last used one: the next read may begin inside it. */
static struct window *take_window(struct pd_reader *r, bool may_waste)
{
    struct window *done = NULL, *oldest = NULL, *latest = NULL;
    for (uint32_t i = 0; i < r->window_count; i++) {
        struct window *w = &r->windows[i];
        if (w->piece == UINT64_MAX) return w;
        if (w->slot) continue;
        const bool is_done = w->until <= r->tasks_done && (w->is_used || w->until) && w != r->last;
        if (is_done && (!done || w->used_at < done->used_at)) done = w;
        if (w->is_used && (!oldest || w->used_at < oldest->used_at)) oldest = w;
        if (!w->is_used && (!latest || w->used_at > latest->used_at)) latest = w;
    }
    if (done || !may_waste) return done;
    return oldest ? oldest : latest;
}

/* Reads the partial last page of a file, where a direct read cannot end. */
static pd_status read_tail(struct pd_reader *r, struct window *w, struct open_file *f, uint64_t begin, uint64_t end,
                           struct pd_error *err)
{
    if (begin >= end) return PD_OK;
    const uint64_t first = piece_of(r, w->piece)->offset + w->number * window_bytes(r, w->tensor);
    return pd_file_read(f->buffered, begin, w->data + (int64_t)(begin - first), end - begin, err);
}

/* Submits a read of [from, to) of the window's file into its buffer. */
static pd_status send_range(struct pd_reader *r, struct window *w, struct open_file *f, uint64_t from, uint64_t to,
                            struct pd_error *err)
{
    struct pd_transfer_slot *slot = pd_transfer_ring_take(&r->ring);
    PD_CHECK(slot);
    const struct pd_transfer transfer = {
        .file = f->direct, .data = w->buffer, .offset = from, .bytes = to - from, .what = "read of a foreign tensor"};
    r->sent[slot->number] = w;
    w->slot = slot;
    f->coming++;
    return pd_transfer_ring_submit(&r->ring, slot, &transfer, err);
}

/* Submits a shared window from the small piece on. While pieces are wanted one after the other, each window is twice as
 * large as the one before. */
static pd_status send_shared(struct pd_reader *r, struct window *w, uint64_t number, struct pd_error *err)
{
    const struct pd_piece *piece = piece_of(r, number);
    const uint64_t whole = r->catalog->files[piece->file].bytes / PD_VFS_ALIGN * PD_VFS_ALIGN;
    const uint64_t end = pd_round_up(piece->offset + pd_piece_bytes(&r->catalog->tensors[w->tensor], piece), PD_VFS_ALIGN);
    struct open_file *f = NULL;
    PD_TRY(need_file(r, piece->file, &f, err));
    w->piece = w->checked = SHARED;
    w->from = piece->offset / PD_VFS_ALIGN * PD_VFS_ALIGN;
    const bool follows = end > f->shared_to && w->from <= f->shared_to + NEAR_BYTES && f->shared_to;
    uint64_t bytes = follows ? pd_min_u64(2 * f->shared_bytes, WINDOW_BUFFER_BYTES) : 0;
    bytes = pd_min_u64(pd_max_u64(bytes, end - w->from), whole - w->from);
    w->to = f->shared_to = w->from + bytes;
    f->shared_bytes = bytes;
    r->bytes_read += bytes;
    return send_range(r, w, f, w->from, w->to, err);
}

/* Submits the window, whose piece, number and tensor are set. */
static pd_status send_for(struct pd_reader *r, struct window *w, struct pd_error *err)
{
    const struct pd_piece *piece = piece_of(r, w->piece);
    const uint64_t file_bytes = r->catalog->files[piece->file].bytes;
    const uint64_t first = piece->offset + w->number * window_bytes(r, w->tensor), end = first + w->bytes;
    const uint64_t from = first / PD_VFS_ALIGN * PD_VFS_ALIGN, whole = file_bytes / PD_VFS_ALIGN * PD_VFS_ALIGN;
    const uint64_t to = pd_round_up(end, PD_VFS_ALIGN) < whole ? pd_round_up(end, PD_VFS_ALIGN) : whole;
    struct open_file *f = NULL;
    w->data = w->buffer + (first - from);
    PD_TRY(need_file(r, piece->file, &f, err));
    r->bytes_read += end - from;
    PD_TRY(read_tail(r, w, f, to > first ? to : first, end, err));
    return from < to ? send_range(r, w, f, from, to, err) : PD_OK;
}

static pd_status name_tensor(const struct pd_reader *r, uint32_t tensor, pd_status st, struct pd_error *err)
{
    return st ? pd_error_context(err, st, "tensor %s", r->catalog->tensors[tensor].name) : PD_OK;
}

static pd_status begin_window(struct pd_reader *r, struct window *w, uint32_t tensor, uint64_t piece, uint64_t number,
                              struct pd_error *err)
{
    const uint64_t bytes = pd_piece_bytes(&r->catalog->tensors[tensor], piece_of(r, piece)), size = window_bytes(r, tensor);
    const struct pd_catalog_source *source = &r->catalog->source;
    if (w == r->last) r->last = NULL;
    w->piece = piece;
    w->number = number;
    w->tensor = tensor;
    w->file = piece_of(r, piece)->file;
    w->bytes = bytes - number * size < size ? bytes - number * size : size;
    w->is_used = false;
    w->until = 0;
    w->used_at = ++r->clock;
    pd_status st;
    if (is_small(r, tensor, piece)) {
        st = send_shared(r, w, piece, err);
    } else if (is_plain(r, piece)) {
        st = send_for(r, w, err);
    } else {
        w->data = w->buffer;
        r->bytes_read += w->bytes;
        st = source->read(source->context, piece, number * size, w->bytes, w->data, err);
    }
    if (st && !w->slot) w->piece = UINT64_MAX;
    return name_tensor(r, tensor, st, err);
}

static pd_status arrive_one(struct pd_reader *r, struct pd_error *err)
{
    struct pd_transfer_slot *slot = NULL;
    PD_TRY(pd_transfer_ring_next(&r->ring, &slot, err));
    PD_CHECK(slot);
    /* Handles a completion: the window is there, checked, or free again. */
    struct window *w = r->sent[slot->number];
    const struct pd_catalog_source *source = &r->catalog->source;
    pd_status st = pd_transfer_error(&slot->transfer, err);
    pd_transfer_ring_release(&r->ring, slot);
    w->slot = NULL;
    for (uint32_t i = 0; i < PD_READER_FILES_MAX; i++)
        if (r->files[i].file == w->file) r->files[i].coming--;
    if (!st && source->check && w->piece != SHARED)
        st = source->check(source->context, w->piece, w->number * window_bytes(r, w->tensor), w->bytes, w->data, err);
    if (st) w->piece = UINT64_MAX;
    return name_tensor(r, w->tensor, st, err);
}

/* Checks a small piece in the shared window. */
static pd_status check_shared(struct pd_reader *r, struct window *w, uint32_t tensor, uint64_t piece, struct pd_error *err)
{
    const struct pd_catalog_source *source = &r->catalog->source;
    w->tensor = tensor;
    w->data = w->buffer + (piece_of(r, piece)->offset - w->from);
    w->bytes = pd_piece_bytes(&r->catalog->tensors[tensor], piece_of(r, piece));
    if (!source->check || w->checked == piece) return PD_OK;
    const pd_status st = source->check(source->context, piece, 0, w->bytes, w->data, err);
    w->checked = st ? SHARED : piece;
    return name_tensor(r, tensor, st, err);
}

/* Returns a window. Until the next call its `data` and `bytes` hold part `number` of the piece. */
static pd_status need_window(struct pd_reader *r, uint32_t tensor, uint64_t piece, uint64_t number,
                             struct window **ret_window, struct pd_error *err)
{
    struct window *w = find_window(r, tensor, piece, number);
    while (!w) {
        w = take_window(r, true);
        if (w)
            PD_TRY(begin_window(r, w, tensor, piece, number, err));
        else
            PD_TRY(arrive_one(r, err));
    }
    while (w->slot)
        PD_TRY(arrive_one(r, err));
    w->is_used = true;
    w->used_at = ++r->clock;
    r->last = w;
    *ret_window = w;
    return w->piece == SHARED ? check_shared(r, w, tensor, piece, err) : PD_OK;
}

/* ---- expecting ---- */

/* Elements [*begin, *end) of the piece, in its own order, that may lie in elements [low, high) of the tensor. */
static bool piece_part(const struct pd_foreign_tensor *tensor, const struct pd_piece *piece, uint64_t low, uint64_t high,
                       uint64_t *begin, uint64_t *end)
{
    uint64_t step = 1, inner = 1, at = 0; /* elements of one row of dimension `row`, in tensor and piece */
    uint32_t row = 0;
    const bool is_flat = piece->is_range || tensor->ndim == 0;
    for (uint32_t d = 1; d < tensor->ndim && !is_flat; d++) {
        step *= tensor->shape[d];
        inner *= piece->count[d];
    }
    while (!is_flat && piece->count[row] == 1 && row + 1 < tensor->ndim) { /* e.g. one layer of a stack: all of the piece */
        at += piece->start[row++] * step;
        step /= tensor->shape[row];
        inner /= piece->count[row];
    }
    if (high <= at) return false;
    low = low > at ? low - at : 0;
    high -= at;
    uint64_t first = low / step, last = pd_divide_up(high, step);
    if (first < piece->start[row]) first = piece->start[row];
    if (last > piece->start[row] + piece->count[row]) last = piece->start[row] + piece->count[row];
    if (first >= last) return false;
    *begin = (first - piece->start[row]) * inner;
    *end = (last - piece->start[row]) * inner;
    if (!is_flat && inner == step) { /* whole rows: exact */
        const uint64_t begins = piece->start[row] * step;
        if (low > begins + *begin) *begin = low - begins;
        if (high < begins + *end) *end = high - begins;
    }
    return true;
}

/* Keeps the windows of a part of a piece until task `until` is done; if `sends`, submits the missing ones. */
static pd_status visit_piece(struct pd_reader *r, uint32_t tensor, uint64_t number, uint64_t begin, uint64_t end,
                             uint64_t until, bool sends, bool *ret_fits, struct pd_error *err)
{
    const struct pd_foreign_tensor *t = &r->catalog->tensors[tensor];
    const struct pd_element_row *element = &pd_elements[t->element];
    const uint64_t size = window_bytes(r, tensor), first = begin / element->block_elements * element->block_bytes,
                   last = pd_divide_up(end, element->block_elements) * element->block_bytes;
    for (uint64_t w = first / size; w * size < last; w++) {
        struct window *window = find_window(r, tensor, number, w);
        if (!window && !sends) continue;
        if (!window) {
            window = take_window(r, false);
            *ret_fits = window != NULL;
            if (!window) return PD_OK;
            PD_TRY(begin_window(r, window, tensor, number, w, err));
        }
        window->until = pd_max_u64(window->until, until);
    }
    return PD_OK;
}

/* Elements [low, high) of a tensor that enclose a view. */
struct extent {
    uint64_t low, high;
};

static struct extent extent_of(const struct pd_view *view)
{
    struct extent extent = {view->offset, view->offset + 1};
    for (uint32_t d = 0; d < view->ndim; d++)
        extent.high += (view->count[d] - 1) * view->stride[d];
    return extent;
}

/* For a piece read through windows ahead of time: its elements that may lie in the extent. */
static bool visited_part(const struct pd_reader *r, const struct pd_foreign_tensor *t, uint64_t piece, struct extent extent,
                         uint64_t *begin, uint64_t *end)
{
    if (!is_plain(r, piece) || !piece_part(t, piece_of(r, piece), extent.low, extent.high, begin, end)) return false;
    for (uint32_t d = 0; d < t->ndim; d++)
        if (piece_of(r, piece)->stride[d]) return false; /* strided: read when needed */
    return *begin < *end;
}

static pd_status visit_view(struct pd_reader *r, uint32_t tensor, const struct pd_view *view, uint64_t until, bool sends,
                            bool *ret_fits, struct pd_error *err)
{
    const struct pd_foreign_tensor *t = &r->catalog->tensors[tensor];
    uint64_t begin, end;
    if (!pd_view_elements(view)) return PD_OK;
    for (uint64_t p = t->piece_begin; *ret_fits && p < t->piece_begin + t->piece_count; p++)
        if (visited_part(r, t, p, extent_of(view), &begin, &end))
            PD_TRY(visit_piece(r, tensor, p, begin, end, until, sends, ret_fits, err));
    return PD_OK;
}

pd_status pd_reader_expect(struct pd_reader *r, uint32_t tensor, const struct pd_view *view, bool *ret_is_on_its_way,
                           struct pd_error *err)
{
    *ret_is_on_its_way = true;
    return visit_view(r, tensor, view, 0, true, ret_is_on_its_way, err);
}

/* ---- a line of reads ---- */

void pd_read_line_init(struct pd_read_line *line, struct pd_reader *reader,
                       bool (*next)(void *context, struct pd_read_task *ret_task), void *context)
{
    *line = (struct pd_read_line){.reader = reader, .next = next, .context = context};
    reader->line = line;
}

/* Marks existing windows before it submits others, which would reuse them. */
static pd_status read_expect(struct pd_reader *r, const struct pd_read_task *task, uint64_t number, bool *ret_fits,
                             struct pd_error *err)
{
    if (task->tensor == PD_READ_NOTHING) return PD_OK;
    PD_TRY(visit_view(r, task->tensor, &task->view, number, false, ret_fits, err));
    return visit_view(r, task->tensor, &task->view, number, true, ret_fits, err);
}

static pd_status look_ahead(struct pd_read_line *line, struct pd_error *err)
{
    for (bool fits = true; fits;) {
        if (line->expected == line->count) {
            if (line->count == PD_READ_LINE_MAX || line->is_at_end) break;
            struct pd_read_task *task = &line->tasks[(line->begin + line->count) % PD_READ_LINE_MAX];
            line->is_at_end = !line->next(line->context, task);
            if (line->is_at_end) break;
            line->count++;
        }
        PD_TRY(read_expect(line->reader, &line->tasks[(line->begin + line->expected) % PD_READ_LINE_MAX],
                           line->taken + line->expected + 1, &fits, err));
        if (fits) line->expected++;
    }
    return PD_OK;
}

pd_status pd_read_line_take(struct pd_read_line *line, struct pd_read_task *ret_task, bool *ret_has_one,
                            struct pd_error *err)
{
    line->reader->tasks_done = line->taken;
    PD_TRY(look_ahead(line, err));
    *ret_has_one = line->count > 0;
    if (!line->count) return PD_OK;
    *ret_task = line->tasks[line->begin];
    line->begin = (line->begin + 1) % PD_READ_LINE_MAX;
    line->count--;
    line->taken++;
    if (line->expected) line->expected--;
    return PD_OK;
}

/* First element of a piece in its tensor; UINT64_MAX if its elements are not contiguous there. */
static uint64_t piece_begin(const struct pd_foreign_tensor *tensor, const struct pd_piece *piece)
{
    uint64_t first = 0, last = 0, step = 1, elements = 1;
    if (piece->is_range) return piece->start[0];
    for (uint32_t d = tensor->ndim; d-- > 0; step *= tensor->shape[d]) {
        first += piece->start[d] * step;
        last += (piece->start[d] + piece->count[d] - 1) * step;
        elements *= piece->count[d];
    }
    return last - first + 1 == elements ? first : UINT64_MAX;
}

/* The current task has read everything before element `at` of its tensor, so submit more reads now: a disk that finishes
 * many transfers at once would be idle until the end of the task. */
static pd_status pass(struct pd_reader *r, uint32_t tensor, uint64_t at, struct pd_error *err)
{
    bool any = false;
    for (uint32_t i = 0; r->line && i < r->window_count; i++) {
        struct window *w = &r->windows[i];
        if (w->piece >= SHARED || w->tensor != tensor || !w->is_used || w->until != r->line->taken || w == r->last) continue;
        const uint64_t begin = piece_begin(&r->catalog->tensors[tensor], piece_of(r, w->piece));
        if (begin >= at || (w->number + 1) * window_elements(r, tensor) > at - begin) continue;
        w->until = 0;
        any = true;
    }
    return any ? look_ahead(r->line, err) : PD_OK;
}

/* ---- reading ---- */

/* Converts stored elements [at, at + count) of a piece to values[0], values[step], ... */
static pd_status read_stored(struct pd_reader *r, uint32_t tensor, uint64_t piece, uint64_t at, uint64_t count,
                             float *values, uint64_t step, struct pd_error *err)
{
    const struct pd_element_row *element = &pd_elements[r->catalog->tensors[tensor].element];
    const uint64_t block = element->block_elements, window_blocks = window_bytes(r, tensor) / element->block_bytes;
    while (count) {
        const uint64_t first = at / block, skip = at % block;
        struct window *w = NULL;
        PD_TRY(need_window(r, tensor, piece, first / window_blocks, &w, err));
        const unsigned char *stored = w->data + first % window_blocks * element->block_bytes;
        uint64_t left = (window_blocks - first % window_blocks) * block - skip, n = count < left ? count : left;
        if (step == 1 && skip == 0 && n >= block) {
            n = n / block * block;
            element->to_f32(stored, n / block, values);
        } else {
            float some[SCATTERED];
            if (skip + n > SCATTERED) n = SCATTERED / block * block - skip;
            element->to_f32(stored, pd_divide_up(skip + n, block), some);
            for (uint64_t i = 0; i < n; i++)
                values[i * step] = some[skip + i];
        }
        at += n;
        count -= n;
        values += n * step;
    }
    return PD_OK;
}

static bool piece_has(const struct pd_foreign_tensor *tensor, const struct pd_piece *piece, uint64_t element,
                      const uint64_t *index)
{
    if (piece->is_range) return element - piece->start[0] < piece->count[0];
    for (uint32_t d = 0; d < tensor->ndim; d++)
        if (index[d] - piece->start[d] >= piece->count[d]) return false;
    return true;
}

/* Pieces cover their tensor, so one is found. Consecutive calls usually ask for neighbours. */
static uint64_t find_piece(struct pd_reader *r, const struct pd_foreign_tensor *tensor, uint64_t element,
                           const uint64_t *index)
{
    const uint64_t begin = tensor->piece_begin, count = tensor->piece_count;
    uint64_t p = r->last_piece;
    if (p < begin || p >= begin + count) p = begin;
    for (uint64_t i = 0; i < count; i++, p = p + 1 == begin + count ? begin : p + 1)
        if (piece_has(tensor, piece_of(r, p), element, index)) return p;
    PD_CHECK(!"pieces cover their tensor");
    return begin;
}

/* Index in the piece of the tensor's element `element`, and how many are contiguous from there. */
static uint64_t stored_at(const struct pd_foreign_tensor *tensor, const struct pd_piece *piece, uint64_t element,
                          const uint64_t *index, uint64_t *count)
{
    if (piece->is_range) {
        const uint64_t left = piece->start[0] + piece->count[0] - element;
        if (*count > left) *count = left;
        return element - piece->start[0];
    }
    uint64_t at = 0, dense = 1, run = 1;
    bool goes_on = true;
    for (uint32_t d = tensor->ndim; d-- > 0;) {
        const uint64_t i = index[d] - piece->start[d];
        bool has_strides = false;
        for (uint32_t e = 0; e < tensor->ndim; e++)
            has_strides = has_strides || piece->stride[e];
        const uint64_t stride = has_strides ? piece->stride[d] : dense;
        at += i * stride;
        goes_on = goes_on && (stride == dense || piece->count[d] == 1);
        if (goes_on) run += (piece->count[d] - 1 - i) * dense;
        goes_on = goes_on && piece->count[d] == tensor->shape[d];
        dense *= piece->count[d];
    }
    if (*count > run) *count = run;
    return at;
}

static pd_status read_run(struct pd_reader *r, uint32_t tensor, uint64_t element, uint64_t count, float *values,
                          uint64_t step, struct pd_error *err)
{
    const struct pd_foreign_tensor *t = &r->catalog->tensors[tensor];
    while (count) {
        uint64_t index[PD_FOREIGN_DIMS_MAX] = {0}, rest = element, n = count;
        for (uint32_t d = t->ndim; d-- > 0; rest /= t->shape[d])
            index[d] = rest % t->shape[d];
        const uint64_t p = r->last_piece = find_piece(r, t, element, index);
        const uint64_t at = stored_at(t, piece_of(r, p), element, index, &n);
        PD_TRY(read_stored(r, tensor, p, at, n, values, step, err));
        element += n;
        count -= n;
        values += n * step;
    }
    return PD_OK;
}

/* Prefetches: the hardware does not predict lines `step` apart, and waiting for each takes longer than filling it. */
static void turn(const float *from, uint64_t rows, uint64_t columns, float *to, uint64_t step)
{
    for (uint64_t c = 0; c < columns; c++, to += step) {
        if (c + TURNED_AHEAD < columns) __builtin_prefetch(to + TURNED_AHEAD * step, 1);
        if (rows == TURNED_ROWS)
            for (uint64_t r = 0; r < TURNED_ROWS; r++)
                to[r] = from[r * TURNED_PITCH + c];
        else
            for (uint64_t r = 0; r < rows; r++)
                to[r] = from[r * TURNED_PITCH + c];
    }
}

/* Transposes contiguous rows to columns: row i, `stride` elements after row i - 1, goes to values[i], values[i + step],
 * ... Going row by row would touch a separate cache line for each element, again and again. */
static pd_status read_turned(struct pd_reader *r, uint32_t tensor, uint64_t element, uint64_t stride, uint64_t rows,
                             uint64_t columns, float *values, uint64_t step, struct pd_error *err)
{
    for (uint64_t row = 0; row < rows; row += TURNED_ROWS) {
        PD_TRY(pass(r, tensor, element + row * stride, err));
        for (uint64_t c = 0; c < columns; c += TURNED_COLUMNS) {
            const uint64_t height = rows - row < TURNED_ROWS ? rows - row : TURNED_ROWS,
                           width = columns - c < TURNED_COLUMNS ? columns - c : TURNED_COLUMNS;
            for (uint64_t i = 0; i < height; i++)
                PD_TRY(read_run(r, tensor, element + (row + i) * stride + c, width, r->turned + i * TURNED_PITCH, 1, err));
            turn(r->turned, height, width, values + row + c * step, step);
        }
    }
    return PD_OK;
}

/* Drops dimensions of size one, and merges neighbours that are contiguous on both sides. */
static void merge(struct pd_view *from, struct pd_view *to)
{
    uint32_t n = 0;
    for (uint32_t d = 0; d < from->ndim; d++) {
        if (from->count[d] == 1) continue;
        const bool follows = n && from->stride[n - 1] == from->count[d] * from->stride[d] &&
                             to->stride[n - 1] == to->count[d] * to->stride[d];
        if (!follows) n++;
        const uint64_t count = follows ? from->count[n - 1] * from->count[d] : from->count[d];
        from->count[n - 1] = to->count[n - 1] = count;
        from->stride[n - 1] = from->stride[d];
        to->stride[n - 1] = to->stride[d];
    }
    from->ndim = to->ndim = n;
}

pd_status pd_reader_read(struct pd_reader *r, uint32_t tensor, const struct pd_view *view, float *values,
                         struct pd_error *err)
{
    struct pd_view from, to;
    uint64_t index[PD_VIEW_DIMS_MAX] = {0};
    PD_CHECK(pd_view_is_inside(view, pd_foreign_elements(&r->catalog->tensors[tensor])));
    if (!pd_view_elements(view)) return PD_OK;
    pd_view_sort(view, &from, &to);
    merge(&from, &to);
    const bool has_run = from.ndim && from.stride[from.ndim - 1] == 1;
    const uint32_t run = has_run ? from.ndim - 1 : from.ndim;
    const uint64_t count = has_run ? from.count[run] : 1, step = has_run ? to.stride[run] : 1;
    const bool is_turned = has_run && run && step > 1 && to.stride[run - 1] == 1;
    const uint32_t outer = is_turned ? run - 1 : run;
    uint64_t source = from.offset, target = 0;
    for (;;) {
        if (is_turned)
            PD_TRY(read_turned(r, tensor, source, from.stride[outer], from.count[outer], count, values + target, step, err));
        else
            PD_TRY(read_run(r, tensor, source, count, values + target, step, err));
        uint32_t d = outer;
        while (d-- > 0) {
            source += from.stride[d];
            target += to.stride[d];
            if (++index[d] < from.count[d]) break;
            source -= from.count[d] * from.stride[d];
            target -= from.count[d] * to.stride[d];
            index[d] = 0;
        }
        if (d == UINT32_MAX) return PD_OK;
    }
}

/* Expects windows from the one with byte `offset` on. */
static pd_status expect_stored(struct pd_reader *r, uint32_t tensor, uint64_t piece, uint64_t offset, bool *ret_fits,
                               struct pd_error *err)
{
    const struct pd_foreign_tensor *t = &r->catalog->tensors[tensor];
    const struct pd_element_row *element = &pd_elements[t->element];
    const uint64_t size = window_bytes(r, tensor), bytes = pd_piece_bytes(t, piece_of(r, piece));
    if (!is_plain(r, piece)) return PD_OK;
    return visit_piece(r, tensor, piece, offset / size * size / element->block_bytes * element->block_elements,
                       bytes / element->block_bytes * element->block_elements, 0, true, ret_fits, err);
}

pd_status pd_reader_expect_stored(struct pd_reader *r, uint32_t tensor, uint64_t piece, bool *ret_is_on_its_way,
                                  struct pd_error *err)
{
    *ret_is_on_its_way = true;
    return expect_stored(r, tensor, piece, 0, ret_is_on_its_way, err);
}

pd_status pd_reader_stored(struct pd_reader *r, uint32_t tensor, uint64_t piece, uint64_t offset, const void **ret_data,
                           uint64_t *ret_bytes, struct pd_error *err)
{
    const uint64_t size = window_bytes(r, tensor);
    struct window *w = NULL;
    bool fits = true;
    /* Do this before the window is used: expecting may reuse a used one. */
    PD_TRY(expect_stored(r, tensor, piece, offset, &fits, err));
    PD_TRY(need_window(r, tensor, piece, offset / size, &w, err));
    *ret_data = w->data + offset % size;
    *ret_bytes = w->bytes - offset % size;
    return PD_OK;
}
