/* perdure bench adam: the CPU's AdamW update against the STREAM triad (McCalpin 1995) on the same cores and memory. With
 * ordinary stores the processor first fetches each line, 8 bytes that STREAM does not count; with streaming stores it
 * does not. So every pair runs the triad both ways, and the faster one is the ceiling. */
#include "ckpt/base/arena.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/half.h"
#include "ckpt/base/words.h"
#include "offload/cpu_adam.h"
#include "tools/bench/bench.h"
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define TRIAD_BYTES 12.0 /* a parameter's place in memory: half a double */
#define PIECE (UINT64_C(64) << 10)
#define ARRAYS 4
#define GAP_BYTES (3 * 4096) /* between arrays */

struct adam_bench {
    uint64_t elements, pairs;
    uint32_t threads_max;
    bool json, streams; /* streams: use streaming stores in the triad */
    bool has_copy;      /* currently: AdamW also writes a bf16 copy */
    enum pd_isa isa;
    enum pd_dtype moments;
    struct pd_thread_pool *pool;
    float *arrays[ARRAYS]; /* (elements) each: parameter, two moments, gradient; the triad uses three of them */
    uint16_t *copy;        /* (elements) */
};

static void triad_stores(uint64_t n, double *restrict a, const double *restrict x, const double *restrict y)
{
    for (uint64_t i = 0; i < n; i++)
        a[i] = x[i] + 0.5 * y[i];
}

/* Bypasses the caches if the processor can. */
static void triad_streams(uint64_t n, double *restrict a, const double *restrict x, const double *restrict y)
{
#if defined(__x86_64__)
    const __m128d half = _mm_set1_pd(0.5);
    for (uint64_t i = 0; i + 2 <= n; i += 2)
        _mm_stream_pd(a + i, _mm_add_pd(_mm_load_pd(x + i), _mm_mul_pd(half, _mm_load_pd(y + i))));
    _mm_sfence();
#else
    triad_stores(n, a, x, y);
#endif
}

static void triad_piece(void *context, uint64_t index)
{
    struct adam_bench *b = context;
    uint64_t from = index * PIECE, n = b->elements - from < PIECE ? b->elements - from : PIECE;
    double *a = (double *)(void *)(b->arrays[0] + from);
    const double *x = (const double *)(const void *)(b->arrays[1] + from);
    const double *y = (const double *)(const void *)(b->arrays[3] + from);
    (b->streams ? triad_streams : triad_stores)(n / 2, a, x, y);
}

/* The faster way counts. Both sides return seconds over the bytes they count per parameter. */
static pd_status run_triad(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct adam_bench *b = bench;
    double seconds[2];
    (void)err;
    for (int streams = 0; streams < 2; streams++) {
        b->streams = streams;
        uint64_t start = pd_clock_monotonic_ns(NULL);
        pd_parallel(b->pool, pd_divide_up(b->elements, PIECE), triad_piece, b);
        seconds[streams] = pd_clock_seconds_since(start);
    }
    *ret_seconds = (seconds[0] < seconds[1] ? seconds[0] : seconds[1]) / TRIAD_BYTES;
    return PD_OK;
}

static pd_status run_adam(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct adam_bench *b = bench;
    const struct pd_update_config config = {
        .rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .scale = 1, .step = 10};
    const struct pd_adam_step step = pd_adam_step_make(&config);
    const struct pd_update_range range = {.n = b->elements,
                                          .decay = true,
                                          .param = b->arrays[0],
                                          .exp_avg = b->arrays[1],
                                          .exp_avg_sq = b->arrays[2],
                                          .grad = b->arrays[3],
                                          .copy = b->has_copy ? b->copy : NULL,
                                          .copy_dtype = PD_BF16,
                                          .moments = b->moments,
                                          .place = {.columns = 1, .stride = 1}};
    const double touched = 2.0 * pd_kinds_bytes(b->moments) + sizeof(float);
    (void)err;
    uint64_t start = pd_clock_monotonic_ns(NULL);
    pd_cpu_adam(b->pool, b->isa, &step, &range);
    *ret_seconds = pd_clock_seconds_since(start) / (touched + (b->has_copy ? 2 : 0));
    return PD_OK;
}

static void fill_piece(void *context, uint64_t index)
{
    struct adam_bench *b = context;
    for (uint64_t i = index * PIECE; i < b->elements && i < (index + 1) * PIECE; i++) {
        for (int a = 0; a < ARRAYS; a++) {
            const float value = (float)((i * 2654435761u + (uint64_t)a) % 1000 + 1) * 1e-3f;
            if (b->moments == PD_BF16 && (a == 1 || a == 2))
                ((uint16_t *)(void *)b->arrays[a])[i] = pd_bf16_from_f32(value);
            else
                b->arrays[a][i] = value;
        }
        b->copy[i] = 0;
    }
}

static pd_status adam_measure(struct adam_bench *b, uint32_t threads, struct pd_pairs_summary ret_results[2],
                              struct pd_error *err)
{
    PD_TRY(pd_thread_pool_new(threads, &b->pool, err));
    pd_parallel(b->pool, pd_divide_up(b->elements, PIECE), fill_piece, b);
    for (int copy = 0; copy < 2; copy++) {
        struct pd_pairs pairs = {0};
        b->has_copy = copy;
        while (pairs.count < b->pairs)
            PD_TRY(pd_pairs_measure(&pairs, b, run_adam, run_triad, err));
        ret_results[copy] = pd_pairs_summarise_throughput(&pairs);
    }
    pd_thread_pool_free(b->pool);
    b->pool = NULL;
    return PD_OK;
}

static void report_threads(const struct adam_bench *b, struct pd_report *r, uint32_t threads,
                           const struct pd_pairs_summary results[2])
{
    pd_report_say(r, "%s: triad %.1f GB/s", pd_counted(threads, "thread").text,
                  1e-9 * (double)b->elements / results[0].ceiling_s);
    if (r->is_json) pd_json_object_begin(&r->writer, NULL);
    if (r->is_json) pd_json_u64(&r->writer, "threads", threads);
    pd_report_double(r, "adam_bytes_per_second", (double)b->elements / results[0].candidate_s, PD_UNIT_BYTES_PER_SECOND);
    pd_bench_report_ratio(r, "ratio", &results[0]);
    pd_bench_report_ratio(r, "ratio_bf16_copy", &results[1]);
    if (r->is_json) pd_json_object_end(&r->writer);
}

static pd_status adam_measure_all(struct adam_bench *b, struct pd_error *err)
{
    struct pd_report r;
    double least = 1e9;
    pd_report_begin(&r, b->json);
    pd_json_array_begin(&r.writer, "runs");
    for (uint32_t threads = 1; threads <= b->threads_max; threads *= 2) {
        struct pd_pairs_summary results[2];
        PD_TRY(adam_measure(b, threads, results, err));
        for (int copy = 0; copy < 2; copy++)
            least = results[copy].ratio < least ? results[copy].ratio : least;
        report_threads(b, &r, threads, results);
    }
    pd_json_array_end(&r.writer);
    pd_report_double(&r, "triad_ratio", least, PD_UNIT_NONE);
    PD_REPORT_U64S(&r, {"elements", b->elements}, {"pairs", b->pairs});
    pd_report_text(&r, "moments", pd_dtype_name(b->moments));
    pd_report_text(&r, "isa", pd_isa_name(b->isa));
    return pd_report_end(&r, err);
}

/* Allocates as training does: huge pages if available. Arrays of 2^k elements would be 2^(k+2) bytes apart, which is
 * slower (offload/README.md), so a gap follows each. */
static pd_status adam_take(struct adam_bench *b, struct pd_arena **ret_arena, struct pd_error *err)
{
    const uint64_t bytes = pd_round_up(b->elements * sizeof(float), 4096) + GAP_BYTES;
    struct pd_memory_plan plan = {.bytes = {[PD_MEMORY_OPTIMIZER] = (ARRAYS + 1) * bytes}};
    PD_TRY(pd_arena_new(&plan, ret_arena, err));
    for (int a = 0; a < ARRAYS; a++)
        b->arrays[a] = pd_arena_take(*ret_arena, PD_MEMORY_OPTIMIZER, bytes);
    b->copy = pd_arena_take(*ret_arena, PD_MEMORY_OPTIMIZER, bytes / 2);
    return PD_OK;
}

pd_status pd_bench_adam(int argc, char **argv, struct pd_error *err)
{
    struct adam_bench b = {.elements = UINT64_C(32) << 20, .pairs = 9, .threads_max = 2};
    struct pd_option options[] = {
        PD_OPTION("elements", "N", "parameters, 20 bytes of memory each (33554432)", PD_OPTION_U64, &b.elements, PIECE,
                  UINT64_C(1) << 34),
        PD_OPTION("pairs", "N", "alternated pairs of measurements, 1 to 99 (9)", PD_OPTION_U64, &b.pairs, 1,
                  PD_BENCH_PAIRS_MAX),
        PD_OPTION("threads", "N", "1, 2, 4, ... up to this many (2)", PD_OPTION_U32, &b.threads_max, 1, 1024),
        PD_OPTION("moments", "TYPE", "fp32 (default) or bf16: optimizer.moments", PD_OPTION_CHOICE, &b.moments,
                  .expected = "fp32 or bf16"),
        {0}};
    const struct pd_usage usage = {
        .doc = "The AdamW update of the CPU against the STREAM triad of the same cores, alternated, by bytes touched: 28 a "
               "parameter, 20 with moments in bf16, 2 more with a bf16 copy, 24 for an element of the triad in doubles, "
               "with or without streaming "
               "stores, whichever is faster. triad_ratio: bandwidth of ours over the triad's, the least of all runs.",
        .options = options,
        .json = &b.json};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    PD_TRY(pd_isa_resolve(PD_ISA_AUTO, &b.isa, err));
    struct pd_arena *arena = NULL;
    pd_status st = adam_take(&b, &arena, err);
    if (!st) st = adam_measure_all(&b, err);
    pd_arena_free(arena);
    return st;
}
