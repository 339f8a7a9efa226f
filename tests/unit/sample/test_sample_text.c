#include "trainer/sample/sample_text.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static struct pd_error err;
static char run[] = "/tmp/pd-sample-XXXXXX";
static char checkpoint[256];

/* é is two tokens, <s> stands before and </s> behind. */
static const char json[] =
    "{\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true},{\"id\":4,\"content\":\"</s>\",\"special\":true}],"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{"
    "\"id\":\"A\"}},"
    "{\"SpecialToken\":{\"id\":\"</s>\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[3]},\"</s>\":{\"ids\":[4]}}},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\xc3\x83\":1,\"\xc2\xa9\":2},\"merges\":[]}}";

static void make_run(void)
{
    char path[256];
    cr_assert_not_null(mkdtemp(run));
    snprintf(path, sizeof path, "%s/checkpoints", run);
    cr_assert_eq(mkdir(path, 0777), 0);
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoints/step-1", run);
    cr_assert_eq(mkdir(checkpoint, 0777), 0);
    snprintf(path, sizeof path, "%s/tokenizer.json", run);
    FILE *file = fopen(path, "wb");
    cr_assert(file && fwrite(json, 1, sizeof json - 1, file) == sizeof json - 1 && fclose(file) == 0);
}

static void remove_run(void)
{
    char path[256];
    snprintf(path, sizeof path, "%s/tokenizer.json", run);
    unlink(path);
    rmdir(checkpoint);
    snprintf(path, sizeof path, "%s/checkpoints", run);
    rmdir(path);
    rmdir(run);
}

TestSuite(sample_text, .init = make_run, .fini = remove_run);

static struct pd_sample_text *open_ok(const struct pd_sample_text_options *options)
{
    struct pd_sample_text *text = NULL;
    cr_assert_eq(pd_sample_text_open(options, &text, &err), PD_OK, "%s", err.message);
    return text;
}

Test(sample_text, the_tokenizer_of_the_run_is_found_from_a_checkpoint_too)
{
    const struct pd_sample_text_options options = {.run = checkpoint, .checkpoints = checkpoint, .vocab = 5};
    struct pd_sample_text *text = open_ok(&options);
    struct pd_tokens tokens = {0};
    cr_assert_not_null(text);
    cr_assert_eq(pd_sample_text_encode(text, "a\u00e9", &tokens, &err), PD_OK);
    static const int32_t expected[] = {3, 0, 1, 2}; /* nothing behind: the text goes on */
    cr_assert_eq(tokens.count, 4);
    cr_assert_eq(memcmp(tokens.ids, expected, sizeof expected), 0);
    pd_tokens_deinit(&tokens);
    pd_sample_text_free(text);
}

Test(sample_text, characters_come_whole_and_special_tokens_not_at_all)
{
    const struct pd_sample_text_options options = {.run = run, .checkpoints = run, .vocab = 5};
    struct pd_sample_text *text = open_ok(&options);
    static const int32_t prompt[] = {3, 0}, drawn[] = {1, 2, 4, 0, 1};
    static const char *const expected[] = {"", "\u00e9", "", "a", ""};
    const char *piece, *all;
    size_t bytes;
    cr_assert_eq(pd_sample_text_begin(text, prompt, 2, &err), PD_OK);
    for (unsigned i = 0; i < 5; i++) {
        cr_assert_eq(pd_sample_text_add(text, drawn[i], &piece, &bytes, &err), PD_OK);
        cr_assert_eq(bytes, strlen(expected[i]), "%u", i);
        cr_assert_eq(memcmp(piece, expected[i], bytes), 0, "%u", i);
    }
    cr_assert_eq(pd_sample_text_end(text, &piece, &bytes, &all, &err), PD_OK);
    cr_assert_eq(bytes, 3);
    cr_assert_str_eq(all, "\u00e9a\ufffd");
    pd_sample_text_free(text);
}

Test(sample_text, a_tokenizer_of_another_model_is_refused)
{
    struct pd_sample_text_options options = {.run = run, .checkpoints = run, .vocab = 4};
    struct pd_sample_text *text;
    cr_assert_eq(pd_sample_text_open(&options, &text, &err), PD_INVALID);
    cr_assert(strstr(err.message, "5 tokens and the model 4"), "%s", err.message);
    options.path = "byte";
    text = open_ok(&options);
    pd_sample_text_free(text);
}

Test(sample_text, without_a_tokenizer_bytes_are_text_where_the_model_is_over_bytes)
{
    struct pd_sample_text_options options = {.run = "/tmp/pd-no", .checkpoints = "/tmp/pd-no", .vocab = 300};
    cr_assert_null(open_ok(&options));
    options.is_over_bytes = true;
    struct pd_sample_text *text = open_ok(&options);
    cr_assert_not_null(text);
    pd_sample_text_free(text);
}
