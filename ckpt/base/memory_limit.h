/* How much more memory this process may use before the kernel kills something: the minimum over its memory cgroups
 * (version 1 and 2, with ancestors) and the machine. Reclaimable page cache counts as free; tmpfs does not.
 *   threads  any */
#pragma once

#include "ckpt/base/cgroup.h"

struct pd_memory_limit {
    uint64_t free_bytes; /* of the tightest one */
    uint64_t limit_bytes;
    char who[256];         /* the tightest: "memory cgroup /a/b" or "this machine" */
    uint64_t most_bytes;   /* the smallest limit, ignoring current use */
    bool is_most_of_group; /* most_bytes is a cgroup's limit, not the machine's */
    char most_who[256];    /* "memory.max of /sys/fs/cgroup/a/b" or "this machine" */
    uint64_t swap_bytes;   /* swap of the machine that the groups allow, on top of most_bytes */
};

/* Files to read, for tests. NULL, or a NULL member, means Linux's own file. */
struct pd_memory_places {
    struct pd_cgroup_places cgroups;
    const char *meminfo; /* /proc/meminfo */
};

/* False if nothing could be read, so the limit is unknown. */
bool pd_memory_limit_read(const struct pd_memory_places *places, struct pd_memory_limit *ret_limit);
/* Number of processes of this process's own memory cgroup that the kernel has killed at a limit so far. */
uint64_t pd_memory_oom_kills(const struct pd_cgroup_places *places);
