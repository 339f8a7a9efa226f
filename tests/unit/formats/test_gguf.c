#include "ckpt/base/json.h"
#include "resharder/formats/format.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
