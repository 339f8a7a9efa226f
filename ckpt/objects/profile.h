/* Reads a profile from ~/.aws/credentials and ~/.aws/config (or AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE). */
#pragma once

#include "ckpt/base/status.h"
#include <stddef.h>

#define PD_ACCESS_KEY_MAX 128u
#define PD_SECRET_KEY_MAX 128u
#define PD_SESSION_TOKEN_MAX 8192u

struct pd_profile {
    char access[PD_ACCESS_KEY_MAX + 1], secret[PD_SECRET_KEY_MAX + 1], token[PD_SESSION_TOKEN_MAX + 1];
    char region[64], endpoint[512];
    char foreign[32]; /* a key of a credential method we do not support, such as "sso_session"; "": none */
    bool is_there;    /* at least one file has the profile */
};

/* Adds the values of section `profile` to *ret; values that are set already stay.
 *   name       file name, for messages
 *   is_config  true: sections are named "profile NAME" and "default"; false: NAME
 *   errors     PD_INVALID, with the line number: not a section, key or comment; or the value is too long */
PD_MUST_USE pd_status pd_profile_parse(const char *name, const char *text, size_t bytes, const char *profile, bool is_config,
                                       struct pd_profile *ret, struct pd_error *err);

/* Loads the profile AWS_PROFILE, or "default". *ret is always set.
 *   errors  PD_INVALID as above, or neither file has the profile that AWS_PROFILE names; PD_IO: a file cannot be read */
PD_MUST_USE pd_status pd_profile_load(struct pd_profile *ret, struct pd_error *err);

/* Reads a small file. The text ends with a zero byte; the caller frees it.
 *   errors  PD_NOT_FOUND, PD_IO, PD_INVALID: larger than 1 MiB; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_small_file_read(const char *path, char **ret_text, size_t *ret_bytes, struct pd_error *err);
