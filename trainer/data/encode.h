/* Whole documents into tokens on every core: pieces come in, batches of documents are encoded side by side, their tokens come
 * out in the order of the documents. A piece is never encoded alone: where text is cut, tokens would be others.
 *   memory   two copies of a batch of PD_ENCODE_BATCH_BYTES, or of the longest document, and 4 bytes a token of it
 *   threads  one caller */
#pragma once

#include "ckpt/base/thread_pool.h"
#include "trainer/tokenizer/tokenizer.h"

#define PD_ENCODE_BATCH_BYTES (32u << 20)

struct pd_encoder;

struct pd_encoder_sink { /* takes the tokens (count) of one document; none: it was empty */
    pd_status (*take)(void *context, const int32_t *ids, size_t count, struct pd_error *err);
    void *context;
};

/* tokenizer and pool are borrowed until free. */
PD_MUST_USE pd_status pd_encoder_new(const struct pd_tokenizer *tokenizer, struct pd_thread_pool *pool,
                                     const struct pd_encoder_sink *sink, struct pd_encoder **ret_encoder,
                                     struct pd_error *err);
void pd_encoder_free(struct pd_encoder *encoder); /* NULL is fine */
/* errors  PD_INVALID: as pd_tokenizer_encode */
PD_MUST_USE pd_status pd_encoder_add(struct pd_encoder *encoder, const char *text, size_t bytes, bool ends,
                                     struct pd_error *err);
PD_MUST_USE pd_status pd_encoder_flush(struct pd_encoder *encoder, struct pd_error *err);
