/* Steps run depth first: a piece goes through all later steps before the next one is found, so no list is needed. */
#include "trainer/tokenizer/parts.h"

struct run {
    const struct pd_splitter *splitter;
    struct pd_split_scratch *scratch;
    struct pd_pattern_scratch *patterns;
    const struct pd_word_sink *sink;
    struct pd_error *err;
};

/* Pieces of one step: takes matches and the text between them, emits pieces by the behaviour. */
struct pieces {
    struct run *run;
    uint32_t step;
    struct pd_text_slice slice;
    size_t start, end; /* the piece that waits for its neighbour */
    bool waits, waits_match;
};

static pd_status run_steps(struct run *run, uint32_t step, struct pd_text_slice slice);

void pd_splitter_deinit(struct pd_splitter *splitter)
{
    for (uint32_t i = 0; i < splitter->count; i++)
        pd_matcher_deinit(&splitter->steps[i].matcher);
    splitter->count = 0;
}

void pd_splitter_digest(const struct pd_splitter *splitter, struct pd_digest_stream *stream)
{
    pd_digest_number(stream, splitter->count);
    for (uint32_t i = 0; i < splitter->count; i++) {
        const struct pd_split_step *step = &splitter->steps[i];
        const uint64_t fields[] = {step->kind, step->splits, step->behavior, step->invert, step->prepend};
        for (unsigned f = 0; f < sizeof fields / sizeof fields[0]; f++)
            pd_digest_number(stream, fields[f]);
        pd_matcher_digest(&step->matcher, stream);
    }
}

static pd_status emit(struct pieces *p, size_t start, size_t end)
{
    const size_t origin = p->slice.origin_bytes > start ? p->slice.origin_bytes - start : 0;
    if (start == end) return PD_OK;
    const struct pd_text_slice piece = {p->slice.text + start, end - start, origin < end - start ? origin : end - start};
    return run_steps(p->run, p->step + 1, piece);
}

static pd_status split_flush(struct pieces *p)
{
    if (!p->waits) return PD_OK;
    p->waits = false;
    return emit(p, p->start, p->end);
}

static pd_status wait_with(struct pieces *p, size_t start, size_t end, bool is_match)
{
    PD_TRY(split_flush(p));
    p->start = start;
    p->end = end;
    p->waits = true;
    p->waits_match = is_match;
    return PD_OK;
}

static pd_status split_put(struct pieces *p, size_t start, size_t end, bool is_match)
{
    switch (p->run->splitter->steps[p->step].behavior) {
    case PD_SPLIT_REMOVED:
        return is_match ? PD_OK : emit(p, start, end);
    case PD_SPLIT_ISOLATED:
        return emit(p, start, end);
    case PD_SPLIT_CONTIGUOUS:
        if (!p->waits || p->waits_match != is_match) return wait_with(p, start, end, is_match);
        p->end = end;
        return PD_OK;
    case PD_SPLIT_MERGED_WITH_PREVIOUS:
        if (!is_match || !p->waits || p->waits_match) return wait_with(p, start, end, is_match);
        p->end = end;
        p->waits_match = true;
        return PD_OK;
    case PD_SPLIT_MERGED_WITH_NEXT:
        if (is_match || !p->waits || !p->waits_match) return wait_with(p, start, end, is_match);
        p->end = end;
        p->waits_match = false;
        return PD_OK;
    }
    return PD_OK;
}

static pd_status split_at_matches(struct run *run, uint32_t index, struct pd_text_slice slice)
{
    const struct pd_split_step *step = &run->splitter->steps[index];
    struct pieces pieces = {.run = run, .step = index, .slice = slice};
    struct pd_match_cursor cursor = {0};
    size_t done = 0;
    for (;;) {
        size_t start, end;
        PD_TRY(pd_matcher_next(&step->matcher, run->patterns, slice.text, slice.bytes, &cursor, &start, &end, run->err));
        if (start == SIZE_MAX) break;
        if (start > done) PD_TRY(split_put(&pieces, done, start, step->invert));
        PD_TRY(split_put(&pieces, start, end, !step->invert));
        done = end;
    }
    if (done < slice.bytes) PD_TRY(split_put(&pieces, done, slice.bytes, step->invert));
    return split_flush(&pieces);
}

/* Puts a space mark before the text, unless it has one. */
static pd_status prepend(struct run *run, struct pd_string *out, const char *mark, size_t mark_bytes,
                         struct pd_text_slice *slice)
{
    if (slice->bytes >= mark_bytes && !memcmp(slice->text, mark, mark_bytes)) return PD_OK;
    const bool inside = slice->text == out->bytes; /* it holds replaced spaces */
    PD_TRY(pd_string_reserve(out, mark_bytes + (inside ? 0 : slice->bytes), run->err));
    memmove(out->bytes + mark_bytes, inside ? out->bytes : slice->text, slice->bytes);
    memcpy(out->bytes, mark, mark_bytes);
    pd_string_cut(out, slice->bytes + mark_bytes);
    *slice = (struct pd_text_slice){out->bytes, out->count, slice->origin_bytes ? slice->origin_bytes + mark_bytes : 0};
    return PD_OK;
}

static pd_status run_byte_level(struct run *run, uint32_t index, struct pd_text_slice slice)
{
    const struct pd_split_step *step = &run->splitter->steps[index];
    struct pd_string *out = &run->scratch->texts[index];
    pd_string_cut(out, 0);
    if (step->prepend == PD_PREPEND_ALWAYS) PD_TRY(prepend(run, out, " ", 1, &slice));
    return step->splits ? split_at_matches(run, index, slice) : run_steps(run, index + 1, slice);
}

static pd_status replace_spaces(struct run *run, const struct pd_matcher *mark, struct pd_string *out,
                                struct pd_text_slice *slice)
{
    const char *text = slice->text, *end = text + slice->bytes, *space;
    if (!memchr(text, ' ', slice->bytes)) return PD_OK;
    const size_t origin = slice->origin_bytes && *text == ' ' ? mark->source_bytes : slice->origin_bytes;
    for (; (space = memchr(text, ' ', (size_t)(end - text))); text = space + 1) {
        PD_TRY(pd_string_add(out, text, (size_t)(space - text), run->err));
        PD_TRY(pd_string_add(out, mark->source, mark->source_bytes, run->err));
    }
    PD_TRY(pd_string_add(out, text, (size_t)(end - text), run->err));
    *slice = (struct pd_text_slice){out->bytes, out->count, origin};
    return PD_OK;
}

static pd_status run_metaspace(struct run *run, uint32_t index, struct pd_text_slice slice)
{
    const struct pd_split_step *step = &run->splitter->steps[index];
    struct pd_string *out = &run->scratch->texts[index];
    pd_string_cut(out, 0);
    PD_TRY(replace_spaces(run, &step->matcher, out, &slice));
    const bool wanted = step->prepend == PD_PREPEND_ALWAYS || (step->prepend == PD_PREPEND_FIRST && slice.origin_bytes);
    if (wanted) PD_TRY(prepend(run, out, step->matcher.source, step->matcher.source_bytes, &slice));
    return step->splits ? split_at_matches(run, index, slice) : run_steps(run, index + 1, slice);
}

static pd_status run_steps(struct run *run, uint32_t index, struct pd_text_slice slice)
{
    if (index == run->splitter->count) return run->sink->take(run->sink->context, slice.text, slice.bytes, run->err);
    switch (run->splitter->steps[index].kind) {
    case PD_SPLIT_BYTE_LEVEL:
        return run_byte_level(run, index, slice);
    case PD_SPLIT_METASPACE:
        return run_metaspace(run, index, slice);
    case PD_SPLIT_MATCHES:
        return split_at_matches(run, index, slice);
    }
    return PD_OK;
}

pd_status pd_splitter_run(const struct pd_splitter *splitter, struct pd_split_scratch *scratch,
                          struct pd_pattern_scratch *patterns, struct pd_text_slice slice, const struct pd_word_sink *sink,
                          struct pd_error *err)
{
    struct run run = {splitter, scratch, patterns, sink, err};
    return slice.bytes ? run_steps(&run, 0, slice) : PD_OK;
}
