/* Builds a configuration in five passes: defaults; the last named preset; values of the file, then of the command line;
 * derived sizes; checks. A saved configuration takes the same passes, with tolerance. */
#include "trainer/config/config.h"
#include "ckpt/base/grow.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/regular_file.h"
#include "ckpt/base/status.h"
#include "ckpt/base/utf8.h"
#include "resharder/catalog/family.h"
#include "trainer/config/check.h"
#include "trainer/config/keys.h"
#include "trainer/data/input_list.h"
#include "trainer/data/token_file.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <yaml.h>

/* ---- print ---- */

#define COMMENT_COLUMN 38

/* Double quotes can hold anything; escapes what YAML does not accept as is. */
static void print_quoted(FILE *out, const char *text)
{
    fputc('"', out);
    while (*text) {
        const char *start = text;
        uint32_t c = pd_utf8_next(&text);
        PD_CHECK(c != UINT32_MAX); /* pd_key_set let it through */
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", (int)c);
        else if (c < 0x20 || (c >= 0x7f && c < 0xa0))
            fprintf(out, "\\x%02x", c);
        else if (c == 0xfeff || c == 0xfffe || c == 0xffff)
            fprintf(out, "\\u%04x", c);
        else
            fwrite(start, 1, (size_t)(text - start), out);
    }
    fputc('"', out);
}

/* Skips zeros that users cannot write or that have no meaning. */
static void print_list(FILE *out, const struct pd_key_list *list, const char *items, uint32_t count)
{
    char text[64];
    for (const char *item = items; item < items + count * list->bytes; item += list->bytes) {
        for (uint32_t i = 0; i < list->member_count; i++) {
            const struct pd_key *member = &list->members[i];
            const bool is_string = member->type == PD_KEY_STRING;
            if (!is_string) pd_key_text(item, member, text, sizeof text);
            if (!is_string && strcmp(text, "0") == 0 && !member->initial) continue;
            fprintf(out, "%s%s: ", i ? ", " : "    - {", member->name);
            if (is_string)
                print_quoted(out, *(char *const *)(item + member->offset));
            else
                fputs(text, out);
        }
        fputs("}\n", out);
    }
}

static void print_key(FILE *out, const struct pd_config *config, const struct pd_key *key)
{
    const char *dot = strchr(key->name, '.');
    long line_start = ftell(out);
    fprintf(out, "%s%s: ", dot ? "  " : "", dot ? dot + 1 : key->name);
    const void *member = (const char *)config + key->offset;
    uint32_t count = 0;
    if (key->count_offset) memcpy(&count, (const char *)config + key->count_offset, sizeof count);
    const bool is_numbers = key->list && !key->list->members[0].name[0];
    if (is_numbers) {
        const uint32_t *numbers = *(uint32_t *const *)member;
        fputc('[', out);
        for (uint32_t i = 0; i < count; i++)
            fprintf(out, i ? ", %u" : "%u", numbers[i]);
        fputc(']', out);
    } else if (key->list) {
        if (!count) fputs("[]", out);
    } else if (key->type == PD_KEY_STRING) {
        print_quoted(out, *(char *const *)member);
    } else {
        char text[64];
        pd_key_text(config, key, text, sizeof text);
        fputs(pd_key_is_left(config, key) ? "auto" : text, out);
    }
    const char *meaning = key->meaning;
    long width = ftell(out) - line_start;
    fprintf(out, "%*s  # %s\n", width < COMMENT_COLUMN ? (int)(COMMENT_COLUMN - width) : 0, "", meaning);
    if (key->list && !is_numbers) print_list(out, key->list, *(char *const *)member, count);
}

pd_status pd_config_print(const struct pd_config *config, char **ret_yaml, struct pd_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) PD_FAIL(err, PD_NO_MEMORY, "no memory to print the configuration");
    const char *section = "";
    size_t section_length = 0;
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const struct pd_key *key = &pd_keys[i];
        size_t length = strcspn(key->name, ".");
        if (key->name[length] == '.' && (length != section_length || strncmp(section, key->name, length) != 0))
            fprintf(out, "%s%.*s:\n", i ? "\n" : "", (int)length, key->name);
        else if (key->name[length] == '\0')
            fputc('\n', out);
        section = key->name;
        section_length = length;
        print_key(out, config, key);
    }
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(text);
        PD_FAIL(err, PD_NO_MEMORY, "no memory to print the configuration");
    }
    *ret_yaml = text;
    return PD_OK;
}

pd_status pd_config_write(const struct pd_config *config, const char *path, struct pd_error *err)
{
    char *yaml = NULL, temporary[4200];
    snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid());
    PD_TRY(pd_config_print(config, &yaml, err));
    (void)unlink(temporary); /* of a killed process with this number; a new file follows no link */
    FILE *f = fopen(temporary, "wxe");
    bool written = f && fputs(yaml, f) >= 0;
    if (f && fclose(f)) written = false;
    int number = errno;
    free(yaml);
    if (written && !rename(temporary, path)) return PD_OK;
    if (written) number = errno;
    if (f) unlink(temporary);
    PD_FAIL_ERRNO(err, number, "%s: writing it", path);
}

/* A YAML text as a flat list of paths and values with their places. The only user of libyaml. */

enum pd_yaml_node { PD_YAML_VALUE, PD_YAML_SECTION, PD_YAML_LIST };

struct pd_yaml_entry {
    enum pd_yaml_node node;
    char *path;            /* "data.train[0].path", owned */
    char *value;           /* PD_YAML_VALUE: the scalar; NULL otherwise; owned */
    uint32_t line, column; /* from 1 */
};

struct pd_yaml {
    struct pd_yaml_entry *entries; /* in text order, a section or list before its content */
    uint32_t count;
};

#define ENTRIES_MAX 65536u
#define PATH_MAX_BYTES 256u
#define DEPTH_MAX 8

struct reader {
    const char *name, *text;
    yaml_parser_t parser;
    yaml_document_t document;
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

/* The next document; its root is NULL after the last. */
static pd_status load_document(struct reader *r)
{
    if (yaml_parser_load(&r->parser, &r->document)) return PD_OK;
    r->document = (yaml_document_t){0};
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
            FAIL_AT(r, mark, "%s is already set in line %u; keep one of them", path, r->yaml.entries[i].line);
    if (r->yaml.count == ENTRIES_MAX) FAIL_AT(r, mark, "more than %u values", ENTRIES_MAX);
    if (!pd_grow(&r->yaml.entries, r->yaml.count, sizeof *r->yaml.entries))
        PD_FAIL(r->err, PD_NO_MEMORY, "%s: no memory for %u values", r->name, r->yaml.count + 1);
    struct pd_yaml_entry *e = &r->yaml.entries[r->yaml.count++];
    *e = (struct pd_yaml_entry){node, strdup(path), value ? strdup(value) : NULL, (uint32_t)mark.line + 1,
                                (uint32_t)mark.column + 1};
    if (!e->path || (value && !e->value)) PD_FAIL(r->err, PD_NO_MEMORY, "%s: no memory for %s", r->name, path);
    return PD_OK;
}

/* A YAML null counts as missing. */
static bool is_null(const yaml_node_t *scalar)
{
    const char *value = (const char *)scalar->data.scalar.value;
    return scalar->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && (!strcmp(value, "~") || !strcasecmp(value, "null"));
}

static pd_status read_node(struct reader *r, int number, const char *path, int depth)
{
    char below[PATH_MAX_BYTES + 64];
    const yaml_node_t *node = yaml_document_get_node(&r->document, number);
    const yaml_mark_t mark = node->start_mark;
    if (depth > DEPTH_MAX || strlen(path) >= PATH_MAX_BYTES) FAIL_AT(r, mark, "nested too deep");
    if (node->type == YAML_SCALAR_NODE) {
        const char *value = (const char *)node->data.scalar.value;
        if (node->data.scalar.length != strlen(value)) FAIL_AT(r, mark, "%s holds a zero byte", path);
        return add_entry(r, PD_YAML_VALUE, path, is_null(node) ? "" : value, mark);
    }
    if (node->type == YAML_SEQUENCE_NODE) {
        const yaml_node_item_t *items = node->data.sequence.items.start, *end = node->data.sequence.items.top;
        if (!path[0]) FAIL_AT(r, mark, "the file is a list; it must have sections: run, model, data, ...");
        PD_TRY(add_entry(r, PD_YAML_LIST, path, NULL, mark));
        for (const yaml_node_item_t *item = items; item < end; item++) {
            snprintf(below, sizeof below, "%s[%td]", path, item - items);
            PD_TRY(read_node(r, *item, below, depth + 1));
        }
        return PD_OK;
    }
    const yaml_node_pair_t *pairs = node->data.mapping.pairs.start, *end = node->data.mapping.pairs.top;
    if (path[0] && pairs == end) return add_entry(r, PD_YAML_VALUE, path, "", mark); /* `optimizer: {}` is `optimizer:` */
    if (path[0]) PD_TRY(add_entry(r, PD_YAML_SECTION, path, NULL, mark));
    for (const yaml_node_pair_t *pair = pairs; pair < end; pair++) {
        const yaml_node_t *key = yaml_document_get_node(&r->document, pair->key);
        if (key->type != YAML_SCALAR_NODE || key->data.scalar.length >= 64)
            FAIL_AT(r, key->start_mark, "a key must be one short word");
        snprintf(below, sizeof below, "%s%s%s", path, path[0] ? "." : "", (const char *)key->data.scalar.value);
        PD_TRY(read_node(r, pair->value, below, depth + 1));
    }
    return PD_OK;
}

static pd_status read_stream(struct reader *r)
{
    PD_TRY(load_document(r));
    const yaml_node_t *root = yaml_document_get_root_node(&r->document);
    if (!root) return PD_OK;
    if (root->type != YAML_SCALAR_NODE)
        PD_TRY(read_node(r, 1, "", 0)); /* nodes count from 1, and this is the first */
    else if (root->data.scalar.length)  /* a text of nothing but comments may be one empty scalar */
        FAIL_AT(r, root->start_mark, "expected sections: run, model, data, ...; is this the configuration?");
    yaml_document_delete(&r->document);
    PD_TRY(load_document(r));
    root = yaml_document_get_root_node(&r->document);
    if (root) FAIL_AT(r, root->start_mark, "a second document begins; a configuration is one");
    return PD_OK;
}

static void yaml_deinit(struct pd_yaml *yaml)
{
    for (uint32_t i = 0; i < yaml->count; i++) {
        free(yaml->entries[i].path);
        free(yaml->entries[i].value);
    }
    free(yaml->entries);
    *yaml = (struct pd_yaml){0};
}

/*   errors  PD_INVALID with "name:line:column": bad syntax, a duplicate key, a second document, too deep, too many */
static pd_status yaml_read(const char *name, const char *text, struct pd_yaml *ret_yaml, struct pd_error *err)
{
    struct reader r = {.name = name, .text = text, .err = err};
    if (!yaml_parser_initialize(&r.parser)) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to parse it", name);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, strlen(text));
    pd_status status = read_stream(&r);
    yaml_document_delete(&r.document);
    yaml_parser_delete(&r.parser);
    if (status)
        yaml_deinit(&r.yaml);
    else
        *ret_yaml = r.yaml;
    return status;
}

/* ---- defaults, preset, file, command line ---- */

#define FILE_BYTES_MAX (16u << 20)

struct source {
    const char *name;
    struct pd_yaml yaml;
    const char *const *overrides;
    uint32_t override_count;
    bool is_saved; /* printed by some version, not written by a user */
};

void pd_config_deinit(struct pd_config *config)
{
    if (!config) return;
    for (uint32_t i = 0; i < pd_key_count; i++) {
        char **member = (char **)((char *)config + pd_keys[i].offset);
        if (pd_keys[i].type == PD_KEY_STRING) {
            free(*member);
            *member = NULL;
        } else if (pd_keys[i].list) {
            pd_key_clear_list(config, &pd_keys[i]);
        }
    }
}

/* ---- values of file and command line ---- */

static pd_status visit_entry(const struct pd_yaml_entry *entry, struct pd_config *config, struct pd_error *err)
{
    const struct pd_key *key = pd_key_find(entry->path);
    bool is_list = key && key->list;
    switch (entry->node) {
    case PD_YAML_SECTION:
        if (key && !is_list) PD_FAIL(err, PD_INVALID, "%s: expected a value, found a section", entry->path);
        return PD_OK;
    case PD_YAML_LIST:
        if (key && !is_list) PD_FAIL(err, PD_INVALID, "%s: expected one value, found a list", entry->path);
        if (is_list) {
            pd_key_clear_list(config, key);
            return PD_OK;
        }
        return pd_key_set(config, entry->path, "", err);
    default:
        return pd_key_set(config, entry->path, entry->value, err);
    }
}

/* `optimizer:` with nothing below it. */
static bool is_empty_section(const struct pd_yaml_entry *entry)
{
    return entry->node == PD_YAML_VALUE && !entry->value[0] && pd_key_is_section(entry->path);
}

/* Saved by another version and unknown here. A value that affects the bits is never replaced by a default. */
static bool is_passed_over(const struct source *source, const struct pd_yaml_entry *entry, pd_status status)
{
    const struct pd_key *key = pd_key_of_path(entry->path);
    return source->is_saved && status == PD_INVALID && (!key || key->effect == PD_RESUME_FREE);
}

/* data.train=[a.txt, {path: b.bin, weight: 2}]: a list on the command line is written as in a file. */
static pd_status set_list(const char *path, const char *text, struct pd_config *config, struct pd_error *err)
{
    struct pd_yaml yaml;
    char *line;
    if (text[strlen(text) - 1] != ']') PD_FAIL(err, PD_INVALID, "%s: the list does not end; close it with ]", path);
    if (asprintf(&line, "%s: %s", path, text) < 0) PD_FAIL(err, PD_NO_MEMORY, "no memory for %s", path);
    pd_status status = yaml_read(path, line, &yaml, err);
    free(line);
    PD_TRY(status);
    for (uint32_t i = 0; !status && i < yaml.count; i++)
        status = visit_entry(&yaml.entries[i], config, err);
    yaml_deinit(&yaml);
    return status;
}

static pd_status apply_override(const char *override, struct pd_config *config, struct pd_error *err)
{
    char path[256];
    const char *text = NULL;
    size_t path_bytes = sizeof path;
    const char *equals = strchr(override, '=');
    if (!equals && pd_key_find(override)) PD_FAIL(err, PD_USAGE, "%s has no value; write %s=VALUE", override, override);
    if (!equals || equals == override)
        PD_FAIL(err, PD_USAGE, "\"%s\" is not an override; write section.key=value, such as optimizer.lr=3e-4", override);
    if ((size_t)(equals - override) >= path_bytes)
        PD_FAIL(err, PD_USAGE,
                "the key of \"%.60s...\" is too long; perdure train CONFIG --print-config shows those there are", override);
    snprintf(path, path_bytes, "%.*s", (int)(equals - override), override);
    text = equals + 1;
    const struct pd_key *key = pd_key_find(path);
    const pd_status status =
        key && key->list && text[0] == '[' ? set_list(path, text, config, err) : pd_key_set(config, path, text, err);
    return status ? pd_error_context(err, status, "command line") : PD_OK;
}

static pd_status apply(const struct source *source, struct pd_config *config, struct pd_error *err)
{
    for (uint32_t i = 0; i < source->yaml.count; i++) {
        const struct pd_yaml_entry *e = &source->yaml.entries[i];
        if (is_empty_section(e)) continue;
        pd_status status = visit_entry(e, config, err);
        if (is_passed_over(source, e, status)) continue;
        if (status) return pd_error_context(err, status, "%s:%u:%u", source->name, e->line, e->column);
    }
    for (uint32_t i = 0; i < source->override_count; i++)
        PD_TRY(apply_override(source->overrides[i], config, err));
    return PD_OK;
}

/* The last text given for a key, or NULL. ret_entry (or NULL): its place in the file, NULL for the command line. */
static const char *given_at(const struct source *source, const char *name, const struct pd_yaml_entry **ret_entry)
{
    const char *last = NULL;
    const struct pd_yaml_entry *entry = NULL;
    for (uint32_t i = 0; i < source->yaml.count; i++) {
        const struct pd_yaml_entry *e = &source->yaml.entries[i];
        if (!e->value || strcmp(e->path, name) != 0) continue;
        last = e->value;
        entry = e;
    }
    size_t length = strlen(name);
    for (uint32_t i = 0; i < source->override_count; i++) {
        if (strncmp(source->overrides[i], name, length) != 0 || source->overrides[i][length] != '=') continue;
        last = source->overrides[i] + length + 1;
        entry = NULL;
    }
    if (ret_entry) *ret_entry = entry;
    return last;
}

static const char *given(const struct source *source, const char *name)
{
    return given_at(source, name, NULL);
}

/* A preset's derived sizes are derived again when others change, unless given themselves. */
static void forget_derived(const struct source *source, struct pd_model_config *model)
{
    bool family = given(source, "model.family"), hidden = given(source, "model.hidden"),
         heads = given(source, "model.heads");
    if (family || heads) model->kv_heads = 0;
    if (hidden || heads) model->head_size = 0;
    if (family || hidden) model->ffn = 0;
}

static pd_status apply_preset(const struct source *source, struct pd_config *config, struct pd_error *err)
{
    const struct pd_yaml_entry *entry;
    const char *preset = given_at(source, "model.preset", &entry);
    if (!preset) preset = config->model_preset;
    pd_status status = preset[0] ? pd_model_preset(preset, &config->model, err) : PD_OK;
    if (status == PD_INVALID && source->is_saved) status = PD_OK; /* every size was printed */
    if (status && entry) return pd_error_context(err, status, "%s:%u:%u", source->name, entry->line, entry->column);
    if (status) return pd_error_context(err, status, "command line");
    forget_derived(source, &config->model);
    return PD_OK;
}

/* Checks see the whole configuration; the fault is with whoever gave the key that begins the message. */
static const char *blamed(const struct source *source, const char *message)
{
    static const char key_characters[] = "abcdefghijklmnopqrstuvwxyz0123456789_.";
    const size_t whole = strcspn(message, " :"), bare = strspn(message, key_characters);
    for (uint32_t i = 0; i < source->override_count; i++) {
        const char *override = source->overrides[i];
        const size_t length = strcspn(override, "=");
        if (length && (length == whole || length == bare) && strncmp(override, message, length) == 0) return "command line";
    }
    return source->name;
}

/* The key was removed, and the bits of such a run differ from today's. */
static bool rounded_gradients(const struct source *source)
{
    const struct pd_yaml_entry *entry;
    const char *type = given_at(source, "numerics.gradient_type", &entry);
    return type && strcmp(type, "bf16") == 0;
}

static pd_status config_build(const struct source *source, struct pd_config *config, struct pd_error *err)
{
    for (uint32_t i = 0; i < pd_key_count; i++)
        if (pd_keys[i].initial) PD_TRY(pd_key_set(config, pd_keys[i].name, pd_keys[i].initial, err));
    config->layout.recompute_given = config->layout.zero_stage_given = false;
    if (source->is_saved) config->numerics.lanes = 0;
    PD_TRY(apply_preset(source, config, err));
    PD_TRY(apply(source, config, err));
    if (source->is_saved && rounded_gradients(source)) config->numerics.lanes = 0;
    const struct pd_family *family = pd_family_at(config->model.family);
    if (family->has_linear_biases && given(source, "model.qkv_bias") && !config->model.qkv_bias)
        PD_FAIL(err, PD_INVALID, "%s: model.qkv_bias is false, but family %s has biases everywhere; leave it out",
                source->name, pd_family_names[config->model.family]);
    pd_status status = pd_config_resolve(config, err);
    if (!status)
        status =
            source->is_saved ? pd_config_check_saved(config, source->override_count > 0, err) : pd_config_check(config, err);
    return status && err ? pd_error_context(err, status, "%s", blamed(source, err->message)) : status;
}

/* Replaces old names by current ones; NULL: out of memory. */
static pd_status translate(struct pd_yaml *yaml, struct pd_error *err)
{
    for (uint32_t i = 0; i < yaml->count; i++) {
        struct pd_yaml_entry *e = &yaml->entries[i];
        const struct pd_renamed *row = pd_renamed_find(e->path, e->value);
        char path[320];
        if (!row || !row->now) continue;
        pd_renamed_path(row, e->path, path, sizeof path);
        char **old = row->value ? &e->value : &e->path, *now = strdup(row->value ? row->now : path);
        if (!now) PD_FAIL(err, PD_NO_MEMORY, "no memory for %s", e->path);
        free(*old);
        *old = now;
    }
    return PD_OK;
}

static pd_status config_parse(struct source *source, const char *yaml, struct pd_config *ret_config, struct pd_error *err)
{
    struct pd_config config = {0};
    PD_TRY(yaml_read(source->name, yaml, &source->yaml, err));
    pd_status status = source->is_saved ? translate(&source->yaml, err) : PD_OK;
    if (!status) status = config_build(source, &config, err);
    yaml_deinit(&source->yaml);
    if (status)
        pd_config_deinit(&config);
    else
        *ret_config = config;
    return status;
}

pd_status pd_config_parse(const char *name, const char *yaml, const char *const *overrides, uint32_t override_count,
                          struct pd_config *ret_config, struct pd_error *err)
{
    struct source source = {.name = name, .overrides = overrides, .override_count = override_count};
    return config_parse(&source, yaml, ret_config, err);
}

pd_status pd_config_parse_saved(const char *yaml, const char *const *overrides, uint32_t override_count,
                                struct pd_config *ret_config, struct pd_error *err)
{
    struct source source = {
        .name = "saved configuration", .overrides = overrides, .override_count = override_count, .is_saved = true};
    return config_parse(&source, yaml, ret_config, err);
}

/* ---- the file ---- */

/* A pipe may stay empty. Until a launch is running, signals that ask to leave are blocked, so they would not end a read. */
static pd_status wait_for_text(int descriptor, const char *path, struct pd_error *err)
{
    static const int asks_to_leave[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};
    sigset_t mask;
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof asks_to_leave / sizeof *asks_to_leave; i++)
        sigaddset(&mask, asks_to_leave[i]);
    struct pollfd ready[] = {{.fd = descriptor, .events = POLLIN},
                             {.fd = signalfd(-1, &mask, SFD_CLOEXEC), .events = POLLIN}};
    while (poll(ready, 2, -1) < 0 && errno == EINTR)
        ;
    if (ready[1].fd >= 0) close(ready[1].fd);
    if (ready[0].revents || !ready[1].revents) return PD_OK;
    PD_FAIL(err, PD_STOPPED, "asked to leave while waiting for the text of the configuration %s", path);
}

/* malloc'ed and terminated. */
static pd_status config_read_all(int descriptor, const char *path, char **ret_text, struct pd_error *err)
{
    size_t bytes = 0, capacity = 65536;
    char *text = malloc(capacity + 1);
    while (text) {
        const pd_status st = wait_for_text(descriptor, path, err);
        if (st) {
            free(text);
            return st;
        }
        ssize_t got;
        PD_ON_STORAGE(got = read(descriptor, text + bytes, capacity - bytes));
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got < 0) {
            int number = errno;
            free(text);
            if (number == EISDIR) PD_FAIL(err, PD_INVALID, "configuration %s is a directory; name the file in it", path);
            PD_FAIL_ERRNO(err, number, "cannot read the configuration %s", path);
        }
        if (got == 0) break;
        bytes += (size_t)got;
        if (bytes < capacity) continue;
        char *grown = capacity < FILE_BYTES_MAX ? realloc(text, 2 * capacity + 1) : NULL;
        if (!grown) {
            free(text);
            PD_FAIL(err, PD_INVALID, "configuration %s is over %u MiB; name the right file", path, FILE_BYTES_MAX >> 20);
        }
        text = grown;
        capacity *= 2;
    }
    if (!text) PD_FAIL(err, PD_NO_MEMORY, "no memory to read %s", path);
    text[bytes] = '\0';
    if (strlen(text) != bytes) {
        free(text);
        PD_FAIL(err, PD_INVALID, "configuration %s holds zero bytes; it is not YAML text; name the right file", path);
    }
    *ret_text = text;
    return PD_OK;
}

static pd_status config_load(const char *path, struct source *source, struct pd_config *ret_config, struct pd_error *err)
{
    int descriptor = -1, number = 0;
    if (source->is_saved) /* a user may give a pipe; a run writes a file */
        number = pd_regular_open(path, O_RDONLY, &descriptor);
    else if ((descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC)) < 0)
        number = errno;
    if (number == ENOENT || number == ENOTDIR)
        PD_FAIL(err, PD_NOT_FOUND, "there is no configuration %s; name another, or let perdure init write one", path);
    if (number) PD_FAIL_ERRNO(err, number, "the configuration %s cannot be opened; see with ls -l who may read it", path);
    char *text = NULL;
    pd_status status = config_read_all(descriptor, path, &text, err);
    close(descriptor);
    PD_TRY(status);
    status = config_parse(source, text, ret_config, err);
    free(text);
    return status;
}

pd_status pd_config_load(const char *path, const char *const *overrides, uint32_t override_count,
                         struct pd_config *ret_config, struct pd_error *err)
{
    struct source source = {.name = path, .overrides = overrides, .override_count = override_count};
    if (!path) return pd_config_parse("command line", "", overrides, override_count, ret_config, err);
    return config_load(path, &source, ret_config, err);
}

pd_status pd_config_load_saved(const char *path, struct pd_config *ret_config, struct pd_error *err)
{
    struct source source = {.name = path, .is_saved = true};
    return config_load(path, &source, ret_config, err);
}

pd_status pd_config_find_data(struct pd_config *c, char **ret_notes, struct pd_error *err)
{
    char *text = NULL;
    size_t bytes;
    FILE *notes = open_memstream(&text, &bytes);
    if (!notes) PD_FAIL(err, PD_NO_MEMORY, "no memory for the list of data files");
    pd_status status = pd_sources_find(&c->data.train, &c->data.train_count, "data.train", notes, err);
    if (!status) status = pd_sources_find(&c->data.validation, &c->data.validation_count, "data.validation", notes, err);
    fclose(notes);
    if (status)
        free(text);
    else
        *ret_notes = text;
    return status;
}

pd_status pd_config_model(const struct pd_config *c, struct pd_model **ret_model, struct pd_error *err)
{
    PD_TRY(pd_model_new(&c->model, ret_model, err));
    pd_model_set_moments(*ret_model, c->optimizer.moments);
    return PD_OK;
}

struct pd_transformer_options pd_config_transformer(const struct pd_config *c)
{
    return (struct pd_transformer_options){
        .sequences = c->batch.micro_batch,
        .length = c->batch.context,
        .dtype = c->numerics.precision,
        .fp8_linears = c->numerics.linears == PD_LINEARS_FP8,
        .logits_dtype = c->numerics.logits_type == PD_LOGITS_IN_F32 ? PD_F32 : c->numerics.precision,
        .logits_columns = c->numerics.logits == PD_LOGITS_OF_COLUMNS ? PD_LOGITS_COLUMNS : 0,
        .separate_documents = c->data.separate_documents,
        .ep_rows = c->layout.ep_rows};
}

struct pd_data_options pd_config_data(const struct pd_config *c)
{
    struct pd_data_options data = c->data;
    data.validation_samples = c->validation.sequences;
    data.context = c->batch.context;
    data.vocab = c->model.vocab;
    data.seed = c->run.seed;
    return data;
}
