/* perdure bench adam: the AdamW update of the CPU against the STREAM triad (McCalpin 1995) on the same cores. Both count
 * what they touch: the triad 24 bytes an element, AdamW 28 (three arrays read and written, the gradient read), and the
 * compute copy's bytes on top. */
#include "ckpt/base/clock.h"
#include "ckpt/base/parse.h"
#include "offload/cpu_adam.h"
#include "tools/bench.h"
#include "tools/command.h"
#include "tools/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRIAD_BYTES 24.0
#define ADAM_BYTES 28.0
#define PIECE (UINT64_C(64) << 10)
#define ARRAYS 4
enum copy { COPY_NONE, COPY_BF16, COPIES };
static const char *const copy_names[COPIES] = {"fp32", "fp32 and a bf16 copy"};

struct adam_bench {
    uint64_t elements, pairs, threads_max;
    bool json;
    enum pd_isa isa;
    struct pd_thread_pool *pool;
    float *arrays[ARRAYS]; /* (elements) each: parameter, two moments, gradient; the triad uses three of them */
    uint16_t *copy;        /* (elements) */
};

static void triad_piece(void *context, uint64_t index)
{
    struct adam_bench *b = context;
    uint64_t from = index * PIECE, n = b->elements - from < PIECE ? b->elements - from : PIECE;
    float *restrict a = b->arrays[0] + from;
    const float *restrict x = b->arrays[1] + from, *restrict y = b->arrays[3] + from;
    for (uint64_t i = 0; i < n; i++)
        a[i] = x[i] + 0.5f * y[i];
}

static void run_triad(struct adam_bench *b)
{
    pd_parallel(b->pool, (b->elements + PIECE - 1) / PIECE, triad_piece, b);
}

static void run_adam(struct adam_bench *b, enum copy copy)
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
    pd_cpu_adam(b->pool, b->isa, &step, &range);
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

/* Seconds a byte counted, of each side. */
static void run_pair(struct adam_bench *b, uint64_t pair, enum copy copy, struct pd_pairs *pairs)
{
    double seconds[2];
    for (unsigned turn = 0; turn < 2; turn++) {
        bool candidate = (pair + turn) % 2;
        uint64_t start = pd_clock_monotonic_ns(NULL);
        if (candidate)
            run_adam(b, copy);
        else
            run_triad(b);
        seconds[candidate] = pd_clock_seconds_since(NULL, start);
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
        printf("AdamW %s, %u thread%s: %.2f of the triad's bandwidth (%.2f to %.2f, %llu pairs), %.1f GB/s\n",
               copy_names[copy], threads, threads == 1 ? "" : "s", results[copy].ratio, results[copy].ratio_low,
               results[copy].ratio_high, (unsigned long long)b->pairs,
               1e-9 * (double)b->elements / results[copy].candidate_s);
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
    pd_json_string(&w, "isa", pd_isa_name(b->isa));
    pd_json_object_end(&w);
    return pd_output_json(&w, err);
}

/* ---- options ---- */

enum { OPTION_ELEMENTS = 0x2101, OPTION_PAIRS, OPTION_THREADS };

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
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option rows[] = {
    {"elements", OPTION_ELEMENTS, "N", 0, "parameters, 18 bytes of memory each (33554432)", 0},
    {"pairs", OPTION_PAIRS, "N", 0, "alternated pairs of measurements, 1 to 99 (9)", 0},
    {"threads", OPTION_THREADS, "N", 0, "1, 2, 4, ... up to this many (2)", 0},
    {0},
};
static const struct argp adam_argp = {
    rows,
    parse,
    NULL,
    "The AdamW update of the CPU against the STREAM triad of the same cores, alternated, by bytes touched: 28 a parameter, "
    "30 with a bf16 copy, 24 for the triad. triad_ratio: bandwidth of ours over the triad's, the least of all runs.",
    NULL,
    NULL,
    NULL};

static pd_status take(struct adam_bench *b, struct pd_error *err)
{
    for (int a = 0; a < ARRAYS; a++)
        if (!(b->arrays[a] = aligned_alloc(4096, (b->elements * sizeof(float) + 4095) / 4096 * 4096)))
            PD_FAIL(err, PD_NO_MEMORY, "no memory for %llu parameters", (unsigned long long)b->elements);
    b->copy = aligned_alloc(4096, (b->elements * sizeof *b->copy + 4095) / 4096 * 4096);
    if (!b->copy) PD_FAIL(err, PD_NO_MEMORY, "no memory for %llu parameters", (unsigned long long)b->elements);
    return PD_OK;
}

pd_status pd_bench_adam(int argc, char **argv, struct pd_error *err)
{
    struct adam_bench b = {.elements = UINT64_C(32) << 20, .pairs = 9, .threads_max = 2};
    struct parsing parsing = {&b, err};
    bool done;
    PD_TRY(pd_command_parse(&adam_argp, argc, argv, &parsing, &b.json, &done, err));
    if (done) return PD_OK;
    PD_TRY(pd_isa_resolve(PD_ISA_AUTO, &b.isa, err));
    pd_status st = take(&b, err);
    if (!st) st = measure_all(&b, err);
    for (int a = 0; a < ARRAYS; a++)
        free(b.arrays[a]);
    free(b.copy);
    return st;
}
