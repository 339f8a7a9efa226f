/* Which tokenizer made a token file: a copy of its tokenizer.json is beside the file, with PD_TOKEN_ORIGIN_END appended to
 * the name. Without a copy it is unknown; text is bytes. */
#pragma once

#include "trainer/tokenizer/tokenizer.h"

#define PD_TOKEN_ORIGIN_END ".tokenizer.json"

struct pd_token_origin { /* zeroed: unknown */
    uint64_t digest;     /* of the tokenizer; 0: unknown */
    uint32_t vocab;
    uint64_t file_digest; /* of the bytes read, so that equal ones are parsed once */
};

/* On entry *origin is from another file, or zeroed. PD_CORRUPT, PD_UNSUPPORTED: the file beside it is not a tokenizer. */
PD_MUST_USE pd_status pd_token_origin_read(const char *token_path, struct pd_token_origin *origin, struct pd_error *err);
/* Copies the tokenizer beside a token file to `path`, if it differs. */
PD_MUST_USE pd_status pd_token_origin_copy(const char *token_path, const char *path, struct pd_error *err);
/* Writes the copy, or removes an old one of another tokenizer (byte tokens have none). */
PD_MUST_USE pd_status pd_token_origin_write(const char *token_path, const struct pd_tokenizer *tokenizer,
                                            struct pd_error *err);
