/* Finds the control groups of this process: for one controller, its own group and all ancestors, in cgroup versions 1 and
 * 2, wherever they are mounted. If a namespace hides the upper part of a path, the walk ends at the mounted group.
 *   threads  any */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Files to read, for tests. NULL, or a NULL member, means Linux's own file. */
struct pd_cgroup_places {
    const char *self;      /* /proc/self/cgroup */
    const char *mountinfo; /* /proc/self/mountinfo */
};

struct pd_cgroup {
    const char *directory; /* "/sys/fs/cgroup/memory/a/b" */
    const char *name;      /* "/a/b" */
    bool is_v2, is_own;    /* is_own: the process itself is in it */
};

typedef void pd_cgroup_visit(void *context, const struct pd_cgroup *group);
/* Walks up from the process's own group. controller: "memory", "cpu". A version 2 group may lack the controller's files. */
void pd_cgroup_walk(const struct pd_cgroup_places *places, const char *controller, pd_cgroup_visit *visit, void *context);

/* Opens a file of a group; NULL if the group has no such file. */
FILE *pd_cgroup_open(const struct pd_cgroup *group, const char *name);
bool pd_cgroup_number(const struct pd_cgroup *group, const char *name, uint64_t *ret);
/* Returns the value of `wanted` in a file of "key value" lines, or 0 if it is absent. */
uint64_t pd_cgroup_key(FILE *file, const char *wanted);
