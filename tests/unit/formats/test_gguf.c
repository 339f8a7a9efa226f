#include "ckpt/base/json.h"
#include "resharder/formats/gguf.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOLDEN PERDURE_SOURCE_DIR "/tests/golden/formats/golden.gguf"

static struct pd_error err;

/* As tests/golden/formats/make_gguf.py has them; the error is what rounding and quantisation leave. */
static const struct {
    const char *name;
    enum pd_element element;
    uint32_t ndim;
    uint64_t shape[2];
    double error_max;
} golden[] = {
    {"token_embd.weight", PD_ELEMENT_Q8_0, 2, {32, 64}, 0.0032}, {"blk.0.attn_q.weight", PD_ELEMENT_F16, 2, {64, 64}, 0},
    {"blk.0.attn_k.weight", PD_ELEMENT_Q4_0, 2, {32, 64}, 0.11}, {"blk.0.attn_norm.weight", PD_ELEMENT_F32, 1, {64, 1}, 0},
    {"blk.0.ffn_down.weight", PD_ELEMENT_BF16, 2, {64, 96}, 0},
};

static void open_golden(struct pd_vfs **ret_vfs, struct pd_catalog *c)
{
    const struct pd_format *format = NULL;
    cr_assert_eq(pd_vfs_new_threads(4, 1, ret_vfs, &err), PD_OK);
    cr_assert_eq(pd_format_of(*ret_vfs, GOLDEN, &format, &err), PD_OK, "%s", err.message);
    cr_assert_str_eq(format->name, "gguf");
    pd_catalog_init(c, format->name);
    cr_assert_eq(format->read(*ret_vfs, GOLDEN, c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_catalog_finish(c, &err), PD_OK, "%s", err.message);
}

Test(gguf, tensors_of_each_type_have_their_values)
{
    struct pd_vfs *vfs = NULL;
    struct pd_catalog c;
    struct pd_file *file = NULL;
    open_golden(&vfs, &c);
    cr_assert_eq(pd_file_open(vfs, GOLDEN, PD_OPEN_READ, &file, &err), PD_OK);
    for (uint64_t n = 0; n < sizeof golden / sizeof *golden; n++) {
        static unsigned char text[1 << 16];
        static float values[1 << 13];
        const int64_t found = pd_catalog_find(&c, golden[n].name, PD_PARAM);
        cr_assert(found >= 0, "%s", golden[n].name);
        const struct pd_foreign_tensor *t = &c.tensors[found];
        const uint64_t elements = pd_foreign_elements(t);
        cr_assert(t->element == golden[n].element && t->ndim == golden[n].ndim);
        cr_assert(t->shape[0] == golden[n].shape[0] && t->shape[1] == golden[n].shape[1]);
        cr_assert_eq(pd_file_read(file, c.pieces[t->piece_begin].offset, text, pd_foreign_bytes(t), &err), PD_OK);
        pd_elements[t->element].to_f32(text, elements / pd_elements[t->element].block_elements, values);
        for (uint64_t i = 0; i < elements; i++) {
            const double expected = (double)((i * 37 + n * 11) % 101) / 64 - 0.75;
            cr_assert(fabs((double)values[i] - expected) <= golden[n].error_max, "%s: element %d is %g, not %g", t->name,
                      (int)i, (double)values[i], expected);
        }
    }
    pd_file_close_readonly(file);
    pd_catalog_deinit(&c);
    pd_vfs_free(vfs);
}

static double number(const struct pd_json_value *object, const char *key)
{
    double value = -1;
    cr_assert(pd_json_is_number(pd_json_member(object, key), &value), "%s", key);
    return value;
}

Test(gguf, the_configuration_is_in_the_keys_of_transformers)
{
    struct pd_vfs *vfs = NULL;
    struct pd_catalog c;
    struct pd_json_document *document = NULL;
    bool is_tied = false;
    open_golden(&vfs, &c);
    const struct pd_catalog_text *text = pd_catalog_text(&c, "config.json");
    cr_assert_not_null(text);
    cr_assert_eq(pd_json_parse("config", text->text, text->bytes, &document, &err), PD_OK, "%s", err.message);
    const struct pd_json_value *root = pd_json_root(document), *scaling = pd_json_member(root, "rope_scaling");
    cr_assert_str_eq(pd_json_text(pd_json_at(pd_json_member(root, "architectures"), 0)), "LlamaForCausalLM");
    cr_assert_eq(number(root, "hidden_size"), 64);
    cr_assert_eq(number(root, "num_key_value_heads"), 2);
    cr_assert_eq(number(root, "vocab_size"), 32);
    cr_assert_eq(number(root, "rope_theta"), 500000);
    cr_assert_eq((float)number(root, "rms_norm_eps"), 1e-5f);
    cr_assert(pd_json_is_bool(pd_json_member(root, "tie_word_embeddings"), &is_tied) && is_tied);
    cr_assert_str_eq(pd_json_text(pd_json_member(scaling, "rope_type")), "llama3"); /* from the factors */
    cr_assert_eq(number(scaling, "factor"), 8);
    pd_json_document_free(document);
    pd_catalog_deinit(&c);
    pd_vfs_free(vfs);
}

Test(gguf, the_tokenizer_is_kept_whole)
{
    struct pd_vfs *vfs = NULL;
    struct pd_catalog c;
    struct pd_json_document *document = NULL;
    open_golden(&vfs, &c);
    const struct pd_catalog_text *text = pd_catalog_text(&c, "tokenizer.gguf");
    cr_assert_not_null(text);
    cr_assert_eq(pd_json_parse("tokenizer", text->text, text->bytes, &document, &err), PD_OK, "%s", err.message);
    const struct pd_json_value *root = pd_json_root(document), *tokens = pd_json_member(root, "ggml.tokens");
    cr_assert_str_eq(pd_json_text(pd_json_member(root, "ggml.model")), "gpt2");
    cr_assert_eq(pd_json_count(tokens), 32);
    cr_assert_str_eq(pd_json_text(pd_json_at(tokens, 31)), "\xc4\xa0x");
    cr_assert_str_eq(pd_json_text(pd_json_at(pd_json_member(root, "ggml.merges"), 0)), "t 1");
    cr_assert_eq(number(root, "ggml.bos_token_id"), 1);
    pd_json_document_free(document);
    pd_catalog_deinit(&c);
    pd_vfs_free(vfs);
}

/* Cut at every byte of its head, and 3,000 times with a byte changed there: an error that names the file, or a catalog that
 * holds together. */
Test(gguf, damage_is_an_error_or_changes_nothing_that_is_checked)
{
    static unsigned char text[1 << 16];
    struct pd_vfs *vfs = NULL;
    struct pd_catalog c;
    char path[] = "/tmp/perdure-gguf-XXXXXX";
    FILE *in = fopen(GOLDEN, "rb");
    const int fd = mkstemp(path);
    cr_assert(in && fd >= 0);
    const size_t bytes = fread(text, 1, sizeof text, in);
    fclose(in);
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    uint64_t random = 7;
    for (int round = 0; round < 3000; round++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const size_t at = (size_t)(random >> 33) % 2000, size = round % 2 ? bytes : at;
        const unsigned char was = text[at];
        text[at] = (unsigned char)(random >> 25);
        FILE *out = fopen(path, "wb");
        cr_assert(out && fwrite(text, 1, size, out) == size && fclose(out) == 0);
        text[at] = was;
        pd_catalog_init(&c, "gguf");
        err.message[0] = '\0';
        pd_status st = pd_format_find("gguf")->read(vfs, path, &c, &err);
        if (st) cr_assert_not_null(strstr(err.message, "perdure-gguf"), "%s", err.message);
        if (!st) st = pd_catalog_finish(&c, &err);
        cr_assert(st || size == bytes, "cut at %d", (int)at);
        if (st) cr_assert_neq(err.message[0], '\0');
        pd_catalog_deinit(&c);
    }
    remove(path);
    pd_vfs_free(vfs);
}

/* ---- writing ---- */

#define TOKENIZER                                                                                                     \
    "{\"ggml.model\":\"llama\",\"ggml.tokens\":[\"<unk>\",\"a\"],\"ggml.scores\":[0,-1.5],\"ggml.token_type\":[2,1]," \
    "\"ggml.bos_token_id\":1,\"ggml.add_bos_token\":true,\"ggml.merges\":[]}"

static void want(struct pd_catalog *c, const char *name, uint64_t rows, uint64_t columns, enum pd_element element)
{
    struct pd_foreign_tensor t = {.name = (char *)name, .ndim = columns ? 2 : 1, .shape = {rows, columns ? columns : 1}};
    for (int d = 2; d < PD_FOREIGN_DIMS_MAX; d++)
        t.shape[d] = 1;
    t.element = pd_gguf_element(&t, element);
    cr_assert_eq(pd_catalog_add_tensor(c, &t, NULL, &err), PD_OK, "%s", err.message);
}

/* Writes a file of zeros and what is wanted, and reads it. */
static void write_and_read(const char *config, enum pd_element element, struct pd_catalog *ret)
{
    char directory[] = "/tmp/perdure-gguf-XXXXXX", path[64];
    struct pd_vfs *vfs = NULL;
    struct pd_catalog wanted;
    void *state = NULL;
    struct pd_format_plan plan = {.directory = mkdtemp(directory), .wanted = &wanted};
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    pd_catalog_init(&wanted, "gguf");
    want(&wanted, "token_embd.weight", 2, 64, element);
    want(&wanted, "position_embd.weight", 2, 64, element);
    want(&wanted, "output_norm.weight", 64, 0, element);
    want(&wanted, "blk.0.ffn_down.weight", 64, 48, element);
    cr_assert_eq(pd_catalog_add_text(&wanted, "config.json", config, strlen(config), &err), PD_OK);
    cr_assert_eq(pd_catalog_add_text(&wanted, "tokenizer.gguf", TOKENIZER, strlen(TOKENIZER), &err), PD_OK);
    cr_assert_eq(pd_format_gguf.plan(vfs, &plan, &state, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_format_gguf.finish(state, PD_OK, &err), PD_OK, "%s", err.message);
    snprintf(path, sizeof path, "%s/model.gguf", directory);
    cr_assert_str_eq(wanted.files[0].path, path);
    cr_assert_eq(truncate(path, (off_t)wanted.files[0].bytes), 0);
    pd_catalog_init(ret, "gguf");
    cr_assert_eq(pd_format_gguf.read(vfs, path, ret, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_catalog_finish(ret, &err), PD_OK, "%s", err.message);
    for (uint32_t t = 0; t < wanted.tensor_count; t++) {
        const int64_t found = pd_catalog_find(ret, wanted.tensors[t].name, PD_PARAM);
        cr_assert(found >= 0 && ret->tensors[found].element == wanted.tensors[t].element);
        const uint64_t offset = ret->pieces[ret->tensors[found].piece_begin].offset;
        cr_assert(offset == wanted.pieces[t].offset && offset % 32 == 0);
    }
    remove(path);
    rmdir(directory);
    pd_catalog_deinit(&wanted);
    pd_vfs_free(vfs);
}

static struct pd_json_document *text_of(const struct pd_catalog *c, const char *name)
{
    struct pd_json_document *document = NULL;
    const struct pd_catalog_text *text = pd_catalog_text(c, name);
    cr_assert_not_null(text);
    cr_assert_eq(pd_json_parse(name, text->text, text->bytes, &document, &err), PD_OK, "%s", err.message);
    return document;
}

static enum pd_element element_in(const struct pd_catalog *c, const char *name)
{
    return c->tensors[pd_catalog_find(c, name, PD_PARAM)].element;
}

Test(gguf, what_is_written_reads_back)
{
    struct pd_catalog c;
    write_and_read(
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":2,\"head_dim\":32,"
        "\"intermediate_size\":48,\"max_position_embeddings\":99,\"rms_norm_eps\":1e-5,\"rope_theta\":250000.0,"
        "\"vocab_size\":2,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":4.0,\"low_freq_factor\":1.5,"
        "\"high_freq_factor\":3.5,\"original_max_position_embeddings\":512}}",
        PD_ELEMENT_Q8_0, &c);
    struct pd_json_document *config = text_of(&c, "config.json"), *tokenizer = text_of(&c, "tokenizer.gguf");
    const struct pd_json_value *root = pd_json_root(config), *scaling = pd_json_member(root, "rope_scaling");
    cr_assert(number(root, "max_position_embeddings") == 99 && number(root, "head_dim") == 32 &&
              number(root, "vocab_size") == 2);
    cr_assert((float)number(root, "rms_norm_eps") == 1e-5f && number(root, "rope_theta") == 250000);
    cr_assert(number(scaling, "factor") == 4 && number(scaling, "low_freq_factor") == 1.5 &&
              number(scaling, "high_freq_factor") == 3.5 && number(scaling, "original_max_position_embeddings") == 512);
    cr_assert_eq(element_in(&c, "token_embd.weight"), PD_ELEMENT_Q8_0);
    cr_assert_eq(element_in(&c, "position_embd.weight"), PD_ELEMENT_F32);
    cr_assert_eq(element_in(&c, "output_norm.weight"), PD_ELEMENT_F32);
    cr_assert_eq(element_in(&c, "blk.0.ffn_down.weight"), PD_ELEMENT_F16); /* rows of 48 are no whole blocks */
    root = pd_json_root(tokenizer);
    double score = 0;
    cr_assert_str_eq(pd_json_text(pd_json_member(root, "ggml.model")), "llama");
    cr_assert(pd_json_is_number(pd_json_at(pd_json_member(root, "ggml.scores"), 1), &score) && score == -1.5);
    cr_assert_eq(pd_json_count(pd_json_member(root, "ggml.tokens")), 2);
    cr_assert_eq(number(root, "ggml.bos_token_id"), 1);
    pd_json_document_free(config);
    pd_json_document_free(tokenizer);
    pd_catalog_deinit(&c);
}

Test(gguf, linear_scaling_and_gpt2_have_keys_of_their_own)
{
    struct pd_catalog c;
    write_and_read("{\"model_type\":\"qwen2\",\"hidden_size\":64,\"rope_theta\":10000.0,"
                   "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.5}}",
                   PD_ELEMENT_BF16, &c);
    struct pd_json_document *config = text_of(&c, "config.json");
    const struct pd_json_value *scaling = pd_json_member(pd_json_root(config), "rope_scaling");
    cr_assert_str_eq(pd_json_text(pd_json_member(scaling, "rope_type")), "linear");
    cr_assert_eq(number(scaling, "factor"), 2.5);
    cr_assert_eq(element_in(&c, "blk.0.ffn_down.weight"), PD_ELEMENT_BF16);
    pd_json_document_free(config);
    pd_catalog_deinit(&c);
    write_and_read("{\"model_type\":\"gpt2\",\"n_embd\":64,\"n_positions\":77,\"n_inner\":256}", PD_ELEMENT_F32, &c);
    config = text_of(&c, "config.json");
    cr_assert_eq(number(pd_json_root(config), "n_positions"), 77);
    cr_assert_eq(number(pd_json_root(config), "n_inner"), 256);
    pd_json_document_free(config);
    pd_catalog_deinit(&c);
}

/* A file without tensors: a llama of two layers with `count` entries of attention.head_count. */
static void read_list(const uint32_t *heads, uint64_t count, struct pd_catalog *ret)
{
    char path[] = "/tmp/perdure-gguf-XXXXXX";
    struct pd_vfs *vfs = NULL;
    FILE *file = fdopen(mkstemp(path), "wb");
    static const struct {
        const char *key;
        uint32_t type;
    } pairs[] = {{"general.architecture", 8}, {"llama.block_count", 4}, {"llama.attention.head_count", 9}};
    static const uint64_t counts[] = {0, 3}, five = 5;
    static const uint32_t version = 3, layers = 2, type = 4;
    cr_assert_not_null(file);
    fwrite("GGUF", 1, 4, file), fwrite(&version, 4, 1, file), fwrite(counts, 8, 2, file);
    for (int i = 0; i < 3; i++) {
        const uint64_t bytes = strlen(pairs[i].key);
        fwrite(&bytes, 8, 1, file), fwrite(pairs[i].key, 1, bytes, file), fwrite(&pairs[i].type, 4, 1, file);
        if (i == 0) fwrite(&five, 8, 1, file), fwrite("llama", 1, 5, file);
        if (i == 1) fwrite(&layers, 4, 1, file);
        if (i == 2) fwrite(&type, 4, 1, file), fwrite(&count, 8, 1, file), fwrite(heads, 4, count, file);
    }
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(pd_vfs_new_threads(1, 1, &vfs, &err), PD_OK);
    pd_catalog_init(ret, "gguf");
    cr_assert_eq(pd_format_gguf.read(vfs, path, ret, &err), PD_OK, "%s", err.message);
    remove(path);
    pd_vfs_free(vfs);
}

Test(gguf, a_list_of_equal_numbers_is_one_and_another_is_said_on)
{
    static const struct {
        uint32_t heads[3];
        uint64_t count;
        const char *said; /* NULL: it is the number of heads */
    } lists[] = {{{4, 4}, 2, NULL},
                 {{4, 8}, 2, "differs from layer to layer"},
                 {{4, 4, 4}, 3, "has 3 entries, and block_count is 2"},
                 {{0}, 0, "is a list, not a number"}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct pd_catalog c;
        read_list(lists[i].heads, lists[i].count, &c);
        struct pd_json_document *config = text_of(&c, "config.json");
        const struct pd_json_value *root = pd_json_root(config),
                                   *said = pd_json_member(root, "gguf.llama.attention.head_count");
        if (lists[i].said)
            cr_expect_str_eq(pd_json_text(said), lists[i].said);
        else
            cr_expect(!said && number(root, "num_attention_heads") == 4);
        cr_expect((pd_json_member(root, "num_attention_heads") == NULL) == (lists[i].said != NULL));
        pd_json_document_free(config);
        pd_catalog_deinit(&c);
    }
}
