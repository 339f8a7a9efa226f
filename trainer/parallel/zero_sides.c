/* The two sides of a bucket: what all data ranks share, and experts that ep ranks divide. */
#include "trainer/parallel/zero_internal.h"

uint32_t pd_zero_side_of(const struct pd_zero *zero, uint32_t tensor)
{
    return pd_layout_is_spread(&zero->grid->layout, &zero->model->tensors.tensors[tensor]) ? PD_ZERO_SPREAD : PD_ZERO_COMMON;
}

bool pd_zero_is_elsewhere(const struct pd_zero *zero, uint32_t tensor)
{
    if (zero->ep <= 1) return false;
    const uint32_t expert = zero->model->tensors.tensors[tensor].expert;
    return expert && (expert - 1) % zero->ep != zero->ep_rank;
}

uint32_t pd_zero_parts(const struct pd_zero *zero, uint32_t side)
{
    return side == PD_ZERO_COMMON || zero->parts == 1 ? zero->parts : zero->parts / zero->ep;
}

uint32_t pd_zero_own_part(const struct pd_zero *zero, uint32_t side)
{
    return zero->q % zero->parts / (side == PD_ZERO_COMMON ? 1 : zero->ep);
}

uint32_t pd_zero_part_rank(const struct pd_zero *zero, uint32_t side, uint32_t part)
{
    return side == PD_ZERO_COMMON ? part : zero->q % zero->ep + part * zero->ep;
}

uint64_t pd_zero_terms_end(const struct pd_zero *zero, const struct pd_zero_bucket *s)
{
    const struct pd_zero_side *last = &s->sides[s->sides[PD_ZERO_SPREAD].stride ? PD_ZERO_SPREAD : PD_ZERO_COMMON];
    return last->terms_at + pd_zero_parts(zero, (uint32_t)(last - s->sides)) * last->stride;
}

/* A piece is consumed before the next is made, so pieces need one place. */
uint64_t pd_zero_source_at(const struct pd_zero *zero, const struct pd_zero_bucket *s, uint32_t source)
{
    const bool is_first = source == 0 || zero->pieces > 1;
    return is_first ? s->spread_begin : s->computed[s->count] + (source - 1) * (s->spread_end - s->spread_begin);
}

uint64_t pd_zero_gradients_of(const struct pd_zero *zero, const struct pd_zero_bucket *s)
{
    return s->computed[s->count] + (zero->pieces > 1 ? 0 : zero->ep - 1) * (s->spread_end - s->spread_begin);
}
