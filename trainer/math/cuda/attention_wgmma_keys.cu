/* Causal attention, backward, dK and dV per key, for compute capability 9.0: the formulas of attention_pair.h. A warpgroup
 * has 64 keys, as read by one query head; tiles of 64 queries pass by. A step:
 *
 *   S^T = K Q^T, dP^T = V dO^T; P from S while dP is made; dV += P dO on its way while dS is made; dK += dS Q
 *
 * Keeps rows of K and V in registers if they fit, so that S and dP read only Q and dO from shared memory. */
#include "trainer/math/cuda/attention_wgmma_pair.h"

template <int D> struct keys_tiles {
    static constexpr uint32_t stages = D == 64 ? 3 : 2;
    pd_wide_tile<D, 64> k[PD_CONSUMERS], v[PD_CONSUMERS], dk[PD_CONSUMERS], dv[PD_CONSUMERS];
    pd_wide_tile<D, QUERIES> q[stages], dout[stages];
    keys_rows rows[stages];
    uint64_t stays_full, full[stages], stays_empty, empty[stages];
};

static_assert(sizeof(keys_tiles<128>) <= PD_WIDE_SHARED && sizeof(keys_tiles<64>) <= PD_WIDE_SHARED, "too much");

template <enum pd_dtype T, int D>
PD_DEVICE void keys_step(const pd_attention &a, const pd_keys_place &p, uint32_t tile, const pd_ring &ring, keys_tiles<D> &t,
                         keys_state<D> &s)
{
    const uint32_t r = tile * QUERIES, stage = ring.stage;
    const uint32_t key = a.key_start + p.tile * KEYS + p.own + pd_fragment_row(0);
    const keys_rows &rows = t.rows[stage];
    float x[PIECES][4], dp[PIECES][4];
    uint32_t operand[QUERIES / 16][4], gradient[QUERIES / 16][4];
    pd_barrier_wait(&t.full[stage], ring.parity);
    keys_products<T>(s, stage, t, x, dp);
    pd_wgmma_wait<1>();
    pd_wgmma_pin(x);
    keys_weights(rows, a.scale * PD_LOG2_E, x);
    if (keys_cut(a, p, r, rows)) keys_mask(rows, key, a.query_start + r, x);
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
    pd_wgmma_wait<0>();
    pd_wgmma_pin(s.sums.dv[0]);
    pd_wgmma_pin(s.sums.dk[0]);
    pd_wide_emptied(&t.empty[stage]);
}

template <enum pd_dtype T, int D>
PD_DEVICE void keys_consume(const pd_attention &a, const pd_keys_place &p, uint32_t group, pd_wide_progress &done,
                            keys_tiles<D> &t)
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
    if (!a.first_part) keys_carry<D>(a, p, s.sums, true);
    for (uint32_t tile = seeing.begin; tile < seeing.end; tile++) {
        keys_step<T, D>(a, p, tile, done.ring, t, s);
        pd_ring_next<keys_tiles<D>::stages>(done.ring);
    }
    pd_wide_emptied(&t.stays_empty);
    if (a.last_part)
        keys_finish<T, D>(a, p, s.sums, pd_wide_scratch(t.dk[group]), pd_wide_scratch(t.dv[group]));
    else
        keys_carry<D>(a, p, s.sums, false);
}

template <enum pd_dtype T, int D>
static __global__ void __launch_bounds__(PD_WIDE_THREADS, 1)
    attention_keys_wgmma(const pd_attention a, const __grid_constant__ pd_wide_maps maps, const pd_wide_queue queue)
{
    PD_SHARED_DYNAMIC(shared);
    keys_tiles<D> &t = pd_wide_tiles<keys_tiles<D>>(shared);
    pd_wide_progress done = {0, {0, 0}};
    const auto produce = [&](uint32_t i) { keys_produce<D>(a, maps, pd_keys_place_of(a, i, KEYS, 0), done, t); };
    const auto consume = [&](pd_wide_hand &hand) {
        const uint32_t group = pd_consumer(), own = (threadIdx.x / 32 - 4) * 16;
        pd_wide_take(queue, hand,
                     [&](uint32_t i) { keys_consume<T, D>(a, pd_keys_place_of(a, i, KEYS, own), group, done, t); });
    };
    pd_wide_block(queue, &t.stays_full, 1 + keys_tiles<D>::stages, &t.stays_empty, 1 + keys_tiles<D>::stages, produce,
                  consume);
}

template <enum pd_dtype T, int D>
static pd_status keys_launch(void *stream, const pd_attention *a, struct pd_cuda_workspace workspace, pd_error *err)
{
    return pd_wide_launch(err, "attention_keys_wgmma", attention_keys_wgmma<T, D>, sizeof(keys_tiles<D>), stream, a, a->dout,
                          pd_attention_keys_items(a, KEYS), workspace.begun);
}

pd_status pd_attention_wgmma_keys(void *stream, const struct pd_attention *a, struct pd_cuda_workspace workspace,
                                  struct pd_error *err)
{
    return PD_OF_TILES(a, keys_launch, stream, a, workspace, err);
}
