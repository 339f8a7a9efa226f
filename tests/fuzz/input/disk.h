/* Files of an input in memory, behind a VFS: reading them costs no system call.
 *
 * Names are absolute. A directory is there where a name goes on behind it, whether that file is there or not. Nothing can be
 * written. Queues move their transfers when they are reaped, in the caller's thread. */
#pragma once

#include "ckpt/io/vfs.h"

#define INPUT_EXTENTS_MAX 4u

struct input_file {
    const char *name;
    bool is_there;
    uint64_t bytes; /* what no extent holds is zeros */
    struct input_extent {
        uint64_t offset, bytes;
        const void *data;
    } extents[INPUT_EXTENTS_MAX]; /* (extent_count), apart, inside the file */
    uint32_t extent_count;
};

/* files (count): borrowed for good; the target changes them between executions. One disk a process. */
struct pd_vfs *input_disk(struct input_file *files, uint32_t count);
/* A disk of one file that is `data` (bytes), borrowed. */
#define INPUT_PATH "/input"
struct pd_vfs *input_disk_of(const void *data, uint64_t bytes);
