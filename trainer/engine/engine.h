/* One rank's share of a run: state, activations, buffers and the training step over them.
 *
 * pd_engine_new is the recipe of all memory a rank takes: on a dry arena it counts, and that count is the plan; on a real
 * arena made from that plan it builds. A step is readable in one sitting in step.c:
 *
 *   for every action of the schedule
 *     forward:  micro-batch or the stage before -> embed, blocks -> the stage after
 *     backward: head (loss) or the stage after -> blocks backward -> gradients to their owners, to the stage before
 *   sums of tied tensors, global norm, clip, AdamW on the boxes that are held
 *
 *   threads  one caller
 */
#ifndef PD_TRAINER_ENGINE_ENGINE_H
#define PD_TRAINER_ENGINE_ENGINE_H

#include "trainer/config/config.h"
#include "trainer/config/laid_out.h"
#include "trainer/engine/rank_device.h"
#include "trainer/engine/state_mirror.h"
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

struct pd_state_files;
struct pd_host_state;

struct pd_engine {
    struct pd_engine_options options;
    uint32_t micro_batches; /* V */
    uint32_t slots;         /* micro-batches of this rank in a step, padding micro-batches included */
    struct pd_laid_out laid_out;
    struct pd_grid grid;     /* layout, place, communicators */
    struct pd_comm *comm;    /* the world's; NULL when alone */
    uint32_t chunk_count;    /* pipeline chunks of this rank */
    struct pd_stage *chunks; /* (chunk_count) */
    struct pd_schedule schedule;
    bool is_breadth_first; /* all micro-batches of a block before the next */
    void **dstreams;       /* breadth first: (slots) gradient of the residual stream of each micro-batch */
    const struct pd_data *data;
    struct pd_thread_pool *pool;
    struct pd_math *math;
    struct pd_zero *zero;
    struct pd_transformer *transformer;
    struct pd_pipeline *pipeline;
    int32_t *sample;  /* (4,T) a sequence before it is cut into pieces; NULL where it is not */
    double *row_sums; /* workspace of the norm: squares of rows */
    struct pd_superaccumulator *squares, *read_squares; /* their sum; where the host reads it, on a CPU the same */
    struct pd_state_mirror mirror;                      /* of state in the memory of a GPU */
    struct pd_host_state *host_state; /* state in the host's beside a GPU (trainer/engine/host_state.h); NULL: elsewhere */
    bool squares_by_block;            /* sums in files are counted when a block's are complete */
    void *io_buffers;                 /* staging of saves and loads, aligned to PD_VFS_ALIGN */
    uint64_t io_bytes;
    void *kept_state; /* (kept_bytes) of state in files: what its budget keeps in memory too; NULL: none */
    uint64_t kept_bytes;
    float *far_passage;           /* on a GPU, state in files: a set of it on its way between files and device; the host's */
    void *far_buffers;            /* likewise: what crosses in an update */
    void *scratch_far[3];         /* on a GPU, of trainer/engine/scratch.c */
    void *product;                /* on a GPU: operands of pd_engine_product */
    struct pd_state_files *files; /* optimizer state in files (trainer/engine/state_files.h); NULL: in memory */
    struct pd_identity next_identity; /* of the state that the next step makes, where it is in files. The caller's to set */
    double loss_scale; /* fp16: on the loss of the next step, a power of two; 1 otherwise. The caller's to change */
    /* Asked between micro-batches (with pipeline stages: before the first): true to leave the step unfinished (state is that
     * of the last update). May be NULL. */
    bool (*should_leave)(void *context);
    void *leave_context;
    /* Called before an update begins to change the state (in files: before it is read for that), after forward and backward:
     * who reads the state or uses io_buffers meanwhile ends that. Not where boxes are apart. May be NULL. */
    void (*before_update)(void *context);
    void *update_context;
};

struct pd_step_result {
    double loss;          /* mean over the valid tokens of the batch */
    uint64_t tokens;      /* valid target tokens */
    double gradient_norm; /* before clipping */
    double learning_rate;
    bool skipped;         /* fp16: a gradient overflowed; parameters and moments are as before */
    double bubble;        /* share of the step that ranks waited for other stages, mean over ranks */
    double bubble_theory; /* of the schedule with equal stages */
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
/* On a GPU, before the first step: the product that tells its rate, as wide as the model, and the bytes of its operands,
 * which lie one behind the other. */
struct pd_gemm pd_engine_product(const struct pd_engine *engine);
uint64_t pd_engine_product_bytes(const struct pd_engine *engine);

/* Whether what is placed there leaves the device's memory. On a CPU its memory and the host's are the same. */
bool pd_leaves_device(const struct pd_engine_options *options, enum pd_place place);
/* Whether copies or sums of blocks do: then an update asks zero for every box of theirs. */
bool pd_blocks_leave_device(const struct pd_engine_options *options);

/* Whether a step under this layout goes breadth first. */
bool pd_is_breadth_first(const struct pd_config *config, const struct pd_layout *layout);

/* Bytes by category that a rank will take: the recipe on a dry arena. */
PD_MUST_USE pd_status pd_engine_plan_of(const struct pd_engine_options *options, struct pd_memory_plan *ret_plan,
                                        struct pd_error *err);

/* Parameters from (seed, name, index), moments zero. */
PD_MUST_USE pd_status pd_engine_init_state(struct pd_engine *engine, struct pd_error *err);

/* One step: an update, or in fp16 possibly none. first_sample: sequences consumed so far; updates: applied so far.
 *   errors  PD_STOPPED: should_leave said so, nothing changed; PD_BUG: the loss is not finite, or the norm is not and
 *           precision is not fp16, nothing changed */
PD_MUST_USE pd_status pd_engine_step(struct pd_engine *engine, uint64_t first_sample, uint64_t updates,
                                     struct pd_step_result *ret_result, struct pd_error *err);
/* Mean loss over the first `sequences` validation samples. */
PD_MUST_USE pd_status pd_engine_validate(struct pd_engine *engine, uint32_t sequences, double *ret_loss,
                                         struct pd_error *err);

/* Linear warm-up to lr, cosine to min_lr (Loshchilov and Hutter 2017); `update` counts from 0. */
double pd_learning_rate(const struct pd_config *config, uint64_t update);

/* Data of a box this rank owns, `box` numbered as pd_layout_owned_boxes does: what saves write and loads fill. After a load
 * of all of them comes pd_engine_loaded, collective: other holders get what owners read. */
const struct pd_zero_box *pd_engine_owned_box(const struct pd_engine *engine, uint32_t tensor, uint32_t box);
void *pd_engine_box_data(struct pd_engine *engine, uint32_t tensor, enum pd_kind kind, uint32_t box);
/* On a GPU the data of boxes is the host's copy. begin: it becomes what the state is now, beside what the engine does next;
 * nobody reads it meanwhile. wait: it has, until the next begin; from any one thread. On a CPU nothing happens. */
PD_MUST_USE pd_status pd_engine_boxes_begin(struct pd_engine *engine, struct pd_error *err);
PD_MUST_USE pd_status pd_engine_boxes_wait(struct pd_engine *engine, struct pd_error *err);
/* Whether an update may go on while boxes are read. */
bool pd_engine_boxes_are_apart(const struct pd_engine *engine);
PD_MUST_USE pd_status pd_engine_loaded(struct pd_engine *engine, struct pd_error *err);

/* The way out after a failure: gives up every communicator and waits until nobody uses this rank's memory. */
void pd_engine_abort(struct pd_engine *engine);

#endif
