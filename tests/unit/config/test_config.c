#include "tests/helpers/families.h"
#include "tests/helpers/scale.h"
#include "trainer/config/config.h"
#include "trainer/config/keys.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static void refused(const char *yaml, const char *override, const char *sentence)
{
    struct pd_config config;
    struct pd_error err;
    memset(&config, 0x5a, sizeof config);
    pd_status status = pd_config_parse("run.yaml", yaml, &override, override ? 1 : 0, &config, &err);
    cr_expect_neq(status, PD_OK, "%s", sentence);
    if (status) cr_expect(strstr(err.message, sentence), "expected: %s\n   found: %s", sentence, err.message);
    cr_expect_eq(((unsigned char *)&config)[0], 0x5a, "result touched: %s", sentence);
    if (!status) pd_config_deinit(&config);
}

Test(config, defaults_need_a_directory_and_a_file)
{
    struct pd_config c = parse(MINIMAL, NULL);
    cr_expect_str_eq(c.run.dir, "r");
    cr_expect_str_eq(c.checkpoint.dir, "r/checkpoints");
    cr_expect_str_eq(c.model_preset, "byte-1m");
    cr_expect_eq(c.model.vocab, 256);
    cr_expect_eq(c.data.train_count, 1);
    cr_expect_str_eq(c.data.train[0].path, "a.txt");
    cr_expect_eq(c.data.train[0].weight, 0, "without weights files count by size");
    cr_expect_eq(c.batch.sequences, 32);
    cr_expect_eq(c.batch.micro_batch, 4);
    cr_expect_eq(c.batch.context, c.model.context);
    cr_expect_eq(c.optimizer.min_lr, 3e-5);
    cr_expect_eq(c.optimizer.warmup_steps, 100);
    cr_expect_eq(c.optimizer.decay_steps, 1000);
    cr_expect_eq(c.numerics.precision, PD_BF16);
    cr_expect_eq(c.layout.zero_stage, 3);
    cr_expect_eq(c.restart.limit, 3);
    pd_config_deinit(&c);
    refused("", NULL, "run.yaml: run.dir is missing");
    refused("run: {dir: r}", NULL, "run.yaml: data.train is missing");
}

Test(config, every_shape_of_a_file_list)
{
    struct pd_config c = parse("run: {dir: r}\n"
                               "data:\n"
                               "  train:\n"
                               "    - a.txt\n"
                               "    - {path: b.bin, format: llmc, weight: 0.25}\n"
                               "    - path: c.bin\n"
                               "      weight: 3\n"
                               "  validation: [v.txt]\n",
                               NULL);
    cr_assert_eq(c.data.train_count, 3);
    cr_expect_str_eq(c.data.train[0].path, "a.txt");
    cr_expect_eq(c.data.train[1].format, PD_DATA_LLMC);
    cr_expect_eq(c.data.train[1].weight, 0.25);
    cr_expect_str_eq(c.data.train[2].path, "c.bin");
    cr_expect_eq(c.data.train[2].weight, 3);
    cr_expect_eq(c.data.train[0].weight, 0);
    cr_assert_eq(c.data.validation_count, 1);
    cr_expect_str_eq(c.data.validation[0].path, "v.txt");
    pd_config_deinit(&c);
}

#define TIERS                                                                                       \
    MINIMAL "checkpoint:\n  every: 50\n  keep_last: 2\n  compression: zstd:7\n  tiers:\n"           \
            "    - {dir: /dev/shm/r, every: 5, bandwidth: 2G, replicas: 1}\n    - keep_every: 1k\n" \
            "    - {dir: /net/r, keep_last: 9, every: 0, compression: zstd:1}\n"

Test(config, tiers_take_what_they_leave_out_from_their_section)
{
    struct pd_tier_options tiers[PD_TIERS_MAX];
    struct pd_config c = parse(TIERS, NULL);
    cr_assert_eq(pd_config_tiers(&c, tiers), 3);
    cr_expect_str_eq(tiers[0].dir, "/dev/shm/r");
    cr_expect(tiers[0].every == 5 && tiers[0].keep_last == 2 && tiers[0].keep_every == 0);
    cr_expect_eq(tiers[0].bandwidth, 2000000000);
    cr_expect(tiers[0].replicas == 1 && !tiers[1].replicas && !tiers[2].replicas);
    cr_expect_str_eq(tiers[1].dir, "r/checkpoints");
    cr_expect(tiers[1].every == 50 && tiers[1].keep_last == 2 && tiers[1].keep_every == 1000 && !tiers[1].bandwidth);
    cr_expect(tiers[2].every == 0 && tiers[2].keep_last == 9);
    cr_expect(tiers[0].codec.codec == PD_CODEC_ZSTD && tiers[0].codec.level == 7);
    cr_expect(tiers[2].codec.codec == PD_CODEC_ZSTD && tiers[2].codec.level == 1);
    char *text = NULL;
    struct pd_error err;
    cr_assert_eq(pd_config_print(&c, &text, &err), PD_OK);
    pd_config_deinit(&c);
    c = parse(text, (const char *const[]){"checkpoint.tiers[1].every=100", "checkpoint.every=7", NULL});
    cr_assert_eq(pd_config_tiers(&c, tiers), 3, "%s", text);
    cr_expect(tiers[0].replicas == 1 && !tiers[1].replicas, "%s", text);
    cr_expect(tiers[0].every == 5 && tiers[1].every == 100 && tiers[1].keep_every == 1000 && tiers[2].every == 0);
    cr_expect(tiers[1].codec.level == 7 && tiers[2].codec.level == 1, "%s", text);
    pd_config_deinit(&c);
    free(text);
    for (int i = 0; i < 2; i++) { /* directories alone */
        c = i ? parse(MINIMAL, (const char *const[]){"checkpoint.tiers=/fast", NULL})
              : parse(MINIMAL "checkpoint: {tiers: [/fast, /safe], every: 6}\n", NULL);
        cr_assert_eq(pd_config_tiers(&c, tiers), i ? 1 : 2);
        cr_expect(!strcmp(tiers[0].dir, "/fast") && (i || (!strcmp(tiers[1].dir, "/safe") && tiers[1].every == 6)));
        pd_config_deinit(&c);
    }
    c = parse(MINIMAL, (const char *const[]){"checkpoint.every=7", NULL});
    cr_assert_eq(pd_config_tiers(&c, tiers), 1);
    cr_expect(tiers[0].every == 7 && tiers[0].keep_last == 3 && tiers[0].codec.codec == PD_CODEC_NONE);
    cr_expect_str_eq(tiers[0].dir, "r/checkpoints");
    pd_config_deinit(&c);
}

Test(config, tiers_are_refused)
{
    refused(TIERS, "checkpoint.tiers[0].evry=3", "no \"evry\"; did you mean every?");
    refused(TIERS, "checkpoint.tiers[0].dir=/net/r", "checkpoint.tiers[0] and [2] are both /net/r");
    refused(TIERS, "checkpoint.tiers[2].dir=", "checkpoint.tiers[2].dir is empty");
    refused(TIERS, "checkpoint.tiers[1].compression=zstd",
            "checkpoint.tiers[1].compression: compression \"zstd\" is not known");
    refused(TIERS, "checkpoint.tiers[1].compression=auto",
            "checkpoint.tiers[1].compression: auto no longer exists; write none, or zstd:1 to compress");
    refused(MINIMAL, "metrics.prometheus_listen=a.host:80", "metrics.prometheus_listen is a.host:80: expected PORT");
    refused(MINIMAL, "metrics.prometheus_listen=70000", "metrics.prometheus_listen is 70000: expected PORT");
    refused(MINIMAL, "metrics.prometheus_listen=::1:80", "metrics.prometheus_listen is ::1:80: expected PORT");
    refused(MINIMAL, "checkpoint.compression=zstd:20", "checkpoint.compression: compression zstd:20: levels are 1 to 19");
    refused(TIERS, "checkpoint.tiers[0].replicas=2", "checkpoint.tiers[0].replicas is 2: one other host can have a replica");
    refused(TIERS, "checkpoint.tiers[1].replicas=1", "only the first tier has replicas on other hosts");
    refused(TIERS, "checkpoint.tiers[0].keep_last=0", "expected a number of at least 1");
    refused(TIERS, "checkpoint.tiers[4].dir=x", "the next is checkpoint.tiers[3]");
    refused(TIERS, "checkpoint.tiers[0].path=x", "and has no \"path\"");
    refused(TIERS, "checkpoint.tiers[0].keep=3", "and has no \"keep\"");
    refused(MINIMAL "checkpoint: {tiers: [{dir: a}, {dir: b}, {dir: c}, {dir: d}, {dir: e}, {dir: f}, {dir: g}, {dir: h}, "
                    "{dir: i}]}\n",
            NULL, "more than 8 elements");
    refused(MINIMAL "checkpoint: {tiers: [{every: 1}, {every: 2}]}\n", NULL, "takes checkpoint.dir");
}

Test(config, overrides_win_in_order)
{
    const char *const overrides[] = {
        "optimizer.lr=1e-3",      "run.steps=2k",         "optimizer.lr=2e-3",  "data.train[1].path=b.txt",
        "data.train[1].weight=2", "restart.ranks=3, 2",   "restart.ranks[1]=1", "numerics.precision=fp32",
        "batch.context=128",      "data.train[0].path=z", "layout.ranks=auto",  NULL};
    struct pd_config c = parse(MINIMAL "optimizer: {lr: 5e-4}\nbatch: {micro_batch: 1}\nlayout: {ranks: 2}\n", overrides);
    cr_expect_eq(c.optimizer.lr, 2e-3);
    cr_expect_eq(c.run.steps, 2000);
    cr_assert_eq(c.data.train_count, 2);
    cr_expect_str_eq(c.data.train[0].path, "z");
    cr_expect_str_eq(c.data.train[1].path, "b.txt");
    cr_expect_eq(c.data.train[1].weight, 2);
    cr_assert_eq(c.restart.ranks_count, 2);
    cr_expect_eq(c.restart.ranks[0], 3);
    cr_expect_eq(c.restart.ranks[1], 1);
    cr_expect_eq(c.numerics.precision, PD_F32);
    cr_expect_eq(c.batch.context, 128);
    cr_expect_eq(c.layout.ranks, 0);
    pd_config_deinit(&c);
}

/* As in a file; a name with brackets has an index. */
Test(config, lists_on_the_command_line)
{
    const char *const overrides[] = {"data.train=[b.txt, {path: c.bin, format: llmc, weight: 0.5}]",
                                     "restart.ranks=[3, 2]",
                                     "checkpoint.tiers=[{dir: fast, every: 5}, {dir: slow}]",
                                     "data.validation=[v.txt]",
                                     "data.validation[1].path=[w].txt",
                                     NULL};
    struct pd_config c = parse("run: {dir: r}\ndata: {train: [x, y, z]}\n", overrides);
    cr_assert_eq(c.data.train_count, 2);
    cr_expect_str_eq(c.data.train[0].path, "b.txt");
    cr_expect_str_eq(c.data.train[1].path, "c.bin");
    cr_expect_eq(c.data.train[1].weight, 0.5);
    cr_assert_eq(c.restart.ranks_count, 2);
    cr_expect_eq(c.restart.ranks[1], 2);
    cr_assert_eq(c.checkpoint.tiers_count, 2);
    cr_expect_eq(c.checkpoint.tiers[0].every, 5);
    cr_assert_eq(c.data.validation_count, 2);
    cr_expect_str_eq(c.data.validation[1].path, "[w].txt");
    pd_config_deinit(&c);
    c = parse(MINIMAL, (const char *const[]){"data.train=a,b.txt", NULL});
    cr_expect_str_eq(c.data.train[0].path, "a,b.txt", "without brackets it is one name");
    pd_config_deinit(&c);
    refused(MINIMAL, "data.train=[a, {pth: b}]", "command line: data.train[1].pth: a data file is a path, or");
    refused(MINIMAL, "data.train=[a", "command line: data.train: the list does not end; close it with ]");
    refused(MINIMAL, "data.train=[]", "data.train is missing");
}

Test(config, what_other_trainers_call_it)
{
    static const char *const meant[][2] = {{"optimizer.learning_rate=1", "optimizer.lr"},
                                           {"train.global_batch_size=8", "batch.sequences"},
                                           {"num_layers=2", "model.layers"},
                                           {"layout.tensor_model_parallel_size=2", "layout.tp"},
                                           {"Max_Steps=9", "run.steps"},
                                           {"training.save_interval=9", "checkpoint.every"}};
    for (size_t i = 0; i < sizeof meant / sizeof *meant; i++) {
        char sentence[100];
        snprintf(sentence, sizeof sentence, "; did you mean %s?", meant[i][1]);
        refused(MINIMAL, meant[i][0], sentence);
    }
    refused(MINIMAL, "data.train.path=b.txt",
            "command line: data.train is a list: in a file write \"- path: ...\" below it, on the command line "
            "data.train[0].path=...");
    refused("run: {dir: r}\ndata: {train: {path: a.txt}}\n", NULL, "run.yaml:2:22: data.train is a list: in a file");
}

Test(config, suffixes)
{
    const char *const overrides[] = {"model.context=8k", "batch.context=4K", "run.steps=1M", "batch.sequences=1k", NULL};
    struct pd_config c = parse(MINIMAL, overrides);
    cr_expect_eq(c.model.context, 8192);
    cr_expect_eq(c.batch.context, 4096);
    cr_expect_eq(c.run.steps, 1000000);
    cr_expect_eq(c.batch.sequences, 1000);
    cr_expect_eq(c.batch.micro_batch, 125);
    pd_config_deinit(&c);
    const char *const exponents[] = {"run.steps=1e3", "batch.sequences=2.5E2", "checkpoint.every=1e0", NULL};
    c = parse(MINIMAL, exponents);
    cr_expect_eq(c.run.steps, 1000);
    cr_expect_eq(c.batch.sequences, 250);
    cr_expect_eq(c.checkpoint.every, 1);
    pd_config_deinit(&c);
    refused(MINIMAL, "run.steps=1.5", "expected a whole number, such as 500, 10k or 1e4, found \"1.5\"");
    refused(MINIMAL, "run.steps=1.5e0", "expected a whole number");
    refused(MINIMAL, "run.steps=1e16", "expected a number of at least 1 and at most 1e+15, found 1e16");
    refused(MINIMAL, "run.steps=1e300", "expected a number of at least 1 and at most 1e+15, found 1e300");
}

Test(config, preset_then_keys)
{
    const char *const overrides[] = {"model.preset=qwen2.5-0.5b", "model.layers=2", "batch.context=64", NULL};
    struct pd_config c = parse(MINIMAL "model: {preset: gpt2-124m}\n", overrides);
    cr_expect_eq(c.model.family, PD_FAMILY_LLAMA);
    cr_expect_eq(c.model.layers, 2);
    cr_expect_eq(c.model.kv_heads, 2);
    cr_expect(c.model.qkv_bias);
    pd_config_deinit(&c);
    const char *const wider[] = {"model.hidden=256", "model.heads=8", NULL}; /* what follows from these follows again */
    c = parse(MINIMAL, wider);
    cr_expect_eq(c.model.kv_heads, 8);
    cr_expect_eq(c.model.head_size, 32);
    cr_expect_eq(c.model.ffn, 704);
    pd_config_deinit(&c);
    const char *const family[] = {"model.family=gpt2", NULL};
    c = parse(MINIMAL, family);
    cr_expect_eq(c.model.kv_heads, c.model.heads);
    cr_expect_eq(c.model.ffn, 4 * c.model.hidden);
    cr_expect(c.model.qkv_bias);
    pd_config_deinit(&c);
}

/* Whatever the type that would have to hold it. */
Test(config, numbers_out_of_range_are_told_the_range)
{
    refused(MINIMAL, "offload.optimizer_budget=99999999999999999999",
            "offload.optimizer_budget: expected a number of at least 0 and at most 1e+15, found 99999999999999999999");
    refused(MINIMAL, "offload.buffer_bytes=99999999999999999999G", "at least 1048576 and at most 1e+12, found 9999");
    refused(MINIMAL, "run.steps=18446744073709551615k", "at most 1e+15, found 18446744073709551615k");
    refused(MINIMAL, "run.steps=99999999999999g", "at most 1e+15, found 99999999999999g");
    refused(MINIMAL, "run.steps=-3", "run.steps: expected a number of at least 1 and at most 1e+15, found -3");
    refused(MINIMAL, "model.layers=-1", "model.layers: expected a number of at least 0 and at most 4294967295, found -1");
    refused(MINIMAL, "model.layers=4294967296", "at most 4294967295, found 4294967296");
    refused(MINIMAL, "data.document_token=-99999999999999999999", "at least -1 and at most 16777216, found -9999");
    refused(MINIMAL, "data.document_token=99999999999999999999", "at least -1 and at most 16777216, found 9999");
    refused(MINIMAL, "optimizer.lr=1e999", "optimizer.lr: expected a number of at least 0 and at most 100, found 1e999");
    refused(MINIMAL, "data.train[0].weight=1e999", "expected a number above 0 and at most 1e+09, found 1e999");
    refused(TIERS, "checkpoint.tiers[0].bandwidth=99999999999999999999", "at most 1e+15, found 9999");
    refused(MINIMAL, "model.heads=99999999999999999999k", "model.heads: expected a whole number, found");
    refused(MINIMAL, "optimizer.lr=inf", "expected a number, found \"inf\"");
    refused(MINIMAL, "run.steps=--3", "expected a whole number");
}

/* What a shell would have made of them, had they stood on its command line. */
Test(config, a_home_is_found_and_null_is_nothing)
{
    setenv("HOME", "/home/somebody", 1);
    struct pd_config c = parse("run: {dir: ~/r}\ndata: {train: [~/a.txt, b~.txt]}\ncheckpoint: {dir: \"~\"}\n", NULL);
    cr_expect_str_eq(c.run.dir, "/home/somebody/r");
    cr_expect_str_eq(c.checkpoint.dir, "/home/somebody");
    cr_expect_str_eq(c.data.train[0].path, "/home/somebody/a.txt");
    cr_expect_str_eq(c.data.train[1].path, "b~.txt");
    pd_config_deinit(&c);
    c = parse("run: {dir: \"null\"}\ndata: {train: ~x}\ncheckpoint: {dir: null}\noptimizer: ~\nbatch: {}\n", NULL);
    cr_expect_str_eq(c.run.dir, "null");
    cr_expect_str_eq(c.checkpoint.dir, "null/checkpoints");
    cr_expect_str_eq(c.data.train[0].path, "~x");
    pd_config_deinit(&c);
    refused("run: {dir: ~}\n", NULL, "run.yaml: run.dir is missing");
}

Test(config, sections_that_there_are_not)
{
    refused(MINIMAL "foo: {}\n", NULL, "run.yaml:3:6: unknown key foo;");
    refused(MINIMAL "foo: {bar: {}}\n", NULL, "unknown key foo.bar;");
    refused(MINIMAL "optimizer: {betas: {}}\n", NULL, "unknown key optimizer.betas; did you mean optimizer.beta1?");
    refused("run:\n\tdir: r\n", NULL, "run.yaml:2:1: a tab indents this line; use spaces, YAML takes no tabs");
    refused("run: {dir: r} # \xc3\xa4\n  \tx: 1\n", NULL, "a tab indents this line");
}

Test(config, errors_name_place_key_and_cause)
{
    refused(MINIMAL "optimizer:\n  lrr: 3\n", NULL, "run.yaml:4:8: unknown key optimizer.lrr; did you mean optimizer.lr?");
    refused(MINIMAL "optimiser:\n  lr: 3\n", NULL, "run.yaml:4:7: unknown key optimiser.lr; did you mean optimizer.lr?");
    refused(MINIMAL, "lr=3", "command line: unknown key lr; did you mean optimizer.lr?");
    refused(MINIMAL, "batch.seqences=3", "did you mean batch.sequences?");
    refused(MINIMAL, "qwertyuiop=3", "unknown key qwertyuiop; perdure train --print-config lists all keys");
    refused(MINIMAL, "optimizer=adam", "optimizer is a section: its keys go below it");
    refused(MINIMAL, "optimizer.lr", "optimizer.lr has no value; write optimizer.lr=VALUE");
    refused(MINIMAL "optimizer: {lr: fast}\n", NULL, "run.yaml:3:17: optimizer.lr: expected a number, found \"fast\"");
    refused(MINIMAL, "optimizer.lr=nan", "expected a number, found \"nan\"");
    refused(MINIMAL, "optimizer.lr=-1", "optimizer.lr: expected a number of at least 0 and at most 100, found -1");
    refused(MINIMAL, "optimizer.beta1=1", "expected a number of at least 0 and under 1, found 1");
    refused(MINIMAL, "run.steps=0", "run.steps: expected a number of at least 1");
    refused(MINIMAL, "run.steps=1.5", "expected a whole number, such as 500, 10k or 1e4, found \"1.5\"");
    refused(MINIMAL, "run.steps=", "run.steps: expected a value, found nothing; leave the key out for its default");
    refused(MINIMAL "run.steps: null\n", NULL, "run.yaml:3:12: run.steps: expected a value, found nothing");
    refused(MINIMAL, "run.steps", "run.steps has no value; write run.steps=VALUE");
    refused(MINIMAL, "offload.buffer_bytes=192MB", "expected a whole number, such as 4096, 8k or 2G, found \"192MB\"");
    refused(MINIMAL, "model.heads=2k", "model.heads: expected a whole number, found \"2k\"");
    refused(MINIMAL, "numerics.precision=fp64", "expected fp32, bf16 or fp16, found \"fp64\"");
    refused(MINIMAL "offload: {optimizer: nvme}\n", "offload.update=device",
            "set offload.optimizer=cpu, or leave offload.update out");
    refused(MINIMAL, "offload.optimizer=disk", "expected device, cpu or nvme, found \"disk\"");
    refused(MINIMAL, "offload.optimizer_budget=1M",
            "offload.optimizer_budget is 1048576 and offload.optimizer is not nvme, so that all of it is in memory; set "
            "offload.optimizer=nvme, or leave offload.optimizer_budget out");
    refused(MINIMAL, "offload.activations_budget=2", "set offload.activations=nvme");
    refused(MINIMAL, "layout.transport=tcp", "expected auto, local or mpi, found \"tcp\"");
    refused(MINIMAL, "model.qkv_bias=maybe", "expected true or false, found \"maybe\"");
    refused(MINIMAL, "optimizer.lr[0]=1", "optimizer.lr is one value, not a list");
    refused(MINIMAL, "data.train[2].path=x", "element 2 of a list that has 1; the next is data.train[1]");
    refused(MINIMAL, "data.train[0].pth=x", "and has no \"pth\"; did you mean path?");
    refused(MINIMAL, "data.train[0].weight=0", "above 0");
    refused(MINIMAL, "data.train[x]=a", "data.train[x]: an element is written data.train[0]");
    refused(MINIMAL, "data.train[1].weight=2", "data.train[1].path is missing");
    refused(MINIMAL, "restart.ranks=2,zero", "expected a whole number, found \"zero\"");
    refused(MINIMAL, "run.dir=a\xff", "run.dir: byte 1 is not UTF-8");
    refused(MINIMAL, "run.dir=\xed\xa0\x80", "byte 0 is not UTF-8");
    refused(MINIMAL, "data.train=\xc0\x80", "byte 0 is not UTF-8");
    refused(MINIMAL, "model.preset=gpt2-125m", "the nearest are gpt2-124m");
}

Test(config, what_is_no_yaml_says_where)
{
    refused("run: {dir: r\ndata: x", NULL, "run.yaml:2:");
    refused("run:\n\tdir: r\n", NULL, "run.yaml:2:1: a tab indents this line");
    refused("- a\n- b\n", NULL, "run.yaml:1:1: the file is a list");
    refused("hello", NULL, "is this the configuration?");
    refused(MINIMAL "---\nrun: {}\n", NULL, "a second document begins");
    refused("run: {dir: r, dir: s}\n", NULL, "run.yaml:1:20: run.dir is already set in line 1; keep one of them");
    refused("run: {dir: r}\nrun: {seed: 1}\n", NULL, "run.yaml:2:6: run is already set in line 1");
    refused("run: &a {b: *a}\n", NULL, "nested too deep");
    refused("run: {dir: [r]}\n", NULL, "run.dir: expected one value, found a list");
    refused("run: {dir: {r: 1}}\n", NULL, "run.dir: expected a value, found a section");
    refused("run: [1]\n", NULL, "run is a section");
    refused("a: {b: {c: {d: {e: {f: {g: {h: {i: {j: 1}}}}}}}}}\n", NULL, "nested too deep");
    refused("\xff\xfe\xff", NULL, "run.yaml:1:1: this is not YAML");
}

Test(config, whole_is_checked)
{
    refused(MINIMAL, "batch.micro_batch=5",
            "batch.sequences 32 is not a multiple of batch.micro_batch 5; the nearest micro-batch that fits is 4");
    refused(MINIMAL, "batch.micro_batch=100", "the nearest micro-batch that fits is 32");
    refused(MINIMAL, "batch.context=257", "batch.context 257 is longer than model.context 256");
    refused(MINIMAL, "optimizer.min_lr=1", "optimizer.min_lr 1 is above optimizer.lr 0.0003");
    refused(MINIMAL "numerics: {lanes: 2}\n", "numerics.gradients=bf16",
            "numerics.gradients is bf16, which rounds the sums of one chain of micro-batches, but numerics.lanes is 2; set "
            "numerics.lanes=1 or numerics.gradients=fp32");
    refused(MINIMAL "numerics: {virtual_sp: 2}\n", "numerics.gradients=bf16",
            "numerics.virtual_sp cuts them; leave it at 1");
    refused(MINIMAL "offload: {optimizer: nvme}\n", "numerics.gradients=bf16", "offload.optimizer moves sums in fp32");
    refused(MINIMAL "offload: {gradients: cpu}\n", "numerics.gradients=bf16", "offload.gradients moves sums in fp32");
    refused(MINIMAL, "numerics.virtual_tp=3", "numerics.virtual_tp 3 is not a power of two; the nearest are 2 and 4");
    refused(MINIMAL, "restart.ranks=8,11",
            "restart.ranks[1] is 11, and no layout of 11 ranks is admitted; the next below is 10");
    refused(MINIMAL, "validation.every=10", "there is nothing to validate on; set data.validation_fraction=0.01");
    refused(MINIMAL, "data.document_token=256", "data.document_token 256 is not a token of the model: model.vocab is 256");
    refused(MINIMAL "model: {family: gpt2}", "model.qkv_bias=false", "family gpt2 has biases everywhere");
    refused(MINIMAL, "model.heads=3", "model.hidden 128 is not a multiple of model.heads 3; take model.heads 2, or name");
}

/* The rate rises, and then it falls slowly. */
Test(config, a_warmup_ends_before_the_cosine)
{
    refused(
        MINIMAL "optimizer: {decay_steps: 100}\n", "optimizer.warmup_steps=200",
        "command line: optimizer.warmup_steps is 200 and optimizer.decay_steps is 100, so that the learning rate would fall "
        "from its peak to min_lr in one step; set optimizer.decay_steps=1000, the end of the run, or "
        "optimizer.warmup_steps=10");
    refused(MINIMAL "optimizer: {decay_steps: 100}\n", "optimizer.warmup_steps=100", "in one step");
    static const char *const good[] = {"optimizer: {warmup_steps: 99, decay_steps: 100}\n",
                                       "optimizer: {warmup_steps: 200, decay_steps: 100, min_lr: 3e-4}\n",
                                       "optimizer: {decay_steps: 1}\n", "optimizer: {warmup_steps: 2000}\n"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char yaml[200];
        snprintf(yaml, sizeof yaml, MINIMAL "%s", good[i]);
        struct pd_config c = parse(yaml, NULL);
        pd_config_deinit(&c);
    }
    struct pd_config c = parse(MINIMAL "optimizer: {decay_steps: 60}\n", NULL);
    cr_expect_eq(c.optimizer.warmup_steps, 6);
    pd_config_deinit(&c);
}

Test(config, layouts_that_nothing_admits)
{
    static const char *const four[] = {"numerics.virtual_tp=4", "numerics.virtual_sp=4", "layout.sp=2", NULL};
    refused(MINIMAL, "numerics.virtual_sp=256",
            "numerics.virtual_sp 256 cuts a sequence into 512 pieces, but batch.context is only 256 tokens; use "
            "numerics.virtual_sp=128 at most");
    refused(
        MINIMAL, "layout.tp=2",
        "layout.tp is 2, and it must divide numerics.virtual_tp, which is 1: the number of parts in which sums are made, so "
        "that bits do not depend on layout.tp; use layout.tp=1, or set numerics.virtual_tp=2 as well, which gives other "
        "bits");
    refused(MINIMAL "numerics: {virtual_tp: 4}\n", "layout.tp=3",
            "so that bits do not depend on layout.tp; use layout.tp=2 or layout.tp=4");
    refused(MINIMAL, "layout.sp=4", "use layout.sp=1, or set numerics.virtual_sp=4 as well, which gives other bits");
    refused(MINIMAL "numerics: {virtual_sp: 8}\n", "layout.sp=5", "use layout.sp=4 or layout.sp=8");
    refused(MINIMAL, "layout.dp=9",
            "layout.dp is 9, but a step has only 8 micro-batches (batch.sequences 32 / batch.micro_batch 4); set it "
            "to at most 8, or take a smaller batch.micro_batch with numerics.lanes=9, which gives other bits");
    refused(MINIMAL, "layout.ranks=9",
            "layout: dp 9 of 9 ranks is more than the 8 micro-batches of a step (batch.sequences 32 / "
            "batch.micro_batch 4); 9 ranks fit as dp=3 pp=3; or take a smaller batch.micro_batch with numerics.lanes=9, "
            "which gives other bits");
    refused(MINIMAL, "layout.pp=5",
            "is 5 pipeline stages, but the model has 4 blocks; use layout.pp=4 at most, with layout.interleave=1");
    refused(MINIMAL "layout: {interleave: 3}\n", "layout.pp=2",
            "layout.pp 2 x layout.interleave 3 is 6 pipeline stages, but the model has 4 blocks; use layout.pp=2 at most, "
            "with layout.interleave=2");
    refused(MINIMAL "layout: {interleave: 3}\n", "layout.pp=7", "use layout.pp=4 at most, with layout.interleave=1");
    refused(MINIMAL, "layout.interleave=2",
            "layout.interleave is 2 and layout.pp is 1, so there are no stages to interleave; use layout.interleave=1 or "
            "layout.pp=2");
    refused(MINIMAL "layout: {ranks: 2}\n", "layout.dp=4",
            "layout: dp 4 x tp 1 x pp 1 x sp 1 is 4 ranks, and there are 2; 2 ranks fit as dp=2 or dp=1 pp=2");
    refused(MINIMAL "layout: {ranks: 6}\n", "layout.pp=4",
            "layout: tp 1 x pp 4 x sp 1 does not divide 6 ranks; 6 ranks fit as dp=2 pp=3, dp=3 pp=2 or dp=6");
    refused(
        MINIMAL "layout: {dp: 4}\n", "layout.zero_shard=3",
        "layout.zero_shard is 3 and does not divide dp x sp, which is 4; use layout.zero_shard=2 or layout.zero_shard=4");
    refused(MINIMAL "layout: {dp: 4}\n", "layout.zero_shard=8", "which is 4; use layout.zero_shard=4");
    refused(MINIMAL, "layout=3", "command line: layout: expected auto, or a section with dp, tp, pp and sp; found \"3\"");
    struct pd_config c = parse(MINIMAL "layout: {ranks: 8}\nnumerics: {virtual_tp: 4, virtual_sp: 4}\n", four);
    pd_config_deinit(&c);
}

Test(config, eight_bits_and_no_type_of_gradients)
{
    refused(MINIMAL, "numerics.gradient_type=bf16",
            "numerics.gradient_type: it no longer exists, since gradients are added up in fp32 and travel as integers; "
            "leave it out");
    struct pd_config c = parse(MINIMAL "numerics: {linears: fp8}\n", NULL);
    cr_expect_eq(c.numerics.linears, PD_LINEARS_FP8);
    pd_config_deinit(&c);
}

Test(config, loss_scale_is_of_fp16_and_a_power_of_two)
{
    refused(MINIMAL, "numerics.loss_scale=2048",
            "numerics.loss_scale is 2048, but only fp16 scales the loss; leave it out, or set numerics.precision=fp16");
    refused(MINIMAL, "numerics.loss_scale_interval=5", "numerics.loss_scale_interval is 5, but only fp16 scales the loss");
    refused(MINIMAL "numerics: {precision: fp16}\n", "numerics.loss_scale=1000",
            "numerics.loss_scale 1000 is not a power of two; the nearest are 512 and 1024");
    struct pd_config c = parse(MINIMAL "numerics: {precision: fp16, loss_scale: 0.25}\n", NULL);
    cr_expect_eq(c.numerics.loss_scale, 0.25);
    pd_config_deinit(&c);
}

Test(config, layout_auto_as_a_word)
{
    struct pd_config c = parse(MINIMAL "layout: auto\n", NULL);
    cr_expect(c.layout.automatic);
    pd_config_deinit(&c);
    c = parse(MINIMAL "layout: {pp: 2}\n", (const char *const[]){"layout=auto", NULL});
    cr_expect(c.layout.automatic);
    cr_expect_eq(c.layout.pp, 2);
    pd_config_deinit(&c);
    refused(MINIMAL "layout: none\n", NULL, "expected auto, or a section with dp, tp, pp and sp; found \"none\"");
}

Test(config, comments_and_empty_sections)
{
    struct pd_config c = parse("# a comment\noptimizer:\nmodel: # nothing\n" MINIMAL, NULL);
    cr_expect_eq(c.optimizer.lr, 3e-4);
    pd_config_deinit(&c);
}

static char *printed(const struct pd_config *config)
{
    char *text;
    struct pd_error err;
    cr_assert_eq(pd_config_print(config, &text, &err), PD_OK, "%s", err.message);
    return text;
}

/* A value of the key that is admitted, varied by a counter; NULL: leave it. */
static const char *some_value(const struct pd_key *key, uint32_t n, char *text, size_t bytes)
{
    double x;
    switch (key->type) {
    case PD_KEY_STRING:
        if (strcmp(key->name, "model.preset") == 0) return "";
        if (strcmp(key->name, "metrics.prometheus_listen") == 0) return n % 2 ? "9400" : "[::1]:9401";
        if (strcmp(key->name, "checkpoint.compression") == 0) return n % 2 ? "zstd:5" : "zstd:3";
        snprintf(text, bytes, "a \"b\\c\"\n#: {%u} \xc3\xa9 \xc2\x85 \xef\xbb\xbf \xf0\x9f\x90\x8d \x7f '%c", n,
                 1 + (int)(n % 31));
        return text;
    case PD_KEY_FLOAT:
        if (strncmp(key->name, "model.rope_", 11) == 0) return NULL;
        snprintf(text, bytes, "%.9g", 0.001 + (double)(float)(n % 1000003) / 1000003 * 0.9);
        return text;
    case PD_KEY_DOUBLE:
        x = key->low + (key->high > 1 ? 1 : key->high - key->low) * ((n % 999979) + 1) / 1000003;
        snprintf(text, bytes, "%.17g", x);
        return text;
    case PD_KEY_BOOL:
        return n % 2 ? "true" : "false";
    case PD_KEY_I64:
        return n % 2 ? "-1" : "17";
    default:
        return NULL;
    }
}

/* What --print-config says loads back to the same struct: printed again it is the same text, and all keys compare equal. */
Test(config, print_loads_back)
{
    for (uint32_t round = 0; round < 200; round++) {
        struct pd_config c = parse(MINIMAL "model: {preset: qwen2.5-0.5b}\nrestart: {ranks: [4, 3, 2]}\n", NULL), back;
        struct pd_error err;
        for (uint32_t k = 0; k < pd_key_count; k++) {
            char text[96];
            uint32_t n = (round * 7919 + k * 104729) % 2147483u;
            const char *value = some_value(&pd_keys[k], n, text, sizeof text);
            bool is_bound = strcmp(pd_keys[k].name, "optimizer.min_lr") == 0 ||
                            strcmp(pd_keys[k].name, "model.qk_norm") == 0 ||
                            strcmp(pd_keys[k].name, "numerics.loss_scale") == 0; /* to other keys */
            if (value && !is_bound) cr_assert_eq(pd_key_set(&c, pd_keys[k].name, value, &err), PD_OK, "%s", err.message);
        }
        c.optimizer.min_lr = c.optimizer.lr / 3;
        cr_assert_eq(pd_key_set(&c, "data.train[1].path", "x, y: [z] \"q\"", &err), PD_OK);
        cr_assert_eq(pd_key_set(&c, "data.train[1].weight", "0.1", &err), PD_OK);
        c.run.seed = round * UINT64_C(12345678901);
        char *text = printed(&c);
        cr_assert_eq(pd_config_parse("printed", text, NULL, 0, &back, &err), PD_OK, "%s\n%s", err.message, text);
        char *again = printed(&back);
        cr_assert_str_eq(text, again);
        struct pd_resume_difference difference;
        cr_assert_eq(pd_config_compare(&c, &back, &difference, 1), 0, "%s", difference.key);
        cr_assert_eq(memcmp(&c.model, &back.model, sizeof c.model), 0);
        cr_assert_eq(memcmp(&c.optimizer, &back.optimizer, sizeof c.optimizer), 0);
        cr_assert_str_eq(back.run.dir, c.run.dir);
        cr_assert_eq(back.data.train_count, 2);
        cr_assert_str_eq(back.data.train[1].path, c.data.train[1].path);
        cr_assert_eq(back.restart.ranks_count, 3);
        free(text);
        free(again);
        pd_config_deinit(&c);
        pd_config_deinit(&back);
    }
}

/* 0 blocks are a number of blocks; auto is none. */
Test(config, recompute_layers)
{
    static const struct {
        const char *layout, *printed;
        uint32_t layers;
    } good[] = {{"{recompute: full}", "recompute_layers: auto", PD_LAYERS_ALL},
                {"{recompute: full, recompute_layers: auto}", "recompute_layers: auto", PD_LAYERS_ALL},
                {"{recompute: full, recompute_layers: 0}", "recompute_layers: 0 ", 0},
                {"{recompute: selective, recompute_layers: 2}", "recompute_layers: 2 ", 2},
                {"{auto: true, recompute_layers: 2}", "recompute_layers: 2 ", 2}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char text[300];
        snprintf(text, sizeof text, MINIMAL "layout: %s\n", good[i].layout);
        struct pd_config c = parse(text, NULL);
        char *yaml = printed(&c);
        struct pd_config back = parse(yaml, NULL);
        cr_expect_eq(c.layout.recompute_layers, good[i].layers, "%s", good[i].layout);
        cr_expect_eq(back.layout.recompute_layers, good[i].layers, "%s", good[i].layout);
        cr_expect_not_null(strstr(yaml, good[i].printed), "%s", good[i].layout);
        free(yaml);
        pd_config_deinit(&c);
        pd_config_deinit(&back);
    }
    static const char *const bad[][2] = {
        {"{recompute: full, recompute_layers: 5}", "run.yaml: layout.recompute_layers is 5, and the model has 4 blocks; set "
                                                   "layout.recompute_layers=4, or leave it out "
                                                   "for all"},
        {"{recompute_layers: 2}",
         "run.yaml: layout.recompute_layers is 2 but layout.recompute=none recomputes no block; set "
         "layout.recompute=full or selective, or leave layout.recompute_layers out"},
        {"{auto: true, recompute: none, recompute_layers: 2}",
         "run.yaml: layout.recompute_layers is 2 but layout.recompute=none recomputes no block; set "
         "layout.recompute=full or selective, or leave layout.recompute_layers out"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pd_config c;
        struct pd_error err;
        char text[300];
        snprintf(text, sizeof text, MINIMAL "layout: %s\n", bad[i][0]);
        cr_expect_eq(pd_config_parse("run.yaml", text, NULL, 0, &c, &err), PD_INVALID, "%s", bad[i][0]);
        cr_expect_str_eq(err.message, bad[i][1]);
    }
}

/* What layout.auto is left to choose is so again when what was printed is read. */
Test(config, what_is_left_to_the_planner_prints_so)
{
    struct pd_config c = parse(MINIMAL "layout: {auto: true, zero_stage: 1}\n", NULL);
    cr_expect(c.layout.zero_stage_given && !c.layout.recompute_given);
    char *text = printed(&c);
    struct pd_config back = parse(text, NULL);
    cr_expect(back.layout.zero_stage_given && !back.layout.recompute_given, "%s", text);
    cr_expect_eq(back.layout.zero_stage, 1);
    free(text);
    pd_config_deinit(&c);
    pd_config_deinit(&back);
}

Test(config, presets_print_and_load_back)
{
    for (const char *const *name = pd_model_preset_names(); *name; name++) {
        char override[64];
        snprintf(override, sizeof override, "model.preset=%s", *name);
        const char *const overrides[] = {override, "batch.context=64", NULL};
        struct pd_config c = parse(MINIMAL, overrides);
        char *text = printed(&c);
        struct pd_config back = parse(text, NULL);
        cr_expect_eq(memcmp(&c.model, &back.model, sizeof c.model), 0, "%s", *name);
        free(text);
        pd_config_deinit(&c);
        pd_config_deinit(&back);
    }
}

Test(keys, table_is_sound)
{
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const struct pd_key *key = &pd_keys[i];
        cr_expect(key->meaning && key->meaning[0], "%s", key->name);
        cr_expect_eq(pd_key_find(key->name), key, "%s is there twice", key->name);
        cr_expect((key->type == PD_KEY_WORD) == (key->words != NULL), "%s", key->name);
        bool number = key->type == PD_KEY_U32 || key->type == PD_KEY_U64 || key->type == PD_KEY_I64 ||
                      key->type == PD_KEY_FLOAT || key->type == PD_KEY_DOUBLE;
        cr_expect(!number || key->low < key->high, "%s", key->name);
        bool is_model = strncmp(key->name, "model.", 6) == 0 && strcmp(key->name, "model.preset") != 0;
        bool is_list = key->list;
        cr_expect((key->initial == NULL) == (is_model || is_list), "%s", key->name);
        bool sizes = strstr(key->meaning, "0: ") != NULL && key->type == PD_KEY_U32;
        cr_expect(!sizes || key->low == 0, "%s says what 0 means and does not admit it", key->name);
    }
}

Test(config, unknown_preset_is_named_with_its_place)
{
    struct pd_config c;
    struct pd_error err;
    const char *text = MINIMAL "model: {preset: gpt3-124m}\n";
    cr_expect_eq(pd_config_parse("run.yaml", text, NULL, 0, &c, &err), PD_INVALID);
    cr_expect(strncmp(err.message, "run.yaml:3:17: model.preset gpt3-124m is unknown", 48) == 0, "%s", err.message);
    const char *const overrides[] = {"model.preset=gpt3-124m"};
    cr_expect_eq(pd_config_parse("run.yaml", text, overrides, 1, &c, &err), PD_INVALID);
    cr_expect(strncmp(err.message, "command line: model.preset gpt3-124m", 36) == 0, "%s", err.message);
}

static pd_status load_file(const void *bytes, size_t count, struct pd_error *err)
{
    char path[] = "/tmp/perdure-config-XXXXXX";
    int descriptor = mkstemp(path);
    cr_assert(descriptor >= 0 && write(descriptor, bytes, count) == (ssize_t)count);
    close(descriptor);
    struct pd_config config;
    pd_status status = pd_config_load(path, NULL, 0, &config, err);
    if (!status) pd_config_deinit(&config);
    unlink(path);
    return status;
}

Test(load, files)
{
    struct pd_error err;
    struct pd_config config;
    cr_expect_eq(load_file(MINIMAL, sizeof MINIMAL - 1, &err), PD_OK, "%s", err.message);
    cr_expect_eq(load_file("run: {}\0x", 9, &err), PD_INVALID);
    cr_expect(strstr(err.message, "holds zero bytes"), "%s", err.message);
    cr_expect_eq(pd_config_load("/nonexistent/run.yaml", NULL, 0, &config, &err), PD_NOT_FOUND);
    cr_expect(
        strstr(err.message, "there is no configuration /nonexistent/run.yaml; name another, or let perdure init write one"),
        "%s", err.message);
    cr_expect_eq(pd_config_load("/tmp", NULL, 0, &config, &err), PD_INVALID);
    cr_expect(strstr(err.message, "/tmp is a directory"), "%s", err.message);
    size_t big = (16u << 20) + 70000;
    char *comment = malloc(big);
    memset(comment, '#', big);
    cr_expect_eq(load_file(comment, big, &err), PD_INVALID);
    cr_expect(strstr(err.message, "is over 16 MiB"), "%s", err.message);
    free(comment);
    const char *const overrides[] = {"run.dir=r", "data.train=t"};
    cr_expect_eq(pd_config_load(NULL, overrides, 2, &config, &err), PD_OK, "%s", err.message);
    pd_config_deinit(&config);
}

/* Bytes from outside: whatever they are, the answer is a configuration or a sentence. A failure prints the seed. */
Test(config, damaged_texts_are_refused_or_read)
{
    struct pd_config c =
        parse(MINIMAL "model: {preset: qwen2.5-0.5b}\nbatch: {context: 64}\nrestart: {ranks: [4, 3]}\n", NULL);
    char *text = printed(&c);
    size_t length = strlen(text);
    char *damaged = malloc(length + 1);
    uint32_t refused_count = 0;
    for (unsigned seed = 1; seed <= 2000; seed++) {
        struct pd_config back;
        struct pd_error err = {0};
        unsigned state = seed;
        if (!test_has_turn(seed, 4)) continue;
        memcpy(damaged, text, length + 1);
        for (int i = 0; i < 1 + (int)(seed % 4); i++)
            damaged[(size_t)rand_r(&state) % length] = (char)(1 + rand_r(&state) % 255);
        if (seed % 5 == 0) damaged[(size_t)rand_r(&state) % length] = '\0';
        pd_status status = pd_config_parse("damaged", damaged, NULL, 0, &back, &err);
        if (status) {
            cr_assert(status == PD_INVALID && strncmp(err.message, "damaged", 7) == 0, "seed %u: %s", seed, err.message);
            refused_count++;
        } else {
            pd_config_deinit(&back);
        }
    }
    cr_assert(refused_count > 50 && refused_count < 2000, "%u", refused_count);
    /* A byte in each place, in four shares: no length of the text, and so no machine, is the first to try it. */
    for (size_t i = 0; i < length; i++) {
        if (!test_has_turn(i, 4)) continue;
        struct pd_config back;
        struct pd_error err = {0};
        memcpy(damaged, text, length + 1);
        damaged[i] = '|';
        if (pd_config_parse("damaged", damaged, NULL, 0, &back, &err))
            cr_assert(strncmp(err.message, "damaged", 7) == 0, "byte %zu: %s", i, err.message);
        else
            pd_config_deinit(&back);
    }
    free(damaged);
    free(text);
    pd_config_deinit(&c);
}
