/* A tied table whose ends are on two stages: the first mirrors its working copy on the last, and gets the head's sums of it. */
#include "trainer/parallel/zero_internal.h"

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
    const uint64_t bytes = pd_zero_held_elements(zero, 0) * pd_dtype_bytes(zero->options.compute);
    if (!bytes) return PD_OK;
    if (is_first(zero)) {
        struct pd_comm_piece piece = {1, pd_zero_parameters(zero, 0, 0), bytes};
        return run_mirror(zero, &piece, 1, NULL, 0, err);
    }
    struct pd_comm_piece piece = {0, pd_zero_parameters(zero, last, zero->sets[last].count - 1), bytes};
    return run_mirror(zero, NULL, 0, &piece, 1, err);
}

/* Sums of the n elements that are held: the first of the embedding, the last of the head. */
static void *table_of(const struct pd_zero *zero, uint32_t set, uint64_t n)
{
    const uint64_t before = set ? zero->sets[set].own - n : 0;
    return (char *)pd_zero_sums(zero, set) + before * (zero->makes_terms ? sizeof(int64_t) : sizeof(float));
}

/* Terms have a check behind them. */
static pd_status send_table(struct pd_zero *zero, uint64_t n, struct pd_error *err)
{
    void *table = table_of(zero, zero->has.set_count - 1, n);
    int64_t *out = zero->mirrored_gradient;
    const struct pd_term_run run = {.from = table, .to = out, .n = n, .check = out + n, .check_begins = true};
    struct pd_comm_piece piece = {0, table, n * sizeof(float)};
    if (zero->makes_terms) {
        PD_TRY(pd_zero_add_run(zero, &run, err));
        piece = (struct pd_comm_piece){0, out, (n + 1) * sizeof *out};
    }
    return run_mirror(zero, &piece, 1, NULL, 0, err);
}

static pd_status take_table(struct pd_zero *zero, uint64_t n, struct pd_error *err)
{
    int64_t *arrived = zero->mirrored_gradient, *sums = pd_zero_sums(zero, 0);
    struct pd_comm_piece piece = {1, arrived, zero->makes_terms ? (n + 1) * sizeof *arrived : n * sizeof(float)};
    PD_TRY(run_mirror(zero, NULL, 0, &piece, 1, err));
    if (!zero->makes_terms) return pd_add(zero->math, n, (float *)sums, PD_F32, arrived, false, err);
    const struct pd_term_run table = {.from = arrived, .to = sums, .n = n, .adds = true},
                             check = {.from = arrived + n, .to = sums + zero->sets[0].stride - 1, .n = 1, .adds = true};
    PD_TRY(pd_zero_add_run(zero, &table, err));
    return pd_zero_add_run(zero, &check, err);
}

pd_status pd_zero_join_tables(struct pd_zero *zero, struct pd_error *err)
{
    const uint32_t last = zero->has.set_count - 1;
    const uint64_t n = pd_zero_held_elements(zero, 0);
    if (!zero->model->config.tie_embeddings) return PD_OK;
    if (!zero->is_mirrored && zero->makes_terms) return PD_OK; /* its terms went there */
    if (!zero->is_mirrored) return pd_add(zero->math, n, table_of(zero, 0, n), PD_F32, table_of(zero, last, n), false, err);
    if (!is_first(zero) && !zero->mirror) return PD_OK;
    if (n) PD_TRY(is_first(zero) ? take_table(zero, n, err) : send_table(zero, n, err));
    return pd_zero_end_set(zero, is_first(zero) ? 0 : last, err);
}
