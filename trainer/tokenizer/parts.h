/* What a tokenizer is made of. Loaders fill it (load_json.c, load_gguf.c), tokenizer.c runs it. */
#pragma once

#include "trainer/tokenizer/added.h"
#include "trainer/tokenizer/bpe.h"
#include "trainer/tokenizer/decode.h"
#include "trainer/tokenizer/split.h"

struct pd_tokenizer {
    bool is_bytes; /* ids are bytes; nothing else is used */
    struct pd_vocab vocab;
    struct pd_bpe *bpe;
    struct pd_bpe_options bpe_options;
    struct pd_added added;
    struct pd_normalizer normalizer;
    struct pd_splitter splitter;
    struct pd_decoder decoder;
    bool has_decoder;                /* else pieces are joined by spaces */
    struct pd_tokens before, behind; /* tokens of the template */
    uint32_t limit;                  /* largest id + 1, added tokens too */
    uint64_t digest;
    bool is_gguf;            /* its arrays made it */
    struct pd_merge *merges; /* (merge_count) by rank, owned; kept of GGUF alone */
    uint32_t merge_count;
    char *json; /* (json_bytes) what it was parsed from, owned; NULL: nothing */
    size_t json_bytes;
};

/* Builds the model of the parts, computes limit and digest. merges (count) are borrowed. */
PD_MUST_USE pd_status pd_tokenizer_finish(struct pd_tokenizer *tokenizer, const struct pd_merge *merges, uint32_t count,
                                          struct pd_error *err);
/* Whether its words are bytes: the last step of the splitter is byte-level. */
bool pd_tokenizer_is_byte_level(const struct pd_tokenizer *tokenizer);
/* The text of a token as a decoder takes it; NULL: no token has this id. */
const char *pd_tokenizer_text(const struct pd_tokenizer *tokenizer, uint32_t id, size_t *ret_bytes);
