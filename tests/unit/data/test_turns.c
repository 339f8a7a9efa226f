/* Turns: text of which a part has a loss, from JSON lines to targets. */
#include "trainer/data/pack.h"

#include "files.h"
#include "trainer/data/data.h"
#include "trainer/data/token_loss.h"

#define CONTEXT 8u

static struct pd_error err;

TestSuite(turns, .init = test_dir_make, .fini = test_dir_remove);

static struct pd_pack_options options_of(const char *const *inputs, enum pd_data_format format)
{
    return (struct pd_pack_options){.inputs = inputs,
                                    .input_count = 1,
                                    .output = test_path("out.bin"),
                                    .format = format,
                                    .document_token = 256,
                                    .overwrite = true};
}

static struct pd_pack_result pack_ok(const struct pd_pack_options *options)
{
    struct pd_pack_result result;
    cr_assert_eq(pd_data_pack(options, &result, &err), PD_OK, "%s", err.message);
    free(result.notes);
    return result;
}

/* marks: a letter for each token, 'x' where it has a loss. */
static void check_marks(const char *path, const char *marks)
{
    struct pd_token_file file;
    int32_t targets[256];
    const uint32_t count = (uint32_t)strlen(marks);
    cr_assert_eq(pd_token_file_open(path, PD_DATA_AUTO, &file, &err), PD_OK, "%s", err.message);
    cr_assert_eq(file.token_count, count);
    for (uint32_t from = 0; from < count; from++) { /* from every bit of a byte */
        memset(targets, 0, sizeof targets);
        cr_assert_eq(pd_token_loss_apply(&file, from, count - from, targets, &err), PD_OK, "%s", err.message);
        for (uint32_t i = 0; i < count - from; i++)
            cr_assert_eq(targets[i], marks[from + i] == 'x' ? 0 : -1, "%s: token %u from %u", marks, i, from);
    }
    pd_token_file_close(&file);
}

Test(turns, a_completion_has_a_loss_and_its_prompt_has_none)
{
    static const char lines[] =
        "{\"q\": \"ab\", \"a\": \"cde\"}\n{\"a\": \"z\", \"q\": \"xy\"}\n{\"q\": \"p\", \"a\": \"\"}\n"
        "{\"q\": \"\", \"a\": \"o\"}\n{\"q\": \"\", \"a\": \"\"}\n";
    const char *inputs[] = {test_write("in.jsonl", lines, strlen(lines))};
    for (enum pd_data_format format = PD_DATA_NANOGPT; format <= PD_DATA_MEGATRON; format++) {
        struct pd_pack_options options = options_of(inputs, format);
        options.turns[0] = "q", options.turns[1] = "a";
        const struct pd_pack_result result = pack_ok(&options);
        cr_assert_eq(result.documents, 4);
        cr_assert_eq(result.empty_documents, 1);
        cr_assert_eq(result.learned, 8);
        check_marks(options.output, "..xxxx"
                                    "..xx"
                                    ".."
                                    "xx");
    }
}

Test(turns, every_other_text_has_a_loss)
{
    static const char lines[] =
        "{\"t\": [\"ab\", \"c\", \"\", \"d\", \"ef\"]}\n{\"t\": [\"only\"]}\n{\"t\": [\"\", \"all\"]}\n{\"t\": []}\n";
    const char *inputs[] = {test_write("in.jsonl", lines, strlen(lines))};
    struct pd_pack_options options = options_of(inputs, PD_DATA_LLMC);
    options.turns[0] = "t";
    pack_ok(&options);
    check_marks(options.output, "..xx..."
                                "....."
                                "xxxx");
}

/* A token with a byte of a turn with a loss has one. */
Test(turns, tokens_of_a_tokenizer_are_marked_by_their_bytes)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":5,\"content\":\"<x>\",\"special\":true}],\"model\":{\"type\":\"BPE\","
        "\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4},\"merges\":[\"a b\",\"b c\"]}}",
                      lines[] = "{\"t\": [\"<x>a\", \"bc\", \"<x>\", \"a\"]}\n";
    const char *inputs[] = {test_write("in.jsonl", lines, strlen(lines))};
    struct pd_pack_options options = options_of(inputs, PD_DATA_NANOGPT);
    struct pd_tokenizer *tokenizer;
    cr_assert_eq(pd_tokenizer_parse("test", json, strlen(json), &tokenizer, &err), PD_OK, "%s", err.message);
    options.turns[0] = "t";
    options.tokenizer = tokenizer;
    options.document_token = -1;
    pack_ok(&options);
    check_marks(options.output, ".xx.x"); /* <x> ab c <x> a */
    pd_tokenizer_free(tokenizer);
}

Test(turns, samples_learn_what_has_a_loss)
{
    static const char lines[] = "{\"q\": \"abcdef\", \"a\": \"ghijkl\"}\n{\"q\": \"mn\", \"a\": \"opqrst\"}\n";
    const char *inputs[] = {test_write("in.jsonl", lines, strlen(lines))};
    struct pd_pack_options packing = options_of(inputs, PD_DATA_NANOGPT);
    struct pd_data_source source = {test_path("out.bin"), PD_DATA_AUTO, 0};
    const struct pd_data_options options = {.validation = &source,
                                            .validation_count = 1,
                                            .train = &source,
                                            .train_count = 1,
                                            .context = CONTEXT,
                                            .vocab = 257,
                                            .document_token = 256,
                                            .separate_documents = true};
    struct pd_data *data;
    int32_t tokens[CONTEXT], targets[2 * CONTEXT];
    uint64_t with[2], without[2];
    packing.turns[0] = "q", packing.turns[1] = "a";
    pack_ok(&packing);
    cr_assert_eq(pd_data_open(&options, &data, &err), PD_OK, "%s", err.message);
    for (uint64_t i = 0; i < 2; i++)
        cr_assert_eq(pd_data_sample(data, PD_SPLIT_VALIDATION, i, tokens, targets + i * CONTEXT, NULL, NULL, &err), PD_OK);
    const int32_t expected[2 * CONTEXT] = {-1, -1, -1, -1, -1, 'g', 'h', 'i', 'j', 'k', 'l', 256, -1, -1, 'o', 'p'};
    for (unsigned i = 0; i < 2 * CONTEXT; i++)
        cr_assert_eq(targets[i], expected[i], "target %u is %d", i, targets[i]);
    pd_data_fingerprint(data, with);
    pd_data_close(data);
    packing.turns[0] = NULL, packing.turns[1] = NULL;
    packing.field = "a";
    pack_ok(&packing);
    cr_assert_neq(access(test_path("out.bin.loss"), F_OK), 0, "the marks of other tokens are gone");
    packing.field = NULL;
    packing.turns[0] = "a", packing.turns[1] = "q"; /* the same bytes would be of other marks */
    pack_ok(&packing);
    cr_assert_eq(pd_data_open(&options, &data, &err), PD_OK, "%s", err.message);
    pd_data_fingerprint(data, without);
    pd_data_close(data);
    cr_assert_neq(memcmp(with, without, sizeof with), 0);
}

Test(turns, marks_of_another_file_are_refused)
{
    static const char lines[] = "{\"q\": \"ab\", \"a\": \"cde\"}\n";
    const char *inputs[] = {test_write("in.jsonl", lines, strlen(lines))};
    struct pd_pack_options options = options_of(inputs, PD_DATA_NANOGPT);
    struct pd_token_file file;
    options.turns[0] = "q", options.turns[1] = "a";
    pack_ok(&options);
    static const struct {
        size_t offset, bytes;
        const char *data;
    } damages[] = {{0, 1, "X"}, {8, 1, "\5"}, {17, 3, "abc"}};
    for (unsigned i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        pack_ok(&options);
        test_patch(test_path("out.bin.loss"), damages[i].offset, damages[i].data, damages[i].bytes);
        cr_assert_eq(pd_token_file_open(options.output, PD_DATA_AUTO, &file, &err), PD_INVALID);
        cr_assert_not_null(strstr(err.message, "out.bin.loss"), "%s", err.message);
    }
}

Test(turns, what_has_no_turns_is_refused_by_its_line)
{
    static const struct {
        const char *text, *part;
        pd_status status;
    } cases[] = {{"{\"q\": \"a\"}\n", "in:1: the object has no \"a\"", PD_INVALID},
                 {"{\"q\": \"a\", \"a\": 1}\n", "in:1: \"a\" is", PD_CORRUPT},
                 {"{\"q\": [\"a\", 2], \"a\": \"\"}\n", "in:1: element 1 of \"q\" is", PD_CORRUPT},
                 {"plain text", "has no JSON lines", PD_INVALID}};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *inputs[] = {test_write("in", cases[i].text, strlen(cases[i].text))};
        struct pd_pack_options options = options_of(inputs, PD_DATA_NANOGPT);
        struct pd_pack_result result;
        options.turns[0] = "q", options.turns[1] = "a";
        cr_assert_eq(pd_data_pack(&options, &result, &err), cases[i].status, "%s", err.message);
        cr_assert_not_null(strstr(err.message, cases[i].part), "%s", err.message);
        cr_assert_neq(access(test_path("out.bin.loss"), F_OK), 0);
    }
}
