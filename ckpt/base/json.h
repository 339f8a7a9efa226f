/* Writes JSON (--json and .jsonl) and reads it (with Jansson).
 *
 * A double is written as the shortest text that reads back to the same bits. JSON has no infinities and no NaN: they
 * become the strings "inf", "-inf", "nan". Integers beyond 63 bits become strings of digits. Each stray byte of invalid
 * UTF-8 becomes U+FFFD.
 *   threads  a writer or document belongs to one thread at a time */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define PD_JSON_DEPTH_MAX 64

struct pd_json_writer { /* must not move after init */
    FILE *file;         /* memory stream over the members below; NULL: out of memory, which finish reports */
    char *text;
    size_t bytes;
    unsigned depth, indent;
    bool is_first; /* nothing written yet in the innermost array or object, or at the top */
    char closers[PD_JSON_DEPTH_MAX];
};

/* indent 0: one line. Unbalanced or misplaced calls are bugs (PD_CHECK). `key` is NULL inside arrays and at the top. */
void pd_json_writer_init(struct pd_json_writer *writer, unsigned indent);
void pd_json_writer_init_object(struct pd_json_writer *writer, unsigned indent); /* and begins an object */
void pd_json_writer_deinit(struct pd_json_writer *writer); /* also after a failed finish; NULL is fine */
void pd_json_object_begin(struct pd_json_writer *writer, const char *key);
void pd_json_object_end(struct pd_json_writer *writer);
void pd_json_array_begin(struct pd_json_writer *writer, const char *key);
void pd_json_array_end(struct pd_json_writer *writer);
void pd_json_string(struct pd_json_writer *writer, const char *key, const char *text); /* NULL writes null */
void pd_json_u64(struct pd_json_writer *writer, const char *key, uint64_t value);
void pd_json_i64(struct pd_json_writer *writer, const char *key, int64_t value);
/* The same with a decimal point even if it is whole, for readers that tell integers from floats. */
void pd_json_fraction(struct pd_json_writer *writer, const char *key, double value);
void pd_json_double(struct pd_json_writer *writer, const char *key, double value);
/* Writes null for infinity and NaN. For output to plotting programs, which accept only numbers. */
void pd_json_measured(struct pd_json_writer *writer, const char *key, double value);
void pd_json_bool(struct pd_json_writer *writer, const char *key, bool value);
void pd_json_null(struct pd_json_writer *writer, const char *key);
void pd_json_hex64(struct pd_json_writer *writer, const char *key, uint64_t value); /* "0123456789abcdef": for digests */

/* Write several members of an object: PD_JSON_U64S(w, {"dp", l->dp}, {"tp", l->tp}). */
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

/* Ends all open arrays and objects. Returns the terminated text, with a newline at its end, borrowed until deinit.
 * PD_NO_MEMORY if any call ran out of memory. */
PD_MUST_USE pd_status pd_json_writer_finish(struct pd_json_writer *writer, const char **ret_text, size_t *ret_bytes,
                                            struct pd_error *err);

/* Reading. Values are borrowed from their document. */
struct pd_json_document;
struct pd_json_value;

/* PD_CORRUPT gives line and column; `name` names the input in messages. A duplicate key in one object is an error. */
PD_MUST_USE pd_status pd_json_parse(const char *name, const char *text, size_t bytes, struct pd_json_document **ret_document,
                                    struct pd_error *err);
void pd_json_document_free(struct pd_json_document *document);
const struct pd_json_value *pd_json_root(const struct pd_json_document *document);

enum pd_json_type { PD_JSON_NULL, PD_JSON_BOOL, PD_JSON_INTEGER, PD_JSON_REAL, PD_JSON_TEXT, PD_JSON_ARRAY, PD_JSON_OBJECT };
enum pd_json_type pd_json_type(const struct pd_json_value *value);

/* Iterates over members in text order: start with *cursor NULL. False after the last, or if `object` is not an object. */
bool pd_json_next(const struct pd_json_value *object, void **cursor, const char **ret_key,
                  const struct pd_json_value **ret_value);

const struct pd_json_value *pd_json_member(const struct pd_json_value *object, const char *key); /* NULL: absent */
size_t pd_json_count(const struct pd_json_value *array);                                         /* 0: not an array */
const struct pd_json_value *pd_json_at(const struct pd_json_value *array, size_t index);         /* index < count */

/* Reads the string `key` of one object, such as a line of JSON lines; borrowed from the document. It may hold zero bytes.
 *   errors  PD_CORRUPT: not JSON, an object, a string; PD_NOT_FOUND: no such member, the message lists others; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_json_parse_member(const char *text, size_t bytes, const char *key,
                                           struct pd_json_document **ret_document, const char **ret_text, size_t *ret_bytes,
                                           struct pd_error *err);

/* Gives the strings of `keys` (count) of one object, such as a line of JSON lines, in that order; of an array of strings
 * each. They are borrowed during the call.   errors  as pd_json_parse_member, and of `take` */
PD_MUST_USE pd_status pd_json_take_strings(const char *text, size_t bytes, const char *const *keys, uint32_t count,
                                           pd_status (*take)(void *context, const char *text, size_t bytes,
                                                             struct pd_error *err),
                                           void *context, struct pd_error *err);

const char *pd_json_text(const struct pd_json_value *value); /* NULL if it is not a string */
/* False, with *ret untouched, for another type. pd_json_is_u64 takes integers >= 0; pd_json_is_number integers and reals. */
bool pd_json_is_u64(const struct pd_json_value *value, uint64_t *ret);
bool pd_json_is_number(const struct pd_json_value *value, double *ret);
bool pd_json_is_bool(const struct pd_json_value *value, bool *ret);
/* Return a member of that type, else `otherwise` or NULL. Object and key may be NULL, as may values above. */
double pd_json_number_or(const struct pd_json_value *object, const char *key, double otherwise);
const char *pd_json_member_text(const struct pd_json_value *object, const char *key);
