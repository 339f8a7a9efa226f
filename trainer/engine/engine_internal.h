/* What of an engine only this room sees: engine.c builds it, scratch.c fills scratch_memory, a step uses it. */
#pragma once

#include "trainer/engine/engine.h"
#include "trainer/engine/set_order.h"

enum pd_scratch_part { PD_SCRATCH_PARAMETERS, PD_SCRATCH_GRADIENTS, PD_SCRATCH_ACTIVATIONS, PD_SCRATCH_PARTS };

/* The sum of squares that the norm is made of. */
struct pd_norm_sums {
    double *rows;                                /* squares of rows, until they are added */
    struct pd_superaccumulator *sum, *host_copy; /* host_copy: where the host reads it; on a CPU the same */
    bool by_block;                               /* sums in files are counted when a block's are complete */
};

/* The losses of a step: added up where they are made, read once. */
struct pd_loss_sum {
    struct pd_superaccumulator *sum, *host_copy; /* host_copy: where the host reads it; on a CPU the same */
};

/* The terms of a micro-batch that is compared (compare.c), added up modulo 2^64. */
struct pd_term_count {
    int64_t *sum, *host_copy; /* host_copy: where the host reads it; on a CPU the same */
};

/* The micro-batch's gradients once more, for comparing (compare.h); behind the last micro-batch of a step. Collective. */
PD_MUST_USE pd_status pd_step_compare(struct pd_engine *engine, uint64_t first_sample, uint32_t micro_batch,
                                      struct pd_error *err);

struct pd_engine_own {
    struct pd_lanes lanes; /* of a training step */
    uint32_t wrong;        /* what a test made of the device, a bit each */
    uint64_t coarser_count; /* times a step was computed again with a coarser quantum */
    struct pd_laid_out laid_out;
    struct pd_comm *comm;    /* the world's; NULL when alone */
    uint32_t chunk_count;    /* pipeline chunks of this rank */
    struct pd_stage *chunks; /* (chunk_count) */
    struct pd_schedule schedule;
    struct pd_set_order set_order; /* of a training step */
    void **dstreams;               /* breadth first: (slots) gradient of the residual stream of each micro-batch */
    void *dstream; /* otherwise, of the one in backward, where tp ranks share rows; or NULL: the pipeline's */
    struct pd_pipeline *pipeline;
    int32_t *sample; /* (4,T) a sequence before it is cut into pieces; NULL where it is not */
    struct pd_norm_sums norm;
    struct pd_loss_sum loss;
    struct pd_term_count counted;
    void *scratch_memory[PD_SCRATCH_PARTS]; /* on a GPU: the host's, of trainer/engine/scratch.c */
    void *gemm_operands;                    /* on a GPU: of pd_engine_gemm */
};
