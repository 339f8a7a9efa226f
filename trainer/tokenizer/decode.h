/* Decoders: the texts of tokens to text. A decoder sees a list of pieces, one for each token at first.
 *   threads  a decoder any */
#pragma once

#include "trainer/tokenizer/normalize.h"

enum pd_decoder_kind {
    PD_DECODE_BYTE_LEVEL,
    PD_DECODE_REPLACE,
    PD_DECODE_BYTE_FALLBACK,
    PD_DECODE_FUSE,
    PD_DECODE_STRIP,
    PD_DECODE_METASPACE
};

struct pd_decoder_step {
    enum pd_decoder_kind kind;
    struct pd_matcher matcher; /* REPLACE; STRIP and METASPACE: the character, a literal */
    char *content;             /* REPLACE, owned */
    uint32_t start, stop;      /* STRIP: at most so many characters at either end */
    bool keeps_first;          /* METASPACE: the first piece keeps its marks, as spaces */
};

struct pd_decoder {
    struct pd_decoder_step steps[PD_STEPS_MAX];
    uint32_t count;
};

struct pd_pieces { /* zeroed: none */
    struct pd_string text;
    size_t *ends; /* (count) in text, owned */
    size_t count, capacity;
};

void pd_decoder_deinit(struct pd_decoder *decoder);
void pd_pieces_deinit(struct pd_pieces *pieces);
PD_MUST_USE pd_status pd_pieces_add(struct pd_pieces *pieces, const char *text, size_t bytes, struct pd_error *err);
/* The pieces become what the decoder makes of them; `spare` is room to work in. Pieces are valid UTF-8, before and after. */
PD_MUST_USE pd_status pd_decoder_run(const struct pd_decoder *decoder, struct pd_pattern_scratch *patterns,
                                     struct pd_pieces *pieces, struct pd_pieces *spare, struct pd_error *err);
