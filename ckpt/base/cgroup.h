/* The control groups of this process: for one controller, its own group and every one above, of versions 1 and 2 and wherever
 * they are mounted. Where namespaces hide the upper part of a path, the group that is mounted is the last.
 *   threads  any */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Where things lie; NULL or a member NULL: where Linux has them. */
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
/* From the process's own group upwards. controller: "memory", "cpu". A group of version 2 may lack its files. */
void pd_cgroup_walk(const struct pd_cgroup_places *places, const char *controller, pd_cgroup_visit *visit, void *context);

/* A file of a group; NULL: it has none. */
FILE *pd_cgroup_open(const struct pd_cgroup *group, const char *name);
bool pd_cgroup_number(const struct pd_cgroup *group, const char *name, uint64_t *ret);
/* Of a file of "key value" lines; absent: 0. */
uint64_t pd_cgroup_key(FILE *file, const char *wanted);
