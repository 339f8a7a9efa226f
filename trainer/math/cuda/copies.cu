/* Uses the CUDA runtime, or the one of tests/simt. */
#include "trainer/math/cuda/copies.h"

#include "trainer/math/cuda/element.h"
#include "trainer/math/cuda/kernels.h"

#include <stdlib.h>

static pd_status check(cudaError_t code, const char *what, struct pd_error *err)
{
    if (code == cudaSuccess) return PD_OK;
    (void)cudaGetLastError(); /* which the next kernel's launch would meet */
    return pd_error_set(err, PD_DEVICE_LOST, PD_WHERE, 0, "GPU: %s: %s", what, cudaGetErrorString(code));
}

pd_status pd_cuda_copy(void *stream, void *dst, const void *src, uint64_t bytes, struct pd_error *err)
{
    return check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)), "copying", err);
}

pd_status pd_cuda_copy_rows(void *stream, uint64_t rows, uint64_t bytes, void *dst, uint64_t ld_dst, const void *src,
                            uint64_t ld_src, struct pd_error *err)
{
    return check(
        cudaMemcpy2DAsync(dst, ld_dst, src, ld_src, bytes, rows, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
        "copying rows", err);
}

/* Words as long as the alignment of a piece admits. */
template <typename Word> PD_DEVICE void copy_words(const struct pd_copy &piece)
{
    const uint64_t n = piece.bytes / sizeof(Word), threads = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += threads)
        static_cast<Word *>(piece.to)[i] = static_cast<const Word *>(piece.from)[i];
}

/* A row of blocks a piece. */
static __global__ void copy_pieces(struct pd_copies c)
{
    const struct pd_copy &piece = c.pieces[blockIdx.y];
    const uint64_t all = reinterpret_cast<uintptr_t>(piece.to) | reinterpret_cast<uintptr_t>(piece.from) | piece.bytes;
    if (all % sizeof(uint4) == 0)
        copy_words<uint4>(piece);
    else if (all % sizeof(uint32_t) == 0)
        copy_words<uint32_t>(piece);
    else if (all % sizeof(uint16_t) == 0)
        copy_words<uint16_t>(piece);
    else
        copy_words<uint8_t>(piece);
}
static_assert(sizeof(struct pd_copies) <= 4096, "arguments of a kernel");

pd_status pd_cuda_copy_pieces(void *stream, const struct pd_copies *c, struct pd_error *err)
{
    const uint64_t block_bytes = 8 * sizeof(uint4) * PD_THREADS;
    uint64_t most = 0;
    for (uint32_t i = 0; i < c->count; i++)
        most = c->pieces[i].bytes > most ? c->pieces[i].bytes : most;
    if (!most) return PD_OK;
    return PD_LAUNCH(err, copy_pieces, dim3(pd_blocks(most, block_bytes), c->count), PD_THREADS, 0, stream, *c);
}

pd_status pd_cuda_sync(void *stream, struct pd_error *err)
{
    return check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "waiting for its work", err);
}

struct pd_cuda_event {
    cudaEvent_t event;
    struct pd_cuda_event *next;
};

pd_status pd_cuda_event_new(struct pd_cuda_event **list, void **ret_event, struct pd_error *err)
{
    struct pd_cuda_event *e = static_cast<struct pd_cuda_event *>(calloc(1, sizeof *e));
    if (!e) return pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "GPU: no memory for an event");
    const cudaError_t code = cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming);
    if (code != cudaSuccess) {
        free(e);
        return check(code, "making an event", err);
    }
    e->next = *list;
    *list = e;
    *ret_event = e;
    return PD_OK;
}

pd_status pd_cuda_event_record(void *event, void *stream, struct pd_error *err)
{
    return check(cudaEventRecord(static_cast<struct pd_cuda_event *>(event)->event, static_cast<cudaStream_t>(stream)),
                 "recording an event", err);
}

pd_status pd_cuda_event_wait(void *event, struct pd_error *err)
{
    return check(cudaEventSynchronize(static_cast<struct pd_cuda_event *>(event)->event), "waiting for an event", err);
}

void pd_cuda_events_free(struct pd_cuda_event *list)
{
    while (list) {
        struct pd_cuda_event *next = list->next;
        cudaEventDestroy(list->event);
        free(list);
        list = next;
    }
}
