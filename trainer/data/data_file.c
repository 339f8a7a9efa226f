#include "trainer/data/data_file.h"

#include "ckpt/base/heartbeat.h"
#include "ckpt/base/scheme.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static pd_status check_kind(int fd, const char *path, bool may_be_empty, uint64_t *ret_bytes, struct pd_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) PD_FAIL_ERRNO(err, errno, "%s", path);
    if (S_ISDIR(st.st_mode)) PD_FAIL(err, PD_INVALID, "%s is a directory; name the files in it", path);
    if (!S_ISREG(st.st_mode))
        PD_FAIL(err, PD_INVALID, "%s is not a regular file, and data is read more than once; copy it to a disk", path);
    if (st.st_size == 0 && !may_be_empty) PD_FAIL(err, PD_INVALID, "%s is empty; leave it out or write it again", path);
    *ret_bytes = (uint64_t)st.st_size;
    return PD_OK;
}

pd_status pd_data_file_open(const char *path, bool may_be_empty, int *ret_fd, uint64_t *ret_bytes, struct pd_error *err)
{
    PD_TRY(pd_scheme_check("data", path, PD_INVALID, err));
    int fd;
    PD_ON_STORAGE(fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)); /* a pipe without a writer must not block */
    if (fd < 0) PD_FAIL_ERRNO(err, errno, "%s cannot be read", path);
    pd_status status = check_kind(fd, path, may_be_empty, ret_bytes, err);
    if (status) {
        close(fd);
        return status;
    }
    *ret_fd = fd;
    return PD_OK;
}

pd_status pd_data_file_read(int fd, const char *path, uint64_t offset, void *data, uint64_t bytes, struct pd_error *err)
{
    char *at = data;
    while (bytes) {
        ssize_t got;
        PD_ON_STORAGE(got = pread(fd, at, bytes, (off_t)offset));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) PD_FAIL_ERRNO(err, errno, "%s: reading at byte %" PRIu64, path, offset);
        if (got == 0)
            PD_FAIL(err, PD_IO,
                    "%s ends at byte %" PRIu64 ": it became shorter while in use; put the file back and run again", path,
                    offset);
        at += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return PD_OK;
}

char *pd_data_beside(const char *path, const char *end)
{
    char *whole = NULL;
    return asprintf(&whole, "%s%s", path, end) < 0 ? NULL : whole;
}
