/* Encoding: added tokens found in the raw text; then, on the text between them, the normalizer, added tokens found in
 * normalized text, pre-tokenizers, and the model on each word. */
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/parts.h"
#include "trainer/tokenizer/unicode.h"

uint64_t pd_tokenizer_digest_of_bytes(void)
{
    return pd_digest64("byte", 4, 1);
}

/* ---- streaming text ---- */

/* Decoders look at neighbours (bytes of one character, the first piece that loses its space). So a stream decodes the tokens
 * of its last text again together with new ones, and returns the added text. */

#define REPLACEMENT "\xef\xbf\xbd"

struct pd_decode_stream {
    const struct pd_tokenizer *tokenizer;
    struct pd_tokenizer_scratch *scratch;
    struct pd_tokens held;   /* tokens of the last returned text, then pending ones */
    size_t given;            /* of them */
    struct pd_string prefix; /* text of the given ones */
    struct pd_string now;    /* text of all held */
    bool skip_special;
};

pd_status pd_decode_stream_new(const struct pd_tokenizer *tokenizer, bool skip_special, struct pd_decode_stream **ret_stream,
                               struct pd_error *err)
{
    struct pd_decode_stream *stream = calloc(1, sizeof *stream);
    if (!stream) PD_FAIL(err, PD_NO_MEMORY, "no memory to decode tokens");
    stream->tokenizer = tokenizer;
    stream->skip_special = skip_special;
    pd_status status = pd_tokenizer_scratch_new(tokenizer, &stream->scratch, err);
    if (status) {
        pd_decode_stream_free(stream);
        return status;
    }
    *ret_stream = stream;
    return PD_OK;
}

void pd_decode_stream_free(struct pd_decode_stream *stream)
{
    if (!stream) return;
    pd_tokenizer_scratch_free(stream->scratch);
    pd_tokens_deinit(&stream->held);
    pd_string_deinit(&stream->prefix);
    pd_string_deinit(&stream->now);
    free(stream);
}

static pd_status decode_held(struct pd_decode_stream *s, size_t first, struct pd_string *out, struct pd_error *err)
{
    pd_string_cut(out, 0);
    return pd_tokenizer_decode(s->tokenizer, s->scratch, s->held.ids + first, s->held.count - first, s->skip_special, out,
                               err);
}

/* Whether the text does not end inside a character: with incomplete bytes, or a U+FFFD that stands for them. */
static bool is_whole(const struct pd_decode_stream *s)
{
    const struct pd_string *now = &s->now;
    const size_t bytes = sizeof REPLACEMENT - 1;
    if (!s->tokenizer->is_bytes)
        return now->count < bytes || memcmp(now->bytes + now->count - bytes, REPLACEMENT, bytes) != 0;
    for (size_t back = 1; back <= 3 && back <= now->count; back++) {
        const unsigned char lead = (unsigned char)now->bytes[now->count - back];
        if ((lead & 0xc0) == 0x80) continue;
        return lead < 0xc2 || lead > 0xf4 || back >= (lead < 0xe0 ? 2u : lead < 0xf0 ? 3u : 4u);
    }
    return true;
}

static pd_status give(struct pd_decode_stream *s, const char **ret_text, size_t *ret_bytes, struct pd_error *err)
{
    const size_t same =
        s->prefix.count <= s->now.count && s->prefix.count && !memcmp(s->prefix.bytes, s->now.bytes, s->prefix.count)
            ? s->prefix.count
            : 0;
    *ret_bytes = s->now.count - same;
    *ret_text = *ret_bytes ? s->now.bytes + same : "";
    if (!*ret_bytes) return PD_OK;
    memmove(s->held.ids, s->held.ids + s->given, (s->held.count - s->given) * sizeof *s->held.ids);
    s->held.count -= s->given;
    s->given = s->held.count;
    return decode_held(s, 0, &s->prefix, err);
}

pd_status pd_decode_stream_add(struct pd_decode_stream *s, int32_t id, const char **ret_text, size_t *ret_bytes,
                               struct pd_error *err)
{
    *ret_text = "";
    *ret_bytes = 0;
    PD_TRY(pd_tokens_add(&s->held, &id, 1, err));
    PD_TRY(decode_held(s, 0, &s->now, err));
    return is_whole(s) ? give(s, ret_text, ret_bytes, err) : PD_OK;
}

pd_status pd_decode_stream_end(struct pd_decode_stream *s, const char **ret_text, size_t *ret_bytes, struct pd_error *err)
{
    *ret_text = "";
    *ret_bytes = 0;
    if (!s->held.count) return PD_OK;
    PD_TRY(decode_held(s, 0, &s->now, err));
    return give(s, ret_text, ret_bytes, err);
}

/* ---- encode and decode ---- */

struct pd_tokenizer_scratch {
    struct pd_string repaired;
    struct pd_normalizer_scratch normalizer;
    struct pd_split_scratch split;
    struct pd_pattern_scratch *patterns;
    struct pd_bpe_scratch *bpe;
    struct pd_pieces pieces, spare;
};

/* ---- parts ---- */

bool pd_tokenizer_is_byte_level(const struct pd_tokenizer *tokenizer)
{
    const uint32_t count = tokenizer->splitter.count;
    return count && tokenizer->splitter.steps[count - 1].kind == PD_SPLIT_BYTE_LEVEL;
}

static uint64_t digest_parts(const struct pd_tokenizer *t, const struct pd_merge *merges, uint32_t count)
{
    struct pd_digest_stream stream;
    const struct pd_bpe_options *o = &t->bpe_options;
    const uint64_t options[] = {(uint64_t)o->unknown, o->fuse_unknown, o->byte_fallback, o->ignore_merges, count};
    pd_digest_stream_init(&stream, 1);
    for (uint32_t id = 0; id < t->vocab.limit; id++) {
        size_t bytes;
        const char *text = pd_vocab_text(&t->vocab, id, &bytes);
        if (text) pd_digest_number(&stream, id);
        if (text) pd_digest_text(&stream, text, bytes);
    }
    for (unsigned i = 0; i < sizeof options / sizeof options[0]; i++)
        pd_digest_number(&stream, options[i]);
    for (uint32_t i = 0; i < count; i++) {
        pd_digest_number(&stream, (uint64_t)merges[i].left << 32 | merges[i].right);
        pd_digest_number(&stream, (uint64_t)merges[i].rank << 32 | merges[i].result);
    }
    pd_added_digest(&t->added, &stream);
    pd_normalizer_digest(&t->normalizer, &stream);
    pd_splitter_digest(&t->splitter, &stream);
    for (size_t i = 0; i < t->before.count; i++)
        pd_digest_number(&stream, (uint64_t)t->before.ids[i]);
    pd_digest_number(&stream, t->before.count);
    for (size_t i = 0; i < t->behind.count; i++)
        pd_digest_number(&stream, (uint64_t)t->behind.ids[i]);
    const uint64_t digest = pd_digest_stream_value(&stream);
    return digest ? digest : 1;
}

pd_status pd_tokenizer_finish(struct pd_tokenizer *t, const struct pd_merge *merges, uint32_t count, struct pd_error *err)
{
    t->bpe_options.byte_level = pd_tokenizer_is_byte_level(t);
    t->limit = t->vocab.limit;
    for (uint32_t i = 0; i < t->added.count; i++)
        if (t->added.tokens[i].id >= t->limit) t->limit = t->added.tokens[i].id + 1;
    PD_TRY(pd_added_index(&t->added, err));
    PD_TRY(pd_bpe_new(&t->vocab, &t->bpe_options, merges, count, &t->bpe, err));
    t->digest = digest_parts(t, merges, count);
    return PD_OK;
}

void pd_tokenizer_free(struct pd_tokenizer *t)
{
    if (!t) return;
    pd_bpe_free(t->bpe);
    free(t->merges);
    pd_vocab_deinit(&t->vocab);
    pd_added_deinit(&t->added);
    pd_normalizer_deinit(&t->normalizer);
    pd_splitter_deinit(&t->splitter);
    pd_decoder_deinit(&t->decoder);
    pd_tokens_deinit(&t->before);
    pd_tokens_deinit(&t->behind);
    free(t->json);
    free(t);
}

uint32_t pd_tokenizer_vocab(const struct pd_tokenizer *tokenizer)
{
    return tokenizer->limit;
}

uint64_t pd_tokenizer_digest(const struct pd_tokenizer *tokenizer)
{
    return tokenizer->digest;
}

const char *pd_tokenizer_json(const struct pd_tokenizer *tokenizer, size_t *ret_bytes)
{
    *ret_bytes = tokenizer->json_bytes;
    return tokenizer->json;
}

bool pd_tokenizer_is_bytes(const struct pd_tokenizer *tokenizer)
{
    return tokenizer->is_bytes;
}

int32_t pd_tokenizer_find(const struct pd_tokenizer *tokenizer, const char *text)
{
    for (uint32_t i = 0; i < tokenizer->added.count; i++)
        if (!strcmp(tokenizer->added.tokens[i].content, text)) return (int32_t)tokenizer->added.tokens[i].id;
    return pd_vocab_find(&tokenizer->vocab, text, strlen(text));
}

const char *pd_tokenizer_text(const struct pd_tokenizer *tokenizer, uint32_t id, size_t *ret_bytes)
{
    const struct pd_added_token *token = pd_added_by_id(&tokenizer->added, id);
    if (!token) return pd_vocab_text(&tokenizer->vocab, id, ret_bytes);
    const char *text = token->normalized ? token->normalized : token->content;
    *ret_bytes = strlen(text);
    return text;
}

/* ---- scratch ---- */

pd_status pd_tokenizer_scratch_new(const struct pd_tokenizer *tokenizer, struct pd_tokenizer_scratch **ret_scratch,
                                   struct pd_error *err)
{
    struct pd_tokenizer_scratch *scratch = calloc(1, sizeof *scratch);
    if (!scratch) PD_FAIL(err, PD_NO_MEMORY, "no memory to encode text");
    pd_status status = pd_pattern_scratch_new(&scratch->patterns, err);
    if (!status && !tokenizer->is_bytes) status = pd_bpe_scratch_new(&scratch->bpe, err);
    if (status) {
        pd_tokenizer_scratch_free(scratch);
        return status;
    }
    *ret_scratch = scratch;
    return PD_OK;
}

void pd_tokenizer_scratch_free(struct pd_tokenizer_scratch *scratch)
{
    if (!scratch) return;
    pd_string_deinit(&scratch->repaired);
    for (unsigned i = 0; i < 2; i++)
        pd_string_deinit(&scratch->normalizer.texts[i]);
    for (unsigned i = 0; i < PD_STEPS_MAX; i++)
        pd_string_deinit(&scratch->split.texts[i]);
    pd_pattern_scratch_free(scratch->patterns);
    pd_bpe_scratch_free(scratch->bpe);
    pd_pieces_deinit(&scratch->pieces);
    pd_pieces_deinit(&scratch->spare);
    free(scratch);
}

/* ---- encoding ---- */

struct encoding {
    const struct pd_tokenizer *tokenizer;
    struct pd_tokenizer_scratch *scratch;
    struct pd_tokens *tokens;
    struct pd_error *err;
};

static pd_status take_word(void *context, const char *text, size_t bytes, struct pd_error *err)
{
    const struct encoding *e = context;
    return pd_bpe_encode(e->tokenizer->bpe, e->scratch->bpe, text, bytes, e->tokens, err);
}

static pd_status encode_words(struct encoding *e, struct pd_text_slice slice)
{
    const struct pd_word_sink sink = {take_word, e};
    return pd_splitter_run(&e->tokenizer->splitter, &e->scratch->split, e->scratch->patterns, slice, &sink, e->err);
}

/* Added tokens of one trie, and `next` on the text between them. */
static pd_status encode_between(struct encoding *e, const struct pd_added_trie *trie, struct pd_text_slice slice,
                                pd_status (*next)(struct encoding *, struct pd_text_slice))
{
    struct pd_added_cursor cursor = {0};
    size_t done = 0;
    for (;;) {
        const struct pd_added_match match = pd_added_next(&e->tokenizer->added, trie, slice.text, slice.bytes, &cursor);
        const size_t end = match.start == SIZE_MAX ? slice.bytes : match.start;
        const size_t origin = slice.origin_bytes > done ? slice.origin_bytes - done : 0;
        if (end > done) PD_TRY(next(e, (struct pd_text_slice){slice.text + done, end - done, origin}));
        if (match.start == SIZE_MAX) return PD_OK;
        const int32_t id = (int32_t)match.id;
        PD_TRY(pd_tokens_add(e->tokens, &id, 1, e->err));
        done = match.end;
    }
}

static pd_status encode_raw(struct encoding *e, struct pd_text_slice slice)
{
    PD_TRY(pd_normalizer_run(&e->tokenizer->normalizer, &e->scratch->normalizer, e->scratch->patterns, &slice, e->err));
    return encode_between(e, &e->tokenizer->added.normalized, slice, encode_words);
}

static pd_status encode_bytes(const char *text, size_t bytes, struct pd_tokens *tokens, struct pd_error *err)
{
    int32_t ids[256];
    for (size_t at = 0; at < bytes;) {
        size_t part = 0;
        for (; part < sizeof ids / sizeof ids[0] && at < bytes; part++)
            ids[part] = (unsigned char)text[at++];
        PD_TRY(pd_tokens_add(tokens, ids, part, err));
    }
    return PD_OK;
}

pd_status pd_tokenizer_encode(const struct pd_tokenizer *tokenizer, struct pd_tokenizer_scratch *scratch, const char *text,
                              size_t bytes, bool goes_on, struct pd_tokens *tokens, struct pd_error *err)
{
    struct encoding e = {tokenizer, scratch, tokens, err};
    unsigned first = 0;
    if (bytes > PD_TOKENIZER_DOCUMENT_BYTES_MAX)
        PD_FAIL(err, PD_INVALID, "a document of %zu bytes is too long; split it into documents of at most 1 GiB", bytes);
    if (tokenizer->is_bytes) return encode_bytes(text, bytes, tokens, err);
    if (pd_unicode_valid_bytes(text, bytes) != bytes) {
        pd_string_cut(&scratch->repaired, 0);
        PD_TRY(pd_unicode_repair(text, bytes, &scratch->repaired, err));
        text = scratch->repaired.bytes;
        bytes = scratch->repaired.count;
    }
    PD_TRY(pd_tokens_add(tokens, tokenizer->before.ids, tokenizer->before.count, err));
    if (bytes) (void)pd_unicode_at(text, &first);
    PD_TRY(encode_between(&e, &tokenizer->added.raw, (struct pd_text_slice){text, bytes, first}, encode_raw));
    return goes_on ? PD_OK : pd_tokens_add(tokens, tokenizer->behind.ids, tokenizer->behind.count, err);
}

/* ---- decoding ---- */

static pd_status list_pieces(const struct pd_tokenizer *tokenizer, struct pd_pieces *pieces, const int32_t *ids,
                             size_t count, bool skip_special, struct pd_error *err)
{
    pd_string_cut(&pieces->text, 0);
    pieces->count = 0;
    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        const char *text = ids[i] >= 0 ? pd_tokenizer_text(tokenizer, (uint32_t)ids[i], &bytes) : NULL;
        if (!text || (skip_special && pd_added_is_special(&tokenizer->added, text, bytes))) continue;
        PD_TRY(pd_pieces_add(pieces, text, bytes, err));
        if (!tokenizer->has_decoder) PD_TRY(pd_pieces_add(pieces, " ", 1, err));
    }
    if (!tokenizer->has_decoder && pieces->text.count) pd_string_cut(&pieces->text, pieces->text.count - 1);
    return PD_OK;
}

pd_status pd_tokenizer_decode(const struct pd_tokenizer *tokenizer, struct pd_tokenizer_scratch *scratch, const int32_t *ids,
                              size_t count, bool skip_special, struct pd_string *out, struct pd_error *err)
{
    struct pd_pieces *pieces = &scratch->pieces;
    if (tokenizer->is_bytes) {
        for (size_t i = 0; i < count; i++)
            if (ids[i] >= 0 && ids[i] < 256) {
                const char byte = (char)ids[i];
                PD_TRY(pd_string_add(out, &byte, 1, err));
            }
        return PD_OK;
    }
    PD_TRY(list_pieces(tokenizer, pieces, ids, count, skip_special, err));
    PD_TRY(pd_decoder_run(&tokenizer->decoder, scratch->patterns, pieces, &scratch->spare, err));
    return pd_string_add(out, pieces->text.bytes, pieces->text.count, err);
}
