/* Looking tokens up, and adding their gradients back. A thread owns a run of columns of the gradient table and goes through
 * the rows in ascending order, so nothing is summed by two threads and no row order depends on them. */
#include "trainer/math/cpu_ops.h"

#define COLUMNS_TASK 128u
#define ZERO_TASK_BYTES (UINT64_C(1) << 20)

V16_INLINE void look_up_part(enum pd_dtype dtype, const struct pd_embedding *e, uint64_t row, uint64_t i, unsigned w)
{
    v16 x = v16_get_part(dtype, e->token_table, (uint64_t)e->tokens[row] * e->columns + i, w);
    if (e->position_table) {
        x = v16_add(x, v16_get_part(dtype, e->position_table, (uint64_t)e->positions[row] * e->columns + i, w));
    }
    v16_put_part(dtype, e->out, row * e->columns + i, w, x);
}

V16_INLINE void look_up(enum pd_dtype dtype, const struct pd_embedding *e, uint64_t row)
{
    PD_CHECK(e->tokens[row] >= 0 && (uint64_t)e->tokens[row] < e->vocab);
    if (e->position_table) PD_CHECK(e->positions[row] >= 0 && (uint64_t)e->positions[row] < e->context);
    V16_FOR(i, w, e->columns, look_up_part(dtype, e, row, i, w));
}

static void forward_body(void *context, uint64_t index)
{
    const struct pd_embedding *embedding = context;
    PD_FOR_DTYPE(embedding->dtype, look_up, embedding, index);
}

pd_status PD_CPU(embedding_forward)(struct pd_math *math, const struct pd_embedding *embedding, struct pd_error *err)
{
    (void)err;
    struct pd_embedding job = *embedding;
    pd_parallel(math->pool, embedding->rows, forward_body, &job);
    return PD_OK;
}

struct scatter_job {
    const struct pd_embedding *embedding;
    const int32_t *indices; /* (rows) < table_rows */
    uint64_t table_rows;
    float *table;
};

static void zero_body(void *context, uint64_t index)
{
    const struct scatter_job *job = context;
    uint64_t bytes = job->table_rows * job->embedding->columns * sizeof(float), start = index * ZERO_TASK_BYTES;
    uint64_t left = bytes - start;
    memset((char *)job->table + start, 0, left < ZERO_TASK_BYTES ? left : ZERO_TASK_BYTES);
}

V16_INLINE void add_part(enum pd_dtype dtype, const void *from, uint64_t from_index, float *to, unsigned w)
{
    v16_put_part(PD_F32, to, 0, w, v16_add(v16_get_part(PD_F32, to, 0, w), v16_get_part(dtype, from, from_index, w)));
}

V16_INLINE void scatter_columns(enum pd_dtype dtype, const struct scatter_job *job, uint64_t column, uint64_t count)
{
    uint64_t columns = job->embedding->columns;
    for (uint64_t row = 0; row < job->embedding->rows; row++) {
        PD_CHECK(job->indices[row] >= 0 && (uint64_t)job->indices[row] < job->table_rows);
        float *to = job->table + (uint64_t)job->indices[row] * columns + column;
        uint64_t from = row * columns + column;
        V16_FOR(i, w, count, add_part(dtype, job->embedding->dout, from + i, to + i, w));
    }
}

static void scatter_body(void *context, uint64_t index)
{
    const struct scatter_job *job = context;
    uint64_t column = index * COLUMNS_TASK, left = job->embedding->columns - column;
    uint64_t count = left < COLUMNS_TASK ? left : COLUMNS_TASK;
    PD_FOR_DTYPE(job->embedding->dtype, scatter_columns, job, column, count);
}

static void scatter(struct pd_math *math, struct scatter_job job)
{
    uint64_t bytes = job.table_rows * job.embedding->columns * sizeof(float);
    pd_parallel(math->pool, (bytes + ZERO_TASK_BYTES - 1) / ZERO_TASK_BYTES, zero_body, &job);
    pd_parallel(math->pool, (job.embedding->columns + COLUMNS_TASK - 1) / COLUMNS_TASK, scatter_body, &job);
}

pd_status PD_CPU(embedding_backward)(struct pd_math *math, const struct pd_embedding *e, struct pd_error *err)
{
    (void)err;
    if (e->dtoken_table) scatter(math, (struct scatter_job){e, e->tokens, e->vocab, e->dtoken_table});
    if (e->dposition_table) scatter(math, (struct scatter_job){e, e->positions, e->context, e->dposition_table});
    return PD_OK;
}
