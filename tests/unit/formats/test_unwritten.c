/* What no file of a format can hold is refused before a file is made, in words that say what it is. */
#include "resharder/formats/format.h"
#include "tests/simulated_disk/simulated_disk.h"

#include <criterion/criterion.h>
#include <string.h>

static struct pd_error err;

struct tensor {
    const char *name; /* NULL: there is none */
    enum pd_kind kind;
    enum pd_element element;
    uint32_t ndim;
};
struct row {
    const char *format, *config, *tokenizer; /* NULL: there is none */
    struct tensor tensors[4];
    const char *says;
};

#define LLAMA "{\"model_type\":\"llama\"}"
#define LONG "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define MATRIX                               \
    {                                        \
        {                                    \
            "a", PD_PARAM, PD_ELEMENT_F32, 2 \
        }                                    \
    }
#define LLMC(type)                                                        \
    {                                                                     \
        {"wte", PD_PARAM, type, 2}, {"wpe", PD_PARAM, PD_ELEMENT_F32, 2}, \
        {                                                                 \
            "ln1w", PD_PARAM, PD_ELEMENT_F32, 2                           \
        }                                                                 \
    }

static const struct row rows[] = {
    {"gguf", NULL, NULL, MATRIX, "GGUF needs a config.json to say which model it is"},
    {"gguf", "{", NULL, MATRIX, "config.json: line 1, column 1: not valid JSON"},
    {"gguf", "{}", NULL, MATRIX, "config.json: models of type \"\" have no GGUF here"},
    {"gguf", "{\"model_type\":7}", NULL, MATRIX, "config.json: models of type \"\" have no GGUF here"},
    {"gguf", "{\"model_type\":\"mamba\"}", NULL, MATRIX, "config.json: models of type \"mamba\" have no GGUF here"},
    {"gguf", "{\"model_type\":\"llama\",\"hidden_size\":-1}", NULL, MATRIX,
     "config.json: a number does not fit into 32 bits"},
    {"gguf", "{\"model_type\":\"llama\",\"vocab_size\":1e300}", NULL, MATRIX,
     "config.json: a number does not fit into 32 bits"},
    {"gguf", "{\"model_type\":\"llama\",\"head_dim\":4096,\"rope_scaling\":{\"rope_type\":\"llama3\"}}", NULL, MATRIX,
     "heads of 4096 elements have more RoPE factors than GGUF's reader takes"},
    {"gguf", LLAMA, "[", MATRIX, "tokenizer.gguf: line 1, column 1: not valid JSON"},
    {"gguf", LLAMA, "{\"" LONG LONG "\":1}", MATRIX, "tokenizer.gguf: a key of "},
    {"gguf", LLAMA, "{\"a\":{}}", MATRIX, "tokenizer.gguf: a is neither a number nor a text"},
    {"gguf", LLAMA, "{\"a\":[[]]}", MATRIX, "tokenizer.gguf: a is neither numbers nor texts"},
    {"gguf", LLAMA, "{\"a\":-1}", MATRIX, "tokenizer.gguf: a number does not fit into 32 bits"},
    {"gguf", LLAMA, "{\"ggml.token_type\":[2147483648]}", MATRIX, "tokenizer.gguf: a number does not fit into 32 bits"},
    {"gguf", LLAMA, "{\"a\":[\"b\",1]}", MATRIX, "or an array has values of several types"},
    {"gguf", LLAMA, "{\"a\":[1,\"b\"]}", MATRIX, "or an array has values of several types"},
    {"gguf", LLAMA, "{\"a\":[true,1]}", MATRIX, "or an array has values of several types"},
    {"gguf", LLAMA, NULL, {{"a", PD_PARAM, PD_ELEMENT_BOOL, 1}}, "GGUF has no type "},
    {"gguf", LLAMA, NULL, {{"a", PD_EXP_AVG, PD_ELEMENT_F32, 1}}, "GGUF has no place for exp_avg of tensor a"},
    {"gguf", LLAMA, NULL, {{"a", PD_PARAM, PD_ELEMENT_F32, 5}}, "GGUF has no place for param of tensor a"},
    {"safetensors", NULL, NULL, {{"a", PD_PARAM, PD_ELEMENT_Q8_0, 2}}, "safetensors has no type "},
    {"safetensors",
     NULL,
     NULL,
     {{"a", PD_EXP_AVG_SQ, PD_ELEMENT_F32, 2}},
     "safetensors has no place for exp_avg_sq of tensor a"},
    {"megatron", NULL, NULL, {{"a", PD_PARAM, PD_ELEMENT_BF16, 2}}, "and rounds them itself: leave out --dtype"},
    {"universal", NULL, NULL, {{"a", PD_PARAM, PD_ELEMENT_BF16, 2}}, "universal checkpoints hold fp32 only"},
    {"universal", NULL, NULL, {{"../a", PD_PARAM, PD_ELEMENT_F32, 2}}, "\"../a\" is not the name of a file in it"},
    {"llmc", NULL, NULL, MATRIX, "files of llm.c hold a whole model: leave out --only"},
    {"llmc", NULL, NULL, LLMC(PD_ELEMENT_F16), "llm.c has models in fp32 or bf16, not in "},
    {"llmc", NULL, NULL, LLMC(PD_ELEMENT_F32), "config.json does not say n_head, which llm.c's header needs"},
    {"llmc", "{\"n_head\":0}", NULL, LLMC(PD_ELEMENT_F32), "config.json does not say n_head, which llm.c's header needs"},
    {"llmc", "{\"n_head\":2}", NULL, LLMC(PD_ELEMENT_F32), "files of llm.c hold a whole model: leave out --only"},
    {"llmc",
     "{\"n_head\":2}",
     NULL,
     {{"wte", PD_PARAM, PD_ELEMENT_F32, 3}, {"wpe", PD_PARAM, PD_ELEMENT_F32, 2}, {"ln1w", PD_PARAM, PD_ELEMENT_F32, 2}},
     "llm.c's models have another shape of wte than this one"},
    {"deepspeed", NULL, NULL, MATRIX, "perdure reads deepspeed but does not write it"},
    {"torch", NULL, NULL, MATRIX, "perdure reads torch but does not write it"},
};

static void fill(const struct row *row, struct pd_catalog *wanted)
{
    pd_catalog_init(wanted, row->format);
    for (const struct tensor *t = row->tensors; t->name; t++) {
        struct pd_foreign_tensor tensor = {
            .name = (char *)(uintptr_t)t->name, .kind = t->kind, .element = t->element, .ndim = t->ndim};
        for (uint32_t d = 0; d < PD_FOREIGN_DIMS_MAX; d++)
            tensor.shape[d] = d < t->ndim ? 32 : 1;
        cr_assert_eq(pd_catalog_add_tensor(wanted, &tensor, NULL, &err), PD_OK, "%s", err.message);
    }
    if (row->config) cr_assert_eq(pd_catalog_add_text(wanted, "config.json", row->config, strlen(row->config), &err), PD_OK);
    if (row->tokenizer)
        cr_assert_eq(pd_catalog_add_text(wanted, "tokenizer.gguf", row->tokenizer, strlen(row->tokenizer), &err), PD_OK);
}

Test(unwritten, what_a_format_cannot_hold_is_refused_by_name)
{
    const struct pd_disk_options options = {.seed = 1};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *row = &rows[i];
        const struct pd_format *format = pd_format_find(row->format);
        struct pd_simulated_disk *disk = NULL;
        struct pd_vfs *vfs = NULL;
        struct pd_catalog wanted;
        struct pd_stat stat;
        void *state = NULL;
        cr_assert_eq(pd_simulated_disk_new(&options, &disk, &err), PD_OK);
        cr_assert_eq(pd_simulated_disk_vfs(disk, 0, &vfs, &err), PD_OK);
        cr_assert_eq(pd_vfs_mkdir(vfs, "/out", &err), PD_OK);
        fill(row, &wanted);
        struct pd_format_plan plan = {.directory = "/out", .wanted = &wanted};
        const pd_status st = format->plan(vfs, &plan, &state, &err);
        cr_assert(st == PD_UNSUPPORTED || st == PD_INVALID || st == PD_CORRUPT, "%zu, %s: %s", i, row->says,
                  pd_status_name(st));
        cr_assert(err.status == st && strstr(err.message, row->says), "%zu: %s, not %s", i, err.message, row->says);
        if (state) cr_assert_eq(format->finish(state, st, NULL), st);
        for (uint32_t f = 0; f < wanted.file_count; f++)
            cr_assert_neq(pd_vfs_stat(vfs, wanted.files[f].path, &stat, NULL), PD_OK, "%s", wanted.files[f].path);
        pd_catalog_deinit(&wanted);
        pd_vfs_free(vfs);
        pd_simulated_disk_free(disk);
    }
}
