/* The rungs of io_uring as a real kernel refuses them: a small memlock limit, a seccomp filter. */
#include "ckpt/io/vfs.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BUFFER_BYTES (UINT64_C(4) << 20)

/* Opens a queue over buffers of 4 MiB, writes and reads through it. */
static void exercise(struct pd_vfs *vfs)
{
    struct pd_error err = {0};
    struct pd_queue *queue;
    struct pd_file *file;
    char *data = aligned_alloc(4096, BUFFER_BYTES), path[64];
    memset(data, 'x', BUFFER_BYTES);
    snprintf(path, sizeof path, "/tmp/perdure-ladder-%d", (int)getpid());
    cr_assert_eq(pd_queue_open(vfs, data, BUFFER_BYTES, &queue, &err), PD_OK, "%s", err.message);
    unsigned flags = PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_DIRECT;
    cr_assert_eq(pd_file_open(vfs, path, flags, &file, &err), PD_OK, "%s", err.message);
    for (int phase = 0; phase < 2; phase++) {
        struct pd_transfer transfer = {.file = file, .data = data, .bytes = BUFFER_BYTES, .is_write = phase == 0};
        struct pd_transfer *list = &transfer;
        uint32_t count = 0;
        cr_assert_eq(pd_queue_submit(queue, &list, 1, &err), PD_OK, "%s", err.message);
        cr_assert_eq(pd_queue_reap(queue, &list, 1, &count, &err), PD_OK, "%s", err.message);
        cr_assert_eq(pd_transfer_error(&transfer, &err), PD_OK, "%s", err.message);
        if (phase == 0) memset(data, 0, BUFFER_BYTES);
    }
    cr_assert(data[0] == 'x' && data[BUFFER_BYTES - 1] == 'x');
    pd_queue_close(queue);
    cr_assert_eq(pd_file_close(file, &err), PD_OK);
    cr_assert_eq(pd_vfs_unlink(vfs, path, &err), PD_OK);
    free(data);
}

static struct pd_vfs *open_uring(void)
{
    struct pd_vfs *vfs;
    struct pd_error err = {0};
    cr_assert_eq(pd_vfs_new_uring(8, &vfs, &err), PD_OK, "%s", err.message);
    return vfs;
}

Test(ladder, a_small_memlock_limit_leaves_buffers_unregistered)
{
    const struct rlimit small = {65536, 65536};
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &small), 0);
    if (geteuid() == 0) cr_assert_eq(setresuid(65534, 65534, 65534), 0); /* root may lock what it likes */
    struct pd_vfs *vfs = open_uring();
    bool has_rings = strncmp(pd_vfs_describe(vfs), "io_uring", 8) == 0;
    exercise(vfs);
    const char *description = pd_vfs_describe(vfs);
    cr_assert(!has_rings ||
                  strstr(description, "unregistered buffers (4 MiB: Cannot allocate memory; raise the memlock limit)"),
              "%s", description);
    pd_vfs_free(vfs);
}

static void forbid(int call)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {sizeof program / sizeof *program, program};
    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

static void expect_threads(struct pd_vfs *vfs)
{
    const char *description = pd_vfs_describe(vfs);
    cr_assert(strstr(description, "threads (io_uring: Operation not permitted; ") && strstr(description, "seccomp"), "%s",
              description);
    pd_vfs_free(vfs);
}

/* What container runtimes do by default. */
Test(ladder, a_seccomp_filter_leaves_threads)
{
    forbid(__NR_io_uring_setup);
    struct pd_vfs *vfs = open_uring();
    exercise(vfs);
    expect_threads(vfs);
}

/* A ring can be set up, and not be used. */
Test(ladder, a_seccomp_filter_of_rings_that_are_there_leaves_threads)
{
    forbid(__NR_io_uring_enter);
    struct pd_vfs *vfs = open_uring();
    exercise(vfs);
    expect_threads(vfs);
}

/* The first ring works and those of queues do not: what they were given is moved by threads. */
Test(ladder, a_seccomp_filter_that_comes_later_leaves_threads)
{
    struct pd_vfs *vfs = open_uring();
    const bool has_rings = strncmp(pd_vfs_describe(vfs), "io_uring", 8) == 0;
    forbid(__NR_io_uring_enter);
    exercise(vfs);
    if (has_rings) expect_threads(vfs);
}
