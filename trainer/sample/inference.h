/* A model out of a checkpoint, to be run forward: parameters alone are loaded, on one rank of the CPU, whatever layout wrote
 * them. One sequence at a time.
 *   threads  one caller */
#pragma once

#include "ckpt/store/store.h"
#include "trainer/config/config.h"
#include "trainer/model/transformer.h"

#define PD_INFERENCE_WEIGHTS 32u /* tensors of a unit, at most */

struct pd_inference {
    struct pd_vfs *vfs;
    struct pd_store *store;
    const struct pd_store_entry *entry; /* the store's */
    struct pd_group group;
    struct pd_commit commit;
    struct pd_config config; /* that it was saved with */
    struct pd_model *model;
    struct pd_thread_pool *pool;
    struct pd_arena *arena;
    struct pd_math *math;
    struct pd_transformer *transformer;
    float *master;    /* all parameters, fp32, table order */
    char *compute;    /* the same as activations see them; == master in fp32 */
    uint64_t *offset; /* (tensors) elements */
    void *io_buffers;
    uint32_t length; /* of a sequence */
};

/* The record of the newest of `checkpoints`, a directory of them, or of the one that is named. Close it, after a failure too. */
PD_MUST_USE pd_status pd_inference_open(const char *checkpoints, struct pd_inference *ret_inference, struct pd_error *err);
/* Activations and working copies in this type, before pd_inference_begin; PD_DTYPE_COUNT: as the model was trained. */
void pd_inference_compute_in(struct pd_inference *inference, enum pd_dtype precision);
/* Memory for sequences of `length` tokens, and the parameters; threads 0: all cores. */
PD_MUST_USE pd_status pd_inference_begin(struct pd_inference *inference, uint32_t length, uint32_t threads,
                                         struct pd_error *err);
/* Embedding and blocks, of what lies in slot 0. */
PD_MUST_USE pd_status pd_inference_blocks(struct pd_inference *inference, struct pd_error *err);
/* Those of a unit, for the transformer.   weights (PD_INFERENCE_WEIGHTS) */
void pd_inference_weights(const struct pd_inference *inference, uint32_t unit, void **weights);
void pd_inference_close(struct pd_inference *inference);
