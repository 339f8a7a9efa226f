/* Byte pair encoding by merges (Sennrich et al. 2016): the adjacent pair of lowest rank merges first, leftmost on ties,
 * until no pair is in the table.
 *
 * Input is UTF-8, or any bytes if the model is byte-level (byte_level.h). An initial symbol is a character in the
 * vocabulary, else its bytes as <0xHH> (byte_fallback), else the unknown token, else nothing.
 *   memory   32 to 64 bytes per merge; a scratch 2 MiB, and 24 bytes per symbol of the longest word so far
 *   threads  a model any, a scratch one at a time */
#pragma once

#include "trainer/tokenizer/vocab.h"

struct pd_merge {
    uint32_t left, right, rank, result; /* result: the token of the joined text */
};

struct pd_bpe_options {
    int32_t unknown; /* -1: none */
    bool fuse_unknown;
    bool byte_fallback;
    bool ignore_merges; /* a word that is a token is not split */
    bool byte_level;
};

struct pd_bpe;
struct pd_bpe_scratch;

/* Borrows vocab, which must outlive the model, and merges (count) until return. If a pair occurs twice, the later merge
 * counts. */
PD_MUST_USE pd_status pd_bpe_new(const struct pd_vocab *vocab, const struct pd_bpe_options *options,
                                 const struct pd_merge *merges, uint32_t count, struct pd_bpe **ret_bpe,
                                 struct pd_error *err);
void pd_bpe_free(struct pd_bpe *bpe);
PD_MUST_USE pd_status pd_bpe_scratch_new(struct pd_bpe_scratch **ret_scratch, struct pd_error *err);
void pd_bpe_scratch_free(struct pd_bpe_scratch *scratch);

/* Appends the tokens of one word (bytes < 2^31). */
PD_MUST_USE pd_status pd_bpe_encode(const struct pd_bpe *bpe, struct pd_bpe_scratch *scratch, const char *text, size_t bytes,
                                    struct pd_tokens *tokens, struct pd_error *err);

/* The table of merges, and merging of one word's symbols.
 *   threads  a table any, a scratch one at a time */
struct pd_merge_table;

struct pd_merge_scratch {
    uint32_t *symbols;         /* (count) tokens of the word, before and after pd_merge_all; bpe.c writes them too */
    uint32_t *ranks, *results; /* (capacity) for the pair that begins at a symbol; rank UINT32_MAX: none */
    uint32_t *previous, *next; /* (capacity) neighbours, for long words */
    uint64_t *heap;            /* (heap_capacity) rank << 32 | position */
    size_t count, capacity, heap_count, heap_capacity;
};

PD_MUST_USE pd_status pd_merge_table_new(const struct pd_merge *merges, uint32_t count, struct pd_merge_table **ret_table,
                                         struct pd_error *err);
void pd_merge_table_free(struct pd_merge_table *table);
bool pd_merge_table_has(const struct pd_merge_table *table, uint32_t left, uint32_t right);
PD_MUST_USE pd_status pd_merge_reserve(struct pd_merge_scratch *scratch, size_t symbols, struct pd_error *err);
void pd_merge_scratch_deinit(struct pd_merge_scratch *scratch);
PD_MUST_USE pd_status pd_merge_all(const struct pd_merge_table *table, struct pd_merge_scratch *scratch,
                                   struct pd_error *err);
