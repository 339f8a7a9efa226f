/* Gradients to integers and back, with the CPU's bits: conversions are rounded once, and integers are added in any order. */
#include "trainer/math/cuda/element.h"

#define PER_THREAD 16u
#define ORDERED 1024u /* sums in place that one block converts */

typedef unsigned long long word;
static_assert(sizeof(word) == sizeof(int64_t), "terms are 64-bit words");

struct batch {
    struct pd_term_run runs[PD_TERM_RUNS_MAX];
    double scale, limit;
    uint32_t mark;
};

static __global__ void clear_checks(struct batch b, uint32_t count)
{
    if (threadIdx.x < count && b.runs[threadIdx.x].check_begins) *b.runs[threadIdx.x].check = 0;
}

template <enum pd_term_source S> PD_DEVICE int64_t term_of(const batch &b, const void *from, uint64_t i, uint32_t *wrong)
{
    if (!from) return 0;
    if (S == PD_TERM_INTEGER) return static_cast<const int64_t *>(from)[i];
    const float x = static_cast<const float *>(from)[i];
    const double wide = __dmul_rn(static_cast<double>(x), b.scale);
    const bool fits = wide < b.limit && wide > -b.limit;
    if (!fits) *wrong |= isfinite(x) ? 1u : 2u;
    return fits ? __double2ll_rn(wide) : 0;
}

/* A row of blocks a run. */
template <enum pd_term_source S> static __global__ void make_terms(struct batch b)
{
    PD_SHARED(word, total, [1]);
    const struct pd_term_run &run = b.runs[blockIdx.y];
    const uint64_t threads = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    word sum = 0;
    uint32_t wrong = 0; /* bits: out of range; not finite. An array would be on the stack */
    if (threadIdx.x == 0) total[0] = 0;
    __syncthreads();
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < run.n; i += threads) {
        const word term = static_cast<word>(term_of<S>(b, run.from, i, &wrong));
        sum += term;
        if (run.to) run.to[i] = static_cast<int64_t>(run.adds ? static_cast<word>(run.to[i]) + term : term);
    }
    for (int i = 0; i < 2; i++)
        if (wrong >> i & 1 && run.flags) run.flags[i] = b.mark;
    if (!run.check) return;
    if (sum) atomicAdd(&total[0], sum);
    __syncthreads();
    if (threadIdx.x == 0 && total[0]) atomicAdd(reinterpret_cast<word *>(run.check), total[0]);
}

pd_status pd_cuda_terms(void *stream, const struct pd_terms *t, struct pd_error *err)
{
    struct batch b = {};
    uint64_t most = 0;
    bool clears = false;
    for (uint32_t i = 0; i < t->run_count; i++) {
        b.runs[i] = t->runs[i];
        if (t->runs[i].n > most) most = t->runs[i].n;
        clears = clears || t->runs[i].check_begins;
    }
    b.scale = t->scale, b.limit = t->limit, b.mark = t->mark;
    if (clears) PD_TRY(PD_LAUNCH(err, clear_checks, 1, PD_TERM_RUNS_MAX, 0, stream, b, t->run_count));
    if (!most) return PD_OK;
    const dim3 grid(pd_blocks(most, PER_THREAD * PD_THREADS), t->run_count);
    if (t->source == PD_TERM_F32) return PD_LAUNCH(err, make_terms<PD_TERM_F32>, grid, PD_THREADS, 0, stream, b);
    return PD_LAUNCH(err, make_terms<PD_TERM_INTEGER>, grid, PD_THREADS, 0, stream, b);
}

/* ---- sums to fp32 ---- */

PD_DEVICE void subtract(int64_t *check, word sum, word *total)
{
    if (!check) return;
    if (sum) atomicAdd(total, sum);
    __syncthreads();
    if (threadIdx.x == 0 && *total) atomicAdd(reinterpret_cast<word *>(check), 0 - *total);
}

/* Elements [begin, end): in place, writes none that another block still reads. */
static __global__ void some_sums(struct pd_term_sums s, uint64_t begin, uint64_t end)
{
    PD_SHARED(word, total, [1]);
    const uint64_t threads = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    word sum = 0;
    if (threadIdx.x == 0) total[0] = 0;
    __syncthreads();
    for (uint64_t i = begin + static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < end; i += threads) {
        const int64_t integer = s.sums[i];
        sum += static_cast<word>(integer);
        s.out[i] = __fmul_rn(__ll2float_rn(integer), s.quantum);
    }
    subtract(s.check, sum, &total[0]);
}

/* In place the first floats overwrite their own integers: one block, which reads all before writing. */
static __global__ void first_sums(struct pd_term_sums s, uint64_t end)
{
    PD_SHARED(word, total, [1]);
    word sum = 0;
    if (threadIdx.x == 0) total[0] = 0;
    for (uint64_t begin = 0; begin < end; begin += blockDim.x) {
        const uint64_t i = begin + threadIdx.x;
        const int64_t integer = i < end ? s.sums[i] : 0;
        sum += static_cast<word>(integer);
        __syncthreads();
        if (i < end) s.out[i] = __fmul_rn(__ll2float_rn(integer), s.quantum);
        __syncthreads();
    }
    subtract(s.check, sum, &total[0]);
}

static __global__ void judge(struct pd_term_sums s)
{
    if (*s.check != 0) *s.damaged = s.mark;
}

/* In place the floats of elements b to 2b overwrite integers before b: growing runs, one after another. */
pd_status pd_cuda_term_sums(void *stream, const struct pd_term_sums *s, struct pd_error *err)
{
    const bool in_place = static_cast<const void *>(s->out) == static_cast<const void *>(s->sums);
    uint64_t begin = !in_place ? 0 : s->n < ORDERED ? s->n : ORDERED;
    if (begin) PD_TRY(PD_LAUNCH(err, first_sums, 1, PD_THREADS, 0, stream, *s, begin));
    while (begin < s->n) {
        const uint64_t end = in_place && s->n - begin > begin ? 2 * begin : s->n;
        PD_TRY(PD_LAUNCH(err, some_sums, pd_blocks(end - begin, PER_THREAD * PD_THREADS), PD_THREADS, 0, stream, *s, begin,
                         end));
        begin = end;
    }
    return s->check ? PD_LAUNCH(err, judge, 1, 1, 0, stream, *s) : PD_OK;
}
