/* peer_tokenize TOKENIZER TEXT IDS DECODED: the bytes of TEXT as one document: its tokens (i32) and what they decode to.
 * peer_tokenize TOKENIZER tokenizer.gguf: the same as GGUF metadata. Exit 2: GGUF has no words for it. */
#include "trainer/tokenizer/tokenizer.h"
#include <stdio.h>

static char *read_all(const char *path, size_t *ret_bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) return NULL;
    *ret_bytes = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(*ret_bytes + 1);
    const bool whole = text && fread(text, 1, *ret_bytes, file) == *ret_bytes;
    fclose(file);
    return whole ? text : NULL;
}

static bool write_all(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    return file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0;
}

static pd_status run(const char *path, const char *text, size_t bytes, struct pd_tokens *tokens, struct pd_string *decoded,
                     struct pd_error *err)
{
    struct pd_tokenizer *tokenizer;
    struct pd_tokenizer_scratch *scratch;
    PD_TRY(pd_tokenizer_open(path, &tokenizer, err));
    PD_TRY(pd_tokenizer_scratch_new(tokenizer, &scratch, err));
    PD_TRY(pd_tokenizer_encode(tokenizer, scratch, text, bytes, false, tokens, err));
    PD_TRY(pd_tokenizer_decode(tokenizer, scratch, tokens->ids, tokens->count, false, decoded, err));
    pd_tokenizer_scratch_free(scratch);
    pd_tokenizer_free(tokenizer);
    return PD_OK;
}

static int to_gguf(const char *path, const char *gguf_path)
{
    struct pd_error err = {0};
    struct pd_tokenizer *tokenizer = NULL;
    char *gguf = NULL;
    pd_status st = pd_tokenizer_open(path, &tokenizer, &err);
    if (!st) st = pd_tokenizer_save_gguf(tokenizer, pd_tokenizer_vocab(tokenizer), -1, -1, &gguf, &err);
    const bool written = !st && write_all(gguf_path, gguf, strlen(gguf));
    if (st) fprintf(stderr, "peer_tokenize: %s\n", err.message);
    free(gguf);
    pd_tokenizer_free(tokenizer);
    return st == PD_UNSUPPORTED ? 2 : !written;
}

int main(int argc, char **argv)
{
    if (argc == 3) return to_gguf(argv[1], argv[2]);
    struct pd_tokens tokens = {0};
    struct pd_string decoded = {0};
    struct pd_error err = {0};
    size_t bytes;
    char *text = argc == 5 ? read_all(argv[2], &bytes) : NULL;
    if (!text || run(argv[1], text, bytes, &tokens, &decoded, &err)) {
        fprintf(stderr, "peer_tokenize: %s\n", text ? err.message : "cannot read the text");
        return 1;
    }
    const bool written = write_all(argv[3], tokens.ids, tokens.count * sizeof *tokens.ids) &&
                         write_all(argv[4], decoded.bytes, decoded.count);
    free(text);
    pd_tokens_deinit(&tokens);
    pd_string_deinit(&decoded);
    return !written;
}
