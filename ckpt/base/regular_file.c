#include "ckpt/base/regular_file.h"

#include "ckpt/base/heartbeat.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int open_retried(const char *path, int flags)
{
    int fd;
    do {
        PD_ON_STORAGE(fd = open(path, flags | O_CLOEXEC, 0666));
    } while (fd < 0 && errno == EINTR);
    return fd;
}

/* Clears O_NONBLOCK: it was only for opening a pipe, and io_uring would refuse reads that must wait for the disk. */
static int let_wait(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0 ? 0 : errno;
}

int pd_regular_open(const char *path, int flags, int *ret_fd)
{
    struct stat st;
    int fd = open_retried(path, flags | O_NONBLOCK), result = 0;
    if (fd < 0) return errno == ENODEV ? ENXIO : errno;
    if (fstat(fd, &st) != 0)
        result = errno;
    else if (!S_ISREG(st.st_mode))
        result = S_ISDIR(st.st_mode) ? EISDIR : ENXIO;
    else
        result = let_wait(fd);
    if (result)
        close(fd);
    else
        *ret_fd = fd;
    return result;
}

static int regular_file_append(int fd, const char *line, size_t bytes)
{
    struct stat before, now;
    char last = '\n';
    if (fstat(fd, &before) != 0) return errno;
    if (before.st_size > 0 && pread(fd, &last, 1, before.st_size - 1) < 0) return errno;
    struct iovec parts[] = {{"\n", last != '\n'}, {(char *)(uintptr_t)line, bytes}};
    const ssize_t written = writev(fd, parts, 2);
    if (written == (ssize_t)(parts[0].iov_len + bytes)) return 0;
    const int number = written < 0 ? errno : ENOSPC; /* a short write means a full disk */
    if (written > 0 && fstat(fd, &now) == 0 && now.st_size == before.st_size + written) (void)!ftruncate(fd, before.st_size);
    return number;
}

int pd_regular_append(int fd, const char *line, size_t bytes)
{
    int number;
    PD_ON_STORAGE(number = regular_file_append(fd, line, bytes));
    return number;
}

bool pd_regular_is_other(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

FILE *pd_regular_fopen(const char *path, bool appends)
{
    int fd = -1, number = pd_regular_open(path, appends ? O_WRONLY | O_CREAT | O_APPEND : O_RDONLY, &fd);
    FILE *f = number ? NULL : fdopen(fd, appends ? "a" : "r");
    if (f) return f;
    if (!number) {
        number = errno;
        close(fd);
    }
    errno = number;
    return NULL;
}
