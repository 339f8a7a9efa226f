#include "trainer/tokenizer/load.h"

/* A merge is written "left right", or ["left", "right"] in newer files. */
static bool halves_of(const struct pd_json_value *merge, const char *halves[2], size_t bytes[2])
{
    const char *text = pd_json_text(merge);
    if (text) {
        const char *space = strchr(text, ' ');
        if (!space || strchr(space + 1, ' ')) return false;
        halves[0] = text;
        bytes[0] = (size_t)(space - text);
        halves[1] = space + 1;
        bytes[1] = strlen(space + 1);
        return true;
    }
    if (pd_json_count(merge) != 2) return false;
    for (unsigned i = 0; i < 2; i++) {
        halves[i] = pd_json_text(pd_json_at(merge, i));
        if (!halves[i]) return false;
        bytes[i] = strlen(halves[i]);
    }
    return true;
}

static pd_status load_merge(const struct pd_vocab *vocab, const struct pd_json_value *value, uint32_t rank,
                            struct pd_string *joined, struct pd_merge *ret_merge, struct pd_error *err)
{
    const char *halves[2];
    size_t bytes[2];
    if (!halves_of(value, halves, bytes)) PD_FAIL(err, PD_CORRUPT, "not a pair of tokens");
    const int32_t left = pd_vocab_find(vocab, halves[0], bytes[0]), right = pd_vocab_find(vocab, halves[1], bytes[1]);
    pd_string_cut(joined, 0);
    PD_TRY(pd_string_add(joined, halves[0], bytes[0], err));
    PD_TRY(pd_string_add(joined, halves[1], bytes[1], err));
    const int32_t result = pd_vocab_find(vocab, joined->bytes, joined->count);
    if (left < 0 || right < 0 || result < 0)
        PD_FAIL(err, PD_INVALID, "\"%.*s\" and \"%.*s\" make a token that is not in the vocabulary, or are not in it",
                (int)(bytes[0] < 60 ? bytes[0] : 60), halves[0], (int)(bytes[1] < 60 ? bytes[1] : 60), halves[1]);
    *ret_merge = (struct pd_merge){(uint32_t)left, (uint32_t)right, rank, (uint32_t)result};
    return PD_OK;
}

pd_status pd_load_merges(const struct pd_vocab *vocab, const struct pd_json_value *list, const char *path,
                         struct pd_merge **ret_merges, uint32_t *ret_count, struct pd_error *err)
{
    struct pd_string joined = {0};
    pd_status status = PD_OK;
    *ret_merges = calloc(pd_json_count(list) + 1, sizeof **ret_merges);
    if (!*ret_merges) PD_FAIL(err, PD_NO_MEMORY, "no memory for %s", path);
    for (size_t i = 0; !status && i < pd_json_count(list); i++) {
        const char *line = pd_json_text(pd_json_at(list, i));
        if (line && !strncmp(line, "#version", 8)) continue;
        status = load_merge(vocab, pd_json_at(list, i), *ret_count, &joined, &(*ret_merges)[*ret_count], err);
        if (status) pd_error_context(err, status, "%s[%zu]", path, i);
        (*ret_count)++;
    }
    pd_string_deinit(&joined);
    return status;
}

static pd_status check_absent(const struct pd_loader *l, const struct pd_json_value *model, const char *key,
                              struct pd_error *err)
{
    const struct pd_json_value *value = pd_json_member(model, key);
    double number = 0;
    if (!value || pd_json_type(value) == PD_JSON_NULL) return PD_OK;
    const char *text = pd_json_text(value);
    if ((text && !*text) || (pd_json_is_number(value, &number) && number == 0)) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED, "%s: model.%s is not supported", l->name, key);
}

static pd_status load_options(const struct pd_loader *l, const struct pd_json_value *model, struct pd_error *err)
{
    struct pd_bpe_options *options = &l->tokenizer->bpe_options;
    const struct pd_json_value *unknown = pd_json_member(model, "unk_token");
    const char *text = unknown ? pd_json_text(unknown) : NULL;
    PD_TRY(check_absent(l, model, "dropout", err));
    PD_TRY(check_absent(l, model, "continuing_subword_prefix", err));
    PD_TRY(check_absent(l, model, "end_of_word_suffix", err));
    PD_TRY(pd_load_bool(l, model, "model", "fuse_unk", false, &options->fuse_unknown, err));
    PD_TRY(pd_load_bool(l, model, "model", "byte_fallback", false, &options->byte_fallback, err));
    PD_TRY(pd_load_bool(l, model, "model", "ignore_merges", false, &options->ignore_merges, err));
    options->unknown = text ? pd_vocab_find(&l->tokenizer->vocab, text, strlen(text)) : -1;
    if (text && options->unknown < 0)
        PD_FAIL(err, PD_INVALID, "%s: model.unk_token \"%.80s\" is not in model.vocab", l->name, text);
    return PD_OK;
}

pd_status pd_load_model(const struct pd_loader *l, const struct pd_json_value *model, struct pd_merge **ret_merges,
                        uint32_t *ret_count, struct pd_error *err)
{
    const struct pd_json_value *type = pd_json_member(model, "type"), *list = pd_json_member(model, "merges");
    const char *name = type ? pd_json_text(type) : "BPE"; /* files of old have no type */
    if (!name || strcmp(name, "BPE") != 0)
        PD_FAIL(err, PD_UNSUPPORTED, "%s: model.type %.40s is not supported; BPE is", l->name, name ? name : "");
    if (!list || pd_json_type(list) != PD_JSON_ARRAY) PD_FAIL(err, PD_CORRUPT, "%s: model.merges is not a list", l->name);
    const struct pd_json_value *vocab = pd_json_member(model, "vocab"), *value;
    void *cursor = NULL;
    const char *text;
    uint64_t id;
    if (!vocab || pd_json_type(vocab) != PD_JSON_OBJECT)
        PD_FAIL(err, PD_CORRUPT, "%s: model.vocab is not an object of tokens", l->name);
    while (pd_json_next(vocab, &cursor, &text, &value)) {
        if (!pd_json_is_u64(value, &id)) PD_FAIL(err, PD_CORRUPT, "%s: model.vocab: \"%.80s\" has no number", l->name, text);
        pd_status status = pd_vocab_add(&l->tokenizer->vocab, text, strlen(text), id, err);
        if (status) return pd_error_context(err, status, "%s: model.vocab: \"%.80s\"", l->name, text);
    }
    if (!l->tokenizer->vocab.count) PD_FAIL(err, PD_CORRUPT, "%s: model.vocab is empty", l->name);
    PD_TRY(load_options(l, model, err));
    const pd_status st = pd_load_merges(&l->tokenizer->vocab, list, "model.merges", ret_merges, ret_count, err);
    return st ? pd_error_context(err, st, "%s", l->name) : PD_OK;
}
