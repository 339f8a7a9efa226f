/* DeepSpeed's checkpoints as rows of the format table: see format.h. ZeRO checkpoints are read, not written. */
#pragma once

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_deepspeed; /* ZeRO, stages 1 to 3 */
extern const struct pd_format pd_format_universal; /* universal.c */

/* deepspeed_experts.c: a tag's directory with a file for each expert.   errors  as the read slot */
bool pd_deepspeed_has_experts(struct pd_vfs *vfs, const char *directory);
struct pd_deepspeed_count {
    bool is_known;
    uint64_t value;
};
PD_MUST_USE pd_status pd_deepspeed_read_experts(struct pd_vfs *vfs, const char *directory, struct pd_catalog *catalog,
                                                struct pd_deepspeed_count *ret_step, struct pd_deepspeed_count *ret_samples,
                                                struct pd_error *err);

/* universal_write.c: writing slots of pd_format_universal. */
PD_MUST_USE pd_status pd_universal_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state,
                                        struct pd_error *err);
void pd_universal_observe(void *state, uint32_t tensor, const void *data, uint64_t bytes);
PD_MUST_USE pd_status pd_universal_finish(void *state, pd_status mine, struct pd_error *err);
