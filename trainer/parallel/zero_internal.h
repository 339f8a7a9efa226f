/* State shared by zero.c (buckets, held state), zero_runs.c (who has which rows), zero_gather.c (parameters), zero_terms.c
 * (gradients to terms), zero_exchange.c (terms to sums), zero_files.c (data in files), zero_tied.c (a table on two stages).
 *
 * Data rank q = dp index * sp + sp index; a rank of the stage is q * tp + tp index. */
#pragma once

#include "ckpt/base/owner.h"
#include "trainer/parallel/zero.h"

#define PD_ZERO_NO_BUCKET UINT32_MAX
#define PD_ZERO_GATHERS_MAX 2u

/* A bucket has two sides: tensors that all data ranks share, and tensors of experts that ep ranks divide, which are shared by
 * every ep-th rank. The second is empty with ep 1, and in buckets without experts. */
enum { PD_ZERO_COMMON, PD_ZERO_SPREAD, PD_ZERO_SIDES };
struct pd_zero_side {
    uint64_t part; /* elements in one part of the parameters */
    /* In terms. stride: a part in a message, ending in its checksum. own: this rank's elements. buffer: the buffer for
     * the sums, padded for replicas */
    uint64_t stride, own, buffer;
    uint64_t parts_at, terms_at, sums_at; /* where it begins in a gather (elements), in terms and in sums */
};

/* Terms of a bucket, for each side ordered by owner: (parts, stride); then the terms of other tensor-parallel ranks. */
struct pd_zero_terms {
    void *data;            /* 64- or 32-bit integers: pd_zero_term */
    struct pd_owner owner; /* "the terms" while the caller's thread adds some; then "an exchange of gradients" */
};

struct pd_zero_bucket {
    uint32_t count;
    uint32_t *tensors, *here, here_count; /* here: the places in `tensors` of those that no other ep rank holds */
    uint64_t *needed;                     /* (tensors + 1) needed elements before each tensor */
    uint64_t *computed;                   /* the same for computed ones */
    struct pd_zero_side sides[PD_ZERO_SIDES];
    uint64_t tp_pieces; /* parameter shares sent to or from other tensor-parallel ranks */
    char *place;        /* (needed) gathered parameters, read by compute */
    uint64_t gathered;  /* version of that content; 0: none */
    /* Computed elements of experts. Each of ep ranks has some from its micro-batch: of the first they lie here, of the others
     * after all elements; of pieces all lie here */
    uint64_t spread_begin, spread_end;
    /* In terms. sums: the place in `gradient`. elsewhere: terms that other tp ranks own */
    uint64_t sums, elsewhere;
    bool crosses;    /* some tensor-parallel rank computes elements that another owns */
    bool has_sums;   /* sums of this step are complete */
    uint32_t filled; /* what has terms since the last exchange; bit 0: the first tensor, bit 1: all others */
    struct pd_zero_terms *terms, own_terms; /* where the terms are; own_terms without data: terms is one of the two turns */
    float *lane;                            /* (computed) sums of a lane in fp32; NULL: a lane is a micro-batch */
    uint16_t *rounded; /* (computed) the same in bf16, if pd_zero_is_rounded: then all blocks share one `lane` in turn */
};

/* Rows [row_begin, row_end) of chunks [chunk_begin, chunk_end) of a tensor. What a rank needs, computes, holds or owns
 * always has this shape. Chunks are stored one after another, each dense; a tensor not split on dimension 1 is one chunk. */
struct pd_zero_slice {
    uint64_t row_begin, row_end;
    uint32_t chunk_begin, chunk_end;
};

/* A tensor of a bucket, on one tensor-parallel rank. */
struct pd_zero_place {
    struct pd_zero_slice needed, computed;
    struct pd_layout_cut cut; /* empty if its data ranks hold nothing of the tensor */
};

/* One gather. From start until its parts are copied out, the gather owns them: the communicator's thread, or NCCL's stream,
 * writes them. Ordered by pd_comm_wait and, on a device, by the streams that it joins. */
struct pd_zero_gather {
    char *parts; /* of one bucket: (parts, part) */
    struct pd_owner owner;
    struct pd_comm_op ops[PD_ZERO_SIDES];
    uint32_t bucket;
    bool in_flight[PD_ZERO_SIDES];
};

/* Gathers, created by zero.c and used by zero_gather.c. They are copied to where they are read in the order of starts. */
struct pd_zero_gathers {
    struct pd_zero_gather turns[PD_ZERO_GATHERS_MAX];
    uint32_t oldest, count; /* `turns` in use */
    uint32_t most;          /* at most, at a time */
    bool has_one_place;     /* all buckets are read from one buffer, one at a time */
    uint64_t version;       /* current version; buckets with another one are stale */
    void **pointers;        /* (tensors of the largest bucket) */
};

/* Created by zero.c, used by zero_files.c: data read from and written to files. */
struct pd_zero_files {
    struct pd_spill *parameter_spill, *gradient_spill; /* NULL: in memory */
    uint32_t sums_bucket[2];                           /* bucket whose sums are in, or on their way to, each buffer */
    uint64_t landing_bytes;
    char *landing[2]; /* boxes of a block, each page-aligned */
    uint32_t landing_bucket[2], update_bucket;
    uint64_t *landing_place; /* (boxes) bytes */
    pd_status (*complete)(void *context, uint32_t bucket, struct pd_error *err);
    void *complete_context;
};

/* Terms of one bucket, being sent to the ranks that sum them. */
struct pd_zero_exchange {
    uint32_t bucket; /* PD_ZERO_NO_BUCKET: none */
    bool in_flight[PD_ZERO_SIDES], is_last;
    struct pd_zero_terms *terms;
    struct pd_comm *comms[PD_ZERO_SIDES];
    struct pd_comm_op ops[PD_ZERO_SIDES];
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
    uint32_t q, parts, ep, ep_rank;   /* data rank; parts into which held data and sums are cut (1 in stage 0) */
    float *sources[PD_LAYOUT_EP_MAX]; /* pd_zero_sources */
    bool in_place;                    /* the rank holds all it needs: parts are read where they are, or packed */
    bool is_mirrored;                 /* a tied table whose head is on another stage */
    bool joins_tied;                  /* a tied table whose head is here: adds its terms to the embedding's */
    bool has_lanes;                   /* micro-batches are first added in fp32 */
    bool reads_once;                  /* a tied table is gathered only with the embedding; the head reads it there */
    struct pd_lanes lanes;
    uint32_t slots, pieces;         /* pieces of a micro-batch; each is a term */
    void *tables[2];                /* of all buckets, by tensor */
    struct pd_zero_bucket *buckets; /* (bucket_count); count 0: a bucket of another stage */
    struct pd_zero_held has;
    void *mirror;            /* last stage: working copy of the tied table's held boxes */
    void *mirrored_gradient; /* first stage: the head's sums of what it holds, and their checksum; last: the checksum */
    struct pd_zero_gathers gathers;
    /* gradients */
    float *micro_batch;                   /* of one bucket */
    float **micro_batch_pointers;         /* (tensors of the largest bucket) */
    struct pd_zero_place *users, *owners; /* (tensors of the largest bucket) scratch of pd_zero_each_share */
    uint32_t made_bucket, made_slot;      /* bucket and slot of the gradients being computed there */
    struct pd_quantum quantum;            /* of 64-bit terms */
    uint32_t term_bytes, coarser;
    struct pd_gradient_sizes sizes; /* of 32-bit terms */
    float *largest, *host_largest;  /* (PD_GRADIENT_CLASSES) this step's sums, by magnitude; NULL for 64-bit terms */
    double loss_scale;
    uint32_t attempt;              /* stamp in the marks, unique to each step and each recomputation */
    uint32_t *marks, *host_marks;  /* (tensors, 2) out of range, not finite; then (buckets) sums damaged in transfer */
    struct pd_zero_terms turns[2]; /* used by blocks */
    uint32_t next_turn;
    struct pd_zero_exchanges exchanges;
    struct pd_comm_piece *tp_pieces; /* to and from other tensor-parallel ranks */
    uint32_t watched_slots[PD_LAYOUT_EP_MAX];
    int64_t *watched_sums;  /* (PD_ZERO_SIDES); NULL: not watched */
    uint64_t copy_elements; /* in the working copy in memory */
    uint64_t sums_elements; /* in each of the two buffers for blocks' sums */
    struct pd_zero_files files;
};

static inline bool pd_zero_is_end(const struct pd_zero *zero, uint32_t bucket)
{
    return bucket == 0 || bucket == zero->has.bucket_count - 1;
}
/* The working copy, or the master if it serves as one. */
static inline char *pd_zero_copies(const struct pd_zero *zero)
{
    return zero->has.copy ? zero->has.copy : (char *)zero->has.state[PD_PARAM];
}

/* Elements that are contiguous in both of two slices, with an offset in each. */
struct pd_zero_run {
    uint64_t at_a, at_b, elements;
};

/* What data rank q owns (of the first group), and what it holds: its part in this group of zero_shard ranks, or everything
 * in stage 0. An empty slice has no rows. */
struct pd_zero_slice pd_zero_owned_slice(const struct pd_zero *zero, const struct pd_zero_place *place, uint32_t q);
struct pd_zero_slice pd_zero_held_slice(const struct pd_zero *zero, const struct pd_zero_place *place, uint32_t q);
/* A tensor on tensor-parallel rank t, whether or not this stage has it. */
struct pd_zero_place pd_zero_place_of(const struct pd_zero *zero, uint32_t tensor, uint32_t t);
struct pd_layout_cut pd_zero_cut_of(const struct pd_zero *zero, uint32_t tensor); /* this rank's alone */

uint64_t pd_zero_slice_elements(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slice *slice);
/* Offset of row `row` of chunk `chunk`. */
uint64_t pd_zero_slice_offset(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slice *slice, uint32_t chunk,
                              uint64_t row);
/* Lists the runs that two slices of a tensor share, ascending. Returns the count. */
uint32_t pd_zero_runs(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slice *a,
                      const struct pd_zero_slice *b, struct pd_zero_run ret_runs[PD_LAYOUT_CHUNKS_MAX]);
uint64_t pd_zero_held_elements(const struct pd_zero *zero, uint32_t tensor); /* by this rank */

/* Elements shared by two tensor-parallel ranks: one uses them, the other has them in its parts. */
struct pd_zero_share {
    uint32_t e, side, part;
    bool is_tied;              /* these terms go to the embedding's parts */
    uint64_t used_at, part_at; /* offset in the tensor as computed or needed; offset in the part */
    uint64_t elements;
};
/* Terms go from the computing rank to the owners; parameters from the holders to the rank that needs them. */
enum pd_zero_use { PD_ZERO_TERMS, PD_ZERO_PARAMETERS };
/* Visits shares in the same order on both ranks: by part, then tensor, then chunk. */
PD_MUST_USE pd_status pd_zero_each_share(const struct pd_zero *zero, uint32_t bucket, enum pd_zero_use use, uint32_t user_tp,
                                         uint32_t owner_tp,
                                         pd_status (*visit)(void *context, const struct pd_zero_share *share,
                                                            struct pd_error *err),
                                         void *context, struct pd_error *err);
/* Exchanges all shares between this rank and other tensor-parallel ranks. */
PD_MUST_USE pd_status pd_zero_cross(struct pd_zero *zero, uint32_t bucket, enum pd_zero_use use, struct pd_error *err);
/* Whether the head's bucket uses the embedding's copy of this tied table. */
bool pd_zero_is_redirected(const struct pd_zero *zero, uint32_t bucket, uint32_t e, enum pd_zero_use use);
PD_MUST_USE pd_status pd_zero_add_run(const struct pd_zero *zero, const struct pd_term_run *run, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_clear_terms(struct pd_zero *zero, uint32_t bucket, struct pd_error *err);
/* Adds a micro-batch's gradients to the lane's sum, and at the lane's end converts it to terms. */
PD_MUST_USE pd_status pd_zero_add_micro_batch(struct pd_zero *zero, uint32_t bucket, uint32_t slot, struct pd_error *err);
/* A term by its index from `data` on. */
static inline void *pd_zero_term(const struct pd_zero *zero, void *data, uint64_t index)
{
    return (char *)data + index * zero->term_bytes;
}
void *pd_zero_sums(const struct pd_zero *zero, uint32_t bucket);
struct pd_quantum pd_zero_quantum(const struct pd_zero *zero, uint32_t tensor);
/* Call when all terms of the bucket are summed. Converts sums to fp32, then shares, counts and writes them. */
PD_MUST_USE pd_status pd_zero_end_bucket(struct pd_zero *zero, uint32_t bucket, struct pd_error *err);
/* Adds a copy to `copies`, which are made when these are full, or by the caller (pd_copy_pieces). A bucket has dozens, and on a
 * GPU a launch each would cost more than the copy. */
PD_MUST_USE pd_status pd_zero_copy(const struct pd_zero *zero, struct pd_copies *copies, void *to, const void *from,
                                   uint64_t bytes, struct pd_error *err);
void pd_zero_forget_gathers(struct pd_zero *zero); /* whatever their results */
/* The in-memory copy of tensor number e of the bucket on this rank, from its first held box on. */
void *pd_zero_parameters(const struct pd_zero *zero, uint32_t bucket, uint32_t e);

/* ---- zero_sides.c ---- */
uint32_t pd_zero_side_of(const struct pd_zero *zero, uint32_t tensor);
bool pd_zero_is_elsewhere(const struct pd_zero *zero, uint32_t tensor); /* of an expert that other ep ranks hold */
/* Parts of a side; this rank's; and the data rank that has one. */
uint32_t pd_zero_parts(const struct pd_zero *zero, uint32_t side);
uint32_t pd_zero_own_part(const struct pd_zero *zero, uint32_t side);
uint32_t pd_zero_part_rank(const struct pd_zero *zero, uint32_t side, uint32_t part);
uint64_t pd_zero_terms_end(const struct pd_zero *zero, const struct pd_zero_bucket *s); /* other tp ranks' follow */
/* Where a bucket's tensors are read. In a rehearsal a tied table need not be there yet. */
void *const *pd_zero_places(struct pd_zero *zero, uint32_t bucket, bool rehearses);
uint64_t pd_zero_source_at(const struct pd_zero *zero, const struct pd_zero_bucket *s, uint32_t source);
uint64_t pd_zero_gradients_of(const struct pd_zero *zero, const struct pd_zero_bucket *s);

/* ---- zero_files.c ---- */
bool pd_zero_is_filed(const struct pd_zero *zero, uint32_t bucket);       /* working copies of the bucket are in files */
bool pd_zero_has_filed_sums(const struct pd_zero *zero, uint32_t bucket); /* sums are */
bool pd_zero_is_rounded(const struct pd_zero *zero, uint32_t bucket);     /* sums are bf16 */
/* The first block that, with those before it, exceeds a budget of elements. */
uint32_t pd_zero_first_away(const struct pd_zero *zero, uint64_t budget,
                            uint64_t (*elements_of)(const struct pd_zero *zero, uint32_t bucket));
void pd_zero_describe_files(struct pd_zero *zero); /* call once boxes and sums are set */
/* Starts reading a bucket into the buffer of one that is no longer needed. */
PD_MUST_USE pd_status pd_zero_fetch(struct pd_zero *zero, uint32_t bucket, struct pd_error *err);
/* Packs the working copies of the bucket's boxes contiguously on each side; advances `to` past them. */
PD_MUST_USE pd_status pd_zero_pack(struct pd_zero *zero, uint32_t bucket, char *to[PD_ZERO_SIDES], struct pd_error *err);
/* Frees the buffer for the bucket's sums. */
PD_MUST_USE pd_status pd_zero_take_sums(struct pd_zero *zero, uint32_t bucket, struct pd_error *err);
PD_MUST_USE pd_status pd_zero_complete(struct pd_zero *zero, uint32_t bucket, struct pd_error *err);

/* ---- zero_tied.c ---- */
PD_MUST_USE pd_status pd_zero_mirror_parameters(struct pd_zero *zero, struct pd_error *err);
/* Adds the head's sums to the embedding's, wherever it is. */
PD_MUST_USE pd_status pd_zero_join_tables(struct pd_zero *zero, struct pd_error *err);
