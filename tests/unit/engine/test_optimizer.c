/* The learning rate: warm-up, cosine, floor; the same on every machine. */
#include "trainer/engine/optimizer.h"

#include <criterion/criterion.h>
#include <math.h>

static struct pd_config schedule(void)
{
    struct pd_config c = {0};
    c.run.steps = 1000;
    c.optimizer.lr = 3e-3;
    c.optimizer.min_lr = 3e-4;
    c.optimizer.warmup_steps = 100;
    return c;
}

Test(learning_rate, warms_up_to_the_peak)
{
    struct pd_config c = schedule();
    for (uint64_t i = 0; i < 100; i++)
        cr_assert_float_eq(pd_learning_rate(&c, i), 3e-3 * (double)(i + 1) / 100, 1e-12);
}

Test(learning_rate, follows_the_cosine)
{
    struct pd_config c = schedule();
    for (uint64_t i = 100; i < 1000; i++) {
        double expected = 3e-4 + 0.5 * (3e-3 - 3e-4) * (1 + cos(M_PI * (double)(i - 100) / 900));
        cr_assert_float_eq(pd_learning_rate(&c, i), expected, 1e-15, "update %lu: %.17g, %.17g", i, pd_learning_rate(&c, i),
                           expected);
    }
}

Test(learning_rate, ends_at_the_floor)
{
    struct pd_config c = schedule();
    cr_assert_eq(pd_learning_rate(&c, 1000), 3e-4);
    cr_assert_eq(pd_learning_rate(&c, 100000), 3e-4);
    c.optimizer.decay_steps = 500;
    cr_assert_eq(pd_learning_rate(&c, 500), 3e-4);
    c.optimizer.warmup_steps = 0;
    cr_assert_eq(pd_learning_rate(&c, 0), 3e-3);
}
