/* ZeRO: the ranks of one stage share parameters, gradients and optimizer state, cut into boxes with owners (Rajbhandari et
 * al. 2020). README.md defines buckets, and what a rank needs, computes, owns and holds. Bucket 0 is the embedding, 1..L the
 * blocks, L+1 the head. A bucket stores a tensor as the boxes its rank needs (trainer/model/partition.h), each dense, chunk
 * after chunk if it is split on dimension 1, and its gradient as the boxes the rank computes.
 *
 *   stage     parameters (compute type)            micro-batch gradients   gradient sums, optimizer state
 *   0         whole                                one bucket at a time    replicated
 *   1, 2      whole, gathered once a step          one bucket at a time    cut
 *   3         one bucket, parts of one or two more one bucket at a time    cut
 *
 *   invariants  1. every rank of a stage makes the same calls in the same order
 *               2. micro-batches of a lane are added in fp32. The result is a term (trainer/math/terms.h), as is every piece
 *                  of a cut micro-batch. Sums of terms are exact, so their order does not matter
 *               3. all holders of a box update it, with the same bits
 *   threads     one caller; transfers run on the communicator's thread
 */
#pragma once

#include "ckpt/base/arena.h"
#include "offload/spill.h"
#include "trainer/math/math.h"
#include "trainer/parallel/grid.h"
#include "trainer/parallel/lanes.h"

struct pd_zero_options {
    uint32_t micro_batches;   /* V: micro-batches per step */
    uint32_t lanes;           /* L, at most V */
    uint64_t tokens;          /* per batch; determines the quantum of terms */
    bool narrow_terms;        /* of 32 bits */
    bool by_lane;             /* sends blocks' terms whenever lanes end, instead of once a step */
    bool by_layers;           /* runs all micro-batches of a block before the next: terms need no buffer of their own */
    enum pd_dtype compute;    /* of gathered parameters */
    bool exchanges_two;       /* two exchanges at a time, the second over the gathers' communicator, which is idle by then */
    bool gathers_two;         /* two parameter buckets may be in flight, if they are in memory */
    bool adds_in_place;       /* backward itself adds to the lane's sums */
    bool state_on_host;       /* on a GPU: master and moments are in host memory, the working copy in GPU memory */
    bool state_in_files;      /* master and moments are in files: pd_zero_held has no state, only the working copy */
    bool parameters_in_files; /* blocks' working copies are in files (on a GPU perhaps in host memory): pd_zero_update_box */
    bool gradients_in_files;  /* the same for blocks' sums; needs a breadth-first schedule */
    bool rounds_sums;         /* blocks' sums are bf16, rounded after every micro-batch; one lane, no cuts */
    uint64_t parameters_budget, gradients_budget; /* bytes of each that stay in memory, for the first blocks that fit */
};

/* A box this rank holds. Offsets count elements in the held arrays. */
struct pd_zero_box {
    uint32_t tensor;
    uint32_t number; /* if owned: index among the tensor's, in the order of pd_layout_owned_boxes */
    bool owned;      /* this rank writes it to its file and counts it in norms */
    struct pd_box box;
    uint64_t offset, elements;
    uint64_t copy_offset;     /* into the working copy; UINT64_MAX: in files */
    uint64_t gradient_offset; /* with gradients_in_files or rounds_sums: its place while the bucket is in fp32 memory */
};

struct pd_zero;

#define PD_ZERO_ALL_RANKS UINT32_MAX
/* Most elements of a unit that one data rank beside tensor-parallel rank `tp` owns: of the tensors that all data ranks share,
 * or of the experts of those with q % ep = ep_rank. by_part (zero_shard) scratch */
uint64_t pd_zero_part_elements(const struct pd_model *model, const struct pd_layout *layout, uint32_t unit, uint32_t tp,
                               uint32_t ep_rank, uint64_t *by_part);

/* Allocates everything from the arena. A dry arena only counts (math and the grid's communicators may be NULL), in time that
 * does not grow with ranks times tensors. Borrows model, grid and math. */
PD_MUST_USE pd_status pd_zero_new(const struct pd_model *model, const struct pd_zero_options *options,
                                  const struct pd_grid *grid, struct pd_math *math, struct pd_arena *arena,
                                  struct pd_zero **ret_zero, struct pd_error *err);
void pd_zero_free(struct pd_zero *zero);

/* What a rank holds; fixed by pd_zero_new. Other modules read the boxes, and read and write what the pointers address. */
struct pd_zero_held {
    uint64_t elements;
    struct pd_zero_box *boxes; /* (box_count) in table order */
    uint32_t box_count, bucket_count;
    uint32_t *first_box;             /* (bucket_count + 1) first box of each bucket */
    uint32_t copies_away, sums_away; /* buckets from this one on keep copies (sums) in files; earlier blocks are in memory */
    void *state[PD_KIND_COUNT];      /* (elements) each, zero-padded where a box must begin a page; NULL: in files */
    enum pd_dtype moments;           /* type of all state except the parameters, which are fp32 */
    void *copy;                      /* working copy; NULL if compute is fp32 and the master, in memory, serves */
    float *gradient;                 /* (gradient_elements) sums */
    uint64_t gradient_elements;
    bool makes_terms; /* sums are of terms, so the loss scale is divided out; false: one uncut chain */
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
/* Waits for every transfer in flight and ignores its result. Call after a failure, once the communicator is aborted. */
void pd_zero_sync(struct pd_zero *zero);
/* After loading: owners send all three kinds of state to the other holders. Collective over the stage. */
PD_MUST_USE pd_status pd_zero_share_state(struct pd_zero *zero, struct pd_error *err);
/* Makes the working copy from a master in memory, then does pd_zero_updated. Call after initialisation and loading. */
PD_MUST_USE pd_status pd_zero_refresh_compute(struct pd_zero *zero, struct pd_error *err);
/* Call when parameters changed: invalidates everything gathered and mirrors a tied table again. */
PD_MUST_USE pd_status pd_zero_updated(struct pd_zero *zero, struct pd_error *err);

/* ---- data in files (zero_files.c): only of blocks; embedding and head stay in memory ----
 *
 * Working copies: each box of PD_ZERO_FILE_ELEMENTS or more is a span. Prefetching a bucket reads it into one of two landing
 * buffers; acquire assembles it. Sums: the held boxes of a bucket are a span. Two buckets are in memory: the last one computed,
 * and one in flight. */
#define PD_ZERO_FILE_ELEMENTS 16384u

/* Bytes of a span (a box's copy; a bucket's sums), or 0. */
uint64_t pd_zero_parameter_span(const struct pd_zero *zero, uint32_t box);
uint64_t pd_zero_gradient_span(const struct pd_zero *zero, uint32_t bucket);
/* Files created from these spans; borrowed. NULL: nothing is in files. */
void pd_zero_attach_files(struct pd_zero *zero, struct pd_spill *parameters, struct pd_spill *gradients);
/* With rounds_sums: makes the bucket's sums fp32, for pd_zero_held's gradient, until another bucket's are requested. */
PD_MUST_USE pd_status pd_zero_bring_sums(struct pd_zero *zero, uint32_t bucket, struct pd_error *err);
/* Registers a callback, called when the sums of a block are complete and still in memory: for the norm. */
void pd_zero_on_sums(struct pd_zero *zero, pd_status (*complete)(void *context, uint32_t bucket, struct pd_error *err),
                     void *context);
/* Makes the working copy of a box from its master. Call after initialisation or loading. */
PD_MUST_USE pd_status pd_zero_put_parameters(struct pd_zero *zero, uint32_t box, const float *master, struct pd_error *err);
/* Updates all boxes in ascending order. Returns the gradient of a box and where to write its new working copy; both are
 * valid until a box of another bucket is requested. Then call pd_zero_updated. */
PD_MUST_USE pd_status pd_zero_update_begin(struct pd_zero *zero, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_update_box(struct pd_zero *zero, uint32_t box, const float **ret_gradient, void **ret_copy,
                                         struct pd_error *err);
PD_MUST_USE pd_status pd_zero_update_end(struct pd_zero *zero, struct pd_error *err);

/* Starts gathering a bucket, if it is not resident; does not wait. */
PD_MUST_USE pd_status pd_zero_prefetch(struct pd_zero *zero, uint32_t bucket, struct pd_error *err);
/* How many buckets may be prefetched, in the order of their use, while one is read. */
uint32_t pd_zero_prefetches(const struct pd_zero *zero);
/* Waits for the bucket. Returns pointers to (the first box of) its tensors, valid until the next bucket is acquired. */
PD_MUST_USE pd_status pd_zero_acquire(struct pd_zero *zero, uint32_t bucket, void *const **ret_weights,
                                      struct pd_error *err);

/* Where a bucket's tensors and its micro-batch's gradients will lie, and the sources of its experts (pd_zero_sources). Gathers
 * nothing. Valid until the next call. */
void pd_zero_rehearse(struct pd_zero *zero, uint32_t bucket, void *const **ret_weights, float *const **ret_gradients);

/* Call before the first gradient of a step, or of its recomputation. loss_scale: factor of the gradients; terms are divided
 * by it. sizes: for terms of 32 bits; coarser: as in pd_quantum_of (trainer/math/terms.h). */
PD_MUST_USE pd_status pd_zero_begin_step(struct pd_zero *zero, double loss_scale, const struct pd_gradient_sizes *sizes,
                                         uint32_t coarser, struct pd_error *err);
/* Where backward of `bucket` in `slot` (lanes.h) writes, or adds to the lane's, gradients of the micro-batch (fp32), in bucket
 * order. With PD_ZERO_NO_SLOT, after the last slot of a step, gradients are only watched. */
#define PD_ZERO_NO_SLOT UINT32_MAX
PD_MUST_USE pd_status pd_zero_micro_batch_gradients(struct pd_zero *zero, uint32_t bucket, uint32_t slot,
                                                    float *const **ret_gradients, bool *ret_adds, struct pd_error *err);
/* With ep > 1, after that call: where the gradients of this rank's experts go, from the micro-batch of each of the ep ranks
 * (tensors in bucket order, without gaps). NULL: that rank has no micro-batch in the slot. */
float *const *pd_zero_sources(const struct pd_zero *zero);
/* For cut sequences: consumes gradients [gradient, gradient + elements) of a piece. The caller may reuse the buffer after
 * return. A pd_piece_taker of trainer/model/transformer.h. */
PD_MUST_USE pd_status pd_zero_take_piece(void *zero, uint32_t source, const float *gradient, uint64_t elements,
                                         struct pd_error *err);
/* The micro-batch's gradients of `bucket` are complete. Padding micro-batches call this too: terms travel in the same slots. */
PD_MUST_USE pd_status pd_zero_push_gradients(struct pd_zero *zero, uint32_t bucket, uint32_t slot, struct pd_error *err);
/* From now on also adds terms modulo 2^64. sums[0] takes the terms of this rank's micro-batch in its slot; sums[1] takes the
 * terms that the micro-batches of the ep ranks in slots[i] have for this rank's experts. A slot begins a lane or is
 * PD_ZERO_NO_SLOT. sums NULL: stop. Borrows sums, memory of the math. */
#define PD_ZERO_WATCHED 2
void pd_zero_watch(struct pd_zero *zero, const uint32_t *slots, int64_t *sums);
/* The data group of number `source` of the ep ranks. */
uint32_t pd_zero_source_group(const struct pd_zero *zero, uint32_t source);

/* Call once per step, after the last slot. Finishes the last exchange, combines a tied table's sums of two stages, and gives
 * all holders the sums. */
PD_MUST_USE pd_status pd_zero_finish_gradients(struct pd_zero *zero, struct pd_error *err);
/* Call after finish. Starts reading the step's marks. After a device sync the others return, for this rank, the first tensor
 * with an element out of range, the first with one not finite, and the first bucket whose sums arrived damaged; UINT32_MAX:
 * none. */
PD_MUST_USE pd_status pd_zero_read_marks(struct pd_zero *zero, struct pd_error *err);
/* After it: this rank's largest sum of each class of gradients (PD_GRADIENT_CLASSES); NULL for terms of 64 bits. */
const float *pd_zero_largest(const struct pd_zero *zero);
uint32_t pd_zero_out_of_range(const struct pd_zero *zero);
uint32_t pd_zero_not_finite(const struct pd_zero *zero);
uint32_t pd_zero_damage(const struct pd_zero *zero);
