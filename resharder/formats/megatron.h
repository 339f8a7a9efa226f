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

/* The sizes that its arguments and config.json both have. */
struct pd_megatron_size {
    const char *argument, *key, *gpt2; /* of Llama and its like; of GPT-2, or NULL: it follows */
};
extern const struct pd_megatron_size pd_megatron_sizes[]; /* ends with a NULL argument */

/* Architectures, by what makes them in its arguments. */
struct pd_megatron_family {
    const char *architecture, *type;
    bool is_gpt2; /* learned positions, LayerNorm, biases, no gate; else RoPE, RMSNorm, a gate, no biases */
    bool qkv_bias, head_norms;
};
extern const struct pd_megatron_family pd_megatron_families[]; /* ends with a NULL architecture */
