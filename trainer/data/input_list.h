/* Files out of what people type: files, directories, globs.
 *
 * A directory stands for the files in it whose kind we know and that are not empty, without those that begin with a dot, the
 * directories in it and the tokenizers beside token files; a glob for those that it matches, and for the directories. What is
 * left out is named in a note. Both are sorted by name, byte by byte, so that every host has one
 * order. What exists is taken by its name, even one that looks like a glob.
 *   errors  PD_NOT_FOUND: nothing of that name, nothing that matches; PD_INVALID: a directory or a glob without one such file */
#pragma once

#include "ckpt/base/status.h"
#include "trainer/data/data.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct pd_input_list { /* zeroed: empty */
    char **paths;      /* (count) owned */
    char **notes;      /* (note_count) owned: for each directory and glob a line that says which files it stands for */
    uint32_t count, note_count;
};

/* takes_tokens: token files count among those we know. Of a pair of Megatron the .bin stands for
 * both. */
PD_MUST_USE pd_status pd_input_list_add(struct pd_input_list *list, const char *entry, bool takes_tokens,
                                        struct pd_error *err);
void pd_input_list_deinit(struct pd_input_list *list);

/* Entries of data.train and data.validation as files that training can read.
 *
 * A directory or a glob (input_list.h) becomes its files, each of the entry's format; its weight is shared among them by their
 * size. Training reads samples from any place, again and again: text that is compressed or in lines of JSON is refused,
 * never taken for bytes to learn. */
#define PD_SOURCES_MAX \
    512u /* files of a directory or glob: every rank has all of them open, and each checkpoint names them */

/* Replaces *sources (*count), malloc'ed with malloc'ed paths, in place. Lines about what they are go to `notes`. What does not
 * exist here stays: the ranks, which may run elsewhere, open it.
 *   key     "data.train", for messages
 *   errors  PD_INVALID, PD_NOT_FOUND (a glob that matches nothing); PD_CORRUPT: compressed data that is cut off */
PD_MUST_USE pd_status pd_sources_find(struct pd_data_source **sources, uint32_t *count, const char *key, FILE *notes,
                                      struct pd_error *err);

/* PD_INVALID when `path`, read as text, is anything but plain bytes of text.
 *   asked  TEXT where the user says that it is: then JSON is text too
 *   notes  takes lines about its bytes; NULL: nobody wants them */
PD_MUST_USE pd_status pd_source_check_text(const char *path, enum pd_data_format asked, FILE *notes, struct pd_error *err);
