#include "tools/bench/room.h"

#include "ckpt/base/clock.h"
#include "tools/output.h"
#include "trainer/run/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define DEPTH_MAX 16 /* of directories in each other */

static pd_status check_space(struct pd_vfs *vfs, const char *dir, uint64_t bytes, bool on_disk, struct pd_error *err)
{
    struct pd_space space;
    struct stat st;
    if (stat(dir, &st) || !S_ISDIR(st.st_mode))
        PD_FAIL(err, PD_NOT_FOUND, "--dir=%s: there is no such directory; name one on the disk to be measured", dir);
    PD_TRY(pd_vfs_space(vfs, dir, &space, err));
    if (space.in_memory && on_disk)
        PD_FAIL(err, PD_INVALID, "%s is in memory (%s) and says nothing about a disk: give a directory on one with --dir",
                dir, space.type_name);
    if (space.available_bytes < bytes)
        PD_FAIL(err, PD_NO_SPACE, "%s has %s free and the bench needs %s: give another with --dir, or less with --bytes",
                dir, pd_text_bytes(space.available_bytes).text, pd_text_bytes(bytes).text);
    return PD_OK;
}

pd_status pd_bench_room_open(const char *dir, uint64_t bytes, bool on_disk, struct pd_bench_room *ret_room,
                             struct pd_error *err)
{
    struct pd_bench_room room = {0};
    int length = snprintf(room.path, sizeof room.path, "%s/perdure-bench-XXXXXX", dir);
    if (length < 0 || (size_t)length >= sizeof room.path) PD_FAIL(err, PD_INVALID, "--dir: the path is too long");
    PD_TRY(pd_signals_install(err));
    PD_TRY(pd_vfs_new_auto(&room.vfs, err));
    pd_status st = check_space(room.vfs, dir, bytes, on_disk, err);
    if (!st && !mkdtemp(room.path)) {
        int number = errno;
        st = pd_error_set(err, pd_status_from_errno(number), PD_WHERE, number, "%s: making a directory for the bench", dir);
    }
    if (st) {
        pd_vfs_free(room.vfs);
        return st;
    }
    *ret_room = room;
    return PD_OK;
}

void pd_bench_room_path(const struct pd_bench_room *room, const char *name, char *ret_path)
{
    int length = snprintf(ret_path, 4096, "%s/%s", room->path, name);
    PD_CHECK(length > 0 && length < 4096);
}

pd_status pd_bench_room_remove(const struct pd_bench_room *room, const char *name, struct pd_error *err)
{
    char path[4096];
    pd_bench_room_path(room, name, path);
    struct pd_stat stat;
    pd_status st = pd_vfs_stat(room->vfs, path, &stat, err);
    if (st) return st == PD_NOT_FOUND ? PD_OK : st;
    return stat.type == PD_ENTRY_DIRECTORY ? pd_vfs_remove_tree(room->vfs, path, DEPTH_MAX, err)
                                           : pd_vfs_unlink(room->vfs, path, err);
}

void pd_bench_room_close(struct pd_bench_room *room)
{
    struct pd_error err;
    if (!room->vfs) return;
    if (pd_vfs_remove_tree(room->vfs, room->path, DEPTH_MAX, &err))
        fprintf(stderr, "perdure: %s stays behind: %s\n", room->path, err.message);
    pd_vfs_free(room->vfs);
}

#define DISCARDS_QUIET_NS UINT64_C(200000000)
#define DISCARDS_WAIT_NS UINT64_C(20000000000)

/* Discards that the disk has done so far; false: nothing says. */
static bool count_discards(dev_t disk, uint64_t *ret_count)
{
    char path[64];
    unsigned long long fields[12];
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u/stat", major(disk), minor(disk));
    FILE *file = fopen(path, "re");
    if (!file) return false;
    int found = 0;
    while (found < 12 && fscanf(file, "%llu", &fields[found]) == 1)
        found++;
    fclose(file);
    if (found < 12) return false;
    *ret_count = fields[11];
    return true;
}

/* A file system that is mounted with `discard` says what was removed to the disk after its commit, in the background. Whoever
 * is measured meanwhile waits behind it. */
static void wait_for_discards(const struct pd_bench_room *room)
{
    struct stat st;
    uint64_t before, now;
    if (stat(room->path, &st) || !count_discards(st.st_dev, &before)) return;
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    for (uint64_t changed = start; pd_clock_monotonic_ns(NULL) - start < DISCARDS_WAIT_NS; before = now) {
        usleep(10000);
        if (!count_discards(st.st_dev, &now)) return;
        if (now != before) changed = pd_clock_monotonic_ns(NULL);
        if (pd_clock_monotonic_ns(NULL) - changed > DISCARDS_QUIET_NS) return;
    }
}

bool pd_bench_should_leave(void)
{
    return pd_signals_pending() != PD_SIGNAL_NONE;
}

pd_status pd_bench_room_settle(const struct pd_bench_room *room, struct pd_error *err)
{
    if (pd_bench_should_leave()) PD_FAIL(err, PD_STOPPED, "bench: asked to leave, its files are removed");
    int fd = open(room->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) PD_FAIL_ERRNO(err, errno, "%s: opening", room->path);
    int failed = syncfs(fd) ? errno : 0;
    close(fd);
    if (failed) PD_FAIL_ERRNO(err, failed, "%s: waiting for the file system", room->path);
    wait_for_discards(room);
    return PD_OK;
}
