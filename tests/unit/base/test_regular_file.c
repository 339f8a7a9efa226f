/* Lines that are appended are whole lines, whatever was there and whatever the disk takes. */
#include "ckpt/base/regular_file.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[] = "/tmp/perdure-lines-XXXXXX";

static int open_with(const char *text)
{
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
    cr_assert_eq(pd_regular_open(path, O_RDWR | O_APPEND, &fd), 0);
    return fd;
}

static void expect_text(const char *expected)
{
    char text[256] = "";
    FILE *f = pd_regular_fopen(path, false);
    cr_assert_not_null(f);
    (void)!fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    cr_assert_str_eq(text, expected);
    unlink(path);
}

Test(regular_file, a_line_begins_behind_one_that_was_cut_off)
{
    const int fd = open_with("one\ntw");
    cr_assert_eq(pd_regular_append(fd, "three\n", 6), 0);
    cr_assert_eq(pd_regular_append(fd, "four\n", 5), 0);
    close(fd);
    expect_text("one\ntw\nthree\nfour\n");
}

Test(regular_file, the_first_line)
{
    const int fd = open_with("");
    cr_assert_eq(pd_regular_append(fd, "one\n", 4), 0);
    close(fd);
    expect_text("one\n");
}

/* As a full disk does. */
Test(regular_file, part_of_a_line_is_taken_back)
{
    const int fd = open_with("one\n");
    struct rlimit limit;
    (void)signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){7, limit.rlim_max}), 0);
    cr_assert_eq(pd_regular_append(fd, "two three\n", 10), ENOSPC);
    cr_assert_eq(pd_regular_append(fd, "two three\n", 10), ENOSPC);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_assert_eq(pd_regular_append(fd, "four\n", 5), 0);
    close(fd);
    expect_text("one\nfour\n");
}

Test(regular_file, pipes_are_refused)
{
    int fd = open_with("");
    close(fd);
    unlink(path);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(pd_regular_open(path, O_RDWR | O_APPEND, &fd), ENXIO);
    unlink(path);
}

Test(regular_file, what_is_there_and_is_none)
{
    const int fd = open_with("");
    cr_assert_not(pd_regular_is_other(path));
    close(fd);
    unlink(path);
    cr_assert_not(pd_regular_is_other(path), "nothing is there");
    cr_assert(pd_regular_is_other("/tmp"));
    cr_assert_null(pd_regular_fopen("/tmp", false));
    cr_assert_eq(errno, EISDIR);
    cr_assert_null(pd_regular_fopen(path, false));
    cr_assert_eq(errno, ENOENT);
}
