/* Reads documents from text and JSON lines, plain or compressed with gzip or zstd.
 *
 * A text file is one document, or several divided by `separator`. A line of JSON lines is one document: the string `field`
 * of its object. Blank lines are skipped. In text, a byte order mark at the start is dropped and CRLF becomes LF; JSON
 * strings are unchanged. An empty document is an empty piece. Documents come in input order, in pieces, because one may
 * exceed memory.
 *   work     opening reads the first batch; for more, a thread reads and decompresses ahead; the pool parses lines
 *   memory   two batches of about PD_DOCUMENTS_BATCH_BYTES; more for a longer JSON line
 *   errors   PD_INVALID: a file of another kind, with the command that converts it to text; PD_CORRUPT "file:line: ...": a
 *            line without an object with such a string, or longer than PD_DOCUMENTS_LINE_MAX; compressed data damaged or cut
 *            off; PD_IO
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
    const char *field;           /* for JSON lines; NULL: "text". Borrowed until close, like the next ones */
    const char *turns[2];        /* instead: fields whose strings are turns, see struct pd_turns; NULL: none */
    bool is_rendered;            /* as in struct pd_turns */
    const char *separator;       /* between documents in a text file; NULL: none */
    struct pd_thread_pool *pool; /* must be idle during pd_documents_next; NULL: the caller parses */
};

/* A document made of strings, of which every other one has a loss: not the first, the second, not the third. */
struct pd_turns {
    const uint32_t *cuts; /* (count) bytes before the second, the third, ... string, ascending */
    uint32_t count;
    bool is_rendered; /* the text has the special tokens of a template itself */
};

struct pd_document_piece {
    const char *text;             /* (bytes) not terminated */
    size_t bytes;                 /* at most PD_DOCUMENTS_PIECE_MAX, except JSON strings */
    bool ends;                    /* this piece ends its document */
    uint32_t file;                /* index for pd_documents_path */
    uint64_t line;                /* in JSON lines, from 1; 0: text */
    const struct pd_turns *turns; /* NULL: all of it has a loss */
};

/* State at the current batch. */
struct pd_documents_progress {
    uint64_t stored_bytes, stored_bytes_total; /* of the files as stored */
    uint32_t marked_files, crlf_files;         /* files with a byte order mark; files with CRLF converted to LF */
    uint32_t first_marked, first_crlf;         /* the first of each */
};

struct pd_documents;

/* Checks the beginning of every file, so that an unreadable kind is refused before hours of work. */
PD_MUST_USE pd_status pd_documents_open(const struct pd_documents_options *options, struct pd_documents **ret_documents,
                                        struct pd_error *err);
void pd_documents_close(struct pd_documents *documents); /* NULL is fine */

/* The next pieces, in order; borrowed until the next call. *ret_count 0: the end. After an error only close may be called.
 */
PD_MUST_USE pd_status pd_documents_next(struct pd_documents *documents, const struct pd_document_piece **ret_pieces,
                                        uint32_t *ret_count, struct pd_error *err);

const char *pd_documents_path(const struct pd_documents *documents, uint32_t file);
/* Line i of the notes on which files a directory or glob stands for; NULL after the last. */
const char *pd_documents_note(const struct pd_documents *documents, uint32_t i);
struct pd_documents_progress pd_documents_progress(const struct pd_documents *documents);
