/* Decoders look at neighbours (bytes that make one character, the first piece that loses its space), so a stream decodes the
 * tokens of its last piece of text again together with what is new, and gives what that adds. */
#include "trainer/tokenizer/parts.h"
#include "trainer/tokenizer/tokenizer.h"

#define REPLACEMENT "\xef\xbf\xbd"

struct pd_decode_stream {
    const struct pd_tokenizer *tokenizer;
    struct pd_tokenizer_scratch *scratch;
    struct pd_tokens held;   /* tokens of the last text that was given, then those that wait */
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

/* Ends in the middle of a character: of bytes that are not all there, or of U+FFFD that stands for such. */
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
