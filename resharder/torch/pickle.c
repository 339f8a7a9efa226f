/* A stack machine over a table of operations. The stack holds nodes; a mark is a NULL on it.
 *
 *   invariants  1. no operation reads beyond the text, pops below the innermost mark, or recurses
 *               2. a node is made by at most one operation of the text, so nodes are bounded by its length and by the cap
 *               3. items of a list, dictionary or tuple are never NULL */
#include "resharder/torch/pickle.h"

#include "ckpt/base/checked.h"

#include <inttypes.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#define SLAB_BYTES (UINT64_C(1) << 18)

struct slab {
    struct slab *next;
    uint64_t used, bytes;
    alignas(16) unsigned char data[];
};

struct pd_pickle {
    struct slab *slabs; /* the newest first */
    uint32_t node_count;
    const struct pd_pickle_node *root;
};

struct machine;
struct operation {
    pd_status (*run)(struct machine *m);
    enum pd_pickle_type type; /* type to make or add to */
    unsigned n;               /* size of its number, or values it takes */
};

struct machine {
    struct operation now;
    const char *name;
    const unsigned char *text;
    uint64_t bytes, at, operation_at;
    struct pd_pickle *pickle;
    struct pd_pickle_node **stack; /* (stack_capacity) */
    uint64_t stack_count, stack_capacity;
    struct pd_pickle_node **memo; /* (memo_capacity) NULL: not set */
    uint64_t memo_count, memo_capacity;
    bool has_stopped;
    struct pd_error *err;
};

#define FAIL(m, ...)                                                                                \
    return pd_error_context((m)->err, pd_error_set((m)->err, PD_CORRUPT, PD_WHERE, 0, __VA_ARGS__), \
                            "%s: byte %" PRIu64 " of the pickle", (m)->name, (m)->operation_at)
#define FAIL_MEMORY(m) return pd_error_set((m)->err, PD_NO_MEMORY, PD_WHERE, 0, "%s: no memory to read a pickle", (m)->name)

/* ---- memory ---- */

static void *pickle_take(struct machine *m, uint64_t bytes)
{
    struct slab *slab = m->pickle->slabs;
    bytes = pd_round_up(bytes, 16);
    if (!slab || slab->bytes - slab->used < bytes) {
        const uint64_t size = bytes > SLAB_BYTES ? bytes : SLAB_BYTES;
        struct slab *fresh = malloc(sizeof *fresh + size);
        if (!fresh) return NULL;
        *fresh = (struct slab){.next = slab, .bytes = size};
        m->pickle->slabs = slab = fresh;
    }
    void *memory = slab->data + slab->used;
    slab->used += bytes;
    return memory;
}

static pd_status grow(struct machine *m, struct pd_pickle_node ***array, uint64_t *capacity, uint64_t wanted)
{
    if (wanted <= *capacity) return PD_OK;
    const uint64_t larger = wanted > 2 * *capacity ? wanted + 256 : 2 * *capacity;
    struct pd_pickle_node **fresh = realloc(*array, larger * sizeof *fresh);
    if (!fresh) FAIL_MEMORY(m);
    memset(fresh + *capacity, 0, (larger - *capacity) * sizeof *fresh);
    *array = fresh;
    *capacity = larger;
    return PD_OK;
}

static pd_status new_node(struct machine *m, enum pd_pickle_type type, struct pd_pickle_node **ret)
{
    if (m->pickle->node_count >= PD_PICKLE_NODES_MAX) FAIL(m, "more than %u values", PD_PICKLE_NODES_MAX);
    struct pd_pickle_node *node = pickle_take(m, sizeof *node);
    if (!node) FAIL_MEMORY(m);
    *node = (struct pd_pickle_node){.type = type};
    m->pickle->node_count++;
    *ret = node;
    return PD_OK;
}

static pd_status new_object(struct machine *m, enum pd_pickle_type type, struct pd_pickle_node **ret)
{
    PD_TRY(new_node(m, type, ret));
    (*ret)->object = pickle_take(m, sizeof *(*ret)->object);
    if (!(*ret)->object) FAIL_MEMORY(m);
    *(*ret)->object = (struct pd_pickle_object){0};
    return PD_OK;
}

/* Arrays of items have a capacity of a power of two, at least 4, so the count tells when to grow. */
static pd_status pickle_append(struct machine *m, struct pd_pickle_node *to, const struct pd_pickle_node *item)
{
    const uint32_t count = to->count;
    if (count == 0 || (count >= 4 && (count & (count - 1)) == 0)) {
        const struct pd_pickle_node **items = pickle_take(m, (count ? 2 * (uint64_t)count : 4) * sizeof *items);
        if (!items) FAIL_MEMORY(m);
        if (count) memcpy(items, to->items, count * sizeof *items);
        to->items = items;
    }
    to->items[to->count++] = item;
    return PD_OK;
}

/* ---- stack and text ---- */

static pd_status push(struct machine *m, struct pd_pickle_node *node)
{
    PD_TRY(grow(m, &m->stack, &m->stack_capacity, m->stack_count + 1));
    m->stack[m->stack_count++] = node;
    return PD_OK;
}

static pd_status pop(struct machine *m, struct pd_pickle_node **ret)
{
    if (!m->stack_count || !m->stack[m->stack_count - 1]) FAIL(m, "takes a value from an empty stack");
    *ret = m->stack[--m->stack_count];
    return PD_OK;
}

static pd_status top(struct machine *m, struct pd_pickle_node **ret)
{
    PD_TRY(pop(m, ret));
    m->stack_count++;
    return PD_OK;
}

/* Finds the values above the innermost mark; drop_to removes the mark with them. */
static pd_status above_mark(struct machine *m, uint64_t *ret_first)
{
    for (uint64_t i = m->stack_count; i-- > 0;) {
        if (m->stack[i]) continue;
        *ret_first = i + 1;
        return PD_OK;
    }
    FAIL(m, "needs a mark and finds none");
}

static void drop_to(struct machine *m, uint64_t first)
{
    m->stack_count = first - 1;
}

static pd_status need(struct machine *m, uint64_t bytes, const unsigned char **ret)
{
    if (!pd_checked_range(m->at, bytes, m->bytes)) FAIL(m, "wants %" PRIu64 " bytes and the file ends before", bytes);
    *ret = m->text + m->at;
    m->at += bytes;
    return PD_OK;
}

static pd_status number(struct machine *m, unsigned bytes, uint64_t *ret)
{
    const unsigned char *text = NULL;
    PD_TRY(need(m, bytes, &text));
    *ret = 0;
    for (unsigned i = 0; i < bytes; i++)
        *ret |= (uint64_t)text[i] << (8 * i);
    return PD_OK;
}

/* ---- constants ---- */

static pd_status op_bool(struct machine *m)
{
    struct pd_pickle_node *node = NULL;
    PD_TRY(new_node(m, PD_PICKLE_BOOL, &node));
    node->boolean = m->now.n;
    return push(m, node);
}

static pd_status push_integer(struct machine *m, int64_t value)
{
    struct pd_pickle_node *node = NULL;
    PD_TRY(new_node(m, PD_PICKLE_INTEGER, &node));
    node->integer = value;
    return push(m, node);
}

static pd_status push_text(struct machine *m, enum pd_pickle_type type, const void *text, uint64_t bytes)
{
    struct pd_pickle_node *node = NULL;
    if (bytes >= UINT32_MAX) FAIL(m, "a text of %" PRIu64 " bytes", bytes);
    PD_TRY(new_node(m, type, &node));
    char *copy = pickle_take(m, bytes + 1);
    if (!copy) FAIL_MEMORY(m);
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    node->text = copy;
    node->count = (uint32_t)bytes;
    return push(m, node);
}

static pd_status op_text(struct machine *m)
{
    uint64_t bytes = 0;
    const unsigned char *text = NULL;
    PD_TRY(number(m, m->now.n, &bytes));
    PD_TRY(need(m, bytes, &text));
    return push_text(m, m->now.type, text, bytes);
}

/* Two's complement, little-endian, any length. */
static pd_status op_long(struct machine *m)
{
    uint64_t bytes = 0, value = 0;
    const unsigned char *text = NULL;
    PD_TRY(number(m, m->now.n, &bytes));
    PD_TRY(need(m, bytes, &text));
    if (bytes > 8) {
        struct pd_pickle_node *node = NULL;
        PD_TRY(new_node(m, PD_PICKLE_LONG, &node));
        return push(m, node);
    }
    for (uint64_t i = 0; i < bytes; i++)
        value |= (uint64_t)text[i] << (8 * i);
    if (bytes && bytes < 8 && text[bytes - 1] >> 7) value |= UINT64_MAX << (8 * bytes);
    return push_integer(m, (int64_t)value);
}

static pd_status op_integer(struct machine *m)
{
    uint64_t value = 0;
    PD_TRY(number(m, m->now.n, &value));
    return push_integer(m, m->now.n == 4 ? (int32_t)(uint32_t)value : (int64_t)value); /* the shorter ones are unsigned */
}

static pd_status op_real(struct machine *m) /* the only big-endian number */
{
    const unsigned char *text = NULL;
    struct pd_pickle_node *node = NULL;
    uint64_t bits = 0;
    PD_TRY(need(m, 8, &text));
    PD_TRY(new_node(m, PD_PICKLE_REAL, &node));
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | text[i];
    memcpy(&node->real, &bits, sizeof bits);
    return push(m, node);
}

/* ---- containers ---- */

static pd_status op_empty(struct machine *m)
{
    struct pd_pickle_node *node = NULL;
    PD_TRY(new_node(m, m->now.type, &node));
    return push(m, node);
}

static pd_status op_mark(struct machine *m)
{
    return push(m, NULL);
}

static pd_status op_gather(struct machine *m)
{
    uint64_t first = 0;
    struct pd_pickle_node *node = NULL;
    PD_TRY(above_mark(m, &first));
    /* Combines the stack from `first` on into one value. */
    PD_TRY(new_node(m, m->now.type, &node));
    for (uint64_t i = first; i < m->stack_count; i++)
        PD_TRY(pickle_append(m, node, m->stack[i]));
    drop_to(m, first);
    return push(m, node);
}

static pd_status op_short_tuple(struct machine *m)
{
    struct pd_pickle_node *items[3], *node = NULL;
    for (uint32_t i = m->now.n; i-- > 0;)
        PD_TRY(pop(m, &items[i]));
    PD_TRY(new_node(m, PD_PICKLE_TUPLE, &node));
    for (uint32_t i = 0; i < m->now.n; i++)
        PD_TRY(pickle_append(m, node, items[i]));
    return push(m, node);
}

/* Returns the container for items: a container of that type, or an object's, created on demand. */
static pd_status container(struct machine *m, struct pd_pickle_node *node, enum pd_pickle_type type,
                           struct pd_pickle_node **ret)
{
    *ret = node;
    if (node->type == type) return PD_OK;
    if (node->type != PD_PICKLE_OBJECT) FAIL(m, "adds items to a value that holds none");
    if (!node->object->items) {
        PD_TRY(new_node(m, type, ret));
        node->object->items = *ret;
    }
    if (node->object->items->type != type) FAIL(m, "adds both keys and plain items to an object");
    *ret = (struct pd_pickle_node *)(uintptr_t)node->object->items; /* this machine made it above */
    return PD_OK;
}

static pd_status add_items(struct machine *m, uint64_t first)
{
    const enum pd_pickle_type type = m->now.type;
    struct pd_pickle_node *to = NULL;
    if (type == PD_PICKLE_DICT && (m->stack_count - first) % 2) FAIL(m, "a key without a value");
    PD_TRY(container(m, m->stack[first - 1], type, &to));
    for (uint64_t i = first; i < m->stack_count; i++)
        PD_TRY(pickle_append(m, to, m->stack[i]));
    m->stack_count = first;
    return PD_OK;
}

static pd_status op_add_marked(struct machine *m)
{
    uint64_t first = 0;
    PD_TRY(above_mark(m, &first));
    if (first < 2 || !m->stack[first - 2]) FAIL(m, "adds items to nothing");
    memmove(&m->stack[first - 1], &m->stack[first], (m->stack_count - first) * sizeof *m->stack); /* drops the mark */
    m->stack_count--;
    return add_items(m, first - 1);
}

static pd_status op_add_last(struct machine *m)
{
    if (m->stack_count <= m->now.n) FAIL(m, "takes a value from an empty stack");
    const uint64_t first = m->stack_count - m->now.n;
    for (uint64_t i = first - 1; i < m->stack_count; i++)
        if (!m->stack[i]) FAIL(m, "takes a value from beyond a mark");
    return add_items(m, first);
}

/* ---- names and calls ---- */

static pd_status push_global(struct machine *m, const char *module, uint64_t module_bytes, const char *name,
                             uint64_t name_bytes)
{
    char text[512];
    if (module_bytes + 1 + name_bytes > sizeof text) FAIL(m, "a name of %" PRIu64 " bytes", module_bytes + 1 + name_bytes);
    memcpy(text, module, module_bytes);
    text[module_bytes] = '.';
    memcpy(text + module_bytes + 1, name, name_bytes);
    return push_text(m, PD_PICKLE_GLOBAL, text, module_bytes + 1 + name_bytes);
}

static pd_status line(struct machine *m, const char **ret, uint64_t *ret_bytes)
{
    const unsigned char *begin = m->text + m->at, *end = memchr(begin, '\n', m->bytes - m->at);
    if (!end) FAIL(m, "a name without an end");
    *ret = (const char *)begin;
    *ret_bytes = (uint64_t)(end - begin);
    m->at += *ret_bytes + 1;
    return PD_OK;
}

static pd_status op_global(struct machine *m)
{
    const char *module = NULL, *name = NULL;
    uint64_t module_bytes = 0, name_bytes = 0;
    PD_TRY(line(m, &module, &module_bytes));
    PD_TRY(line(m, &name, &name_bytes));
    return push_global(m, module, module_bytes, name, name_bytes);
}

static pd_status op_stack_global(struct machine *m)
{
    struct pd_pickle_node *name = NULL, *module = NULL;
    PD_TRY(pop(m, &name));
    PD_TRY(pop(m, &module));
    if (name->type != PD_PICKLE_TEXT || module->type != PD_PICKLE_TEXT) FAIL(m, "a name that is not text");
    return push_global(m, module->text, module->count, name->text, name->count);
}

static pd_status op_call(struct machine *m)
{
    struct pd_pickle_node *arguments = NULL, *callable = NULL;
    PD_TRY(pop(m, &arguments));
    PD_TRY(pop(m, &callable));
    struct pd_pickle_node *node = NULL;
    const char *name = pd_pickle_global(callable);
    if (name && strcmp(name, "collections.OrderedDict") == 0 && arguments->type == PD_PICKLE_TUPLE && !arguments->count) {
        PD_TRY(new_node(m, PD_PICKLE_DICT, &node));
        return push(m, node);
    }
    PD_TRY(new_object(m, PD_PICKLE_OBJECT, &node));
    node->object->callable = callable;
    node->object->arguments = arguments;
    return push(m, node);
}

static pd_status op_newobj_ex(struct machine *m)
{
    struct pd_pickle_node *keywords = NULL;
    PD_TRY(pop(m, &keywords));
    return op_call(m);
}

static pd_status op_build(struct machine *m)
{
    struct pd_pickle_node *state = NULL, *object = NULL;
    PD_TRY(pop(m, &state));
    PD_TRY(top(m, &object));
    if (object->type == PD_PICKLE_OBJECT) object->object->state = state; /* the state of a dictionary is ignored */
    return PD_OK;
}

static pd_status op_persistent(struct machine *m)
{
    struct pd_pickle_node *id = NULL, *node = NULL;
    PD_TRY(pop(m, &id));
    PD_TRY(new_object(m, PD_PICKLE_PERSISTENT, &node));
    node->object->arguments = id;
    return push(m, node);
}

/* ---- memo and stack ---- */

static pd_status op_put(struct machine *m)
{
    struct pd_pickle_node *node = NULL;
    uint64_t index = m->memo_count;
    if (m->now.n) PD_TRY(number(m, m->now.n, &index));
    PD_TRY(top(m, &node));
    if (index > m->at) FAIL(m, "memo %" PRIu64 " is out of order", index); /* each entry takes bytes of the text */
    PD_TRY(grow(m, &m->memo, &m->memo_capacity, index + 1));
    if (!m->memo[index]) m->memo_count++;
    m->memo[index] = node;
    return PD_OK;
}

static pd_status op_get(struct machine *m)
{
    uint64_t index = 0;
    PD_TRY(number(m, m->now.n, &index));
    if (index >= m->memo_capacity || !m->memo[index]) FAIL(m, "memo %" PRIu64 " is empty", index);
    return push(m, m->memo[index]);
}

static pd_status op_pop(struct machine *m)
{
    if (!m->stack_count) FAIL(m, "takes a value from an empty stack");
    m->stack_count--;
    return PD_OK;
}

static pd_status op_pop_mark(struct machine *m)
{
    uint64_t first = 0;
    PD_TRY(above_mark(m, &first));
    drop_to(m, first);
    return PD_OK;
}

static pd_status op_protocol(struct machine *m)
{
    uint64_t protocol = 0;
    PD_TRY(number(m, 1, &protocol));
    if (protocol < 2 || protocol > 5) FAIL(m, "protocol %" PRIu64 ", and 2 to 5 are read", protocol);
    return PD_OK;
}

static pd_status op_frame(struct machine *m)
{
    uint64_t bytes = 0;
    PD_TRY(number(m, 8, &bytes));
    if (bytes > m->bytes - m->at) FAIL(m, "a frame of %" PRIu64 " bytes, and the file ends before", bytes);
    return PD_OK;
}

static pd_status op_stop(struct machine *m)
{
    struct pd_pickle_node *root = NULL;
    PD_TRY(pop(m, &root));
    m->pickle->root = root;
    m->has_stopped = true;
    return PD_OK;
}

static const struct operation operations[256] = {
    [0x80] = {.run = op_protocol},
    [0x95] = {.run = op_frame},
    ['.'] = {.run = op_stop},
    /* constants */
    ['N'] = {op_empty, PD_PICKLE_NONE, 0},
    [0x88] = {.run = op_bool, .n = true},
    [0x89] = {.run = op_bool, .n = false},
    ['K'] = {.run = op_integer, .n = 1},
    ['M'] = {.run = op_integer, .n = 2},
    ['J'] = {.run = op_integer, .n = 4},
    [0x8a] = {.run = op_long, .n = 1},
    [0x8b] = {.run = op_long, .n = 4},
    ['G'] = {.run = op_real},
    [0x8c] = {op_text, PD_PICKLE_TEXT, 1},
    ['X'] = {op_text, PD_PICKLE_TEXT, 4},
    [0x8d] = {op_text, PD_PICKLE_TEXT, 8},
    ['C'] = {op_text, PD_PICKLE_BYTES, 1},
    ['B'] = {op_text, PD_PICKLE_BYTES, 4},
    [0x8e] = {op_text, PD_PICKLE_BYTES, 8},
    [0x96] = {op_text, PD_PICKLE_BYTES, 8},
    /* containers */
    ['('] = {.run = op_mark},
    ['}'] = {op_empty, PD_PICKLE_DICT, 0},
    [']'] = {op_empty, PD_PICKLE_LIST, 0},
    [0x8f] = {op_empty, PD_PICKLE_LIST, 0},
    [')'] = {op_empty, PD_PICKLE_TUPLE, 0},
    ['t'] = {op_gather, PD_PICKLE_TUPLE, 0},
    [0x91] = {op_gather, PD_PICKLE_LIST, 0},
    [0x85] = {.run = op_short_tuple, .n = 1},
    [0x86] = {.run = op_short_tuple, .n = 2},
    [0x87] = {.run = op_short_tuple, .n = 3},
    ['e'] = {op_add_marked, PD_PICKLE_LIST, 0},
    [0x90] = {op_add_marked, PD_PICKLE_LIST, 0},
    ['u'] = {op_add_marked, PD_PICKLE_DICT, 0},
    ['a'] = {op_add_last, PD_PICKLE_LIST, 1},
    ['s'] = {op_add_last, PD_PICKLE_DICT, 2},
    /* names and calls */
    ['c'] = {.run = op_global},
    [0x93] = {.run = op_stack_global},
    ['R'] = {.run = op_call},
    [0x81] = {.run = op_call},
    [0x92] = {.run = op_newobj_ex},
    ['b'] = {.run = op_build},
    ['Q'] = {.run = op_persistent},
    /* memo and stack */
    [0x94] = {.run = op_put, .n = 0},
    ['q'] = {.run = op_put, .n = 1},
    ['r'] = {.run = op_put, .n = 4},
    ['h'] = {.run = op_get, .n = 1},
    ['j'] = {.run = op_get, .n = 4},
    ['0'] = {.run = op_pop},
    ['1'] = {.run = op_pop_mark},
};

static pd_status pickle_run(struct machine *m)
{
    while (!m->has_stopped) {
        const unsigned char *code = NULL;
        m->operation_at = m->at;
        PD_TRY(need(m, 1, &code));
        m->now = operations[*code];
        if (!m->now.run) FAIL(m, "operation 0x%02x is not one of a plain pickle", *code);
        PD_TRY(m->now.run(m));
    }
    return PD_OK;
}

pd_status pd_pickle_parse(const char *name, const void *text, uint64_t bytes, struct pd_pickle **ret_pickle,
                          uint64_t *ret_used, struct pd_error *err)
{
    if (bytes > PD_PICKLE_BYTES_MAX)
        PD_FAIL(err, PD_CORRUPT, "%s: a pickle of %" PRIu64 " bytes; at most %" PRIu64 " are read", name, bytes,
                PD_PICKLE_BYTES_MAX);
    struct machine m = {.name = name, .text = text, .bytes = bytes, .err = err, .pickle = calloc(1, sizeof *m.pickle)};
    if (!m.pickle) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to read a pickle", name);
    const pd_status st = pickle_run(&m);
    free(m.stack);
    free(m.memo);
    if (st) {
        pd_pickle_free(m.pickle);
        return st;
    }
    *ret_pickle = m.pickle;
    if (ret_used) *ret_used = m.at;
    return PD_OK;
}

void pd_pickle_free(struct pd_pickle *pickle)
{
    if (!pickle) return;
    for (struct slab *slab = pickle->slabs, *next = NULL; slab; slab = next) {
        next = slab->next;
        free(slab);
    }
    free(pickle);
}

/* ---- looking at nodes ---- */

const struct pd_pickle_node *pd_pickle_root(const struct pd_pickle *pickle)
{
    return pickle->root;
}

const char *pd_pickle_text(const struct pd_pickle_node *node)
{
    return node && node->type == PD_PICKLE_TEXT && strlen(node->text) == node->count ? node->text : NULL;
}

const char *pd_pickle_global(const struct pd_pickle_node *node)
{
    return node && node->type == PD_PICKLE_GLOBAL && strlen(node->text) == node->count ? node->text : NULL;
}

const struct pd_pickle_node *pd_pickle_member(const struct pd_pickle_node *dict, const char *key)
{
    if (!dict || dict->type != PD_PICKLE_DICT) return NULL;
    for (uint32_t i = 0; i < dict->count; i += 2) {
        const char *text = pd_pickle_text(dict->items[i]);
        if (text && strcmp(text, key) == 0) return dict->items[i + 1];
    }
    return NULL;
}

const struct pd_pickle_node *pd_pickle_field(const struct pd_pickle_node *object, const char *name)
{
    return object && object->type == PD_PICKLE_OBJECT ? pd_pickle_member(object->object->state, name) : NULL;
}

const struct pd_pickle_node *pd_pickle_at(const struct pd_pickle_node *sequence, uint32_t index)
{
    const bool has = sequence && (sequence->type == PD_PICKLE_TUPLE || sequence->type == PD_PICKLE_LIST);
    return has && index < sequence->count ? sequence->items[index] : NULL;
}

const struct pd_pickle_node *pd_pickle_argument(const struct pd_pickle_node *object, uint32_t index)
{
    return object && object->type == PD_PICKLE_OBJECT ? pd_pickle_at(object->object->arguments, index) : NULL;
}

bool pd_pickle_is_call(const struct pd_pickle_node *node, const char *name)
{
    if (!node || node->type != PD_PICKLE_OBJECT) return false;
    const char *callable = pd_pickle_global(node->object->callable);
    return callable && strcmp(callable, name) == 0;
}

bool pd_pickle_is_u64(const struct pd_pickle_node *node, uint64_t *ret)
{
    if (!node || node->type != PD_PICKLE_INTEGER || node->integer < 0) return false;
    *ret = (uint64_t)node->integer;
    return true;
}

bool pd_pickle_is_number(const struct pd_pickle_node *node, double *ret)
{
    if (!node || (node->type != PD_PICKLE_INTEGER && node->type != PD_PICKLE_REAL)) return false;
    *ret = node->type == PD_PICKLE_REAL ? node->real : (double)node->integer;
    return true;
}

bool pd_pickle_is_sizes(const struct pd_pickle_node *node, uint32_t most, uint64_t *ret, uint32_t *ret_count)
{
    if (pd_pickle_is_call(node, "torch.Size")) node = pd_pickle_argument(node, 0);
    if (!node || (node->type != PD_PICKLE_TUPLE && node->type != PD_PICKLE_LIST) || node->count > most) return false;
    for (uint32_t i = 0; i < node->count; i++)
        if (!pd_pickle_is_u64(node->items[i], &ret[i])) return false;
    *ret_count = node->count;
    return true;
}
