/* Patterns that a tokenizer searches for: a literal, a regular expression, or a character class.
 *   threads  a matcher any, its scratch one at a time */
#pragma once

#include "ckpt/base/digest.h"
#include "trainer/tokenizer/pattern.h"

enum pd_matcher_kind { PD_MATCH_LITERAL, PD_MATCH_REGEX, PD_MATCH_NUMERIC, PD_MATCH_WORDS };

struct pd_matcher {
    enum pd_matcher_kind kind; /* NUMERIC: one digit or numeral; WORDS: a run of \w, or of characters neither \w nor space */
    char *source;              /* literal or expression, owned */
    size_t source_bytes;
    struct pd_pattern *pattern; /* REGEX, owned */
};

struct pd_match_cursor { /* zeroed: at the start of the text */
    size_t at, last_end;
    bool any; /* there was a match before */
};

/* Copies source. PD_INVALID: an empty literal; else as in pd_pattern_new. */
PD_MUST_USE pd_status pd_matcher_init(enum pd_matcher_kind kind, const char *source, struct pd_matcher *ret_matcher,
                                      struct pd_error *err);
void pd_matcher_deinit(struct pd_matcher *matcher);
void pd_matcher_digest(const struct pd_matcher *matcher, struct pd_digest_stream *stream);
/* The next match in valid UTF-8; *ret_start is SIZE_MAX after the last. Ignores an empty match right after another. */
PD_MUST_USE pd_status pd_matcher_next(const struct pd_matcher *matcher, struct pd_pattern_scratch *scratch, const char *text,
                                      size_t bytes, struct pd_match_cursor *cursor, size_t *ret_start, size_t *ret_end,
                                      struct pd_error *err);

/* Appends the text to `out`, with `content` instead of each match. *ret_start and *ret_end: the first match. Without a match
 * appends nothing and sets *ret_start to SIZE_MAX. errors PD_INVALID: `out` would exceed `most` bytes */
PD_MUST_USE pd_status pd_matcher_replace(const struct pd_matcher *matcher, struct pd_pattern_scratch *scratch,
                                         const char *text, size_t bytes, const char *content, size_t most,
                                         struct pd_string *out, size_t *ret_start, size_t *ret_end, struct pd_error *err);

/* Add a number; a text with its length, so that different lists never digest the same bytes. */
void pd_digest_number(struct pd_digest_stream *stream, uint64_t number);
void pd_digest_text(struct pd_digest_stream *stream, const char *text, size_t bytes);
