/* Attention of one block between the projections: RoPE, then whole sequences or parts of them. */
#include "trainer/model/transformer_internal.h"

static pd_status rotate_run(struct pd_transformer *t, const struct pd_micro_batch_input *input, struct pd_range rows,
                            char *x, uint64_t columns, uint64_t ld, bool inverse, struct pd_error *err)
{
    struct pd_rope rope = {.rows = rows.end - rows.begin,
                           .heads = (uint32_t)(columns / t->model->config.head_size),
                           .head_size = t->model->config.head_size,
                           .dtype = t->options.dtype,
                           .x = x + rows.begin * ld * t->element_bytes,
                           .ld = ld,
                           .positions = input->positions + rows.begin,
                           .cos_sin = t->cos_sin,
                           .rotated = t->model->config.rotated,
                           .inverse = inverse};
    return rope.heads ? pd_rope(t->math, &rope, err) : PD_OK;
}

/* head_norms.c rotates if heads have norms; heads_exchange.c if heads are exchanged for rows. */
static pd_status rotate(struct pd_transformer *t, const struct pd_micro_batch_input *input, struct pd_range rows,
                        const struct pd_qkv *x, uint64_t k_columns, bool inverse, struct pd_error *err)
{
    const uint64_t q = t->share.q_columns;
    if (!pd_attention_rotates(t) || t->sp.by_heads) return PD_OK;
    /* q and k are neighbours, so their heads are rotated as one run. */
    if (!t->sp.by_parts) return rotate_run(t, input, rows, x->q, q + k_columns, x->ld_q, inverse, err);
    PD_TRY(rotate_run(t, input, rows, x->q, q, x->ld_q, inverse, err));
    return rotate_run(t, input, rows, x->k, k_columns, x->ld_kv, inverse, err);
}

pd_status pd_block_attention_forward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                     struct pd_block_activations *a, struct pd_error *err)
{
    struct pd_qkv x = pd_qkv_of(t, a->qkv, t->share.k_columns);
    struct pd_attention attention = pd_attention_of(t);
    if (!attention.heads) return PD_OK;
    PD_TRY(rotate(t, input, (struct pd_range){0, t->rows}, &x, t->share.k_columns, false, err));
    if (t->sp.by_parts) return pd_parts_forward(t, input, a, err);
    attention.q = x.q;
    attention.k = x.k;
    attention.v = x.v;
    attention.ld_qkv = x.ld_q;
    attention.first = t->options.separate_documents ? input->first : NULL;
    attention.out = a->attention;
    attention.lse = a->lse;
    return pd_attention_forward(t->math, &attention, err);
}

static pd_status whole_backward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                struct pd_block_activations *a, struct pd_attention *attention, struct pd_error *err)
{
    struct pd_qkv x = pd_qkv_of(t, a->qkv, t->share.k_columns);
    attention->q = x.q;
    attention->k = x.k;
    attention->v = x.v;
    attention->ld_qkv = x.ld_q;
    attention->first = t->options.separate_documents ? input->first : NULL;
    attention->out = a->attention;
    attention->lse = a->lse;
    attention->dout = t->dattention;
    attention->delta = t->delta;
    return pd_attention_backward(t->math, attention, err);
}

pd_status pd_block_attention_backward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                      struct pd_block_activations *a, struct pd_error *err)
{
    const struct pd_share *s = &t->share;
    struct pd_qkv d = pd_qkv_of(t, t->dqkv, s->dk_columns);
    struct pd_attention attention = pd_attention_of(t);
    attention.dq = d.q;
    attention.ld_dq = d.ld_q;
    attention.dk = s->kv_is_shared ? (void *)t->tp.dk_partial : d.k;
    attention.dv = s->kv_is_shared ? (void *)t->tp.dv_partial : d.v;
    attention.ld_dkv = s->kv_is_shared ? s->k_columns : d.ld_kv;
    attention.kv_partial = s->kv_is_shared;
    if (attention.heads && t->sp.by_parts) PD_TRY(pd_parts_backward(t, input, a, &attention, err));
    if (attention.heads && !t->sp.by_parts) PD_TRY(whole_backward(t, input, a, &attention, err));
    if (s->kv_is_shared) PD_TRY(pd_kv_combine(t, &d, err));
    return rotate(t, input, (struct pd_range){0, t->rows}, &d, s->dk_columns, true, err);
}
