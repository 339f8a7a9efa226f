/* Gradients to integers and back, with the CPU's bits: conversions are rounded once, and integers are added in any order. */
#include "trainer/math/cuda/element.h"

#define PER_THREAD 16u
#define ORDERED 1024u /* sums in place that one block converts */

/* A term of 64 or 32 bits, and its unsigned counterpart, in which sums are formed. */
struct wide_term {
    typedef int64_t integer;
    typedef unsigned long long word;
};
struct narrow_term {
    typedef int32_t integer;
    typedef unsigned int word;
};
static_assert(sizeof(wide_term::word) == sizeof(int64_t) && sizeof(narrow_term::word) == sizeof(int32_t), "widths");

struct batch {
    struct pd_term_run runs[PD_TERM_RUNS_MAX];
    double limit;
    uint32_t mark;
};
static_assert(sizeof(batch) + sizeof(uint32_t) <= 4096, "arguments of a kernel");

template <class T> static __global__ void clear_checks(struct batch b, uint32_t count)
{
    if (threadIdx.x < count && b.runs[threadIdx.x].check_begins)
        *static_cast<typename T::integer *>(b.runs[threadIdx.x].check) = 0;
}

template <class T, enum pd_term_source S>
PD_DEVICE typename T::integer term_of(const struct pd_term_run &run, double limit, uint64_t i, uint32_t *wrong)
{
    if (!run.from) return 0;
    if (S == PD_TERM_INTEGER) return static_cast<const typename T::integer *>(run.from)[i];
    const float x = static_cast<const float *>(run.from)[i];
    const double wide = __dmul_rn(static_cast<double>(x), static_cast<double>(run.scale));
    const bool fits = wide < limit && wide > -limit;
    if (!fits) *wrong |= isfinite(x) ? 1u : 2u;
    return fits ? static_cast<typename T::integer>(__double2ll_rn(wide)) : 0;
}

/* A row of blocks a run. */
template <class T, enum pd_term_source S> static __global__ void make_terms(struct batch b)
{
    typedef typename T::word word;
    PD_SHARED(word, total, [1]);
    const struct pd_term_run &run = b.runs[blockIdx.y];
    typename T::integer *to = static_cast<typename T::integer *>(run.to);
    const uint64_t threads = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    word sum = 0;
    uint32_t wrong = 0; /* bits: out of range; not finite. An array would be on the stack */
    if (threadIdx.x == 0) total[0] = 0;
    __syncthreads();
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < run.n; i += threads) {
        const word term = static_cast<word>(term_of<T, S>(run, b.limit, i, &wrong));
        sum += term;
        if (to) to[i] = static_cast<typename T::integer>(run.adds ? static_cast<word>(to[i]) + term : term);
    }
    for (int i = 0; i < 2; i++)
        if (wrong >> i & 1 && run.flags) run.flags[i] = b.mark;
    if (!run.check) return;
    if (sum) atomicAdd(&total[0], sum);
    __syncthreads();
    if (threadIdx.x == 0 && total[0]) atomicAdd(static_cast<word *>(run.check), total[0]);
}

template <class T> static pd_status launch_terms(void *stream, const struct pd_terms *t, struct pd_error *err)
{
    struct batch b = {};
    uint64_t most = 0;
    bool clears = false;
    for (uint32_t i = 0; i < t->run_count; i++) {
        b.runs[i] = t->runs[i];
        if (t->runs[i].n > most) most = t->runs[i].n;
        clears = clears || t->runs[i].check_begins;
    }
    b.limit = t->limit, b.mark = t->mark;
    if (clears) PD_TRY(PD_LAUNCH(err, clear_checks<T>, 1, PD_TERM_RUNS_MAX, 0, stream, b, t->run_count));
    if (!most) return PD_OK;
    const dim3 grid(pd_blocks(most, PER_THREAD * PD_THREADS), t->run_count);
    if (t->source == PD_TERM_F32) return PD_LAUNCH(err, (make_terms<T, PD_TERM_F32>), grid, PD_THREADS, 0, stream, b);
    return PD_LAUNCH(err, (make_terms<T, PD_TERM_INTEGER>), grid, PD_THREADS, 0, stream, b);
}

pd_status pd_cuda_terms(void *stream, const struct pd_terms *t, struct pd_error *err)
{
    return t->are_narrow ? launch_terms<narrow_term>(stream, t, err) : launch_terms<wide_term>(stream, t, err);
}

/* ---- sums to fp32 ---- */

template <class T> PD_DEVICE void subtract(void *check, typename T::word sum, typename T::word *total)
{
    if (!check) return;
    if (sum) atomicAdd(total, sum);
    __syncthreads();
    if (threadIdx.x == 0 && *total) atomicAdd(static_cast<typename T::word *>(check), 0 - *total);
}

PD_DEVICE float rounded(int64_t sum)
{
    return __ll2float_rn(sum);
}
PD_DEVICE float rounded(int32_t sum)
{
    return __int2float_rn(sum);
}

/* Elements [begin, end): in place, writes none that another block still reads. */
template <class T> static __global__ void some_sums(struct pd_term_sums s, uint64_t begin, uint64_t end)
{
    typedef typename T::word word;
    PD_SHARED(word, total, [1]);
    const typename T::integer *sums = static_cast<const typename T::integer *>(s.sums);
    const uint64_t threads = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    word sum = 0;
    float largest = 0;
    if (threadIdx.x == 0) total[0] = 0;
    __syncthreads();
    for (uint64_t i = begin + static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < end; i += threads) {
        const typename T::integer integer = sums[i];
        const float x = __fmul_rn(rounded(integer), s.quantum);
        sum += static_cast<word>(integer);
        largest = fmaxf(largest, fabsf(x));
        s.out[i] = x;
    }
    /* Magnitudes have the order of their bits. */
    if (s.largest && largest > 0) atomicMax(reinterpret_cast<unsigned int *>(s.largest), __float_as_uint(largest));
    subtract<T>(s.check, sum, &total[0]);
}

/* In place the first floats overwrite their own integers: one block, which reads all before writing. */
static __global__ void first_sums(struct pd_term_sums s, uint64_t end)
{
    typedef wide_term::word word;
    PD_SHARED(word, total, [1]);
    word sum = 0;
    if (threadIdx.x == 0) total[0] = 0;
    for (uint64_t begin = 0; begin < end; begin += blockDim.x) {
        const uint64_t i = begin + threadIdx.x;
        const int64_t integer = i < end ? static_cast<const int64_t *>(s.sums)[i] : 0;
        sum += static_cast<word>(integer);
        __syncthreads();
        if (i < end) s.out[i] = __fmul_rn(__ll2float_rn(integer), s.quantum);
        __syncthreads();
    }
    subtract<wide_term>(s.check, sum, &total[0]);
}

template <class T> static __global__ void judge(struct pd_term_sums s)
{
    if (*static_cast<const typename T::integer *>(s.check) != 0) *s.damaged = s.mark;
}

/* In place the floats of elements b to 2b overwrite wide integers before b: growing runs, one after another. */
template <class T> static pd_status launch_sums(void *stream, const struct pd_term_sums *s, struct pd_error *err)
{
    const bool is_ordered = sizeof(typename T::integer) > sizeof(float) && static_cast<const void *>(s->out) == s->sums;
    uint64_t begin = !is_ordered ? 0 : s->n < ORDERED ? s->n : ORDERED;
    if (begin) PD_TRY(PD_LAUNCH(err, first_sums, 1, PD_THREADS, 0, stream, *s, begin));
    while (begin < s->n) {
        const uint64_t end = is_ordered && s->n - begin > begin ? 2 * begin : s->n;
        PD_TRY(PD_LAUNCH(err, some_sums<T>, pd_blocks(end - begin, PER_THREAD * PD_THREADS), PD_THREADS, 0, stream, *s,
                         begin, end));
        begin = end;
    }
    return s->check && s->damaged ? PD_LAUNCH(err, judge<T>, 1, 1, 0, stream, *s) : PD_OK;
}

pd_status pd_cuda_term_sums(void *stream, const struct pd_term_sums *s, struct pd_error *err)
{
    return s->are_narrow ? launch_sums<narrow_term>(stream, s, err) : launch_sums<wide_term>(stream, s, err);
}
