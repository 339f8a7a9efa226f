/* Lets one launch at a time own a directory. lease.c owns struct store_lease and opens with the rules. */
#pragma once

#include "ckpt/store/dir.h"

struct store_lease {
    struct store_dir *dir;
    struct pd_lock *lock; /* of the launch; NULL: another of its ranks holds it, or the file system has no locks */
    char token[33];       /* of this launch, random */
    uint64_t fence;       /* 0: not taken */
    bool is_first;        /* no earlier launch left anything here */
};

/* Collective: takes lock and fence, and finds out who shares the directory.
 *   errors  PD_BUSY: another launch holds it, and did not release it within `busy_wait_ms` */
PD_MUST_USE pd_status store_lease_take(struct store_lease *lease, struct store_dir *dir, uint32_t busy_wait_ms,
                                       struct pd_error *err);
/* Leaders of shares. PD_BUSY: a newer launch has been here; PD_IO: the fence is gone. */
PD_MUST_USE pd_status store_lease_check_here(const struct store_lease *lease, struct pd_error *err);
PD_MUST_USE pd_status store_lease_check(const struct store_lease *lease, struct pd_error *err); /* collective */
/* Leaders: removes the fence, if nothing was begun under it. */
void store_lease_give_back(const struct store_lease *lease);
/* Works without the group, which may be broken. `forgets`: restores the directory if this launch was its first. */
void store_lease_release(struct store_lease *lease, bool forgets);
