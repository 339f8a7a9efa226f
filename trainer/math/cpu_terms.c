/* Gradients to integers and back. An fp64 value is converted in two halves, each by adding 1.5 * 2^52: the low bits are then
 * the integer. This rounds to nearest even; AVX2 has no such conversion. */
#include "trainer/math/cpu_ops.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define TASK_ELEMENTS 16384u
#define STEP 64u /* elements that go through registers and the first-level cache together */
#define MAGIC 0x1.8p52
#define ORDERED_ELEMENTS 4096u /* of sums in place, by one thread */

struct terms_job {
    const struct pd_terms *t;
    uint64_t first_task[PD_TERM_RUNS_MAX + 1]; /* of each run */
};

V16_INLINE int64_t bits_of(double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* |x| < 2^63: exact for whole numbers of 24 bits; x - high * 2^32 is exact for any size. */
V16_INLINE int64_t nearest(double x)
{
    const double high = x * 0x1p-32 + MAGIC, low = x - (high - MAGIC) * 0x1p32 + MAGIC;
    return (int64_t)((uint64_t)(bits_of(high) - bits_of(MAGIC)) << 32) + (bits_of(low) - bits_of(MAGIC));
}

enum { OUT_OF_RANGE = 1, NOT_FINITE = 2 };

/* For elements that did not all fit. */
static int terms_find_wrong(const struct pd_terms *t, const float *from, double scale, uint64_t count)
{
    int wrong = 0;
    for (uint64_t k = 0; k < count; k++)
        wrong |= !isfinite(from[k]) ? NOT_FINITE : fabs((double)from[k] * scale) < t->limit ? 0 : OUT_OF_RANGE;
    return wrong;
}

/* Terms of `count` elements from i on; all are read before `to` is written. Returns their problems. */
V16_INLINE int make(const struct pd_terms *t, const struct pd_term_run *run, uint64_t i, uint64_t count, int64_t *term)
{
    const float *from = (const float *)run->from + i;
    const double scale = run->scale;
    double wide[STEP];
    int out = 0;
    for (uint64_t k = 0; k < count; k++)
        wide[k] = (double)from[k] * scale;
    for (uint64_t k = 0; k < count; k++) {
        const bool fits = wide[k] < t->limit && wide[k] > -t->limit;
        out |= !fits;
        wide[k] = fits ? wide[k] : 0.0;
    }
    for (uint64_t k = 0; k < count; k++)
        term[k] = nearest(wide[k]);
    return out ? terms_find_wrong(t, from, scale, count) : 0;
}

V16_INLINE uint64_t store(bool adds, const int64_t *term, uint64_t count, int64_t *to)
{
    uint64_t sum = 0;
    for (uint64_t k = 0; k < count; k++) {
        sum += (uint64_t)term[k];
        to[k] = adds ? (int64_t)((uint64_t)to[k] + (uint64_t)term[k]) : term[k];
    }
    return sum;
}

V16_INLINE uint64_t store_narrow(bool adds, const int64_t *term, uint64_t count, uint32_t *to)
{
    uint64_t sum = 0;
    for (uint64_t k = 0; k < count; k++) {
        sum += (uint64_t)term[k];
        to[k] = adds ? to[k] + (uint32_t)term[k] : (uint32_t)term[k];
    }
    return sum;
}

V16_INLINE uint64_t some_terms(const struct pd_terms *t, const struct pd_term_run *run, bool are_narrow, uint64_t i,
                               uint64_t count, int *wrong)
{
    int64_t made[STEP];
    const int64_t *term = made;
    if (!run->from)
        memset(made, 0, sizeof made);
    else if (t->source != PD_TERM_INTEGER)
        *wrong |= make(t, run, i, count, made);
    else if (are_narrow)
        for (uint64_t k = 0; k < count; k++)
            made[k] = ((const int32_t *)run->from)[i + k];
    else
        term = (const int64_t *)run->from + i;
    if (!run->to) return store(false, term, count, made);
    if (are_narrow) {
        uint32_t *to = (uint32_t *)run->to + i;
        return run->adds ? store_narrow(true, term, count, to) : store_narrow(false, term, count, to);
    }
    int64_t *to = (int64_t *)run->to + i;
    return run->adds ? store(true, term, count, to) : store(false, term, count, to);
}

/* A check has the width of the terms. */
static void add_to_check(void *check, bool is_narrow, uint64_t sum)
{
    if (!check) return;
    if (is_narrow)
        __atomic_fetch_add((uint32_t *)check, (uint32_t)sum, __ATOMIC_RELAXED);
    else
        __atomic_fetch_add((uint64_t *)check, sum, __ATOMIC_RELAXED);
}

static uint32_t run_of(const struct terms_job *job, uint64_t task)
{
    uint32_t run = 0;
    while (job->first_task[run + 1] <= task)
        run++;
    return run;
}

static void terms_body(void *context, uint64_t task)
{
    const struct terms_job *job = context;
    const uint32_t number = run_of(job, task);
    const struct pd_term_run *run = &job->t->runs[number];
    const uint64_t begin = (task - job->first_task[number]) * TASK_ELEMENTS;
    const uint64_t end = run->n - begin < TASK_ELEMENTS ? run->n : begin + TASK_ELEMENTS;
    uint64_t i = begin, sum = 0;
    int wrong = 0;
    if (job->t->are_narrow)
        for (; i + STEP <= end; i += STEP)
            sum += some_terms(job->t, run, true, i, STEP, &wrong);
    else
        for (; i + STEP <= end; i += STEP)
            sum += some_terms(job->t, run, false, i, STEP, &wrong);
    if (i < end) sum += some_terms(job->t, run, job->t->are_narrow, i, end - i, &wrong);
    add_to_check(run->check, job->t->are_narrow, sum);
    for (int bit = 0; run->flags && bit < 2; bit++)
        if (wrong >> bit & 1) __atomic_store_n(&run->flags[bit], job->t->mark, __ATOMIC_RELAXED);
}

pd_status PD_CPU(terms)(struct pd_math *math, const struct pd_terms *t, struct pd_error *err)
{
    struct terms_job job = {.t = t};
    for (uint32_t i = 0; i < t->run_count; i++) {
        if (t->runs[i].check_begins) memset(t->runs[i].check, 0, t->are_narrow ? sizeof(int32_t) : sizeof(int64_t));
        job.first_task[i + 1] = job.first_task[i] + (t->runs[i].n + TASK_ELEMENTS - 1) / TASK_ELEMENTS;
    }
    return pd_cpu_run(math, job.first_task[t->run_count], terms_body, &job);
}

/* ---- sums to fp32 ---- */

struct sums_job {
    const struct pd_term_sums *s;
    uint64_t begin, end;
};

/* Reads all before writing: in place a float overwrites earlier integers. */
V16_INLINE uint64_t some_sums(const struct pd_term_sums *s, uint64_t i, uint64_t count)
{
    int64_t sum[STEP];
    float x[STEP];
    uint64_t total = 0;
    memcpy(sum, (const int64_t *)s->sums + i, count * sizeof *sum);
    for (uint64_t k = 0; k < count; k++) {
        total += (uint64_t)sum[k];
        x[k] = (float)sum[k] * s->quantum;
    }
    memcpy(s->out + i, x, count * sizeof *x);
    return total;
}

/* In place a float overwrites its own integer. */
V16_INLINE uint64_t some_narrow_sums(const struct pd_term_sums *s, uint64_t i, uint64_t count, uint32_t *largest)
{
    int32_t sum[STEP];
    float x[STEP];
    uint32_t total = 0;
    memcpy(sum, (const int32_t *)s->sums + i, count * sizeof *sum);
    for (uint64_t k = 0; k < count; k++) {
        const uint32_t sign = (uint32_t)(sum[k] >> 31), magnitude = ((uint32_t)sum[k] ^ sign) - sign;
        total += (uint32_t)sum[k];
        *largest = magnitude > *largest ? magnitude : *largest;
        x[k] = (float)sum[k] * s->quantum;
    }
    memcpy(s->out + i, x, count * sizeof *x);
    return total;
}

/* Magnitudes have the order of their bits. */
static void keep_largest(float *largest, float magnitude)
{
    uint32_t bits, before = __atomic_load_n((uint32_t *)(void *)largest, __ATOMIC_RELAXED);
    memcpy(&bits, &magnitude, sizeof bits);
    while (before < bits && !__atomic_compare_exchange_n((uint32_t *)(void *)largest, &before, bits, true, __ATOMIC_RELAXED,
                                                         __ATOMIC_RELAXED))
        continue;
}

static void sums_body(void *context, uint64_t task)
{
    const struct sums_job *job = context;
    const struct pd_term_sums *s = job->s;
    uint64_t i = job->begin + task * TASK_ELEMENTS, total = 0;
    const uint64_t end = job->end - i < TASK_ELEMENTS ? job->end : i + TASK_ELEMENTS;
    uint32_t largest = 0;
    if (s->are_narrow)
        for (; i < end; i += STEP)
            total += some_narrow_sums(s, i, end - i < STEP ? end - i : STEP, &largest);
    else {
        for (; i + STEP <= end; i += STEP)
            total += some_sums(s, i, STEP);
        if (i < end) total += some_sums(s, i, end - i);
    }
    add_to_check(s->check, s->are_narrow, 0 - total);
    if (s->largest) keep_largest(s->largest, (float)largest * s->quantum);
}

static bool is_zero(const void *check, bool is_narrow)
{
    return is_narrow ? *(const int32_t *)check == 0 : *(const int64_t *)check == 0;
}

/* In place the floats of elements b to 2b overwrite wide integers before b, which have been read: use growing runs. */
pd_status PD_CPU(term_sums)(struct pd_math *math, const struct pd_term_sums *s, struct pd_error *err)
{
    const bool is_ordered = !s->are_narrow && (const void *)s->out == s->sums && s->n > ORDERED_ELEMENTS;
    struct sums_job job = {s, 0, is_ordered ? ORDERED_ELEMENTS : s->n};
    _Static_assert(ORDERED_ELEMENTS <= TASK_ELEMENTS, "one task is one thread");
    while (job.begin < s->n) {
        PD_TRY(pd_cpu_run(math, (job.end - job.begin + TASK_ELEMENTS - 1) / TASK_ELEMENTS, sums_body, &job));
        job.begin = job.end;
        job.end = s->n - job.begin < job.begin ? s->n : 2 * job.begin;
    }
    if (s->check && s->damaged && !is_zero(s->check, s->are_narrow)) *s->damaged = s->mark;
    return PD_OK;
}
