/* Converts a tokenizer to GGUF metadata, in the JSON of tokenizer.gguf. It finds GGUF's kind by comparison: it loads a small
 * tokenizer as each kind and takes the one with the same steps. Then it loads the result and compares, so a tokenizer is
 * either written with the same tokens, or refused with the part that GGUF cannot express. */
#include "trainer/tokenizer/byte_level.h"
#include "trainer/tokenizer/load.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };

struct kind {
    const char *model, *pre;
    bool add_space_prefix;
};
static const struct kind kinds[] = {
    {"gpt2", "gpt-2", false}, {"gpt2", "llama-bpe", false}, {"gpt2", "qwen2", false},
    {"llama", NULL, true},    {"llama", NULL, false},
};

struct saving {
    const struct pd_tokenizer *tokenizer;
    const struct kind *kind;
    struct pd_tokenizer *model; /* the vocabulary again, needed to load merges */
    struct pd_merge *merges;    /* (merge_count) */
    uint32_t merge_count, vocab;
    int64_t bos, eos;
    struct pd_json_writer json;
    struct pd_string text; /* buffer for one token */
};

/* ---- which kind it is ---- */

static uint64_t steps_digest(const struct pd_tokenizer *t)
{
    struct pd_digest_stream stream;
    pd_digest_stream_init(&stream, 1);
    pd_normalizer_digest(&t->normalizer, &stream);
    pd_splitter_digest(&t->splitter, &stream);
    return pd_digest_stream_value(&stream);
}

static pd_status is_of_kind(const struct pd_tokenizer *t, const struct kind *kind, bool *ret, struct pd_error *err)
{
    char text[256];
    struct pd_tokenizer *probe = NULL;
    const int bytes = snprintf(text, sizeof text,
                               "{\"ggml.model\":\"%s\",\"ggml.pre\":\"%s\",\"ggml.tokens\":[\"a\"],\"ggml.scores\":[0],"
                               "\"ggml.add_space_prefix\":%s}",
                               kind->model, kind->pre ? kind->pre : "", kind->add_space_prefix ? "true" : "false");
    PD_TRY(pd_tokenizer_parse(PD_TOKENIZER_GGUF_FILE, text, (size_t)bytes, &probe, err));
    *ret = steps_digest(probe) == steps_digest(t) && probe->bpe_options.byte_fallback == t->bpe_options.byte_fallback &&
           probe->bpe_options.ignore_merges == t->bpe_options.ignore_merges;
    pd_tokenizer_free(probe);
    return PD_OK;
}

static pd_status find_kind(struct saving *s, struct pd_error *err)
{
    if (s->tokenizer->is_bytes) return s->kind = kinds, PD_OK;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        bool is_it = false;
        PD_TRY(is_of_kind(s->tokenizer, &kinds[i], &is_it, err));
        if (is_it) return s->kind = &kinds[i], PD_OK;
    }
    PD_FAIL(err, PD_UNSUPPORTED,
            "GGUF has no name for its normalizer and pre-tokenizer; perdure writes gpt-2, llama-bpe, qwen2 and "
            "SentencePiece");
}

static bool is_llama(const struct saving *s)
{
    return strcmp(s->kind->model, "llama") == 0;
}

/* ---- tokens ---- */

static bool is_byte_token(const char *text, size_t bytes)
{
    unsigned value;
    char again[8], own[8];
    if (bytes != 6) return false;
    memcpy(own, text, 6);
    own[6] = '\0';
    if (sscanf(own, "<0x%2X>", &value) != 1) return false;
    snprintf(again, sizeof again, "<0x%02X>", value);
    return memcmp(again, own, 6) == 0;
}

/* Text and type of a token; ids without one are padding, which matches no text. */
static pd_status save_gguf_describe(struct saving *s, uint32_t id, const char **ret_text, int *ret_type,
                                    struct pd_error *err)
{
    const struct pd_tokenizer *t = s->tokenizer;
    const struct pd_added_token *added = pd_added_by_id(&t->added, id);
    char padding[32], byte[5];
    size_t bytes = 0;
    const char *text = added ? added->content : pd_vocab_text(&t->vocab, id, &bytes);
    if (added) bytes = strlen(text);
    *ret_type = !text                                                           ? UNUSED
                : is_llama(s) && (int64_t)id == (int64_t)t->bpe_options.unknown ? UNKNOWN
                : added                                                         ? (added->special ? CONTROL : USER)
                : is_llama(s) && is_byte_token(text, bytes)                     ? BYTE
                                                                                : NORMAL;
    if (t->is_bytes && id < 256) {
        text = byte;
        bytes = pd_unicode_put(pd_byte_level_char((unsigned char)id), byte);
        *ret_type = NORMAL;
    } else if (!text) {
        bytes = (size_t)snprintf(padding, sizeof padding, "[PAD%u]", id);
        text = padding;
    }
    pd_string_cut(&s->text, 0);
    PD_TRY(pd_string_add(&s->text, text, bytes, err));
    PD_TRY(pd_string_add(&s->text, "", 1, err));
    *ret_text = s->text.bytes;
    return PD_OK;
}

/* ---- merges, or scores ---- */

static pd_status load_merges(struct saving *s, struct pd_error *err)
{
    struct pd_json_document *document = NULL;
    s->model = calloc(1, sizeof *s->model);
    if (!s->model) PD_FAIL(err, PD_NO_MEMORY, "no memory for a tokenizer");
    if (s->tokenizer->is_bytes) return PD_OK;
    const struct pd_loader loader = {PD_TOKENIZER_FILE, s->model};
    PD_TRY(pd_json_parse(loader.name, s->tokenizer->json, s->tokenizer->json_bytes, &document, err));
    const struct pd_json_value *model = pd_json_member(pd_json_root(document), "model");
    const pd_status st = model ? pd_load_model(&loader, model, &s->merges, &s->merge_count, err)
                               : pd_error_set(err, PD_BUG, PD_WHERE, 0, "a tokenizer without tokenizer.json");
    pd_json_document_free(document);
    return st;
}

static pd_status put_merges(struct saving *s, struct pd_error *err)
{
    pd_json_array_begin(&s->json, "ggml.merges");
    for (uint32_t i = 0; i < s->merge_count; i++) {
        const uint32_t halves[2] = {s->merges[i].left, s->merges[i].right};
        pd_string_cut(&s->text, 0);
        for (unsigned h = 0; h < 2; h++) {
            size_t bytes = 0;
            const char *text = pd_vocab_text(&s->model->vocab, halves[h], &bytes);
            PD_TRY(pd_string_add(&s->text, text, bytes, err));
            PD_TRY(pd_string_add(&s->text, h ? "" : " ", 1, err));
        }
        pd_json_string(&s->json, NULL, s->text.bytes);
    }
    pd_json_array_end(&s->json);
    return PD_OK;
}

/* SentencePiece has a score per token, not a rank per pair: merges of one token must be consecutive. */
static pd_status score_tokens(struct saving *s, float *scores, struct pd_error *err)
{
    for (uint32_t i = 0; i < s->merge_count; i++) {
        const uint32_t id = s->merges[i].result;
        if (i && s->merges[i - 1].result == id) continue;
        if (scores[id] != 0)
            PD_FAIL(err, PD_UNSUPPORTED, "its merges of token %u are apart, and GGUF's llama has one score for all of them",
                    id);
        scores[id] = -1.0f - (float)i;
    }
    return PD_OK;
}

static pd_status put_scores(struct saving *s, struct pd_error *err)
{
    float *scores = calloc((size_t)s->vocab + 1, sizeof *scores);
    if (!scores) PD_FAIL(err, PD_NO_MEMORY, "no memory for the scores of %u tokens", s->vocab);
    const pd_status st = score_tokens(s, scores, err);
    pd_json_array_begin(&s->json, "ggml.scores");
    for (uint32_t id = 0; !st && id < s->vocab; id++)
        pd_json_double(&s->json, NULL, (double)scores[id]);
    pd_json_array_end(&s->json);
    free(scores);
    return st;
}

/* ---- everything ---- */

static pd_status put_all(struct saving *s, struct pd_error *err)
{
    pd_json_object_begin(&s->json, NULL);
    pd_json_string(&s->json, "ggml.model", s->kind->model);
    if (s->kind->pre) pd_json_string(&s->json, "ggml.pre", s->kind->pre);
    const char *text = NULL;
    int type = 0;
    pd_json_array_begin(&s->json, "ggml.tokens");
    for (uint32_t id = 0; id < s->vocab; id++) {
        PD_TRY(save_gguf_describe(s, id, &text, &type, err));
        pd_json_string(&s->json, NULL, text);
    }
    pd_json_array_end(&s->json);
    pd_json_array_begin(&s->json, "ggml.token_type");
    for (uint32_t id = 0; id < s->vocab; id++) {
        PD_TRY(save_gguf_describe(s, id, &text, &type, err));
        pd_json_i64(&s->json, NULL, type);
    }
    pd_json_array_end(&s->json);
    PD_TRY(is_llama(s) ? put_scores(s, err) : put_merges(s, err));
    /* bos and eos come from the template, or else from the named tokens. */
    const struct pd_tokens *before = &s->tokenizer->before, *behind = &s->tokenizer->behind;
    if (before->count > 1 || behind->count > 1)
        PD_FAIL(err, PD_UNSUPPORTED, "its template has %zu tokens before a text and %zu behind; GGUF has one each",
                before->count, behind->count);
    if (before->count) s->bos = before->ids[0];
    if (behind->count) s->eos = behind->ids[0];
    if (s->bos >= 0) pd_json_i64(&s->json, "ggml.bos_token_id", s->bos);
    if (s->eos >= 0) pd_json_i64(&s->json, "ggml.eos_token_id", s->eos);
    if (is_llama(s) && s->tokenizer->bpe_options.unknown >= 0)
        pd_json_i64(&s->json, "ggml.unknown_token_id", s->tokenizer->bpe_options.unknown);
    pd_json_bool(&s->json, "ggml.add_bos_token", before->count == 1);
    pd_json_bool(&s->json, "ggml.add_eos_token", behind->count == 1);
    if (is_llama(s)) pd_json_bool(&s->json, "ggml.add_space_prefix", s->kind->add_space_prefix);
    pd_json_object_end(&s->json);
    return PD_OK;
}

/* The number of ways in which two tokens form one that a merge may produce. */
static uint64_t count_cuts(struct saving *s, const struct pd_vocab *vocab)
{
    uint64_t cuts = 0;
    for (uint32_t id = 0; id < s->vocab; id++) {
        const char *text = NULL;
        int type = 0;
        if (save_gguf_describe(s, id, &text, &type, NULL) || type == UNKNOWN || type == CONTROL || type == BYTE) continue;
        const size_t bytes = strlen(text);
        for (size_t at = 1; at < bytes; at++)
            cuts += ((unsigned char)text[at] & 0xc0) != 0x80 && pd_vocab_find(vocab, text, at) >= 0 &&
                    pd_vocab_find(vocab, text + at, bytes - at) >= 0;
    }
    return cuts;
}

/* Loads the result. A loader that joins any two tokens that form a third must find no more merges than we had. */
static pd_status check_written(struct saving *s, const char *text, size_t bytes, struct pd_error *err)
{
    struct pd_tokenizer *again = NULL;
    PD_TRY(pd_tokenizer_parse(PD_TOKENIZER_GGUF_FILE, text, bytes, &again, err));
    const uint64_t cuts = is_llama(s) ? count_cuts(s, &again->vocab) : s->merge_count;
    pd_tokenizer_free(again);
    if (cuts == s->merge_count) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED,
            "%llu pairs of its tokens make another token and %u of them are merges; GGUF's llama merges all, as "
            "SentencePiece does",
            (unsigned long long)cuts, s->merge_count);
}

static pd_status save_gguf_save(struct saving *s, char **ret_text, struct pd_error *err)
{
    const char *text = NULL;
    size_t bytes = 0;
    if (s->tokenizer->limit > s->vocab)
        PD_FAIL(err, PD_UNSUPPORTED, "it has %u tokens, and the model %u", s->tokenizer->limit, s->vocab);
    PD_TRY(find_kind(s, err));
    for (uint32_t i = 0; i < s->tokenizer->added.count; i++) {
        const struct pd_added_token *t = &s->tokenizer->added.tokens[i];
        if (t->single_word || t->lstrip || t->rstrip || (t->normalized && strcmp(t->normalized, t->content) != 0))
            PD_FAIL(err, PD_UNSUPPORTED,
                    "added token \"%.40s\" is found with single_word, lstrip, rstrip or normalized, and GGUF "
                    "has no such thing",
                    t->content);
    }
    PD_TRY(load_merges(s, err));
    PD_TRY(put_all(s, err));
    PD_TRY(pd_json_writer_finish(&s->json, &text, &bytes, err));
    PD_TRY(check_written(s, text, bytes, err));
    *ret_text = strdup(text);
    if (!*ret_text) PD_FAIL(err, PD_NO_MEMORY, "no memory for a tokenizer");
    return PD_OK;
}

pd_status pd_tokenizer_save_gguf(const struct pd_tokenizer *tokenizer, uint32_t vocab, int64_t bos, int64_t eos,
                                 char **ret_text, struct pd_error *err)
{
    struct saving s = {.tokenizer = tokenizer, .vocab = vocab, .bos = bos, .eos = eos};
    pd_json_writer_init(&s.json, 0);
    const pd_status st = save_gguf_save(&s, ret_text, err);
    pd_json_writer_deinit(&s.json);
    pd_string_deinit(&s.text);
    pd_tokenizer_free(s.model);
    free(s.merges);
    return st;
}
