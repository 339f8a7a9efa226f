/* Layouts as text: --layout=dp=4,tp=2. */
#pragma once

#include "ckpt/store/commit.h"
#include "trainer/config/config.h"
#include "trainer/config/laid_out.h"

/* Degrees as overrides of a configuration. */
#define PD_CKPT_LAYOUT_TEXTS 10

struct pd_ckpt_layout {
    uint64_t world, dp, tp, sp;
    char texts[PD_CKPT_LAYOUT_TEXTS][48]; /* "layout.dp=4" and so on */
};
/*   errors  PD_USAGE, PD_INVALID: the message begins with --layout */
PD_MUST_USE pd_status pd_ckpt_layout_parse(const char *text, struct pd_ckpt_layout *ret_layout, struct pd_error *err);

/* The layout `text` of a checkpoint of a run, as a run under it would write it: with the record's configuration, model
 * and virtual degrees. The caller deinits *ret_config and frees *ret_model.
 *   errors  as of parse; PD_INVALID: the model or the numerics do not admit it */
PD_MUST_USE pd_status pd_ckpt_lay_out(const struct pd_commit *commit, const char *text, struct pd_config *ret_config,
                                      struct pd_model **ret_model, struct pd_laid_out *ret_laid_out, struct pd_error *err);
