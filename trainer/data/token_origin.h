/* Which tokenizer made a token file: a copy of its tokenizer.json lies beside the file, named as the file and
 * PD_TOKEN_ORIGIN_END. Without one nobody knows; text is bytes. */
#pragma once

#include "trainer/tokenizer/tokenizer.h"

#define PD_TOKEN_ORIGIN_END ".tokenizer.json"

struct pd_token_origin { /* zeroed: not known */
    uint64_t digest;     /* of the tokenizer; 0: not known */
    uint32_t vocab;
    uint64_t file_digest; /* of the bytes that were read: the same ones need not be read twice */
};

/* *origin as it was of another file, or zeroed, on entry. PD_CORRUPT, PD_UNSUPPORTED: what lies there is no tokenizer. */
PD_MUST_USE pd_status pd_token_origin_read(const char *token_path, struct pd_token_origin *origin, struct pd_error *err);
/* Copies what lies beside a token file to `path`, where it differs. */
PD_MUST_USE pd_status pd_token_origin_copy(const char *token_path, const char *path, struct pd_error *err);
/* Writes the copy, or removes one that another tokenizer left (byte tokens have none). */
PD_MUST_USE pd_status pd_token_origin_write(const char *token_path, const struct pd_tokenizer *tokenizer,
                                            struct pd_error *err);
