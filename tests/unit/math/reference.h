/* Every operation of trainer/math in float64, written as its formula says, one element after the other. All arrays are dense
 * and row-major; shapes are in comments as in trainer/math/math.h. test_reference.c holds the backward ones against finite
 * differences of the forward ones. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define REF_INLINE static inline __attribute__((unused))

/* y (m,n) = x (m,k) w^T + bias;  w (n,k), bias (n) or NULL */
REF_INLINE void ref_linear_forward(size_t m, size_t n, size_t k, const double *x, const double *w, const double *bias,
                                   double *y)
{
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++) {
            double sum = bias ? bias[j] : 0;
            for (size_t p = 0; p < k; p++)
                sum += x[i * k + p] * w[j * k + p];
            y[i * n + j] = sum;
        }
    }
}

/* x, out (R,C); bias and mean NULL: RMS norm */
REF_INLINE void ref_norm_forward(size_t rows, size_t columns, double epsilon, const double *x, const double *weight,
                                 const double *bias, double *mean, double *rstd, double *out)
{
    for (size_t r = 0; r < rows; r++) {
        const double *row = x + r * columns;
        double m = 0, variance = 0;
        for (size_t i = 0; bias && i < columns; i++)
            m += row[i] / (double)columns;
        for (size_t i = 0; i < columns; i++)
            variance += (row[i] - m) * (row[i] - m) / (double)columns;
        double s = 1 / sqrt(variance + epsilon);
        for (size_t i = 0; i < columns; i++)
            out[r * columns + i] = (row[i] - m) * s * weight[i] + (bias ? bias[i] : 0);
        if (mean) mean[r] = m;
        if (rstd) rstd[r] = s;
    }
}

/* dbias NULL: RMS norm. dx gets dresidual (may be NULL) added. */
REF_INLINE void ref_norm_backward(size_t rows, size_t columns, double epsilon, const double *x, const double *weight,
                                  const double *dout, const double *dresidual, double *dx, double *dweight, double *dbias)
{
    memset(dweight, 0, columns * sizeof *dweight);
    if (dbias) memset(dbias, 0, columns * sizeof *dbias);
    for (size_t r = 0; r < rows; r++) {
        const double *row = x + r * columns, *d = dout + r * columns;
        double m = 0, variance = 0, sum = 0, sum_x = 0, c = (double)columns;
        for (size_t i = 0; dbias && i < columns; i++)
            m += row[i] / c;
        for (size_t i = 0; i < columns; i++)
            variance += (row[i] - m) * (row[i] - m) / c;
        double s = 1 / sqrt(variance + epsilon);
        for (size_t i = 0; i < columns; i++) {
            sum += d[i] * weight[i];
            sum_x += d[i] * weight[i] * (row[i] - m) * s;
            dweight[i] += d[i] * (row[i] - m) * s;
            if (dbias) dbias[i] += d[i];
        }
        for (size_t i = 0; i < columns; i++) {
            double g = d[i] * weight[i] - (dbias ? sum / c : 0) - (row[i] - m) * s * sum_x / c;
            dx[r * columns + i] = g * s + (dresidual ? dresidual[r * columns + i] : 0);
        }
    }
}

/* x (R, heads*D) in place; cos_sin (positions, D/2, 2) */
REF_INLINE void ref_rope(size_t rows, size_t heads, size_t d, double *x, const int32_t *positions, const double *cos_sin,
                         bool inverse)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t h = 0; h < heads; h++) {
            double *head = x + (r * heads + h) * d;
            for (size_t i = 0; i < d / 2; i++) {
                const double *turn = cos_sin + ((size_t)positions[r] * (d / 2) + i) * 2;
                double c = turn[0], s = inverse ? -turn[1] : turn[1], a = head[i], b = head[i + d / 2];
                head[i] = a * c - b * s;
                head[i + d / 2] = b * c + a * s;
            }
        }
    }
}

struct ref_attention {
    size_t sequences, length, heads, kv_heads, head_size;
    double scale;
    const double *q, *k, *v; /* (R, H*D), (R, K*D), (R, K*D) */
    const int32_t *first;    /* (R) or NULL */
};

/* Probabilities of query t of head h over keys 0 .. t of sequence s into p (length); returns log of the sum of exponentials.
 */
REF_INLINE double ref_attention_row(const struct ref_attention *a, size_t s, size_t h, size_t t, double *p)
{
    size_t d = a->head_size, kv = h / (a->heads / a->kv_heads), row = s * a->length + t;
    size_t first = a->first ? (size_t)a->first[row] : 0;
    double max = -INFINITY, sum = 0;
    for (size_t j = 0; j <= t; j++) {
        p[j] = 0;
        if (j < first) continue;
        for (size_t i = 0; i < d; i++) {
            p[j] += a->q[(row * a->heads + h) * d + i] * a->k[((s * a->length + j) * a->kv_heads + kv) * d + i];
        }
        p[j] *= a->scale;
        max = fmax(max, p[j]);
    }
    for (size_t j = 0; j <= t; j++) {
        p[j] = j < first ? 0 : exp(p[j] - max);
        sum += p[j];
    }
    for (size_t j = 0; j <= t; j++)
        p[j] /= sum;
    return max + log(sum);
}

/* out (R, H*D); lse (sequences, H, T) or NULL */
REF_INLINE void ref_attention_forward(const struct ref_attention *a, double *out, double *lse)
{
    size_t d = a->head_size, rows = a->sequences * a->length;
    double *p = calloc(a->length, sizeof *p);
    for (size_t n = 0; n < rows * a->heads; n++) {
        size_t h = n % a->heads, row = n / a->heads, s = row / a->length, t = row % a->length;
        size_t kv = h / (a->heads / a->kv_heads);
        double log_sum = ref_attention_row(a, s, h, t, p);
        if (lse) lse[(s * a->heads + h) * a->length + t] = log_sum;
        for (size_t i = 0; i < d; i++) {
            double sum = 0;
            for (size_t j = 0; j <= t; j++)
                sum += p[j] * a->v[((s * a->length + j) * a->kv_heads + kv) * d + i];
            out[n * d + i] = sum;
        }
    }
    free(p);
}

/* dout, dq (R, H*D); dk, dv (R, K*D) */
REF_INLINE void ref_attention_backward(const struct ref_attention *a, const double *dout, double *dq, double *dk, double *dv)
{
    size_t d = a->head_size, rows = a->sequences * a->length;
    double *p = calloc(a->length, sizeof *p), *dp = calloc(a->length, sizeof *dp);
    memset(dq, 0, rows * a->heads * d * sizeof *dq);
    memset(dk, 0, rows * a->kv_heads * d * sizeof *dk);
    memset(dv, 0, rows * a->kv_heads * d * sizeof *dv);
    for (size_t n = 0; n < rows * a->heads; n++) {
        size_t h = n % a->heads, row = n / a->heads, s = row / a->length, t = row % a->length;
        size_t kv = h / (a->heads / a->kv_heads);
        double delta = 0;
        ref_attention_row(a, s, h, t, p);
        for (size_t j = 0; j <= t; j++) {
            size_t at = ((s * a->length + j) * a->kv_heads + kv) * d;
            dp[j] = 0;
            for (size_t i = 0; i < d; i++) {
                dp[j] += dout[n * d + i] * a->v[at + i];
                dv[at + i] += p[j] * dout[n * d + i];
            }
            delta += p[j] * dp[j];
        }
        for (size_t j = 0; j <= t; j++) {
            size_t at = ((s * a->length + j) * a->kv_heads + kv) * d;
            double ds = p[j] * (dp[j] - delta) * a->scale;
            for (size_t i = 0; i < d; i++) {
                dq[n * d + i] += ds * a->k[at + i];
                dk[at + i] += ds * a->q[n * d + i];
            }
        }
    }
    free(p);
    free(dp);
}

REF_INLINE double ref_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* gate_up (R, 2F), out (R,F) */
REF_INLINE void ref_swiglu_forward(size_t rows, size_t columns, const double *gate_up, double *out)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < columns; i++) {
            double gate = gate_up[r * 2 * columns + i], up = gate_up[r * 2 * columns + columns + i];
            out[r * columns + i] = gate * ref_sigmoid(gate) * up;
        }
    }
}

REF_INLINE void ref_swiglu_backward(size_t rows, size_t columns, const double *gate_up, const double *dout, double *dgate_up)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < columns; i++) {
            size_t at = r * 2 * columns + i;
            double gate = gate_up[at], up = gate_up[at + columns], s = ref_sigmoid(gate), d = dout[r * columns + i];
            dgate_up[at] = d * up * s * (1 + gate * (1 - s));
            dgate_up[at + columns] = d * gate * s;
        }
    }
}

REF_INLINE double ref_gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

REF_INLINE void ref_gelu_forward(size_t count, const double *x, double *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = ref_gelu(x[i]);
}

REF_INLINE void ref_gelu_backward(size_t count, const double *x, const double *dout, double *dx)
{
    for (size_t i = 0; i < count; i++) {
        double root = sqrt(2 / M_PI), t = tanh(root * (x[i] + 0.044715 * x[i] * x[i] * x[i]));
        dx[i] = dout[i] * (0.5 * (1 + t) + 0.5 * x[i] * (1 - t * t) * root * (1 + 3 * 0.044715 * x[i] * x[i]));
    }
}

/* losses (rows); dlogits (rows, vocab) = scale * d losses / d logits, or NULL; target < 0: zeros */
REF_INLINE void ref_cross_entropy(size_t rows, size_t vocab, const double *logits, const int32_t *targets, double scale,
                                  double *losses, double *dlogits)
{
    for (size_t r = 0; r < rows; r++) {
        const double *x = logits + r * vocab;
        double max = -INFINITY, sum = 0;
        for (size_t i = 0; i < vocab; i++)
            max = fmax(max, x[i]);
        for (size_t i = 0; i < vocab; i++)
            sum += exp(x[i] - max);
        bool counted = targets[r] >= 0;
        losses[r] = counted ? max - x[targets[r]] + log(sum) : 0;
        for (size_t i = 0; dlogits && i < vocab; i++) {
            double p = exp(x[i] - max) / sum - (counted && (size_t)targets[r] == i ? 1 : 0);
            dlogits[r * vocab + i] = counted ? p * scale : 0;
        }
    }
}

/* out (R,C); position_table NULL: none */
REF_INLINE void ref_embedding_forward(size_t rows, size_t columns, const int32_t *tokens, const int32_t *positions,
                                      const double *token_table, const double *position_table, double *out)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < columns; i++) {
            double x = token_table[(size_t)tokens[r] * columns + i];
            out[r * columns + i] = x + (position_table ? position_table[(size_t)positions[r] * columns + i] : 0);
        }
    }
}

/* dtable (table_rows, C) */
REF_INLINE void ref_embedding_backward(size_t rows, size_t columns, size_t table_rows, const int32_t *indices,
                                       const double *dout, double *dtable)
{
    memset(dtable, 0, table_rows * columns * sizeof *dtable);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < columns; i++)
            dtable[(size_t)indices[r] * columns + i] += dout[r * columns + i];
}
