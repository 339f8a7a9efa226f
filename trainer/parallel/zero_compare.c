/* The terms of one micro-batch, counted: modulo 2^64, set by set, as the checks of exchanges are (zero_exchange.c). They are made
 * once more for that, a piece at a time, in memory that nobody else reads. */
#include "ckpt/base/checked.h"
#include "ckpt/base/random_bits.h"
#include "trainer/parallel/zero_internal.h"

static pd_status clear(struct pd_zero *zero, struct pd_error *err)
{
    const struct pd_term_run zeros = {.to = zero->compare.sums, .n = zero->has.set_count};
    return pd_zero_add_run(zero, &zeros, err);
}

pd_status pd_zero_watch(struct pd_zero *zero, uint32_t slot, struct pd_error *err)
{
    struct pd_zero_compare *c = &zero->compare;
    c->slot = slot;
    return slot == UINT32_MAX ? PD_OK : clear(zero, err);
}

pd_status pd_zero_compare(struct pd_zero *zero, struct pd_error *err)
{
    struct pd_zero_compare *c = &zero->compare;
    c->slot = UINT32_MAX;
    c->is_on = true;
    return clear(zero, err);
}

pd_status pd_zero_count_terms_of(struct pd_zero *zero, uint32_t set, const float *gradients, uint64_t n, struct pd_error *err)
{
    for (uint64_t at = 0; at < n; at += PD_ZERO_COMPARE_TERMS) {
        const struct pd_term_run run = {.from = gradients + at,
                                        .to = zero->compare.terms,
                                        .n = pd_min_u64(n - at, PD_ZERO_COMPARE_TERMS),
                                        .check = &zero->compare.sums[set]};
        PD_TRY(pd_zero_make_runs(zero, PD_TERM_F32, &run, 1, err));
    }
    return PD_OK;
}

pd_status pd_zero_count_compared(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    const struct pd_zero_set *s = &zero->sets[set];
    if (zero->pieces > 1) return PD_OK; /* each was counted as it was made */
    return pd_zero_count_terms_of(zero, set, zero->micro_batch_pointers[0], s->computed[s->count], err);
}

pd_status pd_zero_read_compared(struct pd_zero *zero, uint64_t *ret_digest, struct pd_error *err)
{
    struct pd_zero_compare *c = &zero->compare;
    uint64_t digest = 0;
    PD_TRY(pd_math_copy(zero->math, c->host_sums, c->sums, zero->has.set_count * sizeof *c->sums, err));
    PD_TRY(pd_math_sync(zero->math, err));
    for (uint32_t set = 0; set < zero->has.set_count; set++)
        digest = pd_random_key(digest, (uint64_t)c->host_sums[set]);
    *ret_digest = digest;
    return PD_OK;
}
