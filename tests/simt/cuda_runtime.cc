/* The rest of the runtime: what the machine has, and its memory. Streams and events are in streams.cc. */
#define SIMT_RUNTIME
#include "tests/simt/machine.h"
#include "tests/simt/simt_order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace
{

[[noreturn]] void bad_setting(const char *name, const char *text, const char *wanted)
{
    fprintf(stderr, "%s=%s: %s\n", name, text, wanted);
    exit(64);
}

uint64_t number_of(const char *name, uint64_t otherwise, const char *endings)
{
    const char *text = getenv(name);
    if (!text || !*text) return otherwise;
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (end == text) bad_setting(name, text, "a number is wanted");
    if (*end) {
        const char *ending = strchr(endings, *end);
        if (!ending || end[1]) bad_setting(name, text, "what stands behind the number is not known");
        value <<= 10 * (ending - endings + 1);
    }
    return value;
}

simt_settings read_settings()
{
    simt_settings s = {};
    const uint64_t gpus = number_of("PERDURE_SIMT_GPUS", 1, "");
    if (gpus > SIMT_GPUS_MAX) bad_setting("PERDURE_SIMT_GPUS", getenv("PERDURE_SIMT_GPUS"), "0 to 8");
    s.gpus = static_cast<unsigned>(gpus);
    s.memory_bytes = number_of("PERDURE_SIMT_MEMORY", uint64_t{4} << 30, "KMG");
    s.taken_bytes = number_of("PERDURE_SIMT_TAKEN", 0, "KMG");
    if (s.taken_bytes > s.memory_bytes)
        bad_setting("PERDURE_SIMT_TAKEN", getenv("PERDURE_SIMT_TAKEN"), "more than there is");
    s.locked_bytes = number_of("PERDURE_SIMT_LOCKED", SIZE_MAX, "KMG");
    s.name = getenv("PERDURE_SIMT_NAME") ? getenv("PERDURE_SIMT_NAME") : "simulated GPU";
    s.capability = static_cast<unsigned>(number_of("PERDURE_SIMT_CAPABILITY", 90, ""));
    s.fail_at = number_of("PERDURE_SIMT_FAIL", 0, "");
    s.fail_gpu = static_cast<int>(number_of("PERDURE_SIMT_FAIL_GPU", UINT64_MAX, ""));
    s.alone = static_cast<int>(number_of("PERDURE_SIMT_ALONE", UINT64_MAX, ""));
    s.is_busy = number_of("PERDURE_SIMT_BUSY", 0, "") != 0;
    const char *streams = getenv("PERDURE_SIMT_STREAMS");
    if (!streams || !*streams || strcmp(streams, "late") == 0) return s;
    s.streams = strcmp(streams, "now") == 0 ? simt_settings::NOW : simt_settings::SEEDED;
    if (s.streams == simt_settings::SEEDED) s.seed = number_of("PERDURE_SIMT_STREAMS", 0, "");
    return s;
}

/* Of a process that never asks, too: who only starts others ends where they would, once. NCCL's own library would look for a
 * driver and find none. */
__attribute__((constructor)) void check_settings()
{
    (void)read_settings();
    setenv("PERDURE_NCCL", "off", 0);
}

unsigned long long plain(uint64_t value)
{
    return value;
}

void report()
{
    const simt_counts &c = simt_counted();
    FILE *file = fopen(getenv("PERDURE_SIMT_REPORT"), "a");
    if (!file) return;
    fprintf(file,
            "{\"kernels\":%llu,\"copies\":%llu,\"pageable_copies\":%llu,\"fills\":%llu,\"waits\":%llu,\"streams\":%llu,"
            "\"streams_made\":%llu,"
            "\"device_bytes\":%llu,\"device_bytes_max\":%llu,\"locked_bytes\":%llu,\"locked_bytes_max\":%llu}\n",
            plain(c.kernels), plain(c.copies), plain(c.pageable_copies), plain(c.fills), plain(c.waits), plain(c.streams),
            plain(c.streams_made), plain(c.device_bytes), plain(c.device_bytes_max), plain(c.locked_bytes),
            plain(c.locked_bytes_max));
    fclose(file);
}

void tell_watcher()
{
    const char *path = getenv("PERDURE_SIMT_WATCH");
    FILE *file = path ? fopen(path, "a") : nullptr;
    if (!file) return;
    fprintf(file, "{\"device_bytes\":%llu,\"locked_bytes\":%llu,\"pageable_copies\":%llu}\n",
            plain(simt_counted().device_bytes), plain(simt_counted().locked_bytes), plain(simt_counted().pageable_copies));
    fclose(file);
}

bool may_lock(size_t bytes)
{
    const size_t locked = simt_counted().locked_bytes, most = simt_machine().locked_bytes;
    return locked <= most && bytes <= most - locked;
}

unsigned here()
{
    int device = 0;
    cudaGetDevice(&device);
    return static_cast<unsigned>(device);
}

cudaError_t ready()
{
    int device;
    const cudaError_t code = cudaGetDevice(&device);
    return code == cudaSuccess ? cudaStreamSynchronize(nullptr) : code;
}

cudaError_t take(simt_kind kind, size_t bytes, void **data)
{
    simt_turn turn;
    const cudaError_t code = simt_state();
    if (code == cudaSuccess && kind == SIMT_LOCKED && !may_lock(bytes)) return cudaErrorMemoryAllocation;
    return code == cudaSuccess ? simt_memory_take(kind, here(), bytes, data) : code;
}

} // namespace

const simt_settings &simt_machine(void)
{
    static const simt_settings settings = read_settings();
    return settings;
}

simt_counts &simt_counted(void)
{
    static simt_counts counts;
    static const int registered = getenv("PERDURE_SIMT_REPORT") ? atexit(report) : 0;
    (void)registered;
    return counts;
}

uint32_t simt_contexts(void)
{
    return simt_counted().contexts;
}

static thread_local cudaError_t noted;

cudaError_t simt_noted(cudaError_t code)
{
    if (code != cudaSuccess) noted = code;
    return code;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t code = noted, state = ready();
    noted = cudaSuccess;
    return state == cudaErrorLaunchFailure ? state : code;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    if (device < 0 || static_cast<unsigned>(device) >= simt_machine().gpus) return cudaErrorInvalidDevice;
    *properties = {};
    snprintf(properties->name, sizeof properties->name, "%s", simt_machine().name);
    properties->uuid.bytes[15] = static_cast<char>(device + 1);
    properties->totalGlobalMem = simt_machine().memory_bytes;
    properties->sharedMemPerBlockOptin = 232448;
    properties->multiProcessorCount = 2;
    properties->pciBusID = 16 + device;
    properties->major = static_cast<int>(simt_machine().capability / 10);
    properties->minor = static_cast<int>(simt_machine().capability % 10);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    const simt_settings &machine = simt_machine();
    for (int gpu : {device, peer})
        if (gpu < 0 || static_cast<unsigned>(gpu) >= machine.gpus) return cudaErrorInvalidDevice;
    *can = device != peer && device != machine.alone && peer != machine.alone;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **data, size_t bytes)
{
    return take(SIMT_DEVICE, bytes, data);
}

cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned flags)
{
    return flags & ~cudaHostAllocPortable ? cudaErrorInvalidValue : take(SIMT_LOCKED, bytes, data);
}

static cudaError_t give_back(void *data, simt_kind kind, cudaError_t unknown)
{
    simt_turn turn;
    if (simt_memory_check(data, kind) != cudaSuccess) return unknown;
    if (kind == SIMT_DEVICE) simt_memory_uncount(data);
    simt_memory_drop(data);
    return cudaSuccess;
}

cudaError_t cudaFree(void *data)
{
    return data ? give_back(data, SIMT_DEVICE, cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaFreeHost(void *data)
{
    return data ? give_back(data, SIMT_LOCKED, cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaHostRegister(void *data, size_t bytes, unsigned flags)
{
    simt_turn turn;
    const cudaError_t code = simt_state();
    if (code != cudaSuccess) return code;
    if (!may_lock(bytes)) return cudaErrorMemoryAllocation;
    return flags & ~cudaHostRegisterPortable ? cudaErrorInvalidValue : simt_memory_register(data, bytes);
}

cudaError_t cudaHostUnregister(void *data)
{
    return give_back(data, SIMT_REGISTERED, cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    simt_turn turn;
    const cudaError_t code = ready();
    if (code != cudaSuccess) return code;
    tell_watcher();
    *free_bytes = simt_memory_free_bytes(here());
    *total_bytes = simt_machine().memory_bytes;
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
    simt_turn turn;
    if (simt_memory_free_bytes(here()) != simt_machine().memory_bytes - simt_machine().taken_bytes) abort();
    simt_counted().contexts &= ~(1u << here());
    return cudaSuccess;
}
