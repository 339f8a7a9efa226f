/* Who owns a directory: one launch at a time. Owner of struct store_lease: lease.c, which opens with the rules. */
#pragma once

#include "ckpt/store/dir.h"

struct store_lease {
    struct store_dir *dir;
    struct pd_lock *lock; /* of the launch; NULL: another rank of it holds it, or the file system has none */
    char token[33];       /* of this launch, random */
    uint64_t fence;       /* 0: not taken */
    bool is_first;        /* nothing of an earlier launch lay here */
};

/* Collective: takes lock and fence, and finds out who shares the directory.
 *   errors  PD_BUSY: another launch holds it, and has not let go within `busy_wait_ms` */
PD_MUST_USE pd_status store_lease_take(struct store_lease *lease, struct store_dir *dir, uint32_t busy_wait_ms,
                                       struct pd_error *err);
/* Leaders of shares; PD_BUSY when a newer launch has been here, PD_IO when the fence is gone. */
PD_MUST_USE pd_status store_lease_check_here(const struct store_lease *lease, struct pd_error *err);
PD_MUST_USE pd_status store_lease_check(const struct store_lease *lease, struct pd_error *err); /* collective */
/* Without the group, which may be broken. `forgets`: the directory ends as it was found, where this launch was the first. */
/* Leaders: nothing was begun under the fence, and it goes again. */
void store_lease_give_back(const struct store_lease *lease);
void store_lease_release(struct store_lease *lease, bool forgets);
