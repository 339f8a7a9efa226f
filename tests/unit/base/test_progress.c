#include "ckpt/base/progress.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

static void expect(const char *text, enum pd_progress_kind kind, double seconds)
{
    setenv("PERDURE_PROGRESS", text, 1);
    const struct pd_progress_mode mode = pd_progress_mode();
    cr_expect_eq(mode.kind, kind, "%s", text);
    cr_expect_eq(mode.line_seconds, seconds, "%s", text);
}

Test(progress, environment_says_how)
{
    expect("bar", PD_PROGRESS_BAR, 10);
    expect("off", PD_PROGRESS_OFF, 10);
    expect("line", PD_PROGRESS_LINE, 10);
    expect("line:60", PD_PROGRESS_LINE, 60);
    expect("line:0", PD_PROGRESS_LINE, 0);
    expect("line:x", PD_PROGRESS_LINE, 10);
    expect("line:-1", PD_PROGRESS_LINE, 10);
}

/* Takes the place of stderr. */
static void with_stderr(int fd, const char *columns, unsigned expected)
{
    const int before = dup(STDERR_FILENO);
    columns ? setenv("COLUMNS", columns, 1) : unsetenv("COLUMNS");
    dup2(fd, STDERR_FILENO);
    const unsigned found = pd_progress_columns();
    dup2(before, STDERR_FILENO);
    close(before);
    cr_expect_eq(found, expected, "COLUMNS=%s: %u", columns ? columns : "", found);
}

Test(progress, columns_of_the_terminal_or_of_the_environment)
{
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY), nothing = open("/dev/null", O_WRONLY);
    cr_assert(terminal >= 0 && nothing >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    cr_assert_eq(ioctl(terminal, TIOCSWINSZ, &(struct winsize){.ws_row = 9, .ws_col = 33}), 0);
    with_stderr(terminal, "120", 33);
    cr_assert_eq(ioctl(terminal, TIOCSWINSZ, &(struct winsize){.ws_row = 9}), 0);
    with_stderr(terminal, "120", 120);
    with_stderr(nothing, "120", 120);
    with_stderr(nothing, NULL, 80);
    with_stderr(nothing, "wide", 80);
    with_stderr(nothing, "100001", 80);
    with_stderr(nothing, "3", 20);
}

Test(progress, a_bar_is_for_a_terminal)
{
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY), before = dup(STDERR_FILENO);
    cr_assert(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    const int end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    cr_assert(end >= 0);
    unsetenv("PERDURE_PROGRESS");
    dup2(end, STDERR_FILENO);
    const enum pd_progress_kind kind = pd_progress_mode().kind;
    const char *clear = pd_progress_clear();
    dup2(before, STDERR_FILENO);
    cr_expect_eq(kind, PD_PROGRESS_BAR);
    cr_expect_str_eq(clear, PD_PROGRESS_CLEAR);
    setenv("PERDURE_PROGRESS", "line", 1);
    cr_expect_str_eq(pd_progress_clear(), "");
}
