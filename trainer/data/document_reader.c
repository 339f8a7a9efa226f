/* What is read of a file and belongs to its next segment is carried over: the beginning of a line or of a
 * separator.
 * A carriage return at the end waits apart, since what follows says whether it stays. */
#include "trainer/data/document_reader.h"
#include "ckpt/base/grow.h"

#include "trainer/data/byte_stream.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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

pd_status pd_segment_add(struct pd_segment *segment, const struct pd_document_piece *piece, struct pd_error *err)
{
    if (!pd_grow(&segment->pieces, segment->piece_count, sizeof *segment->pieces))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %u documents", segment->piece_count + 1);
    segment->pieces[segment->piece_count++] = *piece;
    return PD_OK;
}

void pd_segment_deinit(struct pd_segment *segment)
{
    free(segment->bytes);
    free(segment->pieces);
    *segment = (struct pd_segment){0};
}

static pd_status carry(struct pd_document_reader *r, const unsigned char *bytes, size_t count, struct pd_error *err)
{
    PD_TRY(reserve(&r->carried, &r->carried_capacity, count, err));
    if (count) memcpy(r->carried, bytes, count);
    r->carried_bytes = count;
    return PD_OK;
}

/* Reads behind the first *used bytes until there are `most` or the file ends. Room grows with what comes: files may be small and
 * many. */
static pd_status read_up_to(struct pd_document_reader *r, struct pd_segment *segment, size_t most, size_t *used,
                            bool *ret_at_end, struct pd_error *err)
{
    size_t got, room;
    do {
        if (*used >= segment->capacity) {
            const size_t grown = *used + (*used < FIRST_BYTES ? FIRST_BYTES : *used);
            PD_TRY(reserve(&segment->bytes, &segment->capacity, grown < most ? grown : most, err));
        }
        room = (segment->capacity < most ? segment->capacity : most) - *used;
        PD_TRY(pd_byte_stream_read(r->stream, segment->bytes + *used, room, &got, err));
        *used += got;
    } while (got == room && *used < most);
    *ret_at_end = got < room;
    return PD_OK;
}

/* ---- text ---- */

/* CRLF becomes LF, in place. Returns how many bytes are left; a last CR stays. */
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
    const struct pd_document_piece piece = {(const char *)segment->bytes + start, bytes, ends, segment->file, 0};
    return bytes || ends ? pd_segment_add(segment, &piece, err) : PD_OK;
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

pd_status pd_document_line_too_long(const char *path, uint64_t line, struct pd_error *err)
{
    PD_FAIL(err, PD_CORRUPT, "%s:%" PRIu64 ": the line is longer than %u MiB; split it, or look whether it is one", path,
            line, PD_DOCUMENTS_LINE_MAX >> 20);
}

/* Reads until whole lines are there, or the end of the file. */
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
        if (used > PD_DOCUMENTS_LINE_MAX) return pd_document_line_too_long(r->list->paths[r->file], r->line, err);
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

pd_status pd_document_reader_fill(struct pd_document_reader *r, struct pd_segment *segment, bool *ret_more,
                                  struct pd_error *err)
{
    if (segment->capacity > KEPT_BYTES_MAX) pd_segment_deinit(segment);
    segment->used = segment->piece_count = 0;
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

pd_status pd_document_reader_new(const struct pd_input_list *list, const char *separator,
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

void pd_document_reader_free(struct pd_document_reader *r)
{
    if (!r) return;
    pd_byte_stream_close(r->stream);
    free(r->carried);
    free(r);
}

struct pd_documents_progress pd_document_reader_progress(const struct pd_document_reader *r)
{
    return r->progress;
}
