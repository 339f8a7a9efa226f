/* Pickles, read as plain data: Python's pickle protocols 2 to 5 (PEP 307, PEP 3154, PEP 574, and Lib/pickletools.py).
 *
 * Nothing is ever called or imported. What a pickle would call becomes a node that names it and holds its arguments; what that
 * means is the reader's to know ("collections.OrderedDict" is the one name known here: a dictionary).
 *
 *   memory   48 bytes and some a node, texts as they are; PD_PICKLE_NODES_MAX and the length of the text bound it
 *   errors   PD_CORRUPT names `name`, the byte and the operation; PD_NO_MEMORY
 *   threads  a pickle belongs to one at a time
 *
 * The tree may have shared nodes and, as pickles may, circles: walk it by what is expected and never without a bound. */
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
    PD_PICKLE_LIST,       /* and sets */
    PD_PICKLE_DICT,       /* items: key, value, key, value, .. */
    PD_PICKLE_GLOBAL,     /* text: "torch.float32" */
    PD_PICKLE_PERSISTENT, /* object->arguments: what it is known by outside the pickle */
    PD_PICKLE_OBJECT,
};

struct pd_pickle_node;
struct pd_pickle_object {
    const struct pd_pickle_node *callable;  /* mostly a PD_PICKLE_GLOBAL */
    const struct pd_pickle_node *arguments; /* mostly a tuple */
    const struct pd_pickle_node *state;     /* of BUILD: mostly a dictionary of fields; NULL: there was none */
    const struct pd_pickle_node *items;     /* what was appended or set on it: a list or dictionary; NULL: nothing */
};

struct pd_pickle_node {
    enum pd_pickle_type type;
    uint32_t count; /* of items; bytes of text */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *text; /* (count), terminated beyond it */
        const struct pd_pickle_node **items;
        struct pd_pickle_object *object;
    };
};

struct pd_pickle;
/* `text` (bytes) is only needed during the call. Reading ends at STOP: *ret_used (may be NULL) bytes were read. */
PD_MUST_USE pd_status pd_pickle_parse(const char *name, const void *text, uint64_t bytes, struct pd_pickle **ret_pickle,
                                      uint64_t *ret_used, struct pd_error *err);
void pd_pickle_free(struct pd_pickle *pickle); /* NULL is fine */
const struct pd_pickle_node *pd_pickle_root(const struct pd_pickle *pickle);

/* All take NULL for `node`, and give NULL or false where it is something else than they want: so they nest. */
const struct pd_pickle_node *pd_pickle_member(const struct pd_pickle_node *dict, const char *key);
const struct pd_pickle_node *pd_pickle_field(const struct pd_pickle_node *object, const char *name); /* of its state */
const struct pd_pickle_node *pd_pickle_at(const struct pd_pickle_node *sequence, uint32_t index);    /* of a tuple or list */
const struct pd_pickle_node *pd_pickle_argument(const struct pd_pickle_node *object, uint32_t index);
bool pd_pickle_is_call(const struct pd_pickle_node *node, const char *name); /* an object made by `name` */
bool pd_pickle_is_u64(const struct pd_pickle_node *node, uint64_t *ret);
bool pd_pickle_is_number(const struct pd_pickle_node *node, double *ret);
/* A tuple or list of sizes, or a torch.Size of one: at most `most`.   ret (most) */
bool pd_pickle_is_sizes(const struct pd_pickle_node *node, uint32_t most, uint64_t *ret, uint32_t *ret_count);
const char *pd_pickle_text(const struct pd_pickle_node *node); /* of PD_PICKLE_TEXT without a zero byte inside */
const char *pd_pickle_global(const struct pd_pickle_node *node);
