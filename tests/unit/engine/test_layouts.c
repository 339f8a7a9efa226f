/* Every layout of small odd models over ranks in this process, one to eight: losses, norms, validation, skips, parameters
 * and both moments have the bits of one rank with the same numerics, and every rank takes exactly what was planned. ZeRO
 * stages, interleaving, recomputation and of how many blocks, shard groups and threads go round with the layouts.
 *
 * By default every twelfth layout of each numerics is tried, others under other numerics and in other shares (PERDURE_TEST_SHARE picks one);
 * PERDURE_TEST_SCALE=10 tries all of them with everything that goes round. PERDURE_LAYOUT=dp,tp,pp,sp runs that one alone. */
#include "tests/helpers/scale.h"
#include "tests/unit/engine/engine_run.h"

enum { WORLD_MAX = 8, LAYERS = 5, MICRO_BATCHES = 7, STEPS = 3 };

struct numerics {
    const char *name, *model, *precision;
    uint32_t virtual_tp, virtual_sp;
    const char *more; /* another override, or NULL */
    uint32_t offset;  /* of the twelfth of layouts that is tried by default in share 0 */
    uint32_t lanes;   /* 0: one a micro-batch */
};

struct choice {
    uint32_t dp, tp, pp, sp, interleave, zero_stage, zero_shard;
    const char *recompute, *order, *exchange;
    uint32_t layers; /* recomputed of a rank; more than there are: all */
};

static uint32_t lanes_of(const struct numerics *n)
{
    return n->lanes ? n->lanes : MICRO_BATCHES;
}

static void configure(struct pd_config *c, const struct numerics *n, const struct choice *l)
{
    char yaml[1500], more[96], layers[16] = "auto";
    struct pd_error err;
    if (l->layers <= LAYERS && strcmp(l->recompute, "none") != 0) snprintf(layers, sizeof layers, "%u", l->layers);
    snprintf(yaml, sizeof yaml,
             "run: {dir: unused, steps: %d, seed: 5}\n"
             "model: {%s, vocab: 257, context: 32, layers: %d, hidden: 48, ffn: 40}\n"
             "data: {train: [{path: %s}], validation_fraction: 0.1, separate_documents: true, document_token: 32}\n"
             "batch: {sequences: %d, micro_batch: 2, context: 32}\n"
             "optimizer: {lr: 0.01, warmup_steps: 2}\n"
             "numerics: {precision: %s, virtual_tp: %u, virtual_sp: %u, lanes: %u}\n"
             "layout: {dp: %u, tp: %u, pp: %u, sp: %u, interleave: %u, zero_stage: %u, zero_shard: %u, "
             "recompute: %s, recompute_layers: %s, order: %s, exchange: %s}\n",
             STEPS, n->model, LAYERS, data_path(), 2 * MICRO_BATCHES, n->precision, n->virtual_tp, n->virtual_sp,
             lanes_of(n), l->dp, l->tp, l->pp, l->sp, l->interleave, l->zero_stage, l->zero_shard, l->recompute, layers,
             l->order, l->exchange);
    snprintf(more, sizeof more, "%s", n->more ? n->more : "run.log_every=1");
    const char *overrides[] = {more};
    cr_assert_eq(pd_config_parse("test", yaml, overrides, 1, c, &err), PD_OK, "%s", err.message);
}

/* What else goes round while the degrees are tried. */
static struct choice choice_of(uint32_t dp, uint32_t tp, uint32_t pp, uint32_t sp, uint32_t turn)
{
    static const char *const recompute[] = {"none", "selective", "full"};
    struct choice l = {dp,
                       tp,
                       pp,
                       sp,
                       1,
                       turn % 4,
                       dp * sp,
                       recompute[turn / 2 % 3],
                       "depth_first",
                       turn / 2 % 2 ? "lane" : "step",
                       (turn + 1) % 7};
    if (pp == 1 && turn % 2 == 0) l.order = "breadth_first";
    if (pp > 1 && 2 * pp <= LAYERS && turn % 3 == 1) l.interleave = 2;
    if (turn % 5 == 2)
        for (uint32_t shard = dp * sp / 2; shard > 0 && l.zero_shard == dp * sp; shard--)
            if (dp * sp % shard == 0) l.zero_shard = shard;
    return l;
}

static void describe(const struct numerics *n, const struct choice *l, char *ret_text, size_t room)
{
    snprintf(ret_text, room, "%s: dp %u tp %u pp %u sp %u interleave %u, ZeRO-%u over %u, recompute %s (%u), %s, by %s",
             n->name, l->dp, l->tp, l->pp, l->sp, l->interleave, l->zero_stage, l->zero_shard, l->recompute, l->layers,
             l->order, l->exchange);
}

static void run(struct job *job, const struct numerics *n, const struct choice *l, uint32_t threads)
{
    struct pd_config c;
    struct pd_error err;
    char what[256];
    configure(&c, n, l);
    describe(n, l, what, sizeof what);
    job->steps = STEPS;
    cr_assert_eq(try_run(job, &c, l->dp * l->tp * l->pp * l->sp, threads, &err), PD_OK, "%s: %s", what, err.message);
    if (l->pp > 1) cr_assert_gt(job->bubbles, 0, "%s: no bubble was measured", what);
    pd_config_deinit(&c);
}

static bool is_wanted(const struct choice *l)
{
    const char *text = getenv("PERDURE_LAYOUT");
    struct choice w;
    if (!text || sscanf(text, "%u,%u,%u,%u", &w.dp, &w.tp, &w.pp, &w.sp) != 4) return true;
    return w.dp == l->dp && w.tp == l->tp && w.pp == l->pp && w.sp == l->sp;
}

static void check(const struct numerics *n, const struct job *one, uint32_t dp, uint32_t tp, uint32_t pp, uint32_t sp,
                  uint32_t turn)
{
    static struct job many;
    char what[256];
    struct choice l = choice_of(dp, tp, pp, sp, turn);
    if (!is_wanted(&l)) return;
    run(&many, n, &l, 1 + turn % 2);
    describe(n, &l, what, sizeof what);
    expect_same(one, &many, what);
}

static void check_numerics(const struct numerics *n)
{
    static struct job one;
    const bool all = test_scale() >= 10 || getenv("PERDURE_LAYOUT");
    const uint32_t turns = all ? 12 : 1;
    const struct choice alone = {1, 1, 1, 1, 1, 3, 1, "none", "depth_first", "auto", 0};
    const uint32_t share = (uint32_t)(test_share() % 12);
    uint32_t tried = 0;
    run(&one, n, &alone, 1);
    const bool is_large = n->more && strstr(n->more, "optimizer.lr");
    if (!is_large) cr_assert_lt(one.loss[STEPS - 1], one.loss[0]);
    cr_assert_eq(one.coarser > 0, is_large, "%u times coarser", one.coarser);
    const uint64_t skips = one.state.skipped_steps;
    if (!strcmp(n->precision, "fp16"))
        cr_assert(skips > 0 && skips < STEPS, "%llu of %d steps are skipped", (unsigned long long)skips, STEPS);
    for (uint32_t tp = 1; tp <= n->virtual_tp; tp *= 2)
        for (uint32_t sp = 1; sp <= n->virtual_sp; sp *= 2)
            for (uint32_t pp = 1; pp <= LAYERS; pp++)
                for (uint32_t dp = 1; dp <= lanes_of(n) && dp * tp * pp * sp <= WORLD_MAX; dp++)
                    for (uint32_t turn = 0; turn < turns; turn++, tried++)
                        if (all || tried % 12 == (n->offset + share) % 12)
                            check(n, &one, dp, tp, pp, sp, all ? tried : tried / 3);
}

#define LLAMA "family: llama, heads: 6, kv_heads: 3, head_size: 8, tie_embeddings: false"
#define QWEN3 "family: qwen3, heads: 6, kv_heads: 3, head_size: 10, tie_embeddings: true"
#define GPT2 "family: gpt2, heads: 12, head_size: 4, tie_embeddings: true"

TestSuite(layouts, .fini = remove_data, .timeout = 1800);

Test(layouts, pipeline_alone)
{
    check_numerics(&(struct numerics){"llama fp32", LLAMA, "fp32", 1, 1, NULL, 0, 0});
}

Test(layouts, tensor_parallel)
{
    check_numerics(&(struct numerics){"llama fp32 tp", LLAMA, "fp32", 4, 1, NULL, 1, 0});
}

Test(layouts, sequence_parallel)
{
    check_numerics(&(struct numerics){"llama bf16 sp", LLAMA, "bf16", 1, 4, NULL, 2, 0});
}

Test(layouts, gpt2_everything)
{
    check_numerics(&(struct numerics){"gpt2 bf16 tp sp", GPT2, "bf16", 2, 2, NULL, 1, 0});
}

Test(layouts, llama_everything)
{
    check_numerics(&(struct numerics){"llama bf16 tp sp", LLAMA ", qkv_bias: true", "bf16", 4, 2, NULL, 0, 0});
}

/* A scale that overflows now and then: which steps are skipped is part of the same bits. */
Test(layouts, fp16_skips)
{
    check_numerics(&(struct numerics){"llama fp16 tp sp", LLAMA, "fp16", 2, 2, "numerics.loss_scale=16384", 1, 0});
}

/* Heads of keys that chunks share, an empty chunk, pieces of unequal length: each has scales of its own. */
Test(layouts, fp8_llama)
{
    check_numerics(
        &(struct numerics){"llama fp8 tp sp", LLAMA ", qkv_bias: true", "bf16", 4, 2, "numerics.linears=fp8", 2, 0});
}

Test(layouts, fp8_gpt2)
{
    check_numerics(&(struct numerics){"gpt2 fp8 sp", GPT2, "fp32", 1, 2, "numerics.linears=fp8", 1, 0});
}

/* Weights of norms that every head shares are sums over the heads of all tensor-parallel ranks. */
Test(layouts, qwen3_everything)
{
    check_numerics(&(struct numerics){"qwen3 bf16 tp sp", QWEN3, "bf16", 4, 2, NULL, 1, 0});
}

Test(layouts, fp8_qwen3)
{
    check_numerics(&(struct numerics){"qwen3 fp8 tp sp", QWEN3, "bf16", 2, 2, "numerics.linears=fp8", 0, 0});
}

/* Sums of exponentials go from chunk to chunk and from rank to rank, each relative to a maximum of its own. */
Test(layouts, logits_of_columns)
{
    check_numerics(
        &(struct numerics){"llama bf16 tp sp, logits of columns", LLAMA, "bf16", 4, 2, "numerics.logits=columns", 1, 0});
}

/* Moments are rounded by the step and the element, whoever owns it; columns are cut in chunks. */
Test(layouts, moments_in_bf16)
{
    check_numerics(&(struct numerics){"llama bf16 tp sp, moments in bf16", LLAMA ", qkv_bias: true", "bf16", 4, 2,
                                      "optimizer.moments=bf16", 0, 0});
}

/* Steps are computed again with a coarser quantum, once and more often, and end with the bits of every other layout. */
Test(layouts, large_gradients)
{
    check_numerics(&(struct numerics){"llama fp32 tp sp, large", LLAMA, "fp32", 2, 2, "optimizer.lr=30", 1, 0});
}

Test(layouts, large_gradients_tied)
{
    check_numerics(&(struct numerics){"gpt2 bf16 tp, large", GPT2, "bf16", 2, 1, "optimizer.lr=100", 0, 3});
}

Test(layouts, logits_of_16_bits)
{
    check_numerics(
        &(struct numerics){"llama bf16 tp, logits in bf16", LLAMA, "bf16", 4, 1, "numerics.logits_type=precision", 1, 0});
}

/* Blocks' sums that are rounded after each micro-batch: in any order of micro-batches, on any stage, tied table or not. */
Test(layouts, sums_in_bf16)
{
    static struct job exact, rounded;
    const struct choice alone = {1, 1, 1, 1, 1, 0, 1, "none", "depth_first", "auto", 0};
    const struct numerics n = {"llama bf16, sums in bf16", LLAMA, "bf16", 1, 1, "numerics.gradients=bf16", 0, 1};
    struct numerics in_fp32 = n;
    in_fp32.more = NULL;
    run(&exact, &in_fp32, &alone, 1);
    run(&rounded, &n, &alone, 1);
    cr_assert_eq(exact.loss[0], rounded.loss[0]);
    cr_assert_neq(exact.loss[STEPS - 1], rounded.loss[STEPS - 1]);
    cr_assert_float_eq(exact.loss[STEPS - 1], rounded.loss[STEPS - 1], 1e-2);
    for (uint32_t offset = 0; offset < 6; offset++) {
        const bool is_tied = offset % 2;
        check_numerics(
            &(struct numerics){n.name, is_tied ? GPT2 : LLAMA, is_tied ? "fp32" : "bf16", 1, 1, n.more, offset, 1});
    }
}

/* Every kind of tensor has a quantum of its own, which follows its gradients; a tied table is on two stages. */
Test(layouts, narrow_terms)
{
    check_numerics(&(struct numerics){"llama bf16 tp sp, 32-bit terms", LLAMA ", qkv_bias: true", "bf16", 4, 2,
                                      "numerics.terms=32", 2, 0});
}

Test(layouts, narrow_terms_tied)
{
    check_numerics(&(struct numerics){"gpt2 bf16 tp, 32-bit terms, 3 lanes", GPT2, "bf16", 2, 1, "numerics.terms=32", 1, 3});
}

/* Micro-batches that are added up before they are terms, in lanes of unequal length; and all of them in one. */
Test(layouts, three_lanes)
{
    check_numerics(&(struct numerics){"llama fp32, 3 lanes", LLAMA, "fp32", 1, 1, NULL, 2, 3});
}

Test(layouts, three_lanes_everything)
{
    check_numerics(&(struct numerics){"gpt2 bf16 tp, 3 lanes", GPT2, "bf16", 2, 1, NULL, 1, 3});
}

Test(layouts, one_lane)
{
    check_numerics(&(struct numerics){"gpt2 fp32, 1 lane", GPT2, "fp32", 1, 1, NULL, 0, 1});
}
