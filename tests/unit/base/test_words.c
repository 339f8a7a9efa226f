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
