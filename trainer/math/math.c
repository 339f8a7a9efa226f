/* The wrappers check sizes and pointers, so that every backend's slots can rely on them. A rank with an empty share makes
 * the same calls; its pointers may be NULL. */
#include "trainer/math/math.h"

void pd_math_free(struct pd_math *math)
{
    if (math) math->ops->free(math);
}

static bool dtype_is_known(enum pd_dtype dtype)
{
    return (unsigned)dtype < PD_DTYPE_RUN_COUNT;
}

static void check_matrix(const struct pd_matrix *matrix, uint64_t rows, uint64_t columns)
{
    PD_CHECK(dtype_is_known(matrix->dtype));
    PD_CHECK(rows == 0 || columns == 0 || matrix->data);
    PD_CHECK(rows <= 1 || matrix->ld >= columns);
}

pd_status pd_gemm(struct pd_math *math, const struct pd_gemm *g, struct pd_error *err)
{
    check_matrix(&g->c, g->m, g->n);
    if (g->m && g->n) {
        check_matrix(&g->a, g->trans_a ? g->k : g->m, g->trans_a ? g->m : g->k);
        check_matrix(&g->b, g->trans_b ? g->n : g->k, g->trans_b ? g->k : g->n);
    }
    if (g->a_format || g->b_format) {
        PD_CHECK(g->a_format && g->b_format && (g->a_format == PD_FP8_E4M3 || g->b_format == PD_FP8_E4M3));
        PD_CHECK(g->a_scale && g->b_scale && !g->trans_a && g->trans_b);
    }
    PD_CHECK(!g->accumulate || g->c.dtype == PD_F32);
    PD_CHECK(!g->bias || dtype_is_known(g->bias_dtype));
    if (g->residual.data) check_matrix(&g->residual, g->m, g->n);
    PD_CHECK(g->residual.data != g->c.data || !g->c.data || (g->residual.ld == g->c.ld && !g->accumulate));
    return math->ops->gemm(math, g, err);
}

static void check_norm(const struct pd_norm *n)
{
    PD_CHECK(n->columns > 0 && dtype_is_known(n->dtype) && n->x && n->weight && n->rstd);
    PD_CHECK(n->heads ? !n->mean && n->kept_heads >= n->heads && n->ld >= n->heads * n->columns && n->rows % n->heads == 0
                      : !n->kept && !n->positions && !n->other_weight);
    PD_CHECK(!n->heads || n->columns % 2 == 0);
    PD_CHECK(!n->positions || n->cos_sin);
    PD_CHECK(!n->rotated || (n->rotated % 2 == 0 && n->rotated <= n->columns && (!n->dout || n->dout == n->dx)));
}

pd_status pd_norm_forward(struct pd_math *math, const struct pd_norm *n, struct pd_error *err)
{
    check_norm(n);
    PD_CHECK(n->out && !n->mean == !n->bias);
    return math->ops->norm_forward(math, n, err);
}

pd_status pd_norm_backward(struct pd_math *math, const struct pd_norm *n, struct pd_error *err)
{
    check_norm(n);
    PD_CHECK(n->dout && n->dx && n->dweight && !n->mean == !n->dbias && !n->other_weight);
    return math->ops->norm_backward(math, n, err);
}

pd_status pd_rope(struct pd_math *math, const struct pd_rope *r, struct pd_error *err)
{
    if (r->rows == 0 || r->heads == 0) return PD_OK;
    PD_CHECK(dtype_is_known(r->dtype) && r->x && r->positions && r->cos_sin);
    PD_CHECK(r->head_size > 0 && r->head_size % 2 == 0 && r->ld >= (uint64_t)r->heads * r->head_size);
    PD_CHECK(!r->rotated || (r->rotated % 2 == 0 && r->rotated <= r->head_size && !r->from));
    PD_CHECK(!r->from || r->ld_from >= (uint64_t)r->heads * r->head_size);
    return math->ops->rope(math, r, err);
}

struct pd_attention pd_attention_resolve(const struct pd_attention *a, bool parts)
{
    struct pd_attention r = *a;
    if (!parts) {
        r.query_start = r.key_start = 0;
        r.key_length = a->length;
        r.first_part = r.last_part = true;
    }
    if (!r.group && r.kv_heads) r.group = r.heads / r.kv_heads;
    if (!r.head_chunk) r.head_chunk = r.heads;
    if (!r.ld_kv) r.ld_kv = r.ld_qkv;
    if (!r.ld_dq) r.ld_dq = r.ld_qkv;
    if (!r.ld_dkv) r.ld_dkv = r.ld_kv;
    return r;
}

static void check_attention(const struct pd_attention *a, bool parts)
{
    const uint64_t width = (uint64_t)a->heads * a->head_size, kv_width = (uint64_t)a->kv_heads * a->head_size;
    /* Query heads of this rank fill its key-value heads without gaps; the first and the last may be shared with neighbours. */
    PD_CHECK(dtype_is_known(a->dtype) && a->head_size > 0 && a->kv_heads > 0);
    if (a->group) {
        PD_CHECK(a->group_offset < a->group);
        PD_CHECK(((uint64_t)a->heads + a->group_offset + a->group - 1) / a->group == a->kv_heads);
    } else {
        PD_CHECK(a->group_offset == 0 && a->heads % a->kv_heads == 0);
    }
    PD_CHECK(a->q && a->k && a->v);
    PD_CHECK(a->ld_qkv >= width && (a->ld_kv ? a->ld_kv : a->ld_qkv) >= kv_width);
    PD_CHECK((uint64_t)a->query_start + a->length <= 1u << 24); /* positions are compared in fp32 */
    PD_CHECK(!parts || a->length == 0 || a->key_start < (uint64_t)a->query_start + a->length);
}

static void check_attention_kv_gradient(const struct pd_attention *a)
{
    const uint64_t ld_kv = a->ld_kv ? a->ld_kv : a->ld_qkv;
    PD_CHECK(a->dk && a->dv && (a->ld_dkv ? a->ld_dkv : ld_kv) >= (uint64_t)a->kv_heads * a->head_size);
}

static void check_attention_query_gradient(const struct pd_attention *a)
{
    PD_CHECK(a->dq && (a->ld_dq ? a->ld_dq : a->ld_qkv) >= (uint64_t)a->heads * a->head_size);
}

/* A rank with more chunks than heads may have none; a part of a short sequence may have no positions. */
static bool attention_is_empty(const struct pd_attention *a, uint32_t positions)
{
    return a->heads == 0 || a->sequences == 0 || positions == 0;
}

pd_status pd_attention_forward(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    if (attention_is_empty(a, a->length)) return PD_OK;
    check_attention(a, a->acc != NULL);
    PD_CHECK(a->acc ? a->max && a->sum : !a->max && !a->sum);
    PD_CHECK((a->acc && !a->last_part) || (a->out && a->lse));
    return math->ops->attention_forward(math, a, err);
}

pd_status pd_attention_backward(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    if (attention_is_empty(a, a->length)) return PD_OK;
    check_attention(a, false);
    check_attention_query_gradient(a);
    check_attention_kv_gradient(a);
    PD_CHECK(a->out && a->lse && a->dout && a->delta);
    return math->ops->attention_backward(math, a, err);
}

pd_status pd_attention_delta(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    if (attention_is_empty(a, a->length)) return PD_OK;
    PD_CHECK(dtype_is_known(a->dtype) && a->head_size > 0 && a->out && a->dout && a->delta);
    return math->ops->attention_delta(math, a, err);
}

pd_status pd_attention_backward_queries(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    if (attention_is_empty(a, a->length)) return PD_OK;
    check_attention(a, true);
    PD_CHECK(a->lse && a->dout && a->delta && ((a->first_part && a->last_part) || a->dq_acc));
    if (a->last_part) check_attention_query_gradient(a);
    return math->ops->attention_backward_queries(math, a, err);
}

pd_status pd_attention_backward_keys(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    if (attention_is_empty(a, a->key_length)) return PD_OK;
    check_attention(a, true);
    PD_CHECK(a->lse && a->dout && a->delta && ((a->first_part && a->last_part) || (a->dk_acc && a->dv_acc)));
    if (a->last_part) check_attention_kv_gradient(a);
    return math->ops->attention_backward_keys(math, a, err);
}

static bool is_power_of_two(uint64_t x)
{
    return x && !(x & (x - 1));
}

pd_status pd_finish(struct pd_math *math, const struct pd_finish *f, struct pd_error *err)
{
    PD_CHECK(is_power_of_two(f->part_count) && f->parts && (!f->ld_parts || f->ld_parts >= f->columns));
    PD_CHECK(!f->bias || dtype_is_known(f->bias_dtype));
    check_matrix(&f->out, f->rows, f->columns);
    if (f->residual.data) check_matrix(&f->residual, f->rows, f->columns);
    return math->ops->finish(math, f, err);
}

pd_status pd_swiglu_forward(struct pd_math *math, uint64_t rows, uint64_t columns, enum pd_dtype dtype, const void *gate_up,
                            void *out, struct pd_error *err)
{
    if (rows == 0 || columns == 0) return PD_OK;
    PD_CHECK(dtype_is_known(dtype) && gate_up && out);
    return math->ops->swiglu_forward(math, rows, columns, dtype, gate_up, out, err);
}

pd_status pd_swiglu_backward(struct pd_math *math, uint64_t rows, uint64_t columns, enum pd_dtype dtype, const void *gate_up,
                             const void *dout, void *dgate_up, struct pd_error *err)
{
    if (rows == 0 || columns == 0) return PD_OK;
    PD_CHECK(dtype_is_known(dtype) && gate_up && dout && dgate_up);
    return math->ops->swiglu_backward(math, rows, columns, dtype, gate_up, dout, dgate_up, err);
}

pd_status pd_gelu_forward(struct pd_math *math, uint64_t count, enum pd_dtype dtype, const void *x, void *out,
                          struct pd_error *err)
{
    if (count == 0) return PD_OK;
    PD_CHECK(dtype_is_known(dtype) && x && out);
    return math->ops->gelu_forward(math, count, dtype, x, out, err);
}

pd_status pd_gelu_backward(struct pd_math *math, uint64_t count, enum pd_dtype dtype, const void *x, const void *dout,
                           void *dx, struct pd_error *err)
{
    if (count == 0) return PD_OK;
    PD_CHECK(dtype_is_known(dtype) && x && dout && dx);
    return math->ops->gelu_backward(math, count, dtype, x, dout, dx, err);
}

/* A rank may hold no row of the table. */
static void check_embedding(const struct pd_embedding *e)
{
    PD_CHECK(dtype_is_known(e->dtype) && (e->tokens || !e->rows) && e->columns > 0 && e->rows <= UINT32_MAX);
}

/* Their values are in device memory, where the backend checks them. */
static void check_positions(const struct pd_embedding *e)
{
    PD_CHECK(e->context > 0 && e->context <= INT32_MAX && (e->positions || !e->rows));
}

pd_status pd_embedding_forward(struct pd_math *math, const struct pd_embedding *e, struct pd_error *err)
{
    check_embedding(e);
    if (e->rows == 0 || e->vocab == 0) return PD_OK;
    PD_CHECK(e->token_table && e->out);
    if (e->position_table) check_positions(e);
    return math->ops->embedding_forward(math, e, err);
}

pd_status pd_embedding_backward(struct pd_math *math, const struct pd_embedding *e, struct pd_error *err)
{
    check_embedding(e);
    PD_CHECK(e->dout || !e->rows);
    if (e->dposition_table) check_positions(e);
    return math->ops->embedding_backward(math, e, err);
}

/* A rank's share of a cut vocabulary may be empty; a whole vocabulary may not. */
static void check_loss(const struct pd_cross_entropy *l, bool cut)
{
    PD_CHECK(l->chunks > 0 && l->ld >= l->vocab && (!l->rows || l->targets));
    PD_CHECK(cut || l->vocab > 0);
    PD_CHECK(!l->rows || !l->vocab || l->logits);
    PD_CHECK(l->chunk == 0 || l->vocab <= l->chunk * l->chunks);
    PD_CHECK(l->logits_dtype == PD_F32 || l->logits_dtype == l->dtype);
}

pd_status pd_logits_max(struct pd_math *math, const struct pd_cross_entropy *l, struct pd_error *err)
{
    check_loss(l, true);
    PD_CHECK(!l->rows || l->max);
    return math->ops->logits_max(math, l, err);
}

pd_status pd_logits_sum(struct pd_math *math, const struct pd_cross_entropy *l, struct pd_error *err)
{
    check_loss(l, true);
    PD_CHECK(!l->rows || (l->max && l->sum && l->target_logit));
    return math->ops->logits_sum(math, l, err);
}

pd_status pd_logits_join(struct pd_math *math, const struct pd_logits_join *j, struct pd_error *err)
{
    if (j->rows == 0) return PD_OK;
    PD_CHECK(j->ranks > 0 && j->ld >= j->rows && (!j->max || j->all_max));
    PD_CHECK(!j->target_logit || (j->all_targets && j->targets && j->rank_columns > 0));
    return math->ops->logits_join(math, j, err);
}

pd_status pd_logits_part(struct pd_math *math, const struct pd_cross_entropy *l, struct pd_error *err)
{
    check_loss(l, false);
    PD_CHECK(!l->rows || (l->max && l->sum && l->target_logit));
    return math->ops->logits_part(math, l, err);
}

pd_status pd_logits_rescale(struct pd_math *math, uint64_t rows, const float *part_max, const float *max, float *sum,
                            struct pd_error *err)
{
    PD_CHECK(!rows || (part_max && max && sum));
    return rows ? math->ops->logits_rescale(math, rows, part_max, max, sum, err) : PD_OK;
}

pd_status pd_cross_entropy(struct pd_math *math, const struct pd_cross_entropy *l, struct pd_error *err)
{
    check_loss(l, l->max != NULL);
    PD_CHECK(!l->max || (l->sum && l->target_logit));
    PD_CHECK(dtype_is_known(l->dtype) && (!l->rows || l->losses) && (!l->dlogits || l->ld_dlogits >= l->vocab));
    return math->ops->cross_entropy(math, l, err);
}

pd_status pd_column_sum(struct pd_math *math, uint64_t rows, uint64_t n, uint64_t ld, enum pd_dtype dtype, const void *x,
                        float *out, struct pd_error *err)
{
    PD_CHECK(dtype_is_known(dtype) && (rows <= 1 || ld >= n) && (rows == 0 || n == 0 || x) && (n == 0 || out));
    return math->ops->column_sum(math, rows, n, ld, dtype, x, out, err);
}

pd_status pd_add(struct pd_math *math, uint64_t n, float *sum, const float *more, struct pd_error *err)
{
    PD_CHECK(n == 0 || (sum && more));
    return math->ops->add(math, n, sum, more, err);
}

pd_status pd_cast(struct pd_math *math, uint64_t n, enum pd_dtype dst_dtype, void *dst, enum pd_dtype src_dtype,
                  const void *src, struct pd_error *err)
{
    PD_CHECK(dtype_is_known(dst_dtype) && dtype_is_known(src_dtype) && (n == 0 || (dst && src)));
    return math->ops->cast(math, n, dst_dtype, dst, src_dtype, src, err);
}

pd_status pd_copy_rows(struct pd_math *math, uint64_t rows, uint64_t bytes, void *dst, uint64_t ld_dst, const void *src,
                       uint64_t ld_src, struct pd_error *err)
{
    if (rows == 0 || bytes == 0) return PD_OK;
    PD_CHECK(dst && src && ld_dst >= bytes && ld_src >= bytes);
    return math->ops->copy_rows(math, rows, bytes, dst, ld_dst, src, ld_src, err);
}

pd_status pd_quantize(struct pd_math *math, const struct pd_quantize *q, struct pd_error *err)
{
    if (q->rows == 0 || q->columns == 0) return PD_OK;
    check_matrix(&q->x, q->rows, q->columns);
    PD_CHECK((q->format == PD_FP8_E4M3 || q->format == PD_FP8_E5M2) && q->scale);
    struct pd_quantize resolved = *q;
    if (!q->transposed_rows) resolved.transposed_rows = q->rows;
    PD_CHECK(!q->codes || q->ld_codes >= q->columns);
    PD_CHECK(resolved.transposed_rows >= q->rows && resolved.transposed_rows <= (q->rows + 15) / 16 * 16);
    PD_CHECK(!q->transposed || q->ld_transposed >= resolved.transposed_rows);
    return math->ops->quantize(math, &resolved, err);
}

pd_status pd_copy_pieces(struct pd_math *math, const struct pd_copies *c, struct pd_error *err)
{
    PD_CHECK(c->count <= PD_COPIES_MAX);
    for (uint32_t i = 0; i < c->count; i++)
        PD_CHECK(!c->pieces[i].bytes || (c->pieces[i].to && c->pieces[i].from));
    return c->count ? math->ops->copy_pieces(math, c, err) : PD_OK;
}

pd_status pd_terms(struct pd_math *math, const struct pd_terms *t, struct pd_error *err)
{
    PD_CHECK(t->run_count <= PD_TERM_RUNS_MAX && (t->run_count == 0 || t->runs));
    PD_CHECK(t->source == PD_TERM_INTEGER || (t->limit > 0 && t->limit <= (t->are_narrow ? 0x1p31 : 0x1p63)));
    for (uint32_t i = 0; i < t->run_count; i++) {
        const struct pd_term_run *run = &t->runs[i];
        PD_CHECK((run->n == 0 || run->to || !run->adds) && (!run->check_begins || run->check));
        PD_CHECK(t->source == PD_TERM_INTEGER || !run->from || run->scale > 0);
    }
    return t->run_count ? math->ops->terms(math, t, err) : PD_OK;
}

pd_status pd_term_sums(struct pd_math *math, const struct pd_term_sums *s, struct pd_error *err)
{
    PD_CHECK((s->n == 0 || (s->sums && s->out)) && s->quantum > 0 && (!s->largest || s->are_narrow));
    return math->ops->term_sums(math, s, err);
}

pd_status pd_row_squares(struct pd_math *math, uint64_t rows, uint64_t columns, const float *x, double *sums,
                         struct pd_error *err)
{
    PD_CHECK(rows == 0 || (x && sums));
    return math->ops->row_squares(math, rows, columns, x, sums, err);
}

static void check_route(const struct pd_route *r)
{
    PD_CHECK(r->experts && r->experts <= PD_EXPERTS_MAX && r->per_token && r->per_token <= r->experts);
    PD_CHECK(r->groups && r->experts % r->groups == 0 && r->groups <= PD_EXPERTS_MAX / 2 && r->groups_kept <= r->groups);
    PD_CHECK(r->scores && r->choice && r->lse && r->logits);
}

pd_status pd_route_forward(struct pd_math *math, const struct pd_route *r, struct pd_error *err)
{
    check_route(r);
    PD_CHECK(r->weights);
    return math->ops->route_forward(math, r, err);
}

pd_status pd_route_backward(struct pd_math *math, const struct pd_route *r, struct pd_error *err)
{
    check_route(r);
    PD_CHECK(r->dweights && r->dlogits && (r->dlogits != r->logits || !r->is_sigmoid || r->z == 0));
    return math->ops->route_backward(math, r, err);
}

pd_status pd_slot_order(struct pd_math *math, const struct pd_slot_order *o, struct pd_error *err)
{
    PD_CHECK(o->experts && o->experts <= PD_EXPERTS_MAX && o->per_token && o->per_token <= o->experts);
    PD_CHECK(o->ranks && o->experts % o->ranks == 0 && o->pieces && o->pieces <= PD_SLOT_PIECES_MAX);
    PD_CHECK(o->rows * o->per_token <= INT32_MAX && o->piece_rows[o->pieces] == o->rows && o->first);
    PD_CHECK(o->rows == 0 || (o->choice && o->weights && o->slots && o->tokens && o->slot_weights));
    return math->ops->slot_order(math, o, err);
}

pd_status pd_slot_counts(struct pd_math *math, uint32_t experts, uint32_t ranks, uint32_t pieces, const int32_t *first,
                         int32_t *tokens, struct pd_error *err)
{
    PD_CHECK(experts && ranks && experts % ranks == 0 && pieces && first && tokens);
    return math->ops->slot_counts(math, experts, ranks, pieces, first, tokens, err);
}

pd_status pd_router_losses(struct pd_math *math, const struct pd_router_losses *l, struct pd_error *err)
{
    PD_CHECK(l->experts && l->experts <= PD_EXPERTS_MAX && l->rows > 0 && l->scores && l->tokens && l->balance_loss);
    PD_CHECK(l->z_pieces <= PD_SLOT_PIECES_MAX && (l->z_pieces == 0 || (l->lse && l->z_rows && l->z_loss)));
    return math->ops->router_losses(math, l, err);
}

pd_status pd_slot_surplus(struct pd_math *math, uint32_t experts, double slots, float scale, const int32_t *tokens,
                          float *out, struct pd_error *err)
{
    PD_CHECK(experts && tokens && out);
    return math->ops->slot_surplus(math, experts, slots, scale, tokens, out, err);
}

pd_status pd_value_range(struct pd_math *math, uint64_t n, const float *values, float *range, struct pd_error *err)
{
    PD_CHECK(n && values && range);
    return math->ops->value_range(math, n, values, range, err);
}

pd_status pd_gather_rows(struct pd_math *math, uint64_t rows, uint64_t bytes, const int32_t *from, const void *src,
                         void *dst, struct pd_error *err)
{
    if (rows == 0 || bytes == 0) return PD_OK;
    PD_CHECK(from && src && dst);
    return math->ops->gather_rows(math, rows, bytes, from, src, dst, err);
}

pd_status pd_combine(struct pd_math *math, const struct pd_combine *c, struct pd_error *err)
{
    PD_CHECK(dtype_is_known(c->dtype) && c->out && c->slots && c->columns > 0);
    return math->ops->combine(math, c, err);
}

static void check_weighted(const struct pd_weighted_swiglu *s)
{
    PD_CHECK(dtype_is_known(s->dtype) && s->gate_up && s->weights);
}

pd_status pd_weighted_swiglu_forward(struct pd_math *math, const struct pd_weighted_swiglu *s, struct pd_error *err)
{
    if (s->rows == 0 || s->columns == 0) return PD_OK;
    check_weighted(s);
    PD_CHECK(s->out);
    return math->ops->weighted_swiglu_forward(math, s, err);
}

/* Without columns it still writes sums of 0. */
pd_status pd_weighted_swiglu_backward(struct pd_math *math, const struct pd_weighted_swiglu *s, struct pd_error *err)
{
    check_weighted(s);
    PD_CHECK(s->dout && s->dgate_up && s->dweights && s->chunks && s->chunk);
    return math->ops->weighted_swiglu_backward(math, s, err);
}

pd_status pd_superaccumulate(struct pd_math *math, uint64_t n, const double *terms, struct pd_superaccumulator *sum,
                             struct pd_error *err)
{
    if (n == 0) return PD_OK;
    PD_CHECK(terms && sum && n <= PD_SUPERACCUMULATOR_PENDING_MAX);
    return math->ops->superaccumulate(math, n, terms, sum, err);
}

pd_status pd_superaccumulate_floats(struct pd_math *math, uint64_t n, const float *terms, struct pd_superaccumulator *sum,
                                    struct pd_error *err)
{
    if (n == 0) return PD_OK;
    PD_CHECK(terms && sum && n <= PD_SUPERACCUMULATOR_PENDING_MAX);
    return math->ops->superaccumulate_floats(math, n, terms, sum, err);
}

pd_status pd_adam(struct pd_math *math, const struct pd_adam_step *step, const struct pd_update_range *r,
                  struct pd_error *err)
{
    if (r->n == 0) return PD_OK;
    PD_CHECK(r->param && r->exp_avg && r->exp_avg_sq && r->grad && (!r->copy || dtype_is_known(r->copy_dtype)));
    return math->ops->adam(math, step, r, err);
}

pd_status pd_math_copy(struct pd_math *math, void *dst, const void *src, uint64_t bytes, struct pd_error *err)
{
    if (bytes == 0) return PD_OK;
    PD_CHECK(dst && src);
    return math->ops->copy(math, dst, src, bytes, err);
}

pd_status pd_math_sync(struct pd_math *math, struct pd_error *err)
{
    return math->ops->sync(math, err);
}

pd_status pd_math_mark(struct pd_math *math, struct pd_math_mark *mark, struct pd_error *err)
{
    return math->ops->mark(math, mark, err);
}

pd_status pd_math_reach(struct pd_math *math, const struct pd_math_mark *mark, struct pd_error *err)
{
    return math->ops->reach(math, mark, err);
}
