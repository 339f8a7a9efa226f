/* Three optimisations, which change no token.
 * 1. A cache of words, one cache line each: key, count, tokens. A collision overwrites.
 * 2. Short words keep the ranks of their pairs in an array that is searched; longer ones use a heap.
 * 3. Text not cut by a pre-tokenizer (SentencePiece's models join whole documents) is cut here, between two characters that
 *    no merge joins: merges on both sides never meet, so each side can be encoded alone. */
#include "trainer/tokenizer/bpe.h"
#include "trainer/tokenizer/byte_level.h"
#include "trainer/tokenizer/unicode.h"
#include <stdio.h>

/* ---- where text may be cut ---- */

/* Which two characters some merge joins: the last of its left token and the first of its right one. Between two others no merge
 * ever happens, so text may be cut there.
 *   threads  any */

#define ASCII 128u

struct pd_joins {
    bool ascii[ASCII][ASCII];
    struct pd_merge_table *pairs; /* of characters instead of tokens */
};

static bool join_of(const struct pd_vocab *vocab, const struct pd_merge *merge, struct pd_merge *ret_pair)
{
    size_t left_bytes = 0, right_bytes = 0;
    unsigned length;
    const char *left = pd_vocab_text(vocab, merge->left, &left_bytes);
    const char *right = pd_vocab_text(vocab, merge->right, &right_bytes);
    if (!left || !right || !left_bytes || !right_bytes) return false;
    ret_pair->left = pd_unicode_at(left + left_bytes - pd_unicode_last_bytes(left, left_bytes), &length);
    ret_pair->right = pd_unicode_at(right, &length);
    return true;
}

static pd_status joins_new(const struct pd_vocab *vocab, const struct pd_merge *merges, uint32_t count,
                           struct pd_joins **ret_joins, struct pd_error *err)
{
    struct pd_joins *joins = *ret_joins = calloc(1, sizeof *joins);
    struct pd_merge *pairs = calloc((size_t)count + 1, sizeof *pairs);
    uint32_t kept = 0;
    pd_status status = PD_ALLOCATED(joins && pairs, err, "no memory for %u merges", count);
    for (uint32_t i = 0; !status && i < count; i++) {
        struct pd_merge *pair = &pairs[kept];
        if (!join_of(vocab, &merges[i], pair)) continue;
        if (pair->left < ASCII && pair->right < ASCII) joins->ascii[pair->left][pair->right] = true;
        kept++;
    }
    if (!status) status = pd_merge_table_new(pairs, kept, &joins->pairs, err);
    free(pairs);
    return status;
}

static void joins_free(struct pd_joins *joins)
{
    if (!joins) return;
    pd_merge_table_free(joins->pairs);
    free(joins);
}

/* Bytes up to the first place where valid UTF-8 may be cut; all if there is none. */
static size_t joins_cut(const struct pd_joins *joins, const char *text, size_t bytes)
{
    unsigned length;
    uint32_t before = pd_unicode_at(text, &length);
    for (size_t at = length; at < bytes; at += length) {
        const uint32_t code = pd_unicode_at(text + at, &length);
        const bool joined =
            before < ASCII && code < ASCII ? joins->ascii[before][code] : pd_merge_table_has(joins->pairs, before, code);
        if (!joined) return at;
        before = code;
    }
    return bytes;
}

/* ---- words ---- */

#define CACHE_BITS 15
#define CACHE_KEY_BYTES 30u
#define CACHE_TOKENS 7u
#define DIRECT_CODES 0x10000u /* code points with a table of their own */

struct cache_line {
    unsigned char key_bytes, token_count; /* token_count 0: free */
    char key[CACHE_KEY_BYTES];
    int32_t ids[CACHE_TOKENS];
    uint32_t hash;
};
_Static_assert(sizeof(struct cache_line) == 64, "a line");

struct pd_bpe {
    const struct pd_vocab *vocab;
    struct pd_bpe_options options;
    struct pd_merge_table *merges;
    struct pd_joins *joins;   /* NULL: text is not cut */
    int32_t *direct;          /* (DIRECT_CODES) token of a character, byte-level: (256) of a byte; -1: none */
    int32_t byte_tokens[256]; /* <0xHH>; -1: none */
};

struct pd_bpe_scratch {
    struct cache_line *cache; /* (1 << CACHE_BITS), allocated at the first word: decoding needs none */
    struct pd_merge_scratch merge;
    struct pd_string word; /* byte-level: a word as the vocabulary has it */
};

/* ---- symbols ---- */

/* Byte-level input is a byte, else a character. The text as the vocabulary has it. */
static unsigned symbol_text(const struct pd_bpe *bpe, const char *at, unsigned *ret_bytes, char text[4])
{
    if (bpe->options.byte_level) {
        *ret_bytes = 1;
        return pd_unicode_put(pd_byte_level_char((unsigned char)*at), text);
    }
    (void)pd_unicode_at(at, ret_bytes);
    memcpy(text, at, *ret_bytes);
    return *ret_bytes;
}

static int32_t known_symbol(const struct pd_bpe *bpe, const char *at, unsigned *ret_bytes)
{
    if (bpe->options.byte_level) {
        *ret_bytes = 1;
        return bpe->direct[(unsigned char)*at];
    }
    uint32_t code = pd_unicode_at(at, ret_bytes);
    return code < DIRECT_CODES ? bpe->direct[code] : pd_vocab_find(bpe->vocab, at, *ret_bytes);
}

static bool put_bytes(const struct pd_bpe *bpe, const char *text, unsigned bytes, struct pd_merge_scratch *merge)
{
    if (!bpe->options.byte_fallback) return false;
    for (unsigned i = 0; i < bytes; i++)
        if (bpe->byte_tokens[(unsigned char)text[i]] < 0) return false;
    for (unsigned i = 0; i < bytes; i++)
        merge->symbols[merge->count++] = (uint32_t)bpe->byte_tokens[(unsigned char)text[i]];
    return true;
}

/* An unknown token waits for a known one, as fuse_unknown needs; fallback bytes do not end the wait. Same as the reference.
 */
static pd_status put_symbols(const struct pd_bpe *bpe, struct pd_bpe_scratch *scratch, const char *text, size_t bytes,
                             struct pd_error *err)
{
    struct pd_merge_scratch *merge = &scratch->merge;
    bool waits = false;
    PD_TRY(pd_merge_reserve(merge, bpe->options.byte_level ? 2 * bytes : bytes, err));
    merge->count = 0;
    for (size_t at = 0; at < bytes;) {
        unsigned length;
        int32_t id = known_symbol(bpe, text + at, &length);
        if (id < 0) {
            char symbol[4];
            unsigned symbol_bytes = symbol_text(bpe, text + at, &length, symbol);
            at += length;
            if (put_bytes(bpe, symbol, symbol_bytes, merge) || bpe->options.unknown < 0) continue;
            if (waits && !bpe->options.fuse_unknown) merge->symbols[merge->count++] = (uint32_t)bpe->options.unknown;
            waits = true;
            continue;
        }
        at += length;
        if (waits) merge->symbols[merge->count++] = (uint32_t)bpe->options.unknown;
        waits = false;
        merge->symbols[merge->count++] = (uint32_t)id;
    }
    if (waits) merge->symbols[merge->count++] = (uint32_t)bpe->options.unknown;
    return PD_OK;
}

/* ---- words ---- */

#define FOUND_BYTES_MAX (1u << 20) /* of a word that may be a token */

/* The token that a word is; -1: none. */
static pd_status find_word(const struct pd_bpe *bpe, struct pd_string *word, const char *text, size_t bytes, int32_t *ret_id,
                           struct pd_error *err)
{
    *ret_id = -1;
    if (bytes > FOUND_BYTES_MAX) return PD_OK;
    pd_string_cut(word, 0);
    if (bpe->options.byte_level) {
        PD_TRY(pd_string_reserve(word, 2 * bytes, err));
        for (size_t i = 0; i < bytes; i++)
            word->count += pd_unicode_put(pd_byte_level_char((unsigned char)text[i]), word->bytes + word->count);
        text = word->bytes;
        bytes = word->count;
    }
    *ret_id = pd_vocab_find(bpe->vocab, text, bytes);
    return PD_OK;
}

static pd_status encode_new(const struct pd_bpe *bpe, struct pd_bpe_scratch *scratch, const char *text, size_t bytes,
                            struct pd_tokens *tokens, struct pd_error *err)
{
    if (bpe->options.ignore_merges) {
        int32_t id;
        PD_TRY(find_word(bpe, &scratch->word, text, bytes, &id, err));
        if (id >= 0) return pd_tokens_add(tokens, &id, 1, err);
    }
    PD_TRY(put_symbols(bpe, scratch, text, bytes, err));
    PD_TRY(pd_merge_all(bpe->merges, &scratch->merge, err));
    return pd_tokens_add(tokens, (const int32_t *)scratch->merge.symbols, scratch->merge.count, err);
}

static pd_status encode_word(const struct pd_bpe *bpe, struct pd_bpe_scratch *scratch, const char *text, size_t bytes,
                             struct pd_tokens *tokens, struct pd_error *err)
{
    if (bytes > CACHE_KEY_BYTES) return encode_new(bpe, scratch, text, bytes, tokens, err);
    const uint64_t hash = pd_string_hash(text, bytes);
    struct cache_line *line = &scratch->cache[hash >> (64 - CACHE_BITS)];
    if (line->token_count && line->hash == (uint32_t)hash && line->key_bytes == bytes && !memcmp(line->key, text, bytes))
        return pd_tokens_add(tokens, line->ids, line->token_count, err);
    const size_t before = tokens->count;
    PD_TRY(encode_new(bpe, scratch, text, bytes, tokens, err));
    const size_t made = tokens->count - before;
    if (!made || made > CACHE_TOKENS) return PD_OK;
    line->hash = (uint32_t)hash;
    line->key_bytes = (unsigned char)bytes;
    line->token_count = (unsigned char)made;
    memcpy(line->key, text, bytes);
    memcpy(line->ids, tokens->ids + before, made * sizeof *line->ids);
    return PD_OK;
}

pd_status pd_bpe_encode(const struct pd_bpe *bpe, struct pd_bpe_scratch *scratch, const char *text, size_t bytes,
                        struct pd_tokens *tokens, struct pd_error *err)
{
    PD_CHECK(bytes < 1u << 31);
    if (!scratch->cache) scratch->cache = calloc(1u << CACHE_BITS, sizeof *scratch->cache);
    if (!scratch->cache) PD_FAIL(err, PD_NO_MEMORY, "no memory for a cache of words");
    while (bytes) {
        size_t part = bpe->joins ? joins_cut(bpe->joins, text, bytes) : bytes;
        PD_TRY(encode_word(bpe, scratch, text, part, tokens, err));
        text += part;
        bytes -= part;
    }
    return PD_OK;
}

/* ---- making one ---- */

/* A cut must not change where unknown characters fuse or, if dropped, let their neighbours meet, nor where a byte token
 * takes part in a merge. */
static bool may_cut(const struct pd_bpe *bpe, const struct pd_merge *merges, uint32_t count)
{
    const struct pd_bpe_options *options = &bpe->options;
    bool all_bytes = options->byte_fallback;
    for (unsigned byte = 0; byte < 256; byte++)
        all_bytes = all_bytes && bpe->byte_tokens[byte] >= 0;
    if (options->byte_level || options->ignore_merges || !all_bytes) return false;
    for (uint32_t i = 0; i < count; i++)
        for (unsigned byte = 0; byte < 256; byte++) {
            const int32_t id = bpe->byte_tokens[byte];
            if (id >= 0 && ((uint32_t)id == merges[i].left || (uint32_t)id == merges[i].right)) return false;
        }
    return true;
}

static pd_status bpe_build(struct pd_bpe *bpe, const struct pd_merge *merges, uint32_t count, struct pd_error *err)
{
    const uint32_t codes = bpe->options.byte_level ? 256 : DIRECT_CODES;
    bpe->direct = malloc(codes * sizeof *bpe->direct);
    if (!bpe->direct) PD_FAIL(err, PD_NO_MEMORY, "no memory for a tokenizer");
    for (uint32_t code = 0; code < codes; code++) {
        char text[4];
        const uint32_t written = bpe->options.byte_level ? pd_byte_level_char((unsigned char)code) : code;
        const bool is_code = written < 0xd800 || written > 0xdfff;
        bpe->direct[code] = is_code ? pd_vocab_find(bpe->vocab, text, pd_unicode_put(written, text)) : -1;
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        bpe->byte_tokens[byte] = pd_vocab_find(bpe->vocab, name, 6);
    }
    if (may_cut(bpe, merges, count)) PD_TRY(joins_new(bpe->vocab, merges, count, &bpe->joins, err));
    return pd_merge_table_new(merges, count, &bpe->merges, err);
}

pd_status pd_bpe_new(const struct pd_vocab *vocab, const struct pd_bpe_options *options, const struct pd_merge *merges,
                     uint32_t count, struct pd_bpe **ret_bpe, struct pd_error *err)
{
    struct pd_bpe *bpe = calloc(1, sizeof *bpe);
    if (!bpe) PD_FAIL(err, PD_NO_MEMORY, "no memory for a tokenizer");
    bpe->vocab = vocab;
    bpe->options = *options;
    pd_status status = bpe_build(bpe, merges, count, err);
    if (status) {
        pd_bpe_free(bpe);
        return status;
    }
    *ret_bpe = bpe;
    return PD_OK;
}

void pd_bpe_free(struct pd_bpe *bpe)
{
    if (!bpe) return;
    pd_merge_table_free(bpe->merges);
    joins_free(bpe->joins);
    free(bpe->direct);
    free(bpe);
}

pd_status pd_bpe_scratch_new(struct pd_bpe_scratch **ret_scratch, struct pd_error *err)
{
    struct pd_bpe_scratch *scratch = calloc(1, sizeof *scratch);
    if (!scratch) PD_FAIL(err, PD_NO_MEMORY, "no memory to encode words");
    *ret_scratch = scratch;
    return PD_OK;
}

void pd_bpe_scratch_free(struct pd_bpe_scratch *scratch)
{
    if (!scratch) return;
    pd_merge_scratch_deinit(&scratch->merge);
    pd_string_deinit(&scratch->word);
    free(scratch->cache);
    free(scratch);
}
