/* A profile of ~/.aws/credentials and ~/.aws/config (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE). */
#pragma once

#include "ckpt/base/status.h"
#include <stddef.h>

#define PD_ACCESS_KEY_MAX 128u
#define PD_SECRET_KEY_MAX 128u
#define PD_SESSION_TOKEN_MAX 8192u

struct pd_profile {
    char access[PD_ACCESS_KEY_MAX + 1], secret[PD_SECRET_KEY_MAX + 1], token[PD_SESSION_TOKEN_MAX + 1];
    char region[64], endpoint[512];
    char foreign[32]; /* a key that gets credentials in a way that we do not know, such as "sso_session"; "": none */
    bool is_there;    /* one of the files has the profile */
};

/* Adds what the section of `profile` says to *ret; what is there already stays.
 *   name       of the file, for messages
 *   is_config  sections are called "profile NAME" and "default", in the other file NAME
 *   errors     PD_INVALID, with the line: a line that is no section, key or comment; a value that is too long */
PD_MUST_USE pd_status pd_profile_parse(const char *name, const char *text, size_t bytes, const char *profile, bool is_config,
                                       struct pd_profile *ret, struct pd_error *err);

/* The profile of AWS_PROFILE, or "default". *ret is set in every case.
 *   errors  PD_INVALID as above, or AWS_PROFILE names one that neither file has; PD_IO: a file cannot be read */
PD_MUST_USE pd_status pd_profile_load(struct pd_profile *ret, struct pd_error *err);

/* A small file as a text that ends with a zero byte; the caller frees it.
 *   errors  PD_NOT_FOUND, PD_IO, PD_INVALID: larger than 1 MiB; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_small_file_read(const char *path, char **ret_text, size_t *ret_bytes, struct pd_error *err);
