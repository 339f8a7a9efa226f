/* Memory that other processes map through /proc/<pid>/fd. */
#pragma once

/* Creates an empty memory file without a name. Returns a descriptor, or -1 with errno. If memfd_create is denied (a
 * container's seccomp profile), uses a file in /dev/shm or $TMPDIR that nobody can open by name. */
int pd_memory_file(const char *name);
