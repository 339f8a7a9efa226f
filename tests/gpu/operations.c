/* Every operation on the CPU's table and on a GPU's, against float64: `gpu_operations`.
 *
 * Operands are random values of the activation type; errors are norms of differences over norms of what is wanted. The GPU's
 * must be within the tolerance of the type, and a second call must have the bits of the first. Where there is no GPU the
 * exit code is 77. The same program runs over simulated GPUs (tests/simt) with smaller sizes.
 *
 * A kernel that breaks takes its process with it, or hangs it: rows run in a process of their own that begins anew behind
 * the row that broke. `gpu_operations --from N` is that process, and what a checker of memory is to look at. */
#include "tests/gpu/operation_cases.h"
#include "tests/gpu/survivor.h"

#include "ckpt/base/half.h"
#include "offload/device.h"
#include "trainer/engine/rank_device.h"
#include "trainer/math/fp8.h"
#include "trainer/math/math_cuda.h"

#include <math.h>
#include <perdure_source_id.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SKIPPED = 77, SIZES = 4, LIMIT_SECONDS = 120 };

static const struct sizes small_sizes[] = {{2, 37, 48, 61, 4, 2, 16, 40}, {1, 70, 128, 257, 2, 1, 64, 96}},
                          large_sizes[SIZES] = {{2, 37, 48, 61, 4, 2, 16, 40},
                                                {1, 70, 128, 257, 2, 1, 64, 96},
                                                {2, 300, 768, 1009, 12, 4, 64, 2048},
                                                {1, 513, 1024, 2048, 8, 2, 128, 1536}},
                          attention_sizes[] = {{1, 1024, 64, 64, 7, 1, 64, 64}, {1, 1021, 64, 64, 7, 1, 128, 64}};

struct bench {
    struct pd_rank_device device;
    struct pd_thread_pool *pool;
    struct pd_arena *arenas[2];
    struct pd_math *math[2];    /* of the CPU, of the GPU */
    struct survivor_child rows; /* those behind `from` are run */
    const char *kernels;        /* of attention; NULL: what the device gets */
    uint32_t failed, tried, skipped;
};

/* One operand in all its places. */
struct array {
    struct value value;
    void *host, *out[3]; /* as it goes in; as the CPU and the GPU, twice, left it */
    struct pd_span far;
    uint64_t count, bytes;
    enum kind kind;
    enum pd_dtype act;
};

#define MUST(CALL)                                                            \
    do {                                                                      \
        struct pd_error err_ = {0}, *err = &err_;                             \
        if (CALL) {                                                           \
            fprintf(stderr, "gpu_operations: %s: %s\n", #CALL, err->message); \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

/* ---- tables ---- */

static pd_status table(struct bench *b, int side, const struct sizes *s, enum pd_dtype act, struct pd_arena *arena,
                       struct pd_error *err)
{
    const struct pd_attention largest = {.sequences = (uint32_t)s->sequences,
                                         .length = (uint32_t)s->length,
                                         .heads = (uint32_t)s->heads,
                                         .kv_heads = (uint32_t)s->kv_heads,
                                         .head_size = (uint32_t)s->head_size,
                                         .dtype = act};
    const struct pd_math_cuda_options cuda = {.stream = pd_dev_stream_handle(b->device.dev, b->device.compute),
                                              .attention = &largest};
    return side ? pd_math_cuda_new(&cuda, arena, &b->math[1], err)
                : pd_math_cpu_new(b->pool, 1, PD_ISA_AUTO, arena, &b->math[0], err);
}

static void open_tables(struct bench *b, const struct sizes *s, enum pd_dtype act)
{
    const struct pd_arena_source source = pd_rank_device_source(&b->device);
    for (int side = 0; side < 2; side++) {
        struct pd_arena *dry;
        struct pd_memory_plan plan;
        MUST(pd_arena_new_dry(&dry, err));
        MUST(table(b, side, s, act, dry, err));
        pd_arena_usage(dry, &plan);
        pd_arena_free(dry);
        MUST(side ? pd_arena_new_on(&plan, &source, &b->arenas[side], err) : pd_arena_new(&plan, &b->arenas[side], err));
        MUST(table(b, side, s, act, b->arenas[side], err));
    }
}

static void close_tables(struct bench *b)
{
    for (int side = 0; side < 2; side++) {
        pd_math_free(b->math[side]);
        pd_arena_free(b->arenas[side]);
    }
}

/* ---- operands ---- */

static uint64_t next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return *state >> 33;
}

/* From -1 to 1, four of them: a hump. */
static double draw(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)next(state) * 0x1p-30 - 1;
    return sum / 1.16;
}

static enum pd_dtype dtype_of(const struct array *a)
{
    return a->kind == ACT ? a->act : a->kind == BF16 ? PD_BF16 : PD_F32;
}

static uint64_t element_bytes(const struct array *a)
{
    if (a->kind == F64) return sizeof(double);
    return a->kind == E4M3 || a->kind == E5M2 ? 1 : pd_dtype_bytes(dtype_of(a));
}

static bool is_number(const struct array *a)
{
    return a->kind >= TOKENS;
}

static double element(const struct array *a, const void *data, uint64_t i)
{
    if (a->kind == F64) return ((const double *)data)[i];
    if (a->kind == E4M3) return (double)pd_f32_of_fp8(PD_FP8_E4M3, ((const uint8_t *)data)[i]);
    if (a->kind == E5M2) return (double)pd_f32_of_fp8(PD_FP8_E5M2, ((const uint8_t *)data)[i]);
    if (dtype_of(a) == PD_F32) return (double)((const float *)data)[i];
    const uint16_t half = ((const uint16_t *)data)[i];
    return (double)(dtype_of(a) == PD_BF16 ? pd_f32_from_bf16(half) : pd_f32_from_f16(half));
}

static void put(enum pd_dtype dtype, void *data, uint64_t i, double x)
{
    if (dtype == PD_F32)
        ((float *)data)[i] = (float)x;
    else
        ((uint16_t *)data)[i] = dtype == PD_BF16 ? pd_bf16_from_f32((float)x) : pd_f16_from_f32((float)x);
}

static int32_t number(enum kind kind, const struct sizes *s, uint64_t i, uint64_t *state)
{
    const uint64_t t = i % s->length;
    const int32_t token = (int32_t)(next(state) % s->vocab);
    if (kind == POSITIONS) return (int32_t)t;
    if (kind == FIRST) return t < s->length / 3 ? 0 : (int32_t)(s->length / 3); /* two documents */
    return kind == TARGETS && i % 11 == 5 ? -1 : token;
}

static struct array array_new(struct bench *b, const struct operand *o, const struct sizes *s, enum pd_dtype act,
                              uint64_t *state)
{
    struct array a = {.count = o->count(s), .kind = o->kind, .act = act};
    a.bytes = a.count * element_bytes(&a);
    a.host = malloc(a.bytes);
    a.value.exact = calloc(a.count, sizeof(double));
    a.value.numbers = a.host;
    for (int i = 0; i < 3; i++)
        a.out[i] = malloc(a.bytes);
    MUST(pd_dev_alloc(b->device.dev, PD_DEV_DEVICE, a.bytes, &a.far, err));
    memset(a.host, 0xfb, a.bytes); /* what is only written was poison */
    const bool is_drawn = o->role != OUT && (o->kind == ACT || o->kind == F32 || is_number(&a));
    for (uint64_t i = 0; i < a.count && is_drawn; i++) {
        if (is_number(&a)) {
            a.value.numbers[i] = number(o->kind, s, i, state);
            continue;
        }
        const double x = o->deviation < 0 ? fabs(o->deviation * draw(state)) : o->deviation * draw(state);
        put(dtype_of(&a), a.host, i, x);
        a.value.exact[i] = element(&a, a.host, i);
    }
    return a;
}

static void array_free(struct bench *b, struct array *a)
{
    pd_dev_free(b->device.dev, &a->far);
    free(a->host);
    free(a->value.exact);
    for (int i = 0; i < 3; i++)
        free(a->out[i]);
}

/* ---- one operation ---- */

/* Through pinned memory. */
static void move(struct bench *b, struct array *a, void *host, bool to_device)
{
    struct pd_span near;
    MUST(pd_dev_alloc(b->device.dev, PD_DEV_HOST, a->bytes, &near, err));
    if (to_device) memcpy(near.data, host, a->bytes);
    if (to_device)
        MUST(pd_dev_copy(b->device.dev, b->device.compute, a->far, 0, near, 0, a->bytes, err));
    else
        MUST(pd_dev_copy(b->device.dev, b->device.compute, near, 0, a->far, 0, a->bytes, err));
    MUST(pd_rank_device_sync(&b->device, err));
    if (!to_device) memcpy(host, near.data, a->bytes);
    pd_dev_free(b->device.dev, &near);
}

static void run_on_cpu(struct bench *b, const struct operation *o, const struct sizes *s, enum pd_dtype act,
                       struct array *arrays, int count)
{
    void *data[OPERANDS_MAX];
    for (int i = 0; i < count; i++)
        data[i] = memcpy(arrays[i].out[0], arrays[i].host, arrays[i].bytes);
    MUST(o->run(b->math[0], s, act, data, err));
}

static void run_on_gpu(struct bench *b, const struct operation *o, const struct sizes *s, enum pd_dtype act,
                       struct array *arrays, int count, int out)
{
    void *data[OPERANDS_MAX];
    for (int i = 0; i < count; i++) {
        move(b, &arrays[i], arrays[i].host, true);
        data[i] = arrays[i].far.data;
    }
    MUST(o->run(b->math[1], s, act, data, err));
    MUST(pd_math_sync(b->math[1], err));
    for (int i = 0; i < count; i++)
        move(b, &arrays[i], arrays[i].out[out], false);
}

static double error_of(const struct array *a, const void *got)
{
    double difference = 0, size = 0;
    for (uint64_t i = 0; i < a->count; i++) {
        const double d = element(a, got, i) - a->value.exact[i];
        difference += d * d;
        size += a->value.exact[i] * a->value.exact[i];
    }
    return sqrt(difference) / (sqrt(size) + 1e-30); /* NaN where one was written, or none at all */
}

static double tolerance_of(enum pd_dtype dtype)
{
    return dtype == PD_F32 ? 3e-6 : dtype == PD_BF16 ? 4e-3 : 6e-4;
}

/* PERDURE_OPERATIONS_ATTENTION=CALLS: rows of attention alone, at lengths where tiles are many, each called so often. */
static unsigned long attention_calls(unsigned long otherwise)
{
    const char *calls = getenv("PERDURE_OPERATIONS_ATTENTION");
    const unsigned long wanted = calls ? strtoul(calls, NULL, 10) : 0;
    return wanted ? wanted : otherwise;
}

static bool has_same_bits(const struct operation *o, const struct array *arrays, int count)
{
    for (int i = 0; i < count; i++)
        if (o->operands[i].role != IN && memcmp(arrays[i].out[1], arrays[i].out[2], arrays[i].bytes) != 0) return false;
    return true;
}

static void check(struct bench *b, const struct operation *o, const struct sizes *s, enum pd_dtype act)
{
    struct array arrays[OPERANDS_MAX];
    struct value values[OPERANDS_MAX];
    uint64_t state = 1 + s->length;
    double worst_cpu = 0, worst_gpu = 0;
    bool is_same = true;
    int count = 0;
    for (; count < OPERANDS_MAX && o->operands[count].kind != NO_OPERAND; count++) {
        arrays[count] = array_new(b, &o->operands[count], s, act, &state);
        values[count] = arrays[count].value;
    }
    run_on_cpu(b, o, s, act, arrays, count);
    survivor_hurry(&b->rows, LIMIT_SECONDS);
    run_on_gpu(b, o, s, act, arrays, count, 1);
    for (unsigned long i = 0; i < attention_calls(2) - 1 && is_same; i++) {
        run_on_gpu(b, o, s, act, arrays, count, 2);
        is_same = has_same_bits(o, arrays, count);
    }
    survivor_hurry(&b->rows, 0);
    o->exact(s, values);
    for (int i = 0; i < count; i++) {
        if (o->operands[i].role == IN) continue;
        const double cpu = error_of(&arrays[i], arrays[i].out[0]), gpu = error_of(&arrays[i], arrays[i].out[1]);
        if (!(cpu <= worst_cpu)) worst_cpu = cpu;
        if (!(gpu <= worst_gpu)) worst_gpu = gpu;
    }
    const double tolerance = o->tolerance > 0 ? o->tolerance : tolerance_of(act) * (o->slack > 0 ? o->slack : 1);
    const bool is_good = worst_cpu <= tolerance && worst_gpu <= tolerance && is_same;
    printf("%s %-20s %-5s %-4s R %4llu C %4llu D %3llu  CPU %.2e  GPU %.2e  at most %.1e%s\n", is_good ? "ok  " : "FAIL",
           o->name, b->kernels ? b->kernels : "", pd_dtype_name(act), (unsigned long long)(s->sequences * s->length),
           (unsigned long long)s->columns, (unsigned long long)s->head_size, worst_cpu, worst_gpu, tolerance,
           is_same ? "" : ", another call has other bits");
    b->tried++;
    b->failed += !is_good;
    for (int i = 0; i < count; i++)
        array_free(b, &arrays[i]);
}

static void check_all(struct bench *b, const struct operation *first, const struct sizes *s, enum pd_dtype act)
{
    const uint32_t capability = b->device.dev->capability;
    for (const struct operation *o = first; o->name; o++) {
        char what[96];
        if ((b->kernels || attention_calls(0)) && strncmp(o->name, "attention", 9) != 0) continue;
        snprintf(what, sizeof what, "%s %s %s of %llu x %llu", o->name, b->kernels ? b->kernels : "", pd_dtype_name(act),
                 (unsigned long long)s->length, (unsigned long long)s->head_size);
        if (!survivor_next(&b->rows, what)) continue;
        if (capability >= o->capability) {
            check(b, o, s, act);
            continue;
        }
        printf("skip %-20s %-4s needs compute capability %u.%u, and this is %u.%u\n", o->name, pd_dtype_name(act),
               o->capability / 10, o->capability % 10, capability / 10, capability % 10);
        b->skipped++;
    }
}

static void check_sizes(struct bench *b, const char *kernels, const struct sizes *sizes, size_t count)
{
    static const enum pd_dtype dtypes[] = {PD_F32, PD_BF16, PD_F16};
    b->kernels = kernels;
    if (kernels) setenv("PERDURE_ATTENTION", kernels, 1);
    for (size_t i = 0; i < count; i++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            if (attention_calls(0) && dtypes[d] != PD_BF16) continue;
            open_tables(b, &sizes[i], dtypes[d]);
            check_all(b, operations, &sizes[i], dtypes[d]);
            check_all(b, more_operations, &sizes[i], dtypes[d]);
            close_tables(b);
        }
}

static int skip(void)
{
    struct pd_dev *dev;
    struct pd_error why = {0};
    if (!pd_dev_open_cuda(0, &dev, &why)) pd_dev_close(dev);
    printf("skipped: %s\n", why.message);
    return SKIPPED;
}

/* Of attention: what other devices get, and what has no tensor cores. */
static const char *const *other_kernels(bool is_simulated, uint32_t capability)
{
    static const char *const simulated[] = {"wgmma", "onepass", NULL}, *const hopper[] = {"mma", "plain", "onepass", NULL},
                             *const others[] = {"plain", NULL}, *const none[] = {NULL};
    if (getenv("PERDURE_ATTENTION")) return none;
    if (capability < 90) return others; /* wgmma's blocks have no room there, simulated or not */
    return is_simulated ? simulated : capability == 90 ? hopper : others;
}

static int check_rows(const struct survivor_child *rows)
{
    struct bench b = {.rows = *rows};
    if (!pd_dev_cuda_count()) return skip();
    MUST(pd_rank_device_open(PD_DEVICE_GPU, 0, NULL, &b.device, err));
    MUST(pd_thread_pool_new(1, &b.pool, err));
    const bool is_simulated = strstr(b.device.dev->description, "simulated") != NULL;
    const struct sizes *sizes = is_simulated ? small_sizes : attention_calls(0) ? attention_sizes : large_sizes;
    const size_t count = sizes == large_sizes ? SIZES : 2;
    pd_numerics_thread_init();
    check_sizes(&b, NULL, sizes, count);
    for (const char *const *other = other_kernels(is_simulated, b.device.dev->capability); *other; other++)
        check_sizes(&b, *other, sizes, count);
    printf("%s: %u operations, %u beyond their tolerance or with other bits another time, %u skipped\n",
           b.device.dev->description, b.tried, b.failed, b.skipped);
    pd_thread_pool_free(b.pool);
    pd_rank_device_close(&b.device);
    survivor_done(&b.rows);
    return b.failed ? 1 : 0;
}

int main(int count, char **arguments)
{
    struct survivor_child rows;
    if (survivor_is_child(count, arguments, &rows)) return check_rows(&rows);
    if (count == 2 && strcmp(arguments[1], "--version") == 0) {
        printf("gpu_operations %s (%s)\n", PERDURE_VERSION, PERDURE_SOURCE_ID);
        return 0;
    }
    if (count > 1) {
        fprintf(stderr, "usage: gpu_operations [--from ROW], or --version\n");
        return 64;
    }
    return survivor_run();
}
