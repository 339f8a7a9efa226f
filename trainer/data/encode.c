#include "trainer/data/encode.h"

#include <stdatomic.h>

#define BATCH_DOCUMENTS 65536u

struct document {
    size_t start, bytes;       /* in the batch's text */
    uint32_t worker;           /* who encoded it */
    size_t first, token_count; /* in that worker's tokens */
};

struct worker { /* one index of the pool's loop has it */
    struct pd_tokenizer_scratch *scratch;
    struct pd_tokens tokens;
    struct pd_error error;
    pd_status status;
};

struct pd_encoder {
    const struct pd_tokenizer *tokenizer;
    struct pd_thread_pool *pool;
    struct pd_encoder_sink sink;
    struct worker *workers; /* (worker_count) */
    uint32_t worker_count;
    struct document *documents; /* (BATCH_DOCUMENTS) */
    uint32_t document_count;
    size_t open_start; /* of the document that has not ended */
    struct pd_string text;
    _Atomic uint32_t next; /* document that nobody has taken; workers count it up */
};

pd_status pd_encoder_new(const struct pd_tokenizer *tokenizer, struct pd_thread_pool *pool,
                         const struct pd_encoder_sink *sink, struct pd_encoder **ret_encoder, struct pd_error *err)
{
    struct pd_encoder *encoder = calloc(1, sizeof *encoder);
    if (!encoder) PD_FAIL(err, PD_NO_MEMORY, "no memory to encode documents");
    encoder->tokenizer = tokenizer;
    encoder->pool = pool;
    encoder->sink = *sink;
    encoder->worker_count = pd_thread_pool_size(pool);
    encoder->workers = calloc(encoder->worker_count, sizeof *encoder->workers);
    encoder->documents = calloc(BATCH_DOCUMENTS, sizeof *encoder->documents);
    pd_status status = PD_OK;
    if (!encoder->workers || !encoder->documents)
        status = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory to encode documents");
    for (uint32_t i = 0; !status && i < encoder->worker_count; i++)
        status = pd_tokenizer_scratch_new(tokenizer, &encoder->workers[i].scratch, err);
    if (status) {
        pd_encoder_free(encoder);
        return status;
    }
    *ret_encoder = encoder;
    return PD_OK;
}

void pd_encoder_free(struct pd_encoder *encoder)
{
    if (!encoder) return;
    for (uint32_t i = 0; encoder->workers && i < encoder->worker_count; i++) {
        pd_tokenizer_scratch_free(encoder->workers[i].scratch);
        pd_tokens_deinit(&encoder->workers[i].tokens);
    }
    free(encoder->workers);
    free(encoder->documents);
    pd_string_deinit(&encoder->text);
    free(encoder);
}

static void encode_some(void *context, uint64_t index)
{
    struct pd_encoder *e = context;
    struct worker *w = &e->workers[index];
    w->tokens.count = 0;
    w->status = PD_OK;
    while (!w->status) {
        const uint32_t number = atomic_fetch_add(&e->next, 1);
        if (number >= e->document_count) return;
        struct document *d = &e->documents[number];
        d->worker = (uint32_t)index;
        d->first = w->tokens.count;
        if (d->bytes)
            w->status = pd_tokenizer_encode(e->tokenizer, w->scratch, e->text.bytes + d->start, d->bytes, false, &w->tokens,
                                            &w->error);
        d->token_count = w->tokens.count - d->first;
    }
}

pd_status pd_encoder_flush(struct pd_encoder *e, struct pd_error *err)
{
    atomic_store(&e->next, 0);
    pd_parallel(e->pool, e->worker_count, encode_some, e);
    for (uint32_t i = 0; i < e->worker_count; i++)
        if (e->workers[i].status) {
            if (err) *err = e->workers[i].error;
            return e->workers[i].status;
        }
    for (uint32_t i = 0; i < e->document_count; i++) {
        const struct document *d = &e->documents[i];
        PD_TRY(e->sink.take(e->sink.context, e->workers[d->worker].tokens.ids + d->first, d->token_count, err));
    }
    const size_t open_bytes = e->text.count - e->open_start;
    if (open_bytes) memmove(e->text.bytes, e->text.bytes + e->open_start, open_bytes);
    pd_string_cut(&e->text, open_bytes);
    e->open_start = e->document_count = 0;
    return PD_OK;
}

pd_status pd_encoder_add(struct pd_encoder *e, const char *text, size_t bytes, bool ends, struct pd_error *err)
{
    if (e->open_start && e->text.count + bytes > PD_STRING_BYTES_MAX) PD_TRY(pd_encoder_flush(e, err));
    if (e->text.count - e->open_start + bytes > PD_TOKENIZER_DOCUMENT_BYTES_MAX)
        PD_FAIL(err, PD_INVALID,
                "a document is longer than 1 GiB; split it: --separator names what stands between documents");
    PD_TRY(pd_string_add(&e->text, text, bytes, err));
    if (!ends) return PD_OK;
    e->documents[e->document_count++] = (struct document){.start = e->open_start, .bytes = e->text.count - e->open_start};
    e->open_start = e->text.count;
    return e->document_count == BATCH_DOCUMENTS || e->text.count >= PD_ENCODE_BATCH_BYTES ? pd_encoder_flush(e, err) : PD_OK;
}
