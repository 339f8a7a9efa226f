/* Names in both directions, and which checkpoints stay. */
#include "ckpt/store/catalog.h"
#include "ckpt/store/paths.h"

#include <criterion/criterion.h>
#include <string.h>

Test(store_names, steps)
{
    struct pd_step_name name = {.step = 1200, .fence = 7}, parsed;
    cr_assert_str_eq(pd_step_name_text(&name).text, "step-000000001200-7");
    cr_assert(pd_step_name_parse(pd_step_name_text(&name).text, &parsed));
    cr_assert(parsed.step == 1200 && parsed.fence == 7 && !parsed.is_tmp);
    name = (struct pd_step_name){.step = PD_STORE_NUMBER_MAX, .fence = PD_STORE_NUMBER_MAX, .is_tmp = true};
    cr_assert(pd_step_name_parse(pd_step_name_text(&name).text, &parsed));
    cr_assert(parsed.step == PD_STORE_NUMBER_MAX && parsed.fence == PD_STORE_NUMBER_MAX && parsed.is_tmp);
}

Test(store_names, what_does_not_read_back_is_foreign)
{
    static const char *const foreign[] = {
        "",
        "step-",
        "step-1-7",
        "step-000000001200",
        "step-000000001200-",
        "step-000000001200-07",
        "step-0000000001200-7",
        "step-000000001200-7.tm",
        "step-000000001200-7.tmp2",
        "step-000000001200-7.tmp.tmp",
        "step-000000001200--7",
        "step-00000000120x-7",
        "Step-000000001200-7",
        "step-99999999999999999999999999-7",
        "step-000000001200-18446744073709551616",
        "step-000000001200-7 ",
        "step-000000001200-1000000000000001",
        "step-1000000000000001-7",
    };
    struct pd_step_name name;
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        cr_assert_not(pd_step_name_parse(foreign[i], &name), "%s", foreign[i]);
}

Test(store_names, the_others)
{
    uint64_t number;
    uint32_t rank, k;
    cr_assert(pd_numbered_name_parse("fence-12", "fence-", &number) && number == 12);
    cr_assert_not(pd_numbered_name_parse("fence-012", "fence-", &number));
    cr_assert_not(pd_numbered_name_parse("fence-", "fence-", &number));
    cr_assert_not(pd_numbered_name_parse("fence-12x", "fence-", &number));
    cr_assert_not(pd_numbered_name_parse("pool-12", "fence-", &number));
    cr_assert(pd_shard_name_parse(pd_shard_name(123456).text, &rank) && rank == 123456);
    cr_assert_not(pd_shard_name_parse("shard-7.h5", &rank));
    cr_assert_not(pd_shard_name_parse("shard-00007.h5.bak", &rank));
    cr_assert_not(pd_shard_name_parse("shard-4294967296.h5", &rank));
    cr_assert_str_eq(pd_recycle_name(7, 1).text, "recycle-00007-1");
    cr_assert(pd_recycle_name_parse(pd_recycle_name(7, 1).text, &rank, &k) && rank == 7 && k == 1);
    cr_assert_not(pd_recycle_name_parse("recycle-00007-", &rank, &k));
    cr_assert_str_eq(pd_generation_name(7, 12).text, "generation-00007-12.h5");
    cr_assert(pd_generation_name_parse(pd_generation_name(7, 12).text, &rank, &k) && rank == 7 && k == 12);
    cr_assert_not(pd_generation_name_parse("generation-7-12.h5", &rank, &k));
    cr_assert_not(pd_generation_name_parse("generation-00007-12", &rank, &k));
    cr_assert_not(pd_generation_name_parse("generation-00007-12.h5~", &rank, &k));
    cr_assert_not(pd_generation_name_parse("generation-00007-4294967296.h5", &rank, &k));
    cr_assert(pd_store_owns_file("commit.h5") && pd_store_owns_file("index.h5") && pd_store_owns_file("shard-00000.h5"));
    cr_assert_not(pd_store_owns_file("notes.txt") || pd_store_owns_file("commit.h5~"));
}

/* Steps newest first, the rule, and which stay. */
Test(retention, table)
{
    static const struct {
        uint32_t keep_last;
        uint64_t keep_every;
        uint64_t steps[8];
        uint32_t count;
        const char *stays; /* one character a step */
    } table[] = {
        {1, 0, {5, 4, 3}, 3, "x.."},
        {2, 0, {5, 4, 3}, 3, "xx."},
        {9, 0, {5, 4, 3}, 3, "xxx"},
        {0, 0, {5, 4}, 2, "x."},                   /* never the only one */
        {1, 2, {5, 4, 3, 2, 1, 0}, 6, "xx.x.x"},   /* step 0 is a multiple */
        {1, 10, {25, 20, 20, 10, 10}, 5, "xx.x."}, /* the newest of a step written twice */
        {3, 10, {25, 20, 20, 10}, 4, "xxxx"},
        {1, 1, {3, 2, 1}, 3, "xxx"},
        {1, UINT64_MAX, {3, 2, 1}, 3, "x.."},
        {1, 5, {0}, 0, ""},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        bool keep[8] = {0};
        pd_retention_choose(table[i].keep_last, table[i].keep_every, table[i].steps, table[i].count, keep);
        for (uint32_t s = 0; s < table[i].count; s++)
            cr_assert_eq(keep[s], table[i].stays[s] == 'x', "row %zu, step %u", i, s);
    }
}
