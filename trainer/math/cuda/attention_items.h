/* How work is assigned to thread blocks of the attention kernels: tiles of a head of a sequence, in an order that keeps data
 * shared by several of them in the L2 cache. */
#pragma once

#include "trainer/math/cuda/attention_place.h"

/* One work item: a tile of a head of a sequence. */
struct pd_attention_item {
    uint32_t sequence, head, tile;
};

/* Bytes that the tiles of concurrent heads read repeatedly must fit in the L2 cache: about half of an H100's, beside data
 * read once. */
#define PD_ATTENTION_CACHED (24u << 20)

/* Query tiles of a query head; key tiles of a query head; key tiles that each wait for the previous tile's turn. */
enum pd_attention_items { PD_ITEMS_OF_QUERIES, PD_ITEMS_OF_KEYS, PD_ITEMS_OF_TURNS };

/* Least number of key tiles of concurrent heads: three per multiprocessor of an H100, so that the long items of the last
 * heads begin well before the end. */
#define PD_ATTENTION_ROUND 396u

/* How many of `all` heads have their tiles before the tiles of other heads. Query tiles: the heads of a key-value head, which
 * read the same data, for as many as fit the cache. Key tiles of a head go over its queries side by side. With turns: all
 * heads, so that few tiles of a head begin at once and wait. */
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

/* `tiles`: per head. Among concurrent heads, long items come first: the last query tiles see most keys, the first key tiles
 * most queries. */
PD_DEVICE pd_attention_item pd_attention_item_of(const struct pd_attention &a, uint64_t item, uint32_t tiles,
                                                 enum pd_attention_items of)
{
    const uint64_t all = (uint64_t)a.sequences * a.heads, together = pd_attention_together(a, all, tiles, of);
    const uint64_t begin = item / (together * tiles) * together, rest = item - begin * tiles;
    const uint64_t count = all - begin < together ? all - begin : together, which = begin + rest % count;
    const uint32_t tile = (uint32_t)(rest / count);
    return {(uint32_t)(which / a.heads), (uint32_t)(which % a.heads), of == PD_ITEMS_OF_QUERIES ? tiles - 1 - tile : tile};
}

/* The place of one item: `count` keys from `row` of the arrays; a warp has 16 keys from `own`. */
struct pd_keys_place {
    uint32_t sequence, kv, head, tile, count, own;
    uint64_t row;
};

/* keys: per tile. */
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
