/* A tokenizer of GGUF metadata as tokenizer.json, for programs that read no other. Only what GGUF can say is written: steps that
 * load_gguf.c makes. What was written is loaded again and its steps are compared. */
#include "trainer/tokenizer/load.h"
#include "trainer/tokenizer/tokenizer.h"

#include <string.h>

struct saving {
    const struct pd_tokenizer *tokenizer;
    struct pd_json_writer json;
    struct pd_string text; /* room for one token */
};

/* *ret_text until the next call. */
static pd_status text_of(struct saving *s, uint32_t id, const char **ret_text, struct pd_error *err)
{
    size_t bytes = 0;
    const char *text = pd_tokenizer_text(s->tokenizer, id, &bytes);
    if (!text) PD_FAIL(err, PD_BUG, "token %u has no text", id);
    pd_string_cut(&s->text, 0);
    PD_TRY(pd_string_add(&s->text, text, bytes, err));
    PD_TRY(pd_string_add(&s->text, "", 1, err));
    *ret_text = s->text.bytes;
    return PD_OK;
}

static pd_status put_token(struct saving *s, const char *key, uint32_t id, struct pd_error *err)
{
    const char *text = NULL;
    PD_TRY(text_of(s, id, &text, err));
    pd_json_string(&s->json, key, text);
    return PD_OK;
}

static void begin_step(struct saving *s, const char *type)
{
    pd_json_object_begin(&s->json, NULL);
    pd_json_string(&s->json, "type", type);
}

static void put_pattern(struct saving *s, const struct pd_matcher *matcher)
{
    pd_json_object_begin(&s->json, "pattern");
    pd_json_string(&s->json, matcher->kind == PD_MATCH_REGEX ? "Regex" : "String", matcher->source);
    pd_json_object_end(&s->json);
}

/* ---- steps ---- */

static void put_byte_level(struct saving *s, bool splits)
{
    pd_json_bool(&s->json, "add_prefix_space", false);
    pd_json_bool(&s->json, "trim_offsets", true);
    pd_json_bool(&s->json, "use_regex", splits);
}

static pd_status put_normalizer(struct saving *s, uint32_t i, struct pd_error *err)
{
    const struct pd_normalizer_step *step = &s->tokenizer->normalizer.steps[i];
    const bool replaces = step->kind == PD_NORMALIZE_REPLACE;
    if (!replaces && step->kind != PD_NORMALIZE_NFC && step->kind != PD_NORMALIZE_PREPEND)
        PD_FAIL(err, PD_BUG, "normalizer step %u is not one of GGUF's", i);
    begin_step(s, replaces ? "Replace" : step->content ? "Prepend" : "NFC");
    if (replaces) put_pattern(s, &step->matcher);
    if (step->content) pd_json_string(&s->json, replaces ? "content" : "prepend", step->content);
    pd_json_object_end(&s->json);
    return PD_OK;
}

static pd_status put_splitter(struct saving *s, uint32_t i, struct pd_error *err)
{
    const struct pd_split_step *step = &s->tokenizer->splitter.steps[i];
    const bool is_bytes = step->kind == PD_SPLIT_BYTE_LEVEL;
    if (step->kind == PD_SPLIT_METASPACE || step->behavior != PD_SPLIT_ISOLATED ||
        (is_bytes && step->prepend != PD_PREPEND_NEVER))
        PD_FAIL(err, PD_BUG, "pre-tokenizer step %u is not one of GGUF's", i);
    begin_step(s, is_bytes ? "ByteLevel" : "Split");
    if (!is_bytes) {
        put_pattern(s, &step->matcher);
        pd_json_string(&s->json, "behavior", "Isolated");
        pd_json_bool(&s->json, "invert", false);
    } else {
        put_byte_level(s, step->splits);
    }
    pd_json_object_end(&s->json);
    return PD_OK;
}

static pd_status put_decoder(struct saving *s, uint32_t i, struct pd_error *err)
{
    static const char *const types[] = {[PD_DECODE_BYTE_LEVEL] = "ByteLevel",
                                        [PD_DECODE_REPLACE] = "Replace",
                                        [PD_DECODE_BYTE_FALLBACK] = "ByteFallback",
                                        [PD_DECODE_FUSE] = "Fuse",
                                        [PD_DECODE_STRIP] = "Strip"};
    const struct pd_decoder_step *step = &s->tokenizer->decoder.steps[i];
    if (step->kind == PD_DECODE_METASPACE) PD_FAIL(err, PD_BUG, "decoder step %u is not one of GGUF's", i);
    begin_step(s, types[step->kind]);
    if (step->kind == PD_DECODE_BYTE_LEVEL) put_byte_level(s, true);
    if (step->kind == PD_DECODE_REPLACE) {
        put_pattern(s, &step->matcher);
        pd_json_string(&s->json, "content", step->content);
    }
    if (step->kind == PD_DECODE_STRIP) {
        pd_json_string(&s->json, "content", step->matcher.source);
        pd_json_u64(&s->json, "start", step->start);
        pd_json_u64(&s->json, "stop", step->stop);
    }
    pd_json_object_end(&s->json);
    return PD_OK;
}

static pd_status put_steps(struct saving *s, const char *key, const char *list, uint32_t count,
                           pd_status (*put)(struct saving *s, uint32_t i, struct pd_error *err), struct pd_error *err)
{
    if (!count) return pd_json_null(&s->json, key), PD_OK;
    pd_json_object_begin(&s->json, key);
    pd_json_string(&s->json, "type", "Sequence");
    pd_json_array_begin(&s->json, list);
    for (uint32_t i = 0; i < count; i++)
        PD_TRY(put(s, i, err));
    pd_json_array_end(&s->json);
    pd_json_object_end(&s->json);
    return PD_OK;
}

/* ---- tokens that no text has ---- */

static pd_status put_special(struct saving *s, const struct pd_tokens *tokens, uint64_t type, struct pd_error *err)
{
    for (size_t i = 0; i < tokens->count; i++) {
        pd_json_object_begin(&s->json, NULL);
        pd_json_object_begin(&s->json, "SpecialToken");
        PD_TRY(put_token(s, "id", (uint32_t)tokens->ids[i], err));
        pd_json_u64(&s->json, "type_id", type);
        pd_json_object_end(&s->json);
        pd_json_object_end(&s->json);
    }
    return PD_OK;
}

/* A text, or two. */
static pd_status put_sequences(struct saving *s, const char *key, uint64_t count, struct pd_error *err)
{
    static const char *const names[] = {"A", "B"};
    pd_json_array_begin(&s->json, key);
    for (uint64_t i = 0; i < count; i++) {
        PD_TRY(put_special(s, &s->tokenizer->before, i, err));
        pd_json_object_begin(&s->json, NULL);
        pd_json_object_begin(&s->json, "Sequence");
        pd_json_string(&s->json, "id", names[i]);
        pd_json_u64(&s->json, "type_id", i);
        pd_json_object_end(&s->json);
        pd_json_object_end(&s->json);
        PD_TRY(put_special(s, &s->tokenizer->behind, i, err));
    }
    pd_json_array_end(&s->json);
    return PD_OK;
}

static pd_status put_ids(struct saving *s, const struct pd_tokens *tokens, const struct pd_tokens *others,
                         struct pd_error *err)
{
    for (size_t i = 0; i < tokens->count; i++) {
        const char *text = NULL;
        if (others && others->count && others->ids[0] == tokens->ids[i]) continue; /* named once */
        PD_TRY(text_of(s, (uint32_t)tokens->ids[i], &text, err));
        pd_json_object_begin(&s->json, text);
        pd_json_string(&s->json, "id", text);
        pd_json_array_begin(&s->json, "ids");
        pd_json_i64(&s->json, NULL, tokens->ids[i]);
        pd_json_array_end(&s->json);
        pd_json_array_begin(&s->json, "tokens");
        pd_json_string(&s->json, NULL, text);
        pd_json_array_end(&s->json);
        pd_json_object_end(&s->json);
    }
    return PD_OK;
}

static pd_status put_template(struct saving *s, struct pd_error *err)
{
    const struct pd_tokenizer *t = s->tokenizer;
    if (!t->before.count && !t->behind.count) return pd_json_null(&s->json, "post_processor"), PD_OK;
    pd_json_object_begin(&s->json, "post_processor");
    pd_json_string(&s->json, "type", "TemplateProcessing");
    PD_TRY(put_sequences(s, "single", 1, err));
    PD_TRY(put_sequences(s, "pair", 2, err));
    pd_json_object_begin(&s->json, "special_tokens");
    PD_TRY(put_ids(s, &t->before, NULL, err));
    PD_TRY(put_ids(s, &t->behind, &t->before, err));
    pd_json_object_end(&s->json);
    pd_json_object_end(&s->json);
    return PD_OK;
}

/* ---- the model ---- */

/* Merges of one rank make one token, and are listed as converters of transformers do: the longest left half first. */
static pd_status put_merges(struct saving *s, struct pd_error *err)
{
    const struct pd_tokenizer *t = s->tokenizer;
    pd_json_array_begin(&s->json, "merges");
    for (uint32_t first = 0, end; first < t->merge_count; first = end) {
        for (end = first + 1; end < t->merge_count && t->merges[end].rank == t->merges[first].rank; end++)
            if (t->merges[end].result != t->merges[first].result)
                PD_FAIL(err, PD_UNSUPPORTED,
                        "tokens %u and %u have one score, and tokenizer.json has an order of all merges",
                        t->merges[first].result, t->merges[end].result);
        for (uint32_t i = end; i-- > first;) {
            pd_json_array_begin(&s->json, NULL);
            PD_TRY(put_token(s, NULL, t->merges[i].left, err));
            PD_TRY(put_token(s, NULL, t->merges[i].right, err));
            pd_json_array_end(&s->json);
        }
    }
    pd_json_array_end(&s->json);
    return PD_OK;
}

static pd_status put_model(struct saving *s, struct pd_error *err)
{
    const struct pd_tokenizer *t = s->tokenizer;
    const struct pd_bpe_options *o = &t->bpe_options;
    pd_json_object_begin(&s->json, "model");
    pd_json_string(&s->json, "type", "BPE");
    if (o->unknown >= 0)
        PD_TRY(put_token(s, "unk_token", (uint32_t)o->unknown, err));
    else
        pd_json_null(&s->json, "unk_token");
    pd_json_bool(&s->json, "fuse_unk", o->fuse_unknown);
    pd_json_bool(&s->json, "byte_fallback", o->byte_fallback);
    pd_json_bool(&s->json, "ignore_merges", o->ignore_merges);
    pd_json_object_begin(&s->json, "vocab");
    for (uint32_t id = 0; id < t->vocab.limit; id++) {
        const char *text = NULL;
        size_t bytes;
        if (!pd_vocab_text(&t->vocab, id, &bytes)) continue;
        PD_TRY(text_of(s, id, &text, err));
        pd_json_u64(&s->json, text, id);
    }
    pd_json_object_end(&s->json);
    PD_TRY(put_merges(s, err));
    pd_json_object_end(&s->json);
    return PD_OK;
}

/* ---- the whole ---- */

static pd_status put_all(struct saving *s, struct pd_error *err)
{
    const struct pd_tokenizer *t = s->tokenizer;
    pd_json_object_begin(&s->json, NULL);
    pd_json_string(&s->json, "version", "1.0");
    pd_json_null(&s->json, "truncation");
    pd_json_null(&s->json, "padding");
    const struct pd_added *added = &s->tokenizer->added;
    pd_json_array_begin(&s->json, "added_tokens");
    for (uint32_t i = 0; i < added->count; i++) {
        pd_json_object_begin(&s->json, NULL);
        pd_json_u64(&s->json, "id", added->tokens[i].id);
        pd_json_string(&s->json, "content", added->tokens[i].content);
        for (const char *const *key = (const char *const[]){"single_word", "lstrip", "rstrip", "normalized", NULL}; *key;
             key++)
            pd_json_bool(&s->json, *key, false);
        pd_json_bool(&s->json, "special", added->tokens[i].special);
        pd_json_object_end(&s->json);
    }
    pd_json_array_end(&s->json);
    PD_TRY(put_steps(s, "normalizer", "normalizers", t->normalizer.count, put_normalizer, err));
    PD_TRY(put_steps(s, "pre_tokenizer", "pretokenizers", t->splitter.count, put_splitter, err));
    PD_TRY(put_template(s, err));
    PD_TRY(put_steps(s, "decoder", "decoders", t->decoder.count, put_decoder, err));
    PD_TRY(put_model(s, err));
    pd_json_object_end(&s->json);
    return PD_OK;
}

static uint64_t steps_digest(const struct pd_tokenizer *t)
{
    struct pd_digest_stream stream;
    pd_digest_stream_init(&stream, 1);
    pd_added_digest(&t->added, &stream);
    pd_normalizer_digest(&t->normalizer, &stream);
    pd_splitter_digest(&t->splitter, &stream);
    pd_digest_number(&stream, t->limit);
    return pd_digest_stream_value(&stream);
}

static pd_status save(struct saving *s, const char **ret_text, size_t *ret_bytes, struct pd_error *err)
{
    struct pd_tokenizer *again = NULL;
    PD_TRY(put_all(s, err));
    PD_TRY(pd_json_writer_finish(&s->json, ret_text, ret_bytes, err));
    PD_TRY(pd_tokenizer_parse(PD_TOKENIZER_FILE, *ret_text, *ret_bytes, &again, err));
    const bool is_same = steps_digest(again) == steps_digest(s->tokenizer);
    pd_tokenizer_free(again);
    if (!is_same) PD_FAIL(err, PD_BUG, "the written tokenizer reads back as another one");
    return PD_OK;
}

pd_status pd_tokenizer_save_json(const struct pd_tokenizer *tokenizer, char **ret_text, struct pd_error *err)
{
    struct saving s = {.tokenizer = tokenizer};
    size_t bytes = tokenizer->json_bytes;
    const char *text = tokenizer->json;
    pd_json_writer_init(&s.json, 0);
    pd_status st = tokenizer->is_gguf ? save(&s, &text, &bytes, err) : PD_OK;
    if (!st && !text) st = pd_error_set(err, PD_UNSUPPORTED, PD_WHERE, 0, "tokens that are bytes have no tokenizer.json");
    if (!st && !(*ret_text = strndup(text, bytes)))
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for a tokenizer");
    pd_json_writer_deinit(&s.json);
    pd_string_deinit(&s.text);
    return st;
}
