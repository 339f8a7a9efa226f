/* GGUF metadata as an import lays it beside a checkpoint (tokenizer.gguf): keys without "tokenizer.", as one JSON object. What
 * is absent is what llama.cpp takes then (llama-vocab.cpp): llama and llama-bpe begin with bos, llama puts a space before. */
#include "trainer/tokenizer/load.h"
#include "trainer/tokenizer/tokenizer.h"

#include <stdio.h>

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
    const struct pd_gguf_pre *known = a.pre ? pd_gguf_pre(a.pre) : NULL;
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
