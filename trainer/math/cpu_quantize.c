/* fp8 codes: first the largest absolute value, then every element, in tiles of 64 x 64. A maximum of integers does not
 * depend on the order. */
#include "trainer/math/cpu_ops.h"
#include "trainer/math/fp8.h"

#include <stdatomic.h>

#define SIDE 64u

struct quantize_job {
    struct pd_quantize q;
    uint64_t column_tiles;
    float inverse;
    _Atomic uint32_t largest;
};

struct tile {
    uint64_t row, column, rows, columns;
};

static struct tile tile_of(const struct quantize_job *job, uint64_t index)
{
    const uint64_t row = index / job->column_tiles * SIDE, column = index % job->column_tiles * SIDE;
    const uint64_t rows = job->q.rows - row, columns = job->q.columns - column;
    return (struct tile){row, column, rows < SIDE ? rows : SIDE, columns < SIDE ? columns : SIDE};
}

V16_INLINE void load_row(enum pd_dtype dtype, const struct quantize_job *job, uint64_t at, uint64_t count, float *ret_x)
{
    V16_FOR(i, w, count, v16_store(ret_x + i, v16_get_part(dtype, job->q.x.data, at + i, w)));
}

/* x (SIDE): elements of a row of the tile, then zeros. */
static void cpu_quantize_row_of(const struct quantize_job *job, const struct tile *t, uint64_t row, float x[SIDE])
{
    memset(x, 0, SIDE * sizeof *x);
    PD_FOR_DTYPE(job->q.x.dtype, load_row, job, (t->row + row) * job->q.x.ld + t->column, t->columns, x);
}

static void largest_of(void *context, uint64_t index)
{
    struct quantize_job *job = context;
    const struct tile t = tile_of(job, index);
    float x[SIDE];
    uint32_t largest = 0, before;
    for (uint64_t row = 0; row < t.rows; row++) {
        cpu_quantize_row_of(job, &t, row, x);
        for (uint32_t i = 0; i < SIDE; i++) {
            const uint32_t size = pd_fp8_bits(x[i]) & 0x7fffffffu;
            largest = size > largest ? size : largest;
        }
    }
    before = atomic_load_explicit(&job->largest, memory_order_relaxed);
    while (before < largest && !atomic_compare_exchange_weak_explicit(&job->largest, &before, largest, memory_order_relaxed,
                                                                      memory_order_relaxed)) {
    }
}

V16_INLINE void codes_of(enum pd_fp8 format, float inverse, const float x[SIDE], uint8_t codes[SIDE])
{
    for (uint32_t i = 0; i < SIDE; i++)
        codes[i] = pd_fp8_of_f32(format, x[i] * inverse);
}

static void quantize_tile(void *context, uint64_t index)
{
    const struct quantize_job *job = context;
    const struct pd_quantize *q = &job->q;
    const struct tile t = tile_of(job, index);
    uint8_t codes[SIDE][SIDE];
    float x[SIDE];
    for (uint64_t row = 0; row < t.rows; row++) {
        cpu_quantize_row_of(job, &t, row, x);
        if (q->format == PD_FP8_E4M3)
            codes_of(PD_FP8_E4M3, job->inverse, x, codes[row]);
        else
            codes_of(PD_FP8_E5M2, job->inverse, x, codes[row]);
        if (q->codes) memcpy(q->codes + (t.row + row) * q->ld_codes + t.column, codes[row], t.columns);
    }
    for (uint64_t column = 0; q->transposed && column < t.columns; column++) {
        uint8_t *to = q->transposed + (t.column + column) * q->ld_transposed + t.row;
        for (uint64_t row = 0; row < t.rows; row++)
            to[row] = codes[row][column];
        if (t.row + t.rows == q->rows) memset(to + t.rows, 0, q->transposed_rows - q->rows);
    }
}

pd_status PD_CPU(quantize)(struct pd_math *math, const struct pd_quantize *q, struct pd_error *err)
{
    const uint64_t column_tiles = (q->columns + SIDE - 1) / SIDE, row_tiles = (q->rows + SIDE - 1) / SIDE;
    struct quantize_job job = {.q = *q, .column_tiles = column_tiles};
    pd_parallel(math->pool, row_tiles * column_tiles, largest_of, &job);
    const float scale = pd_fp8_scale_of(q->format, atomic_load_explicit(&job.largest, memory_order_relaxed));
    job.inverse = pd_fp8_inverse(scale);
    pd_parallel(math->pool, row_tiles * column_tiles, quantize_tile, &job);
    *q->scale = scale;
    return PD_OK;
}
