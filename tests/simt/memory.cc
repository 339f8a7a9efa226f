/* Memory of the machine: a map of what was given out, protections, and what the driver would count.
 *
 *   invariant  outside of a turn no page of device memory can be touched; in one a page opens, with its neighbours, when
 *              an operation that may touch it does
 *
 * Counted when it is asked for and given back, not when a stream comes by: that is when the driver decides. */
#define SIMT_RUNTIME
#include "tests/simt/machine.h"

#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define MARGIN_BYTES 64u /* after an allocation: nobody's */
#else
#define MARGIN_BYTES 0u
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

#define PAGE_BYTES 4096u
#define COUNTED_BYTES 512u /* the driver's grain */
#define GRAVES 256u        /* addresses that were freed and are still known */
#define PART_BYTES (uintptr_t{256} << 10)
#define PARTS_MAX 256u

namespace
{

struct part {
    uintptr_t begin, end;
};

struct memory {
    std::recursive_mutex lock;
    std::map<uintptr_t, simt_region> regions;
    std::deque<uintptr_t> graves;
    size_t taken[SIMT_GPUS_MAX];
    unsigned turns, may_open; /* a bit a GPU */
    part parts[PARTS_MAX];    /* that are open */
    unsigned part_count;
    bool watched;
    struct sigaction before;
};

memory &all()
{
    static memory &m = *new memory(); /* threads may outlive main */
    return m;
}

thread_local const char *carried_out;

uintptr_t address(const void *p)
{
    return reinterpret_cast<uintptr_t>(p);
}

size_t rounded(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

void close_parts()
{
    for (unsigned i = 0; i < all().part_count; i++) {
        const part &p = all().parts[i];
        if (mprotect(reinterpret_cast<void *>(p.begin), p.end - p.begin, PROT_NONE)) abort();
    }
    all().part_count = 0;
}

/* In a handler of signals, for what is carried out: it holds the lock, and is not in the map. */
bool open_part(uintptr_t at)
{
    memory &m = all();
    auto next = m.regions.upper_bound(at);
    if (!carried_out || next == m.regions.begin()) return false;
    --next;
    const simt_region &region = next->second;
    const uintptr_t end = next->first + region.mapped_bytes, begin_wanted = at / PART_BYTES * PART_BYTES;
    if (at >= end || region.kind != SIMT_DEVICE || region.freed || !(m.may_open >> region.gpu & 1u)) return false;
    const part p = {std::max(begin_wanted, next->first), std::min(begin_wanted + PART_BYTES, end)};
    const bool is_next = m.part_count && m.parts[m.part_count - 1].end == p.begin;
    if (m.part_count == PARTS_MAX && !is_next) close_parts();
    if (mprotect(reinterpret_cast<void *>(p.begin), p.end - p.begin, PROT_READ | PROT_WRITE)) return false;
    if (is_next)
        m.parts[m.part_count - 1].end = p.end;
    else
        m.parts[m.part_count++] = p;
    return true;
}

/* ---- who touched it ---- */

const char *kind_name(simt_kind kind)
{
    static const char *const names[] = {"memory", "device memory", "pinned memory", "registered memory"};
    return names[kind];
}

void tell(const char *text)
{
    const ssize_t written = write(STDERR_FILENO, text, strlen(text));
    (void)written;
}

void tell_touch(const void *at)
{
    char line[512];
    uintptr_t base;
    simt_region region;
    if (!simt_memory_find(at, &base, &region) || (region.kind != SIMT_DEVICE && !region.freed)) return;
    snprintf(line, sizeof line, "simulated GPU %u: %s%s touches byte %zu of %zu bytes of %s%s at %p; %s\n", region.gpu,
             carried_out ? carried_out : "the host", region.freed ? ", too late," : "",
             static_cast<size_t>(address(at) - base), region.bytes, kind_name(region.kind),
             region.freed ? " that was freed" : "", at,
             region.freed  ? "free it when its streams have passed"
             : carried_out ? "it is another GPU's"
                           : "copy it on a stream, and wait");
    tell(line);
    if (carried_out) return;
    void *frames[32];
    backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
}

void on_fault(int number, siginfo_t *info, void *context)
{
    if (open_part(address(info->si_addr))) return;
    tell_touch(info->si_addr);
    struct sigaction &before = all().before;
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
        return;
    }
    struct sigaction plain = {};
    plain.sa_handler = SIG_DFL;
    sigaction(number, &plain, nullptr); /* touched again, with the default's end */
}

void watch()
{
    if (all().watched) return;
    all().watched = true;
    void *frames[1];
    backtrace(frames, 1); /* loads what it needs, outside of a signal */
    struct sigaction mine = {};
    mine.sa_sigaction = on_fault;
    mine.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &mine, &all().before);
}

void bury(uintptr_t base, simt_region &region)
{
    close_parts();
    region.freed = true;
    void *at = reinterpret_cast<void *>(base);
    ASAN_UNPOISON_MEMORY_REGION(at, region.mapped_bytes);
    if (mmap(at, region.mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != at)
        abort();
    all().graves.push_back(base);
    if (all().graves.size() <= GRAVES) return;
    const uintptr_t oldest = all().graves.front();
    all().graves.pop_front();
    munmap(reinterpret_cast<void *>(oldest), all().regions[oldest].mapped_bytes);
    all().regions.erase(oldest);
}

bool account_for(simt_kind kind, unsigned gpu, size_t bytes)
{
    if (kind != SIMT_DEVICE) return true;
    const size_t wanted = rounded(bytes, COUNTED_BYTES);
    if (wanted > simt_memory_free_bytes(gpu)) return false;
    all().taken[gpu] += wanted;
    return true;
}

void count(simt_kind kind, size_t bytes, bool comes)
{
    simt_counts &c = simt_counted();
    uint64_t &now = kind == SIMT_DEVICE ? c.device_bytes : c.locked_bytes;
    uint64_t &max = kind == SIMT_DEVICE ? c.device_bytes_max : c.locked_bytes_max;
    now = comes ? now + bytes : now - bytes;
    if (now > max) max = now;
}

} // namespace

/* Threads that leave signals to others block this one too, and would end without a line. */
static void hear_of_faults()
{
    thread_local bool does;
    if (does) return;
    does = true;
    sigset_t faults;
    sigemptyset(&faults);
    sigaddset(&faults, SIGSEGV);
    pthread_sigmask(SIG_UNBLOCK, &faults, nullptr);
}

simt_turn::simt_turn()
{
    int device = 0;
    hear_of_faults();
    all().lock.lock();
    all().turns++;
    (void)cudaGetDevice(&device);
    simt_counted().contexts |= 1u << device;
}

simt_turn::~simt_turn()
{
    if (--all().turns == 0) {
        close_parts();
        all().may_open = 0;
        carried_out = nullptr;
    }
    all().lock.unlock();
}

void simt_open_memory(unsigned gpus, const char *what)
{
    carried_out = what;
    if (all().may_open & ~gpus) close_parts();
    all().may_open = gpus;
}

bool simt_memory_find(const void *at, uintptr_t *ret_base, simt_region *ret_region)
{
    auto next = all().regions.upper_bound(address(at));
    if (next == all().regions.begin()) return false;
    --next;
    if (address(at) - next->first >= next->second.bytes) return false;
    *ret_base = next->first;
    *ret_region = next->second;
    return true;
}

/* Programs, libraries, heaps and stacks lie above; below may lie the address sanitizer's shadow, where two numbers of 32
 * bits would be taken for an address. */
static const uint64_t HOSTS_FIRST = uint64_t{1} << 45;

bool simt_memory_is_hosts(uint64_t word)
{
    if (word < HOSTS_FIRST) return false;
    unsigned char there;
    const uintptr_t page = static_cast<uintptr_t>(word) / PAGE_BYTES * PAGE_BYTES;
    auto next = all().regions.upper_bound(static_cast<uintptr_t>(word));
    if (next != all().regions.begin()) {
        --next;
        if (word - next->first <= next->second.mapped_bytes) return false; /* also what is freed, and an end */
    }
    return page && mincore(reinterpret_cast<void *>(page), 1, &there) == 0;
}

size_t simt_memory_free_bytes(unsigned gpu)
{
    return simt_machine().memory_bytes - simt_machine().taken_bytes - all().taken[gpu];
}

cudaError_t simt_memory_take(simt_kind kind, unsigned gpu, size_t bytes, void **data)
{
    if (bytes == 0 || bytes > SIZE_MAX / 2) return bytes ? cudaErrorMemoryAllocation : cudaErrorInvalidValue;
    if (!account_for(kind, gpu, bytes)) return cudaErrorMemoryAllocation;
    const size_t mapped = rounded(bytes + MARGIN_BYTES, PAGE_BYTES);
    void *at = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return cudaErrorMemoryAllocation;
    memset(at, 0xff, mapped);
    ASAN_POISON_MEMORY_REGION(static_cast<char *>(at) + bytes, mapped - bytes);
    all().regions[address(at)] = {bytes, mapped, kind, gpu, false};
    count(kind, bytes, true);
    if (kind == SIMT_DEVICE) {
        watch();
        if (mprotect(at, mapped, PROT_NONE)) abort();
    }
    *data = at;
    return cudaSuccess;
}

/* Pages are what is locked. */
cudaError_t simt_memory_register(void *data, size_t bytes)
{
    if (!data || !bytes) return cudaErrorInvalidValue;
    const uintptr_t begin = address(data) / PAGE_BYTES * PAGE_BYTES, end = rounded(address(data) + bytes, PAGE_BYTES);
    auto next = all().regions.lower_bound(end);
    if (next != all().regions.begin()) {
        --next;
        if (!next->second.freed && rounded(next->first + next->second.bytes, PAGE_BYTES) > begin)
            return cudaErrorHostMemoryAlreadyRegistered;
    }
    all().regions[address(data)] = {bytes, bytes, SIMT_REGISTERED, 0, false};
    count(SIMT_REGISTERED, bytes, true);
    return cudaSuccess;
}

cudaError_t simt_memory_check(const void *data, simt_kind kind)
{
    const auto found = all().regions.find(address(data));
    if (found == all().regions.end() || found->second.freed) return cudaErrorInvalidValue;
    return found->second.kind == kind ? cudaSuccess : cudaErrorInvalidValue;
}

void simt_memory_uncount(const void *data)
{
    const simt_region &region = all().regions[address(data)];
    all().taken[region.gpu] -= rounded(region.bytes, COUNTED_BYTES);
}

void simt_memory_drop(void *data)
{
    const auto found = all().regions.find(address(data));
    count(found->second.kind, found->second.bytes, false);
    if (found->second.kind == SIMT_REGISTERED)
        all().regions.erase(found);
    else
        bury(found->first, found->second);
}
