/* What stands in for libcuda.so.1: the driver of one GPU, too old for the CUDA runtime of this build. */
#include <stddef.h>
#include <stdio.h>

enum { DRIVER = 9000, UNSUPPORTED = 803 };

#define EXPORT __attribute__((visibility("default")))

int cuInit(unsigned flags);
int cuDriverGetVersion(int *ret_version);
int cuDeviceGetCount(int *ret_count);
int cuDeviceGet(int *ret_device, int index);
int cuDeviceGetName(char *ret_name, int bytes, int device);
int cuDeviceTotalMem_v2(size_t *ret_bytes, int device);
int cuDeviceGetAttribute(int *ret_value, int attribute, int device);

EXPORT int cuInit(unsigned flags)
{
    (void)flags;
    return 0;
}

EXPORT int cuDriverGetVersion(int *ret_version)
{
    *ret_version = DRIVER;
    return 0;
}

EXPORT int cuDeviceGetCount(int *ret_count)
{
    *ret_count = 1;
    return 0;
}

EXPORT int cuDeviceGet(int *ret_device, int index)
{
    *ret_device = index;
    return index == 0 ? 0 : UNSUPPORTED;
}

EXPORT int cuDeviceGetName(char *ret_name, int bytes, int device)
{
    (void)device;
    snprintf(ret_name, (size_t)bytes, "NVIDIA H100 80GB HBM3");
    return 0;
}

EXPORT int cuDeviceTotalMem_v2(size_t *ret_bytes, int device)
{
    (void)device;
    *ret_bytes = (size_t)80 << 30;
    return 0;
}

EXPORT int cuDeviceGetAttribute(int *ret_value, int attribute, int device)
{
    (void)device;
    *ret_value = attribute == 75 ? 9 : 0; /* compute capability: major, minor */
    return 0;
}
