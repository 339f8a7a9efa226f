/* Writes pickles, protocol 2, which torch.load(weights_only=True) and pickle.load of any Python 3 read. Each call appends
 * one operation; the caller must know the pickle machine (resharder/torch/pickle.h).
 *   threads  a writer belongs to one at a time */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct pd_pickle_writer { /* zero: nothing written yet */
    unsigned char *text;  /* (bytes) owned */
    uint64_t bytes, capacity;
    bool is_out_of_memory; /* finish reports it */
};

void pd_pickle_begin(struct pd_pickle_writer *w);
/* Appends STOP. The writer keeps the text.   errors  PD_NO_MEMORY */
PD_MUST_USE pd_status pd_pickle_finish(struct pd_pickle_writer *w, struct pd_error *err);
void pd_pickle_writer_deinit(struct pd_pickle_writer *w);

/* Appends `operations`, one byte each, without operands: "(" mark, "t" tuple, ")" empty tuple, "}" empty dictionary, "u"
 * set items, "]" empty list, "e" append items, "R" call, "\x81" new object, "b" build, "Q" persistent, "N" None, "\x88"
 * True, "\x89" False, "\x85" tuple of one. */
void pd_pickle_do(struct pd_pickle_writer *w, const char *operations);
/* Appends a text first: the key of a dictionary, a field. key of the next three may be NULL: none */
void pd_pickle_put(struct pd_pickle_writer *w, const char *key, const char *operations);
void pd_pickle_put_bool(struct pd_pickle_writer *w, const char *key, bool value);
void pd_pickle_put_text(struct pd_pickle_writer *w, const char *key, const char *text);
void pd_pickle_put_u64(struct pd_pickle_writer *w, const char *key, uint64_t value);
void pd_pickle_put_double(struct pd_pickle_writer *w, const char *key, double value);
void pd_pickle_put_global(struct pd_pickle_writer *w, const char *module, const char *name);
void pd_pickle_put_sizes(struct pd_pickle_writer *w, const uint64_t *sizes, uint32_t count); /* a tuple */
/* Creates `name` of `module` without arguments; then append its fields, name, value, .., until pd_pickle_object_end. */
void pd_pickle_object_begin(struct pd_pickle_writer *w, const char *module, const char *name);
void pd_pickle_object_end(struct pd_pickle_writer *w);
