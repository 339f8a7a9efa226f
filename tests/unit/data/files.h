/* Files for the tests of data: a directory of its own a test, removed at its end. */
#pragma once

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char test_dir[] = "/tmp/pd-data-XXXXXX";
static char test_paths[64][256];
static unsigned test_path_next;

static inline void test_dir_make(void)
{
    cr_assert_not_null(mkdtemp(test_dir));
}

static inline void test_dir_remove(void)
{
    DIR *dir = opendir(test_dir);
    for (struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir)) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", test_dir, entry->d_name);
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && unlink(path)) rmdir(path);
    }
    if (dir) closedir(dir);
    rmdir(test_dir);
}

/* Good until 64 more are asked for. */
static inline char *test_path(const char *name)
{
    char *path = test_paths[test_path_next++ % 64];
    snprintf(path, sizeof test_paths[0], "%s/%s", test_dir, name);
    return path;
}

static inline char *test_write(const char *name, const void *data, size_t bytes)
{
    char *path = test_path(name);
    FILE *stream = fopen(path, "wb");
    cr_assert_not_null(stream);
    cr_assert_eq(fwrite(data, 1, bytes, stream), bytes);
    cr_assert_eq(fclose(stream), 0);
    return path;
}

/* Overwrites bytes of a file that is there. */
static inline void test_patch(const char *path, size_t offset, const void *data, size_t bytes)
{
    FILE *stream = fopen(path, "r+b");
    cr_assert_not_null(stream);
    cr_assert_eq(fseek(stream, (long)offset, SEEK_SET), 0);
    cr_assert_eq(fwrite(data, 1, bytes, stream), bytes);
    cr_assert_eq(fclose(stream), 0);
}

/* u16 tokens base, base + 1, ..., modulo `modulo` */
static inline char *test_write_u16(const char *name, uint32_t count, uint32_t base, uint32_t modulo)
{
    uint16_t *tokens = malloc(count * sizeof *tokens);
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = (uint16_t)((base + i) % modulo);
    char *path = test_write(name, tokens, count * sizeof *tokens);
    free(tokens);
    return path;
}
