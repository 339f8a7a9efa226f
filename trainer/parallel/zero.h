/* ZeRO: parameters, gradients and optimizer state of one stage's ranks live as boxes on their owners (Rajbhandari et al.
 * 2020). README.md says what sets are, and what a rank needs, computes, owns and holds; set 0 is the embedding, 1..L the blocks,
 * L+1 the head. A tensor lies in a set as the boxes its rank needs (trainer/model/partition.h), each dense, chunk after chunk
 * where it is split on dimension 1; its gradient as the boxes the rank computes.
 *
 *   stage     parameters (compute type)         micro-batch gradients         gradient sums, optimizer state
 *   0         whole                             one set at a time             replicated
 *   1, 2      whole, gathered once a step       one set at a time             cut
 *   3         one set, parts of one or two more one set at a time             cut
 *
 *   invariants  1. every rank of a stage makes the same calls in the same order
 *               2. a lane's micro-batches are added up in fp32; what they come to is a term (trainer/math/terms.h), and so is
 *                  every piece of a micro-batch that is cut; sums of terms are exact, so nothing depends on their order
 *               3. all holders update what they hold, with the same bits
 *   threads     one caller; transfers run on the communicator's thread
 */
#pragma once

#include "ckpt/base/arena.h"
#include "offload/spill.h"
#include "trainer/math/math.h"
#include "trainer/parallel/grid.h"
#include "trainer/parallel/lanes.h"

#define PD_ZERO_SET_TENSORS_MAX 24

struct pd_zero_options {
    uint32_t micro_batches;   /* V: micro-batches a step */
    uint32_t lanes;           /* L, at most V */
    uint64_t tokens;          /* of a batch: what the quantum of terms depends on */
    bool by_lane;             /* blocks' terms travel whenever lanes end, and not once a step */
    bool by_layers;           /* all micro-batches of a block before the next: its terms take no place of their own */
    enum pd_dtype compute;    /* of gathered parameters */
    bool exchanges_two;       /* at a time, the second over the communicator of gathers, which are over by then */
    bool gathers_two;         /* sets of parameters on their way at a time, where they are in memory */
    bool adds_in_place;       /* backward adds to the sums of lanes by itself */
    bool state_on_host;       /* master and moments are the host's, where the rank is a GPU; the working copy is the GPU's */
    bool state_in_files;      /* master and moments are not here: pd_zero_held has no state, the working copy always is */
    bool parameters_in_files; /* working copies of blocks are in files (on a GPU perhaps on the host): pd_zero_update_box */
    bool gradients_in_files;  /* sums of blocks are; likewise, and needs a schedule that goes breadth first */
    uint64_t parameters_budget, gradients_budget; /* bytes of them that stay in memory: of the first blocks that fit */
};

/* A box this rank holds. Offsets are elements into the held arrays. */
struct pd_zero_box {
    uint32_t tensor;
    uint32_t number; /* of an owned box: among those of the tensor, in the order of pd_layout_owned_boxes */
    bool owned;      /* by this rank: in its file, and counted in norms */
    struct pd_box box;
    uint64_t offset, elements;
    uint64_t copy_offset;     /* into the working copy; UINT64_MAX: in files */
    uint64_t gradient_offset; /* with gradients_in_files: where it is while its set is in memory */
};

struct pd_zero;

/* Elements of a unit that one data rank beside tensor-parallel rank `tp` owns at most.   by_part (zero_shard) scratch */
uint64_t pd_zero_part_elements(const struct pd_model *model, const struct pd_layout *layout, uint32_t unit, uint32_t tp,
                               uint64_t *by_part);

/* All memory from the arena; on a dry arena only counts (the grid's communicators and math may be NULL), in time that does
 * not grow with the number of ranks times tensors. Model, grid and math are borrowed. */
PD_MUST_USE pd_status pd_zero_new(const struct pd_model *model, const struct pd_zero_options *options,
                                  const struct pd_grid *grid, struct pd_math *math, struct pd_arena *arena,
                                  struct pd_zero **ret_zero, struct pd_error *err);
void pd_zero_free(struct pd_zero *zero);

/* What a rank holds; fixed by new. Others than ZeRO read boxes, and read and write what the pointers name. */
struct pd_zero_held {
    uint64_t elements;
    struct pd_zero_box *boxes; /* (box_count) in table order */
    uint32_t box_count, set_count;
    uint32_t *first_box; /* (set_count + 1) of each set */
    uint32_t copies_away,
        sums_away;              /* first set whose copies, whose sums are in files: those of blocks before are here whole */
    void *state[PD_KIND_COUNT]; /* (elements) each, zeros between boxes where one begins a page; NULL: in files */
    enum pd_dtype moments;      /* of all kinds of state but the parameters, which are fp32 */
    void *copy;                 /* working copy; NULL where compute is fp32 and the master is here and serves */
    float *gradient;            /* (gradient_elements) sums */
    uint64_t gradient_elements;
    bool makes_terms; /* of which sums are, so that the loss scale is out of them; false: one chain, which nothing cuts */
};
const struct pd_zero_held *pd_zero_held(const struct pd_zero *zero);
static inline uint32_t pd_zero_element_bytes(const struct pd_zero_held *held, enum pd_kind kind)
{
    return pd_dtype_bytes(kind == PD_PARAM ? PD_F32 : held->moments);
}
static inline void *pd_zero_state(const struct pd_zero_held *held, enum pd_kind kind, uint64_t offset)
{
    return (char *)held->state[kind] + offset * pd_zero_element_bytes(held, kind);
}
/* Waits for every transfer in flight and forgets its outcome: the way out after a failure, once the communicator is aborted.
 */
void pd_zero_sync(struct pd_zero *zero);
/* After loading: other holders get all three kinds of what owners have. Collective over the stage. */
PD_MUST_USE pd_status pd_zero_share_state(struct pd_zero *zero, struct pd_error *err);
/* Makes the working copy from a master that is here, then as pd_zero_updated: after initialisation and after loading. */
PD_MUST_USE pd_status pd_zero_refresh_compute(struct pd_zero *zero, struct pd_error *err);
/* Parameters changed: nothing gathered is current any more, and a tied table is mirrored again. */
PD_MUST_USE pd_status pd_zero_updated(struct pd_zero *zero, struct pd_error *err);

/* ---- what is in files (zero_files.c): of blocks alone, embedding and head stay in memory ----
 *
 * Working copies: each box of PD_ZERO_FILE_ELEMENTS or more is a span. A set that is prefetched is read into one of two
 * landings, and put together as it is held when it is acquired. Sums: the held boxes of a set are a span; two sets are in
 * memory, those that were made last and those on their way. */
#define PD_ZERO_FILE_ELEMENTS 16384u

/* Bytes of a span, 0 where there is none: of a box's copy, of a set's sums. */
uint64_t pd_zero_parameter_span(const struct pd_zero *zero, uint32_t box);
uint64_t pd_zero_gradient_span(const struct pd_zero *zero, uint32_t set);
/* Made of these spans; borrowed. NULL where nothing is in files. */
void pd_zero_attach_files(struct pd_zero *zero, struct pd_spill *parameters, struct pd_spill *gradients);
/* Called when the sums of a block are complete, while they are in memory: what the norm needs. */
void pd_zero_on_sums(struct pd_zero *zero, pd_status (*complete)(void *context, uint32_t set, struct pd_error *err),
                     void *context);
/* The working copy of a box from its master: after initialisation or loading. */
PD_MUST_USE pd_status pd_zero_put_parameters(struct pd_zero *zero, uint32_t box, const float *master, struct pd_error *err);
/* An update of all boxes in ascending order: the gradient of a box, and where its new working copy goes; both are there
 * until a box of another set is asked for. Then pd_zero_updated. */
PD_MUST_USE pd_status pd_zero_update_begin(struct pd_zero *zero, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_update_box(struct pd_zero *zero, uint32_t box, const float **ret_gradient, void **ret_copy,
                                         struct pd_error *err);
PD_MUST_USE pd_status pd_zero_update_end(struct pd_zero *zero, struct pd_error *err);

/* Starts the gather of a set where it is not resident; returns at once. */
PD_MUST_USE pd_status pd_zero_prefetch(struct pd_zero *zero, uint32_t set, struct pd_error *err);
/* Sets that may be prefetched, in the order in which they will be acquired, while one is read. */
uint32_t pd_zero_prefetches(const struct pd_zero *zero);
/* Pointers to the set's tensors (to the first of their boxes), valid until the next set is acquired. */
PD_MUST_USE pd_status pd_zero_acquire(struct pd_zero *zero, uint32_t set, void *const **ret_weights, struct pd_error *err);

/* Before the first gradient of a step, or of one that is computed again. loss_scale: what gradients were multiplied by, which
 * terms are divided by; coarser: that of pd_quantum_of. */
void pd_zero_begin_step(struct pd_zero *zero, double loss_scale, uint32_t coarser);
/* Where backward of `set` in slot `slot` (lanes.h) writes the micro-batch's gradients (fp32), in set order; or adds them, to
 * what the lane has so far. Those of PD_ZERO_NO_SLOT, behind the last slot of a step, are made to be watched alone. */
#define PD_ZERO_NO_SLOT UINT32_MAX
PD_MUST_USE pd_status pd_zero_micro_batch_gradients(struct pd_zero *zero, uint32_t set, uint32_t slot,
                                                    float *const **ret_gradients, bool *ret_adds, struct pd_error *err);
/* Where sequences are cut: what a piece of them made of `elements` gradients from `gradient` on is there, and is free for the
 * next piece on return. A pd_piece_taker of trainer/model/transformer.h. */
PD_MUST_USE pd_status pd_zero_take_piece(void *zero, const float *gradient, uint64_t elements, struct pd_error *err);
/* The micro-batch's gradients of `set` are complete. Padding micro-batches call it too: terms travel in the same slots. */
PD_MUST_USE pd_status pd_zero_push_gradients(struct pd_zero *zero, uint32_t set, uint32_t slot, struct pd_error *err);
/* From here on terms of the micro-batch in `slot`, which begins a lane or is PD_ZERO_NO_SLOT, are added up in *sum too,
 * modulo 2^64; NULL: of none. Memory of the math, borrowed. */
void pd_zero_watch(struct pd_zero *zero, uint32_t slot, int64_t *sum);

/* After the last slot, once a step: the last exchange ends, a tied table's sums on two stages become one, and all holders have
 * the sums. */
PD_MUST_USE pd_status pd_zero_finish_gradients(struct pd_zero *zero, struct pd_error *err);
/* After that: begins to read what the step found of its gradients; once the device was waited for, the first tensor with an
 * element out of range, the first with one that was not finite, and the first set whose sums arrived damaged, on this rank;
 * UINT32_MAX: none. */
PD_MUST_USE pd_status pd_zero_read_marks(struct pd_zero *zero, struct pd_error *err);
uint32_t pd_zero_out_of_range(const struct pd_zero *zero);
uint32_t pd_zero_not_finite(const struct pd_zero *zero);
uint32_t pd_zero_damage(const struct pd_zero *zero);
