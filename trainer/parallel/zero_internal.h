/* State shared by zero.c (sets, owned state), zero_gather.c (parameters out) and zero_exchange.c (gradients in). */
#ifndef PD_TRAINER_PARALLEL_ZERO_INTERNAL_H
#define PD_TRAINER_PARALLEL_ZERO_INTERNAL_H

#include "trainer/parallel/zero.h"

#define PD_ZERO_NO_SET UINT32_MAX

struct pd_zero_set {
    uint32_t count;
    uint32_t tensors[PD_ZERO_SET_TENSORS_MAX];
    uint64_t offsets[PD_ZERO_SET_TENSORS_MAX + 1]; /* elements inside the set; the last is its size */
};

/* What rank r owns of a set, in set order: contiguous runs of elements. */
struct pd_zero_run {
    uint64_t set_offset, elements;
};

/* Gathered parameters of one set. */
struct pd_zero_buffer {
    void *data;
    uint32_t set; /* PD_ZERO_NO_SET: nothing current */
    bool in_flight;
    uint64_t last_use;
    struct pd_comm_op op;
    struct pd_comm_piece *sends, *recvs;
    void *pointers[PD_ZERO_SET_TENSORS_MAX];
};

/* Gradients of one set on their way to the owners. */
struct pd_zero_exchange {
    uint32_t set, slot; /* PD_ZERO_NO_SET: none */
    uint64_t round, rounds;
    bool in_flight;
    struct pd_comm_op op;
    struct pd_comm_piece *sends, *recvs;
    void *data; /* the leaf's gradients, gradient_type */
};

struct pd_zero {
    const struct pd_model *model;
    struct pd_zero_options options;
    const struct pd_grid *grid;
    struct pd_comm *comm;
    struct pd_math *math;
    uint32_t dp;
    bool alone; /* one data rank: no buffers, no transfers */
    uint32_t set_count;
    struct pd_zero_set *sets;
    /* owned */
    uint64_t owned;
    struct pd_zero_box *boxes;
    uint32_t box_count;
    uint64_t *tensor_offset;       /* (tensors) element offset of the tensor's first owned box */
    uint64_t *gradient_set_offset; /* (sets) element offset of the set's owned run in `gradient` */
    float *state[PD_KIND_COUNT];
    void *compute;
    float *gradient;
    /* gather: two blocks and one end */
    struct pd_zero_buffer buffers[PD_ZERO_BLOCK_BUFFERS + 1];
    uint64_t clock;
    void *alone_pointers[PD_ZERO_SET_TENSORS_MAX];
    /* exchange: two leaf buffers for blocks, one for the ends */
    float *leaf_gradients[PD_ZERO_BLOCK_BUFFERS + 1];
    float *leaf_pointers[PD_ZERO_SET_TENSORS_MAX];
    struct pd_zero_exchange exchange;
    void *rounded; /* a set's leaf gradients as gradient_type, where that is not fp32 */
    void *window;  /* (dp, window_elements) of gradient_type: pieces that arrive */
    uint64_t window_elements;
};

void pd_zero_invalidate(struct pd_zero *zero);
PD_MUST_USE pd_status pd_zero_drain(struct pd_zero *zero, struct pd_error *err);
bool pd_zero_is_end(const struct pd_zero *zero, uint32_t set);
/* Runs of `set` that data rank r owns; ret_runs has room for PD_ZERO_SET_TENSORS_MAX. Returns how many. */
uint32_t pd_zero_runs(const struct pd_zero *zero, uint32_t set, uint32_t r, struct pd_zero_run *ret_runs);
uint64_t pd_zero_runs_elements(const struct pd_zero_run *runs, uint32_t count);

#endif
