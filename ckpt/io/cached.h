#pragma once

#include "ckpt/io/vfs.h"

/* Whether half of the range or more is in the page cache; also true if that is unknown: before Linux 6.5, and of a file
 * that is not on a disk.   threads: any */
bool pd_file_is_cached(const struct pd_file *file, uint64_t offset, uint64_t bytes);
