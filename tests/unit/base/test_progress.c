#include "ckpt/base/progress.h"

#include <criterion/criterion.h>
#include <stdlib.h>

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
