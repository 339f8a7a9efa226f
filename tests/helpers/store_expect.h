/* Of tests of the store: a status that is not the expected one fails with its message, and the log has errors alone. */
#pragma once

#include "ckpt/base/log.h"

#include <criterion/criterion.h>

static inline void expect(pd_status found, pd_status expected, const struct pd_error *err)
{
    cr_assert_eq(found, expected, "%s (expected %s): %s", pd_status_name(found), pd_status_name(expected), err->message);
}

static inline void set_up(void)
{
    struct pd_error err = {0};
    expect(pd_log_configure("error", &err), PD_OK, &err);
}
