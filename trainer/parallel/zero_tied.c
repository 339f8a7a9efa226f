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

/* The head's sums of what this rank holds of the table. */
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
    const uint64_t n = pd_zero_held_elements(zero, 0);
    if (!zero->is_mirrored || !(is_first(zero) || zero->mirror)) return PD_OK;
    if (n) PD_TRY(is_first(zero) ? add_table(zero, n, err) : send_table(zero, n, err));
    return pd_zero_end_set(zero, set, err);
}
