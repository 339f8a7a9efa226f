#include "ckpt/base/owner.h"

#ifdef PERDURE_CHECK_OWNERS

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Noreturn void fail(const char *name, const char *verb, const char *owner)
{
    fprintf(stderr, "perdure: internal error: %s %s a buffer that %s has; please report this\n", name, verb,
            owner ? owner : "nobody");
    abort();
}

void pd_owner_acquire(struct pd_owner *owner, const char *name)
{
    const char *nobody = NULL;
    if (!atomic_compare_exchange_strong(&owner->name, &nobody, name)) fail(name, "acquires", nobody);
}

void pd_owner_release(struct pd_owner *owner, const char *name)
{
    const char *before = atomic_exchange(&owner->name, NULL);
    if (!before || strcmp(before, name) != 0) fail(name, "releases", before);
}

#else
typedef int pd_owner_none;
#endif
