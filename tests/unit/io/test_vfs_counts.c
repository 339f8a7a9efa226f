/* Every byte and every flush is counted once, whichever way it takes through a VFS. */
#include "tests/simulated_disk/simulated_disk.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(expression)                                                             \
    do {                                                                           \
        struct pd_error ok_err_ = {0}, *err = &ok_err_;                            \
        cr_assert_eq((expression), PD_OK, "%s: %s", #expression, ok_err_.message); \
    } while (0)

enum { BLOCK = 8192, BLOCKS = 3 };
static _Alignas(PD_VFS_ALIGN) char data[BLOCK * BLOCKS];

static void write_queued(struct pd_vfs *vfs, struct pd_file *file)
{
    struct pd_queue *queue;
    struct pd_transfer transfers[BLOCKS], *list[BLOCKS], *done[BLOCKS];
    uint32_t finished = 0;
    OK(pd_queue_open(vfs, data, sizeof data, &queue, err));
    for (int i = 0; i < BLOCKS; i++) {
        transfers[i] = (struct pd_transfer){.file = file,
                                            .data = data + i * BLOCK,
                                            .offset = (uint64_t)i * BLOCK,
                                            .bytes = BLOCK,
                                            .is_write = i < BLOCKS - 1};
        list[i] = &transfers[i];
    }
    OK(pd_queue_submit(queue, list, BLOCKS, err));
    for (uint32_t count; finished < BLOCKS; finished += count)
        OK(pd_queue_reap(queue, done, BLOCKS, &count, err));
    pd_queue_close(queue);
}

/* Room for the whole file first, so that the read of the last block finds it. */
static void exercise(struct pd_vfs *vfs, const char *directory)
{
    char path[128];
    struct pd_file *file;
    snprintf(path, sizeof path, "%s/f", directory);
    OK(pd_file_open(vfs, path, PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    OK(pd_file_write(file, 0, data, sizeof data, err));
    const struct pd_vfs_counts now = pd_vfs_counts(vfs);
    cr_assert_eq(now.bytes_written, sizeof data);
    cr_assert_eq(now.flushes, 0);
    write_queued(vfs, file);
    cr_assert_eq(pd_vfs_counts(vfs).bytes_written, sizeof data + (BLOCKS - 1) * BLOCK, "reads are none");
    OK(pd_file_sync(file, err));
    OK(pd_vfs_sync_dir(vfs, directory, err));
    cr_assert_eq(pd_vfs_counts(vfs).flushes, 2);
    OK(pd_file_close(file, err));
    OK(pd_vfs_unlink(vfs, path, err));
}

Test(vfs_counts, once_on_every_vfs)
{
    char directory[] = "/tmp/perdure-counts-XXXXXX";
    cr_assert_not_null(mkdtemp(directory));
    struct pd_vfs *vfss[2];
    OK(pd_vfs_new_uring(4, &vfss[0], err)); /* comes down to threads where it is forbidden */
    OK(pd_vfs_new_threads(4, 2, &vfss[1], err));
    for (int i = 0; i < 2; i++) {
        exercise(vfss[i], directory);
        pd_vfs_free(vfss[i]);
    }
    rmdir(directory);
    struct pd_simulated_disk *disk;
    struct pd_vfs *simulated;
    OK(pd_simulated_disk_new(&(struct pd_disk_options){.seed = 1}, &disk, err));
    OK(pd_simulated_disk_vfs(disk, 0, &simulated, err));
    exercise(simulated, "/");
    pd_vfs_free(simulated);
    pd_simulated_disk_free(disk);
}
