#include "ckpt/base/heartbeat.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/memory_file.h"
#include "ckpt/base/rank.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct pd_heartbeat *heartbeats; /* (heartbeat_count) set before there are threads */
static uint32_t heartbeat_count;
static _Thread_local bool trains;

bool pd_heartbeat_open(uint32_t ranks, int *ret_fd)
{
    const size_t bytes = ranks * sizeof *heartbeats;
    const int fd = pd_memory_file("perdure-heartbeat");
    void *mapped = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0) mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
        if (fd >= 0) close(fd);
        return false;
    }
    heartbeats = mapped;
    heartbeat_count = ranks;
    *ret_fd = fd;
    return true;
}

const struct pd_heartbeat *pd_heartbeat_map(int process, int fd, uint32_t ranks)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, fd);
    const int opened = open(path, O_RDONLY | O_CLOEXEC);
    if (opened < 0) return NULL;
    void *mapped = mmap(NULL, ranks * sizeof *heartbeats, PROT_READ, MAP_SHARED, opened, 0);
    close(opened);
    return mapped == MAP_FAILED ? NULL : mapped;
}

void pd_heartbeat_unmap(const struct pd_heartbeat *mapped, uint32_t ranks)
{
    if (mapped) munmap((void *)(uintptr_t)mapped, ranks * sizeof *mapped);
}

/* A process that is one rank has one heartbeat. NULL: no watcher, or this thread belongs to no rank. */
static struct pd_heartbeat *mine(void)
{
    const int rank = pd_rank_current();
    if (heartbeat_count == 1) return &heartbeats[0];
    return rank >= 0 && (uint32_t)rank < heartbeat_count ? &heartbeats[rank] : NULL;
}

#define SET(MEMBER, VALUE) atomic_store_explicit(&p->MEMBER, (VALUE), memory_order_relaxed)
#define GET(MEMBER) atomic_load_explicit(&p->MEMBER, memory_order_relaxed)
#define COUNT(MEMBER) atomic_fetch_add_explicit(&p->MEMBER, 1, memory_order_relaxed)

void pd_heartbeat_step(uint64_t step)
{
    struct pd_heartbeat *p = mine();
    if (!p) return;
    SET(step, step);
    trains = true;
    pd_heartbeat_enter(PD_HEARTBEAT_COMPUTING);
    SET(step_ns, GET(entered_ns));
    COUNT(steps);
    SET(micro_batch, 0);
    SET(block, 0);
    COUNT(done);
}

void pd_heartbeat_micro_batch(uint32_t micro_batch)
{
    struct pd_heartbeat *p = mine();
    if (p) SET(micro_batch, micro_batch);
}

void pd_heartbeat_block(uint32_t block)
{
    struct pd_heartbeat *p = mine();
    if (!p) return;
    SET(block, block);
    COUNT(done);
}

void pd_heartbeat_done(void)
{
    struct pd_heartbeat *p = mine();
    if (p) COUNT(done);
}

enum pd_heartbeat_place pd_heartbeat_enter(enum pd_heartbeat_place place)
{
    struct pd_heartbeat *p = trains ? mine() : NULL;
    if (!p) return place;
    const uint64_t now_ns = pd_clock_monotonic_ns(NULL);
    const uint32_t before = GET(place);
    if (GET(entered_ns)) SET(place_ns[before], GET(place_ns[before]) + now_ns - GET(entered_ns));
    SET(place, place);
    SET(entered_ns, now_ns);
    return before;
}

void pd_heartbeat_spent(uint64_t ret_ns[PD_HEARTBEAT_PLACES])
{
    const struct pd_heartbeat *p = mine();
    for (uint32_t i = 0; i < PD_HEARTBEAT_PLACES; i++)
        ret_ns[i] = p ? GET(place_ns[i]) : 0;
}

static void set_operation(_Atomic uint64_t stored[PD_HEARTBEAT_WORDS], const char *operation)
{
    uint64_t words[PD_HEARTBEAT_WORDS] = {0};
    memcpy(words, operation, strnlen(operation, sizeof words - 1));
    for (uint32_t i = 0; i < PD_HEARTBEAT_WORDS; i++)
        atomic_store_explicit(&stored[i], words[i], memory_order_relaxed);
}

void pd_heartbeat_exchange_begin(const char *operation)
{
    struct pd_heartbeat *p = mine();
    if (!p) return;
    set_operation(p->operation, operation);
    COUNT(exchange);
    COUNT(exchanges);
}

enum pd_heartbeat_place pd_heartbeat_storage_begin(void)
{
    struct pd_heartbeat *p = mine();
    if (p) COUNT(storage_waits);
    const uint32_t place = p ? GET(place) : PD_HEARTBEAT_OPENING;
    const bool says_why =
        place == PD_HEARTBEAT_READING || place == PD_HEARTBEAT_SAVING || place == PD_HEARTBEAT_UPDATING_FILES;
    return says_why ? place : pd_heartbeat_enter(PD_HEARTBEAT_STORAGE);
}

void pd_heartbeat_storage_end(enum pd_heartbeat_place before)
{
    struct pd_heartbeat *p = mine();
    if (p) atomic_fetch_sub_explicit(&p->storage_waits, 1, memory_order_relaxed);
    if (p) COUNT(storage_done);
    pd_heartbeat_enter(before);
}

void pd_heartbeat_tier(const char *dir)
{
    struct pd_heartbeat *p = mine();
    uint64_t words[PD_HEARTBEAT_STORAGE_WORDS] = {0};
    const size_t length = strlen(dir), most = sizeof words - 1;
    if (!p) return;
    memcpy(words, length > most ? dir + length - most : dir, length > most ? most : length);
    for (uint32_t i = 0; i < PD_HEARTBEAT_STORAGE_WORDS; i++)
        SET(storage[i], words[i]);
}

void pd_heartbeat_waits_for(uint32_t rank)
{
    struct pd_heartbeat *p = mine();
    if (p) SET(waits_for, rank + 1);
}

void pd_heartbeat_exchange_end(void)
{
    struct pd_heartbeat *p = mine();
    if (!p) return;
    SET(waits_for, 0);
    atomic_fetch_sub_explicit(&p->exchanges, 1, memory_order_relaxed);
    COUNT(done);
}

/* The row of a communicator, or an unused one for communicator 0. */
static struct pd_heartbeat_flights *flights_of(struct pd_heartbeat *beat, uint64_t communicator)
{
    for (uint32_t i = 0; beat && i < PD_HEARTBEAT_COMMUNICATORS; i++)
        if (atomic_load(&beat->flights[i].communicator) == communicator) return &beat->flights[i];
    return NULL;
}

void pd_heartbeat_flight(uint64_t communicator, const char *operation, uint64_t reached, uint64_t ended)
{
    struct pd_heartbeat *beat = mine();
    struct pd_heartbeat_flights *p = flights_of(beat, communicator);
    if (!p && !(p = flights_of(beat, 0))) return;
    if (ended > GET(ended)) atomic_fetch_add_explicit(&beat->done, ended - GET(ended), memory_order_relaxed);
    if (reached > GET(reached)) set_operation(p->operation, operation);
    SET(reached, reached);
    SET(ended, ended);
    SET(communicator, communicator);
}

void pd_heartbeat_flights_end(uint64_t communicator)
{
    struct pd_heartbeat_flights *p = flights_of(mine(), communicator);
    if (!p) return;
    SET(communicator, 0);
    SET(reached, 0);
    SET(ended, 0);
}

void pd_heartbeat_hold(void)
{
    for (uint32_t i = 0; i < heartbeat_count; i++)
        atomic_store(&heartbeats[i].is_held, 1);
}

void pd_heartbeat_ended_by_parent(void)
{
    for (uint32_t i = 0; i < heartbeat_count; i++)
        atomic_store(&heartbeats[i].is_ended_by_parent, 1);
}
