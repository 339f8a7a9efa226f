/* RoPE, SwiGLU, GELU, casts, additions: one pass over memory each, elements independent of each other. Formulas and bits are
 * those of cpu_pointwise.c. */
#include "trainer/math/cuda/each.h"
#include "trainer/math/cuda/functions.h"

#include "ckpt/tensor/tensor.h"

#define WIDE 8

/* ---- GELU ---- */

PD_DEVICE float gelu_gate(float x, float x2)
{
    const float inner = __fmaf_rn(x2, 0.07135481627f, 1.5957691216f);
    return pd_sigmoid(x * inner);
}

template <enum pd_dtype D> struct gelu {
    const void *x;
    void *out;

    template <int N> __device__ void at(uint64_t i) const
    {
        float v[N];
        pd_get_n<D, N>(x, i, v);
        for (int j = 0; j < N; j++)
            v[j] = v[j] * gelu_gate(v[j], v[j] * v[j]);
        pd_put_n<D, N>(out, i, v);
    }
};

template <enum pd_dtype D> struct gelu_gradient {
    const void *x, *dout;
    void *dx;

    template <int N> __device__ void at(uint64_t i) const
    {
        float v[N], d[N];
        pd_get_n<D, N>(x, i, v);
        pd_get_n<D, N>(dout, i, d);
        for (int j = 0; j < N; j++) {
            const float x2 = v[j] * v[j], s = gelu_gate(v[j], x2);
            const float slope = __fmaf_rn(x2, 0.2140644488f, 1.5957691216f);
            const float tail = (v[j] * slope) * (s * (1.0f - s));
            d[j] = d[j] * (s + tail);
        }
        pd_put_n<D, N>(dx, i, d);
    }
};

pd_status pd_cuda_gelu_forward(void *stream, uint64_t count, enum pd_dtype dtype, const void *x, void *out,
                               struct pd_error *err)
{
    const bool aligned = pd_is_16_aligned(x) && pd_is_16_aligned(out);
    PD_WITH_DTYPE(dtype, D, return pd_each_launch<WIDE>(stream, count, aligned, gelu<D>{x, out}, err));
}

pd_status pd_cuda_gelu_backward(void *stream, uint64_t count, enum pd_dtype dtype, const void *x, const void *dout, void *dx,
                                struct pd_error *err)
{
    const bool aligned = pd_is_16_aligned(x) && pd_is_16_aligned(dout) && pd_is_16_aligned(dx);
    PD_WITH_DTYPE(dtype, D, return pd_each_launch<WIDE>(stream, count, aligned, gelu_gradient<D>{x, dout, dx}, err));
}

/* ---- SwiGLU ---- */

template <enum pd_dtype D> struct swiglu {
    uint64_t columns;
    const void *gate_up;
    void *out;

    template <int N> __device__ void at(uint64_t row, uint64_t column) const
    {
        const uint64_t from = 2 * row * columns + column;
        float gate[N], up[N];
        pd_get_n<D, N>(gate_up, from, gate);
        pd_get_n<D, N>(gate_up, from + columns, up);
        for (int j = 0; j < N; j++)
            up[j] = (gate[j] * pd_sigmoid(gate[j])) * up[j];
        pd_put_n<D, N>(out, row * columns + column, up);
    }
};

template <enum pd_dtype D> struct swiglu_gradient {
    uint64_t columns;
    const void *gate_up, *dout;
    void *dgate_up;

    template <int N> __device__ void at(uint64_t row, uint64_t column) const
    {
        const uint64_t from = 2 * row * columns + column;
        float gate[N], up[N], d[N];
        pd_get_n<D, N>(gate_up, from, gate);
        pd_get_n<D, N>(gate_up, from + columns, up);
        pd_get_n<D, N>(dout, row * columns + column, d);
        for (int j = 0; j < N; j++) {
            const float s = pd_sigmoid(gate[j]);
            const float slope = s * __fmaf_rn(gate[j], 1.0f - s, 1.0f);
            const float dup = d[j] * (gate[j] * s);
            gate[j] = (d[j] * up[j]) * slope;
            up[j] = dup;
        }
        pd_put_n<D, N>(dgate_up, from, gate);
        pd_put_n<D, N>(dgate_up, from + columns, up);
    }
};

pd_status pd_cuda_swiglu_forward(void *stream, uint64_t rows, uint64_t columns, enum pd_dtype dtype, const void *gate_up,
                                 void *out, struct pd_error *err)
{
    const bool aligned = pd_is_16_aligned(gate_up) && pd_is_16_aligned(out);
    PD_WITH_DTYPE(dtype, D,
                  return pd_each_row_launch<WIDE>(stream, rows, columns, aligned, swiglu<D>{columns, gate_up, out}, err));
}

pd_status pd_cuda_swiglu_backward(void *stream, uint64_t rows, uint64_t columns, enum pd_dtype dtype, const void *gate_up,
                                  const void *dout, void *dgate_up, struct pd_error *err)
{
    const bool aligned = pd_is_16_aligned(gate_up) && pd_is_16_aligned(dout) && pd_is_16_aligned(dgate_up);
    PD_WITH_DTYPE(dtype, D,
                  return pd_each_row_launch<WIDE>(stream, rows, columns, aligned,
                                                  swiglu_gradient<D>{columns, gate_up, dout, dgate_up}, err));
}

/* ---- RoPE ---- */

/* "Columns" are pairs: of half of what is rotated of a head each, heads side by side. */
template <enum pd_dtype D> struct rope {
    struct pd_rope r;

    template <int N> __device__ void at(uint64_t row, uint64_t pair) const
    {
        const uint32_t half = r.rotated / 2, head = static_cast<uint32_t>(pair) / half;
        const uint32_t i = static_cast<uint32_t>(pair) % half;
        const uint64_t column = static_cast<uint64_t>(head) * r.head_size + i, from = row * r.ld_from + column,
                       to = row * r.ld + column;
        const float *angles = r.cos_sin + (static_cast<uint64_t>(r.positions[row]) * half + i) * 2;
        float a[N], b[N];
        pd_get_n<D, N>(r.from, from, a);
        pd_get_n<D, N>(r.from, from + half, b);
        for (int j = 0; j < N; j++)
            pd_rotate(a[j], b[j], angles[2 * j], (r.inverse ? -1.0f : 1.0f) * angles[2 * j + 1]);
        pd_put_n<D, N>(r.x, to, a);
        pd_put_n<D, N>(r.x, to + half, b);
    }
};

pd_status pd_cuda_rope(void *stream, const struct pd_rope *r, struct pd_error *err)
{
    const uint32_t rotated = r->rotated ? r->rotated : r->head_size, half = rotated / 2;
    const uint64_t pairs = static_cast<uint64_t>(r->heads) * half;
    struct pd_rope both = *r;
    both.rotated = rotated;
    if (!r->from) both.from = r->x, both.ld_from = r->ld;
    const bool aligned = pd_is_16_aligned(both.x) && pd_is_16_aligned(both.from) && half % WIDE == 0 &&
                         r->head_size % WIDE == 0 && both.ld % WIDE == 0 && both.ld_from % WIDE == 0;
    PD_WITH_DTYPE(r->dtype, D, return pd_each_row_launch<WIDE>(stream, r->rows, pairs, aligned, rope<D>{both}, err));
}

/* ---- sums of two, casts ---- */

struct add {
    float *sum;
    const float *more;

    template <int N> __device__ void at(uint64_t i) const
    {
        float x[N], y[N];
        pd_get_n<PD_F32, N>(sum, i, x);
        pd_get_n<PD_F32, N>(more, i, y);
        for (int j = 0; j < N; j++)
            x[j] = x[j] + y[j];
        pd_put_n<PD_F32, N>(sum, i, x);
    }
};

pd_status pd_cuda_add(void *stream, uint64_t n, float *sum, const float *more, struct pd_error *err)
{
    return pd_each_launch<WIDE>(stream, n, pd_is_16_aligned(sum) && pd_is_16_aligned(more), add{sum, more}, err);
}

/* clang-format off */
template <enum pd_dtype To, enum pd_dtype From> struct cast {
    void *dst;
    const void *src;

    template <int N> __device__ void at(uint64_t i) const
    {
        float v[N];
        pd_get_n<From, N>(src, i, v);
        pd_put_n<To, N>(dst, i, v);
    }
};
/* clang-format on */

template <enum pd_dtype To>
static pd_status cast_to(void *stream, uint64_t n, void *dst, enum pd_dtype from, const void *src, struct pd_error *err)
{
    const bool aligned = pd_is_16_aligned(dst) && pd_is_16_aligned(src);
    PD_WITH_DTYPE(from, From, return pd_each_launch<WIDE>(stream, n, aligned, cast<To, From>{dst, src}, err));
}

/* Same type: copies the bits, NaN payloads too. */
pd_status pd_cuda_cast(void *stream, uint64_t n, enum pd_dtype dst_dtype, void *dst, enum pd_dtype src_dtype,
                       const void *src, struct pd_error *err)
{
    if (dst_dtype == src_dtype) return n ? pd_cuda_copy(stream, dst, src, n * pd_dtype_bytes(dst_dtype), err) : PD_OK;
    PD_WITH_DTYPE(dst_dtype, To, return cast_to<To>(stream, n, dst, src_dtype, src, err));
}
