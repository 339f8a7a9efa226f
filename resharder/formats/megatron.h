/* Megatron-Core's distributed checkpoints (torch_dist) as a row of the format table: see format.h. */
#pragma once

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_megatron;

/* megatron_write.c: the slots for writing. */
PD_MUST_USE pd_status pd_megatron_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state,
                                       struct pd_error *err);
void pd_megatron_observe(void *state, uint32_t tensor, const void *data, uint64_t bytes);
PD_MUST_USE pd_status pd_megatron_finish(void *state, pd_status mine, struct pd_error *err);

/* megatron_buckets.c: converts the buckets of an unfinished catalog into moments and fp32 parameters of its tensors;
 * leaves a catalog without buckets unchanged.   errors  PD_UNSUPPORTED: buckets in an unknown order; PD_CORRUPT */
PD_MUST_USE pd_status pd_megatron_spread_buckets(struct pd_vfs *vfs, const char *directory, struct pd_catalog *catalog,
                                                 struct pd_error *err);

/* ---- shared by reader and writer ---- */

#define PD_MEGATRON_TRACKER "latest_checkpointed_iteration.txt"
