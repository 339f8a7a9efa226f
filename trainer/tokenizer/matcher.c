#include "trainer/tokenizer/matcher.h"

#include "trainer/tokenizer/unicode.h"

pd_status pd_matcher_init(enum pd_matcher_kind kind, const char *source, struct pd_matcher *ret_matcher,
                          struct pd_error *err)
{
    struct pd_matcher matcher = {.kind = kind, .source = strdup(source), .source_bytes = strlen(source)};
    if (!matcher.source) PD_FAIL(err, PD_NO_MEMORY, "no memory for a pattern");
    pd_status status = PD_OK;
    if (kind == PD_MATCH_LITERAL && !matcher.source_bytes)
        status = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "the text to look for is empty");
    if (kind == PD_MATCH_REGEX) status = pd_pattern_new(source, &matcher.pattern, err);
    if (status) {
        pd_matcher_deinit(&matcher);
        return status;
    }
    *ret_matcher = matcher;
    return PD_OK;
}

void pd_matcher_deinit(struct pd_matcher *matcher)
{
    pd_pattern_free(matcher->pattern);
    free(matcher->source);
    *matcher = (struct pd_matcher){0};
}

void pd_digest_number(struct pd_digest_stream *stream, uint64_t number)
{
    unsigned char bytes[8];
    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(number >> 8 * i);
    pd_digest_stream_add(stream, bytes, sizeof bytes);
}

void pd_digest_text(struct pd_digest_stream *stream, const char *text, size_t bytes)
{
    pd_digest_number(stream, bytes);
    if (bytes) pd_digest_stream_add(stream, text, bytes);
}

void pd_matcher_digest(const struct pd_matcher *matcher, struct pd_digest_stream *stream)
{
    pd_digest_number(stream, matcher->kind);
    pd_digest_text(stream, matcher->source, matcher->source_bytes);
}

static void next_numeric(const char *text, size_t bytes, size_t from, size_t *ret_start, size_t *ret_end)
{
    *ret_start = SIZE_MAX;
    for (unsigned length; from < bytes; from += length) {
        if (!pd_unicode_is_numeric(pd_unicode_at(text + from, &length))) continue;
        *ret_start = from;
        *ret_end = from + length;
        return;
    }
}

static void next_word(const char *text, size_t bytes, size_t from, size_t *ret_start, size_t *ret_end)
{
    unsigned length;
    *ret_start = SIZE_MAX;
    while (from < bytes && pd_unicode_is_space(pd_unicode_at(text + from, &length)))
        from += length;
    if (from == bytes) return;
    const bool is_word = pd_unicode_is_word(pd_unicode_at(text + from, &length));
    *ret_start = from;
    for (; from < bytes; from += length) {
        const uint32_t code = pd_unicode_at(text + from, &length);
        if (pd_unicode_is_word(code) != is_word || pd_unicode_is_space(code)) break;
    }
    *ret_end = from;
}

static pd_status next_regex(const struct pd_matcher *matcher, struct pd_pattern_scratch *scratch, const char *text,
                            size_t bytes, struct pd_match_cursor *cursor, size_t *ret_start, size_t *ret_end,
                            struct pd_error *err)
{
    for (size_t from = cursor->at;;) {
        *ret_start = SIZE_MAX;
        if (from > bytes) return PD_OK;
        PD_TRY(pd_pattern_find(matcher->pattern, scratch, text, bytes, from, ret_start, ret_end, err));
        if (*ret_start == SIZE_MAX || *ret_end > *ret_start || !cursor->any || *ret_end != cursor->last_end) return PD_OK;
        unsigned length = 1;
        if (from < bytes) (void)pd_unicode_at(text + from, &length);
        from += length;
    }
}

pd_status pd_matcher_next(const struct pd_matcher *matcher, struct pd_pattern_scratch *scratch, const char *text,
                          size_t bytes, struct pd_match_cursor *cursor, size_t *ret_start, size_t *ret_end,
                          struct pd_error *err)
{
    switch (matcher->kind) {
    case PD_MATCH_LITERAL:
        size_t from = cursor->at;
        const char *found = memmem(text + from, bytes - from, matcher->source, matcher->source_bytes);
        *ret_start = found ? (size_t)(found - text) : SIZE_MAX;
        *ret_end = found ? *ret_start + matcher->source_bytes : 0;
        break;
    case PD_MATCH_NUMERIC:
        next_numeric(text, bytes, cursor->at, ret_start, ret_end);
        break;
    case PD_MATCH_WORDS:
        next_word(text, bytes, cursor->at, ret_start, ret_end);
        break;
    case PD_MATCH_REGEX:
        PD_TRY(next_regex(matcher, scratch, text, bytes, cursor, ret_start, ret_end, err));
        break;
    }
    if (*ret_start == SIZE_MAX) return PD_OK;
    cursor->any = true;
    cursor->at = cursor->last_end = *ret_end;
    return PD_OK;
}

pd_status pd_matcher_replace(const struct pd_matcher *matcher, struct pd_pattern_scratch *scratch, const char *text,
                             size_t bytes, const char *content, size_t most, struct pd_string *out, size_t *ret_start,
                             size_t *ret_end, struct pd_error *err)
{
    struct pd_match_cursor cursor = {0};
    size_t start, end, done = 0;
    *ret_start = SIZE_MAX;
    for (;;) {
        PD_TRY(pd_matcher_next(matcher, scratch, text, bytes, &cursor, &start, &end, err));
        if (start == SIZE_MAX) break;
        if (*ret_start == SIZE_MAX) *ret_start = start, *ret_end = end;
        PD_TRY(pd_string_add(out, text + done, start - done, err));
        PD_TRY(pd_string_add(out, content, strlen(content), err));
        if (out->count > most) PD_FAIL(err, PD_INVALID, "steps that replace make more than %zu bytes of a text", most);
        done = end;
    }
    return *ret_start == SIZE_MAX ? PD_OK : pd_string_add(out, text + done, bytes - done, err);
}
