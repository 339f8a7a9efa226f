#include "ckpt/base/backoff.h"

#include <criterion/criterion.h>

Test(backoff, seconds_and_then_minutes)
{
    const uint64_t second = UINT64_C(1000000000);
    cr_assert_eq(pd_backoff_ns(0), 0);
    cr_assert_eq(pd_backoff_ns(1), second);
    cr_assert_eq(pd_backoff_ns(2), 2 * second);
    cr_assert_eq(pd_backoff_ns(7), 64 * second);
    cr_assert_eq(pd_backoff_ns(20), PD_BACKOFF_NS_MAX);
    cr_assert_eq(pd_backoff_ns(UINT32_MAX), PD_BACKOFF_NS_MAX);
}
