/* Memory that other processes map through /proc/<pid>/fd. */
#pragma once

/* A descriptor of an empty file in memory without a name, or -1 with errno. Where memfd_create is denied (a container's
 * seccomp profile), a file of /dev/shm or of $TMPDIR that nobody can open by name. */
int pd_memory_file(const char *name);
