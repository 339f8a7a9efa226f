#include "tests/crash/launch/world.h"
#include "trainer/math/math_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct world w;

/* ---- what is known of steps ---- */

uint64_t world_roll(uint64_t below)
{
    return turns_roll(&w.dice, below);
}

void world_mark(uint64_t what)
{
    w.trace = cluster_mix(w.trace ^ what);
}

bool world_is_up(uint32_t host)
{
    return w.machines[host].back_ns <= w.now_ns;
}

uint32_t world_hosts_here(void)
{
    uint32_t here = 0;
    for (uint32_t r = 0; r < w.ranks; r++)
        here |= 1u << w.processes[r].host;
    return here;
}

static bool is_whole(const struct record *r, uint32_t hosts)
{
    bool is = r->step > 0;
    for (uint32_t s = 0; s < r->shards; s++)
        is = is && (r->holders[s] & hosts);
    return r->step && (is || r->is_shared);
}

uint64_t world_newest_whole(uint32_t hosts)
{
    uint64_t newest = 0;
    for (uint32_t i = 0; i < RECORDS; i++)
        if (is_whole(&w.records[i], hosts) && w.records[i].step > newest) newest = w.records[i].step;
    return newest;
}

/* Every shard on two hosts of those. */
static bool is_copied(const struct record *r, uint32_t hosts)
{
    bool is = r->step > 0;
    for (uint32_t s = 0; s < r->shards; s++)
        is = is && __builtin_popcount(r->holders[s] & hosts) > 1;
    return is;
}

static void take_top(uint64_t top[2], uint64_t step)
{
    if (step > top[0]) {
        top[1] = top[0];
        top[0] = step;
    } else if (step > top[1]) {
        top[1] = step;
    }
}

/* What retention leaves when a step is committed: a tier has the two newest of its own. */
void world_forget_pruned(void)
{
    uint64_t newest[2] = {0, 0}, shared[2] = {0, 0};
    for (uint32_t i = 0; i < RECORDS; i++) {
        take_top(newest, w.records[i].step);
        if (w.records[i].is_shared) take_top(shared, w.records[i].step);
    }
    for (uint32_t i = 0; i < RECORDS; i++) {
        struct record *r = &w.records[i];
        r->is_shared &= r->step >= shared[1];
        if (r->step < newest[1] && r->step != w.pinned) memset(r->holders, 0, sizeof r->holders);
    }
}

void world_begin_future(uint64_t from)
{
    w.pinned = 0;
    for (uint32_t i = 0; i < RECORDS; i++) {
        if (w.records[i].step > from) w.records[i].step = 0;
        if (is_copied(&w.records[i], world_hosts_here()) && w.records[i].step > w.pinned) w.pinned = w.records[i].step;
    }
    w.kept = w.kept < from ? w.kept : from;
}

/* ---- what ranks report ---- */

void world_say(enum pd_message_kind kind, uint32_t rank, const void *data, uint32_t bytes)
{
    const struct pd_message m = {.kind = kind, .rank = rank, .data = data, .bytes = bytes};
    if (!pd_rank_table_take(w.said, &m)) WRONG("the launcher does not take message %d of rank %u", kind, rank);
}

void world_say_gpu(const struct process *p, const char *identity)
{
    struct pd_lost_gpu lost = {.is_spare = pd_rank_device_is_spare(&p->device, p->ranks_here, w.start->left_out)};
    snprintf(lost.identity, sizeof lost.identity, "%s", identity);
    world_say(PD_MESSAGE_GPU, p->rank, &lost, sizeof lost);
}

void world_say_ended(const struct process *p)
{
    struct pd_ended ended = {.status = p->status, .missed = PD_MESSAGE_NOBODY};
    snprintf(ended.message, sizeof ended.message, "%s", p->error.message);
    world_say(PD_MESSAGE_ENDED, p->rank, &ended, sizeof ended);
}

/* ---- what stands for the world around the launcher ---- */

__typeof__(pd_clock_monotonic_ns) __real_pd_clock_monotonic_ns;
__typeof__(pd_clock_monotonic_ns) __wrap_pd_clock_monotonic_ns;
__typeof__(pd_clock_sleep_ns) __wrap_pd_clock_sleep_ns;
__typeof__(pd_launch_requests_poll) __wrap_pd_launch_requests_poll;
__typeof__(getentropy) __wrap_getentropy;
__typeof__(pd_starter_choose) __wrap_pd_starter_choose;
__typeof__(pd_launch_look_begin) __wrap_pd_launch_look_begin;
__typeof__(pd_launch_look_poll) __wrap_pd_launch_look_poll;
__typeof__(pd_launch_look_end) __wrap_pd_launch_look_end;
__typeof__(pd_launch_look_cancel) __wrap_pd_launch_look_cancel;
__typeof__(pd_dev_cuda_count) __wrap_pd_dev_cuda_count;
__typeof__(pd_dev_cuda_identity) __wrap_pd_dev_cuda_identity;
__typeof__(pd_dev_open_cuda) __wrap_pd_dev_open_cuda;
__typeof__(pd_math_cuda_load) __wrap_pd_math_cuda_load;

uint64_t __wrap_pd_clock_monotonic_ns(const struct pd_clock *clock)
{
    return clock ? __real_pd_clock_monotonic_ns(clock) : w.now_ns;
}

void __wrap_pd_clock_sleep_ns(uint64_t ns)
{
    w.now_ns += ns;
}

void __wrap_pd_launch_requests_poll(struct pd_launch_requests *requests, int timeout_ms)
{
    (void)requests;
    w.now_ns += (uint64_t)timeout_ms * 1000000;
}

int __wrap_getentropy(void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ((unsigned char *)bytes)[i] = (unsigned char)turns_roll(&w.entropy, 256);
    return 0;
}

pd_status __wrap_pd_starter_choose(enum pd_transport asked, uint32_t ranks, enum pd_transport *ret, struct pd_error *err)
{
    (void)asked, (void)ranks, (void)err;
    *ret = PD_TRANSPORT_MPI;
    return PD_OK;
}

pd_status __wrap_pd_launch_look_begin(const char *source, const char *agent, uint32_t slots, uint32_t patience,
                                      struct pd_launch_look *look, struct pd_error *err)
{
    (void)source, (void)agent, (void)slots, (void)patience, (void)err;
    look->process = 1;
    return PD_OK;
}

bool __wrap_pd_launch_look_poll(struct pd_launch_look *look, int timeout_ms)
{
    w.now_ns += (uint64_t)timeout_ms * 1000000;
    return look->process || timeout_ms;
}

pd_status __wrap_pd_launch_look_end(struct pd_launch_look *look, struct pd_launch_host_seen **ret_hosts, uint32_t *ret_count,
                                    struct pd_error *err)
{
    struct pd_launch_host_seen *seen = calloc(w.hosts, sizeof *seen);
    if (!seen) PD_FAIL(err, PD_NO_MEMORY, "hosts");
    for (uint32_t h = 0; h < w.hosts; h++) {
        snprintf(seen[h].name, sizeof seen[h].name, "h%u", h);
        seen[h].slots = w.slots;
        seen[h].answers = world_is_up(h);
    }
    look->process = 0;
    *ret_hosts = seen;
    *ret_count = w.hosts;
    return PD_OK;
}

void __wrap_pd_launch_look_cancel(struct pd_launch_look *look)
{
    look->process = 0;
}

uint32_t __wrap_pd_dev_cuda_count(void)
{
    return w.machines[w.asked_host].devices;
}

void __wrap_pd_dev_cuda_identity(uint32_t index, char ret_identity[33])
{
    snprintf(ret_identity, 33, "h%u-d%u", w.asked_host, index);
}

pd_status __wrap_pd_math_cuda_load(struct pd_error *err)
{
    (void)err;
    return PD_OK;
}

pd_status __wrap_pd_dev_open_cuda(uint32_t index, struct pd_dev **ret_dev, struct pd_error *err)
{
    PD_TRY(pd_dev_open_cpu(ret_dev, err));
    (*ret_dev)->index = index;
    return PD_OK;
}
