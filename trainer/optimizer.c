#include "trainer/optimizer.h"

#include "offload/cpu_adam.h"
#include "trainer/math/superaccumulator.h"

#include <math.h>

double pd_learning_rate(const struct pd_config *config, uint64_t update)
{
    const double peak = config->optimizer.lr, floor_lr = config->optimizer.min_lr;
    const uint64_t warmup = config->optimizer.warmup_steps;
    const uint64_t end = config->optimizer.decay_steps ? config->optimizer.decay_steps : config->run.steps;
    if (update < warmup) return peak * (double)(update + 1) / (double)warmup;
    if (update >= end || end <= warmup) return floor_lr;
    double progress = (double)(update - warmup) / (double)(end - warmup);
    return floor_lr + 0.5 * (peak - floor_lr) * (1.0 + cos(3.14159265358979323846 * progress));
}

/* A tensor of two dimensions has its rows; one of one dimension is rows of one element. */
static pd_status add_box(struct pd_engine *e, const struct pd_zero_box *b, struct pd_superaccumulator *sum, struct pd_error *err)
{
    uint64_t columns = b->box.count[1], rows = b->box.count[0];
    const float *gradient = pd_zero_gradient(e->zero) + b->gradient_offset;
    for (uint64_t row = 0; row < rows; row += PD_OPTIMIZER_NORM_ROWS) {
        uint64_t count = rows - row < PD_OPTIMIZER_NORM_ROWS ? rows - row : PD_OPTIMIZER_NORM_ROWS;
        PD_TRY(pd_row_squares(e->math, count, columns, gradient + row * columns, e->row_sums, err));
        for (uint64_t i = 0; i < count; i++) pd_superaccumulator_add(sum, e->row_sums[i]);
    }
    return PD_OK;
}

pd_status pd_optimizer_norm(struct pd_engine *e, uint64_t tokens, double *ret_norm, struct pd_error *err)
{
    struct pd_superaccumulator sum;
    pd_superaccumulator_init(&sum);
    for (uint32_t i = 0; i < pd_zero_box_count(e->zero); i++) PD_TRY(add_box(e, &pd_zero_boxes(e->zero)[i], &sum, err));
    PD_TRY(pd_superaccumulator_reduce(&sum, e->comm, err));
    *ret_norm = tokens ? sqrt(pd_superaccumulator_to_double(&sum)) / (double)tokens : 0.0;
    return PD_OK;
}
