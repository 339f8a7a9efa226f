/* A decoder-only transformer as a sequence of pipeline units: embedding, L blocks, head. Forward, loss and backward of one
 * micro-batch.
 *
 * Letters as in trainer/math/math.h: R = sequences * T rows, C hidden, H heads, K key-value heads, D head size, F ffn, V
 * vocabulary. Weights and gradients are pointers in the order of the model's tensor table inside a unit
 * (trainer/model/model.h). q, k, v are contiguous, as are their biases, and gate and up: (H*D + 2*K*D, C) and (2F, C) are
 * one matrix each.
 *
 * Parameter gradients are of the *sum* of a micro-batch's token losses, in fp32. They overwrite or accumulate
 * (pd_transformer_set_adds); the optimizer divides by the number of valid tokens of the whole batch. pd_recompute decides
 * what is kept between forward and backward, for the first recompute_layers blocks of a rank; the others use none:
 *   none       every input of an operation of every block
 *   selective  results of matrix products and attention; norms and activation functions are recomputed
 *   full       the input of each block; the rest is recomputed, with the same bits
 *
 * A transformer holds the model chunks of one rank. `slot` numbers a rank's micro-batches in a step. Between forward and
 * backward of a micro-batch at most depth[chunk] - 1 others of that chunk begin (trainer/parallel/schedule.h), so slot s
 * uses place s % depth[chunk]. With sequence parallelism a rank holds the rows of its pieces (partition.h), R of them. With
 * tensor parallelism a rank keeps its share of these rows of every residual stream, but every tp rank has whole gradients of
 * streams; all ranks make the same calls.
 *
 * sources  GPT-2: Radford et al. 2019; Llama: Touvron et al. 2023; recomputation: Chen et al. 2016
 * threads  one caller
 */
#pragma once

#include "trainer/comm/comm.h"
#include "trainer/math/math.h"
#include "trainer/model/partition.h"

/* If sequences are cut, every piece produces its own gradients, in the buffer for the micro-batch's. This consumes one
 * before the next piece overwrites it. The piece is of the micro-batch of number `source` of the ep ranks. */
typedef pd_status pd_piece_taker(void *context, uint32_t source, const float *gradient, uint64_t elements,
                                 struct pd_error *err);

/* Columns of logits held at once, if not all are. The value affects the bits. */
#define PD_LOGITS_COLUMNS 8192

#define PD_EP_ROWS 2 /* a whole number, at least 1 */

struct pd_transformer_options {
    uint32_t sequences, length; /* of a micro-batch: sequences m, length T */
    enum pd_dtype dtype;        /* activations and weights */
    bool fp8_linears;           /* rounds operands of a block's linear layers to fp8 */
    bool keeps_codes;           /* keeps codes of weights between two pd_transformer_begin; requires that nothing is cut */
    enum pd_recompute recompute;
    uint32_t recompute_layers;  /* applies to this many blocks of the rank; later blocks use PD_RECOMPUTE_NONE */
    bool separate_documents;    /* attention uses `first` */
    bool backward;              /* false: forward only (validation, sampling), needs less memory */
    pd_piece_taker *take_piece; /* NULL if sequences are whole or there is no backward */
    void *take_context;
    bool may_add;                /* pd_transformer_set_adds may be used; sequences are whole */
    bool activations_in_files;   /* moves saved activations to files between forward and backward, */
    uint64_t activations_budget; /* except the last blocks whose activations fit in this many bytes */
    uint32_t logits_columns;     /* logits columns held at once; 0: all of this rank */
    enum pd_dtype logits_dtype;  /* of the loss: PD_F32 or dtype */
    bool on_device;              /* math runs on a device: the host must not touch arena memory (pd_arena_new_on) */
    struct pd_partition partition;
    struct pd_comm *tp, *sp;       /* NULL if of one rank; borrowed */
    struct pd_comm *experts;       /* the same */
    uint32_t ep, ep_rank;          /* experts e with e % ep = ep_rank are here; ep 0: 1 */
    uint32_t ep_rows;              /* experts compute at once this many times the rows that a rank sends; 0: PD_EP_ROWS */
    uint32_t chunk_count;          /* model chunks of this rank; 0: one chunk of everything, depth 1 */
    const struct pd_stage *chunks; /* (chunk_count), only pd_transformer_new reads it */
    const uint32_t *depth;         /* (chunk_count), only pd_transformer_new reads it */
};

/* Input of a micro-batch in host memory. The caller fills it before forward, on every rank. (R) each, rows ordered as in
 * partition.h. positions and first count from the start of the sequence. */
struct pd_micro_batch_input {
    int32_t *tokens, *targets, *positions, *first;
};

struct pd_transformer;

/* Allocates everything from the arena. On a dry arena it touches nothing, `math` may be NULL, and the result can only be
 * freed. Borrows model and math. On a device, tp and sp must know the memory (pd_comm_use_memory). */
PD_MUST_USE pd_status pd_transformer_new(const struct pd_model *model, struct pd_math *math,
                                         const struct pd_transformer_options *options, struct pd_arena *arena,
                                         struct pd_transformer **ret_transformer, struct pd_error *err);
/* Waits for transfers in flight, like sync. */
void pd_transformer_free(struct pd_transformer *transformer);
/* Waits for every transfer in flight and ignores its result. Call after a failure, once the communicators are aborted. */
void pd_transformer_sync(struct pd_transformer *transformer);
uint64_t pd_transformer_rows(const struct pd_transformer *transformer);           /* R of this rank */
uint64_t pd_transformer_stream_bytes(const struct pd_transformer *transformer);   /* this rank's part of a residual stream */
uint64_t pd_transformer_gradient_bytes(const struct pd_transformer *transformer); /* of a stream's gradient (R,C) */
/* Returns the arrays for the micro-batch of a slot. Waits until the device, if any, has copied the slot's previous content.
 */
PD_MUST_USE pd_status pd_transformer_input_begin(struct pd_transformer *transformer, uint32_t slot,
                                                 struct pd_micro_batch_input *ret_input, struct pd_error *err);
/* Call when the arrays are filled, before the first operation of the micro-batch. Copies them to the device. */
PD_MUST_USE pd_status pd_transformer_input_filled(struct pd_transformer *transformer, uint32_t slot, struct pd_error *err);
/* The slot's content, for reading. With host math it may also be filled here, without begin and filled. */
struct pd_micro_batch_input *pd_transformer_input(struct pd_transformer *transformer, uint32_t slot);
/* Adds the losses of the last head's micro-batch to *sum, in device memory. Rows with a negative target add 0. Does not
 * wait. */
PD_MUST_USE pd_status pd_transformer_add_losses(struct pd_transformer *transformer, struct pd_superaccumulator *sum,
                                                struct pd_error *err);
/* Copies the same losses (R) to host memory; waits for the device. */
PD_MUST_USE pd_status pd_transformer_losses(struct pd_transformer *transformer, float *ret_losses, struct pd_error *err);
/* Input of a block on this rank, or of the head (block = layers): the rows that this rank keeps. Written by embed, the block
 * before, or a transfer from the stage before. pd_transformer_stream_bytes, act */
PD_MUST_USE pd_status pd_transformer_stream(struct pd_transformer *transformer, uint32_t slot, uint32_t block,
                                            void **ret_stream, struct pd_error *err);

/* Between stages the gradient of a residual stream is sent as the rows a rank keeps, pd_transformer_stream_bytes. gather
 * makes `whole` from the rows of all tp ranks; keep extracts this rank's rows. With one rank both are the same memory. */
PD_MUST_USE pd_status pd_transformer_gather_rows(struct pd_transformer *transformer, void *rows, void *whole,
                                                 struct pd_error *err);
PD_MUST_USE pd_status pd_transformer_keep_rows(struct pd_transformer *transformer, void *whole, void *rows,
                                               struct pd_error *err);

/* Rehearsal: what follows only calls the math, with a slot's forward of a block right before its backward. Nothing is
 * exchanged, and no file is written or read. `begin` ends nothing of it. */
void pd_transformer_rehearse(struct pd_transformer *transformer, bool on);

/* ---- activations in files ---- */

struct pd_spill;
/* Spans for offload/spill.h. Create a spill from them and attach it (borrowed) before the first forward. */
uint32_t pd_transformer_span_count(const struct pd_transformer *transformer);
void pd_transformer_spans(const struct pd_transformer *transformer, uint64_t *ret_bytes);
/* Bytes that leave memory, and return, for the micro-batches of `slots`. */
uint64_t pd_transformer_away_bytes(const struct pd_transformer *transformer, uint32_t slots);
void pd_transformer_attach_files(struct pd_transformer *transformer, struct pd_spill *spill);
/* Call before a step (learns) or validation. `scale`: as in pd_transformer_head. Weights may have changed, and must not
 * change until the next call. */
void pd_transformer_begin(struct pd_transformer *transformer, bool learns, float scale);
struct pd_expert_counts; /* trainer/model/experts.h */
/* On a GPU: waits, and brings sums and ranges of pd_expert_counts up to date. Call before reading those. */
PD_MUST_USE pd_status pd_transformer_expert_read(struct pd_transformer *transformer, struct pd_error *err);
/* What experts did since pd_transformer_begin; NULL: there are none. Borrowed. */
struct pd_expert_counts *pd_transformer_expert_counts(struct pd_transformer *transformer);
/* Announces that the block's backward comes soon, after at most one other. */
PD_MUST_USE pd_status pd_transformer_prefetch(struct pd_transformer *transformer, uint32_t slot, uint32_t block,
                                              struct pd_error *err);

/* weights: unit 0. Writes stream(slot, 0). */
PD_MUST_USE pd_status pd_transformer_embed(struct pd_transformer *transformer, uint32_t slot, void *const *weights,
                                           struct pd_error *err);
/* Reads stream(slot, block). Writes `out`, or stream(slot, block + 1) if out is NULL. */
PD_MUST_USE pd_status pd_transformer_block_forward(struct pd_transformer *transformer, uint32_t slot, uint32_t block,
                                                   void *const *weights, void *out, struct pd_error *err);
/* From now on the gradients of each micro-batch are added to the destination. The bits are as if they were written apart and
 * then added in fp32, without the extra memory and copy. */
void pd_transformer_set_adds(struct pd_transformer *transformer, bool adds);
/* With ep > 1, before a block's backward: for each of the ep ranks where the gradients go that its micro-batch gives this
 * rank's experts, one expert after the other; NULL: it has none. Borrows `sources`. */
void pd_transformer_set_sources(struct pd_transformer *transformer, float *const *sources);
/* A slot without a micro-batch on this rank, which still computes the tokens that the other ep ranks send to its experts.
 * Nothing happens in dense blocks and with ep = 1. */
PD_MUST_USE pd_status pd_transformer_block_join_forward(struct pd_transformer *transformer, uint32_t slot, uint32_t block,
                                                        void *const *weights, struct pd_error *err);
PD_MUST_USE pd_status pd_transformer_block_join_backward(struct pd_transformer *transformer, uint32_t slot, uint32_t block,
                                                         void *const *weights, struct pd_error *err);
/* Final norm, logits, loss. weights: final norm tensors, then the output matrix (V,C) (the token table when tied). gradients
 * NULL: loss only. Otherwise writes the residual stream's gradient to dstream (R,C), and multiplies all gradients by `scale`
 * (fp16's loss scale, a power of two; 1 otherwise). */
PD_MUST_USE pd_status pd_transformer_head(struct pd_transformer *transformer, uint32_t slot, void *const *weights,
                                          float *const *gradients, float scale, void *dstream, struct pd_error *err);
/* dstream: in, gradient of the block's output; out, gradient of its input. */
PD_MUST_USE pd_status pd_transformer_block_backward(struct pd_transformer *transformer, uint32_t slot, uint32_t block,
                                                    void *const *weights, float *const *gradients, void *dstream,
                                                    struct pd_error *err);
PD_MUST_USE pd_status pd_transformer_embed_backward(struct pd_transformer *transformer, uint32_t slot,
                                                    float *const *gradients, void *dstream, struct pd_error *err);
/* Logits of one row, after forward of all blocks (sampling). ret_logits (V) fp32 */
PD_MUST_USE pd_status pd_transformer_row_logits(struct pd_transformer *transformer, void *const *head_weights, uint64_t row,
                                                float *ret_logits, struct pd_error *err);
