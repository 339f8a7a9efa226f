/* State shared by zero.c (sets, held state), zero_runs.c (who has what of a set), zero_gather.c (parameters out), zero_terms.c
 * (gradients to terms), zero_exchange.c (terms to sums), zero_files.c (what leaves memory) and zero_share.c (replicas and the
 * mirror of a tied table).
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
    uint32_t pieces_most; /* runs that one data rank shares with all tensor-parallel ranks of another, at most */
    /* 64-bit words: of a part as it travels, the last of which is its check; of the elements of this rank's own; of where it is
     * summed, padded for replicas; where in zero->sums that is; of terms that other tensor-parallel ranks own */
    uint64_t stride, own, room, sums, elsewhere;
    bool crosses;                /* some tensor-parallel rank computes what another one owns */
    bool has_sums;               /* of this step */
    uint32_t filled;             /* tensors that have terms since the last exchange, a bit each */
    struct pd_zero_terms *terms; /* where those are */
    float *lane;                 /* (computed) sums of a lane in fp32; NULL: a lane is a micro-batch */
};

/* Terms of a set by whose they are: (parts, stride), then those of other tensor-parallel ranks. */
struct pd_zero_terms {
    int64_t *data;
    struct pd_owner owner; /* "the terms" while some are made, in the caller's thread; then "an exchange of gradients" */
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

/* Terms of one set on their way to those who add them up. */
struct pd_zero_exchange {
    /* Of the operation and the lists, which exchanges with other tensor-parallel ranks and with replicas take in turn. */
    struct pd_owner owner;
    uint32_t set; /* PD_ZERO_NO_SET: none */
    bool in_flight, is_last;
    struct pd_zero_terms *terms;
    struct pd_comm_op op;
    struct pd_comm_piece *sends, *recvs;
};

struct pd_zero {
    const struct pd_model *model;
    struct pd_zero_options options;
    const struct pd_grid *grid;
    struct pd_comm *gathers, *shard, *replicas; /* of the grid; NULL where there is nobody else */
    struct pd_math *math;
    uint32_t q, data_ranks, parts; /* data rank of data_ranks = dp * sp; parts = zero_shard */
    bool in_place;                 /* all that is needed is held: nothing is gathered */
    bool is_mirrored;              /* a tied table whose head is on another stage */
    bool joins_tied;               /* a tied table whose head is here: its terms go to the embedding's */
    bool makes_terms;              /* false: one lane of what nothing cuts, whose chain is the sum */
    bool has_lanes;                /* micro-batches are added up in fp32 first */
    bool has_apart_sums;           /* sums are made elsewhere than where they are held */
    struct pd_lanes lanes;
    uint32_t slots, pieces; /* pieces of a micro-batch, each a term */
    struct pd_zero_set *sets;      /* (set_count); count 0: of another stage */
    struct pd_zero_held has;
    uint64_t *tensor_offset;  /* (tensors) element offset of the tensor's first held box */
    uint64_t *copy_offset;    /* (tensors) the same in the working copy: of those that are in memory whole */
    void *mirror;             /* last stage: working copy of the held boxes of the tied table */
    void *mirrored_gradient;  /* both: the head's sums of this rank's part of it, and a check, on their way */
    struct pd_zero_gather gather;
    /* gradients */
    float *micro_batch; /* of one set */
    float *micro_batch_pointers[PD_ZERO_SET_TENSORS_MAX];
    uint32_t made_set, made_slot; /* whose are being made there */
    void *rounded;                /* the same as gradient_type */
    struct pd_quantum quantum;
    double loss_scale;
    uint64_t step;               /* what rounding at random depends on */
    uint32_t attempt;            /* what marks carry: no two steps, nor a step that is computed again, have the same */
    uint32_t *marks, *host_marks; /* (tensors) not finite or out of range; (sets) sums that arrived damaged */
    struct pd_zero_terms *terms; /* (set_count), and two that blocks take in turn */
    uint32_t next_terms;
    int64_t *sums;    /* where all sets are summed: in has.gradient, or apart in stage 0 */
    int64_t *arrived; /* terms from other tensor-parallel ranks */
    struct pd_zero_exchange exchange;
    uint64_t apart_words;   /* of sums that are made apart */
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
/* Boxes of a tensor that this rank adds up (at_a: behind the first of them), each where it lies (at_b) behind the tensor's
 * first held box. */
uint32_t pd_zero_own_runs(const struct pd_zero *zero, uint32_t tensor, struct pd_zero_run ret_runs[PD_ZERO_BOXES_MAX]);

/* Elements that two tensor-parallel ranks share: one computes them, the other one's parts have them. */
struct pd_zero_share {
    uint32_t e, part;
    bool is_tied;                  /* they go to the embedding's parts */
    uint64_t computed_at, part_at; /* in the tensor as it is computed; in the part */
    uint64_t elements;
};
/* In one order on both ranks: by part, then by tensor, then by chunk. */
PD_MUST_USE pd_status pd_zero_each_share(struct pd_zero *zero, uint32_t set, uint32_t from_tp, uint32_t to_tp,
                                         pd_status (*visit)(void *context, const struct pd_zero_share *share,
                                                            struct pd_error *err),
                                         void *context, struct pd_error *err);
uint64_t pd_zero_count_shares(struct pd_zero *zero, uint32_t set, uint32_t from_tp, uint32_t to_tp);
bool pd_zero_is_redirected(const struct pd_zero *zero, uint32_t set, uint32_t e);
/* Where the set's next terms go. */
void pd_zero_choose_terms(struct pd_zero *zero, uint32_t set);
PD_MUST_USE pd_status pd_zero_clear_terms(struct pd_zero *zero, uint32_t set, struct pd_error *err);
/* A micro-batch's gradients are made: into the lane's sum, and at its end into terms. */
PD_MUST_USE pd_status pd_zero_add_micro_batch(struct pd_zero *zero, uint32_t set, uint32_t slot, struct pd_error *err);
int64_t *pd_zero_sums(const struct pd_zero *zero, uint32_t set);
/* All terms of the set are in its sums: they become fp32, and are shared, counted and written. */
PD_MUST_USE pd_status pd_zero_end_set(struct pd_zero *zero, uint32_t set, struct pd_error *err);
void pd_zero_invalidate(struct pd_zero *zero);
/* Of what is in flight; PD_OK when nothing is. */
PD_MUST_USE pd_status pd_zero_wait_gather(struct pd_zero *zero, struct pd_zero_buffer *buffer, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_wait_exchange(struct pd_zero *zero, struct pd_error *err);
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
PD_MUST_USE pd_status pd_zero_share_gradients(struct pd_zero *zero, uint32_t set, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_mirror_parameters(struct pd_zero *zero, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_mirror_gradients(struct pd_zero *zero, struct pd_error *err);

#endif
