#include "ckpt/base/parse.h"

#include "ckpt/base/checked.h"
#include <criterion/criterion.h>

Test(parse, unsigned_numbers)
{
    uint64_t value = 7;
    cr_assert(pd_parse_u64("0", &value) && value == 0);
    cr_assert(pd_parse_u64("18446744073709551615", &value) && value == UINT64_MAX);
    static const char *const bad[] = {"",   "-1", "+1", " 1", "1 ", "0x10", "18446744073709551616", "99999999999999999999",
                                      "1.0"};
    value = 7;
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_not(pd_parse_u64(bad[i], &value), "%s", bad[i]);
    cr_assert_eq(value, 7);
}

Test(parse, signed_numbers)
{
    int64_t value;
    cr_assert(pd_parse_i64("-9223372036854775808", &value) && value == INT64_MIN);
    cr_assert(pd_parse_i64("9223372036854775807", &value) && value == INT64_MAX);
    cr_assert_not(pd_parse_i64("9223372036854775808", &value));
    cr_assert_not(pd_parse_i64("-9223372036854775809", &value));
    cr_assert_not(pd_parse_i64("--1", &value));
    cr_assert_not(pd_parse_i64("-", &value));
}

Test(parse, real_numbers)
{
    double value;
    cr_assert(pd_parse_double("-1.5e-3", &value) && value == -1.5e-3);
    cr_assert_not(pd_parse_double("nan", &value));
    cr_assert_not(pd_parse_double("1e999", &value));
    cr_assert_not(pd_parse_double(" 1", &value));
    cr_assert_not(pd_parse_double("1x", &value));
    cr_assert_not(pd_parse_double("", &value));
}

Test(parse, sizes)
{
    uint64_t value;
    cr_assert(pd_parse_bytes("4096", &value) && value == 4096);
    cr_assert(pd_parse_bytes("64k", &value) && value == 65536);
    cr_assert(pd_parse_bytes("1.5G", &value) && value == 3ull << 29);
    cr_assert(pd_parse_bytes("10MiB", &value) && value == 10u << 20);
    cr_assert(pd_parse_bytes("2tb", &value) && value == 2ull << 40);
    static const char *const bad[] = {"",          "k",      "1q", "1kk", "0.3", "-1k", "99999999999999999999",
                                      "16777216T", "1.2.3k", "1k "};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_not(pd_parse_bytes(bad[i], &value), "%s", bad[i]);
}

Test(checked, results_that_do_not_fit_are_refused)
{
    uint64_t r = 1;
    cr_assert_not(pd_checked_add_u64(UINT64_MAX, 1, &r));
    cr_assert_not(pd_checked_mul_u64(1ull << 32, 1ull << 32, &r));
    cr_assert_not(pd_checked_align_u64(UINT64_MAX - 2, 4096, &r));
    cr_assert_eq(r, 1);
    cr_assert(pd_checked_align_u64(4097, 4096, &r) && r == 8192);
    cr_assert(pd_checked_mul_u64(15, 7, &r) && r == 105);
    cr_assert(pd_checked_range(3, 5, 8));
    cr_assert_not(pd_checked_range(3, 6, 8));
    cr_assert_not(pd_checked_range(9, 0, 8));
    cr_assert_not(pd_checked_range(2, UINT64_MAX, 8));
}
