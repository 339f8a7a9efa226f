/* Megatron-Core's distributed checkpoints (torch_dist) as a row of the table of formats: see format.h. */
#pragma once

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_megatron;

/* megatron_write.c: its slots. */
PD_MUST_USE pd_status pd_megatron_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state,
                                       struct pd_error *err);
void pd_megatron_observe(void *state, uint32_t tensor, const void *data, uint64_t bytes);
PD_MUST_USE pd_status pd_megatron_finish(void *state, pd_status mine, struct pd_error *err);

/* megatron_buckets.c: of a catalog that is not finished, makes of buckets the moments and fp32 parameters of its tensors; one
 * without buckets stays as it is.   errors  PD_UNSUPPORTED: buckets in no order that is known; PD_CORRUPT */
PD_MUST_USE pd_status pd_megatron_spread_buckets(struct pd_vfs *vfs, const char *directory, struct pd_catalog *catalog,
                                                 struct pd_error *err);

/* ---- what reading and writing share ---- */

#define PD_MEGATRON_TRACKER "latest_checkpointed_iteration.txt"
