/* Reads a file from start to end, decompressing gzip or zstd (consecutive members or frames are one stream).
 *   errors   PD_CORRUPT: the compressed data is damaged or cut off; PD_INVALID: not a regular file, or compressed twice
 *   threads  one at a time */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pd_byte_stream;

PD_MUST_USE pd_status pd_byte_stream_open(const char *path, struct pd_byte_stream **ret_stream, struct pd_error *err);
void pd_byte_stream_close(struct pd_byte_stream *stream); /* NULL is fine */

/* The kind of the decompressed bytes. It is never GZIP or ZSTD: `compression` returns those (TEXT: none). */
struct pd_input_kind pd_byte_stream_kind(const struct pd_byte_stream *stream);
enum pd_input_form pd_byte_stream_compression(const struct pd_byte_stream *stream);
uint64_t pd_byte_stream_taken(const struct pd_byte_stream *stream); /* bytes of the file read so far */

/* Call before the first read: skips a UTF-8 byte order mark. Returns whether there was one. */
bool pd_byte_stream_drop_mark(struct pd_byte_stream *stream);
/* Fills data (bytes), unless the stream ends first. */
PD_MUST_USE pd_status pd_byte_stream_read(struct pd_byte_stream *stream, void *data, size_t bytes, size_t *ret_got,
                                          struct pd_error *err);

/* Detects what an input file is, by its first bytes and its name. We read text and JSON lines; known other kinds are refused
 * by name. */
#define PD_INPUT_HEAD_BYTES 4096u /* examined at most */

enum pd_input_form {
    PD_INPUT_TEXT,
    PD_INPUT_JSON_LINES,
    PD_INPUT_GZIP,
    PD_INPUT_ZSTD,
    PD_INPUT_TOKENS,
    PD_INPUT_DOUBTFUL, /* may be text, if the user says so */
    PD_INPUT_OTHER
};

struct pd_input_kind {
    enum pd_input_form form;
    const char *what; /* "a zip archive", static */
};

/* PD_INVALID: the path is `what`, which we do not read. */
pd_status pd_input_refuse(const char *path, const char *what, struct pd_error *err);
