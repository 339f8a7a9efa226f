/* Runs a checkpoint's model forward, one sequence at a time. Loads only parameters, on one CPU rank, whatever layout wrote
 * them.
 *   threads  one caller */
#pragma once

#include "ckpt/store/store.h"
#include "trainer/config/config.h"
#include "trainer/model/transformer.h"

struct pd_inference {
    struct pd_vfs *vfs;
    struct pd_store *store;
    const struct pd_store_entry *entry; /* owned by the store */
    struct pd_group group;
    struct pd_commit commit;
    struct pd_config config; /* from the checkpoint */
    struct pd_model *model;
    struct pd_thread_pool *pool;
    struct pd_arena *arena;
    struct pd_math *math;
    struct pd_transformer *transformer;
    float *master;    /* all parameters, fp32, table order */
    char *compute;    /* the same in the compute type; == master in fp32 */
    uint64_t *offset; /* (tensors) elements */
    void **weights;   /* (tensors + 1) in `compute`; the last one: a tied table, as the head's */
    void *io_buffers;
    uint32_t length; /* per sequence */
};

/* Reads the record of the newest checkpoint in a directory, or of the named one. Close it, even after a failure. */
PD_MUST_USE pd_status pd_inference_open(const char *checkpoints, struct pd_inference *ret_inference, struct pd_error *err);
/* Sets the type of activations and working copies; call before pd_inference_begin. PD_DTYPE_COUNT: as in training. */
void pd_inference_compute_in(struct pd_inference *inference, enum pd_dtype precision);
/* Allocates memory for sequences of `length` tokens and loads the parameters; threads 0: all cores. */
PD_MUST_USE pd_status pd_inference_begin(struct pd_inference *inference, uint32_t length, uint32_t threads,
                                         struct pd_error *err);
/* Runs embedding and blocks on slot 0. */
PD_MUST_USE pd_status pd_inference_blocks(struct pd_inference *inference, struct pd_error *err);
/* The weights of a unit, for the transformer. */
void *const *pd_inference_weights(const struct pd_inference *inference, uint32_t unit);
void pd_inference_close(struct pd_inference *inference);
