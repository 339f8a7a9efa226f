/* Blocking of a matrix product for the caches; kernels are in cpu_gemm_kernel.c.
 *
 * The shorter operand is shared: all threads together pack a superblock of it (all its rows, if they fit) once. The longer
 * one is streamed: a task packs a few of its panels into its own memory and multiplies them with the whole superblock. So
 * each element is usually packed once, and one thread packs while another multiplies.
 *
 *   for s: superblocks of the shared side          (at most SHARED_FLOATS)
 *     for t: ranges of the streamed side           (one range, unless partial sums need the workspace)
 *       for k: blocks of at most K_BLOCK           (partial sums wait in C if it is fp32 and not the residual, else in
 *                                                   `sums`)
 *         all threads: pack the shared side        | barrier
 *         all threads: tasks                       | barrier
 *           pack own panels; for blocks of the tile that fit into the L2 cache: for kc: multiply; finish
 *
 *   invariants  1. kc ascends inside k, k ascends: a tile continues in the order of its chain, on any thread
 *               2. within one (s, t, k) every element of C belongs to exactly one task
 */
#include "trainer/math/cpu_gemm.h"
#include "ckpt/base/checked.h"
#include "trainer/math/cpu_gemm_kernel.h"
#include "trainer/math/fp8.h"

#include <stdatomic.h>

#define K_BLOCK 1024u          /* k between two barriers */
#define KC_MAX 512u            /* k of one pass through registers */
#define PANEL_PAD 16u          /* floats after each panel: equal offsets of neighbours fall into different cache sets */
#define SHARED_FLOATS 1081344u /* 1056 x 1024: 1000 rows and padding */
#define SUMS_FLOATS 1048576u   /* partial sums of C that is not fp32, between k-blocks */
#define STREAM_FLOATS 69632u   /* 68 x 1024: the panels of a task */
#define TILE_FLOATS 24576u     /* sums of a block of a task */
#define TASK_WIDTH_MAX 64u     /* streamed vectors of a task */
#define TASKS_PER_THREAD 4u

struct gemm_job {
    const struct pd_gemm *gemm;
    const struct pd_gemm_kernel *kernel;
    struct pd_gemm_operand shared, streamed;
    bool streams_b;                        /* the streamed side is B, so the shared side is A */
    uint64_t shared_width, streamed_width; /* of a panel */
    uint64_t kc, k_block;
    float *shared_panels, *sums, *private; /* workspace */
    float a_values[256], b_values[256];    /* of codes */

    /* the piece being worked on */
    uint64_t s0, s_count, t0, t_count, k0, k_count;
    uint64_t pack_panels;              /* panels of a packing task */
    uint64_t task_width, task_count;   /* streamed vectors of a task */
    uint64_t split_width, split_count; /* shared vectors per task: all, unless there are too few tasks */
    uint64_t block_width;              /* shared vectors of a block of a tile */
    bool load, last;
    _Atomic uint64_t next;
};

uint64_t pd_cpu_gemm_workspace_bytes(unsigned thread_count)
{
    uint64_t private = STREAM_FLOATS + TILE_FLOATS;
    return sizeof(float) * (SHARED_FLOATS + SUMS_FLOATS + private * pd_max_u64(thread_count, 1));
}

const struct pd_gemm_kernel *pd_gemm_kernel_of(enum pd_isa isa)
{
    switch (isa) {
    case PD_ISA_PORTABLE:
        return &pd_gemm_kernel_portable;
#if defined(__x86_64__)
    case PD_ISA_AVX2:
        return &pd_gemm_kernel_avx2;
    case PD_ISA_AVX512:
        return &pd_gemm_kernel_avx512;
#endif
    default:
        PD_CHECK(!"an instruction set that was resolved");
        return NULL;
    }
}

static uint64_t panel_floats(const struct gemm_job *job, uint64_t width)
{
    return width * job->kc + PANEL_PAD;
}

/* Floats of one panel over all of a k-block. */
static uint64_t panel_floats_k_block(const struct gemm_job *job, uint64_t width)
{
    return panel_floats(job, width) * pd_max_u64(pd_divide_up(job->k_block, job->kc), 1);
}

/* ---- packing the shared side ---- */

static void pack_side(const struct gemm_job *job, bool side_b, const struct pd_gemm_operand *operand, uint64_t first,
                      uint64_t count, uint64_t k0, uint64_t kc, float *panels, uint64_t stride)
{
    (side_b ? job->kernel->pack_b : job->kernel->pack_a)(operand, first, count, k0, kc, panels, stride);
}

static void pack_shared_task(void *context, uint64_t index)
{
    const struct gemm_job *job = context;
    uint64_t stride = panel_floats(job, job->shared_width), panels = pd_divide_up(job->s_count, job->shared_width);
    uint64_t first = index * job->pack_panels * job->shared_width;
    uint64_t count = pd_min_u64(job->pack_panels * job->shared_width, job->s_count - first);
    for (uint64_t k = 0, q = 0; k < job->k_count; k += job->kc, q++) {
        float *to = job->shared_panels + (q * panels + index * job->pack_panels) * stride;
        pack_side(job, !job->streams_b, &job->shared, job->s0 + first, count, job->k0 + k,
                  pd_min_u64(job->kc, job->k_count - k), to, stride);
    }
}

/* ---- tasks ---- */

struct gemm_block {
    uint64_t row, column, mc, nc; /* in C */
};

bool pd_gemm_sums_in_c(const struct pd_gemm *gemm)
{
    return gemm->c.dtype == PD_F32 && gemm->residual.data != gemm->c.data;
}

static float *block_sums(const struct gemm_job *job, const struct gemm_block *block, float *tile, uint64_t *ret_ld)
{
    const struct pd_gemm *gemm = job->gemm;
    if (pd_gemm_sums_in_c(gemm)) {
        *ret_ld = gemm->c.ld;
        return (float *)gemm->c.data + block->row * gemm->c.ld + block->column;
    }
    if (job->k_count == gemm->k) {
        *ret_ld = block->nc;
        return tile;
    }
    uint64_t row0 = job->streams_b ? job->s0 : job->t0, column0 = job->streams_b ? job->t0 : job->s0;
    *ret_ld = job->streams_b ? job->t_count : job->s_count;
    return job->sums + (block->row - row0) * *ret_ld + block->column - column0;
}

static void *element_address(const void *data, enum pd_dtype dtype, uint64_t index)
{
    return data ? (char *)(uintptr_t)data + index * pd_dtype_bytes(dtype) : NULL;
}

bool pd_gemm_finish_of(const struct pd_gemm *g, uint64_t row, uint64_t column, struct pd_gemm_finish *ret_finish)
{
    *ret_finish = (struct pd_gemm_finish){
        .c = element_address(g->c.data, g->c.dtype, row * g->c.ld + column),
        .c_dtype = g->c.dtype,
        .c_ld = g->c.ld,
        .bias = element_address(g->bias, g->bias_dtype, column),
        .bias_dtype = g->bias_dtype,
        .residual = element_address(g->residual.data, g->residual.dtype, row * g->residual.ld + column),
        .residual_dtype = g->residual.dtype,
        .residual_ld = g->residual.ld,
    };
    return g->c.dtype != PD_F32 || g->bias || g->residual.data;
}

/* Streamed vectors [t, t + width) times shared vectors [s, s + count) of the superblock, all of the k-block. */
static void block_multiply(const struct gemm_job *job, uint64_t t, uint64_t width, uint64_t s, uint64_t count,
                           const float *streamed, float *tile)
{
    uint64_t shared_stride = panel_floats(job, job->shared_width),
             shared_panels = pd_divide_up(job->s_count, job->shared_width);
    uint64_t streamed_stride = panel_floats(job, job->streamed_width),
             streamed_panels = pd_divide_up(width, job->streamed_width);
    struct gemm_block block = {
        .row = job->streams_b ? job->s0 + s : t,
        .column = job->streams_b ? t : job->s0 + s,
        .mc = job->streams_b ? count : width,
        .nc = job->streams_b ? width : count,
    };
    uint64_t ld;
    float *sums = block_sums(job, &block, tile, &ld);
    uint64_t k = 0, q = 0;
    do {
        uint64_t kc = pd_min_u64(job->kc, job->k_count - k);
        const float *shared = job->shared_panels + (q * shared_panels + s / job->shared_width) * shared_stride;
        const float *own = streamed + q * streamed_panels * streamed_stride;
        bool load = job->load || k > 0;
        if (job->streams_b)
            job->kernel->multiply(block.mc, block.nc, kc, shared, shared_stride, own, streamed_stride, sums, ld, load);
        else
            job->kernel->multiply(block.mc, block.nc, kc, own, streamed_stride, shared, shared_stride, sums, ld, load);
        k += kc;
        q++;
    } while (k < job->k_count);
    struct pd_gemm_finish finish;
    if (job->last && pd_gemm_finish_of(job->gemm, block.row, block.column, &finish))
        job->kernel->finish(&finish, block.mc, block.nc, sums, ld);
}

static void run_task(const struct gemm_job *job, uint64_t index, float *private, uint64_t *packed)
{
    uint64_t from = index / job->split_count * job->task_width, split = index % job->split_count * job->split_width;
    uint64_t t = job->t0 + from, width = pd_min_u64(job->task_width, job->t_count - from);
    uint64_t stride = panel_floats(job, job->streamed_width), panels = pd_divide_up(width, job->streamed_width);
    if (*packed != t) {
        for (uint64_t k = 0, q = 0; k < job->k_count; k += job->kc, q++)
            pack_side(job, job->streams_b, &job->streamed, t, width, job->k0 + k, pd_min_u64(job->kc, job->k_count - k),
                      private + q * panels * stride, stride);
        *packed = t;
    }
    uint64_t end = pd_min_u64(split + job->split_width, job->s_count);
    for (uint64_t s = split; s < end; s += job->block_width)
        block_multiply(job, t, width, s, pd_min_u64(job->block_width, end - s), private, private + STREAM_FLOATS);
}

/* One index per thread, with its own memory; takes tasks until none is left. */
static void run_tasks(void *context, uint64_t slot)
{
    struct gemm_job *job = context;
    uint64_t index, packed = UINT64_MAX, count = job->task_count * job->split_count;
    float *private = job->private + slot * (STREAM_FLOATS + TILE_FLOATS);
    while ((index = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < count)
        run_task(job, index, private, &packed);
}

/* Enough tasks for threads to end together, and enough panels in each to make packing pay. */
static void cut_tasks(struct gemm_job *job, unsigned threads)
{
    uint64_t panels = pd_divide_up(job->t_count, job->streamed_width);
    uint64_t most = STREAM_FLOATS / panel_floats_k_block(job, job->streamed_width);
    most = pd_min_u64(most, pd_max_u64(TASK_WIDTH_MAX / job->streamed_width, 1));
    uint64_t wanted = pd_max_u64(pd_divide_up(panels, most), threads == 1 ? 1 : TASKS_PER_THREAD * (uint64_t)threads);
    uint64_t task_panels = pd_max_u64(pd_divide_up(panels, wanted), 1);
    job->task_width = task_panels * job->streamed_width;
    job->task_count = pd_divide_up(panels, task_panels);

    uint64_t shared_panels = pd_divide_up(job->s_count, job->shared_width);
    uint64_t splits = threads == 1 ? 1 : pd_min_u64(pd_divide_up(2 * (uint64_t)threads, job->task_count), shared_panels);
    if (job->task_count >= threads) splits = 1;
    job->split_width = pd_divide_up(shared_panels, splits) * job->shared_width;
    job->split_count = pd_divide_up(job->s_count, job->split_width);

    uint64_t block_panels = pd_max_u64(TILE_FLOATS / job->task_width / job->shared_width, 1);
    block_panels = pd_divide_up(shared_panels, pd_divide_up(shared_panels, block_panels));
    job->block_width = block_panels * job->shared_width;
}

static void run_k_blocks(struct gemm_job *job, struct pd_thread_pool *pool)
{
    unsigned threads = pd_thread_pool_size(pool);
    const struct pd_gemm *gemm = job->gemm;
    cut_tasks(job, threads);
    job->k0 = 0;
    do {
        job->k_count = pd_min_u64(job->k_block, gemm->k - job->k0);
        job->load = gemm->accumulate || job->k0 > 0;
        job->last = job->k0 + job->k_count == gemm->k;
        bool packed = job->k_count == gemm->k && job->t0 > 0; /* an earlier range left it there */
        if (!packed) {
            uint64_t panels = pd_divide_up(job->s_count, job->shared_width);
            job->pack_panels = pd_max_u64(1, pd_min_u64(16, pd_divide_up(panels, 2 * (uint64_t)pd_thread_pool_size(pool))));
            pd_parallel(pool, pd_divide_up(panels, job->pack_panels), pack_shared_task, job);
        }
        atomic_store_explicit(&job->next, 0, memory_order_relaxed);
        pd_parallel(pool, pd_min_u64(threads, job->task_count * job->split_count), run_tasks, job);
        job->k0 += job->k_count;
    } while (job->k0 < gemm->k);
}

/* Tasks flush subnormals to zero. None occurs here, since a scale is at least 2^-63. */
static const float *values_of(enum pd_fp8 format, const float *scale, float values[256])
{
    if (!format) return NULL;
    for (uint32_t code = 0; code < 256; code++)
        values[code] = pd_f32_of_fp8(format, (uint8_t)code) * *scale;
    return values;
}

static void job_init(struct gemm_job *job, enum pd_isa isa, float *workspace, const struct pd_gemm *gemm)
{
    *job = (struct gemm_job){.gemm = gemm, .kernel = pd_gemm_kernel_of(isa), .streams_b = gemm->n >= gemm->m};
    const float *a_values = values_of(gemm->a_format, gemm->a_scale, job->a_values);
    const float *b_values = values_of(gemm->b_format, gemm->b_scale, job->b_values);
    struct pd_gemm_operand a = {gemm->a.data, gemm->a.dtype, gemm->a.ld, gemm->m, !gemm->trans_a, a_values};
    struct pd_gemm_operand b = {gemm->b.data, gemm->b.dtype, gemm->b.ld, gemm->n, gemm->trans_b, b_values};
    job->shared = job->streams_b ? a : b;
    job->streamed = job->streams_b ? b : a;
    job->shared_width = job->streams_b ? job->kernel->mr : job->kernel->nr;
    job->streamed_width = job->streams_b ? job->kernel->nr : job->kernel->mr;
    job->k_block = pd_min_u64(gemm->k, K_BLOCK);
    job->kc = pd_max_u64(pd_min_u64(gemm->k, KC_MAX), 1);
    job->shared_panels = workspace;
    job->sums = workspace + SHARED_FLOATS;
    job->private = job->sums + SUMS_FLOATS;
}

void pd_cpu_gemm(struct pd_thread_pool *pool, enum pd_isa isa, void *workspace, const struct pd_gemm *gemm)
{
    if (gemm->m == 0 || gemm->n == 0) return;
    PD_CHECK(!gemm->accumulate || gemm->c.dtype == PD_F32);
    struct gemm_job job;
    job_init(&job, isa, workspace, gemm);
    uint64_t superblock = SHARED_FLOATS / panel_floats_k_block(&job, job.shared_width) * job.shared_width;
    superblock = pd_min_u64(superblock, 4096);
    bool sums_wait = !pd_gemm_sums_in_c(gemm) && gemm->k > job.k_block;
    for (job.s0 = 0; job.s0 < job.shared.width; job.s0 += superblock) {
        job.s_count = pd_min_u64(superblock, job.shared.width - job.s0);
        uint64_t range = sums_wait ? SUMS_FLOATS / job.s_count : job.streamed.width;
        for (job.t0 = 0; job.t0 < job.streamed.width; job.t0 += range) {
            job.t_count = pd_min_u64(range, job.streamed.width - job.t0);
            run_k_blocks(&job, pool);
        }
    }
}
