/* Reads pickles as plain data: Python's pickle protocols 2 to 5 (PEP 307, PEP 3154, PEP 574, and Lib/pickletools.py).
 *
 * It never calls or imports anything. A call becomes a node with the callable's name and arguments, which the reader
 * interprets. Only "collections.OrderedDict" is known here: a dictionary.
 *
 *   memory   48 bytes and some a node, texts in full; bounded by PD_PICKLE_NODES_MAX and the length of the text
 *   errors   PD_CORRUPT names `name`, the byte and the operation; PD_NO_MEMORY
 *   threads  a pickle belongs to one at a time
 *
 * The tree may have shared nodes and cycles: walk it by what you expect and never without a bound. */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define PD_PICKLE_BYTES_MAX (UINT64_C(512) << 20)
#define PD_PICKLE_NODES_MAX (1u << 24)

enum pd_pickle_type {
    PD_PICKLE_NONE,
    PD_PICKLE_BOOL,
    PD_PICKLE_INTEGER,
    PD_PICKLE_LONG, /* an integer of more than 64 bits: opaque */
    PD_PICKLE_REAL,
    PD_PICKLE_TEXT,
    PD_PICKLE_BYTES,
    PD_PICKLE_TUPLE,
    PD_PICKLE_LIST,       /* also sets */
    PD_PICKLE_DICT,       /* items: key, value, key, value, .. */
    PD_PICKLE_GLOBAL,     /* text: "torch.float32" */
    PD_PICKLE_PERSISTENT, /* object->arguments: its identifier outside the pickle */
    PD_PICKLE_OBJECT,
};

struct pd_pickle_node;
struct pd_pickle_object {
    const struct pd_pickle_node *callable;  /* usually a PD_PICKLE_GLOBAL */
    const struct pd_pickle_node *arguments; /* usually a tuple */
    const struct pd_pickle_node *state;     /* of BUILD: usually a dictionary of fields; NULL: none */
    const struct pd_pickle_node *items;     /* appended or set on it: a list or dictionary; NULL: none */
};

struct pd_pickle_node {
    enum pd_pickle_type type;
    uint32_t count; /* number of items; bytes of text */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *text; /* (count), terminated after it */
        const struct pd_pickle_node **items;
        struct pd_pickle_object *object;
    };
};

struct pd_pickle;
/* `text` (bytes) is used only during the call. Reading ends at STOP: *ret_used (may be NULL) is the number of bytes read. */
PD_MUST_USE pd_status pd_pickle_parse(const char *name, const void *text, uint64_t bytes, struct pd_pickle **ret_pickle,
                                      uint64_t *ret_used, struct pd_error *err);
void pd_pickle_free(struct pd_pickle *pickle); /* NULL is fine */
const struct pd_pickle_node *pd_pickle_root(const struct pd_pickle *pickle);

/* All accept a NULL `node`, and return NULL or false for a node of another type, so calls can be nested. */
const struct pd_pickle_node *pd_pickle_member(const struct pd_pickle_node *dict, const char *key);
const struct pd_pickle_node *pd_pickle_field(const struct pd_pickle_node *object, const char *name); /* of its state */
const struct pd_pickle_node *pd_pickle_at(const struct pd_pickle_node *sequence, uint32_t index);    /* of a tuple or list */
const struct pd_pickle_node *pd_pickle_argument(const struct pd_pickle_node *object, uint32_t index);
bool pd_pickle_is_call(const struct pd_pickle_node *node, const char *name); /* an object made by `name` */
bool pd_pickle_is_u64(const struct pd_pickle_node *node, uint64_t *ret);
bool pd_pickle_is_number(const struct pd_pickle_node *node, double *ret);
/* Reads a tuple or list of sizes, or a torch.Size of one: at most `most`. ret (most) */
bool pd_pickle_is_sizes(const struct pd_pickle_node *node, uint32_t most, uint64_t *ret, uint32_t *ret_count);
const char *pd_pickle_text(const struct pd_pickle_node *node); /* PD_PICKLE_TEXT without zero bytes */
const char *pd_pickle_global(const struct pd_pickle_node *node);
