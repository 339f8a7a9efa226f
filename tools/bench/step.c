/* perdure bench step: one whole training step of GPT-2 124M, one micro-batch of 512 tokens, AdamW included, against all
 * its linear and head GEMMs as whole oneDNN calls on the same threads. On a GPU: tools/bench/step_gpu.h.
 *
 * --preset=moe: a mixture of experts as wide as GPT-2 124M, of which a token takes 2 of 8, on 2,048 tokens, so that an
 * expert has as many as the dense model. oneDNN multiplies as if tokens were spread evenly. */
#include "ckpt/base/clock.h"
#include "offload/device.h"
#include "resharder/catalog/family.h"
#include "tools/bench/bench.h"
#include "tools/bench/gemm.h"
#include "tools/bench/stages.h"
#include "tools/bench/step_gpu.h"
#include "trainer/run/launched.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PRECISIONS = 2, DP_MICRO_BATCHES = 8, REPLAY_EVERY = 16 };
#define RANKS_VOCAB 4096u
#define MOE_LENGTH 512u /* tokens of a sequence */
#define MOE_TOKENS 2048u
#define MOE_MICRO_BATCHES 4u /* of a step of several ranks */

static const char *const precisions[PRECISIONS] = {"bf16", "fp32"};

struct step_bench {
    uint64_t pairs, tokens, threads, rank_pairs;
    uint32_t ranks;                 /* 0: not measured */
    const char *preset, *precision; /* preset NULL: gpt2-124m; precision NULL: both */
    struct pd_model_config model;   /* of the preset */
    enum pd_device_choice device;
    struct pd_bench_step_gpu gpu;
    bool json, is_gpu, is_moe, shows_stages;
    char tokens_path[4096];
    struct pd_pairs_summary result[PRECISIONS];
    double stages[PRECISIONS][PD_BENCH_STAGES]; /* seconds in all measured steps, if shows_stages */
    double step_seconds[PRECISIONS];            /* of those steps */
    struct pd_pairs_summary dp, replay, ep;
};

/* The settings in which engines differ. */
struct bench_case {
    const char *precision;
    unsigned virtual_tp;
    uint64_t sequences, context, layers; /* layers 0: layers and vocabulary of the preset */
    uint64_t micro_batches;              /* for the sequences; 0: one */
    bool is_replayed;                    /* every step (guard.replay_every) */
    uint32_t dp, ep, threads;            /* 0: one rank with all threads */
};

/* ---- one precision ---- */

static pd_status open_run(struct pd_bench_run *r, const struct step_bench *b, const struct bench_case *c,
                          struct pd_error *err)
{
    char model[240], sections[240], smaller[64] = "", longer[64] = "";
    if (c->layers)
        snprintf(smaller, sizeof smaller, ", layers: %llu, vocab: %u", (unsigned long long)c->layers, RANKS_VOCAB);
    if (c->context > b->model.context) snprintf(longer, sizeof longer, ", context: %llu", (unsigned long long)c->context);
    if (b->is_moe)
        snprintf(model, sizeof model,
                 "family: mixtral, hidden: 768, heads: 12, kv_heads: 12, head_size: 64, ffn: 3072, experts: 8, "
                 "experts_per_token: 2, context: %u, layers: %u, vocab: %u",
                 MOE_LENGTH, c->layers ? (unsigned)c->layers : 4, c->layers ? RANKS_VOCAB : b->model.vocab);
    else
        snprintf(model, sizeof model, "preset: %.32s%s%s", b->preset, smaller, longer);
    snprintf(sections, sizeof sections,
             "numerics: {precision: %s, virtual_tp: %u}\nlayout: {recompute: none, dp: %u, ep: %u}\n"
             "guard: {replay_every: %d}\n",
             c->precision, c->virtual_tp, c->dp ? c->dp : 1, c->ep ? c->ep : 1, c->is_replayed);
    const struct pd_bench_run_options options = {.model = model,
                                                 .tokens = b->tokens_path,
                                                 .sequences = c->sequences,
                                                 .micro_batch = c->sequences / (c->micro_batches ? c->micro_batches : 1),
                                                 .context = c->context,
                                                 .sections = sections};
    PD_TRY(pd_bench_run_configure(r, &options, err));
    return pd_bench_run_open(r, c->threads ? c->threads : (uint32_t)b->threads, err);
}

/* Lists every linear layer of a block, L times, and the head: y, dx and dW of each. */
static pd_status build_gemms(struct pd_bench_run *r, const struct step_bench *b, struct pd_gemm_bench **ret_gemms,
                             struct pd_error *err)
{
    const struct pd_model_config *m = &r->config.model;
    const uint64_t query = (uint64_t)m->heads * m->head_size, kv = 2ull * m->kv_heads * m->head_size;
    const uint64_t up = (uint64_t)pd_family_at(m->family)->up_matrices * m->ffn;
    const uint32_t experts = m->experts ? m->experts : 1;
    const uint64_t rows = m->experts ? b->tokens * m->experts_per_token / m->experts : b->tokens;
    const struct pd_gemm_linear linears[] = {{m->hidden, query + kv, m->layers, 0},
                                             {query, m->hidden, m->layers, 0},
                                             {m->hidden, up, experts * m->layers, rows},
                                             {m->ffn, m->hidden, experts * m->layers, rows},
                                             {m->hidden, m->vocab, 1, 0},
                                             {m->hidden, m->experts, m->layers, 0}};
    return pd_gemm_bench_new(b->tokens, linears, m->experts ? 6 : 5, r->whole.pool, ret_gemms, err);
}

/* Of a micro-batch, whose tokens are b->tokens. */
static uint64_t sequences_of(const struct step_bench *b)
{
    return b->is_moe ? b->tokens / MOE_LENGTH : 1;
}

static pd_status bench_precision(struct step_bench *b, int precision, struct pd_error *err)
{
    const struct bench_case c = {.precision = precisions[precision],
                                 .virtual_tp = 1,
                                 .sequences = sequences_of(b),
                                 .context = b->tokens / sequences_of(b)};
    struct pd_bench_run r = {0};
    struct pd_gemm_bench *gemms = NULL;
    struct pd_pairs pairs = {0};
    double step_s, gemms_s;
    pd_status st = open_run(&r, b, &c, err);
    if (!st) st = build_gemms(&r, b, &gemms, err);
    if (!st && b->shows_stages) pd_bench_stages_watch(r.whole.engine->math, b->stages[precision]);
    for (uint64_t i = 0; !st && i <= b->pairs; i++) { /* the first pair warms up */
        st = pd_bench_run_step(&r, i, &step_s, NULL, err);
        if (!st) st = pd_gemm_bench_run_onednn(gemms, &gemms_s, err);
        if (st) break;
        if (i)
            pd_pairs_add(&pairs, step_s, gemms_s);
        else
            memset(b->stages[precision], 0, sizeof b->stages[precision]);
        b->step_seconds[precision] += i ? step_s : 0;
    }
    pd_gemm_bench_free(gemms);
    pd_bench_run_close(&r);
    if (!st) b->result[precision] = pd_pairs_summarise(&pairs);
    return st;
}

/* ---- several ranks ---- */

/* Steps of several ranks that are threads of this process: one kind against another. */
enum rank_side { SIDE_DP, SIDE_PLAIN, SIDE_REPLAYED, SIDE_EP };

struct sides {
    const struct step_bench *bench;
    enum rank_side candidate, ceiling;
    bool is_ceiling_alone;  /* the ceiling is one rank with the threads of all */
    struct pd_pairs *pairs; /* rank 0 writes it */
};

/* One rank's view of the bench. */
struct rank_bench {
    const struct sides *sides;
    struct pd_comm *comm;
    struct pd_bench_run candidate, ceiling;
    uint64_t step;
    double loss[2];
};

static pd_status step_together(struct rank_bench *r, struct pd_bench_run *run, double *ret_seconds, double *ret_loss,
                               struct pd_error *err)
{
    double ignored;
    PD_TRY(pd_comm_barrier(r->comm, err));
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    PD_TRY(pd_bench_run_step(run, r->step, &ignored, ret_loss, err));
    PD_TRY(pd_comm_barrier(r->comm, err));
    *ret_seconds = pd_clock_seconds_since(start);
    return PD_OK;
}

static pd_status step_candidate(void *rank_bench, double *ret_seconds, struct pd_error *err)
{
    struct rank_bench *r = rank_bench;
    return step_together(r, &r->candidate, ret_seconds, &r->loss[0], err);
}

/* If the ceiling is one rank, the others sleep at their next barrier. */
static pd_status step_ceiling(void *rank_bench, double *ret_seconds, struct pd_error *err)
{
    struct rank_bench *r = rank_bench;
    if (!r->sides->is_ceiling_alone) return step_together(r, &r->ceiling, ret_seconds, &r->loss[1], err);
    return r->comm->rank ? PD_OK : pd_bench_run_step(&r->ceiling, r->step, ret_seconds, &r->loss[1], err);
}

/* The first pair warms up. Both sides must end each step with the same loss, else PD_BUG. */
static pd_status step_measure(struct rank_bench *r, struct pd_error *err)
{
    struct pd_pairs pairs = {0};
    for (r->step = 0; r->step <= r->sides->bench->rank_pairs; r->step++) {
        PD_TRY(pd_pairs_measure(&pairs, r, step_candidate, step_ceiling, err));
        if (!r->comm->rank && r->loss[0] != r->loss[1])
            PD_FAIL(err, PD_BUG, "bench step: step %llu has loss %.9g on one side and %.9g on the other",
                    (unsigned long long)r->step, r->loss[0], r->loss[1]);
        if (!r->step) pairs.count = 0;
    }
    if (!r->comm->rank) *r->sides->pairs = pairs;
    return PD_OK;
}

/* 8 micro-batches a step, or one per rank if steps are replayed. `comm` NULL: one rank with the threads of all. */
static pd_status open_side(const struct step_bench *b, enum rank_side side, struct pd_comm *comm, struct pd_bench_run *run,
                           struct pd_error *err)
{
    const uint32_t dp = comm ? comm->size : 1;
    const uint64_t micro_batches = side == SIDE_DP   ? DP_MICRO_BATCHES
                                   : side == SIDE_EP ? MOE_MICRO_BATCHES
                                                     : (uint64_t)DP_MICRO_BATCHES * dp;
    const struct bench_case c = {.precision = precisions[0],
                                 .virtual_tp = 1,
                                 .sequences = micro_batches * sequences_of(b),
                                 .context = b->tokens / sequences_of(b),
                                 .layers = 1,
                                 .micro_batches = micro_batches,
                                 .is_replayed = side == SIDE_REPLAYED,
                                 .dp = dp,
                                 .ep = side == SIDE_EP ? dp : 1,
                                 .threads = (uint32_t)b->threads / dp};
    run->comm = comm;
    return open_run(run, b, &c, err);
}

static pd_status rank_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    const struct sides *s = context;
    struct rank_bench r = {.sides = s, .comm = comm};
    pd_status st = open_side(s->bench, s->candidate, comm, &r.candidate, err);
    if (!st && (!s->is_ceiling_alone || comm->rank == 0))
        st = open_side(s->bench, s->ceiling, s->is_ceiling_alone ? NULL : comm, &r.ceiling, err);
    if (!st) st = step_measure(&r, err);
    if (st) pd_comm_abort(comm);
    pd_bench_run_close(&r.ceiling);
    pd_bench_run_close(&r.candidate);
    return st;
}

/* One step in 16 is replayed: the cost of a replay over 16. */
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
    struct pd_pairs pairs;
    struct sides dp = {b, SIDE_DP, SIDE_DP, true, &pairs}, replay = {b, SIDE_REPLAYED, SIDE_PLAIN, false, &pairs},
                 ep = {b, SIDE_EP, SIDE_EP, true, &pairs};
    if (b->is_moe) {
        PD_TRY(pd_comm_run_local(b->ranks, 1, rank_main, &ep, err));
        b->ep = pd_pairs_summarise_throughput(&pairs);
        return PD_OK;
    }
    PD_TRY(pd_comm_run_local(b->ranks, 1, rank_main, &dp, err));
    b->dp = pd_pairs_summarise_throughput(&pairs);
    PD_TRY(pd_comm_run_local(b->ranks, 1, rank_main, &replay, err));
    b->replay = replay_cost(&pairs);
    return PD_OK;
}

static bool is_wanted(const struct step_bench *b, int precision)
{
    return !b->precision || !strcmp(b->precision, precisions[precision]);
}

static pd_status bench_all(struct step_bench *b, struct pd_error *err)
{
    const uint64_t most = b->ranks ? RANKS_VOCAB : 50000, words = b->model.vocab < most ? b->model.vocab : most;
    PD_TRY(pd_bench_write_tokens(b->tokens_path, b->tokens * 64 + 1, words, true, err));
    for (int p = 0; p < PRECISIONS && b->pairs; p++)
        if (is_wanted(b, p)) PD_TRY(bench_precision(b, p, err));
    return b->ranks ? bench_ranks(b, err) : PD_OK;
}

/* ---- report ---- */

static pd_status step_print(const struct step_bench *b, struct pd_error *err)
{
    struct pd_report r;
    pd_report_begin(&r, b->json);
    if (b->pairs && is_wanted(b, 0)) {
        pd_bench_report_ratio(&r, b->is_moe ? "moe_gemm_ratio" : "gemm_ratio", &b->result[0]);
        pd_report_double(&r, "step_seconds", b->result[0].candidate_s, PD_UNIT_SECONDS);
        pd_report_double(&r, "tokens_per_second", (double)b->tokens / b->result[0].candidate_s, PD_UNIT_NONE);
        pd_report_double(&r, "matmul_share", 1 / b->result[0].ratio, PD_UNIT_SHARE);
        if (b->shows_stages) pd_bench_report_stages(&r, "stage_shares", b->stages[0], b->step_seconds[0]);
    }
    pd_report_text(&r, "device", "cpu");
    if (b->pairs && is_wanted(b, 1)) {
        pd_bench_report_ratio(&r, b->is_moe ? "moe_gemm_ratio_fp32" : "gemm_ratio_fp32", &b->result[1]);
        pd_report_double(&r, "step_seconds_fp32", b->result[1].candidate_s, PD_UNIT_SECONDS);
        if (b->shows_stages) pd_bench_report_stages(&r, "stage_shares_fp32", b->stages[1], b->step_seconds[1]);
    }
    if (b->ranks && b->is_moe) {
        pd_bench_report_ratio(&r, "ep_efficiency", &b->ep);
    } else if (b->ranks) {
        pd_bench_report_ratio(&r, "dp_efficiency", &b->dp);
        pd_bench_report_ratio(&r, "replay_cost", &b->replay);
    }
    PD_REPORT_U64S(&r, {"pairs", b->pairs}, {"threads", b->threads});
    pd_report_text(&r, "model", b->preset);
    return pd_report_end(&r, err);
}

/* ---- options ---- */

/* Names such as 0.5B are for a GPU only. */
static pd_status check_preset(struct step_bench *b, struct pd_error *err)
{
    struct pd_error unknown = {.status = PD_OK};
    if (pd_bench_step_is_size(b->preset) || !pd_model_preset(b->preset, &b->model, &unknown)) return PD_OK;
    PD_FAIL(err, PD_USAGE, "--preset=%s: %s; on a GPU also 0.5B, 1.5B, 3B, 7B and 14B", b->preset, unknown.message);
}

/* A mixture of experts: of the sizes above that need one, only the vocabulary. */
static pd_status check_moe(struct step_bench *b, struct pd_error *err)
{
    b->model = (struct pd_model_config){.vocab = 50257, .context = MOE_LENGTH};
    if (b->tokens % MOE_LENGTH)
        PD_FAIL(err, PD_USAGE, "--tokens=%llu: --preset=moe has sequences of %u tokens; give a multiple",
                (unsigned long long)b->tokens, MOE_LENGTH);
    if (b->ranks && 8 % b->ranks)
        PD_FAIL(err, PD_USAGE, "--ranks=%u: 8 experts cannot be spread evenly; give 2, 4 or 8", b->ranks);
    return PD_OK;
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
    b->is_moe = strcmp(b->preset, "moe") == 0;
    if (!b->tokens) b->tokens = b->is_moe ? MOE_TOKENS : 512;
    PD_TRY(b->is_moe ? check_moe(b, err) : check_preset(b, err));
    if (!b->pairs && !b->ranks) PD_FAIL(err, PD_USAGE, "--pairs=0 without --ranks leaves nothing to measure");
    if (!is_wanted(b, 0) && !is_wanted(b, 1)) PD_FAIL(err, PD_USAGE, "--precision=%s: expected bf16 or fp32", b->precision);
    if (b->ranks && b->threads % b->ranks)
        PD_FAIL(err, PD_USAGE, "--ranks=%u: %llu threads cannot be shared evenly; give --threads=%u", b->ranks,
                (unsigned long long)b->threads, b->ranks);
    PD_TRY(pd_bench_temporary(b->tokens_path, err));
    pd_numerics_thread_init();
    const pd_status st = bench_all(b, err);
    unlink(b->tokens_path);
    return st ? st : step_print(b, err);
}

static pd_status add_key(const struct pd_option *option, const char *text, struct pd_error *err)
{
    struct pd_bench_step_gpu *gpu = option->value;
    if (gpu->key_count == PD_BENCH_KEYS_MAX) PD_FAIL(err, PD_USAGE, "--set=%s: one more than %d", text, PD_BENCH_KEYS_MAX);
    gpu->keys[gpu->key_count++] = text;
    return PD_OK;
}

/* Returns the first given option in the rows from heading `from` to the next heading; NULL: none. */
static const char *first_given(const struct pd_option *options, const char *from)
{
    const struct pd_option *first = NULL;
    while (options->name || options->doc != from)
        options++;
    while ((++options)->name)
        if (options->given && (!first || options->given < first->given)) first = options;
    return first ? first->name : NULL;
}

static pd_status step_parse(struct step_bench *b, int argc, char **argv, bool *ret_done, struct pd_error *err)
{
    static const char on_cpu[] = "On a processor:", on_gpu[] = "On a GPU, where --preset is also 0.5B, 1.5B, 3B, 7B or 14B:";
    struct pd_option options[] = {
        PD_OPTION("device", "NAME", "auto (a GPU where there is one), cpu or gpu", PD_OPTION_CHOICE, &b->device,
                  .expected = "auto, cpu or gpu"),
        PD_OPTION("preset", "NAME", "model (gpt2-124m); moe: 8 experts, as wide, ratios named moe_gemm_ratio and so on",
                  PD_OPTION_TEXT, &b->preset),
        PD_OPTION("precision", "NAME", "bf16 or fp32 alone (both)", PD_OPTION_TEXT, &b->precision),
        PD_OPTION("threads", "N", "threads of both sides (default: 2; with a GPU: all cores)", PD_OPTION_U64, &b->threads, 1,
                  1024),
        {.doc = on_cpu},
        PD_OPTION("pairs", "N", "alternated pairs of measurements (7); 0: leave them out", PD_OPTION_U64, &b->pairs, 0,
                  PD_BENCH_PAIRS_MAX - 1),
        PD_OPTION("tokens", "N", "tokens of the micro-batch (512; moe: 2048)", PD_OPTION_U64, &b->tokens, 1, 1 << 20),
        PD_OPTION("stages", NULL, "which share of a step GEMMs, attention, norms and so on take", PD_OPTION_FLAG,
                  &b->shows_stages),
        PD_OPTION("ranks", "N",
                  "dp_efficiency: N ranks with a share of the threads each against one rank, 8 micro-batches; replay_cost: "
                  "share of a step that guard.replay_every: 16 takes, 8 micro-batches a rank. moe: ep_efficiency, with "
                  "layout.ep=N, 4 micro-batches",
                  PD_OPTION_U32, &b->ranks, 2, 64),
        PD_OPTION("rank-pairs", "N", "alternated pairs of their steps (9)", PD_OPTION_U64, &b->rank_pairs, 1,
                  PD_BENCH_PAIRS_MAX - 1),
        {.doc = on_gpu},
        PD_OPTION("mode", "NAME", "numerics: invariant or fast alone (both)", PD_OPTION_TEXT, &b->gpu.mode,
                  .expected = "invariant or fast"),
        PD_OPTION("context", "N", "tokens of a sequence (1024)", PD_OPTION_U64, &b->gpu.context, 1, 1 << 20),
        PD_OPTION("sequences", "N", "sequences of a step (512)", PD_OPTION_U64, &b->gpu.sequences, 1, 1 << 20),
        PD_OPTION("micro-batch", "N", "sequences of a micro-batch (what fits)", PD_OPTION_U64, &b->gpu.micro_batch, 1,
                  1 << 20),
        PD_OPTION("steps", "N", "steps that are timed (3)", PD_OPTION_U64, &b->gpu.steps, 1, PD_BENCH_STEPS_MAX),
        PD_OPTION("recompute", "NAME", "none, selective or full (what fits)", PD_OPTION_TEXT, &b->gpu.recompute,
                  .expected = "none, selective or full"),
        PD_OPTION("set", "KEY=VALUE", "a key of the configuration, such as offload.optimizer=cpu; may be repeated",
                  PD_OPTION_SET, &b->gpu, .set = add_key),
        {0}};
    const struct pd_usage usage = {
        .doc = "A whole training step against all its linear and head GEMMs as oneDNN calls, alternated. gemm_ratio (bf16) "
               "and gemm_ratio_fp32: step / GEMMs, 1 is the floor. On a GPU: whole steps in tokens a second, matmul_share "
               "of the card's bf16 rate, and each stage's share.",
        .options = options,
        .json = &b->json};
    PD_TRY(pd_command_parse(&usage, argc, argv, ret_done, err));
    if (*ret_done) return PD_OK;
    b->is_gpu = b->device == PD_DEVICE_GPU || (b->device == PD_DEVICE_AUTO && pd_dev_cuda_count());
    const char *misplaced = first_given(options, b->is_gpu ? on_cpu : on_gpu);
    if (misplaced && b->is_gpu) PD_FAIL(err, PD_USAGE, "--%s works on a CPU alone: add --device=cpu", misplaced);
    if (misplaced) PD_FAIL(err, PD_USAGE, "--%s works on a GPU alone: add --device=gpu", misplaced);
    return PD_OK;
}

pd_status pd_bench_step(int argc, char **argv, struct pd_error *err)
{
    struct step_bench b = {.pairs = 7, .rank_pairs = 9, .gpu = {.context = 1024, .sequences = 512, .steps = 3}};
    bool done;
    PD_TRY(step_parse(&b, argc, argv, &done, err));
    if (done) return PD_OK;
    return b.is_gpu ? bench_gpu(&b, err) : bench_cpu(&b, err);
}
