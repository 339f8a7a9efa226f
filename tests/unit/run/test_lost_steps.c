#include "trainer/run/recorded.h"

#include "ckpt/base/clock.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char path[] = "/tmp/perdure-lost-XXXXXX";

static void write_text(const char *text)
{
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void set_up(void)
{
    cr_assert_geq(mkstemp(path), 0);
}

static void tear_down(void)
{
    unlink(path);
}

TestSuite(lost_steps, .init = set_up, .fini = tear_down);

static const char lines[] =
    "{\"step\":1,\"time\":100.5}\n{\"step\":2,\"time\":102}\n{\"step\":3,\"time\":104}\n"
    "{\"step\":2,\"time\":110}\n{\"step\":3,\"time\":111}\n{\"step\":4,\"time\":112.25}\n{\"step\":5,\"ti";

Test(lost_steps, lines_beyond_the_step_are_lost)
{
    write_text(lines);
    const struct pd_lost_steps lost = pd_lost_steps(path, 2);
    cr_expect_eq(lost.steps, 2, "the line that is cut off is none");
    cr_expect_eq(lost.seconds, 2.25, "since the step was computed last: %g", lost.seconds);
    cr_expect_lt(fabs(lost.age - ((double)pd_clock_wall_ns(NULL) * 1e-9 - 110)), 60);
}

Test(lost_steps, nothing_is_lost_where_it_goes_on_from_the_last)
{
    write_text(lines);
    const struct pd_lost_steps lost = pd_lost_steps(path, 4);
    cr_expect_eq(lost.steps, 0);
    cr_expect_eq(lost.seconds, 0);
    cr_expect_geq(lost.age, 0);
}

Test(lost_steps, a_step_without_a_line_has_no_age)
{
    write_text(lines);
    cr_expect_lt(pd_lost_steps(path, 7).age, 0, "an import, or metrics of another run.dir");
    cr_expect_eq(pd_lost_steps(path, 7).steps, 0);
    write_text("");
    cr_expect_lt(pd_lost_steps(path, 2).age, 0);
    unlink(path);
    cr_expect_lt(pd_lost_steps(path, 2).age, 0);
}
