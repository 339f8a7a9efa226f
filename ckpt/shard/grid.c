/* Cuts boxes into chunks: pure arithmetic, the same for writer and reader. */
#include "ckpt/base/checked.h"
#include "ckpt/shard/table.h"

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Rows of `row_bytes` in one chunk of a run of `rows`: parts as equal as whole blocks allow, since the last part is
 * filled up with zeros. */
static uint64_t rows_of_chunk(uint64_t rows, uint64_t row_bytes)
{
    const uint64_t most = PD_SHARD_CHUNK_MAX / row_bytes, parts = pd_divide_up(rows, most);
    if (parts == 1) return rows;
    const uint64_t equal = pd_divide_up(rows, parts);
    const uint64_t step = PD_SHARD_BLOCK_BYTES / gcd(row_bytes, PD_SHARD_BLOCK_BYTES); /* rows in whole blocks */
    const uint64_t blocks = pd_divide_up(equal, step) * step;
    return blocks <= most ? blocks : equal;
}

void pd_shard_grid_cut(const struct pd_box *box, uint32_t element_bytes, uint64_t ret_shape[PD_TENSOR_DIMS_MAX],
                       struct pd_shard_grid *ret_grid)
{
    uint64_t row_bytes = element_bytes;
    uint32_t d = PD_TENSOR_DIMS_MAX - 1;
    while (d > 0 && row_bytes * box->count[d] <= PD_SHARD_CHUNK_MAX) {
        ret_shape[d] = box->count[d];
        row_bytes *= box->count[d];
        d--;
    }
    ret_shape[d] = rows_of_chunk(box->count[d], row_bytes);
    *ret_grid = (struct pd_shard_grid){.chunk_bytes = ret_shape[d] * row_bytes, .run_bytes = box->count[d] * row_bytes};
    while (d > 0)
        ret_shape[--d] = 1;
}

static uint64_t chunks_of_run(const struct pd_shard_grid *grid)
{
    return pd_divide_up(grid->run_bytes, grid->chunk_bytes);
}

uint64_t pd_shard_grid_count(const struct pd_shard_grid *grid, uint64_t box_bytes)
{
    return box_bytes / grid->run_bytes * chunks_of_run(grid);
}

uint64_t pd_shard_grid_range(const struct pd_shard_grid *grid, uint64_t chunk, uint64_t *ret_begin)
{
    const uint64_t per_run = chunks_of_run(grid), skip = chunk % per_run * grid->chunk_bytes;
    const uint64_t left = grid->run_bytes - skip;
    *ret_begin = chunk / per_run * grid->run_bytes + skip;
    return left < grid->chunk_bytes ? left : grid->chunk_bytes;
}

uint64_t pd_shard_grid_find(const struct pd_shard_grid *grid, uint64_t at)
{
    return at / grid->run_bytes * chunks_of_run(grid) + at % grid->run_bytes / grid->chunk_bytes;
}
