/* Sums: down the columns in ascending row order, and of squares along the rows in fp64. */
#include "trainer/math/cpu_ops.h"

#include <string.h>

#define COLUMNS_TASK 64u
#define ROWS_TASK_ELEMENTS 16384u
#define AHEAD_BYTES 4096u

struct column_job {
    uint64_t rows, n, ld;
    enum pd_dtype dtype;
    const void *x;
    float *out;
};

V16_INLINE void four_columns(enum pd_dtype dtype, const struct column_job *job, uint64_t column)
{
    v16 sum[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
    for (uint64_t row = 0; row < job->rows; row++) {
        uint64_t at = row * job->ld + column;
        for (int v = 0; v < 4; v++)
            sum[v] = v16_add(sum[v], v16_get(dtype, job->x, at + 16 * (uint64_t)v));
    }
    for (int v = 0; v < 4; v++)
        v16_store(job->out + column + 16 * (uint64_t)v, sum[v]);
}

V16_INLINE void one_column(enum pd_dtype dtype, const struct column_job *job, uint64_t column, unsigned w)
{
    v16 sum = v16_zero();
    for (uint64_t row = 0; row < job->rows; row++) {
        sum = v16_add(sum, v16_get_part(dtype, job->x, row * job->ld + column, w));
    }
    v16_put_part(PD_F32, job->out, column, w, sum);
}

V16_INLINE void columns_of_task(enum pd_dtype dtype, const struct column_job *job, uint64_t index)
{
    const uint64_t column = index * COLUMNS_TASK, left = job->n - column;
    if (left >= COLUMNS_TASK)
        four_columns(dtype, job, column);
    else
        V16_FOR(i, w, left, one_column(dtype, job, column + i, w));
}

PD_DTYPE_BODY(column_body, struct column_job, dtype, columns_of_task)

pd_status PD_CPU(column_sum)(struct pd_math *math, uint64_t rows, uint64_t n, uint64_t ld, enum pd_dtype dtype,
                             const void *x, float *out, struct pd_error *err)
{
    struct column_job job = {rows, n, ld, dtype, x, out};
    return pd_cpu_run(math, (n + COLUMNS_TASK - 1) / COLUMNS_TASK, column_body, &job);
}

struct squares_job {
    uint64_t rows, columns, rows_per_task;
    const float *x;
    double *sums;
};

/* Sixteen lanes of fp64, in which the square of an fp32 number is exact, four to a vector. */
typedef double four_doubles __attribute__((vector_size(32)));
typedef float four_floats __attribute__((vector_size(16), aligned(4), may_alias));

static double row_square(const float *x, uint64_t n)
{
    four_doubles sum[4] = {{0}, {0}, {0}, {0}};
    float last[16] = {0};
    for (; n; x += 16, n -= n < 16 ? n : 16) {
        if (n < 16) x = memcpy(last, x, n * sizeof *x);
        __builtin_prefetch((const void *)((uintptr_t)x + AHEAD_BYTES)); /* without effect beyond the end */
        for (int k = 0; k < 4; k++) {
            const four_doubles wide = __builtin_convertvector(*(const four_floats *)(x + 4 * k), four_doubles);
            sum[k] += wide * wide;
        }
    }
    const four_doubles four = (sum[0] + sum[2]) + (sum[1] + sum[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

static void squares_body(void *context, uint64_t index)
{
    const struct squares_job *job = context;
    uint64_t end = (index + 1) * job->rows_per_task;
    if (end > job->rows) end = job->rows;
    for (uint64_t row = index * job->rows_per_task; row < end; row++)
        job->sums[row] = row_square(job->x + row * job->columns, job->columns);
}

pd_status PD_CPU(row_squares)(struct pd_math *math, uint64_t rows, uint64_t columns, const float *x, double *sums,
                              struct pd_error *err)
{
    struct squares_job job = {rows, columns, columns ? ROWS_TASK_ELEMENTS / columns : 1, x, sums};
    if (job.rows_per_task == 0) job.rows_per_task = 1;
    return pd_cpu_run(math, (rows + job.rows_per_task - 1) / job.rows_per_task, squares_body, &job);
}
