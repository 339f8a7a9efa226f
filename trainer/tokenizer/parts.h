/* The parts of a tokenizer. Loaders fill it (load_json.c, load_gguf.c), tokenizer.c runs it. */
#pragma once

#include "trainer/tokenizer/added.h"
#include "trainer/tokenizer/bpe.h"
#include "trainer/tokenizer/matcher.h"

/* Normalizers convert text to text, before it is split.
 *   threads  a normalizer any, a scratch one at a time */
#define PD_STEPS_MAX 32u /* in a normalizer, pre-tokenizer or decoder */

enum pd_normalizer_kind {
    PD_NORMALIZE_NFC,
    PD_NORMALIZE_NFKC,
    PD_NORMALIZE_LOWERCASE,
    PD_NORMALIZE_PREPEND,
    PD_NORMALIZE_REPLACE,
    PD_NORMALIZE_STRIP
};

struct pd_normalizer_step {
    enum pd_normalizer_kind kind;
    struct pd_matcher matcher; /* REPLACE */
    char *content;             /* PREPEND, REPLACE; owned */
    bool strip_left, strip_right;
};

struct pd_normalizer {
    struct pd_normalizer_step steps[PD_STEPS_MAX];
    uint32_t count;
};

struct pd_normalizer_scratch {
    struct pd_string texts[2]; /* output of a step and of the one before, alternating */
};

/* A part of the text. origin_bytes: how many of its first bytes are the start of the document, for pre-tokenizers. */
struct pd_text_slice {
    const char *text;
    size_t bytes, origin_bytes;
};

void pd_normalizer_deinit(struct pd_normalizer *normalizer);
void pd_normalizer_digest(const struct pd_normalizer *normalizer, struct pd_digest_stream *stream);
/* Replaces *slice by the normalized text, which is unchanged or in the scratch until the next call.
 *   errors  PD_INVALID: Replace makes it longer than PD_STRING_GROWN_MAX */
PD_MUST_USE pd_status pd_normalizer_run(const struct pd_normalizer *normalizer, struct pd_normalizer_scratch *scratch,
                                        struct pd_pattern_scratch *patterns, struct pd_text_slice *slice,
                                        struct pd_error *err);

/* Pre-tokenizers split text into words; merges never cross words.
 *   memory   a copy of the text for each step that changes it
 *   threads  a splitter any, a scratch one at a time */
enum pd_split_kind { PD_SPLIT_BYTE_LEVEL, PD_SPLIT_MATCHES, PD_SPLIT_METASPACE };
enum pd_split_behavior {
    PD_SPLIT_REMOVED,
    PD_SPLIT_ISOLATED,
    PD_SPLIT_MERGED_WITH_PREVIOUS,
    PD_SPLIT_MERGED_WITH_NEXT,
    PD_SPLIT_CONTIGUOUS
};
enum pd_prepend_scheme { PD_PREPEND_ALWAYS, PD_PREPEND_FIRST, PD_PREPEND_NEVER };

struct pd_split_step {
    enum pd_split_kind kind;
    bool splits;               /* BYTE_LEVEL: use_regex; METASPACE: split; MATCHES: always */
    struct pd_matcher matcher; /* MATCHES, BYTE_LEVEL; METASPACE: the replacement, a literal */
    enum pd_split_behavior behavior;
    bool invert;
    enum pd_prepend_scheme prepend; /* METASPACE; BYTE_LEVEL: ALWAYS or NEVER, for a space */
};

struct pd_splitter {
    struct pd_split_step steps[PD_STEPS_MAX];
    uint32_t count;
};

struct pd_split_scratch {
    struct pd_string texts[PD_STEPS_MAX]; /* one per step */
};

struct pd_word_sink { /* takes the words in order */
    pd_status (*take)(void *context, const char *text, size_t bytes, struct pd_error *err);
    void *context;
};

void pd_splitter_deinit(struct pd_splitter *splitter);
void pd_splitter_digest(const struct pd_splitter *splitter, struct pd_digest_stream *stream);
PD_MUST_USE pd_status pd_splitter_run(const struct pd_splitter *splitter, struct pd_split_scratch *scratch,
                                      struct pd_pattern_scratch *patterns, struct pd_text_slice slice,
                                      const struct pd_word_sink *sink, struct pd_error *err);

/* Decoders convert token texts to text. A decoder works on a list of pieces, at first one per token.
 *   threads  a decoder any */
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
    uint32_t start, stop;      /* STRIP: at most this many characters at either end */
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
/* Applies the decoder to the pieces; `spare` is scratch. Pieces are valid UTF-8, before and after. */
PD_MUST_USE pd_status pd_decoder_run(const struct pd_decoder *decoder, struct pd_pattern_scratch *patterns,
                                     struct pd_pieces *pieces, struct pd_pieces *spare, struct pd_error *err);

struct pd_tokenizer {
    bool is_bytes; /* ids are bytes; all else is unused */
    struct pd_vocab vocab;
    struct pd_bpe *bpe;
    struct pd_bpe_options bpe_options;
    struct pd_added added;
    struct pd_normalizer normalizer;
    struct pd_splitter splitter;
    struct pd_decoder decoder;
    bool has_decoder;                /* else pieces are joined by spaces */
    struct pd_tokens before, behind; /* tokens that the template puts before and after */
    uint32_t limit;                  /* largest id + 1, including added tokens */
    uint64_t digest;
    bool is_gguf;            /* built from GGUF arrays */
    struct pd_merge *merges; /* (merge_count) by rank, owned; only kept for GGUF */
    uint32_t merge_count;
    char *json; /* (json_bytes) the parsed text, owned; NULL: none */
    size_t json_bytes;
};

/* Builds the model from the parts, computes limit and digest. Borrows merges (count). */
PD_MUST_USE pd_status pd_tokenizer_finish(struct pd_tokenizer *tokenizer, const struct pd_merge *merges, uint32_t count,
                                          struct pd_error *err);
/* Whether its words are bytes: the splitter's last step is byte-level. */
bool pd_tokenizer_is_byte_level(const struct pd_tokenizer *tokenizer);
/* The text of a token for a decoder; NULL: no such id. */
const char *pd_tokenizer_text(const struct pd_tokenizer *tokenizer, uint32_t id, size_t *ret_bytes);
