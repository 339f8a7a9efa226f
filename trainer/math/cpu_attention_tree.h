/* Sums dK and dV over query heads in a binary tree with keyed places; not every place need have a term.
 *
 * A term's key is (place of its chunk, query head inside the chunk), read as one number: a leaf of one aligned binary tree.
 * The lower half of the tree orders heads inside a chunk, the upper half orders chunks. A node with one child is that child.
 * So a rank that holds an aligned run of chunks holds a node of the tree, and does exactly the additions that one rank alone
 * would do.
 *
 *   invariant  of neighbours in the stack, the lower pair meets higher up in the tree than the upper pair, so the stack is
 *              as deep as the tree (tree_levels) */
#pragma once

#include "trainer/math/cpu_attention_block.h"

#define LEVELS_MAX 8u
_Static_assert(PD_CPU_HEAD_GROUP_MAX <= 1u << (LEVELS_MAX - 2), "a tree fits its levels");

struct tree {
    float *entries;
    uint64_t entry;           /* floats, a multiple of 16: dK then dV */
    uint64_t key[LEVELS_MAX]; /* some leaf of each entry */
    uint32_t depth;
};

static inline void tree_merge_top(struct tree *t)
{
    float *to = t->entries + (t->depth - 2) * t->entry, *from = to + t->entry;
    for (uint64_t i = 0; i < t->entry; i += 16)
        v16_store(to + i, v16_add(v16_load(to + i), v16_load(from + i)));
    t->depth--;
}

/* Pushes a new zeroed term. Keys must ascend. First adds up all entries that no later key can come between. */
static inline float *tree_push(struct tree *t, uint64_t key)
{
    while (t->depth > 1 && (t->key[t->depth - 2] ^ t->key[t->depth - 1]) < (t->key[t->depth - 1] ^ key))
        tree_merge_top(t);
    PD_CHECK(t->depth < LEVELS_MAX);
    float *entry = t->entries + t->depth * t->entry;
    memset(entry, 0, t->entry * sizeof *entry);
    t->key[t->depth++] = key;
    return entry;
}

/* Adds up everything; the result is in `entries`. */
static inline void tree_finish(struct tree *t)
{
    while (t->depth > 1)
        tree_merge_top(t);
}

/* Query head `index` of key-value head `kv`. */
V16_INLINE uint64_t tree_key(const struct pd_attention *a, uint32_t kv, uint32_t index)
{
    uint32_t place = index / a->head_chunk, begin = heads_begin(a, kv);
    uint32_t first = begin > place * a->head_chunk ? begin : place * a->head_chunk;
    return (uint64_t)place << 32 | (index - first);
}

/* Most entries that a key-value head needs: floor(log2(heads)) + 1, and one more if its heads cross a chunk border. */
static inline uint32_t tree_levels(const struct pd_attention *a)
{
    uint32_t levels = a->head_chunk < a->heads ? 1 : 0;
    for (uint32_t heads = a->group < a->heads ? a->group : a->heads; heads > 0; heads /= 2)
        levels++;
    return levels;
}
