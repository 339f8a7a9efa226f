/* The model families in plain float64, forward only: what finite differences are taken of. Slow and obvious on purpose. */
#pragma once

#include "tests/helpers/families.h"
#include "trainer/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reference {
    const struct pd_model *model;
    double **parameters; /* (tensors) dense */
    uint32_t length;
    const int32_t *tokens, *targets, *positions, *first;
    const float *cos_sin;
};

static const double *reference_tensor(const struct reference *r, const char *format, int layer)
{
    char name[PD_TENSOR_NAME_MAX];
    snprintf(name, sizeof name, format, layer);
    int64_t index = pd_tensor_table_find(&r->model->tensors, name);
    return index < 0 ? NULL : r->parameters[index];
}

/* y (n,out) = x (n,in) W^T + b */
static void reference_linear(uint64_t n, uint64_t in, uint64_t out, const double *x, const double *w, const double *b,
                             double *y)
{
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t o = 0; o < out; o++) {
            double sum = b ? b[o] : 0.0;
            for (uint64_t k = 0; k < in; k++)
                sum += x[i * in + k] * w[o * in + k];
            y[i * out + o] = sum;
        }
}

/* y (n,c) may be x */
static void reference_norm(const struct reference *r, uint64_t n, uint64_t c, const double *x, const double *w,
                           const double *b, double *y)
{
    for (uint64_t i = 0; i < n; i++) {
        double mean = 0, square = 0;
        if (b) {
            for (uint64_t k = 0; k < c; k++)
                mean += x[i * c + k];
            mean /= (double)c;
        }
        for (uint64_t k = 0; k < c; k++)
            square += (x[i * c + k] - mean) * (x[i * c + k] - mean);
        double rstd = 1.0 / sqrt(square / (double)c + r->model->config.norm_epsilon);
        for (uint64_t k = 0; k < c; k++)
            y[i * c + k] = (x[i * c + k] - mean) * rstd * w[k] + (b ? b[k] : 0.0);
    }
}

static void reference_rope(const struct reference *r, uint32_t heads, double *x)
{
    const uint32_t d = r->model->config.head_size;
    for (uint32_t t = 0; t < r->length; t++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t i = 0; i < d / 2; i++) {
                double *v = x + ((uint64_t)t * heads + h) * d;
                const float *cs = r->cos_sin + ((uint64_t)r->positions[t] * (d / 2) + i) * 2;
                double a = v[i], b = v[i + d / 2];
                v[i] = a * cs[0] - b * cs[1];
                v[i + d / 2] = b * cs[0] + a * cs[1];
            }
}

static void reference_attention(const struct reference *r, const double *q, const double *k, const double *v, double *out)
{
    const struct pd_model_config *c = &r->model->config;
    const uint32_t d = c->head_size, group = c->heads / c->kv_heads;
    double *p = calloc(r->length, sizeof *p);
    for (uint32_t h = 0; h < c->heads; h++)
        for (uint32_t t = 0; t < r->length; t++) {
            double top = -1e300, sum = 0;
            for (uint32_t s = (uint32_t)r->first[t]; s <= t; s++) {
                p[s] = 0;
                for (uint32_t i = 0; i < d; i++)
                    p[s] += q[((uint64_t)t * c->heads + h) * d + i] * k[((uint64_t)s * c->kv_heads + h / group) * d + i];
                p[s] /= sqrt((double)d);
                if (p[s] > top) top = p[s];
            }
            for (uint32_t s = (uint32_t)r->first[t]; s <= t; s++)
                sum += p[s] = exp(p[s] - top);
            for (uint32_t i = 0; i < d; i++) {
                double value = 0;
                for (uint32_t s = (uint32_t)r->first[t]; s <= t; s++)
                    value += p[s] / sum * v[((uint64_t)s * c->kv_heads + h / group) * d + i];
                out[((uint64_t)t * c->heads + h) * d + i] = value;
            }
        }
    free(p);
}

struct reference_names {
    const char *norm1, *norm1_bias, *q, *k, *v, *q_bias, *k_bias, *v_bias, *out, *out_bias, *norm2, *norm2_bias, *gate, *up,
        *up_bias, *down, *down_bias, *embed, *positions, *final, *final_bias, *head, *q_norm, *k_norm;
};
static const struct reference_names reference_llama = {"model.layers.%d.input_layernorm.weight",
                                                       "-",
                                                       "model.layers.%d.self_attn.q_proj.weight",
                                                       "model.layers.%d.self_attn.k_proj.weight",
                                                       "model.layers.%d.self_attn.v_proj.weight",
                                                       "model.layers.%d.self_attn.q_proj.bias",
                                                       "model.layers.%d.self_attn.k_proj.bias",
                                                       "model.layers.%d.self_attn.v_proj.bias",
                                                       "model.layers.%d.self_attn.o_proj.weight",
                                                       "-",
                                                       "model.layers.%d.post_attention_layernorm.weight",
                                                       "-",
                                                       "model.layers.%d.mlp.gate_proj.weight",
                                                       "model.layers.%d.mlp.up_proj.weight",
                                                       "-",
                                                       "model.layers.%d.mlp.down_proj.weight",
                                                       "-",
                                                       "model.embed_tokens.weight",
                                                       "-",
                                                       "model.norm.weight",
                                                       "-",
                                                       "lm_head.weight",
                                                       "model.layers.%d.self_attn.q_norm.weight",
                                                       "model.layers.%d.self_attn.k_norm.weight"};
static const struct reference_names reference_gpt2 = {"transformer.h.%d.ln_1.weight",
                                                      "transformer.h.%d.ln_1.bias",
                                                      "transformer.h.%d.attn.q_proj.weight",
                                                      "transformer.h.%d.attn.k_proj.weight",
                                                      "transformer.h.%d.attn.v_proj.weight",
                                                      "transformer.h.%d.attn.q_proj.bias",
                                                      "transformer.h.%d.attn.k_proj.bias",
                                                      "transformer.h.%d.attn.v_proj.bias",
                                                      "transformer.h.%d.attn.c_proj.weight",
                                                      "transformer.h.%d.attn.c_proj.bias",
                                                      "transformer.h.%d.ln_2.weight",
                                                      "transformer.h.%d.ln_2.bias",
                                                      "-",
                                                      "transformer.h.%d.mlp.c_fc.weight",
                                                      "transformer.h.%d.mlp.c_fc.bias",
                                                      "transformer.h.%d.mlp.c_proj.weight",
                                                      "transformer.h.%d.mlp.c_proj.bias",
                                                      "transformer.wte.weight",
                                                      "transformer.wpe.weight",
                                                      "transformer.ln_f.weight",
                                                      "transformer.ln_f.bias",
                                                      "lm_head.weight",
                                                      "-",
                                                      "-"};

static void reference_block(const struct reference *r, const struct reference_names *n, int layer, double *x)
{
    const struct pd_model_config *c = &r->model->config;
    const uint64_t t = r->length, hidden = c->hidden, qc = (uint64_t)c->heads * c->head_size;
    const uint64_t kc = (uint64_t)c->kv_heads * c->head_size, ffn = c->ffn;
    double *y = calloc(t, hidden * 8), *q = calloc(t, qc * 8), *k = calloc(t, kc * 8), *v = calloc(t, kc * 8);
    double *a = calloc(t, qc * 8), *up = calloc(t, ffn * 8), *gate = calloc(t, ffn * 8), *z = calloc(t, hidden * 8);
#define T(role) reference_tensor(r, n->role, layer)
    reference_norm(r, t, hidden, x, T(norm1), T(norm1_bias), y);
    reference_linear(t, hidden, qc, y, T(q), T(q_bias), q);
    reference_linear(t, hidden, kc, y, T(k), T(k_bias), k);
    reference_linear(t, hidden, kc, y, T(v), T(v_bias), v);
    if (T(q_norm)) {
        reference_norm(r, t * c->heads, c->head_size, q, T(q_norm), NULL, q);
        reference_norm(r, t * c->kv_heads, c->head_size, k, T(k_norm), NULL, k);
    }
    if (c->family != PD_FAMILY_GPT2) {
        reference_rope(r, c->heads, q);
        reference_rope(r, c->kv_heads, k);
    }
    reference_attention(r, q, k, v, a);
    reference_linear(t, qc, hidden, a, T(out), T(out_bias), z);
    for (uint64_t i = 0; i < t * hidden; i++)
        x[i] += z[i];
    reference_norm(r, t, hidden, x, T(norm2), T(norm2_bias), y);
    reference_linear(t, hidden, ffn, y, T(up), T(up_bias), up);
    if (T(gate)) reference_linear(t, hidden, ffn, y, T(gate), NULL, gate);
    for (uint64_t i = 0; i < t * ffn; i++)
        up[i] = T(gate) ? gate[i] / (1.0 + exp(-gate[i])) * up[i]
                        : 0.5 * up[i] * (1.0 + tanh(sqrt(2.0 / M_PI) * (up[i] + 0.044715 * up[i] * up[i] * up[i])));
    reference_linear(t, ffn, hidden, up, T(down), T(down_bias), z);
    for (uint64_t i = 0; i < t * hidden; i++)
        x[i] += z[i];
#undef T
    free(y), free(q), free(k), free(v), free(a), free(up), free(gate), free(z);
}

/* Sum of token losses of one sequence. */
static double reference_loss(const struct reference *r)
{
    const struct pd_model_config *c = &r->model->config;
    const struct reference_names *n = c->family == PD_FAMILY_GPT2 ? &reference_gpt2 : &reference_llama;
    const double *embed = reference_tensor(r, n->embed, 0), *positions = reference_tensor(r, n->positions, 0);
    const double *head = reference_tensor(r, n->head, 0);
    const uint64_t hidden = c->hidden;
    double *x = calloc(r->length, hidden * 8), *y = calloc(r->length, hidden * 8), *logits = calloc(c->vocab, 8), loss = 0;
    for (uint32_t t = 0; t < r->length; t++)
        for (uint64_t i = 0; i < hidden; i++)
            x[t * hidden + i] = embed[(uint64_t)r->tokens[t] * hidden + i] +
                                (positions ? positions[(uint64_t)r->positions[t] * hidden + i] : 0.0);
    for (uint32_t layer = 0; layer < c->layers; layer++)
        reference_block(r, n, (int)layer, x);
    reference_norm(r, r->length, hidden, x, reference_tensor(r, n->final, 0), reference_tensor(r, n->final_bias, 0), y);
    for (uint32_t t = 0; t < r->length; t++) {
        if (r->targets[t] < 0) continue;
        double top = -1e300, sum = 0;
        reference_linear(1, hidden, c->vocab, y + t * hidden, head ? head : embed, NULL, logits);
        for (uint32_t w = 0; w < c->vocab; w++)
            top = fmax(top, logits[w]);
        for (uint32_t w = 0; w < c->vocab; w++)
            sum += exp(logits[w] - top);
        loss += log(sum) + top - logits[r->targets[t]];
    }
    free(x), free(y), free(logits);
    return loss;
}
