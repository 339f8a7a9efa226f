#include "trainer/engine/optimizer.h"

#include "ckpt/base/half.h"
#include "trainer/engine/engine_internal.h"
#include "trainer/model/polynomial.h"

#include <math.h>

double pd_learning_rate(const struct pd_config *config, uint64_t update)
{
    const double peak = config->optimizer.lr, floor_lr = config->optimizer.min_lr;
    const uint64_t warmup = config->optimizer.warmup_steps;
    const uint64_t end = config->optimizer.decay_steps ? config->optimizer.decay_steps : config->run.steps;
    if (update < warmup) return peak * (double)(update + 1) / (double)warmup;
    if (update >= end || end <= warmup) return floor_lr;
    double quarters = 2.0 * (double)(update - warmup) / (double)(end - warmup); /* of a turn: 0 to 2 */
    uint64_t nearest = (uint64_t)(quarters + 0.5);
    double cosine, sine;
    pd_polynomial_cos_sin((quarters - (double)nearest) * (3.14159265358979323846 / 2), nearest, &cosine, &sine);
    return floor_lr + 0.5 * (peak - floor_lr) * (1.0 + cosine);
}

pd_status pd_exact_sum_reduce(struct pd_superaccumulator *sum, struct pd_comm *comm, struct pd_error *err)
{
    pd_superaccumulator_normalise(sum);
    if (!comm) return PD_OK;
    PD_TRY(pd_comm_all_reduce(comm, sum->limbs, PD_SUPERACCUMULATOR_LIMBS, PD_REDUCE_SUM_U64, err));
    return pd_comm_all_reduce(comm, &sum->flags, 1, PD_REDUCE_OR_U64, err);
}

uint64_t pd_optimizer_norm_rows(const struct pd_engine *e)
{
    return e->options.is_gpu ? 1u << 20 : 4096;
}

/* Adds the squares of `rows` rows, already computed, to the sum. */
static pd_status add_rows(struct pd_engine *e, uint64_t *rows, struct pd_error *err)
{
    const uint64_t count = *rows;
    *rows = 0;
    return pd_superaccumulate(e->math, count, e->own->norm.rows, e->own->norm.sum, err);
}

/* A tensor of two dimensions has its rows; one of one dimension is rows of one element. */
static pd_status optimizer_add_box(struct pd_engine *e, const struct pd_zero_box *b, uint64_t *made, struct pd_error *err)
{
    const uint64_t columns = b->box.count[1], rows = b->box.count[0], most = pd_optimizer_norm_rows(e);
    const float *gradient = pd_zero_held(e->zero)->gradient + b->gradient_offset;
    for (uint64_t row = 0, count; row < rows; row += count) {
        if (*made == most) PD_TRY(add_rows(e, made, err));
        count = rows - row < most - *made ? rows - row : most - *made;
        PD_TRY(pd_row_squares(e->math, count, columns, gradient + row * columns, e->own->norm.rows + *made, err));
        *made += count;
    }
    return PD_OK;
}

static pd_status add_bucket(struct pd_engine *e, uint32_t bucket, uint64_t *made, struct pd_error *err)
{
    const struct pd_zero_held *held = pd_zero_held(e->zero);
    PD_TRY(pd_zero_bring_sums(e->zero, bucket, err));
    for (uint32_t i = held->first_box[bucket]; i < held->first_box[bucket + 1]; i++)
        if (held->boxes[i].owned && !e->options.model->tensors.tensors[held->boxes[i].tensor].by_sign)
            PD_TRY(optimizer_add_box(e, &held->boxes[i], made, err));
    return PD_OK;
}

static pd_status add_block(void *context, uint32_t bucket, struct pd_error *err)
{
    struct pd_engine *e = context;
    uint64_t made = 0;
    PD_TRY(add_bucket(e, bucket, &made, err));
    return add_rows(e, &made, err);
}

static pd_status begin_squares(struct pd_engine *e, struct pd_error *err)
{
    struct pd_norm_sums *n = &e->own->norm;
    pd_superaccumulator_init(n->host_copy);
    return n->sum == n->host_copy ? PD_OK : pd_math_copy(e->math, n->sum, n->host_copy, sizeof *n->sum, err);
}

static pd_status read_squares(struct pd_engine *e, struct pd_error *err)
{
    struct pd_norm_sums *n = &e->own->norm;
    if (n->sum == n->host_copy) return PD_OK;
    PD_TRY(pd_math_copy(e->math, n->host_copy, n->sum, sizeof *n->sum, err));
    PD_TRY(pd_math_sync(e->math, err));
    PD_CHECK(n->host_copy->pending <= PD_SUPERACCUMULATOR_PENDING_MAX);
    return PD_OK;
}

pd_status pd_optimizer_begin(struct pd_engine *e, struct pd_error *err)
{
    if (!e->own->norm.by_block) return PD_OK;
    pd_zero_on_sums(e->zero, add_block, e);
    return begin_squares(e, err);
}

static uint64_t beside_rank(const struct pd_engine *e, uint32_t mark)
{
    return (uint64_t)mark << 32 | (mark == UINT32_MAX ? UINT32_MAX : e->grid.rank);
}

/* The first problem found by any rank, and by whom. */
static pd_status find_marks(struct pd_engine *e, struct pd_found *ret_found, struct pd_error *err)
{
    uint64_t first[3 + PD_GRADIENT_CLASSES] = {pd_zero_out_of_range(e->zero), beside_rank(e, pd_zero_not_finite(e->zero)),
                                               beside_rank(e, pd_zero_damage(e->zero))};
    const float *largest = pd_zero_largest(e->zero);
    const uint32_t classes = largest ? PD_GRADIENT_CLASSES : 0;
    /* The largest magnitude has the largest bits, so the smallest of their complements. */
    for (uint32_t i = 0; i < classes; i++)
        first[3 + i] = ~(uint64_t)pd_f32_bits(largest[i]);
    if (e->own->comm) PD_TRY(pd_comm_all_reduce(e->own->comm, first, 3 + classes, PD_REDUCE_MIN_U64, err));
    for (uint32_t i = 0; i < classes; i++)
        e->own->largest[i] = pd_f32_of_bits((uint32_t)~first[3 + i]);
    *ret_found = (struct pd_found){.out_of_range = (uint32_t)first[0],
                                   .not_finite = (uint32_t)(first[1] >> 32),
                                   .computed_by = (uint32_t)first[1],
                                   .damaged = (uint32_t)(first[2] >> 32),
                                   .who = (uint32_t)first[2]};
    return PD_OK;
}

/* The factor still in the gradients; terms no longer have it. */
static double loss_scale_of(const struct pd_engine *e)
{
    return pd_zero_held(e->zero)->makes_terms ? 1 : e->loss_scale;
}

/* Sums of blocks in files were counted when complete. */
pd_status pd_optimizer_norm(struct pd_engine *e, uint64_t tokens, double *ret_norm, struct pd_found *ret_found,
                            struct pd_error *err)
{
    uint64_t made = 0;
    if (!e->own->norm.by_block) PD_TRY(begin_squares(e, err));
    const uint32_t buckets = pd_zero_held(e->zero)->bucket_count;
    for (uint32_t bucket = 0; bucket < buckets; bucket++)
        if (!e->own->norm.by_block || bucket == 0 || bucket + 1 == buckets) PD_TRY(add_bucket(e, bucket, &made, err));
    PD_TRY(add_rows(e, &made, err));
    PD_TRY(pd_zero_read_marks(e->zero, err));
    PD_TRY(read_squares(e, err));
    PD_TRY(find_marks(e, ret_found, err));
    PD_TRY(pd_exact_sum_reduce(e->own->norm.host_copy, e->own->comm, err));
    const double total = sqrt(pd_superaccumulator_value(e->own->norm.host_copy)) / loss_scale_of(e);
    *ret_norm = ret_found->not_finite < UINT32_MAX ? (double)NAN : tokens ? total / (double)tokens : 0.0;
    return PD_OK;
}

/* Factor for every summed gradient: mean over tokens, and clip to the configured norm. Dividing by the loss scale, a power
 * of two, is exact. */
static double scale_of(const struct pd_engine *e, uint64_t tokens, double norm)
{
    const struct pd_config *c = e->options.config;
    double scale = 1.0 / (double)tokens / loss_scale_of(e);
    if (c->optimizer.clip_norm > 0 && norm > c->optimizer.clip_norm) scale *= c->optimizer.clip_norm / norm;
    return scale;
}

pd_status pd_optimizer_update_begin(struct pd_engine *e, struct pd_error *err)
{
    return pd_state_begin(e->state, &e->next_identity, &e->before_update, err);
}

void pd_optimizer_update_end(struct pd_engine *e)
{
    pd_state_end(e->state);
}

/* Every parameter, also of experts that got no token: their gradients are zeros, so their moments shrink and their weights
 * decay. Megatron, and torch where experts are stacked in one tensor, do so too; torch passes by an expert that is a module
 * of its own and has no gradient. */
pd_status pd_optimizer_update(struct pd_engine *e, uint64_t updates, uint64_t tokens, double norm, struct pd_error *err)
{
    const struct pd_config *c = e->options.config;
    const struct pd_update_config config = {.rate = pd_learning_rate(c, updates),
                                            .beta1 = c->optimizer.beta1,
                                            .beta2 = c->optimizer.beta2,
                                            .epsilon = c->optimizer.epsilon,
                                            .weight_decay = c->optimizer.weight_decay,
                                            .step = updates + 1,
                                            .seed = c->run.seed,
                                            .scale = scale_of(e, tokens, norm)};
    const struct pd_update_step step = pd_state_rule(e->state)->prepare(&config);
    if (!tokens)
        PD_FAIL(err, PD_INVALID,
                "a batch has no token to learn from: every target of it is masked; look at data.document_token, and with "
                "perdure "
                "data inspect at what has a loss");
    return pd_state_update(e->state, &step, &e->before_update, err);
}
