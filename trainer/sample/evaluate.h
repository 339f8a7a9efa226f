/* The loss of a checkpoint on any text or tokens. */
#pragma once

#include "ckpt/base/stop.h"
#include "ckpt/tensor/tensor.h"
#include "trainer/data/data.h"

struct pd_evaluation {
    const char *checkpoints; /* directory of checkpoints (uses the newest), or one checkpoint */
    struct pd_data_source data;
    uint64_t windows;           /* at most; 0: the whole file */
    uint32_t context;           /* tokens per window; 0: as in training */
    uint32_t threads;           /* 0: all cores */
    enum pd_dtype precision;    /* PD_DTYPE_COUNT: as in training */
    pd_should_stop should_stop; /* checked before every window */
    /* Called after every window; may be NULL. */
    void (*progress)(void *context, uint64_t done, uint64_t windows);
    void *progress_context;
};

struct pd_evaluated {
    uint64_t step, tokens, windows;
    uint32_t context;
    double loss; /* mean over tokens, in nats: an exact sum, rounded once */
    double seconds;
};

/* Windows do not overlap; a token is predicted from the tokens before it in its window, as in validation.
 *   errors  PD_INVALID: data for another tokenizer or vocabulary; errors of loading and of data */
PD_MUST_USE pd_status pd_evaluate(const struct pd_evaluation *evaluation, struct pd_evaluated *ret_evaluated,
                                  struct pd_error *err);
