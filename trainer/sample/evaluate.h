/* The loss of a checkpoint on text or tokens that it may never have seen. */
#pragma once

#include "ckpt/base/stop.h"
#include "ckpt/tensor/tensor.h"
#include "trainer/data/data.h"

struct pd_evaluation {
    const char *checkpoints; /* directory of checkpoints (the newest is taken), or one checkpoint */
    struct pd_data_source data;
    uint64_t windows;           /* the most that are taken; 0: all of the file */
    uint32_t context;           /* tokens of a window; 0: that of training */
    uint32_t threads;           /* 0: all cores */
    enum pd_dtype precision;    /* PD_DTYPE_COUNT: that of training */
    pd_should_stop should_stop; /* asked before every window */
    /* After every window; may be NULL. */
    void (*progress)(void *context, uint64_t done, uint64_t windows);
    void *progress_context;
};

struct pd_evaluated {
    uint64_t step, tokens, windows;
    uint32_t context;
    double loss; /* mean over the tokens, in nats: the exact sum, rounded once */
    double seconds;
};

/* Windows follow each other without overlap; a token's loss is that behind the tokens before it in its window, as in validation.
 *   errors  PD_INVALID: data for another tokenizer or vocabulary; those of loading and of data */
PD_MUST_USE pd_status pd_evaluate(const struct pd_evaluation *evaluation, struct pd_evaluated *ret_evaluated,
                                  struct pd_error *err);
