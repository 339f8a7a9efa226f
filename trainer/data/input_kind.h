/* What a file that somebody names as text is, by its first bytes and its name. Text and JSON lines are read; what is known to
 * be something else is refused by name, with the command that makes text of it. */
#pragma once

#include "ckpt/base/status.h"
#include <stddef.h>

#define PD_INPUT_HEAD_BYTES 4096u /* that are looked at */

enum pd_input_form {
    PD_INPUT_TEXT,
    PD_INPUT_JSON_LINES,
    PD_INPUT_GZIP,
    PD_INPUT_ZSTD,
    PD_INPUT_TOKENS,
    PD_INPUT_DOUBTFUL, /* might be text all the same, if somebody says so */
    PD_INPUT_OTHER
};

struct pd_input_kind {
    enum pd_input_form form;
    const char *what;   /* "a zip archive", static */
    const char *advice; /* of the last three: what to do, static; '@' stands for the path */
};

/* head (bytes): the first of the file, or of what is in it compressed; all of a file that has fewer than PD_INPUT_HEAD_BYTES. */
struct pd_input_kind pd_input_kind_of(const char *path, const unsigned char *head, size_t bytes);
/* PD_INVALID "<path> is <what>: <advice>". */
pd_status pd_input_refuse(const char *path, const struct pd_input_kind *kind, struct pd_error *err);

/* `path` as a shell takes it: in quotes where it has to be. ret (capacity) is cut where it is too short. Returns ret. */
const char *pd_shell_word(const char *path, char *ret, size_t capacity);
