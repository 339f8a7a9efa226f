/* The table of merges, and merging the symbols of one word.
 *   threads  a table any, a scratch one at a time */
#pragma once

#include "trainer/tokenizer/bpe.h"

struct pd_merge_table;

struct pd_merge_scratch {
    uint32_t *symbols;         /* (count) tokens of the word: before, and after pd_merge_all; written by bpe.c too */
    uint32_t *ranks, *results; /* (capacity) of the pair that begins at a symbol; rank UINT32_MAX: none */
    uint32_t *previous, *next; /* (capacity) neighbours, for long words */
    uint64_t *heap;            /* (heap_capacity) rank << 32 | position */
    size_t count, capacity, heap_count, heap_capacity;
};

PD_MUST_USE pd_status pd_merge_table_new(const struct pd_merge *merges, uint32_t count, struct pd_merge_table **ret_table,
                                         struct pd_error *err);
void pd_merge_table_free(struct pd_merge_table *table);
PD_MUST_USE pd_status pd_merge_reserve(struct pd_merge_scratch *scratch, size_t symbols, struct pd_error *err);
void pd_merge_scratch_deinit(struct pd_merge_scratch *scratch);
PD_MUST_USE pd_status pd_merge_all(const struct pd_merge_table *table, struct pd_merge_scratch *scratch,
                                   struct pd_error *err);
