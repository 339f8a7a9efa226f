/* The MLP of a block with experts: y = sum over the chosen experts j of w_j down_j(silu(gate_j x) * up_j x), plus shared
 * experts. experts.c has the order of every sum. */
#pragma once

#include "trainer/model/linear_fp8.h"
#include "trainer/model/transfers.h"
#include "trainer/model/transformer.h"

/* Rows at the experts of this rank, N of a slice. */
struct pd_expert_products {
    void *arrived;     /* (N, C) act; NULL with ep = 1: gathered again */
    float *weights;    /* (N) */
    void *up, *hidden; /* (N, 2F), (N, F) act; hidden is times the weight */
};

/* What a block's backward reads again. S = R * experts_per_token slots: a token of an expert each, ordered by expert, then by
 * token. With ep > 1 experts are ordered by the rank that has them, and rows arrive from all ep ranks: by rank, then expert,
 * then token; with ep = 1 these are the slots. */
struct pd_expert_activations {
    float *scores;                   /* (R,E) of the router */
    float *lse;                      /* (R) */
    int32_t *choice;                 /* (R, k) */
    int32_t *slots;                  /* (R, k) slot of each choice */
    int32_t *tokens;                 /* (S) row of each slot */
    int32_t *first;                  /* (E * pieces + 1) first slot of each expert and piece of this rank; for the host */
    int32_t *device_first;           /* the same for operations; on a CPU `first` itself */
    float *weights;                  /* (S) */
    int32_t *counts;                 /* (ep, E * pieces) rows of each of the ep ranks, as its `first`; only with ep > 1 */
    int32_t *device_counts;          /* the same, as they arrive; on a CPU `counts` itself */
    struct pd_expert_products kept;  /* of the first slice */
    void *shared_up, *shared_hidden; /* (R, 2G), (R, G) act, G columns of shared experts */
};

/* Rows that experts compute at once: all, or as many as there is memory for. A group is what one rank sends one expert; a rank
 * takes whole groups, by rank and expert, and every rank knows what each takes. */
struct pd_expert_slice {
    uint32_t number, *begin, *end; /* (ep) the groups that each rank takes */
    int32_t *first, *own;          /* (E * pieces + 1) first row here of each group and piece; `own` with ep > 1 */
    const struct pd_expert_products *products; /* kept for the first slice; backward makes the others again */
    bool is_last;
};

/* Memory of one block's pass at a time. */
struct pd_expert_work {
    char *rows, *dout;       /* (S,C) act: inputs of experts; gradients of their outputs */
    char *arrived_dout;      /* (N,C) */
    float *product;          /* (rows of a group, C): a chain before it is rounded */
    char *results, *arrived; /* (S,C) act of experts, rounded as they travel; (N,C) on the rank that has the expert */
    bool is_sliced;          /* more rows than `limit` may arrive: results are of all chunks */
    uint64_t limit;          /* N at most */
    uint64_t group_rows;     /* of an expert from one rank, at most */
    struct pd_expert_slice slice;
    struct pd_expert_products again; /* of slices after the first */
    float *chains;                   /* (chunks, R, C) */
    float *logits;                   /* (R,E), then their gradient */
    float *weights;                  /* (R, k), then their gradient */
    float *dlogits;                  /* (R,E), only if backward reads logits */
    float *bias, *balance;           /* (E) */
    double *losses;                  /* balance loss of a block and micro-batch, then z losses of this rank's pieces */
    float *wide_weight;              /* (E,C) of the router, if the type of activations is another: `widens` */
    bool widens;                     /* cuBLASLt does not multiply operands of two types */
    /* On a GPU. Copies to `firsts` begin in pd_router_choose and pd_experts_meet, which waits for them. */
    int32_t *firsts; /* (places, pd_expert_place_counts) host: `first`, then `counts` of each place */
    int32_t *zeros;  /* (E * pieces + 1) host */
    struct pd_math_mark counted;
    struct pd_expert_sums *sums, *host_sums; /* sums on the device, and their copy: zeros, then what was added up */
    float *ranges, *host_ranges;             /* (layers) ranges of the selection bias; the copy */
    bool has_sums;                           /* since pd_experts_begin */
    float *scores;                           /* (pieces of a sequence, E) sums of scores over the rows of a piece */
    int32_t *tokens;                         /* (the same) rows of each piece that chose each expert */
    void *dup, *dhidden, *dshared_up, *dshared_hidden;
    float *dweights, *arrived_dweights, *dchosen; /* (chunks, S); (chunks, N); (chunks, R, k) */
    struct pd_peer_transfer travel;
    struct pd_peer_transfer meeting; /* of sp ranks: `scores` and `tokens`, which one micro-batch's losses need */
    bool is_absent;                  /* this rank has no micro-batch: it computes only the tokens of others */
    float *const *sources;           /* pd_transformer_set_sources */
};

/* A gated MLP over some rows: an expert, or the shared ones. */
struct pd_gated {
    uint64_t ffn;     /* columns of all ranks */
    uint64_t columns; /* of this rank */
    const void *gate_up, *down;
    float *dgate_up, *ddown;
    struct pd_fp8_kept *up_codes, *down_codes; /* NULL: not kept */
    struct pd_row_pieces pieces;               /* in fp8: its rows */
    bool varies;                               /* an expert: data decides the number of rows */
};

/* Rows that travel: `home` in the order of slots, `away` as they arrive. */
struct pd_expert_rows {
    void *home, *away;
    uint64_t bytes;
};

/* Sums over this rank's micro-batches since pd_transformer_begin. Every tensor-parallel rank has the same. Of sp ranks, each
 * counts its own tokens and z loss, and the first the balance loss. */
struct pd_expert_counts {
    uint64_t *tokens; /* (layers, E + 1) that chose each expert; then the bits of the range of the selection bias, a float */
    struct pd_superaccumulator balance, z; /* auxiliary losses of blocks and micro-batches, without coefficients */
};

/* As in pd_expert_counts. */
struct pd_expert_sums {
    struct pd_superaccumulator balance, z;
};

struct pd_block_activations;
void pd_experts_begin(struct pd_transformer *t); /* counts from 0 */
/* From norm2 to out; out NULL: all that backward reads. `middle` is the residual stream. */
PD_MUST_USE pd_status pd_experts_forward(struct pd_transformer *t, uint32_t block, struct pd_block_activations *a,
                                         void *const *w, const void *middle, void *out, struct pd_error *err);
/* Recomputes `hidden`. */
PD_MUST_USE pd_status pd_experts_activate(struct pd_transformer *t, struct pd_block_activations *a, struct pd_error *err);
/* From dstream to dnorm. norm2 is whole. */
PD_MUST_USE pd_status pd_experts_backward(struct pd_transformer *t, uint32_t block, struct pd_block_activations *a,
                                          void *const *w, float *const *g, struct pd_error *err);

/* Block without a micro-batch of this rank: computes the tokens of other ranks. `returns`: results go back. */
PD_MUST_USE pd_status pd_experts_join_forward(struct pd_transformer *t, struct pd_block_activations *a, void *const *w,
                                              bool returns, struct pd_error *err);
PD_MUST_USE pd_status pd_experts_join_backward(struct pd_transformer *t, struct pd_block_activations *a, void *const *w,
                                               struct pd_error *err);

/* ---- expert_router.c ---- */
PD_MUST_USE pd_status pd_router_choose(struct pd_transformer *t, const void *norm2, struct pd_expert_activations *x,
                                       void *const *w, struct pd_error *err);
uint64_t pd_expert_place_counts(const struct pd_transformer *t);
/* The host's memory of a place. Call before a pass over its block. */
void pd_router_enter(struct pd_transformer *t, uint32_t place, struct pd_expert_activations *x);
/* Counts of the whole micro-batch; sp ranks start to tell each other. Call before pd_router_backward. */
PD_MUST_USE pd_status pd_router_meet(struct pd_transformer *t, const struct pd_expert_activations *x, struct pd_error *err);
/* Takes the gradient of the tokens' weights; computes the gradients of the logits, the router's weight and its bias. */
PD_MUST_USE pd_status pd_router_backward(struct pd_transformer *t, uint32_t block, const struct pd_block_activations *a,
                                         void *const *w, float *const *g, struct pd_error *err);
/* The part of dnorm that comes through the router, added to the first chunk's chain. */
PD_MUST_USE pd_status pd_router_input(struct pd_transformer *t, void *const *w, struct pd_matrix chain,
                                      struct pd_error *err);

/* ---- expert_fp8.c: as the functions of experts.c, for rows of the pieces ---- */
PD_MUST_USE pd_status pd_fp8_gated_up(struct pd_transformer *t, const struct pd_gated *m, struct pd_matrix x,
                                      struct pd_matrix up, struct pd_error *err);
PD_MUST_USE pd_status pd_fp8_gated_down(struct pd_transformer *t, const struct pd_gated *m, uint32_t chunk,
                                        struct pd_matrix x, struct pd_matrix y, bool adds, struct pd_error *err);
PD_MUST_USE pd_status pd_fp8_gated_down_input(struct pd_transformer *t, const struct pd_gated *m, struct pd_matrix dy,
                                              struct pd_matrix dhidden, struct pd_error *err);
PD_MUST_USE pd_status pd_fp8_gated_up_input(struct pd_transformer *t, const struct pd_gated *m, uint32_t chunk, uint64_t n,
                                            struct pd_matrix dup, struct pd_matrix dx, bool adds, struct pd_error *err);
/* n rows of one piece, at least 1. */
PD_MUST_USE pd_status pd_fp8_gated_weights(struct pd_transformer *t, const struct pd_gated *m, uint64_t n,
                                           struct pd_matrix x, struct pd_matrix dup, struct pd_matrix hidden_rows,
                                           struct pd_matrix dy, struct pd_error *err);

/* ---- expert_exchange.c: nothing travels with ep = 1 ---- */
uint32_t pd_experts_here(const struct pd_transformer *t);                     /* of this rank */
uint32_t pd_expert_position(const struct pd_transformer *t, uint32_t expert); /* in the order of slots */
uint64_t pd_experts_arrived(const struct pd_transformer *t);                  /* N of the slice */
/* Ranks tell each other how many tokens each sends to each expert. */
PD_MUST_USE pd_status pd_experts_meet(struct pd_transformer *t, struct pd_expert_activations *x, struct pd_error *err);
/* Begins with the first slice; goes on to the next one, if there is one. The same number on all ep ranks. */
void pd_experts_first_slice(struct pd_transformer *t, const struct pd_expert_activations *x);
bool pd_experts_next_slice(struct pd_transformer *t, const struct pd_expert_activations *x);
/* This rank's experts whose rows from rank `source` are in the slice. */
struct pd_range pd_experts_in_slice(const struct pd_transformer *t, uint32_t source);
/* Starts sending rows of the slice to the experts, or back; pd_peer_transfer_wait ends it. */
PD_MUST_USE pd_status pd_experts_travel(struct pd_transformer *t, const struct pd_expert_activations *x,
                                        const struct pd_expert_rows *rows, uint32_t count, bool is_back,
                                        struct pd_error *err);
