/* Entries of data.train and data.validation as files that training can read.
 *
 * A directory or a glob (input_list.h) becomes its files, each of the entry's format; its weight is shared among them by their
 * size. Training reads samples from any place, again and again: text that is compressed or in lines of JSON is refused with
 * the command that packs it, never taken for bytes to learn. */
#pragma once

#include "trainer/data/data.h"
#include <stdio.h>

#define PD_SOURCES_MAX \
    512u /* files of a directory or glob: every rank has all of them open, and each checkpoint names them */

/* Replaces *sources (*count), malloc'ed with malloc'ed paths, in place. Lines about what they are go to `notes`. What does not
 * exist here stays: the ranks, which may run elsewhere, open it.
 *   key             "data.train", for messages
 *   document_token  negative: none; for commands in messages
 *   errors          PD_INVALID, PD_NOT_FOUND (a glob that matches nothing); PD_CORRUPT: compressed data that is cut off */
PD_MUST_USE pd_status pd_sources_find(struct pd_data_source **sources, uint32_t *count, const char *key,
                                      int64_t document_token, FILE *notes, struct pd_error *err);

/* PD_INVALID when `path`, read as text, is anything but plain bytes of text; `entry` is what the user named it by.
 *   asked  TEXT where the user says that it is: then JSON is text too */
PD_MUST_USE pd_status pd_source_check_text(const char *path, const char *entry, enum pd_data_format asked,
                                           int64_t document_token, struct pd_error *err);
