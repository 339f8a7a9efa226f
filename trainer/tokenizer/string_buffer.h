/* Bytes that grow, up to 1 GiB, and tokens that grow. */
#pragma once

#include "ckpt/base/status.h"
#include <stdlib.h>
#include <string.h>

#define PD_STRING_BYTES_MAX (1u << 30)
/* What steps that replace may make of a text of so many bytes: a chain of them could make gigabytes of a line. */
#define PD_STRING_GROWN_MAX(bytes) (64 * (size_t)(bytes) + (1u << 20))

struct pd_string {
    char *bytes; /* owned; NULL while nothing was reserved */
    size_t count, capacity;
};

/* Room for `more` bytes behind those that there are. */
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

/* `count` bytes from the start are the text now; they are reserved. */
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
    int32_t *ids; /* (count) owned; NULL while there was none */
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
