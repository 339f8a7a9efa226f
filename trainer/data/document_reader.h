/* The serial half of documents.h: files into segments, which are text cut into pieces, or whole lines of JSON that wait to be
 * parsed.
 *   threads  one at a time */
#pragma once

#include "trainer/data/documents.h"
#include "trainer/data/input_list.h"

struct pd_segment {       /* zeroed: empty; its memory is used again */
    unsigned char *bytes; /* (used, capacity) owned */
    size_t used, capacity;
    uint32_t file;
    bool is_json;
    uint64_t first_line;              /* of JSON */
    struct pd_document_piece *pieces; /* (piece_count) owned; their text lies in `bytes` */
    uint32_t piece_count;
    pd_status status; /* of parsing */
    struct pd_error err;
};

PD_MUST_USE pd_status pd_segment_add(struct pd_segment *segment, const struct pd_document_piece *piece,
                                     struct pd_error *err);
void pd_segment_deinit(struct pd_segment *segment);

struct pd_document_reader;

/* list, separator: borrowed. */
PD_MUST_USE pd_status pd_document_reader_new(const struct pd_input_list *list, const char *separator,
                                             struct pd_document_reader **ret_reader, struct pd_error *err);
void pd_document_reader_free(struct pd_document_reader *reader); /* NULL is fine */
/* *ret_more false: there was nothing left to fill it with. */
PD_MUST_USE pd_status pd_document_reader_fill(struct pd_document_reader *reader, struct pd_segment *segment, bool *ret_more,
                                              struct pd_error *err);
pd_status pd_document_line_too_long(const char *path, uint64_t line, struct pd_error *err);
struct pd_documents_progress pd_document_reader_progress(const struct pd_document_reader *reader);
