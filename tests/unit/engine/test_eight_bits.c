/* Linears in fp8 learn as others do, with experts too: other bits, nearly the same losses and norms. */
#include "tests/unit/engine/engine_run.h"

#include <math.h>

enum { STEPS = 6 };

#define DENSE "family: llama, tie_embeddings: false, ffn: 160"
#define EXPERTS "preset: glm4-moe-1m, expert_ffn: 40, rotated: 8, ffn: 160"

static const char *model = DENSE;

static void run_with(struct job *job, const char *const *overrides, uint32_t count, uint32_t threads)
{
    char yaml[900];
    struct pd_config c;
    struct pd_error err;
    snprintf(yaml, sizeof yaml,
             "run: {dir: unused, steps: %d, seed: 5}\n"
             "model: {%s, heads: 4, kv_heads: 2, head_size: 16, vocab: 257, context: 32, layers: 3, hidden: 64}\n"
             "data: {train: [{path: %s}], validation_fraction: 0.1}\n"
             "batch: {sequences: 16, micro_batch: 4, context: 32}\n"
             "optimizer: {lr: 0.01, warmup_steps: 1}\n"
             "numerics: {precision: bf16}\n",
             STEPS, model, data_path());
    cr_assert_eq(pd_config_parse("test", yaml, overrides, count, &c, &err), PD_OK, "%s", err.message);
    job->steps = STEPS;
    cr_assert_eq(try_run(job, &c, 1, threads, &err), PD_OK, "%s: %s", overrides[0], err.message);
    pd_config_deinit(&c);
}

static void run(struct job *job, const char *override, uint32_t threads)
{
    run_with(job, &override, 1, threads);
}

static void check_near(const char *override, double tolerance)
{
    static struct job usual, other, again;
    run(&usual, "run.log_every=1", 1);
    run(&other, override, 1);
    run(&again, override, 2);
    expect_same(&other, &again, override);
    cr_assert_lt(other.loss[STEPS - 1], other.loss[0] - 0.5, "%s: the loss goes from %g to %g", override, other.loss[0],
                 other.loss[STEPS - 1]);
    cr_assert_neq(memcmp(usual.norm, other.norm, sizeof usual.norm), 0, "%s changes nothing", override);
    for (int s = 0; s < STEPS; s++) {
        cr_assert_lt(fabs(other.loss[s] - usual.loss[s]), tolerance * usual.loss[s], "%s: step %d: loss %g and %g", override,
                     s, other.loss[s], usual.loss[s]);
        cr_assert_lt(fabs(other.norm[s] - usual.norm[s]), 10 * tolerance * usual.norm[s], "%s: step %d: norm %g and %g",
                     override, s, other.norm[s], usual.norm[s]);
    }
}

TestSuite(eight_bits, .fini = remove_data);

Test(eight_bits, linears_learn)
{
    check_near("numerics.linears=fp8", 0.02);
}

Test(eight_bits, experts_learn)
{
    model = EXPERTS;
    check_near("numerics.linears=fp8", 0.02);
}

/* Four micro-batches a step have the same weights: codes of these are the same, made once or made for each. */
Test(eight_bits, codes_that_are_kept_for_a_step)
{
    static struct job made_again, kept;
    static const char *const recompute[] = {"layout.recompute=none", "layout.recompute=full", "layout.recompute=none",
                                            "layout.recompute=full"};
    for (int i = 0; i < 4; i++) {
        model = i < 2 ? DENSE : EXPERTS;
        const char *overrides[] = {"numerics.linears=fp8", "layout.fp8_codes=micro_batch", recompute[i]};
        run_with(&made_again, overrides, 3, 1);
        overrides[1] = "layout.fp8_codes=step";
        run_with(&kept, overrides, 3, 2);
        expect_same(&made_again, &kept, recompute[i]);
    }
}
