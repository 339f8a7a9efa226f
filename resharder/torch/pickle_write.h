/* Pickles out, protocol 2: what torch.load(weights_only=True) and pickle.load of any Python 3 take. The calls append one
 * operation each; who calls them knows the machine (resharder/torch/pickle.h).
 *   threads  a writer belongs to one at a time */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct pd_pickle_writer { /* zero: nothing written yet */
    unsigned char *text;  /* (bytes) owned */
    uint64_t bytes, capacity;
    bool is_out_of_memory; /* finish tells */
};

void pd_pickle_begin(struct pd_pickle_writer *w);
/* STOP. The text stays the writer's.   errors  PD_NO_MEMORY */
PD_MUST_USE pd_status pd_pickle_finish(struct pd_pickle_writer *w, struct pd_error *err);
void pd_pickle_writer_deinit(struct pd_pickle_writer *w);

/* Each byte of `operations` is one that takes nothing from the text: "(" mark, "t" tuple, ")" empty tuple, "}" empty
 * dictionary, "u" set items, "]" empty list, "e" append items, "R" call, "\x81" new object, "b" build, "Q" persistent, "N" None,
 * "\x88" True, "\x89" False, "\x85" tuple of one. */
void pd_pickle_do(struct pd_pickle_writer *w, const char *operations);
/* A text in front: the key of a dictionary, a field.   key  of the next three may be NULL: there is none */
void pd_pickle_put(struct pd_pickle_writer *w, const char *key, const char *operations);
void pd_pickle_put_bool(struct pd_pickle_writer *w, const char *key, bool value);
void pd_pickle_put_text(struct pd_pickle_writer *w, const char *key, const char *text);
void pd_pickle_put_u64(struct pd_pickle_writer *w, const char *key, uint64_t value);
void pd_pickle_put_double(struct pd_pickle_writer *w, const char *key, double value);
void pd_pickle_put_global(struct pd_pickle_writer *w, const char *module, const char *name);
void pd_pickle_put_sizes(struct pd_pickle_writer *w, const uint64_t *sizes, uint32_t count); /* a tuple */
/* `name` of `module` made without arguments and given the fields that follow until pd_pickle_object_end: name, value, .. */
void pd_pickle_object_begin(struct pd_pickle_writer *w, const char *module, const char *name);
void pd_pickle_object_end(struct pd_pickle_writer *w);
