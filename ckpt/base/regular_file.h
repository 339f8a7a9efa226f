/* Opening what must be a regular file: a pipe would block whoever opens it, a device would answer forever. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

/* open(2) with close-on-exec and mode 0666. 0, or the errno; ENXIO: not a regular file, EISDIR: a directory. */
int pd_regular_open(const char *path, int flags, int *ret_fd);
/* Appends a line with one write to what was opened with O_RDWR | O_APPEND. Behind a line that was cut off (a full disk, a power
 * loss) it begins a new one; what the disk takes only a part of is taken back. 0, or the errno. */
int pd_regular_append(int fd, const char *line, size_t bytes);
/* To read it, or to append to it, making it where it is absent. NULL with errno set, as above. */
FILE *pd_regular_fopen(const char *path, bool appends);
/* Something is there that a file must not replace: a device, a pipe, a directory. What removes or renames asks this first: for
 * root nothing else protects /dev/null. */
bool pd_regular_is_other(const char *path);
