/* Where tokens lie in the text that they were made of: their bytes are looked for one after the other. */
#include "trainer/tokenizer/byte_level.h"
#include "trainer/tokenizer/parts.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/unicode.h"

#include <string.h>

#define MARK "\xe2\x96\x81" /* stands for a space where a tokenizer has no bytes of its own */
#define MARK_BYTES 3u

struct alignment {
    const struct pd_tokenizer *tokenizer;
    const char *text;
    size_t bytes, at;
    bool is_byte_level;
    struct pd_string token; /* bytes of the current token, as text has them */
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f';
}

static bool take(struct alignment *a, const char *token, size_t bytes)
{
    if (bytes > a->bytes - a->at || memcmp(a->text + a->at, token, bytes) != 0) return false;
    a->at += bytes;
    return true;
}

/* With the blanks that it takes in. */
static bool take_added(struct alignment *a, const struct pd_added_token *added)
{
    const size_t start = a->at;
    while (added->lstrip && a->at < a->bytes && is_blank(a->text[a->at]))
        a->at++;
    if (!take(a, added->content, strlen(added->content))) {
        a->at = start;
        return false;
    }
    while (added->rstrip && a->at < a->bytes && is_blank(a->text[a->at]))
        a->at++;
    return true;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* A token's bytes: of a byte level, of <0xHH>, or with spaces for marks. */
static pd_status bytes_of(struct alignment *a, const char *text, size_t bytes, struct pd_error *err)
{
    bool all = false;
    pd_string_cut(&a->token, 0);
    if (a->is_byte_level) PD_TRY(pd_byte_level_decode(text, bytes, &a->token, &all, err));
    if (all) return PD_OK;
    if (bytes == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>' && hex(text[3]) >= 0 && hex(text[4]) >= 0) {
        const char byte = (char)(16 * hex(text[3]) + hex(text[4]));
        return pd_string_add(&a->token, &byte, 1, err);
    }
    for (const char *found; (found = memmem(text, bytes, MARK, MARK_BYTES));
         bytes -= (size_t)(found - text) + MARK_BYTES, text = found + MARK_BYTES) {
        PD_TRY(pd_string_add(&a->token, text, (size_t)(found - text), err));
        PD_TRY(pd_string_add(&a->token, " ", 1, err));
    }
    return pd_string_add(&a->token, text, bytes, err);
}

static pd_status take_token(struct alignment *a, int32_t id, struct pd_error *err)
{
    const struct pd_added_token *added = pd_added_by_id(&a->tokenizer->added, (uint32_t)id);
    size_t bytes = 0;
    const char *text = pd_vocab_text(&a->tokenizer->vocab, (uint32_t)id, &bytes);
    if (added && take_added(a, added)) return PD_OK;
    if (!added && text) {
        PD_TRY(bytes_of(a, text, bytes, err));
        const char *own = a->token.bytes ? a->token.bytes : "";
        if (take(a, own, a->token.count)) return PD_OK;
        /* A tokenizer may put a space before the text, or before what follows an added token. */
        if (a->token.count && own[0] == ' ' && take(a, own + 1, a->token.count - 1)) return PD_OK;
    }
    PD_FAIL(err, PD_UNSUPPORTED,
            "token %d is not what the text has at byte %zu: the tokenizer changes text before it cuts it, so nobody can say "
            "which tokens have a loss; pack the text without turns",
            id, a->at);
}

pd_status pd_tokenizer_align(const struct pd_tokenizer *tokenizer, const char *text, size_t bytes, const int32_t *ids,
                             size_t count, size_t *ret_ends, struct pd_error *err)
{
    struct alignment a = {.tokenizer = tokenizer, .text = text, .bytes = bytes};
    const size_t before = tokenizer->before.count, behind = count - tokenizer->behind.count;
    pd_status st = PD_OK;
    for (uint32_t i = 0; i < tokenizer->splitter.count; i++)
        a.is_byte_level |= tokenizer->splitter.steps[i].kind == PD_SPLIT_BYTE_LEVEL;
    for (size_t i = 0; !st && i < count; i++) {
        if (tokenizer->is_bytes)
            a.at++;
        else if (i >= before && i < behind)
            st = take_token(&a, ids[i], err);
        ret_ends[i] = a.at;
    }
    pd_string_deinit(&a.token);
    return st;
}

pd_status pd_tokenizer_compose(const struct pd_tokenizer *tokenizer, const char *text, size_t bytes, struct pd_string *out,
                               struct pd_error *err)
{
    const struct pd_normalizer *normalizer = &tokenizer->normalizer;
    const bool composes = normalizer->count && normalizer->steps[0].kind == PD_NORMALIZE_NFC;
    if (!composes || pd_unicode_valid_bytes(text, bytes) != bytes || pd_unicode_is_normal(PD_NFC, text, bytes))
        return pd_string_add(out, text, bytes, err);
    return pd_unicode_normalize(PD_NFC, text, bytes, out, err);
}

void pd_tokenizer_template(const struct pd_tokenizer *tokenizer, size_t *ret_before, size_t *ret_behind)
{
    *ret_before = tokenizer->before.count;
    *ret_behind = tokenizer->behind.count;
}
