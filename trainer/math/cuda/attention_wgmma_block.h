/* The frame of attention's passes for compute capability 9.0: how a block is made up, what tiles it is brought, and how a
 * warpgroup that stays at 64 queries walks over the keys that they see.
 *
 *   invariant  of a step only the products into the sums that stay are on their way when the next begins */
#ifndef PD_TRAINER_MATH_CUDA_ATTENTION_WGMMA_BLOCK_H
#define PD_TRAINER_MATH_CUDA_ATTENTION_WGMMA_BLOCK_H

#include "trainer/math/cuda/attention_wgmma.h"

#define PD_CONSUMERS 2u
#define PD_STAY (PD_CONSUMERS * 64u) /* positions that a block stays at */
#define PD_WIDE_THREADS ((PD_CONSUMERS + 1) * PD_WARPGROUP)

/* The consumer, from 0, that this thread is of. */
PD_DEVICE uint32_t pd_consumer()
{
    return threadIdx.x / PD_WARPGROUP - 1;
}

/* All of a block's work: `fulls` barriers from `full` on, `empties` from `empty` on; one warp brings tiles, consumers
 * multiply. */
template <typename PRODUCE, typename CONSUME>
PD_DEVICE void pd_wide_block(uint64_t *full, uint32_t fulls, uint64_t *empty, uint32_t empties, const PRODUCE &produce,
                             const CONSUME &consume)
{
    if (threadIdx.x == 0) {
        pd_barriers_init(full, fulls, 1);
        pd_barriers_init(empty, empties, PD_CONSUMERS * 4);
        pd_barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < PD_WARPGROUP) {
        pd_registers_give<PD_PRODUCER_REGISTERS>();
        if (threadIdx.x < 32) produce();
    } else {
        pd_registers_take<PD_CONSUMER_REGISTERS>();
        consume();
    }
}

/* ---- what tiles are brought from ---- */

struct pd_wide_maps {
    pd_tensor_map q, k, v, dout;
};

/* Of a head in one sequence. */
template <int D>
PD_DEVICE pd_wide_source pd_wide_q(const pd_attention &a, const pd_wide_maps &maps, uint32_t sequence, uint32_t head)
{
    return {&maps.q, (const uint16_t *)a.q, a.ld_qkv, a.length, sequence, head * D};
}

template <int D>
PD_DEVICE pd_wide_source pd_wide_dout(const pd_attention &a, const pd_wide_maps &maps, uint32_t sequence, uint32_t head)
{
    return {&maps.dout, (const uint16_t *)a.dout, (uint64_t)a.heads * D, a.length, sequence, head * D};
}

template <int D>
PD_DEVICE pd_wide_source pd_wide_k(const pd_attention &a, const pd_wide_maps &maps, uint32_t sequence, uint32_t kv)
{
    return {&maps.k, (const uint16_t *)a.k, a.ld_kv, a.key_length, sequence, kv * D};
}

template <int D>
PD_DEVICE pd_wide_source pd_wide_v(const pd_attention &a, const pd_wide_maps &maps, uint32_t sequence, uint32_t kv)
{
    return {&maps.v, (const uint16_t *)a.v, a.ld_kv, a.key_length, sequence, kv * D};
}

/* dout: NULL in forward. Not wide: there are none. */
static inline pd_status pd_wide_maps_make(const pd_attention *a, const void *dout, bool wide, pd_wide_maps *maps,
                                          struct pd_error *err)
{
    const uint64_t queries = (uint64_t)a->heads * a->head_size, keys = (uint64_t)a->kv_heads * a->head_size;
    if (!wide) return PD_OK;
    PD_TRY(pd_tensor_map_make(&maps->q, a->q, queries, a->ld_qkv, a->length, a->sequences, err));
    PD_TRY(pd_tensor_map_make(&maps->k, a->k, keys, a->ld_kv, a->key_length, a->sequences, err));
    PD_TRY(pd_tensor_map_make(&maps->v, a->v, keys, a->ld_kv, a->key_length, a->sequences, err));
    return dout ? pd_tensor_map_make(&maps->dout, dout, queries, queries, a->length, a->sequences, err) : PD_OK;
}

/* ---- blocks that stay at queries ---- */

struct pd_wide_place {
    uint32_t sequence, head, kv, row, count; /* queries of the block, from `row` of the sequence; `count` are there */
    pd_attention_span seen;                  /* steps of keys */
};

template <uint32_t KEYS> PD_DEVICE pd_wide_place pd_wide_place_of(const pd_attention &a)
{
    const uint32_t tiles = (a.length + PD_STAY - 1) / PD_STAY;
    const pd_attention_item item = pd_attention_item_of(blockIdx.x, a.sequences, a.heads, tiles, true);
    const uint32_t row = item.tile * PD_STAY, count = pd_attention_count(a.length, item.tile, PD_STAY);
    return {item.sequence, item.head, (item.head + a.group_offset) / a.group,
            row,           count,     pd_attention_keys_seen(a, item.sequence, row, count, KEYS)};
}

static inline uint64_t pd_wide_items(const pd_attention *a)
{
    return ((uint64_t)a->length + PD_STAY - 1) / PD_STAY * a->sequences * a->heads;
}

/* A warp's 16 queries, from `row` of the sequence, q_row of the arrays; `count` of them are there. */
struct pd_wide_own {
    uint32_t row, count;
    uint64_t q_row;
};

PD_DEVICE pd_wide_own pd_wide_own_of(const pd_attention &a, const pd_wide_place &p)
{
    const uint32_t own = (threadIdx.x / 32 - 4) * 16;
    return {p.row + own, p.count > own ? p.count - own : 0, (uint64_t)p.sequence * a.length + p.row + own};
}

template <bool B> struct pd_constant {
    static constexpr bool value = B;
};

/* Steps of keys, each with the stage that it is in and that of the step before; the first says so. `last` gets the last's.
 */
template <uint32_t STAGES, typename STEP, typename LAST>
PD_DEVICE void pd_wide_walk(const pd_attention_span &seen, const STEP &step, const LAST &last)
{
    pd_ring now = {0, 0}, before = {0, 0};
    if (seen.begin >= seen.end) return;
    step(pd_constant<true>(), seen.begin, now, before);
    for (uint32_t kb = seen.begin + 1; kb < seen.end; kb++) {
        before = now;
        pd_ring_next<STAGES>(now);
        step(pd_constant<false>(), kb, now, before);
    }
    last(now);
}

#endif
