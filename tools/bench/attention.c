/* perdure bench attention: forward and backward of attention alone, as its necessary arithmetic over the time. For each
 * of the length (length + 1) / 2 causal pairs, per head and sequence, that is two products forward and five backward, 2 D
 * operations each. Extra work of a kernel (a product computed twice, masked pairs) counts as its loss. */
#include "ckpt/base/cpu.h"
#include "ckpt/base/half.h"
#include "tools/bench/bench.h"
#include "trainer/engine/rank_device.h"
#include "trainer/math/math_cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define QUERIES 16u
#define KEYS 8u

struct checking {
    const struct pd_attention *a;
    double *p, *dp, *out; /* for one query: weights, their gradients; its row of out */
    double difference, size;
};

static double at(const struct checking *c, const void *data, uint64_t i)
{
    if (c->a->dtype == PD_F32) return (double)((const float *)data)[i];
    const uint16_t half = ((const uint16_t *)data)[i];
    return (double)(c->a->dtype == PD_BF16 ? pd_f32_from_bf16(half) : pd_f32_from_f16(half));
}

static uint64_t wide(const struct checking *c, uint32_t row, uint32_t head)
{
    return ((uint64_t)row * c->a->heads + head) * c->a->head_size;
}

static uint64_t narrow(const struct checking *c, uint32_t row, uint32_t head)
{
    const uint32_t kv = head / (c->a->heads / c->a->kv_heads);
    return ((uint64_t)row * c->a->kv_heads + kv) * c->a->head_size;
}

static double dot(const struct checking *c, const void *x, uint64_t i, const void *y, uint64_t j)
{
    double sum = 0;
    for (uint32_t d = 0; d < c->a->head_size; d++)
        sum += at(c, x, i + d) * at(c, y, j + d);
    return sum;
}

/* Computes p, out, and dS in place of dp, for query r. */
static void query(struct checking *c, uint32_t r, uint32_t head)
{
    const struct pd_attention *a = c->a;
    double max = -INFINITY, sum = 0, delta = 0;
    for (uint32_t k = 0; k <= r; k++) {
        c->p[k] = (double)a->scale * dot(c, a->q, wide(c, r, head), a->k, narrow(c, k, head));
        c->dp[k] = dot(c, a->dout, wide(c, r, head), a->v, narrow(c, k, head));
        if (c->p[k] > max) max = c->p[k];
    }
    for (uint32_t k = 0; k <= r; k++)
        sum += c->p[k] = exp(c->p[k] - max);
    for (uint32_t d = 0; d < a->head_size; d++)
        c->out[d] = 0;
    for (uint32_t k = 0; k <= r; k++) {
        c->p[k] /= sum;
        delta += c->p[k] * c->dp[k];
        for (uint32_t d = 0; d < a->head_size; d++)
            c->out[d] += c->p[k] * at(c, a->v, narrow(c, k, head) + d);
    }
    for (uint32_t k = 0; k <= r; k++)
        c->dp[k] = (double)a->scale * c->p[k] * (c->dp[k] - delta);
}

static void attention_compare(struct checking *c, const void *got, uint64_t i, const double *want)
{
    for (uint32_t d = 0; d < c->a->head_size; d++) {
        const double difference = at(c, got, i + d) - want[d];
        c->difference += difference * difference;
        c->size += want[d] * want[d];
    }
}

static void compare_queries(struct checking *c, uint32_t head, bool backward)
{
    const struct pd_attention *a = c->a;
    for (uint32_t i = 1; i <= QUERIES; i++) {
        const uint32_t r = (uint32_t)((uint64_t)a->length * i / QUERIES);
        if (r == 0) continue;
        query(c, r - 1, head);
        for (uint32_t d = 0; backward && d < a->head_size; d++) {
            c->out[d] = 0;
            for (uint32_t k = 0; k < r; k++)
                c->out[d] += c->dp[k] * at(c, a->k, narrow(c, k, head) + d);
        }
        attention_compare(c, backward ? a->dq : a->out, wide(c, r - 1, head), c->out);
    }
}

/* Few queries see the last keys. */
static void compare_keys(struct checking *c, uint32_t kv, double *dk, double *dv)
{
    const struct pd_attention *a = c->a;
    const uint32_t group = a->heads / a->kv_heads, count = a->length < KEYS ? a->length : KEYS, d_count = a->head_size;
    for (uint32_t i = 0; i < count * d_count; i++)
        dk[i] = dv[i] = 0;
    for (uint32_t head = kv * group; head < (kv + 1) * group; head++)
        for (uint32_t r = a->length - count; r < a->length; r++) {
            query(c, r, head);
            for (uint32_t k = a->length - count; k <= r; k++)
                for (uint32_t d = 0; d < d_count; d++) {
                    const uint32_t to = (k - (a->length - count)) * d_count + d;
                    dk[to] += c->dp[k] * at(c, a->q, wide(c, r, head) + d);
                    dv[to] += c->p[k] * at(c, a->dout, wide(c, r, head) + d);
                }
        }
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t key = narrow(c, a->length - count + i, kv * group);
        attention_compare(c, a->dk, key, dk + i * d_count);
        attention_compare(c, a->dv, key, dv + i * d_count);
    }
}

/* Norm of the differences over the norm of the reference, in sequence 0; pointers of `a` are host memory with dense rows.
 * Forward: out of sixteen queries. Backward: their dq, and dk and dv of the last keys, all three together. */
struct attention_errors {
    double forward, backward;
};
static pd_status errors_of(const struct pd_attention *a, struct attention_errors *ret_errors, struct pd_error *err)
{
    const size_t length = a->length, d = a->head_size;
    double *memory = malloc((2 * length + d + 2 * KEYS * d) * sizeof *memory);
    if (!memory) PD_FAIL(err, PD_NO_MEMORY, "no memory for float64 rows of %zu keys", length);
    struct checking c = {.a = a, .p = memory, .dp = memory + length, .out = memory + 2 * length};
    double *dk = c.out + d, *dv = dk + KEYS * d;
    compare_queries(&c, 0, false);
    compare_queries(&c, a->heads - 1, false);
    ret_errors->forward = sqrt(c.difference) / sqrt(c.size);
    c.difference = c.size = 0;
    compare_queries(&c, 0, true);
    compare_queries(&c, a->heads - 1, true);
    compare_keys(&c, 0, dk, dv);
    compare_keys(&c, a->kv_heads - 1, dk, dv);
    ret_errors->backward = sqrt(c.difference) / sqrt(c.size);
    free(memory);
    return PD_OK;
}

enum { Q, K, V, OUT, DOUT, DQ, DK, DV, LSE, DELTA, ARRAYS };
enum { TOGETHER = 8 };
static const char *const precisions[] = {"bf16", "fp16", "fp32"};

struct attention_bench {
    uint64_t length, tokens, heads, kv_heads, head_size, calls; /* length 0: 1,024 to 8,192 */
    enum pd_device_choice choice;
    unsigned precision; /* of precisions */
    enum pd_dtype dtype;
    bool json;
    struct pd_rank_device device; /* also for the CPU */
    struct pd_event *begin, *end;
    struct pd_thread_pool *pool;
    struct pd_arena *arena;
    struct pd_math *math;
    struct pd_span spans[ARRAYS];
};

struct timing {
    uint64_t length, sequences;
    double forward_tflops, backward_tflops;
    struct attention_errors errors;
};

/* ---- the device and its table ---- */

static bool on_gpu(const struct attention_bench *b)
{
    return pd_dev_stream_handle(b->device.dev, b->device.compute) != NULL;
}

/* The same recipe counts memory and takes it. */
static pd_status take_math(struct attention_bench *b, const struct pd_attention *largest, struct pd_arena *arena,
                           struct pd_error *err)
{
    const struct pd_math_cuda_options options = {.stream = pd_dev_stream_handle(b->device.dev, b->device.compute),
                                                 .attention = largest};
    if (on_gpu(b)) return pd_math_cuda_new(&options, arena, &b->math, err);
    return pd_math_cpu_new(b->pool, pd_thread_pool_size(b->pool), PD_ISA_AUTO, arena, &b->math, err);
}

/* After a failure the stream may still have work. */
static void attention_release(struct attention_bench *b)
{
    if (b->device.compute) (void)!pd_dev_stream_sync(b->device.dev, b->device.compute, NULL);
    pd_math_free(b->math);
    pd_arena_free(b->arena);
    pd_thread_pool_free(b->pool);
    if (!b->device.dev) return;
    for (int i = 0; i < ARRAYS; i++)
        pd_dev_free(b->device.dev, &b->spans[i]);
    if (b->begin) pd_dev_event_free(b->device.dev, b->begin);
    if (b->end) pd_dev_event_free(b->device.dev, b->end);
    if (b->device.compute) pd_dev_stream_free(b->device.dev, b->device.compute);
    pd_dev_close(b->device.dev);
}

/* ---- operands ---- */

static uint64_t elements_of(const struct attention_bench *b, int array)
{
    if (array == LSE || array == DELTA) return b->tokens * b->heads;
    const bool kv = array == K || array == V || array == DK || array == DV;
    return b->tokens * (kv ? b->kv_heads : b->heads) * b->head_size;
}

/* Uniform from -2 to 2. */
static void attention_fill(enum pd_dtype dtype, void *data, uint64_t count, uint64_t *state)
{
    for (uint64_t i = 0; i < count; i++) {
        *state = *state * 6364136223846793005ull + 1442695040888963407ull;
        const float x = (float)(*state >> 40) * 0x1p-22f - 2.0f;
        if (dtype == PD_F32)
            ((float *)data)[i] = x;
        else
            ((uint16_t *)data)[i] = dtype == PD_BF16 ? pd_bf16_from_f32(x) : pd_f16_from_f32(x);
    }
}

static pd_status make_operands(struct attention_bench *b, struct pd_error *err)
{
    uint64_t state = 1;
    struct pd_span host;
    const uint64_t largest = elements_of(b, Q) * pd_dtype_bytes(b->dtype);
    for (int i = 0; i < ARRAYS; i++) {
        const uint64_t bytes = elements_of(b, i) * (i >= LSE ? sizeof(float) : pd_dtype_bytes(b->dtype));
        PD_TRY(pd_dev_alloc(b->device.dev, PD_DEV_DEVICE, bytes, &b->spans[i], err));
    }
    PD_TRY(pd_dev_alloc(b->device.dev, PD_DEV_HOST, largest, &host, err));
    pd_status st = PD_OK;
    for (int i = 0; !st && i <= DOUT; i++) {
        if (i == OUT) continue;
        attention_fill(b->dtype, host.data, elements_of(b, i), &state);
        st = pd_dev_copy(b->device.dev, b->device.compute, b->spans[i], 0, host, 0, b->spans[i].bytes, err);
        if (!st) st = pd_dev_stream_sync(b->device.dev, b->device.compute, err);
    }
    pd_dev_free(b->device.dev, &host);
    return st;
}

static struct pd_attention attention_of(const struct attention_bench *b, uint64_t length)
{
    return (struct pd_attention){.sequences = (uint32_t)(b->tokens / length),
                                 .length = (uint32_t)length,
                                 .heads = (uint32_t)b->heads,
                                 .kv_heads = (uint32_t)b->kv_heads,
                                 .head_size = (uint32_t)b->head_size,
                                 .dtype = b->dtype,
                                 .scale = 1.0f / sqrtf((float)b->head_size),
                                 .q = b->spans[Q].data,
                                 .k = b->spans[K].data,
                                 .v = b->spans[V].data,
                                 .ld_qkv = b->heads * b->head_size,
                                 .ld_kv = b->kv_heads * b->head_size,
                                 .out = b->spans[OUT].data,
                                 .lse = b->spans[LSE].data,
                                 .dout = b->spans[DOUT].data,
                                 .delta = b->spans[DELTA].data,
                                 .dq = b->spans[DQ].data,
                                 .dk = b->spans[DK].data,
                                 .dv = b->spans[DV].data};
}

/* ---- measuring ---- */

static pd_status call(struct attention_bench *b, const struct pd_attention *a, bool backward, struct pd_error *err)
{
    return backward ? pd_attention_backward(b->math, a, err) : pd_attention_forward(b->math, a, err);
}

/* Time of one call. A GPU gets several back to back: it is idle when the first is queued, and the host's time to launch
 * that one would count. */
static pd_status time_call(struct attention_bench *b, const struct pd_attention *a, bool backward, double *ret_seconds,
                           struct pd_error *err)
{
    const uint32_t together = on_gpu(b) && b->calls > 1 ? TOGETHER : 1;
    double seconds;
    PD_TRY(pd_dev_event_record(b->device.dev, b->begin, b->device.compute, err));
    for (uint32_t i = 0; i < together; i++)
        PD_TRY(call(b, a, backward, err));
    PD_TRY(pd_dev_event_record(b->device.dev, b->end, b->device.compute, err));
    PD_TRY(pd_dev_stream_sync(b->device.dev, b->device.compute, err));
    PD_TRY(pd_dev_event_seconds(b->device.dev, b->begin, b->end, &seconds, err));
    *ret_seconds = seconds / together;
    return PD_OK;
}

/* Median seconds of a call, after two warm-up calls. */
static pd_status seconds_of(struct attention_bench *b, const struct pd_attention *a, bool backward, double *ret_seconds,
                            struct pd_error *err)
{
    double seconds[PD_BENCH_PAIRS_MAX + 2];
    for (uint64_t i = 0; i < b->calls + 2; i++)
        PD_TRY(time_call(b, a, backward, &seconds[i], err));
    *ret_seconds = pd_bench_quantile(seconds + 2, (uint32_t)b->calls, 0.5);
    return PD_OK;
}

/* Downloads the first sequence of every array except lse and delta, with dense rows. */
static pd_status download(struct attention_bench *b, const struct pd_attention *a, struct pd_span *ret_host,
                          struct pd_attention *ret_first, struct pd_error *err)
{
    uint64_t bytes[LSE], all = 0, offset = 0;
    for (int i = 0; i < LSE; i++)
        all += bytes[i] = elements_of(b, i) / a->sequences * pd_dtype_bytes(b->dtype);
    PD_TRY(pd_dev_alloc(b->device.dev, PD_DEV_HOST, all, ret_host, err));
    void *at[LSE];
    for (int i = 0; i < LSE; offset += bytes[i++]) {
        at[i] = (char *)ret_host->data + offset;
        PD_TRY(pd_dev_copy(b->device.dev, b->device.compute, *ret_host, offset, b->spans[i], 0, bytes[i], err));
    }
    *ret_first = *a;
    ret_first->q = at[Q], ret_first->k = at[K], ret_first->v = at[V], ret_first->out = at[OUT], ret_first->dout = at[DOUT];
    ret_first->dq = at[DQ], ret_first->dk = at[DK], ret_first->dv = at[DV];
    return pd_dev_stream_sync(b->device.dev, b->device.compute, err);
}

static pd_status find_errors(struct attention_bench *b, const struct pd_attention *a, struct attention_errors *ret_errors,
                             struct pd_error *err)
{
    struct pd_span host = {0};
    struct pd_attention first;
    PD_TRY(call(b, a, false, err));
    PD_TRY(call(b, a, true, err));
    pd_status st = download(b, a, &host, &first, err);
    if (!st) st = errors_of(&first, ret_errors, err);
    pd_dev_free(b->device.dev, &host);
    return st;
}

static pd_status attention_measure(struct attention_bench *b, uint64_t length, struct timing *ret_timing,
                                   struct pd_error *err)
{
    const struct pd_attention a = attention_of(b, length);
    const double pairs = 0.5 * (double)length * (double)(length + 1) * (double)(a.sequences * b->heads);
    const double forward_operations = 1e-12 * 4 * pairs * (double)b->head_size;
    double forward, backward;
    *ret_timing = (struct timing){.length = length, .sequences = a.sequences};
    PD_TRY(seconds_of(b, &a, false, &forward, err));
    PD_TRY(seconds_of(b, &a, true, &backward, err));
    ret_timing->forward_tflops = forward_operations / forward;
    ret_timing->backward_tflops = 2.5 * forward_operations / backward;
    return find_errors(b, &a, &ret_timing->errors, err);
}

static void report_timing(struct pd_report *r, const struct timing *t)
{
    PD_REPORT_U64S(r, {"length", t->length}, {"sequences", t->sequences});
    pd_report_double(r, "forward_tflops", t->forward_tflops, PD_UNIT_NONE);
    pd_report_double(r, "backward_tflops", t->backward_tflops, PD_UNIT_NONE);
    pd_report_double(r, "forward_error", t->errors.forward, PD_UNIT_NONE);
    pd_report_double(r, "backward_error", t->errors.backward, PD_UNIT_NONE);
}

static pd_status attention_run(struct attention_bench *b, struct pd_error *err)
{
    static const uint64_t lengths[] = {1024, 2048, 4096, 8192};
    struct timing timing;
    struct pd_report r;
    const bool wants_gpu = b->choice == PD_DEVICE_GPU || (b->choice == PD_DEVICE_AUTO && pd_dev_cuda_count() > 0);
    PD_TRY(wants_gpu ? pd_dev_open_cuda(0, &b->device.dev, err) : pd_dev_open_cpu(&b->device.dev, err));
    PD_TRY(pd_dev_enter(b->device.dev, err));
    PD_TRY(pd_dev_stream_new(b->device.dev, &b->device.compute, err));
    PD_TRY(pd_dev_event_new(b->device.dev, &b->begin, err));
    PD_TRY(pd_dev_event_new(b->device.dev, &b->end, err));
    PD_TRY(on_gpu(b) ? PD_OK : pd_thread_pool_new(pd_cpu_cores(), &b->pool, err));
    PD_TRY(make_operands(b, err));
    const struct pd_attention largest = attention_of(b, b->length ? b->length : lengths[0]);
    struct pd_arena *dry = NULL;
    struct pd_memory_plan plan;
    PD_TRY(pd_arena_new_dry(&dry, err));
    pd_status st = take_math(b, &largest, dry, err);
    pd_arena_usage(dry, &plan);
    pd_arena_free(dry);
    const struct pd_arena_source source = pd_rank_device_source(&b->device);
    if (!st) st = on_gpu(b) ? pd_arena_new_on(&plan, &source, &b->arena, err) : pd_arena_new(&plan, &b->arena, err);
    PD_TRY(st ? st : take_math(b, &largest, b->arena, err));
    char kernels[96];
    snprintf(kernels, sizeof kernels, "%s", pd_isa_name(b->math->isa));
    if (on_gpu(b)) pd_math_cuda_kernels(b->device.dev->capability, &largest, kernels, sizeof kernels);
    pd_report_begin(&r, b->json);
    pd_report_text(&r, "device", b->device.dev->description);
    pd_report_text(&r, "kernels", kernels);
    pd_report_text(&r, "precision", precisions[b->precision]);
    pd_json_array_begin(&r.writer, "runs");
    for (uint32_t i = 0; i < (b->length ? 1 : 4) && (b->length || lengths[i] <= b->tokens); i++) {
        PD_TRY(attention_measure(b, b->length ? b->length : lengths[i], &timing, err));
        if (r.is_json) pd_json_object_begin(&r.writer, NULL);
        report_timing(&r, &timing);
        if (r.is_json) pd_json_object_end(&r.writer);
        fflush(stdout); /* minutes pass between lines on a CPU */
    }
    pd_json_array_end(&r.writer);
    if (b->json) report_timing(&r, &timing);
    return pd_report_end(&r, err);
}

/* ---- options ---- */

pd_status pd_bench_attention(int argc, char **argv, struct pd_error *err)
{
    struct attention_bench b = {.tokens = 16384, .heads = 16, .kv_heads = 4, .head_size = 128, .calls = 9};
    struct pd_option options[] = {
        PD_OPTION("length", "N", "tokens of a sequence (1024, 2048, 4096 and 8192, one after the other)", PD_OPTION_U64,
                  &b.length, 1, 1 << 20),
        PD_OPTION("tokens", "N", "tokens of a call (16384)", PD_OPTION_U64, &b.tokens, 1, 1 << 20),
        PD_OPTION("heads", "N", "query heads (16)", PD_OPTION_U64, &b.heads, 1, 256),
        PD_OPTION("kv-heads", "N", "key-value heads (4)", PD_OPTION_U64, &b.kv_heads, 1, 256),
        PD_OPTION("head-size", "N", "(128)", PD_OPTION_U64, &b.head_size, 1, 256),
        PD_OPTION("calls", "N", "measured calls, 1 to 99 (9)", PD_OPTION_U64, &b.calls, 1, PD_BENCH_PAIRS_MAX),
        PD_OPTION("device", "NAME", "auto, cpu or gpu (auto)", PD_OPTION_CHOICE, &b.choice, .expected = "auto, cpu or gpu"),
        PD_OPTION("precision", "NAME", "bf16, fp16 or fp32 (bf16)", PD_OPTION_CHOICE, &b.precision,
                  .expected = "bf16, fp16 or fp32"),
        {0}};
    const struct pd_usage usage = {
        .doc = "Attention alone, forward and backward, in TFLOP/s of the pairs that causal attention looks at. "
               "forward_tflops and backward_tflops are for the longest sequences; forward_error and backward_error compare "
               "some rows with float64. PERDURE_ATTENTION=mma, wgmma, onepass or plain asks for other kernels.",
        .options = options,
        .json = &b.json};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    static const enum pd_dtype dtypes[] = {PD_BF16, PD_F16, PD_F32};
    b.dtype = dtypes[b.precision];
    if (b.heads % b.kv_heads != 0)
        PD_FAIL(err, PD_USAGE, "--heads=%llu does not divide by --kv-heads=%llu: give a multiple of it",
                (unsigned long long)b.heads, (unsigned long long)b.kv_heads);
    if (b.tokens < (b.length ? b.length : 1024))
        PD_FAIL(err, PD_USAGE, "--tokens=%llu is less than a sequence of %llu: give more, or a --length",
                (unsigned long long)b.tokens, (unsigned long long)(b.length ? b.length : 1024));
    const pd_status st = attention_run(&b, err);
    attention_release(&b);
    if (st != PD_NO_MEMORY) return st;
    const struct pd_error why = *err;
    PD_FAIL(err, PD_INVALID, "bench attention: %.600s; take fewer --tokens, or end what else uses the memory", why.message);
}
