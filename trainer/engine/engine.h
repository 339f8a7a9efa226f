/* One rank's share of a run: state, activations, buffers and the training step.
 *
 * pd_engine_new allocates all memory of a rank. On a dry arena it only counts, and that count is the memory plan; on an
 * arena sized by the plan it builds. step.c is a step from top to bottom:
 *
 *   for every action of the schedule
 *     forward:  micro-batch or the stage before -> embed, blocks -> the stage after
 *     backward: head (loss) or the stage after -> blocks backward -> gradients to their owners, to the stage before
 *   sums of tied tensors, global norm, clip, update of the boxes that this rank holds
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
    uint32_t ranks_here;                /* on this host; 0: unknown, at least 1 if launch.hosts is set, else all */
    const struct pd_laid_out *laid_out; /* NULL: use pd_lay_out_given of the configuration; only pd_engine_new reads it */
    bool is_gpu;                        /* plan for a GPU; on a real arena `device` is one */
    struct pd_rank_device *device;      /* borrowed; NULL: the CPU */
};

/* A buffer between memory and drives. The loading code uses it until the saver's thread starts. From then on it belongs to
 * that thread, from its first write until it ends. */
struct pd_staging {
    void *data; /* (bytes) aligned to PD_VFS_ALIGN */
    uint64_t bytes;
    struct pd_owner owner;
};

struct pd_engine_own;

struct pd_engine {
    /* Set only by pd_engine_new; others read them. */
    struct pd_engine_options options;
    struct pd_grid grid;   /* layout, place, communicators */
    uint32_t slots;        /* micro-batches of this rank in a step, padding included */
    bool is_breadth_first; /* runs all micro-batches of a block before the next block */
    const struct pd_data *data;
    struct pd_thread_pool *pool;
    struct pd_math *math;
    struct pd_zero *zero;
    struct pd_transformer *transformer;
    struct pd_state *state; /* master parameters and moments */
    struct pd_staging staging;

    /* The caller sets these between steps. */
    struct pd_identity next_identity;        /* identity of the state that the next step makes; used if state is in files */
    double loss_scale;                       /* fp16: factor of the next step's loss, a power of two; otherwise 1 */
    struct pd_gradient_sizes gradient_sizes; /* expected in the next step; each update changes them */
    /* Called between micro-batches (with pipeline stages: before the first). If it returns true, the step ends early and the
     * state stays as the last update left it. May be NULL. */
    bool (*should_leave)(void);
    /* The same during validation. If one rank should save, all ranks call `save` and then continue. May be NULL. */
    bool (*should_save)(void);
    pd_status (*save)(void *context, struct pd_error *err);
    void *save_context;
    /* Called after forward and backward, before an update changes the state. It returns once no other thread reads the
     * state. Not called if saves read a mirror (pd_state_is_mirrored). */
    struct pd_before_update before_update;

    /* After PD_DEVICE_LOST: whether ranks got different gradients for one micro-batch, and which rank was wrong. */
    struct pd_disagreement {
        bool is_there;
        uint32_t rank; /* UINT32_MAX: undecided */
    } disagreement;

    /* The first rank whose gradients were not finite in the last step. UINT32_MAX: none, or unknown. */
    uint32_t not_finite_rank;

    struct pd_engine_own *own; /* trainer/engine/engine_internal.h */
};

/* Phases of a step, in order. */
enum pd_step_stage { PD_STEP_FORWARD, PD_STEP_BACKWARD, PD_STEP_SUMS, PD_STEP_UPDATE, PD_STEP_STAGES };
extern const char *const pd_step_stage_names[PD_STEP_STAGES];

/* What the tokens of a step did in a block with experts. */
struct pd_expert_report {
    double busiest, idlest; /* shares of all choices */
    double entropy;         /* of the shares; log(experts) if all are equal */
    double bias_range;      /* largest selection bias minus the smallest */
};

struct pd_step_result {
    double loss;          /* mean over the valid tokens of the batch */
    uint64_t tokens;      /* valid target tokens */
    double gradient_norm; /* before clipping */
    double learning_rate;
    double router_loss;                     /* auxiliary losses times their coefficients; not in `loss` */
    const struct pd_expert_report *experts; /* (layers), valid until the next step; NULL: the model has none */
    bool skipped;        /* a gradient or the loss was not finite; parameters and moments did not change */
    bool compared;       /* another group got the same integers for a micro-batch of every rank (guard.replay_every) */
    uint32_t recomputed; /* times the step was recomputed because gradients arrived damaged */
    struct pd_gradient_sizes gradient_sizes; /* numerics.terms: 32: expected in the next step; otherwise zeros */
    uint32_t coarser; /* times it was recomputed with a larger quantum because finite gradients overflowed their terms */
    uint64_t sent_bytes, sent_between_hosts; /* by this rank; the second to other hosts, without what NCCL routes itself */
    double bubble;                           /* share of the step that ranks waited for other stages; mean over ranks */
    double bubble_theory;                    /* of the schedule, if all stages took equal time */
    /* Host time on this rank. A GPU runs behind the host, so there it is the time the host waited. */
    double stage_seconds[PD_STEP_STAGES];
};

/* Checks that the GPU `name` of that compute capability (major * 10 + minor) supports the configured linear layers.
 *   errors  PD_UNSUPPORTED */
PD_MUST_USE pd_status pd_check_fp8(const struct pd_config *config, const char *name, uint32_t capability,
                                   struct pd_error *err);

/* comm: NULL for world 1. On a dry arena comm, data and pool may be NULL and nothing is touched. */
PD_MUST_USE pd_status pd_engine_new(const struct pd_engine_options *options, struct pd_comm *comm,
                                    const struct pd_data *data, struct pd_thread_pool *pool, struct pd_arena *arena,
                                    struct pd_engine **ret_engine, struct pd_error *err);
void pd_engine_free(struct pd_engine *engine);
/* On a GPU, before the first step: a GEMM as wide as the model, used to measure the GPU's rate. Its operands are contiguous.
 */
struct pd_gemm pd_engine_gemm(const struct pd_engine *engine);

/* Returns whether `place` is outside the device's memory. On a CPU, device and host memory are the same. */
bool pd_leaves_device(const struct pd_engine_options *options, enum pd_place place);
/* Whether a block's copies or sums leave the device. An update must then ask zero for each of its boxes. */
bool pd_blocks_leave_device(const struct pd_engine_options *options);
/* Whether an update asks for gradients and working copies one bucket at a time. */
bool pd_updates_by_bucket(const struct pd_engine_options *options);

/* Lanes of a training step. If the record has none: one per micro-batch. */
struct pd_lanes pd_lanes_of(const struct pd_config *config, uint32_t dp);

/* Multiprocessors for products, on a GPU with so many; 0: all. A product whose blocks each keep a multiprocessor takes twice
 * as long where NCCL's kernels occupy one of them. So a run that may have several data, tensor or sequence ranks leaves what
 * NCCL takes. That follows from the configuration alone, with one rank too: the choice of an algorithm must not depend on
 * the layout. */
uint32_t pd_engine_multiprocessors(const struct pd_config *config, uint32_t multiprocessors);

/* Bytes per category that a rank will allocate, by running pd_engine_new on a dry arena. */
PD_MUST_USE pd_status pd_engine_plan_of(const struct pd_engine_options *options, struct pd_memory_plan *ret_plan,
                                        struct pd_error *err);

/* Runs one step: one update; in fp16 possibly none. first_sample: sequences consumed so far. updates: applied so far.
 *   errors  PD_STOPPED: should_leave returned true. PD_DIVERGED: the loss is not finite, or the norm is not and precision is
 *           not fp16. In both cases nothing changed */
PD_MUST_USE pd_status pd_engine_step(struct pd_engine *engine, uint64_t first_sample, uint64_t updates,
                                     struct pd_step_result *ret_result, struct pd_error *err);
/* Mean loss over the first `sequences` validation samples. errors PD_STOPPED: should_leave returned true */
PD_MUST_USE pd_status pd_engine_validate(struct pd_engine *engine, uint32_t sequences, double *ret_loss,
                                         struct pd_error *err);

/* Linear warm-up to lr, cosine to min_lr (Loshchilov and Hutter 2017); `update` counts from 0. */
double pd_learning_rate(const struct pd_config *config, uint64_t update);

/* Cleans up after a failure: aborts every communicator and waits until nothing uses this rank's memory. */
void pd_engine_abort(struct pd_engine *engine);
