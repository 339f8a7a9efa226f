#include "trainer/engine/expert_report.h"

#include "trainer/engine/engine_internal.h"
#include "trainer/engine/optimizer.h"
#include "trainer/model/experts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tensor-parallel ranks count the same tokens, and data ranks know the same biases: one of them reports. */
static void drop_copies(const struct pd_engine *e, struct pd_expert_counts *c)
{
    const struct pd_model_config *m = &e->options.model->config;
    const uint64_t row = m->experts + 1ull;
    for (uint32_t block = 0; block < m->layers && e->grid.place.dp + e->grid.place.sp > 0; block++)
        c->tokens[block * row + m->experts] = 0;
    if (e->grid.place.tp == 0) return;
    memset(c->tokens, 0, m->layers * row * sizeof *c->tokens);
    pd_superaccumulator_init(&c->balance);
    pd_superaccumulator_init(&c->z);
}

static void report_block(const uint64_t *tokens, uint32_t experts, struct pd_expert_report *ret)
{
    uint64_t all = 0, most = 0, least = UINT64_MAX;
    float range;
    for (uint32_t e = 0; e < experts; e++) {
        all += tokens[e];
        most = tokens[e] > most ? tokens[e] : most;
        least = tokens[e] < least ? tokens[e] : least;
    }
    memcpy(&range, &tokens[experts], sizeof range);
    *ret = (struct pd_expert_report){.bias_range = range};
    if (!all) return;
    ret->busiest = (double)most / (double)all;
    ret->idlest = (double)least / (double)all;
    for (uint32_t e = 0; e < experts; e++)
        if (tokens[e]) ret->entropy -= (double)tokens[e] / (double)all * log((double)tokens[e] / (double)all);
}

pd_status pd_experts_report(struct pd_engine *e, struct pd_step_result *result, struct pd_error *err)
{
    const struct pd_model_config *m = &e->options.model->config;
    struct pd_expert_counts *c = pd_transformer_expert_counts(e->transformer);
    if (!c) return PD_OK;
    PD_TRY(pd_transformer_expert_read(e->transformer, err));
    if (!e->own->experts) e->own->experts = calloc(m->layers, sizeof *e->own->experts);
    if (!e->own->experts) PD_FAIL(err, PD_NO_MEMORY, "engine: no memory for a report of %u blocks", m->layers);
    drop_copies(e, c);
    const uint64_t row = m->experts + 1ull;
    if (e->own->comm) PD_TRY(pd_comm_all_reduce(e->own->comm, c->tokens, m->layers * row, PD_REDUCE_SUM_U64, err));
    PD_TRY(pd_exact_sum_reduce(&c->balance, e->own->comm, err));
    PD_TRY(pd_exact_sum_reduce(&c->z, e->own->comm, err));
    for (uint32_t block = m->dense_blocks; block < m->layers; block++)
        report_block(c->tokens + block * row, m->experts, &e->own->experts[block]);
    const double means = (double)e->own->lanes.micro_batches * (m->layers - m->dense_blocks);
    result->router_loss = ((double)m->balance_loss * pd_superaccumulator_value(&c->balance) +
                           (double)m->z_loss * pd_superaccumulator_value(&c->z)) /
                          means;
    result->experts = e->own->experts;
    return PD_OK;
}
