/* What a model reads and writes as text: the tokenizer that somebody named, or that lies beside the model, or bytes.
 *   threads  one caller */
#pragma once

#include "trainer/tokenizer/tokenizer.h"

struct pd_sample_text_options {
    const char *path;        /* a tokenizer, as pd_tokenizer_open takes it; NULL: what lies beside the model */
    const char *run;         /* as the user named the model */
    const char *checkpoints; /* where its checkpoints lie, or one of them */
    const char *model;       /* stands in messages for a tokenizer that lies there; NULL: its path does */
    uint32_t vocab;          /* of the model */
    uint64_t digest;         /* of the tokenizer that the checkpoint remembers; 0: none. The log warns of another */
    bool is_over_bytes;      /* tokens 0 to 255 are bytes where there is no tokenizer */
};

struct pd_sample_text;
struct pd_config;

/* Tokens 0 to 255 are bytes; there may be one more, which ends documents, and padding. `digest` of the tokenizer that the
 * checkpoint remembers decides; 0: sizes do. */
bool pd_sample_is_over_bytes(const struct pd_config *config, uint64_t digest);

/* A tokenizer beside a run, its directory of checkpoints, or one checkpoint: there, or one or two directories above. */
bool pd_sample_text_find(const char *place, char *ret_path, size_t room);

/* *ret_text NULL: there is no tokenizer, and the model is not over bytes.
 *   errors  PD_INVALID: the tokenizer has more tokens than the model; those of pd_tokenizer_open */
PD_MUST_USE pd_status pd_sample_text_open(const struct pd_sample_text_options *options, struct pd_sample_text **ret_text,
                                          struct pd_error *err);
void pd_sample_text_free(struct pd_sample_text *text); /* NULL is fine */
PD_MUST_USE pd_status pd_sample_text_encode(struct pd_sample_text *text, const char *prompt, struct pd_tokens *tokens,
                                            struct pd_error *err);
/* The prompt (count), whose text is not given again. */
PD_MUST_USE pd_status pd_sample_text_begin(struct pd_sample_text *text, const int32_t *prompt, size_t count,
                                           struct pd_error *err);
/* What a token adds, in whole UTF-8 characters, borrowed until the next call. */
PD_MUST_USE pd_status pd_sample_text_add(struct pd_sample_text *text, int32_t token, const char **ret_text,
                                         size_t *ret_bytes, struct pd_error *err);
/* What is left, and all that was given since begin, terminated. */
PD_MUST_USE pd_status pd_sample_text_end(struct pd_sample_text *text, const char **ret_text, size_t *ret_bytes,
                                         const char **ret_all, struct pd_error *err);
