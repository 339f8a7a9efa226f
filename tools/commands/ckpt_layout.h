/* --layout=dp=4,tp=2: degrees as overrides of a configuration. */
#pragma once

#include "ckpt/base/status.h"

#define PD_CKPT_LAYOUT_TEXTS 9

struct pd_ckpt_layout {
    uint64_t world, dp, tp, sp;
    char texts[PD_CKPT_LAYOUT_TEXTS][48]; /* "layout.dp=4" and so on */
};
/*   errors  PD_USAGE, PD_INVALID: the message begins with --layout */
PD_MUST_USE pd_status pd_ckpt_layout_parse(const char *text, struct pd_ckpt_layout *ret_layout, struct pd_error *err);
/* tp and sp against the virtual degrees of a checkpoint, which it keeps; 0: they are yet to be chosen.
 *   errors  PD_INVALID: names the degree and what is admitted */
PD_MUST_USE pd_status pd_ckpt_layout_check(const struct pd_ckpt_layout *layout, uint64_t virtual_tp, uint64_t virtual_sp,
                                           struct pd_error *err);
