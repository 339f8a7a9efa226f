#include "trainer/model/transformer_internal.h"

struct pd_norm pd_norm_of(const struct pd_transformer *t, const void *x, const void *weight, const void *bias, float *mean,
                          float *rstd, void *out)
{
    return (struct pd_norm){.rows = t->rows,
                            .columns = t->model->config.hidden,
                            .dtype = t->options.dtype,
                            .epsilon = t->model->config.norm_epsilon,
                            .x = x,
                            .weight = weight,
                            .bias = bias,
                            .mean = mean,
                            .rstd = rstd,
                            .out = out};
}

/* Writes vector gradients to their destination; if they are accumulated, computes them apart first. */
pd_status pd_norm_gradient(struct pd_transformer *t, const struct pd_norm *norm, const void *dresidual, float *dweight,
                           float *dbias, struct pd_error *err)
{
    struct pd_norm n = *norm;
    n.dout = t->dnorm;
    n.dresidual = dresidual;
    n.dx = t->dstream;
    n.dweight = t->adds ? t->vector : dweight;
    n.dbias = t->adds && dbias ? t->vector + n.columns : dbias;
    for (uint32_t place = 0; place < t->sp.pieces; place++) {
        const uint64_t bytes = t->sp.rows[place] * n.columns * t->element_bytes;
        n.rows = t->sp.rows[place];
        PD_TRY(pd_norm_backward(t->math, &n, err));
        PD_TRY(pd_take_piece(t, dweight, n.columns, err));
        if (dbias) PD_TRY(pd_take_piece(t, dbias, n.columns, err));
        n.x = (const char *)n.x + bytes;
        n.dout = (const char *)n.dout + bytes;
        n.dx = (char *)n.dx + bytes;
        if (n.dresidual) n.dresidual = (const char *)n.dresidual + bytes;
        n.rstd += n.rows;
        if (n.mean) n.mean += n.rows;
    }
    if (!t->adds) return PD_OK;
    PD_TRY(pd_add(t->math, n.columns, dweight, n.dweight, err));
    return dbias ? pd_add(t->math, n.columns, dbias, n.dbias, err) : PD_OK;
}
