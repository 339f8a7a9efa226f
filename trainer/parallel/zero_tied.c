/* A tied table on two stages: the first mirrors its working copy to the last, and receives the head's sums. */
#include "trainer/parallel/zero_internal.h"

static bool is_first(const struct pd_zero *zero)
{
    return zero->buckets[0].count > 0;
}

/* check: of the sums that pass, or NULL. */
static pd_status pass(struct pd_zero *zero, bool is_sender, void *data, uint64_t bytes, void *check, struct pd_error *err)
{
    const uint32_t peer = is_first(zero) ? 1 : 0, count = check ? 2 : 1;
    const struct pd_comm_piece pieces[] = {{peer, data, bytes}, {peer, check, zero->term_bytes}};
    struct pd_comm_op op = {.what = "tied table"};
    if (is_sender)
        op.sends = pieces, op.send_count = count;
    else
        op.recvs = pieces, op.recv_count = count;
    PD_TRY(pd_comm_start(zero->grid->mirror, &op, err));
    return pd_comm_wait(zero->grid->mirror, &op, err);
}

pd_status pd_zero_mirror_parameters(struct pd_zero *zero, struct pd_error *err)
{
    const uint64_t bytes = pd_zero_held_elements(zero, 0) * pd_dtype_bytes(zero->options.compute);
    if (!zero->is_mirrored || !bytes || !(is_first(zero) || zero->mirror)) return PD_OK;
    return pass(zero, is_first(zero), is_first(zero) ? pd_zero_parameters(zero, 0, 0) : zero->mirror, bytes, NULL, err);
}

/* Sums of the n elements that are held: the first of the embedding, the last of the head. */
static void *table_of(const struct pd_zero *zero, uint32_t bucket, uint64_t n)
{
    const uint64_t before = bucket ? zero->buckets[bucket].sides[PD_ZERO_COMMON].own - n : 0;
    return (char *)pd_zero_sums(zero, bucket) + before * (zero->has.makes_terms ? zero->term_bytes : sizeof(float));
}

static pd_status send_table(struct pd_zero *zero, uint64_t n, struct pd_error *err)
{
    void *table = table_of(zero, zero->has.bucket_count - 1, n), *check = zero->mirrored_gradient;
    const struct pd_term_run run = {.from = table, .n = n, .check = check, .check_begins = true};
    if (!zero->has.makes_terms) return pass(zero, true, table, n * sizeof(float), NULL, err);
    PD_TRY(pd_zero_add_run(zero, &run, err));
    return pass(zero, true, table, n * zero->term_bytes, check, err);
}

static pd_status take_table(struct pd_zero *zero, uint64_t n, struct pd_error *err)
{
    void *arrived = zero->mirrored_gradient, *check = pd_zero_term(zero, arrived, n), *sums = pd_zero_sums(zero, 0),
         *own_check = pd_zero_term(zero, sums, zero->buckets[0].sides[PD_ZERO_COMMON].stride - 1);
    const struct pd_term_run to_table = {.from = arrived, .to = sums, .n = n, .adds = true},
                             to_check = {.from = check, .to = own_check, .n = 1, .adds = true};
    if (!zero->has.makes_terms) {
        PD_TRY(pass(zero, false, arrived, n * sizeof(float), NULL, err));
        return pd_add(zero->math, n, sums, arrived, err);
    }
    PD_TRY(pass(zero, false, arrived, n * zero->term_bytes, check, err));
    PD_TRY(pd_zero_add_run(zero, &to_table, err));
    return pd_zero_add_run(zero, &to_check, err);
}

pd_status pd_zero_join_tables(struct pd_zero *zero, struct pd_error *err)
{
    const uint32_t last = zero->has.bucket_count - 1;
    const uint64_t n = pd_zero_held_elements(zero, 0);
    if (!zero->model->config.tie_embeddings) return PD_OK;
    if (!zero->is_mirrored && zero->has.makes_terms) return PD_OK; /* its terms went there */
    if (!zero->is_mirrored) return pd_add(zero->math, n, table_of(zero, 0, n), table_of(zero, last, n), err);
    if (!is_first(zero) && !zero->mirror) return PD_OK;
    if (n) PD_TRY(is_first(zero) ? take_table(zero, n, err) : send_table(zero, n, err));
    return pd_zero_end_bucket(zero, is_first(zero) ? 0 : last, err);
}
