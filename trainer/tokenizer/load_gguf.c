/* GGUF metadata (docs/gguf.md of ggml, "Tokenizer"): arrays of tokens, scores, types and merges instead of a tokenizer.json.
 *   gpt2   byte-level BPE by merges; `pre` names the expression that cuts words
 *   llama  SentencePiece's BPE: of adjacent pairs that form a token, the one whose token has the highest score merges first,
 *          leftmost on ties; spaces are U+2581, unknown characters are bytes */
#include "ckpt/base/grow.h"
#include "trainer/tokenizer/load.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/unicode.h"
#include <stdio.h>

/* ---- pre-tokenizers ---- */

/* A pre-tokenizer of GGUF: tokenizer.ggml.pre. */
struct gguf_pre {
    const char *names;                 /* with a blank on both sides of each */
    const char *words[7];              /* NULL-terminated; none: GPT-2's own */
    bool nfc, ignore_merges, adds_bos; /* adds_bos: the default */
};

/* Pre-tokenizers that llama.cpp knows by name (llama-vocab.cpp, llm_tokenizer_bpe): expressions that cut a text one after
 * another; text that none matches is a piece too. Other models need their tokenizer.json. */

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

/* NULL: unknown */
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

/* GGUF metadata as written by an import beside a checkpoint (tokenizer.gguf): keys without "tokenizer.", as one JSON object.
 * Defaults are as in llama.cpp (llama-vocab.cpp): llama and llama-bpe begin with bos, llama puts a space before. */

#define MARK "\xe2\x96\x81"
enum { UNKNOWN = 2, CONTROL = 3, USER = 4, BYTE = 6 }; /* token types */

struct gguf {
    const struct pd_json_value *root, *tokens, *scores, *types; /* scores, types (count) or NULL */
    uint32_t count;
    bool adds_space; /* llama: before a text */
    struct pd_tokenizer *tokenizer;
    struct pd_merge *merges; /* (merge_count) */
    uint32_t merge_count;
};

static const char *text_of(const struct gguf *g, uint32_t id)
{
    return pd_json_text(pd_json_at(g->tokens, id));
}

/* Element of a checked array. */
static double load_gguf_number_of(const struct pd_json_value *array, uint32_t id)
{
    double number = 0;
    (void)pd_json_is_number(pd_json_at(array, id), &number);
    return number;
}

static int type_of(const struct gguf *g, uint32_t id)
{
    return g->types ? (int)load_gguf_number_of(g->types, id) : 1;
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
static pd_status check_keys(const struct pd_json_value *root, struct pd_error *err)
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
        PD_FAIL(err, PD_UNSUPPORTED, "tokenizer.%.100s is not supported; name a tokenizer with --tokenizer=PATH", key);
    }
    return PD_OK;
}

/* Numbers for every token, or none. */
static pd_status take_numbers(const struct gguf *g, const char *key, const struct pd_json_value **ret, struct pd_error *err)
{
    const struct pd_json_value *array = *ret = pd_json_member(g->root, key);
    if (array && pd_json_count(array) != g->count) PD_FAIL(err, PD_INVALID, "%s has not one number a token", key);
    for (uint32_t i = 0; array && i < g->count; i++) {
        double number = 0;
        if (!pd_json_is_number(pd_json_at(array, i), &number) || !(number > -1e9 && number < 1e9))
            PD_FAIL(err, PD_INVALID, "%s[%u] is not a valid number", key, i);
    }
    return PD_OK;
}

static pd_status fill_vocab(const struct gguf *g, struct pd_error *err)
{
    struct pd_vocab *vocab = &g->tokenizer->vocab;
    for (uint32_t id = 0; id < g->count; id++) {
        const char *text = text_of(g, id);
        pd_status status = PD_OK;
        if (!text) PD_FAIL(err, PD_INVALID, "ggml.tokens[%u] is not text", id);
        if (pd_vocab_find(vocab, text, strlen(text)) >= 0)
            status = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "its text occurs twice");
        if (!status) status = pd_vocab_add(vocab, text, strlen(text), id, err);
        if (status) return pd_error_context(err, status, "tokenizer.ggml.tokens[%u]", id);
    }
    return PD_OK;
}

/* ---- gpt2 ---- */

static pd_status fill_gpt2(struct gguf *g, const char *pre, const struct gguf_pre *known, struct pd_error *err)
{
    struct pd_tokenizer *t = g->tokenizer;
    struct pd_splitter *splitter = &t->splitter;
    if (!known)
        PD_FAIL(err, PD_UNSUPPORTED, "tokenizer.ggml.pre: %.40s is not known; name its tokenizer.json with --tokenizer=PATH",
                pre);
    if (known->nfc) t->normalizer.steps[t->normalizer.count++].kind = PD_NORMALIZE_NFC;
    for (unsigned i = 0; known->words[i]; i++) {
        struct pd_split_step *step = &splitter->steps[splitter->count];
        *step = (struct pd_split_step){.kind = PD_SPLIT_MATCHES, .behavior = PD_SPLIT_ISOLATED};
        PD_TRY(pd_matcher_init(PD_MATCH_REGEX, known->words[i], &step->matcher, err));
        splitter->count++;
    }
    t->bpe_options.ignore_merges = known->ignore_merges;
    t->decoder.steps[t->decoder.count++] = (struct pd_decoder_step){.kind = PD_DECODE_BYTE_LEVEL};
    PD_TRY(pd_load_byte_level(splitter, !known->words[0], false, err));
    return pd_load_merges(&t->vocab, pd_json_member(g->root, "ggml.merges"), "tokenizer.ggml.merges", &g->merges,
                          &g->merge_count, err);
}

/* ---- llama ---- */

/* Every split of a token into two tokens is a merge with its score's rank. */
static pd_status add_cuts(struct gguf *g, uint32_t id, uint32_t rank, struct pd_error *err)
{
    const char *text = text_of(g, id);
    for (size_t at = 1; text[0] && text[at]; at++) {
        if (((unsigned char)text[at] & 0xc0) == 0x80) continue;
        const int32_t left = pd_vocab_find(&g->tokenizer->vocab, text, at);
        const int32_t right = pd_vocab_find(&g->tokenizer->vocab, text + at, strlen(text + at));
        if (left < 0 || right < 0) continue;
        if (!pd_grow(&g->merges, g->merge_count, sizeof *g->merges))
            PD_FAIL(err, PD_NO_MEMORY, "no memory for %u merges", g->merge_count + 1);
        g->merges[g->merge_count++] = (struct pd_merge){(uint32_t)left, (uint32_t)right, rank, id};
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
    for (uint32_t id = 0; id < g->count; id++) {
        const int type = type_of(g, id);
        if (type == UNKNOWN || type == CONTROL || type == BYTE || strlen(text_of(g, id)) > 256) continue;
        scored[count++] = (struct scored){(float)load_gguf_number_of(g->scores, id), id};
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
    static const enum pd_decoder_kind kinds[] = {PD_DECODE_REPLACE, PD_DECODE_BYTE_FALLBACK, PD_DECODE_FUSE,
                                                 PD_DECODE_STRIP};
    struct pd_tokenizer *t = g->tokenizer;
    if (!g->scores) PD_FAIL(err, PD_INVALID, "tokenizer.ggml.scores is missing, and model llama needs it");
    t->bpe_options.byte_fallback = t->bpe_options.fuse_unknown = true;
    t->bpe_options.unknown = (int32_t)id_of(g->root, "ggml.unknown_token_id");
    if (g->adds_space) PD_TRY(add_normalizer(t, PD_NORMALIZE_PREPEND, err));
    PD_TRY(add_normalizer(t, PD_NORMALIZE_REPLACE, err));
    for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct pd_decoder_step *step = &t->decoder.steps[t->decoder.count++];
        *step = (struct pd_decoder_step){.kind = kinds[i], .start = g->adds_space};
        if (kinds[i] == PD_DECODE_REPLACE && !(step->content = strdup(" "))) PD_FAIL(err, PD_NO_MEMORY, "no memory");
        if (kinds[i] == PD_DECODE_REPLACE) PD_TRY(pd_matcher_init(PD_MATCH_LITERAL, MARK, &step->matcher, err));
        if (kinds[i] == PD_DECODE_STRIP) PD_TRY(pd_matcher_init(PD_MATCH_LITERAL, " ", &step->matcher, err));
    }
    struct scored *scored = calloc((size_t)g->count + 1, sizeof *scored);
    if (!scored) PD_FAIL(err, PD_NO_MEMORY, "no memory for the scores of %u tokens", g->count);
    pd_status status = rank_tokens(g, scored, err);
    free(scored);
    return status;
}

/* ---- both ---- */

static pd_status add_to_template(const struct gguf *g, bool wanted, const char *key, struct pd_tokens *tokens,
                                 struct pd_error *err)
{
    const int64_t id = id_of(g->root, key);
    const int32_t token = (int32_t)id;
    if (id >= (int64_t)g->count)
        PD_FAIL(err, PD_INVALID, "tokenizer.%s is %lld, and there are %u tokens", key, (long long)id, g->count);
    if (wanted && id < 0) PD_FAIL(err, PD_INVALID, "tokenizer.%s is missing, and it is to be added", key);
    return wanted ? pd_tokens_add(tokens, &token, 1, err) : PD_OK;
}

/* Control tokens are special; user-defined tokens are found in text too. */
static pd_status fill_added(const struct gguf *g, struct pd_error *err)
{
    struct pd_added *added = &g->tokenizer->added;
    added->tokens = calloc((size_t)g->count + 1, sizeof *added->tokens);
    if (!added->tokens) PD_FAIL(err, PD_NO_MEMORY, "no memory for added tokens");
    for (uint32_t id = 0; id < g->count; id++) {
        const int type = type_of(g, id);
        if ((type != CONTROL && type != USER && type != UNKNOWN) || !*text_of(g, id)) continue;
        if (added->count == PD_LOAD_ADDED_MAX) PD_FAIL(err, PD_INVALID, "more than %u added tokens", PD_LOAD_ADDED_MAX);
        struct pd_added_token *token = &added->tokens[added->count];
        *token = (struct pd_added_token){.id = id, .special = type != USER, .content = strdup(text_of(g, id))};
        if (!token->content) PD_FAIL(err, PD_NO_MEMORY, "no memory for added tokens");
        added->count++;
    }
    return PD_OK;
}

static pd_status load_gguf_fill(struct gguf *g, struct pd_error *err)
{
    struct pd_tokenizer *t = g->tokenizer;
    const char *model = pd_json_text(pd_json_member(g->root, "ggml.model"));
    const struct pd_json_value *named = pd_json_member(g->root, "ggml.pre");
    const char *pre = named ? pd_json_text(named) : NULL;
    const struct gguf_pre *known = gguf_pre(pre ? pre : "default");
    PD_TRY(check_keys(g->root, err));
    g->tokens = pd_json_member(g->root, "ggml.tokens");
    g->count = (uint32_t)pd_json_count(g->tokens);
    if (!model || !g->count) PD_FAIL(err, PD_INVALID, "tokenizer.ggml.model or .tokens is missing");
    const bool is_llama = strcmp(model, "llama") == 0;
    if (!is_llama && strcmp(model, "gpt2") != 0)
        PD_FAIL(err, PD_UNSUPPORTED, "tokenizer.ggml.model: %.40s is not supported; gpt2 and llama are", model);
    PD_TRY(take_numbers(g, "ggml.scores", &g->scores, err));
    PD_TRY(take_numbers(g, "ggml.token_type", &g->types, err));
    t->bpe_options.unknown = -1;
    t->has_decoder = t->is_gguf = true;
    g->adds_space = is_llama && flag_of(g->root, "ggml.add_space_prefix", true);
    const bool may_begin = is_llama || (pre && known && known->adds_bos),
               begins = may_begin && id_of(g->root, "ggml.bos_token_id") >= 0;
    PD_TRY(add_to_template(g, false, "ggml.unknown_token_id", &t->before, err));
    PD_TRY(add_to_template(g, flag_of(g->root, "ggml.add_bos_token", begins), "ggml.bos_token_id", &t->before, err));
    PD_TRY(add_to_template(g, flag_of(g->root, "ggml.add_eos_token", false), "ggml.eos_token_id", &t->behind, err));
    PD_TRY(fill_vocab(g, err));
    PD_TRY(fill_added(g, err));
    PD_TRY(is_llama ? fill_llama(g, err) : fill_gpt2(g, pre ? pre : "default", known, err));
    return pd_tokenizer_finish(t, g->merges, g->merge_count, err);
}

pd_status pd_load_gguf(const char *name, const struct pd_json_value *root, struct pd_tokenizer *tokenizer,
                       struct pd_error *err)
{
    struct gguf g = {.root = root, .tokenizer = tokenizer};
    const pd_status st = load_gguf_fill(&g, err);
    tokenizer->merges = g.merges;
    tokenizer->merge_count = g.merge_count;
    return st ? pd_error_context(err, st, "%s", name) : PD_OK;
}
