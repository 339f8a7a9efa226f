#include "trainer/config/yaml.h"
#include "ckpt/base/grow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#define ENTRIES_MAX 65536u
#define PATH_MAX_BYTES 256u
#define DEPTH_MAX 8

struct reader {
    const char *name, *text;
    yaml_parser_t parser;
    yaml_event_t event; /* the newest; the reader's until the next */
    struct pd_yaml yaml;
    struct pd_error *err;
};

#define FAIL_AT(r, mark, ...)                                                                                       \
    do {                                                                                                            \
        (void)pd_error_set((r)->err, PD_INVALID, PD_WHERE, 0, __VA_ARGS__);                                         \
        return pd_error_context((r)->err, PD_INVALID, "%s:%zu:%zu", (r)->name, (mark).line + 1, (mark).column + 1); \
    } while (0)

/* libyaml calls it a character that cannot start any token. */
static bool is_indented_by_tab(const char *text, size_t line)
{
    for (; line && (text = strchr(text, '\n')); line--)
        text++;
    return text && memchr(text, '\t', strspn(text, " \t"));
}

static pd_status next_event(struct reader *r)
{
    yaml_event_delete(&r->event);
    if (yaml_parser_parse(&r->parser, &r->event)) return PD_OK;
    if (r->parser.error == YAML_MEMORY_ERROR) PD_FAIL(r->err, PD_NO_MEMORY, "%s: no memory to parse it", r->name);
    yaml_mark_t mark = r->parser.problem_mark;
    if (r->parser.error == YAML_READER_ERROR) mark = r->parser.mark;
    if (is_indented_by_tab(r->text, mark.line)) FAIL_AT(r, mark, "a tab indents this line; use spaces, YAML takes no tabs");
    FAIL_AT(r, mark, "this is not YAML: %s", r->parser.problem ? r->parser.problem : "unreadable");
}

static pd_status add_entry(struct reader *r, enum pd_yaml_node node, const char *path, const char *value, yaml_mark_t mark)
{
    for (uint32_t i = 0; i < r->yaml.count; i++)
        if (strcmp(r->yaml.entries[i].path, path) == 0)
            FAIL_AT(r, mark, "%s is there already, in line %u; keep one of them", path, r->yaml.entries[i].line);
    if (r->yaml.count == ENTRIES_MAX) FAIL_AT(r, mark, "more than %u values", ENTRIES_MAX);
    if (!pd_grow(&r->yaml.entries, r->yaml.count, sizeof *r->yaml.entries))
        PD_FAIL(r->err, PD_NO_MEMORY, "%s: no memory for %u values", r->name, r->yaml.count + 1);
    struct pd_yaml_entry *e = &r->yaml.entries[r->yaml.count++];
    *e = (struct pd_yaml_entry){node, strdup(path), value ? strdup(value) : NULL, (uint32_t)mark.line + 1,
                                (uint32_t)mark.column + 1};
    if (!e->path || (value && !e->value)) PD_FAIL(r->err, PD_NO_MEMORY, "%s: no memory for %s", r->name, path);
    return PD_OK;
}

static pd_status read_node(struct reader *r, const char *path, int depth);

static pd_status read_section(struct reader *r, const char *path, int depth)
{
    for (;;) {
        char below[PATH_MAX_BYTES + 64];
        PD_TRY(next_event(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) return PD_OK;
        if (r->event.type != YAML_SCALAR_EVENT || r->event.data.scalar.length >= 64)
            FAIL_AT(r, r->event.start_mark, "a key must be one short word");
        snprintf(below, sizeof below, "%s%s%s", path, path[0] ? "." : "", (const char *)r->event.data.scalar.value);
        PD_TRY(next_event(r));
        PD_TRY(read_node(r, below, depth + 1));
    }
}

/* What YAML calls null is as nothing there. */
static bool is_null(const yaml_event_t *scalar)
{
    const char *value = (const char *)scalar->data.scalar.value;
    return scalar->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && (!strcmp(value, "~") || !strcasecmp(value, "null"));
}

/* `optimizer: {}` is as `optimizer:`. */
static pd_status make_empty(struct reader *r, struct pd_yaml_entry *section)
{
    section->node = PD_YAML_VALUE;
    section->value = strdup("");
    return PD_ALLOCATED(section->value, r->err, "%s: no memory for %s", r->name, section->path);
}

static pd_status read_node(struct reader *r, const char *path, int depth)
{
    const yaml_mark_t mark = r->event.start_mark;
    const char *value = (const char *)r->event.data.scalar.value;
    if (depth > DEPTH_MAX || strlen(path) >= PATH_MAX_BYTES) FAIL_AT(r, mark, "nested too deep");
    switch (r->event.type) {
    case YAML_SCALAR_EVENT:
        if (r->event.data.scalar.length != strlen(value)) FAIL_AT(r, mark, "%s holds a zero byte", path);
        return add_entry(r, PD_YAML_VALUE, path, is_null(&r->event) ? "" : value, mark);
    case YAML_MAPPING_START_EVENT:
        if (path[0]) PD_TRY(add_entry(r, PD_YAML_SECTION, path, NULL, mark));
        const uint32_t count = r->yaml.count;
        PD_TRY(read_section(r, path, depth));
        return path[0] && r->yaml.count == count ? make_empty(r, &r->yaml.entries[count - 1]) : PD_OK;
    case YAML_SEQUENCE_START_EVENT:
        if (!path[0]) FAIL_AT(r, mark, "the file is a list; it must have sections: run, model, data, ...");
        PD_TRY(add_entry(r, PD_YAML_LIST, path, NULL, mark));
        for (uint32_t index = 0;; index++) {
            char below[PATH_MAX_BYTES + 64];
            PD_TRY(next_event(r));
            if (r->event.type == YAML_SEQUENCE_END_EVENT) return PD_OK;
            snprintf(below, sizeof below, "%s[%u]", path, index);
            PD_TRY(read_node(r, below, depth + 1));
        }
    case YAML_ALIAS_EVENT:
        FAIL_AT(r, mark, "%s is an alias; write the value out", path);
    default:
        FAIL_AT(r, mark, "a value is missing");
    }
}

/* The root of a document, up to its end. */
static pd_status read_document(struct reader *r)
{
    PD_TRY(next_event(r));
    if (r->event.type != YAML_SCALAR_EVENT) return read_node(r, "", 0);
    if (r->event.data.scalar.length == 0) return PD_OK; /* a text of nothing but comments is one empty scalar */
    FAIL_AT(r, r->event.start_mark, "expected sections: run, model, data, ...; is this the configuration?");
}

static pd_status read_stream(struct reader *r)
{
    for (uint32_t documents = 0;;) {
        PD_TRY(next_event(r));
        if (r->event.type == YAML_STREAM_END_EVENT) return PD_OK;
        if (r->event.type != YAML_DOCUMENT_START_EVENT) continue;
        if (documents++) FAIL_AT(r, r->event.start_mark, "a second document begins; a configuration is one");
        PD_TRY(read_document(r));
    }
}

pd_status pd_yaml_read(const char *name, const char *text, struct pd_yaml *ret_yaml, struct pd_error *err)
{
    struct reader r = {.name = name, .text = text, .err = err};
    if (!yaml_parser_initialize(&r.parser)) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to parse it", name);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, strlen(text));
    pd_status status = read_stream(&r);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    if (status)
        pd_yaml_deinit(&r.yaml);
    else
        *ret_yaml = r.yaml;
    return status;
}

void pd_yaml_deinit(struct pd_yaml *yaml)
{
    for (uint32_t i = 0; i < yaml->count; i++) {
        free(yaml->entries[i].path);
        free(yaml->entries[i].value);
    }
    free(yaml->entries);
    *yaml = (struct pd_yaml){0};
}
