/* Pre-tokenizers: a stretch of text into words, none of which a merge crosses.
 *   memory   a copy of the text for each step that changes it
 *   threads  a splitter any, a scratch one at a time */
#pragma once

#include "trainer/tokenizer/normalize.h"

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
    enum pd_prepend_scheme prepend; /* METASPACE; BYTE_LEVEL: ALWAYS or NEVER, of a space */
};

struct pd_splitter {
    struct pd_split_step steps[PD_STEPS_MAX];
    uint32_t count;
};

struct pd_split_scratch {
    struct pd_string texts[PD_STEPS_MAX]; /* by step */
};

struct pd_word_sink { /* takes the words in their order */
    pd_status (*take)(void *context, const char *text, size_t bytes, struct pd_error *err);
    void *context;
};

void pd_splitter_deinit(struct pd_splitter *splitter);
void pd_splitter_digest(const struct pd_splitter *splitter, struct pd_digest_stream *stream);
PD_MUST_USE pd_status pd_splitter_run(const struct pd_splitter *splitter, struct pd_split_scratch *scratch,
                                      struct pd_pattern_scratch *patterns, struct pd_stretch stretch,
                                      const struct pd_word_sink *sink, struct pd_error *err);
