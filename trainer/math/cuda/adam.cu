/* AdamW, element by element, with the bits of offload/cpu_adam_kernel.c: every operation rounded once, none fused. */
#include "trainer/math/cuda/each.h"

extern "C" {
#include "offload/cpu_adam.h"
}

#define WIDE 4

template <enum pd_dtype D, bool copied> struct adam {
    struct pd_adam_step s;
    float keep;
    float *param, *exp_avg, *exp_avg_sq;
    const float *grad;
    void *copy;

    template <int N> __device__ void at(uint64_t i) const
    {
        float p[N], m[N], v[N], g[N];
        pd_get_n<PD_F32, N>(grad, i, g);
        pd_get_n<PD_F32, N>(exp_avg, i, m);
        pd_get_n<PD_F32, N>(exp_avg_sq, i, v);
        pd_get_n<PD_F32, N>(param, i, p);
        for (int j = 0; j < N; j++) {
            const float scaled = s.scale * g[j];
            m[j] = s.beta1 * m[j] + s.beta1_rest * scaled;
            v[j] = s.beta2 * v[j] + s.beta2_rest * scaled * scaled;
            const float change = s.rate_corrected * __fdiv_rn(m[j], __fsqrt_rn(v[j]) * s.root_correction + s.epsilon);
            p[j] = keep * p[j] - change;
        }
        pd_put_n<PD_F32, N>(exp_avg, i, m);
        pd_put_n<PD_F32, N>(exp_avg_sq, i, v);
        pd_put_n<PD_F32, N>(param, i, p);
        if (copied) pd_put_n<D, N>(copy, i, p);
    }
};

pd_status pd_cuda_adam(void *stream, const struct pd_adam_step *step, const struct pd_adam_range *r, struct pd_error *err)
{
    const float keep = r->decay ? step->decay_keep : 1.0f;
    const bool aligned = pd_is_16_aligned(r->param) && pd_is_16_aligned(r->exp_avg) && pd_is_16_aligned(r->exp_avg_sq) &&
                         pd_is_16_aligned(r->grad) && pd_is_16_aligned(r->copy);
    if (!r->copy) {
        const adam<PD_F32, false> each = {*step, keep, r->param, r->exp_avg, r->exp_avg_sq, r->grad, nullptr};
        return pd_each_launch<WIDE>(stream, r->n, aligned, each, err);
    }
    PD_WITH_DTYPE(r->copy_dtype, D, {
        const adam<D, true> each = {*step, keep, r->param, r->exp_avg, r->exp_avg_sq, r->grad, r->copy};
        return pd_each_launch<WIDE>(stream, r->n, aligned, each, err);
    });
}
