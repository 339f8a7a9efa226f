/* The frame of attention's passes for compute capability 9.0: the structure of a block, the loading of tiles, and the loop
 * of a warpgroup that stays at 64 queries over the keys they see.
 *
 *   invariant  when a step begins, only the previous step's products into the staying sums may be in flight */
#pragma once

#include "trainer/math/cuda/attention_rows.h"
#include "trainer/math/cuda/attention_wgmma.h"

#define PD_CONSUMERS 2u
#define PD_STAY (PD_CONSUMERS * 64u) /* positions that a block stays at */
#define PD_WIDE_THREADS ((PD_CONSUMERS + 1) * PD_WARPGROUP)
#define PD_WIDE_SHARED (232448u - 1024u) /* per block on compute capability 9.0, less the alignment of tiles to 1,024 */

/* Registers of a thread at start, a multiple of 8, within the register file; then of a loading and of a multiplying thread.
 */
#define PD_WIDE_START 168u
#define PD_WIDE_PRODUCER 56u
#define PD_WIDE_CONSUMER 224u
static_assert(PD_WIDE_PRODUCER + PD_CONSUMERS * PD_WIDE_CONSUMER <= (PD_CONSUMERS + 1) * PD_WIDE_START,
              "a consumer would wait for registers for ever");

/* Number of this thread's consumer, from 0. The shuffle tells the compiler that it is uniform in a warp, so it builds matrix
 * descriptors once, not for each product of each thread. */
PD_DEVICE uint32_t pd_consumer()
{
    return __shfl_sync(PD_WARP_ALL, threadIdx.x / PD_WARPGROUP, 0) - 1;
}

/* ---- items ---- */

/* Blocks, one per multiprocessor, take items as they become free. `begun`, in device memory, counts items; the last block
 * that finds none left resets it to 0 for the stream's next kernel (pd_queue_next). Results do not depend on which block
 * takes an item. */
struct pd_wide_queue {
    uint32_t *begun, items;
};

/* Passes items from the loading warp to the consumers. It requests the next item once it has requested the last tiles of
 * one, so that as many steps as there are stages remain: empty -> (item written) full -> (read by each warp) empty */
struct pd_wide_hand {
    uint64_t full, empty;
    uint32_t item; /* not below the queue's items: none left */
};

/* Consumers: do_item(item) for each item. For the shuffle see pd_consumer. */
template <typename DO> PD_DEVICE void pd_wide_take(const pd_wide_queue &queue, pd_wide_hand &hand, const DO &do_item)
{
    for (uint32_t parity = 0;; parity ^= 1) {
        pd_barrier_wait(&hand.full, parity);
        const uint32_t item = __shfl_sync(PD_WARP_ALL, hand.item, 0);
        pd_wide_emptied(&hand.empty);
        if (item >= queue.items) return;
        do_item(item);
    }
}

/* The same for the warp that loads tiles. */
template <typename DO> PD_DEVICE void pd_wide_give(const pd_wide_queue &queue, pd_wide_hand &hand, const DO &do_item)
{
    for (uint32_t parity = 1;; parity ^= 1) {
        uint32_t item = threadIdx.x == 0 ? pd_queue_next(queue.begun, queue.items) : 0;
        item = __shfl_sync(PD_WARP_ALL, item, 0);
        pd_barrier_wait(&hand.empty, parity);
        if (threadIdx.x == 0) {
            hand.item = item;
            pd_barrier_arrive(&hand.full);
        }
        if (item >= queue.items) return;
        do_item(item);
    }
}

/* Runs all work of a block: `fulls` barriers from `full` on, `empties` from `empty` on. One warp calls produce(item) to load
 * tiles; consumers call consume(hand) to multiply. */
template <typename PRODUCE, typename CONSUME>
PD_DEVICE void pd_wide_block(const pd_wide_queue &queue, uint64_t *full, uint32_t fulls, uint64_t *empty, uint32_t empties,
                             const PRODUCE &produce, const CONSUME &consume)
{
    PD_SHARED(pd_wide_hand, hand, [1]);
    if (threadIdx.x == 0) {
        pd_barriers_init(full, fulls, 1);
        pd_barriers_init(empty, empties, PD_CONSUMERS * 4);
        pd_barrier_init(&hand->full, 1);
        pd_barrier_init(&hand->empty, PD_CONSUMERS * 4);
        pd_barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < PD_WARPGROUP) {
        pd_registers_give<PD_WIDE_PRODUCER>();
        if (threadIdx.x < 32) pd_wide_give(queue, *hand, produce);
    } else {
        pd_registers_take<PD_WIDE_CONSUMER>();
        consume(*hand);
    }
}

/* Progress of a thread: the parity of items with steps, and the next step's stage. */
struct pd_wide_progress {
    uint32_t round;
    pd_ring ring;
};

/* ---- turns ---- */

/* Consumers start products in turns: one multiplies while others compute exponentials. */
PD_DEVICE void pd_turn_take(uint32_t consumer)
{
    pd_group_sync(1 + consumer, 2 * PD_WARPGROUP);
}

PD_DEVICE void pd_turn_give(uint32_t consumer)
{
    pd_group_arrive(1 + (consumer + 1 == PD_CONSUMERS ? 0 : consumer + 1), 2 * PD_WARPGROUP);
}

/* Call before the first turn and after the last: consumer 0 has the first, and also the one left over. */
PD_DEVICE void pd_turns_begin(uint32_t consumer)
{
    if (consumer == PD_CONSUMERS - 1) pd_turn_give(consumer);
}

PD_DEVICE void pd_turns_end(uint32_t consumer)
{
    if (consumer == 0) pd_turn_take(consumer);
}

/* ---- tensor maps for loading ---- */

struct pd_wide_maps {
    pd_tensor_map q, k, v, dout;
};

/* dout: NULL in forward. */
static inline pd_status pd_wide_maps_make(const pd_attention *a, const void *dout, pd_wide_maps *maps, struct pd_error *err)
{
    const uint64_t queries = (uint64_t)a->heads * a->head_size, keys = (uint64_t)a->kv_heads * a->head_size;
    PD_TRY(pd_tensor_map_make(&maps->q, a->q, queries, a->ld_qkv, a->length, a->sequences, err));
    PD_TRY(pd_tensor_map_make(&maps->k, a->k, keys, a->ld_kv, a->key_length, a->sequences, err));
    PD_TRY(pd_tensor_map_make(&maps->v, a->v, keys, a->ld_kv, a->key_length, a->sequences, err));
    return dout ? pd_tensor_map_make(&maps->dout, dout, queries, queries, a->length, a->sequences, err) : PD_OK;
}

/* ---- blocks that stay at queries ---- */

struct pd_wide_place {
    uint32_t sequence, head, kv, row, count; /* queries of the item, from `row` of the sequence; `count` exist */
    uint32_t first;                          /* first key visible to the last of them */
    pd_attention_span seen;                  /* steps of keys */
};

template <uint32_t KEYS> PD_DEVICE pd_wide_place pd_wide_place_of(const pd_attention &a, uint64_t i)
{
    constexpr uint32_t stay = PD_CONSUMERS * 64;
    const uint32_t tiles = (a.length + stay - 1) / stay;
    const pd_attention_item item = pd_attention_item_of(a, i, tiles, PD_ITEMS_OF_QUERIES);
    const uint32_t row = item.tile * stay, count = pd_attention_count(a.length, item.tile, stay);
    return {item.sequence,
            item.head,
            (item.head + a.group_offset) / a.group,
            row,
            count,
            pd_attention_first(a, item.sequence, row + count - 1),
            pd_attention_keys_seen(a, item.sequence, row, count, KEYS)};
}

static inline uint64_t pd_wide_items(const pd_attention *a)
{
    return ((uint64_t)a->length + PD_STAY - 1) / PD_STAY * a->sequences * a->heads;
}

/* Launches kernel(a, maps, queue, more...). dout: NULL in forward. */
template <typename KERNEL, typename... MORE>
pd_status pd_wide_launch(struct pd_error *err, const char *name, KERNEL kernel, size_t tiles_bytes, void *stream,
                         const pd_attention *a, const void *dout, uint64_t items, uint32_t *begun, MORE... more)
{
    pd_wide_maps maps = {};
    uint32_t blocks;
    PD_CHECK(begun && items < UINT32_MAX / 2);
    PD_TRY(pd_multiprocessors(&blocks, err));
    PD_TRY(pd_wide_maps_make(a, dout, &maps, err));
    if (items < blocks) blocks = static_cast<uint32_t>(items);
    const pd_wide_queue queue = {begun, static_cast<uint32_t>(items)};
    return pd_cuda_launch(err, name, kernel, blocks, (PD_CONSUMERS + 1) * PD_WARPGROUP, tiles_bytes + 1024, stream, *a, maps,
                          queue, more...);
}

/* See pd_attention_cut. */
PD_DEVICE bool pd_wide_cut(const pd_attention &a, const pd_wide_place &p, uint32_t k, uint32_t keys)
{
    const uint32_t key = a.key_start + k;
    return k + keys > a.key_length || key + keys - 1 > a.query_start + p.row || p.first > key;
}

/* This warp's 16 queries. */
PD_DEVICE pd_query_rows pd_wide_own_of(const pd_attention &a, const pd_wide_place &p)
{
    return pd_query_rows_of(a, p.sequence, p.head, p.row, p.count, (threadIdx.x / 32 - 4) * 16);
}

template <bool B> struct pd_constant {
    static constexpr bool value = B;
};

/* Loops over steps of keys, passing the stages of each step and of the one before; the first step is marked. `last` gets the
 * last stage. `ring`: stage of the first step; on return of the next item's. */
template <uint32_t STAGES, typename STEP, typename LAST>
PD_DEVICE void pd_wide_walk(const pd_attention_span &seen, pd_ring &ring, const STEP &step, const LAST &last)
{
    pd_ring before = ring;
    if (seen.begin >= seen.end) return;
    step(pd_constant<true>(), seen.begin, ring, before);
    for (uint32_t kb = seen.begin + 1; kb < seen.end; kb++) {
        before = ring;
        pd_ring_next<STAGES>(ring);
        step(pd_constant<false>(), kb, ring, before);
    }
    last(ring);
    pd_ring_next<STAGES>(ring);
}
