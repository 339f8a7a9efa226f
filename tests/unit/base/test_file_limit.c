#include "ckpt/base/file_limit.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/resource.h>

Test(file_limit, a_file_that_may_not_grow_so_far_is_named_before_it_is_written)
{
    struct pd_error err = {0};
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 20, limit.rlim_max}), 0);
    const pd_status small = pd_file_limit_check("a checkpoint", 1 << 20, &err),
                    large = pd_file_limit_check("a checkpoint", 3 << 20, &err);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_expect_eq(small, PD_OK);
    cr_expect_eq(large, PD_UNSUPPORTED);
    cr_expect(strstr(err.message, "a checkpoint needs a file of 3.00 MiB") && strstr(err.message, "1.00 MiB"), "%s",
              err.message);
}
