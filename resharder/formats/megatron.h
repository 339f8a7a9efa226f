/* Megatron-Core's distributed checkpoints (torch_dist) as a row of the format table: see format.h. */
#pragma once

#include "resharder/catalog/family.h"
#include "resharder/formats/format.h"
#include "resharder/torch/pickle.h"
#include "resharder/torch/pickle_write.h"

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

/* megatron_router.c: whether arguments have this family's router; what they say of it, as keys of config.json; and back. */
bool pd_megatron_is_router(const struct pd_pickle_node *args, const struct pd_family *family);
struct pd_json_value;
void pd_megatron_read_router(struct pd_json_writer *w, const struct pd_pickle_node *args, const struct pd_family *family,
                             const struct pd_model_class *class);
void pd_megatron_put_router(struct pd_pickle_writer *p, const struct pd_json_value *config, const struct pd_family *family,
                            const struct pd_model_class *class);

/* ---- shared by reader and writer ---- */

#define PD_MEGATRON_TRACKER "latest_checkpointed_iteration.txt"
