/* State shared by zero.c (sets, held state), zero_runs.c (which rank has which part of a set), zero_gather.c (gathers
 * parameters), zero_terms.c (gradients to terms), zero_exchange.c (terms to sums), zero_files.c (data in files) and
 * zero_tied.c (a tied table on two stages).
 *
 * Data rank q = dp index * sp + sp index; a rank of the stage is q * tp + tp index. */
#pragma once

#include "ckpt/base/owner.h"
#include "trainer/parallel/zero.h"

#define PD_ZERO_NO_SET UINT32_MAX
#define PD_ZERO_GATHERS_MAX 2u

/* Terms of a set, ordered by owner: (parts, stride), then those of other tensor-parallel ranks. */
struct pd_zero_terms {
    int64_t *data;
    struct pd_owner owner; /* "the terms" while the caller's thread adds some; then "an exchange of gradients" */
};

struct pd_zero_set {
    uint32_t count;
    uint32_t tensors[PD_ZERO_SET_TENSORS_MAX];
    uint64_t needed[PD_ZERO_SET_TENSORS_MAX + 1];   /* (tensors + 1) needed elements before each tensor */
    uint64_t computed[PD_ZERO_SET_TENSORS_MAX + 1]; /* the same for computed ones */
    uint64_t part;                                  /* elements in one part of the parameters */
    uint64_t crossing;                              /* parameter shares sent to or from other tensor-parallel ranks */
    char *place;                                    /* (needed) gathered parameters, read by compute */
    uint64_t gathered;                              /* version of that content; 0: none */
    /* In 64-bit words. stride: a part in a message, ending in its checksum. own: this rank's elements. room: the buffer for
     * the sums, padded for replicas; sums: its place in `gradient`. elsewhere: terms that other tp ranks own */
    uint64_t stride, own, room, sums, elsewhere;
    bool crosses;                           /* some tensor-parallel rank computes elements that another owns */
    bool has_sums;                          /* sums of this step are complete */
    uint32_t filled;                        /* tensors with terms since the last exchange, one bit each */
    struct pd_zero_terms *terms, own_terms; /* where the terms are; own_terms without data: terms is one of the two turns */
    float *lane;                            /* (computed) sums of a lane in fp32; NULL: a lane is a micro-batch */
};

/* Rows [row_begin, row_end) of chunks [chunk_begin, chunk_end) of a tensor. What a rank needs, computes, holds or owns
 * always has this shape. Chunks are stored one after another, each dense; a tensor not split on dimension 1 is one chunk. */
struct pd_zero_slab {
    uint64_t row_begin, row_end;
    uint32_t chunk_begin, chunk_end;
};

/* A tensor of a set, on one tensor-parallel rank. */
struct pd_zero_place {
    struct pd_zero_slab needed, computed;
    struct pd_layout_cut cut; /* empty if its data ranks hold nothing of the tensor */
};

/* One gather. From start until its parts are copied out, the gather owns them: the communicator's thread, or NCCL's stream,
 * writes them. Ordered by pd_comm_wait and, on a device, by the streams that it joins. */
struct pd_zero_gather {
    char *parts; /* of one set: (parts, part) */
    struct pd_owner owner;
    struct pd_comm_op op;
    uint32_t set;
    bool in_flight;
};

/* Gathers, created by zero.c and used by zero_gather.c. They are copied to where they are read in the order of starts. */
struct pd_zero_gathers {
    struct pd_zero_gather turns[PD_ZERO_GATHERS_MAX];
    uint32_t oldest, count; /* `turns` in use */
    uint32_t most;          /* at most, at a time */
    bool has_one_place;     /* all sets are read from one buffer, one at a time */
    uint64_t version;       /* current version; sets with another one are stale */
    void *pointers[PD_ZERO_SET_TENSORS_MAX];
};

/* Created by zero.c, used by zero_files.c: data read from and written to files. */
struct pd_zero_files {
    struct pd_spill *parameter_spill, *gradient_spill; /* NULL: in memory */
    uint32_t sums_set[2];                              /* set whose sums are in, or on their way to, each buffer */
    uint64_t landing_bytes;
    char *landing[2]; /* boxes of a block, each page-aligned */
    uint32_t landing_set[2], update_set;
    uint64_t *landing_place; /* (boxes) bytes */
    pd_status (*complete)(void *context, uint32_t set, struct pd_error *err);
    void *complete_context;
};

/* Terms of one set, being sent to the ranks that sum them. */
struct pd_zero_exchange {
    uint32_t set; /* PD_ZERO_NO_SET: none */
    bool in_flight, is_last;
    struct pd_zero_terms *terms;
    struct pd_comm *comm;
    struct pd_comm_op op;
};

/* While one waits for the older exchange, both are in flight. */
struct pd_zero_exchanges {
    struct pd_zero_exchange flights[2];
    uint32_t newest;
};

struct pd_zero {
    const struct pd_model *model;
    struct pd_zero_options options;
    const struct pd_grid *grid;
    struct pd_math *math;
    uint32_t q, parts; /* data rank; parts into which held data and sums are cut (1 in stage 0) */
    bool in_place;     /* the rank holds all it needs: parts are read where they are, or packed */
    bool is_mirrored;  /* a tied table whose head is on another stage */
    bool joins_tied;   /* a tied table whose head is here: adds its terms to the embedding's */
    bool has_lanes;    /* micro-batches are first added in fp32 */
    bool reads_once;   /* a tied table is gathered only with the embedding; the head reads it there */
    struct pd_lanes lanes;
    uint32_t slots, pieces;   /* pieces of a micro-batch; each is a term */
    struct pd_zero_set *sets; /* (set_count); count 0: a set of another stage */
    struct pd_zero_held has;
    void *mirror;               /* last stage: working copy of the tied table's held boxes */
    int64_t *mirrored_gradient; /* first stage: the head's sums of what it holds, and their checksum; last: the checksum */
    struct pd_zero_gathers gathers;
    /* gradients */
    float *micro_batch; /* of one set */
    float *micro_batch_pointers[PD_ZERO_SET_TENSORS_MAX];
    uint32_t made_set, made_slot; /* set and slot of the gradients being computed there */
    struct pd_quantum quantum;
    double loss_scale;
    uint32_t attempt;              /* stamp in the marks, unique to each step and each recomputation */
    uint32_t *marks, *host_marks;  /* (tensors, 2) out of range, not finite; then (sets) sums damaged in transfer */
    struct pd_zero_terms turns[2]; /* used by blocks */
    uint32_t next_turn;
    struct pd_zero_exchanges exchanges;
    struct pd_comm_piece *crossing; /* to and from other tensor-parallel ranks */
    uint32_t watched_slot;
    int64_t *watched_sum;   /* NULL: not watched */
    uint64_t copy_elements; /* in the working copy in memory */
    uint64_t sums_elements; /* in each of the two buffers for blocks' sums */
    struct pd_zero_files files;
};

static inline bool pd_zero_is_end(const struct pd_zero *zero, uint32_t set)
{
    return set == 0 || set == zero->has.set_count - 1;
}
/* The working copy, or the master if it serves as one. */
static inline char *pd_zero_copies(const struct pd_zero *zero)
{
    return zero->has.copy ? zero->has.copy : (char *)zero->has.state[PD_PARAM];
}

/* Elements that are contiguous in both of two slabs, with an offset in each. */
struct pd_zero_run {
    uint64_t at_a, at_b, elements;
};

/* What data rank q owns (of the first group), and what it holds: its part in this group of zero_shard ranks, or everything
 * in stage 0. An empty slab has no rows. */
struct pd_zero_slab pd_zero_owned_slab(const struct pd_zero *zero, const struct pd_zero_place *place, uint32_t q);
struct pd_zero_slab pd_zero_held_slab(const struct pd_zero *zero, const struct pd_zero_place *place, uint32_t q);
/* A tensor on tensor-parallel rank t, whether or not this stage has it. */
struct pd_zero_place pd_zero_place_of(const struct pd_zero *zero, uint32_t tensor, uint32_t t);

uint64_t pd_zero_slab_elements(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slab *slab);
/* Offset of row `row` of chunk `chunk`. */
uint64_t pd_zero_slab_offset(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slab *slab, uint32_t chunk,
                             uint64_t row);
/* Lists the runs that two slabs of a tensor share, ascending. Returns the count. */
uint32_t pd_zero_runs(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slab *a,
                      const struct pd_zero_slab *b, struct pd_zero_run ret_runs[PD_LAYOUT_CHUNKS_MAX]);
uint64_t pd_zero_held_elements(const struct pd_zero *zero, uint32_t tensor); /* by this rank */

/* Elements shared by two tensor-parallel ranks: one uses them, the other has them in its parts. */
struct pd_zero_share {
    uint32_t e, part;
    bool is_tied;              /* these terms go to the embedding's parts */
    uint64_t used_at, part_at; /* offset in the tensor as computed or needed; offset in the part */
    uint64_t elements;
};
/* Terms go from the computing rank to the owners; parameters from the holders to the rank that needs them. */
enum pd_zero_use { PD_ZERO_TERMS, PD_ZERO_PARAMETERS };
/* Visits shares in the same order on both ranks: by part, then tensor, then chunk. */
PD_MUST_USE pd_status pd_zero_each_share(const struct pd_zero *zero, uint32_t set, enum pd_zero_use use, uint32_t user_tp,
                                         uint32_t owner_tp,
                                         pd_status (*visit)(void *context, const struct pd_zero_share *share,
                                                            struct pd_error *err),
                                         void *context, struct pd_error *err);
/* Exchanges all shares between this rank and other tensor-parallel ranks. */
PD_MUST_USE pd_status pd_zero_cross(struct pd_zero *zero, uint32_t set, enum pd_zero_use use, struct pd_error *err);
/* Whether the head's set uses the embedding's copy of this tied table. */
bool pd_zero_is_redirected(const struct pd_zero *zero, uint32_t set, uint32_t e, enum pd_zero_use use);
PD_MUST_USE pd_status pd_zero_add_run(const struct pd_zero *zero, const struct pd_term_run *run, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_clear_terms(struct pd_zero *zero, uint32_t set, struct pd_error *err);
/* Adds a micro-batch's gradients to the lane's sum, and at the lane's end converts it to terms. */
PD_MUST_USE pd_status pd_zero_add_micro_batch(struct pd_zero *zero, uint32_t set, uint32_t slot, struct pd_error *err);
int64_t *pd_zero_sums(const struct pd_zero *zero, uint32_t set);
/* Call when all terms of the set are summed. Converts sums to fp32, then shares, counts and writes them. */
PD_MUST_USE pd_status pd_zero_end_set(struct pd_zero *zero, uint32_t set, struct pd_error *err);
void pd_zero_forget_gathers(struct pd_zero *zero); /* whatever their results */
/* The in-memory copy of tensor number e of the set on this rank, from its first held box on. */
void *pd_zero_parameters(const struct pd_zero *zero, uint32_t set, uint32_t e);

/* ---- zero_files.c ---- */
bool pd_zero_is_filed(const struct pd_zero *zero, uint32_t set);       /* working copies of the set are in files */
bool pd_zero_has_filed_sums(const struct pd_zero *zero, uint32_t set); /* sums are */
/* The first block that, with those before it, exceeds a budget of elements. */
uint32_t pd_zero_first_away(const struct pd_zero *zero, uint64_t budget,
                            uint64_t (*elements_of)(const struct pd_zero *zero, uint32_t set));
void pd_zero_describe_files(struct pd_zero *zero); /* call once boxes and sums are set */
/* Starts reading a set into the buffer of one that is no longer needed. */
PD_MUST_USE pd_status pd_zero_fetch(struct pd_zero *zero, uint32_t set, struct pd_error *err);
/* Packs the working copies of the set's boxes contiguously; advances *to past them. */
PD_MUST_USE pd_status pd_zero_pack(struct pd_zero *zero, uint32_t set, char **to, struct pd_error *err);
/* Frees the buffer for the set's sums. */
PD_MUST_USE pd_status pd_zero_make_room(struct pd_zero *zero, uint32_t set, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_complete(struct pd_zero *zero, uint32_t set, struct pd_error *err);

/* ---- zero_tied.c ---- */
PD_MUST_USE pd_status pd_zero_mirror_parameters(struct pd_zero *zero, struct pd_error *err);
/* Adds the head's sums to the embedding's, wherever it is. */
PD_MUST_USE pd_status pd_zero_join_tables(struct pd_zero *zero, struct pd_error *err);
