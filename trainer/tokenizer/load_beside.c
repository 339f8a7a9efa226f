/* Reads added tokens from the files beside tokenizer.json, like transformers: added_tokens_decoder, added_tokens.json, and
 * named tokens (bos_token, ...) in the vocabulary. Names in special_tokens_map.json replace those in tokenizer_config.json,
 * unless that has an added_tokens_decoder. All of it is put in front of the tokenizer's own text, as a member "beside", so
 * that a copy is complete. */
#include "ckpt/base/parse.h"
#include "ckpt/base/regular_file.h"
#include "ckpt/io/vfs.h"
#include "trainer/tokenizer/load.h"
#include "trainer/tokenizer/tokenizer.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const pd_tokenizer_beside[PD_TOKENIZER_BESIDE] = {"tokenizer_config.json", "added_tokens.json",
                                                              "special_tokens_map.json"};

static const struct pd_json_value *member(const struct pd_json_value *object, const char *key)
{
    return object && pd_json_type(object) == PD_JSON_OBJECT ? pd_json_member(object, key) : NULL;
}

/* A token is a text, or an object with content and flags. A negative id means the vocabulary's. */
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

/* "bos_token", and model-specific ones such as "image_token". */
static bool is_named_token(const char *key)
{
    const size_t bytes = strlen(key), ending = strlen("_token");
    return bytes > ending && strcmp(key + bytes - ending, "_token") == 0;
}

static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"};
#define LISTS (sizeof lists / sizeof *lists)

/* Named tokens and lists of them, except those in `over`. */
static void put_named(struct pd_json_writer *w, const struct pd_json_value *from, const struct pd_json_value *over)
{
    const struct pd_json_value *value;
    const char *key;
    for (void *at = NULL; from && pd_json_next(from, &at, &key, &value);)
        if (is_named_token(key) && !member(over, key)) put_token(w, value, NULL, -1);
    for (size_t i = 0; i < LISTS; i++) {
        const struct pd_json_value *list =
            i && member(over, lists[i]) ? NULL : member(from, lists[i]); /* the first adds up */
        if (list && pd_json_type(list) == PD_JSON_ARRAY)
            for (size_t k = 0; k < pd_json_count(list); k++)
                put_token(w, pd_json_at(list, k), NULL, -1);
        else
            for (void *at = NULL; list && pd_json_next(list, &at, &key, &value);)
                put_token(w, value, NULL, -1);
    }
}

static void put_all(struct pd_json_writer *w, const struct pd_json_value *config, const struct pd_json_value *added,
                    const struct pd_json_value *map)
{
    const struct pd_json_value *value;
    const char *key;
    uint64_t id;
    for (void *at = NULL;
         member(config, "added_tokens_decoder") && pd_json_next(member(config, "added_tokens_decoder"), &at, &key, &value);)
        if (pd_parse_u64(key, &id) && id < PD_VOCAB_IDS_MAX) put_token(w, value, NULL, (int64_t)id);
    for (void *at = NULL; added && pd_json_next(added, &at, &key, &value);)
        if (pd_json_is_u64(value, &id) && id < PD_VOCAB_IDS_MAX) put_token(w, NULL, key, (int64_t)id);
    put_named(w, config, map);
    put_named(w, map, NULL);
}

/* ---- keys of tokenizer_config.json: one that is nowhere here is refused by name, for it may change the tokens of a text ----
 * Sources: the tokenizers of transformers 4.57 and 5.24; tests/golden/keys lists what those know. */

static const char keys_used[] =
    " added_tokens_decoder additional_special_tokens extra_special_tokens model_specific_special_tokens"
    " add_bos_token add_eos_token add_prefix_space tokenizer_class ";

/* For chats, batches, decoding, tokenizers without a tokenizer.json, and the program. */
static const char keys_harmless[] =
    " _commit_hash backend chat_control_tokens chat_template clean_up_tokenization_spaces"
    " clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output device_map do_basic_tokenize errors"
    " files_loaded from_slow init_inputs is_local legacy local_files_only max_len max_length max_seq_length"
    " model_input_names model_max_length model_type name_or_path never_split pad_to_multiple_of pad_token_type_id padding"
    " padding_side processor_class response_schema response_template return_tensors return_token_type_ids sp_model_kwargs"
    " spaces_between_special_tokens special_tokens_map_file stride tokenize_chinese_chars tokenizer_file tokenizer_type"
    " transformers_version trim_offsets truncation truncation_side truncation_strategy unk_id use_default_system_prompt"
    " use_fast verbose vocab_file ";

/* Off is computed, on is refused. */
static const struct {
    const char *key, *why;
} off[] = {
    {"split_special_tokens", "special tokens in a text are one token each here"},
    {"do_lower_case", "texts keep their case here"},
    {"strip_accents", "texts keep their accents here"},
    {"fix_mistral_regex", "words are split as tokenizer.json says; save the tokenizer once more with the right expression"},
    {"auto_map", "the tokenizer brings code of its own, which may do something else"},
};

static bool is_among(const char *names, const char *name)
{
    char word[128];
    return (size_t)snprintf(word, sizeof word, " %s ", name) < sizeof word && !strchr(name, ' ') && strstr(names, word);
}

static pd_status check_keys(const struct pd_json_value *config, struct pd_error *err)
{
    const struct pd_json_value *value;
    const char *key;
    bool is_on = true;
    for (void *at = NULL; pd_json_next(config, &at, &key, &value);) {
        const size_t bytes = strlen(key), ending = strlen("_token_id");
        const bool is_id = bytes > ending && strcmp(key + bytes - ending, "_token_id") == 0;
        if (pd_json_type(value) == PD_JSON_NULL || is_named_token(key) || is_id) continue;
        if (is_among(keys_used, key) || is_among(keys_harmless, key)) continue;
        size_t known = 0;
        while (known < sizeof off / sizeof *off && strcmp(off[known].key, key) != 0)
            known++;
        if (known == sizeof off / sizeof *off)
            PD_FAIL(
                err, PD_UNSUPPORTED,
                "tokenizer_config.json: perdure does not know the key %.200s, which may change the tokens of a text; if it "
                "does not, take it out",
                key);
        if (!pd_json_is_bool(value, &is_on) || is_on)
            PD_FAIL(err, PD_UNSUPPORTED, "tokenizer_config.json: %s is set, and %s", key, off[known].why);
    }
    return PD_OK;
}

/* Contradictions to tokenizer.json are refused there. Classes with these names rebuild the template from the two; others
 * ignore them. */
static void put_template(struct pd_json_writer *w, const struct pd_json_value *config)
{
    static const char *const keys[] = {"add_bos_token", "add_eos_token"};
    const struct pd_json_value *class = member(config, "tokenizer_class");
    const char *name = class ? pd_json_text(class) : NULL;
    bool is_on;
    if (member(config, "add_prefix_space") && pd_json_is_bool(member(config, "add_prefix_space"), &is_on))
        pd_json_bool(w, "add_prefix_space", is_on);
    if (!name || (strncmp(name, "Llama", 5) != 0 && strncmp(name, "CodeLlama", 9) != 0 && strncmp(name, "Gemma", 5) != 0))
        return;
    for (int i = 0; i < 2; i++)
        if (member(config, keys[i]) && pd_json_is_bool(member(config, keys[i]), &is_on)) pd_json_bool(w, keys[i], is_on);
}

/* transformers treats all of its keys like keys of tokenizer_config.json. */
static pd_status check_map(const struct pd_json_value *map, struct pd_error *err)
{
    const struct pd_json_value *value;
    const char *key;
    for (void *at = NULL; pd_json_next(map, &at, &key, &value);) {
        bool is_known = is_named_token(key) || pd_json_type(value) == PD_JSON_NULL;
        for (size_t i = 0; i < LISTS; i++)
            is_known |= !strcmp(key, lists[i]);
        if (!is_known)
            PD_FAIL(err, PD_UNSUPPORTED,
                    "special_tokens_map.json: %.200s is not the name of a token; if it does not change how text is "
                    "tokenized, remove it",
                    key);
    }
    return PD_OK;
}

/* "{" and the member, then the rest of `json`, which begins with "{".   ret_text  malloc'ed */
static pd_status put_in_front(const char *json, size_t bytes, const char *beside, char **ret_text, size_t *ret_bytes,
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

static pd_status parse_spliced(const char *name, const struct pd_tokenizer_text *json,
                               struct pd_json_document *const *documents, struct pd_tokenizer **ret, struct pd_error *err)
{
    struct pd_json_writer w;
    const struct pd_json_value *roots[PD_TOKENIZER_BESIDE];
    const char *beside = NULL;
    char *text = NULL;
    size_t bytes = 0;
    for (uint32_t i = 0; i < PD_TOKENIZER_BESIDE; i++)
        roots[i] = documents[i] ? pd_json_root(documents[i]) : NULL;
    if (member(roots[0], "added_tokens_decoder")) roots[2] = NULL;
    if (roots[0]) PD_TRY(check_keys(roots[0], err));
    if (roots[2]) PD_TRY(check_map(roots[2], err));
    pd_json_writer_init_object(&w, 0);
    pd_json_array_begin(&w, "added_tokens");
    put_all(&w, roots[0], roots[1], roots[2]);
    pd_json_array_end(&w);
    put_template(&w, roots[0]);
    pd_status st = pd_json_writer_finish(&w, &beside, NULL, err);
    if (!st) st = put_in_front(json->text, json->bytes, beside, &text, &bytes, err);
    pd_json_writer_deinit(&w);
    if (!st) st = pd_tokenizer_parse(name, text, bytes, ret, err);
    free(text);
    return st;
}

pd_status pd_tokenizer_parse_with(const char *name, const struct pd_tokenizer_text *json,
                                  const struct pd_tokenizer_text beside[PD_TOKENIZER_BESIDE],
                                  struct pd_tokenizer **ret_tokenizer, struct pd_error *err)
{
    struct pd_json_document *documents[PD_TOKENIZER_BESIDE] = {NULL};
    bool is_alone = json->text[strspn(json->text, " \t\r\n")] != '{'; /* the loader refuses what is not an object */
    pd_status st = PD_OK;
    for (uint32_t i = 0; i < PD_TOKENIZER_BESIDE && !st; i++)
        if (beside[i].text) st = pd_json_parse(pd_tokenizer_beside[i], beside[i].text, beside[i].bytes, &documents[i], err);
    is_alone |= !documents[0] && !documents[1] && !documents[2];
    if (!st)
        st = is_alone ? pd_tokenizer_parse(name, json->text, json->bytes, ret_tokenizer, err)
                      : parse_spliced(name, json, documents, ret_tokenizer, err);
    for (uint32_t i = 0; i < PD_TOKENIZER_BESIDE; i++)
        pd_json_document_free(documents[i]);
    return st;
}

/* ---- opening a path ---- */

static pd_status check_bytes(const char *path, uint64_t bytes, struct pd_error *err)
{
    if (bytes <= PD_TOKENIZER_FILE_BYTES_MAX) return PD_OK;
    PD_FAIL(err, PD_INVALID, "%s has %" PRIu64 " bytes; a tokenizer.json has at most %u", path, bytes,
            PD_TOKENIZER_FILE_BYTES_MAX);
}

static pd_status read_remote(const char *path, struct pd_tokenizer_text *ret, struct pd_error *err)
{
    struct pd_vfs *vfs = NULL;
    struct pd_file *file = NULL;
    struct pd_stat stat = {.bytes = 0};
    char *text = NULL;
    PD_TRY(pd_vfs_new_threads(1, 1, &vfs, err));
    pd_status st = pd_file_open(vfs, path, PD_OPEN_READ, &file, err);
    if (!st) st = pd_file_stat(file, &stat, err);
    if (!st) st = check_bytes(path, stat.bytes, err);
    if (!st) st = PD_ALLOCATED((text = calloc(1, stat.bytes + 1)), err, "no memory to read %s", path);
    if (!st) st = pd_file_read(file, 0, text, stat.bytes, err);
    pd_file_close_readonly(file);
    pd_vfs_free(vfs);
    if (st)
        free(text);
    else
        *ret = (struct pd_tokenizer_text){text, stat.bytes};
    return st;
}

bool pd_tokenizer_file_exists(const char *path)
{
    struct pd_vfs *vfs = NULL;
    struct pd_file *file = NULL;
    if (!pd_vfs_is_remote(path)) return access(path, F_OK) == 0;
    if (pd_vfs_new_threads(1, 1, &vfs, NULL)) return false;
    const bool is_there = !pd_file_open(vfs, path, PD_OPEN_READ, &file, NULL);
    pd_file_close_readonly(file);
    pd_vfs_free(vfs);
    return is_there;
}

pd_status pd_tokenizer_read(const char *path, struct pd_tokenizer_text *ret, struct pd_error *err)
{
    struct stat st = {0};
    if (pd_vfs_is_remote(path)) return read_remote(path, ret, err);
    FILE *file = pd_regular_fopen(path, false);
    if (!file) PD_FAIL_ERRNO(err, errno, "the tokenizer %s cannot be opened", path);
    pd_status status = PD_OK;
    char *text = NULL;
    if (fstat(fileno(file), &st))
        status = pd_error_set(err, pd_status_from_errno(errno), PD_WHERE, errno, "%s", path);
    else if ((status = check_bytes(path, (uint64_t)st.st_size, err)))
        ;
    else if (!(text = calloc(1, (size_t)st.st_size + 1)))
        status = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory to read %s", path);
    else if (fread(text, 1, (size_t)st.st_size, file) != (size_t)st.st_size)
        status = pd_error_set(err, PD_IO, PD_WHERE, ferror(file) ? errno : 0, "%s cannot be read to its end", path);
    fclose(file);
    if (status)
        free(text);
    else
        *ret = (struct pd_tokenizer_text){text, (size_t)st.st_size};
    return status;
}

static bool has_file(const char *directory, const char *name)
{
    char path[4096];
    const int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    return length > 0 && (size_t)length < sizeof path && access(path, F_OK) == 0;
}

/* Its tokenizer.json even if absent, for the message. */
static const char *file_in(const char *directory)
{
    const bool is_gguf = !has_file(directory, PD_TOKENIZER_FILE) && has_file(directory, PD_TOKENIZER_GGUF_FILE);
    return is_gguf ? PD_TOKENIZER_GGUF_FILE : PD_TOKENIZER_FILE;
}

pd_status pd_tokenizer_open(const char *path, struct pd_tokenizer **ret_tokenizer, struct pd_error *err)
{
    return pd_tokenizer_open_as(path, NULL, ret_tokenizer, err);
}

pd_status pd_tokenizer_open_as(const char *path, const char *name, struct pd_tokenizer **ret_tokenizer, struct pd_error *err)
{
    struct stat st;
    char inside[4096];
    if (!strcmp(path, "byte")) {
        struct pd_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
        if (!tokenizer) PD_FAIL(err, PD_NO_MEMORY, "no memory for a tokenizer");
        *tokenizer = (struct pd_tokenizer){.is_bytes = true, .limit = 256, .digest = pd_tokenizer_digest_of_bytes()};
        *ret_tokenizer = tokenizer;
        return PD_OK;
    }
    const bool is_directory = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    const int length =
        snprintf(inside, sizeof inside, "%s%s%s", path, is_directory ? "/" : "", is_directory ? file_in(path) : "");
    if (length < 0 || (size_t)length >= sizeof inside) PD_FAIL(err, PD_INVALID, "%.80s...: the path is too long", path);
    /* A tokenizer.json with the files beside it, or another single file. */
    struct pd_tokenizer_text texts[1 + PD_TOKENIZER_BESIDE] = {{0}};
    const char *slash = strrchr(inside, '/');
    const bool is_json = strcmp(slash ? slash + 1 : inside, PD_TOKENIZER_FILE) == 0;
    pd_status status = pd_tokenizer_read(inside, &texts[0], err);
    for (uint32_t i = 0; i < PD_TOKENIZER_BESIDE && !status && is_json; i++) {
        char beside[4200];
        snprintf(beside, sizeof beside, "%.*s%s", slash ? (int)(slash + 1 - inside) : 0, inside, pd_tokenizer_beside[i]);
        if (pd_tokenizer_file_exists(beside)) status = pd_tokenizer_read(beside, &texts[i + 1], err);
    }
    if (!status) status = pd_tokenizer_parse_with(name ? name : inside, &texts[0], &texts[1], ret_tokenizer, err);
    for (uint32_t i = 0; i <= PD_TOKENIZER_BESIDE; i++)
        free((char *)(uintptr_t)texts[i].text);
    return status;
}
