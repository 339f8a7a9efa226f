#include "trainer/math/onednn.h"

#ifdef PERDURE_ONEDNN

#include "ckpt/base/checked.h"
#include "trainer/math/cpu_gemm_kernel.h"

#include <dnnl.h>
#include <omp.h>
#include <stdatomic.h>
#include <stdio.h>

/* Large: with blocks an eighth of this, a step in bf16 took 1.5 times one in fp32. */
#define SIDE UINT64_C(2048)
#define BLOCK_FLOATS (SIDE * SIDE) /* of either operand, and of sums */
#define ROWS_PER_TASK 16u

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

uint64_t pd_onednn_workspace_bytes(void)
{
    return 3 * BLOCK_FLOATS * sizeof(float);
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static pd_status status_of(int status, uint64_t m, uint64_t n, uint64_t k, struct pd_error *err)
{
    if (status == dnnl_out_of_memory)
        PD_FAIL(err, PD_NO_MEMORY, "oneDNN has no memory for a product of %zu columns", (size_t)n);
    if (status != dnnl_success)
        PD_FAIL(err, PD_BUG, "dnnl_sgemm refused m %zu, n %zu, k %zu with status %d; numerics: invariant does without it",
                (size_t)m, (size_t)n, (size_t)k, status);
    return PD_OK;
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
    return status_of(dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', (dnnl_dim_t)m, (dnnl_dim_t)n, (dnnl_dim_t)k, 1.0f,
                                a, (dnnl_dim_t)lda, b, (dnnl_dim_t)ldb, accumulate ? 1.0f : 0.0f, c, (dnnl_dim_t)ldc),
                     m, n, k, err);
}

/* ---- numerics fast ---- */

/* A block of an operand as fp32: where it lies, or converted and kept until another is asked for. */
struct operand {
    const struct pd_matrix *from;
    float *block;
    uint64_t row0, rows, column0, columns; /* what is converted; rows 0: nothing yet */
    const float *data;
    uint64_t ld;
};

struct product {
    const struct pd_gemm *gemm;
    const struct pd_gemm_kernel *kernel; /* converts and finishes */
    struct pd_thread_pool *pool;
    struct operand a, b;
    float *sums;
    uint64_t block_m, block_n, block_k;

    /* the block being worked on: C rows m0 ..., columns n0 ..., a run of k */
    uint64_t m0, mc, n0, nc, kc;
    float *c;
    uint64_t ldc;
    bool load, last;
    uint64_t slice_m, slice_n, grid_columns;
    _Atomic int status;
};

struct conversion {
    const struct product *product;
    const struct operand *operand;
};

static void convert_rows(void *context, uint64_t index)
{
    const struct conversion *job = context;
    const struct operand *o = job->operand;
    uint64_t end = min_u64((index + 1) * ROWS_PER_TASK, o->rows);
    for (uint64_t row = index * ROWS_PER_TASK; row < end; row++)
        job->product->kernel->convert(o->from->dtype, o->from->data, (o->row0 + row) * o->from->ld + o->column0, o->columns,
                                      o->block + row * o->columns);
}

static void operand_take(struct product *p, struct operand *o, uint64_t row0, uint64_t rows, uint64_t column0,
                         uint64_t columns)
{
    if (o->from->dtype == PD_F32) {
        o->ld = o->from->ld;
        o->data = (const float *)o->from->data + row0 * o->ld + column0;
        return;
    }
    if (o->rows == rows && o->columns == columns && o->row0 == row0 && o->column0 == column0) return;
    o->row0 = row0, o->rows = rows, o->column0 = column0, o->columns = columns;
    o->data = o->block, o->ld = columns;
    struct conversion job = {p, o};
    pd_parallel(p->pool, pd_divide_up(rows, ROWS_PER_TASK), convert_rows, &job);
}

/* oneDNN multiplies one slice on this thread alone: its own threads would spin on cores that the pool needs next. */
static void multiply_slice(void *context, uint64_t index)
{
    struct product *p = context;
    const struct pd_gemm *g = p->gemm;
    uint64_t row = index / p->grid_columns * p->slice_m, column = index % p->grid_columns * p->slice_n;
    if (row >= p->mc || column >= p->nc) return;
    uint64_t m = min_u64(p->slice_m, p->mc - row), n = min_u64(p->slice_n, p->nc - column);
    omp_set_num_threads(1);
    int status = dnnl_sgemm(g->trans_a ? 'T' : 'N', g->trans_b ? 'T' : 'N', (dnnl_dim_t)m, (dnnl_dim_t)n, (dnnl_dim_t)p->kc,
                            1.0f, p->a.data + row * (g->trans_a ? 1 : p->a.ld), (dnnl_dim_t)p->a.ld,
                            p->b.data + column * (g->trans_b ? p->b.ld : 1), (dnnl_dim_t)p->b.ld, p->load ? 1.0f : 0.0f,
                            p->c + row * p->ldc + column, (dnnl_dim_t)p->ldc);
    struct pd_gemm_finish finish;
    if (status != dnnl_success)
        p->status = status;
    else if (p->last && pd_gemm_finish_of(g, p->m0 + row, p->n0 + column, &finish))
        p->kernel->finish(&finish, m, n, p->c + row * p->ldc + column, p->ldc);
}

/* As many slices as threads, as square as that number allows. */
static void cut_slices(struct product *p)
{
    uint64_t threads = pd_thread_pool_size(p->pool), best = UINT64_MAX;
    for (uint64_t rows = 1; rows <= threads; rows++) {
        if (threads % rows) continue;
        uint64_t m = pd_divide_up(pd_divide_up(p->mc, rows), 8) * 8,
                 n = pd_divide_up(pd_divide_up(p->nc, threads / rows), 48) * 48;
        if (m + n >= best) continue;
        best = m + n;
        p->slice_m = m, p->slice_n = n, p->grid_columns = threads / rows;
    }
}

static pd_status multiply_block(struct product *p, uint64_t m0, uint64_t n0, uint64_t k0, struct pd_error *err)
{
    const struct pd_gemm *g = p->gemm;
    p->m0 = m0, p->n0 = n0;
    p->mc = min_u64(p->block_m, g->m - m0);
    p->nc = min_u64(p->block_n, g->n - n0);
    p->kc = min_u64(p->block_k, g->k - k0);
    bool in_place = pd_gemm_sums_in_c(g);
    p->ldc = in_place ? g->c.ld : p->nc;
    p->c = in_place ? (float *)g->c.data + m0 * g->c.ld + n0 : p->sums;
    p->load = g->accumulate || k0 > 0;
    p->last = k0 + p->kc == g->k;
    g->trans_a ? operand_take(p, &p->a, k0, p->kc, m0, p->mc) : operand_take(p, &p->a, m0, p->mc, k0, p->kc);
    g->trans_b ? operand_take(p, &p->b, n0, p->nc, k0, p->kc) : operand_take(p, &p->b, k0, p->kc, n0, p->nc);
    cut_slices(p);
    pd_parallel(p->pool, pd_thread_pool_size(p->pool), multiply_slice, p);
    return status_of(p->status, p->mc, p->nc, p->kc, err);
}

/* Operands that must be converted, and sums that cannot wait in C, are cut to the workspace. */
static void cut_blocks(struct product *p)
{
    const struct pd_gemm *g = p->gemm;
    bool convert_a = g->a.dtype != PD_F32, convert_b = g->b.dtype != PD_F32, sums = !pd_gemm_sums_in_c(g);
    p->block_m = g->m, p->block_n = g->n, p->block_k = g->k;
    if (convert_a || convert_b) p->block_k = min_u64(p->block_k, SIDE);
    if (convert_a) p->block_m = min_u64(p->block_m, BLOCK_FLOATS / p->block_k);
    if (convert_b) p->block_n = min_u64(p->block_n, BLOCK_FLOATS / p->block_k);
    if (!sums || p->block_m * p->block_n <= BLOCK_FLOATS) return;
    p->block_m = min_u64(p->block_m, SIDE);
    p->block_n = min_u64(p->block_n, BLOCK_FLOATS / p->block_m);
}

/* The product of no k: what was there, or zeros. */
static void no_product(const struct product *p)
{
    const struct pd_gemm *g = p->gemm;
    static const float zero[1];
    struct pd_gemm_finish finish;
    for (uint64_t i = 0; i < g->m; i++) {
        for (uint64_t j = 0; j < g->n; j++) {
            (void)pd_gemm_finish_of(g, i, j, &finish);
            p->kernel->finish(&finish, 1, 1, g->accumulate ? finish.c : zero, 1);
        }
    }
}

/* k is the outer loop where sums wait in C, so that a converted block serves a whole row of blocks; else the inner one. */
static pd_status multiply_blocks(struct product *p, struct pd_error *err)
{
    const struct pd_gemm *g = p->gemm;
    bool k_inside = !pd_gemm_sums_in_c(g);
    for (uint64_t outer = 0; outer < (k_inside ? 1 : g->k); outer += p->block_k)
        for (uint64_t m0 = 0; m0 < g->m; m0 += p->block_m)
            for (uint64_t n0 = 0; n0 < g->n; n0 += p->block_n)
                for (uint64_t k0 = outer; k0 < (k_inside ? g->k : outer + 1); k0 += p->block_k)
                    PD_TRY(multiply_block(p, m0, n0, k0, err));
    return PD_OK;
}

pd_status pd_onednn_gemm(struct pd_thread_pool *pool, enum pd_isa isa, void *workspace, const struct pd_gemm *gemm,
                         struct pd_error *err)
{
    PD_CHECK(!gemm->accumulate || gemm->c.dtype == PD_F32);
    if (gemm->m == 0 || gemm->n == 0) return PD_OK;
    float *floats = workspace;
    struct product p = {.gemm = gemm, .kernel = pd_gemm_kernel_of(isa), .pool = pool, .sums = floats + 2 * BLOCK_FLOATS};
    p.a = (struct operand){.from = &gemm->a, .block = floats};
    p.b = (struct operand){.from = &gemm->b, .block = floats + BLOCK_FLOATS};
    if (gemm->k == 0) {
        no_product(&p);
        return PD_OK;
    }
    cut_blocks(&p);
    return multiply_blocks(&p, err);
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

uint64_t pd_onednn_workspace_bytes(void)
{
    return 0;
}

static pd_status absent(struct pd_error *err)
{
    PD_FAIL(err, PD_UNSUPPORTED,
            "this build has no oneDNN: configure with -DPERDURE_ONEDNN=ON (package libdnnl-dev), or use "
            "numerics: invariant");
}

pd_status pd_onednn_gemm(struct pd_thread_pool *pool, enum pd_isa isa, void *workspace, const struct pd_gemm *gemm,
                         struct pd_error *err)
{
    (void)pool, (void)isa, (void)workspace, (void)gemm;
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
