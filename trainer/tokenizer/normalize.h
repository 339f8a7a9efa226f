/* Normalizers: text to text, before anything is split.
 *   threads  a normalizer any, a scratch one at a time */
#pragma once

#include "trainer/tokenizer/matcher.h"

#define PD_STEPS_MAX 32u /* of a normalizer, of a pre-tokenizer, of a decoder */

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
    struct pd_string texts[2]; /* of a step and of the one before, in turn */
};

/* A stretch of text, and how many of its first bytes come from the very start of the document: a pre-tokenizer asks. */
struct pd_stretch {
    const char *text;
    size_t bytes, origin_bytes;
};

void pd_normalizer_deinit(struct pd_normalizer *normalizer);
void pd_normalizer_digest(const struct pd_normalizer *normalizer, struct pd_digest_stream *stream);
/* *stretch changes to the normalized text, in the scratch until the next call or as it was.
 *   errors  PD_INVALID: Replace makes more than PD_STRING_GROWN_MAX of it */
PD_MUST_USE pd_status pd_normalizer_run(const struct pd_normalizer *normalizer, struct pd_normalizer_scratch *scratch,
                                        struct pd_pattern_scratch *patterns, struct pd_stretch *stretch,
                                        struct pd_error *err);
