#include "trainer/launch/layout.h"

#include "ckpt/base/log.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct pd_config parse_all(const char *rest)
{
    char yaml[700];
    struct pd_config c;
    struct pd_error err;
    snprintf(yaml, sizeof yaml, "run: {dir: r}\ndata: {train: a}\n%s", rest);
    cr_assert_eq(pd_config_parse("test", yaml, NULL, 0, &c, &err), PD_OK, "%s", err.message);
    return c;
}

static struct pd_config parse(const char *rest)
{
    char yaml[600];
    snprintf(yaml, sizeof yaml, "model: {layers: 5}\n%s", rest);
    return parse_all(yaml);
}

static void expect(struct pd_launch_chooser *chooser, uint32_t ranks, bool is_restart, const char *summary)
{
    struct pd_launch_layout layout = {0};
    struct pd_error err;
    cr_assert_eq(pd_launch_choose(chooser, ranks, is_restart, &layout, &err), PD_OK, "%s", err.message);
    cr_expect_str_eq(layout.summary, summary, "%u ranks: %s, not %s", ranks, layout.summary, summary);
}

Test(launch_layout, restarts_keep_what_divides_and_come_back)
{
    struct pd_config c = parse("numerics: {virtual_tp: 2}\nlayout: {tp: 2, pp: 2, zero_stage: 1, recompute: full}\n");
    struct pd_launch_chooser chooser;
    struct pd_launch_layout layout;
    struct pd_error err;
    cr_assert_eq(pd_launch_chooser_init(&c, &chooser, &err), PD_OK);
    cr_expect_eq(pd_launch_choose(&chooser, 6, false, &layout, &err), PD_INVALID);
    expect(&chooser, 8, false, "dp=2 tp=2 pp=2");
    expect(&chooser, 4, true, "dp=1 tp=2 pp=2");
    expect(&chooser, 1, true, "dp=1");
    expect(&chooser, 8, true, "dp=2 tp=2 pp=2");
    pd_launch_chooser_deinit(&chooser);
    pd_config_deinit(&c);
}

/* ep is what divides both the given ep and the ranks that are left; ranks accept it. */
Test(launch_layout, experts_spread_over_what_is_left)
{
    struct pd_config c = parse_all("model: {preset: mixtral-1m}\nlayout: {ep: 4}\n");
    struct pd_launch_chooser chooser;
    struct pd_error err;
    cr_assert_eq(pd_launch_chooser_init(&c, &chooser, &err), PD_OK, "%s", err.message);
    const struct {
        uint32_t ranks;
        const char *summary;
    } starts[] = {{4, "dp=4 ep=4"}, {3, "dp=3"}, {2, "dp=2 ep=2"}, {6, "dp=6 ep=2"}, {1, "dp=1"}, {4, "dp=4 ep=4"}};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        struct pd_config on_rank = parse_all("model: {preset: mixtral-1m}\nlayout: {ep: 4}\n");
        struct pd_launch_layout layout;
        struct pd_laid_out laid_out;
        expect(&chooser, starts[i].ranks, i > 0, starts[i].summary);
        cr_assert_eq(pd_launch_choose(&chooser, starts[i].ranks, i > 0, &layout, &err), PD_OK, "%s", err.message);
        cr_assert_eq(pd_launch_layout_apply(&on_rank, layout.settings, layout.ranks, &err), PD_OK, "%s", err.message);
        cr_assert_eq(pd_lay_out(&on_rank, chooser.model, layout.ranks, &laid_out, &err), PD_OK, "%s", err.message);
        pd_config_deinit(&on_rank);
    }
    pd_launch_chooser_deinit(&chooser);
    pd_config_deinit(&c);
}

/* What ranks make of the settings is what the launcher chose. */
Test(launch_layout, ranks_get_what_was_chosen)
{
    struct pd_config c = parse("numerics: {virtual_tp: 2}\nlayout: {auto: true, tp: 2}\n"), on_rank;
    struct pd_launch_chooser chooser;
    struct pd_launch_layout layout;
    struct pd_laid_out laid_out;
    struct pd_error err;
    char text[64];
    on_rank = parse("numerics: {virtual_tp: 2}\nlayout: auto\n");
    cr_assert_eq(pd_launch_chooser_init(&c, &chooser, &err), PD_OK);
    cr_assert_eq(pd_launch_choose(&chooser, 4, false, &layout, &err), PD_OK, "%s", err.message);
    cr_assert_eq(layout.ranks, 4);
    cr_assert_eq(pd_launch_layout_apply(&on_rank, layout.settings, layout.ranks, &err), PD_OK, "%s", err.message);
    cr_expect(!on_rank.layout.automatic);
    cr_assert_eq(pd_lay_out(&on_rank, chooser.model, 4, &laid_out, &err), PD_OK, "%s", err.message);
    const struct pd_layout *l = &laid_out.layout;
    const struct pd_degrees degrees = {l->dp, l->tp, l->pp, l->sp, l->interleave};
    pd_degrees_text(&degrees, text, sizeof text);
    cr_expect_str_eq(text, layout.summary);
    cr_expect_eq(l->tp, 2);
    pd_launch_chooser_deinit(&chooser);
    pd_config_deinit(&c);
    pd_config_deinit(&on_rank);
}

/* State of twice this host's memory: not for eight ranks here, but for eight that have a host each. */
Test(launch_layout, ranks_of_a_host_share_its_memory)
{
    enum { BYTES_OF_A_PARAMETER = 20, PARAMETERS_OF_A_LAYER = 16 << 22 };
    const double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    char text[400];
    struct pd_launch_layout layout;
    struct pd_error err;
    for (uint32_t ranks_per_host = 0; ranks_per_host < 2; ranks_per_host++) {
        snprintf(text, sizeof text,
                 "layout: {auto: true, ranks_per_host: %u}\nbatch: {sequences: 8, micro_batch: 1, context: 16}\n"
                 "model: {layers: %d, hidden: 2048, heads: 16, ffn: 8192, vocab: 256, context: 16}\n",
                 ranks_per_host, 2 + (int)(2 * memory / BYTES_OF_A_PARAMETER / PARAMETERS_OF_A_LAYER));
        struct pd_config c = parse_all(text);
        struct pd_launch_chooser chooser;
        cr_assert_eq(pd_launch_chooser_init(&c, &chooser, &err), PD_OK);
        const pd_status st = pd_launch_choose(&chooser, 8, false, &layout, &err);
        cr_expect_eq(st, ranks_per_host ? PD_OK : PD_INVALID, "%u ranks a host: %s", ranks_per_host,
                     st ? err.message : layout.summary);
        pd_launch_chooser_deinit(&chooser);
        pd_config_deinit(&c);
    }
}

static uint32_t said;

static void listen(void *context, const char *line, size_t bytes)
{
    (void)context;
    said += memmem(line, bytes, "layout.ranks_per_host=4", strlen("layout.ranks_per_host=4")) != NULL;
}

Test(launch_layout, other_hosts_than_were_counted_are_told_of)
{
    pd_log_set_sink(listen, NULL);
    struct pd_config c = parse("layout: {auto: true}\n");
    pd_launch_layout_log_hosts(&c, 8, 2, 4);
    cr_expect_eq(said, 0, "nothing was chosen");
    c.layout.chosen = true;
    pd_launch_layout_log_hosts(&c, 8, 1, 8);
    cr_expect_eq(said, 0, "as counted");
    pd_launch_layout_log_hosts(&c, 8, 2, 4);
    cr_expect_eq(said, 1);
    c.layout.ranks_per_host = 4;
    pd_launch_layout_log_hosts(&c, 8, 2, 4);
    cr_expect_eq(said, 1);
    c.layout.ranks_per_host = 3;
    pd_launch_layout_log_hosts(&c, 8, 3, 4);
    cr_expect_eq(said, 2, "one of three hosts has more than its share");
    pd_config_deinit(&c);
}

static const struct pd_memory_limit *pretended; /* NULL: this machine's */

bool __real_pd_memory_limit_read(const struct pd_memory_places *places, struct pd_memory_limit *ret_limit);
bool __wrap_pd_memory_limit_read(const struct pd_memory_places *places, struct pd_memory_limit *ret_limit);

bool __wrap_pd_memory_limit_read(const struct pd_memory_places *places, struct pd_memory_limit *ret_limit)
{
    if (!pretended) return __real_pd_memory_limit_read(places, ret_limit);
    *ret_limit = *pretended;
    return true;
}

/* Two ranks take more than 64 MiB. */
Test(launch_layout, swap_lets_a_start_begin)
{
    struct pd_config c = parse("layout: {threads: 1}\n");
    struct pd_memory_limit limit = {.most_bytes = 64 << 20, .is_most_of_group = true, .most_who = "memory.max of /a"};
    struct pd_launch_chooser chooser;
    struct pd_launch_layout layout;
    struct pd_error err;
    cr_assert_eq(pd_launch_chooser_init(&c, &chooser, &err), PD_OK);
    pretended = &limit;
    cr_expect_eq(pd_launch_choose(&chooser, 2, false, &layout, &err), PD_INVALID);
    cr_expect_not_null(strstr(err.message, "memory.max of /a ends at 64.0 MiB; "), "%s", err.message);
    limit.swap_bytes = 1 << 20;
    cr_expect_eq(pd_launch_choose(&chooser, 2, false, &layout, &err), PD_INVALID);
    cr_expect(strstr(err.message, "memory.max of /a ends at 64.0 MiB and 1.00 MiB of swap; "), "%s", err.message);
    limit.swap_bytes = UINT64_C(1) << 33;
    cr_expect_eq(pd_launch_choose(&chooser, 2, false, &layout, &err), PD_OK, "%s", err.message);
    pretended = NULL;
    pd_launch_chooser_deinit(&chooser);
    pd_config_deinit(&c);
}
