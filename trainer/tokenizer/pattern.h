/* Regular expressions of tokenizers, by PCRE2, with its just-in-time compiler if available.
 *
 * They are in Oniguruma's dialect, whose classes differ from PCRE2's. pattern.c rewrites them and refuses by name what has
 * no equivalent. Sources: doc/RE of Oniguruma, pcre2pattern(3), pcre2syntax(3).
 *   threads  a pattern any, a scratch one at a time */
#pragma once

#include "trainer/tokenizer/string_buffer.h"
#include <stdbool.h>

struct pd_pattern;
struct pd_pattern_scratch; /* per thread, for any pattern */

/* PD_UNSUPPORTED: PCRE2 lacks a feature that it uses; PD_CORRUPT: not a regular expression. Errors quote the text. */
PD_MUST_USE pd_status pd_pattern_new(const char *source, struct pd_pattern **ret_pattern, struct pd_error *err);
void pd_pattern_free(struct pd_pattern *pattern);
PD_MUST_USE pd_status pd_pattern_scratch_new(struct pd_pattern_scratch **ret_scratch, struct pd_error *err);
void pd_pattern_scratch_free(struct pd_pattern_scratch *scratch);

/* The first match at or after `from` in valid UTF-8; *ret_start is SIZE_MAX if there is none.
 *   errors  PD_INVALID: matching takes more than 10,000,000 steps */
PD_MUST_USE pd_status pd_pattern_find(const struct pd_pattern *pattern, struct pd_pattern_scratch *scratch, const char *text,
                                      size_t bytes, size_t from, size_t *ret_start, size_t *ret_end, struct pd_error *err);
