#include "golden.h"
#include "trainer/tokenizer/load.h"

#define HEAD                                                                                                                \
    "{\"version\":\"1.0\",\"added_tokens\":[%s],\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":%" \
    "s,"
#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"c\":3},\"merges\":[\"a b\"]}}"

static const char *special(const struct pd_tokenizer *t, uint32_t id)
{
    const struct pd_added_token *token = pd_added_by_id(&t->added, id);
    return token && token->special ? token->content : NULL;
}

/* Parts that are not given are null. */
static pd_status parse(const char *added, const char *normalizer, const char *splitter, const char *processor,
                       const char *decoder, struct pd_tokenizer **ret_tokenizer)
{
    char text[4096];
    const int bytes = snprintf(text, sizeof text, HEAD MODEL, added ? added : "", normalizer ? normalizer : "null",
                               splitter ? splitter : "null", processor ? processor : "null", decoder ? decoder : "null");
    return pd_tokenizer_parse("t.json", text, (size_t)bytes, ret_tokenizer, &err);
}

static void check_refused(pd_status status, pd_status expected, const char *words)
{
    cr_assert_eq(status, expected, "%s: %s", pd_status_name(status), err.message);
    cr_assert(strstr(err.message, words), "\"%s\" is not in: %s", words, err.message);
    cr_assert(strstr(err.message, "t.json"), "%s", err.message);
}

Test(load, what_is_not_known_is_named_with_its_path)
{
    struct pd_tokenizer *t;
    check_refused(parse(NULL, "{\"type\":\"BertNormalizer\"}", NULL, NULL, NULL, &t), PD_UNSUPPORTED,
                  "normalizer: BertNormalizer");
    check_refused(
        parse(NULL, NULL,
              "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Whitespace\"},{\"type\":\"BertPreTokenizer\"}]}", NULL,
              NULL, &t),
        PD_UNSUPPORTED, "pre_tokenizer.pretokenizers[1]: BertPreTokenizer");
    check_refused(parse(NULL, NULL,
                        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Whitespace\"}]}",
                        NULL, NULL, &t),
                  PD_UNSUPPORTED, "pre_tokenizer.pretokenizers[1]: Whitespace behind ByteLevel");
    check_refused(parse(NULL, NULL, NULL, "{\"type\":\"BertProcessing\"}", NULL, &t), PD_UNSUPPORTED,
                  "post_processor: BertProcessing");
    check_refused(parse(NULL, NULL, NULL, NULL, "{\"type\":\"CTC\"}", &t), PD_UNSUPPORTED, "decoder: CTC");
    check_refused(parse(NULL, NULL, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":\"Isolated\"}",
                        NULL, NULL, &t),
                  PD_UNSUPPORTED, "pre_tokenizer.pattern");
    check_refused(
        parse(NULL, NULL, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":\"Isolated\"}", NULL, NULL, &t),
        PD_CORRUPT, "pre_tokenizer.pattern");
    check_refused(parse("{\"id\":9,\"content\":\"<x>\"}", NULL, NULL, NULL, NULL, &t), PD_INVALID,
                  "added_tokens[0].id is 9");
    static const char unigram[] = "{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}";
    check_refused(pd_tokenizer_parse("t.json", unigram, strlen(unigram), &t, &err), PD_UNSUPPORTED, "model.type Unigram");
}

static pd_status parse_model(const char *model)
{
    char text[4096];
    struct pd_tokenizer *t = NULL;
    const int bytes = snprintf(text, sizeof text, "{\"model\":%s}", model);
    pd_status status = pd_tokenizer_parse("t.json", text, (size_t)bytes, &t, &err);
    if (!status) pd_tokenizer_free(t);
    return status;
}

Test(load, a_model_that_contradicts_itself_is_refused)
{
    check_refused(parse_model("{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}"), PD_INVALID, "two tokens have the id 0");
    check_refused(parse_model("{\"vocab\":{\"a\":4194304},\"merges\":[]}"), PD_INVALID, "too large");
    check_refused(parse_model("{\"vocab\":{\"a\":-1},\"merges\":[]}"), PD_CORRUPT, "model.vocab");
    check_refused(parse_model("{\"vocab\":{},\"merges\":[]}"), PD_CORRUPT, "empty");
    check_refused(parse_model("{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}"), PD_INVALID, "model.merges[0]");
    check_refused(parse_model("{\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}"), PD_CORRUPT, "model.merges[0]");
    check_refused(parse_model("{\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.5}"), PD_UNSUPPORTED, "model.dropout");
    check_refused(parse_model("{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}"), PD_INVALID, "unk_token");
    check_refused(parse_model("{\"vocab\":{\"a\":0}}"), PD_CORRUPT, "model.merges");
    cr_assert_eq(parse_model("{\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"\"}"), PD_OK, "%s", err.message);
}

Test(load, nesting_has_an_end)
{
    char text[2048] = "";
    struct pd_tokenizer *t;
    for (unsigned i = 0; i < 12; i++)
        strncat(text, "{\"type\":\"Sequence\",\"normalizers\":[", sizeof text - strlen(text) - 1);
    for (unsigned i = 0; i < 12; i++)
        strncat(text, "]}", sizeof text - strlen(text) - 1);
    check_refused(parse(NULL, text, NULL, NULL, NULL, &t), PD_CORRUPT, "nested too deep");
}

static uint64_t digest_of(const char *text)
{
    struct pd_tokenizer *t;
    cr_assert_eq(pd_tokenizer_parse("t.json", text, strlen(text), &t, &err), PD_OK, "%s", err.message);
    const uint64_t digest = pd_tokenizer_digest(t);
    pd_tokenizer_free(t);
    return digest;
}

static struct pd_tokenizer_text text_of(const char *text)
{
    return (struct pd_tokenizer_text){text, text ? strlen(text) : 0};
}

static pd_status parse_with(const char *config, const char *added, struct pd_tokenizer **ret)
{
    const struct pd_tokenizer_text json = text_of("{" MODEL), beside[] = {text_of(config), text_of(added), text_of(NULL)};
    return pd_tokenizer_parse_with("t.json", &json, beside, ret, &err);
}

/* The special tokens of "abc", one letter each, that a special_tokens_map.json makes beside this configuration; "": refused. */
static const char *special_of(const char *config, const char *map)
{
    static char found[8];
    struct pd_tokenizer *t;
    const struct pd_tokenizer_text json = text_of("{" MODEL), beside[] = {text_of(config), text_of(NULL), text_of(map)};
    size_t length = 0;
    if (pd_tokenizer_parse_with("t.json", &json, beside, &t, &err)) return "";
    memset(found, 0, sizeof found);
    for (uint32_t i = 0; i < 4; i++)
        if (special(t, i)) found[length++] = special(t, i)[0];
    pd_tokenizer_free(t);
    return found[0] ? found : "none";
}

/* As transformers takes it: alone, or beside a configuration without added_tokens_decoder, whose tokens it replaces. */
Test(load, a_map_of_special_tokens_counts_where_the_decoder_is_not)
{
    static const char map[] =
        "{\"bos_token\": {\"content\": \"c\", \"lstrip\": false}, \"additional_special_tokens\": [\"b\"]}";
    cr_expect_str_eq(special_of(NULL, map), "bc");
    cr_expect_str_eq(special_of("{\"bos_token\": \"a\"}", map), "bc");
    cr_expect_str_eq(special_of("{\"eos_token\": \"a\", \"additional_special_tokens\": []}", map), "abc");
    cr_expect_str_eq(special_of("{\"added_tokens_decoder\": {}, \"bos_token\": \"a\"}", map), "a");
    cr_expect_str_eq(special_of(NULL, "{\"lattice\": 1}"), "");
    cr_expect(strstr(err.message, "special_tokens_map.json: lattice is not the name of a token"), "%s", err.message);
}

/* As transformers does: they are found in text, and a copy of the tokenizer's text has them. */
Test(load, added_tokens_may_stand_beside_it)
{
    static const char config[] =
        "{\"added_tokens_decoder\": {\"4\": {\"content\": \"<s>\", \"special\": true}}, \"bos_token\": \"c\","
        " \"pad_token\": \"[PAD]\", \"add_bos_token\": true}";
    struct pd_tokenizer *plain, *t, *again;
    size_t bytes;
    cr_assert_eq(parse_with(NULL, NULL, &plain), PD_OK, "%s", err.message);
    cr_assert_eq(parse_with(config, "{\"<x>\": 6}", &t), PD_OK, "%s", err.message);
    cr_expect(pd_tokenizer_vocab(plain) == 4 && pd_tokenizer_vocab(t) == 7);
    cr_expect(!special(plain, 3) && !strcmp(special(t, 3), "c"));
    cr_expect(!strcmp(special(t, 4), "<s>") && pd_tokenizer_find(t, "<x>") == 6 && !special(t, 6));
    cr_expect_eq(pd_tokenizer_find(t, "[PAD]"), -1); /* the vocabulary has none, so no row is its */
    const char *json = pd_tokenizer_json(t, &bytes);
    cr_assert_eq(pd_tokenizer_parse("t.json", json, bytes, &again, &err), PD_OK, "%s", err.message);
    cr_expect_eq(pd_tokenizer_digest(again), pd_tokenizer_digest(t));
    pd_tokenizer_free(plain), pd_tokenizer_free(t), pd_tokenizer_free(again);
}

Test(load, what_beside_it_contradicts_is_refused)
{
    struct pd_tokenizer *t;
    check_refused(parse_with("{\"added_tokens_decoder\": {\"5\": {\"content\": \"ab\"}}}", NULL, &t), PD_INVALID,
                  "\"ab\" has the id 5 in tokenizer_config.json");
    check_refused(parse_with("{\"tokenizer_class\": \"LlamaTokenizer\", \"add_bos_token\": true}", NULL, &t), PD_UNSUPPORTED,
                  "tokenizer_config.json says add_bos_token: true, and the post_processor here does the opposite");
    cr_assert_eq(pd_tokenizer_parse("t.json", "{\"lattice\": 1, " MODEL, strlen(MODEL) + 15, &t, &err), PD_UNSUPPORTED);
    cr_assert(strstr(err.message, "t.json: lattice is not supported"), "%s", err.message);
}

/* Tokens of "12 ab" in a tokenizer.gguf with this pre-tokenizer; -1: it is refused. */
static int count_tokens(const char *pre)
{
    char text[512];
    struct pd_tokenizer *t;
    struct pd_tokenizer_scratch *scratch;
    struct pd_tokens tokens = {0};
    snprintf(text, sizeof text,
             "{\"ggml.model\": \"gpt2\", \"ggml.pre\": \"%s\", \"ggml.tokens\": [\"1\", \"2\", \"12\", \"a\", \"b\", "
             "\"ab\", \"\u0120\","
             " \"\u0120ab\", \"\u0120a\"], \"ggml.merges\": [\"1 2\", \"\u0120 a\", \"\u0120a b\"]}",
             pre);
    if (pd_tokenizer_parse("t.json", text, strlen(text), &t, &err)) return -1;
    cr_assert_eq(pd_tokenizer_scratch_new(t, &scratch, &err), PD_OK);
    cr_assert_eq(pd_tokenizer_encode(t, scratch, "12 ab", 5, false, &tokens, &err), PD_OK, "%s: %s", pre, err.message);
    const int count = (int)tokens.count;
    pd_tokens_deinit(&tokens);
    pd_tokenizer_scratch_free(scratch);
    pd_tokenizer_free(t);
    return count;
}

/* All that llama.cpp knows by a name compile; those that cut digits apart do. */
Test(load, pre_tokenizers_of_gguf)
{
    static const char *const known[] = {"default", "gpt-2", "llama-bpe", "falcon", "deepseek-llm", "deepseek-v3",
                                        "gpt-4o",  "mpt",   "olmo",      "dbrx",   "glm4"},
                             *const digits[] = {"smollm",    "starcoder", "refact",     "command-r",
                                                "codeshell", "exaone",    "minerva-7b", "deepseek-coder",
                                                "tekken",    "qwen2",     "stablelm2",  "hunyuan"};
    for (size_t i = 0; i < sizeof digits / sizeof *digits; i++)
        cr_expect_eq(count_tokens(digits[i]), 3, "%s: %d", digits[i], count_tokens(digits[i]));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i], "qwen2") != 0)
            cr_expect_eq(count_tokens(known[i]), 2, "%s: %d", known[i], count_tokens(known[i]));
    cr_expect_eq(count_tokens("kimi-k2"), -1);
    cr_expect(
        strstr(err.message, "tokenizer.ggml.pre: kimi-k2 is not known; name its tokenizer.json with --tokenizer=PATH"));
    cr_expect_eq(count_tokens("llama"), -1); /* no name's beginning */
}

Test(load, the_digest_is_of_tokens_and_not_of_formatting)
{
    const uint64_t digest =
        digest_of("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}");
    cr_assert_eq(
        digest,
        digest_of("{ \"version\": \"1.0\", \"decoder\": {\"type\":\"Fuse\"}, \"model\": {\"merges\": [[\"a\",\"b\"]],\n"
                  "\"vocab\": {\"ab\":2,\"b\":1,\"a\":0}, \"fuse_unk\":false}, \"padding\": null}"));
    cr_assert_neq(digest,
                  digest_of("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":0,\"ab\":2},\"merges\":[\"a b\"]}}"));
    cr_assert_neq(digest, digest_of("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[]}}"));
    cr_assert_neq(digest, digest_of("{\"pre_tokenizer\":{\"type\":\"Whitespace\"},\"model\":{\"type\":\"BPE\",\"vocab\":"
                                    "{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}"));
}

static void check_tokens(struct pd_tokenizer *t, const char *text, const int32_t *expected, size_t count)
{
    struct pd_tokens tokens = encode_text(t, text, strlen(text));
    cr_assert_eq(tokens.count, count, "%s: %zu", text, tokens.count);
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(tokens.ids[i], expected[i], "%s: %zu", text, i);
    pd_tokens_deinit(&tokens);
    pd_tokenizer_free(t);
}
#define CHECK_TOKENS(t, text, ...)                                      \
    do {                                                                \
        static const int32_t expected[] = {__VA_ARGS__};                \
        check_tokens(t, text, expected, sizeof expected / sizeof(int)); \
    } while (0)

static pd_status parse_gguf(const char *text, struct pd_tokenizer **ret_tokenizer)
{
    return pd_tokenizer_parse("t.gguf", text, strlen(text), ret_tokenizer, &err);
}

Test(load, gguf_arrays_of_both_models)
{
#define GPT2(pre)                                                                                         \
    "{\"ggml.model\":\"gpt2\"," pre "\"ggml.tokens\":[\"a\",\"b\",\"ab\",\"\xc4\xa0\",\"\xc4\xa0"         \
    "a\",\"<eos>\"],"                                                                                     \
    "\"ggml.token_type\":[1,1,1,1,1,3],\"ggml.merges\":[\"a b\",\"\xc4\xa0 a\"],\"ggml.eos_token_id\":5," \
    "\"ggml.add_eos_token\":true}"
#define LLAMA(scores)                                                                                                   \
    "{\"ggml.model\":\"llama\",\"ggml.tokens\":[\"<unk>\",\"<s>\",\"a\",\"b\",\"c\",\"\xe2\x96\x81\",\"ab\",\"bc\",\"<" \
    "0x64>\"],"                                                                                                         \
    "\"ggml.token_type\":[2,3,1,1,1,1,1,1,6]," scores "\"ggml.bos_token_id\":1,\"ggml.unknown_token_id\":0}"
    struct pd_tokenizer *t;
    cr_assert_eq(parse_gguf(GPT2(""), &t), PD_OK, "%s", err.message);
    CHECK_TOKENS(t, "ab a<eos>b", 2, 4, 5, 1, 5);
    cr_assert_eq(parse_gguf(GPT2("\"ggml.pre\":\"qwen2\","), &t), PD_OK, "%s", err.message);
    CHECK_TOKENS(t, "ab a", 2, 4, 5);
    cr_assert_eq(parse_gguf(GPT2("\"ggml.pre\":\"chameleon\","), &t), PD_UNSUPPORTED);
    cr_assert(strstr(err.message, "chameleon"));
    /* "abc" is b+c first, by score; a second "bc" of the same score is right of it. */
    cr_assert_eq(parse_gguf(LLAMA("\"ggml.scores\":[0,0,-5,-5,-5,-5,-2,-1,0],"), &t), PD_OK, "%s", err.message);
    CHECK_TOKENS(t, "abc abd", 1, 5, 2, 7, 5, 6, 8);
    cr_assert_eq(parse_gguf(LLAMA(""), &t), PD_INVALID);
    cr_assert(strstr(err.message, "scores"));
}

/* What llama.cpp takes for absent keys: model llama begins with bos and with a space. */
Test(load, metadata_of_gguf_as_json)
{
    static const char whole[] =
        "{\"ggml.model\":\"llama\",\"ggml.tokens\":[\"<unk>\",\"<s>\",\"a\",\"b\",\"\u2581\",\"ab\"],"
        "\"ggml.scores\":[0,0,-5,-5,-5,-1.5],\"ggml.token_type\":[2,3,1,1,1,1],"
        "\"ggml.bos_token_id\":1,\"ggml.unknown_token_id\":0}";
    static const char *const refused[][2] = {
        {"{\"ggml.model\":\"llama\",\"ggml.tokens\":[\"a\",1],\"ggml.scores\":[0,0]}", "ggml.tokens[1] is not text"},
        {"{\"ggml.model\":\"llama\",\"ggml.tokens\":[\"a\"],\"ggml.scores\":[0,0]}", "not one number a token"},
        {"{\"ggml.model\":\"llama\",\"ggml.tokens\":[\"a\"],\"ggml.scores\":[\"x\"]}",
         "ggml.scores[0] is not a valid number"},
        {"{\"ggml.model\":\"llama\",\"ggml.tokens\":[\"a\"]}", "tokenizer.ggml.scores is missing"},
        {"{\"ggml.model\":7}", "tokenizer.ggml.model"}};
    struct pd_tokenizer *t;
    cr_assert_eq(pd_tokenizer_parse("t.json", whole, sizeof whole - 1, &t, &err), PD_OK, "%s", err.message);
    CHECK_TOKENS(t, "ab a", 1, 4, 5, 4, 2);
    for (unsigned i = 0; i < sizeof refused / sizeof refused[0]; i++)
        check_refused(pd_tokenizer_parse("t.json", refused[i][0], strlen(refused[i][0]), &t, &err), PD_INVALID,
                      refused[i][1]);
}
