/* Documents out of files as people have them: text and JSON lines, plain or compressed with gzip or zstd.
 *
 * A text file is one document, or several where `separator` stands between them; a line of JSON lines is one, the string
 * `field` of its object. Blank lines of JSON lines are passed over. Of text a byte order mark at the beginning is dropped and
 * CRLF becomes LF; strings of JSON are taken as they are. A document that is empty comes as an empty piece.
 * Documents come in the order of the inputs, in pieces, since one may be larger than memory.
 *   work     opening reads the first batch; where there is more, a thread of its own reads and decompresses ahead; lines are
 *            parsed by the pool
 *   memory   two batches of about PD_DOCUMENTS_BATCH_BYTES; more while a line of JSON is longer
 *   errors   PD_INVALID: a file of another kind, with the command that makes text of it; PD_CORRUPT "file:line: ...": a line
 *            that is no object with such a string, or is longer than PD_DOCUMENTS_LINE_MAX; compressed data that is damaged or
 *            cut off; PD_IO
 *   threads  one caller */
#pragma once

#include "ckpt/base/thread_pool.h"
#include <stdbool.h>

#define PD_DOCUMENTS_PIECE_MAX (1u << 20)
#define PD_DOCUMENTS_BATCH_BYTES (16u << 20)
#define PD_DOCUMENTS_LINE_MAX (128u << 20)

struct pd_documents_options {
    const char *const *inputs; /* (input_count) files, directories, globs (input_list.h); borrowed until open returns */
    uint32_t input_count;
    const char *field;           /* of JSON lines; NULL: "text". Borrowed until close, as the next two */
    const char *separator;       /* between documents of one text; NULL: none */
    struct pd_thread_pool *pool; /* free during pd_documents_next; NULL: the caller parses */
};

struct pd_document_piece {
    const char *text; /* (bytes) not terminated */
    size_t bytes;     /* at most PD_DOCUMENTS_PIECE_MAX, but for a string of JSON */
    bool ends;        /* the document */
    uint32_t file;    /* pd_documents_path */
    uint64_t line;    /* of JSON lines, from 1; 0: text */
};

/* As of the batch that is out. */
struct pd_documents_progress {
    uint64_t stored_bytes, stored_bytes_total; /* of the files, as they are stored */
    uint32_t marked_files, crlf_files;         /* that had a byte order mark; in which CRLF became LF */
    uint32_t first_marked, first_crlf;         /* of these the first */
};

struct pd_documents;

/* Looks at the beginning of every file: what is of no kind that can be read is refused before hours of work. */
PD_MUST_USE pd_status pd_documents_open(const struct pd_documents_options *options, struct pd_documents **ret_documents,
                                        struct pd_error *err);
void pd_documents_close(struct pd_documents *documents); /* NULL is fine */

/* The next pieces, in their order: borrowed until the next call. *ret_count 0: there are no more. After an error only close. */
PD_MUST_USE pd_status pd_documents_next(struct pd_documents *documents, const struct pd_document_piece **ret_pieces,
                                        uint32_t *ret_count, struct pd_error *err);

const char *pd_documents_path(const struct pd_documents *documents, uint32_t file);
/* Number i of the lines that say which files a directory or glob stands for; NULL behind the last. */
const char *pd_documents_note(const struct pd_documents *documents, uint32_t i);
struct pd_documents_progress pd_documents_progress(const struct pd_documents *documents);
