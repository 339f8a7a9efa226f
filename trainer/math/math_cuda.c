/* The table itself: each slot finds its stream and hands on to a launcher (cuda/kernels.h) or to a GEMM (cuda/gemm.h). */
#include "trainer/math/math_cuda.h"

#include "ckpt/base/log.h"
#include "trainer/math/cuda/architectures.h"
#include "trainer/math/cuda/attention_cudnn.h"
#include "trainer/math/cuda/copies.h"
#include "trainer/math/cuda/gemm.h"
#include "trainer/math/cuda/graphs.h"
#include "trainer/math/cuda/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pd_math_cuda {
    struct pd_math base; /* first: a struct pd_math of this backend is one of these */
    void *stream;
    struct pd_cuda_gemms *gemms;
    struct pd_cuda_graphs *graphs; /* NULL: operations are queued one by one */
    struct pd_cuda_workspace attention;
    struct pd_cuda_event *events;  /* of marks, all that were ever set */
    struct pd_device_spans *spans; /* NULL: nobody asks where the time goes */
    struct pd_stream *lane;        /* the same stream, for spans */
};

static struct pd_math_cuda *cuda_of(struct pd_math *math)
{
    return (struct pd_math_cuda *)math;
}

static void *stream_of(struct pd_math *math)
{
    return cuda_of(math)->stream;
}

/* Runs a call between two events, where spans are asked for. `name`: of the span. */
#define SPANNED(math, name, call)                                                                            \
    do {                                                                                                     \
        struct pd_math_cuda *cuda_ = cuda_of(math);                                                          \
        const uint32_t span_ = pd_device_spans_begin(cuda_->spans, cuda_->lane, PD_LANE_COMPUTE, (name), 0); \
        const pd_status st_ = (call);                                                                        \
        pd_device_spans_end(cuda_->spans, span_, cuda_->lane);                                               \
        return st_;                                                                                          \
    } while (0)

/* ---- slots that need a stream and nothing else ---- */

#define FORWARDING_SLOT(name, operands)                                                            \
    static pd_status name##_slot(struct pd_math *math, const operands *what, struct pd_error *err) \
    {                                                                                              \
        SPANNED(math, #name, pd_cuda_##name(stream_of(math), what, err));                          \
    }

FORWARDING_SLOT(rmsnorm_forward, struct pd_norm)
FORWARDING_SLOT(rmsnorm_backward, struct pd_norm)
FORWARDING_SLOT(layernorm_forward, struct pd_norm)
FORWARDING_SLOT(layernorm_backward, struct pd_norm)
FORWARDING_SLOT(rope, struct pd_rope)
FORWARDING_SLOT(attention_delta, struct pd_attention)
FORWARDING_SLOT(attention_backward_queries, struct pd_attention)
FORWARDING_SLOT(finish, struct pd_finish)
FORWARDING_SLOT(embedding_forward, struct pd_embedding)
FORWARDING_SLOT(embedding_backward, struct pd_embedding)
FORWARDING_SLOT(logits_max, struct pd_cross_entropy)
FORWARDING_SLOT(logits_sum, struct pd_cross_entropy)
FORWARDING_SLOT(logits_join, struct pd_logits_join)
FORWARDING_SLOT(cross_entropy, struct pd_cross_entropy)
FORWARDING_SLOT(quantize, struct pd_quantize)
FORWARDING_SLOT(round, struct pd_round)

/* ---- the others ---- */

static pd_status gemm_slot(struct pd_math *math, const struct pd_gemm *gemm, struct pd_error *err)
{
    SPANNED(math, "gemm", pd_cuda_gemms_run(cuda_of(math)->gemms, stream_of(math), gemm, err));
}

/* Numerics fast only: its bits are not ours. */
static bool is_cudnns(const struct pd_math *math, const struct pd_attention *a)
{
    const char *asked = getenv("PERDURE_ATTENTION");
    return math->mode == PD_NUMERICS_FAST && asked && strcmp(asked, "cudnn") == 0 && pd_cudnn_attention_takes(a);
}

static pd_status attention_forward_slot(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    SPANNED(math, "attention_forward",
            is_cudnns(math, a) ? pd_cudnn_attention_forward(stream_of(math), a, err)
                               : pd_cuda_attention_forward(stream_of(math), a, err));
}

static pd_status attention_backward_slot(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    if (is_cudnns(math, a)) SPANNED(math, "attention_backward", pd_cudnn_attention_backward(stream_of(math), a, err));
    PD_CHECK(pd_cuda_attention_workspace_bytes(a) <= cuda_of(math)->attention.bytes);
    SPANNED(math, "attention_backward", pd_cuda_attention_backward(stream_of(math), a, cuda_of(math)->attention, err));
}

static pd_status attention_backward_keys_slot(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    PD_CHECK(pd_cuda_attention_workspace_bytes(a) <= cuda_of(math)->attention.bytes);
    SPANNED(math, "attention_backward_keys",
            pd_cuda_attention_backward_keys(stream_of(math), a, cuda_of(math)->attention, err));
}

static pd_status swiglu_forward_slot(struct pd_math *math, uint64_t rows, uint64_t columns, enum pd_dtype dtype,
                                     const void *gate_up, void *out, struct pd_error *err)
{
    SPANNED(math, "swiglu_forward", pd_cuda_swiglu_forward(stream_of(math), rows, columns, dtype, gate_up, out, err));
}

static pd_status swiglu_backward_slot(struct pd_math *math, uint64_t rows, uint64_t columns, enum pd_dtype dtype,
                                      const void *gate_up, const void *dout, void *dgate_up, struct pd_error *err)
{
    SPANNED(math, "swiglu_backward",
            pd_cuda_swiglu_backward(stream_of(math), rows, columns, dtype, gate_up, dout, dgate_up, err));
}

static pd_status gelu_forward_slot(struct pd_math *math, uint64_t count, enum pd_dtype dtype, const void *x, void *out,
                                   struct pd_error *err)
{
    SPANNED(math, "gelu_forward", pd_cuda_gelu_forward(stream_of(math), count, dtype, x, out, err));
}

static pd_status gelu_backward_slot(struct pd_math *math, uint64_t count, enum pd_dtype dtype, const void *x,
                                    const void *dout, void *dx, struct pd_error *err)
{
    SPANNED(math, "gelu_backward", pd_cuda_gelu_backward(stream_of(math), count, dtype, x, dout, dx, err));
}

static pd_status column_sum_slot(struct pd_math *math, uint64_t rows, uint64_t n, uint64_t ld, enum pd_dtype dtype,
                                 const void *x, float *out, struct pd_error *err)
{
    SPANNED(math, "column_sum", pd_cuda_column_sum(stream_of(math), rows, n, ld, dtype, x, out, err));
}

static pd_status add_slot(struct pd_math *math, uint64_t n, float *sum, enum pd_dtype dtype, const void *piece, bool first,
                          struct pd_error *err)
{
    SPANNED(math, "add", pd_cuda_add(stream_of(math), n, sum, dtype, piece, first, err));
}

static pd_status cast_slot(struct pd_math *math, uint64_t n, enum pd_dtype dst_dtype, void *dst, enum pd_dtype src_dtype,
                           const void *src, struct pd_error *err)
{
    SPANNED(math, "cast", pd_cuda_cast(stream_of(math), n, dst_dtype, dst, src_dtype, src, err));
}

static pd_status row_squares_slot(struct pd_math *math, uint64_t rows, uint64_t columns, const float *x, double *sums,
                                  struct pd_error *err)
{
    SPANNED(math, "row_squares", pd_cuda_row_squares(stream_of(math), rows, columns, x, sums, err));
}

static pd_status superaccumulate_slot(struct pd_math *math, uint64_t n, const double *terms, struct pd_superaccumulator *sum,
                                      struct pd_error *err)
{
    SPANNED(math, "superaccumulate", pd_cuda_superaccumulate(stream_of(math), n, terms, sum, err));
}

static pd_status adam_slot(struct pd_math *math, const struct pd_adam_step *step, const struct pd_adam_range *range,
                           struct pd_error *err)
{
    SPANNED(math, "adam", pd_cuda_adam(stream_of(math), step, range, err));
}

static pd_status copy_slot(struct pd_math *math, void *dst, const void *src, uint64_t bytes, struct pd_error *err)
{
    SPANNED(math, "copy", pd_cuda_copy(stream_of(math), dst, src, bytes, err));
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

static pd_status replay_slot(struct pd_math *math, const struct pd_math_key *key, bool *ret_done, struct pd_error *err)
{
    *ret_done = false;
    return cuda_of(math)->graphs ? pd_cuda_graphs_begin(cuda_of(math)->graphs, key, ret_done, err) : PD_OK;
}

static pd_status keep_slot(struct pd_math *math, bool is_whole, bool *ret_again, struct pd_error *err)
{
    *ret_again = false;
    if (!cuda_of(math)->graphs) return PD_OK;
    PD_TRY(pd_cuda_graphs_end(cuda_of(math)->graphs, is_whole, ret_again, err));
    if (*ret_again)
        pd_log_warn("math", "the GPU has no memory for another CUDA graph; from here on operations of blocks are queued one "
                            "by one, which takes the host longer");
    return PD_OK;
}

static void free_slot(struct pd_math *math)
{
    pd_cuda_events_free(cuda_of(math)->events);
    pd_cuda_graphs_free(cuda_of(math)->graphs);
    pd_cuda_gemms_free(cuda_of(math)->gemms);
    free(cuda_of(math));
}

static const struct pd_math_ops cuda_ops = {
    .name = "cuda",
    .gemm = gemm_slot,
    .rmsnorm_forward = rmsnorm_forward_slot,
    .rmsnorm_backward = rmsnorm_backward_slot,
    .layernorm_forward = layernorm_forward_slot,
    .layernorm_backward = layernorm_backward_slot,
    .rope = rope_slot,
    .attention_forward = attention_forward_slot,
    .attention_backward = attention_backward_slot,
    .attention_delta = attention_delta_slot,
    .attention_backward_queries = attention_backward_queries_slot,
    .attention_backward_keys = attention_backward_keys_slot,
    .finish = finish_slot,
    .swiglu_forward = swiglu_forward_slot,
    .swiglu_backward = swiglu_backward_slot,
    .gelu_forward = gelu_forward_slot,
    .gelu_backward = gelu_backward_slot,
    .embedding_forward = embedding_forward_slot,
    .embedding_backward = embedding_backward_slot,
    .logits_max = logits_max_slot,
    .logits_sum = logits_sum_slot,
    .logits_join = logits_join_slot,
    .cross_entropy = cross_entropy_slot,
    .column_sum = column_sum_slot,
    .add = add_slot,
    .cast = cast_slot,
    .quantize = quantize_slot,
    .round = round_slot,
    .row_squares = row_squares_slot,
    .superaccumulate = superaccumulate_slot,
    .adam = adam_slot,
    .copy = copy_slot,
    .sync = sync_slot,
    .mark = mark_slot,
    .reach = reach_slot,
    .replay = replay_slot,
    .keep = keep_slot,
    .free = free_slot,
};

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
    if (pd_arena_is_dry(arena)) {
        *ret_math = NULL;
        return PD_OK;
    }
    struct pd_math_cuda *cuda = calloc(1, sizeof *cuda);
    if (!cuda) PD_FAIL(err, PD_NO_MEMORY, "no memory for the GPU's table");
    cuda->base = (struct pd_math){.ops = &cuda_ops, .mode = o->mode, .isa = PD_ISA_PORTABLE};
    cuda->stream = o->stream;
    cuda->attention = (struct pd_cuda_workspace){attention, attention_bytes};
    cuda->spans = o->spans;
    cuda->lane = o->lane;
    const struct pd_cuda_gemms_options options = {.invariant = o->mode == PD_NUMERICS_INVARIANT,
                                                  .any_shape = o->any_shape && o->mode == PD_NUMERICS_INVARIANT,
                                                  .workspace = workspace,
                                                  .workspace_bytes = PD_CUDA_GEMM_WORKSPACE_BYTES};
    pd_status st = pd_cuda_gemms_new(&options, &cuda->gemms, err);
    if (!st && o->graphs && !o->spans) st = pd_cuda_graphs_new(o->stream, &cuda->graphs, err);
    if (st) {
        pd_cuda_gemms_free(cuda->gemms);
        free(cuda);
        return st;
    }
    *ret_math = &cuda->base;
    return PD_OK;
}
