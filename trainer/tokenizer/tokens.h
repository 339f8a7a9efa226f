/* Tokens that grow. */
#pragma once

#include "ckpt/base/status.h"
#include <stdlib.h>
#include <string.h>

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
