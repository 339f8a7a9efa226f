/* A tokenizer that goes out as GGUF metadata and comes in again has the same tokens, or does not go out. */
#include "golden.h"

static struct pd_tokenizer *through_gguf(const struct pd_tokenizer *tokenizer, uint32_t vocab)
{
    struct pd_tokenizer *again = NULL;
    char *text = NULL;
    cr_assert_eq(pd_tokenizer_save_gguf(tokenizer, vocab, -1, -1, &text, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_tokenizer_parse("tokenizer.gguf", text, strlen(text), &again, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_tokenizer_vocab(again), vocab);
    free(text);
    return again;
}

static void check_equal(const struct pd_tokenizer *a, const struct pd_tokenizer *b, const char *text, size_t bytes)
{
    struct pd_tokens x = encode_text(a, text, bytes), y = encode_text(b, text, bytes);
    cr_assert(x.count == y.count && !memcmp(x.ids, y.ids, x.count * sizeof *x.ids), "%zu and %zu tokens", x.count, y.count);
    pd_tokens_deinit(&x);
    pd_tokens_deinit(&y);
}

Test(save_gguf, golden_ones_keep_their_tokens)
{
    static const char *const names[] = {"gpt2", "llama3"};
    struct pd_string text = golden_read("mixed", ".txt");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct pd_tokenizer *tokenizer = golden_open(names[i]),
                            *again = through_gguf(tokenizer, pd_tokenizer_vocab(tokenizer) + 5);
        check_equal(tokenizer, again, text.bytes, text.count);
        pd_tokenizer_free(tokenizer);
        pd_tokenizer_free(again);
    }
    pd_string_deinit(&text);
}

static void check_refused(const struct pd_tokenizer *tokenizer, uint32_t vocab, const char *words)
{
    char *text = NULL;
    cr_assert_eq(pd_tokenizer_save_gguf(tokenizer, vocab, -1, -1, &text, &err), PD_UNSUPPORTED);
    cr_assert(strstr(err.message, words), "\"%s\" is not in: %s", words, err.message);
}

Test(save_gguf, what_gguf_has_no_words_for_is_named)
{
    static const struct {
        const char *name, *words;
    } cases[] = {{"qwen2", "added token \"<|pad|>\""},
                 {"metaspace", "normalizer and pre-tokenizer"},
                 {"sentencepiece", "pairs of its tokens"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pd_tokenizer *tokenizer = golden_open(cases[i].name);
        check_refused(tokenizer, pd_tokenizer_vocab(tokenizer), cases[i].words);
        check_refused(tokenizer, 100, "and the model 100");
        pd_tokenizer_free(tokenizer);
    }
}

/* Every pair of tokens that makes a token is a merge, those of one token together: as converters make it of SentencePiece. */
#define SENTENCEPIECE(merges)                                                                                               \
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},{\"id\":1,\"content\":\"<s>\",\"special\":true}]" \
    ","                                                                                                                     \
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},"           \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]},\"pre_tokenizer\":null,"          \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"    \
    "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],"     \
    "\"tokens\":[\"<s>\"]}}},\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true," \
    "\"vocab\":{\"<unk>\":0,\"<s>\":1,\"<0x0A>\":2,\"\xe2\x96\x81\":3,\"a\":4,\"b\":5,\"c\":6,\"ab\":7,\"bc\":8,\"abc\":9," \
    "\"\xe2\x96\x81"                                                                                                        \
    "a\":10},\"merges\":[" merges "]}}"

static struct pd_tokenizer *sentencepiece(const char *json)
{
    struct pd_tokenizer *tokenizer = NULL;
    cr_assert_eq(pd_tokenizer_parse("t.json", json, strlen(json), &tokenizer, &err), PD_OK, "%s", err.message);
    return tokenizer;
}

Test(save_gguf, merges_of_sentencepiece_become_scores)
{
    static const char text[] = "abc ab\ncab bca abcabc";
    struct pd_tokenizer *t = sentencepiece(SENTENCEPIECE("\"b c\",\"a b\",\"\xe2\x96\x81 a\",\"a bc\",\"ab c\"")),
                        *again = through_gguf(t, 12);
    check_equal(t, again, text, sizeof text - 1);
    pd_tokenizer_free(again);
    pd_tokenizer_free(t);
    t = sentencepiece(SENTENCEPIECE("\"b c\",\"a bc\",\"a b\",\"\xe2\x96\x81 a\",\"ab c\""));
    check_refused(t, 12, "merges of token 9 are apart");
    pd_tokenizer_free(t);
    t = sentencepiece(SENTENCEPIECE("\"b c\",\"a b\",\"\xe2\x96\x81 a\",\"a bc\""));
    check_refused(t, 12, "5 pairs of its tokens make another token and 4 of them are merges");
    pd_tokenizer_free(t);
}

Test(save_gguf, bytes_are_tokens_without_merges)
{
    struct pd_tokenizer *bytes = NULL;
    cr_assert_eq(pd_tokenizer_open("byte", &bytes, &err), PD_OK);
    struct pd_tokenizer *again = through_gguf(bytes, 256);
    check_equal(bytes, again, "z\xc3\xa9 \n1", 6);
    pd_tokenizer_free(again);
    pd_tokenizer_free(bytes);
}

Test(save_gguf, a_whole_tokenizer_json_has_a_place_of_its_own)
{
    static const char text[] = "{\"huggingface.json\":\"{\\\"model\\\":{\\\"type\\\":\\\"BPE\\\",\\\"vocab\\\":{\\\"a\\\":0}"
                               ",\\\"merges\\\":[]}}\"}";
    struct pd_tokenizer *t = NULL;
    cr_assert_eq(pd_tokenizer_parse("tokenizer.gguf", text, strlen(text), &t, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_tokenizer_find(t, "a"), 0);
    pd_tokenizer_free(t);
}
