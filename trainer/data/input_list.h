/* Files out of what people type: files, directories, globs.
 *
 * A directory stands for the files in it whose kind we know and that are not empty, without those that begin with a dot, the
 * directories in it and the tokenizers beside token files; a glob for those that it matches, and for the directories. What is
 * left out is named in a note. Both are sorted by name, byte by byte, so that every host has one
 * order. What exists is taken by its name, even one that looks like a glob.
 *   errors  PD_NOT_FOUND: nothing of that name, nothing that matches; PD_INVALID: a directory or a glob without one such file */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

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
