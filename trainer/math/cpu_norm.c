/* RMS norm (Zhang and Sennrich 2019) and layer norm (Ba et al. 2016). With x̂ = (x - mean) rstd and g = dout weight:
 *
 *   out = x̂ weight + bias        dx = rstd (g - sum(g)/C - x̂ sum(g x̂)/C)        dweight = sum over rows of dout x̂
 *
 * RMS norm has mean 0, no bias, and no sum(g)/C. Each thread owns whole rows of out and dx, and whole columns of dweight,
 * which it sums in ascending row order. Heads are rotated row by row: in forward after the norm has written them, in
 * backward from dout to dx, which then replaces dout. */
#include "trainer/math/cpu_rope.h"

#define ROWS_TASK_ELEMENTS 16384u
#define COLUMNS_TASK 32u

struct norm_job {
    const struct pd_norm *norm;
    uint64_t rows_per_task;
};

static uint64_t rows_end(const struct norm_job *job, uint64_t index)
{
    const uint64_t end = (index + 1) * job->rows_per_task;
    return end < job->norm->rows ? end : job->norm->rows;
}

/* Offset of a row of x, out, dout or dx, and its index in `kept` and rstd; see struct pd_norm. */
V16_INLINE uint64_t row_at(const struct pd_norm *n, uint64_t row)
{
    return n->heads ? row / n->heads * n->ld + row % n->heads * n->columns : row * n->columns;
}

V16_INLINE uint64_t kept_row(const struct pd_norm *n, uint64_t row)
{
    return n->heads ? row / n->heads * n->kept_heads + row % n->heads : row;
}

V16_INLINE float row_mean(enum pd_dtype dtype, const struct pd_norm *n, uint64_t at)
{
    v16 sum = v16_zero();
    V16_FOR(i, w, n->columns, sum = v16_add(sum, v16_get_part(dtype, n->x, at + i, w)));
    return v16_sum(sum) / (float)n->columns;
}

/* Mean of (x - mean)^2. Lanes beyond the row stay out of the sum. */
V16_INLINE v16 square_add(v16 sum, v16 x, v16 mean, unsigned w)
{
    v16 d = v16_sub(x, mean);
    if (w < 16) {
        float lanes[16] = {0};
        v16_put_part(PD_F32, lanes, 0, w, d);
        d = v16_load(lanes);
    }
    return v16_fma(d, d, sum);
}

V16_INLINE float row_variance(enum pd_dtype dtype, const struct pd_norm *n, uint64_t at, v16 mean)
{
    v16 sum = v16_zero();
    V16_FOR(i, w, n->columns, sum = square_add(sum, v16_get_part(dtype, n->x, at + i, w), mean, w));
    return v16_sum(sum) / (float)n->columns;
}

V16_INLINE void put_normed(enum pd_dtype dtype, const struct pd_norm *n, const void *weight, uint64_t at, uint64_t kept,
                           uint64_t i, unsigned w, v16 mean, v16 rstd)
{
    v16 x = v16_get_part(dtype, n->x, at + i, w);
    if (n->kept) v16_put_part(dtype, n->kept, kept + i, w, x);
    x = v16_mul(v16_sub(x, mean), rstd);
    x = v16_mul(x, v16_get_part(dtype, weight, i, w));
    if (n->bias) x = v16_add(x, v16_get_part(dtype, n->bias, i, w));
    v16_put_part(dtype, n->out, at + i, w, x);
}

V16_INLINE void forward_row(enum pd_dtype dtype, const struct pd_norm *n, uint64_t row)
{
    const uint64_t at = row_at(n, row), kept = kept_row(n, row);
    const bool is_other = n->other_weight && row % n->heads >= n->other_first;
    const void *weight = is_other ? n->other_weight : n->weight;
    float mean = n->mean ? row_mean(dtype, n, at) : 0.0f;
    float variance = row_variance(dtype, n, at, v16_set1(mean));
    float rstd = 1.0f / __builtin_sqrtf(variance + n->epsilon);
    if (n->mean) n->mean[row] = mean;
    n->rstd[kept] = rstd;
    v16 mean_all = v16_set1(mean), rstd_all = v16_set1(rstd);
    V16_FOR(i, w, n->columns, put_normed(dtype, n, weight, at, kept * n->columns, i, w, mean_all, rstd_all));
}

/* Rows of a task; `turn` is kept from head to head of a token. */
V16_INLINE void turn_row(enum pd_dtype dtype, const struct pd_norm *n, uint64_t row, bool is_first, bool inverse,
                         const void *from, void *to, struct pd_cpu_turn *turn)
{
    const uint64_t half = (n->rotated ? n->rotated : n->columns) / 2;
    if (is_first || row % n->heads == 0) pd_cpu_turn_of(n->cos_sin, n->positions[row / n->heads], half, inverse, turn);
    pd_cpu_turn_head(dtype, turn, from, to, row_at(n, row), half);
}

V16_INLINE void forward_rows(enum pd_dtype dtype, const struct norm_job *job, uint64_t index)
{
    const struct pd_norm *n = job->norm;
    const uint64_t first = index * job->rows_per_task;
    struct pd_cpu_turn turn;
    for (uint64_t row = first; row < rows_end(job, index); row++) {
        forward_row(dtype, n, row);
        if (n->positions) turn_row(dtype, n, row, row == first, false, n->out, n->out, &turn);
    }
}

PD_DTYPE_BODY(forward_body, struct norm_job, norm->dtype, forward_rows)

V16_INLINE void turn_back_rows(enum pd_dtype dtype, const struct norm_job *job, uint64_t index)
{
    const struct pd_norm *n = job->norm;
    const uint64_t first = index * job->rows_per_task;
    struct pd_cpu_turn turn;
    for (uint64_t row = first; row < rows_end(job, index); row++)
        turn_row(dtype, n, row, row == first, true, n->dout, n->dx, &turn);
}

PD_DTYPE_BODY(turn_back_body, struct norm_job, norm->dtype, turn_back_rows)

V16_INLINE v16 normed(enum pd_dtype dtype, const struct pd_norm *n, uint64_t index, unsigned w, v16 mean, v16 rstd)
{
    return v16_mul(v16_sub(v16_get_part(dtype, n->x, index, w), mean), rstd);
}

/* x of a row begins at `from`, all else at `at`. */
V16_INLINE void sums_add(enum pd_dtype dtype, const struct pd_norm *n, uint64_t at, uint64_t from, uint64_t i, unsigned w,
                         v16 mean, v16 rstd, v16 *sum, v16 *sum_x)
{
    v16 g = v16_mul(v16_get_part(dtype, n->dout, at + i, w), v16_get_part(dtype, n->weight, i, w));
    *sum = v16_add(*sum, g);
    *sum_x = v16_fma(g, normed(dtype, n, from + i, w, mean, rstd), *sum_x);
}

V16_INLINE void put_dx(enum pd_dtype dtype, const struct pd_norm *n, uint64_t at, uint64_t from, uint64_t i, unsigned w,
                       v16 mean, v16 rstd, v16 minus_mean_g, v16 minus_mean_gx)
{
    v16 g = v16_mul(v16_get_part(dtype, n->dout, at + i, w), v16_get_part(dtype, n->weight, i, w));
    v16 t = v16_fma(normed(dtype, n, from + i, w, mean, rstd), minus_mean_gx, v16_add(g, minus_mean_g));
    v16 residual = n->dresidual ? v16_get_part(dtype, n->dresidual, at + i, w) : v16_zero();
    v16_put_part(dtype, n->dx, at + i, w, v16_fma(t, rstd, residual));
}

V16_INLINE void backward_rows(enum pd_dtype dtype, const struct norm_job *job, uint64_t index)
{
    const struct pd_norm *n = job->norm;
    for (uint64_t row = index * job->rows_per_task; row < rows_end(job, index); row++) {
        const uint64_t at = row_at(n, row), kept = kept_row(n, row), from = kept * n->columns;
        v16 mean = v16_set1(n->mean ? n->mean[row] : 0.0f), rstd = v16_set1(n->rstd[kept]);
        v16 sum = v16_zero(), sum_x = v16_zero();
        V16_FOR(i, w, n->columns, sums_add(dtype, n, at, from, i, w, mean, rstd, &sum, &sum_x));
        float mean_g = n->mean ? v16_sum(sum) / (float)n->columns : 0.0f;
        v16 minus_mean_g = v16_set1(-mean_g), minus_mean_gx = v16_set1(-(v16_sum(sum_x) / (float)n->columns));
        V16_FOR(i, w, n->columns, put_dx(dtype, n, at, from, i, w, mean, rstd, minus_mean_g, minus_mean_gx));
    }
}

PD_DTYPE_BODY(backward_rows_body, struct norm_job, norm->dtype, backward_rows)

V16_INLINE void weight_columns(enum pd_dtype dtype, const struct pd_norm *n, uint64_t i, unsigned w0, unsigned w1)
{
    v16 dweight0 = v16_zero(), dweight1 = v16_zero(), dbias0 = v16_zero(), dbias1 = v16_zero();
    for (uint64_t row = 0; row < n->rows; row++) {
        const uint64_t at = row_at(n, row) + i, kept = kept_row(n, row), from = kept * n->columns + i;
        v16 mean = v16_set1(n->mean ? n->mean[row] : 0.0f), rstd = v16_set1(n->rstd[kept]);
        v16 dout0 = v16_get_part(dtype, n->dout, at, w0);
        dweight0 = v16_fma(dout0, normed(dtype, n, from, w0, mean, rstd), dweight0);
        dbias0 = v16_add(dbias0, dout0);
        if (w1 == 0) continue;
        v16 dout1 = v16_get_part(dtype, n->dout, at + 16, w1);
        dweight1 = v16_fma(dout1, normed(dtype, n, from + 16, w1, mean, rstd), dweight1);
        dbias1 = v16_add(dbias1, dout1);
    }
    v16_put_part(PD_F32, n->dweight, i, w0, dweight0);
    if (w1) v16_put_part(PD_F32, n->dweight, i + 16, w1, dweight1);
    if (!n->dbias) return;
    v16_put_part(PD_F32, n->dbias, i, w0, dbias0);
    if (w1) v16_put_part(PD_F32, n->dbias, i + 16, w1, dbias1);
}

V16_INLINE void weight_task(enum pd_dtype dtype, const struct norm_job *job, uint64_t index)
{
    const struct pd_norm *n = job->norm;
    const uint64_t i = index * COLUMNS_TASK, left = n->columns - i;
    if (left >= 32)
        weight_columns(dtype, n, i, 16, 16);
    else if (left > 16)
        weight_columns(dtype, n, i, 16, (unsigned)(left - 16));
    else
        weight_columns(dtype, n, i, (unsigned)left, 0);
}

PD_DTYPE_BODY(backward_columns_body, struct norm_job, norm->dtype, weight_task)

static struct norm_job job_of(const struct pd_norm *norm, uint64_t *ret_tasks)
{
    uint64_t rows = ROWS_TASK_ELEMENTS / norm->columns;
    if (rows == 0) rows = 1;
    *ret_tasks = (norm->rows + rows - 1) / rows;
    return (struct norm_job){norm, rows};
}

pd_status PD_CPU(norm_forward)(struct pd_math *math, const struct pd_norm *norm, struct pd_error *err)
{
    uint64_t tasks;
    struct norm_job job = job_of(norm, &tasks);
    return pd_cpu_run(math, tasks, forward_body, &job);
}

/* Columns first: dx may overwrite dout or x. */
pd_status PD_CPU(norm_backward)(struct pd_math *math, const struct pd_norm *norm, struct pd_error *err)
{
    uint64_t tasks;
    struct pd_norm n = *norm;
    struct norm_job job = job_of(&n, &tasks);
    if (n.positions) {
        pd_parallel(math->pool, tasks, turn_back_body, &job);
        n.dout = n.dx;
    }
    pd_parallel(math->pool, (n.columns + COLUMNS_TASK - 1) / COLUMNS_TASK, backward_columns_body, &job);
    return pd_cpu_run(math, tasks, backward_rows_body, &job);
}
