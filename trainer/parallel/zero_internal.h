/* State shared by zero.c (sets, held state), zero_runs.c (who has what of a set), zero_gather.c (parameters out), zero_terms.c
 * (gradients to terms), zero_exchange.c (terms to sums), zero_files.c (what leaves memory) and zero_tied.c (a tied table whose
 * ends are on two stages).
 *
 * Data rank q = dp index * sp + sp index; a rank of the stage is q * tp + tp index. */
#pragma once

#include "ckpt/base/owner.h"
#include "trainer/parallel/zero.h"

#define PD_ZERO_NO_SET UINT32_MAX
#define PD_ZERO_GATHERS_MAX 2u

/* Terms of a set by whose they are: (parts, stride), then those of other tensor-parallel ranks. */
struct pd_zero_terms {
    int64_t *data;
    struct pd_owner owner; /* "the terms" while some are made, in the caller's thread; then "an exchange of gradients" */
};

struct pd_zero_set {
    uint32_t count;
    uint32_t tensors[PD_ZERO_SET_TENSORS_MAX];
    uint64_t needed[PD_ZERO_SET_TENSORS_MAX + 1];   /* (tensors + 1) elements before the tensor's needed boxes */
    uint64_t computed[PD_ZERO_SET_TENSORS_MAX + 1]; /* and before its computed ones */
    uint64_t part;                                  /* elements of a part of the parameters */
    uint64_t crossing; /* shares of parameters between this rank and other tensor-parallel ranks */
    char *place;       /* (needed) where the compute reads parameters that are gathered */
    uint64_t gathered; /* the version that is there; 0: none */
    /* 64-bit words: of a part as it travels, the last of which is its check; of the elements of this rank's own; of where it is
     * summed, padded for replicas; where in `gradient` that is; of terms that other tensor-parallel ranks own */
    uint64_t stride, own, room, sums, elsewhere;
    bool crosses;                           /* some tensor-parallel rank computes what another one owns */
    bool has_sums;                          /* of this step */
    uint32_t filled;                        /* tensors that have terms since the last exchange, a bit each */
    struct pd_zero_terms *terms, own_terms; /* where those are; own_terms without data: one of the two turns */
    float *lane;                            /* (computed) sums of a lane in fp32; NULL: a lane is a micro-batch */
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
    struct pd_layout_cut cut; /* empty where its data ranks hold nothing of it */
};

/* From its start until its parts are put where they are read, they are the gather's, and the communicator's thread, or NCCL's
 * stream, writes them. pd_comm_wait orders them, and on a device the streams that it joins. */
struct pd_zero_gather {
    char *parts; /* of one set: (parts, part) */
    struct pd_owner owner;
    struct pd_comm_op op;
    uint32_t set;
    bool in_flight;
};

/* Made by zero.c, written by zero_gather.c. What is on its way or has arrived is put where it is read in the order of starts. */
struct pd_zero_gathers {
    struct pd_zero_gather turns[PD_ZERO_GATHERS_MAX];
    uint32_t oldest, count; /* of `turns` that are the gathers' */
    uint32_t most;          /* at a time */
    bool has_one_place;     /* all sets are read there, one at a time */
    uint64_t version;       /* of what is gathered: sets that have another are not current */
    void *pointers[PD_ZERO_SET_TENSORS_MAX];
};

/* Made by zero.c, written by zero_files.c: what is read from files and written to them. */
struct pd_zero_files {
    struct pd_spill *parameter_spill, *gradient_spill; /* NULL: in memory */
    uint32_t sums_set[2];                              /* whose sums are there, or on their way there */
    uint64_t landing_bytes;
    char *landing[2]; /* the boxes of a block, each at a page */
    uint32_t landing_set[2], update_set;
    uint64_t *landing_place; /* (boxes) bytes */
    pd_status (*complete)(void *context, uint32_t set, struct pd_error *err);
    void *complete_context;
};

/* Terms of one set on their way to those who add them up. */
struct pd_zero_exchange {
    uint32_t set; /* PD_ZERO_NO_SET: none */
    bool in_flight, is_last;
    struct pd_zero_terms *terms;
    struct pd_comm *comm;
    struct pd_comm_op op;
};

/* Both are in flight while the older one is waited for. */
struct pd_zero_exchanges {
    struct pd_zero_exchange flights[2];
    uint32_t newest;
};

struct pd_zero {
    const struct pd_model *model;
    struct pd_zero_options options;
    const struct pd_grid *grid;
    struct pd_math *math;
    uint32_t q, parts; /* data rank; in how many parts what is held, and sums, are cut: 1 in stage 0 */
    bool in_place;     /* all that is needed is held: parts are read as they are packed, if they must be */
    bool is_mirrored;  /* a tied table whose head is on another stage */
    bool joins_tied;   /* a tied table whose head is here: its terms go to the embedding's */
    bool has_lanes;    /* micro-batches are added up in fp32 first */
    bool reads_once;   /* a tied table is gathered with the embedding, and read there by the head */
    struct pd_lanes lanes;
    uint32_t slots, pieces;   /* pieces of a micro-batch, each a term */
    struct pd_zero_set *sets; /* (set_count); count 0: of another stage */
    struct pd_zero_held has;
    void *mirror;               /* last stage: working copy of the held boxes of the tied table */
    int64_t *mirrored_gradient; /* first stage: the head's sums of what it holds, and their check; last: the check */
    struct pd_zero_gathers gathers;
    /* gradients */
    float *micro_batch; /* of one set */
    float *micro_batch_pointers[PD_ZERO_SET_TENSORS_MAX];
    uint32_t made_set, made_slot; /* whose are being made there */
    struct pd_quantum quantum;
    double loss_scale;
    uint32_t attempt;              /* what marks carry: no two steps, nor a step that is computed again, have the same */
    uint32_t *marks, *host_marks;  /* (tensors, 2) out of range, not finite; then (sets) sums that arrived damaged */
    struct pd_zero_terms turns[2]; /* that blocks take */
    uint32_t next_turn;
    struct pd_zero_exchanges exchanges;
    struct pd_comm_piece *crossing; /* between this and other tensor-parallel ranks */
    uint32_t watched_slot;
    int64_t *watched_sum;   /* NULL: nobody watches */
    uint64_t copy_elements; /* of the working copy in memory */
    uint64_t sums_elements; /* of one of two places for sums of blocks */
    struct pd_zero_files files;
};

static inline bool pd_zero_is_end(const struct pd_zero *zero, uint32_t set)
{
    return set == 0 || set == zero->has.set_count - 1;
}
/* The working copy, or the master that serves. */
static inline char *pd_zero_copies(const struct pd_zero *zero)
{
    return zero->has.copy ? zero->has.copy : (char *)zero->has.state[PD_PARAM];
}

/* Elements that are contiguous in two slabs: offsets in either. */
struct pd_zero_run {
    uint64_t at_a, at_b, elements;
};

/* What data rank q of the place owns (of the first group), and what it holds: the part of this group of zero_shard ranks,
 * everything in stage 0. Empty slabs have no rows. */
struct pd_zero_slab pd_zero_owned_slab(const struct pd_zero *zero, const struct pd_zero_place *place, uint32_t q);
struct pd_zero_slab pd_zero_held_slab(const struct pd_zero *zero, const struct pd_zero_place *place, uint32_t q);
/* A tensor on tensor-parallel rank t; whether this stage has it or not. */
struct pd_zero_place pd_zero_place_of(const struct pd_zero *zero, uint32_t tensor, uint32_t t);

uint64_t pd_zero_slab_elements(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slab *slab);
/* Where row `row` of chunk `chunk` begins. */
uint64_t pd_zero_slab_offset(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slab *slab, uint32_t chunk,
                             uint64_t row);
/* Runs that two slabs of a tensor share, ascending. Returns the count. */
uint32_t pd_zero_runs(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slab *a,
                      const struct pd_zero_slab *b, struct pd_zero_run ret_runs[PD_LAYOUT_CHUNKS_MAX]);
uint64_t pd_zero_held_elements(const struct pd_zero *zero, uint32_t tensor); /* by this rank */

/* Elements that two tensor-parallel ranks share: one uses them, the other one's parts have them. */
struct pd_zero_share {
    uint32_t e, part;
    bool is_tied;              /* terms that go to the embedding's parts */
    uint64_t used_at, part_at; /* in the tensor as it is computed or needed; in the part */
    uint64_t elements;
};
/* What a rank computes and those who own it add up; what it needs and those who hold it send. */
enum pd_zero_use { PD_ZERO_TERMS, PD_ZERO_PARAMETERS };
/* In one order on both ranks: by part, then by tensor, then by chunk. */
PD_MUST_USE pd_status pd_zero_each_share(const struct pd_zero *zero, uint32_t set, enum pd_zero_use use, uint32_t user_tp,
                                         uint32_t owner_tp,
                                         pd_status (*visit)(void *context, const struct pd_zero_share *share,
                                                            struct pd_error *err),
                                         void *context, struct pd_error *err);
/* All of them between this rank and other tensor-parallel ranks travel. */
PD_MUST_USE pd_status pd_zero_cross(struct pd_zero *zero, uint32_t set, enum pd_zero_use use, struct pd_error *err);
/* A tied table in the head's set that the embedding's stands for. */
bool pd_zero_is_redirected(const struct pd_zero *zero, uint32_t set, uint32_t e, enum pd_zero_use use);
PD_MUST_USE pd_status pd_zero_add_run(const struct pd_zero *zero, const struct pd_term_run *run, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_clear_terms(struct pd_zero *zero, uint32_t set, struct pd_error *err);
/* A micro-batch's gradients are made: into the lane's sum, and at its end into terms. */
PD_MUST_USE pd_status pd_zero_add_micro_batch(struct pd_zero *zero, uint32_t set, uint32_t slot, struct pd_error *err);
int64_t *pd_zero_sums(const struct pd_zero *zero, uint32_t set);
/* All terms of the set are in its sums: they become fp32, and are shared, counted and written. */
PD_MUST_USE pd_status pd_zero_end_set(struct pd_zero *zero, uint32_t set, struct pd_error *err);
void pd_zero_forget_gathers(struct pd_zero *zero); /* whatever became of them */
/* Where the copy of the set's tensor number e, which is in memory, lies on this rank, from its first held box on. */
void *pd_zero_parameters(const struct pd_zero *zero, uint32_t set, uint32_t e);

/* ---- zero_files.c ---- */
bool pd_zero_is_filed(const struct pd_zero *zero, uint32_t set);       /* working copies of the set are in files */
bool pd_zero_has_filed_sums(const struct pd_zero *zero, uint32_t set); /* sums are */
/* The first block that does not fit into a budget of elements with those before it. */
uint32_t pd_zero_first_away(const struct pd_zero *zero, uint64_t budget,
                            uint64_t (*elements_of)(const struct pd_zero *zero, uint32_t set));
void pd_zero_describe_files(struct pd_zero *zero); /* once boxes and sums are */
/* Starts reading a set; what it displaces was used. */
PD_MUST_USE pd_status pd_zero_fetch(struct pd_zero *zero, uint32_t set, struct pd_error *err);
/* Working copies of the set's boxes, one behind the other; *to goes behind them. */
PD_MUST_USE pd_status pd_zero_pack(struct pd_zero *zero, uint32_t set, char **to, struct pd_error *err);
/* The place of the set's sums is free for them. */
PD_MUST_USE pd_status pd_zero_make_room(struct pd_zero *zero, uint32_t set, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_complete(struct pd_zero *zero, uint32_t set, struct pd_error *err);

/* ---- zero_tied.c ---- */
PD_MUST_USE pd_status pd_zero_mirror_parameters(struct pd_zero *zero, struct pd_error *err);
/* The head's sums are in those of the embedding, wherever it is. */
PD_MUST_USE pd_status pd_zero_join_tables(struct pd_zero *zero, struct pd_error *err);
