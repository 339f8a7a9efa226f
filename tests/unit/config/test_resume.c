/* What a changed key means for a run that goes on. */
#include "trainer/config/config.h"

#include <criterion/criterion.h>

#define MINIMAL "run: {dir: r}\ndata: {train: a.txt}\n"

static struct pd_config parse(const char *yaml, const char *const *overrides)
{
    struct pd_config config;
    struct pd_error err;
    uint32_t count = 0;
    while (overrides && overrides[count])
        count++;
    cr_assert_eq(pd_config_parse("run.yaml", yaml, overrides, count, &config, &err), PD_OK, "%s", err.message);
    return config;
}

static enum pd_resume_effect effect_of(const char *yaml, const char *override, uint32_t expected_count)
{
    struct pd_config before = parse(yaml, NULL), now = parse(yaml, (const char *const[]){override, NULL});
    struct pd_resume_difference d[4];
    uint32_t count = pd_config_compare(&before, &now, d, 4);
    cr_expect_eq(count, expected_count, "%s: %u", override, count);
    enum pd_resume_effect effect = count ? d[0].effect : PD_RESUME_FREE;
    pd_config_deinit(&before);
    pd_config_deinit(&now);
    return effect;
}

Test(resume, table)
{
    static const struct {
        const char *override;
        enum pd_resume_effect effect;
        uint32_t count;
    } cases[] = {
        {"optimizer.lr=1e-3", PD_RESUME_FREE, 2}, /* and min_lr, which follows it */
        {"optimizer.weight_decay=0", PD_RESUME_FREE, 1},
        {"run.steps=5000", PD_RESUME_FREE, 2},
        {"layout.ranks=3", PD_RESUME_FREE, 1},
        {"layout.recompute=full", PD_RESUME_FREE, 1},
        {"layout.pp=2", PD_RESUME_FREE, 1},
        {"layout.zero_stage=1", PD_RESUME_FREE, 1},
        {"layout=auto", PD_RESUME_FREE, 1},
        {"numerics.virtual_tp=2", PD_RESUME_NEW_LINEAGE, 1},
        {"numerics.virtual_sp=2", PD_RESUME_NEW_LINEAGE, 1},
        {"checkpoint.every=7", PD_RESUME_FREE, 1},
        {"data.train[0].path=elsewhere.txt", PD_RESUME_FREE, 0},
        {"model.context=512", PD_RESUME_NEW_LINEAGE, 2}, /* batch.context follows it */
        {"optimizer.beta2=0.99", PD_RESUME_NEW_LINEAGE, 1},
        {"batch.sequences=64", PD_RESUME_NEW_LINEAGE, 2},  /* and the micro-batch, which follows it */
        {"elastic.max=4", PD_RESUME_NEW_LINEAGE, 2},       /* and lanes, unless they are given */
        {"batch.micro_batch=2", PD_RESUME_NEW_LINEAGE, 1}, /* 16 micro-batches, and still 8 lanes */
        {"batch.micro_batch=8", PD_RESUME_NEW_LINEAGE, 2}, /* and lanes: 4 micro-batches */
        {"numerics.lanes=2", PD_RESUME_NEW_LINEAGE, 1},
        {"layout.exchange=lane", PD_RESUME_FREE, 1},
        {"numerics.precision=fp32", PD_RESUME_NEW_LINEAGE, 1},
        {"numerics.mode=fast", PD_RESUME_NEW_LINEAGE, 1},
        {"numerics.linears=fp8", PD_RESUME_NEW_LINEAGE, 1},
        {"numerics.logits=columns", PD_RESUME_NEW_LINEAGE, 1},
        {"numerics.logits_type=precision", PD_RESUME_NEW_LINEAGE, 1},
        {"numerics.gradients=bf16", PD_RESUME_NEW_LINEAGE, 2}, /* and lanes: one */
        {"run.seed=2", PD_RESUME_NEW_LINEAGE, 1},
        {"data.separate_documents=true", PD_RESUME_NEW_LINEAGE, 1},
        {"model.norm_epsilon=1e-6", PD_RESUME_NEW_LINEAGE, 1},
        {"model.layers=5", PD_RESUME_REFUSED, 1},
        {"model.vocab=300", PD_RESUME_REFUSED, 1},
        {"model.tie_embeddings=false", PD_RESUME_REFUSED, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_expect_eq(effect_of(MINIMAL, cases[i].override, cases[i].count), cases[i].effect, "%s", cases[i].override);
    cr_expect_eq(effect_of(MINIMAL "model: {preset: gpt2-124m}\nbatch: {context: 64}\n", "model.context=512", 1),
                 PD_RESUME_REFUSED);
    cr_expect_eq(effect_of(MINIMAL "batch: {context: 64}\n", "model.context=512", 1), PD_RESUME_FREE);
    cr_expect_eq(effect_of(MINIMAL "layout: {recompute: full}\n", "layout.recompute_layers=2", 1), PD_RESUME_FREE);
}

Test(resume, worst_first_and_texts)
{
    struct pd_config before = parse(MINIMAL, NULL);
    const char *const overrides[] = {"optimizer.clip_norm=2", "batch.micro_batch=8", "model.layers=7", NULL};
    struct pd_config now = parse(MINIMAL, overrides);
    struct pd_resume_difference d[4];
    cr_assert_eq(pd_config_compare(&before, &now, d, 4), 4);
    cr_expect_str_eq(d[0].key, "model.layers");
    cr_expect_str_eq(d[0].before, "4");
    cr_expect_str_eq(d[0].now, "7");
    cr_expect_str_eq(d[1].key, "batch.micro_batch");
    cr_expect_eq(d[1].effect, PD_RESUME_NEW_LINEAGE);
    cr_expect_str_eq(d[2].key, "numerics.lanes");
    cr_expect_str_eq(d[3].key, "optimizer.clip_norm");
    cr_expect_eq(pd_config_compare(&before, &now, d, 1), 4);
    pd_config_deinit(&before);
    pd_config_deinit(&now);
}
