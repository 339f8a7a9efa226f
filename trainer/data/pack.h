/* Writes token files out of text: nanoGPT, llm.c, Megatron. A token is a byte of the text (0 to 255).
 *
 * Each input is a document, or several where `separator` stands between them; empty ones are left out. A document ends with
 * `document_token`, unless that is negative. Types: nanoGPT u16; llm.c u16, or u32 for a larger document_token; Megatron the
 * narrowest of u8, u16 and i32 that holds all tokens.
 * Whole or not at all: files are written under a temporary name, synced and renamed; Megatron's index comes last.
 *   memory   4 bytes a document, for Megatron alone */
#ifndef PD_TRAINER_DATA_PACK_H
#define PD_TRAINER_DATA_PACK_H

#include "trainer/data/data.h"

struct pd_pack_options {
    const char *const *inputs; /* (input_count) text files */
    uint32_t input_count;
    const char *output;         /* the file; Megatron: X.bin, X.idx or X writes both */
    enum pd_data_format format; /* NANOGPT, LLMC, MEGATRON */
    int64_t document_token;     /* ends each document; negative: none */
    const char *separator;      /* between documents of one input, not written; NULL: none */
    bool overwrite;             /* else an existing output is PD_EXISTS */
};

struct pd_pack_result {
    uint64_t input_bytes, tokens, documents, empty_documents, output_bytes;
    enum pd_data_format format;
    const char *type_name; /* "u16", static */
};

PD_MUST_USE pd_status pd_data_pack(const struct pd_pack_options *options, struct pd_pack_result *ret_result,
                                   struct pd_error *err);

#endif
