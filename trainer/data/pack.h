/* Writes token files from documents (documents.h): nanoGPT, llm.c, Megatron. Tokens are a tokenizer's, or the bytes of the
 * text (0 to 255).
 *
 * Skips empty documents. Ends each document with `document_token`, unless negative. Types: nanoGPT u16; llm.c u16, or u32 if
 * the vocabulary or document_token is larger; Megatron the narrowest of u8, u16 and i32 that fits. Parses JSON lines on
 * every core. Files are written atomically: temporary name, sync, rename; Megatron's index last. With a tokenizer, puts a
 * copy of it beside the file (token_origin.h) and encodes whole documents on every core.
 *   memory   4 bytes per document, for Megatron only; with a tokenizer see struct pd_encoder */
#pragma once

#include "ckpt/base/stop.h"
#include "ckpt/base/thread_pool.h"
#include "trainer/data/data.h"
#include "trainer/data/documents.h"
#include "trainer/data/token_file.h"
#include "trainer/data/token_origin.h"
#include "trainer/tokenizer/tokenizer.h"

struct pd_pack_options {
    const char *const *inputs; /* (input_count) files, directories, globs */
    uint32_t input_count;
    const char *output;                   /* the file; for Megatron X.bin, X.idx or X writes both */
    enum pd_data_format format;           /* NANOGPT, LLMC, MEGATRON */
    int64_t document_token;               /* appended to each document; negative: none */
    const char *separator;                /* between documents in one input, not written; NULL: none */
    const struct pd_tokenizer *tokenizer; /* borrowed; NULL: bytes */
    bool overwrite;                       /* else PD_EXISTS if the output exists */
    const char *field;                    /* for JSON lines; NULL: "text" */
    const char *turns[2];                 /* as in pd_documents_options: writes X.loss too (token_loss.h) */
    bool is_rendered;
    pd_should_stop should_stop; /* checked between pieces of text */
    /* Called now and then with stored bytes of the inputs; NULL: never. */
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_context;
};

struct pd_pack_result {
    uint64_t input_bytes, tokens, documents, empty_documents, output_bytes;
    uint64_t learned; /* tokens that have a loss; all without turns */
    enum pd_data_format format;
    const char *type_name; /* "u16", static */
    char *notes;           /* lines on the inputs and changes to them, "" or ending in a newline; owned */
};

PD_MUST_USE pd_status pd_data_pack(const struct pd_pack_options *options, struct pd_pack_result *ret_result,
                                   struct pd_error *err);
void pd_pack_result_deinit(struct pd_pack_result *result);

/* Contents of a token file, for people. */
#define PD_INSPECT_TOP 16u
#define PD_INSPECT_FIRST 32u

struct pd_data_inspection {
    struct pd_token_file file;        /* open */
    struct pd_token_origin tokenizer; /* its tokenizer, from the copy beside the file */
    struct pd_token_scan scan;
    uint64_t documents; /* by the index, or by document_token; 0: unknown */
    uint64_t distinct;  /* different tokens; 0 if not counted (max of 2^22 and more, negative tokens) */
    struct {
        int64_t token;
        uint64_t count;
    } top[PD_INSPECT_TOP]; /* most frequent first, ties by token */
    uint32_t top_count, first_count;
    int32_t first[PD_INSPECT_FIRST]; /* the first tokens */
};

/* document_token negative: none. Errors as in pd_data_open, except tokens out of range, and as in pd_token_origin_read. */
PD_MUST_USE pd_status pd_data_inspect(const char *path, enum pd_data_format format, int64_t document_token,
                                      struct pd_data_inspection *ret_inspection, struct pd_error *err);
void pd_data_inspection_deinit(struct pd_data_inspection *inspection);

/* Encodes whole documents on every core: takes pieces, encodes batches of documents in parallel, and returns their tokens in
 * document order. A piece is never encoded alone, because cutting text changes its tokens.
 *   memory   two copies of a batch of PD_ENCODE_BATCH_BYTES, or of the longest document, and 4 bytes per token of it
 *   threads  one caller */
#define PD_ENCODE_BATCH_BYTES (32u << 20)

struct pd_encoder;

struct pd_encoder_sink { /* takes the tokens (count) of one document; count 0: it was empty */
    /* learned (count): not 0 if the token has a loss; NULL: all have */
    pd_status (*take)(void *context, const int32_t *ids, const unsigned char *learned, size_t count, struct pd_error *err);
    void *context;
};

/* Borrows tokenizer and pool until free. */
PD_MUST_USE pd_status pd_encoder_new(const struct pd_tokenizer *tokenizer, struct pd_thread_pool *pool,
                                     const struct pd_encoder_sink *sink, struct pd_encoder **ret_encoder,
                                     struct pd_error *err);
void pd_encoder_free(struct pd_encoder *encoder); /* NULL is fine */
/*   turns   of a whole document; copied; NULL: none. A token with a byte of a turn that has a loss has one
 *   errors  PD_INVALID: as in pd_tokenizer_encode; PD_UNSUPPORTED: as in pd_tokenizer_align */
PD_MUST_USE pd_status pd_encoder_add(struct pd_encoder *encoder, const char *text, size_t bytes, bool ends,
                                     const struct pd_turns *turns, struct pd_error *err);
PD_MUST_USE pd_status pd_encoder_flush(struct pd_encoder *encoder, struct pd_error *err);
