#include "tests/fuzz/input/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAMES_MAX = 8 };

static struct {
    char directory[64];
    const char *const *names; /* (count) */
    uint32_t count;
    int files[NAMES_MAX];
    size_t bytes[NAMES_MAX];
} all;

static void path_of(uint32_t number, char path[256])
{
    snprintf(path, 256, "%s/%s", all.directory, all.names[number]);
}

static void remove_names(void)
{
    char path[256];
    for (uint32_t i = 0; i < all.count; i++) {
        path_of(i, path);
        (void)unlink(path);
    }
    (void)rmdir(all.directory);
}

const char *input_names(const char *const *names, uint32_t count)
{
    char path[256], target[64];
    if (all.count) return all.directory;
    snprintf(all.directory, sizeof all.directory, "/dev/shm/perdure-fuzz-%d", getpid());
    all.names = names;
    all.count = count;
    if (count > NAMES_MAX || mkdir(all.directory, 0700)) abort();
    atexit(remove_names);
    for (uint32_t i = 0; i < count; i++) {
        all.files[i] = memfd_create(names[i], MFD_CLOEXEC);
        snprintf(target, sizeof target, "/proc/self/fd/%d", all.files[i]);
        path_of(i, path);
        if (all.files[i] < 0 || symlink(target, path)) abort();
    }
    return all.directory;
}

void input_name_set(uint32_t number, const void *data, size_t bytes)
{
    if (bytes < all.bytes[number] && ftruncate(all.files[number], (off_t)bytes)) abort();
    if (bytes && pwrite(all.files[number], data, bytes, 0) != (ssize_t)bytes) abort();
    all.bytes[number] = bytes;
}
