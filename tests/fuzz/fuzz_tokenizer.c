/* A tokenizer.json. One that loads encodes a text, and gives no token beyond its vocabulary. */
#include "tests/fuzz/target.h"
#include "trainer/tokenizer/tokenizer.h"

static void encode(const struct pd_tokenizer *tokenizer)
{
    static const char text[] = "In the  beginning\n\n1234 e\xcc\x81 \xe4\xb8\xad\xf0\x9f\x98\x80 <s>a mask b</s>\t\xff";
    struct pd_tokenizer_scratch *scratch;
    struct pd_tokens tokens = {0};
    struct pd_string decoded = {0};
    struct pd_error err = {0};
    if (pd_tokenizer_scratch_new(tokenizer, &scratch, &err)) return;
    pd_status st = pd_tokenizer_encode(tokenizer, scratch, text, sizeof text - 1, false, &tokens, &err);
    if (st && !err.message[0]) abort();
    for (size_t i = 0; i < tokens.count; i++)
        if (tokens.ids[i] < 0 || (uint32_t)tokens.ids[i] >= pd_tokenizer_vocab(tokenizer)) abort();
    if (!st) st = pd_tokenizer_decode(tokenizer, scratch, tokens.ids, tokens.count, true, &decoded, &err);
    if (st && !err.message[0]) abort();
    pd_string_deinit(&decoded);
    pd_tokens_deinit(&tokens);
    pd_tokenizer_scratch_free(scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct pd_tokenizer *tokenizer;
    struct pd_error err = {0};
    if (pd_tokenizer_parse("input", (const char *)data, bytes, &tokenizer, &err)) {
        if (!err.message[0]) abort();
        return 0;
    }
    encode(tokenizer);
    pd_tokenizer_free(tokenizer);
    return 0;
}
