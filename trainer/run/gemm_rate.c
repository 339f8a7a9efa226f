#include "trainer/run/gemm_rate.h"

#include "ckpt/base/clock.h"

#include <math.h>

/* The best of some GEMMs of the given operands, in operations a second. */
static pd_status time_gemm(struct pd_engine *e, struct pd_comm *comm, const struct pd_gemm *gemm, double *ret_best,
                           struct pd_error *err)
{
    enum { TRIES_MIN = 2, TRIES = 16 };
    const double seconds_max = 0.005; /* of every start, and of every restart */
    double best = 0;
    PD_TRY(pd_comm_barrier(comm, err));
    const uint64_t begin = pd_clock_monotonic_ns(NULL);
    for (int i = 0; i < TRIES && (i < TRIES_MIN || pd_clock_seconds_since(NULL, begin) < seconds_max); i++) {
        uint64_t start = pd_clock_monotonic_ns(NULL);
        PD_TRY(pd_gemm(e->math, gemm, err));
        PD_TRY(pd_math_sync(e->math, err));
        best = fmax(best, 2.0 * (double)gemm->m * (double)gemm->n * (double)gemm->k / pd_clock_seconds_since(NULL, start));
    }
    *ret_best = best;
    return PD_OK;
}

static pd_status time_gemm_here(struct pd_engine *e, struct pd_comm *comm, double *ret_best, struct pd_error *err)
{
    enum { SIDE = 384 };
    float *a = e->staging.data, *b = a + SIDE * SIDE, *c = b + SIDE * SIDE;
    for (int i = 0; i < 2 * SIDE * SIDE; i++)
        a[i] = (float)(i % 7) - 3.0f;
    const struct pd_gemm gemm = {
        .m = SIDE, .n = SIDE, .k = SIDE, .a = {a, PD_F32, SIDE}, .b = {b, PD_F32, SIDE}, .c = {c, PD_F32, SIDE}};
    return time_gemm(e, comm, &gemm, ret_best, err);
}

/* Every element is the same small number; zeros stay behind, as there were. */
static pd_status time_gemm_on_gpu(struct pd_engine *e, struct pd_comm *comm, double *ret_best, struct pd_error *err)
{
    const struct pd_gemm gemm = pd_engine_gemm(e);
    const struct pd_rank_device *device = e->options.device;
    const uint64_t bytes = 3 * gemm.m * gemm.k * pd_dtype_bytes(gemm.a.dtype); /* all three, one behind the other */
    const struct pd_span span = {(void *)(uintptr_t)gemm.a.data, bytes, false};
    PD_TRY(pd_dev_fill(device->dev, device->compute, span, 0x2e, err));
    PD_TRY(time_gemm(e, comm, &gemm, ret_best, err));
    return pd_dev_fill(device->dev, device->compute, span, 0, err);
}

pd_status pd_gemm_rate_measure(struct pd_engine *e, struct pd_comm *comm, double *ret_flops_per_second, struct pd_error *err)
{
    double best = 0;
    PD_TRY(e->options.device ? time_gemm_on_gpu(e, comm, &best, err) : time_gemm_here(e, comm, &best, err));
    uint64_t rate = (uint64_t)best;
    PD_TRY(pd_comm_all_reduce(comm, &rate, 1, PD_REDUCE_SUM_U64, err));
    *ret_flops_per_second = (double)rate;
    return PD_OK;
}
