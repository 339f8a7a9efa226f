#include "ckpt/base/owner.h"

#include <criterion/criterion.h>
#include <signal.h>

Test(owner, one_after_the_other)
{
    struct pd_owner owner = {0};
    pd_owner_acquire(&owner, "saver");
    pd_owner_release(&owner, "saver");
    pd_owner_acquire(&owner, "update");
    pd_owner_release(&owner, "update");
    cr_assert_null(owner.name);
}

Test(owner, two_at_once, .signal = SIGABRT)
{
    struct pd_owner owner = {0};
    pd_owner_acquire(&owner, "saver");
    pd_owner_acquire(&owner, "update");
}

Test(owner, another_one_releases, .signal = SIGABRT)
{
    struct pd_owner owner = {0};
    pd_owner_acquire(&owner, "saver");
    pd_owner_release(&owner, "update");
}

Test(owner, nobody_releases, .signal = SIGABRT)
{
    struct pd_owner owner = {0};
    pd_owner_release(&owner, "saver");
}
