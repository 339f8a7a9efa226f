/* Tokens by id and by text.
 *   threads  any, once all tokens are added */
#pragma once

#include "trainer/tokenizer/string_buffer.h"
#include <stdint.h>

#define PD_VOCAB_IDS_MAX (1u << 22) /* upper bound of ids */

struct pd_vocab {
    struct pd_string text; /* of all tokens, concatenated */
    struct {
        uint32_t offset, bytes; /* bytes UINT32_MAX: no such id */
    } * tokens;                 /* (limit) by id */
    uint32_t limit;             /* largest id + 1 */
    uint32_t capacity;
    uint32_t count;
    uint32_t *table; /* (table_mask + 1) id + 1 by hash of the text; 0: free */
    uint32_t table_mask;
};

/* A zeroed vocabulary is empty. PD_INVALID: the id is too large or taken; *text* must be new (pd_vocab_find). */
PD_MUST_USE pd_status pd_vocab_add(struct pd_vocab *vocab, const char *text, size_t bytes, uint64_t id,
                                   struct pd_error *err);
void pd_vocab_deinit(struct pd_vocab *vocab);
int32_t pd_vocab_find(const struct pd_vocab *vocab, const char *text, size_t bytes); /* -1: no such token */
/* Borrowed, not terminated; NULL: no such id. */
const char *pd_vocab_text(const struct pd_vocab *vocab, uint32_t id, size_t *ret_bytes);

/* For short texts in in-memory tables; depends on byte order. */
static inline uint64_t pd_string_hash(const char *text, size_t bytes)
{
    uint64_t hash = bytes * 0x9e3779b97f4a7c15u, word = 0;
    for (; bytes >= sizeof word; text += sizeof word, bytes -= sizeof word) {
        memcpy(&word, text, sizeof word);
        hash = (hash ^ word) * 0xd6e8feb86659fd93u;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, text, bytes);
    hash = (hash ^ word) * 0xd6e8feb86659fd93u;
    return hash ^ hash >> 29;
}
