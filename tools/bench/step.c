/* perdure bench step: one whole training step of GPT-2 124M, one micro-batch of 512 tokens, AdamW included, against all its
 * linear and head products as whole oneDNN calls on the same threads.
 *
 * Then what invariance costs: a step of a micro-batch of 2,048 tokens under numerics invariant, virtual_tp 1 and 2, against
 * the same step under fast, virtual_tp 1. The model has the widths of the preset, but one block and 4,096 words: both sides
 * spend the same share on the head as with twelve blocks and 50,257, and every further block would cost both what this one
 * costs. The three steps of a round stand side by side, in turning order; both ratios of a round have the same fast step
 * below.
 *
 * On a GPU: tools/bench/step_gpu.h. */
#include "tools/bench/bench.h"
#include "tools/bench/step_gpu.h"
#include "tools/command.h"
#include "trainer/run/launched.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/words.h"
#include "offload/device.h"
#include "tools/output.h"
#include "trainer/math/gemm_bench.h"
#include "trainer/run/whole_engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PRECISIONS = 2, COSTS = 2 };
#define COST_VOCAB 4096u

static const char *const precisions[PRECISIONS] = {"bf16", "fp32"};
static const unsigned cost_virtual_tp[COSTS] = {1, 2};

struct step_bench {
    uint64_t pairs, tokens, threads;
    uint64_t cost_pairs, cost_sequences, cost_layers;
    const char *preset, *precision; /* preset NULL: gpt2-124m; precision NULL: both */
    struct pd_error *err;           /* of parsing */
    struct pd_model_config model;   /* of the preset */
    const char *device;
    const char *of_cpu, *of_gpu; /* the first option that was given of those that count on one of them alone */
    struct pd_bench_step_gpu gpu;
    bool json;
    struct pd_pairs_summary result[PRECISIONS];
    struct pd_pairs_summary cost[PRECISIONS][COSTS];
};

/* What of the configuration differs from engine to engine. */
struct bench_case {
    const char *precision, *mode;
    unsigned virtual_tp;
    uint64_t sequences, context, layers; /* layers 0: layers and vocabulary of the preset */
};

enum {
    OPTION_PAIRS = 0x2001,
    OPTION_TOKENS,
    OPTION_THREADS,
    OPTION_PRESET,
    OPTION_PRECISION,
    OPTION_COST_PAIRS,
    OPTION_COST_SEQUENCES,
    OPTION_COST_LAYERS,
    OPTION_DEVICE,
    OPTION_MODE,
    OPTION_CONTEXT,
    OPTION_SEQUENCES,
    OPTION_MICRO_BATCH,
    OPTION_STEPS,
    OPTION_RECOMPUTE,
    OPTION_SET
};

static const struct argp_option step_options[] = {
    {"pairs", OPTION_PAIRS, "N", 0, "alternated pairs of measurements (7); 0: leave them out", 0},
    {"tokens", OPTION_TOKENS, "N", 0, "tokens of the micro-batch (512)", 0},
    {"threads", OPTION_THREADS, "N", 0, "threads of both sides (2; beside a GPU: all cores)", 0},
    {"preset", OPTION_PRESET, "NAME", 0, "model (gpt2-124m)", 0},
    {"precision", OPTION_PRECISION, "NAME", 0, "bf16 or fp32 alone (both)", 0},
    {"cost-pairs", OPTION_COST_PAIRS, "N", 0, "alternated pairs of invariant and fast steps (9); 0: leave them out", 0},
    {"cost-sequences", OPTION_COST_SEQUENCES, "N", 0, "sequences of 512 tokens of their micro-batch (4)", 0},
    {"cost-layers", OPTION_COST_LAYERS, "N", 0, "blocks of their model (1)", 0},
    {"device", OPTION_DEVICE, "NAME", 0, "auto (a GPU where there is one), cpu or gpu", 0},
    {0, 0, 0, 0, "On a GPU, where --preset is also 0.5B, 1.5B, 3B, 7B or 14B:", 1},
    {"mode", OPTION_MODE, "NAME", 0, "numerics: invariant or fast alone (both)", 1},
    {"context", OPTION_CONTEXT, "N", 0, "tokens of a sequence (1024)", 1},
    {"sequences", OPTION_SEQUENCES, "N", 0, "sequences of a step (512)", 1},
    {"micro-batch", OPTION_MICRO_BATCH, "N", 0, "sequences of a micro-batch (what fits)", 1},
    {"steps", OPTION_STEPS, "N", 0, "steps that are timed (3)", 1},
    {"recompute", OPTION_RECOMPUTE, "NAME", 0, "none, selective or full (what fits)", 1},
    {"set", OPTION_SET, "KEY=VALUE", 0, "a key of the configuration, such as offload.optimizer=cpu; may be repeated", 1},
    {0},
};

struct number {
    uint64_t *value, low, high;
};

static struct number number_of(struct step_bench *b, int key)
{
    switch (key) {
    case OPTION_PAIRS:
        return (struct number){&b->pairs, 0, PD_BENCH_PAIRS_MAX - 1};
    case OPTION_TOKENS:
        return (struct number){&b->tokens, 1, 1 << 20};
    case OPTION_THREADS:
        return (struct number){&b->threads, 1, 1024};
    case OPTION_COST_PAIRS:
        return (struct number){&b->cost_pairs, 0, PD_BENCH_PAIRS_MAX - 1};
    case OPTION_COST_SEQUENCES:
        return (struct number){&b->cost_sequences, 1, 1024};
    case OPTION_COST_LAYERS:
        return (struct number){&b->cost_layers, 1, 1024};
    case OPTION_CONTEXT:
        return (struct number){&b->gpu.context, 1, 1 << 20};
    case OPTION_SEQUENCES:
        return (struct number){&b->gpu.sequences, 1, 1 << 20};
    case OPTION_MICRO_BATCH:
        return (struct number){&b->gpu.micro_batch, 1, 1 << 20};
    case OPTION_STEPS:
        return (struct number){&b->gpu.steps, 1, PD_BENCH_STEPS_MAX};
    default:
        return (struct number){NULL, 0, 0};
    }
}

static const char **word_of(struct step_bench *b, int key)
{
    switch (key) {
    case OPTION_PRESET:
        return &b->preset;
    case OPTION_PRECISION:
        return &b->precision;
    case OPTION_DEVICE:
        return &b->device;
    case OPTION_MODE:
        return &b->gpu.mode;
    case OPTION_RECOMPUTE:
        return &b->gpu.recompute;
    case OPTION_SET:
        return &b->gpu.keys[b->gpu.key_count++];
    default:
        return NULL;
    }
}

/* Of group 1: a GPU alone. Of the others the processor alone but for a few. */
static void note_option(struct step_bench *b, int key, const struct argp_option *o)
{
    if (key == OPTION_THREADS || key == OPTION_PRESET || key == OPTION_PRECISION || key == OPTION_DEVICE) return;
    const char **first = o->group == 1 ? &b->of_gpu : &b->of_cpu;
    if (!*first) *first = o->name;
}

static error_t parse_step(int key, char *argument, struct argp_state *state)
{
    struct step_bench *b = state->input;
    const struct argp_option *o = step_options;
    while (o->key != key && (o->name || o->doc))
        o++;
    if (!o->name) return ARGP_ERR_UNKNOWN;
    note_option(b, key, o);
    const struct number number = number_of(b, key);
    if (!number.value) {
        if (key == OPTION_SET && b->gpu.key_count == PD_BENCH_KEYS_MAX) {
            (void)pd_error_set(b->err, PD_USAGE, PD_WHERE, 0, "--set=%s: one more than %d", argument, PD_BENCH_KEYS_MAX);
            return EINVAL;
        }
        *word_of(b, key) = argument;
        return 0;
    }
    if (pd_parse_u64(argument, number.value) && *number.value >= number.low && *number.value <= number.high) return 0;
    (void)pd_error_set(b->err, PD_USAGE, PD_WHERE, 0, "--%s=%s: expected a number from %llu to %llu", o->name, argument,
                       (unsigned long long)number.low, (unsigned long long)number.high);
    return EINVAL;
}

static const struct argp step_argp = {
    step_options,
    parse_step,
    NULL,
    "A whole training step against all its linear and head products as oneDNN calls, alternated. "
    "gemm_ratio (bf16) and gemm_ratio_fp32: step / products, 1 is the floor. "
    "invariant_cost: the largest of invariant / fast over both precisions and virtual_tp 1 and 2. "
    "On a GPU: whole steps in tokens a second, matmul_share of the card's bf16 products, and each stage's share.",
    NULL,
    NULL,
    NULL};

/* ---- one precision ---- */

struct bench_run {
    struct pd_config config;
    struct pd_whole_engine whole;
    struct pd_gemm_bench *gemm;
};

static void release(struct bench_run *r)
{
    pd_gemm_bench_free(r->gemm);
    pd_whole_engine_close(&r->whole);
    pd_config_deinit(&r->config);
}

/* Tokens are drawn evenly: every row of the embedding is touched alike. */
static pd_status write_tokens(const char *path, uint64_t count, uint64_t vocab, struct pd_error *err)
{
    FILE *f = fopen(path, "we");
    if (!f) PD_FAIL_ERRNO(err, errno, "%s: making it", path);
    uint64_t state = 1;
    bool failed = false;
    for (uint64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        uint16_t token = (uint16_t)((state >> 33) % vocab);
        failed |= fwrite(&token, sizeof token, 1, f) != 1;
    }
    if (fclose(f) || failed) PD_FAIL_ERRNO(err, errno, "%s: writing it", path);
    return PD_OK;
}

static pd_status configure(struct bench_run *r, const struct step_bench *b, const struct bench_case *c,
                           const char *tokens_path, struct pd_error *err)
{
    char yaml[16384], path[8192], smaller[64] = "", longer[64] = "";
    if (c->layers) snprintf(smaller, sizeof smaller, ", layers: %llu, vocab: %u", (unsigned long long)c->layers, COST_VOCAB);
    if (c->context > b->model.context) snprintf(longer, sizeof longer, ", context: %llu", (unsigned long long)c->context);
    snprintf(yaml, sizeof yaml,
             "run: {dir: unused, steps: 1000}\nmodel: {preset: %s%s%s}\n"
             "data: {train: [{path: %s, format: nanogpt}], validation_fraction: 0}\nvalidation: {every: 0}\n"
             "batch: {sequences: %llu, micro_batch: %llu, context: %llu}\n"
             "numerics: {precision: %s, mode: %s, virtual_tp: %u}\nlayout: {recompute: none}\n",
             b->preset, smaller, longer, pd_bench_quoted(tokens_path, sizeof path, path), (unsigned long long)c->sequences,
             (unsigned long long)c->sequences, (unsigned long long)c->context, c->precision, c->mode, c->virtual_tp);
    return pd_config_parse("bench", yaml, NULL, 0, &r->config, err);
}

static pd_status build_engine(struct bench_run *r, const struct step_bench *b, struct pd_error *err)
{
    PD_TRY(pd_whole_engine_open(&r->config, NULL, NULL, (uint32_t)b->threads, &r->whole, err));
    return pd_engine_init_state(r->whole.engine, err);
}

/* Every linear layer of a block, L times, and the head: y, dx and dW of each. */
static pd_status build_gemms(struct bench_run *r, const struct step_bench *b, struct pd_error *err)
{
    const struct pd_model_config *m = &r->config.model;
    const uint64_t query = (uint64_t)m->heads * m->head_size, kv = 2ull * m->kv_heads * m->head_size;
    const uint64_t up = m->family == PD_FAMILY_LLAMA ? 2ull * m->ffn : m->ffn;
    struct pd_gemm_case cases[15];
    pd_gemm_cases_of_linear(b->tokens, m->hidden, query + kv, m->layers, cases);
    pd_gemm_cases_of_linear(b->tokens, query, m->hidden, m->layers, cases + 3);
    pd_gemm_cases_of_linear(b->tokens, m->hidden, up, m->layers, cases + 6);
    pd_gemm_cases_of_linear(b->tokens, m->ffn, m->hidden, m->layers, cases + 9);
    pd_gemm_cases_of_linear(b->tokens, m->hidden, m->vocab, 1, cases + 12);
    return pd_gemm_bench_new(cases, 15, r->whole.pool, &r->gemm, err);
}

static pd_status measure(struct bench_run *r, const struct step_bench *b, struct pd_pairs *pairs, struct pd_error *err)
{
    struct pd_step_result result;
    double gemms;
    for (uint64_t i = 0; i <= b->pairs; i++) { /* the first pair warms up */
        uint64_t start = pd_clock_monotonic_ns(NULL);
        PD_TRY(pd_engine_step(r->whole.engine, i, i, &result, err));
        double step = pd_clock_seconds_since(NULL, start);
        PD_TRY(pd_gemm_bench_run_onednn(r->gemm, &gemms, err));
        if (i) pd_pairs_add(pairs, step, gemms);
    }
    return PD_OK;
}

static pd_status bench_precision(const struct step_bench *b, const char *precision, const char *tokens_path,
                                 struct pd_pairs_summary *ret_summary, struct pd_error *err)
{
    const struct bench_case c = {precision, "invariant", 1, 1, b->tokens, 0};
    struct bench_run r = {0};
    struct pd_pairs pairs = {0};
    pd_status st = configure(&r, b, &c, tokens_path, err);
    if (!st) st = build_engine(&r, b, err);
    if (!st) st = build_gemms(&r, b, err);
    if (!st) st = measure(&r, b, &pairs, err);
    release(&r);
    if (!st) *ret_summary = pd_pairs_summarise(&pairs);
    return st;
}

/* ---- invariant against fast ---- */

static pd_status timed_step(struct bench_run *r, uint64_t i, double *ret_seconds, struct pd_error *err)
{
    struct pd_step_result result;
    uint64_t start = pd_clock_monotonic_ns(NULL);
    PD_TRY(pd_engine_step(r->whole.engine, i, i * r->config.batch.sequences, &result, err));
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    return PD_OK;
}

/* The steps of a round: invariant with each virtual_tp, then fast. */
enum { RUNS = COSTS + 1, FAST = COSTS };

static void note_round(const struct step_bench *b, const char *precision, uint64_t round, const double seconds[RUNS])
{
    if (!round) return;
    fprintf(stderr, "%s, round %llu of %llu: fast %.3f s, invariant %.3f s, with virtual_tp %u %.3f s\n", precision,
            (unsigned long long)round, (unsigned long long)b->cost_pairs, seconds[FAST], seconds[0], cost_virtual_tp[1],
            seconds[1]);
}

static pd_status measure_costs(const struct step_bench *b, const char *precision, struct bench_run runs[RUNS],
                               struct pd_pairs pairs[COSTS], struct pd_error *err)
{
    double seconds[RUNS];
    for (uint64_t round = 0; round <= b->cost_pairs; round++) { /* the first warms up */
        for (uint64_t i = 0; i < RUNS; i++)
            PD_TRY(timed_step(&runs[(round + i) % RUNS], round, &seconds[(round + i) % RUNS], err));
        note_round(b, precision, round, seconds);
        for (int i = 0; i < COSTS && round; i++)
            pd_pairs_add(&pairs[i], seconds[i], seconds[FAST]);
    }
    return PD_OK;
}

static pd_status bench_cost(const struct step_bench *b, const char *precision, const char *tokens_path,
                            struct pd_pairs_summary ret_summaries[COSTS], struct pd_error *err)
{
    struct bench_run runs[RUNS] = {{.gemm = NULL}};
    struct pd_pairs pairs[COSTS] = {{.count = 0}};
    pd_status st = PD_OK;
    for (int i = 0; i < RUNS && !st; i++) {
        const struct bench_case c = {.precision = precision,
                                     .mode = i == FAST ? "fast" : "invariant",
                                     .virtual_tp = i == FAST ? 1 : cost_virtual_tp[i],
                                     .sequences = b->cost_sequences,
                                     .context = 512,
                                     .layers = b->cost_layers};
        st = configure(&runs[i], b, &c, tokens_path, err);
        if (!st) st = build_engine(&runs[i], b, err);
    }
    if (!st) st = measure_costs(b, precision, runs, pairs, err);
    for (int i = 0; i < RUNS; i++)
        release(&runs[i]);
    for (int i = 0; i < COSTS && !st; i++)
        ret_summaries[i] = pd_pairs_summarise(&pairs[i]);
    return st;
}

static bool is_wanted(const struct step_bench *b, int precision)
{
    return !b->precision || !strcmp(b->precision, precisions[precision]);
}

static pd_status bench_costs(struct step_bench *b, const char *tokens_path, struct pd_error *err)
{
    PD_TRY(write_tokens(tokens_path, b->cost_sequences * 512 * 64 + 1, COST_VOCAB, err));
    for (int p = 0; p < PRECISIONS && b->cost_pairs; p++)
        if (is_wanted(b, p)) PD_TRY(bench_cost(b, precisions[p], tokens_path, b->cost[p], err));
    return PD_OK;
}

static double worst_cost(const struct step_bench *b)
{
    double worst = 0;
    for (int p = 0; p < PRECISIONS; p++)
        for (int i = 0; i < COSTS; i++) /* 0 where it was not wanted */
            if (b->cost[p][i].ratio > worst) worst = b->cost[p][i].ratio;
    return worst;
}

/* ---- report ---- */

static void print_text(const struct step_bench *b)
{
    for (int p = 0; p < PRECISIONS && b->pairs; p++) {
        if (!is_wanted(b, p)) continue;
        printf("%s: step %.3f s, its products by oneDNN %.3f s, ratio %.3f (%.3f to %.3f over %s)\n", precisions[p],
               b->result[p].candidate_s, b->result[p].ceiling_s, b->result[p].ratio, b->result[p].ratio_low,
               b->result[p].ratio_high, pd_counted(b->pairs, "pair").text);
    }
    for (int p = 0; p < PRECISIONS && b->cost_pairs; p++)
        for (int i = 0; i < COSTS && is_wanted(b, p); i++)
            printf("%s, virtual_tp %u: invariant %.3f s, fast %.3f s, ratio %.3f (%.3f to %.3f over %s)\n", precisions[p],
                   cost_virtual_tp[i], b->cost[p][i].candidate_s, b->cost[p][i].ceiling_s, b->cost[p][i].ratio,
                   b->cost[p][i].ratio_low, b->cost[p][i].ratio_high, pd_counted(b->cost_pairs, "pair").text);
    if (b->pairs && is_wanted(b, 0)) printf("%.0f tokens/s in bf16\n", (double)b->tokens / b->result[0].candidate_s);
}

/* invariant_cost is the largest of invariant_cost_<precision>_vtp<n>. */
static void json_costs(struct pd_json_writer *w, const struct step_bench *b)
{
    char key[64];
    if (!b->cost_pairs) return;
    pd_json_double(w, "invariant_cost", worst_cost(b));
    for (int p = 0; p < PRECISIONS; p++)
        for (int i = 0; i < COSTS && is_wanted(b, p); i++) {
            snprintf(key, sizeof key, "invariant_cost_%s_vtp%u", precisions[p], cost_virtual_tp[i]);
            pd_bench_json_ratio(w, key, &b->cost[p][i]);
        }
    pd_json_u64(w, "cost_pairs", b->cost_pairs);
    pd_json_u64(w, "cost_tokens", b->cost_sequences * 512);
}

static pd_status print(const struct step_bench *b, struct pd_error *err)
{
    if (!b->json) {
        print_text(b);
        return PD_OK;
    }
    struct pd_json_writer w;
    pd_json_writer_init(&w, 2);
    pd_json_object_begin(&w, NULL);
    if (b->pairs && is_wanted(b, 0)) {
        pd_bench_json_ratio(&w, "gemm_ratio", &b->result[0]);
        pd_json_double(&w, "tokens_per_second", (double)b->tokens / b->result[0].candidate_s);
        pd_json_double(&w, "matmul_share", 1 / b->result[0].ratio);
    }
    pd_json_string(&w, "device", "cpu");
    if (b->pairs && is_wanted(b, 1)) pd_bench_json_ratio(&w, "gemm_ratio_fp32", &b->result[1]);
    json_costs(&w, b);
    pd_json_u64(&w, "pairs", b->pairs);
    pd_json_u64(&w, "threads", b->threads);
    pd_json_string(&w, "model", b->preset);
    pd_json_object_end(&w);
    return pd_output_json(&w, err);
}

/* Sizes are their own names, on a GPU alone. */
static pd_status check_preset(struct step_bench *b, struct pd_error *err)
{
    struct pd_error unknown = {.status = PD_OK};
    if (pd_bench_step_is_size(b->preset) || !pd_model_preset(b->preset, &b->model, &unknown)) return PD_OK;
    PD_FAIL(err, PD_USAGE, "--preset=%s: %s; on a GPU also 0.5B, 1.5B, 3B, 7B and 14B", b->preset, unknown.message);
}

static pd_status on_gpu(struct step_bench *b, struct pd_error *err)
{
    if (b->of_cpu) PD_FAIL(err, PD_USAGE, "--%s counts on the processor alone: give --device=cpu beside it", b->of_cpu);
    if (!b->preset) b->preset = "0.5B";
    PD_TRY(check_preset(b, err));
    b->gpu.preset = b->preset;
    b->gpu.precision = b->precision;
    b->gpu.threads = b->threads ? (uint32_t)b->threads : pd_launched_threads(0, 1);
    b->gpu.json = b->json;
    return pd_bench_step_gpu(&b->gpu, err);
}

static pd_status check_cpu(struct step_bench *b, struct pd_error *err)
{
    if (b->of_gpu) PD_FAIL(err, PD_USAGE, "--%s counts on a GPU alone: --device=gpu", b->of_gpu);
    if (pd_bench_step_is_size(b->preset)) PD_FAIL(err, PD_USAGE, "--preset=%s is for a GPU alone: --device=gpu", b->preset);
    PD_TRY(check_preset(b, err));
    if (!b->pairs && !b->cost_pairs) PD_FAIL(err, PD_USAGE, "--pairs=0 and --cost-pairs=0 leave nothing to measure");
    if (!is_wanted(b, 0) && !is_wanted(b, 1)) PD_FAIL(err, PD_USAGE, "--precision=%s: expected bf16 or fp32", b->precision);
    return PD_OK;
}

pd_status pd_bench_step(int argc, char **argv, struct pd_error *err)
{
    struct step_bench b = {.pairs = 7,
                           .tokens = 512,
                           .cost_pairs = 9,
                           .cost_sequences = 4,
                           .cost_layers = 1,
                           .device = "auto",
                           .err = err,
                           .gpu = {.context = 1024, .sequences = 512, .steps = 3}};
    char tokens_path[4096];
    const char *directory = getenv("TMPDIR");
    snprintf(tokens_path, sizeof tokens_path, "%s/perdure-bench-XXXXXX", directory && directory[0] ? directory : "/tmp");
    bool done;
    PD_TRY(pd_command_parse(&step_argp, argc, argv, &b, &b.json, &done, err));
    if (done) return PD_OK;
    const bool is_auto = !strcmp(b.device, "auto");
    if (!is_auto && strcmp(b.device, "cpu") != 0 && strcmp(b.device, "gpu") != 0)
        PD_FAIL(err, PD_USAGE, "--device=%s: expected auto, cpu or gpu", b.device);
    if (!strcmp(b.device, "gpu") || (is_auto && pd_dev_cuda_count())) return on_gpu(&b, err);
    if (!b.preset) b.preset = "gpt2-124m";
    if (!b.threads) b.threads = 2;
    PD_TRY(check_cpu(&b, err));
    int file = mkstemp(tokens_path);
    if (file < 0) PD_FAIL_ERRNO(err, errno, "%s: making a temporary file", tokens_path);
    close(file);
    pd_numerics_thread_init();
    pd_status st = write_tokens(tokens_path, b.tokens * 64 + 1, b.model.vocab < 50000 ? b.model.vocab : 50000, err);
    for (int p = 0; p < PRECISIONS && b.pairs && !st; p++)
        if (is_wanted(&b, p)) st = bench_precision(&b, precisions[p], tokens_path, &b.result[p], err);
    if (!st) st = bench_costs(&b, tokens_path, err);
    unlink(tokens_path);
    return st ? st : print(&b, err);
}
