/* JSON out (--json and .jsonl), and JSON in (over Jansson).
 *
 * A double is written as the shortest text that reads back to the same bits. JSON has no infinities and no NaN: they are
 * the strings "inf", "-inf", "nan". Integers beyond 63 bits are strings of digits. Text that is not UTF-8 gets U+FFFD for
 * each stray byte.
 *   threads  a writer or document belongs to one thread at a time */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define PD_JSON_DEPTH_MAX 64

struct pd_json_writer { /* stays where it was initialised */
    FILE *file;         /* over what follows; NULL: out of memory, which finish tells */
    char *text;
    size_t bytes;
    unsigned depth, indent;
    bool is_first; /* nothing written yet in the innermost array or object, or at the top */
    char closers[PD_JSON_DEPTH_MAX];
};

/* indent 0: one line. Unbalanced or misplaced calls are bugs (PD_CHECK). `key` is NULL inside arrays and at the top. */
void pd_json_writer_init(struct pd_json_writer *writer, unsigned indent);
void pd_json_writer_init_object(struct pd_json_writer *writer, unsigned indent); /* an object is begun */
void pd_json_writer_deinit(struct pd_json_writer *writer); /* also after a failed finish; NULL is fine */
void pd_json_object_begin(struct pd_json_writer *writer, const char *key);
void pd_json_object_end(struct pd_json_writer *writer);
void pd_json_array_begin(struct pd_json_writer *writer, const char *key);
void pd_json_array_end(struct pd_json_writer *writer);
void pd_json_string(struct pd_json_writer *writer, const char *key, const char *text); /* NULL writes null */
void pd_json_u64(struct pd_json_writer *writer, const char *key, uint64_t value);
void pd_json_i64(struct pd_json_writer *writer, const char *key, int64_t value);
void pd_json_double(struct pd_json_writer *writer, const char *key, double value);
/* For people and plots, whose programs know numbers or nothing: null where it is infinite or NaN. */
void pd_json_measured(struct pd_json_writer *writer, const char *key, double value);
void pd_json_bool(struct pd_json_writer *writer, const char *key, bool value);
void pd_json_null(struct pd_json_writer *writer, const char *key);
void pd_json_hex64(struct pd_json_writer *writer, const char *key, uint64_t value); /* "0123456789abcdef": digests */

/* Members of an object: PD_JSON_U64S(w, {"dp", l->dp}, {"tp", l->tp}). */
#define PD_JSON_U64S(writer, ...) pd_json_u64s(writer, (const struct pd_json_u64_member[]){__VA_ARGS__, {0}})
#define PD_JSON_STRINGS(writer, ...) pd_json_strings(writer, (const struct pd_json_string_member[]){__VA_ARGS__, {0}})
#define PD_JSON_DOUBLES(writer, ...) pd_json_doubles(writer, (const struct pd_json_double_member[]){__VA_ARGS__, {0}})
struct pd_json_u64_member {
    const char *key;
    uint64_t value;
};
struct pd_json_string_member {
    const char *key, *value;
};
struct pd_json_double_member {
    const char *key;
    double value;
};
void pd_json_u64s(struct pd_json_writer *writer, const struct pd_json_u64_member *members);
void pd_json_strings(struct pd_json_writer *writer, const struct pd_json_string_member *members);
void pd_json_doubles(struct pd_json_writer *writer, const struct pd_json_double_member *members);

/* Ends the arrays and objects that are open. The text, terminated, with a newline at its end; borrowed until deinit.
 * PD_NO_MEMORY if any call ran out. */
PD_MUST_USE pd_status pd_json_writer_finish(struct pd_json_writer *writer, const char **ret_text, size_t *ret_bytes,
                                            struct pd_error *err);

/* Reading. Values are borrowed from their document. */
struct pd_json_document;
struct pd_json_value;

/* PD_CORRUPT with line and column; `name` says what was read. Twice the same key in one object is an error. */
PD_MUST_USE pd_status pd_json_parse(const char *name, const char *text, size_t bytes, struct pd_json_document **ret_document,
                                    struct pd_error *err);
void pd_json_document_free(struct pd_json_document *document);
const struct pd_json_value *pd_json_root(const struct pd_json_document *document);

enum pd_json_type { PD_JSON_NULL, PD_JSON_BOOL, PD_JSON_INTEGER, PD_JSON_REAL, PD_JSON_TEXT, PD_JSON_ARRAY, PD_JSON_OBJECT };
enum pd_json_type pd_json_type(const struct pd_json_value *value);

/* Members in the order of the text: start with *cursor NULL; false after the last, and where it is no object. */
bool pd_json_next(const struct pd_json_value *object, void **cursor, const char **ret_key,
                  const struct pd_json_value **ret_value);

const struct pd_json_value *pd_json_member(const struct pd_json_value *object, const char *key); /* NULL: there is none */
size_t pd_json_count(const struct pd_json_value *array);                                         /* 0: it is no array */
const struct pd_json_value *pd_json_at(const struct pd_json_value *array, size_t index);         /* index below the count */

/* The string `key` of one object, as in a line of JSON lines; borrowed from the document. It may hold zero bytes.
 *   errors  PD_CORRUPT: no JSON, no object, no string; PD_NOT_FOUND: no such member, the message names others; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_json_parse_member(const char *text, size_t bytes, const char *key,
                                           struct pd_json_document **ret_document, const char **ret_text, size_t *ret_bytes,
                                           struct pd_error *err);

const char *pd_json_text(const struct pd_json_value *value); /* of a string; NULL: it is something else */
/* False, and nothing set, where it is something else. A number is integer or real, an unsigned one an integer of 0 and more. */
bool pd_json_is_u64(const struct pd_json_value *value, uint64_t *ret);
bool pd_json_is_number(const struct pd_json_value *value, double *ret);
bool pd_json_is_bool(const struct pd_json_value *value, bool *ret);
