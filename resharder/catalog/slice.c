/* A slice meets pieces of its tensor. Of each it needs *runs*: elements that are contiguous in the file and at the
 * destination. Runs are never listed: number k of them is arithmetic. A *window* is one read of adjoining blocks that
 * some runs need; windows are planned a batch at a time, and the threads of the pool take them in turn.
 *
 *   invariants  1. a window is read, verified, then copied from; nothing of it leaves before
 *               2. windows of a batch write to different bytes */
#include "resharder/catalog/slice.h"

#include "ckpt/base/checked.h"
#include "ckpt/io/cached.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 64u
#define VERIFIED_BYTES 65536u /* what a source checks at once */
#define LOCAL_BYTES (UINT64_C(1) << 20)
#define REMOTE_BYTES (UINT64_C(4) << 20)
#define DIRECT_BYTES_MIN (UINT64_C(256) << 10) /* smaller reads may come again */

struct slicer_file {
    struct pd_file *file, *direct; /* NULL: closed */
    uint32_t pins;
    uint64_t used_at;
};

struct pd_slicer {
    struct pd_vfs *vfs;
    const struct pd_catalog *catalog;
    bool is_direct;
    _Atomic uint64_t bytes;
    pthread_mutex_t mutex;     /* guards the fields below */
    struct slicer_file *files; /* (catalog->file_count) */
    uint32_t open_count;
    uint64_t clock;
};

/* Runs of one slice in one piece. Elements are blocks of a quantised type. */
struct runs {
    uint32_t ndim; /* of the counter: outer dimensions, whose product of `count` is the number of runs */
    uint64_t count[PD_FOREIGN_DIMS_MAX];
    uint64_t from_stride[PD_FOREIGN_DIMS_MAX], to_stride[PD_FOREIGN_DIMS_MAX]; /* elements */
    uint64_t from, to;                                                         /* of the first */
    uint64_t length, total;                                                    /* elements of a run; runs */
    uint64_t clip_begin, clip_end; /* elements of the source that the piece has */
    bool is_scattered;             /* places in the file do not ascend, or single elements lie apart */
};

struct cursor {
    uint64_t run, done; /* `done` elements of it */
};

struct slicer_window {
    const struct pd_slice *slice;
    const struct runs *runs;
    uint64_t piece, begin, end; /* bytes of the piece */
    struct cursor from, until;
};

struct reading {
    struct pd_slicer *s;
    const struct pd_slice *slices;
    uint64_t slice_count;
    /* Where planning is. */
    uint64_t slice, piece;
    struct cursor at;
    bool has_runs, is_at_end;
    struct runs runs[BATCH + 1]; /* of the pieces in the batch; the last is the one being planned */
    uint32_t run_count;
    struct slicer_window windows[BATCH];
    uint32_t window_count;
    /* Of the threads: under mutex. */
    pthread_mutex_t mutex;
    unsigned char **buffers; /* (buffer_count) free ones */
    uint32_t buffer_count;
    uint32_t failed; /* lowest window that failed, or BATCH */
    pd_status status;
    struct pd_error error;
};

/* ---- files ---- */

pd_status pd_slicer_new(struct pd_vfs *vfs, const struct pd_catalog *catalog, struct pd_slicer **ret_slicer,
                        struct pd_error *err)
{
    struct pd_slicer *s = calloc(1, sizeof *s);
    if (s) s->files = calloc((size_t)catalog->file_count + 1, sizeof *s->files);
    if (!s || !s->files) {
        free(s);
        PD_FAIL(err, PD_NO_MEMORY, "no memory to read %u files", catalog->file_count);
    }
    s->vfs = vfs;
    s->catalog = catalog;
    pthread_mutex_init(&s->mutex, NULL);
    *ret_slicer = s;
    return PD_OK;
}

void pd_slicer_free(struct pd_slicer *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->catalog->file_count; i++) {
        pd_file_close_readonly(s->files[i].file);
        pd_file_close_readonly(s->files[i].direct);
    }
    pthread_mutex_destroy(&s->mutex);
    free(s->files);
    free(s);
}

void pd_slicer_read_direct(struct pd_slicer *s)
{
    s->is_direct = true;
}

uint64_t pd_slicer_bytes(const struct pd_slicer *s)
{
    return atomic_load(&s->bytes);
}

static void close_oldest(struct pd_slicer *s)
{
    struct slicer_file *oldest = NULL;
    for (uint32_t i = 0; i < s->catalog->file_count; i++) {
        struct slicer_file *f = &s->files[i];
        if (f->file && !f->pins && (!oldest || f->used_at < oldest->used_at)) oldest = f;
    }
    if (!oldest) return;
    pd_file_close_readonly(oldest->file);
    pd_file_close_readonly(oldest->direct);
    oldest->file = oldest->direct = NULL;
    s->open_count--;
}

static pd_status slicer_take_file(struct pd_slicer *s, uint32_t number, struct pd_file **ret_file, struct pd_error *err)
{
    struct slicer_file *f = &s->files[number];
    pthread_mutex_lock(&s->mutex);
    pd_status st = PD_OK;
    if (!f->file) {
        if (s->open_count >= PD_SLICER_FILES_MAX) close_oldest(s);
        st = pd_file_open(s->vfs, s->catalog->files[number].path, PD_OPEN_READ, &f->file, err);
        if (!st) s->open_count++;
    }
    if (!st) {
        f->pins++;
        f->used_at = ++s->clock;
        *ret_file = f->file;
    }
    pthread_mutex_unlock(&s->mutex);
    return st;
}

/* The file that is held, open for direct I/O; the same one where that fails. */
static struct pd_file *slicer_direct(struct pd_slicer *s, uint32_t number)
{
    struct slicer_file *f = &s->files[number];
    pthread_mutex_lock(&s->mutex);
    if (!f->direct && pd_file_open(s->vfs, s->catalog->files[number].path, PD_OPEN_READ | PD_OPEN_DIRECT, &f->direct, NULL))
        f->direct = NULL;
    struct pd_file *file = f->direct ? f->direct : f->file;
    pthread_mutex_unlock(&s->mutex);
    return file;
}

static void slicer_give_file(struct pd_slicer *s, uint32_t number)
{
    pthread_mutex_lock(&s->mutex);
    s->files[number].pins--;
    pthread_mutex_unlock(&s->mutex);
}

/* ---- runs ---- */

static uint32_t block_of(const struct pd_foreign_tensor *t)
{
    return pd_elements[t->element].block_elements;
}

pd_status pd_slice_check(const struct pd_catalog *catalog, const struct pd_slice *slice, struct pd_error *err)
{
    if (slice->tensor >= catalog->tensor_count)
        PD_FAIL(err, PD_INVALID, "there is no tensor %u; it has %u", slice->tensor, catalog->tensor_count);
    const struct pd_foreign_tensor *t = &catalog->tensors[slice->tensor];
    for (uint32_t d = 0; d < t->ndim; d++)
        if (!pd_checked_range(slice->start[d], slice->count[d], t->shape[d]))
            PD_FAIL(err, PD_INVALID, "tensor %s: [%" PRIu64 ", %" PRIu64 ") of dimension %u, which has %" PRIu64 " elements",
                    t->name, slice->start[d], slice->start[d] + slice->count[d], d, t->shape[d]);
    if (slice->as_f32 && (t->element == PD_ELEMENT_C64 || t->element == PD_ELEMENT_C128))
        PD_FAIL(err, PD_INVALID, "tensor %s is complex, which fp32 cannot hold; read it as stored", t->name);
    const uint32_t block = block_of(t), inner = t->ndim ? t->ndim - 1 : 0;
    if (block > 1 && t->ndim && (slice->start[inner] % block || slice->count[inner] % block))
        PD_FAIL(err, PD_INVALID, "tensor %s: rows are stored in blocks of %u elements (%s), and a slice takes whole ones",
                t->name, block, pd_elements[t->element].name);
    return PD_OK;
}

static uint64_t slice_elements(const struct pd_foreign_tensor *t, const struct pd_slice *slice)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < t->ndim; d++)
        elements *= slice->count[d];
    return elements;
}

uint64_t pd_slice_bytes(const struct pd_catalog *catalog, const struct pd_slice *slice)
{
    const struct pd_foreign_tensor *t = &catalog->tensors[slice->tensor];
    const uint64_t elements = slice_elements(t, slice);
    return slice->as_f32 ? elements * sizeof(float) : elements / block_of(t) * pd_elements[t->element].block_bytes;
}

/* The source of a range is the whole tensor, of which the piece has [clip_begin, clip_end). False: nothing in common. */
static bool runs_init(const struct pd_foreign_tensor *t, const struct pd_slice *slice, const struct pd_piece *piece,
                      struct runs *ret)
{
    const uint32_t block = block_of(t), n = t->ndim ? t->ndim : 1;
    uint64_t common[PD_FOREIGN_DIMS_MAX], from_stride[PD_FOREIGN_DIMS_MAX], to_stride[PD_FOREIGN_DIMS_MAX];
    bool is_strided = false;
    struct runs r = {.length = 1, .total = 1, .clip_end = UINT64_MAX};
    uint64_t from_dense = 1, to_dense = 1;
    for (uint32_t d = n; d-- > 0;) {
        const uint32_t unit = d == n - 1 ? block : 1;
        const uint64_t whole = t->ndim ? t->shape[d] / unit : 1, begin = t->ndim ? slice->start[d] / unit : 0,
                       count = t->ndim ? slice->count[d] / unit : 1;
        const bool is_part = !piece->is_range && t->ndim;
        const uint64_t has_begin = is_part ? piece->start[d] / unit : 0, has = is_part ? piece->count[d] / unit : whole,
                       first = pd_max_u64(begin, has_begin), last = pd_min_u64(begin + count, has_begin + has);
        if (last <= first) return false;
        common[d] = last - first;
        from_stride[d] = from_dense;
        to_stride[d] = to_dense;
        if (is_part && piece->stride[d]) from_stride[d] = piece->stride[d], is_strided = true;
        r.from += (first - has_begin) * from_stride[d];
        r.to += (first - begin) * to_stride[d];
        from_dense *= has;
        to_dense *= count;
    }
    if (piece->is_range) {
        r.clip_begin = piece->start[0] / block;
        r.clip_end = r.clip_begin + piece->count[0] / block;
    }
    uint32_t outer = n;
    while (outer > 0 && from_stride[outer - 1] == r.length && to_stride[outer - 1] == r.length)
        r.length *= common[--outer];
    for (uint32_t d = 0; d < outer; d++) {
        if (common[d] == 1) continue;
        r.count[r.ndim] = common[d];
        r.from_stride[r.ndim] = from_stride[d];
        r.to_stride[r.ndim++] = to_stride[d];
        r.total *= common[d];
    }
    r.is_scattered = is_strided && (outer == n || r.total > 1);
    *ret = r;
    return true;
}

static void run_at(const struct runs *r, uint64_t k, uint64_t *ret_from, uint64_t *ret_to)
{
    *ret_from = r->from;
    *ret_to = r->to;
    for (uint32_t d = r->ndim; d-- > 0; k /= r->count[d]) {
        *ret_from += k % r->count[d] * r->from_stride[d];
        *ret_to += k % r->count[d] * r->to_stride[d];
    }
}

/* The first run that ends after `element` of the source; runs ascend. */
static uint64_t run_after(const struct runs *r, uint64_t element)
{
    uint64_t low = 0, high = r->total;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        uint64_t from, to;
        run_at(r, middle, &from, &to);
        if (from + r->length <= element)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- planning ---- */

static uint64_t slicer_window_bytes(const struct reading *r, const struct pd_piece *piece)
{
    return pd_vfs_is_remote(r->s->catalog->files[piece->file].path) ? REMOTE_BYTES : LOCAL_BYTES;
}

/* The next part of a run, inside the piece. False: no more. */
static bool part_at(const struct runs *runs, struct cursor *at, uint64_t *ret_from, uint64_t *ret_to, uint64_t *ret_count)
{
    for (; at->run < runs->total; at->run++, at->done = 0) {
        uint64_t from, to;
        run_at(runs, at->run, &from, &to);
        const uint64_t end = pd_min_u64(from + runs->length, runs->clip_end);
        uint64_t begin = from + at->done;
        if (begin < runs->clip_begin) begin = runs->clip_begin;
        if (begin >= runs->clip_end && !at->done) break; /* later ones lie further on */
        if (begin >= end) continue;
        *ret_from = begin - runs->clip_begin;
        *ret_to = to + (begin - from);
        *ret_count = end - begin;
        at->done = begin - from;
        return true;
    }
    at->run = runs->total;
    return false;
}

/* Grows a window by the parts that its blocks hold, from r->at on. False: the piece has no more. */
static bool plan_window(struct reading *r, const struct pd_slice *slice, const struct runs *runs, struct slicer_window *w)
{
    const struct pd_catalog *c = r->s->catalog;
    const struct pd_foreign_tensor *t = &c->tensors[slice->tensor];
    const struct pd_piece *piece = &c->pieces[r->piece];
    const uint64_t bytes = pd_elements[t->element].block_bytes, unit = c->source.check ? VERIFIED_BYTES : PD_VFS_ALIGN,
                   all = pd_piece_bytes(t, piece), most = slicer_window_bytes(r, piece);
    uint64_t from, to, count;
    if (!part_at(runs, &r->at, &from, &to, &count)) return false;
    *w = (struct slicer_window){.slice = slice, .runs = runs, .piece = r->piece, .from = r->at};
    if (runs->is_scattered) {
        w->end = all;
        r->at.run = runs->total;
        w->until = r->at;
        return true;
    }
    w->begin = from * bytes / unit * unit;
    w->end = w->begin;
    do {
        const uint64_t begin = from * bytes, limit = w->begin + most;
        if (begin / unit * unit > w->end || begin >= limit) break;
        uint64_t end = pd_min_u64((from + count) * bytes, limit);
        if (end < (from + count) * bytes) end = end / bytes * bytes; /* whole elements */
        if (end <= begin) break;
        w->end = pd_max_u64(w->end, pd_min_u64(pd_round_up(end, unit), all));
        if (end < (from + count) * bytes) {
            r->at.done += (end - begin) / bytes;
            break;
        }
        r->at.run++, r->at.done = 0;
    } while (part_at(runs, &r->at, &from, &to, &count));
    w->until = r->at;
    return true;
}

static bool next_piece(struct reading *r)
{
    for (; r->slice < r->slice_count; r->slice++, r->piece = UINT64_MAX) {
        const struct pd_slice *slice = &r->slices[r->slice];
        const struct pd_foreign_tensor *t = &r->s->catalog->tensors[slice->tensor];
        r->piece = r->piece == UINT64_MAX ? t->piece_begin : r->piece + 1;
        for (; r->piece < t->piece_begin + t->piece_count; r->piece++) {
            struct runs *runs = &r->runs[r->run_count];
            if (!slice_elements(t, slice) || !runs_init(t, slice, &r->s->catalog->pieces[r->piece], runs)) continue;
            r->at = (struct cursor){runs->clip_begin ? run_after(runs, runs->clip_begin) : 0, 0};
            return true;
        }
    }
    return false;
}

static void plan_batch(struct reading *r)
{
    r->window_count = 0;
    r->runs[0] = r->runs[r->run_count]; /* being planned */
    r->run_count = 0;
    while (r->window_count < BATCH) {
        if (!r->has_runs) r->is_at_end = !(r->has_runs = next_piece(r));
        if (r->is_at_end) return;
        struct slicer_window *w = &r->windows[r->window_count];
        if (plan_window(r, &r->slices[r->slice], &r->runs[r->run_count], w)) {
            r->window_count++;
        } else {
            r->has_runs = false;
            r->run_count++;
        }
        if (r->run_count == BATCH) return;
    }
}

/* ---- moving ---- */

static void copy_parts(const struct slicer_window *w, const struct pd_foreign_tensor *t, const unsigned char *data)
{
    const struct pd_element_row *element = &pd_elements[t->element];
    const uint64_t bytes = element->block_bytes;
    struct cursor at = w->from;
    uint64_t from, to, count;
    while ((at.run < w->until.run || (at.run == w->until.run && at.done < w->until.done)) &&
           part_at(w->runs, &at, &from, &to, &count)) {
        if (at.run == w->until.run) count = pd_min_u64(count, w->until.done - at.done);
        const unsigned char *source = data + (from * bytes - w->begin);
        if (w->slice->as_f32)
            element->to_f32(source, count, (float *)w->slice->to + to * element->block_elements);
        else
            memcpy((unsigned char *)w->slice->to + to * bytes, source, count * bytes);
        at.run++, at.done = 0;
    }
}

/* True if the window's bytes can be read to where they belong: one run that is all of it, with no padding to check. */
static bool goes_straight(const struct reading *r, const struct slicer_window *w, uint64_t bytes, unsigned char **ret_to)
{
    struct cursor at = w->from;
    uint64_t from, to, count;
    if (w->slice->as_f32 || w->runs->is_scattered || !part_at(w->runs, &at, &from, &to, &count)) return false;
    const bool is_checked = r->s->catalog->source.check != NULL;
    *ret_to = (unsigned char *)w->slice->to + to * bytes;
    return from * bytes == w->begin && (from + count) * bytes >= w->end && (!is_checked || w->end % PD_VFS_ALIGN == 0);
}

static pd_status read_window(struct reading *r, const struct slicer_window *w, unsigned char *buffer, struct pd_error *err)
{
    struct pd_slicer *s = r->s;
    const struct pd_catalog *c = s->catalog;
    const struct pd_foreign_tensor *t = &c->tensors[w->slice->tensor];
    const struct pd_piece *piece = &c->pieces[w->piece];
    const struct pd_catalog_source *source = &c->source;
    const uint64_t bytes = w->end - w->begin;
    unsigned char *data = buffer;
    if (source->is_plain && !source->is_plain(source->context, w->piece)) {
        PD_TRY(source->read(source->context, w->piece, w->begin, bytes, data, err));
        atomic_fetch_add(&s->bytes, bytes);
    } else {
        struct pd_file *file = NULL;
        if (!goes_straight(r, w, pd_elements[t->element].block_bytes, &data)) data = buffer;
        const uint64_t span = source->check ? pd_round_up(bytes, PD_VFS_ALIGN) : bytes; /* padding is checked too */
        const uint64_t offset = piece->offset + w->begin;
        PD_TRY(slicer_take_file(s, piece->file, &file, err));
        if (s->is_direct && source->check && span >= DIRECT_BYTES_MIN && !pd_file_is_cached(file, offset, span)) {
            file = slicer_direct(s, piece->file);
            if ((uintptr_t)data % PD_VFS_ALIGN) data = buffer;
        }
        pd_status st = pd_file_read(file, offset, data, span, err);
        slicer_give_file(s, piece->file);
        if (!st && source->check) st = source->check(source->context, w->piece, w->begin, bytes, data, err);
        PD_TRY(st);
        atomic_fetch_add(&s->bytes, span);
    }
    if (data == buffer) copy_parts(w, t, data);
    return PD_OK;
}

static void run_window(void *context, uint64_t index)
{
    struct reading *r = context;
    const struct slicer_window *w = &r->windows[index];
    const struct pd_foreign_tensor *t = &r->s->catalog->tensors[w->slice->tensor];
    unsigned char *buffer = NULL, *own = NULL;
    struct pd_error err = {0};
    pthread_mutex_lock(&r->mutex);
    const bool is_late = r->failed < index;
    if (!is_late && !w->runs->is_scattered) buffer = r->buffers[--r->buffer_count];
    pthread_mutex_unlock(&r->mutex);
    if (is_late) return;
    if (!buffer) buffer = own = aligned_alloc(PD_VFS_ALIGN, pd_round_up(w->end - w->begin, PD_VFS_ALIGN));
    pd_status st = buffer ? read_window(r, w, buffer, &err) : PD_NO_MEMORY;
    if (!buffer) st = pd_error_set(&err, st, PD_WHERE, 0, "no memory for %" PRIu64 " bytes", w->end - w->begin);
    if (st) st = pd_error_context(&err, st, "tensor %s", t->name);
    pthread_mutex_lock(&r->mutex);
    if (buffer && !own) r->buffers[r->buffer_count++] = buffer;
    if (st && index < r->failed) {
        r->failed = (uint32_t)index;
        r->status = st;
        r->error = err;
    }
    pthread_mutex_unlock(&r->mutex);
    free(own);
}

static pd_status slicer_run(struct reading *r, struct pd_thread_pool *pool, pd_slicer_progress progress, void *context,
                            uint64_t total, struct pd_error *err)
{
    uint64_t done = 0;
    r->piece = UINT64_MAX;
    for (;;) {
        plan_batch(r);
        if (!r->window_count && r->is_at_end) return PD_OK;
        r->failed = BATCH;
        pd_parallel(pool, r->window_count, run_window, r);
        if (r->failed < BATCH) return pd_error_pass(err, r->status, &r->error);
        for (uint32_t i = 0; i < r->window_count; i++)
            done += r->windows[i].end - r->windows[i].begin;
        if (progress) PD_TRY(progress(context, pd_min_u64(done, total), total, err));
    }
}

pd_status pd_slicer_read(struct pd_slicer *s, const struct pd_slice *slices, uint64_t count, struct pd_thread_pool *pool,
                         pd_slicer_progress progress, void *context, struct pd_error *err)
{
    const uint32_t threads = pd_thread_pool_size(pool);
    uint64_t total = 0, most = LOCAL_BYTES;
    for (uint64_t i = 0; i < count; i++)
        total += pd_slice_bytes(s->catalog, &slices[i]);
    for (uint32_t i = 0; i < s->catalog->file_count; i++)
        if (pd_vfs_is_remote(s->catalog->files[i].path)) most = REMOTE_BYTES;
    struct reading *r = calloc(1, sizeof *r);
    unsigned char *memory = aligned_alloc(PD_VFS_ALIGN, threads * most);
    unsigned char **buffers = calloc(threads, sizeof *buffers);
    pd_status st = PD_ALLOCATED(r && memory && buffers, err, "no memory to read %" PRIu64 " slices", count);
    if (!st) {
        *r = (struct reading){.s = s, .slices = slices, .slice_count = count, .buffers = buffers, .buffer_count = threads};
        for (uint32_t i = 0; i < threads; i++)
            buffers[i] = memory + i * most;
        pthread_mutex_init(&r->mutex, NULL);
        st = slicer_run(r, pool, progress, context, total, err);
        pthread_mutex_destroy(&r->mutex);
    }
    free(buffers);
    free(memory);
    free(r);
    return st;
}
