/* Files under tests/golden/tokenizers. */
#pragma once

#include "trainer/tokenizer/tokenizer.h"
#include <criterion/criterion.h>
#include <stdio.h>

#define GOLDEN PERDURE_SOURCE_DIR "/tests/golden/tokenizers/"

static struct pd_error err;

static inline struct pd_string golden_read(const char *name, const char *end)
{
    char path[512];
    struct pd_string text = {0};
    snprintf(path, sizeof path, GOLDEN "%s%s", name, end);
    FILE *file = fopen(path, "rb");
    cr_assert(file, "%s", path);
    char part[4096];
    for (size_t bytes; (bytes = fread(part, 1, sizeof part, file)) > 0;)
        cr_assert_eq(pd_string_add(&text, part, bytes, &err), PD_OK);
    cr_assert_eq(pd_string_add(&text, "", 1, &err), PD_OK);
    text.count--;
    fclose(file);
    return text;
}

static inline struct pd_tokenizer *golden_open(const char *name)
{
    char path[512];
    struct pd_tokenizer *tokenizer = NULL;
    snprintf(path, sizeof path, GOLDEN "%s.json", name);
    cr_assert_eq(pd_tokenizer_open(path, &tokenizer, &err), PD_OK, "%s", err.message);
    return tokenizer;
}

static inline struct pd_tokens encode_text(const struct pd_tokenizer *tokenizer, const char *text, size_t bytes)
{
    struct pd_tokenizer_scratch *scratch;
    struct pd_tokens tokens = {0};
    cr_assert_eq(pd_tokenizer_scratch_new(tokenizer, &scratch, &err), PD_OK);
    cr_assert_eq(pd_tokenizer_encode(tokenizer, scratch, text, bytes, false, &tokens, &err), PD_OK, "%s", err.message);
    pd_tokenizer_scratch_free(scratch);
    return tokens;
}
