/* Combines partial sums of chunks or ranks in one pass over memory; groups of 64 columns wait on a small stack. Then scale,
 * bias and residual, in the order of the matrix product's epilogue. */
#include "trainer/math/cpu_ops.h"
#include "trainer/math/simd.h"

#define TASK_ELEMENTS 16384u
#define GROUP 4u      /* vectors */
#define DEPTH_MAX 33u /* of a tree whose places are 32 bits */

struct finish_job {
    const struct pd_finish *f;
    uint64_t ld, rows_per_task;
};

/* An aligned binary tree over places, some empty; a node with one child is that child. Parts arrive by ascending place and
 * wait on a stack. Before a push, adds the pairs that the new part cannot come between; so of neighbours on the stack, lower
 * pairs meet higher up in the tree. `n` vectors of `w` columns each */
V16_INLINE void tree_of_parts(const struct pd_finish *f, uint64_t at, unsigned n, unsigned w, v16 *ret_sum)
{
    v16 stack[DEPTH_MAX][GROUP];
    uint32_t places[DEPTH_MAX], depth = 0;
    for (uint32_t place = 0; place < f->part_count; place++) {
        if (!f->parts[place]) continue;
        for (; depth > 1 && (places[depth - 2] ^ places[depth - 1]) < (places[depth - 1] ^ place); depth--)
            for (unsigned v = 0; v < n; v++)
                stack[depth - 2][v] = v16_add(stack[depth - 2][v], stack[depth - 1][v]);
        for (unsigned v = 0; v < n; v++)
            stack[depth][v] = v16_get_part(PD_F32, f->parts[place], at + 16 * (uint64_t)v, w);
        places[depth++] = place;
    }
    for (; depth > 1; depth--)
        for (unsigned v = 0; v < n; v++)
            stack[depth - 2][v] = v16_add(stack[depth - 2][v], stack[depth - 1][v]);
    for (unsigned v = 0; v < n; v++)
        ret_sum[v] = depth ? stack[0][v] : v16_zero();
}

V16_INLINE void finish_group(enum pd_dtype dtype, const struct finish_job *job, uint64_t row, uint64_t column, unsigned n,
                             unsigned w)
{
    const struct pd_finish *f = job->f;
    v16 sum[GROUP];
    tree_of_parts(f, row * job->ld + column, n, w, sum);
    for (unsigned v = 0; v < n; v++) {
        const uint64_t i = column + 16 * (uint64_t)v;
        if (f->scale != 1.0f) sum[v] = v16_mul(v16_set1(f->scale), sum[v]);
        if (f->bias) sum[v] = v16_add(sum[v], v16_get_any(f->bias_dtype, f->bias, i, w));
        if (f->residual.data)
            sum[v] = v16_add(sum[v], v16_get_any(f->residual.dtype, f->residual.data, row * f->residual.ld + i, w));
        v16_put_part(dtype, f->out.data, row * f->out.ld + i, w, sum[v]);
    }
}

V16_INLINE void finish_row(enum pd_dtype dtype, const struct finish_job *job, uint64_t row)
{
    uint64_t column = 0;
    for (; column + 16 * GROUP <= job->f->columns; column += 16 * GROUP)
        finish_group(dtype, job, row, column, GROUP, 16);
    V16_FOR(i, w, job->f->columns - column, finish_group(dtype, job, row, column + i, 1, w));
}

V16_INLINE void finish_rows(enum pd_dtype dtype, const struct finish_job *job, uint64_t index)
{
    const uint64_t first = index * job->rows_per_task, end = first + job->rows_per_task;
    for (uint64_t row = first; row < end && row < job->f->rows; row++)
        finish_row(dtype, job, row);
}

PD_DTYPE_BODY(finish_body, struct finish_job, f->out.dtype, finish_rows)

pd_status PD_CPU(finish)(struct pd_math *math, const struct pd_finish *finish, struct pd_error *err)
{
    if (finish->rows == 0 || finish->columns == 0) return PD_OK;
    struct finish_job job = {finish, finish->ld_parts ? finish->ld_parts : finish->columns,
                             TASK_ELEMENTS / finish->columns + 1};
    return pd_cpu_run(math, (finish->rows + job.rows_per_task - 1) / job.rows_per_task, finish_body, &job);
}
