/* A decoder-only transformer as a sequence of pipeline units: embedding, L blocks, head. Forward, loss and backward of one
 * micro-batch.
 *
 * Words as in trainer/math/math.h: R = sequences * T rows, C hidden, H heads, K key-value heads, D head size, F ffn, V
 * vocabulary. Weights and gradients come as pointers in the order of the model's tensor table inside a unit
 * (trainer/model/model.h); q, k, v lie one behind the other, and so do their biases, and gate and up: (H*D + 2*K*D, C) and
 * (2F, C) are one matrix each.
 *
 * Gradients of parameters are those of the *sum* of token losses of the micro-batch, fp32, overwritten or added to what is
 * there (pd_transformer_set_adds): the division by the number of valid tokens of the whole batch is the optimizer's. What is
 * kept between forward and backward follows pd_recompute:
 *   none       every input of an operation of every block
 *   selective  what a matrix product or attention wrote; norms and activation functions are computed again
 *   full       the input of each block; the rest is computed again, with the same bits
 * for the first recompute_layers blocks of a rank, and none for the others.
 *
 * A transformer holds the pipeline chunks of one rank. `slot` numbers the micro-batches of a step on this rank: between the
 * forward and the backward of a micro-batch at most depth[chunk] - 1 others of that chunk begin
 * (trainer/parallel/schedule.h), so slot s is kept in place s % depth[chunk]. With sequence parallelism a rank holds the rows
 * of its pieces (partition.h), R of them. With tensor parallelism a rank keeps its share of these rows of every residual
 * stream, while gradients of streams are whole on every tp rank, and all ranks make the same calls.
 *
 * sources  GPT-2: Radford et al. 2019; Llama: Touvron et al. 2023; recomputation: Chen et al. 2016
 * threads  one caller
 */
#pragma once

#include "trainer/comm/comm.h"
#include "trainer/math/math.h"
#include "trainer/model/partition.h"

/* Where sequences are cut every piece of them makes gradients of its own, in the place of the micro-batch's: they are taken
 * before the next piece makes its own. */
typedef pd_status pd_piece_taker(void *context, const float *gradient, uint64_t elements, struct pd_error *err);

/* Columns of logits that exist at once where not all do: part of the bits. */
#define PD_LOGITS_COLUMNS 8192

struct pd_transformer_options {
    uint32_t sequences, length; /* of a micro-batch: m and T */
    enum pd_dtype dtype;        /* activations and weights */
    bool fp8_linears;           /* operands of the linears of a block are rounded to fp8 */
    bool keeps_codes;           /* codes of weights are made once between two pd_transformer_begin; nothing is cut */
    enum pd_recompute recompute;
    uint32_t recompute_layers;  /* of the first so many blocks of this rank; the others keep what none keeps */
    bool separate_documents;    /* attention looks at `first` */
    bool backward;              /* false: forward only (validation, sampling), less memory */
    pd_piece_taker *take_piece; /* NULL where sequences are whole, or nothing goes backward */
    void *take_context;
    bool may_add;                /* pd_transformer_set_adds may ask for it: sequences are whole here */
    bool activations_in_files;   /* what is kept between forward and backward leaves memory meanwhile, */
    uint64_t activations_budget; /* but for the last blocks of which so many bytes hold all */
    uint32_t logits_columns;     /* of the head that exist at once; 0: all of this rank */
    bool on_device;              /* math is a device's: what the arena gives is not the host's to touch (pd_arena_new_on) */
    struct pd_partition partition;
    struct pd_comm *tp, *sp;       /* of more than one rank, else NULL; borrowed */
    uint32_t chunk_count;          /* pipeline chunks of this rank; 0: one chunk of everything, depth 1 */
    const struct pd_stage *chunks; /* (chunk_count), read by new alone */
    const uint32_t *depth;         /* (chunk_count), read by new alone */
};

/* Input of a micro-batch, host memory, filled by the caller before its forward on every rank; (R) each, rows as partition.h
 * orders them. positions and first count from the start of the sequence. */
struct pd_micro_batch_input {
    int32_t *tokens, *targets, *positions, *first;
};

struct pd_transformer;

/* Takes all memory from the arena. On a dry arena nothing is touched and the object serves only to be freed. `math` may be
 * NULL there. Model and math are borrowed. Far: tp and sp know the memory (pd_comm_use_memory). */
PD_MUST_USE pd_status pd_transformer_new(const struct pd_model *model, struct pd_math *math,
                                         const struct pd_transformer_options *options, struct pd_arena *arena,
                                         struct pd_transformer **ret_transformer, struct pd_error *err);
/* Waits for what is in flight, as sync does. */
void pd_transformer_free(struct pd_transformer *transformer);
/* Waits for every transfer in flight and forgets its outcome: the way out after a failure, once the communicators are
 * aborted. */
void pd_transformer_sync(struct pd_transformer *transformer);
uint64_t pd_transformer_rows(const struct pd_transformer *transformer); /* R of this rank */
uint64_t
pd_transformer_stream_bytes(const struct pd_transformer *transformer); /* of what a rank keeps of a residual stream */
uint64_t pd_transformer_gradient_bytes(const struct pd_transformer *transformer); /* of its gradient (R,C) */
/* Arrays to fill for the micro-batch of a slot. Waits until the device, where there is one, has copied what the slot held
 * before. */
PD_MUST_USE pd_status pd_transformer_input_begin(struct pd_transformer *transformer, uint32_t slot,
                                                 struct pd_micro_batch_input *ret_input, struct pd_error *err);
/* The arrays are filled: the device gets a copy. Before the first operation of the micro-batch. */
PD_MUST_USE pd_status pd_transformer_input_filled(struct pd_transformer *transformer, uint32_t slot, struct pd_error *err);
/* What the slot holds, to be read; filled without begin and filled only where the math is the host's. */
struct pd_micro_batch_input *pd_transformer_input(struct pd_transformer *transformer, uint32_t slot);
/* *sum += the losses of the micro-batch whose head came last, each row's, 0 where its target is negative. Memory of the
 * device; nobody waits. */
PD_MUST_USE pd_status pd_transformer_add_losses(struct pd_transformer *transformer, struct pd_superaccumulator *sum,
                                                struct pd_error *err);
/* The same losses (R), in host memory; waits for the device. */
PD_MUST_USE pd_status pd_transformer_losses(struct pd_transformer *transformer, float *ret_losses, struct pd_error *err);
/* The input of a block this rank holds, or of the head (block = layers): where embed, the block before, or a transfer from
 * the stage before writes it: the rows that this rank keeps.   pd_transformer_stream_bytes, act */
PD_MUST_USE pd_status pd_transformer_stream(struct pd_transformer *transformer, uint32_t slot, uint32_t block,
                                            void **ret_stream, struct pd_error *err);

/* A gradient of a residual stream on its way between stages is the rows that a rank keeps, pd_transformer_stream_bytes. `whole`
 * from the rows of all tensor-parallel ranks; and the rows of `whole`. With one such rank rows and whole are the same memory. */
PD_MUST_USE pd_status pd_transformer_gather_rows(struct pd_transformer *transformer, void *rows, void *whole,
                                                 struct pd_error *err);
PD_MUST_USE pd_status pd_transformer_keep_rows(struct pd_transformer *transformer, void *whole, void *rows,
                                               struct pd_error *err);

/* ---- activations in files ---- */

struct pd_spill;
/* Spans for offload/spill.h; then a spill made of them, borrowed, before the first forward. */
uint32_t pd_transformer_span_count(const struct pd_transformer *transformer);
void pd_transformer_spans(const struct pd_transformer *transformer, uint64_t *ret_bytes);
/* That leave for the micro-batches of `slots`, and come back. */
uint64_t pd_transformer_away_bytes(const struct pd_transformer *transformer, uint32_t slots);
void pd_transformer_attach_files(struct pd_transformer *transformer, struct pd_spill *spill);
/* Before a step (learns) or a validation: weights may have changed, and change no more until the next. */
void pd_transformer_begin(struct pd_transformer *transformer, bool learns);
/* The block's backward comes soon, behind at most one other. */
PD_MUST_USE pd_status pd_transformer_prefetch(struct pd_transformer *transformer, uint32_t slot, uint32_t block,
                                              struct pd_error *err);

/* weights: unit 0. Writes stream(slot, 0). */
PD_MUST_USE pd_status pd_transformer_embed(struct pd_transformer *transformer, uint32_t slot, void *const *weights,
                                           struct pd_error *err);
/* Reads stream(slot, block); writes `out`, or stream(slot, block + 1) when out is NULL. */
PD_MUST_USE pd_status pd_transformer_block_forward(struct pd_transformer *transformer, uint32_t slot, uint32_t block,
                                                   void *const *weights, void *out, struct pd_error *err);
/* From here on the gradients of a micro-batch, each made alone, are added to what lies where they are asked for: the bits of
 * gradients that are overwritten and then added up in fp32, without the memory and the way there. */
void pd_transformer_set_adds(struct pd_transformer *transformer, bool adds);
/* Final norm, logits, loss. weights: final norm tensors, then the output matrix (V,C) (the token table when tied).
 * gradients NULL: loss only; otherwise dstream (R,C) is the gradient of the residual stream, and all gradients are
 * multiplied by `scale` (fp16's loss scale, a power of two; 1 otherwise). */
PD_MUST_USE pd_status pd_transformer_head(struct pd_transformer *transformer, uint32_t slot, void *const *weights,
                                          float *const *gradients, float scale, void *dstream, struct pd_error *err);
/* dstream: in, the gradient of the block's output; out, that of its input. */
PD_MUST_USE pd_status pd_transformer_block_backward(struct pd_transformer *transformer, uint32_t slot, uint32_t block,
                                                    void *const *weights, float *const *gradients, void *dstream,
                                                    struct pd_error *err);
PD_MUST_USE pd_status pd_transformer_embed_backward(struct pd_transformer *transformer, uint32_t slot,
                                                    float *const *gradients, void *dstream, struct pd_error *err);
/* Logits of one row after all blocks ran forward (sampling).   ret_logits (V) fp32 */
PD_MUST_USE pd_status pd_transformer_row_logits(struct pd_transformer *transformer, void *const *head_weights, uint64_t row,
                                                float *ret_logits, struct pd_error *err);
