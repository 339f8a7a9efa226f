/* Memory that the host cannot touch stands for a device's, for as many ranks as there are threads: there while a copy, or
 * an operation between far_open and far_close, is under way, and at no other time. */
#ifndef PD_TESTS_FAR_MEMORY_H
#define PD_TESTS_FAR_MEMORY_H

#include "trainer/comm/comm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FAR_REGIONS 4096u

struct far_memory {
    pthread_mutex_t lock;
    struct {
        uint8_t *data;
        uint64_t bytes;
    } regions[FAR_REGIONS];
    uint32_t count, open;                      /* how many are inside */
    _Atomic uint64_t copies, readies, fail_at; /* fail_at: the copy that fails; 0: none */
};

#define FAR_MEMORY_INIT                   \
    {                                     \
        .lock = PTHREAD_MUTEX_INITIALIZER \
    }

static inline void far_protect(const struct far_memory *far, int protection)
{
    for (uint32_t i = 0; i < far->count; i++)
        PD_CHECK(mprotect(far->regions[i].data, far->regions[i].bytes, protection) == 0);
}

static inline void far_open(struct far_memory *far)
{
    pthread_mutex_lock(&far->lock);
    if (far->open++ == 0) far_protect(far, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&far->lock);
}

static inline void far_close(struct far_memory *far)
{
    pthread_mutex_lock(&far->lock);
    if (--far->open == 0) far_protect(far, PROT_NONE);
    pthread_mutex_unlock(&far->lock);
}

static inline void *far_new(struct far_memory *far, uint64_t bytes)
{
    bytes = (bytes + 4096) / 4096 * 4096;
    pthread_mutex_lock(&far->lock);
    uint8_t *data = mmap(NULL, bytes, far->open ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    PD_CHECK(data != MAP_FAILED && far->count < FAR_REGIONS);
    far->regions[far->count].data = data;
    far->regions[far->count++].bytes = bytes;
    pthread_mutex_unlock(&far->lock);
    return data;
}

static inline void far_delete(struct far_memory *far, void *data)
{
    pthread_mutex_lock(&far->lock);
    uint32_t i = 0;
    while (i < far->count && far->regions[i].data != data)
        i++;
    PD_CHECK(i < far->count);
    munmap(data, far->regions[i].bytes);
    far->regions[i] = far->regions[--far->count];
    pthread_mutex_unlock(&far->lock);
}

static inline pd_status far_ready(void *context, struct pd_error *err)
{
    struct far_memory *far = context;
    (void)err;
    far->readies++;
    return PD_OK;
}

static inline pd_status far_copy_bytes(void *context, void *dst, const void *src, uint64_t bytes, struct pd_error *err)
{
    struct far_memory *far = context;
    if (++far->copies == far->fail_at) PD_FAIL(err, PD_DEVICE_LOST, "GPU 0: a copy that fails as planned");
    far_open(far);
    memcpy(dst, src, bytes);
    far_close(far);
    return PD_OK;
}

static inline struct pd_comm_memory far_hook(struct far_memory *far)
{
    return (struct pd_comm_memory){far_ready, far_copy_bytes, far};
}

#endif
