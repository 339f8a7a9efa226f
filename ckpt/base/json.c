#include "ckpt/base/json.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/utf8.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- writing ---- */

void pd_json_writer_init(struct pd_json_writer *writer, unsigned indent)
{
    memset(writer, 0, sizeof *writer);
    writer->indent = indent;
    writer->first = true;
}

void pd_json_writer_deinit(struct pd_json_writer *writer)
{
    if (!writer) return;
    free(writer->text);
    writer->text = NULL;
    writer->bytes = writer->capacity = 0;
}

static void append(struct pd_json_writer *writer, const char *text, size_t bytes)
{
    size_t needed;
    if (writer->failed || !pd_checked_add_size(writer->bytes, bytes, &needed) || needed > SIZE_MAX / 2 - 1) {
        writer->failed = true;
        return;
    }
    if (needed + 1 > writer->capacity) {
        size_t capacity = writer->capacity ? writer->capacity : 256;
        while (capacity < needed + 1)
            capacity *= 2;
        char *grown = realloc(writer->text, capacity);
        if (!grown) {
            writer->failed = true;
            return;
        }
        writer->text = grown;
        writer->capacity = capacity;
    }
    memcpy(writer->text + writer->bytes, text, bytes);
    writer->bytes = needed;
    writer->text[needed] = '\0';
}

static void append_text(struct pd_json_writer *writer, const char *text)
{
    append(writer, text, strlen(text));
}

static void append_line(struct pd_json_writer *writer)
{
    if (!writer->indent) return;
    append(writer, "\n", 1);
    for (unsigned i = 0; i < writer->depth * writer->indent; i++)
        append(writer, " ", 1);
}

static void append_escaped(struct pd_json_writer *writer, unsigned char byte)
{
    static const char short_forms[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (const char *form = short_forms; *form; form += 2) {
        if ((unsigned char)form[0] == byte) {
            char text[2] = {'\\', form[1]};
            append(writer, text, 2);
            return;
        }
    }
    char text[8];
    snprintf(text, sizeof text, "\\u%04x", byte);
    append_text(writer, text);
}

static void append_string(struct pd_json_writer *writer, const char *text, size_t bytes)
{
    const unsigned char *data = (const unsigned char *)text;
    append(writer, "\"", 1);
    size_t plain = 0;
    for (size_t i = 0; i < bytes;) {
        size_t length = 0;
        (void)pd_utf8_decode(text + i, bytes - i, &length);
        bool special = length == 0 || data[i] < 0x20 || data[i] == '"' || data[i] == '\\' || data[i] == 0x7f;
        if (!special) {
            i += length;
            continue;
        }
        append(writer, text + plain, i - plain);
        if (length == 0) {
            append_text(writer, "\\ufffd");
        } else {
            append_escaped(writer, data[i]);
        }
        plain = ++i;
    }
    append(writer, text + plain, bytes - plain);
    append(writer, "\"", 1);
}

/* Comma, line, key: everything that stands before a value. */
static void before_value(struct pd_json_writer *writer, const char *key)
{
    bool in_object = writer->depth && writer->closers[writer->depth - 1] == '}';
    PD_CHECK((key != NULL) == in_object);
    PD_CHECK(writer->depth > 0 || writer->first);
    if (!writer->first) append(writer, ",", 1);
    if (writer->depth) append_line(writer);
    if (key) {
        append_string(writer, key, strlen(key));
        append_text(writer, writer->indent ? ": " : ":");
    }
    writer->first = false;
}

static void container_begin(struct pd_json_writer *writer, const char *key, char opener, char closer)
{
    before_value(writer, key);
    PD_CHECK(writer->depth < PD_JSON_DEPTH_MAX);
    append(writer, &opener, 1);
    writer->closers[writer->depth++] = closer;
    writer->first = true;
}

static void container_end(struct pd_json_writer *writer, char closer)
{
    PD_CHECK(writer->depth && writer->closers[writer->depth - 1] == closer);
    writer->depth--;
    if (!writer->first) append_line(writer);
    append(writer, &closer, 1);
    writer->first = false;
}

void pd_json_object_begin(struct pd_json_writer *writer, const char *key)
{
    container_begin(writer, key, '{', '}');
}

void pd_json_object_end(struct pd_json_writer *writer)
{
    container_end(writer, '}');
}

void pd_json_array_begin(struct pd_json_writer *writer, const char *key)
{
    container_begin(writer, key, '[', ']');
}

void pd_json_array_end(struct pd_json_writer *writer)
{
    container_end(writer, ']');
}

void pd_json_string_n(struct pd_json_writer *writer, const char *key, const char *text, size_t bytes)
{
    before_value(writer, key);
    append_string(writer, text, bytes);
}

void pd_json_string(struct pd_json_writer *writer, const char *key, const char *text)
{
    if (text) {
        pd_json_string_n(writer, key, text, strlen(text));
    } else {
        pd_json_null(writer, key);
    }
}

void pd_json_u64(struct pd_json_writer *writer, const char *key, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, value > INT64_MAX ? "\"%" PRIu64 "\"" : "%" PRIu64, value);
    before_value(writer, key);
    append_text(writer, text);
}

void pd_json_i64(struct pd_json_writer *writer, const char *key, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    before_value(writer, key);
    append_text(writer, text);
}

static bool append_not_finite(struct pd_json_writer *writer, double value)
{
    if (isfinite(value)) return false;
    append_text(writer, isnan(value) ? "\"nan\"" : value > 0 ? "\"inf\"" : "\"-inf\"");
    return true;
}

/* A decimal point of another locale would not be JSON; a bare "-0" would be read as an integer and lose its sign. */
static void append_number(struct pd_json_writer *writer, char *text)
{
    char *comma = strchr(text, ',');
    if (comma) *comma = '.';
    append_text(writer, strcmp(text, "-0") == 0 ? "-0.0" : text);
}

void pd_json_double(struct pd_json_writer *writer, const char *key, double value)
{
    before_value(writer, key);
    if (append_not_finite(writer, value)) return;
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    append_number(writer, text);
}

void pd_json_measured(struct pd_json_writer *writer, const char *key, double value)
{
    if (isfinite(value))
        pd_json_double(writer, key, value);
    else
        pd_json_null(writer, key);
}

void pd_json_bool(struct pd_json_writer *writer, const char *key, bool value)
{
    before_value(writer, key);
    append_text(writer, value ? "true" : "false");
}

void pd_json_null(struct pd_json_writer *writer, const char *key)
{
    before_value(writer, key);
    append_text(writer, "null");
}

void pd_json_hex64(struct pd_json_writer *writer, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "\"%016" PRIx64 "\"", value);
    before_value(writer, key);
    append_text(writer, text);
}

pd_status pd_json_writer_finish(struct pd_json_writer *writer, const char **ret_text, size_t *ret_bytes,
                                struct pd_error *err)
{
    PD_CHECK(writer->depth == 0 && !writer->first);
    append(writer, "\n", 1);
    if (writer->failed) PD_FAIL(err, PD_NO_MEMORY, "no memory for JSON output of more than %zu bytes", writer->bytes);
    *ret_text = writer->text;
    if (ret_bytes) *ret_bytes = writer->bytes;
    return PD_OK;
}

/* ---- reading: a pd_json_value is Jansson's json_t, never dereferenced by anybody else ---- */

struct pd_json_document {
    json_t *root;
};

static json_t *as_jansson(const struct pd_json_value *value)
{
    return (json_t *)(uintptr_t)value; /* Jansson's getters take pointers to non-const and change nothing */
}

static const struct pd_json_value *as_value(const json_t *json)
{
    return (const struct pd_json_value *)(const void *)json;
}

pd_status pd_json_parse(const char *name, const char *text, size_t bytes, struct pd_json_document **ret_document,
                        struct pd_error *err)
{
    json_error_t problem;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &problem);
    if (!root) {
        if (json_error_code(&problem) == json_error_out_of_memory)
            PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to read JSON", name);
        PD_FAIL(err, PD_CORRUPT, "%s: line %d, column %d: not valid JSON: %s", name, problem.line, problem.column,
                problem.text);
    }
    struct pd_json_document *document = malloc(sizeof *document);
    if (!document) {
        json_decref(root);
        PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to read JSON", name);
    }
    document->root = root;
    *ret_document = document;
    return PD_OK;
}

void pd_json_document_free(struct pd_json_document *document)
{
    if (!document) return;
    json_decref(document->root);
    free(document);
}

const struct pd_json_value *pd_json_root(const struct pd_json_document *document)
{
    return as_value(document->root);
}

enum pd_json_type pd_json_type_of(const struct pd_json_value *value)
{
    switch (json_typeof(as_jansson(value))) {
    case JSON_OBJECT:
        return PD_JSON_OBJECT;
    case JSON_ARRAY:
        return PD_JSON_ARRAY;
    case JSON_STRING:
        return PD_JSON_STRING;
    case JSON_INTEGER:
    case JSON_REAL:
        return PD_JSON_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return PD_JSON_BOOL;
    default:
        return PD_JSON_NULL;
    }
}

uint64_t pd_json_size(const struct pd_json_value *value)
{
    json_t *json = as_jansson(value);
    return json_is_array(json) ? json_array_size(json) : json_is_object(json) ? json_object_size(json) : 0;
}

const struct pd_json_value *pd_json_at(const struct pd_json_value *array, uint64_t index)
{
    const json_t *element = json_array_get(as_jansson(array), (size_t)index);
    PD_CHECK(element != NULL);
    return as_value(element);
}

const struct pd_json_value *pd_json_find(const struct pd_json_value *object, const char *key)
{
    return as_value(json_object_get(as_jansson(object), key));
}

bool pd_json_next(const struct pd_json_value *object, void **cursor, const char **ret_key,
                  const struct pd_json_value **ret_value)
{
    json_t *json = as_jansson(object);
    *cursor = *cursor ? json_object_iter_next(json, *cursor) : json_object_iter(json);
    if (!*cursor) return false;
    *ret_key = json_object_iter_key(*cursor);
    *ret_value = as_value(json_object_iter_value(*cursor));
    return true;
}

static const char *type_name(const struct pd_json_value *value)
{
    static const char *const names[] = {"null", "true or false", "a number", "a string", "an array", "an object"};
    return names[pd_json_type_of(value)];
}

static pd_status expected(const struct pd_json_value *value, const char *what, struct pd_error *err)
{
    const char *text = json_string_value(as_jansson(value));
    if (text) PD_FAIL(err, PD_CORRUPT, "%s was expected, \"%.80s\" is there", what, text);
    PD_FAIL(err, PD_CORRUPT, "%s was expected, %s is there", what, type_name(value));
}

pd_status pd_json_as_u64(const struct pd_json_value *value, uint64_t *ret, struct pd_error *err)
{
    const json_t *json = as_jansson(value);
    if (json_is_string(json) && pd_parse_u64(json_string_value(json), ret)) return PD_OK;
    if (!json_is_integer(json) || json_integer_value(json) < 0) return expected(value, "a whole number from 0 on", err);
    *ret = (uint64_t)json_integer_value(json);
    return PD_OK;
}

pd_status pd_json_as_i64(const struct pd_json_value *value, int64_t *ret, struct pd_error *err)
{
    const json_t *json = as_jansson(value);
    if (!json_is_integer(json)) return expected(value, "a whole number", err);
    *ret = json_integer_value(json);
    return PD_OK;
}

pd_status pd_json_as_double(const struct pd_json_value *value, double *ret, struct pd_error *err)
{
    const json_t *json = as_jansson(value);
    const char *text = json_string_value(json);
    if (json_is_number(json)) {
        *ret = json_number_value(json);
    } else if (text && strcmp(text, "nan") == 0) {
        *ret = NAN;
    } else if (text && strcmp(text, "inf") == 0) {
        *ret = INFINITY;
    } else if (text && strcmp(text, "-inf") == 0) {
        *ret = -INFINITY;
    } else {
        return expected(value, "a number", err);
    }
    return PD_OK;
}

pd_status pd_json_as_bool(const struct pd_json_value *value, bool *ret, struct pd_error *err)
{
    if (!json_is_boolean(as_jansson(value))) return expected(value, "true or false", err);
    *ret = json_is_true(as_jansson(value));
    return PD_OK;
}

pd_status pd_json_as_string(const struct pd_json_value *value, const char **ret, struct pd_error *err)
{
    if (!json_is_string(as_jansson(value))) return expected(value, "a string", err);
    *ret = json_string_value(as_jansson(value));
    return PD_OK;
}

pd_status pd_json_get(const struct pd_json_value *object, const char *key, const struct pd_json_value **ret,
                      struct pd_error *err)
{
    if (pd_json_type_of(object) != PD_JSON_OBJECT) return expected(object, "an object", err);
    const struct pd_json_value *value = pd_json_find(object, key);
    if (!value) PD_FAIL(err, PD_CORRUPT, "the key \"%s\" is missing", key);
    *ret = value;
    return PD_OK;
}

pd_status pd_json_get_double(const struct pd_json_value *object, const char *key, double *ret, struct pd_error *err)
{
    const struct pd_json_value *value = NULL;
    PD_TRY(pd_json_get(object, key, &value, err));
    return pd_error_context(err, pd_json_as_double(value, ret, err), "key \"%s\"", key);
}

pd_status pd_json_get_string(const struct pd_json_value *object, const char *key, const char **ret, struct pd_error *err)
{
    const struct pd_json_value *value = NULL;
    PD_TRY(pd_json_get(object, key, &value, err));
    return pd_error_context(err, pd_json_as_string(value, ret, err), "key \"%s\"", key);
}
