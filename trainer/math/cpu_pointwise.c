/* RoPE, SwiGLU, GELU, casts and sums: one pass over memory each, elements independent of each other or summed in row order.
 */
#include "trainer/math/cpu_rope.h"
#include "trainer/math/simd_math.h"

#include <string.h>

#define TASK_ELEMENTS 16384u /* a multiple of 16: lanes do not depend on the cut */

struct flat_job {
    uint64_t count;
    enum pd_dtype dtype, src_dtype;
    const void *x, *dout;
    void *out;
};

static uint64_t flat_tasks(uint64_t count)
{
    return (count + TASK_ELEMENTS - 1) / TASK_ELEMENTS;
}

static uint64_t flat_end(const struct flat_job *job, uint64_t index)
{
    uint64_t end = (index + 1) * TASK_ELEMENTS;
    return end < job->count ? end : job->count;
}

/* put_body: put(dtype, job, i, w) for every group of elements of a task. */
#define FLAT_BODY(put)                                                                           \
    V16_INLINE void put##_range(enum pd_dtype dtype, const struct flat_job *job, uint64_t index) \
    {                                                                                            \
        const uint64_t first = index * TASK_ELEMENTS, end = flat_end(job, index);                \
        V16_FOR(i, w, end - first, put(dtype, job, first + i, w));                               \
    }                                                                                            \
    PD_DTYPE_BODY(put##_body, struct flat_job, dtype, put##_range)

/* gelu(x) = x s(2u), u = sqrt(2/pi) (x + 0.044715 x^3), s the logistic function: 0.5 (1 + tanh u) = s(2u). */
V16_INLINE v16 gelu_gate(v16 x, v16 x2)
{
    v16 inner = v16_fma(x2, v16_set1(0.07135481627f), v16_set1(1.5957691216f));
    return v16_sigmoid(v16_mul(x, inner));
}

V16_INLINE void gelu_put(enum pd_dtype dtype, const struct flat_job *job, uint64_t i, unsigned w)
{
    v16 x = v16_get_part(dtype, job->x, i, w);
    v16_put_part(dtype, job->out, i, w, v16_mul(x, gelu_gate(x, v16_mul(x, x))));
}

/* d/dx = s + x s (1 - s) d(2u)/dx */
V16_INLINE void gelu_put_gradient(enum pd_dtype dtype, const struct flat_job *job, uint64_t i, unsigned w)
{
    v16 x = v16_get_part(dtype, job->x, i, w), x2 = v16_mul(x, x);
    v16 s = gelu_gate(x, x2);
    v16 slope = v16_fma(x2, v16_set1(0.2140644488f), v16_set1(1.5957691216f));
    v16 tail = v16_mul(v16_mul(x, slope), v16_mul(s, v16_sub(v16_set1(1.0f), s)));
    v16_put_part(dtype, job->out, i, w, v16_mul(v16_get_part(dtype, job->dout, i, w), v16_add(s, tail)));
}

FLAT_BODY(gelu_put)
FLAT_BODY(gelu_put_gradient)

pd_status PD_CPU(gelu_forward)(struct pd_math *math, uint64_t count, enum pd_dtype dtype, const void *x, void *out,
                               struct pd_error *err)
{
    struct flat_job job = {.count = count, .dtype = dtype, .x = x, .out = out};
    return pd_cpu_run(math, flat_tasks(count), gelu_put_body, &job);
}

pd_status PD_CPU(gelu_backward)(struct pd_math *math, uint64_t count, enum pd_dtype dtype, const void *x, const void *dout,
                                void *dx, struct pd_error *err)
{
    struct flat_job job = {.count = count, .dtype = dtype, .x = x, .dout = dout, .out = dx};
    return pd_cpu_run(math, flat_tasks(count), gelu_put_gradient_body, &job);
}

struct swiglu_job {
    uint64_t rows, columns;
    enum pd_dtype dtype;
    const void *gate_up, *dout;
    void *out;
};

V16_INLINE void swiglu_put(enum pd_dtype dtype, const struct swiglu_job *job, uint64_t row, uint64_t i, unsigned w)
{
    uint64_t at = 2 * row * job->columns + i;
    v16 gate = v16_get_part(dtype, job->gate_up, at, w), up = v16_get_part(dtype, job->gate_up, at + job->columns, w);
    v16 silu = v16_mul(gate, v16_sigmoid(gate));
    v16_put_part(dtype, job->out, row * job->columns + i, w, v16_mul(silu, up));
}

/* silu' = s (1 + gate (1 - s)) */
V16_INLINE void swiglu_put_gradient(enum pd_dtype dtype, const struct swiglu_job *job, uint64_t row, uint64_t i, unsigned w)
{
    uint64_t at = 2 * row * job->columns + i;
    v16 one = v16_set1(1.0f);
    v16 gate = v16_get_part(dtype, job->gate_up, at, w), up = v16_get_part(dtype, job->gate_up, at + job->columns, w);
    v16 dout = v16_get_part(dtype, job->dout, row * job->columns + i, w);
    v16 s = v16_sigmoid(gate);
    v16 slope = v16_mul(s, v16_fma(gate, v16_sub(one, s), one));
    v16_put_part(dtype, job->out, at, w, v16_mul(v16_mul(dout, up), slope));
    v16_put_part(dtype, job->out, at + job->columns, w, v16_mul(dout, v16_mul(gate, s)));
}

V16_INLINE void swiglu_forward_row(enum pd_dtype dtype, const struct swiglu_job *job, uint64_t row)
{
    V16_FOR(i, w, job->columns, swiglu_put(dtype, job, row, i, w));
}

V16_INLINE void swiglu_backward_row(enum pd_dtype dtype, const struct swiglu_job *job, uint64_t row)
{
    V16_FOR(i, w, job->columns, swiglu_put_gradient(dtype, job, row, i, w));
}

PD_DTYPE_BODY(swiglu_forward_body, struct swiglu_job, dtype, swiglu_forward_row)
PD_DTYPE_BODY(swiglu_backward_body, struct swiglu_job, dtype, swiglu_backward_row)

pd_status PD_CPU(swiglu_forward)(struct pd_math *math, uint64_t rows, uint64_t columns, enum pd_dtype dtype,
                                 const void *gate_up, void *out, struct pd_error *err)
{
    struct swiglu_job job = {rows, columns, dtype, gate_up, NULL, out};
    return pd_cpu_run(math, rows, swiglu_forward_body, &job);
}

pd_status PD_CPU(swiglu_backward)(struct pd_math *math, uint64_t rows, uint64_t columns, enum pd_dtype dtype,
                                  const void *gate_up, const void *dout, void *dgate_up, struct pd_error *err)
{
    struct swiglu_job job = {rows, columns, dtype, gate_up, dout, dgate_up};
    return pd_cpu_run(math, rows, swiglu_backward_body, &job);
}

V16_INLINE void rope_row(enum pd_dtype dtype, const struct pd_rope *r, uint64_t row)
{
    struct pd_cpu_turn turn;
    const uint64_t bytes = pd_dtype_bytes(dtype), half = (r->rotated ? r->rotated : r->head_size) / 2;
    char *to = (char *)r->x + row * r->ld * bytes;
    const char *from = r->from ? (const char *)r->from + row * r->ld_from * bytes : to;
    pd_cpu_turn_of(r->cos_sin, r->positions[row], half, r->inverse, &turn);
    for (uint32_t head = 0; head < r->heads; head++)
        pd_cpu_turn_head(dtype, &turn, from, to, (uint64_t)head * r->head_size, half);
}

PD_DTYPE_BODY(rope_body, struct pd_rope, dtype, rope_row)

pd_status PD_CPU(rope)(struct pd_math *math, const struct pd_rope *rope, struct pd_error *err)
{
    return pd_cpu_run(math, rope->rows, rope_body, rope);
}

V16_INLINE void add_put(const struct flat_job *job, uint64_t i, unsigned w)
{
    v16_put_part(PD_F32, job->out, i, w, v16_add(v16_get_part(PD_F32, job->out, i, w), v16_get_part(PD_F32, job->x, i, w)));
}

static void add_body(void *context, uint64_t index)
{
    const struct flat_job *job = context;
    const uint64_t first = index * TASK_ELEMENTS, end = flat_end(job, index);
    V16_FOR(i, w, end - first, add_put(job, first + i, w));
}

pd_status PD_CPU(add)(struct pd_math *math, uint64_t n, float *sum, const float *more, struct pd_error *err)
{
    struct flat_job job = {.count = n, .x = more, .out = sum};
    return pd_cpu_run(math, flat_tasks(n), add_body, &job);
}

V16_INLINE void cast_range(enum pd_dtype dst, enum pd_dtype src, const struct flat_job *job, uint64_t first, uint64_t end)
{
    V16_FOR(i, w, end - first, v16_put_part(dst, job->out, first + i, w, v16_get_part(src, job->x, first + i, w)));
}

V16_INLINE void cast_from(enum pd_dtype src, const struct flat_job *job, uint64_t first, uint64_t end)
{
    PD_FOR_DTYPE(job->dtype, cast_range, src, job, first, end);
}

static void cast_body(void *context, uint64_t index)
{
    const struct flat_job *job = context;
    uint64_t first = index * TASK_ELEMENTS, end = flat_end(job, index);
    if (job->dtype == job->src_dtype) {
        uint64_t bytes = pd_dtype_bytes(job->dtype);
        memmove((char *)job->out + first * bytes, (const char *)job->x + first * bytes, (end - first) * bytes);
        return;
    }
    PD_FOR_DTYPE(job->src_dtype, cast_from, job, first, end);
}

pd_status PD_CPU(cast)(struct pd_math *math, uint64_t n, enum pd_dtype dst_dtype, void *dst, enum pd_dtype src_dtype,
                       const void *src, struct pd_error *err)
{
    struct flat_job job = {.count = n, .dtype = dst_dtype, .src_dtype = src_dtype, .x = src, .out = dst};
    return pd_cpu_run(math, flat_tasks(n), cast_body, &job);
}

/* ---- copies ---- */

struct rows_job {
    uint64_t rows, bytes, rows_per_task;
    char *dst;
    const char *src;
    uint64_t ld_dst, ld_src;
};

static void copy_rows_body(void *context, uint64_t index)
{
    const struct rows_job *job = context;
    const uint64_t first = index * job->rows_per_task, end = first + job->rows_per_task;
    for (uint64_t row = first; row < end && row < job->rows; row++)
        memcpy(job->dst + row * job->ld_dst, job->src + row * job->ld_src, job->bytes);
}

pd_status PD_CPU(copy_rows)(struct pd_math *math, uint64_t rows, uint64_t bytes, void *dst, uint64_t ld_dst, const void *src,
                            uint64_t ld_src, struct pd_error *err)
{
    const uint64_t rows_per_task = 4 * TASK_ELEMENTS / bytes + 1;
    const struct rows_job job = {rows, bytes, rows_per_task, dst, src, ld_dst, ld_src};
    return pd_cpu_run(math, (rows + rows_per_task - 1) / rows_per_task, copy_rows_body, &job);
}

#define PIECE_BYTES (UINT64_C(256) << 10) /* of a task */

struct copies_job {
    const struct pd_copies *c;
    uint64_t first_task[PD_COPIES_MAX + 1]; /* of each piece */
};

static void copy_pieces_body(void *context, uint64_t task)
{
    const struct copies_job *job = context;
    uint32_t i = 0;
    while (job->first_task[i + 1] <= task)
        i++;
    const struct pd_copy *piece = &job->c->pieces[i];
    const uint64_t begin = (task - job->first_task[i]) * PIECE_BYTES, left = piece->bytes - begin;
    memcpy((char *)piece->to + begin, (const char *)piece->from + begin, left < PIECE_BYTES ? left : PIECE_BYTES);
}

pd_status PD_CPU(copy_pieces)(struct pd_math *math, const struct pd_copies *c, struct pd_error *err)
{
    struct copies_job job = {.c = c};
    for (uint32_t i = 0; i < c->count; i++)
        job.first_task[i + 1] = job.first_task[i] + (c->pieces[i].bytes + PIECE_BYTES - 1) / PIECE_BYTES;
    return pd_cpu_run(math, job.first_task[c->count], copy_pieces_body, &job);
}
