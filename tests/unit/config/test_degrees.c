#include "trainer/config/check.h"
#include "trainer/config/keys.h"
#include "trainer/config/laid_out.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct pd_config parse(const char *rest)
{
    char text[512];
    struct pd_config c;
    struct pd_error err;
    snprintf(text, sizeof text, "run: {dir: r}\ndata: {train: a}\nmodel: {layers: 5}\n%s", rest);
    cr_assert_eq(pd_config_parse("run.yaml", text, NULL, 0, &c, &err), PD_OK, "%s", err.message);
    return c;
}

/* Every product of degrees, one by one, against the list. */
Test(degrees, list_is_all_that_is_admitted)
{
    struct pd_config c = parse("numerics: {virtual_tp: 4, virtual_sp: 2}\n");
    const struct pd_degrees anything = {0};
    for (uint32_t world = 1; world <= 40; world++) {
        struct pd_degrees list[256];
        const uint32_t count = pd_degrees_list(&c, world, &anything, list, 256);
        uint32_t expected = 0;
        for (uint32_t dp = 1; dp <= 8; dp++)
            for (uint32_t tp = 1; tp <= 4; tp++)
                for (uint32_t pp = 1; pp <= 5; pp++)
                    for (uint32_t sp = 1; sp <= 2; sp++)
                        expected += tp != 3 && dp * tp * pp * sp == world;
        cr_expect_eq(count, expected, "world %u: %u, not %u", world, count, expected);
        for (uint32_t i = 0; i < count; i++)
            cr_expect_eq(pd_degrees_world(&list[i]), world);
    }
    pd_config_deinit(&c);
}

static void fewer(const struct pd_config *c, struct pd_degrees before, uint32_t left, const char *expected)
{
    struct pd_degrees after;
    char text[64] = "nothing";
    if (pd_degrees_fewer(c, left, &before, &after)) pd_degrees_text(&after, text, sizeof text);
    cr_expect_str_eq(text, expected, "%u left: %s, not %s", left, text, expected);
}

Test(degrees, fewer_ranks_keep_what_divides)
{
    struct pd_config c = parse("numerics: {virtual_tp: 4}\n");
    const struct pd_degrees before = {.dp = 2, .tp = 2, .pp = 2, .sp = 1, .interleave = 1};
    fewer(&c, before, 4, "dp=1 tp=2 pp=2");
    fewer(&c, before, 7, "dp=7");
    fewer(&c, before, 6, "dp=1 tp=2 pp=3");
    fewer(&c, before, 3, "dp=1 pp=3");
    fewer(&c, before, 1, "dp=1");
    fewer(&c, before, 0, "nothing");
    pd_config_deinit(&c);
}

Test(degrees, worlds_without_a_layout_are_skipped)
{
    struct pd_config c = parse("batch: {sequences: 2, micro_batch: 1}\n");
    const struct pd_degrees before = {.dp = 2, .tp = 1, .pp = 5, .sp = 1, .interleave = 1};
    fewer(&c, before, 9, "dp=2 pp=4");
    fewer(&c, before, 7, "dp=2 pp=3");
    pd_config_deinit(&c);
}

/* Four ranks at tp 4 lose one: three stages would be refused at their start, for sums of gradients are on nvme. */
Test(degrees, fewer_ranks_keep_the_rules_of_a_start)
{
    const char *nvme = "numerics: {virtual_tp: 4}\nbatch: {sequences: 2, micro_batch: 1}\n"
                       "offload: {optimizer: nvme, gradients: nvme}\n";
    const struct pd_degrees before = {.dp = 1, .tp = 4, .pp = 1, .sp = 1, .interleave = 1};
    struct pd_config c = parse(nvme);
    struct pd_degrees unused;
    struct pd_error err;
    fewer(&c, before, 3, "dp=1 tp=2");
    cr_expect_eq(pd_degrees_of(&c, 3, &unused, &err), PD_INVALID);
    cr_expect(strstr(err.message, "; 2 ranks fit as dp=2 or dp=1 tp=2; "), "%s", err.message);
    pd_config_deinit(&c);
    c = parse("numerics: {virtual_tp: 4}\nbatch: {sequences: 2, micro_batch: 1}\nlayout: {order: breadth_first}\n");
    fewer(&c, before, 3, "dp=1 tp=2");
    pd_config_deinit(&c);
    c = parse("numerics: {virtual_tp: 4}\nbatch: {sequences: 8, micro_batch: 1}\nlayout: {zero_stage: 0, tp: 4}\n"
              "offload: {optimizer: nvme}\n");
    fewer(&c, before, 3, "dp=1 pp=3");
    pd_config_deinit(&c);
}

/* Whatever is listed, and so whatever advice and restarts name, a start takes. */
Test(degrees, what_is_listed_starts)
{
    static const char *const rests[] = {
        "",
        "offload: {optimizer: nvme, gradients: nvme}\n",
        "offload: {optimizer: nvme}\nlayout: {zero_stage: 0}\n",
        "offload: {optimizer: nvme}\nlayout: {zero_shard: 1}\n",
        "layout: {order: breadth_first}\n",
        "run: {dir: r, device: gpu}\noffload: {gradients: cpu}\nlayout: {order: breadth_first}\n",
        "batch: {sequences: 3, micro_batch: 1}\n"};
    for (size_t i = 0; i < sizeof rests / sizeof *rests; i++) {
        char text[512];
        struct pd_error err;
        struct pd_config c;
        snprintf(text, sizeof text, "%sdata: {train: a}\nmodel: {layers: 5}\nnumerics: {virtual_tp: 4, virtual_sp: 2}\n%s",
                 strncmp(rests[i], "run", 3) ? "run: {dir: r}\n" : "", rests[i]);
        cr_assert_eq(pd_config_parse("run.yaml", text, NULL, 0, &c, &err), PD_OK, "%s", err.message);
        for (uint32_t world = 1; world <= 24; world++) {
            const struct pd_degrees anything = {0};
            struct pd_degrees list[256];
            const uint32_t count = pd_degrees_list(&c, world, &anything, list, 256);
            for (uint32_t k = 0; k < count; k++) {
                struct pd_config given = c; /* borrows what it points to */
                given.layout.ranks = world;
                given.layout.dp = list[k].dp, given.layout.tp = list[k].tp;
                given.layout.pp = list[k].pp, given.layout.sp = list[k].sp;
                if (given.layout.zero_shard && (list[k].dp * list[k].sp) % given.layout.zero_shard)
                    given.layout.zero_shard = 0; /* as restarts take it */
                cr_expect_eq(pd_config_check(&given, &err), PD_OK, "%s: %s", rests[i], err.message);
            }
        }
        pd_config_deinit(&c);
    }
}

/* Each key=value of an advice is taken by itself, but for what comes "with" it. */
static void follow(const struct pd_config *c, const char *message)
{
    const char *advice = strstr(message, "; use ");
    cr_assert(advice, "%s", message);
    for (const char *at = strstr(advice, "layout."); at; at = strstr(at + 1, "layout.")) {
        struct pd_config changed = *c; /* borrows what it points to */
        struct pd_error err;
        for (const char *key = at; key;) {
            char path[64], value[16];
            cr_assert_eq(sscanf(key, "%63[a-z_.]=%15[a-z0-9]", path, value), 2, "%s", message);
            cr_assert_eq(pd_key_set(&changed, path, value, &err), PD_OK, "%s", err.message);
            const char *with = strstr(key, ", with ");
            key = with ? with + 7 : NULL;
            if (key) at = key;
        }
        cr_expect_eq(pd_config_check(&changed, &err), PD_OK, "\"%s\" led to: %s", message, err.message);
    }
}

Test(degrees, advice_about_stages_works)
{
    for (uint32_t layers = 1; layers <= 6; layers++)
        for (uint32_t pp = 0; pp <= 7; pp++)
            for (uint32_t interleave = 1; interleave <= 4; interleave++) {
                struct pd_config c = parse("");
                struct pd_error err;
                c.model.layers = layers;
                c.layout.pp = pp, c.layout.interleave = interleave;
                if (pd_config_check(&c, &err)) follow(&c, err.message);
                pd_config_deinit(&c);
            }
}

Test(degrees, first_world)
{
    struct pd_config c = parse("numerics: {virtual_tp: 4}\nlayout: {tp: 2, pp: 3}\n");
    cr_expect_eq(pd_degrees_first_world(&c, 64), 48); /* 8 micro-batches */
    cr_expect_eq(pd_degrees_first_world(&c, 17), 12);
    cr_expect_eq(pd_degrees_first_world(&c, 2), 6); /* fewer devices than one copy needs: they are shared */
    pd_config_deinit(&c);
    c = parse("layout: auto\nbatch: {sequences: 2, micro_batch: 1}\n");
    cr_expect_eq(pd_degrees_first_world(&c, 7), 6);
    pd_config_deinit(&c);
}
