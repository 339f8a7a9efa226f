/* Stands in for NVIDIA's management library: GPU n is at PCI bus 16 + n. GPU 1 is what one hopes not to find. */
#include <stdio.h>
#include <stdlib.h>

static int places[2] = {0, 1};

#define EXPORT __attribute__((visibility("default")))
#define PAIR(name, good, bad)                        \
    EXPORT int name(void *gpu, unsigned *value);     \
    EXPORT int name(void *gpu, unsigned *value)      \
    {                                                \
        *value = *(const int *)gpu ? (bad) : (good); \
        return 0;                                    \
    }

PAIR(nvmlDeviceGetCurrPcieLinkWidth, 16, 8)
PAIR(nvmlDeviceGetMaxPcieLinkWidth, 16, 16)
PAIR(nvmlDeviceGetCurrPcieLinkGeneration, 5, 1)
PAIR(nvmlDeviceGetMaxPcieLinkGeneration, 5, 5)

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned bytes);
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **ret_gpu);
EXPORT int nvmlDeviceGetClockInfo(void *gpu, int kind, unsigned *mhz);
EXPORT int nvmlDeviceGetMaxClockInfo(void *gpu, int kind, unsigned *mhz);
EXPORT int nvmlDeviceGetEccMode(void *gpu, unsigned *now, unsigned *next);
EXPORT int nvmlDeviceGetTotalEccErrors(void *gpu, int kind, int since, unsigned long long *count);
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *reasons);
EXPORT int nvmlDeviceGetNvLinkState(void *gpu, unsigned link, unsigned *active);

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlSystemGetDriverVersion(char *text, unsigned bytes)
{
    snprintf(text, bytes, "580.65");
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **ret_gpu)
{
    unsigned domain, bus;
    if (sscanf(address, "%x:%x:", &domain, &bus) != 2 || bus < 16 || bus > 17) return 6;
    *ret_gpu = &places[bus - 16];
    return 0;
}

int nvmlDeviceGetClockInfo(void *gpu, int kind, unsigned *mhz)
{
    *mhz = kind == 1 ? (*(const int *)gpu ? 345 : 1980) : 2619;
    return 0;
}

int nvmlDeviceGetMaxClockInfo(void *gpu, int kind, unsigned *mhz)
{
    (void)gpu;
    *mhz = kind == 1 ? 1980 : 2619;
    return 0;
}

int nvmlDeviceGetEccMode(void *gpu, unsigned *now, unsigned *next)
{
    (void)gpu;
    *now = *next = 1;
    return 0;
}

int nvmlDeviceGetTotalEccErrors(void *gpu, int kind, int since, unsigned long long *count)
{
    if (kind != 1 || since != 0) abort();
    *count = *(const int *)gpu ? 3 : 0;
    return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *reasons)
{
    *reasons = *(const int *)gpu ? 0x41 : 0x1; /* idle; and a hardware thermal slowdown */
    return 0;
}

int nvmlDeviceGetNvLinkState(void *gpu, unsigned link, unsigned *active)
{
    if (link >= 18) return 2;
    *active = !*(const int *)gpu || link < 17;
    return 0;
}
