/* Private parts of an engine: engine.c builds it, scratch.c fills scratch_memory, the step uses it. */
#pragma once

#include "trainer/engine/bucket_order.h"
#include "trainer/engine/engine.h"

enum pd_scratch_part { PD_SCRATCH_PARAMETERS, PD_SCRATCH_GRADIENTS, PD_SCRATCH_ACTIVATIONS, PD_SCRATCH_PARTS };

/* The sum of squares behind the gradient norm. */
struct pd_norm_sums {
    double *rows;                                /* squares of rows, not yet added up */
    struct pd_superaccumulator *sum, *host_copy; /* host_copy: readable by the host; on a CPU equal to sum */
    bool by_block;                               /* sums in files are counted when a block has all of them */
};

/* The losses of a step: summed where they are computed, read once. */
struct pd_loss_sum {
    struct pd_superaccumulator *sum, *host_copy; /* host_copy: readable by the host; on a CPU equal to sum */
};

/* (PD_ZERO_WATCHED) The gradient terms of compared micro-batches (compare.c), summed modulo 2^64. */
struct pd_term_count {
    int64_t *sums, *host_copy; /* host_copy: readable by the host; on a CPU equal to sums */
};

/* Recomputes gradients of a micro-batch to compare them (compare.h), after a step's last micro-batch. Collective. */
PD_MUST_USE pd_status pd_step_compare(struct pd_engine *engine, uint64_t first_sample, uint32_t micro_batch,
                                      struct pd_error *err);

struct pd_engine_own {
    struct pd_lanes lanes;              /* of a training step */
    uint32_t wrong;                     /* faults that a test injects into the device, one bit each */
    uint64_t coarser_count;             /* times a step was recomputed with a coarser quantum */
    float largest[PD_GRADIENT_CLASSES]; /* numerics.terms: 32: gradients of the last step, over all ranks */
    struct pd_laid_out laid_out;
    struct pd_comm *comm;    /* the world's; NULL when alone */
    uint32_t chunk_count;    /* model chunks (pipeline) of this rank */
    struct pd_stage *chunks; /* (chunk_count) */
    struct pd_schedule schedule;
    struct pd_bucket_order bucket_order; /* of a training step */
    void **dstreams;                     /* breadth first: (slots) gradient of the residual stream of each micro-batch */
    void *dstream; /* otherwise: of the micro-batch in backward, if tp ranks share rows; NULL: the pipeline's */
    struct pd_pipeline *pipeline;
    int32_t *sample; /* (4,T) a sequence before it is cut into pieces; NULL if it is not cut */
    struct pd_norm_sums norm;
    struct pd_loss_sum loss;
    struct pd_term_count counted;
    struct pd_expert_report *experts;       /* (layers) of the last step; NULL: the model has none */
    void *scratch_memory[PD_SCRATCH_PARTS]; /* on a GPU: host memory of trainer/engine/scratch.c */
    void *gemm_operands;                    /* on a GPU: for pd_engine_gemm */
};
