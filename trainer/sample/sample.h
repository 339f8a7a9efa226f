/* Text from a checkpoint: parameters only are loaded, under one rank, whatever layout wrote them. */
#pragma once

#include "trainer/config/config.h"

struct pd_sample_options {
    const char *checkpoints; /* directory of checkpoints (the newest is taken), or one checkpoint */
    const int32_t *prompt;   /* (prompt_count) tokens */
    uint32_t prompt_count;
    uint32_t count;     /* tokens to draw */
    double temperature; /* 0: the likeliest token */
    uint32_t top_k;     /* 0: all */
    uint64_t seed;
    uint32_t threads;        /* 0: all cores */
    enum pd_dtype precision; /* PD_DTYPE_COUNT: that of training */
    /* Called once before the first token, then for every token drawn; false stops. */
    void (*loaded)(void *context, const struct pd_config *config, uint64_t step);
    bool (*emit)(void *context, int32_t token);
    void *context;
};

/* The configuration that the newest checkpoint was written with, and the digest of its tokenizer (0: not known): what a prompt
 * must be encoded for. */
PD_MUST_USE pd_status pd_sample_config(const char *checkpoints, struct pd_config *ret_config, uint64_t *ret_tokenizer_digest,
                                       struct pd_error *err);

/*   errors  PD_INVALID: an empty prompt, a token out of the vocabulary; those of loading */
PD_MUST_USE pd_status pd_sample_run(const struct pd_sample_options *options, struct pd_error *err);
