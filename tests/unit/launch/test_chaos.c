#include "trainer/launch/chaos.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define S UINT64_C(1000000000)

Test(chaos, a_seed_and_failures_a_minute)
{
    struct pd_chaos c;
    cr_assert(pd_chaos_parse("7,0.5", &c));
    cr_expect_eq(c.seed, 7);
    cr_expect_float_eq(c.per_minute, 0.5, 1e-12);
    static const char *const none[] = {"", "7", "7,", "7,0", "7,-1", "x,1", "7,1x", "7,nan", "7,601", ",1"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        cr_expect_not(pd_chaos_parse(none[i], &c), "%s", none[i]);
}

Test(chaos, one_in_each_period_and_the_same_for_the_same_seed)
{
    struct pd_chaos a = {.seed = 7, .per_minute = 2}, b = a;
    struct pd_chaos_blow x, y;
    uint32_t kinds = 0, victims = 0;
    uint64_t last = 0;
    for (uint64_t now = S, count = 0; count < 100; now += S) {
        const bool is_due = pd_chaos_due(&a, now, 3, &x);
        cr_assert_eq(is_due, pd_chaos_due(&b, now, 3, &y));
        if (!is_due) continue;
        const uint64_t period = (now - 2 * S) / (30 * S); /* looked at once a second */
        cr_expect(period == count || period + 1 == count, "failure %llu in period %llu", (unsigned long long)count,
                  (unsigned long long)period);
        cr_expect(x.kind == y.kind && x.victim == y.victim && x.victim < 3 && now > last);
        kinds |= 1u << x.kind;
        victims |= 1u << x.victim;
        last = now;
        count++;
    }
    cr_expect_eq(kinds, (1u << PD_CHAOS_KINDS) - 1);
    cr_expect_eq(victims, 7);
    cr_expect_not(pd_chaos_due(&(struct pd_chaos){.seed = 7}, S, 3, &x), "no rate, no failures");
}

Test(chaos, a_byte_of_the_newest_checkpoint_is_turned)
{
    char root[] = "/tmp/perdure-chaos-XXXXXX", path[256];
    static const char *const steps[] = {"step-000000000009-1", "step-000000000010-1", "step-000000000011-1.tmp"};
    cr_assert(mkdtemp(root));
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", root, steps[i]);
        cr_assert_eq(mkdir(path, 0700), 0);
        snprintf(path, sizeof path, "%s/%s/shard-00000.h5", root, steps[i]);
        FILE *f = fopen(path, "w");
        cr_assert(f && fputs("0000", f) >= 0 && fclose(f) == 0);
    }
    struct pd_chaos c = {.dir = root};
    cr_assert(pd_chaos_damage(&c, 0.5));
    for (int i = 0; i < 3; i++) {
        char text[8] = "";
        snprintf(path, sizeof path, "%s/%s/shard-00000.h5", root, steps[i]);
        FILE *f = fopen(path, "r");
        cr_assert(f && fgets(text, sizeof text, f) && fclose(f) == 0);
        cr_expect_eq(strcmp(text, "0000") != 0, i == 1, "%s: %s", steps[i], text);
        cr_expect_eq(text[2] == (char)~'0', i == 1);
        unlink(path);
        *strrchr(path, '/') = '\0';
        rmdir(path);
    }
    cr_expect_not(pd_chaos_damage(&c, 0.5), "nothing is left");
    rmdir(root);
}
