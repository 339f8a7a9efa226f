/* perdure bench step: one whole training step of GPT-2 124M, one micro-batch of 512 tokens, AdamW included, against all its
 * linear and head GEMMs as whole oneDNN calls on the same threads.
 *
 * Then what cutting products into chunks costs: a step of a micro-batch of 2,048 tokens with virtual_tp 2 against the same
 * step with virtual_tp 1. The model has the widths of the preset, but one block and 4,096 words: both sides spend the same
 * share on the head as with twelve blocks and 50,257, and every further block would cost both what this one costs.
 *
 * On a GPU: tools/bench/step_gpu.h. */
#include "resharder/catalog/family.h"
#include "tools/bench/bench.h"
#include "tools/bench/run.h"
#include "tools/bench/step_gpu.h"
#include "tools/bench/step_ranks.h"
#include "tools/command.h"
#include "trainer/run/launched.h"

#include "offload/device.h"
#include "tools/bench/gemm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PRECISIONS = 2, DP_MICRO_BATCHES = 8, REPLAY_EVERY = 16 };
#define COST_VOCAB 4096u

static const char *const precisions[PRECISIONS] = {"bf16", "fp32"};

struct step_bench {
    uint64_t pairs, tokens, threads;
    uint64_t cost_pairs, cost_sequences, cost_layers, rank_pairs;
    uint32_t ranks;                 /* 0: not measured */
    const char *preset, *precision; /* preset NULL: gpt2-124m; precision NULL: both */
    struct pd_model_config model;   /* of the preset */
    enum pd_device_choice device;
    struct pd_bench_step_gpu gpu;
    bool json, is_gpu;
    char tokens_path[4096];
    struct pd_pairs_summary result[PRECISIONS];
    struct pd_pairs_summary cost[PRECISIONS];
    struct pd_pairs_summary dp, replay;
};

/* What of the configuration differs from engine to engine. */
struct bench_case {
    const char *precision;
    unsigned virtual_tp;
    uint64_t sequences, context, layers; /* layers 0: layers and vocabulary of the preset */
    uint64_t micro_batches;              /* of the sequences; 0: one */
    bool is_replayed;                    /* every step (guard.replay_every) */
    uint32_t dp, threads;                /* 0: one rank with all of them */
};

/* ---- one precision ---- */

static pd_status open_run(struct pd_bench_run *r, const struct step_bench *b, const struct bench_case *c,
                          struct pd_error *err)
{
    char model[160], sections[240], smaller[64] = "", longer[64] = "";
    if (c->layers) snprintf(smaller, sizeof smaller, ", layers: %llu, vocab: %u", (unsigned long long)c->layers, COST_VOCAB);
    if (c->context > b->model.context) snprintf(longer, sizeof longer, ", context: %llu", (unsigned long long)c->context);
    snprintf(model, sizeof model, "preset: %.32s%s%s", b->preset, smaller, longer);
    snprintf(sections, sizeof sections,
             "numerics: {precision: %s, virtual_tp: %u}\nlayout: {recompute: none, dp: %u}\n"
             "guard: {replay_every: %d}\n",
             c->precision, c->virtual_tp, c->dp ? c->dp : 1, c->is_replayed);
    const struct pd_bench_run_options options = {.model = model,
                                                 .tokens = b->tokens_path,
                                                 .sequences = c->sequences,
                                                 .micro_batch = c->sequences / (c->micro_batches ? c->micro_batches : 1),
                                                 .context = c->context,
                                                 .sections = sections};
    PD_TRY(pd_bench_run_configure(r, &options, err));
    return pd_bench_run_open(r, c->threads ? c->threads : (uint32_t)b->threads, err);
}

/* Every linear layer of a block, L times, and the head: y, dx and dW of each. */
static pd_status build_gemms(struct pd_bench_run *r, const struct step_bench *b, struct pd_gemm_bench **ret_gemms,
                             struct pd_error *err)
{
    const struct pd_model_config *m = &r->config.model;
    const uint64_t query = (uint64_t)m->heads * m->head_size, kv = 2ull * m->kv_heads * m->head_size;
    const uint64_t up = (uint64_t)pd_family_at(m->family)->up_matrices * m->ffn;
    struct pd_gemm_case cases[15];
    pd_gemm_cases_of_linear(b->tokens, m->hidden, query + kv, m->layers, cases);
    pd_gemm_cases_of_linear(b->tokens, query, m->hidden, m->layers, cases + 3);
    pd_gemm_cases_of_linear(b->tokens, m->hidden, up, m->layers, cases + 6);
    pd_gemm_cases_of_linear(b->tokens, m->ffn, m->hidden, m->layers, cases + 9);
    pd_gemm_cases_of_linear(b->tokens, m->hidden, m->vocab, 1, cases + 12);
    return pd_gemm_bench_new(cases, 15, r->whole.pool, ret_gemms, err);
}

static pd_status bench_precision(struct step_bench *b, int precision, struct pd_error *err)
{
    const struct bench_case c = {.precision = precisions[precision], .virtual_tp = 1, .sequences = 1, .context = b->tokens};
    struct pd_bench_run r = {0};
    struct pd_gemm_bench *gemms = NULL;
    struct pd_pairs pairs = {0};
    double step_s, gemms_s;
    pd_status st = open_run(&r, b, &c, err);
    if (!st) st = build_gemms(&r, b, &gemms, err);
    for (uint64_t i = 0; !st && i <= b->pairs; i++) { /* the first pair warms up */
        st = pd_bench_run_step(&r, i, &step_s, NULL, err);
        if (!st) st = pd_gemm_bench_run_onednn(gemms, &gemms_s, err);
        if (!st && i) pd_pairs_add(&pairs, step_s, gemms_s);
    }
    pd_gemm_bench_free(gemms);
    pd_bench_run_close(&r);
    if (!st) b->result[precision] = pd_pairs_summarise(&pairs);
    return st;
}

/* ---- what cutting into chunks costs ---- */

static pd_status bench_cost(struct step_bench *b, int precision, struct pd_error *err)
{
    struct pd_bench_run runs[2] = {0}; /* whole, and cut */
    struct pd_pairs pairs = {.count = 0};
    double seconds[2];
    pd_status st = PD_OK;
    for (unsigned i = 0; i < 2 && !st; i++) {
        const struct bench_case c = {.precision = precisions[precision],
                                     .virtual_tp = 1 + i,
                                     .sequences = b->cost_sequences,
                                     .context = 512,
                                     .layers = b->cost_layers};
        st = open_run(&runs[i], b, &c, err);
    }
    for (uint64_t round = 0; !st && round <= b->cost_pairs; round++) { /* the first warms up */
        for (uint64_t i = 0; i < 2 && !st; i++)
            st = pd_bench_run_step(&runs[(round + i) % 2], round, &seconds[(round + i) % 2], NULL, err);
        if (!st && round) pd_pairs_add(&pairs, seconds[1], seconds[0]);
    }
    for (int i = 0; i < 2; i++)
        pd_bench_run_close(&runs[i]);
    if (!st) b->cost[precision] = pd_pairs_summarise(&pairs);
    return st;
}

/* ---- several ranks ---- */

enum rank_side { SIDE_DP, SIDE_PLAIN, SIDE_REPLAYED };

/* 8 micro-batches a step, or where steps are replayed a rank and step. */
static pd_status open_of_ranks(const void *bench, int side, uint32_t dp, uint32_t threads, struct pd_bench_run *run,
                               struct pd_error *err)
{
    const struct step_bench *b = bench;
    const uint64_t micro_batches = side == SIDE_DP ? DP_MICRO_BATCHES : (uint64_t)DP_MICRO_BATCHES * dp;
    const struct bench_case c = {.precision = precisions[0],
                                 .virtual_tp = 1,
                                 .sequences = micro_batches,
                                 .context = b->tokens,
                                 .layers = b->cost_layers,
                                 .micro_batches = micro_batches,
                                 .is_replayed = side == SIDE_REPLAYED,
                                 .dp = dp,
                                 .threads = threads};
    return open_run(run, b, &c, err);
}

/* One step in 16 is replayed: what one costs, over 16. */
static struct pd_pairs_summary replay_cost(const struct pd_pairs *pairs)
{
    struct pd_pairs_summary s = pd_pairs_summarise(pairs);
    s.ratio = (s.ratio - 1) / REPLAY_EVERY;
    s.ratio_low = (s.ratio_low - 1) / REPLAY_EVERY;
    s.ratio_high = (s.ratio_high - 1) / REPLAY_EVERY;
    return s;
}

static pd_status bench_ranks(struct step_bench *b, struct pd_error *err)
{
    struct pd_bench_sides sides = {.bench = b,
                                   .open = open_of_ranks,
                                   .candidate = SIDE_DP,
                                   .ceiling = SIDE_DP,
                                   .is_ceiling_alone = true,
                                   .ranks = b->ranks,
                                   .threads = (uint32_t)b->threads,
                                   .pairs = b->rank_pairs};
    struct pd_pairs pairs;
    PD_TRY(pd_bench_step_ranks(&sides, &pairs, err));
    b->dp = pd_pairs_summarise_throughput(&pairs);
    sides.candidate = SIDE_REPLAYED;
    sides.ceiling = SIDE_PLAIN;
    sides.is_ceiling_alone = false;
    PD_TRY(pd_bench_step_ranks(&sides, &pairs, err));
    b->replay = replay_cost(&pairs);
    return PD_OK;
}

static bool is_wanted(const struct step_bench *b, int precision)
{
    return !b->precision || !strcmp(b->precision, precisions[precision]);
}

static pd_status bench_all(struct step_bench *b, struct pd_error *err)
{
    const uint64_t words = b->model.vocab < 50000 ? b->model.vocab : 50000;
    PD_TRY(pd_bench_write_tokens(b->tokens_path, b->tokens * 64 + 1, words, true, err));
    for (int p = 0; p < PRECISIONS && b->pairs; p++)
        if (is_wanted(b, p)) PD_TRY(bench_precision(b, p, err));
    PD_TRY(pd_bench_write_tokens(b->tokens_path, b->cost_sequences * 512 * 64 + 1, COST_VOCAB, true, err));
    for (int p = 0; p < PRECISIONS && b->cost_pairs; p++)
        if (is_wanted(b, p)) PD_TRY(bench_cost(b, p, err));
    return b->ranks ? bench_ranks(b, err) : PD_OK;
}

/* ---- report ---- */

static void report_costs(const struct step_bench *b, struct pd_report *r)
{
    char key[64];
    for (int p = 0; p < PRECISIONS; p++) {
        if (!is_wanted(b, p)) continue;
        snprintf(key, sizeof key, "chunk_cost_%s", precisions[p]);
        pd_bench_report_ratio(r, key, &b->cost[p]);
    }
    pd_report_u64(r, "cost_pairs", b->cost_pairs, PD_UNIT_NONE);
    pd_report_u64(r, "cost_tokens", b->cost_sequences * 512, PD_UNIT_NONE);
}

static pd_status print(const struct step_bench *b, struct pd_error *err)
{
    struct pd_report r;
    pd_report_begin(&r, b->json);
    if (b->pairs && is_wanted(b, 0)) {
        pd_bench_report_ratio(&r, "gemm_ratio", &b->result[0]);
        pd_report_double(&r, "step_seconds", b->result[0].candidate_s, PD_UNIT_SECONDS);
        pd_report_double(&r, "tokens_per_second", (double)b->tokens / b->result[0].candidate_s, PD_UNIT_NONE);
        pd_report_double(&r, "matmul_share", 1 / b->result[0].ratio, PD_UNIT_SHARE);
    }
    pd_report_text(&r, "device", "cpu");
    if (b->pairs && is_wanted(b, 1)) {
        pd_bench_report_ratio(&r, "gemm_ratio_fp32", &b->result[1]);
        pd_report_double(&r, "step_seconds_fp32", b->result[1].candidate_s, PD_UNIT_SECONDS);
    }
    if (b->cost_pairs) report_costs(b, &r);
    if (b->ranks) {
        pd_bench_report_ratio(&r, "dp_efficiency", &b->dp);
        pd_bench_report_ratio(&r, "replay_cost", &b->replay);
    }
    pd_report_u64(&r, "pairs", b->pairs, PD_UNIT_NONE);
    pd_report_u64(&r, "threads", b->threads, PD_UNIT_NONE);
    pd_report_text(&r, "model", b->preset);
    return pd_report_end(&r, err);
}

/* ---- options ---- */

/* Sizes are their own names, on a GPU alone. */
static pd_status check_preset(struct step_bench *b, struct pd_error *err)
{
    struct pd_error unknown = {.status = PD_OK};
    if (pd_bench_step_is_size(b->preset) || !pd_model_preset(b->preset, &b->model, &unknown)) return PD_OK;
    PD_FAIL(err, PD_USAGE, "--preset=%s: %s; on a GPU also 0.5B, 1.5B, 3B, 7B and 14B", b->preset, unknown.message);
}

static pd_status bench_gpu(struct step_bench *b, struct pd_error *err)
{
    if (!b->preset) b->preset = "0.5B";
    PD_TRY(check_preset(b, err));
    b->gpu.preset = b->preset;
    b->gpu.precision = b->precision;
    b->gpu.threads = pd_launched_threads((uint32_t)b->threads, 1);
    b->gpu.json = b->json;
    return pd_bench_step_gpu(&b->gpu, err);
}

static pd_status bench_cpu(struct step_bench *b, struct pd_error *err)
{
    if (!b->preset) b->preset = "gpt2-124m";
    if (!b->threads) b->threads = 2;
    if (pd_bench_step_is_size(b->preset)) PD_FAIL(err, PD_USAGE, "--preset=%s is for a GPU alone: --device=gpu", b->preset);
    PD_TRY(check_preset(b, err));
    if (!b->pairs && !b->cost_pairs && !b->ranks)
        PD_FAIL(err, PD_USAGE, "--pairs=0 and --cost-pairs=0 leave nothing to measure");
    if (!is_wanted(b, 0) && !is_wanted(b, 1)) PD_FAIL(err, PD_USAGE, "--precision=%s: expected bf16 or fp32", b->precision);
    if (b->ranks && b->threads % b->ranks)
        PD_FAIL(err, PD_USAGE, "--ranks=%u: %llu threads cannot be shared evenly; give --threads=%u", b->ranks,
                (unsigned long long)b->threads, b->ranks);
    PD_TRY(pd_bench_temporary(b->tokens_path, err));
    pd_numerics_thread_init();
    const pd_status st = bench_all(b, err);
    unlink(b->tokens_path);
    return st ? st : print(b, err);
}

static pd_status add_key(const struct pd_option *option, const char *text, struct pd_error *err)
{
    struct pd_bench_step_gpu *gpu = option->value;
    if (gpu->key_count == PD_BENCH_KEYS_MAX) PD_FAIL(err, PD_USAGE, "--set=%s: one more than %d", text, PD_BENCH_KEYS_MAX);
    gpu->keys[gpu->key_count++] = text;
    return PD_OK;
}

/* The first option that was given between two headings; NULL: none. */
static const char *first_given(const struct pd_option *options, const char *from)
{
    const struct pd_option *first = NULL;
    while (options->name || options->doc != from)
        options++;
    while ((++options)->name)
        if (options->given && (!first || options->given < first->given)) first = options;
    return first ? first->name : NULL;
}

static pd_status parse(struct step_bench *b, int argc, char **argv, bool *ret_done, struct pd_error *err)
{
    static const char on_cpu[] = "On a processor:", on_gpu[] = "On a GPU, where --preset is also 0.5B, 1.5B, 3B, 7B or 14B:";
    /* clang-format off */
    struct pd_option options[] = {
        {.name = "device", "NAME", "auto (a GPU where there is one), cpu or gpu", PD_OPTION_CHOICE, &b->device,
         .expected = "auto, cpu or gpu"},
        {.name = "preset", "NAME", "model (gpt2-124m)", PD_OPTION_TEXT, &b->preset},
        {.name = "precision", "NAME", "bf16 or fp32 alone (both)", PD_OPTION_TEXT, &b->precision},
        {.name = "threads", "N", "threads of both sides (2; beside a GPU: all cores)", PD_OPTION_U64, &b->threads, 1,
         1024},
        {.doc = on_cpu},
        {.name = "pairs", "N", "alternated pairs of measurements (7); 0: leave them out", PD_OPTION_U64, &b->pairs, 0,
         PD_BENCH_PAIRS_MAX - 1},
        {.name = "tokens", "N", "tokens of the micro-batch (512)", PD_OPTION_U64, &b->tokens, 1, 1 << 20},
        {.name = "cost-pairs", "N", "alternated pairs of steps with virtual_tp 2 and 1 (9); 0: leave them out", PD_OPTION_U64,
         &b->cost_pairs, 0, PD_BENCH_PAIRS_MAX - 1},
        {.name = "cost-sequences", "N", "sequences of 512 tokens of their micro-batch (4)", PD_OPTION_U64,
         &b->cost_sequences, 1, 1024},
        {.name = "cost-layers", "N", "blocks of their model (1)", PD_OPTION_U64, &b->cost_layers, 1, 1024},
        {.name = "ranks", "N",
         "dp_efficiency: N ranks with a share of the threads each against one rank, 8 micro-batches; replay_cost: share of a "
         "step that guard.replay_every: 16 takes, 8 micro-batches a rank",
         PD_OPTION_U32, &b->ranks, 2, 64},
        {.name = "rank-pairs", "N", "alternated pairs of their steps (9)", PD_OPTION_U64, &b->rank_pairs, 1,
         PD_BENCH_PAIRS_MAX - 1},
        {.doc = on_gpu},
        {.name = "mode", "NAME", "numerics: invariant or fast alone (both)", PD_OPTION_TEXT, &b->gpu.mode,
         .expected = "invariant or fast"},
        {.name = "context", "N", "tokens of a sequence (1024)", PD_OPTION_U64, &b->gpu.context, 1, 1 << 20},
        {.name = "sequences", "N", "sequences of a step (512)", PD_OPTION_U64, &b->gpu.sequences, 1, 1 << 20},
        {.name = "micro-batch", "N", "sequences of a micro-batch (what fits)", PD_OPTION_U64, &b->gpu.micro_batch, 1,
         1 << 20},
        {.name = "steps", "N", "steps that are timed (3)", PD_OPTION_U64, &b->gpu.steps, 1, PD_BENCH_STEPS_MAX},
        {.name = "recompute", "NAME", "none, selective or full (what fits)", PD_OPTION_TEXT, &b->gpu.recompute,
         .expected = "none, selective or full"},
        {.name = "set", "KEY=VALUE", "a key of the configuration, such as offload.optimizer=cpu; may be repeated",
         PD_OPTION_SET, &b->gpu, .set = add_key},
        {0}};
    /* clang-format on */
    const struct pd_usage usage = {
        .doc = "A whole training step against all its linear and head GEMMs as oneDNN calls, alternated. gemm_ratio (bf16) "
               "and gemm_ratio_fp32: step / GEMMs, 1 is the floor. chunk_cost: a step with virtual_tp 2 over one with 1. On "
               "a GPU: whole steps in tokens a second, matmul_share of the card's bf16 "
               "rate, and each stage's share.",
        .options = options,
        .json = &b->json};
    PD_TRY(pd_command_parse(&usage, argc, argv, ret_done, err));
    if (*ret_done) return PD_OK;
    b->is_gpu = b->device == PD_DEVICE_GPU || (b->device == PD_DEVICE_AUTO && pd_dev_cuda_count());
    const char *misplaced = first_given(options, b->is_gpu ? on_cpu : on_gpu);
    if (misplaced && b->is_gpu)
        PD_FAIL(err, PD_USAGE, "--%s counts on the processor alone: give --device=cpu beside it", misplaced);
    if (misplaced) PD_FAIL(err, PD_USAGE, "--%s counts on a GPU alone: --device=gpu", misplaced);
    return PD_OK;
}

pd_status pd_bench_step(int argc, char **argv, struct pd_error *err)
{
    struct step_bench b = {.pairs = 7,
                           .tokens = 512,
                           .cost_pairs = 9,
                           .cost_sequences = 4,
                           .cost_layers = 1,
                           .rank_pairs = 9,
                           .gpu = {.context = 1024, .sequences = 512, .steps = 3}};
    bool done;
    PD_TRY(parse(&b, argc, argv, &done, err));
    if (done) return PD_OK;
    return b.is_gpu ? bench_gpu(&b, err) : bench_cpu(&b, err);
}
