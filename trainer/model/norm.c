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

/* dweight and dbias lie one behind the other here, so that one tree makes both. */
static pd_status norm_piece(struct pd_transformer *t, void *context, uint32_t place, float *dst, struct pd_error *err)
{
    struct pd_norm n = *(const struct pd_norm *)context;
    const uint64_t row = t->sp.row[place], bytes = row * n.columns * t->element_bytes;
    n.rows = t->sp.rows[place];
    n.x = (const char *)n.x + bytes;
    n.dout = (const char *)n.dout + bytes;
    n.dx = (char *)n.dx + bytes;
    if (n.dresidual) n.dresidual = (const char *)n.dresidual + bytes;
    n.rstd += row;
    if (n.mean) n.mean += row;
    n.dweight = dst;
    n.dbias = pd_norm_is_layer(t) ? dst + n.columns : NULL;
    return pd_norm_backward(t->math, &n, err);
}

/* The vector of a piece lies as the tree would have it, and goes to its places. */
static pd_status norm_pieces(struct pd_transformer *t, struct pd_norm *n, float *dweight, float *dbias, struct pd_error *err)
{
    for (uint32_t place = 0; place < t->sp.pieces; place++) {
        PD_TRY(norm_piece(t, n, place, t->vector, err));
        PD_TRY(pd_add(t->math, n->columns, dweight, PD_F32, t->vector, true, err));
        PD_TRY(pd_take_piece(t, dweight, n->columns, err));
        if (!dbias) continue;
        PD_TRY(pd_add(t->math, n->columns, dbias, PD_F32, t->vector + n->columns, true, err));
        PD_TRY(pd_take_piece(t, dbias, n->columns, err));
    }
    return PD_OK;
}

pd_status pd_norm_gradient(struct pd_transformer *t, const struct pd_norm *norm, const void *dresidual, float *dweight,
                           float *dbias, struct pd_error *err)
{
    struct pd_norm n = *norm;
    n.dout = t->dnorm;
    n.dresidual = dresidual;
    n.dx = t->dstream;
    if (pd_takes_pieces(t)) return norm_pieces(t, &n, dweight, dbias, err);
    PD_TRY(pd_sum_pieces(t, (pd_norm_is_layer(t) ? 2 : 1) * n.columns, norm_piece, &n, t->vector, err));
    PD_TRY(pd_add(t->math, n.columns, dweight, PD_F32, t->vector, !t->adds, err));
    if (!dbias) return PD_OK;
    return pd_add(t->math, n.columns, dbias, PD_F32, t->vector + n.columns, !t->adds, err);
}
