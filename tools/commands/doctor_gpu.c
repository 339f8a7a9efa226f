#include "ckpt/base/arena.h"
#include "ckpt/base/clock.h"
#include "tools/commands/doctor.h"
#include "tools/commands/nvml.h"
#include "tools/output.h"
#include "trainer/engine/gpus.h"
#include "trainer/engine/rank_device.h"
#include "trainer/math/math_cuda.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define GPUS_MAX 16u
#define COPY_BYTES (UINT64_C(64) << 20)
#define TRIES 5
#define SHARE_MIN 0.7 /* of the data sheet's products; of a link's bytes */

static void find_facts(struct findings *findings, uint32_t gpu, struct pd_nvml_gpu *g)
{
    char address[16], why[160];
    pd_dev_cuda_pci(gpu, address);
    if (!pd_nvml_read(address, g, why)) {
        pd_doctor_add(findings, "gpu facts", FINDING_UNUSED, "GPU %u: %.150s", gpu, why);
        return;
    }
    struct finding *f =
        pd_doctor_add(findings, "gpu clocks", FINDING_OK, "GPU %u: SM %u of %u MHz, memory %u of %u MHz, driver %s", gpu,
                      g->sm_mhz, g->sm_mhz_max, g->memory_mhz, g->memory_mhz_max, g->driver);
    if (g->slowed_by)
        pd_doctor_limit(f, "heat or power slows it down: look at cooling and power, nvidia-smi -q -d PERFORMANCE");
    f = pd_doctor_add(findings, "gpu memory", FINDING_OK, "GPU %u: ECC %s, %llu uncorrected errors since the driver started",
                      gpu,
                      !g->has_ecc    ? "not there"
                      : g->is_ecc_on ? "on"
                                     : "off",
                      (unsigned long long)g->uncorrected);
    if (g->uncorrected)
        pd_doctor_limit(f, "leave it out until it is mended: CUDA_VISIBLE_DEVICES; nvidia-smi -q -d ECC,ROW_REMAPPER");
    else if (g->has_ecc && !g->is_ecc_on)
        pd_doctor_limit(f, "nothing notices a wrong bit: nvidia-smi -e 1");
    f = pd_doctor_add(findings, "gpu links", FINDING_OK,
                      "GPU %u: PCIe %u of %u lanes, up to generation %u; NVLink %u of %u active", gpu, g->pcie_width,
                      g->pcie_width_max, g->pcie_generation_max, g->links_active, g->links);
    if (g->pcie_width < g->pcie_width_max)
        pd_doctor_limit(f, "fewer lanes than it has: reseat it, or its riser");
    else if (g->links_active < g->links)
        pd_doctor_limit(f, "links that should be there are down: nvidia-smi nvlink -s; restart the fabric manager");
}

/* Bytes a second to the device and back, the best of some. */
static pd_status copy_rate(struct pd_rank_device *d, double *ret_up, double *ret_down, struct pd_error *err)
{
    struct pd_span host = {0}, device = {0};
    double best[2] = {0};
    pd_status st = pd_dev_alloc(d->dev, PD_DEV_HOST, COPY_BYTES, &host, err);
    if (!st) st = pd_dev_alloc(d->dev, PD_DEV_DEVICE, COPY_BYTES, &device, err);
    if (!st) memset(host.data, 0, COPY_BYTES);
    for (int i = 0; i < 2 * TRIES && !st; i++) {
        const uint64_t begin = pd_clock_monotonic_ns(NULL);
        st = i % 2 ? pd_dev_copy(d->dev, d->compute, host, 0, device, 0, COPY_BYTES, err)
                   : pd_dev_copy(d->dev, d->compute, device, 0, host, 0, COPY_BYTES, err);
        if (!st) st = pd_dev_stream_sync(d->dev, d->compute, err);
        const double rate = (double)COPY_BYTES / pd_clock_seconds_since(begin);
        if (rate > best[i % 2]) best[i % 2] = rate;
    }
    pd_dev_free(d->dev, &device);
    pd_dev_free(d->dev, &host);
    *ret_up = best[0];
    *ret_down = best[1];
    return st;
}

/* Operations a second of a product of n x n in bf16, its operands random: equal ones cost less power. */
static pd_status doctor_multiply(struct pd_rank_device *d, struct pd_math *math, uint64_t n, void *operands,
                                 double *ret_rate, struct pd_error *err)
{
    const uint64_t matrix = n * n * 2;
    const struct pd_span numbers = {operands, 2 * matrix, false};
    const struct pd_gemm gemm = {.m = n,
                                 .n = n,
                                 .k = n,
                                 .trans_b = true,
                                 .a = {operands, PD_BF16, n},
                                 .b = {(char *)operands + matrix, PD_BF16, n},
                                 .c = {(char *)operands + 2 * matrix, PD_BF16, n}};
    *ret_rate = 0;
    PD_TRY(pd_rank_device_randomize(d, numbers, PD_BF16, err));
    for (int i = 0; i < TRIES; i++) {
        const uint64_t begin = pd_clock_monotonic_ns(NULL);
        PD_TRY(pd_gemm(math, &gemm, err));
        PD_TRY(pd_math_sync(math, err));
        const double rate = 2.0 * (double)n * (double)n * (double)n / pd_clock_seconds_since(begin);
        if (rate > *ret_rate) *ret_rate = rate;
    }
    return PD_OK;
}

/* Takes its memory twice, as an engine does: counted, then real. */
static pd_status gemm_rate(struct pd_rank_device *d, double *ret_rate, struct pd_error *err)
{
    const uint64_t n = d->dev->multiprocessors < 16 ? 64 : 8192;
    const struct pd_math_cuda_options options = {.stream = pd_dev_stream_handle(d->dev, d->compute)};
    const struct pd_arena_source source = pd_rank_device_source(d);
    struct pd_memory_plan plan;
    struct pd_arena *arena = NULL;
    struct pd_math *math = NULL;
    PD_TRY(pd_arena_new_dry(&arena, err));
    pd_status st = pd_math_cuda_new(&options, arena, &math, err);
    (void)pd_arena_take(arena, PD_MEMORY_BUFFERS, 6 * n * n);
    pd_arena_usage(arena, &plan);
    pd_arena_free(arena);
    PD_TRY(st);
    PD_TRY(pd_arena_new_on(&plan, &source, &arena, err));
    st = pd_math_cuda_new(&options, arena, &math, err);
    if (!st) st = doctor_multiply(d, math, n, pd_arena_take(arena, PD_MEMORY_BUFFERS, 6 * n * n), ret_rate, err);
    pd_math_free(math);
    pd_arena_free(arena);
    return st;
}

static void find_rates(struct findings *findings, uint32_t gpu, const struct pd_nvml_gpu *g)
{
    struct pd_rank_device device = {0};
    struct pd_error err;
    double up = 0, down = 0, rate = 0;
    pd_status st = pd_rank_device_open(PD_DEVICE_GPU, gpu, NULL, &device, &err);
    if (!st) st = copy_rate(&device, &up, &down, &err);
    if (!st) st = gemm_rate(&device, &rate, &err);
    if (st) {
        pd_doctor_limit(pd_doctor_add(findings, "gpu rates", FINDING_LIMITED, "GPU %u: not measured", gpu), "%.190s",
                        err.message);
        pd_rank_device_close(&device);
        return;
    }
    /* A lane of generation 1 carries 250 MB/s; each generation doubles it, nearly. */
    const double lanes =
        g->pcie_generation_max ? 0.25e9 * g->pcie_width_max * (double)(1u << (g->pcie_generation_max - 1)) : 0;
    const double sheet = pd_gpu_matmul_flops(device.dev->description);
    struct finding *f = pd_doctor_add(findings, "gpu copies", FINDING_OK, "GPU %u: %.1f GB/s there, %.1f GB/s back, of %.1f",
                                      gpu, up / 1e9, down / 1e9, lanes / 1e9);
    if (up < SHARE_MIN * lanes || down < SHARE_MIN * lanes)
        pd_doctor_limit(f, "less than %.0f %% of its lanes: see gpu links and gpu numa, and who else copies",
                        100 * SHARE_MIN);
    f = pd_doctor_add(findings, "gpu products", FINDING_OK, "GPU %u: %.3g TFLOP/s in bf16, data sheet %.3g", gpu,
                      rate / 1e12, sheet / 1e12);
    if (rate < SHARE_MIN * sheet)
        pd_doctor_limit(f, "less than %.0f %% of the data sheet: see gpu clocks, and who else computes", 100 * SHARE_MIN);
    pd_rank_device_close(&device);
}

/* Pairs of GPUs that do not read each other's memory: between them NCCL copies through the host. */
static void find_peers(struct findings *findings, uint32_t count)
{
    uint32_t pairs = 0, apart = 0, first[2] = {0};
    for (uint32_t a = 0; a < count; a++)
        for (uint32_t b = a + 1; b < count; b++, pairs++) {
            if (pd_dev_cuda_reaches(a, b) && pd_dev_cuda_reaches(b, a)) continue;
            if (!apart++) first[0] = a, first[1] = b;
        }
    if (!pairs) return;
    struct finding *f = pd_doctor_add(findings, "gpu peers", FINDING_OK,
                                      "%u of %u pairs of GPUs read each other's memory", pairs - apart, pairs);
    if (apart)
        pd_doctor_limit(f,
                        "GPU %u and %u do not, and copy through the host: allow peer access (a virtual machine's topology, "
                        "IOMMU, PCIe ACS), see nvidia-smi topo -p2p r",
                        first[0], first[1]);
}

void pd_doctor_gpus(struct findings *findings, uint32_t count)
{
    if (!count)
        pd_doctor_add(findings, "gpu facts", FINDING_UNUSED, "no GPU that this program can use: nothing is measured");
    find_peers(findings, count < GPUS_MAX ? count : GPUS_MAX);
    cpu_set_t before;
    const bool knows = !sched_getaffinity(0, sizeof before, &before);
    for (uint32_t gpu = 0; gpu < count && gpu < GPUS_MAX; gpu++) {
        struct pd_nvml_gpu facts = {0};
        find_facts(findings, gpu, &facts);
        find_rates(findings, gpu, &facts);
        if (knows) (void)sched_setaffinity(0, sizeof before, &before); /* opening a GPU binds to its node */
    }
}
