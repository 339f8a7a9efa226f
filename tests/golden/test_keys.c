/* Every key that transformers and llama.cpp know (keys/, which tests/peer/keys_agree.py writes) is given a value that is not its
 * default, and is used, harmless, or refused by its name, as the list says. */
#include "ckpt/base/json.h"
#include "resharder/formats/gguf.h"
#include "trainer/model/hugging_face.h"
#include "trainer/tokenizer/tokenizer.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct pd_error err;

/* What a file makes of a model and its tokenizer. */
struct read {
    pd_status status;
    struct pd_model_config config;
    struct pd_special_tokens tokens;
    uint64_t digest;
};

static bool is_same(const struct read *a, const struct read *b)
{
    return memcmp(&a->config, &b->config, sizeof a->config) == 0 && a->tokens.bos == b->tokens.bos &&
           a->tokens.eos_count == b->tokens.eos_count && a->tokens.eos[0] == b->tokens.eos[0] && a->digest == b->digest;
}

/* `names`: where a refusal has one of the key's last parts, it is by name. */
static const char *outcome(const struct read *base, const struct read *changed, const char *key, const char *value)
{
    const char *dot = strrchr(key, '.'), *last = dot ? dot + 1 : key;
    cr_assert_eq(base->status, PD_OK, "%s", err.message);
    if (!changed->status) return is_same(base, changed) ? "harmless" : "used";
    if (strstr(err.message, strcmp(last, "architectures") ? last : "architecture ")) return "refused";
    for (const char *at = value; (at = strchr(at, '"')); at++) { /* a value of several keys, for one that needs others */
        char name[64];
        if (sscanf(at, "\"%63[a-z_]\":", name) == 1 && strstr(err.message, name)) return "refused";
    }
    return "refused, and not by name";
}

/* Calls `check` for every line of the list and counts those whose outcome is another than the list's. */
static void walk(const char *list, unsigned least,
                 void (*check)(const char *family, const char *key, const char *value, const char **ret))
{
    char path[512], line[1024];
    unsigned wrong = 0, count = 0;
    snprintf(path, sizeof path, PERDURE_SOURCE_DIR "/tests/golden/keys/%s", list);
    FILE *file = fopen(path, "r");
    cr_assert(file, "%s", path);
    for (; fgets(line, sizeof line, file); count++) {
        const char *family = strtok(line, "\t"), *key = strtok(NULL, "\t"), *value = strtok(NULL, "\t"),
                   *wanted = strtok(NULL, "\t\n"), *is = NULL;
        err = (struct pd_error){0};
        check(family, key, value, &is);
        if (wanted && strcmp(is, wanted) == 0) continue;
        wrong++;
        fprintf(stderr, "%s\t%s\t%s\t%s (the list says %s) %s\n", family, key, value, is, wanted, err.message);
    }
    fclose(file);
    cr_assert(count > least && !wrong, "%u of %u keys of %s", wrong, count, list);
}

/* ---- config.json ---- */

static const struct {
    const char *key, *value;
} rope_base[] = {{"vocab_size", "96"},
                 {"hidden_size", "64"},
                 {"intermediate_size", "128"},
                 {"num_hidden_layers", "2"},
                 {"num_attention_heads", "4"},
                 {"num_key_value_heads", "2"},
                 {"head_dim", "16"},
                 {"max_position_embeddings", "256"},
                 {"sliding_window", "null"},
                 {"tie_word_embeddings", "false"},
                 {"rope_parameters",
                  "{\"rope_type\": \"llama3\", \"rope_theta\": 10000.0, \"factor\": 8.0, \"low_freq_factor\": 1.0,"
                  " \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 128}"},
                 {NULL, NULL}},
  gpt2_base[] = {{"vocab_size", "96"}, {"n_embd", "64"},       {"n_layer", "2"},
                 {"n_head", "4"},      {"n_positions", "256"}, {NULL, NULL}};

static struct read read_config(const char *family, const char *value)
{
    char text[4096];
    struct pd_json_document *document = NULL;
    struct read r = {0};
    cr_assert_eq(pd_json_parse("value", value, strlen(value), &document, &err), PD_OK, "%s", err.message);
    const struct pd_json_value *changed = pd_json_root(document);
    size_t used = (size_t)snprintf(text, sizeof text, "{%.*s", (int)strlen(value) - 2, value + 1);
    if (!pd_json_member(changed, "architectures"))
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%s\"architectures\": [\"%s\"]", used > 1 ? ", " : "", family);
    for (size_t i = 0; strcmp(family, "GPT2LMHeadModel") ? rope_base[i].key != NULL : gpt2_base[i].key != NULL; i++) {
        const char *key = strcmp(family, "GPT2LMHeadModel") ? rope_base[i].key : gpt2_base[i].key;
        const char *usual = strcmp(family, "GPT2LMHeadModel") ? rope_base[i].value : gpt2_base[i].value;
        if (!pd_json_member(changed, key))
            used += (size_t)snprintf(text + used, sizeof text - used, ", \"%s\": %s", key, usual);
    }
    snprintf(text + used, sizeof text - used, "}");
    pd_json_document_free(document);
    r.status = pd_hugging_face_read("config.json", text, strlen(text), &r.config, &r.tokens, &err);
    return r;
}

static void check_config(const char *family, const char *key, const char *value, const char **ret)
{
    const struct read base = read_config(family, "{}"), changed = read_config(family, value);
    *ret = outcome(&base, &changed, key, value);
}

Test(keys, config_json)
{
    walk("config_json.tsv", 300, check_config);
}

/* ---- tokenizer_config.json ---- */

static struct read read_tokenizer(const char *value)
{
    static const char json[] =
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": "
        "true},"
        " \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, "
        "\"c\": 3},"
        " \"merges\": [\"a b\"]}}";
    const struct pd_tokenizer_text text = {json, sizeof json - 1}, beside[PD_TOKENIZER_BESIDE] = {{value, strlen(value)}};
    struct pd_tokenizer *t = NULL;
    struct read r = {.status = pd_tokenizer_parse_with("t.json", &text, beside, &t, &err)};
    if (t) r.digest = pd_tokenizer_digest(t);
    pd_tokenizer_free(t);
    return r;
}

static void check_tokenizer(const char *family, const char *key, const char *value, const char **ret)
{
    (void)family;
    const struct read base = read_tokenizer("{}"), changed = read_tokenizer(value);
    *ret = outcome(&base, &changed, key, value);
}

Test(keys, tokenizer_config)
{
    walk("tokenizer_config.tsv", 60, check_tokenizer);
}

/* ---- GGUF ---- */

static const struct {
    const char *key, *value; /* behind the architecture where it begins with a dot */
} gguf_base[] = {{".context_length", "u32 256"},
                 {".embedding_length", "u32 64"},
                 {".block_count", "u32 2"},
                 {".feed_forward_length", "u32 128"},
                 {".attention.head_count", "u32 4"},
                 {".attention.head_count_kv", "u32 2"},
                 {".attention.key_length", "u32 16"},
                 {".rope.freq_base", "f32 10000"},
                 {"tokenizer.ggml.model", "text gpt2"},
                 {"tokenizer.ggml.pre", "text gpt-2"},
                 {"tokenizer.ggml.tokens", "texts a,b,ab,<s>,</s>,c,d,e,f"},
                 {"tokenizer.ggml.merges", "texts a b"},
                 {"tokenizer.ggml.add_bos_token", "bool 0"},
                 {"tokenizer.ggml.bos_token_id", "u32 3"},
                 {"tokenizer.ggml.eos_token_id", "u32 4"}};

static unsigned char file_bytes[1 << 14];
static size_t file_used;

static void put(const void *bytes, size_t count)
{
    memcpy(file_bytes + file_used, bytes, count);
    file_used += count;
}

static void put_u32(uint32_t value)
{
    put(&value, sizeof value);
}

static void put_text(const char *text)
{
    const uint64_t bytes = strlen(text);
    put(&bytes, sizeof bytes);
    put(text, bytes);
}

static void put_pair(const char *key, const char *value)
{
    const char *inner = strchr(value, ' ');
    put_text(key);
    if (strncmp(value, "u32", 3) == 0) {
        put_u32(4), put_u32((uint32_t)strtoul(inner, NULL, 10));
    } else if (strncmp(value, "f32", 3) == 0) {
        const float number = strtof(inner, NULL);
        put_u32(6), put(&number, sizeof number);
    } else if (strncmp(value, "bool", 4) == 0) {
        put_u32(7), put(inner[1] == '1' ? "\1" : "\0", 1);
    } else if (strncmp(value, "texts", 5) == 0) {
        char copy[256];
        uint64_t count = 1;
        snprintf(copy, sizeof copy, "%s", inner + 1);
        for (const char *at = copy; (at = strchr(at, ',')); at++)
            count++;
        put_u32(9), put_u32(8), put(&count, sizeof count);
        for (char *word = strtok(copy, ","); word; word = strtok(NULL, ","))
            put_text(word);
    } else if (strncmp(value, "text", 4) == 0) {
        put_u32(8), put_text(inner + 1);
    } else { /* a list of numbers */
        const uint64_t count = 2;
        put_u32(9), put_u32(4), put(&count, sizeof count), put_u32(1), put_u32(2);
    }
}

/* One tensor, the embedding: the vocabulary's size is its rows. */
static void put_file(const char *architecture, const char *key, const char *value)
{
    const uint64_t tensors = 1, columns = 64, rows = 96, offset = 0;
    uint64_t pairs = 1 + sizeof gguf_base / sizeof *gguf_base, pairs_at;
    bool is_put = key && strcmp(key, "general.architecture") == 0;
    char named[64];
    file_used = 0;
    put("GGUF", 4), put_u32(3), put(&tensors, 8);
    pairs_at = file_used;
    put(&pairs, 8);
    snprintf(named, sizeof named, "text %s", architecture);
    put_pair("general.architecture", is_put ? value : named);
    for (size_t i = 0; i < sizeof gguf_base / sizeof *gguf_base; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", gguf_base[i].key[0] == '.' ? architecture : "", gguf_base[i].key);
        const bool is_it = key && strcmp(name, key) == 0;
        is_put |= is_it;
        if (strcmp(architecture, "gpt2") == 0 && (strstr(name, "rope") || strstr(name, "_kv") || strstr(name, "key_")) &&
            !is_it)
            pairs--;
        else
            put_pair(name, is_it ? value : gguf_base[i].value);
    }
    if (key && !is_put) pairs++, put_pair(key, value);
    memcpy(file_bytes + pairs_at, &pairs, 8);
    put_text("token_embd.weight");
    put_u32(2), put(&columns, 8), put(&rows, 8), put_u32(0), put(&offset, 8);
    memset(file_bytes + file_used, 0, 64);
    file_used = (file_used + 63) / 64 * 64;
}

static struct read read_gguf(const char *architecture, const char *key, const char *value)
{
    char path[] = "/tmp/test_keys.XXXXXX";
    struct read r = {0};
    struct pd_vfs *vfs = NULL;
    struct pd_catalog c;
    put_file(architecture, key, value);
    const int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, file_bytes, file_used) == (ssize_t)file_used && !ftruncate(fd, (1 << 14) + 96 * 64 * 4));
    close(fd);
    cr_assert_eq(pd_vfs_new_threads(1, 1, &vfs, &err), PD_OK);
    pd_catalog_init(&c, "gguf");
    r.status = pd_format_gguf.read(vfs, path, &c, &err);
    const struct pd_catalog_text *config = pd_catalog_text(&c, "config.json"),
                                 *tokenizer = pd_catalog_text(&c, "tokenizer.gguf");
    struct pd_tokenizer *t = NULL;
    if (!r.status) r.status = pd_hugging_face_read(path, config->text, config->bytes, &r.config, &r.tokens, &err);
    if (!r.status && tokenizer) r.status = pd_tokenizer_parse(path, tokenizer->text, tokenizer->bytes, &t, &err);
    if (t) r.digest = pd_tokenizer_digest(t);
    pd_tokenizer_free(t);
    pd_catalog_deinit(&c);
    pd_vfs_free(vfs);
    unlink(path);
    return r;
}

static void check_gguf(const char *family, const char *key, const char *value, const char **ret)
{
    const struct read base = read_gguf(family, NULL, NULL), changed = read_gguf(family, key, value);
    *ret = outcome(&base, &changed, key, value);
}

Test(keys, gguf)
{
    walk("gguf.tsv", 300, check_gguf);
}
