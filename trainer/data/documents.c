/* Two batches of segments: a thread fills one while the caller has the other. Opening fills the first; a small input needs
 * no thread.
 *
 *   free --reader--> full --pd_documents_next: parsed--> out --the next call--> free */
#include "trainer/data/documents.h"
#include "ckpt/base/grow.h"
#include "ckpt/base/json.h"
#include "ckpt/base/status.h"
#include "ckpt/base/thread.h"
#include "trainer/data/byte_stream.h"
#include "trainer/data/input_list.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- reading ---- */

/* The serial half: converts files to segments, which are text cut into pieces, or whole lines of JSON to be parsed. Bytes
 * that belong to a file's next segment are carried over: the start of a line or of a separator. A carriage return at the end
 * is held back until the next byte shows whether it stays.
 *   threads  one at a time */

struct pd_segment {       /* zeroed: empty; its memory is used again */
    unsigned char *bytes; /* (used, capacity) owned */
    size_t used, capacity;
    uint32_t file;
    bool is_json;
    uint64_t first_line;              /* of JSON */
    struct pd_document_piece *pieces; /* (piece_count) owned; their text is in `bytes` */
    uint32_t piece_count;
    struct pd_turns *turns; /* (piece_count) of the pieces, if they are turns; owned */
    uint32_t *cuts;         /* (cut_count) of the turns, owned */
    uint32_t cut_count;
    pd_status status; /* of parsing */
    struct pd_error err;
};

#define FIRST_BYTES (16u << 10)                      /* of a segment; more when they are full */
#define KEPT_BYTES_MAX (4u * PD_DOCUMENTS_PIECE_MAX) /* by a segment that had a long line */

struct pd_document_reader {
    const struct pd_input_list *list;
    const char *separator;
    size_t separator_bytes;
    uint32_t file; /* of `stream`, or the next */
    struct pd_byte_stream *stream;
    bool is_json, return_waits, has_crlf;
    uint64_t line; /* number of the first that is not in a segment yet */
    unsigned char *carried;
    size_t carried_bytes, carried_capacity;
    uint64_t stored_before; /* of the files that are done */
    struct pd_documents_progress progress;
};

/* ---- segments ---- */

static pd_status reserve(unsigned char **bytes, size_t *capacity, size_t needed, struct pd_error *err)
{
    if (*capacity >= needed) return PD_OK;
    unsigned char *grown = realloc(*bytes, needed);
    if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for %zu bytes of text", needed);
    *bytes = grown;
    *capacity = needed;
    return PD_OK;
}

static pd_status segment_add(struct pd_segment *segment, const struct pd_document_piece *piece, struct pd_error *err)
{
    if (!pd_grow(&segment->pieces, segment->piece_count, sizeof *segment->pieces))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %u documents", segment->piece_count + 1);
    segment->pieces[segment->piece_count++] = *piece;
    return PD_OK;
}

static void segment_deinit(struct pd_segment *segment)
{
    free(segment->bytes);
    free(segment->pieces);
    free(segment->turns);
    free(segment->cuts);
    *segment = (struct pd_segment){0};
}

static pd_status carry(struct pd_document_reader *r, const unsigned char *bytes, size_t count, struct pd_error *err)
{
    PD_TRY(reserve(&r->carried, &r->carried_capacity, count, err));
    if (count) memcpy(r->carried, bytes, count);
    r->carried_bytes = count;
    return PD_OK;
}

/* Reads after the first *used bytes up to `most` or the end of the file. The buffer grows as needed: files may be small and
 * many. */
static pd_status read_up_to(struct pd_document_reader *r, struct pd_segment *segment, size_t most, size_t *used,
                            bool *ret_at_end, struct pd_error *err)
{
    size_t got, space;
    do {
        if (*used >= segment->capacity) {
            const size_t grown = *used + (*used < FIRST_BYTES ? FIRST_BYTES : *used);
            PD_TRY(reserve(&segment->bytes, &segment->capacity, grown < most ? grown : most, err));
        }
        space = (segment->capacity < most ? segment->capacity : most) - *used;
        PD_TRY(pd_byte_stream_read(r->stream, segment->bytes + *used, space, &got, err));
        *used += got;
    } while (got == space && *used < most);
    *ret_at_end = got < space;
    return PD_OK;
}

/* ---- text ---- */

/* Converts CRLF to LF in place. Returns the new length; a final CR stays. */
static size_t drop_returns(unsigned char *bytes, size_t count)
{
    unsigned char *from = memchr(bytes, '\r', count), *to = from, *end = bytes + count;
    if (!from) return count;
    for (; from < end; from++)
        if (*from != '\r' || from + 1 == end || from[1] != '\n') *to++ = *from;
    return (size_t)(to - bytes);
}

static pd_status add_text(struct pd_segment *segment, size_t start, size_t bytes, bool ends, struct pd_error *err)
{
    const struct pd_document_piece piece = {(const char *)segment->bytes + start, bytes, ends, segment->file, 0, NULL};
    return bytes || ends ? segment_add(segment, &piece, err) : PD_OK;
}

static void count_crlf(struct pd_document_reader *r)
{
    if (r->has_crlf) return;
    r->has_crlf = true;
    if (!r->progress.crlf_files++) r->progress.first_crlf = r->file;
}

static pd_status fill_text(struct pd_document_reader *r, struct pd_segment *segment, bool *ret_at_end, struct pd_error *err)
{
    size_t used = r->carried_bytes;
    bool at_end;
    PD_TRY(reserve(&segment->bytes, &segment->capacity, used + FIRST_BYTES, err));
    if (used) memcpy(segment->bytes, r->carried, used);
    const size_t fresh = used;
    if (r->return_waits) segment->bytes[used++] = '\r';
    PD_TRY(read_up_to(r, segment, PD_DOCUMENTS_PIECE_MAX, &used, &at_end, err));
    const size_t kept = drop_returns(segment->bytes + fresh, used - fresh);
    if (kept < used - fresh) count_crlf(r);
    used = fresh + kept;
    r->return_waits = !at_end && used > fresh && segment->bytes[used - 1] == '\r';
    segment->used = used - r->return_waits;
    *ret_at_end = at_end;
    size_t start = 0;
    const unsigned char *found;
    while (r->separator &&
           (found = memmem(segment->bytes + start, segment->used - start, r->separator, r->separator_bytes))) {
        const size_t at = (size_t)(found - segment->bytes);
        PD_TRY(add_text(segment, start, at - start, true, err));
        start = at + r->separator_bytes;
    }
    const size_t left = segment->used - start, apart = r->separator && !at_end ? r->separator_bytes - 1 : 0;
    const size_t end = left > apart ? left - apart : 0;
    PD_TRY(add_text(segment, start, end, at_end, err));
    return carry(r, segment->bytes + start + end, left - end, err);
}

/* ---- lines of JSON ---- */

static pd_status document_line_too_long(const char *path, uint64_t line, struct pd_error *err)
{
    PD_FAIL(err, PD_CORRUPT, "%s:%" PRIu64 ": the line is longer than %u MiB; split it, or look whether it is one", path,
            line, PD_DOCUMENTS_LINE_MAX >> 20);
}

/* Reads until there are whole lines, or the file ends. */
static pd_status read_lines(struct pd_document_reader *r, struct pd_segment *segment, bool *ret_at_end, size_t *ret_whole,
                            struct pd_error *err)
{
    size_t used = r->carried_bytes;
    PD_TRY(reserve(&segment->bytes, &segment->capacity, used + FIRST_BYTES, err));
    if (used) memcpy(segment->bytes, r->carried, used);
    for (size_t most = used + PD_DOCUMENTS_PIECE_MAX;; most *= 2) {
        const size_t before = used;
        PD_TRY(read_up_to(r, segment, most, &used, ret_at_end, err));
        const unsigned char *newline = memrchr(segment->bytes + before, '\n', used - before);
        segment->used = used;
        *ret_whole = *ret_at_end ? used : newline ? (size_t)(newline - segment->bytes) + 1 : 0;
        if (*ret_whole || *ret_at_end) return PD_OK;
        if (used > PD_DOCUMENTS_LINE_MAX) return document_line_too_long(r->list->paths[r->file], r->line, err);
    }
}

static pd_status fill_lines(struct pd_document_reader *r, struct pd_segment *segment, bool *ret_at_end, struct pd_error *err)
{
    size_t whole = 0;
    PD_TRY(read_lines(r, segment, ret_at_end, &whole, err));
    PD_TRY(carry(r, segment->bytes + whole, segment->used - whole, err));
    segment->used = whole;
    segment->first_line = r->line;
    for (const unsigned char *at = segment->bytes, *end = at + whole; (at = memchr(at, '\n', (size_t)(end - at))); at++)
        r->line++;
    return PD_OK;
}

/* ---- files ---- */

static pd_status begin_file(struct pd_document_reader *r, struct pd_error *err)
{
    PD_TRY(pd_byte_stream_open(r->list->paths[r->file], &r->stream, err));
    r->is_json = pd_byte_stream_kind(r->stream).form == PD_INPUT_JSON_LINES;
    r->return_waits = r->has_crlf = false;
    r->line = 1;
    if (pd_byte_stream_drop_mark(r->stream) && !r->progress.marked_files++) r->progress.first_marked = r->file;
    return PD_OK;
}

static void end_file(struct pd_document_reader *r)
{
    r->stored_before += pd_byte_stream_taken(r->stream);
    pd_byte_stream_close(r->stream);
    r->stream = NULL;
    r->carried_bytes = 0;
    r->file++;
}

/* *ret_more false: there was nothing left to fill it with. */
static pd_status document_reader_fill(struct pd_document_reader *r, struct pd_segment *segment, bool *ret_more,
                                      struct pd_error *err)
{
    if (segment->capacity > KEPT_BYTES_MAX) segment_deinit(segment);
    segment->used = segment->piece_count = segment->cut_count = 0;
    segment->status = PD_OK;
    while (r->stream || r->file < r->list->count) {
        bool at_end = false;
        if (!r->stream) PD_TRY(begin_file(r, err));
        segment->file = r->file;
        segment->is_json = r->is_json;
        PD_TRY((r->is_json ? fill_lines : fill_text)(r, segment, &at_end, err));
        r->progress.stored_bytes = r->stored_before + pd_byte_stream_taken(r->stream);
        if (at_end) end_file(r);
        if (!segment->used && !segment->piece_count) continue;
        *ret_more = true;
        return PD_OK;
    }
    *ret_more = false;
    return PD_OK;
}

/* list, separator: borrowed. */
static pd_status document_reader_new(const struct pd_input_list *list, const char *separator,
                                     struct pd_document_reader **ret_reader, struct pd_error *err)
{
    struct pd_document_reader *r = calloc(1, sizeof *r);
    if (!r) PD_FAIL(err, PD_NO_MEMORY, "no memory to read documents");
    r->list = list;
    r->separator = separator;
    r->separator_bytes = separator ? strlen(separator) : 0;
    *ret_reader = r;
    return PD_OK;
}

/* NULL is fine. */
static void document_reader_free(struct pd_document_reader *r)
{
    if (!r) return;
    pd_byte_stream_close(r->stream);
    free(r->carried);
    free(r);
}

/* ---- parsing and order ---- */

#define SEGMENTS_MAX 64u /* of a batch: many small files have one each */

struct batch {                                 /* written by the reader until it is full, by the caller until it is free */
    struct pd_segment *segments[SEGMENTS_MAX]; /* owned; NULL: not needed yet */
    uint32_t count;
    bool full; /* under `lock` */
    bool last;
    pd_status status; /* of the reader, after the segments */
    struct pd_error err;
    struct pd_documents_progress progress;
};

struct pd_documents {
    struct pd_input_list list;
    const char *field, *turns[2];
    bool is_rendered;
    struct pd_thread_pool *pool;
    struct pd_document_reader *reader; /* the thread's */
    struct batch batches[2];
    unsigned current; /* the one that is out, or the next that will be; the caller's */
    bool is_out;
    uint64_t stored_bytes_total;
    struct pd_document_piece *pieces; /* (piece_capacity) of the batch that is out */
    uint64_t piece_capacity;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopping; /* under `lock` */
    bool has_thread;
    pthread_t thread;
};

/* ---- reading ahead ---- */

static void fill_batch(struct pd_documents *d, struct batch *batch)
{
    size_t bytes = 0;
    bool more = true;
    batch->count = 0;
    batch->status = PD_OK;
    while (more && !batch->status && batch->count < SEGMENTS_MAX && bytes < PD_DOCUMENTS_BATCH_BYTES) {
        struct pd_segment **segment = &batch->segments[batch->count];
        if (!*segment) *segment = calloc(1, sizeof **segment);
        batch->status = PD_ALLOCATED(*segment, &batch->err, "no memory to read documents");
        if (!batch->status) batch->status = document_reader_fill(d->reader, *segment, &more, &batch->err);
        if (batch->status || !more) break;
        bytes += (*segment)->used;
        batch->count++;
    }
    batch->progress = d->reader->progress;
    batch->progress.stored_bytes_total = d->stored_bytes_total;
    batch->last = !more || batch->status;
}

static void *read_ahead(void *context)
{
    struct pd_documents *d = context;
    bool last = false;
    for (unsigned i = 1; !last; i ^= 1) {
        struct batch *batch = &d->batches[i];
        pthread_mutex_lock(&d->lock);
        while (batch->full && !d->stopping)
            pthread_cond_wait(&d->changed, &d->lock);
        const bool stopping = d->stopping;
        pthread_mutex_unlock(&d->lock);
        if (stopping) break;
        fill_batch(d, batch);
        last = batch->last;
        pthread_mutex_lock(&d->lock);
        batch->full = true;
        pthread_cond_broadcast(&d->changed);
        pthread_mutex_unlock(&d->lock);
    }
    return NULL;
}

/* ---- parsing ---- */

/* A line of turns: its strings replace it, one after the other. */
struct turns_line {
    struct pd_segment *segment;
    unsigned char *line;
    size_t bytes;
    bool has_first;
};

static pd_status take_turn(void *context, const char *text, size_t bytes, struct pd_error *err)
{
    struct turns_line *l = context;
    struct pd_segment *segment = l->segment;
    if (l->has_first) {
        if (!pd_grow(&segment->cuts, segment->cut_count, sizeof *segment->cuts))
            PD_FAIL(err, PD_NO_MEMORY, "no memory for %u turns", segment->cut_count);
        segment->cuts[segment->cut_count++] = (uint32_t)l->bytes;
    }
    l->has_first = true;
    memcpy(l->line + l->bytes, text, bytes);
    l->bytes += bytes;
    return PD_OK;
}

static pd_status parse_turns(struct pd_documents *d, struct pd_segment *segment, unsigned char *line, size_t bytes,
                             struct pd_document_piece *piece, struct pd_error *err)
{
    struct turns_line l = {.segment = segment, .line = line};
    const uint32_t first = segment->cut_count;
    PD_TRY(pd_json_take_strings((char *)line, bytes, d->turns, d->turns[1] ? 2 : 1, take_turn, &l, err));
    if (!pd_grow(&segment->turns, segment->piece_count, sizeof *segment->turns))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %u documents", segment->piece_count + 1);
    segment->turns[segment->piece_count] = (struct pd_turns){NULL, segment->cut_count - first, d->is_rendered};
    piece->bytes = l.bytes;
    return PD_OK;
}

static pd_status parse_text(const struct pd_documents *d, unsigned char *line, size_t bytes, struct pd_document_piece *piece,
                            struct pd_error *err)
{
    struct pd_json_document *document;
    const char *text;
    PD_TRY(pd_json_parse_member((char *)line, bytes, d->field, &document, &text, &piece->bytes, err));
    PD_CHECK(piece->bytes <= bytes);
    memcpy(line, text, piece->bytes);
    pd_json_document_free(document);
    return PD_OK;
}

/* The string replaces its line, which is never shorter. */
static pd_status parse_line(struct pd_documents *d, struct pd_segment *segment, unsigned char *line, size_t bytes,
                            uint64_t number, struct pd_error *err)
{
    struct pd_document_piece piece = {(char *)line, 0, true, segment->file, number, NULL};
    struct pd_error cause;
    if (bytes > PD_DOCUMENTS_LINE_MAX) return document_line_too_long(d->list.paths[segment->file], number, err);
    const pd_status status =
        d->turns[0] ? parse_turns(d, segment, line, bytes, &piece, &cause) : parse_text(d, line, bytes, &piece, &cause);
    const char *path = d->list.paths[segment->file];
    if (status == PD_NOT_FOUND)
        PD_FAIL(err, PD_INVALID, "%s:%" PRIu64 ": %s; name the field of the text with %s", path, number, cause.message,
                !d->turns[0]  ? "--field"
                : d->turns[1] ? "--prompt and --completion"
                              : "--turns");
    if (status) PD_FAIL(err, status, "%s:%" PRIu64 ": %s", path, number, cause.message);
    return segment_add(segment, &piece, err);
}

static bool is_blank(const unsigned char *line, size_t bytes)
{
    while (bytes && strchr(" \t\r", line[bytes - 1]) && line[bytes - 1])
        bytes--;
    return bytes == 0;
}

static void parse_segment(void *context, uint64_t index)
{
    struct pd_documents *d = context;
    struct pd_segment *segment = d->batches[d->current].segments[index];
    if (!segment->is_json) return;
    uint64_t number = segment->first_line;
    unsigned char *end = segment->bytes + segment->used;
    for (unsigned char *line = segment->bytes; line < end && !segment->status; number++) {
        unsigned char *newline = memchr(line, '\n', (size_t)(end - line));
        const size_t bytes = (size_t)((newline ? newline : end) - line);
        if (!is_blank(line, bytes)) segment->status = parse_line(d, segment, line, bytes, number, &segment->err);
        line += bytes + 1;
    }
}

/* Nothing moves any more: the pieces get their turns, and these their cuts. */
static void give_turns(struct pd_segment *segment, struct pd_document_piece *pieces)
{
    const uint32_t *cuts = segment->cuts;
    for (uint32_t i = 0; i < segment->piece_count; i++) {
        segment->turns[i].cuts = cuts;
        pieces[i].turns = &segment->turns[i];
        cuts += segment->turns[i].count;
    }
}

/* All pieces of the batch, in order. */
static pd_status gather(struct pd_documents *d, const struct batch *batch, uint32_t *ret_count, struct pd_error *err)
{
    uint64_t count = 0, at = 0;
    for (uint32_t i = 0; i < batch->count; i++)
        count += batch->segments[i]->piece_count;
    if (count > d->piece_capacity) {
        struct pd_document_piece *grown = reallocarray(d->pieces, count, sizeof *grown);
        if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for %" PRIu64 " documents", count);
        d->pieces = grown;
        d->piece_capacity = count;
    }
    for (uint32_t i = 0; i < batch->count; i++) {
        struct pd_segment *segment = batch->segments[i];
        if (segment->piece_count) memcpy(d->pieces + at, segment->pieces, segment->piece_count * sizeof *d->pieces);
        if (d->turns[0]) give_turns(segment, d->pieces + at);
        at += segment->piece_count;
    }
    *ret_count = (uint32_t)count;
    return PD_OK;
}

static void give_back(struct pd_documents *d)
{
    pthread_mutex_lock(&d->lock);
    d->batches[d->current].full = false;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    d->current ^= 1;
    d->is_out = false;
}

static struct batch *await(struct pd_documents *d)
{
    struct batch *batch = &d->batches[d->current];
    pthread_mutex_lock(&d->lock);
    while (!batch->full)
        pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
    return batch;
}

pd_status pd_documents_next(struct pd_documents *d, const struct pd_document_piece **ret_pieces, uint32_t *ret_count,
                            struct pd_error *err)
{
    uint32_t count = 0;
    while (!count && !(d->is_out && d->batches[d->current].last)) { /* a batch may be blank lines */
        if (d->is_out) give_back(d);
        const struct batch *batch = await(d);
        d->is_out = true;
        pd_parallel(d->pool, batch->count, parse_segment, d);
        /* The first error in text order. */
        const struct pd_error *cause = &batch->err;
        pd_status status = batch->status;
        for (uint32_t i = batch->count; i-- > 0;)
            if (batch->segments[i]->status) status = batch->segments[i]->status, cause = &batch->segments[i]->err;
        if (status && err) *err = *cause;
        PD_TRY(status);
        PD_TRY(gather(d, batch, &count, err));
    }
    *ret_pieces = d->pieces;
    *ret_count = count;
    return PD_OK;
}

/* ---- opening ---- */

static pd_status documents_look_at(struct pd_documents *d, const char *path, struct pd_error *err)
{
    struct stat st;
    struct pd_byte_stream *stream;
    PD_TRY(pd_byte_stream_open(path, &stream, err));
    const struct pd_input_kind kind = pd_byte_stream_kind(stream);
    pd_byte_stream_close(stream);
    if (kind.form != PD_INPUT_TEXT && kind.form != PD_INPUT_JSON_LINES) return pd_input_refuse(path, kind.what, err);
    if (d->turns[0] && kind.form != PD_INPUT_JSON_LINES)
        PD_FAIL(err, PD_INVALID,
                "%s has no JSON lines, whose fields --prompt, --completion and --turns name; leave them out", path);
    if (stat(path, &st) != 0) PD_FAIL_ERRNO(err, errno, "%s", path);
    d->stored_bytes_total += (uint64_t)st.st_size;
    return PD_OK;
}

static pd_status documents_begin(struct pd_documents *d, const struct pd_documents_options *options, struct pd_error *err)
{
    for (uint32_t i = 0; i < options->input_count; i++)
        PD_TRY(pd_input_list_add(&d->list, options->inputs[i], false, err));
    if (!d->list.count) PD_FAIL(err, PD_INVALID, "no input file is named");
    for (uint32_t i = 0; i < d->list.count; i++)
        PD_TRY(documents_look_at(d, d->list.paths[i], err));
    PD_TRY(document_reader_new(&d->list, options->separator, &d->reader, err));
    fill_batch(d, &d->batches[0]);
    d->batches[0].full = true;
    if (d->batches[0].last) return PD_OK;
    const int failed = pd_thread_start(&d->thread, NULL, read_ahead, d);
    if (failed) PD_FAIL_THREAD(err, failed, "reading ahead");
    d->has_thread = true;
    return PD_OK;
}

pd_status pd_documents_open(const struct pd_documents_options *options, struct pd_documents **ret_documents,
                            struct pd_error *err)
{
    PD_CHECK(!options->separator || (*options->separator && strlen(options->separator) < PD_DOCUMENTS_PIECE_MAX / 2));
    struct pd_documents *d = calloc(1, sizeof *d);
    if (!d) PD_FAIL(err, PD_NO_MEMORY, "no memory to read documents");
    d->field = options->field ? options->field : "text";
    d->turns[0] = options->turns[0];
    d->turns[1] = options->turns[1];
    d->is_rendered = options->is_rendered;
    d->pool = options->pool;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    pd_status status = documents_begin(d, options, err);
    if (status) {
        pd_documents_close(d);
        return status;
    }
    *ret_documents = d;
    return PD_OK;
}

void pd_documents_close(struct pd_documents *d)
{
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    d->stopping = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    if (d->has_thread) pthread_join(d->thread, NULL);
    for (unsigned b = 0; b < 2; b++)
        for (uint32_t i = 0; i < SEGMENTS_MAX && d->batches[b].segments[i]; i++) {
            segment_deinit(d->batches[b].segments[i]);
            free(d->batches[b].segments[i]);
        }
    document_reader_free(d->reader);
    pd_input_list_deinit(&d->list);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d->pieces);
    free(d);
}

const char *pd_documents_path(const struct pd_documents *d, uint32_t file)
{
    return d->list.paths[file];
}

const char *pd_documents_note(const struct pd_documents *d, uint32_t i)
{
    return i < d->list.note_count ? d->list.notes[i] : NULL;
}

struct pd_documents_progress pd_documents_progress(const struct pd_documents *d)
{
    return d->batches[d->current].progress;
}
