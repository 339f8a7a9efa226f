/* Between holders of the same boxes: owners hand state to replicas, in stage 0 parts of a copy go to all who hold it, and the
 * first stage mirrors a tied table on the last and gets the head's sums of it. */
#include "trainer/parallel/zero_internal.h"

static const char to_replicas[] = "to replicas";

/* What lies at `here` on both ends, to or from a peer. */
static void add_runs(struct pd_zero_exchange *x, bool sends, uint32_t peer, float *here, const struct pd_zero_run *runs,
                     uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        (sends ? x->sends : x->recvs)[sends ? x->op.send_count++ : x->op.recv_count++] =
            (struct pd_comm_piece){peer, here + runs[i].at_b, runs[i].elements * sizeof *here};
}

/* Of a tensor: among the ranks that own a copy together, each of which needs all of it (stage 0), or of a part from the owner
 * to its replicas. */
static void describe_tensor(struct pd_zero *zero, uint32_t tensor, float *here, bool is_to_replicas)
{
    struct pd_zero_run runs[PD_ZERO_BOXES_MAX];
    struct pd_zero_exchange *x = &zero->exchange;
    const struct pd_zero_place place = pd_zero_place_of(zero, tensor, zero->grid->place.tp);
    const struct pd_zero_slab held = pd_zero_held_slab(zero, &place, zero->q);
    const uint32_t mine = zero->q % zero->parts, count = pd_zero_own_runs(zero, tensor, runs);
    if (is_to_replicas) {
        if (zero->replicas->rank) add_runs(x, false, 0, here, runs, count);
        for (uint32_t r = 1; r < zero->replicas->size && !zero->replicas->rank; r++)
            add_runs(x, true, r, here, runs, count);
        return;
    }
    for (uint32_t part = 0; part < zero->parts; part++)
        if (part != mine) add_runs(x, true, part, here, runs, count);
    for (uint32_t part = 0; part < zero->parts; part++) {
        const struct pd_zero_slab owned = pd_zero_owned_slab(zero, &place, part);
        if (part != mine)
            add_runs(x, false, part, here, runs, pd_zero_runs(zero, tensor, &owned, &held, runs));
    }
}

/* `array` is in the order of `first`: elements before each tensor of the set. What the head keeps of a tied table is for its
 * owners alone. */
static pd_status share_set(struct pd_zero *zero, uint32_t set, float *array, const uint64_t *first, bool is_to_replicas,
                           struct pd_error *err)
{
    struct pd_zero_exchange *x = &zero->exchange;
    struct pd_comm *comm = is_to_replicas ? zero->replicas : zero->shard;
    if (!zero->sets[set].count || !comm) return PD_OK;
    pd_owner_acquire(&x->owner, to_replicas);
    x->op = (struct pd_comm_op){.sends = x->sends, .recvs = x->recvs, .what = to_replicas};
    for (uint32_t e = 0; e < zero->sets[set].count; e++)
        if (set == 0 || zero->sets[set].tensors[e] > 0)
            describe_tensor(zero, zero->sets[set].tensors[e], array + first[e], is_to_replicas);
    pd_status st = pd_comm_start(comm, &x->op, err);
    if (!st) st = pd_comm_wait(comm, &x->op, err);
    pd_owner_release(&x->owner, to_replicas);
    return st;
}

pd_status pd_zero_share_state(struct pd_zero *zero, struct pd_error *err)
{
    for (uint32_t set = 0; set < zero->has.set_count; set++) {
        uint64_t first[PD_ZERO_SET_TENSORS_MAX];
        for (uint32_t e = 0; e < zero->sets[set].count; e++)
            first[e] = zero->tensor_offset[zero->sets[set].tensors[e]];
        for (int kind = 0; kind < PD_KIND_COUNT && zero->has.state[kind]; kind++) {
            PD_TRY(share_set(zero, set, zero->has.state[kind], first, true, err));
            if (zero->grid->layout.zero_stage == 0)
                PD_TRY(share_set(zero, set, zero->has.state[kind], first, false, err));
        }
    }
    return PD_OK;
}

pd_status pd_zero_share_gradients(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    return share_set(zero, set, zero->has.gradient, zero->sets[set].gradient, false, err);
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

/* The head's sums of this rank's part of the table. */
static pd_status send_table(struct pd_zero *zero, uint64_t n, struct pd_error *err)
{
    const uint32_t last = zero->has.set_count - 1;
    const struct pd_zero_set *s = &zero->sets[last];
    int64_t *out = zero->mirrored_gradient;
    if (!zero->makes_terms) {
        struct pd_comm_piece piece = {0, zero->has.gradient + s->gradient[s->count - 1], n * sizeof(float)};
        return run_mirror(zero, &piece, 1, NULL, 0, err);
    }
    const struct pd_term_run run = {
        .from = pd_zero_sums(zero, last) + (s->own - n), .to = out, .n = n, .check = out + n, .check_begins = true};
    const struct pd_terms copy = {.runs = &run, .run_count = 1, .source = PD_TERM_INTEGER};
    struct pd_comm_piece piece = {0, out, (n + 1) * sizeof *out};
    PD_TRY(pd_terms(zero->math, &copy, err));
    return run_mirror(zero, &piece, 1, NULL, 0, err);
}

static pd_status add_table(struct pd_zero *zero, uint64_t n, struct pd_error *err)
{
    int64_t *arrived = zero->mirrored_gradient;
    struct pd_comm_piece piece = {1, arrived, zero->makes_terms ? (n + 1) * sizeof *arrived : n * sizeof(float)};
    PD_TRY(run_mirror(zero, NULL, 0, &piece, 1, err));
    if (!zero->makes_terms)
        return pd_add(zero->math, n, zero->has.gradient + zero->sets[0].gradient[0], PD_F32, arrived, false, err);
    int64_t *sums = pd_zero_sums(zero, 0);
    const struct pd_term_run runs[] = {
        {.from = arrived, .to = sums, .n = n, .adds = true},
        {.from = arrived + n, .to = sums + zero->sets[0].stride - 1, .n = 1, .adds = true}};
    const struct pd_terms add = {.runs = runs, .run_count = 2, .source = PD_TERM_INTEGER};
    return pd_terms(zero->math, &add, err);
}

pd_status pd_zero_mirror_gradients(struct pd_zero *zero, struct pd_error *err)
{
    const uint32_t set = is_first(zero) ? 0 : zero->has.set_count - 1;
    const struct pd_zero_place place = pd_zero_place_of(zero, 0, zero->grid->place.tp);
    const struct pd_zero_slab part = pd_zero_owned_slab(zero, &place, zero->q % zero->parts);
    const uint64_t n = pd_zero_slab_elements(zero, 0, &part);
    if (!zero->is_mirrored || !(is_first(zero) || zero->mirror)) return PD_OK;
    if (n) PD_TRY(is_first(zero) ? add_table(zero, n, err) : send_table(zero, n, err));
    return pd_zero_end_set(zero, set, err);
}
