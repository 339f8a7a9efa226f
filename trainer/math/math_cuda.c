/* The CUDA table: each slot finds its stream and calls a launcher (cuda/kernels.h) or a GEMM (cuda/gemm.h). */
#include "trainer/math/math_cuda.h"

#include "ckpt/base/log.h"
#include "trainer/math/cuda/architectures.h"
#include "trainer/math/cuda/copies.h"
#include "trainer/math/cuda/gemm.h"
#include "trainer/math/cuda/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pd_math_cuda {
    struct pd_math base; /* must be first: the table casts to this */
    void *stream;
    struct pd_cuda_gemms *gemms;
    struct pd_cuda_workspace attention;
    struct pd_cuda_workspace scratch; /* used by one operation at a time: GEMMs, and backward of norms */
    struct pd_cuda_event *events;     /* of all marks ever set */
    struct pd_device_spans *spans;    /* NULL: time is not recorded */
    struct pd_stream *lane;           /* the same stream, for spans */
};

static struct pd_math_cuda *cuda_of(struct pd_math *math)
{
    return (struct pd_math_cuda *)math;
}

static void *stream_of(struct pd_math *math)
{
    return cuda_of(math)->stream;
}

/* Runs a call between two events, if spans are recorded. `name`: of the span. */
#define SPANNED(math, name, call)                                                                            \
    do {                                                                                                     \
        struct pd_math_cuda *cuda_ = cuda_of(math);                                                          \
        const uint32_t span_ = pd_device_spans_begin(cuda_->spans, cuda_->lane, PD_LANE_COMPUTE, (name), 0); \
        const pd_status st_ = (call);                                                                        \
        pd_device_spans_end(cuda_->spans, span_, cuda_->lane);                                               \
        return st_;                                                                                          \
    } while (0)

/* ---- slots that need a stream and nothing else ---- */

#define FORWARDING_SLOT(name, operands, ...)                                                            \
    static pd_status name##_slot(struct pd_math *math, PD_MATH_OPERANDS operands, struct pd_error *err) \
    {                                                                                                   \
        SPANNED(math, #name, pd_cuda_##name(stream_of(math), __VA_ARGS__, err));                        \
    }

PD_MATH_KERNELS(FORWARDING_SLOT)
PD_MATH_PLAIN(FORWARDING_SLOT)

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define REFUSING_SLOT(name, operands, ...)                                                              \
    static pd_status name##_slot(struct pd_math *math, PD_MATH_OPERANDS operands, struct pd_error *err) \
    {                                                                                                   \
        PD_FAIL(err, PD_UNSUPPORTED, "experts are not computed on GPUs yet (" #name ")");               \
    }

PD_MATH_EXPERTS(REFUSING_SLOT)
#pragma GCC diagnostic pop

/* ---- the others ---- */

static pd_status gemm_slot(struct pd_math *math, const struct pd_gemm *gemm, struct pd_error *err)
{
    SPANNED(math, "gemm", pd_cuda_gemms_run(cuda_of(math)->gemms, stream_of(math), gemm, err));
}

static pd_status attention_forward_slot(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    SPANNED(math, "attention_forward", pd_cuda_attention_forward(stream_of(math), a, cuda_of(math)->attention, err));
}

static pd_status attention_backward_slot(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    PD_CHECK(pd_cuda_attention_workspace_bytes(a) <= cuda_of(math)->attention.bytes);
    SPANNED(math, "attention_backward", pd_cuda_attention_backward(stream_of(math), a, cuda_of(math)->attention, err));
}

static pd_status attention_backward_queries_slot(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    SPANNED(math, "attention_backward_queries",
            pd_cuda_attention_backward_queries(stream_of(math), a, cuda_of(math)->attention, err));
}

static pd_status attention_backward_keys_slot(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    PD_CHECK(pd_cuda_attention_workspace_bytes(a) <= cuda_of(math)->attention.bytes);
    SPANNED(math, "attention_backward_keys",
            pd_cuda_attention_backward_keys(stream_of(math), a, cuda_of(math)->attention, err));
}

static pd_status norm_backward_slot(struct pd_math *math, const struct pd_norm *norm, struct pd_error *err)
{
    _Static_assert(PD_CUDA_NORM_WORKSPACE_MAX <= PD_CUDA_GEMM_WORKSPACE_BYTES, "they share it");
    SPANNED(math, "norm_backward", pd_cuda_norm_backward(stream_of(math), norm, cuda_of(math)->scratch, err));
}

static pd_status sync_slot(struct pd_math *math, struct pd_error *err)
{
    return pd_cuda_sync(stream_of(math), err);
}

static pd_status mark_slot(struct pd_math *math, struct pd_math_mark *mark, struct pd_error *err)
{
    struct pd_math_cuda *cuda = cuda_of(math);
    if (!mark->event) PD_TRY(pd_cuda_event_new(&cuda->events, &mark->event, err));
    return pd_cuda_event_record(mark->event, cuda->stream, err);
}

static pd_status reach_slot(struct pd_math *math, const struct pd_math_mark *mark, struct pd_error *err)
{
    (void)math;
    return mark->event ? pd_cuda_event_wait(mark->event, err) : PD_OK;
}

static void free_slot(struct pd_math *math)
{
    pd_cuda_events_free(cuda_of(math)->events);
    pd_cuda_gemms_free(cuda_of(math)->gemms);
    free(cuda_of(math));
}

#define ENTRY(name, ...) .name = name##_slot,
static const struct pd_math_ops cuda_ops = {.name = "cuda", .sync = sync_slot, .free = free_slot, PD_MATH_ALL(ENTRY)};

void pd_math_cuda_kernels(uint32_t capability, const struct pd_attention *attention, char *ret_text, size_t bytes)
{
    const struct pd_attention usual = {.head_size = 128, .dtype = PD_BF16};
    char name[64];
    pd_cuda_attention_name(attention ? attention : &usual, capability, name, sizeof name);
    snprintf(ret_text, bytes, "attention %s, GEMM %s", name, pd_cuda_gemms_name());
}

uint32_t pd_math_cuda_plain_shapes(const struct pd_math *math)
{
    return pd_cuda_gemms_plain_shapes(((const struct pd_math_cuda *)math)->gemms);
}

pd_status pd_math_cuda_new(const struct pd_math_cuda_options *o, struct pd_arena *arena, struct pd_math **ret_math,
                           struct pd_error *err)
{
    const uint64_t attention_bytes = o->attention ? pd_cuda_attention_workspace_bytes(o->attention) : 0;
    void *workspace = pd_arena_take(arena, PD_MEMORY_BUFFERS, PD_CUDA_GEMM_WORKSPACE_BYTES);
    void *attention = attention_bytes ? pd_arena_take(arena, PD_MEMORY_BUFFERS, attention_bytes) : NULL;
    uint32_t *begun = o->attention ? pd_arena_take(arena, PD_MEMORY_BUFFERS, PD_CUDA_BEGUN_BYTES) : NULL;
    if (pd_arena_is_dry(arena)) {
        *ret_math = NULL;
        return PD_OK;
    }
    struct pd_math_cuda *cuda = calloc(1, sizeof *cuda);
    if (!cuda) PD_FAIL(err, PD_NO_MEMORY, "no memory for the GPU's table");
    cuda->base = (struct pd_math){.ops = &cuda_ops, .mode = o->mode, .isa = PD_ISA_PORTABLE};
    cuda->stream = o->stream;
    cuda->attention = (struct pd_cuda_workspace){attention, attention_bytes, begun};
    cuda->scratch = (struct pd_cuda_workspace){workspace, PD_CUDA_GEMM_WORKSPACE_BYTES, NULL};
    cuda->spans = o->spans;
    cuda->lane = o->lane;
    const struct pd_cuda_gemms_options options = {.invariant = o->mode == PD_NUMERICS_INVARIANT,
                                                  .any_shape = o->any_shape && o->mode == PD_NUMERICS_INVARIANT,
                                                  .multiprocessors = o->multiprocessors,
                                                  .workspace = workspace};
    pd_status st = pd_cuda_gemms_new(&options, &cuda->gemms, err);
    if (!st && begun) st = pd_cuda_attention_counter(o->stream, cuda->attention, err);
    if (st) {
        pd_cuda_gemms_free(cuda->gemms);
        free(cuda);
        return st;
    }
    *ret_math = &cuda->base;
    return PD_OK;
}

pd_status pd_math_cuda_load(struct pd_error *err)
{
    return pd_cuda_kernels_load(err);
}

uint32_t pd_math_cuda_kernel_count(void)
{
    return pd_cuda_kernel_count();
}
