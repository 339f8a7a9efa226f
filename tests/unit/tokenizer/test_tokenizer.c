#include "golden.h"

static const char *const names[] = {"gpt2", "llama3", "qwen2", "sentencepiece", "metaspace"};

static void check_ids(const char *name, const struct pd_tokens *tokens)
{
    struct pd_string expected = golden_read(name, ".tokens");
    char *at = expected.bytes;
    for (size_t i = 0; i < tokens->count; i++) {
        char *end;
        const long id = strtol(at, &end, 10);
        cr_assert_neq(at, end, "%s: %zu tokens, and there should be no more than %zu", name, tokens->count, i);
        cr_assert_eq(tokens->ids[i], id, "%s: token %zu is %d and not %ld", name, i, tokens->ids[i], id);
        at = end;
    }
    cr_assert_eq(strspn(at, " \n"), strlen(at), "%s: %zu tokens, and there should be more", name, tokens->count);
    pd_string_deinit(&expected);
}

static void check_decoded(const char *name, const struct pd_tokenizer *tokenizer, const struct pd_tokens *tokens)
{
    struct pd_string expected = golden_read(name, ".decoded"), text = {0};
    struct pd_tokenizer_scratch *scratch;
    cr_assert_eq(pd_tokenizer_scratch_new(tokenizer, &scratch, &err), PD_OK);
    cr_assert_eq(pd_tokenizer_decode(tokenizer, scratch, tokens->ids, tokens->count, false, &text, &err), PD_OK);
    cr_assert_eq(text.count, expected.count, "%s", name);
    cr_assert_eq(memcmp(text.bytes, expected.bytes, text.count), 0, "%s", name);
    pd_tokenizer_scratch_free(scratch);
    pd_string_deinit(&expected);
    pd_string_deinit(&text);
}

/* What a stream gives piece by piece is the text, and each piece is whole characters. */
static void check_stream(const char *name, const struct pd_tokenizer *tokenizer, const struct pd_tokens *tokens)
{
    struct pd_string expected = golden_read(name, ".decoded"), text = {0};
    struct pd_decode_stream *stream;
    const char *piece;
    size_t bytes;
    cr_assert_eq(pd_decode_stream_new(tokenizer, false, &stream, &err), PD_OK);
    for (size_t i = 0; i < tokens->count; i++) {
        cr_assert_eq(pd_decode_stream_add(stream, tokens->ids[i], &piece, &bytes, &err), PD_OK);
        cr_assert_neq((bytes ? (unsigned char)piece[0] : 0u) & 0xc0u, 0x80u);
        cr_assert_eq(pd_string_add(&text, piece, bytes, &err), PD_OK);
    }
    cr_assert_eq(pd_decode_stream_end(stream, &piece, &bytes, &err), PD_OK);
    cr_assert_eq(pd_string_add(&text, piece, bytes, &err), PD_OK);
    cr_assert_eq(text.count, expected.count, "%s: %zu", name, text.count);
    cr_assert_eq(memcmp(text.bytes, expected.bytes, text.count), 0, "%s", name);
    pd_decode_stream_free(stream);
    pd_string_deinit(&expected);
    pd_string_deinit(&text);
}

Test(tokenizer, tokens_and_text_are_those_of_the_reference)
{
    struct pd_string mixed = golden_read("mixed", ".txt");
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct pd_tokenizer *tokenizer = golden_open(names[i]);
        struct pd_tokens tokens = encode_text(tokenizer, mixed.bytes, mixed.count);
        check_ids(names[i], &tokens);
        check_decoded(names[i], tokenizer, &tokens);
        check_stream(names[i], tokenizer, &tokens);
        pd_tokens_deinit(&tokens);
        pd_tokenizer_free(tokenizer);
    }
    pd_string_deinit(&mixed);
}

Test(tokenizer, a_second_encoding_finds_the_cache_as_it_should)
{
    struct pd_tokenizer *tokenizer = golden_open("gpt2");
    struct pd_tokenizer_scratch *scratch;
    struct pd_tokens first = {0}, second = {0};
    struct pd_string mixed = golden_read("mixed", ".txt");
    cr_assert_eq(pd_tokenizer_scratch_new(tokenizer, &scratch, &err), PD_OK);
    cr_assert_eq(pd_tokenizer_encode(tokenizer, scratch, mixed.bytes, mixed.count, false, &first, &err), PD_OK);
    cr_assert_eq(pd_tokenizer_encode(tokenizer, scratch, mixed.bytes, mixed.count, false, &second, &err), PD_OK);
    cr_assert_eq(first.count, second.count);
    cr_assert_eq(memcmp(first.ids, second.ids, first.count * sizeof *first.ids), 0);
    pd_tokenizer_scratch_free(scratch);
    pd_tokens_deinit(&first);
    pd_tokens_deinit(&second);
    pd_string_deinit(&mixed);
    pd_tokenizer_free(tokenizer);
}

Test(tokenizer, bytes_keep_what_is_no_text)
{
    struct pd_tokenizer *tokenizer;
    cr_assert_eq(pd_tokenizer_open("byte", &tokenizer, &err), PD_OK);
    struct pd_tokens tokens = encode_text(tokenizer, "a\0\xff\xe4\xb8", 5);
    static const int32_t expected[] = {'a', 0, 0xff, 0xe4, 0xb8};
    cr_assert_eq(tokens.count, 5);
    cr_assert_eq(memcmp(tokens.ids, expected, sizeof expected), 0);
    cr_assert(pd_tokenizer_is_bytes(tokenizer));
    cr_assert_eq(pd_tokenizer_vocab(tokenizer), 256);
    struct pd_decode_stream *stream;
    const char *piece;
    size_t bytes, given = 0;
    cr_assert_eq(pd_decode_stream_new(tokenizer, false, &stream, &err), PD_OK);
    static const int32_t euro[] = {0xe2, 0x82, 0xac};
    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(pd_decode_stream_add(stream, euro[i], &piece, &bytes, &err), PD_OK);
        given += bytes;
        cr_assert_eq(given, i < 2 ? 0 : 3);
    }
    pd_decode_stream_free(stream);
    pd_tokens_deinit(&tokens);
    pd_tokenizer_free(tokenizer);
}

Test(tokenizer, empty_text_has_the_tokens_of_the_template_alone)
{
    struct pd_tokenizer *tokenizer = golden_open("sentencepiece");
    struct pd_tokens tokens = encode_text(tokenizer, "", 0);
    cr_assert_eq(tokens.count, 2);
    cr_assert_eq(tokens.ids[0], pd_tokenizer_find(tokenizer, "<s>"));
    cr_assert_eq(tokens.ids[1], pd_tokenizer_find(tokenizer, "</s>"));
    pd_tokens_deinit(&tokens);
    pd_tokenizer_free(tokenizer);
}

static void check_encoded(const char *json, const char *text, const int32_t *ids, size_t count)
{
    struct pd_tokenizer *tokenizer;
    struct pd_tokenizer_scratch *scratch;
    struct pd_tokens tokens = {0};
    cr_assert_eq(pd_tokenizer_parse("tokenizer.json", json, strlen(json), &tokenizer, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_tokenizer_scratch_new(tokenizer, &scratch, &err), PD_OK);
    cr_assert_eq(pd_tokenizer_encode(tokenizer, scratch, text, strlen(text), false, &tokens, &err), PD_OK);
    cr_assert(tokens.count == count && !memcmp(tokens.ids, ids, count * sizeof *ids), "%zu tokens", tokens.count);
    pd_tokens_deinit(&tokens);
    pd_tokenizer_scratch_free(scratch);
    pd_tokenizer_free(tokenizer);
}

/* No token is unknown: "!" is left out, and what stood on either side of it merges, as in the reference. */
Test(tokenizer, what_is_left_out_lets_its_neighbours_meet)
{
    check_encoded("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\",\"b\"]]}}", "a!b",
                  (const int32_t[]){2}, 1);
}

/* The first newline takes the second, as in the reference. */
Test(tokenizer, an_added_token_whose_text_is_taken_is_left_out)
{
    check_encoded("{\"added_tokens\":[{\"id\":2,\"content\":\"\\n\",\"lstrip\":true,\"rstrip\":true,\"normalized\":false,"
                  "\"single_word\":false,\"special\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},"
                  "\"merges\":[]}}",
                  "a\n\nb", (const int32_t[]){0, 2, 1}, 3);
}

/* 64 times as much a step: four of them would make 16 MiB of each letter. */
#define GROWING "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"" A16 A16 A16 A16 "\"}"
#define A16 "aaaaaaaaaaaaaaaa"
#define GROWN(list) "{\"type\":\"Sequence\",\"" list "\":[" GROWING "," GROWING "," GROWING "," GROWING "]}"
#define GROWING_MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}"

static struct pd_tokenizer *parse_growing(const char *json, struct pd_tokenizer_scratch **ret_scratch)
{
    struct pd_tokenizer *t;
    cr_assert_eq(pd_tokenizer_parse("t.json", json, strlen(json), &t, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_tokenizer_scratch_new(t, ret_scratch, &err), PD_OK);
    return t;
}

Test(tokenizer, steps_that_replace_do_not_fill_the_memory)
{
    struct pd_tokenizer_scratch *scratch;
    struct pd_tokens tokens = {0};
    struct pd_string text = {0};
    struct pd_tokenizer *t = parse_growing("{\"normalizer\":" GROWN("normalizers") "," GROWING_MODEL, &scratch);
    cr_assert_eq(pd_tokenizer_encode(t, scratch, "aaaa", 4, false, &tokens, &err), PD_INVALID);
    cr_assert(strstr(err.message, "steps that replace make more than 1048832 bytes"), "%s", err.message);
    pd_tokenizer_scratch_free(scratch);
    pd_tokenizer_free(t);
    t = parse_growing("{\"decoder\":" GROWN("decoders") "," GROWING_MODEL, &scratch);
    cr_assert_eq(pd_tokenizer_decode(t, scratch, (const int32_t[]){0, 0}, 2, false, &text, &err), PD_INVALID);
    cr_assert(strstr(err.message, "steps that replace make more than 1048704 bytes"), "%s", err.message);
    pd_tokenizer_scratch_free(scratch);
    pd_tokenizer_free(t);
    pd_tokens_deinit(&tokens);
    pd_string_deinit(&text);
}

Test(tokenizer, punctuation_is_that_of_ascii_and_of_unicode)
{
    check_encoded("{\"pre_tokenizer\":{\"type\":\"Punctuation\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"$\":1,"
                  "\"\xe3\x80\x82\":2,"
                  "\"+\":3,\"a$\":4,\"$a\":5,\"a+\":6,\"a\xe3\x80\x82\":7,\"aa\":8,\"\xc2\xb1\":9,\"a\xc2\xb1\":10},"
                  "\"merges\":[\"a $\",\"$ a\",\"a +\",\"a \xe3\x80\x82\",\"a a\",\"a \xc2\xb1\"]}}",
                  "aa$a+a\xe3\x80\x82"
                  "a\xc2\xb1",
                  (const int32_t[]){8, 1, 0, 3, 0, 2, 10}, 7);
}
