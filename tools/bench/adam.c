/* perdure bench adam: the AdamW update of the CPU against the STREAM triad (McCalpin 1995) on the same cores and memory.
 *
 * Both count what a program reads and writes, once each: the triad as STREAM does, 24 bytes for a = b + s * c in doubles;
 * AdamW 28 a parameter (three fp32 arrays read and written, the gradient read), and the working copy's 2 on top. An ordinary
 * store of the triad makes the processor fetch the line first, 8 bytes that STREAM does not count; a streaming store does
 * not. So the triad runs both ways in every pair, and the faster of the two is the ceiling. AdamW writes only lines that it
 * has read, except the copy. */
#include "ckpt/base/arena.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/parse.h"
#include "offload/cpu_adam.h"
#include "tools/bench/bench.h"
#include "tools/command.h"
#include "tools/output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define TRIAD_BYTES 12.0 /* a parameter's place in memory: half a double */
#define ADAM_BYTES 28.0
#define PIECE (UINT64_C(64) << 10)
#define ARRAYS 4
enum copy { COPY_NONE, COPY_BF16, COPIES };
static const char *const copy_names[COPIES] = {"fp32", "fp32 and a bf16 copy"};

struct adam_bench {
    uint64_t elements, pairs, threads_max, gap_pages;
    bool json, streams; /* streams: how the triad stores */
    enum pd_isa isa;
    struct pd_thread_pool *pool;
    float *arrays[ARRAYS]; /* (elements) each: parameter, two moments, gradient; the triad uses three of them */
    uint16_t *copy;        /* (elements) */
};

static void triad_stores(uint64_t n, double *restrict a, const double *restrict x, const double *restrict y)
{
    for (uint64_t i = 0; i < n; i++)
        a[i] = x[i] + 0.5 * y[i];
}

/* Past the caches where the processor can. */
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

/* Either way, the faster counts. */
static double run_triad(struct adam_bench *b)
{
    double seconds[2];
    for (int streams = 0; streams < 2; streams++) {
        b->streams = streams;
        uint64_t start = pd_clock_monotonic_ns(NULL);
        pd_parallel(b->pool, (b->elements + PIECE - 1) / PIECE, triad_piece, b);
        seconds[streams] = pd_clock_seconds_since(NULL, start);
    }
    return seconds[0] < seconds[1] ? seconds[0] : seconds[1];
}

static double run_adam(struct adam_bench *b, enum copy copy)
{
    const struct pd_adam_config config = {
        .rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .scale = 1, .step = 10};
    const struct pd_adam_step step = pd_adam_step_make(&config);
    const struct pd_adam_range range = {.n = b->elements,
                                        .decay = true,
                                        .param = b->arrays[0],
                                        .exp_avg = b->arrays[1],
                                        .exp_avg_sq = b->arrays[2],
                                        .grad = b->arrays[3],
                                        .copy = copy == COPY_BF16 ? b->copy : NULL,
                                        .copy_dtype = PD_BF16};
    uint64_t start = pd_clock_monotonic_ns(NULL);
    pd_cpu_adam(b->pool, b->isa, &step, &range);
    return pd_clock_seconds_since(NULL, start);
}

static void fill_piece(void *context, uint64_t index)
{
    struct adam_bench *b = context;
    for (uint64_t i = index * PIECE; i < b->elements && i < (index + 1) * PIECE; i++) {
        for (int a = 0; a < ARRAYS; a++)
            b->arrays[a][i] = (float)((i * 2654435761u + (uint64_t)a) % 1000 + 1) * 1e-3f;
        b->copy[i] = 0;
    }
}

/* Seconds of each side over the bytes that it counts a parameter. */
static void run_pair(struct adam_bench *b, uint64_t pair, enum copy copy, struct pd_pairs *pairs)
{
    double seconds[2];
    for (unsigned turn = 0; turn < 2; turn++) {
        bool candidate = (pair + turn) % 2;
        seconds[candidate] = candidate ? run_adam(b, copy) : run_triad(b);
    }
    double bytes = ADAM_BYTES + (copy == COPY_BF16 ? 2 : 0);
    pd_pairs_add(pairs, seconds[1] / bytes, seconds[0] / TRIAD_BYTES);
}

static pd_status measure(struct adam_bench *b, unsigned threads, struct pd_pairs_summary *ret_results, struct pd_error *err)
{
    PD_TRY(pd_thread_pool_new(threads, &b->pool, err));
    pd_parallel(b->pool, (b->elements + PIECE - 1) / PIECE, fill_piece, b);
    for (int copy = 0; copy < COPIES; copy++) {
        struct pd_pairs pairs = {0};
        for (uint64_t pair = 0; pair < b->pairs; pair++)
            run_pair(b, pair, (enum copy)copy, &pairs);
        ret_results[copy] = pd_pairs_summarise_throughput(&pairs);
    }
    pd_thread_pool_free(b->pool);
    b->pool = NULL;
    return PD_OK;
}

static void print(const struct adam_bench *b, unsigned threads, const struct pd_pairs_summary *results)
{
    for (int copy = 0; copy < COPIES; copy++)
        printf("AdamW %s, %u thread%s: %.1f GB/s, triad %.1f GB/s, ratio %.2f (%.2f to %.2f over %llu pairs)\n",
               copy_names[copy], threads, threads == 1 ? "" : "s", 1e-9 * (double)b->elements / results[copy].candidate_s,
               1e-9 * (double)b->elements / results[copy].ceiling_s, results[copy].ratio, results[copy].ratio_low,
               results[copy].ratio_high, (unsigned long long)b->pairs);
}

static void print_json(struct pd_json_writer *w, unsigned threads, const struct pd_pairs_summary *results)
{
    pd_json_object_begin(w, NULL);
    pd_json_u64(w, "threads", threads);
    pd_bench_json_ratio(w, "ratio", &results[COPY_NONE]);
    pd_bench_json_ratio(w, "ratio_bf16_copy", &results[COPY_BF16]);
    pd_json_object_end(w);
}

static pd_status measure_all(struct adam_bench *b, struct pd_error *err)
{
    struct pd_json_writer w;
    double least = 1e9;
    if (b->json) {
        pd_json_writer_init(&w, 2);
        pd_json_object_begin(&w, NULL);
        pd_json_array_begin(&w, "runs");
    }
    for (unsigned threads = 1; threads <= b->threads_max; threads *= 2) {
        struct pd_pairs_summary results[COPIES];
        PD_TRY(measure(b, threads, results, err));
        for (int copy = 0; copy < COPIES; copy++)
            least = results[copy].ratio < least ? results[copy].ratio : least;
        if (b->json)
            print_json(&w, threads, results);
        else
            print(b, threads, results);
    }
    if (!b->json) return PD_OK;
    pd_json_array_end(&w);
    pd_json_double(&w, "triad_ratio", least);
    pd_json_u64(&w, "elements", b->elements);
    pd_json_u64(&w, "pairs", b->pairs);
    pd_json_u64(&w, "gap_pages", b->gap_pages);
    pd_json_string(&w, "isa", pd_isa_name(b->isa));
    pd_json_object_end(&w);
    return pd_output_json(&w, err);
}

/* ---- options ---- */

enum { OPTION_ELEMENTS = 0x2101, OPTION_PAIRS, OPTION_THREADS, OPTION_GAP };

struct parsing {
    struct adam_bench *bench;
    struct pd_error *err;
};

static error_t set(struct parsing *p, const char *option, const char *text, uint64_t low, uint64_t high, uint64_t *value)
{
    if (pd_parse_u64(text, value) && *value >= low && *value <= high) return 0;
    (void)pd_error_set(p->err, PD_USAGE, PD_WHERE, 0, "--%s=%s: expected a number from %llu to %llu", option, text,
                       (unsigned long long)low, (unsigned long long)high);
    return EINVAL;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct parsing *p = state->input;
    switch (key) {
    case OPTION_ELEMENTS:
        return set(p, "elements", argument, PIECE, UINT64_C(1) << 34, &p->bench->elements);
    case OPTION_PAIRS:
        return set(p, "pairs", argument, 1, PD_BENCH_PAIRS_MAX, &p->bench->pairs);
    case OPTION_THREADS:
        return set(p, "threads", argument, 1, 1024, &p->bench->threads_max);
    case OPTION_GAP:
        return set(p, "gap", argument, 0, 1024, &p->bench->gap_pages);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option rows[] = {
    {"elements", OPTION_ELEMENTS, "N", 0, "parameters, 20 bytes of memory each (33554432)", 0},
    {"pairs", OPTION_PAIRS, "N", 0, "alternated pairs of measurements, 1 to 99 (9)", 0},
    {"threads", OPTION_THREADS, "N", 0, "1, 2, 4, ... up to this many (2)", 0},
    {"gap", OPTION_GAP, "N", 0,
     "pages of 4096 bytes between arrays (3); 0 with a power of two of elements is the worst case", 0},
    {0},
};
static const struct argp adam_argp = {
    rows,
    parse,
    NULL,
    "The AdamW update of the CPU against the STREAM triad of the same cores, alternated, by bytes touched: 28 a parameter, "
    "30 with a bf16 copy, 24 for an element of the triad in doubles, with or without streaming stores, whichever is faster. "
    "triad_ratio: bandwidth of ours over the triad's, the least of all runs.",
    NULL,
    NULL,
    NULL};

/* As training takes it: huge pages where the kernel gives them. Arrays of 2^k elements would lie 2^(k+2) bytes apart, which
 * has a price of its own (offload/README.md): a gap follows each. */
static pd_status take(struct adam_bench *b, struct pd_arena **ret_arena, struct pd_error *err)
{
    const uint64_t bytes = ((b->elements * sizeof(float) + 4095) / 4096 + b->gap_pages) * 4096;
    struct pd_memory_plan plan = {.bytes = {[PD_MEMORY_OPTIMIZER] = (ARRAYS + 1) * bytes}};
    PD_TRY(pd_arena_new(&plan, ret_arena, err));
    for (int a = 0; a < ARRAYS; a++)
        b->arrays[a] = pd_arena_take(*ret_arena, PD_MEMORY_OPTIMIZER, bytes);
    b->copy = pd_arena_take(*ret_arena, PD_MEMORY_OPTIMIZER, bytes / 2);
    return PD_OK;
}

pd_status pd_bench_adam(int argc, char **argv, struct pd_error *err)
{
    struct adam_bench b = {.elements = UINT64_C(32) << 20, .pairs = 9, .threads_max = 2, .gap_pages = 3};
    struct parsing parsing = {&b, err};
    bool done;
    PD_TRY(pd_command_parse(&adam_argp, argc, argv, &parsing, &b.json, &done, err));
    if (done) return PD_OK;
    PD_TRY(pd_isa_resolve(PD_ISA_AUTO, &b.isa, err));
    struct pd_arena *arena = NULL;
    pd_status st = take(&b, &arena, err);
    if (!st) st = measure_all(&b, err);
    pd_arena_free(arena);
    return st;
}
