/* Opens only regular files: opening a pipe would block, and reading a device might never end. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

/* open(2) with close-on-exec and mode 0666. Returns 0 or errno; ENXIO: not a regular file, EISDIR: a directory. */
int pd_regular_open(const char *path, int flags, int *ret_fd);
/* Appends a line with one write to a file opened with O_RDWR | O_APPEND. If the last line was cut off (full disk, power
 * loss), starts a new line first; undoes a partial write. Returns 0 or errno. */
int pd_regular_append(int fd, const char *line, size_t bytes);
/* Opens for reading, or for appending (created if absent). Returns NULL and sets errno as above. */
FILE *pd_regular_fopen(const char *path, bool appends);
/* True if `path` is a device, a pipe or a directory, which a file must not replace. Check it before removing or renaming:
 * for root nothing else protects /dev/null. */
bool pd_regular_is_other(const char *path);
