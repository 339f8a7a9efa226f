/* One rank's share of a run: state, activations, buffers and the training step over them.
 *
 * pd_engine_new is the recipe of all memory that a rank takes. On a dry arena it counts, and that count is the plan; on an
 * arena made from the plan it builds. step.c is a step from top to bottom:
 *
 *   for every action of the schedule
 *     forward:  micro-batch or the stage before -> embed, blocks -> the stage after
 *     backward: head (loss) or the stage after -> blocks backward -> gradients to their owners, to the stage before
 *   sums of tied tensors, global norm, clip, update of the boxes that are held
 *
 *   threads  one caller
 */
#pragma once

#include "ckpt/base/owner.h"
#include "trainer/config/config.h"
#include "trainer/config/laid_out.h"
#include "trainer/engine/state.h"
#include "trainer/model/transformer.h"
#include "trainer/parallel/pipeline.h"
#include "trainer/parallel/zero.h"

struct pd_engine_options {
    const struct pd_config *config; /* borrowed */
    const struct pd_model *model;   /* borrowed */
    uint32_t world, rank;
    uint32_t threads;                   /* of this rank */
    const struct pd_laid_out *laid_out; /* NULL: what pd_lay_out_given makes of the configuration; read by new alone */
    bool is_gpu;                        /* counted as on a GPU; on a real arena `device` is one */
    struct pd_rank_device *device;      /* borrowed; NULL: the CPU */
};

/* A buffer between memory and drives. Whoever loads has it until the saver's thread starts; then that thread has it, from
 * its first write until it ends. */
struct pd_staging {
    void *data; /* (bytes) aligned to PD_VFS_ALIGN */
    uint64_t bytes;
    struct pd_owner owner;
};

struct pd_engine_own;

struct pd_engine {
    /* Read by others, and set by pd_engine_new alone. */
    struct pd_engine_options options;
    struct pd_grid grid;   /* layout, place, communicators */
    uint32_t slots;        /* micro-batches of this rank in a step, padding micro-batches included */
    bool is_breadth_first; /* all micro-batches of a block before the next */
    const struct pd_data *data;
    struct pd_thread_pool *pool;
    struct pd_math *math;
    struct pd_zero *zero;
    struct pd_transformer *transformer;
    struct pd_state *state; /* master parameters and moments */
    struct pd_staging staging;

    /* Set by the caller, between steps. */
    struct pd_identity next_identity; /* of the state that the next step makes, where it is in files */
    double loss_scale;                /* fp16: on the loss of the next step, a power of two; 1 otherwise */
    /* Asked between micro-batches (with pipeline stages: before the first): true to leave the step unfinished (state is that
     * of the last update). May be NULL. */
    bool (*should_leave)(void);
    /* At the same places of a validation: where one rank should save all ranks call it, and go on. May be NULL. */
    bool (*should_save)(void);
    pd_status (*save)(void *context, struct pd_error *err);
    void *save_context;
    /* Called before an update changes the state, after forward and backward: whoever reads the state has ended that when it
     * returns. Not called when saves read a mirror (pd_state_is_mirrored). */
    struct pd_before_update before_update;

    /* After PD_DEVICE_LOST: ranks came to different gradients of one micro-batch, and who computed wrongly. */
    struct pd_disagreement {
        bool is_there;
        uint32_t rank; /* UINT32_MAX: it could not be decided */
    } disagreement;

    /* The first whose gradients of the last step were not finite; UINT32_MAX: none, or it is not known. */
    uint32_t not_finite_rank;

    struct pd_engine_own *own; /* trainer/engine/engine_internal.h */
};

/* Parts of a step, in their order. */
enum pd_step_stage { PD_STEP_FORWARD, PD_STEP_BACKWARD, PD_STEP_SUMS, PD_STEP_UPDATE, PD_STEP_STAGES };
extern const char *const pd_step_stage_names[PD_STEP_STAGES];

struct pd_step_result {
    double loss;          /* mean over the valid tokens of the batch */
    uint64_t tokens;      /* valid target tokens */
    double gradient_norm; /* before clipping */
    double learning_rate;
    bool skipped;        /* a gradient or the loss was not finite; parameters and moments are as before */
    bool compared;       /* a micro-batch of every rank came to the same integers elsewhere (guard.replay_every) */
    uint32_t recomputed; /* times the step was computed again, since gradients arrived damaged */
    uint32_t coarser;    /* and since finite gradients were out of range of their terms: times the quantum grew */
    uint64_t sent_bytes, sent_between_hosts; /* by this rank; of these to other hosts, but for what NCCL routes by itself */
    double bubble;                           /* share of the step that ranks waited for other stages, mean over ranks */
    double bubble_theory;                    /* of the schedule with equal stages */
    /* By the host's clock on this rank: on a GPU, which runs behind the host, what the host waited there. */
    double stage_seconds[PD_STEP_STAGES];
};

/* Whether the linears asked for run on the GPU `name` of that compute capability (major * 10 + minor).
 *   errors  PD_UNSUPPORTED */
PD_MUST_USE pd_status pd_check_fp8(const struct pd_config *config, const char *name, uint32_t capability,
                                   struct pd_error *err);

/* comm NULL for world 1. On a dry arena comm, data and pool may be NULL and nothing is touched. */
PD_MUST_USE pd_status pd_engine_new(const struct pd_engine_options *options, struct pd_comm *comm,
                                    const struct pd_data *data, struct pd_thread_pool *pool, struct pd_arena *arena,
                                    struct pd_engine **ret_engine, struct pd_error *err);
void pd_engine_free(struct pd_engine *engine);
/* On a GPU, before the first step: the GEMM that tells its rate, as wide as the model, and its operands, which lie one behind
 * the other. */
struct pd_gemm pd_engine_gemm(const struct pd_engine *engine);

/* Whether what is placed there leaves the device's memory. On a CPU its memory and the host's are the same. */
bool pd_leaves_device(const struct pd_engine_options *options, enum pd_place place);
/* Whether copies or sums of blocks do: then an update asks zero for every box of theirs. */
bool pd_blocks_leave_device(const struct pd_engine_options *options);

/* Lanes of a training step; of a record that knows none one a micro-batch. */
struct pd_lanes pd_lanes_of(const struct pd_config *config, uint32_t dp);

/* Bytes by category that a rank will take: the recipe on a dry arena. */
PD_MUST_USE pd_status pd_engine_plan_of(const struct pd_engine_options *options, struct pd_memory_plan *ret_plan,
                                        struct pd_error *err);

/* One step: an update, or in fp16 possibly none. first_sample: sequences consumed so far; updates: applied so far.
 *   errors  PD_STOPPED: should_leave said so, nothing changed; PD_DIVERGED: the loss is not finite, or the norm is not and
 *           precision is not fp16, nothing changed */
PD_MUST_USE pd_status pd_engine_step(struct pd_engine *engine, uint64_t first_sample, uint64_t updates,
                                     struct pd_step_result *ret_result, struct pd_error *err);
/* Mean loss over the first `sequences` validation samples.   errors  PD_STOPPED: should_leave said so */
PD_MUST_USE pd_status pd_engine_validate(struct pd_engine *engine, uint32_t sequences, double *ret_loss,
                                         struct pd_error *err);

/* Linear warm-up to lr, cosine to min_lr (Loshchilov and Hutter 2017); `update` counts from 0. */
double pd_learning_rate(const struct pd_config *config, uint64_t update);

/* The way out after a failure: gives up every communicator and waits until nobody uses this rank's memory. */
void pd_engine_abort(struct pd_engine *engine);
