#include "ckpt/base/pretended_host.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static void pretend(const char *all, const char *own)
{
    all ? setenv("PERDURE_TEST_HOSTS", all, 1) : unsetenv("PERDURE_TEST_HOSTS");
    own ? setenv("PERDURE_TEST_HOST", own, 1) : unsetenv("PERDURE_TEST_HOST");
}

static void expect(uint32_t rank, uint32_t size, const char *host)
{
    char name[64] = "?";
    cr_expect(pd_pretended_host(rank, size, name));
    cr_expect_str_eq(name, host, "rank %u of %u: %s", rank, size, name);
}

Test(pretended_host, who_is_where)
{
    pretend(NULL, NULL);
    expect(1, 2, "");
    pretend("", "");
    expect(1, 2, "");
    pretend("2", NULL);
    expect(0, 4, "0");
    expect(1, 4, "0");
    expect(2, 4, "1");
    expect(2, 3, "1");
    pretend("a,b,a", NULL);
    expect(1, 9, "b");
    expect(2, 9, "a");
    expect(4, 9, "b"); /* and again from the first one on */
    pretend("a,b,a", "mine");
    expect(1, 9, "mine");
}

Test(pretended_host, what_cannot_be_is_refused)
{
    static const char *const bad[] = {"0", "3", "x", "-1"};
    char name[64];
    for (int i = 0; i < 4; i++) {
        pretend(bad[i], NULL);
        cr_expect(!pd_pretended_host(0, 2, name), "%s", bad[i]);
    }
}
