#include "trainer/data/pack.h"

#include "files.h"
#include "trainer/data/token_file.h"
#include "trainer/data/token_origin.h"

static struct pd_error err;

TestSuite(pack, .init = test_dir_make, .fini = test_dir_remove);

static struct pd_pack_result pack_ok(const struct pd_pack_options *options)
{
    struct pd_pack_result result;
    cr_assert_eq(pd_data_pack(options, &result, &err), PD_OK, "%s", err.message);
    return result;
}

static unsigned files_in_dir(void)
{
    unsigned count = 0;
    DIR *dir = opendir(test_dir);
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* Tokens of the file as text, the document token as '|'. */
static void check_tokens(const char *path, const char *expected, int32_t document_token)
{
    struct pd_token_file file;
    int32_t tokens[256];
    cr_assert_eq(pd_token_file_open(path, PD_DATA_AUTO, &file, &err), PD_OK, "%s", err.message);
    cr_assert_eq(file.token_count, strlen(expected));
    cr_assert_eq(pd_token_file_read(&file, 0, (uint32_t)file.token_count, tokens, &err), PD_OK);
    for (size_t i = 0; i < file.token_count; i++)
        cr_assert_eq(tokens[i], expected[i] == '|' ? document_token : expected[i], "%zu", i);
    pd_token_file_close(&file);
}

Test(pack, every_format_and_width_reads_back)
{
    const char *inputs[] = {test_write("1", "one", 3), test_write("2", "", 0), test_write("3", "three", 5)};
    static const struct {
        enum pd_data_format format;
        int64_t document_token;
        const char *type, *text;
    } cases[] = {{PD_DATA_NANOGPT, 256, "u16", "one|three|"},     {PD_DATA_NANOGPT, -1, "u16", "onethree"},
                 {PD_DATA_LLMC, 50256, "u16", "one|three|"},      {PD_DATA_LLMC, 128001, "u32", "one|three|"},
                 {PD_DATA_MEGATRON, 0, "u8", "one|three|"},       {PD_DATA_MEGATRON, 256, "u16", "one|three|"},
                 {PD_DATA_MEGATRON, 100000, "i32", "one|three|"}, {PD_DATA_MEGATRON, -1, "u8", "onethree"}};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pd_pack_options options = {.inputs = inputs,
                                          .input_count = 3,
                                          .output = test_path("out.bin"),
                                          .format = cases[i].format,
                                          .document_token = cases[i].document_token,
                                          .overwrite = true};
        unlink(test_path("out.idx"));
        struct pd_pack_result result = pack_ok(&options);
        cr_assert_eq(result.documents, 2);
        cr_assert_eq(result.empty_documents, 1);
        cr_assert_eq(result.tokens, strlen(cases[i].text));
        cr_assert_eq(result.input_bytes, 8);
        cr_assert_str_eq(result.type_name, cases[i].type);
        check_tokens(options.output, cases[i].text, (int32_t)cases[i].document_token);
        struct pd_data_inspection seen;
        cr_assert_eq(pd_data_inspect(options.output, PD_DATA_AUTO, cases[i].document_token, &seen, &err), PD_OK, "%s",
                     err.message);
        cr_assert_eq(seen.file.format, cases[i].format);
        cr_assert_eq(seen.documents, cases[i].format == PD_DATA_MEGATRON || cases[i].document_token >= 0 ? 2 : 0);
        cr_assert_eq(seen.file.token_count, result.tokens);
        pd_data_inspection_deinit(&seen);
    }
    cr_assert_eq(files_in_dir(), 3 + 2, "nothing temporary stays");
}

Test(pack, documents_inside_a_file_are_split_at_the_separator)
{
    /* Long enough that separators lie across the ends of the buffer. */
    size_t bytes = 5u << 20, used = 0;
    char *text = malloc(bytes + 64);
    uint64_t documents = 0, tokens = 0;
    uint32_t state = 1;
    while (used < bytes) {
        state = state * 1664525u + 1013904223u;
        size_t length = state >> 14 & 0x3ffff;
        if (used + length > bytes) length = bytes - used;
        for (size_t i = 0; i < length; i++)
            text[used + i] = "<|ab"[(i * 7 + documents) % 4];
        used += length;
        documents += length > 0;
        tokens += length;
        memcpy(text + used, "<|end|>", 7);
        used += 7;
    }
    const char *inputs[] = {test_write("long", text, used)};
    struct pd_pack_options options = {.inputs = inputs,
                                      .input_count = 1,
                                      .output = test_path("out"),
                                      .format = PD_DATA_MEGATRON,
                                      .document_token = 300,
                                      .separator = "<|end|>"};
    struct pd_pack_result result = pack_ok(&options);
    cr_assert_eq(result.documents, documents);
    cr_assert_eq(result.tokens, tokens + documents);
    struct pd_token_file file;
    cr_assert_eq(pd_token_file_open(options.output, PD_DATA_AUTO, &file, &err), PD_OK, "%s", err.message);
    int32_t *back = malloc(file.token_count * sizeof *back);
    cr_assert_eq(pd_token_file_read(&file, 0, (uint32_t)file.token_count, back, &err), PD_OK);
    size_t at = 0;
    for (uint64_t t = 0; t < file.token_count; t++) {
        while (at == 0 && memcmp(text, "<|end|>", 7) == 0)
            at += 7;
        if (back[t] == 300) {
            cr_assert_eq(memcmp(text + at, "<|end|>", 7), 0);
            at += 7;
            while (at < used && memcmp(text + at, "<|end|>", 7) == 0)
                at += 7;
        } else {
            cr_assert_eq(back[t], text[at++]);
        }
    }
    free(back);
    free(text);
    pd_token_file_close(&file);
}

Test(pack, a_separator_across_the_end_of_the_buffer_is_found)
{
    enum { BUFFER = 1 << 20, BYTES = BUFFER + 100 };
    char *text = malloc(BYTES);
    for (size_t before = 0; before <= 8; before++) {
        memset(text, 'x', BYTES);
        memcpy(text + BUFFER - before, "<|end|>", 7);
        memcpy(text + BYTES - 7 - before, "<|end|>", 7);
        const char *inputs[] = {test_write("in", text, BYTES)};
        struct pd_pack_options options = {.inputs = inputs,
                                          .input_count = 1,
                                          .output = test_path("out.bin"),
                                          .format = PD_DATA_NANOGPT,
                                          .document_token = -1,
                                          .separator = "<|end|>",
                                          .overwrite = true};
        struct pd_pack_result result = pack_ok(&options);
        cr_assert_eq(result.tokens, BYTES - 14, "%zu", before);
        cr_assert_eq(result.documents, before ? 3 : 2);
    }
    free(text);
}

static void refused(const struct pd_pack_options *options, pd_status expected, const char *text)
{
    struct pd_pack_result result;
    unsigned before = files_in_dir();
    cr_assert_eq(pd_data_pack(options, &result, &err), expected, "%s", err.message);
    cr_assert_not_null(strstr(err.message, text), "\"%s\" has no \"%s\"", err.message, text);
    cr_assert_eq(files_in_dir(), before, "nothing is left behind");
}

Test(pack, what_cannot_be_is_refused_and_leaves_nothing)
{
    const char *inputs[] = {test_write("in", "text", 4)}, *none[] = {test_path("none")},
               *empty[] = {test_write("empty", "", 0)};
    struct pd_pack_options good = {.inputs = inputs,
                                   .input_count = 1,
                                   .output = test_path("out.bin"),
                                   .format = PD_DATA_NANOGPT,
                                   .document_token = -1},
                           options = good;
    options.format = PD_DATA_TEXT;
    refused(&options, PD_INVALID, "format text cannot be written");
    options = good, options.input_count = 0;
    refused(&options, PD_INVALID, "no input");
    options = good, options.output = "";
    refused(&options, PD_INVALID, "no output");
    options = good, options.document_token = 65536;
    refused(&options, PD_INVALID, "document token 65536");
    options = good, options.separator = "";
    refused(&options, PD_INVALID, "separator");
    options = good, options.inputs = none;
    refused(&options, PD_NOT_FOUND, "none");
    options = good, options.inputs = empty;
    refused(&options, PD_INVALID, "hold no text");
    options = good, options.output = test_path("no/such/dir.bin");
    refused(&options, PD_NOT_FOUND, "no/such");
    pack_ok(&good);
    refused(&good, PD_EXISTS, "out.bin exists already");
    options = good, options.overwrite = true, options.inputs = none;
    refused(&options, PD_NOT_FOUND, "none");
    check_tokens(good.output, "text", -1); /* the old one stands */
}

Test(inspect, counts_what_is_there, .init = test_dir_make, .fini = test_dir_remove)
{
    struct pd_data_inspection seen;
    char *path = test_write("a.txt", "abracadabra\nabc", 15);
    cr_assert_eq(pd_data_inspect(path, PD_DATA_AUTO, '\n', &seen, &err), PD_OK);
    cr_assert_eq(seen.file.token_count, 15);
    cr_assert_eq(seen.distinct, 6);
    cr_assert_eq(seen.documents, 1);
    cr_assert_eq(seen.top_count, 6);
    cr_assert_eq(seen.top[0].token, 'a');
    cr_assert_eq(seen.top[0].count, 6);
    cr_assert_eq(seen.top[1].token, 'b');
    cr_assert_eq(seen.top[1].count, 3);
    cr_assert_eq(seen.scan.min, '\n');
    cr_assert_eq(seen.scan.max, 'r');
    cr_assert_eq(seen.first_count, 15);
    cr_assert_eq(seen.first[3], 'a');
    cr_assert_str_eq(pd_data_format_name(seen.file.format), "text");
    cr_assert_str_eq(seen.file.path, path);
    cr_assert_null(seen.file.index_path);
    pd_data_inspection_deinit(&seen);

    test_write_u16("b.bin", 5000, 0, 1000);
    cr_assert_eq(pd_data_inspect(test_path("b.bin"), PD_DATA_AUTO, -1, &seen, &err), PD_OK);
    cr_assert_eq(seen.distinct, 1000);
    cr_assert_eq(seen.top_count, PD_INSPECT_TOP);
    for (int i = 0; i < (int)PD_INSPECT_TOP; i++) {
        cr_assert_eq(seen.top[i].token, i);
        cr_assert_eq(seen.top[i].count, 5);
    }
    pd_data_inspection_deinit(&seen);
    cr_assert_eq(pd_data_inspect(test_path("none"), PD_DATA_AUTO, -1, &seen, &err), PD_NOT_FOUND);
    pd_data_inspection_deinit(NULL);
}

static struct pd_tokenizer *open_tokenizer(void)
{
    static const char json[] = "{\"added_tokens\":[{\"id\":5,\"content\":\"<end>\",\"special\":true}],\"model\":{\"type\":"
                               "\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\" \":2,\"ab\":3,\" ab\":4},\"merges\":[[\"a\",\"b\"],"
                               "[\" \",\"ab\"]]}}";
    struct pd_tokenizer *tokenizer;
    cr_assert_eq(pd_tokenizer_parse("t", json, strlen(json), &tokenizer, &err), PD_OK, "%s", err.message);
    return tokenizer;
}

/* Documents of many lengths, encoded side by side, come out in their order; pieces of one are encoded together. */
Test(pack, tokens_of_a_tokenizer_in_the_order_of_documents)
{
    enum { DOCUMENTS = 3000 };
    struct pd_tokenizer *tokenizer = open_tokenizer();
    char *text = malloc(DOCUMENTS * 400), *at = text;
    size_t expected = 0;
    for (unsigned i = 0; i < DOCUMENTS; i++) {
        const unsigned words = i * 37 % 90;
        for (unsigned w = 0; w < words; w++)
            at = stpcpy(at, " ab");
        at = stpcpy(at, i % 7 ? "b|" : "a|");
        expected += words + 2;
    }
    const char *inputs[] = {test_write("documents", text, (size_t)(at - text))};
    struct pd_pack_options options = {.inputs = inputs,
                                      .input_count = 1,
                                      .output = test_path("out.bin"),
                                      .format = PD_DATA_NANOGPT,
                                      .document_token = pd_tokenizer_find(tokenizer, "<end>"),
                                      .separator = "|",
                                      .tokenizer = tokenizer};
    struct pd_pack_result result = pack_ok(&options);
    struct pd_token_file file;
    cr_assert_eq(result.documents, DOCUMENTS);
    cr_assert_eq(result.tokens, expected);
    cr_assert_eq(pd_token_file_open(options.output, PD_DATA_AUTO, &file, &err), PD_OK);
    int32_t *tokens = malloc(expected * sizeof *tokens), *token = tokens;
    cr_assert_eq(pd_token_file_read(&file, 0, (uint32_t)expected, tokens, &err), PD_OK);
    for (unsigned i = 0; i < DOCUMENTS; i++) {
        for (unsigned w = 0; w < i * 37 % 90; w++)
            cr_assert_eq(*token++, 4, "document %u", i);
        cr_assert_eq(*token++, i % 7 ? 1 : 0, "document %u", i);
        cr_assert_eq(*token++, 5, "document %u", i);
    }
    pd_token_file_close(&file);
    pd_pack_result_deinit(&result);
    pd_tokenizer_free(tokenizer);
    free(tokens);
    free(text);
}

Test(pack, the_tokenizer_lies_beside_its_tokens_and_no_others)
{
    struct pd_tokenizer *tokenizer = open_tokenizer();
    struct pd_token_origin origin = {0};
    const char *inputs[] = {test_write("text", "ab ab", 5)};
    struct pd_pack_options options = {.inputs = inputs,
                                      .input_count = 1,
                                      .output = test_path("out.bin"),
                                      .format = PD_DATA_MEGATRON,
                                      .document_token = -1,
                                      .overwrite = true,
                                      .tokenizer = tokenizer};
    struct pd_pack_result result = pack_ok(&options);
    cr_assert_str_eq(result.type_name, "u8");
    pd_pack_result_deinit(&result);
    cr_assert_eq(pd_token_origin_read(options.output, &origin, &err), PD_OK, "%s", err.message);
    cr_assert_eq(origin.digest, pd_tokenizer_digest(tokenizer));
    cr_assert_eq(origin.vocab, 6);
    options.tokenizer = NULL;
    result = pack_ok(&options);
    pd_pack_result_deinit(&result);
    cr_assert_eq(pd_token_origin_read(options.output, &origin, &err), PD_OK);
    cr_assert_eq(origin.digest, 0, "bytes took the place of its tokens");
    pd_tokenizer_free(tokenizer);
}

Test(pack, a_vocabulary_that_does_not_fit_the_format_is_refused)
{
    static const char json[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":65536},\"merges\":[]}}";
    struct pd_tokenizer *tokenizer;
    cr_assert_eq(pd_tokenizer_parse("t", json, strlen(json), &tokenizer, &err), PD_OK);
    const char *inputs[] = {test_write("text", "a", 1)};
    struct pd_pack_options options = {.inputs = inputs,
                                      .input_count = 1,
                                      .output = test_path("out.bin"),
                                      .format = PD_DATA_NANOGPT,
                                      .document_token = -1,
                                      .tokenizer = tokenizer};
    struct pd_pack_result result;
    cr_assert_eq(pd_data_pack(&options, &result, &err), PD_INVALID);
    cr_assert(strstr(err.message, "65537 tokens") && strstr(err.message, "--format=megatron"), "%s", err.message);
    options.format = PD_DATA_LLMC;
    result = pack_ok(&options);
    cr_assert_str_eq(result.type_name, "u32");
    pd_pack_result_deinit(&result);
    pd_tokenizer_free(tokenizer);
}
