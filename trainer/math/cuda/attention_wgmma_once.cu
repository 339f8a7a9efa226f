/* Causal attention, backward in one pass, for compute capability 9.0: the formulas of attention_pair.h with 5 products
 * instead of 7. A block stays at 128 keys of one query head, 64 per warpgroup, and tiles of 64 queries pass by. A step is
 * that of attention_wgmma_keys.cu, and then
 *
 *   dS^T of both warpgroups -> shared memory -> dQ += dS K over the block's 128 keys
 *
 * dQ of a tile is one chain over ascending keys, continued from block to block. Its sum is in memory, in the layout of a
 * warpgroup's registers. The block with the first keys that the tile sees starts it; that with the last stores dQ. `counts`
 * is the number of blocks that had their turn. So sums have the same steps, and bits, as in the queries pass.
 *
 *   invariant  a block waits only for blocks of lower keys of its head, which the queue issued earlier (PD_ITEMS_OF_TURNS),
 *              and which never wait for it: the first unfinished item waits for none
 *   heads of 64   warpgroups compute dQ in turns, for all columns: one even tiles, one odd ones
 *   heads of 128  each computes dQ for half of the columns */
#include "trainer/math/cuda/attention_wgmma_pair.h"

#define SHARE_FLOATS (QUERIES * 64u) /* dQ that a warpgroup has in registers */

template <int D> struct once_tiles {
    static constexpr uint32_t stages = D == 64 ? 3 : 2;
    pd_wide_tile<D, 64> k[PD_CONSUMERS], v[PD_CONSUMERS], out[PD_CONSUMERS];
    pd_wide_tile<D, QUERIES> q[stages], dout[stages];
    pd_wide_tile<QUERIES, 64> ds[2][PD_CONSUMERS]; /* [tile % 2]: rows are keys */
    keys_rows rows[stages];
    uint64_t stays_full, full[stages], stays_empty, empty[stages];
};

static_assert(sizeof(once_tiles<128>) <= PD_WIDE_SHARED && sizeof(once_tiles<64>) <= PD_WIDE_SHARED, "too much");

/* Partial sums of dQ: SHARE_FLOATS and four counts, one per warp, for each share of a tile of a query head. */
struct once_turns {
    float4 *sums;
    uint32_t *counts;
};

/* This warp's share of dQ of a tile. */
struct once_share {
    float4 *sums; /* [piece][thread of the warpgroup] */
    uint32_t *count, turn;
    bool last;
};

template <int D>
PD_DEVICE once_share once_share_of(const pd_attention &a, const pd_keys_place &p, uint32_t tile, uint32_t first_key,
                                   uint32_t box, const once_turns &turns)
{
    const uint32_t tiles = (a.length + QUERIES - 1) / QUERIES;
    const uint64_t head = (uint64_t)p.sequence * a.heads + p.head, share = (head * tiles + tile) * (D / 64) + box;
    return {turns.sums + share * (SHARE_FLOATS / 4) + threadIdx.x % PD_WARPGROUP,
            turns.counts + share * 4 + threadIdx.x / 32 % 4, p.tile - first_key / KEYS, p.tile == tile * QUERIES / KEYS};
}

/* Waits for the turn and loads the sum of the blocks before. */
PD_DEVICE void once_take(const once_share &share, float (&dq)[8][4])
{
    pd_fragment_zero(dq);
    if (share.turn == 0) return;
    if ((threadIdx.x & 31u) == 0) pd_count_wait(share.count, share.turn);
    __syncwarp();
#pragma unroll
    for (uint32_t n = 0; n < 8; n++) {
        const float4 sum = share.sums[n * PD_WARPGROUP];
        dq[n][0] = sum.x;
        dq[n][1] = sum.y;
        dq[n][2] = sum.z;
        dq[n][3] = sum.w;
    }
}

PD_DEVICE void once_leave(const once_share &share, const float (&dq)[8][4])
{
#pragma unroll
    for (uint32_t n = 0; n < 8; n++)
        share.sums[n * PD_WARPGROUP] = make_float4(dq[n][0], dq[n][1], dq[n][2], dq[n][3]);
    __syncwarp();
    if ((threadIdx.x & 31u) == 0) pd_count_say(share.count, share.turn + 1);
}

template <enum pd_dtype T, int D>
PD_DEVICE void once_finish(const pd_attention &a, const pd_keys_place &p, uint32_t tile, uint32_t box,
                           const float (&dq)[8][4], uint16_t *scratch)
{
    const uint32_t row = tile * QUERIES + threadIdx.x / 32 % 4 * 16;
    const float scale[2] = {a.scale, a.scale};
    const uint64_t at = ((uint64_t)p.sequence * a.length + row) * a.ld_dq + p.head * D + box * 64;
    __syncwarp();
    pd_fragments_store<T, 64>(dq, scale, scratch, 0, (uint16_t *)a.dq + at, a.ld_dq, row < a.length ? a.length - row : 0);
}

/* dS^T of this warp's 16 keys, packed by pd_wide_pack. */
PD_DEVICE void once_put(pd_wide_tile<QUERIES, 64> &ds, const uint32_t (&packed)[QUERIES / 16][4])
{
    const uint32_t row = threadIdx.x / 32 % 4 * 16 + pd_fragment_row(0);
#pragma unroll
    for (uint32_t k = 0; k < QUERIES / 16; k++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t r = row + i % 2 * 8, chunk = (2 * k + i / 2) ^ (r & 7u);
            *(uint32_t *)(ds.data + r * 64 + chunk * 8 + pd_fragment_column()) = packed[k][i];
        }
}

/* dQ (64 queries, 64 columns of box `box`) += dS K over the block's keys. */
template <enum pd_dtype T, int D>
PD_DEVICE void once_apply(float (&dq)[8][4], once_tiles<D> &t, uint32_t buffer, uint32_t box)
{
    pd_wgmma_pin(dq);
    pd_wgmma_fence();
#pragma unroll
    for (uint32_t group = 0; group < PD_CONSUMERS; group++)
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            pd_wgmma_down<T>(dq, pd_down(t.ds[buffer][group], k),
                             pd_describe(t.k[group].data + box * (64 * 64), 64 * 128) + ((k * 16 * 128) >> 4));
    pd_wgmma_commit();
    pd_wgmma_wait<0>();
    pd_wgmma_pin(dq);
}

/* For a tile, once this warpgroup's dS is in shared memory. */
template <enum pd_dtype T, int D>
PD_DEVICE void once_queries(const pd_attention &a, const pd_keys_place &p, uint32_t tile, uint32_t first_key, uint32_t group,
                            once_tiles<D> &t, const once_turns &turns)
{
    const uint32_t box = D == 64 ? 0 : group, owner = D == 64 ? tile % 2 : group;
    float dq[8][4];
    if (owner != group) return pd_turn_give(group);
    const once_share share = once_share_of<D>(a, p, tile, first_key, box, turns);
    once_take(share, dq);
    if (D == 64)
        pd_turn_take(group);
    else
        pd_group_sync(1, PD_CONSUMERS * PD_WARPGROUP);
    once_apply<T, D>(dq, t, tile % 2, box);
    if (share.last)
        once_finish<T, D>(a, p, tile, box, dq, pd_wide_scratch(t.out[group]));
    else
        once_leave(share, dq);
}

template <enum pd_dtype T, int D>
PD_DEVICE void once_step(const pd_attention &a, const pd_keys_place &p, uint32_t tile, const pd_ring &ring, once_tiles<D> &t,
                         keys_state<D> &s, const once_turns &turns)
{
    const uint32_t r = tile * QUERIES, stage = ring.stage, key = p.tile * KEYS + p.own + pd_fragment_row(0);
    const keys_rows &rows = t.rows[stage];
    float x[PIECES][4], dp[PIECES][4];
    uint32_t operand[QUERIES / 16][4], gradient[QUERIES / 16][4];
    pd_barrier_wait(&t.full[stage], ring.parity);
    const uint32_t first_key = rows.first[0];
    keys_products<T>(s, stage, t, x, dp);
    pd_wgmma_wait<1>();
    pd_wgmma_pin(x);
    keys_weights(rows, a.scale * PD_LOG2_E, x);
    if (keys_cut(a, p, r, rows)) keys_mask(rows, key, r, x);
    pd_wide_pack<T>(operand, x);
    pd_wgmma_wait<0>();
    pd_wgmma_pin(dp);
    pd_wgmma_pin(s.sums.dv[0]);
    pd_wgmma_fence();
    pd_wide_apply<T>(s.sums.dv[0], operand, t.dout[stage]);
    pd_wgmma_commit();
    keys_gradients(rows, x, dp);
    pd_wide_pack<T>(gradient, dp);
    pd_wgmma_pin(s.sums.dk[0]);
    pd_wgmma_fence();
    pd_wide_apply<T>(s.sums.dk[0], gradient, t.q[stage]);
    pd_wgmma_commit();
    once_put(t.ds[tile % 2][s.group], gradient);
    pd_async_fence();
    pd_wgmma_wait<0>();
    pd_wgmma_pin(s.sums.dv[0]);
    pd_wgmma_pin(s.sums.dk[0]);
    pd_wide_emptied(&t.empty[stage]);
    once_queries<T, D>(a, p, tile, first_key, s.group, t, turns);
}

template <enum pd_dtype T, int D>
PD_DEVICE void once_consume(const pd_attention &a, const pd_keys_place &p, uint32_t group, pd_wide_progress &done,
                            once_tiles<D> &t, const once_turns &turns)
{
    const pd_attention_span seeing = pd_attention_queries_seeing(a, p.sequence, p.tile * KEYS, p.count, QUERIES);
    keys_state<D> s;
    s.group = group;
    pd_barrier_wait(&t.stays_full, done.round);
    done.round ^= 1;
    if constexpr (keys_hold<D>) {
        pd_wide_rows<D>(s.k, t.k[group]);
        pd_wide_rows<D>(s.v, t.v[group]);
    }
    pd_fragments_zero(s.sums.dk);
    pd_fragments_zero(s.sums.dv);
    for (uint32_t tile = seeing.begin; tile < seeing.end; tile++) {
        once_step<T, D>(a, p, tile, done.ring, t, s, turns);
        pd_ring_next<once_tiles<D>::stages>(done.ring);
    }
    pd_wide_emptied(&t.stays_empty); /* by both before the next keys come, so dS is read no more either */
    uint16_t *const scratch = pd_wide_scratch(t.out[group]);
    if (a.last_part)
        keys_finish<T, D>(a, p, s.sums, scratch, scratch);
    else
        keys_carry<D>(a, p, s.sums, false);
}

template <enum pd_dtype T, int D>
static __global__ void __launch_bounds__(PD_WIDE_THREADS, 1)
    attention_once_wgmma(const pd_attention a, const __grid_constant__ pd_wide_maps maps, const pd_wide_queue queue,
                         const once_turns turns)
{
    PD_SHARED_DYNAMIC(shared);
    once_tiles<D> &t = pd_wide_tiles<once_tiles<D>>(shared);
    pd_wide_progress done = {0, {0, 0}};
    const auto place = [&](uint32_t i, uint32_t own) { return pd_keys_place_of(a, i, KEYS, own, PD_ITEMS_OF_TURNS); };
    const auto produce = [&](uint32_t i) { keys_produce<D>(a, maps, place(i, 0), done, t); };
    const auto consume = [&](pd_wide_hand &hand) {
        const uint32_t group = pd_consumer(), own = (threadIdx.x / 32 - 4) * 16;
        pd_wide_take(queue, hand, [&](uint32_t i) { once_consume<T, D>(a, place(i, own), group, done, t, turns); });
    };
    pd_wide_block(queue, &t.stays_full, 1 + once_tiles<D>::stages, &t.stays_empty, 1 + once_tiles<D>::stages, produce,
                  consume);
}

static __global__ void attention_once_begin(uint32_t *counts, const uint64_t count)
{
    const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) counts[i] = 0;
}

static uint64_t shares(const struct pd_attention *a)
{
    const uint64_t tiles = ((uint64_t)a->length + QUERIES - 1) / QUERIES;
    return (uint64_t)a->sequences * a->heads * tiles * (a->head_size / 64);
}

uint64_t pd_attention_wgmma_once_workspace(const struct pd_attention *a)
{
    return shares(a) * (SHARE_FLOATS * sizeof(float) + 4 * sizeof(uint32_t));
}

template <enum pd_dtype T, int D>
static pd_status once_launch(void *stream, const pd_attention *a, struct pd_cuda_workspace workspace, pd_error *err)
{
    const uint64_t each = shares(a), items = ((uint64_t)a->key_length + KEYS - 1) / KEYS * a->sequences * a->heads;
    once_turns turns = {static_cast<float4 *>(workspace.data), nullptr};
    turns.counts = reinterpret_cast<uint32_t *>(turns.sums + each * (SHARE_FLOATS / 4));
    PD_TRY(PD_LAUNCH(err, attention_once_begin, static_cast<unsigned>((4 * each + 255) / 256), 256, 0, stream, turns.counts,
                     4 * each));
    return pd_wide_launch(err, "attention_once_wgmma", attention_once_wgmma<T, D>, sizeof(once_tiles<D>), stream, a, a->dout,
                          items, workspace.begun, turns);
}

pd_status pd_attention_wgmma_once(void *stream, const struct pd_attention *a, struct pd_cuda_workspace workspace,
                                  struct pd_error *err)
{
    return PD_OF_TILES(a, once_launch, stream, a, workspace, err);
}
