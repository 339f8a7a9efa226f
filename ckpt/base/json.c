#include "ckpt/base/json.h"

#include "ckpt/base/utf8.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <obstack.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define obstack_chunk_alloc malloc
#define obstack_chunk_free free

/* ---- writing ---- */

void pd_json_writer_init(struct pd_json_writer *w, unsigned indent)
{
    *w = (struct pd_json_writer){.indent = indent, .is_first = true};
    w->file = open_memstream(&w->text, &w->bytes);
}

void pd_json_writer_deinit(struct pd_json_writer *w)
{
    if (!w) return;
    if (w->file) fclose(w->file);
    free(w->text);
    *w = (struct pd_json_writer){0};
}

PD_PRINTF(2, 3) static void put(struct pd_json_writer *w, const char *format, ...)
{
    va_list arguments;
    if (!w->file) return;
    va_start(arguments, format);
    vfprintf(w->file, format, arguments);
    va_end(arguments);
}

static void put_string(struct pd_json_writer *w, const char *text)
{
    static const char special[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    put(w, "\"");
    for (size_t left = strlen(text), length; left; text += length, left -= length) {
        const unsigned char byte = (unsigned char)*text;
        const char *at = strchr(special, byte);
        length = 0;
        (void)pd_utf8_decode(text, left, &length);
        if (at)
            put(w, "\\%c", letters[at - special]);
        else if (!length)
            put(w, "\\ufffd");
        else if (byte < 0x20 || byte == 0x7f)
            put(w, "\\u%04x", byte);
        else
            put(w, "%.*s", (int)length, text);
        if (!length) length = 1;
    }
    put(w, "\"");
}

/* Writes comma, line break and key before a value. */
static void before_value(struct pd_json_writer *w, const char *key)
{
    const bool in_object = w->depth && w->closers[w->depth - 1] == '}';
    PD_CHECK((key != NULL) == in_object && (w->depth || w->is_first));
    if (!w->is_first) put(w, ",");
    if (w->depth && w->indent) put(w, "\n%*s", (int)(w->depth * w->indent), "");
    if (key) put_string(w, key);
    if (key) put(w, w->indent ? ": " : ":");
    w->is_first = false;
}

static void json_begin(struct pd_json_writer *w, const char *key, char opener, char closer)
{
    before_value(w, key);
    PD_CHECK(w->depth < PD_JSON_DEPTH_MAX);
    put(w, "%c", opener);
    w->closers[w->depth++] = closer;
    w->is_first = true;
}

static void json_end(struct pd_json_writer *w, char closer)
{
    PD_CHECK(w->depth && w->closers[w->depth - 1] == closer);
    w->depth--;
    if (!w->is_first && w->indent) put(w, "\n%*s", (int)(w->depth * w->indent), "");
    put(w, "%c", closer);
    w->is_first = false;
}

void pd_json_object_begin(struct pd_json_writer *w, const char *key)
{
    json_begin(w, key, '{', '}');
}

void pd_json_writer_init_object(struct pd_json_writer *w, unsigned indent)
{
    pd_json_writer_init(w, indent);
    pd_json_object_begin(w, NULL);
}

void pd_json_object_end(struct pd_json_writer *w)
{
    json_end(w, '}');
}

void pd_json_array_begin(struct pd_json_writer *w, const char *key)
{
    json_begin(w, key, '[', ']');
}

void pd_json_array_end(struct pd_json_writer *w)
{
    json_end(w, ']');
}

void pd_json_string(struct pd_json_writer *w, const char *key, const char *text)
{
    before_value(w, key);
    if (text)
        put_string(w, text);
    else
        put(w, "null");
}

void pd_json_null(struct pd_json_writer *w, const char *key)
{
    pd_json_string(w, key, NULL);
}

void pd_json_u64(struct pd_json_writer *w, const char *key, uint64_t value)
{
    before_value(w, key);
    put(w, value > INT64_MAX ? "\"%" PRIu64 "\"" : "%" PRIu64, value);
}

void pd_json_i64(struct pd_json_writer *w, const char *key, int64_t value)
{
    before_value(w, key);
    put(w, "%" PRId64, value);
}

static void json_put_double(struct pd_json_writer *w, const char *key, double value, const char *end)
{
    char text[40] = "\"nan\"";
    for (int digits = 15; digits <= 17 && isfinite(value); digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    if (isinf(value)) snprintf(text, sizeof text, value > 0 ? "\"inf\"" : "\"-inf\"");
    before_value(w, key);
    if (strcmp(text, "-0") == 0) end = ".0"; /* "-0" would be an integer and lose its sign */
    put(w, "%s%s", text, strspn(text, "-0123456789") == strlen(text) ? end : "");
}

void pd_json_double(struct pd_json_writer *w, const char *key, double value)
{
    json_put_double(w, key, value, "");
}

void pd_json_fraction(struct pd_json_writer *w, const char *key, double value)
{
    json_put_double(w, key, value, ".0");
}

void pd_json_measured(struct pd_json_writer *w, const char *key, double value)
{
    if (isfinite(value))
        pd_json_double(w, key, value);
    else
        pd_json_null(w, key);
}

void pd_json_bool(struct pd_json_writer *w, const char *key, bool value)
{
    before_value(w, key);
    put(w, value ? "true" : "false");
}

void pd_json_hex64(struct pd_json_writer *w, const char *key, uint64_t value)
{
    before_value(w, key);
    put(w, "\"%016" PRIx64 "\"", value);
}

void pd_json_strings(struct pd_json_writer *w, const struct pd_json_string_member *members)
{
    for (; members->key; members++)
        pd_json_string(w, members->key, members->value);
}

void pd_json_u64s(struct pd_json_writer *w, const struct pd_json_u64_member *members)
{
    for (; members->key; members++)
        pd_json_u64(w, members->key, members->value);
}

void pd_json_doubles(struct pd_json_writer *w, const struct pd_json_double_member *members)
{
    for (; members->key; members++)
        pd_json_double(w, members->key, members->value);
}

pd_status pd_json_writer_finish(struct pd_json_writer *w, const char **ret_text, size_t *ret_bytes, struct pd_error *err)
{
    while (w->depth)
        json_end(w, w->closers[w->depth - 1]);
    PD_CHECK(!w->is_first);
    put(w, "\n");
    if (!w->file || fflush(w->file) || ferror(w->file))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for JSON output of more than %zu bytes", w->bytes);
    *ret_text = w->text;
    if (ret_bytes) *ret_bytes = w->bytes;
    return PD_OK;
}

/* ---- reading: a pd_json_value is Jansson's json_t, never dereferenced by anybody else ---- */

/* A Jansson document lives in an obstack and is freed with it. Out of memory Jansson's parser may drop a character,
 * report bad syntax or fail an assert (2.14), so the allocator leaves the parse with a long jump instead. */
struct pd_json_document { /* stays where it is */
    struct obstack memory;
    json_t *root;
    jmp_buf out_of_memory;
};

static _Thread_local struct pd_json_document *under_way;
static pthread_once_t has_functions = PTHREAD_ONCE_INIT;

static void leave_parse(void)
{
    longjmp(under_way->out_of_memory, 1);
}

/* Other users of Jansson in the process are on other threads, or come when nothing is parsed here. glibc's obstack_alloc aligns
 * by an offset from a null pointer. */
__attribute__((no_sanitize("pointer-overflow"))) static void *take_for_jansson(size_t bytes)
{
    if (!under_way) return malloc(bytes);
    if (bytes > INT_MAX) leave_parse(); /* obstacks count in int */
    return obstack_alloc(&under_way->memory, (int)bytes);
}

static void free_for_jansson(void *memory)
{
    if (!under_way) free(memory);
}

static void give_functions(void)
{
    json_set_alloc_funcs(take_for_jansson, free_for_jansson);
    obstack_alloc_failed_handler = leave_parse;
}

/* False: out of memory. */
static bool json_parse(struct pd_json_document *document, const char *text, size_t bytes, size_t flags,
                       json_error_t *ret_problem)
{
    under_way = document;
    const bool has_memory = !setjmp(document->out_of_memory);
    if (has_memory) {
        obstack_init(&document->memory);
        document->root = json_loadb(text, bytes, flags, ret_problem);
    }
    under_way = NULL;
    return has_memory;
}

/* *ret_document NULL: not JSON, see *ret_problem.   errors  PD_NO_MEMORY */
static pd_status json_load(const char *text, size_t bytes, size_t flags, struct pd_json_document **ret_document,
                           json_error_t *ret_problem, struct pd_error *err)
{
    struct pd_json_document *document = calloc(1, sizeof *document);
    pthread_once(&has_functions, give_functions);
    const bool has_memory = document && json_parse(document, text, bytes, flags, ret_problem);
    *ret_document = has_memory && document->root ? document : NULL;
    if (!*ret_document) pd_json_document_free(document);
    return has_memory ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory to read JSON");
}

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
    pd_status st = json_load(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, ret_document, &problem, err);
    if (st) return pd_error_context(err, st, "%s", name);
    if (!*ret_document)
        PD_FAIL(err, PD_CORRUPT, "%s: line %d, column %d: not valid JSON: %s", name, problem.line, problem.column,
                problem.text);
    return PD_OK;
}

static const char *kind_name(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",    [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number",    [JSON_REAL] = "a number",  [JSON_TRUE] = "true or false",
        [JSON_FALSE] = "true or false", [JSON_NULL] = "null"};
    return names[json_typeof(value)];
}

/* "a, b and more" */
static void list_keys(json_t *object, char *text, size_t capacity)
{
    size_t used = 0;
    snprintf(text, capacity, "nothing");
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        const char *key = json_object_iter_key(at);
        if (used + strlen(key) + sizeof ", and more" > capacity) {
            snprintf(text + used, capacity - used, "%s", used ? " and more" : "a long name");
            return;
        }
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", used ? ", " : "", key);
    }
}

static pd_status check_member(json_t *root, const char *key, struct pd_error *err)
{
    char keys[160];
    if (!json_is_object(root)) PD_FAIL(err, PD_CORRUPT, "the line is %s, not an object", kind_name(root));
    const json_t *value = json_object_get(root, key);
    if (json_is_string(value)) return PD_OK;
    if (value) PD_FAIL(err, PD_CORRUPT, "\"%s\" is %s, not a string", key, kind_name(value));
    list_keys(root, keys, sizeof keys);
    PD_FAIL(err, PD_NOT_FOUND, "the object has no \"%s\", it has %s", key, keys);
}

pd_status pd_json_parse_member(const char *text, size_t bytes, const char *key, struct pd_json_document **ret_document,
                               const char **ret_text, size_t *ret_bytes, struct pd_error *err)
{
    struct pd_json_document *document;
    json_error_t problem;
    PD_TRY(json_load(text, bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, &document, &problem, err));
    if (!document) PD_FAIL(err, PD_CORRUPT, "no valid JSON at column %d: %s", problem.column, problem.text);
    pd_status status = check_member(document->root, key, err);
    if (status) {
        pd_json_document_free(document);
        return status;
    }
    const json_t *value = json_object_get(document->root, key);
    *ret_document = document;
    *ret_text = json_string_value(value);
    *ret_bytes = json_string_length(value);
    return PD_OK;
}

static pd_status take_strings(json_t *root, const char *key,
                              pd_status (*take)(void *, const char *, size_t, struct pd_error *), void *context,
                              struct pd_error *err)
{
    const json_t *value = json_object_get(root, key), *element;
    size_t i;
    if (!json_is_array(value)) {
        PD_TRY(check_member(root, key, err));
        return take(context, json_string_value(value), json_string_length(value), err);
    }
    json_array_foreach(value, i, element)
    {
        if (!json_is_string(element))
            PD_FAIL(err, PD_CORRUPT, "element %zu of \"%s\" is %s, not a string", i, key, kind_name(element));
        PD_TRY(take(context, json_string_value(element), json_string_length(element), err));
    }
    return PD_OK;
}

pd_status pd_json_take_strings(const char *text, size_t bytes, const char *const *keys, uint32_t count,
                               pd_status (*take)(void *, const char *, size_t, struct pd_error *), void *context,
                               struct pd_error *err)
{
    struct pd_json_document *document;
    json_error_t problem;
    PD_TRY(json_load(text, bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, &document, &problem, err));
    if (!document) PD_FAIL(err, PD_CORRUPT, "no valid JSON at column %d: %s", problem.column, problem.text);
    pd_status st = PD_OK;
    for (uint32_t i = 0; !st && i < count; i++)
        st = take_strings(document->root, keys[i], take, context, err);
    pd_json_document_free(document);
    return st;
}

void pd_json_document_free(struct pd_json_document *document)
{
    if (!document) return;
    if (document->memory.chunk) obstack_free(&document->memory, NULL);
    free(document);
}

const struct pd_json_value *pd_json_root(const struct pd_json_document *document)
{
    return as_value(document->root);
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

const char *pd_json_text(const struct pd_json_value *value)
{
    return json_string_value(as_jansson(value));
}

enum pd_json_type pd_json_type(const struct pd_json_value *value)
{
    switch (json_typeof(as_jansson(value))) {
    case JSON_OBJECT:
        return PD_JSON_OBJECT;
    case JSON_ARRAY:
        return PD_JSON_ARRAY;
    case JSON_STRING:
        return PD_JSON_TEXT;
    case JSON_INTEGER:
        return PD_JSON_INTEGER;
    case JSON_REAL:
        return PD_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return PD_JSON_BOOL;
    case JSON_NULL:
        break;
    }
    return PD_JSON_NULL;
}

const struct pd_json_value *pd_json_member(const struct pd_json_value *object, const char *key)
{
    return as_value(json_object_get(as_jansson(object), key));
}

size_t pd_json_count(const struct pd_json_value *array)
{
    return json_array_size(as_jansson(array));
}

const struct pd_json_value *pd_json_at(const struct pd_json_value *array, size_t index)
{
    return as_value(json_array_get(as_jansson(array), index));
}

bool pd_json_is_u64(const struct pd_json_value *value, uint64_t *ret)
{
    const json_t *json = as_jansson(value);
    if (!json_is_integer(json) || json_integer_value(json) < 0) return false;
    *ret = (uint64_t)json_integer_value(json);
    return true;
}

bool pd_json_is_number(const struct pd_json_value *value, double *ret)
{
    const json_t *json = as_jansson(value);
    if (!json_is_number(json)) return false;
    *ret = json_number_value(json);
    return true;
}

bool pd_json_is_bool(const struct pd_json_value *value, bool *ret)
{
    const json_t *json = as_jansson(value);
    if (!json_is_boolean(json)) return false;
    *ret = json_is_true(json);
    return true;
}

double pd_json_number_or(const struct pd_json_value *object, const char *key, double otherwise)
{
    (void)pd_json_is_number(pd_json_member(object, key), &otherwise);
    return otherwise;
}

const char *pd_json_member_text(const struct pd_json_value *object, const char *key)
{
    return pd_json_text(pd_json_member(object, key));
}
