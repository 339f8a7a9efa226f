/* Generates text from a checkpoint. Loads only parameters, on one rank, whatever layout wrote them. */
#pragma once

#include "trainer/config/config.h"

struct pd_sample_options {
    const char *checkpoints; /* directory of checkpoints (uses the newest), or one checkpoint */
    const int32_t *prompt;   /* (prompt_count) tokens */
    uint32_t prompt_count;
    uint32_t count;     /* tokens to draw */
    double temperature; /* 0: the most likely token */
    uint32_t top_k;     /* 0: all */
    uint64_t seed;
    uint32_t threads;        /* 0: all cores */
    enum pd_dtype precision; /* PD_DTYPE_COUNT: as in training */
    /* Called once before the first token, then for every token; false stops. */
    void (*loaded)(void *context, const struct pd_config *config, uint64_t step);
    bool (*emit)(void *context, int32_t token);
    void *context;
};

/* Returns the newest checkpoint's configuration and the digest of its tokenizer (0: unknown), needed to encode a prompt. */
PD_MUST_USE pd_status pd_sample_config(const char *checkpoints, struct pd_config *ret_config, uint64_t *ret_tokenizer_digest,
                                       struct pd_error *err);

/*   errors  PD_INVALID: an empty prompt, a token out of the vocabulary; errors of loading */
PD_MUST_USE pd_status pd_sample_run(const struct pd_sample_options *options, struct pd_error *err);
