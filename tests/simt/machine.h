/* A machine with GPUs, in one process: memory that the host cannot touch, and streams whose operations happen when they
 * must.
 *
 *   memory    pages without any access but while operations of that GPU are carried out; a host that touches them dies with
 *             a line that says which allocation, and so does a kernel that touches what is freed or another GPU's. New
 *             memory is full of NaNs. Pinned memory is known by its range
 *   streams   a queue each. An operation is carried out by the thread that waits for it, or for an event behind it, after
 *             everything that it has to come after and nothing else; exchanges between GPUs also by a thread that waits for
 *             another GPU, since peers must not have to be waited for by their own host
 *   failure   a kernel that broke a rule is what the GPU is lost by: nothing on it is carried out from then on, and every
 *             call says which kernel and which rule
 *
 *   PERDURE_SIMT_GPUS      how many there are; unset: 1
 *   PERDURE_SIMT_MEMORY    bytes of each, with K, M or G behind; unset: 4G
 *   PERDURE_SIMT_TAKEN     of these, what others hold; unset: 0
 *   PERDURE_SIMT_STREAMS   late (unset), now: at once, or the seed of a GPU that goes on a little, on any stream, whenever
 *                          it is given something
 *   PERDURE_SIMT_FAIL      the GPU that carries out the n-th operation is lost
 *   PERDURE_SIMT_FAIL_GPU  only operations of this GPU count for that
 *   PERDURE_SIMT_LOCKED    bytes that may be pinned at a time; unset: any
 *   PERDURE_SIMT_BUSY      1: another process has each for itself (compute mode exclusive)
 *   PERDURE_SIMT_ALONE     the GPU without peer access; unset: none
 *   PERDURE_SIMT_NAME      of each GPU; unset: simulated GPU
 *   PERDURE_SIMT_CAPABILITY  compute capability that each says to have, 80 for 8.0; unset: 90
 *   PERDURE_SIMT_REPORT    a file that a process appends a line of counts to when it ends
 *   PERDURE_SIMT_WATCH     a file that a process appends a line to whenever it asks how much memory is free
 *
 *   threads   any; one carries out at a time, under one lock. What another thread does to device memory meanwhile is not
 *             seen */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <functional>

#include "tests/simt/cuda_runtime_api.h"

#define SIMT_GPUS_MAX 8u

/* ---- settings, read once ---- */

struct simt_settings {
    unsigned gpus, capability;
    size_t memory_bytes, taken_bytes, locked_bytes;
    const char *name;
    enum { LATE, NOW, SEEDED } streams;
    uint64_t seed, fail_at; /* 0: never */
    int fail_gpu;           /* counts alone, and is lost; -1: any */
    int alone;              /* reads no other's memory, and none reads its; -1: all read all */
    bool is_busy;
};
const simt_settings &simt_machine(void);

/* Of the process so far, all GPUs together; for the holder of a turn. */
struct simt_counts {
    uint64_t kernels, copies, fills, waits; /* waits: of the host, for a stream or an event */
    uint64_t streams, streams_made;         /* that were given work; all */
    uint64_t pageable_copies;               /* with memory that is not pinned: the host would have waited */
    uint64_t device_bytes, device_bytes_max, locked_bytes, locked_bytes_max;
    uint32_t contexts; /* a bit a GPU: some thread was on it, by cudaSetDevice or because it never said */
};
simt_counts &simt_counted(void);

/* ---- memory: for the holder of a turn ---- */

enum simt_kind { SIMT_PAGEABLE, SIMT_DEVICE, SIMT_LOCKED, SIMT_REGISTERED };

struct simt_region {
    size_t bytes, mapped_bytes;
    simt_kind kind;
    unsigned gpu;
    bool freed; /* an address that nobody gets again for a while */
};

cudaError_t simt_memory_take(simt_kind kind, unsigned gpu, size_t bytes, void **data);
cudaError_t simt_memory_register(void *data, size_t bytes);
/* The region that begins at data is of this kind, or this is an error. */
cudaError_t simt_memory_check(const void *data, simt_kind kind);
/* Memory goes in two steps: what the driver counts when it is told, the pages when a stream has come by. */
void simt_memory_uncount(const void *data);
void simt_memory_drop(void *data);
size_t simt_memory_free_bytes(unsigned gpu);
/* What lies at an address; false: nothing known. */
bool simt_memory_find(const void *at, uintptr_t *ret_base, simt_region *ret_region);
/* Whether it is an address of memory that is there, and that no GPU reaches. */
bool simt_memory_is_hosts(uint64_t word);

/* What a call of the runtime is from beginning to end: the lock, and memory closed when it is over. */
class simt_turn
{
  public:
    simt_turn();
    ~simt_turn();
    simt_turn(const simt_turn &) = delete;
    void operator=(const simt_turn &) = delete;
};
/* Of these GPUs (a bit each) and no others, for `what` (a literal), which is told of what goes wrong. */
void simt_open_memory(unsigned gpus, const char *what);

/* ---- streams ---- */

#define SIMT_OWN_GPU 0u
/* Puts work at the end of a stream; NULL: carries it out. `touches` names the GPUs whose memory it goes through, a bit each;
 * a kernel touches its own, which must be the current one. */
cudaError_t simt_enqueue(cudaStream_t stream, const char *what, unsigned touches, std::function<void()> work);
/* The same of what may have to be tried again, since another GPU has not come to it yet: true when it happened. It may go
 * through the memory of all GPUs. For tests/helpers/fake_nccl.c. */
extern "C" cudaError_t simt_enqueue_attempt(void *stream, bool (*attempt)(void *argument), void *argument);
/* Of the current GPU. */
cudaError_t simt_state(void);
/* By what is being carried out, or by the caller's wish: the current GPU does nothing more. */
void simt_lose(const char *why);
