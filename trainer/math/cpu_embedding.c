/* Looks tokens up, and adds their gradients back. Backward works by rows of the table: a thread takes a range of tokens,
 * sorts the micro-batch's rows by token in its workspace (counting sort, rows ascending), and writes each row of the table
 * once, 64 columns at a time. So no two threads add to one row, and the table need not be cleared. */
#include "trainer/math/cpu_ops.h"

#define RANGE_MAX 1024u /* rows of the table in a task */
#define TASKS_PER_THREAD 8u
#define GROUP 4u /* vectors */
#define LISTED_MAX (PD_CPU_WORKSPACE_BYTES / sizeof(uint32_t) - RANGE_MAX - 1)

/* ---- forward ---- */

V16_INLINE void look_up_part(enum pd_dtype dtype, const struct pd_embedding *e, uint64_t row, uint64_t token, uint64_t i,
                             unsigned w)
{
    v16 x = v16_get_part(dtype, e->token_table, token * e->columns + i, w);
    if (e->position_table) {
        x = v16_add(x, v16_get_part(dtype, e->position_table, (uint64_t)e->positions[row] * e->columns + i, w));
    }
    v16_put_part(dtype, e->out, row * e->columns + i, w, x);
}

V16_INLINE void look_up(enum pd_dtype dtype, const struct pd_embedding *e, uint64_t row)
{
    int64_t token = (int64_t)e->tokens[row] - e->first_token;
    if (token < 0 || (uint64_t)token >= e->vocab) return;
    if (e->position_table) PD_CHECK(e->positions[row] >= 0 && (uint64_t)e->positions[row] < e->context);
    V16_FOR(i, w, e->columns, look_up_part(dtype, e, row, (uint64_t)token, i, w));
}

PD_DTYPE_BODY(forward_body, struct pd_embedding, dtype, look_up)

/* Checked before anything is added, because backward would silently skip a position outside the table. */
static void check_positions(const struct pd_embedding *e)
{
    for (uint64_t row = 0; row < e->rows; row++)
        PD_CHECK(e->positions[row] >= 0 && (uint64_t)e->positions[row] < e->context);
}

pd_status PD_CPU(embedding_forward)(struct pd_math *math, const struct pd_embedding *embedding, struct pd_error *err)
{
    if (embedding->position_table) check_positions(embedding);
    return pd_cpu_run(math, embedding->rows, forward_body, embedding);
}

/* ---- backward ---- */

struct scatter_job {
    const struct pd_embedding *embedding;
    const int32_t *indices; /* (rows) */
    int64_t first;          /* index of row 0 of the table */
    uint64_t table_rows;
    float *table;
    uint64_t range; /* rows of the table in a task */
    uint32_t *workspace;
    struct pd_cpu_queue queue;
};

/* Rows of the micro-batch in ascending order: listed, or all rows with `index`. */
struct rows_of_index {
    const uint32_t *list; /* NULL: look through all rows */
    uint64_t count;
    int64_t index;
};

/* The row at or after *at; advances *at past it. False at the end. */
V16_INLINE bool next_row(const struct scatter_job *job, const struct rows_of_index *rows, uint64_t *at, uint64_t *ret_row)
{
    if (rows->list) {
        if (*at == rows->count) return false;
        *ret_row = rows->list[(*at)++];
        return true;
    }
    while (*at < job->embedding->rows)
        if (job->indices[(*at)++] == rows->index) {
            *ret_row = *at - 1;
            return true;
        }
    return false;
}

V16_INLINE void write_group(enum pd_dtype dtype, const struct scatter_job *job, const struct rows_of_index *rows,
                            uint64_t column, unsigned n, unsigned w)
{
    const struct pd_embedding *e = job->embedding;
    v16 chain[GROUP] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
    uint64_t at = 0, row;
    bool any = false;
    for (; next_row(job, rows, &at, &row); any = true)
        for (unsigned v = 0; v < n; v++) {
            v16 x = v16_get_part(dtype, e->dout, row * e->columns + column + 16 * (uint64_t)v, w);
            chain[v] = v16_add(chain[v], x);
        }
    float *to = job->table + (uint64_t)(rows->index - job->first) * e->columns + column;
    if (e->adds && !any) return;
    for (unsigned v = 0; v < n; v++) {
        if (e->adds) chain[v] = v16_add(v16_get_part(PD_F32, to, 16 * (uint64_t)v, w), chain[v]);
        v16_put_part(PD_F32, to, 16 * (uint64_t)v, w, chain[v]);
    }
}

V16_INLINE void write_row(enum pd_dtype dtype, const struct scatter_job *job, const struct rows_of_index *rows)
{
    const uint64_t columns = job->embedding->columns;
    uint64_t column = 0;
    for (; column + 16 * GROUP <= columns; column += 16 * GROUP)
        write_group(dtype, job, rows, column, GROUP, 16);
    V16_FOR(i, w, columns - column, write_group(dtype, job, rows, column + i, 1, w));
}

static void write_index(const struct scatter_job *job, struct rows_of_index rows)
{
    if (rows.list && rows.count == 0 && job->embedding->adds) return;
    if (rows.list && rows.count == 0) {
        const uint64_t columns = job->embedding->columns;
        memset(job->table + (uint64_t)(rows.index - job->first) * columns, 0, columns * sizeof(float));
        return;
    }
    PD_FOR_DTYPE(job->embedding->dtype, write_row, job, &rows);
}

/* Ends of the lists of indices [begin, end), one after the other; the last entry, and the result, is the rows they hold. */
static uint64_t count_range(const struct scatter_job *job, int64_t begin, int64_t end, uint32_t *ends)
{
    memset(ends, 0, (size_t)(end - begin + 1) * sizeof *ends);
    for (uint64_t row = 0; row < job->embedding->rows; row++)
        if (job->indices[row] >= begin && job->indices[row] < end) ends[job->indices[row] - begin]++;
    uint64_t total = 0;
    for (int64_t i = 0; i <= end - begin; i++)
        ends[i] = (uint32_t)(total += ends[i]);
    return total;
}

static void write_range(const struct scatter_job *job, int64_t begin, int64_t end, uint32_t *workspace)
{
    uint32_t *ends = workspace, *list = workspace + RANGE_MAX + 1;
    if (count_range(job, begin, end, ends) > LISTED_MAX) {
        /* Too many rows for the workspace: search all rows for each index. */
        for (int64_t index = begin; index < end; index++)
            write_index(job, (struct rows_of_index){NULL, 0, index});
        return;
    }
    for (uint64_t row = job->embedding->rows; row-- > 0;) { /* from the back: ends become beginnings */
        if (job->indices[row] >= begin && job->indices[row] < end) list[--ends[job->indices[row] - begin]] = (uint32_t)row;
    }
    for (int64_t i = 0; i < end - begin; i++)
        write_index(job, (struct rows_of_index){list + ends[i], ends[i + 1] - ends[i], begin + i});
}

static void scatter_body(void *context, uint64_t slot)
{
    struct scatter_job *job = context;
    uint32_t *workspace = job->workspace + slot * (PD_CPU_WORKSPACE_BYTES / sizeof(uint32_t));
    uint64_t item;
    while (pd_cpu_queue_take(&job->queue, &item)) {
        uint64_t begin = item * job->range, left = job->table_rows - begin;
        int64_t first = job->first + (int64_t)begin;
        write_range(job, first, first + (int64_t)(left < job->range ? left : job->range), workspace);
    }
}

/* Every thread gets several ranges; with more, searching for their rows would cost more than it saves. */
static void scatter(struct pd_math *math, struct scatter_job *job)
{
    const struct pd_math_cpu *cpu = pd_math_cpu_of(math);
    const uint64_t threads = pd_thread_pool_size(math->pool), tasks = TASKS_PER_THREAD * threads;
    job->range = (job->table_rows + tasks - 1) / tasks;
    if (job->range > RANGE_MAX) job->range = RANGE_MAX;
    job->workspace = (uint32_t *)(void *)cpu->workspace;
    job->queue.count = (job->table_rows + job->range - 1) / job->range;
    atomic_store_explicit(&job->queue.next, 0, memory_order_relaxed);
    pd_parallel(math->pool, threads < job->queue.count ? threads : job->queue.count, scatter_body, job);
}

pd_status PD_CPU(embedding_backward)(struct pd_math *math, const struct pd_embedding *e, struct pd_error *err)
{
    if (e->dposition_table) check_positions(e);
    struct scatter_job tokens = {
        .embedding = e, .indices = e->tokens, .first = e->first_token, .table_rows = e->vocab, .table = e->dtoken_table};
    struct scatter_job positions = {
        .embedding = e, .indices = e->positions, .table_rows = e->context, .table = e->dposition_table};
    if (e->dtoken_table && e->vocab) scatter(math, &tokens);
    if (e->dposition_table) scatter(math, &positions);
    return PD_OK;
}
