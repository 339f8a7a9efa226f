/* How much more memory this process may take before something is killed: the tightest of the memory cgroups it is in
 * (version 1 and 2, with their ancestors) and the machine. Page cache that can be given back counts as free; tmpfs does not.
 *   threads  any */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pd_memory_limit {
    uint64_t free_bytes;
    uint64_t limit_bytes;
    char who[256]; /* "memory cgroup /a/b" or "this machine" */
};

/* Where things lie; NULL or a member NULL: where Linux has them. */
struct pd_memory_places {
    const char *cgroup_of_self; /* /proc/self/cgroup */
    const char *cgroup_root;    /* /sys/fs/cgroup */
    const char *meminfo;        /* /proc/meminfo */
};

/* False: nothing can be read, so nothing is known. */
bool pd_memory_limit_read(const struct pd_memory_places *places, struct pd_memory_limit *ret_limit);
