/* Expands user input into files: files, directories, globs.
 *
 * A directory stands for its non-empty files of known kinds, without dot files, subdirectories and tokenizers beside token
 * files. A glob stands for its matches, expanding directories. Skipped files are named in a note. Both are sorted by name
 * bytewise, so all hosts have one order. An existing path is used as is, even if it looks like a glob.
 *   errors  PD_NOT_FOUND: no such path, no match; PD_INVALID: a directory or glob without such a file */
#pragma once

#include "ckpt/base/status.h"
#include "trainer/data/data.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct pd_input_list { /* zeroed: empty */
    char **paths;      /* (count), owned */
    char **notes;      /* (note_count), owned: one line per directory or glob on the files it stands for */
    uint32_t count, note_count;
};

/* takes_tokens: includes token files. The .bin of a Megatron pair stands for both. */
PD_MUST_USE pd_status pd_input_list_add(struct pd_input_list *list, const char *entry, bool takes_tokens,
                                        struct pd_error *err);
void pd_input_list_deinit(struct pd_input_list *list);

/* Converts entries of data.train and data.validation into files for training.
 *
 * A directory or glob (input_list.h) becomes its files, each with the entry's format; its weight is divided among them by
 * size. Training needs random access, so compressed text and JSON lines are refused, not read as plain bytes. */
#define PD_SOURCES_MAX \
    512u /* files of a directory or glob: every rank has all of them open, and each checkpoint names them */

/* Replaces *sources (*count), malloc'ed with malloc'ed paths, in place. Writes lines about them to `notes`. Keeps paths that
 * do not exist here: ranks, which may run elsewhere, open them.
 *   key     "data.train", for messages
 *   errors  PD_INVALID, PD_NOT_FOUND (a glob without matches); PD_CORRUPT: compressed data that is cut off */
PD_MUST_USE pd_status pd_sources_find(struct pd_data_source **sources, uint32_t *count, const char *key, FILE *notes,
                                      struct pd_error *err);

/* PD_INVALID if `path`, read as text, is not plain text.
 *   asked  TEXT if the user says so: then JSON is accepted as text
 *   notes  receives lines about its bytes; may be NULL */
PD_MUST_USE pd_status pd_source_check_text(const char *path, enum pd_data_format asked, FILE *notes, struct pd_error *err);
