/* What tokenizer_config.json and added_tokens.json say of added tokens that tokenizer.json has not, as transformers takes it:
 * tokens of added_tokens_decoder, those of added_tokens.json, and the named ones (bos_token, ...) that the vocabulary has. It
 * goes into the tokenizer's own text, as a member "beside" in front, so that a copy of that text is whole. */
#include "ckpt/base/parse.h"
#include "trainer/tokenizer/load.h"
#include "trainer/tokenizer/tokenizer.h"

#include <stdio.h>

static const struct pd_json_value *member(const struct pd_json_value *object, const char *key)
{
    return object && pd_json_type(object) == PD_JSON_OBJECT ? pd_json_member(object, key) : NULL;
}

/* A token is a text, or an object with its content and flags. id: negative: the vocabulary's. */
static void put_token(struct pd_json_writer *w, const struct pd_json_value *token, const char *content, int64_t id)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "special", "normalized"};
    bool is_on;
    if (!content) content = token && pd_json_text(token) ? pd_json_text(token) : NULL;
    if (!content && member(token, "content")) content = pd_json_text(member(token, "content"));
    if (!content || !*content) return;
    pd_json_object_begin(w, NULL);
    pd_json_string(w, "content", content);
    if (id >= 0) pd_json_i64(w, "id", id);
    if (id < 0) pd_json_bool(w, "special", true);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        const struct pd_json_value *flag = member(token, flags[i]);
        if (flag && pd_json_is_bool(flag, &is_on) && !(id < 0 && i == 3)) pd_json_bool(w, flags[i], is_on);
    }
    pd_json_object_end(w);
}

static void put_all(struct pd_json_writer *w, const struct pd_json_value *config, const struct pd_json_value *added)
{
    static const char *const named[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                        "sep_token", "cls_token", "mask_token"};
    const struct pd_json_value *value, *more = member(config, "additional_special_tokens");
    const char *key;
    uint64_t id;
    for (void *at = NULL;
         member(config, "added_tokens_decoder") && pd_json_next(member(config, "added_tokens_decoder"), &at, &key, &value);)
        if (pd_parse_u64(key, &id) && id < PD_VOCAB_IDS_MAX) put_token(w, value, NULL, (int64_t)id);
    for (void *at = NULL; added && pd_json_next(added, &at, &key, &value);)
        if (pd_json_is_u64(value, &id) && id < PD_VOCAB_IDS_MAX) put_token(w, NULL, key, (int64_t)id);
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        put_token(w, member(config, named[i]), NULL, -1);
    for (size_t i = 0; more && i < pd_json_count(more); i++)
        put_token(w, pd_json_at(more, i), NULL, -1);
}

/* Classes that make the template anew of these two; others ignore them. */
static void put_template(struct pd_json_writer *w, const struct pd_json_value *config)
{
    static const char *const keys[] = {"add_bos_token", "add_eos_token"};
    const struct pd_json_value *class = member(config, "tokenizer_class");
    const char *name = class ? pd_json_text(class) : NULL;
    bool is_on;
    if (!name || (strncmp(name, "Llama", 5) != 0 && strncmp(name, "CodeLlama", 9) != 0 && strncmp(name, "Gemma", 5) != 0))
        return;
    for (int i = 0; i < 2; i++)
        if (member(config, keys[i]) && pd_json_is_bool(member(config, keys[i]), &is_on)) pd_json_bool(w, keys[i], is_on);
}

/* "{" and the member, then the rest of `json`, which begins with "{".   ret_text  malloc'ed */
static pd_status splice(const char *json, size_t bytes, const char *beside, char **ret_text, size_t *ret_bytes,
                        struct pd_error *err)
{
    const size_t more = strcspn(beside, "\n");
    char *text = malloc(bytes + more + 32);
    if (!text) PD_FAIL(err, PD_NO_MEMORY, "no memory for a tokenizer");
    const char *brace = memchr(json, '{', bytes);
    const size_t head = (size_t)(brace + 1 - json);
    const size_t used = (size_t)snprintf(text, more + 32, "{\"beside\": %.*s,", (int)more, beside);
    memcpy(text + used, json + head, bytes - head);
    *ret_text = text;
    *ret_bytes = used + bytes - head;
    return PD_OK;
}

static pd_status parse_beside(const char *name, const struct pd_tokenizer_text *text, struct pd_json_document **ret,
                              struct pd_error *err)
{
    return text->text ? pd_json_parse(name, text->text, text->bytes, ret, err) : PD_OK;
}

static pd_status parse_spliced(const char *name, const struct pd_tokenizer_text *json, const struct pd_json_value *config,
                               const struct pd_json_value *added, struct pd_tokenizer **ret, struct pd_error *err)
{
    struct pd_json_writer w;
    const char *beside = NULL;
    char *text = NULL;
    size_t bytes = 0;
    pd_json_writer_init_object(&w, 0);
    pd_json_array_begin(&w, "added_tokens");
    put_all(&w, config, added);
    pd_json_array_end(&w);
    put_template(&w, config);
    pd_status st = pd_json_writer_finish(&w, &beside, NULL, err);
    if (!st) st = splice(json->text, json->bytes, beside, &text, &bytes, err);
    pd_json_writer_deinit(&w);
    if (!st) st = pd_tokenizer_parse(name, text, bytes, ret, err);
    free(text);
    return st;
}

pd_status pd_tokenizer_parse_with(const char *name, const struct pd_tokenizer_text *json,
                                  const struct pd_tokenizer_text *config, const struct pd_tokenizer_text *added,
                                  struct pd_tokenizer **ret_tokenizer, struct pd_error *err)
{
    struct pd_json_document *of_config = NULL, *of_added = NULL;
    const char *first = json->text + strspn(json->text, " \t\r\n");
    if ((!config->text && !added->text) || *first != '{') /* what is no object is refused by the loader */
        return pd_tokenizer_parse(name, json->text, json->bytes, ret_tokenizer, err);
    pd_status st = parse_beside("tokenizer_config.json", config, &of_config, err);
    if (!st) st = parse_beside("added_tokens.json", added, &of_added, err);
    if (!st)
        st = parse_spliced(name, json, of_config ? pd_json_root(of_config) : NULL, of_added ? pd_json_root(of_added) : NULL,
                           ret_tokenizer, err);
    pd_json_document_free(of_config);
    pd_json_document_free(of_added);
    return st;
}
