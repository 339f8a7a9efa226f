#include "trainer/tokenizer/bpe_joins.h"

#include "trainer/tokenizer/unicode.h"

#define FREE UINT64_MAX
#define ASCII 128u

struct pd_joins {
    bool ascii[ASCII][ASCII];
    uint64_t *pairs; /* (mask + 1) first << 32 | second; FREE */
    uint64_t mask;
};

static uint64_t *pair_of(const struct pd_joins *joins, uint32_t first, uint32_t second)
{
    const uint64_t pair = (uint64_t)first << 32 | second;
    uint64_t at = (pair * 0x9e3779b97f4a7c15u >> 32) & joins->mask;
    while (joins->pairs[at] != FREE && joins->pairs[at] != pair)
        at = (at + 1) & joins->mask;
    return &joins->pairs[at];
}

static void add_merge(struct pd_joins *joins, const struct pd_vocab *vocab, const struct pd_merge *merge)
{
    size_t left_bytes = 0, right_bytes = 0;
    unsigned length;
    const char *left = pd_vocab_text(vocab, merge->left, &left_bytes);
    const char *right = pd_vocab_text(vocab, merge->right, &right_bytes);
    if (!left || !right || !left_bytes || !right_bytes) return;
    const uint32_t first = pd_unicode_at(left + left_bytes - pd_unicode_last_bytes(left, left_bytes), &length);
    const uint32_t second = pd_unicode_at(right, &length);
    if (first < ASCII && second < ASCII) joins->ascii[first][second] = true;
    *pair_of(joins, first, second) = (uint64_t)first << 32 | second;
}

pd_status pd_joins_new(const struct pd_vocab *vocab, const struct pd_merge *merges, uint32_t count,
                       struct pd_joins **ret_joins, struct pd_error *err)
{
    struct pd_joins *joins = calloc(1, sizeof *joins);
    if (!joins) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u merges", count);
    for (joins->mask = 255; joins->mask < 2ull * count;)
        joins->mask = 2 * joins->mask + 1;
    joins->pairs = malloc((joins->mask + 1) * sizeof *joins->pairs);
    if (!joins->pairs) {
        free(joins);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %u merges", count);
    }
    memset(joins->pairs, 0xff, (joins->mask + 1) * sizeof *joins->pairs);
    for (uint32_t i = 0; i < count; i++)
        add_merge(joins, vocab, &merges[i]);
    *ret_joins = joins;
    return PD_OK;
}

void pd_joins_free(struct pd_joins *joins)
{
    if (!joins) return;
    free(joins->pairs);
    free(joins);
}

size_t pd_joins_cut(const struct pd_joins *joins, const char *text, size_t bytes)
{
    unsigned length;
    uint32_t before = pd_unicode_at(text, &length);
    for (size_t at = length; at < bytes; at += length) {
        const uint32_t code = pd_unicode_at(text + at, &length);
        const bool joined =
            before < ASCII && code < ASCII ? joins->ascii[before][code] : *pair_of(joins, before, code) != FREE;
        if (!joined) return at;
        before = code;
    }
    return bytes;
}
