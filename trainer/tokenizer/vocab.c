#include "trainer/tokenizer/vocab.h"

static void vocab_place(struct pd_vocab *vocab, uint32_t id)
{
    const char *text = vocab->text.bytes + vocab->tokens[id].offset;
    uint32_t at = (uint32_t)pd_string_hash(text, vocab->tokens[id].bytes) & vocab->table_mask;
    while (vocab->table[at])
        at = (at + 1) & vocab->table_mask;
    vocab->table[at] = id + 1;
}

static pd_status grow_table(struct pd_vocab *vocab, struct pd_error *err)
{
    const uint32_t slots = vocab->table ? 2 * (vocab->table_mask + 1) : 1024;
    if (vocab->table && 2 * (vocab->count + 1) <= vocab->table_mask) return PD_OK;
    uint32_t *table = calloc(slots, sizeof *table);
    if (!table) PD_FAIL(err, PD_NO_MEMORY, "no memory for a vocabulary of %u tokens", vocab->count);
    free(vocab->table);
    vocab->table = table;
    vocab->table_mask = slots - 1;
    for (uint32_t id = 0; id < vocab->limit; id++)
        if (vocab->tokens[id].bytes != UINT32_MAX) vocab_place(vocab, id);
    return PD_OK;
}

static pd_status grow_ids(struct pd_vocab *vocab, uint32_t id, struct pd_error *err)
{
    uint32_t capacity = vocab->capacity ? vocab->capacity : 1024;
    while (capacity <= id)
        capacity *= 2;
    if (capacity > vocab->capacity) {
        void *grown = realloc(vocab->tokens, capacity * sizeof *vocab->tokens);
        if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for a vocabulary of %u tokens", capacity);
        vocab->tokens = grown;
        vocab->capacity = capacity;
    }
    for (; vocab->limit <= id; vocab->limit++)
        vocab->tokens[vocab->limit].bytes = UINT32_MAX;
    return PD_OK;
}

pd_status pd_vocab_add(struct pd_vocab *vocab, const char *text, size_t bytes, uint64_t id, struct pd_error *err)
{
    if (id >= PD_VOCAB_IDS_MAX)
        PD_FAIL(err, PD_INVALID, "token id %llu is too large; ids are below %u", (unsigned long long)id, PD_VOCAB_IDS_MAX);
    if (bytes > UINT32_MAX / 2 - vocab->text.count) PD_FAIL(err, PD_INVALID, "the tokens' texts are longer than 2 GiB");
    PD_TRY(grow_ids(vocab, (uint32_t)id, err));
    if (vocab->tokens[id].bytes != UINT32_MAX) PD_FAIL(err, PD_INVALID, "two tokens have the id %u", (unsigned)id);
    PD_TRY(grow_table(vocab, err));
    PD_TRY(pd_string_reserve(&vocab->text, bytes + 1, err)); /* allocates even for an empty first token */
    vocab->tokens[id].offset = (uint32_t)vocab->text.count;
    PD_TRY(pd_string_add(&vocab->text, text, bytes, err));
    vocab->tokens[id].bytes = (uint32_t)bytes;
    vocab->count++;
    vocab_place(vocab, (uint32_t)id);
    return PD_OK;
}

void pd_vocab_deinit(struct pd_vocab *vocab)
{
    pd_string_deinit(&vocab->text);
    free(vocab->tokens);
    free(vocab->table);
    *vocab = (struct pd_vocab){0};
}

int32_t pd_vocab_find(const struct pd_vocab *vocab, const char *text, size_t bytes)
{
    if (!vocab->table) return -1;
    for (uint32_t at = (uint32_t)pd_string_hash(text, bytes) & vocab->table_mask; vocab->table[at];
         at = (at + 1) & vocab->table_mask) {
        const uint32_t id = vocab->table[at] - 1;
        if (vocab->tokens[id].bytes == bytes && !memcmp(vocab->text.bytes + vocab->tokens[id].offset, text, bytes))
            return (int32_t)id;
    }
    return -1;
}

const char *pd_vocab_text(const struct pd_vocab *vocab, uint32_t id, size_t *ret_bytes)
{
    if (id >= vocab->limit || vocab->tokens[id].bytes == UINT32_MAX) return NULL;
    *ret_bytes = vocab->tokens[id].bytes;
    return vocab->text.bytes + vocab->tokens[id].offset;
}
