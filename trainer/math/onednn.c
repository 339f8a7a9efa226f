#include "trainer/math/onednn.h"

#ifdef PERDURE_ONEDNN

#include "ckpt/base/half.h"

#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

/* The workspace of pd_cpu_gemm holds two blocks of operands and one of sums: 512 Ki + 512 Ki + 1 Mi floats. */
#define OPERAND_FLOATS (UINT64_C(512) << 10)
#define SIDE_MAX 1024u

struct rows_job {
    const struct pd_gemm *gemm;
    const struct pd_matrix *from; /* convert */
    uint64_t row0, column0, columns, ld;
    float *block;
    uint64_t m0, n0, n_count; /* finish */
    const float *sums;
    uint64_t sums_ld;
};

bool pd_onednn_available(void)
{
    return true;
}

const char *pd_onednn_version(void)
{
    static char text[48];
    const dnnl_version_t *version = dnnl_version();
    snprintf(text, sizeof text, "%d.%d.%d", version->major, version->minor, version->patch);
    return text;
}

static float element(enum pd_dtype dtype, const void *data, uint64_t index)
{
    if (dtype == PD_F32) return ((const float *)data)[index];
    uint16_t half = ((const uint16_t *)data)[index];
    return dtype == PD_BF16 ? pd_f32_from_bf16(half) : pd_f32_from_f16(half);
}

/* Flush-to-zero belongs to each thread, and OpenMP's are not the pool's. */
static void threads_prepare(unsigned threads)
{
    omp_set_num_threads((int)threads);
#pragma omp parallel
    pd_numerics_thread_init();
}

pd_status pd_onednn_sgemm(unsigned threads, bool trans_a, bool trans_b, uint64_t m, uint64_t n, uint64_t k, const float *a,
                          uint64_t lda, const float *b, uint64_t ldb, bool accumulate, float *c, uint64_t ldc,
                          struct pd_error *err)
{
    threads_prepare(threads);
    dnnl_status_t status =
        dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', (dnnl_dim_t)m, (dnnl_dim_t)n, (dnnl_dim_t)k, 1.0f, a,
                   (dnnl_dim_t)lda, b, (dnnl_dim_t)ldb, accumulate ? 1.0f : 0.0f, c, (dnnl_dim_t)ldc);
    if (status == dnnl_out_of_memory)
        PD_FAIL(err, PD_NO_MEMORY, "oneDNN has no memory for a product of %zu columns", (size_t)n);
    if (status != dnnl_success)
        PD_FAIL(err, PD_BUG, "dnnl_sgemm refused m %zu, n %zu, k %zu with status %d; numerics: invariant does without it",
                (size_t)m, (size_t)n, (size_t)k, (int)status);
    return PD_OK;
}

static void convert_row(void *context, uint64_t row)
{
    const struct rows_job *job = context;
    uint64_t at = (job->row0 + row) * job->from->ld + job->column0;
    float *to = job->block + row * job->columns;
    if (job->from->dtype == PD_BF16) {
        const uint16_t *from = (const uint16_t *)job->from->data + at;
        for (uint64_t j = 0; j < job->columns; j++)
            to[j] = pd_f32_from_bf16(from[j]);
    } else {
        for (uint64_t j = 0; j < job->columns; j++)
            to[j] = element(job->from->dtype, job->from->data, at + j);
    }
}

/* The block of an operand as fp32: where it lies, or converted. */
static const float *operand_block(struct pd_thread_pool *pool, const struct pd_matrix *from, uint64_t row0, uint64_t rows,
                                  uint64_t column0, uint64_t columns, float *block, uint64_t *ret_ld)
{
    if (from->dtype == PD_F32) {
        *ret_ld = from->ld;
        return (const float *)from->data + row0 * from->ld + column0;
    }
    struct rows_job job = {.from = from, .row0 = row0, .column0 = column0, .columns = columns, .block = block};
    pd_parallel(pool, rows, convert_row, &job);
    *ret_ld = columns;
    return block;
}

static void finish_row(void *context, uint64_t row)
{
    const struct rows_job *job = context;
    const struct pd_gemm *gemm = job->gemm;
    uint64_t i = job->m0 + row;
    for (uint64_t j = 0; j < job->n_count; j++) {
        uint64_t column = job->n0 + j, at = i * gemm->c.ld + column;
        float sum = job->sums[row * job->sums_ld + j];
        if (gemm->bias) sum += element(gemm->bias_dtype, gemm->bias, column);
        if (gemm->residual.data) sum += element(gemm->residual.dtype, gemm->residual.data, i * gemm->residual.ld + column);
        if (gemm->c.dtype == PD_F32)
            ((float *)gemm->c.data)[at] = sum;
        else
            ((uint16_t *)gemm->c.data)[at] = gemm->c.dtype == PD_BF16 ? pd_bf16_from_f32(sum) : pd_f16_from_f32(sum);
    }
}

struct blocks {
    uint64_t m, n, k;
};

/* One block of C over all of K. */
static pd_status block_of_c(struct pd_thread_pool *pool, float *workspace, const struct pd_gemm *gemm, struct blocks blocks,
                            uint64_t m0, uint64_t n0, struct pd_error *err)
{
    uint64_t mc = gemm->m - m0 < blocks.m ? gemm->m - m0 : blocks.m, nc = gemm->n - n0 < blocks.n ? gemm->n - n0 : blocks.n;
    bool in_place = gemm->c.dtype == PD_F32;
    float *c = in_place ? (float *)gemm->c.data + m0 * gemm->c.ld + n0 : workspace + 2 * OPERAND_FLOATS;
    uint64_t ldc = in_place ? gemm->c.ld : nc, lda, ldb;
    for (uint64_t k0 = 0; k0 < gemm->k; k0 += blocks.k) {
        uint64_t kc = gemm->k - k0 < blocks.k ? gemm->k - k0 : blocks.k;
        const float *a = gemm->trans_a ? operand_block(pool, &gemm->a, k0, kc, m0, mc, workspace, &lda)
                                       : operand_block(pool, &gemm->a, m0, mc, k0, kc, workspace, &lda);
        const float *b = gemm->trans_b ? operand_block(pool, &gemm->b, n0, nc, k0, kc, workspace + OPERAND_FLOATS, &ldb)
                                       : operand_block(pool, &gemm->b, k0, kc, n0, nc, workspace + OPERAND_FLOATS, &ldb);
        PD_TRY(pd_onednn_sgemm(pd_thread_pool_size(pool), gemm->trans_a, gemm->trans_b, mc, nc, kc, a, lda, b, ldb,
                               gemm->accumulate || k0 > 0, c, ldc, err));
    }
    for (uint64_t i = 0; gemm->k == 0 && !gemm->accumulate && i < mc; i++)
        memset(c + i * ldc, 0, nc * sizeof *c);
    if (in_place && !gemm->bias && !gemm->residual.data) return PD_OK;
    struct rows_job job = {.gemm = gemm, .m0 = m0, .n0 = n0, .n_count = nc, .sums = c, .sums_ld = ldc};
    pd_parallel(pool, mc, finish_row, &job);
    return PD_OK;
}

pd_status pd_onednn_gemm(struct pd_thread_pool *pool, void *workspace, const struct pd_gemm *gemm, struct pd_error *err)
{
    PD_CHECK(!gemm->accumulate || gemm->c.dtype == PD_F32);
    bool convert_a = gemm->a.dtype != PD_F32, convert_b = gemm->b.dtype != PD_F32, sums = gemm->c.dtype != PD_F32;
    struct blocks blocks = {.m = gemm->m, .n = gemm->n, .k = gemm->k};
    if ((convert_a || convert_b) && blocks.k > SIDE_MAX) blocks.k = SIDE_MAX;
    uint64_t side = blocks.k > OPERAND_FLOATS / SIDE_MAX ? OPERAND_FLOATS / blocks.k : SIDE_MAX;
    if ((convert_a || sums) && blocks.m > side) blocks.m = side;
    if ((convert_b || sums) && blocks.n > side) blocks.n = side;
    for (uint64_t m0 = 0; m0 < gemm->m; m0 += blocks.m) {
        for (uint64_t n0 = 0; n0 < gemm->n; n0 += blocks.n)
            PD_TRY(block_of_c(pool, workspace, gemm, blocks, m0, n0, err));
    }
    return PD_OK;
}

#else

bool pd_onednn_available(void)
{
    return false;
}

const char *pd_onednn_version(void)
{
    return "none";
}

static pd_status absent(struct pd_error *err)
{
    PD_FAIL(err, PD_UNSUPPORTED,
            "this build has no oneDNN: configure with -DPERDURE_ONEDNN=ON (package libdnnl-dev), or use "
            "numerics: invariant");
}

pd_status pd_onednn_gemm(struct pd_thread_pool *pool, void *workspace, const struct pd_gemm *gemm, struct pd_error *err)
{
    (void)pool, (void)workspace, (void)gemm;
    return absent(err);
}

pd_status pd_onednn_sgemm(unsigned threads, bool trans_a, bool trans_b, uint64_t m, uint64_t n, uint64_t k, const float *a,
                          uint64_t lda, const float *b, uint64_t ldb, bool accumulate, float *c, uint64_t ldc,
                          struct pd_error *err)
{
    (void)threads, (void)trans_a, (void)trans_b, (void)m, (void)n, (void)k, (void)a, (void)lda, (void)b, (void)ldb;
    (void)accumulate, (void)c, (void)ldc;
    return absent(err);
}

#endif
