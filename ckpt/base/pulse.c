#include "ckpt/base/pulse.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/memory_file.h"
#include "ckpt/base/rank.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct pd_pulse *pulses; /* (pulse_count) set before there are threads */
static uint32_t pulse_count;
static _Thread_local bool trains;

bool pd_pulse_open(uint32_t ranks, int *ret_fd)
{
    const size_t bytes = ranks * sizeof *pulses;
    const int fd = pd_memory_file("perdure-pulse");
    void *mapped = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0) mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
        if (fd >= 0) close(fd);
        return false;
    }
    pulses = mapped;
    pulse_count = ranks;
    *ret_fd = fd;
    return true;
}

bool pd_pulse_copy(struct pd_pulse *ret_copy)
{
    if (pulse_count != 1) return false;
    atomic_fetch_add(&pulses[0].beats, 1);
    memcpy((void *)ret_copy, (const void *)pulses, sizeof *pulses);
    return true;
}

const struct pd_pulse *pd_pulse_map(int process, int fd, uint32_t ranks)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, fd);
    const int opened = open(path, O_RDONLY | O_CLOEXEC);
    if (opened < 0) return NULL;
    void *mapped = mmap(NULL, ranks * sizeof *pulses, PROT_READ, MAP_SHARED, opened, 0);
    close(opened);
    return mapped == MAP_FAILED ? NULL : mapped;
}

void pd_pulse_unmap(const struct pd_pulse *mapped, uint32_t ranks)
{
    if (mapped) munmap((void *)(uintptr_t)mapped, ranks * sizeof *mapped);
}

/* Processes that are one rank have one pulse. NULL: nobody looks, or this thread is no rank's. */
static struct pd_pulse *mine(void)
{
    const int rank = pd_rank_current();
    if (pulse_count == 1) return &pulses[0];
    return rank >= 0 && (uint32_t)rank < pulse_count ? &pulses[rank] : NULL;
}

#define SET(MEMBER, VALUE) atomic_store_explicit(&p->MEMBER, (VALUE), memory_order_relaxed)
#define GET(MEMBER) atomic_load_explicit(&p->MEMBER, memory_order_relaxed)
#define COUNT(MEMBER) atomic_fetch_add_explicit(&p->MEMBER, 1, memory_order_relaxed)

void pd_pulse_step(uint64_t step)
{
    struct pd_pulse *p = mine();
    if (!p) return;
    SET(step, step);
    trains = true;
    pd_pulse_enter(PD_PULSE_COMPUTING);
    SET(step_ns, GET(entered_ns));
    COUNT(steps);
    SET(micro_batch, 0);
    SET(block, 0);
    COUNT(done);
}

void pd_pulse_micro_batch(uint32_t micro_batch)
{
    struct pd_pulse *p = mine();
    if (p) SET(micro_batch, micro_batch);
}

void pd_pulse_block(uint32_t block)
{
    struct pd_pulse *p = mine();
    if (!p) return;
    SET(block, block);
    COUNT(done);
}

enum pd_pulse_place pd_pulse_enter(enum pd_pulse_place place)
{
    struct pd_pulse *p = trains ? mine() : NULL;
    if (!p) return place;
    const uint64_t now_ns = pd_clock_monotonic_ns(NULL);
    const uint32_t before = GET(place);
    if (GET(entered_ns)) SET(place_ns[before], GET(place_ns[before]) + now_ns - GET(entered_ns));
    SET(place, place);
    SET(entered_ns, now_ns);
    return before;
}

void pd_pulse_spent(uint64_t ret_ns[PD_PULSE_PLACES])
{
    const struct pd_pulse *p = mine();
    for (uint32_t i = 0; i < PD_PULSE_PLACES; i++)
        ret_ns[i] = p ? GET(place_ns[i]) : 0;
}

void pd_pulse_exchange_begin(const char *operation)
{
    struct pd_pulse *p = mine();
    uint64_t words[PD_PULSE_WORDS] = {0};
    if (!p) return;
    memcpy(words, operation, strnlen(operation, sizeof words - 1));
    for (uint32_t i = 0; i < PD_PULSE_WORDS; i++)
        SET(operation[i], words[i]);
    COUNT(exchange);
    COUNT(exchanges);
}

void pd_pulse_storage(const char *dir)
{
    struct pd_pulse *p = mine();
    uint64_t words[PD_PULSE_STORAGE_WORDS] = {0};
    const size_t length = strlen(dir), most = sizeof words - 1;
    if (!p) return;
    memcpy(words, length > most ? dir + length - most : dir, length > most ? most : length);
    for (uint32_t i = 0; i < PD_PULSE_STORAGE_WORDS; i++)
        SET(storage[i], words[i]);
}

void pd_pulse_waits_for(uint32_t rank)
{
    struct pd_pulse *p = mine();
    if (p) SET(waits_for, rank + 1);
}

void pd_pulse_exchange_end(void)
{
    struct pd_pulse *p = mine();
    if (!p) return;
    SET(waits_for, 0);
    atomic_fetch_sub_explicit(&p->exchanges, 1, memory_order_relaxed);
    COUNT(done);
}

void pd_pulse_hold(void)
{
    for (uint32_t i = 0; i < pulse_count; i++)
        atomic_store(&pulses[i].is_held, 1);
}
