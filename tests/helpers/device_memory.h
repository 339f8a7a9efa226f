/* Memory that the host cannot touch stands for a device's: there while a copy, or an operation between far_open and
 * far_close, is under way, and at no other time. Each rank has one of its own; a copy between two opens all of them. */
#pragma once

#include "ckpt/base/arena.h"
#include "trainer/comm/comm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FAR_REGIONS 4096u

struct device_memory {
    pthread_mutex_t lock;
    struct {
        uint8_t *data;
        uint64_t bytes;
        bool is_host; /* of the arena, and the host's; with hides_host gone while an operation runs */
    } regions[FAR_REGIONS];
    uint32_t count, open;        /* open: how many are inside */
    struct device_memory *peers; /* (peer_count) of all ranks, this one's too; NULL: alone */
    uint32_t peer_count;
    bool hides_host;                           /* of one rank alone: its communicator's thread reads lists of pieces */
    _Atomic uint64_t copies, readies, fail_at; /* fail_at: the copy that fails; 0: none */
    bool refuses;                              /* to lock */
    _Atomic uint64_t locked, locked_most;      /* bytes */
};

#define DEVICE_MEMORY_INIT                \
    {                                     \
        .lock = PTHREAD_MUTEX_INITIALIZER \
    }

static inline void far_protect(const struct device_memory *far, bool is_host, int protection)
{
    for (uint32_t i = 0; i < far->count; i++)
        if (far->regions[i].is_host == is_host)
            PD_CHECK(mprotect(far->regions[i].data, far->regions[i].bytes, protection) == 0);
}

static inline void far_open(struct device_memory *far)
{
    pthread_mutex_lock(&far->lock);
    if (far->open++ == 0) far_protect(far, false, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&far->lock);
}

static inline void far_close(struct device_memory *far)
{
    pthread_mutex_lock(&far->lock);
    if (--far->open == 0) far_protect(far, false, PROT_NONE);
    pthread_mutex_unlock(&far->lock);
}

/* Around an operation, which reads the device's memory alone. */
static inline void far_hide_host(struct device_memory *far)
{
    far_open(far);
    if (far->hides_host) far_protect(far, true, PROT_NONE);
}

static inline void far_show_host(struct device_memory *far)
{
    if (far->hides_host) far_protect(far, true, PROT_READ | PROT_WRITE);
    far_close(far);
}

static inline void *far_region(struct device_memory *far, bool is_host, uint64_t bytes)
{
    bytes = (bytes + 4096) / 4096 * 4096;
    pthread_mutex_lock(&far->lock);
    const int protection = is_host || far->open ? PROT_READ | PROT_WRITE : PROT_NONE;
    uint8_t *data = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    PD_CHECK(data != MAP_FAILED && far->count < FAR_REGIONS);
    far->regions[far->count].data = data;
    far->regions[far->count].is_host = is_host;
    far->regions[far->count++].bytes = bytes;
    pthread_mutex_unlock(&far->lock);
    return data;
}

static inline void *far_new(struct device_memory *far, uint64_t bytes)
{
    return far_region(far, false, bytes);
}

static inline void far_delete(struct device_memory *far, void *data)
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
    struct device_memory *far = context;
    (void)err;
    far->readies++;
    return PD_OK;
}

static inline pd_status far_copy_bytes(void *context, void *dst, const void *src, uint64_t bytes, struct pd_error *err)
{
    struct device_memory *far = context;
    if (++far->copies == far->fail_at) PD_FAIL(err, PD_DEVICE_LOST, "GPU 0: a copy that fails as planned");
    for (uint32_t i = 0; i < far->peer_count; i++)
        far_open(&far->peers[i]);
    if (!far->peers) far_open(far);
    memcpy(dst, src, bytes);
    if (!far->peers) far_close(far);
    for (uint32_t i = 0; i < far->peer_count; i++)
        far_close(&far->peers[i]);
    return PD_OK;
}

static inline bool far_lock(void *context, void *data, uint64_t bytes)
{
    struct device_memory *far = context;
    PD_CHECK((uintptr_t)data % 4096 == 0 && bytes % 4096 == 0);
    if (far->refuses) return false;
    far->locked += bytes;
    if (far->locked > far->locked_most) far->locked_most = far->locked;
    return true;
}

static inline void far_unlock(void *context, void *data, uint64_t bytes)
{
    struct device_memory *far = context;
    PD_CHECK(data && bytes <= far->locked);
    far->locked -= bytes;
}

static inline struct pd_comm_memory far_hook(struct device_memory *far)
{
    return (struct pd_comm_memory){far_ready, far_copy_bytes, far_lock, far_unlock, far};
}

/* ---- an arena of it ---- */

static inline pd_status far_map(void *context, bool is_host, uint64_t bytes, void **ret_data, struct pd_error *err)
{
    (void)err;
    *ret_data = far_region(context, is_host, bytes);
    return PD_OK;
}

static inline void far_unmap(void *context, bool is_host, void *data, uint64_t bytes)
{
    (void)is_host, (void)bytes;
    far_delete(context, data);
}

static inline struct pd_arena_source far_source(struct device_memory *far)
{
    return (struct pd_arena_source){far_map, far_unmap, far};
}

/* As many as there are ranks, which copy to one another. */
static inline struct device_memory *far_world_new(uint32_t ranks)
{
    struct device_memory *all = calloc(ranks, sizeof *all);
    PD_CHECK(all);
    for (uint32_t r = 0; r < ranks; r++) {
        pthread_mutex_init(&all[r].lock, NULL);
        all[r].peers = all;
        all[r].peer_count = ranks;
    }
    return all;
}

/* Everything was deleted. */
static inline void far_world_free(struct device_memory *all, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++)
        PD_CHECK(all[r].count == 0 && all[r].open == 0);
    free(all);
}
