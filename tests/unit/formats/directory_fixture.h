/* A directory of a test's own, and a VFS to read it with. */
#pragma once

#include "ckpt/io/vfs.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct pd_error err;
static struct pd_vfs *vfs;
static char dir[64];

static void setup(void)
{
    snprintf(dir, sizeof dir, "/tmp/test_formats.XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
}

static void teardown(void)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    cr_assert_eq(system(command), 0);
    pd_vfs_free(vfs);
}
