/* Converts a model's tokens to text and back, with the given tokenizer, or the one beside the model, or bytes.
 *   threads  one caller */
#pragma once

#include "trainer/tokenizer/tokenizer.h"

struct pd_sample_text_options {
    const char *path;        /* a tokenizer, as for pd_tokenizer_open; NULL: the one beside the model */
    const char *run;         /* as the user named the model */
    const char *checkpoints; /* directory of its checkpoints, or one of them */
    const char *model;       /* name in messages for a tokenizer found there; NULL: its path */
    uint32_t vocab;          /* of the model */
    uint64_t digest;         /* of the checkpoint's tokenizer; 0: none. The log warns if another is used */
    bool is_over_bytes;      /* without a tokenizer, tokens 0 to 255 are bytes */
};

struct pd_sample_text;
struct pd_config;

/* Whether tokens 0 to 255 are bytes; one more may end documents, others are padding. Decided by the `digest` of the
 * checkpoint's tokenizer, or if 0 by sizes. */
bool pd_sample_is_over_bytes(const struct pd_config *config, uint64_t digest);

/* Finds a tokenizer beside a run, its checkpoint directory, or one checkpoint: there, or one or two directories above. */
bool pd_sample_text_find(const char *place, char *ret_path, size_t capacity);

/* *ret_text NULL: no tokenizer, and the model does not use bytes.
 *   errors  PD_INVALID: the tokenizer has more tokens than the model; errors of pd_tokenizer_open */
PD_MUST_USE pd_status pd_sample_text_open(const struct pd_sample_text_options *options, struct pd_sample_text **ret_text,
                                          struct pd_error *err);
void pd_sample_text_free(struct pd_sample_text *text); /* NULL is fine */
PD_MUST_USE pd_status pd_sample_text_encode(struct pd_sample_text *text, const char *prompt, struct pd_tokens *tokens,
                                            struct pd_error *err);
/* Starts with the prompt (count); its text is not returned again. */
PD_MUST_USE pd_status pd_sample_text_begin(struct pd_sample_text *text, const int32_t *prompt, size_t count,
                                           struct pd_error *err);
/* The text that a token adds, in whole UTF-8 characters, borrowed until the next call. */
PD_MUST_USE pd_status pd_sample_text_add(struct pd_sample_text *text, int32_t token, const char **ret_text,
                                         size_t *ret_bytes, struct pd_error *err);
/* The rest, and all text since begin, terminated. */
PD_MUST_USE pd_status pd_sample_text_end(struct pd_sample_text *text, const char **ret_text, size_t *ret_bytes,
                                         const char **ret_all, struct pd_error *err);
