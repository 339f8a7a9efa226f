/* Text for a byte-level tokenizer with an expression and one that has a document as one word. Both know every byte, so what they
 * decode is the text with U+FFFD for what was no UTF-8; a stream gives the same piece by piece. */
#include "tests/fuzz/target.h"
#include "trainer/tokenizer/byte_level.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/unicode.h"
#include <stdio.h>

enum { STREAMED_MAX = 64 }; /* tokens: in a stream each takes as long as many at once */

static struct with_scratch {
    struct pd_tokenizer *tokenizer;
    struct pd_tokenizer_scratch *scratch; /* of a megabyte: one serves all inputs, as it serves all documents of a file */
} byte_level, one_word;

static void parse(const char *json, struct with_scratch *ret)
{
    struct pd_error err = {0};
    pd_status st = pd_tokenizer_parse("built in", json, strlen(json), &ret->tokenizer, &err);
    if (!st) st = pd_tokenizer_scratch_new(ret->tokenizer, &ret->scratch, &err);
    if (!st) return;
    fprintf(stderr, "%s\n", err.message);
    abort();
}

static void make_tokenizers(void)
{
    char json[16384];
    size_t used =
        (size_t)snprintf(json, sizeof json,
                         "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":"
                         "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (unsigned byte = 0; byte < 256; byte++)
        used += (size_t)snprintf(json + used, sizeof json - used, "\"\\u%04x\":%u,", pd_byte_level_char((unsigned char)byte),
                                 byte);
    snprintf(json + used, sizeof json - used,
             "\"ab\":256,\"abab\":257,\"\\u0120a\":258},\"merges\":[\"a b\",\"ab ab\",\"\\u0120 a\"]}}");
    parse(json, &byte_level);
    used = (size_t)snprintf(json, sizeof json,
                            "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},"
                            "{\"type\":\"Fuse\"}]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{");
    for (unsigned byte = 0; byte < 256; byte++)
        used += (size_t)snprintf(json + used, sizeof json - used, "\"<0x%02X>\":%u,", byte, byte);
    snprintf(json + used, sizeof json - used,
             "\"a\":256,\"b\":257,\"ab\":258,\"abab\":259,\" \":260,\" "
             "a\":261},\"merges\":[[\"a\",\"b\"],[\"ab\",\"ab\"],[\" \",\"a\"]]}}");
    parse(json, &one_word);
}

static void check(const struct with_scratch *with, const char *text, size_t bytes)
{
    const struct pd_tokenizer *tokenizer = with->tokenizer;
    struct pd_tokenizer_scratch *scratch = with->scratch;
    struct pd_decode_stream *stream;
    struct pd_tokens tokens = {0};
    struct pd_string expected = {0}, decoded = {0}, streamed = {0};
    struct pd_error err = {0};
    const char *piece;
    size_t piece_bytes;
    pd_status st = pd_decode_stream_new(tokenizer, false, &stream, &err);
    if (st) abort();
    if (!st) st = pd_unicode_repair(text, bytes, &expected, &err);
    if (!st) st = pd_tokenizer_encode(tokenizer, scratch, text, bytes, false, &tokens, &err);
    if (!st) st = pd_tokenizer_decode(tokenizer, scratch, tokens.ids, tokens.count, false, &decoded, &err);
    for (size_t i = 0; !st && i < tokens.count && tokens.count < STREAMED_MAX; i++) {
        st = pd_decode_stream_add(stream, tokens.ids[i], &piece, &piece_bytes, &err);
        if (!st) st = pd_string_add(&streamed, piece, piece_bytes, &err);
    }
    if (!st) st = pd_decode_stream_end(stream, &piece, &piece_bytes, &err);
    if (!st) st = pd_string_add(&streamed, piece, piece_bytes, &err);
    if (st || decoded.count != expected.count || (decoded.count && memcmp(decoded.bytes, expected.bytes, decoded.count)))
        abort();
    if (tokens.count < STREAMED_MAX &&
        (streamed.count != expected.count || (streamed.count && memcmp(streamed.bytes, expected.bytes, streamed.count))))
        abort();
    pd_decode_stream_free(stream);
    pd_tokens_deinit(&tokens);
    pd_string_deinit(&expected);
    pd_string_deinit(&decoded);
    pd_string_deinit(&streamed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!byte_level.tokenizer) make_tokenizers();
    check(&byte_level, (const char *)data, bytes);
    check(&one_word, (const char *)data, bytes);
    return 0;
}
