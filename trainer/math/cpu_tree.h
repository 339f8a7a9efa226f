/* Aligned binary trees over places of which some hold no term: a node with one child is that child.
 *
 * Terms come by ascending place and wait on a stack. Before the next is pushed, pairs that it cannot come between are added.
 * So any aligned run of places gives a node of the tree, and a stack is at most as deep as the tree.
 *
 *   invariant  of neighbours on the stack, the pair below meets higher up in the tree than the pair above */
#pragma once

#include "trainer/math/simd.h"

#define PD_TREE_DEPTH_MAX 33u /* places are 32 bits */

struct pd_tree_stack {
    uint32_t place[PD_TREE_DEPTH_MAX]; /* some micro-batch of each entry */
    uint32_t depth;
};

/* The top two are to be added before a term of `next` is pushed. */
V16_INLINE bool pd_tree_joins(const struct pd_tree_stack *s, uint32_t next)
{
    return s->depth > 1 && (s->place[s->depth - 2] ^ s->place[s->depth - 1]) < (s->place[s->depth - 1] ^ next);
}
