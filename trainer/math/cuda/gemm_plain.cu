/* Matrix products without tensor cores: a block computes 64 x 64 of C, each thread 4 x 4 of them, sixteen apart.
 *
 *   bits  the CPU's: an element is one chain of fused multiply-adds in ascending k, fp32, from 0 or from the old C; then
 *         bias, residual and one rounding */
#include "trainer/math/cuda/gemm.h"

#include "trainer/math/cuda/element.h"
#include "trainer/math/fp8.h"

#define SIDE 64u
#define DEPTH 16u
#define EACH 4u
#define STRIDE (SIDE / EACH)
#define THREADS (STRIDE * STRIDE)

PD_DEVICE float element(const void *base, uint64_t i, enum pd_dtype dtype)
{
    float x[1];
    pd_get_any<1>(dtype, base, i, x);
    return x[0];
}

struct codes {
    enum pd_fp8 format; /* NONE: elements of the operand's dtype */
    float scale;
};

PD_DEVICE float value(const struct pd_matrix &operand, uint64_t i, struct codes codes)
{
    if (!codes.format) return element(operand.data, i, operand.dtype);
    return __fmul_rn(pd_f32_of_fp8(codes.format, static_cast<const uint8_t *>(operand.data)[i]), codes.scale);
}

/* Rows [first, first + SIDE) of an operand (rows, k), or (k, rows) if `across`, times DEPTH of k: tile[k][row], 0 outside.
 * Adjacent threads read adjacent elements. */
PD_DEVICE void load(float (&tile)[DEPTH][SIDE + 1], const struct pd_matrix &operand, struct codes codes, bool across,
                    uint64_t rows, uint64_t depth, uint64_t first, uint64_t first_k)
{
    for (uint32_t i = threadIdx.x; i < SIDE * DEPTH; i += THREADS) {
        const uint32_t row = across ? i % SIDE : i / DEPTH, k = across ? i / SIDE : i % DEPTH;
        const uint64_t r = first + row, at = first_k + k;
        const bool inside = r < rows && at < depth;
        tile[k][row] = inside ? value(operand, across ? at * operand.ld + r : r * operand.ld + at, codes) : 0.0f;
    }
}

PD_DEVICE void finish(const struct pd_gemm &g, uint64_t row, uint64_t column, float sum)
{
    if (g.bias) sum = __fadd_rn(sum, element(g.bias, column, g.bias_dtype));
    if (g.residual.data) sum = __fadd_rn(sum, element(g.residual.data, row * g.residual.ld + column, g.residual.dtype));
    const float x[1] = {sum};
    pd_put_any<1>(g.c.dtype, g.c.data, row * g.c.ld + column, x);
}

static __global__ void __launch_bounds__(THREADS) gemm_kernel(struct pd_gemm g)
{
    PD_SHARED(float, a, [DEPTH][SIDE + 1]);
    PD_SHARED(float, b, [DEPTH][SIDE + 1]);
    const uint64_t first_row = uint64_t(blockIdx.y) * SIDE, first_column = uint64_t(blockIdx.x) * SIDE;
    const uint32_t x = threadIdx.x % STRIDE, y = threadIdx.x / STRIDE;
    const struct codes a_codes = {g.a_format, g.a_format ? *g.a_scale : 1.0f};
    const struct codes b_codes = {g.b_format, g.b_format ? *g.b_scale : 1.0f};
    float sum[EACH][EACH];
    for (uint32_t i = 0; i < EACH; i++)
        for (uint32_t j = 0; j < EACH; j++) {
            const uint64_t row = first_row + y + i * STRIDE, column = first_column + x + j * STRIDE;
            const bool goes_on = g.accumulate && row < g.m && column < g.n;
            sum[i][j] = goes_on ? static_cast<const float *>(g.c.data)[row * g.c.ld + column] : 0.0f;
        }
    for (uint64_t k = 0; k < g.k; k += DEPTH) {
        load(a, g.a, a_codes, g.trans_a, g.m, g.k, first_row, k);
        load(b, g.b, b_codes, !g.trans_b, g.n, g.k, first_column, k);
        __syncthreads();
        const uint32_t depth = g.k - k < DEPTH ? uint32_t(g.k - k) : DEPTH; /* 0 * 0 would make 0 of -0 */
        for (uint32_t d = 0; d < depth; d++)
            for (uint32_t i = 0; i < EACH; i++)
                for (uint32_t j = 0; j < EACH; j++)
                    sum[i][j] = __fmaf_rn(a[d][y + i * STRIDE], b[d][x + j * STRIDE], sum[i][j]);
        __syncthreads();
    }
    for (uint32_t i = 0; i < EACH; i++)
        for (uint32_t j = 0; j < EACH; j++) {
            const uint64_t row = first_row + y + i * STRIDE, column = first_column + x + j * STRIDE;
            if (row < g.m && column < g.n) finish(g, row, column, sum[i][j]);
        }
}

#define ROW_BLOCKS 65535u

/* Rows beyond the grid's limit are done in several launches. */
pd_status pd_cuda_gemm_plain(void *stream, const struct pd_gemm *gemm, struct pd_error *err)
{
    const uint64_t columns = (gemm->n + SIDE - 1) / SIDE, rows_most = uint64_t(ROW_BLOCKS) * SIDE;
    if (gemm->m == 0 || gemm->n == 0) return PD_OK;
    for (uint64_t row = 0; row < gemm->m; row += rows_most) {
        struct pd_gemm part = *gemm;
        part.m = gemm->m - row < rows_most ? gemm->m - row : rows_most;
        const uint64_t a_bytes = gemm->a_format ? 1 : pd_dtype_bytes(gemm->a.dtype);
        const uint64_t a = (gemm->trans_a ? row : row * gemm->a.ld) * a_bytes;
        part.a.data = static_cast<char *>(gemm->a.data) + (gemm->k ? a : 0);
        part.c.data = static_cast<char *>(gemm->c.data) + row * gemm->c.ld * pd_dtype_bytes(gemm->c.dtype);
        if (gemm->residual.data)
            part.residual.data =
                static_cast<char *>(gemm->residual.data) + row * gemm->residual.ld * pd_dtype_bytes(gemm->residual.dtype);
        const dim3 grid(unsigned(columns), unsigned((part.m + SIDE - 1) / SIDE));
        const pd_status st = PD_LAUNCH(err, gemm_kernel, grid, dim3(THREADS), 0, stream, part);
        if (st) return st;
    }
    return PD_OK;
}
