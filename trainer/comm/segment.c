#include "trainer/comm/segment.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/file_limit.h"
#include "ckpt/base/memory_file.h"
#include "trainer/comm/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SEGMENT_MAGIC UINT64_C(0x7064636f6d6d3031)

/* Slots are ranks of one host, so these products cannot overflow. All except mailboxes, in whole pages per slot. */
static uint64_t table_bytes(const struct pd_segment_shape *shape)
{
    uint64_t row = PD_CACHE_LINE + sizeof(struct pd_member) + shape->slots * shape->pair_bytes;
    return pd_round_up(row, 4096);
}

uint64_t pd_segment_share_bytes(const struct pd_segment_shape *shape)
{
    return table_bytes(shape) + shape->mailbox_bytes;
}

static uint64_t segment_bytes(const struct pd_segment_shape *shape)
{
    return shape->slots * pd_segment_share_bytes(shape);
}

static pd_status segment_new(uint8_t *base, const struct pd_segment_shape *shape, struct pd_segment **ret_segment,
                             struct pd_error *err)
{
    struct pd_segment *segment = calloc(1, sizeof *segment);
    int *watches = malloc(shape->slots * sizeof *watches);
    if (!segment || !watches) {
        free(segment);
        free(watches);
        PD_FAIL(err, PD_NO_MEMORY, "communication of %u ranks", shape->slots);
    }
    for (uint32_t s = 0; s < shape->slots; s++)
        watches[s] = -1;
    segment->shape = *shape;
    segment->head = (struct pd_segment_head *)base;
    segment->members = (struct pd_member *)(base + PD_CACHE_LINE);
    segment->pairs = (uint8_t *)(segment->members + shape->slots);
    segment->mailboxes = base + shape->slots * table_bytes(shape);
    segment->descriptor = -1;
    segment->watches = watches;
    *ret_segment = segment;
    return PD_OK;
}

static pd_status map_processes(uint64_t bytes, int *ret_descriptor, uint8_t **ret_base, struct pd_error *err)
{
    PD_TRY(pd_file_limit_check("memory shared between the ranks of a host", bytes, err)); /* SIGXFSZ explains nothing */
    int fd = pd_memory_file("perdure-comm");
    if (fd < 0) PD_FAIL_ERRNO(err, errno, "memory shared between the ranks of this host");
    /* Allocate now: a missing page must be an error here, not a SIGBUS in the middle of a step. */
    if (ftruncate(fd, (off_t)bytes) || fallocate(fd, 0, 0, (off_t)bytes)) {
        int number = errno;
        close(fd);
        PD_FAIL_ERRNO(err, number, "%llu MiB of memory shared between the ranks of this host",
                      (unsigned long long)bytes >> 20);
    }
    uint8_t *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        int number = errno;
        close(fd);
        PD_FAIL_ERRNO(err, number, "mapping %llu MiB shared between the ranks of this host",
                      (unsigned long long)bytes >> 20);
    }
    *ret_descriptor = fd;
    *ret_base = base;
    return PD_OK;
}

pd_status pd_segment_make(const struct pd_segment_shape *shape, struct pd_segment_ticket *ret_ticket,
                          struct pd_segment **ret_segment, struct pd_error *err)
{
    uint64_t bytes = segment_bytes(shape);
    int descriptor = -1;
    uint8_t *base = NULL;
    if (shape->is_processes)
        PD_TRY(map_processes(bytes, &descriptor, &base, err));
    else /* pipes touch pages one by one over hundreds of messages: memory would seem to grow */
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (base == MAP_FAILED) PD_FAIL_ERRNO(err, errno, "mapping %llu bytes for communication", (unsigned long long)bytes);
    struct pd_segment *segment = NULL;
    pd_status st = segment_new(base, shape, &segment, err);
    if (st) {
        munmap(base, bytes);
        if (descriptor >= 0) close(descriptor);
        return st;
    }
    segment->descriptor = descriptor;
    segment->head->magic = SEGMENT_MAGIC;
    segment->head->bytes = bytes;
    segment->head->slots = shape->slots;
    atomic_store(&segment->head->users, 1);
    *ret_ticket = (struct pd_segment_ticket){
        .address = (uint64_t)(uintptr_t)base, .process = (int32_t)getpid(), .descriptor = descriptor, .made = 1};
    *ret_segment = segment;
    return PD_OK;
}

static pd_status attach_processes(const struct pd_segment_ticket *ticket, uint64_t bytes, uint8_t **ret_base,
                                  struct pd_error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ticket->process, ticket->descriptor);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) PD_FAIL_ERRNO(err, errno, "memory shared between the ranks of this host: %s", path);
    uint8_t *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int number = errno;
    close(fd);
    if (base == MAP_FAILED) PD_FAIL_ERRNO(err, number, "mapping the shared memory %s", path);
    *ret_base = base;
    return PD_OK;
}

pd_status pd_segment_attach(const struct pd_segment_ticket *ticket, const struct pd_segment_shape *shape,
                            struct pd_segment **ret_segment, struct pd_error *err)
{
    if (!ticket->made) PD_FAIL(err, PD_PEER_LOST, "the rank that makes the shared memory could not make it");
    uint64_t bytes = segment_bytes(shape);
    uint8_t *base = (uint8_t *)(uintptr_t)ticket->address;
    if (shape->is_processes) PD_TRY(attach_processes(ticket, bytes, &base, err));
    const struct pd_segment_head *head = (const struct pd_segment_head *)base;
    PD_CHECK(head->magic == SEGMENT_MAGIC && head->bytes == bytes && head->slots == shape->slots);
    struct pd_segment *segment = NULL;
    pd_status st = segment_new(base, shape, &segment, err);
    if (st) {
        if (shape->is_processes) munmap(base, bytes);
        return st;
    }
    if (!shape->is_processes) atomic_fetch_add(&segment->head->users, 1);
    *ret_segment = segment;
    return PD_OK;
}

void pd_segment_close_ticket(struct pd_segment *segment)
{
    if (segment->descriptor >= 0) close(segment->descriptor);
    segment->descriptor = -1;
}

void pd_segment_free(struct pd_segment *segment)
{
    if (!segment) return;
    pd_segment_close_ticket(segment);
    for (uint32_t s = 0; s < segment->shape.slots; s++)
        if (segment->watches[s] >= 0) close(segment->watches[s]);
    if (segment->shape.is_processes || atomic_fetch_sub(&segment->head->users, 1) == 1)
        munmap(segment->head, segment_bytes(&segment->shape));
    free(segment->watches);
    free(segment);
}

void pd_segment_enter(struct pd_segment *segment, uint32_t slot)
{
    atomic_store(&segment->members[slot].process, (int32_t)getpid());
}

void pd_segment_watch(struct pd_segment *segment, uint32_t own_slot)
{
    if (!segment->shape.is_processes) return;
    for (uint32_t s = 0; s < segment->shape.slots; s++)
        if (s != own_slot) segment->watches[s] = (int)syscall(SYS_pidfd_open, atomic_load(&segment->members[s].process), 0);
}

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

void pd_segment_ring(struct pd_segment *segment, uint32_t slot)
{
    struct pd_member *member = &segment->members[slot];
    atomic_fetch_add(&member->bell, 1);
    if (atomic_load(&member->sleeping))
        futex(&member->bell, segment->shape.is_processes ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, NULL);
}

void pd_segment_sleep(struct pd_segment *segment, uint32_t slot, uint32_t seen, uint64_t timeout_ns)
{
    struct pd_member *member = &segment->members[slot];
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000), .tv_nsec = (long)(timeout_ns % 1000000000)};
    atomic_store(&member->sleeping, 1);
    if (atomic_load(&member->bell) == seen)
        futex(&member->bell, segment->shape.is_processes ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, seen, &timeout);
    atomic_store(&member->sleeping, 0);
}

static bool has_ended(const struct pd_segment *segment, uint32_t slot)
{
    if (segment->watches[slot] >= 0) {
        struct pollfd poll_one = {.fd = segment->watches[slot], .events = POLLIN};
        return poll(&poll_one, 1, 0) > 0;
    }
    /* Kernels before 5.3 and some containers have no pidfd. */
    int32_t process = atomic_load(&segment->members[slot].process);
    return process > 0 && kill(process, 0) != 0 && errno == ESRCH;
}

void pd_segment_look(struct pd_segment *segment)
{
    if (!segment->shape.is_processes) return;
    for (uint32_t s = 0; s < segment->shape.slots; s++)
        if (atomic_load(&segment->members[s].state) == PD_MEMBER_ALIVE && has_ended(segment, s))
            pd_segment_depart(segment, s, PD_MEMBER_DEAD, PD_NOBODY);
}

bool pd_segment_has_lost(const struct pd_segment *segment, uint32_t own_slot)
{
    for (uint32_t s = 0; segment->shape.is_processes && s < segment->shape.slots; s++)
        if (s != own_slot && has_ended(segment, s)) return true;
    return false;
}

void pd_segment_depart(struct pd_segment *segment, uint32_t slot, enum pd_member_state state, uint32_t blamed_rank)
{
    struct pd_member *member = &segment->members[slot];
    uint32_t alive = PD_MEMBER_ALIVE;
    if (atomic_load(&member->state) == PD_MEMBER_ALIVE) atomic_store(&member->blamed, blamed_rank + 1);
    atomic_compare_exchange_strong(&member->state, &alive, (uint32_t)state);
    for (uint32_t s = 0; s < segment->shape.slots; s++)
        pd_segment_ring(segment, s);
}
