/* Growing byte strings, up to 1 GiB, and growing token lists. */
#pragma once

#include "ckpt/base/status.h"
#include <stdlib.h>
#include <string.h>

#define PD_STRING_BYTES_MAX (1u << 30)
/* Limit for replacing steps on a text of `bytes`: a chain of them could turn a line into gigabytes. */
#define PD_STRING_GROWN_MAX(bytes) (64 * (size_t)(bytes) + (1u << 20))

struct pd_string {
    char *bytes; /* owned; NULL until first reserved */
    size_t count, capacity;
};

/* Reserves `more` bytes after the present ones. */
PD_MUST_USE static inline pd_status pd_string_reserve(struct pd_string *text, size_t more, struct pd_error *err)
{
    if (more <= text->capacity - text->count) return PD_OK;
    if (more > PD_STRING_BYTES_MAX - text->count) PD_FAIL(err, PD_INVALID, "a text would be longer than 1 GiB");
    size_t capacity = (text->count + more) + (text->count + more) / 2 + 64;
    char *grown = realloc(text->bytes, capacity);
    if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for %zu bytes of text", capacity);
    text->bytes = grown;
    text->capacity = capacity;
    return PD_OK;
}

PD_MUST_USE static inline pd_status pd_string_add(struct pd_string *text, const char *bytes, size_t count,
                                                  struct pd_error *err)
{
    PD_TRY(pd_string_reserve(text, count, err));
    if (count) memcpy(text->bytes + text->count, bytes, count);
    text->count += count;
    return PD_OK;
}

/* Sets the length to `count` bytes, which must be reserved. */
static inline void pd_string_cut(struct pd_string *text, size_t count)
{
    text->count = count;
}

static inline void pd_string_deinit(struct pd_string *text)
{
    free(text->bytes);
    *text = (struct pd_string){0};
}

struct pd_tokens {
    int32_t *ids; /* (count) owned; NULL until the first is added */
    size_t count, capacity;
};

PD_MUST_USE static inline pd_status pd_tokens_add(struct pd_tokens *tokens, const int32_t *ids, size_t count,
                                                  struct pd_error *err)
{
    if (count > tokens->capacity - tokens->count) {
        const size_t capacity = tokens->capacity + tokens->capacity / 2 + count + 64;
        int32_t *grown = realloc(tokens->ids, capacity * sizeof *grown);
        if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for %zu tokens", capacity);
        tokens->ids = grown;
        tokens->capacity = capacity;
    }
    if (count) memcpy(tokens->ids + tokens->count, ids, count * sizeof *ids);
    tokens->count += count;
    return PD_OK;
}

static inline void pd_tokens_deinit(struct pd_tokens *tokens)
{
    free(tokens->ids);
    *tokens = (struct pd_tokens){0};
}
