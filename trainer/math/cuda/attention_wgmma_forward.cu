/* Causal attention, forward, for compute capability 9.0 (Shah et al. 2024, Dao 2023): the formulas of attention_forward.cu,
 * keys in steps of 128. While the softmax of a step is computed, the products of the previous step run:
 *
 *   S(0); softmax; then for each step i: S(i), O += P(i-1) V(i-1) begun; softmax of S(i) while O is made; O rescaled
 *
 * Consumers start S and O in turns, so that one multiplies while others are at their softmax. A consumer skips the block's
 * last steps if its own 64 queries see no key there.
 *
 * A row has four partial sums, one per lane, until the end, as in attention_forward.cu. */
#include "trainer/math/cuda/attention_wgmma_block.h"

#define KEYS 128u
#define PIECES (KEYS / 8)

/* As many as fit: steps of heads of 64 are short compared to the latency of memory. */
template <int D> constexpr uint32_t forward_stages = D == 64 ? 3 : 2;

template <int D> struct forward_tiles {
    pd_wide_tile<D, 64> q[PD_CONSUMERS], out[PD_CONSUMERS];
    pd_wide_tile<D, KEYS> k[forward_stages<D>], v[forward_stages<D>];
    uint64_t q_full, k_full[forward_stages<D>], v_full[forward_stages<D>];
    uint64_t q_empty, k_empty[forward_stages<D>], v_empty[forward_stages<D>];
};

static_assert(sizeof(forward_tiles<128>) <= PD_WIDE_SHARED && sizeof(forward_tiles<64>) <= PD_WIDE_SHARED, "too much");

/* ---- the warp that brings tiles ---- */

/* The first K before Q, whose place is free later. */
template <int D>
PD_DEVICE void forward_produce(const pd_wide_maps &maps, const pd_wide_place &p, pd_wide_progress &done, forward_tiles<D> &t)
{
    const pd_wide_source q = {&maps.q, p.sequence, p.head * D}, k = {&maps.k, p.sequence, p.kv * D};
    const pd_wide_source v = {&maps.v, p.sequence, p.kv * D};
    pd_ring &ring = done.ring;
    for (uint32_t kb = p.seen.begin; kb < p.seen.end; kb++) {
        pd_barrier_wait(&t.k_empty[ring.stage], ring.parity ^ 1);
        pd_wide_load(t.k[ring.stage], k, kb * KEYS, &t.k_full[ring.stage]);
        pd_wide_filled(&t.k_full[ring.stage], KEYS * D * 2);
        if (kb == p.seen.begin) {
            pd_barrier_wait(&t.q_empty, done.round ^ 1);
            for (uint32_t i = 0; i < PD_CONSUMERS; i++)
                pd_wide_load(t.q[i], q, p.row + 64 * i, &t.q_full);
            pd_wide_filled(&t.q_full, PD_CONSUMERS * 64 * D * 2);
            done.round ^= 1;
        }
        pd_barrier_wait(&t.v_empty[ring.stage], ring.parity ^ 1);
        pd_wide_load(t.v[ring.stage], v, kb * KEYS, &t.v_full[ring.stage]);
        pd_wide_filled(&t.v_full[ring.stage], KEYS * D * 2);
        pd_ring_next<forward_stages<D>>(ring);
    }
}

/* ---- the warps that multiply ---- */

template <int D> struct forward_state {
    float o[D / 8][4], max[2], sum[2];
    uint32_t group;
};

/* Step kb: its scores, and P V of the step before, of stages `now` and `before`; p is this step's afterwards. */
template <enum pd_dtype T, int D, bool FIRST>
PD_DEVICE void forward_step(const pd_attention &a, const pd_wide_place &p, uint32_t kb, const pd_ring &now,
                            const pd_ring &before, forward_tiles<D> &t, forward_state<D> &s, uint32_t (&pv)[KEYS / 16][4])
{
    float x[PIECES][4], rescale[2];
    pd_barrier_wait(&t.k_full[now.stage], now.parity);
    pd_turn_take(s.group);
    pd_wgmma_pin(x);
    pd_wgmma_fence();
    pd_wide_scores<T>(x, t.q[s.group], t.k[now.stage]);
    pd_wgmma_commit();
    if (!FIRST) {
        pd_barrier_wait(&t.v_full[before.stage], before.parity);
        pd_wgmma_pin(s.o);
        pd_wgmma_fence();
        pd_wide_apply<T>(s.o, pv, t.v[before.stage]);
        pd_wgmma_commit();
    }
    pd_turn_give(s.group);
    pd_wgmma_wait<(FIRST ? 0 : 1)>();
    pd_wgmma_pin(x);
    pd_wide_emptied(&t.k_empty[now.stage]);
    if (pd_wide_cut(a, p, kb * KEYS, KEYS)) pd_softmax_mask(a, pd_wide_own_of(a, p), a.key_start + kb * KEYS, x);
    pd_softmax_step(a.scale * PD_LOG2_E, x, s.max, s.sum, rescale);
    if (!FIRST) {
        pd_wgmma_delay_wait(s.sum[0] + s.sum[1], &t.q_full);
        pd_wgmma_wait<0>();
        pd_wgmma_pin(s.o);
        pd_wide_emptied(&t.v_empty[before.stage]);
    }
    pd_softmax_rescale(s.o, rescale);
    pd_wide_pack<T>(pv, x);
}

/* Steps in which this consumer's own queries see keys: the first of the block's. */
PD_DEVICE pd_attention_span forward_own_steps(const pd_attention &a, const pd_wide_place &p, uint32_t group)
{
    const uint32_t row = 64 * group, left = p.count > row ? p.count - row : 0;
    if (group + 1 == PD_CONSUMERS && left == 64) return p.seen; /* the block's last queries see all that the block sees */
    if (!left) return {p.seen.begin, p.seen.begin};
    const uint32_t end = pd_attention_keys_seen(a, p.sequence, p.row + row, left < 64 ? left : 64, KEYS).end;
    return {p.seen.begin, end > p.seen.begin ? end : p.seen.begin};
}

/* The block's remaining steps: tiles and turns continue without this consumer. */
template <int D> PD_DEVICE void forward_pass_by(uint32_t steps, uint32_t group, pd_ring &ring, forward_tiles<D> &t)
{
    for (uint32_t i = 0; i < steps; i++) {
        pd_barrier_wait(&t.k_full[ring.stage], ring.parity);
        pd_turn_take(group);
        pd_turn_give(group);
        pd_wide_emptied(&t.k_empty[ring.stage]);
        pd_barrier_wait(&t.v_full[ring.stage], ring.parity);
        pd_wide_emptied(&t.v_empty[ring.stage]);
        pd_ring_next<forward_stages<D>>(ring);
    }
}

template <enum pd_dtype T, int D>
PD_DEVICE void forward_consume(const pd_attention &a, const pd_wide_place &p, uint32_t group, pd_wide_progress &done,
                               forward_tiles<D> &t)
{
    const pd_attention_span own = forward_own_steps(a, p, group);
    forward_state<D> s;
    uint32_t pv[KEYS / 16][4];
    s.group = group;
    pd_softmax_start<D>(a, pd_wide_own_of(a, p), s.o, s.max, s.sum);
    if (p.seen.begin < p.seen.end) {
        pd_barrier_wait(&t.q_full, done.round);
        done.round ^= 1;
        if (own.begin == own.end) pd_wide_emptied(&t.q_empty);
    }
    pd_wide_walk<forward_stages<D>>(
        own, done.ring,
        [&](auto first, uint32_t kb, const pd_ring &now, const pd_ring &before) {
            forward_step<T, D, decltype(first)::value>(a, p, kb, now, before, t, s, pv);
        },
        [&](const pd_ring &last) {
            pd_wide_emptied(&t.q_empty);
            pd_barrier_wait(&t.v_full[last.stage], last.parity);
            pd_wide_apply_now<T>(s.o, pv, t.v[last.stage]);
            pd_wide_emptied(&t.v_empty[last.stage]);
        });
    forward_pass_by(p.seen.end - own.end, group, done.ring, t);
    pd_softmax_finish<T, D>(a, pd_wide_own_of(a, p), s.o, s.max, s.sum, pd_wide_scratch(t.out[group]));
}

template <enum pd_dtype T, int D>
static __global__ void __launch_bounds__((PD_CONSUMERS + 1) * PD_WARPGROUP, 1)
    attention_forward_wgmma(const pd_attention a, const __grid_constant__ pd_wide_maps maps, const pd_wide_queue queue)
{
    PD_SHARED_DYNAMIC(shared);
    forward_tiles<D> &t = pd_wide_tiles<forward_tiles<D>>(shared);
    pd_wide_progress done = {0, {0, 0}};
    const auto produce = [&](uint32_t i) { forward_produce<D>(maps, pd_wide_place_of<KEYS>(a, i), done, t); };
    const auto consume = [&](pd_wide_hand &hand) {
        const uint32_t group = pd_consumer();
        pd_turns_begin(group);
        pd_wide_take(queue, hand,
                     [&](uint32_t i) { forward_consume<T, D>(a, pd_wide_place_of<KEYS>(a, i), group, done, t); });
        pd_turns_end(group);
    };
    constexpr uint32_t barriers = 1 + 2 * forward_stages<D>;
    pd_wide_block(queue, &t.q_full, barriers, &t.q_empty, barriers, produce, consume);
}

template <enum pd_dtype T, int D>
static pd_status forward_launch(void *stream, const pd_attention *a, struct pd_cuda_workspace workspace, pd_error *err)
{
    return pd_wide_launch(err, "attention_forward_wgmma", attention_forward_wgmma<T, D>, sizeof(forward_tiles<D>), stream, a,
                          NULL, pd_wide_items(a), workspace.begun);
}

pd_status pd_attention_wgmma_forward(void *stream, const struct pd_attention *a, struct pd_cuda_workspace workspace,
                                     struct pd_error *err)
{
    return PD_OF_TILES(a, forward_launch, stream, a, workspace, err);
}
