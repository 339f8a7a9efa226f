/* An input as a directory of files: records of one byte (which of the target's files), two (how many bytes follow) and those. A
 * file without a record is not there. */
#ifndef PD_TESTS_FUZZ_INPUT_DIRECTORY_H
#define PD_TESTS_FUZZ_INPUT_DIRECTORY_H

#include "ckpt/io/vfs.h"
#include "resharder/torch/zip.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INPUT_STORAGES 12u
#define INPUT_STORAGE_BYTES 16384u
#define INPUT_SIZE_MAX (1u << 22)

enum input_kind {
    INPUT_BYTES,
    INPUT_PICKLE, /* what torch.save makes of a pickle: an archive, with storages 0 to 11 of zeros */
    INPUT_SPARSE, /* four bytes of size, then how the file begins */
};

struct input_part {
    const char *name; /* in the directory, may have directories before it */
    enum input_kind kind;
};

struct input_directory {
    struct pd_vfs *vfs;
    char path[64];
    const struct input_part *parts; /* (count) */
    size_t count;
};

static struct input_directory input_all;

static inline void input_path(size_t part, char path[512])
{
    snprintf(path, 512, "%s/%s", input_all.path, input_all.parts[part].name);
}

/* Makes the directories above `path`, or removes them, as far as they are empty. */
static inline void input_parents(char *path, int (*change)(const char *), bool is_upwards)
{
    const size_t root = strlen(input_all.path);
    if (is_upwards)
        for (char *slash; (slash = strrchr(path, '/')) && slash >= path + root;) {
            *slash = '\0';
            (void)change(path);
        }
    for (char *slash = path + root; !is_upwards && slash && *slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)change(path);
        *slash = '/';
    }
}

static inline int input_make(const char *path)
{
    return mkdir(path, 0700);
}

static inline void input_remove(void)
{
    char path[512];
    for (size_t p = 0; p < input_all.count; p++) {
        input_path(p, path);
        (void)unlink(path);
        input_parents(path, rmdir, true);
    }
    pd_vfs_free(input_all.vfs);
}

static inline void input_begin(const struct input_part *parts, size_t count)
{
    char path[512];
    if (input_all.vfs) return;
    snprintf(input_all.path, sizeof input_all.path, "/dev/shm/perdure-fuzz-%d", getpid());
    input_all.parts = parts;
    input_all.count = count;
    if (pd_vfs_new_threads(4, 1, &input_all.vfs, NULL)) abort();
    for (size_t p = 0; p < count; p++) {
        input_path(p, path);
        input_parents(path, input_make, false);
    }
    atexit(input_remove);
}

static inline void input_put(int fd, const void *data, size_t bytes, uint64_t offset)
{
    if (bytes && pwrite(fd, data, bytes, (off_t)offset) != (ssize_t)bytes) abort();
}

static inline void input_put_pickle(int fd, const uint8_t *data, size_t bytes)
{
    struct pd_zip_record records[2 + INPUT_STORAGES] = {
        {.name = "archive/data.pkl", .bytes = bytes, .crc = pd_zip_crc(0, data, bytes)},
        {.name = "archive/byteorder", .bytes = 6, .crc = pd_zip_crc(0, "little", 6)}};
    const uint32_t count = sizeof records / sizeof records[0];
    unsigned char text[4096];
    for (uint32_t s = 0; s < INPUT_STORAGES; s++) {
        records[2 + s].bytes = INPUT_STORAGE_BYTES;
        snprintf(records[2 + s].name, sizeof records[2 + s].name, "archive/data/%u", s);
    }
    const uint64_t all = pd_zip_place(records, count), directory = pd_zip_directory_bytes(records, count);
    for (uint32_t r = 0; r < count; r++) {
        const uint64_t header = pd_zip_header(&records[r], text);
        input_put(fd, text, header, records[r].header_offset);
    }
    input_put(fd, data, bytes, records[0].data_offset);
    input_put(fd, "little", 6, records[1].data_offset);
    if (directory > sizeof text) abort();
    pd_zip_directory(records, count, text);
    input_put(fd, text, directory, all - directory);
}

static inline void input_put_sparse(int fd, const uint8_t *data, size_t bytes)
{
    uint32_t size = 0;
    if (bytes < sizeof size) return;
    memcpy(&size, data, sizeof size);
    input_put(fd, data + sizeof size, bytes - sizeof size, 0);
    if (size > bytes && ftruncate(fd, size % INPUT_SIZE_MAX)) abort();
}

/* Writes what the input says into a directory on tmpfs, which goes away with the process. */
static inline const struct input_directory *input_directory(const uint8_t *data, size_t bytes,
                                                            const struct input_part *parts, size_t count)
{
    char path[512];
    input_begin(parts, count);
    for (size_t p = 0; p < count; p++) {
        input_path(p, path);
        (void)unlink(path);
    }
    while (bytes >= 3) {
        const size_t part = data[0] % count, wanted = data[1] | (size_t)data[2] << 8,
                     there = wanted < bytes - 3 ? wanted : bytes - 3;
        input_path(part, path);
        const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0) abort();
        if (parts[part].kind == INPUT_PICKLE) input_put_pickle(fd, data + 3, there);
        if (parts[part].kind == INPUT_SPARSE) input_put_sparse(fd, data + 3, there);
        if (parts[part].kind == INPUT_BYTES) input_put(fd, data + 3, there, 0);
        close(fd);
        data += 3 + there;
        bytes -= 3 + there;
    }
    return &input_all;
}

#endif
