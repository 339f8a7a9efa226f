/* Every call into the system of what moves bytes to a real disk, with io_uring and with threads, fails once, and from then on. */
#include "ckpt/base/log.h"
#include "ckpt/base/regular_file.h"
#include "tests/helpers/failing_sweep.h"
#include "tools/bench/raw_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BYTES = 40960, BLOCK = 4096, DEPTH = 4 };

struct kind {
    pd_status (*open)(struct pd_vfs **ret_vfs, struct pd_error *err);
};

/* Each try has a directory of its own in `root`. */
struct work {
    const struct kind *kind;
    char root[64];
    uint32_t tries;
    char *data, *read; /* (BYTES) */
};

struct path {
    char text[128];
};

static struct path at(const struct work *w, const char *name)
{
    struct path p;
    snprintf(p.text, sizeof p.text, "%s/try-%u%s%s", w->root, w->tries, *name ? "/" : "", name);
    return p;
}

static pd_status open_uring(struct pd_vfs **ret_vfs, struct pd_error *err)
{
    return pd_vfs_new_uring(DEPTH, ret_vfs, err);
}

static pd_status open_threads(struct pd_vfs **ret_vfs, struct pd_error *err)
{
    return pd_vfs_new_threads(DEPTH, 2, ret_vfs, err);
}

static const struct kind uring = {open_uring}, threads = {open_threads};

static void swallow(void *context, const char *line, size_t bytes)
{
    (void)context, (void)line, (void)bytes;
}

static void *set_up(const void *context)
{
    struct work *w = calloc(1, sizeof *w);
    *w = (struct work){.kind = context, .root = "/dev/shm/perdure-nth-XXXXXX"};
    cr_assert_not_null(mkdtemp(w->root));
    w->data = aligned_alloc(PD_VFS_ALIGN, BYTES);
    w->read = aligned_alloc(PD_VFS_ALIGN, BYTES);
    for (int i = 0; i < BYTES; i++)
        w->data[i] = (char)(i * 7 + i / BLOCK);
    pd_log_set_sink(swallow, NULL);
    cr_assert_eq(pd_log_configure("info", NULL), PD_OK);
    return w;
}

static void tear_down(void *state)
{
    struct work *w = state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", w->root);
    cr_assert_eq(system(command), 0);
    free(w->data);
    free(w->read);
    free(w);
}

/* ---- what is tried ---- */

static pd_status write_file(const struct work *w, struct pd_vfs *vfs, struct pd_error *err)
{
    struct pd_file *file = NULL;
    struct pd_stat stat;
    PD_TRY(pd_file_open(vfs, at(w, "file").text,
                        PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_EXCLUSIVE | PD_OPEN_DIRECT, &file, err));
    pd_status st = pd_file_preallocate(file, 2 * BYTES, err);
    if (!st) st = pd_file_write(file, 0, w->data, BYTES, err);
    if (!st) st = pd_file_truncate(file, BYTES, err);
    if (!st) st = pd_file_stat(file, &stat, err);
    if (!st && stat.bytes != BYTES) st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "it has %lu bytes", stat.bytes);
    if (!st) st = pd_file_sync(file, err);
    const pd_status closed = pd_file_close(file, st ? NULL : err);
    return st ? st : closed;
}

static pd_status expect_file(const struct work *w, struct pd_vfs *vfs, const char *name, struct pd_error *err)
{
    struct pd_file *file = NULL;
    PD_TRY(pd_file_open(vfs, at(w, name).text, PD_OPEN_READ, &file, err));
    memset(w->read, 0, BYTES);
    const pd_status st = pd_file_read(file, 0, w->read, BYTES, err);
    pd_file_close_readonly(file);
    PD_TRY(st);
    if (memcmp(w->read, w->data, BYTES) != 0) PD_FAIL(err, PD_BUG, "%s has other bytes", name);
    return PD_OK;
}

static pd_status name_it(const struct work *w, struct pd_vfs *vfs, struct pd_error *err)
{
    const struct path file = at(w, "file"), other = at(w, "other"), symbolic = at(w, "symbolic");
    char target[4096];
    struct pd_space space;
    PD_TRY(pd_vfs_link(vfs, file.text, other.text, err));
    PD_TRY(pd_vfs_rename(vfs, other.text, at(w, "renamed").text, err));
    if (symlink("renamed", symbolic.text) != 0) PD_FAIL_ERRNO(err, errno, "a symbolic link");
    PD_TRY(pd_vfs_readlink(vfs, symbolic.text, target, err));
    if (strcmp(target, "renamed") != 0) PD_FAIL(err, PD_BUG, "the link says %s", target);
    PD_TRY(pd_vfs_unlink(vfs, file.text, err));
    PD_TRY(pd_vfs_mkdir(vfs, at(w, "within").text, err));
    PD_TRY(pd_vfs_rmdir(vfs, at(w, "within").text, err));
    PD_TRY(pd_vfs_space(vfs, w->root, &space, err));
    return pd_vfs_sync_dir(vfs, at(w, "").text, err);
}

static pd_status expect_names(const struct work *w, struct pd_vfs *vfs, uint32_t count, struct pd_error *err)
{
    struct pd_listing listing = {0};
    PD_TRY(pd_vfs_list(vfs, at(w, "").text, &listing, err));
    const bool all = listing.count == count;
    pd_listing_deinit(&listing);
    if (!all) PD_FAIL(err, PD_BUG, "not %u names", count);
    return PD_OK;
}

static pd_status lock_it(const struct work *w, struct pd_vfs *vfs, struct pd_error *err)
{
    struct pd_lock *lock = NULL, *second = NULL;
    PD_TRY(pd_vfs_lock(vfs, at(w, "lock").text, &lock, err));
    const pd_status st = pd_vfs_lock(vfs, at(w, "lock").text, &second, err);
    if (!st) pd_vfs_unlock(second);
    pd_vfs_unlock(lock);
    if (st == PD_OK) PD_FAIL(err, PD_BUG, "two have the lock");
    return st == PD_BUSY ? PD_OK : st;
}

static pd_status append_lines(const struct work *w, struct pd_error *err)
{
    const struct path path = at(w, "lines");
    int fd = -1, number = pd_regular_open(path.text, O_RDWR | O_APPEND | O_CREAT, &fd);
    if (number) PD_FAIL_ERRNO(err, number, "opening lines");
    for (int i = 0; !number && i < 2; i++)
        number = pd_regular_append(fd, "a line\n", 7);
    close(fd);
    if (number) PD_FAIL_ERRNO(err, number, "appending a line");
    char text[32] = "";
    FILE *f = pd_regular_fopen(path.text, false);
    if (!f) PD_FAIL_ERRNO(err, errno, "reading lines");
    const size_t length = fread(text, 1, sizeof text, f);
    (void)fclose(f);
    if (length != 14 || memcmp(text, "a line\na line\n", 14) != 0) PD_FAIL(err, PD_BUG, "other lines");
    return PD_OK;
}

/* Many transfers at once. */
static pd_status move_much(const struct work *w, struct pd_raw_bench *bench, struct pd_error *err)
{
    const struct path one = at(w, "one"), two = at(w, "two");
    double seconds;
    PD_TRY(pd_raw_bench_write(bench, one.text, BYTES, PD_RAW_FRESH, &seconds, err));
    PD_TRY(pd_raw_bench_write(bench, one.text, BYTES, PD_RAW_RECYCLED, &seconds, err));
    PD_TRY(pd_raw_bench_read(bench, one.text, BYTES, &seconds, err));
    PD_TRY(pd_raw_bench_mixed(bench, one.text, two.text, BYTES, &seconds, err));
    return pd_raw_bench_write(bench, at(w, "three").text, BYTES, PD_RAW_RECYCLED, &seconds, err);
}

static pd_status with_vfs(const struct work *w, struct pd_vfs *vfs, struct pd_error *err)
{
    struct pd_raw_bench *bench = NULL;
    PD_TRY(pd_vfs_mkdir(vfs, at(w, "").text, err));
    PD_TRY(write_file(w, vfs, err));
    PD_TRY(expect_file(w, vfs, "file", err));
    PD_TRY(name_it(w, vfs, err));
    PD_TRY(expect_file(w, vfs, "renamed", err));
    PD_TRY(expect_names(w, vfs, 2, err));
    PD_TRY(lock_it(w, vfs, err));
    PD_TRY(append_lines(w, err));
    PD_TRY(pd_raw_bench_new(vfs, BLOCK, DEPTH, &bench, err));
    const pd_status st = move_much(w, bench, err);
    pd_raw_bench_free(bench);
    PD_TRY(st);
    return expect_names(w, vfs, 7, err);
}

static pd_status act(void *state, struct pd_error *err)
{
    struct work *w = state;
    struct pd_vfs *vfs = NULL;
    w->tries++;
    PD_TRY(w->kind->open(&vfs, err));
    const pd_status st = with_vfs(w, vfs, err);
    pd_vfs_free(vfs);
    return st;
}

#define EACH(kind)                                                                                      \
    Test(nth_io, kind)                                                                                  \
    {                                                                                                   \
        failing_sweep(&(struct failing_case){#kind, false, set_up, act, NULL, tear_down, NULL, &kind}); \
    }

EACH(uring)
EACH(threads)
