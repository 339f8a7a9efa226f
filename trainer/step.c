/* One training step, readable from top to bottom: see engine.h for its outline. */
#include "trainer/engine.h"

#include "trainer/exact_sum.h"
#include "trainer/optimizer.h"

#include <math.h>

struct step {
    struct pd_engine *e;
    uint64_t first_sample;
    uint32_t slot;
    bool ghost; /* this rank has no leaf in this slot: it takes part in transfers only */
    struct pd_superaccumulator loss;
    uint64_t tokens;
};

static uint32_t head_set(const struct pd_engine *e)
{
    return pd_zero_set_count(e->zero) - 1;
}

static pd_status fill_input(struct pd_engine *e, enum pd_split split, uint64_t first_sample, struct pd_error *err)
{
    struct pd_leaf_input *in = pd_transformer_input(e->transformer, 0);
    const uint64_t length = e->options.config->batch.context;
    for (uint64_t s = 0; s < e->options.config->batch.leaf; s++)
        PD_TRY(pd_data_sample(e->data, split, first_sample + s, in->tokens + s * length, in->targets + s * length,
                              in->positions + s * length, in->first + s * length, err));
    return PD_OK;
}

/* Token losses into the exact sum; only rows [0, rows) count. */
static void account(struct pd_engine *e, uint64_t rows, struct pd_superaccumulator *loss, uint64_t *tokens)
{
    const int32_t *targets = pd_transformer_input(e->transformer, 0)->targets;
    const float *losses = pd_transformer_losses(e->transformer);
    for (uint64_t r = 0; r < rows; r++) {
        if (targets[r] < 0) continue;
        pd_superaccumulator_add(loss, losses[r]);
        ++*tokens;
    }
}

static pd_status forward(struct pd_engine *e, bool ghost, struct pd_error *err)
{
    const uint32_t head = head_set(e);
    void *const *weights;
    PD_TRY(pd_zero_acquire(e->zero, 0, &weights, err));
    PD_TRY(pd_zero_prefetch(e->zero, 1, err));
    if (!ghost) PD_TRY(pd_transformer_embed(e->transformer, 0, weights, err));
    for (uint32_t set = 1; set < head; set++) {
        PD_TRY(pd_zero_acquire(e->zero, set, &weights, err));
        PD_TRY(pd_zero_prefetch(e->zero, set + 1, err));
        if (!ghost) PD_TRY(pd_transformer_block_forward(e->transformer, 0, set - 1, weights, NULL, err));
    }
    return PD_OK;
}

static pd_status head(struct step *s, struct pd_error *err)
{
    struct pd_engine *e = s->e;
    void *const *weights;
    float *const *gradients;
    PD_TRY(pd_zero_acquire(e->zero, head_set(e), &weights, err));
    PD_TRY(pd_zero_leaf_gradients(e->zero, head_set(e), s->slot, &gradients, err));
    if (!s->ghost) {
        PD_TRY(pd_transformer_head(e->transformer, 0, weights, gradients, 1.0f, e->dstream, err));
        account(e, (uint64_t)e->options.config->batch.leaf * e->options.config->batch.context, &s->loss, &s->tokens);
    }
    return pd_zero_push_gradients(e->zero, head_set(e), s->slot, err);
}

static pd_status backward(struct step *s, struct pd_error *err)
{
    struct pd_engine *e = s->e;
    void *const *weights;
    float *const *gradients;
    for (uint32_t set = head_set(e) - 1; set > 0; set--) {
        PD_TRY(pd_zero_acquire(e->zero, set, &weights, err));
        if (set > 1) PD_TRY(pd_zero_prefetch(e->zero, set - 1, err));
        PD_TRY(pd_zero_leaf_gradients(e->zero, set, s->slot, &gradients, err));
        if (!s->ghost)
            PD_TRY(pd_transformer_block_backward(e->transformer, 0, set - 1, weights, gradients, e->dstream, err));
        PD_TRY(pd_zero_push_gradients(e->zero, set, s->slot, err));
    }
    PD_TRY(pd_zero_leaf_gradients(e->zero, 0, s->slot, &gradients, err));
    if (!s->ghost) PD_TRY(pd_transformer_embed_backward(e->transformer, 0, gradients, e->dstream, err));
    return pd_zero_push_gradients(e->zero, 0, s->slot, err);
}

/* All ranks leave together or none does. */
static pd_status check_leave(struct pd_engine *e, struct pd_error *err)
{
    uint64_t leave = e->should_leave && e->should_leave(e->leave_context);
    if (e->comm) PD_TRY(pd_comm_all_reduce(e->comm, &leave, 1, PD_REDUCE_OR_U64, err));
    if (leave) PD_FAIL(err, PD_STOPPED, "left between two leaves, as asked");
    return PD_OK;
}

static pd_status run_slot(struct step *s, struct pd_error *err)
{
    struct pd_engine *e = s->e;
    uint64_t leaf = (uint64_t)s->slot * e->options.world + e->options.rank;
    s->ghost = leaf >= e->leaves;
    PD_TRY(check_leave(e, err));
    if (!s->ghost) PD_TRY(fill_input(e, PD_SPLIT_TRAIN, s->first_sample + leaf * e->options.config->batch.leaf, err));
    PD_TRY(forward(e, s->ghost, err));
    PD_TRY(head(s, err));
    return backward(s, err);
}

/* Mean of the exact sum over all ranks. */
static pd_status reduce_loss(struct pd_engine *e, struct pd_superaccumulator *loss, uint64_t *tokens, double *ret_mean,
                             struct pd_error *err)
{
    PD_TRY(pd_exact_sum_reduce(loss, e->comm, err));
    if (e->comm) PD_TRY(pd_comm_all_reduce(e->comm, tokens, 1, PD_REDUCE_SUM_U64, err));
    *ret_mean = *tokens ? pd_superaccumulator_value(loss) / (double)*tokens : 0.0;
    return PD_OK;
}

pd_status pd_engine_step(struct pd_engine *e, uint64_t first_sample, uint64_t updates, struct pd_step_result *ret_result,
                         struct pd_error *err)
{
    struct step s = {.e = e, .first_sample = first_sample};
    pd_superaccumulator_init(&s.loss);
    for (s.slot = 0; s.slot < e->slots; s.slot++)
        PD_TRY(run_slot(&s, err));
    struct pd_step_result result = {.learning_rate = pd_learning_rate(e->options.config, updates)};
    PD_TRY(reduce_loss(e, &s.loss, &s.tokens, &result.loss, err));
    result.tokens = s.tokens;
    PD_TRY(pd_zero_finish_gradients(e->zero, err));
    PD_TRY(pd_optimizer_norm(e, s.tokens, &result.gradient_norm, err));
    if (!isfinite(result.loss) || !isfinite(result.gradient_norm))
        PD_FAIL(err, PD_BUG,
                "loss %g, gradient norm %g: not finite; lower optimizer.lr, or look at the data of samples %llu to %llu",
                result.loss, result.gradient_norm, (unsigned long long)first_sample,
                (unsigned long long)first_sample + e->options.config->batch.sequences - 1);
    PD_TRY(pd_optimizer_update(e, updates, s.tokens, result.gradient_norm, err));
    *ret_result = result;
    return PD_OK;
}

pd_status pd_engine_validate(struct pd_engine *e, uint32_t sequences, double *ret_loss, struct pd_error *err)
{
    const uint64_t leaf = e->options.config->batch.leaf, length = e->options.config->batch.context;
    const uint64_t leaves = (sequences + leaf - 1) / leaf, world = e->options.world;
    struct pd_superaccumulator loss;
    pd_superaccumulator_init(&loss);
    uint64_t tokens = 0;
    for (uint64_t first = 0; first < leaves; first += world) {
        uint64_t mine = first + e->options.rank;
        bool ghost = mine >= leaves;
        PD_TRY(check_leave(e, err));
        if (!ghost) PD_TRY(fill_input(e, PD_SPLIT_VALIDATION, mine * leaf, err));
        PD_TRY(forward(e, ghost, err));
        void *const *weights;
        PD_TRY(pd_zero_acquire(e->zero, head_set(e), &weights, err));
        if (ghost) continue;
        PD_TRY(pd_transformer_head(e->transformer, 0, weights, NULL, 1.0f, NULL, err));
        uint64_t counted = sequences - mine * leaf < leaf ? sequences - mine * leaf : leaf;
        account(e, counted * length, &loss, &tokens);
    }
    return reduce_loss(e, &loss, &tokens, ret_loss, err);
}
