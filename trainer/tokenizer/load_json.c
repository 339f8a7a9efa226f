/* tokenizer.json: model, added tokens, normalizer, pre-tokenizer, template, decoder. The file may be hostile: sizes, depth
 * and the number of steps are limited, ids are checked against each other. `truncation` and `padding` concern batches and do
 * not change a text's tokens, so they are ignored. */
#include "ckpt/base/json.h"
#include "trainer/tokenizer/load.h"
#include "trainer/tokenizer/parts.h"
#include "trainer/tokenizer/tokenizer.h"
#include <stdio.h>

/* ---- added tokens ---- */

static pd_status normalize_added(const struct pd_loader *l, struct pd_added_token *token, struct pd_error *err)
{
    struct pd_normalizer_scratch scratch = {0};
    struct pd_pattern_scratch *patterns = NULL;
    struct pd_text_slice slice = {token->content, strlen(token->content), 1};
    PD_TRY(pd_pattern_scratch_new(&patterns, err));
    pd_status status = pd_normalizer_run(&l->tokenizer->normalizer, &scratch, patterns, &slice, err);
    if (!status) token->normalized = strndup(slice.text, slice.bytes);
    if (!status && !token->normalized) status = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "%s: no memory", l->name);
    for (unsigned i = 0; i < 2; i++)
        pd_string_deinit(&scratch.texts[i]);
    pd_pattern_scratch_free(patterns);
    return status;
}

/* Adds the token in `value`, with its id in the vocabulary, else `id`. */
static pd_status add_token(const struct pd_loader *l, const struct pd_json_value *value, const char *path, bool is_special,
                           int64_t id, struct pd_error *err)
{
    struct pd_added *added = &l->tokenizer->added;
    struct pd_added_token *token = &added->tokens[added->count];
    bool normalized;
    PD_TRY(pd_load_bool(l, value, path, "single_word", false, &token->single_word, err));
    PD_TRY(pd_load_bool(l, value, path, "lstrip", false, &token->lstrip, err));
    PD_TRY(pd_load_bool(l, value, path, "rstrip", false, &token->rstrip, err));
    PD_TRY(pd_load_bool(l, value, path, "special", is_special, &token->special, err));
    PD_TRY(pd_load_bool(l, value, path, "normalized", !token->special, &normalized, err));
    PD_TRY(pd_load_content(l, value, path, "content", &token->content, err));
    token->id = (uint32_t)id;
    added->count++;
    if (!*token->content) PD_FAIL(err, PD_INVALID, "%s: %s.content is empty", l->name, path);
    return normalized ? normalize_added(l, token, err) : PD_OK;
}

static pd_status id_of(const struct pd_loader *l, const struct pd_json_value *value, const char *path, int64_t *ret,
                       struct pd_error *err)
{
    const struct pd_json_value *number = pd_load_member(value, "id");
    uint64_t id;
    if (!number || !pd_json_is_u64(number, &id)) PD_FAIL(err, PD_CORRUPT, "%s: %s.id is not a number", l->name, path);
    *ret = id < PD_VOCAB_IDS_MAX ? (int64_t)id : PD_VOCAB_IDS_MAX;
    return PD_OK;
}

static const struct pd_added_token *find_added(const struct pd_loader *l, const char *content)
{
    const struct pd_added *added = &l->tokenizer->added;
    for (uint32_t i = 0; i < added->count; i++)
        if (!strcmp(added->tokens[i].content, content)) return &added->tokens[i];
    return NULL;
}

static pd_status load_added_token(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                                  uint32_t *next_id, struct pd_error *err)
{
    const struct pd_added_token *tokens = l->tokenizer->added.tokens, *token = &tokens[l->tokenizer->added.count];
    const char *content;
    int64_t id;
    PD_TRY(id_of(l, value, path, &id, err));
    PD_TRY(pd_load_text(l, value, path, "content", &content, err));
    const struct pd_added_token *there = find_added(l, content);
    if (there)
        PD_FAIL(err, PD_INVALID, "%s: %s.content equals added_tokens[%u] too", l->name, path, (unsigned)(there - tokens));
    const int32_t known = pd_vocab_find(&l->tokenizer->vocab, content, strlen(content));
    PD_TRY(add_token(l, value, path, false, known >= 0 ? known : (int64_t)(*next_id)++, err));
    if (token->id != id)
        PD_FAIL(err, PD_INVALID, "%s: %s.id is %lld, and the vocabulary gives \"%.80s\" the id %u", l->name, path,
                (long long)id, token->content, token->id);
    return PD_OK;
}

/* A token found only beside tokenizer.json (load_beside.c). A named one not in the vocabulary has no id. */
static pd_status load_beside_token(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                                   struct pd_error *err)
{
    const char *content;
    int64_t id = -1;
    PD_TRY(pd_load_text(l, value, path, "content", &content, err));
    if (!*content || find_added(l, content)) return PD_OK;
    const int32_t known = pd_vocab_find(&l->tokenizer->vocab, content, strlen(content));
    if (pd_load_member(value, "id")) PD_TRY(id_of(l, value, path, &id, err));
    if (id < 0 && known < 0) return PD_OK;
    if (id >= 0 && known >= 0 && known != id)
        PD_FAIL(err, PD_INVALID, "%s: \"%.80s\" has the id %lld in tokenizer_config.json or added_tokens.json, and %d here",
                l->name, content, (long long)id, known);
    return add_token(l, value, path, false, known >= 0 ? known : id, err);
}

static pd_status load_added(const struct pd_loader *l, const struct pd_json_value *list, const struct pd_json_value *beside,
                            struct pd_error *err)
{
    const size_t count = list ? pd_json_count(list) : 0, more = beside ? pd_json_count(beside) : 0;
    uint32_t next_id = l->tokenizer->vocab.count;
    char path[PD_LOAD_PATH_MAX];
    if (count + more > PD_LOAD_ADDED_MAX)
        PD_FAIL(err, PD_INVALID, "%s: added_tokens has %zu entries; %u are possible", l->name, count + more,
                PD_LOAD_ADDED_MAX);
    l->tokenizer->added.tokens = calloc(count + more + 1, sizeof *l->tokenizer->added.tokens);
    if (!l->tokenizer->added.tokens) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory", l->name);
    for (size_t i = 0; i < count + more; i++) {
        snprintf(path, sizeof path, "%sadded_tokens[%zu]", i < count ? "" : "beside.", i < count ? i : i - count);
        if (i < count)
            PD_TRY(load_added_token(l, pd_json_at(list, i), path, &next_id, err));
        else
            PD_TRY(load_beside_token(l, pd_json_at(beside, i - count), path, err));
    }
    return PD_OK;
}

/* ---- template ---- */

static pd_status load_special(const struct pd_loader *l, const struct pd_json_value *processor, const char *name,
                              struct pd_tokens *tokens, struct pd_error *err)
{
    const struct pd_json_value *all = pd_load_member(processor, "special_tokens");
    const struct pd_json_value *one = all ? pd_load_member(all, name) : NULL, *ids = one ? pd_load_member(one, "ids") : NULL;
    if (!ids) PD_FAIL(err, PD_CORRUPT, "%s: post_processor.special_tokens has no ids of \"%.80s\"", l->name, name);
    for (size_t i = 0; i < pd_json_count(ids); i++) {
        uint64_t id;
        if (!pd_json_is_u64(pd_json_at(ids, i), &id) || id >= PD_VOCAB_IDS_MAX)
            PD_FAIL(err, PD_CORRUPT, "%s: post_processor.special_tokens: an id of \"%.80s\" is not a token", l->name, name);
        const int32_t token = (int32_t)id;
        PD_TRY(pd_tokens_add(tokens, &token, 1, err));
    }
    return PD_OK;
}

static pd_status load_processor(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                                const char *type, struct pd_error *err)
{
    if (!strcmp(type, "ByteLevel")) return PD_OK; /* offsets alone */
    if (strcmp(type, "TemplateProcessing") != 0)
        PD_FAIL(err, PD_UNSUPPORTED, "%s: %s: %.40s is not supported; TemplateProcessing and ByteLevel are", l->name, path,
                type);
    if (l->tokenizer->before.count || l->tokenizer->behind.count)
        PD_FAIL(err, PD_UNSUPPORTED, "%s: %s is a second template", l->name, path);
    const struct pd_json_value *single = pd_load_member(value, "single");
    bool seen = false;
    if (!single) PD_FAIL(err, PD_CORRUPT, "%s: post_processor.single is missing", l->name);
    for (size_t i = 0; i < pd_json_count(single); i++) {
        const struct pd_json_value *piece = pd_json_at(single, i), *special = pd_load_member(piece, "SpecialToken");
        const struct pd_json_value *sequence = pd_load_member(piece, "Sequence");
        const char *id;
        PD_TRY(pd_load_text(l, special ? special : sequence ? sequence : piece, "post_processor.single", "id", &id, err));
        if (special) {
            PD_TRY(load_special(l, value, id, seen ? &l->tokenizer->behind : &l->tokenizer->before, err));
            continue;
        }
        if (seen || strcmp(id, "A") != 0)
            PD_FAIL(err, PD_UNSUPPORTED, "%s: post_processor.single takes its text twice, or another", l->name);
        seen = true;
    }
    if (!seen) PD_FAIL(err, PD_UNSUPPORTED, "%s: post_processor.single leaves its text out", l->name);
    return PD_OK;
}

/* ---- the file ---- */

static pd_status load_part(const struct pd_loader *l, const struct pd_json_value *root, const char *key,
                           const struct pd_load_kind *kind, struct pd_error *err)
{
    const struct pd_json_value *value = pd_load_member(root, key);
    return value ? pd_load_steps(l, value, key, kind, 0, err) : PD_OK;
}

/* A template that a class of transformers would rebuild. */
static pd_status check_beside(const struct pd_loader *l, const struct pd_json_value *root,
                              const struct pd_json_value *beside, struct pd_error *err)
{
    static const char *const keys[] = {"add_bos_token", "add_eos_token"};
    const size_t counts[] = {l->tokenizer->before.count, l->tokenizer->behind.count};
    const struct pd_json_value *before = pd_load_member(root, "pre_tokenizer"), *here = NULL, *there = NULL;
    bool is_on, is_on_here;
    if (before && pd_json_type(before) == PD_JSON_OBJECT) here = pd_load_member(before, "add_prefix_space");
    there = pd_load_member(beside, "add_prefix_space");
    if (here && there && pd_json_is_bool(there, &is_on) && pd_json_is_bool(here, &is_on_here) && is_on != is_on_here)
        PD_FAIL(
            err, PD_UNSUPPORTED,
            "%s: tokenizer_config.json says add_prefix_space: %s, and the pre_tokenizer here does the opposite; keep the "
            "one that the model was trained with",
            l->name, is_on ? "true" : "false");
    for (int i = 0; i < 2; i++)
        if (pd_load_member(beside, keys[i]) && pd_json_is_bool(pd_load_member(beside, keys[i]), &is_on) &&
            is_on != (counts[i] > 0))
            PD_FAIL(err, PD_UNSUPPORTED,
                    "%s: tokenizer_config.json says %s: %s, and the post_processor here does the opposite; keep the one "
                    "that the "
                    "model was trained with",
                    l->name, keys[i], is_on ? "true" : "false");
    return PD_OK;
}

/* A member that we do not know may change the tokens of a text. */
static pd_status check_members(const struct pd_loader *l, const struct pd_json_value *object, const char *path,
                               const char *known, struct pd_error *err)
{
    const struct pd_json_value *value;
    const char *key;
    char word[64];
    for (void *cursor = NULL; pd_json_next(object, &cursor, &key, &value);) {
        snprintf(word, sizeof word, " %s ", key);
        if (!strstr(known, word) && pd_json_type(value) != PD_JSON_NULL)
            PD_FAIL(err, PD_UNSUPPORTED, "%s: %s%.80s is not supported", l->name, path, key);
    }
    return PD_OK;
}

static pd_status load_check_template(const struct pd_loader *l, struct pd_error *err)
{
    const struct pd_tokens *lists[] = {&l->tokenizer->before, &l->tokenizer->behind};
    for (unsigned list = 0; list < 2; list++)
        for (size_t i = 0; i < lists[list]->count; i++)
            if ((uint32_t)lists[list]->ids[i] >= l->tokenizer->limit)
                PD_FAIL(err, PD_INVALID, "%s: the template has token %d, and the vocabulary ends at %u", l->name,
                        lists[list]->ids[i], l->tokenizer->limit);
    return PD_OK;
}

static pd_status load_root(const struct pd_loader *l, const struct pd_json_value *root, struct pd_error *err)
{
    static const struct pd_load_kind processors = {"processors", load_processor};
    struct pd_tokenizer *t = l->tokenizer;
    struct pd_merge *merges = NULL;
    uint32_t merge_count = 0;
    const struct pd_json_value *model = pd_load_member(root, "model"), *version = pd_load_member(root, "version");
    if (!model || pd_json_type(model) != PD_JSON_OBJECT)
        PD_FAIL(err, PD_CORRUPT, "%s: it has no `model`, so it is not a tokenizer.json", l->name);
    PD_TRY(check_members(
        l, root, "",
        " version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model beside ", err));
    PD_TRY(check_members(l, model, "model.",
                         " type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback "
                         "ignore_merges vocab merges ",
                         err));
    if (version && (!pd_json_text(version) || strcmp(pd_json_text(version), "1.0") != 0))
        PD_FAIL(err, PD_UNSUPPORTED, "%s: version is not \"1.0\"", l->name);
    PD_TRY(load_part(l, root, "normalizer", &pd_load_normalizers, err));
    PD_TRY(load_part(l, root, "pre_tokenizer", &pd_load_splitters, err));
    PD_TRY(load_part(l, root, "decoder", &pd_load_decoders, err));
    t->has_decoder = pd_load_member(root, "decoder") != NULL;
    pd_status status = pd_load_model(l, model, &merges, &merge_count, err);
    const struct pd_json_value *beside = pd_load_member(root, "beside");
    if (!status)
        status =
            load_added(l, pd_load_member(root, "added_tokens"), beside ? pd_load_member(beside, "added_tokens") : NULL, err);
    if (!status) status = load_part(l, root, "post_processor", &processors, err);
    if (!status && beside) status = check_beside(l, root, beside, err);
    if (!status) status = pd_tokenizer_finish(t, merges, merge_count, err);
    free(merges);
    return status ? status : load_check_template(l, err);
}

static pd_status keep_json(struct pd_tokenizer *tokenizer, const char *json, size_t bytes, struct pd_error *err)
{
    tokenizer->json = malloc(bytes);
    if (!tokenizer->json) PD_FAIL(err, PD_NO_MEMORY, "no memory for a tokenizer");
    memcpy(tokenizer->json, json, bytes);
    tokenizer->json_bytes = bytes;
    return PD_OK;
}

pd_status pd_tokenizer_parse(const char *name, const char *json, size_t bytes, struct pd_tokenizer **ret_tokenizer,
                             struct pd_error *err)
{
    struct pd_json_document *document;
    if (bytes > PD_TOKENIZER_FILE_BYTES_MAX)
        PD_FAIL(err, PD_INVALID, "%s has %zu bytes; a tokenizer.json has at most %u", name, bytes,
                PD_TOKENIZER_FILE_BYTES_MAX);
    PD_TRY(pd_json_parse(name, json, bytes, &document, err));
    const struct pd_json_value *root = pd_json_root(document), *inner = pd_json_member(root, "huggingface.json");
    const bool is_gguf = pd_json_member(root, "ggml.model") != NULL;
    if (!is_gguf && inner && pd_json_text(inner)) { /* GGUF's place for a whole tokenizer.json */
        const char *text = pd_json_text(inner);
        const pd_status status = pd_tokenizer_parse(name, text, strlen(text), ret_tokenizer, err);
        pd_json_document_free(document);
        return status;
    }
    struct pd_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    pd_status status = PD_ALLOCATED(tokenizer, err, "no memory for a tokenizer");
    if (!status && is_gguf) status = pd_load_gguf(name, root, tokenizer, err);
    if (!status && !is_gguf) status = load_root(&(struct pd_loader){name, tokenizer}, root, err);
    pd_json_document_free(document);
    if (!status) status = keep_json(tokenizer, json, bytes, err);
    if (status) {
        pd_tokenizer_free(tokenizer);
        return status;
    }
    *ret_tokenizer = tokenizer;
    return PD_OK;
}
