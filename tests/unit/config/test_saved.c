/* Configurations that other versions saved, and what became of names in them. */
#include "trainer/config/config.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MINIMAL "run: {dir: r}\ndata: {train: a.txt}\n"
#define WITH_LEAVES PERDURE_SOURCE_DIR "/tests/golden/config/with_leaves.yaml"

static void refused(const char *rest, const char *override, const char *sentence)
{
    struct pd_config config;
    struct pd_error err;
    char yaml[300];
    snprintf(yaml, sizeof yaml, MINIMAL "%s", rest);
    const pd_status st = pd_config_parse("run.yaml", yaml, &override, override ? 1 : 0, &config, &err);
    cr_assert_eq(st, PD_INVALID, "not refused: %s", sentence);
    cr_expect_str_eq(err.message, sentence);
}

/* A value that went: the run goes on with what stands in for it. */
Test(saved, compression_that_no_longer_exists)
{
    const char *yaml =
        MINIMAL "checkpoint:\n  compression: auto\n  tiers:\n    - {dir: a, compression: auto}\n    - {dir: b}\n";
    struct pd_tier_options tiers[PD_TIERS_MAX];
    struct pd_config c;
    struct pd_error err;
    cr_assert_eq(pd_config_parse_saved(yaml, NULL, 0, &c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_config_tiers(&c, tiers), 2);
    for (int i = 0; i < 2; i++)
        cr_expect(tiers[i].codec.codec == PD_CODEC_ZSTD && tiers[i].codec.level == 1);
    pd_config_deinit(&c);
}

Test(renamed, users_are_told_the_new_name)
{
    refused("batch: {leaf: 4}\n", NULL, "run.yaml:3:15: unknown key batch.leaf: it is now called batch.micro_batch");
    refused("", "batch.leaf=4", "command line: unknown key batch.leaf: it is now called batch.micro_batch");
    refused("", "layout.host_ranks=4",
            "command line: unknown key layout.host_ranks: it is now called layout.ranks_per_host");
    refused("layout:\n  order: leaves\n", NULL, "run.yaml:4:10: layout.order: leaves is now called depth_first");
    refused("", "layout.order=layers", "command line: layout.order: layers is now called breadth_first");
    refused("", "layout.fp8_codes=leaf", "command line: layout.fp8_codes: leaf is now called micro_batch");
    refused("checkpoint: {tiers: [{dir: a}, {dir: b, copies: 1}]}\n", NULL,
            "run.yaml:3:49: unknown key checkpoint.tiers[1].copies: it is now called checkpoint.tiers[1].replicas");
    refused("", "checkpoint.tiers[0].copies=1",
            "command line: unknown key checkpoint.tiers[0].copies: it is now called checkpoint.tiers[0].replicas");
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "re");
    char *text = calloc(1, 65536);
    cr_assert(f && text && fread(text, 1, 65535, f) > 0, "%s", path);
    (void)fclose(f);
    return text;
}

/* As the version printed it that called a micro-batch a leaf. */
Test(saved, first_names)
{
    struct pd_config c, strict;
    struct pd_error err;
    cr_assert_eq(pd_config_load(WITH_LEAVES, NULL, 0, &strict, &err), PD_INVALID, "a user's file would be refused");
    cr_assert_eq(pd_config_load_saved(WITH_LEAVES, &c, &err), PD_OK, "%s", err.message);
    cr_expect_eq(c.batch.micro_batch, 3);
    cr_expect_eq(c.layout.ranks_per_host, 2);
    cr_expect_eq(c.layout.order, PD_ORDER_DEPTH_FIRST);
    cr_expect_eq(c.layout.fp8_codes, PD_CODES_MICRO_BATCH);
    cr_expect_eq(c.model.layers, 3);
    cr_expect_eq(c.model.kv_heads, 2);
    cr_expect_eq(c.data.train_count, 2);
    cr_expect_eq(c.checkpoint.tiers_count, 2);
    cr_expect_eq(c.restart.ranks_count, 2);
    cr_expect_eq(c.numerics.lanes, 0, "sums of that time were others, and nobody can ask for them");
    struct pd_resume_difference older;
    strict = c;
    strict.numerics.lanes = 2;
    cr_expect_eq(pd_config_compare(&c, &strict, &older, 1), 1);
    cr_expect_str_eq(older.before, "none (gradients were rounded, or summed in order)");
    c.numerics.lanes = c.batch.sequences / c.batch.micro_batch;
    char *text;
    cr_assert_eq(pd_config_print(&c, &text, &err), PD_OK);
    cr_assert_eq(pd_config_parse("printed", text, NULL, 0, &strict, &err), PD_OK, "%s", err.message);
    cr_expect_eq(pd_config_compare(&c, &strict, NULL, 0), 0);
    free(text);
    pd_config_deinit(&c);
    pd_config_deinit(&strict);
}

static struct pd_config saved(const char *change)
{
    struct pd_config c;
    struct pd_error err;
    char yaml[600];
    snprintf(yaml, sizeof yaml, MINIMAL "model: {layers: 3, preset: byte-1m}\n%s", change);
    cr_assert_eq(pd_config_parse_saved(yaml, NULL, 0, &c, &err), PD_OK, "%s: %s", change, err.message);
    return c;
}

Test(saved, what_is_gone_is_ignored)
{
    static const char *const gone[] = {"optimizer: {lr: 1e-4, wings: 2}\n",
                                       "wings: {left: {feathers: [1, {length: 3}]}, right: 2}\n",
                                       "checkpoint: {tiers: [{dir: a, wings: 2}, {wings: 3}], wings: [a, b]}\n",
                                       "layout: {schedule: zigzag}\nrestart: {ranks: [two]}\n"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        struct pd_config c = saved(gone[i]);
        cr_expect_eq(c.model.layers, 3, "%s", gone[i]);
        pd_config_deinit(&c);
    }
    struct pd_tier_options tiers[PD_TIERS_MAX];
    struct pd_config c = saved("checkpoint: {compression: brotli}\n");
    cr_expect_eq(pd_config_tiers(&c, tiers), 1);
    cr_expect_eq(tiers[0].codec.codec, PD_CODEC_NONE);
    pd_config_deinit(&c);
}

Test(saved, replicas_were_called_copies)
{
    struct pd_tier_options tiers[PD_TIERS_MAX];
    struct pd_config c = saved("checkpoint: {tiers: [{dir: a, copies: 1}, {dir: b}]}\n");
    cr_expect_eq(pd_config_tiers(&c, tiers), 2);
    cr_expect(tiers[0].replicas == 1 && !tiers[1].replicas);
    pd_config_deinit(&c);
}

Test(saved, a_preset_that_is_gone)
{
    char *text = read_file(WITH_LEAVES), *name = strstr(text, "qwen2.5-0.5b");
    struct pd_config before, after;
    struct pd_error err;
    cr_assert_eq(pd_config_parse_saved(text, NULL, 0, &before, &err), PD_OK, "%s", err.message);
    memcpy(name, "qwen0.1-0.5b", 12);
    cr_assert_eq(pd_config_parse_saved(text, NULL, 0, &after, &err), PD_OK, "%s", err.message);
    cr_expect_eq(memcmp(&before.model, &after.model, sizeof before.model), 0);
    free(text);
    pd_config_deinit(&before);
    pd_config_deinit(&after);
}

/* Bits depend on it, or the shape of what is stored: a default would be another run. */
Test(saved, what_bits_depend_on_is_refused)
{
    static const char *const gone[] = {"numerics: {mode: swift}\n", "batch: {sequences: many}\n", "model: {layers: x}\n",
                                       "model: {family: mamba}\n", "batch: {sequences: 8, micro_batch: 3}\n"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        struct pd_config c;
        struct pd_error err;
        char yaml[300];
        snprintf(yaml, sizeof yaml, MINIMAL "%s", gone[i]);
        cr_expect_eq(pd_config_parse_saved(yaml, NULL, 0, &c, &err), PD_INVALID, "%s", gone[i]);
    }
}

/* Rules that a user's configuration must keep may be younger than the checkpoint. */
Test(saved, rules_are_not_asked)
{
    struct pd_config c = saved("optimizer: {min_lr: 1, lr: 0.5}\nnumerics: {loss_scale: 2048}\n");
    cr_expect_eq(c.optimizer.min_lr, 1);
    pd_config_deinit(&c);
}

Test(saved, overrides_make_a_layout_that_is_checked)
{
    static const char *const bad[] = {"layout.tp=2"}, *const good[] = {"layout.pp=2", "layout.ranks=2"};
    struct pd_config c;
    struct pd_error err;
    cr_expect_eq(pd_config_parse_saved(MINIMAL, bad, 1, &c, &err), PD_INVALID);
    cr_assert_eq(pd_config_parse_saved(MINIMAL, good, 2, &c, &err), PD_OK, "%s", err.message);
    pd_config_deinit(&c);
}
