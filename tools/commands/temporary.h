/* A directory of a command's own below TMPDIR, and in it a checkpoint of ours made of another system's, for sample and eval. */
#pragma once

#include "ckpt/base/status.h"
#include "ckpt/tensor/tensor.h"

/* --precision of both, an index into pd_precisions. */
#define PD_PRECISION_ROW(place)                                                                                            \
    {                                                                                                                      \
        .name = "precision", "TYPE", "fp32, bf16 or fp16; default: the training's; saved: the weights'", PD_OPTION_CHOICE, \
        place, .expected = "saved, fp32, bf16 or fp16"                                                                     \
    }
extern const enum pd_dtype pd_precisions[4];

struct pd_temporary {
    char folder[4000], checkpoints[4100]; /* folder "": none was made */
};

/* Zeroed or made already. The command then leaves on TERM, and says so. */
PD_MUST_USE pd_status pd_temporary_make(struct pd_temporary *temporary, struct pd_error *err);
/* PATH of another system becomes the one checkpoint in `checkpoints`, with the texts beside it, as init.from begins a run, but
 * computing in the type that its weights have. */
PD_MUST_USE pd_status pd_temporary_import(struct pd_temporary *temporary, const char *path, struct pd_error *err);
/* Removes it all. Returns `mine`. */
pd_status pd_temporary_remove(struct pd_temporary *temporary, pd_status mine, struct pd_error *err);
