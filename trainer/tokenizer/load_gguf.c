/* GGUF metadata (docs/gguf.md of ggml, "Tokenizer"): arrays of tokens, scores, types and merges in place of a tokenizer.json.
 *   gpt2   byte-level BPE by merges; `pre` names the expression that cuts words
 *   llama  SentencePiece's BPE: of two neighbours that make a token the ones whose token has the highest score join first,
 *          the leftmost of equals; spaces are U+2581, unknown characters are bytes */
#include "ckpt/base/grow.h"
#include "trainer/tokenizer/load.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/unicode.h"
#include <stdio.h>

/* ---- pre-tokenizers ---- */

/* A pre-tokenizer of GGUF: tokenizer.ggml.pre. */
struct gguf_pre {
    const char *names;                 /* with a blank before and behind each */
    const char *words[7];              /* NULL-terminated; none: GPT-2's own */
    bool nfc, ignore_merges, adds_bos; /* adds_bos: where the file does not say */
};

/* Pre-tokenizers that llama.cpp knows by name (llama-vocab.cpp, llm_tokenizer_bpe): expressions that cut a text one after the
 * other, what none of them matches being a piece too. What is not here needs its tokenizer.json. */

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define WORDS(digits)                                                                                           \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define IDEOGRAPHS "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASES(ending) \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ending "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" ending
#define REST " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define LETTERS                                                                                            \
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-Ⴥ" \
    "Ꭰ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώ" \
    "ᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨ"   \
    "K-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-"  \
    "ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-"    \
    "𞥃]+"

static const struct gguf_pre gguf_pres[] = {
    {.names = " gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum mpt olmo jais trillion exaone4 ",
     .words = {NULL}},
    {.names = " llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 ",
     .words = {WORDS("{1,3}|")},
     .ignore_merges = true,
     .adds_bos = true},
    {.names = " dbrx smaug-bpe glm4 chatglm-bpe ", .words = {WORDS("{1,3}|")}},
    {.names = " qwen2 deepseek-r1-qwen megrez ", .words = {WORDS("|")}, .nfc = true},
    {.names = " stablelm2 hunyuan ", .words = {WORDS("|")}},
    {.names = " smollm starcoder refact command-r codeshell exaone minerva-7b ", .words = {"\\p{N}", GPT2}},
    {.names = " falcon ", .words = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {.names = " default ", .words = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {.names = " deepseek-llm ",
     .words = {"[\r\n]", LETTERS, "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", "\\s+$", IDEOGRAPHS,
               "\\p{N}+"}},
    {.names = " deepseek-coder ", .words = {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", IDEOGRAPHS, "\\p{N}"}},
    {.names = " deepseek-v3 hunyuan-dense ",
     .words = {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
               "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
               "?[\\p{P}\\p{S}]+[\r\n]*"
               "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}},
    {.names = " tekken ", .words = {CASES("") "|\\p{N}|" REST}, .ignore_merges = true, .adds_bos = true},
    {.names = " gpt-4o llama4 ", .words = {CASES(ENDINGS) "|\\p{N}{1,3}|" REST}},
};

/* NULL: not known here */
static const struct gguf_pre *gguf_pre(const char *name)
{
    const size_t bytes = strlen(name);
    for (size_t i = 0; i < sizeof gguf_pres / sizeof *gguf_pres; i++) {
        const char *at = bytes && !strchr(name, ' ') ? gguf_pres[i].names : NULL;
        for (; at && (at = strstr(at, name)); at++)
            if (at[-1] == ' ' && at[bytes] == ' ') return &gguf_pres[i];
    }
    return NULL;
}

/* ---- tokenizer.gguf ---- */

/* GGUF metadata as an import lays it beside a checkpoint (tokenizer.gguf): keys without "tokenizer.", as one JSON object. What
 * is absent is what llama.cpp takes then (llama-vocab.cpp): llama and llama-bpe begin with bos, llama puts a space before. */

/* Owned arrays; texts are borrowed from the document. */
struct owned {
    struct pd_tokenizer_string *tokens, *merges;
    float *scores;
    int32_t *types;
};

static pd_status take_texts(const char *name, const struct pd_json_value *array, const char *key,
                            struct pd_tokenizer_string **ret, struct pd_error *err)
{
    const size_t count = pd_json_count(array);
    if (!(*ret = calloc(count + 1, sizeof **ret))) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory", name);
    for (size_t i = 0; i < count; i++) {
        const char *text = pd_json_text(pd_json_at(array, i));
        if (!text) PD_FAIL(err, PD_INVALID, "%s: %s[%zu] is no text", name, key, i);
        (*ret)[i] = (struct pd_tokenizer_string){text, strlen(text)};
    }
    return PD_OK;
}

static pd_status take_number(const char *name, const struct pd_json_value *array, size_t i, const char *key, double *ret,
                             struct pd_error *err)
{
    if (pd_json_is_number(pd_json_at(array, i), ret) && *ret > -1e9 && *ret < 1e9) return PD_OK;
    PD_FAIL(err, PD_INVALID, "%s: %s[%zu] is not a valid number", name, key, i);
}

static int64_t id_of(const struct pd_json_value *root, const char *key)
{
    uint64_t id = 0;
    return pd_json_is_u64(pd_json_member(root, key), &id) && id <= INT32_MAX ? (int64_t)id : -1;
}

static bool flag_of(const struct pd_json_value *root, const char *key, bool absent)
{
    (void)pd_json_is_bool(pd_json_member(root, key), &absent);
    return absent;
}

/* A key that is neither used below nor about something else than which tokens a text has (ids of padding, of turns, ...). */
static pd_status check_keys(const char *name, const struct pd_json_value *root, struct pd_error *err)
{
    static const char known[] = " model pre tokens token_type scores merges bos_token_id eos_token_id unknown_token_id"
                                " add_bos_token add_eos_token add_space_prefix token_type_count ";
    const struct pd_json_value *value;
    const char *key;
    char word[80];
    for (void *cursor = NULL; pd_json_next(root, &cursor, &key, &value);) {
        bool is_on = true;
        double number = 1;
        if (strncmp(key, "ggml.", 5) != 0 || strstr(key, "_token_id")) continue;
        snprintf(word, sizeof word, " %s ", key + 5);
        if (strstr(known, word) || (pd_json_is_bool(value, &is_on) && !is_on)) continue;
        if (pd_json_is_number(value, &number) && number == 0) continue;
        PD_FAIL(err, PD_UNSUPPORTED, "%s: tokenizer.%.100s is not supported; name a tokenizer with --tokenizer=PATH", name,
                key);
    }
    return PD_OK;
}

static pd_status make(const char *name, const struct pd_json_value *root, struct owned *o,
                      struct pd_tokenizer **ret_tokenizer, struct pd_error *err)
{
    const struct pd_json_value *tokens = pd_json_member(root, "ggml.tokens"), *merges = pd_json_member(root, "ggml.merges");
    struct pd_tokenizer_arrays a = {.model = pd_json_text(pd_json_member(root, "ggml.model"))};
    const struct pd_json_value *pre = pd_json_member(root, "ggml.pre");
    a.pre = pre ? pd_json_text(pre) : NULL;
    const struct gguf_pre *known = a.pre ? gguf_pre(a.pre) : NULL;
    const bool is_llama = a.model && strcmp(a.model, "llama") == 0;
    PD_TRY(check_keys(name, root, err));
    PD_TRY(take_texts(name, tokens, "ggml.tokens", &o->tokens, err));
    PD_TRY(take_texts(name, merges, "ggml.merges", &o->merges, err));
    a.token_count = (uint32_t)pd_json_count(tokens);
    a.merge_count = (uint32_t)pd_json_count(merges);
    /* Scores and types are there for every token, or not at all. */
    uint32_t count = a.token_count;
    const struct pd_json_value *scores = pd_json_member(root, "ggml.scores"),
                               *types = pd_json_member(root, "ggml.token_type");
    double number = 0;
    if ((scores && pd_json_count(scores) != count) || (types && pd_json_count(types) != count))
        PD_FAIL(err, PD_INVALID, "%s: ggml.scores or ggml.token_type has not one number a token", name);
    if (scores) o->scores = calloc((size_t)count + 1, sizeof *o->scores);
    if (types) o->types = calloc((size_t)count + 1, sizeof *o->types);
    if ((scores && !o->scores) || (types && !o->types)) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory", name);
    for (uint32_t i = 0; scores && i < count; i++) {
        PD_TRY(take_number(name, scores, i, "ggml.scores", &number, err));
        o->scores[i] = (float)number;
    }
    for (uint32_t i = 0; types && i < count; i++) {
        PD_TRY(take_number(name, types, i, "ggml.token_type", &number, err));
        o->types[i] = (int32_t)number;
    }
    a.tokens = o->tokens, a.merges = o->merges, a.scores = o->scores, a.types = o->types;
    a.bos = id_of(root, "ggml.bos_token_id");
    a.eos = id_of(root, "ggml.eos_token_id");
    a.unknown = id_of(root, "ggml.unknown_token_id");
    a.add_bos = flag_of(root, "ggml.add_bos_token", a.bos >= 0 && (is_llama || (known && known->adds_bos)));
    a.add_eos = flag_of(root, "ggml.add_eos_token", false);
    a.add_space_prefix = flag_of(root, "ggml.add_space_prefix", is_llama);
    const pd_status st = pd_tokenizer_from_arrays(&a, ret_tokenizer, err);
    return st ? pd_error_context(err, st, "%s", name) : PD_OK;
}

pd_status pd_load_gguf_text(const char *name, const struct pd_json_value *root, struct pd_tokenizer **ret_tokenizer,
                            struct pd_error *err)
{
    struct owned o = {0};
    const pd_status st = make(name, root, &o, ret_tokenizer, err);
    free(o.tokens);
    free(o.merges);
    free(o.scores);
    free(o.types);
    return st;
}

/* ---- arrays ---- */

#define MARK "\xe2\x96\x81"
enum { UNKNOWN = 2, CONTROL = 3, USER = 4, BYTE = 6 }; /* token types */

struct gguf {
    const struct pd_tokenizer_arrays *arrays;
    struct pd_tokenizer *tokenizer;
    struct pd_merge *merges; /* (merge_count) */
    uint32_t merge_count;
};

static int32_t type_of(const struct gguf *g, uint32_t id)
{
    return g->arrays->types ? g->arrays->types[id] : 1;
}

static pd_status fill_vocab(struct gguf *g, struct pd_error *err)
{
    const struct pd_tokenizer_arrays *a = g->arrays;
    for (uint32_t id = 0; id < a->token_count; id++) {
        const struct pd_tokenizer_string *token = &a->tokens[id];
        if (pd_unicode_valid_bytes(token->text, token->bytes) != token->bytes || memchr(token->text, 0, token->bytes))
            PD_FAIL(err, PD_INVALID, "tokenizer.ggml.tokens[%u] is no UTF-8 text", id);
        pd_status status = PD_OK;
        if (pd_vocab_find(&g->tokenizer->vocab, token->text, token->bytes) >= 0)
            status = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "its text is there twice");
        if (!status) status = pd_vocab_add(&g->tokenizer->vocab, token->text, token->bytes, id, err);
        if (status) return pd_error_context(err, status, "tokenizer.ggml.tokens[%u]", id);
    }
    return PD_OK;
}

static pd_status add_merge(struct gguf *g, struct pd_merge merge, struct pd_error *err)
{
    if (!pd_grow(&g->merges, g->merge_count, sizeof *g->merges))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %u merges", g->merge_count + 1);
    g->merges[g->merge_count++] = merge;
    return PD_OK;
}

/* ---- gpt2 ---- */

static pd_status fill_merges(struct gguf *g, struct pd_error *err)
{
    struct pd_string joined = {0};
    pd_status status = PD_OK;
    for (uint32_t i = 0; !status && i < g->arrays->merge_count; i++) {
        const struct pd_tokenizer_string *line = &g->arrays->merges[i];
        const char *space = memchr(line->text, ' ', line->bytes);
        struct pd_merge merge;
        if (!space) {
            status = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "not a pair of tokens");
        } else {
            const char *halves[2] = {line->text, space + 1};
            const size_t bytes[2] = {(size_t)(space - line->text), line->bytes - (size_t)(space + 1 - line->text)};
            status = pd_load_merge(&g->tokenizer->vocab, halves, bytes, i, &joined, &merge, err);
        }
        if (!status) status = add_merge(g, merge, err);
        if (status) pd_error_context(err, status, "tokenizer.ggml.merges[%u]", i);
    }
    pd_string_deinit(&joined);
    return status;
}

static pd_status fill_gpt2(struct gguf *g, struct pd_error *err)
{
    struct pd_tokenizer *t = g->tokenizer;
    const char *pre = g->arrays->pre ? g->arrays->pre : "default";
    const struct gguf_pre *known = gguf_pre(pre);
    if (!known)
        PD_FAIL(err, PD_UNSUPPORTED, "tokenizer.ggml.pre: %.40s is not known; name its tokenizer.json with --tokenizer=PATH",
                pre);
    if (known->nfc) t->normalizer.steps[t->normalizer.count++].kind = PD_NORMALIZE_NFC;
    for (unsigned i = 0; known->words[i]; i++) {
        struct pd_splitter *splitter = &t->splitter;
        const char *expression = known->words[i];
        struct pd_split_step *step = &splitter->steps[splitter->count];
        *step = (struct pd_split_step){.kind = PD_SPLIT_MATCHES, .behavior = PD_SPLIT_ISOLATED};
        PD_TRY(pd_matcher_init(PD_MATCH_REGEX, expression, &step->matcher, err));
        splitter->count++;
    }
    t->bpe_options.ignore_merges = known->ignore_merges;
    t->decoder.steps[t->decoder.count++] = (struct pd_decoder_step){.kind = PD_DECODE_BYTE_LEVEL};
    PD_TRY(pd_load_byte_level(&t->splitter, !known->words[0], false, err));
    return fill_merges(g, err);
}

/* ---- llama ---- */

/* Every way to cut a token into two tokens is a merge of its score's rank. */
static pd_status add_cuts(struct gguf *g, uint32_t id, uint32_t rank, struct pd_error *err)
{
    const struct pd_tokenizer_string *token = &g->arrays->tokens[id];
    for (size_t at = 1; at < token->bytes; at++) {
        if (((unsigned char)token->text[at] & 0xc0) == 0x80) continue;
        const int32_t left = pd_vocab_find(&g->tokenizer->vocab, token->text, at);
        const int32_t right = pd_vocab_find(&g->tokenizer->vocab, token->text + at, token->bytes - at);
        if (left < 0 || right < 0) continue;
        PD_TRY(add_merge(g, (struct pd_merge){(uint32_t)left, (uint32_t)right, rank, id}, err));
    }
    return PD_OK;
}

struct scored {
    float score;
    uint32_t id;
};

static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static pd_status rank_tokens(struct gguf *g, struct scored *scored, struct pd_error *err)
{
    uint32_t count = 0, rank = 0;
    for (uint32_t id = 0; id < g->arrays->token_count; id++) {
        const int32_t type = type_of(g, id);
        if (type == UNKNOWN || type == CONTROL || type == BYTE || g->arrays->tokens[id].bytes > 256) continue;
        if (g->arrays->scores[id] != g->arrays->scores[id])
            PD_FAIL(err, PD_INVALID, "tokenizer.ggml.scores[%u] is not a number", id);
        scored[count++] = (struct scored){g->arrays->scores[id], id};
    }
    qsort(scored, count, sizeof *scored, by_score);
    for (uint32_t i = 0; i < count; i++) {
        if (i && scored[i].score != scored[i - 1].score) rank++;
        PD_TRY(add_cuts(g, scored[i].id, rank, err));
    }
    return PD_OK;
}

static pd_status add_normalizer(struct pd_tokenizer *t, enum pd_normalizer_kind kind, struct pd_error *err)
{
    struct pd_normalizer_step *step = &t->normalizer.steps[t->normalizer.count];
    *step = (struct pd_normalizer_step){.kind = kind, .content = strdup(MARK)};
    if (!step->content) PD_FAIL(err, PD_NO_MEMORY, "no memory for a tokenizer");
    t->normalizer.count++;
    return kind == PD_NORMALIZE_REPLACE ? pd_matcher_init(PD_MATCH_LITERAL, " ", &step->matcher, err) : PD_OK;
}

static pd_status fill_llama(struct gguf *g, struct pd_error *err)
{
    struct pd_tokenizer *t = g->tokenizer;
    if (!g->arrays->scores) PD_FAIL(err, PD_INVALID, "tokenizer.ggml.scores is missing, and model llama needs it");
    t->bpe_options.byte_fallback = t->bpe_options.fuse_unknown = true;
    if (g->arrays->unknown >= 0) t->bpe_options.unknown = (int32_t)g->arrays->unknown;
    if (g->arrays->add_space_prefix) PD_TRY(add_normalizer(t, PD_NORMALIZE_PREPEND, err));
    PD_TRY(add_normalizer(t, PD_NORMALIZE_REPLACE, err));
    struct pd_decoder *decoder = &g->tokenizer->decoder;
    static const enum pd_decoder_kind kinds[] = {PD_DECODE_REPLACE, PD_DECODE_BYTE_FALLBACK, PD_DECODE_FUSE,
                                                 PD_DECODE_STRIP};
    for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct pd_decoder_step *step = &decoder->steps[decoder->count++];
        *step = (struct pd_decoder_step){.kind = kinds[i], .start = g->arrays->add_space_prefix};
        if (kinds[i] == PD_DECODE_REPLACE && !(step->content = strdup(" "))) PD_FAIL(err, PD_NO_MEMORY, "no memory");
        if (kinds[i] == PD_DECODE_REPLACE) PD_TRY(pd_matcher_init(PD_MATCH_LITERAL, MARK, &step->matcher, err));
        if (kinds[i] == PD_DECODE_STRIP) PD_TRY(pd_matcher_init(PD_MATCH_LITERAL, " ", &step->matcher, err));
    }
    struct scored *scored = calloc((size_t)g->arrays->token_count + 1, sizeof *scored);
    if (!scored) PD_FAIL(err, PD_NO_MEMORY, "no memory for the scores of %u tokens", g->arrays->token_count);
    pd_status status = rank_tokens(g, scored, err);
    free(scored);
    return status;
}

/* ---- both ---- */

static pd_status add_to_template(const struct gguf *g, bool wanted, int64_t id, const char *key, struct pd_tokens *tokens,
                                 struct pd_error *err)
{
    const int32_t token = (int32_t)id;
    if (id >= (int64_t)g->arrays->token_count)
        PD_FAIL(err, PD_INVALID, "tokenizer.ggml.%s is %lld, and there are %u tokens", key, (long long)id,
                g->arrays->token_count);
    if (wanted && id < 0) PD_FAIL(err, PD_INVALID, "tokenizer.ggml.%s is missing, and it is to be added", key);
    return wanted ? pd_tokens_add(tokens, &token, 1, err) : PD_OK;
}

static pd_status fill(struct gguf *g, struct pd_error *err)
{
    const struct pd_tokenizer_arrays *a = g->arrays;
    struct pd_tokenizer *t = g->tokenizer;
    if (!a->model || !a->tokens || !a->token_count) PD_FAIL(err, PD_INVALID, "tokenizer.ggml.model or .tokens is missing");
    if (strcmp(a->model, "gpt2") != 0 && strcmp(a->model, "llama") != 0)
        PD_FAIL(err, PD_UNSUPPORTED, "tokenizer.ggml.model: %.40s is not supported; gpt2 and llama are", a->model);
    t->bpe_options.unknown = -1;
    t->has_decoder = true;
    PD_TRY(add_to_template(g, false, a->unknown, "unknown_token_id", &t->before, err));
    PD_TRY(add_to_template(g, a->add_bos, a->bos, "bos_token_id", &t->before, err));
    PD_TRY(add_to_template(g, a->add_eos, a->eos, "eos_token_id", &t->behind, err));
    PD_TRY(fill_vocab(g, err));
    /* Control tokens are special; those that a user defined are found in text too. */
    struct pd_added *added = &g->tokenizer->added;
    added->tokens = calloc((size_t)g->arrays->token_count + 1, sizeof *added->tokens);
    if (!added->tokens) PD_FAIL(err, PD_NO_MEMORY, "no memory for added tokens");
    for (uint32_t id = 0; id < g->arrays->token_count; id++) {
        const int32_t type = type_of(g, id);
        if ((type != CONTROL && type != USER && type != UNKNOWN) || !g->arrays->tokens[id].bytes) continue;
        if (added->count == PD_LOAD_ADDED_MAX) PD_FAIL(err, PD_INVALID, "more than %u added tokens", PD_LOAD_ADDED_MAX);
        struct pd_added_token *token = &added->tokens[added->count];
        *token = (struct pd_added_token){.id = id, .special = type != USER};
        token->content = strndup(g->arrays->tokens[id].text, g->arrays->tokens[id].bytes);
        if (!token->content) PD_FAIL(err, PD_NO_MEMORY, "no memory for added tokens");
        added->count++;
    }
    PD_TRY(!strcmp(a->model, "gpt2") ? fill_gpt2(g, err) : fill_llama(g, err));
    return pd_tokenizer_finish(t, g->merges, g->merge_count, err);
}

pd_status pd_tokenizer_from_arrays(const struct pd_tokenizer_arrays *arrays, struct pd_tokenizer **ret_tokenizer,
                                   struct pd_error *err)
{
    struct gguf g = {.arrays = arrays, .tokenizer = calloc(1, sizeof *g.tokenizer)};
    if (!g.tokenizer) PD_FAIL(err, PD_NO_MEMORY, "no memory for a tokenizer");
    pd_status status = fill(&g, err);
    g.tokenizer->is_gguf = true;
    g.tokenizer->merges = g.merges;
    g.tokenizer->merge_count = g.merge_count;
    if (status) {
        pd_tokenizer_free(g.tokenizer);
        return status;
    }
    *ret_tokenizer = g.tokenizer;
    return PD_OK;
}
