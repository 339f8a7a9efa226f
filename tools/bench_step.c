/* perdure bench step: one whole training step of GPT-2 124M, one leaf of 512 tokens, AdamW included, against all its linear
 * and head products as whole oneDNN calls on the same threads. */
#include "tools/bench.h"
#include "tools/command.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/parse.h"
#include "tools/output.h"
#include "trainer/engine.h"
#include "trainer/math/gemm_bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct step_bench {
    uint64_t pairs, tokens, threads;
    const char *preset, *bad;
    bool json;
    struct pd_pairs_summary result[2]; /* bf16, fp32 */
};

enum { OPTION_PAIRS = 0x2001, OPTION_TOKENS, OPTION_THREADS, OPTION_PRESET };

static const struct argp_option step_options[] = {
    {"pairs", OPTION_PAIRS, "N", 0, "alternated pairs of measurements (7)", 0},
    {"tokens", OPTION_TOKENS, "N", 0, "tokens of the leaf (512)", 0},
    {"threads", OPTION_THREADS, "N", 0, "threads of both sides (2)", 0},
    {"preset", OPTION_PRESET, "NAME", 0, "model (gpt2-124m)", 0},
    {0},
};

static error_t parse_step(int key, char *argument, struct argp_state *state)
{
    struct step_bench *b = state->input;
    uint64_t *number = key == OPTION_PAIRS ? &b->pairs : key == OPTION_TOKENS ? &b->tokens : &b->threads;
    switch (key) {
    case OPTION_PRESET:
        b->preset = argument;
        return 0;
    case OPTION_PAIRS:
    case OPTION_TOKENS:
    case OPTION_THREADS:
        if (!pd_parse_u64(argument, number) || *number == 0) b->bad = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp step_argp = {
    step_options,
    parse_step,
    NULL,
    "A whole training step against all its linear and head products as oneDNN calls, alternated. "
    "gemm_ratio (bf16) and gemm_ratio_fp32: step / products, 1 is the floor.",
    NULL,
    NULL,
    NULL};

/* ---- one precision ---- */

struct bench_run {
    struct pd_config config;
    struct pd_model *model;
    struct pd_data *data;
    struct pd_thread_pool *pool;
    struct pd_arena *arena;
    struct pd_engine *engine;
    struct pd_gemm_bench *gemm;
};

static void release(struct bench_run *r)
{
    pd_gemm_bench_free(r->gemm);
    pd_engine_free(r->engine);
    pd_arena_free(r->arena);
    pd_thread_pool_free(r->pool);
    pd_data_close(r->data);
    pd_model_free(r->model);
    pd_config_deinit(&r->config);
}

/* Tokens are drawn evenly: every row of the embedding is touched alike. */
static pd_status write_tokens(const char *path, uint64_t count, struct pd_error *err)
{
    FILE *f = fopen(path, "we");
    if (!f) PD_FAIL_ERRNO(err, errno, "%s: making it", path);
    uint64_t state = 1;
    bool failed = false;
    for (uint64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        uint16_t token = (uint16_t)((state >> 33) % 50000);
        failed |= fwrite(&token, sizeof token, 1, f) != 1;
    }
    if (fclose(f) || failed) PD_FAIL_ERRNO(err, errno, "%s: writing it", path);
    return PD_OK;
}

static pd_status configure(struct bench_run *r, const struct step_bench *b, const char *precision, const char *tokens_path,
                           struct pd_error *err)
{
    char yaml[1024];
    snprintf(yaml, sizeof yaml,
             "run: {dir: unused, steps: 1000}\nmodel: {preset: %s}\n"
             "data: {train: [{path: %s, format: nanogpt}], validation_fraction: 0}\nvalidation: {every: 0}\n"
             "batch: {sequences: 1, leaf: 1, context: %llu}\nnumerics: {precision: %s}\nlayout: {recompute: none}\n",
             b->preset, tokens_path, (unsigned long long)b->tokens, precision);
    return pd_config_parse("bench", yaml, NULL, 0, &r->config, err);
}

static pd_status build_engine(struct bench_run *r, const struct step_bench *b, struct pd_error *err)
{
    struct pd_memory_plan plan;
    const struct pd_config *c = &r->config;
    const struct pd_data_options data = {.train = c->data.train,
                                         .train_count = c->data.train_count,
                                         .context = c->batch.context,
                                         .vocab = c->model.vocab,
                                         .document_token = -1,
                                         .seed = 1};
    const struct pd_engine_options options = {c, NULL, 1, 0, (uint32_t)b->threads, NULL};
    struct pd_engine_options engine_options = options;
    PD_TRY(pd_model_new(&c->model, &r->model, err));
    engine_options.model = r->model;
    PD_TRY(pd_data_open(&data, &r->data, err));
    PD_TRY(pd_thread_pool_new((unsigned)b->threads, &r->pool, err));
    PD_TRY(pd_engine_plan(c, r->model, 1, 0, (uint32_t)b->threads, &plan, err));
    PD_TRY(pd_arena_new(&plan, &r->arena, err));
    PD_TRY(pd_engine_new(&engine_options, NULL, r->data, r->pool, r->arena, &r->engine, err));
    return pd_engine_init_state(r->engine, err);
}

/* Every linear layer of a block, L times, and the head: y, dx and dW of each. */
static pd_status build_gemms(struct bench_run *r, const struct step_bench *b, struct pd_error *err)
{
    const struct pd_model_config *m = &r->config.model;
    const uint64_t query = (uint64_t)m->heads * m->head_size, kv = 2ull * m->kv_heads * m->head_size;
    const uint64_t up = m->family == PD_FAMILY_LLAMA ? 2ull * m->ffn : m->ffn;
    struct pd_gemm_case cases[15];
    pd_gemm_cases_of_linear(b->tokens, m->hidden, query + kv, PD_F32, m->layers, cases);
    pd_gemm_cases_of_linear(b->tokens, query, m->hidden, PD_F32, m->layers, cases + 3);
    pd_gemm_cases_of_linear(b->tokens, m->hidden, up, PD_F32, m->layers, cases + 6);
    pd_gemm_cases_of_linear(b->tokens, m->ffn, m->hidden, PD_F32, m->layers, cases + 9);
    pd_gemm_cases_of_linear(b->tokens, m->hidden, m->vocab, PD_F32, 1, cases + 12);
    return pd_gemm_bench_new(cases, 15, r->pool, r->engine->math->isa, &r->gemm, err);
}

static pd_status measure(struct bench_run *r, const struct step_bench *b, struct pd_pairs *pairs, struct pd_error *err)
{
    struct pd_step_result result;
    double gemms;
    for (uint64_t i = 0; i <= b->pairs; i++) { /* the first pair warms up */
        uint64_t start = pd_clock_monotonic_ns(NULL);
        PD_TRY(pd_engine_step(r->engine, i, i, &result, err));
        double step = pd_clock_seconds_since(NULL, start);
        PD_TRY(pd_gemm_bench_run_onednn(r->gemm, &gemms, err));
        if (i) pd_pairs_add(pairs, step, gemms);
    }
    return PD_OK;
}

static pd_status bench_precision(const struct step_bench *b, const char *precision, const char *tokens_path,
                                 struct pd_pairs_summary *ret_summary, struct pd_error *err)
{
    struct bench_run r = {0};
    struct pd_pairs pairs = {0};
    pd_status st = configure(&r, b, precision, tokens_path, err);
    if (!st) st = build_engine(&r, b, err);
    if (!st) st = build_gemms(&r, b, err);
    if (!st) st = measure(&r, b, &pairs, err);
    release(&r);
    if (!st) *ret_summary = pd_pairs_summarise(&pairs);
    return st;
}

static pd_status print(const struct step_bench *b, struct pd_error *err)
{
    double tokens_per_second = (double)b->tokens / b->result[0].candidate_s;
    if (!b->json) {
        static const char *const names[2] = {"bf16", "fp32"};
        for (int i = 0; i < 2; i++)
            printf("%s: step %.3f s, its products by oneDNN %.3f s, ratio %.3f (%.3f to %.3f over %llu pairs)\n", names[i],
                   b->result[i].candidate_s, b->result[i].ceiling_s, b->result[i].ratio, b->result[i].ratio_low,
                   b->result[i].ratio_high, (unsigned long long)b->pairs);
        printf("%.0f tokens/s in bf16\n", tokens_per_second);
        return PD_OK;
    }
    struct pd_json_writer w;
    pd_json_writer_init(&w, 2);
    pd_json_object_begin(&w, NULL);
    pd_json_double(&w, "gemm_ratio", b->result[0].ratio);
    pd_json_double(&w, "gemm_ratio_low", b->result[0].ratio_low);
    pd_json_double(&w, "gemm_ratio_high", b->result[0].ratio_high);
    pd_json_double(&w, "gemm_ratio_fp32", b->result[1].ratio);
    pd_json_double(&w, "gemm_ratio_fp32_low", b->result[1].ratio_low);
    pd_json_double(&w, "gemm_ratio_fp32_high", b->result[1].ratio_high);
    pd_json_double(&w, "tokens_per_second", tokens_per_second);
    pd_json_u64(&w, "pairs", b->pairs);
    pd_json_u64(&w, "threads", b->threads);
    pd_json_string(&w, "model", b->preset);
    pd_json_object_end(&w);
    return pd_output_json(&w, err);
}

pd_status pd_bench_step(int argc, char **argv, struct pd_error *err)
{
    struct step_bench b = {.pairs = 7, .tokens = 512, .threads = 2, .preset = "gpt2-124m"};
    char tokens_path[4096];
    const char *directory = getenv("TMPDIR");
    snprintf(tokens_path, sizeof tokens_path, "%s/perdure-bench-XXXXXX", directory && directory[0] ? directory : "/tmp");
    bool done;
    PD_TRY(pd_command_parse(&step_argp, argc, argv, &b, &b.json, &done, err));
    if (done) return PD_OK;
    if (b.bad || b.pairs >= PD_BENCH_PAIRS_MAX || b.threads > 1024)
        PD_FAIL(err, PD_USAGE, "bench step: \"%s\" is out of range; see perdure bench step --help",
                b.bad ? b.bad : "--pairs");
    int file = mkstemp(tokens_path);
    if (file < 0) PD_FAIL_ERRNO(err, errno, "%s: making a temporary file", tokens_path);
    close(file);
    pd_numerics_thread_init();
    pd_status st = write_tokens(tokens_path, b.tokens * 64 + 1, err);
    if (!st) st = bench_precision(&b, "bf16", tokens_path, &b.result[0], err);
    if (!st) st = bench_precision(&b, "fp32", tokens_path, &b.result[1], err);
    unlink(tokens_path);
    return st ? st : print(&b, err);
}
