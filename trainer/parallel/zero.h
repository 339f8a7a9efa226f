/* ZeRO-3: parameters, gradients and optimizer state live as boxes on their owners; a unit's parameters are gathered when it
 * computes and forgotten after, its gradients go to their owners as soon as its backward is done.
 *
 * A *set* is what one pipeline unit needs: its tensors in table order, dense, one behind the other (q, k, v are one matrix).
 * Set 0 is the embedding, 1..L the blocks, L+1 the head; a tied head also lists the token table, so that tensor has two
 * gradient sums, which are added once, embedding first, before the norm (pd_zero_join_tied).
 *
 *   invariants  1. every rank makes the same calls in the same order
 *               2. a gradient sum is the leaves' pieces added in leaf order into fp32, whatever the number of ranks
 *               3. with one data rank nothing is copied: parameters are read where they are owned
 *               4. at most PD_ZERO_BLOCK_BUFFERS gathered blocks and one gathered end (embedding or head) exist at once
 *   source      Rajbhandari et al. 2020 (ZeRO), stage 3
 *   threads     one caller; transfers run on the communicator's thread
 */
#ifndef PD_TRAINER_PARALLEL_ZERO_H
#define PD_TRAINER_PARALLEL_ZERO_H

#include "ckpt/commit.h"
#include "trainer/comm/comm.h"
#include "trainer/math/math.h"
#include "trainer/model/model.h"

#define PD_ZERO_SET_TENSORS_MAX 24
#define PD_ZERO_BLOCK_BUFFERS 2

struct pd_zero_options {
    struct pd_layout layout;
    uint32_t rank;
    uint32_t leaves;             /* V: leaves a step */
    enum pd_dtype compute;       /* of gathered parameters */
    enum pd_dtype gradient_type; /* of a leaf's gradient as it is exchanged and added */
};

/* A box this rank owns. Offsets are elements into the owned arrays. */
struct pd_zero_box {
    uint32_t tensor;
    struct pd_box box;
    uint64_t offset, elements;
    uint64_t gradient_offset;
    uint64_t tied_gradient_offset; /* second sum of a tied tensor; UINT64_MAX: none */
};

struct pd_zero;

/* All memory from the arena; on a dry arena only counts (comm and math may be NULL). Model, comm and math are borrowed. */
PD_MUST_USE pd_status pd_zero_new(const struct pd_model *model, const struct pd_zero_options *options, struct pd_comm *comm,
                                  struct pd_math *math, struct pd_arena *arena, struct pd_zero **ret_zero,
                                  struct pd_error *err);
void pd_zero_free(struct pd_zero *zero);

/* Owned state: (owned) fp32 each, boxes in table order, zeros between those that begin a page. */
uint64_t pd_zero_owned_elements(const struct pd_zero *zero);
uint32_t pd_zero_box_count(const struct pd_zero *zero);
const struct pd_zero_box *pd_zero_boxes(const struct pd_zero *zero);
float *pd_zero_state(struct pd_zero *zero, enum pd_kind kind);
float *pd_zero_gradient(struct pd_zero *zero);
/* Compute copy of the owned parameters, or NULL where compute is fp32 and the master serves. */
void *pd_zero_compute_copy(struct pd_zero *zero);
/* Waits for every transfer in flight and forgets its outcome: the way out after a failure, once the communicator is aborted. */
void pd_zero_settle(struct pd_zero *zero);
/* Makes the compute copy from the master: after initialisation and after loading. */
PD_MUST_USE pd_status pd_zero_refresh_compute(struct pd_zero *zero, struct pd_error *err);

uint32_t pd_zero_set_count(const struct pd_zero *zero);
/* Starts the gather of a set where it is not resident; returns at once. */
PD_MUST_USE pd_status pd_zero_prefetch(struct pd_zero *zero, uint32_t set, struct pd_error *err);
/* Pointers to the set's tensors, valid until another two blocks (or another end) were prefetched or acquired. */
PD_MUST_USE pd_status pd_zero_acquire(struct pd_zero *zero, uint32_t set, void *const **ret_weights, struct pd_error *err);
/* Parameters changed: nothing gathered is current any more. */
void pd_zero_invalidate(struct pd_zero *zero);

/* Where backward of `set` in slot `slot` writes the leaf's gradients (fp32), in set order. */
PD_MUST_USE pd_status pd_zero_leaf_gradients(struct pd_zero *zero, uint32_t set, uint32_t slot, float *const **ret_gradients,
                                             struct pd_error *err);
/* The leaf's gradients of `set` are complete: sends them to their owners and adds what arrives, the previous set's first.
 * Ghosts (slot * dp + rank >= leaves) call it too. */
PD_MUST_USE pd_status pd_zero_push_gradients(struct pd_zero *zero, uint32_t set, uint32_t slot, struct pd_error *err);
/* Completes every exchange in flight. */
PD_MUST_USE pd_status pd_zero_drain(struct pd_zero *zero, struct pd_error *err);
/* Adds the head's sum of a tied tensor to the embedding's: once, after the last slot. */
PD_MUST_USE pd_status pd_zero_join_tied(struct pd_zero *zero, struct pd_error *err);

#endif
