/* Budgets of placements in files: what fits stays in memory and is not read back. Bits are those without budgets, memory is
 * what was planned, and what a step moves is what was planned, counted at the VFS to the byte. */
#include "tests/helpers/optimizer_read.h"
#include "tests/unit/run/saved_run.h"
#include "trainer/engine/scratch.h"
#include "trainer/plan/offload_plan.h"

enum { STEPS = 3 };

/* Sizes of a run: six blocks, of which ffn matrices are boxes of more than a block and the others of less. */
#define MODEL "model: {family: llama, vocab: 256, context: 16, layers: 6, hidden: 96, heads: 4, kv_heads: 4, ffn: 256}\n"
#define ALL ", parameters: nvme, gradients: nvme, activations: nvme"
#define COPIES (UINT64_C(3) * 96 * 256 * 2) /* of a block that are in files: bf16 */

struct outcome {
    double loss[STEPS], norm[STEPS];
    uint64_t digest, step_bytes, memory_bytes;
    struct pd_offload_plan plan;
};

static uint64_t moved(const struct run *r)
{
    const struct pd_vfs_counts now = pd_vfs_counts(r->vfs);
    return now.bytes_read + now.bytes_written;
}

static void check_memory(struct run *r, struct outcome *ret)
{
    const struct pd_engine_options options = {.config = &r->config, .model = r->whole.model, .world = 1, .threads = 1};
    struct pd_memory_plan plan, used;
    OK(pd_engine_plan_of(&options, &plan, err));
    pd_arena_usage(r->whole.arena, &used);
    cr_assert_eq(memcmp(&plan, &used, sizeof plan), 0, "the plan is not what was taken");
    ret->memory_bytes = pd_memory_plan_total(&plan);
    OK(pd_offload_plan_of(&options, &ret->plan, err));
}

/* `away`: the rest of offload, and what follows it. */
static struct outcome run_with(const char *away)
{
    struct run r;
    struct outcome out = {.digest = 0};
    struct pd_scratch *scratch;
    char keys[600];
    snprintf(keys, sizeof keys, MODEL "offload: {optimizer: nvme, buffer_bytes: 8M%s}\n", away);
    run_make(&r, "/tmp", keys);
    check_memory(&r, &out);
    run_open_tier(&r, 1);
    OK(pd_scratch_open(r.whole.engine, r.vfs, pd_tiers_store(r.tiers, 0), &scratch, err));
    OK(pd_state_open(r.whole.engine->state, r.vfs, pd_tiers_store(r.tiers, 0), err));
    OK(pd_state_init(r.whole.engine->state, &r.state.identity, err));
    for (int step = 0; step < STEPS; step++) {
        const uint64_t before = moved(&r);
        const struct pd_step_result result = run_step(&r);
        out.loss[step] = result.loss;
        out.norm[step] = result.gradient_norm;
        out.step_bytes = moved(&r) - before;
        if (step)
            cr_expect_eq(out.step_bytes, out.plan.step_bytes, "%s: step %d moved %lu bytes, %lu were planned", away, step,
                         out.step_bytes, out.plan.step_bytes);
    }
    OK(optimizer_digest(pd_state_files_store(r.whole.engine->state), &out.digest, err));
    pd_scratch_close(scratch);
    run_close(&r);
    return out;
}

static void expect_same(const struct outcome *a, const struct outcome *b, const char *what)
{
    cr_expect_eq(memcmp(a->loss, b->loss, sizeof a->loss), 0, "%s: other losses", what);
    cr_expect_eq(memcmp(a->norm, b->norm, sizeof a->norm), 0, "%s: other norms", what);
    cr_expect_eq(a->digest, b->digest, "%s: another state", what);
}

/* Each placement alone, from nothing to more than all of it. */
static void check_ladder(const char *name, const char *away, const char *const *sizes, int count)
{
    struct outcome before = {.step_bytes = UINT64_MAX};
    for (int i = 0; i < count; i++) {
        char keys[300];
        snprintf(keys, sizeof keys, "%s, %s_budget: %s", away, name, sizes[i]);
        const struct outcome now = run_with(keys);
        if (i) expect_same(&before, &now, keys);
        if (i && i + 1 < count) cr_expect_lt(now.step_bytes, before.step_bytes, "%s: a step moves less", keys);
        if (i + 1 == count) cr_expect_eq(now.step_bytes, before.step_bytes, "%s: there is no more to keep", keys);
        before = now;
    }
}

Test(budgets, state)
{
    static const char *const sizes[] = {"0", "700k", "3M", "1G", "1000G"};
    check_ladder("optimizer", "", sizes, 5);
}

Test(budgets, copies)
{
    static const char *const sizes[] = {"0", "144k", "300k", "600k", "1M", "1G"};
    check_ladder("parameters", ", parameters: nvme", sizes, 6);
}

/* Two of the six blocks stay anyway. */
Test(budgets, sums)
{
    static const char *const sizes[] = {"0", "900k", "1800k", "4M", "1G"};
    check_ladder("gradients", ", gradients: nvme", sizes, 5);
}

Test(budgets, activations)
{
    static const char *const sizes[] = {"0", "64k", "300k", "2M", "1G"};
    check_ladder("activations", ", activations: nvme", sizes, 5);
}

Test(budgets, all_of_them)
{
    static const char *const some = ALL ", optimizer_budget: 2M, parameters_budget: 500k, gradients_budget: 2M, "
                                        "activations_budget: 100k",
                             *const enough = ALL ", optimizer_budget: 1G, parameters_budget: 1G, gradients_budget: 1G, "
                                                 "activations_budget: 1G";
    const struct outcome memory = run_with(""), none = run_with(ALL), few = run_with(some), all = run_with(enough);
    expect_same(&memory, &none, "nothing kept");
    expect_same(&memory, &few, some);
    expect_same(&memory, &all, enough);
    cr_expect_lt(few.step_bytes, none.step_bytes);
    cr_expect_lt(few.memory_bytes, all.memory_bytes);
    cr_expect_gt(few.memory_bytes, none.memory_bytes);
    cr_expect_eq(2 * all.step_bytes, memory.step_bytes, "state is written, and nothing else moves");
}

/* Whole blocks, as many as fit. */
Test(budgets, a_budget_keeps_what_fits_and_no_more)
{
    char keys[160];
    snprintf(keys, sizeof keys, ", parameters: nvme, parameters_budget: %lu", 2 * COPIES);
    const struct outcome none = run_with(", parameters: nvme"), two = run_with(keys);
    snprintf(keys, sizeof keys, ", parameters: nvme, parameters_budget: %lu", 3 * COPIES - 1);
    const struct outcome nearly_three = run_with(keys);
    cr_expect_eq(nearly_three.step_bytes, two.step_bytes);
    cr_expect_eq(none.plan.parameter_traffic - two.plan.parameter_traffic, 2 * 3 * COPIES, "written once, read twice");
}

/* What is kept differs from block to block where some are recomputed: it leaves, comes back and is planned by block. */
static void check_layers(const char *how, const char *budget)
{
    const struct outcome none = run_with("");
    struct outcome before = {.step_bytes = UINT64_MAX, .memory_bytes = UINT64_MAX};
    for (uint32_t layers = 0; layers <= 6; layers++) {
        char keys[300];
        snprintf(keys, sizeof keys,
                 ", activations: nvme, activations_budget: %s}\nlayout: {recompute: %s, recompute_layers: %u", budget, how,
                 layers);
        const struct outcome now = run_with(keys);
        expect_same(&none, &now, keys);
        cr_expect_leq(now.step_bytes, before.step_bytes, "%s", keys);
        if (!strcmp(budget, "0")) cr_expect_leq(now.memory_bytes, before.memory_bytes, "%s", keys);
        before = now;
    }
}

Test(budgets, blocks_that_are_recomputed_keep_less)
{
    check_layers("full", "0");
    check_layers("selective", "0");
    check_layers("full", "200k");
    check_layers("selective", "64k");
}
