/* AdamW, element by element, with the bits of offload/cpu_adam_kernel.c: every operation rounded once, none fused. */
#include "trainer/math/cuda/each.h"

extern "C" {
#include "offload/cpu_adam.h"
}
#include "ckpt/base/random_bits.h"

#define WIDE 4

/* M: of the moments; D: of the copy. */
template <enum pd_dtype M, enum pd_dtype D, bool copied>
struct adam {
    struct pd_adam_step s; float keep; float * param; void * exp_avg, *exp_avg_sq; const float * grad; void * copy;
    uint64_t key; struct pd_update_place place;

    __device__ uint32_t random_of(uint64_t i)
        const {const uint64_t at = place.first + i;
               return pd_random_bits(key, place.origin + at / place.columns * place.stride + at % place.columns);}

template <int N> __device__ void put_at_random(uint64_t i, const float (&m)[N], const float (&v)[N]) const
{
    for (int j = 0; j < N; j++) {
        const uint32_t random = random_of(i + j);
        static_cast<uint16_t *>(exp_avg)[i + j] = pd_bf16_at_random(m[j], random);
        static_cast<uint16_t *>(exp_avg_sq)[i + j] = pd_bf16_at_random(v[j], random >> 16);
    }
}

template <int N> __device__ void at(uint64_t i) const
{
    float p[N], m[N], v[N], g[N];
    pd_get_n<PD_F32, N>(grad, i, g);
    pd_get_n<M, N>(exp_avg, i, m);
    pd_get_n<M, N>(exp_avg_sq, i, v);
    pd_get_n<PD_F32, N>(param, i, p);
    for (int j = 0; j < N; j++) {
        const float scaled = s.scale * g[j];
        m[j] = s.beta1 * m[j] + s.beta1_rest * scaled;
        v[j] = s.beta2 * v[j] + s.beta2_rest * scaled * scaled;
        const float change = s.rate_corrected * __fdiv_rn(m[j], __fsqrt_rn(v[j]) * s.root_correction + s.epsilon);
        p[j] = keep * p[j] - change;
    }
    if (M == PD_BF16)
        put_at_random<N>(i, m, v);
    else {
        pd_put_n<PD_F32, N>(exp_avg, i, m);
        pd_put_n<PD_F32, N>(exp_avg_sq, i, v);
    }
    pd_put_n<PD_F32, N>(param, i, p);
    if (copied) pd_put_n<D, N>(copy, i, p);
}
}
;

/* By the sign of the gradient: few elements, so that one kernel serves all types of the copy. */
struct signed_move {
    float step;
    float *param;
    const float *grad;
    void *copy;
    enum pd_dtype copy_dtype;

    template <int N> __device__ void at(uint64_t i) const
    {
        float p[N], g[N];
        pd_get_n<PD_F32, N>(grad, i, g);
        pd_get_n<PD_F32, N>(param, i, p);
        for (int j = 0; j < N; j++)
            p[j] = p[j] - step * static_cast<float>((g[j] > 0.0f) - (g[j] < 0.0f));
        pd_put_n<PD_F32, N>(param, i, p);
        if (copy) pd_put_any<N>(copy_dtype, copy, i, p);
    }
};

static pd_status move_by_sign(void *stream, const struct pd_update_range *r, struct pd_error *err)
{
    const signed_move move = {r->sign_step, r->param, r->grad, r->copy, r->copy_dtype};
    return pd_each_launch<1>(stream, r->n, true, move, err);
}

template <enum pd_dtype M, enum pd_dtype D, bool copied>
static pd_status launch(void *stream, const struct pd_adam_step *step, const struct pd_update_range *r, struct pd_error *err)
{
    const bool aligned = pd_is_16_aligned(r->param) && pd_is_16_aligned(r->exp_avg) && pd_is_16_aligned(r->exp_avg_sq) &&
                         pd_is_16_aligned(r->grad) && pd_is_16_aligned(r->copy);
    const adam<M, D, copied> each = {
        *step,   r->decay ? step->decay_keep : 1.0f,        r->param, r->exp_avg, r->exp_avg_sq, r->grad,
        r->copy, pd_random_key(step->key, r->place.tensor), r->place};
    return pd_each_launch<WIDE>(stream, r->n, aligned, each, err);
}

template <enum pd_dtype M>
static pd_status launch_copied(void *stream, const struct pd_adam_step *step, const struct pd_update_range *r,
                               struct pd_error *err)
{
    if (!r->copy) return launch<M, PD_F32, false>(stream, step, r, err);
    PD_WITH_DTYPE(r->copy_dtype, D, { return launch<M, D, true>(stream, step, r, err); });
}

pd_status pd_cuda_adam(void *stream, const struct pd_adam_step *step, const struct pd_update_range *r, struct pd_error *err)
{
    if (r->by_sign) return move_by_sign(stream, r, err);
    if (r->moments == PD_F32) return launch_copied<PD_F32>(stream, step, r, err);
    return launch_copied<PD_BF16>(stream, step, r, err);
}
