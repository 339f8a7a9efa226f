/* What a tokenizer looks for in text: a literal, a regular expression, or a class of characters.
 *   threads  a matcher any, its scratch one at a time */
#pragma once

#include "ckpt/base/digest.h"
#include "trainer/tokenizer/pattern.h"

enum pd_matcher_kind { PD_MATCH_LITERAL, PD_MATCH_REGEX, PD_MATCH_NUMERIC, PD_MATCH_WORDS };

struct pd_matcher {
    enum pd_matcher_kind kind; /* NUMERIC: one digit or numeral; WORDS: a run of \w, or of what is neither \w nor space */
    char *source;              /* literal or expression, owned */
    size_t source_bytes;
    struct pd_pattern *pattern; /* REGEX, owned */
};

struct pd_match_cursor { /* zeroed: at the start of the text */
    size_t at, last_end;
    bool any; /* a match was found before */
};

/* source is copied. PD_INVALID: an empty literal; else as pd_pattern_new. */
PD_MUST_USE pd_status pd_matcher_init(enum pd_matcher_kind kind, const char *source, struct pd_matcher *ret_matcher,
                                      struct pd_error *err);
void pd_matcher_deinit(struct pd_matcher *matcher);
void pd_matcher_digest(const struct pd_matcher *matcher, struct pd_digest_stream *stream);
/* The next match in valid UTF-8; *ret_start is SIZE_MAX behind the last. An empty match right behind another does not count. */
PD_MUST_USE pd_status pd_matcher_next(const struct pd_matcher *matcher, struct pd_pattern_scratch *scratch, const char *text,
                                      size_t bytes, struct pd_match_cursor *cursor, size_t *ret_start, size_t *ret_end,
                                      struct pd_error *err);

/* Adds the text to `out`, with `content` in place of each match. *ret_start and *ret_end: the first match; nothing is added where
 * there is none, and *ret_start is SIZE_MAX.   errors  PD_INVALID: `out` would have more than `most` bytes */
PD_MUST_USE pd_status pd_matcher_replace(const struct pd_matcher *matcher, struct pd_pattern_scratch *scratch,
                                         const char *text, size_t bytes, const char *content, size_t most,
                                         struct pd_string *out, size_t *ret_start, size_t *ret_end, struct pd_error *err);

/* A number and a text with its length: no two lists of them digest the same bytes. */
void pd_digest_number(struct pd_digest_stream *stream, uint64_t number);
void pd_digest_text(struct pd_digest_stream *stream, const char *text, size_t bytes);
