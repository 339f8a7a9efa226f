/* How much more memory this process may take before something is killed: the tightest of the memory cgroups it is in
 * (version 1 and 2, with their ancestors) and the machine. Page cache that can be given back counts as free; tmpfs does not.
 *   threads  any */
#pragma once

#include "ckpt/base/cgroup.h"

struct pd_memory_limit {
    uint64_t free_bytes; /* of the one that has least */
    uint64_t limit_bytes;
    char who[256];         /* "memory cgroup /a/b" or "this machine" */
    uint64_t most_bytes;   /* the smallest limit, whatever is free */
    bool is_most_of_group; /* a cgroup's, not the machine's */
    char most_who[256];    /* "memory.max of /sys/fs/cgroup/a/b" or "this machine" */
    uint64_t swap_bytes;   /* that the machine has, and groups allow, beside most_bytes */
};

/* Where things lie; NULL or a member NULL: where Linux has them. */
struct pd_memory_places {
    struct pd_cgroup_places cgroups;
    const char *meminfo; /* /proc/meminfo */
};

/* False: nothing can be read, so nothing is known. */
bool pd_memory_limit_read(const struct pd_memory_places *places, struct pd_memory_limit *ret_limit);
/* Processes of this process's own memory cgroup that the kernel has killed at a limit, so far. */
uint64_t pd_memory_oom_kills(const struct pd_cgroup_places *places);
