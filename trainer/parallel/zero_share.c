/* Between holders of the same boxes: owners hand state and sums to replicas, the first stage mirrors a tied table on the
 * last and gets the head's sums of it. */
#include "trainer/parallel/zero_internal.h"

static bool has_replicas(const struct pd_zero *zero)
{
    return zero->data_ranks > 1 && (zero->grid->layout.zero_stage == 0 || zero->parts < zero->data_ranks);
}

/* Runs of a tensor that lie at `here` on both ends, to or from data rank q. */
static void add_runs(const struct pd_zero *zero, uint32_t q, float *here, const struct pd_zero_run *runs, uint32_t count,
                     struct pd_comm_piece *pieces, uint32_t *piece_count)
{
    for (uint32_t i = 0; i < count; i++)
        pieces[(*piece_count)++] = (struct pd_comm_piece){q * zero->grid->layout.tp + zero->grid->place.tp,
                                                          here + runs[i].at_b, runs[i].elements * sizeof *here};
}

static const char to_replicas[] = "to replicas";

/* One set: what this rank owns goes to the others that hold it, what it holds comes from its owners: in stage 0 from all of
 * them, above from the one of its part. What the head keeps of a tied table is for its owners alone. `array` is in the order
 * of `first`: elements before each tensor of the set. */
static pd_status share_set(struct pd_zero *zero, uint32_t set, float *array, const uint64_t *first, struct pd_error *err)
{
    struct pd_zero_run runs[PD_ZERO_BOXES_MAX];
    struct pd_zero_exchange *x = &zero->exchange;
    const bool is_whole = zero->grid->layout.zero_stage == 0;
    const struct pd_zero_place *places = pd_zero_places(zero, set) + zero->grid->place.tp * PD_ZERO_SET_TENSORS_MAX;
    if (!zero->sets[set].count) return PD_OK;
    pd_owner_acquire(&x->owner, to_replicas);
    x->op = (struct pd_comm_op){.sends = x->sends, .recvs = x->recvs, .what = to_replicas};
    for (uint32_t e = 0; e < zero->sets[set].count; e++) {
        const struct pd_zero_slab held = pd_zero_held_slab(zero, &places[e], zero->q);
        if (set > 0 && zero->sets[set].tensors[e] == 0) continue;
        for (uint32_t q = is_whole ? 0 : zero->q % zero->parts; q < zero->parts; q += is_whole ? 1 : zero->parts) {
            const struct pd_zero_slab owned = pd_zero_owned_slab(zero, &places[e], q);
            const uint32_t count = pd_zero_runs(zero, zero->sets[set].tensors[e], &owned, &held, runs);
            float *here = array + first[e];
            if (q != zero->q) add_runs(zero, q, here, runs, count, x->recvs, &x->op.recv_count);
            if (q != zero->q) continue;
            for (uint32_t to = is_whole ? 0 : q; to < zero->data_ranks; to += is_whole ? 1 : zero->parts)
                if (to != q) add_runs(zero, to, here, runs, count, x->sends, &x->op.send_count);
        }
    }
    pd_status st = pd_comm_start(zero->comm, &x->op, err);
    if (!st) st = pd_comm_wait(zero->comm, &x->op, err);
    pd_owner_release(&x->owner, to_replicas);
    return st;
}

pd_status pd_zero_share_state(struct pd_zero *zero, struct pd_error *err)
{
    if (!has_replicas(zero)) return PD_OK;
    for (uint32_t set = 0; set < zero->has.set_count; set++) {
        uint64_t first[PD_ZERO_SET_TENSORS_MAX];
        for (uint32_t e = 0; e < zero->sets[set].count; e++)
            first[e] = zero->tensor_offset[zero->sets[set].tensors[e]];
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            PD_TRY(share_set(zero, set, zero->has.state[kind], first, err));
    }
    return PD_OK;
}

pd_status pd_zero_share_gradients(struct pd_zero *zero, struct pd_error *err)
{
    if (!has_replicas(zero)) return PD_OK;
    for (uint32_t set = 0; set < zero->has.set_count; set++)
        PD_TRY(share_set(zero, set, zero->has.gradient, zero->sets[set].gradient, err));
    return PD_OK;
}

static pd_status run_mirror(struct pd_zero *zero, const struct pd_comm_piece *sends, uint32_t send_count,
                            const struct pd_comm_piece *recvs, uint32_t recv_count, struct pd_error *err)
{
    struct pd_comm_op op = {
        .sends = sends, .send_count = send_count, .recvs = recvs, .recv_count = recv_count, .what = "tied table"};
    PD_TRY(pd_comm_start(zero->grid->mirror, &op, err));
    return pd_comm_wait(zero->grid->mirror, &op, err);
}

static bool is_first(const struct pd_zero *zero)
{
    return zero->sets[0].count > 0;
}

pd_status pd_zero_mirror_parameters(struct pd_zero *zero, struct pd_error *err)
{
    const uint32_t last = zero->has.set_count - 1;
    if (!zero->is_mirrored || !(is_first(zero) || zero->mirror)) return PD_OK;
    const struct pd_zero_place place = pd_zero_place_of(zero, 0, zero->grid->place.tp);
    const struct pd_zero_slab held = pd_zero_held_slab(zero, &place, zero->q);
    const uint64_t bytes = pd_zero_slab_elements(zero, 0, &held) * pd_dtype_bytes(zero->options.compute);
    if (!bytes) return PD_OK;
    if (is_first(zero)) {
        struct pd_comm_piece piece = {1, pd_zero_parameters(zero, 0, 0), bytes};
        return run_mirror(zero, &piece, 1, NULL, 0, err);
    }
    struct pd_comm_piece piece = {0, pd_zero_parameters(zero, last, zero->sets[last].count - 1), bytes};
    return run_mirror(zero, NULL, 0, &piece, 1, err);
}

pd_status pd_zero_mirror_gradients(struct pd_zero *zero, struct pd_error *err)
{
    struct pd_zero_run runs[PD_ZERO_BOXES_MAX];
    struct pd_comm_piece pieces[PD_ZERO_BOXES_MAX];
    uint32_t count = pd_zero_own_runs(zero, 0, runs);
    if (!(is_first(zero) || zero->mirror) || !count) return PD_OK;
    const struct pd_zero_set *s = &zero->sets[zero->has.set_count - 1];
    if (!is_first(zero)) {
        float *base = zero->has.gradient + s->gradient[s->count - 1];
        for (uint32_t i = 0; i < count; i++)
            pieces[i] = (struct pd_comm_piece){0, base + runs[i].at_b, runs[i].elements * sizeof(float)};
        return run_mirror(zero, pieces, count, NULL, 0, err);
    }
    float *from = zero->mirrored_gradient;
    for (uint32_t i = 0; i < count; from += runs[i].elements, i++)
        pieces[i] = (struct pd_comm_piece){1, from, runs[i].elements * sizeof(float)};
    PD_TRY(run_mirror(zero, NULL, 0, pieces, count, err));
    from = zero->mirrored_gradient;
    for (uint32_t i = 0; i < count; from += runs[i].elements, i++) {
        float *sum = zero->has.gradient + zero->sets[0].gradient[0] + runs[i].at_b;
        PD_TRY(pd_add(zero->math, runs[i].elements, sum, PD_F32, from, false, err));
    }
    return PD_OK;
}
