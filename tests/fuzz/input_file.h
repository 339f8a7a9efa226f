/* An input as a file, for readers that want one: written anew for each. */
#ifndef PD_TESTS_FUZZ_INPUT_FILE_H
#define PD_TESTS_FUZZ_INPUT_FILE_H

#include "ckpt/io/vfs.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct input_file {
    struct pd_vfs *vfs;
    char path[64];
};

static inline const struct input_file *input_file(const uint8_t *data, size_t bytes)
{
    static struct input_file input;
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("input", 0);
        if (fd < 0 || pd_vfs_new_threads(4, 1, &input.vfs, NULL)) abort();
        snprintf(input.path, sizeof input.path, "/proc/self/fd/%d", fd);
    }
    if (ftruncate(fd, 0) || pwrite(fd, data, bytes, 0) != (ssize_t)bytes) abort();
    return &input;
}

#endif
