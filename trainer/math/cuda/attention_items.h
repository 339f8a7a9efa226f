/* What blocks of threads of the attention kernels are dealt: tiles of a head of a sequence, in an order that keeps what several
 * of them read in the second-level cache. */
#pragma once

#include "trainer/math/cuda/attention_place.h"

/* One work item: a tile of a head of a sequence. */
struct pd_attention_item {
    uint32_t sequence, head, tile;
};

/* What tiles of one head read again and again, for as many heads at a time as this, stays in the second-level cache: about
 * half of an H100's, beside what is read once. */
#define PD_ATTENTION_CACHED (24u << 20)

/* Tiles of queries of a query head; tiles of keys that a query head reads; the latter, where the tile before has its turn
 * first. */
enum pd_attention_items { PD_ITEMS_OF_QUERIES, PD_ITEMS_OF_KEYS, PD_ITEMS_OF_TURNS };

/* Tiles of keys of heads that are together, at least: three for each multiprocessor of an H100, so that those with long work
 * of the last heads have begun long before the end. */
#define PD_ATTENTION_ROUND 396u

/* Of `all` heads, how many have their tiles before those of other heads. Of tiles of queries all those of a key-value head,
 * which read the same, of as many as the cache holds. Tiles of keys of a head go over its queries side by side. Where they have
 * turns all heads are together, so that few tiles of a head begin at once and wait. */
PD_DEVICE uint64_t pd_attention_together(const struct pd_attention &a, uint64_t all, uint32_t tiles,
                                         enum pd_attention_items of)
{
    if (of == PD_ITEMS_OF_QUERIES) {
        const uint64_t row = 2 * a.head_size * (a.dtype == PD_F32 ? 4u : 2u);
        const uint64_t heads = PD_ATTENTION_CACHED / (row * a.key_length);
        return (heads > 1 ? heads : 1) * a.group;
    }
    if (of == PD_ITEMS_OF_TURNS) return all;
    const uint64_t rounds = all / ((PD_ATTENTION_ROUND + tiles - 1) / tiles);
    return rounds > 1 ? (all + rounds - 1) / rounds : all;
}

/* Of `tiles` tiles a head. Of heads that are together those with long work first: the last tiles of queries see most keys,
 * the first of keys most queries. */
PD_DEVICE pd_attention_item pd_attention_item_of(const struct pd_attention &a, uint64_t item, uint32_t tiles,
                                                 enum pd_attention_items of)
{
    const uint64_t all = (uint64_t)a.sequences * a.heads, together = pd_attention_together(a, all, tiles, of);
    const uint64_t begin = item / (together * tiles) * together, rest = item - begin * tiles;
    const uint64_t count = all - begin < together ? all - begin : together, which = begin + rest % count;
    const uint32_t tile = (uint32_t)(rest / count);
    return {(uint32_t)(which / a.heads), (uint32_t)(which % a.heads), of == PD_ITEMS_OF_QUERIES ? tiles - 1 - tile : tile};
}

/* What one item is about: `count` keys from `row` of the arrays; a warp has 16 keys from `own`. */
struct pd_keys_place {
    uint32_t sequence, kv, head, tile, count, own;
    uint64_t row;
};

/* Of tiles of `keys` keys. */
PD_DEVICE pd_keys_place pd_keys_place_of(const struct pd_attention &a, uint64_t i, uint32_t keys, uint32_t own,
                                         enum pd_attention_items of = PD_ITEMS_OF_KEYS)
{
    const uint32_t tiles = (a.key_length + keys - 1) / keys;
    const pd_attention_item item = pd_attention_item_of(a, i, tiles, of);
    return {item.sequence,
            (item.head + a.group_offset) / a.group,
            item.head,
            item.tile,
            pd_attention_count(a.key_length, item.tile, keys),
            own,
            (uint64_t)item.sequence * a.key_length + item.tile * keys};
}

static inline uint64_t pd_attention_keys_items(const struct pd_attention *a, uint32_t keys)
{
    return ((uint64_t)a->key_length + keys - 1) / keys * a->sequences * a->heads;
}
