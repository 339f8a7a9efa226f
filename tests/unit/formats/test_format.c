#include "resharder/formats/format.h"

#include <criterion/criterion.h>
#include <string.h>

static struct pd_error err;

Test(format, an_unknown_path_is_refused_by_name)
{
    struct pd_vfs *vfs = NULL;
    const struct pd_format *format = NULL;
    cr_assert_eq(pd_vfs_new_threads(1, 1, &vfs, &err), PD_OK);
    cr_assert_eq(pd_format_of(vfs, "/proc/self/absent", &format, &err), PD_NOT_FOUND);
    cr_assert_eq(pd_format_of(vfs, "/proc/self/status", &format, &err), PD_INVALID);
    cr_assert_not_null(strstr(err.message, "/proc/self/status is a file in no format"), "%s", err.message);
    cr_assert_null(pd_format_find("nothing"));
    pd_vfs_free(vfs);
}
