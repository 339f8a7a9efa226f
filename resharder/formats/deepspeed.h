/* DeepSpeed's checkpoints as rows of the format table: see format.h. ZeRO checkpoints are read, not written. */
#pragma once

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_deepspeed; /* ZeRO, stages 1 to 3 */
extern const struct pd_format pd_format_universal; /* universal.c */

/* universal_write.c: writing slots of pd_format_universal. */
PD_MUST_USE pd_status pd_universal_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state,
                                        struct pd_error *err);
void pd_universal_observe(void *state, uint32_t tensor, const void *data, uint64_t bytes);
PD_MUST_USE pd_status pd_universal_finish(void *state, pd_status mine, struct pd_error *err);
