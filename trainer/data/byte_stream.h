/* The bytes of a file from its first to its last, decompressed where it is compressed with gzip or zstd (several members or
 * frames one behind the other are one stream).
 *   errors   PD_CORRUPT: the compressed data is damaged or ends too early; PD_INVALID: no regular file, or compressed twice
 *   threads  one at a time */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pd_byte_stream;

PD_MUST_USE pd_status pd_byte_stream_open(const char *path, struct pd_byte_stream **ret_stream, struct pd_error *err);
void pd_byte_stream_close(struct pd_byte_stream *stream); /* NULL is fine */

/* What the bytes are: neither GZIP nor ZSTD, which `compression` tells (TEXT: none). */
struct pd_input_kind pd_byte_stream_kind(const struct pd_byte_stream *stream);
enum pd_input_form pd_byte_stream_compression(const struct pd_byte_stream *stream);
uint64_t pd_byte_stream_taken(const struct pd_byte_stream *stream); /* bytes of the file that were read */

/* Before the first read: passes over a UTF-8 byte order mark. Returns whether there is one. */
bool pd_byte_stream_drop_mark(struct pd_byte_stream *stream);
/* Fills data (bytes), unless the stream ends before. */
PD_MUST_USE pd_status pd_byte_stream_read(struct pd_byte_stream *stream, void *data, size_t bytes, size_t *ret_got,
                                          struct pd_error *err);

/* What a file that somebody names as text is, by its first bytes and its name. Text and JSON lines are read; what is known to
 * be something else is refused by name. */
#define PD_INPUT_HEAD_BYTES 4096u /* that are looked at */

enum pd_input_form {
    PD_INPUT_TEXT,
    PD_INPUT_JSON_LINES,
    PD_INPUT_GZIP,
    PD_INPUT_ZSTD,
    PD_INPUT_TOKENS,
    PD_INPUT_DOUBTFUL, /* might be text all the same, if somebody says so */
    PD_INPUT_OTHER
};

struct pd_input_kind {
    enum pd_input_form form;
    const char *what; /* "a zip archive", static */
};

/* PD_INVALID: the path is what is named, and none of what is read. */
pd_status pd_input_refuse(const char *path, const char *what, struct pd_error *err);
