/* Experts in fp8 (linear_fp8.c). A tile is the tokens of one expert in a piece, times a chunk of columns. It is the same
 * under any layout, because no layout divides the tokens that a piece of a micro-batch sends to an expert. A scale comes
 * from its tile alone, so an expert without tokens needs no scale and remembers none. Each pass over an expert makes the
 * codes of its weights again, unless they are kept for a step. */
#include "trainer/model/transformer_internal.h"

/* Rows of gate and up (one matrix) that share a scale: all of them if no layout cuts them, else a chunk of one half. */
static struct pd_range up_part(const struct pd_transformer *t, const struct pd_gated *m, uint32_t part)
{
    if (t->partition.virtual_tp == 1) return (struct pd_range){0, 2 * m->columns};
    const struct pd_range r = pd_chunk_columns(t, m->ffn, 1, part / 2);
    const uint64_t before = part % 2 * m->columns;
    return (struct pd_range){before + r.begin, before + r.end};
}

static uint32_t up_parts(const struct pd_transformer *t)
{
    return t->partition.virtual_tp == 1 ? 1 : 2 * t->tp.chunks;
}

static struct pd_matrix expert_fp8_columns(struct pd_matrix x, uint64_t first)
{
    return (struct pd_matrix){(char *)x.data + first * pd_dtype_bytes(x.dtype), x.dtype, x.ld};
}

static struct pd_fp8_weight up_weight(const struct pd_transformer *t, const struct pd_gated *m, struct pd_range part)
{
    const uint64_t hidden = t->model->config.hidden;
    return (struct pd_fp8_weight){(const char *)m->gate_up + part.begin * hidden * t->element_bytes, part.end - part.begin,
                                  hidden, m->up_codes};
}

static struct pd_fp8_weight down_weight(const struct pd_transformer *t, const struct pd_gated *m, struct pd_range chunk)
{
    const uint64_t hidden = t->model->config.hidden;
    return (struct pd_fp8_weight){(const char *)m->down + chunk.begin * hidden * t->element_bytes, hidden,
                                  chunk.end - chunk.begin, m->down_codes};
}

pd_status pd_fp8_gated_up(struct pd_transformer *t, const struct pd_gated *m, struct pd_matrix x, struct pd_matrix up,
                          struct pd_error *err)
{
    struct pd_fp8_operand codes;
    PD_TRY(pd_fp8_rows_codes(t, PD_FP8_E4M3, &m->pieces, x, t->model->config.hidden, &codes, err));
    for (uint32_t i = 0; i < up_parts(t); i++) {
        const struct pd_range part = up_part(t, m, i);
        const struct pd_fp8_weight weight = up_weight(t, m, part);
        if (part.begin == part.end) continue;
        PD_TRY(pd_fp8_rows_multiply(t, &m->pieces, &codes, &weight, false, expert_fp8_columns(up, part.begin), false,
                                    m->varies, err));
    }
    return PD_OK;
}

pd_status pd_fp8_gated_down(struct pd_transformer *t, const struct pd_gated *m, uint32_t chunk, struct pd_matrix x,
                            struct pd_matrix y, bool adds, struct pd_error *err)
{
    const struct pd_range r = pd_chunk_columns(t, m->ffn, 1, chunk);
    const struct pd_fp8_weight weight = down_weight(t, m, r);
    struct pd_fp8_operand codes;
    PD_TRY(pd_fp8_rows_codes(t, PD_FP8_E4M3, &m->pieces, expert_fp8_columns(x, r.begin), r.end - r.begin, &codes, err));
    return pd_fp8_rows_multiply(t, &m->pieces, &codes, &weight, false, y, adds, m->varies, err);
}

pd_status pd_fp8_gated_down_input(struct pd_transformer *t, const struct pd_gated *m, struct pd_matrix dy,
                                  struct pd_matrix dhidden, struct pd_error *err)
{
    struct pd_fp8_operand codes;
    PD_TRY(pd_fp8_rows_codes(t, PD_FP8_E5M2, &m->pieces, dy, t->model->config.hidden, &codes, err));
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        const struct pd_range r = pd_chunk_columns(t, m->ffn, 1, i);
        const struct pd_fp8_weight weight = down_weight(t, m, r);
        if (r.begin == r.end) continue;
        PD_TRY(pd_fp8_rows_multiply(t, &m->pieces, &codes, &weight, true, expert_fp8_columns(dhidden, r.begin), false,
                                    m->varies, err));
    }
    return PD_OK;
}

/* A chunk's chain goes through gate, then up. */
pd_status pd_fp8_gated_up_input(struct pd_transformer *t, const struct pd_gated *m, uint32_t chunk, uint64_t n,
                                struct pd_matrix dup, struct pd_matrix dx, bool adds, struct pd_error *err)
{
    const uint64_t hidden = t->model->config.hidden;
    const uint32_t parts = t->partition.virtual_tp == 1 ? 1 : 2;
    const bool is_direct = adds || parts == 1;
    const struct pd_matrix chain = is_direct ? dx : (struct pd_matrix){t->experts.product, PD_F32, hidden};
    for (uint32_t i = 0; i < parts; i++) {
        const struct pd_range part = up_part(t, m, parts * chunk + i);
        const struct pd_fp8_weight weight = up_weight(t, m, part);
        struct pd_fp8_operand codes;
        PD_TRY(pd_fp8_rows_codes(t, PD_FP8_E5M2, &m->pieces, expert_fp8_columns(dup, part.begin), part.end - part.begin,
                                 &codes, err));
        PD_TRY(pd_fp8_rows_multiply(t, &m->pieces, &codes, &weight, true, chain, adds || i, m->varies, err));
    }
    return is_direct ? PD_OK : pd_cast(t->math, n * hidden, dx.dtype, dx.data, PD_F32, t->experts.product, err);
}

pd_status pd_fp8_gated_weights(struct pd_transformer *t, const struct pd_gated *m, uint64_t n, struct pd_matrix x,
                               struct pd_matrix dup, struct pd_matrix hidden_rows, struct pd_matrix dy, struct pd_error *err)
{
    const uint64_t hidden = t->model->config.hidden;
    struct pd_fp8_operand a, b;
    t->fp8.scales_used = 0;
    PD_TRY(pd_fp8_across_codes(t, PD_FP8_E4M3, n, x, hidden, &b, err));
    for (uint32_t i = 0; i < up_parts(t); i++) {
        const struct pd_range part = up_part(t, m, i);
        if (part.begin == part.end) continue;
        PD_TRY(pd_fp8_across_codes(t, PD_FP8_E5M2, n, expert_fp8_columns(dup, part.begin), part.end - part.begin, &a, err));
        PD_TRY(pd_fp8_rows_gradient(t, &a, &b, m->varies, m->dgate_up + part.begin * hidden, err));
    }
    PD_TRY(pd_fp8_across_codes(t, PD_FP8_E5M2, n, dy, hidden, &a, err));
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        const struct pd_range r = pd_chunk_columns(t, m->ffn, 1, i);
        if (r.begin == r.end) continue;
        PD_TRY(pd_fp8_across_codes(t, PD_FP8_E4M3, n, expert_fp8_columns(hidden_rows, r.begin), r.end - r.begin, &b, err));
        PD_TRY(pd_fp8_rows_gradient(t, &a, &b, m->varies, m->ddown + r.begin * hidden, err));
    }
    return PD_OK;
}
