/* GPUs, their driver, and the libraries that training on them opens. */
#include "tools/doctor/findings.h"

#include "offload/device.h"
#include "tools/output.h"
#include "trainer/engine/gpus.h"
#include "trainer/math/math_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CAPABILITY_MIN = 8 };

static bool is_same_kind(const struct pd_gpus *gpus)
{
    for (uint32_t i = 1; i < gpus->count; i++)
        if (strcmp(gpus->gpus[i].name, gpus->gpus[0].name) != 0) return false;
    return true;
}

static void find_kind(struct pd_findings *findings, const struct pd_gpus *gpus)
{
    const struct pd_gpu *gpu = &gpus->gpus[0];
    const char *machine = pd_gpu_machine_name(gpu->name), *visible = getenv("CUDA_VISIBLE_DEVICES");
    struct pd_finding *f = pd_findings_add(findings, "gpu", PD_FINDING_OK, "%u x %s, %s each, compute capability %u.%u%s%s",
                                           gpus->count, gpu->name, pd_text_bytes(gpu->bytes).text, gpu->major, gpu->minor,
                                           visible ? "; CUDA_VISIBLE_DEVICES=" : "", visible ? visible : "");
    if (gpu->major < CAPABILITY_MIN)
        pd_finding_limit(f, "kernels are made for compute capability %d.0 and later: run.device=cpu", CAPABILITY_MIN);
    else if (!is_same_kind(gpus))
        pd_finding_limit(f, "not all are of one kind: the slowest sets the pace; CUDA_VISIBLE_DEVICES chooses");
    else if (machine) {
        pd_finding_advise(f, "perdure plan --device %s tells what fits", machine);
    }
}

/* Whether this program can use one: it may be built without CUDA, or for a newer driver. */
static void find_use(struct pd_findings *findings, const struct pd_gpus *gpus)
{
    struct pd_error err = {0};
    struct pd_dev *dev = NULL;
    if (!pd_dev_open_cuda(0, &dev, &err)) {
        struct pd_finding *f = pd_findings_add(findings, "gpu use", PD_FINDING_OK, "opens as %s", dev->description);
        const size_t used = strlen(f->here);
        if (gpus->driver)
            snprintf(f->here + used, sizeof f->here - used, "; driver for CUDA %u.%u", gpus->driver / 1000,
                     gpus->driver % 1000 / 10);
        char kernels[160];
        pd_math_cuda_kernels(dev->capability, NULL, kernels, sizeof kernels);
        pd_findings_add(findings, "gpu kernels", PD_FINDING_OK, "%s", kernels);
        pd_dev_close(dev);
        return;
    }
    struct pd_finding *f = pd_findings_add(findings, "gpu use", PD_FINDING_LIMITED, "%.190s", err.message);
    /* As pd_rank_device_open decides: a GPU that CUDA counts and that does not open ends a start that may choose, too. */
    pd_finding_advise(f, pd_dev_cuda_count()
                             ? "until this is mended run.device=auto and run.device=gpu do not start; use run.device=cpu"
                             : "until this is mended run.device=auto trains on the CPU, and run.device=gpu does not start");
}

static const struct wanted {
    enum pd_gpu_library library;
    enum pd_finding_state without;
    const char *missing;
} wanted[] = {
    {PD_GPU_CUBLASLT, PD_FINDING_MISSING, "GEMMs on a GPU need it: install cuBLAS, or put its folder on LD_LIBRARY_PATH"},
    {PD_GPU_NCCL, PD_FINDING_LIMITED,
     "without it ranks talk through host memory: install libnccl2, or put its folder on LD_LIBRARY_PATH"},
};

static void find_gpu_libraries(struct pd_findings *findings)
{
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        struct pd_gpu_library_version version;
        if (pd_gpu_library_find(wanted[i].library, true, &version)) {
            pd_findings_add(findings, version.name, PD_FINDING_OK, "%s, %.150s", version.version, version.path);
            continue;
        }
        struct pd_finding *f = pd_findings_add(findings, version.name, wanted[i].without, "not found");
        pd_finding_advise(f, "%s", wanted[i].missing);
    }
}

void pd_find_gpus(struct pd_findings *findings)
{
    struct pd_gpus gpus;
    const uint32_t usable = pd_dev_cuda_count();
    pd_gpus_find(&gpus);
    if (!gpus.count && !usable) {
        pd_findings_add(findings, "gpu", PD_FINDING_UNUSED, "%s", gpus.why_none);
        return;
    }
    if (gpus.count)
        find_kind(findings, &gpus);
    else
        pd_findings_add(findings, "gpu", PD_FINDING_LIMITED, "%u, without a driver: simulated", usable);
    find_use(findings, &gpus);
    find_gpu_libraries(findings);
}
