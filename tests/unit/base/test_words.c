#include "ckpt/base/words.h"

#include <criterion/criterion.h>

Test(words, one_is_no_plural)
{
    cr_expect_str_eq(pd_counted(1, "rank").text, "1 rank");
    cr_expect_str_eq(pd_counted(0, "rank").text, "0 ranks");
    cr_expect_str_eq(pd_counted(2, "rank").text, "2 ranks");
    cr_expect_str_eq(pd_counted(1, "micro-batch").text, "1 micro-batch");
    cr_expect_str_eq(pd_counted(8, "micro-batch").text, "8 micro-batches");
    cr_expect_str_eq(pd_counted(UINT64_MAX, "smaller group").text, "18446744073709551615 smaller groups");
}

Test(words, bytes_have_a_unit_and_a_few_digits)
{
    static const struct {
        double bytes;
        const char *text;
    } rows[] = {{0, "0 B"},
                {1023, "1023 B"},
                {1024, "1.00 KiB"},
                {10240, "10.0 KiB"},
                {1536.0 * 1024, "1.50 MiB"},
                {0x1p60, "1.00 EiB"},
                {0x1p70 * 5, "5120.0 EiB"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect_str_eq(pd_bytes_text(rows[i].bytes).text, rows[i].text);
}
