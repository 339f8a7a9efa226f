/* Bytes that grow, up to 1 GiB. */
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
