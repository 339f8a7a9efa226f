/* Streams and events of the machine.
 *
 *   asked -> queued -> carried out, in the order of its queue
 *
 *   invariant  `done` of a queue only grows, and operation number n of it was carried out when it is at least n
 *              a wait for another queue looks at operations that were there when it was asked for, so nothing waits in a
 *              ring
 *   attempts   what an exchange between GPUs does is tried, and may have to be tried again: its peer has not come yet. A
 *              queue stays before it meanwhile. Whoever waits carries out other GPUs' attempts too, and leaves the lock to
 *              threads that have to ask for them; a thread that waits for nothing leaves them alone, as late as others */
#define SIMT_RUNTIME
#include "tests/simt/machine.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace
{

struct queue;

struct mark {
    bool passed;
    uint64_t passed_ns;
};

/* Work, or an attempt at work, or the passing of a mark, or a wait for `until` operations of another queue. */
struct operation {
    const char *what;
    unsigned touches;
    std::function<void()> work;
    std::shared_ptr<mark> passes;
    std::shared_ptr<queue> other;
    uint64_t until;
    std::function<bool()> attempt = nullptr; /* whether it happened */
};

struct queue {
    unsigned gpu;
    uint64_t asked, done;
    std::deque<operation> waiting;
    bool is_used; /* it was given work */
};

struct loss {
    bool is_lost;
    std::string why;
};

struct world {
    std::set<const CUstream_st *> streams;
    std::set<const CUevent_st *> events;
    loss losses[SIMT_GPUS_MAX];
    uint64_t operations, random;
    unsigned carrying; /* for this GPU, while something is carried out */
};

world &all()
{
    static world &w = *new world();
    return w;
}

thread_local int current;

} // namespace

struct CUstream_st {
    std::shared_ptr<queue> q;
};

struct CUevent_st {
    unsigned gpu;
    bool is_timed;
    std::shared_ptr<queue> q; /* recorded there last, as operation `number`; NULL: nowhere */
    uint64_t number;
    std::shared_ptr<mark> last;
};

namespace
{

unsigned here()
{
    return static_cast<unsigned>(current);
}

cudaError_t state_of(unsigned gpu)
{
    if (gpu >= simt_machine().gpus) return cudaErrorNoDevice;
    return all().losses[gpu].is_lost ? cudaErrorLaunchFailure : cudaSuccess;
}

#define READY(gpu)                               \
    do {                                         \
        const cudaError_t code_ = state_of(gpu); \
        if (code_ != cudaSuccess) return code_;  \
    } while (0)
#define KNOWN(set, handle)                                                   \
    do {                                                                     \
        if (!all().set.count(handle)) return cudaErrorInvalidResourceHandle; \
    } while (0)

void lose(unsigned gpu, const std::string &why)
{
    if (!all().losses[gpu].is_lost) all().losses[gpu] = {true, why};
}

/* Whether it happened. */
bool carry_out_one(queue &q, operation &op)
{
    all().carrying = q.gpu;
    if (all().losses[q.gpu].is_lost) return true;
    simt_open_memory(op.touches, op.what);
    if (op.attempt && !op.attempt()) return false;
    const bool counts = simt_machine().fail_gpu < 0 || q.gpu == static_cast<unsigned>(simt_machine().fail_gpu);
    if (counts && ++all().operations == simt_machine().fail_at)
        lose(q.gpu, "lost at the operation that PERDURE_SIMT_FAIL names");
    else if (op.work)
        op.work();
    return true;
}

void pass(mark &m)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    m.passed = true;
    m.passed_ns = static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

/* Whether all of them have happened. */
bool carry_out(queue &q, uint64_t until)
{
    while (q.done < until) {
        operation &op = q.waiting.front();
        if (op.other) {
            if (!carry_out(*op.other, op.until)) return false;
        } else if (op.passes)
            pass(*op.passes);
        else if (!carry_out_one(q, op))
            return false;
        q.waiting.pop_front();
        q.done++;
    }
    return true;
}

/* For whoever waits for another GPU: of every stream what lies before its next attempt, and that. */
void help_others()
{
    for (const CUstream_st *stream : all().streams) {
        queue &q = *stream->q;
        uint64_t at = 0;
        while (at < q.waiting.size() && !q.waiting[at].attempt)
            at++;
        if (at < q.waiting.size()) (void)carry_out(q, q.done + at + 1);
    }
}

/* Until it has happened. Those who have yet to ask for what it waits for have the lock in between.
 *   carry_on  (): the code of the call, or NOT_YET */
const cudaError_t NOT_YET = cudaErrorNotReady;
template <typename F> cudaError_t until_done(F carry_on)
{
    const struct timespec nap = {0, 20000};
    for (;;) {
        {
            simt_turn turn;
            const cudaError_t code = carry_on();
            if (code != NOT_YET) return code;
            help_others();
        }
        nanosleep(&nap, nullptr);
    }
}

uint64_t next_random()
{
    uint64_t &x = all().random;
    if (!x) x = simt_machine().seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return x;
}

/* A GPU that goes on by itself: up to three operations, each of some stream. */
void go_on_a_little()
{
    for (uint64_t times = next_random() % 4; times > 0; times--) {
        auto chosen = all().streams.begin();
        std::advance(chosen, static_cast<long>(next_random() % all().streams.size()));
        queue &q = *(*chosen)->q;
        if (!q.waiting.empty()) (void)carry_out(q, q.done + 1);
    }
}

void add(cudaStream_t stream, operation op)
{
    queue &q = *stream->q;
    q.waiting.push_back(std::move(op));
    q.asked++;
    if (simt_machine().streams == simt_settings::NOW) (void)carry_out(q, q.asked);
    if (simt_machine().streams == simt_settings::SEEDED) go_on_a_little();
}

/* Adds the GPU whose memory it is. A range that begins in known memory ends in it. */
cudaError_t place(const void *data, size_t bytes, unsigned *touches, bool *ret_known)
{
    uintptr_t base;
    simt_region region;
    const bool known = simt_memory_find(data, &base, &region);
    *ret_known = known;
    if (!known) return cudaSuccess;
    if (region.freed || bytes > region.bytes - (reinterpret_cast<uintptr_t>(data) - base)) return cudaErrorInvalidValue;
    if (region.kind == SIMT_DEVICE) *touches |= 1u << region.gpu;
    return cudaSuccess;
}

cudaError_t append(cudaStream_t stream, operation op)
{
    if (!stream) {
        queue alone = {here(), 0, 0, {}, true}; /* also on a machine without a GPU: launches of simt.h alone */
        (void)carry_out_one(alone, op);
        return state_of(alone.gpu);
    }
    KNOWN(streams, stream);
    READY(stream->q->gpu);
    simt_counted().streams += !stream->q->is_used;
    stream->q->is_used = true;
    add(stream, std::move(op));
    return state_of(stream->q->gpu);
}

} // namespace

void simt_lose(const char *why)
{
    lose(all().carrying, why);
}

cudaError_t simt_state(void)
{
    return state_of(here());
}

cudaError_t simt_enqueue(cudaStream_t stream, const char *what, unsigned touches, std::function<void()> work)
{
    simt_turn turn;
    if (touches == SIMT_OWN_GPU && stream) {
        KNOWN(streams, stream);
        if (stream->q->gpu != here()) return cudaErrorInvalidResourceHandle;
    }
    simt_counted().kernels += touches == SIMT_OWN_GPU;
    return append(stream, {what, touches == SIMT_OWN_GPU ? 1u << here() : touches, std::move(work), nullptr, nullptr, 0});
}

cudaError_t simt_enqueue_attempt(void *stream, bool (*attempt)(void *argument), void *argument)
{
    simt_turn turn;
    const unsigned all_gpus = (1u << SIMT_GPUS_MAX) - 1;
    return append(static_cast<cudaStream_t>(stream),
                  {"an exchange", all_gpus, nullptr, nullptr, nullptr, 0, [=] { return attempt(argument); }});
}

/* ---- the runtime: streams ---- */

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* The order in which streams come by is the machine's alone (machine.h). */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
    simt_turn turn;
    READY(here());
    if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue; /* the others wait for the default stream */
    *stream = new CUstream_st{std::make_shared<queue>(queue{here(), 0, 0, {}, false})};
    all().streams.insert(*stream);
    simt_counted().streams_made++;
    return cudaSuccess;
}

/* What it was given happens some time: here, as the caller may give back the memory of it from now on. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return until_done([=] {
        KNOWN(streams, stream);
        if (!carry_out(*stream->q, stream->q->asked)) return NOT_YET;
        all().streams.erase(stream);
        delete stream;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    uint64_t until = 0;
    return until_done([=, &until] {
        if (!stream) return state_of(here());
        KNOWN(streams, stream);
        simt_counted().waits += !until;
        if (!until) until = stream->q->asked;
        return carry_out(*stream->q, until) ? state_of(stream->q->gpu) : NOT_YET;
    });
}

/* Who asks often enough sees it end. */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    simt_turn turn;
    if (!stream) return state_of(here());
    KNOWN(streams, stream);
    READY(stream->q->gpu);
    if (stream->q->waiting.empty()) return cudaSuccess;
    (void)carry_out(*stream->q, stream->q->done + 1);
    return cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize(void)
{
    return until_done([] {
        bool is_over = true;
        for (const CUstream_st *stream : all().streams)
            if (stream->q->gpu == here() && !carry_out(*stream->q, stream->q->asked)) is_over = false;
        return is_over ? state_of(here()) : NOT_YET;
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    simt_turn turn;
    KNOWN(streams, stream);
    KNOWN(events, event);
    READY(stream->q->gpu);
    if (flags) return cudaErrorInvalidValue;
    if (event->q) add(stream, {"", 0, nullptr, nullptr, event->q, event->number});
    return state_of(stream->q->gpu);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    simt_turn turn;
    const uintptr_t to = reinterpret_cast<uintptr_t>(dst), from = reinterpret_cast<uintptr_t>(src);
    unsigned touches = 0;
    bool to_known, from_known;
    if (kind != cudaMemcpyDefault || (to < from + bytes && from < to + bytes)) return cudaErrorInvalidValue;
    if (place(dst, bytes, &touches, &to_known) != cudaSuccess || place(src, bytes, &touches, &from_known) != cudaSuccess)
        return cudaErrorInvalidValue;
    simt_counted().copies++;
    simt_counted().pageable_copies += !to_known || !from_known;
    return append(stream, {"a copy", touches, [=] { memcpy(dst, src, bytes); }, nullptr, nullptr, 0});
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t ld_dst, const void *src, size_t ld_src, size_t bytes, size_t rows,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    simt_turn turn;
    const char *from = static_cast<const char *>(src);
    char *to = static_cast<char *>(dst);
    const size_t to_bytes = (rows - 1) * ld_dst + bytes, from_bytes = (rows - 1) * ld_src + bytes;
    unsigned touches = 0;
    bool to_known, from_known;
    if (kind != cudaMemcpyDefault || !rows || bytes > ld_dst || bytes > ld_src) return cudaErrorInvalidValue;
    if (to < from + from_bytes && from < to + to_bytes) return cudaErrorInvalidValue;
    if (place(dst, to_bytes, &touches, &to_known) != cudaSuccess ||
        place(src, from_bytes, &touches, &from_known) != cudaSuccess)
        return cudaErrorInvalidValue;
    simt_counted().copies++;
    simt_counted().pageable_copies += !to_known || !from_known;
    return append(stream, {"a copy of rows", touches,
                           [=] {
                               for (size_t row = 0; row < rows; row++)
                                   memcpy(to + row * ld_dst, from + row * ld_src, bytes);
                           },
                           nullptr, nullptr, 0});
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
    simt_turn turn;
    unsigned touches = 0;
    bool known; /* pinned memory may be filled too */
    if (place(dst, bytes, &touches, &known) != cudaSuccess || !known) return cudaErrorInvalidValue;
    simt_counted().fills++;
    return append(stream, {"a fill", touches, [=] { memset(dst, value, bytes); }, nullptr, nullptr, 0});
}

/* ---- the runtime: events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    simt_turn turn;
    READY(here());
    if (flags & ~cudaEventDisableTiming) return cudaErrorInvalidValue;
    *event = new CUevent_st{here(), flags == 0, nullptr, 0, nullptr};
    all().events.insert(*event);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    simt_turn turn;
    KNOWN(events, event);
    all().events.erase(event);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    simt_turn turn;
    KNOWN(streams, stream);
    KNOWN(events, event);
    READY(stream->q->gpu);
    if (event->gpu != stream->q->gpu) return cudaErrorInvalidResourceHandle;
    event->q = stream->q;
    event->number = stream->q->asked + 1;
    event->last = std::make_shared<mark>(mark{false, 0});
    add(stream, {"", 0, nullptr, event->last, nullptr, 0});
    return state_of(stream->q->gpu);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    std::shared_ptr<queue> q;
    uint64_t until = 0;
    return until_done([=, &q, &until] {
        KNOWN(events, event);
        simt_counted().waits += !q;
        if (!q) q = event->q, until = event->number;
        return !q || carry_out(*q, until) ? state_of(event->gpu) : NOT_YET;
    });
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    simt_turn turn;
    KNOWN(events, event);
    READY(event->gpu);
    if (!event->q || event->last->passed) return cudaSuccess;
    (void)carry_out(*event->q, event->q->done + 1);
    return cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end)
{
    simt_turn turn;
    KNOWN(events, begin);
    KNOWN(events, end);
    READY(begin->gpu);
    if (!begin->q || !end->q || !begin->is_timed || !end->is_timed) return cudaErrorInvalidResourceHandle;
    if (!begin->last->passed || !end->last->passed) return cudaErrorNotReady;
    const int64_t ns = static_cast<int64_t>(end->last->passed_ns - begin->last->passed_ns);
    *milliseconds = static_cast<float>(static_cast<double>(ns) * 1e-6);
    return cudaSuccess;
}

/* ---- the runtime: devices ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = static_cast<int>(simt_machine().gpus);
    return *count ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || static_cast<unsigned>(device) >= simt_machine().gpus) return cudaErrorInvalidDevice;
    if (simt_machine().is_busy) return cudaErrorDevicesUnavailable;
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current;
    return state_of(here()) == cudaErrorNoDevice ? cudaErrorNoDevice : cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t code)
{
    simt_turn turn;
    switch (code) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorDevicesUnavailable:
        return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
        return "invalid resource handle";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorHostMemoryAlreadyRegistered:
        return "part or all of the requested memory range is already mapped";
    case cudaErrorHostMemoryNotRegistered:
        return "pointer does not correspond to a registered memory region";
    default:
        break;
    }
    for (const loss &l : all().losses)
        if (l.is_lost) return l.why.c_str();
    return "unspecified launch failure";
}
