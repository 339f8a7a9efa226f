/* State shared by zero.c (sets, held state), zero_runs.c (who has what of a set), zero_gather.c (parameters out),
 * zero_exchange.c (gradients in), zero_files.c (what leaves memory) and zero_share.c (replicas and the mirror of a tied table).
 *
 * Data rank q = dp index * sp + sp index; a rank of the stage is q * tp + tp index. */
#ifndef PD_TRAINER_PARALLEL_ZERO_INTERNAL_H
#define PD_TRAINER_PARALLEL_ZERO_INTERNAL_H

#include "ckpt/base/owner.h"
#include "trainer/parallel/zero.h"

#define PD_ZERO_NO_SET UINT32_MAX
#define PD_ZERO_BOXES_MAX 256u /* of one tensor on one rank: chunks of virtual_tp */

struct pd_zero_set {
    uint32_t count;
    uint32_t tensors[PD_ZERO_SET_TENSORS_MAX];
    uint64_t needed[PD_ZERO_SET_TENSORS_MAX + 1];   /* (tensors + 1) elements before the tensor's needed boxes */
    uint64_t computed[PD_ZERO_SET_TENSORS_MAX + 1]; /* and before its computed ones */
    uint64_t gradient[PD_ZERO_SET_TENSORS_MAX + 1]; /* where its held boxes begin in `gradient` */
    uint64_t owned_most;                            /* elements of the set that one rank owns at most */
    uint32_t pieces_most; /* runs that one data rank shares with all tensor-parallel ranks of another, at most */
};

/* Rows [row_begin, row_end) of chunks [chunk_begin, chunk_end) of a tensor: what a rank needs, computes, holds or owns of it
 * always has this shape. In memory chunk lies after chunk, each dense; a tensor that is not split on dimension 1 is one. */
struct pd_zero_slab {
    uint64_t row_begin, row_end;
    uint32_t chunk_begin, chunk_end;
};

/* A tensor of a set on a tensor-parallel rank. */
struct pd_zero_place {
    struct pd_zero_slab needed, computed;
    struct pd_layout_cut cut;
    bool is_here; /* false: its data ranks hold nothing of it, and cut is empty */
};

/* Gathered parameters of one set. "A gather" has data from its start until it was waited for: the communicator's thread, or
 * NCCL's stream, writes it. Then the caller reads it: "the compute" has the set that was acquired last, until the next one is
 * acquired. pd_comm_wait orders them, and on a device the streams that it joins. */
struct pd_zero_buffer {
    void *data;
    struct pd_owner owner; /* of data */
    uint32_t set;          /* PD_ZERO_NO_SET: nothing current */
    uint32_t lane;         /* buffers of one lane share their pieces: one of them is in flight at a time */
    bool in_flight;
    uint64_t last_use;
    struct pd_comm_op op;
    struct pd_comm_piece *sends, *recvs;
    void *pointers[PD_ZERO_SET_TENSORS_MAX];
};

/* Made by zero.c, written by zero_gather.c: two blocks and one end, or one a set. */
struct pd_zero_gather {
    struct pd_zero_buffer *buffers;
    uint32_t buffer_count;
    struct pd_zero_buffer *lanes[PD_ZERO_BLOCK_BUFFERS + 1]; /* last started; NULL: none */
    struct pd_zero_buffer *acquired;                         /* what the compute has; NULL: none */
    uint64_t clock;
    void *in_place_pointers[PD_ZERO_SET_TENSORS_MAX];
};

/* Made by zero.c, written by zero_files.c: what is read from files and written to them. */
struct pd_zero_files {
    struct pd_spill *parameter_spill, *gradient_spill; /* NULL: in memory */
    uint32_t sums_set[2];                              /* whose sums are there, or on their way there */
    uint64_t image_elements, landing_bytes;
    char *image, *landing[2]; /* a block as it is held; its boxes, each at a page */
    uint32_t image_set, landing_set[2], update_set;
    uint64_t *landing_place; /* (boxes) bytes */
    pd_status (*complete)(void *context, uint32_t set, struct pd_error *err);
    void *complete_context;
};

/* Made by zero.c, written by zero_runs.c: the last set that was asked for. */
struct pd_zero_places {
    struct pd_zero_place *of; /* (tp, PD_ZERO_SET_TENSORS_MAX) */
    uint32_t set;
};

/* Gradients of one set on their way to the owners. */
struct pd_zero_exchange {
    /* Of the lists, of `data` and of zero->window. "An exchange of gradients" has them from its start until it was waited for;
     * then "sums" read the window, in the caller's thread, before the next round starts. Exchanges with replicas take turns
     * with both. */
    struct pd_owner owner;
    uint32_t set, slot; /* PD_ZERO_NO_SET: none */
    uint64_t round, rounds;
    bool in_flight;
    struct pd_comm_op op;
    struct pd_comm_piece *sends, *recvs;
    void *data; /* the micro-batch's gradients as they are sent */
};

struct pd_zero {
    const struct pd_model *model;
    struct pd_zero_options options;
    const struct pd_grid *grid;
    struct pd_comm *comm, *gathers; /* of the stage; NULL when alone, and where nothing is gathered */
    struct pd_math *math;
    uint32_t q, data_ranks, parts; /* data rank of data_ranks = dp * sp; parts = zero_shard */
    bool alone;                    /* one rank in the stage: no transfers */
    bool in_place;                 /* all that is needed is held: nothing is gathered */
    bool is_mirrored;              /* a tied table whose head is on another stage */
    enum pd_dtype sent;            /* of gradients in transfer: fp32 where parts of a micro-batch come from several ranks */
    struct pd_zero_set *sets;      /* (set_count); count 0: of another stage */
    struct pd_zero_held has;
    uint64_t *tensor_offset;  /* (tensors) element offset of the tensor's first held box */
    uint64_t *copy_offset;    /* (tensors) the same in the working copy: of those that are in memory whole */
    void *mirror;             /* last stage: working copy of the held boxes of the tied table */
    float *mirrored_gradient; /* first stage: the head's sums of the owned boxes, on arrival */
    struct pd_zero_gather gather;
    /* exchange: two micro-batch buffers for blocks, one for the ends */
    float *micro_batch_gradients[PD_ZERO_BLOCK_BUFFERS + 1];
    float *micro_batch_pointers[PD_ZERO_SET_TENSORS_MAX];
    struct pd_zero_exchange exchange;
    uint64_t step; /* what rounding at random depends on */
    void *rounded; /* a set's micro-batch gradients, or a round's sum over token pieces, as gradient_type */
    void *window;  /* (data_ranks, window_elements) of `sent`: pieces that arrive */
    uint64_t window_elements;
    uint64_t copy_elements; /* of the working copy in memory */
    uint64_t sums_elements; /* of one of two places for sums of blocks */
    struct pd_zero_files files;
    struct pd_zero_places places;
};

/* Elements that are contiguous in two slabs: offsets in either. */
struct pd_zero_run {
    uint64_t at_a, at_b, elements;
};

/* All tensors of a set on all tensor-parallel ranks: tensor e on rank t is [t * PD_ZERO_SET_TENSORS_MAX + e]. Valid until
 * the next call. */
const struct pd_zero_place *pd_zero_places(struct pd_zero *zero, uint32_t set);
/* What data rank q of the place owns (of the first group), and what it holds. Empty slabs have no rows. */
struct pd_zero_slab pd_zero_owned_slab(const struct pd_zero *zero, const struct pd_zero_place *place, uint32_t q);
struct pd_zero_slab pd_zero_held_slab(const struct pd_zero *zero, const struct pd_zero_place *place, uint32_t q);
/* Parts of the cut that have rows of the slab; empty when they have none. */
struct pd_range pd_zero_parts(const struct pd_zero_place *place, const struct pd_zero_slab *slab);
/* A tensor on this rank; whether this stage has it or not. */
struct pd_zero_place pd_zero_place_of(const struct pd_zero *zero, uint32_t tensor, uint32_t t);

uint64_t pd_zero_slab_elements(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slab *slab);
/* Where row `row` of chunk `chunk` begins. */
uint64_t pd_zero_slab_offset(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slab *slab, uint32_t chunk,
                             uint64_t row);
/* Runs that two slabs of a tensor share, ascending. Returns the count. */
uint32_t pd_zero_runs(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slab *a,
                      const struct pd_zero_slab *b, struct pd_zero_run ret_runs[PD_ZERO_BOXES_MAX]);
/* Owned boxes of a tensor on this rank (at_a: behind the first of them), each where it lies (at_b) behind the tensor's first
 * held box. */
uint32_t pd_zero_own_runs(const struct pd_zero *zero, uint32_t tensor, struct pd_zero_run ret_runs[PD_ZERO_BOXES_MAX]);

/* Backward makes sums where they live, from every micro-batch. */
bool pd_zero_makes_sums(const struct pd_zero *zero);
void pd_zero_invalidate(struct pd_zero *zero);
/* Of what is in flight; PD_OK when nothing is. */
PD_MUST_USE pd_status pd_zero_wait_gather(struct pd_zero *zero, struct pd_zero_buffer *buffer, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_wait_round(struct pd_zero *zero, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_drain(struct pd_zero *zero, struct pd_error *err);
bool pd_zero_is_end(const struct pd_zero *zero, uint32_t set);
/* Where the parameters of the set's tensor number e lie on this rank, from its first held box on. */
void *pd_zero_parameters(struct pd_zero *zero, uint32_t set, uint32_t e);

/* ---- zero_files.c ---- */
bool pd_zero_is_filed(const struct pd_zero *zero, uint32_t set); /* working copies of the set are in files */
void pd_zero_describe_files(struct pd_zero *zero);               /* once boxes and sums are */
void pd_zero_take_files(struct pd_zero *zero, struct pd_arena *arena);
/* Starts reading a set; what it displaces was used. */
PD_MUST_USE pd_status pd_zero_fetch(struct pd_zero *zero, uint32_t set, struct pd_error *err);
/* The set is in the image. */
PD_MUST_USE pd_status pd_zero_bring(struct pd_zero *zero, uint32_t set, struct pd_error *err);
void pd_zero_forget_image(struct pd_zero *zero);
/* The place of the set's sums is free for them. */
PD_MUST_USE pd_status pd_zero_make_room(struct pd_zero *zero, uint32_t set, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_complete(struct pd_zero *zero, uint32_t set, struct pd_error *err);

/* The parts of zero_share.c. */
PD_MUST_USE pd_status pd_zero_share_gradients(struct pd_zero *zero, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_mirror_parameters(struct pd_zero *zero, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_mirror_gradients(struct pd_zero *zero, struct pd_error *err);

#endif
