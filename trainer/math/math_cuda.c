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
    /* GEMM shapes of a rehearsal and later ones: hashes, 0: free. NULL: nothing was rehearsed. */
    uint64_t *shapes;
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

/* ---- products, and their rehearsal ---- */

#define SHAPES_MAX 4096u /* a power of two; a model has some tens, with experts some hundreds */
#define VARYING_ROWS_MIN 16u

/* The rows that data decides. */
static uint64_t varying_rows(const struct pd_gemm *g)
{
    return g->varies == PD_VARIES_K ? g->k : g->m;
}

static void set_varying_rows(struct pd_gemm *g, uint64_t rows)
{
    *(g->varies == PD_VARIES_K ? &g->k : &g->m) = rows;
    if (g->varies == PD_VARIES_K && g->a_format) g->a.ld = g->b.ld = rows;
}

/* The number of rows whose algorithm so many rows take: cuda/gemm.h. */
static uint64_t rows_above(uint64_t rows)
{
    uint64_t power = VARYING_ROWS_MIN;
    while (power < rows)
        power *= 2;
    return power;
}

static uint64_t alignment(const void *data, uint64_t ld, uint32_t bytes)
{
    const uint64_t all = (uint64_t)(uintptr_t)data | ld * bytes | 16;
    return all & (~all + 1);
}

/* Of what an algorithm is chosen by. FNV-1a over words; never 0. */
static uint64_t shape_hash(const struct pd_gemm *gemm)
{
    struct pd_gemm g = *gemm;
    const bool adds = g.residual.data && g.residual.data != g.c.data;
    if (g.varies) set_varying_rows(&g, rows_above(varying_rows(&g)));
    const uint64_t words[] = {g.m,
                              g.n,
                              g.k,
                              g.a.ld,
                              g.b.ld,
                              g.c.ld,
                              (uint64_t)g.a.dtype << 16 | (uint64_t)g.b.dtype << 8 | (uint64_t)g.c.dtype,
                              (uint64_t)g.a_format << 8 | (uint64_t)g.b_format,
                              (uint64_t)g.trans_a << 4 | (uint64_t)g.trans_b << 3 | (uint64_t)g.accumulate << 2 |
                                  (uint64_t)(g.bias != NULL) << 1 | adds,
                              alignment(g.a.data, g.a.ld, g.a_format ? 1 : pd_dtype_bytes(g.a.dtype)),
                              alignment(g.b.data, g.b.ld, g.b_format ? 1 : pd_dtype_bytes(g.b.dtype)),
                              alignment(g.c.data, g.c.ld, pd_dtype_bytes(g.c.dtype))};
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        hash = (hash ^ words[i]) * UINT64_C(0x100000001b3);
    return hash ? hash : 1;
}

/* False if the shape was there, or the table is full. */
static bool is_new_shape(uint64_t *shapes, uint64_t hash)
{
    for (uint32_t i = 0; i < SHAPES_MAX; i++) {
        uint64_t *at = &shapes[(hash + i) % SHAPES_MAX];
        if (*at == hash) return false;
        if (*at) continue;
        *at = hash;
        return true;
    }
    return false;
}

static void note_late_shape(struct pd_math_cuda *cuda, const struct pd_gemm *g)
{
    if (!cuda->shapes || !g->m || !g->n || !g->k || !is_new_shape(cuda->shapes, shape_hash(g))) return;
    pd_log_warn(
        "math",
        "GEMM (%llu, %llu) by (%llu, %llu) was not loaded before the first exchange between GPUs, so loading it now may "
        "wait for one; please report it",
        (unsigned long long)g->m, (unsigned long long)g->k, (unsigned long long)g->k, (unsigned long long)g->n);
}

static pd_status gemm_slot(struct pd_math *math, const struct pd_gemm *gemm, struct pd_error *err)
{
    note_late_shape(cuda_of(math), gemm);
    SPANNED(math, "gemm", pd_cuda_gemms_run(cuda_of(math)->gemms, stream_of(math), gemm, err));
}

/* Each number of rows with an algorithm of its own is a shape. */
static pd_status gemm_rehearsed(struct pd_math *math, const struct pd_gemm *gemm, struct pd_error *err)
{
    struct pd_math_cuda *cuda = cuda_of(math);
    struct pd_gemm g = *gemm;
    const uint64_t most = varying_rows(&g);
    for (uint64_t rows = VARYING_ROWS_MIN; g.varies && rows < most; rows *= 2) {
        set_varying_rows(&g, rows);
        if (is_new_shape(cuda->shapes, shape_hash(&g))) PD_TRY(pd_cuda_gemms_run(cuda->gemms, cuda->stream, &g, err));
    }
    if (!is_new_shape(cuda->shapes, shape_hash(gemm))) return PD_OK;
    return pd_cuda_gemms_run(cuda->gemms, cuda->stream, gemm, err);
}

/* ---- the others ---- */

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
    free(cuda_of(math)->shapes);
    free(cuda_of(math));
}

#define ENTRY(name, ...) .name = name##_slot,
static const struct pd_math_ops cuda_ops = {.name = "cuda", .sync = sync_slot, .free = free_slot, PD_MATH_ALL(ENTRY)};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define SILENT_SLOT(name, operands, ...)                                                                  \
    static pd_status name##_silent(struct pd_math *math, PD_MATH_OPERANDS operands, struct pd_error *err) \
    {                                                                                                     \
        return PD_OK;                                                                                     \
    }
PD_MATH_WORKSPACE(SILENT_SLOT)
PD_MATH_KERNELS(SILENT_SLOT)
PD_MATH_PLAIN(SILENT_SLOT)
#pragma GCC diagnostic pop

#define SILENT_ENTRY(name, ...) .name = name##_silent,
static const struct pd_math_ops rehearsal_ops = {
    .name = "cuda",
    .sync = sync_slot,
    .free = free_slot,
    PD_MATH_WORKSPACE(SILENT_ENTRY) PD_MATH_KERNELS(SILENT_ENTRY) PD_MATH_PLAIN(SILENT_ENTRY).gemm = gemm_rehearsed,
    .mark = mark_slot,
    .reach = reach_slot};

void pd_math_cuda_rehearse(struct pd_math *math, bool on)
{
    struct pd_math_cuda *cuda = cuda_of(math);
    if (!cuda->shapes) cuda->shapes = calloc(SHAPES_MAX, sizeof *cuda->shapes);
    math->ops = on && cuda->shapes ? &rehearsal_ops : &cuda_ops;
}

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
