#include "trainer/tokenizer/parts.h"

#include "trainer/tokenizer/unicode.h"

void pd_normalizer_deinit(struct pd_normalizer *normalizer)
{
    for (uint32_t i = 0; i < normalizer->count; i++) {
        pd_matcher_deinit(&normalizer->steps[i].matcher);
        free(normalizer->steps[i].content);
    }
    normalizer->count = 0;
}

void pd_normalizer_digest(const struct pd_normalizer *normalizer, struct pd_digest_stream *stream)
{
    pd_digest_number(stream, normalizer->count);
    for (uint32_t i = 0; i < normalizer->count; i++) {
        const struct pd_normalizer_step *step = &normalizer->steps[i];
        pd_digest_number(stream, step->kind);
        pd_digest_number(stream, 2 * step->strip_left + step->strip_right);
        pd_digest_text(stream, step->content, step->content ? strlen(step->content) : 0);
        pd_matcher_digest(&step->matcher, stream);
    }
}

static pd_status put_form(enum pd_normal_form form, struct pd_text_slice *slice, struct pd_string *out, struct pd_error *err)
{
    unsigned first;
    if (pd_unicode_is_normal(form, slice->text, slice->bytes)) return PD_OK;
    PD_TRY(pd_unicode_normalize(form, slice->text, slice->bytes, out, err));
    (void)pd_unicode_at(out->bytes, &first);
    *slice = (struct pd_text_slice){out->bytes, out->count, slice->origin_bytes ? first : 0};
    return PD_OK;
}

/* The replacement of a match counts as its last character's origin. */
static size_t origin_behind(const struct pd_text_slice *slice, size_t start, size_t end, size_t content_bytes)
{
    if (start > 0 || !slice->origin_bytes) return slice->origin_bytes;
    const size_t last = end ? end - pd_unicode_last_bytes(slice->text, end) : 0;
    return last < slice->origin_bytes ? content_bytes : 0;
}

static pd_status put_replaced(const struct pd_normalizer_step *step, struct pd_pattern_scratch *patterns, size_t most,
                              struct pd_text_slice *slice, struct pd_string *out, struct pd_error *err)
{
    size_t start, end;
    PD_TRY(pd_matcher_replace(&step->matcher, patterns, slice->text, slice->bytes, step->content, most, out, &start, &end,
                              err));
    if (start == SIZE_MAX) return PD_OK;
    const size_t origin = origin_behind(slice, start, end, strlen(step->content));
    *slice = (struct pd_text_slice){out->bytes, out->count, origin};
    return PD_OK;
}

static void strip(const struct pd_normalizer_step *step, struct pd_text_slice *slice)
{
    unsigned length;
    while (step->strip_right && slice->bytes) {
        const unsigned last = pd_unicode_last_bytes(slice->text, slice->bytes);
        if (!pd_unicode_is_space(pd_unicode_at(slice->text + slice->bytes - last, &length))) break;
        slice->bytes -= last;
    }
    while (step->strip_left && slice->bytes && pd_unicode_is_space(pd_unicode_at(slice->text, &length))) {
        slice->text += length;
        slice->bytes -= length;
        slice->origin_bytes -= length < slice->origin_bytes ? length : slice->origin_bytes;
    }
}

static pd_status normalize_run_step(const struct pd_normalizer_step *step, struct pd_pattern_scratch *patterns, size_t most,
                                    struct pd_text_slice *slice, struct pd_string *out, struct pd_error *err)
{
    switch (step->kind) {
    case PD_NORMALIZE_NFC:
        return put_form(PD_NFC, slice, out, err);
    case PD_NORMALIZE_NFKC:
        return put_form(PD_NFKC, slice, out, err);
    case PD_NORMALIZE_LOWERCASE:
        unsigned first;
        PD_TRY(pd_unicode_lowercase(slice->text, slice->bytes, out, err));
        (void)pd_unicode_at(out->bytes, &first);
        *slice = (struct pd_text_slice){out->bytes, out->count, slice->origin_bytes ? first : 0};
        return PD_OK;
    case PD_NORMALIZE_PREPEND:
        const char *content = step->content;
        const size_t more = strlen(content);
        PD_TRY(pd_string_add(out, content, more, err));
        PD_TRY(pd_string_add(out, slice->text, slice->bytes, err));
        *slice = (struct pd_text_slice){out->bytes, out->count, slice->origin_bytes ? slice->origin_bytes + more : 0};
        return PD_OK;
    case PD_NORMALIZE_REPLACE:
        return put_replaced(step, patterns, most, slice, out, err);
    case PD_NORMALIZE_STRIP:
        strip(step, slice);
        break;
    }
    return PD_OK;
}

pd_status pd_normalizer_run(const struct pd_normalizer *normalizer, struct pd_normalizer_scratch *scratch,
                            struct pd_pattern_scratch *patterns, struct pd_text_slice *slice, struct pd_error *err)
{
    const size_t most = PD_STRING_GROWN_MAX(slice->bytes);
    unsigned turn = 0;
    for (uint32_t i = 0; i < normalizer->count && slice->bytes; i++) {
        struct pd_string *out = &scratch->texts[turn];
        const char *before = slice->text;
        pd_string_cut(out, 0);
        PD_TRY(normalize_run_step(&normalizer->steps[i], patterns, most, slice, out, err));
        if (slice->text != before && slice->text == out->bytes) turn ^= 1;
    }
    return PD_OK;
}
